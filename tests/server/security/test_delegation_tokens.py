"""Who shows a delegation token is its owner, for as long as it lasts."""

from __future__ import annotations

import base64
import contextlib
import hmac
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from server.network.channel import TokenPrincipal
from server.network.socket_server import SocketServer
from server.security.delegation_tokens import DelegationTokens
from server.security.sasl.mechanisms import AuthenticationFailed
from server.security.sasl.scram import ScramClient, ScramServer
from testkit.clock import ManualClock
from tests.server.security.security_support import secured
from tests.server.security.test_gates import (
    SASL,
    Raw,
    authenticate,
    credentials,
    handshake,
    serving,
)
from wire.messages.metadata_records import DelegationTokenRecord

SECRET = "the key of all nodes"
ID = "AQEBAQEBAQEBAQEBAQEBAQ"
PASSWORD = base64.b64encode(hmac.digest(SECRET.encode(), ID.encode(), "sha512")).decode()


def record(**changes: Any) -> DelegationTokenRecord:
    given: dict[str, Any] = {
        "owner": "User:alice", "requester": "User:admin", "renewers": [], "issue_timestamp": 0,
        "max_timestamp": 1 << 62, "expiration_timestamp": 1 << 61, "token_id": ID, **changes,
    }  # fmt: skip
    return DelegationTokenRecord(**given)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log() -> dict[str, DelegationTokenRecord]:
    return {ID: record()}


@pytest.fixture
def tokens(clock: ManualClock, log: dict[str, DelegationTokenRecord]) -> DelegationTokens:
    return DelegationTokens(SECRET, lambda: log, clock.wall_ms)


@pytest.fixture
def server(tokens: DelegationTokens) -> Iterator[SocketServer]:
    listener = secured("SASL_PLAINTEXT", SASL, credentials, tokens=tokens.credential)
    with serving(listener) as one:
        yield one


class TokenClient(ScramClient):
    """Java's with tokenauth=true."""

    def __init__(self, mechanism: str, user: str, password: str, extension: str) -> None:
        super().__init__(mechanism, user, password, "a nonce".replace(" ", "-"))
        self._bare += extension


def login(
    raw: Raw, user: str = ID, password: str = PASSWORD, extension: str = ",tokenauth=true",
    mechanism: str = "SCRAM-SHA-512",
) -> Any:  # fmt: skip
    """The last answer."""
    assert handshake(raw, mechanism).error_code == 0
    client = TokenClient(mechanism, user, password, extension)
    token, answer = client.evaluate(None), None
    while token is not None:
        answer = authenticate(raw, token)
        if answer.error_code:
            return answer
        token = client.evaluate(bytes(answer.auth_bytes))
    return answer


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_shows_a_token_is_its_owner_until_it_ends(
    server: SocketServer, clock: ManualClock, log: dict[str, DelegationTokenRecord], mechanism: str
) -> None:
    log[ID] = record(expiration_timestamp=clock.wall_ms() + 60_000)
    with Raw(server.port) as raw:
        answer = login(raw, mechanism=mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 60_000)
        (channel,) = (c for p in server.processors for c in list(p.channels.values()))
        assert channel.principal == "User:alice"
        assert isinstance(channel.principal, TokenPrincipal)


@pytest.mark.parametrize(
    ("user", "password", "extension"),
    [
        (ID, "wrong", ",tokenauth=true"),
        ("A" * 22, PASSWORD, ",tokenauth=true"),
        (ID, PASSWORD, ""),  # no user is called that
        (ID, PASSWORD, ",tokenauth=false"),
        ("carol", "carol-secret", ",tokenauth=true"),
        ("alice", PASSWORD, ",tokenauth=true"),
    ],
)
def test_a_token_is_its_id_and_its_secret(
    server: SocketServer, user: str, password: str, extension: str
) -> None:
    with Raw(server.port) as raw:
        answer = login(raw, user, password, extension)
        assert answer.error_code == 58
        assert answer.error_message.endswith("mechanism SCRAM-SHA-512")


def test_a_user_may_still_bring_other_extensions(server: SocketServer) -> None:
    with Raw(server.port) as raw:
        assert login(raw, "carol", "carol-secret", ",more=x").error_code == 0
        (channel,) = (c for p in server.processors for c in list(p.channels.values()))
        assert not isinstance(channel.principal, TokenPrincipal)


@pytest.mark.parametrize(
    "changes",
    [{"expiration_timestamp": -1}, {"max_timestamp": -1}, {"owner": "Group:g"}],
)
def test_what_has_ended_opens_nothing(
    tokens: DelegationTokens, log: dict[str, DelegationTokenRecord], changes: dict[str, Any]
) -> None:
    assert tokens.credential("SCRAM-SHA-256", ID) is not None
    log[ID] = record(**changes)
    assert tokens.credential("SCRAM-SHA-256", ID) is None
    log.clear()
    assert tokens.credential("SCRAM-SHA-256", ID) is None


def test_a_token_is_good_until_it_ends_however_slowly_it_is_shown(
    tokens: DelegationTokens, clock: ManualClock, log: dict[str, DelegationTokenRecord]
) -> None:
    mechanism = "SCRAM-SHA-256"
    log[ID] = record(expiration_timestamp=clock.wall_ms() + 9_000)
    for pause_ms, left_ms in ((4_000, 5_000), (6_000, None)):
        server = ScramServer(
            mechanism, lambda _user: None, b"", "x", partial(tokens.credential, mechanism)
        )
        client = TokenClient(mechanism, ID, PASSWORD, ",tokenauth=true")
        final = client.evaluate(server.evaluate(client.evaluate(None) or b""))
        clock.ms += pause_ms
        with contextlib.nullcontext() if left_ms else pytest.raises(AuthenticationFailed):
            server.evaluate(final or b"")
        assert server.is_complete is (left_ms is not None)
        assert not server.is_complete or server.lifetime_ms == left_ms


def test_what_logs_in_is_derived_once(tokens: DelegationTokens) -> None:
    first, again = (tokens.credential("SCRAM-SHA-256", ID) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.credential is again.credential
    assert first.credential.salt.isalnum()  # as of a token that is not there
    assert PASSWORD not in repr(first)


def test_an_exchange_that_is_repeated_opens_nothing(
    server: SocketServer,
) -> None:
    """Each has a nonce of the server's."""
    with Raw(server.port) as raw:
        handshake(raw, "SCRAM-SHA-512")
        client = TokenClient("SCRAM-SHA-512", ID, PASSWORD, ",tokenauth=true")
        first = client.evaluate(None)
        assert first is not None
        final = client.evaluate(bytes(authenticate(raw, first).auth_bytes))
        assert final is not None
        assert authenticate(raw, final).error_code == 0
    with Raw(server.port) as raw:
        handshake(raw, "SCRAM-SHA-512")
        authenticate(raw, first)
        assert authenticate(raw, final).error_code == 58
    with pytest.raises(AuthenticationFailed):
        client.evaluate(b"v=AAAA")
