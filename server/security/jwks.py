"""The keys that tokens are signed with: a JSON web key set (RFC 7517), from a file or by https.

Read when the node starts, and a set that cannot be had refuses the start (OA-7). Then `look` reads
it again, each hour, or when the file has changed, or soon after a token named a key that is not
there: at most twice a minute, whatever keys clients make up. What cannot be read leaves the old
keys. `look` runs on a worker's thread, never on one of the network.

Everything is bounded: the set's size, its keys and their sizes, the time of a whole fetch (a server
that sends a byte now and then is cut off). Redirects are not followed: the operator named whom to
trust. Plain http only to this machine itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from server.security.tokens import ALGORITHMS

if TYPE_CHECKING:
    from ssl import SSLContext

    from joserfc.jwk import ECKey, RSAKey

logger = logging.getLogger(__name__)

SET_BYTES_MAX = 1 << 20
KEYS_MAX = 100
KID_MAX = 1000
FETCH_S = 10.0
"""A fetch takes no longer, all in all."""
ASKED_MS = 30_000
"""Keys that nobody knows make at most one fetch in this time."""
_RSA_BITS = range(2048, 8192 + 1)
_RSA_TEXT_MIN = 342
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class JwksError(ValueError):
    """Why a key set cannot be had."""


class Source:
    """Where a set stands. `read` raises JwksError."""

    def __init__(self, url: str, context: Callable[[], SSLContext], limit_s: float = FETCH_S):
        """`context`: of whom to believe on https. Raises JwksError."""
        try:
            self._url = urlsplit(url)
            self._port = self._url.port
        except ValueError:
            raise JwksError("expected a URL") from None
        if not url.isascii() or "\0" in unquote(url):
            raise JwksError("expected a URL in which other characters are escaped")
        scheme, host = self._url.scheme, self._url.hostname or ""
        self.is_file = scheme == "file" and host in ("", "localhost")
        is_http = scheme == "https" or (scheme == "http" and host in _LOOPBACK)
        if not self.is_file and not (is_http and host):
            raise JwksError("expected https://..., or file:///... (http only to localhost)")
        if self._url.username is not None:
            raise JwksError("expected a URL without a password")
        self._context = context() if scheme == "https" else None
        self._limit_s = limit_s
        self._given_up: threading.Thread | None = None

    def stamp(self) -> object:
        """Changes with a file that does; nothing for others. Never raises."""
        if not self.is_file:
            return None
        try:
            status = self._path.stat()
        except OSError as error:
            return error.errno
        return status.st_mtime_ns, status.st_size, status.st_ino

    @property
    def _path(self) -> Path:
        return Path(unquote(self._url.path))

    def read(self) -> bytes:
        try:
            if not self.is_file:
                return self._fetch(self._url)
            with self._path.open("rb") as file:
                return _bounded(file.read(SET_BYTES_MAX + 1))
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # no name of a host
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise JwksError(f"it cannot be read: {why[:200]!r}") from None

    def _fetch(self, url: SplitResult) -> bytes:
        """Ask on a thread of its own: looking a name up and connecting cannot be given up from
        within. What takes too long is cut off, or left behind; one at most is left at a time."""
        if self._given_up is not None and self._given_up.is_alive():
            raise TimeoutError("the last answer has not come yet")
        answers: SimpleQueue[bytes | Exception] = SimpleQueue()
        connected: list[socket.socket] = []
        is_given_up = threading.Event()

        def on_connection(sock: socket.socket) -> None:
            connected.append(sock)
            if is_given_up.is_set():
                raise TimeoutError("nobody waits for it any more")

        def ask() -> None:
            try:
                answers.put(self._asked(url, on_connection))
            except Exception as error:
                answers.put(error)

        asking = threading.Thread(target=ask, name="keys of tokens", daemon=True)
        asking.start()
        try:
            answer = answers.get(timeout=self._limit_s)
        except Empty:
            is_given_up.set()
            self._given_up = asking
            for sock in connected:
                with contextlib.suppress(OSError):  # it is over already
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
            raise TimeoutError("it took too long") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _asked(self, url: SplitResult, on_connection: Callable[[socket.socket], None]) -> bytes:
        """`on_connection` is told of the connection before anything is read from it."""
        host, path = url.hostname or "", url.path or "/"
        # Told a port: it would read one from an address of IPv6.
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(
                host,
                self._port or http.client.HTTPS_PORT,
                timeout=self._limit_s / 2,
                context=self._context,
            )
        else:
            connection = http.client.HTTPConnection(
                host, self._port or http.client.HTTP_PORT, timeout=self._limit_s / 2
            )
        with contextlib.closing(connection):
            connection.connect()
            on_connection(connection.sock)
            target = f"{path}?{url.query}" if url.query else path
            connection.request("GET", target, headers={"Accept": "application/json, */*"})
            with contextlib.closing(connection.getresponse()) as response:
                if response.status != http.client.OK:
                    raise JwksError(f"the answer is {response.status}")
                return _bounded(response.read(SET_BYTES_MAX + 1))


def _bounded(data: bytes) -> bytes:
    if len(data) > SET_BYTES_MAX:
        raise JwksError("it is longer than a megabyte")
    return data


class KeySet:
    """The keys of a set that can verify; what others there are is passed over."""

    def __init__(self, data: bytes) -> None:
        """Raises JwksError."""
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            raise JwksError("it is not JSON") from None
        listed = said.get("keys") if isinstance(said, dict) else None
        if not isinstance(listed, list) or len(listed) > KEYS_MAX:
            raise JwksError(f'expected {{"keys": [...]}} with at most {KEYS_MAX} of them')
        self._keys = [key for one in listed if (key := _read_key(one)) is not None]
        if not self._keys:
            raise JwksError("there is no public RSA or EC key for signatures in it")

    def find(self, kid: str | None, algorithm: str) -> RSAKey | ECKey | None:
        """See `server.security.tokens.Keys`."""
        fit = [key for key in self._keys if _fits(key, algorithm)]
        if kid is None:
            return fit[0] if len(fit) == 1 else None
        return next((key for key in fit if key.kid == kid), None)


def _read_key(said: object) -> RSAKey | ECKey | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    if not isinstance(said, dict):
        return None
    kind = said.get("kty")
    kid = said.get("kid")
    if kind not in ("RSA", "EC") or not isinstance(kid, str | None) or len(kid or "") > KID_MAX:
        return None
    if said.get("use", "sig") != "sig" or not _verifies(said.get("key_ops")):
        return None
    names = ("kty", "kid", "alg", "n", "e", "crv", "x", "y")  # nothing private
    public: dict[str, Any] = {name: said[name] for name in names if name in said}
    if any(not isinstance(one, str) or len(one) > 2 * _RSA_BITS[-1] for one in public.values()):
        return None
    if kind == "RSA" and len(public.get("n", "")) < _RSA_TEXT_MIN:
        return None  # before joserfc warns of it
    try:
        key = RSAKey.import_key(public) if kind == "RSA" else ECKey.import_key(public)
        is_sound = not isinstance(key, RSAKey) or key.public_key.key_size in _RSA_BITS
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key if is_sound else None


def _verifies(operations: object) -> bool:
    return operations is None or (isinstance(operations, list) and "verify" in operations)


def _fits(key: RSAKey | ECKey, algorithm: str) -> bool:
    if key.alg not in (None, algorithm) or ALGORITHMS.get(algorithm) != key.key_type:
        return False
    return _CURVES.get(algorithm) in (None, getattr(key, "curve_name", None))


class Jwks:
    """A set that is kept fresh. `find` on any thread; `load` and `look` on one."""

    def __init__(self, source: Source, times: Mapping[str, int], now_ms: Callable[[], int]) -> None:
        """`times`, in ms: refresh, backoff, backoff_max."""
        self._source = source
        self._times = times
        self._now_ms = now_ms
        self._keys: KeySet | None = None
        self._stamp: object = None
        self._next_ms = 0
        self._backoff_ms = times["backoff"]
        self._asked = False
        self._may_ask_ms = 0

    def find(self, kid: str | None, algorithm: str) -> RSAKey | ECKey | None:
        """See `server.security.tokens.Keys`; what is not there is looked for soon."""
        assert self._keys is not None
        key = self._keys.find(kid, algorithm)
        if key is None and kid is not None and len(kid) <= KID_MAX:
            self._asked = True
        return key

    def load(self) -> None:
        """Read it now. Raises JwksError."""
        self._stamp = self._source.stamp()
        self._keys = KeySet(self._source.read())
        self._next_ms = self._now_ms() + self._times["refresh"]
        self._backoff_ms = self._times["backoff"]

    def look(self) -> None:
        """Read it again if it is time to, or if somebody needs it. Never raises."""
        now_ms = self._now_ms()
        is_asked = self._asked and now_ms >= self._may_ask_ms
        is_changed = self._source.stamp() != self._stamp
        if now_ms < self._next_ms and not is_asked and not is_changed:
            return
        if is_asked:
            self._asked = False
            self._may_ask_ms = now_ms + ASKED_MS
        try:
            self.load()
        except JwksError as error:
            self._next_ms = self._now_ms() + self._backoff_ms
            self._backoff_ms = min(2 * self._backoff_ms, self._times["backoff_max"])
            logger.error("the old keys of tokens stay error=%s", error)
