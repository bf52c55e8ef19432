"""Sends one listener the requests of a seed, over a few connections at once.

    python -m compat_tests.fuzz.attack NAME HOST:PORT SEED COUNT [FIRST]

With FUZZ_CA, a file, over TLS; with FUZZ_LOGIN, "user:password", after a login by PLAIN.

FIRST with a COUNT of 1 sends one request again. Prints one line of JSON: how many were answered,
how many connections were closed, which answers did not come.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import sys
import time
from collections import Counter

from compat_tests.fuzz.requests import Generator, Request
from testkit.clients import raw

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
CONNECTIONS = 8
ANSWER_S = 1.0
"""What is not answered by then is parked (a JoinGroup may be): its connection is closed."""


def connect(bootstrap: str, timeout_s: float) -> socket.socket:
    """As the environment says. Raises OSError."""
    sock = raw.connect(bootstrap, timeout_s)
    if "FUZZ_CA" not in os.environ:
        return sock
    context = ssl.create_default_context(cafile=os.environ["FUZZ_CA"])
    sock = context.wrap_socket(sock, server_hostname="localhost")
    login = os.environ.get("FUZZ_LOGIN")
    if login is not None:
        token = b"".join(b"\0" + word.encode() for word in login.split(":"))
        sock.sendall(raw.request(SASL_HANDSHAKE, 1, raw.string("PLAIN")))
        raw.read_frame(sock)
        sock.sendall(raw.request(SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token))
        if raw.read_frame(sock)[4:6] != b"\0\0":
            raise PermissionError("the login was refused")
    return sock


class Attacker:
    """One connection, and the request on it that is not answered yet."""

    def __init__(self, bootstrap: str, found: Counter[str], unanswered: Counter[str]) -> None:
        self._bootstrap = bootstrap
        self._found = found
        self._unanswered = unanswered
        self._sock: socket.socket | None = None
        self._pending: Request | None = None
        self._sent_s = 0.0

    def send(self, request: Request) -> None:
        if self._sock is None:
            self._sock = connect(self._bootstrap, ANSWER_S * 30)
        self._pending = request if request.expects_answer else None
        self._sent_s = time.monotonic()
        try:
            self._sock.sendall(request.frame)
        except OSError:
            self._closed()

    def settle(self) -> None:
        """Take the answer, or the connection's end."""
        if self._pending is None or self._sock is None:
            return
        try:
            self._sock.settimeout(max(0.01, self._sent_s + ANSWER_S - time.monotonic()))
            size = struct.unpack(">i", raw.read_exactly(self._sock, 4))[0]
            self._sock.settimeout(ANSWER_S * 30)
            raw.read_exactly(self._sock, size)
            self._found["answered"] += 1
        except TimeoutError:
            self._unanswered[str(self._pending.key)] += 1
            self.close()
        except (OSError, EOFError):
            self._closed()
        self._pending = None

    def _closed(self) -> None:
        self._found["closed"] += 1
        self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None


def served(bootstrap: str) -> dict[int, tuple[int, int]]:
    """What the listener's ApiVersions tells: {key: (min, max)}."""
    with connect(bootstrap, ANSWER_S * 30) as sock:
        sock.sendall(raw.request(raw.API_VERSIONS, 0))
        answer = raw.read_frame(sock)
    count = struct.unpack_from(">i", answer, 6)[0]
    rows = struct.iter_unpack(">hhh", answer[10 : 10 + 6 * count])
    return {key: (low, high) for key, low, high in rows}


def main(name: str, bootstrap: str, seed: str, count: int, first: int = 0) -> None:
    with contextlib.suppress(OSError):
        os.nice(10)  # making requests must not take the processor from those who are measured
    topic_ids = [bytes.fromhex(one) for one in os.environ.get("FUZZ_TOPIC_IDS", "").split()]
    generator = Generator(f"{seed}:{name}", served(bootstrap), topic_ids)
    found: Counter[str] = Counter()
    unanswered: Counter[str] = Counter()
    attackers = [Attacker(bootstrap, found, unanswered) for _ in range(CONNECTIONS)]
    for number in range(first, first + count):
        attacker = attackers[number % CONNECTIONS]
        attacker.settle()
        attacker.send(generator.request(number))
    for attacker in attackers:
        attacker.settle()
        attacker.close()
    print(json.dumps({"kinds": generator.kinds, **found, "unanswered": dict(unanswered)}))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))  # type: ignore[arg-type]
