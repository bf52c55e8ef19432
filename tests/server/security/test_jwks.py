"""The keys of tokens: from a file or a server, kept fresh, and what hostile servers send."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from server.security import jwks
from server.security.jwks import ASKED_MS, KEYS_MAX, SET_BYTES_MAX, Jwks, JwksError, KeySet, Source
from testkit.clock import ManualClock
from tests.server.security.security_support import Authority

KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = ECKey.generate_key("P-256", {"kid": "two"})
TIMES = {"refresh": 3_600_000, "backoff": 100, "backoff_max": 1000}

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def as_set(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def says(data: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


class Provider:
    """A server that answers as it is told, and counts."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer, self.asked = answer, 0
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                with contextlib.suppress(OSError):
                    provider.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://localhost:{self.server.server_address[1]}/keys?a=b"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def source(url: str, limit_s: float = 10.0) -> Source:
    return Source(url, ssl.create_default_context, limit_s)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "the keys.json"
    path.write_bytes(as_set(KEY))
    return path


def kept(where: str, clock: ManualClock) -> Jwks:
    keys = Jwks(source(where), TIMES, clock)
    keys.load()
    return keys


def names(keys: Jwks) -> set[str]:
    found = (keys.find("one", "RS256"), keys.find("two", "ES256"))
    return {str(key.kid) for key in found if key is not None}


def test_keys_of_a_file_follow_the_file(file: Path, clock: ManualClock) -> None:
    keys = kept(file.as_uri(), clock)
    assert names(keys) == {"one"}
    file.write_bytes(as_set(KEY, OTHER))
    keys.look()
    assert names(keys) == {"one", "two"}
    file.write_bytes(b"half a se")
    keys.look()
    file.unlink()
    keys.look()
    assert names(keys) == {"one", "two"}  # what cannot be read leaves what was
    file.write_bytes(as_set(OTHER))
    clock.ms += 10_000
    keys.look()
    assert names(keys) == {"two"}


def test_a_server_is_asked_hourly_and_when_it_failed_sooner(clock: ManualClock) -> None:
    with Provider(says(as_set(KEY))) as provider:
        keys = kept(provider.url, clock)
        keys.look()
        clock.ms += 3_599_999
        keys.look()
        assert provider.asked == 1
        provider.answer = says(b"", 503)
        clock.ms += 1
        keys.look()
        keys.look()
        assert provider.asked == 2
        for wait_ms, asked in ((100, 3), (199, 3), (1, 4), (400, 5), (800, 6), (1000, 7)):
            clock.ms += wait_ms
            keys.look()
            assert provider.asked == asked
        assert names(keys) == {"one"}
        provider.answer = says(as_set(OTHER))
        clock.ms += 1000
        keys.look()
        assert names(keys) == {"two"}


def test_an_unknown_key_is_looked_for_soon_and_a_thousand_no_oftener(clock: ManualClock) -> None:
    with Provider(says(as_set(KEY))) as provider:
        keys = kept(provider.url, clock)
        provider.answer = says(as_set(KEY, OTHER))
        assert keys.find("two", "ES256") is None
        keys.look()
        assert names(keys) == {"one", "two"}
        for i in range(1000):
            assert keys.find(f"made up {i}", "RS256") is None
            keys.look()
        assert provider.asked == 2
        clock.ms += ASKED_MS
        keys.look()
        assert provider.asked == 3
        assert keys.find("x" * 1001, "RS256") is None
        assert keys.find(None, "PS384") is not None
        clock.ms += ASKED_MS
        keys.look()
        assert provider.asked == 3


def test_https_by_an_authority_of_ones_own(tmp_path: Path, clock: ManualClock) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.key_store("provider.pem", "localhost"))
    with Provider(says(as_set(KEY)), context) as provider:
        trusting = ssl.create_default_context(cafile=str(authority.file))
        keys = Jwks(Source(provider.url, lambda: trusting), TIMES, clock)
        keys.load()
        assert names(keys) == {"one"}
        with pytest.raises(JwksError):
            source(provider.url).read()
        with pytest.raises(JwksError):
            Source(provider.url.replace("localhost", "127.0.0.1"), lambda: trusting).read()


@pytest.mark.parametrize(
    "url",
    [
        "", "keys.json", "ftp://localhost/x", "http://example.org/keys", "https:///keys",
        "https://user:password@example.org/keys", "file://elsewhere/keys", "https://localhost:x/",
        "http://localhost.example.org/", "jar:file:///x", "file:///a%00b", "https://localhost/ü",
    ],
)  # fmt: skip
def test_a_url_that_is_not_trusted(url: str) -> None:
    with pytest.raises(JwksError) as refused:
        source(url)
    assert "password@" not in str(refused.value)


def trickle(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    stop = threading.Event()
    for _ in range(1000):  # until the other side hangs up
        handler.wfile.write(b" ")
        stop.wait(0.02)


def loops(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.end_headers()


@pytest.mark.parametrize(
    "answer",
    [
        loops,
        trickle,
        says(b"", 404),
        says(b"", 301, Location="file:///etc/passwd"),
        says(b"x" * (SET_BYTES_MAX + 1)),
        says(b"", 200, **{"X-Long": "x" * 70_000}),
        lambda handler: handler.wfile.write(b"\x16\x03\x01" * 100),
        lambda handler: None,
    ],
    ids=["loop", "trickle", "404", "file", "long", "header", "garbage", "nothing"],
)
def test_a_hostile_server_is_given_up(answer: Answer) -> None:
    with Provider(answer) as provider, pytest.raises(JwksError):
        KeySet(source(provider.url, 0.5).read())


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_an_address_of_ipv6_needs_no_port(
    monkeypatch: pytest.MonkeyPatch, scheme: str, port: int
) -> None:
    """What stands behind its last colon was taken for one."""
    dialled: list[object] = []

    def dial(address: object, *_: object) -> Any:
        dialled.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", dial)
    with pytest.raises(JwksError):
        source(f"{scheme}://[::1]/keys").read()
    assert dialled == [("::1", port)]


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example.org"])
def test_a_host_that_nobody_can_be_called_is_a_mistake_like_others(host: str) -> None:
    with pytest.raises(JwksError, match="cannot be read"):
        source(f"https://{host}/keys").read()


def test_a_name_that_nobody_finds_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def search(*_: object, **__: object) -> Any:
        over.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", search)
    lost = source("https://id.example.org/keys", 0.1)
    try:
        with pytest.raises(JwksError, match="too long"):
            lost.read()
        with pytest.raises(JwksError, match="has not come"):
            lost.read()  # there is never more than one that hangs
    finally:
        over.set()


def test_an_answer_is_one_before_the_thread_that_had_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()

    class Lingering(SimpleQueue[Any]):
        def put(self, *args: Any, **kwargs: Any) -> None:
            super().put(*args, **kwargs)
            over.wait()

    monkeypatch.setattr(jwks, "SimpleQueue", Lingering)
    with Provider(says(b"", 503)) as provider:
        failing = source(provider.url)
        try:
            for _ in range(2):
                with pytest.raises(JwksError, match="503"):
                    failing.read()
        finally:
            over.set()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b"[" * 100_000,
        b'{"keys":[null,1,{"kty":"RSA"},{"kty":"EC","crv":"P-256","x":1,"y":2}]}',
        json.dumps({"keys": [{"kty": "RSA", "e": "AQAB", "n": "_" * 171}]}).encode(),
        json.dumps({"keys": [{"kty": "RSA", "e": "AQAB", "n": "_" * 20_000}]}).encode(),
        json.dumps({"keys": [OctKey.generate_key(256).as_dict(private=True)]}).encode(),
        json.dumps({"keys": [KEY.as_dict(private=False)] * (KEYS_MAX + 1)}).encode(),
        json.dumps({"keys": [{**KEY.as_dict(private=False), "key_ops": 1}]}).encode(),
        json.dumps({"keys": [{**KEY.as_dict(private=False), "use": ["sig"]}]}).encode(),
    ],
    ids=lambda _data: "set",
)  # fmt: skip
def test_a_set_without_a_key_of_use(data: bytes) -> None:
    with pytest.raises(JwksError):
        KeySet(data)


def test_other_keys_of_a_set_are_passed_over() -> None:
    odd = [{"kty": "OKP", "crv": "Ed25519", "x": "AA"}, {"kty": "EC", "crv": "secp256k1"}, None]
    listed = [*odd, KEY.as_dict(private=True), OTHER.as_dict(private=False)]
    keys = KeySet(json.dumps({"keys": listed}).encode())
    found = keys.find("one", "RS256")
    assert found is not None
    assert not found.is_private
    assert (
        keys.find("one", "HS256") is keys.find("one", "ES256") is keys.find("two", "ES384") is None
    )


def test_a_directory_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(JwksError):
        source(tmp_path.as_uri()).read()
