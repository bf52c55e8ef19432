"""What stands before the request channel until the peer of a connection is known.

`TlsGate`: on SSL listeners the peer is whom its certificate names, once the handshake is done.
`SaslGate`: the state machine of SaslServerAuthenticator (SA-1 to SA-11):

    START          one ApiVersions, answered like any other; then
    HANDSHAKE      SaslHandshake, which names the mechanism
    AUTHENTICATE   tokens: in SaslAuthenticate after a handshake of version 1, bare after version 0
    COMPLETE       the gate goes, or stays to see that the session does not outlive its time

Keys are looked at before anything is decoded; whatever else comes ends the connection, with an
answer (ILLEGAL_SASL_STATE) only while tokens are exchanged. A refusal is answered late, by
`connection.failed.authentication.delay.ms`, and read nothing meanwhile; the text is the same
whatever was wrong, but for PLAIN's own. All of it must be done in SETUP_MS (N-11).

On the processor's thread; nothing here computes for long (a server's side of SCRAM is four HMACs).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from server.network.channel import TokenPrincipal
from server.security.sasl.mechanisms import AuthenticationFailed, NewSaslServer, SaslServer
from wire.errors import ErrorCode, MalformedFrame
from wire.frame import (
    API_VERSIONS,
    REQUEST_BYTES_MIN,
    SIZE_BYTES,
    RequestHeader,
    encode_response,
    response_header_version,
)
from wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from server.network.channel import Channel
    from server.network.request_channel import RequestChannel
    from server.security.principal_mapping import NameOf
    from server.security.tls_transport import TlsTransport
    from wire.schema import Request, Response

logger = logging.getLogger(__name__)

SETUP_MS = 10_000
"""TLS and SASL together may take so long (N-11)."""
REAUTHENTICATION_PAUSE_MS = 1_000
"""From one renewal of a session to the next; the first may follow the login at once (SA-6)."""
_API_VERSIONS_MAX = 4
_NAME_SHOWN = 64


class TlsGate:
    """Of a listener without SASL: says who the peer is when its first request arrives."""

    def __init__(
        self,
        transport: TlsTransport,
        requests: RequestChannel,
        name_of: Callable[[bytes], str | None],
        now_ms: int,
    ) -> None:
        """`name_of` a certificate in DER; None if nobody may be called that."""
        self._transport = transport
        self._requests = requests
        self._name_of = name_of
        self._deadline_ms = now_ms + SETUP_MS

    def receive(self, channel: Channel, frame: bytes) -> bool:
        certificate = self._transport.peer_certificate()
        if certificate is not None:
            name = self._name_of(certificate)
            if not name:
                refuse(channel, "no rule of ssl.principal.mapping.rules fits its certificate")
                return True
            channel.principal = f"User:{name}"
        channel.gate = None
        return self._requests.receive(channel, frame)

    def overdue(self, channel: Channel) -> str | None:
        if self._transport.is_ready or channel.processor.now_ms <= self._deadline_ms:
            return None
        return "the TLS handshake took too long"


def refuse(channel: Channel, reason: str) -> None:
    """Answer nothing more on this connection, and end it."""
    channel.violation = reason
    channel.frames.clear()


class SaslPolicy(NamedTuple):
    """What a listener asks of those who authenticate."""

    mechanisms: Mapping[str, NewSaslServer]
    receive_bytes_max: int
    """sasl.server.max.receive.size"""
    failure_delay_ms: int
    """connection.failed.authentication.delay.ms"""
    reauthentication_ms: Mapping[str, int]
    """connections.max.reauth.ms by mechanism; 0: sessions do not end."""


class _State(Enum):
    START = "initial"
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    COMPLETE = "complete"
    FAILED = "failed"


class SaslGate:
    """One connection's authentication; see the module."""

    def __init__(self, channel: Channel, requests: RequestChannel, policy: SaslPolicy) -> None:
        self._requests = requests
        self._policy = policy
        self._state = _State.START
        self._server: SaslServer | None = None
        self._mechanism = ""
        self._is_raw = False
        self._principal = ""
        """Who authenticated first; sessions are renewed by nobody else."""
        self._begun_ms = channel.processor.now_ms
        self._renewed_ms: int | None = None
        """When the session was last begun anew."""
        self._expires_ms = 0
        self._refusal: list[Any] = []
        self._be_strict(channel)

    def _be_strict(self, channel: Channel) -> None:
        channel.limit, channel.is_known = self._policy.receive_bytes_max, False

    def overdue(self, channel: Channel) -> str | None:
        late = channel.processor.now_ms - self._begun_ms > SETUP_MS
        if late and self._state is not _State.COMPLETE:
            return "authentication took too long"
        return None

    def receive(self, channel: Channel, frame: bytes) -> bool:
        if self._state is _State.FAILED:  # the delay is over
            channel.outbox += self._refusal
            refuse(channel, f"authentication failed mechanism={self._mechanism}")
            return True
        if self._is_raw:
            self._raw_token(channel, frame)
            return True
        key = int.from_bytes(frame[4:6], "big")
        if self._state is _State.COMPLETE:
            return self._session(channel, frame, key)
        if key == API_VERSIONS and self._state is _State.START:
            if not self._requests.receive(channel, frame):
                return False
            if int.from_bytes(frame[6:8], "big") <= _API_VERSIONS_MAX:
                self._state = _State.HANDSHAKE
            return True
        self._authentication(channel, frame, key)
        return True

    # -- a session that may end

    def _session(self, channel: Channel, frame: bytes, key: int) -> bool:
        now_ms = channel.processor.now_ms
        if key == SaslHandshakeRequest.api_key:
            last_ms = self._renewed_ms
            if last_ms is not None and now_ms - last_ms < REAUTHENTICATION_PAUSE_MS:
                return self._requests.receive(channel, frame)  # answered ILLEGAL_SASL_STATE
            self._begun_ms = self._renewed_ms = now_ms
            self._state = _State.HANDSHAKE
            self._be_strict(channel)
            self._authentication(channel, frame, key)
            return True
        if now_ms > self._expires_ms:
            refuse(channel, "the session has expired")
            return True
        return self._requests.receive(channel, frame)

    # -- frames before it is known who sends

    def _authentication(self, channel: Channel, frame: bytes, key: int) -> None:
        wanted: type[Request] = SaslHandshakeRequest
        if self._state is _State.AUTHENTICATE:
            wanted = SaslAuthenticateRequest
        try:
            header = RequestHeader.decode(frame[SIZE_BYTES:])
            if key != wanted.api_key:
                self._illegal(channel, frame, header)
                return
            low, high = wanted.versions
            if not low <= header.api_version <= high:
                refuse(channel, f"{wanted.__name__} of a version that nobody serves")
                return
            request: Any = wanted.decode(frame, header.api_version, SIZE_BYTES + header.body_pos, 8)
        except (MalformedFrame, IndexError):
            refuse(channel, "a malformed request before authentication")
            return
        if key == SaslHandshakeRequest.api_key:
            self._handshake(channel, header, request.mechanism)
        else:
            self._token(channel, header, bytes(request.auth_bytes))

    def _illegal(self, channel: Channel, frame: bytes, header: RequestHeader) -> None:
        """While tokens are exchanged, another API is told so in its own shape."""
        from server.network.error_responses import error_response
        from wire.messages import request_class

        if self._state is _State.AUTHENTICATE:
            # An API that nobody knows, or a request too large to be looked at.
            with contextlib.suppress(LookupError, MalformedFrame):
                kind, version = request_class(header.api_key), header.api_version
                low, high = kind.versions
                if low <= version <= high:
                    request = kind.decode(frame, version, SIZE_BYTES + header.body_pos, 8)
                    answer = error_response(request, version, ErrorCode.ILLEGAL_SASL_STATE)
                    self._answer(channel, header, answer)
        refuse(channel, f"API {header.api_key} before authentication")

    def _handshake(self, channel: Channel, header: RequestHeader, mechanism: str) -> None:
        offered = list(self._policy.mechanisms)
        new_server = self._policy.mechanisms.get(mechanism)
        response = SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=offered)
        if new_server is None:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            self._answer(channel, header, response)
            refuse(channel, f"SASL mechanism {mechanism[:_NAME_SHOWN]!r} is not enabled")
            return
        if self._principal and mechanism != self._mechanism:
            refuse(channel, "re-authentication by another mechanism")
            return
        self._mechanism, self._server = mechanism, new_server()
        self._state = _State.AUTHENTICATE
        self._is_raw = header.api_version == 0
        if self._is_raw:
            channel.set_shortest(0)
        self._answer(channel, header, response)

    # -- tokens

    def _token(self, channel: Channel, header: RequestHeader, token: bytes) -> None:
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.NONE, error_message="", auth_bytes=b""
        )
        try:
            response.auth_bytes = self._evaluate(token)
        except AuthenticationFailed as error:
            response.error_code = ErrorCode.SASL_AUTHENTICATION_FAILED
            response.error_message = str(error) or (
                "Authentication failed during authentication due to invalid credentials with SASL"
                f" mechanism {self._mechanism}"
            )
            self._fail(channel, self._parts(header, response))
            return
        if self._server is not None and self._server.is_complete:
            response.session_lifetime_ms = self._complete(channel)
        self._answer(channel, header, response)

    def _raw_token(self, channel: Channel, frame: bytes) -> None:
        """A token of a client whose handshake was version 0."""
        try:
            token = self._evaluate(frame[SIZE_BYTES:])
        except AuthenticationFailed:
            self._fail(channel, [])
            return
        if self._server is not None and self._server.is_complete:
            self._complete(channel)
        channel.outbox.append(bytearray(len(token).to_bytes(SIZE_BYTES, "big") + token))

    def _evaluate(self, token: bytes) -> bytes:
        assert self._server is not None
        try:
            answer = self._server.evaluate(token)
        except AuthenticationFailed:
            raise
        except Exception:
            logger.exception("SASL failed mechanism=%s", self._mechanism)
            raise AuthenticationFailed from None
        if self._server.is_complete and self._principal not in ("", self._server.principal):
            raise AuthenticationFailed(
                "Cannot change principals during re-authentication from"
                f" User:{self._principal} to User:{self._server.principal}"
            )
        return answer

    def _complete(self, channel: Channel) -> int:
        """The peer is known. Returns how long, in ms; 0: as long as it likes."""
        assert self._server is not None
        self._principal, credential_ms = self._server.principal, self._server.lifetime_ms
        name = f"User:{self._principal}"
        channel.principal = TokenPrincipal(name) if self._server.is_token else name
        self._server = None
        self._state = _State.COMPLETE
        self._is_raw = False
        channel.set_shortest(REQUEST_BYTES_MIN)
        channel.limit, channel.is_known = channel.limits.frame_bytes_max, True
        limits = (self._policy.reauthentication_ms.get(self._mechanism) or None, credential_ms)
        lifetimes = [one for one in limits if one is not None]
        lifetime_ms = min(lifetimes, default=0)
        if lifetimes:
            self._expires_ms = channel.processor.now_ms + lifetime_ms
        else:
            channel.gate = None
        return lifetime_ms

    def _fail(self, channel: Channel, refusal: list[Any]) -> None:
        self._state, self._server, self._refusal = _State.FAILED, None, refusal
        self._is_raw = False
        channel.frames.clear()
        channel.frames.append(b"")  # what comes when the delay is over; nothing is read meanwhile
        channel.processor.pause(channel, self._policy.failure_delay_ms)

    # -- answers

    @staticmethod
    def _parts(header: RequestHeader, response: Response) -> list[Any]:
        version = header.api_version
        flexible = response_header_version(header.api_key, version)
        return encode_response(flexible, version, header.correlation_id, response)

    def _answer(self, channel: Channel, header: RequestHeader, response: Response) -> None:
        channel.outbox += self._parts(header, response)


def mapped_name(rules: NameOf, certificate: bytes) -> str | None:
    """The principal's name for a certificate (TLS-10); None if there is none."""
    from server.security.certificates import CertificateError, read_certificate

    try:
        return rules(read_certificate(certificate).subject)
    except CertificateError:
        return None
