"""A well-behaved client that works on while others misbehave, and tells if it was disturbed."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition


class HealthyClient(threading.Thread):
    """Produces one record at a time and reads it back; as a context manager it asserts that
    nothing failed, that nothing was lost, and that no round trip took longer than `patience_s`."""

    def __init__(self, bootstrap: str, topic: str, patience_s: float = 5.0) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "healthy", "enable.auto.commit": False}
        )
        self._topic = topic
        self._patience_s = patience_s
        self._ending = threading.Event()
        self.rounds = 0
        self.slowest_s = 0.0
        self.error = ""

    def run(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._ending.is_set() and not self.error:
            started = time.monotonic()
            self.error = self._round_trip(b"%d" % self.rounds)
            self.rounds += 1
            if self.rounds > 1:  # the first one connects
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
            self._ending.wait(0.01)
        self._consumer.close()

    def _round_trip(self, value: bytes) -> str:
        failures: list[Any] = []
        self._producer.produce(
            self._topic, value, on_delivery=lambda error, _: failures.append(error)
        )
        if self._producer.flush(30) or failures != [None]:
            return f"round {self.rounds}: not delivered, {failures}"
        message = self._consumer.poll(30)
        if message is None or message.error() or message.value() != value:
            got = message and (message.error() or message.value())
            return f"round {self.rounds}: read {got!r} instead of {value!r}"
        return ""

    def __enter__(self) -> HealthyClient:
        self.start()
        deadline = time.monotonic() + 20
        while self.rounds < 3 and not self.error and time.monotonic() < deadline:
            time.sleep(0.02)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        before = self.rounds
        deadline = time.monotonic() + 20
        while self.rounds < before + 3 and not self.error and time.monotonic() < deadline:
            time.sleep(0.02)
        self._ending.set()
        self.join(60)
        if kind is None:
            assert not self.error, self.error
            assert self.rounds >= before + 3, "the healthy client got stuck"
            assert self.slowest_s < self._patience_s, f"a round trip took {self.slowest_s:.1f} s"
