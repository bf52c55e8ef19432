"""A request that stands for another on its way to the handler, and whose answer takes the same way
back: one inside an Envelope, or what an authorizer leaves of one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from server.network.error_responses import fault_code
from server.network.request_context import RequestContext
from wire.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.network.api import Api
    from wire.schema import Request, Response

logger = logging.getLogger(__name__)


class InnerContext(RequestContext[Any]):
    """Waiting, and the end of the connection, are the outer request's; how to `send` is for who
    derives from it."""

    __slots__ = ("_outer",)

    def __init__(
        self,
        outer: RequestContext[Any],
        api: Api,
        api_version: int,
        correlation_id: int,
        client_id: str,
    ) -> None:
        super().__init__(
            api, api_version, correlation_id, client_id, outer.connection, outer.broker
        )
        self._outer = outer

    @property
    def principal(self) -> str:
        return self._outer.principal

    @property
    def peer_host(self) -> str:
        return self._outer.peer_host

    @property
    def is_forwarded(self) -> bool:
        return self._outer.is_forwarded

    def run(self, handle: Callable[[Any, Any], Response | None], request: Request) -> None:
        """Have `request` handled; whatever becomes of it is answered through here."""
        try:
            response = handle(self, request)
        except KafkaError as error:
            self.respond_error(request, error.code, error.detail)
        except Exception:
            logger.exception("request failed %r", self)
            self.respond_error(request, fault_code(self.api_key))
        else:
            if response is not None:
                self.respond(response)

    @property
    def fetch_bytes_max(self) -> int:  # type: ignore[override]  # a class attribute, as a default
        return self._outer.fetch_bytes_max

    def mute_for(self, ms: int) -> None:
        self._outer.mute_for(ms)

    def exempt(self, *, is_allowed: bool = True) -> None:
        self._outer.exempt(is_allowed=is_allowed)

    def no_response(self) -> None:
        self._outer.no_response()

    def close(self) -> None:
        self._outer.close()

    def on_disconnect(self, cancel: Callable[[], Any]) -> None:
        self._outer.on_disconnect(cancel)

    def on_stop(self, complete: Callable[[], Any]) -> None:
        self._outer.on_stop(complete)
