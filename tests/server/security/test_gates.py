"""A whole SocketServer with a secured listener, and peers that say who they are, or do not."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replication.controller.scram import MECHANISMS, scram_record
from replication.metadata.image import EMPTY_IMAGE
from server.handlers import BROKER_APIS
from server.network.listeners import Listener
from server.network.socket_server import SocketServer, SocketServerConfig
from server.peers.blocking_peer import BlockingPeer
from server.security.listener_security import SecuredListener
from server.security.peer_security import client_security
from server.security.sasl.client import AuthenticationError, SaslClient
from server.security.sasl.scram import TYPES, ScramCredential, salted_password
from tests.server.network.network_support import wait_until
from tests.server.security.security_support import Authority, nobody, pkcs8, secured
from wire.errors import ErrorCode
from wire.frame import encode_request
from wire.messages import response_class
from wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.groups import ListGroupsRequest
from wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from wire.schema import Request

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.ext.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="bob-secret";'
    ),
    "listener.name.ext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.ext.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "connection.failed.authentication.delay.ms": "50",
}


def credentials(mechanism: str, user: str) -> ScramCredential | None:
    if user != "carol":
        return None
    salted = salted_password(mechanism, "carol-secret", b"salt", 4096)
    kept = scram_record(user, MECHANISMS[mechanism], salted, b"salt", 4096)
    assert kept.mechanism == TYPES[mechanism]
    return ScramCredential(kept.salt, kept.stored_key, kept.server_key, kept.iterations)


@contextmanager
def serving(listener: SecuredListener, **limits: Any) -> Iterator[SocketServer]:
    server = SocketServer(
        SocketServerConfig(**limits),
        [Listener(listener.name, "127.0.0.1", 0, listener.protocol)],
        _Node(),
        BROKER_APIS,
        security={listener.name: listener},
    )
    server.start()
    try:
        yield server
    finally:
        server.shutdown(2.0)


class _Node:
    """As much of a node as ApiVersions asks."""

    role = "broker"
    unlisted_apis: frozenset[int] = frozenset()
    metadata = EMPTY_IMAGE
    raft = SimpleNamespace(voters=SimpleNamespace(kraft_version=1))


def principals(server: SocketServer) -> set[str]:
    return {c.principal for p in server.processors for c in list(p.channels.values())}


def ask_as_known(peer: BlockingPeer) -> SaslAuthenticateResponse:
    """A request that a node answers to those it knows: a token that nobody asked for."""
    return peer.exchange(SaslAuthenticateRequest(auth_bytes=b""), 1, SaslAuthenticateResponse)


def peer(server: SocketServer, host: str = "localhost", **properties: str) -> BlockingPeer:
    named = {key.replace("__", "-").replace("_", "."): text for key, text in properties.items()}
    return BlockingPeer(host, server.port, "test", 10.0, client_security(named))


def jaas(user: str, password: str, module: str = PLAIN_MODULE) -> str:
    return f'{module} required username="{user}" password="{password}";'


class Raw:
    """A connection that says what it likes."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 10)
        self.sock.settimeout(10)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")

    def send(self, request: Request, version: int) -> None:
        self.sock.sendall(b"".join(bytes(p) for p in encode_request(version, 7, "raw", request)))

    def frame(self) -> bytes:
        """The next frame without its size; b"" if the other side hung up."""
        head = self._exactly(4)
        return self._exactly(struct.unpack(">i", head)[0]) if head else b""

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self.sock.recv(count - len(data))
            except ConnectionError:
                return b""
            if not more:
                return b""
            data += more
        return data

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def handshake(raw: Raw, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
    raw.send(SaslHandshakeRequest(mechanism=mechanism), version)
    return SaslHandshakeResponse.decode(raw.frame(), version, 4)


def authenticate(raw: Raw, token: bytes, version: int = 1) -> SaslAuthenticateResponse:
    raw.send(SaslAuthenticateRequest(auth_bytes=token), version)
    frame = raw.frame()
    return SaslAuthenticateResponse.decode(frame, version, 4)


@pytest.fixture
def plaintext() -> Iterator[SocketServer]:
    with serving(secured("SASL_PLAINTEXT", SASL, credentials)) as server:
        yield server


@pytest.mark.parametrize(
    ("mechanism", "login", "principal"),
    [
        ("PLAIN", jaas("alice", "alice-secret"), "User:alice"),
        ("SCRAM-SHA-256", jaas("carol", "carol-secret", SCRAM_MODULE), "User:carol"),
        ("SCRAM-SHA-512", jaas("carol", "carol-secret", SCRAM_MODULE), "User:carol"),
    ],
)
def test_who_knows_the_password_is_known(
    plaintext: SocketServer, mechanism: str, login: str, principal: str
) -> None:
    one = peer(
        plaintext,
        security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_jaas_config=login,
    )  # fmt: skip
    assert ask_as_known(one).error_code == 34  # served, and nobody may begin again
    assert principals(plaintext) == {principal}
    one.close()


@pytest.mark.parametrize(
    ("mechanism", "login"),
    [
        ("PLAIN", jaas("alice", "wrong")),
        ("PLAIN", jaas("carol", "carol-secret")),
        ("SCRAM-SHA-256", jaas("carol", "wrong", SCRAM_MODULE)),
        ("SCRAM-SHA-256", jaas("nobody", "wrong", SCRAM_MODULE)),
    ],
)
def test_who_does_not_is_told_late_and_the_same(
    plaintext: SocketServer, mechanism: str, login: str
) -> None:
    one = peer(
        plaintext,
        security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_jaas_config=login,
    )  # fmt: skip
    began = time.monotonic()
    with pytest.raises(AuthenticationError) as failed:
        ask_as_known(one)
    assert time.monotonic() - began >= 0.05
    expected = (
        "Authentication failed: Invalid username or password"
        if mechanism == "PLAIN"
        else "Authentication failed during authentication due to invalid credentials with SASL"
        f" mechanism {mechanism}"
    )
    assert str(failed.value) == expected


@pytest.mark.parametrize(("protocol", "is_told"), [("SASL_PLAINTEXT", True), ("SASL_SSL", False)])
def test_passwords_that_are_not_encrypted_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: str, is_told: bool
) -> None:
    authority = Authority(tmp_path)
    tls = authority.tls_keys(authority.key_store("s.pem", "localhost"))
    secured(protocol, {**SASL, **tls}, credentials)
    assert ("takes passwords unencrypted" in caplog.text) is is_told


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (ApiVersionsRequest(), 2),
        (ListGroupsRequest(), 2),
    ],
)
def test_between_handshake_and_token_another_request_is_told_what_is_wrong(
    plaintext: SocketServer, request_: Any, version: int
) -> None:
    with Raw(plaintext.port) as raw:
        assert handshake(raw).error_code == 0
        raw.send(request_, version)
        said = response_class(request_.api_key).decode(raw.frame(), version, 4)
        assert said.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert raw.frame() == b""


def test_nothing_but_three_apis_before_authentication(plaintext: SocketServer) -> None:
    for key in range(-2, 100):
        if key in (17, 18):
            continue
        with Raw(plaintext.port) as raw:
            raw.sock.sendall(struct.pack(">ihhih", 10, key, 0, 1, -1))
            assert raw.frame() == b"", key
    for key in (0, 3, 18, 17):
        with Raw(plaintext.port) as raw:
            assert handshake(raw).error_code == 0
            raw.sock.sendall(struct.pack(">ihhih", 10, key, 0, 1, -1))
            said = raw.frame()
            assert said == b"" or b"\x00\x22" in said  # ILLEGAL_SASL_STATE, then the end
            assert raw.frame() == b""


def test_api_versions_once_and_then_the_handshake(plaintext: SocketServer) -> None:
    with Raw(plaintext.port) as raw:
        raw.send(ApiVersionsRequest(), 0)
        answer = ApiVersionsResponse.decode(raw.frame(), 0, 4)
        assert {api.api_key for api in answer.api_keys} >= {0, 1, 3, 17, 18, 36}
        raw.send(ApiVersionsRequest(), 0)
        assert raw.frame() == b""


def test_a_connection_may_begin_while_the_queue_of_requests_is_full(
    plaintext: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, full = plaintext.request_channel.receive, iter([True])
    monkeypatch.setattr(
        plaintext.request_channel,
        "receive",
        lambda channel, frame: not next(full, False) and receive(channel, frame),
    )
    with Raw(plaintext.port) as raw:
        raw.send(ApiVersionsRequest(), 0)
        assert ApiVersionsResponse.decode(raw.frame(), 0, 4).error_code == 0
        assert handshake(raw).error_code == 0


def test_an_api_versions_of_the_future_may_be_said_again(plaintext: SocketServer) -> None:
    with Raw(plaintext.port) as raw:
        raw.sock.sendall(struct.pack(">ihhih", 10, 18, 99, 1, -1))
        assert ApiVersionsResponse.decode(raw.frame(), 0, 4).error_code == 35
        raw.send(ApiVersionsRequest(), 0)
        assert ApiVersionsResponse.decode(raw.frame(), 0, 4).error_code == 0
        assert handshake(raw).error_code == 0


def test_a_mechanism_that_is_not_enabled_is_named_with_those_that_are(
    plaintext: SocketServer,
) -> None:
    with Raw(plaintext.port) as raw:
        answer = handshake(raw, "GSSAPI")
        assert answer.error_code == 33
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert raw.frame() == b""


@pytest.mark.parametrize(
    ("offered", "told"),
    [
        (["PLAIN", "OAUTHBEARER"], "SASL GSSAPI is not offered, but PLAIN, OAUTHBEARER"),
        ([], "SASL GSSAPI is not offered, nor any other: no login is asked for"),
    ],
)
def test_a_client_whose_mechanism_is_not_enabled_says_which_are(
    offered: list[str], told: str
) -> None:
    client = SaslClient("GSSAPI", None)  # type: ignore[arg-type]
    with pytest.raises(AuthenticationError) as error:
        client.then(SaslHandshakeResponse(error_code=33, mechanisms=offered))
    assert str(error.value) == told


def test_tokens_are_bare_after_a_handshake_of_version_0(plaintext: SocketServer) -> None:
    with Raw(plaintext.port) as raw:
        assert handshake(raw, version=0).error_code == 0
        token = b"\0bob\0bob-secret"
        raw.sock.sendall(struct.pack(">i", len(token)) + token)
        assert raw._exactly(4) == bytes(4)  # an empty token
        assert handshake(raw).error_code == 34
        assert principals(plaintext) == {"User:bob"}
    with Raw(plaintext.port) as raw:
        handshake(raw, version=0)
        raw.sock.sendall(struct.pack(">i", 3) + b"\0a\0")
        assert raw.frame() == b""


def test_what_is_too_short_for_a_request_ends_the_connection_behind_a_bare_token_too(
    plaintext: SocketServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Bare tokens may be short; what was read together with the last of them may not."""
    with Raw(plaintext.port) as raw:
        handshake(raw, version=0)
        token = b"\0bob\0bob-secret"
        raw.sock.sendall(struct.pack(">i", len(token)) + token + struct.pack(">i", 2) + b"xx")
        assert raw._exactly(4) == bytes(4)
        assert raw.frame() == b""
    assert not [record for record in caplog.records if record.exc_info]


def test_frames_are_small_until_the_peer_is_known() -> None:
    keys = {**SASL, "sasl.server.max.receive.size": "1000"}
    with serving(secured("SASL_PLAINTEXT", keys)) as server:
        with Raw(server.port) as raw:
            raw.sock.sendall(struct.pack(">ihhih", 1001, 17, 1, 1, -1))
            assert raw.frame() == b""
        with Raw(server.port) as raw:
            handshake(raw)
            assert authenticate(raw, b"\0alice\0alice-secret").error_code == 0
            raw.send(SaslHandshakeRequest(mechanism="x" * 5000), 1)
            assert SaslHandshakeResponse.decode(raw.frame(), 1, 4).error_code == 34


def test_half_sent_frames_of_strangers_take_no_memory_from_those_who_are_known() -> None:
    listener = secured("SASL_PLAINTEXT", SASL, credentials)
    with serving(listener, queued_max_request_bytes=200_000) as server, ExitStack() as stack:
        alice = stack.enter_context(Raw(server.port))
        handshake(alice)
        assert authenticate(alice, b"\0alice\0alice-secret").error_code == 0
        before = server.processors[0].bytes_in
        for _ in range(3):
            stranger = stack.enter_context(Raw(server.port))
            stranger.sock.sendall(struct.pack(">i", 500_000) + bytes(400_000))
        wait_until(server, lambda: server.processors[0].bytes_in - before > 200_000)
        assert server.memory.available == 200_000
        alice.sock.sendall(struct.pack(">i", 150_000) + bytes(100_000))
        wait_until(server, lambda: server.memory.available < 200_000)


def test_a_token_before_a_handshake_ends_the_connection(plaintext: SocketServer) -> None:
    with Raw(plaintext.port) as raw:
        raw.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 1)
        assert raw.frame() == b""


# ---- sessions


@pytest.fixture
def short_sessions() -> Iterator[SocketServer]:
    keys = {**SASL, "connections.max.reauth.ms": "1200"}
    with serving(secured("SASL_PLAINTEXT", keys, credentials)) as server:
        yield server


def now(server: SocketServer, ms: int) -> None:
    """Let the server's clock go on: it is real, so wait; the least that there is to wait for."""
    threading.Event().wait(ms / 1000)


def test_a_session_ends_and_may_be_renewed_by_the_same_user(short_sessions: SocketServer) -> None:
    with Raw(short_sessions.port) as raw:
        handshake(raw)
        answer = authenticate(raw, b"\0alice\0alice-secret")
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 1200)
        now(short_sessions, 1050)
        assert handshake(raw).error_code == 0
        assert authenticate(raw, b"\0alice\0alice-secret").error_code == 0
        assert handshake(raw).error_code == 34  # at most once a second
        now(short_sessions, 1300)
        raw.send(ApiVersionsRequest(), 0)
        assert raw.frame() == b""


def test_the_first_renewal_may_follow_the_login_at_once(short_sessions: SocketServer) -> None:
    """Java's client renews a session at 85 to 95 per cent of its time: where a token had a second
    left, ILLEGAL_SASL_STATE would have been the end of its producer."""
    with Raw(short_sessions.port) as raw:
        handshake(raw)
        assert authenticate(raw, b"\0alice\0alice-secret").error_code == 0
        assert handshake(raw).error_code == 0
        assert authenticate(raw, b"\0alice\0alice-secret").error_code == 0
        assert handshake(raw).error_code == 34


def test_tokens_are_small_when_a_session_is_renewed_too(short_sessions: SocketServer) -> None:
    """What computes on a network thread is bounded, whoever it is from."""
    with Raw(short_sessions.port) as raw:
        handshake(raw)
        authenticate(raw, b"\0alice\0alice-secret")
        now(short_sessions, 1050)
        assert handshake(raw).error_code == 0
        raw.sock.sendall(struct.pack(">ihhih", 1 << 20, 36, 1, 1, -1))
        assert raw.frame() == b""


def test_nobody_becomes_somebody_else(short_sessions: SocketServer) -> None:
    with Raw(short_sessions.port) as raw:
        handshake(raw)
        authenticate(raw, b"\0alice\0alice-secret")
        now(short_sessions, 1050)
        assert handshake(raw).error_code == 0
        answer = authenticate(raw, b"\0bob\0bob-secret")
        assert answer.error_code == 58
        assert "Cannot change principals" in (answer.error_message or "")
        assert raw.frame() == b""


def test_our_own_connections_are_made_anew_before_their_session_ends(
    short_sessions: SocketServer,
) -> None:
    one = peer(
        short_sessions,
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
        sasl_jaas_config=jaas("alice", "alice-secret"),
    )  # fmt: skip
    ask_as_known(one)
    now(short_sessions, 1250)
    assert ask_as_known(one).error_code == 34
    one.close()


# ---- TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_certificate_is_a_principal(authority: Authority, tmp_path: Path) -> None:
    keys = {
        **authority.tls_keys(authority.key_store("server.pem")),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:.*CN=([^,]*).*/$1/L",
    }
    client = authority.key_store("client.pem", "c@example.org", common_name="Kafka.Client")
    nameless = authority.key_store("nameless.pem", "c@example.org")
    trust = {"security_protocol": "SSL", "ssl_truststore_type": "PEM",
             "ssl_truststore_location": str(authority.file)}  # fmt: skip
    own = {**trust, "ssl_keystore_type": "PEM"}
    with serving(secured("SSL", keys)) as server:
        one = peer(server, **own, ssl_keystore_location=str(client))
        assert ask_as_known(one).error_code == 34
        assert principals(server) == {"User:kafka.client"}
        one.close()
        with pytest.raises(OSError):  # no rule fits
            ask_as_known(peer(server, **own, ssl_keystore_location=str(nameless)))
        with pytest.raises(OSError):  # no certificate
            ask_as_known(peer(server, **trust))
        alien = Authority(tmp_path, "other").key_store("alien.pem", "c@example.org")
        with pytest.raises(OSError):  # of another authority
            ask_as_known(peer(server, **own, ssl_keystore_location=str(alien)))


@pytest.mark.parametrize("auth", ["none", "requested"])
def test_without_a_certificate_one_is_anonymous_where_that_is_allowed(
    authority: Authority, tmp_path: Path, auth: str
) -> None:
    keys = {**authority.tls_keys(authority.key_store("server.pem")), "ssl.client.auth": auth}
    trust = {"security_protocol": "SSL", "ssl_truststore_type": "PEM",
             "ssl_truststore_location": str(authority.file),
             "ssl_keystore_type": "PEM"}  # fmt: skip
    alien = Authority(tmp_path, "other").key_store("alien.pem", "c@example.org", common_name="x")
    with serving(secured("SSL", keys)) as server:
        one = peer(server, **trust)
        assert ask_as_known(one).error_code == 34
        assert principals(server) == {"User:ANONYMOUS"}
        one.close()
        bad = peer(server, **trust, ssl_keystore_location=str(alien))
        if auth == "none":  # nobody asked for it
            assert ask_as_known(bad).error_code == 34
            bad.close()
        else:
            with pytest.raises(OSError):
                ask_as_known(bad)


def test_a_client_looks_at_the_servers_name(authority: Authority) -> None:
    keys = authority.tls_keys(authority.key_store("server.pem", "elsewhere.example"))
    trust = {"security_protocol": "SSL", "ssl_truststore_type": "PEM",
             "ssl_truststore_location": str(authority.file)}  # fmt: skip
    with serving(secured("SSL", keys)) as server:
        with pytest.raises(OSError, match="certificate"):
            ask_as_known(peer(server, **trust))
        unchecked = peer(server, **trust, ssl_endpoint_identification_algorithm="")
        assert ask_as_known(unchecked).error_code == 34
        unchecked.close()


def test_both_over_one_listener_with_client_auth_not_inherited(authority: Authority) -> None:
    keys = {
        **authority.tls_keys(authority.key_store("s.pem")),
        **SASL,
        "ssl.client.auth": "required",
    }
    with serving(secured("SASL_SSL", keys, credentials)) as server:
        one = peer(
            server,
            security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512",
            sasl_jaas_config=jaas("carol", "carol-secret", SCRAM_MODULE),
            ssl_truststore_type="PEM", ssl_truststore_location=str(authority.file),
        )  # fmt: skip
        assert ask_as_known(one).error_code == 34
        assert principals(server) == {"User:carol"}
        one.close()


def client_context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


def test_requests_that_share_a_record_are_all_answered(authority: Authority) -> None:
    keys = authority.tls_keys(authority.key_store("s.pem"))
    with (
        serving(secured("SSL", keys)) as server,
        Raw(server.port, client_context(authority)) as raw,
    ):
        frame = b"".join(
            bytes(p)
            for _ in range(40)
            for p in encode_request(1, 7, "raw", SaslHandshakeRequest(mechanism="x" * 1000))
        )
        raw.sock.sendall(frame)
        for _ in range(40):
            assert SaslHandshakeResponse.decode(raw.frame(), 1, 4).error_code == 34


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff" + bytes(2000), b"\x16\x03"],
)
def test_garbage_instead_of_tls_harms_only_who_sends_it(
    authority: Authority, garbage: bytes
) -> None:
    keys = authority.tls_keys(authority.key_store("s.pem"))
    with serving(secured("SSL", keys)) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        for one in idle:
            one.sendall(garbage)
        with Raw(server.port, client_context(authority)) as raw:
            assert handshake(raw).error_code == 34
        if garbage != b"\x16\x03":
            for one in idle:
                one.settimeout(10)
                with_alert = one.recv(100)
                assert with_alert == b"" or with_alert[0] == 0x15
        for one in idle:
            one.close()


def test_whose_handshake_failed_is_logged_as_other_connections_are(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    keys = authority.tls_keys(authority.key_store("s.pem"))
    with serving(secured("SSL", keys)) as server, caplog.at_level("INFO"):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(bytes(100))
            all_of(sock)
        wait_until(server, lambda: server.quotas.count == 0)
    assert "closing connection=EXT-0(127.0.0.1) reason=TLS failed: " in caplog.text


@pytest.mark.parametrize("damage", ["cut", "flipped", "huge", "empty"])
def test_a_damaged_record_ends_its_connection_and_no_other(
    authority: Authority, damage: str
) -> None:
    """After the handshake: half a record and the end, a changed byte, a length that none has."""
    keys = authority.tls_keys(authority.key_store("s.pem"))
    with (
        serving(secured("SSL", keys)) as server,
        Raw(server.port, client_context(authority)) as good,
        socket.create_connection(("127.0.0.1", server.port), 10) as sock,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
        shake_hands(tls, sock, incoming, outgoing)
        tls.write(b"".join(bytes(p) for p in encode_request(0, 7, "raw", ApiVersionsRequest())))
        record = bytearray(outgoing.read())
        if damage == "cut":
            del record[len(record) // 2 :]
        elif damage == "flipped":
            record[-1] ^= 1
        elif damage == "huge":
            record[3:5] = b"\xff\xff"
        else:
            record = bytearray(b"\x17\x03\x03\x00\x00" * 100)
        sock.sendall(record)
        sock.shutdown(socket.SHUT_WR)
        incoming.write(all_of(sock))
        incoming.write_eof()
        assert answered(tls) == b""
        assert handshake(good).error_code == 34
        wait_until(server, lambda: server.quotas.count == 1)


@pytest.mark.parametrize("said", ["all", "half"])
def test_a_goodbye_that_comes_with_the_last_bytes_is_heard(authority: Authority, said: str) -> None:
    """The peer waits for ours before it closes its socket, so nothing else will arrive."""
    keys = authority.tls_keys(authority.key_store("s.pem"))
    with (
        serving(secured("SSL", keys)) as server,
        socket.create_connection(("127.0.0.1", server.port), 10) as sock,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
        shake_hands(tls, sock, incoming, outgoing)
        request = b"".join(bytes(p) for p in encode_request(0, 7, "raw", ApiVersionsRequest()))
        tls.write(request if said == "all" else request[: len(request) // 2])
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        sock.sendall(outgoing.read())
        incoming.write(all_of(sock))
        incoming.write_eof()
        assert bool(answered(tls)) == (said == "all")
        assert answered(tls) == b""
        wait_until(server, lambda: server.quotas.count == 0)


def answered(tls: ssl.SSLObject) -> bytes:
    """What was said before the connection ended, with or without a goodbye."""
    try:
        return tls.read(16_384)
    except ssl.SSLError:
        return b""


def shake_hands(
    tls: ssl.SSLObject, sock: socket.socket, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65_536))
        else:
            sock.sendall(outgoing.read())
            return


def all_of(sock: socket.socket) -> bytes:
    data = b""
    try:
        while more := sock.recv(65_536):
            data += more
    except ConnectionError:
        pass
    return data


def test_a_thousand_slow_handshakes_hold_up_nobody(authority: Authority) -> None:
    """Each says hello and then a byte now and then: who is known is served between them."""
    keys = authority.tls_keys(authority.key_store("s.pem"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    said = outgoing.read()
    with serving(secured("SSL", keys)) as server, ExitStack() as until_end:
        raw = until_end.enter_context(Raw(server.port, client_context(authority)))
        assert handshake(raw).error_code == 34
        slow = []
        for number in range(1_000):
            one = socket.create_connection(("127.0.0.1", server.port), 10)
            until_end.enter_context(one)
            one.sendall(said[: 5 + number % (len(said) - 5)])
            slow.append(one)
        taken = []
        for number in range(300):
            for one in slow[number::300]:  # the rest of it: now the server has to compute
                with suppress(OSError):
                    one.sendall(said[5 + slow.index(one) % (len(said) - 5) :])
            began = time.thread_time(), server_cpu(server)
            assert handshake(raw).error_code == 34
            taken.append(server_cpu(server) - began[1])
        taken.sort()
        assert taken[len(taken) * 99 // 100] < 0.05, "processor time of the network thread"


def server_cpu(server: SocketServer) -> float:
    """Seconds its network thread has computed: what others on this machine do does not count."""
    thread = server.processors[0]._thread
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def test_a_plaintext_client_learns_nothing_of_a_tls_listener(authority: Authority) -> None:
    keys = authority.tls_keys(authority.key_store("s.pem"))
    with serving(secured("SSL", keys)) as server, Raw(server.port) as raw:
        raw.send(ApiVersionsRequest(), 0)
        assert raw.sock.recv(1) in (b"", b"\x15")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_served(authority: Authority, version: ssl.TLSVersion) -> None:
    keys = authority.tls_keys(authority.key_store("s.pem"))
    context = client_context(authority)
    context.minimum_version = context.maximum_version = version
    with serving(secured("SSL", keys)) as server, Raw(server.port, context) as raw:
        assert handshake(raw).error_code == 34


def test_the_suite_that_is_named_is_the_one(authority: Authority) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    keys = {**authority.tls_keys(authority.key_store("s.pem")), "ssl.cipher.suites": suite}
    with (
        serving(secured("SSL", keys)) as server,
        Raw(server.port, client_context(authority)) as raw,
    ):
        assert isinstance(raw.sock, ssl.SSLSocket)
        assert raw.sock.cipher() == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", 128)


def test_a_renewed_certificate_is_shown_to_the_next_and_a_bad_one_is_not(
    authority: Authority, tmp_path: Path
) -> None:
    path = authority.key_store("s.pem", common_name="broker")
    listener = secured("SSL", {**authority.tls_keys(path), "ssl.allow.san.changes": "false"})

    def shown() -> bytes:
        with Raw(server.port, client_context(authority)) as raw:
            assert isinstance(raw.sock, ssl.SSLSocket)
            assert handshake(raw).error_code == 34
            return raw.sock.getpeercert(binary_form=True) or b""

    with serving(listener) as server, Raw(server.port, client_context(authority)) as old:
        assert handshake(old).error_code == 34
        first = shown()
        assert not listener.reload()
        path.write_bytes(b"rubbish")
        assert not listener.reload()
        assert shown() == first
        authority.key_store("s.pem", "localhost", common_name="another")  # another subject
        assert not listener.reload()
        authority.key_store("s.pem", "localhost", common_name="broker")  # 127.0.0.1 is lost
        assert not listener.reload()
        assert shown() == first
        authority.key_store("s.pem", "localhost", "127.0.0.1", common_name="broker")
        assert listener.reload()
        assert shown() != first
        assert handshake(old).error_code == 34  # who is connected stays


def test_no_key_is_left_in_a_file(authority: Authority, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    cert = authority.ca.issue_cert("localhost")
    secured(
        "SSL",
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": pkcs8(cert, "key-secret").decode(),
            "ssl.keystore.certificate.chain": cert.cert_chain_pems[0].bytes().decode(),
            "ssl.key.password": "key-secret",
        },
        nobody,
    )
    assert set(tmp_path.iterdir()) == before
