"""A client's request on its way from a broker to the controller (KIP-590)."""

from __future__ import annotations

from wire.schema import Bytes, Int16, Request, Response


class EnvelopeRequest(Request, key=58, versions=(0, 0), flexible=0):
    """A broker forwards a client's request to the controller."""

    request_data: bytes = Bytes()
    request_principal: bytes | None = Bytes(nullable=0)
    client_host_address: bytes = Bytes()


class EnvelopeResponse(Response, to=EnvelopeRequest):
    """The controller's answer to the request inside."""

    response_data: bytes | None = Bytes(nullable=0, default=None)
    error_code: int = Int16()
