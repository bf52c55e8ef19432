"""Consumers of one group, polled until the group has settled.

kafka-python rejoins inside `poll`, and a rebalance needs every member to rejoin: members polled in
turns by one thread would wait for each other, so each gets a thread (`poll_all_until`). librdkafka
rejoins in a thread of its own, and its `assignment()` must not meet a `poll` of the same consumer
in another Python thread (it holds the interpreter's lock): `poll_in_turns_until`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from testkit.wait import eventually


def poll_all_until(
    members: Iterable[Any],
    settled: Callable[[], Any],
    *,
    timeout_s: float = 40.0,
    what: str = "the group settles",
) -> None:
    """Polls all members at once until `settled()` is true; what a poll raises, this raises."""
    done = threading.Event()
    raised: list[Exception] = []

    def work(member: Any) -> None:
        try:
            while not done.is_set():
                member.poll(timeout_ms=200)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    try:
        while not settled():
            if raised:
                raise raised[0]
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            time.sleep(0.02)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)


def poll_in_turns_until(
    members: list[Any], settled: Callable[[], Any], *, timeout_s: float = 40.0
) -> None:
    """Polls confluent-kafka consumers one after the other until `settled()` is true."""
    deadline = time.monotonic() + timeout_s
    while not settled():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: the group settles"
        for member in members:
            member.poll(0.05)


def owned(members: list[Any]) -> list[list[int]]:
    """The partitions that each has, of one topic."""
    return [sorted(tp.partition for tp in member.assignment()) for member in members]


def read_one_each(producer: Any, members: list[Any], topic: str, partitions: int) -> None:
    """A record to each partition, read and committed by whoever has it."""
    for partition in range(partitions):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(60) == 0
    seen: list[int] = []

    def all_read() -> bool:
        for member in members:
            message = member.poll(0.1)
            if message is not None and message.error() is None:
                member.commit(message, asynchronous=False)
                seen.append(message.partition())
        return len(seen) >= partitions

    eventually(all_read, timeout_s=90, what="a record of each partition")
    assert sorted(seen) == list(range(partitions))
