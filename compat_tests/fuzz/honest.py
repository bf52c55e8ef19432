"""Clients that behave, in a process of their own: `python -m compat_tests.fuzz.honest HOST:PORT`.

A producer of single records, a reader of what it produced and a member of a group that heartbeats,
a few hundred requests a second in all. Until its input closes; then it prints one line of JSON: how
many requests, which failed, and their latencies.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
import uuid

from testkit.clients import raw
from testkit.clients.kpy_records import batch

HEARTBEAT, JOIN, SYNC, FIND = 12, 11, 14, 10
PAUSE_S = 0.01


class Honest:
    """One connection that asks, checks, and notes how long it took."""

    def __init__(self, bootstrap: str, stop: threading.Event) -> None:
        self.sock: socket.socket = raw.connect(bootstrap, 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.taken: list[float] = []
        self.failures: list[str] = []
        self._stop = stop

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        self.sock.sendall(raw.request(key, version, body))
        return raw.read_frame(self.sock)

    def once(self) -> str:
        """Ask something and look at the answer; what is wrong with it, "" for nothing."""
        raise NotImplementedError

    def repeat(self) -> None:
        once = self.once
        while not self._stop.is_set():
            started = time.perf_counter()
            try:
                wrong = once()
            except (OSError, EOFError, struct.error) as error:
                self.failures.append(f"{once.__qualname__}: {error!r}")
                return
            self.taken.append(time.perf_counter() - started)
            if wrong:
                self.failures.append(f"{once.__qualname__}: {wrong}")
            self._stop.wait(PAUSE_S)


class Producer(Honest):
    def __init__(self, bootstrap: str, stop: threading.Event, topic: str) -> None:
        super().__init__(bootstrap, stop)
        self._body = raw.produce_v3(topic, batch([b"honest"]))

    def once(self) -> str:
        error = raw.produce_error(self.ask(raw.PRODUCE, 3, self._body))
        return f"error {error}" if error else ""


class Reader(Honest):
    def __init__(self, bootstrap: str, stop: threading.Event, topic: str) -> None:
        super().__init__(bootstrap, stop)
        self._topic = topic
        self._body = raw.fetch_v4(topic, 0, 0)[:-4] + struct.pack(">i", 4_000)

    def once(self) -> str:
        answer = self.ask(raw.FETCH, 4, self._body)
        at = 4 + 4 + 4 + 2 + len(self._topic) + 4 + 4  # ids, throttle, topics, name, partitions
        error, end = struct.unpack_from(">hq", answer, at)
        return f"error {error}, high watermark {end}" if error or end < 1 else ""


class Member(Honest):
    def __init__(self, bootstrap: str, stop: threading.Event, group: str) -> None:
        super().__init__(bootstrap, stop)
        self._await_coordinator(group)
        name = raw.string(group)
        member = self._join(name)
        assignment = struct.pack(">i", 1) + member + struct.pack(">i", 0)
        answer = self.ask(SYNC, 0, name + struct.pack(">i", self._generation) + member + assignment)
        assert struct.unpack_from(">h", answer, 4) == (0,), answer
        self._body = name + struct.pack(">i", self._generation) + member

    def _await_coordinator(self, group: str) -> None:
        deadline = time.monotonic() + 20
        while struct.unpack_from(">h", self.ask(FIND, 0, raw.string(group)), 4)[0]:
            assert time.monotonic() < deadline, "no coordinator"
            time.sleep(0.05)

    def _join(self, name: bytes) -> bytes:
        deadline = time.monotonic() + 20
        protocol = struct.pack(">i", 1) + raw.string("range") + struct.pack(">i", 0)
        body = name + struct.pack(">i", 30_000) + raw.string("") + raw.string("consumer") + protocol
        while True:
            answer = self.ask(JOIN, 0, body)
            (error,) = struct.unpack_from(">h", answer, 4)
            if not error:
                break
            assert time.monotonic() < deadline, f"cannot join: {error}"
            time.sleep(0.05)
        (self._generation,) = struct.unpack_from(">i", answer, 6)
        at = 10
        for _ in range(2):  # protocol, leader
            at += 2 + struct.unpack_from(">h", answer, at)[0]
        end = at + 2 + struct.unpack_from(">h", answer, at)[0]
        return answer[at:end]

    def once(self) -> str:
        (error,) = struct.unpack_from(">h", self.ask(HEARTBEAT, 0, self._body), 4)
        return f"error {error}" if error else ""


def await_topic(bootstrap: str, topic: str) -> None:
    """Create the topic by asking for it."""
    deadline = time.monotonic() + 20
    with raw.connect(bootstrap) as sock:
        while True:
            sock.sendall(raw.request(raw.METADATA, 1, raw.metadata_v1(topic)))
            if raw.metadata_v1_topic_error(raw.read_frame(sock)) == 0:
                return
            assert time.monotonic() < deadline, "the honest topic was not created"
            time.sleep(0.05)


def percentile(values: list[float], share: float) -> float:
    """In ms; of no values, 0."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 if ordered else 0.0


def main(bootstrap: str) -> None:
    topic, group = f"honest-{uuid.uuid4().hex}", f"honest-{uuid.uuid4().hex}"
    await_topic(bootstrap, topic)
    stop = threading.Event()
    producer = Producer(bootstrap, stop, topic)
    producer.once()
    clients: list[Honest] = [
        producer,
        Reader(bootstrap, stop, topic),
        Member(bootstrap, stop, group),
    ]
    threads = [threading.Thread(target=one.repeat) for one in clients]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join(60)
    taken = [value for one in clients for value in one.taken]
    failures = [failure for one in clients for failure in one.failures]
    print(
        json.dumps(
            {
                "requests": len(taken),
                "failures": failures[:20],
                "p50_ms": percentile(taken, 0.5),
                "p99_ms": percentile(taken, 0.99),
                "p999_ms": percentile(taken, 0.999),
                "max_ms": max(taken, default=0.0) * 1000,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1])
