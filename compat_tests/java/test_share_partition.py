"""Our share partition beside Apache Kafka's own class, step by step on random histories.

Equal are: where to read, what is acquired, which acknowledgements are taken, and what is written.
Not compared, for they are meant to differ:

- An acknowledgement that is refused renews no lock; Kafka's renews those before the bad one.
- One that begins before everything we know is INVALID_RECORD_STATE; Kafka's fails on a null.
- Where the persisted state has holes, our start moves at once, Kafka's later or not at all.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.share.acquisition import AcquireMode, Fetched, Span, Wish
from server.share.share_partition import (
    RENEW,
    Acknowledgement,
    Limits,
    SharePartition,
    StateChange,
)
from server.share.state_batches import StateBatch, combine
from testkit import jars
from testkit.compiled import java_program
from testkit.quick_jvm import KAFKA_JVM
from wire.errors import KafkaError

pytestmark = pytest.mark.java

HISTORIES = 10_000
LOCK_MS = 30
MEMBERS = ("a", "b")
KINDS = (1, 1, 2, 2, 3, 0)

State = list[tuple[int, int, int]]


class Kafka:
    """Apache Kafka's class, in a JVM of its own."""

    def __init__(self) -> None:
        source = Path(__file__).with_name("SharePartitionDriver.java")
        self._jvm = subprocess.Popen(
            [
                jars.java(), "-Xmx256m", *KAFKA_JVM, *java_program(source, jars.class_path()),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, bufsize=1,
        )  # fmt: skip

    def ask(self, *words: object) -> tuple[str, list[tuple[int, int, State]]]:
        """The answer, and what was written: start, complete count, state of each offset."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write(" ".join(map(str, words)) + "\n")
        answer, *written = self._jvm.stdout.readline().strip().split(" w ")
        writes = []
        for write in written:
            start, complete, *batches = write.split()
            spans = [tuple(map(int, batch.split(","))) for batch in batches]
            writes.append((int(start), int(complete), _state(spans)))
        return answer, writes

    def close(self) -> None:
        self._jvm.kill()
        self._jvm.communicate()


def _state(batches: object) -> State:
    assert isinstance(batches, list)
    return sorted(
        (at, int(state), count)
        for first, last, state, count in batches
        for at in range(first, last + 1)
    )


class Pair:
    """One history of both."""

    def __init__(self, kafka: Kafka, seed: int) -> None:
        self.kafka = kafka
        self.random = random.Random(seed)
        draw = self.random
        count, locks = draw.choice((2, 3, 5, 10)), draw.choice((10, 30, 2_000))
        self.limits = Limits(LOCK_MS, count, locks, True)
        persisted, start = self._persisted(count)
        self.ours = SharePartition(start, persisted)
        kafka.ask("new", locks, count, LOCK_MS, start, *(x for batch in persisted for x in batch))
        self.log: list[Span] = []
        self.end = self.now_ms = 0
        self.changes: list[StateChange] = []
        self.is_over = False
        """A refused renewal: from here on the locks differ."""
        self.held: dict[str, list[Span]] = {member: [] for member in MEMBERS}

    def _persisted(self, count_max: int) -> tuple[list[StateBatch], int]:
        draw = self.random
        start = at = draw.choice((0, 0, 3))
        batches = []
        for _ in range(draw.choice((0, 0, 1, 3))):
            last, state = at + draw.randint(0, 5), draw.choice((0, 2, 4))
            count = draw.randint(1, count_max - (state == 0))
            batches.append(StateBatch(at, last, state, count))
            at = last + 1
        return batches, start

    def step(self) -> None:
        steps = (self.append, self.fetch, self.acknowledge, self.settle, self.wait, self.release)
        self.random.choices(steps, (5, 8, 6, 6, 2, 1))[0]()

    def append(self) -> None:
        size = self.random.randint(1, 12)
        self.log.append(Span(self.end, self.end + size - 1))
        self.end += size

    def fetch(self) -> None:
        draw, ours = self.random, self.ours
        answer, _ = self.kafka.ask("next")
        offset, can, start = answer.split()
        assert (ours.next_fetch_offset, ours.can_acquire(self.limits), ours.start_offset) == (
            int(offset), can == "true", int(start),
        )  # fmt: skip
        read = [span for span in self.log if span.last >= int(offset)][: draw.choice((1, 2, 50))]
        if not read or can != "true":
            return
        member, mode = draw.choice(MEMBERS), draw.choice(tuple(AcquireMode))
        batch_size, most = draw.choice((1, 5, 500)), draw.choice((1, 3, 10, 500))
        bounds = [x for span in read for x in span]
        answer, _ = self.kafka.ask("acq", member, int(mode), batch_size, most, offset, *bounds)
        wish = Wish(member, most, self.now_ms + LOCK_MS, mode, batch_size)
        got = ours.acquire(Fetched(int(offset), read), wish, self.limits)
        assert ["got", *(f"{one.first},{one.last},{one.delivery_count}" for one in got)] == (
            answer.split()
        )
        self.held[member] += [Span(one.first, one.last) for one in got]

    def acknowledge(self) -> None:
        draw = self.random
        member = draw.choice(MEMBERS)
        first = draw.randint(0, self.end + 1)
        last = first + draw.randint(0, 4)
        if self.held[member] and draw.random() < 0.9:
            first, last = draw.choice(self.held[member])
            if draw.random() < 0.5:
                first = draw.randint(first, last)
                last = draw.randint(first, last)
        if draw.random() < 0.1:
            types = [RENEW]
        elif draw.random() < 0.6:
            types = [draw.choice(KINDS)]
        else:
            types = [draw.choice(KINDS) for _ in range(first, last + 1)]
        answer, writes = self.kafka.ask("ack", member, first, last, len(types), *types)
        if "NullPointerException" in answer:
            answer = "error 121"
        ack = Acknowledgement(first, last, types)
        try:
            change = self.ours.acknowledge(member, [ack], self.limits, self.now_ms)
        except KafkaError as refused:
            change, code = None, int(refused.code)
        else:
            code = 0
        if code:
            assert answer == f"error {code}"
            self.is_over = RENEW in types
        else:
            self._begin(change, answer, writes)

    def release(self) -> None:
        member = self.random.choice(MEMBERS)
        self.held[member] = []
        self._begin(self.ours.release(member, self.limits), *self.kafka.ask("rel", member))

    def _begin(
        self, change: StateChange | None, answer: str, writes: list[tuple[int, int, State]]
    ) -> None:
        if change is None:
            assert (answer, writes) == ("done", [])
            return
        ours = (change.start_offset, change.complete_count, _state(change.batches))
        assert ("pending", [ours]) == (answer, writes)
        self.changes.append(change)

    def settle(self) -> None:
        if not self.changes:
            return
        change = self.changes.pop(0)
        # A lock that ran out meanwhile: Kafka's record is free, and nobody persists that.
        is_late = any((run.lock_until_ms or LOCK_MS) <= self.now_ms for run in change.pending)
        code = 0 if is_late else self.random.choice((0, 0, 0, 15))
        self.kafka.ask("settle", code)
        self.ours.settle(change, is_persisted=not code)

    def wait(self) -> None:
        ms = self.random.choice((1, 10, 30))
        self.now_ms += ms
        _, writes = self.kafka.ask("time", ms)
        change = self.ours.expire_locks(self.now_ms, self.limits)
        expired = [] if change is None else _state(change.batches)
        assert expired == sorted(state for *_, states in writes for state in states)
        if change is not None:
            self.ours.settle(change, is_persisted=True)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    kafka = Kafka()
    yield kafka
    kafka.close()


def test_random_histories_are_those_of_apache_kafka(kafka: Kafka) -> None:
    for seed in range(HISTORIES):
        pair = Pair(kafka, seed)
        try:
            for _ in range(pair.random.randint(5, 60)):
                if not pair.is_over:
                    pair.step()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")


def test_state_is_combined_as_apache_kafka_combines_it(kafka: Kafka) -> None:
    """Offset by offset: Kafka's leaves some neighbours of one state apart."""
    for seed in range(HISTORIES):
        draw = random.Random(seed)
        start = draw.choice((-1, 0, 5, 12))
        known = combine([_batch(draw) for _ in range(draw.randint(0, 6))], -1)
        told = [_batch(draw) for _ in range(draw.randint(0, 4))]
        numbers = [x for batch in (*known, *told) for x in batch]
        answer, _ = kafka.ask("combine", start, len(known), *numbers)
        theirs = [tuple(map(int, batch.split(","))) for batch in answer.split()[1:]]
        ours = combine((*known, *told), start)
        assert _state(ours) == _state(theirs), f"seed {seed}: {known} {told}"


def _batch(draw: random.Random) -> StateBatch:
    first = draw.randint(0, 20)
    return StateBatch(first, first + draw.randint(0, 6), draw.choice((0, 2, 4)), draw.randint(1, 3))
