"""Does a history show what a log must never show? Jepsen's list of anomalies, for plain records.

PURE: events in (`history`), a `Report` out.

From what sends were told and what polls returned, each partition's offset -> value map is built
(Jepsen's version order). Then, in the words of that list:

  inconsistent-offsets    one offset holds two values
  duplicate               one value at two offsets (expected without idempotence)
  lost-write              a record that must have been committed lies below the highest offset that
                          anybody read, and nobody ever read it
  unseen                  acknowledged, but a reader that was drained to the end never read it
  aborted-read            a reader got a value whose send had definitely failed
  unknown-value           a reader got a value that nobody sent
  int-poll-skip, int-nonmonotonic-poll    a gap, a step back inside one poll
  poll-skip, nonmonotonic-poll    the same between polls of one consumer with no assignment between
  nonmonotonic-send       records of one producer to one partition landed in another order
  client-error            a client told its user about an error that no retry had hidden

A gap counts only where a value is known to lie in it: offsets may be skipped.

Gaps: what concerns transactions (precommitted reads, int-send-skip, G0, G1c) comes with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from compat_tests.support.history import (
    FAIL,
    OK,
    Assigned,
    ClientError,
    Event,
    Polled,
    Send,
    Sent,
    value_of,
)

_EXAMPLES = 5
LOST = ("lost-write", "unseen")
DUPLICATED = ("duplicate",)
REORDERED = (
    "nonmonotonic-send", "nonmonotonic-poll", "int-nonmonotonic-poll", "poll-skip", "int-poll-skip",
)  # fmt: skip


@dataclass(slots=True)
class Report:
    """How often each anomaly was found, with a few examples, and how much there was to look at."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    read: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def found(self, anomaly: str, example: str) -> None:
        self.counts[anomaly] = self.counts.get(anomaly, 0) + 1
        shown = self.examples.setdefault(anomaly, [])
        if len(shown) < _EXAMPLES:
            shown.append(example)

    @property
    def lost(self) -> int:
        return sum(self.counts.get(name, 0) for name in LOST)

    @property
    def duplicated(self) -> int:
        return sum(self.counts.get(name, 0) for name in DUPLICATED)

    @property
    def reordered(self) -> int:
        return sum(self.counts.get(name, 0) for name in REORDERED)

    def __str__(self) -> str:
        lines = [
            f"{self.acked} acknowledged of {self.sent} sent ({self.failed} failed, "
            f"{self.unknown} unknown): {self.lost} lost, {self.duplicated} duplicated, "
            f"{self.reordered} reordered; read: "
            + (", ".join(f"{who} {count}" for who, count in sorted(self.read.items())) or "nothing")
        ]
        for anomaly, count in sorted(self.counts.items()):
            lines.append(f"  {anomaly} {count}: {'; '.join(self.examples[anomaly])}")
        return "\n".join(lines)


@dataclass(slots=True)
class _Write:
    who: str
    number: int
    partition: int
    outcome: str = ""
    offset: int = -1
    was_read: bool = False


class _Jump(NamedTuple):
    """Two records one after the other in one consumer's hands, with a gap or a step back."""

    who: str
    partition: int
    before: int
    after: int
    is_internal: bool


class _Reader:
    """What one reader (a consumer, or all members of a group) got: a bit for each offset."""

    def __init__(self) -> None:
        self.offsets: dict[int, bytearray] = {}

    def got(self, partition: int, offset: int) -> None:
        bits = self.offsets.setdefault(partition, bytearray())
        if offset >= len(bits):
            bits.extend(bytes(max(offset + 1 - len(bits), 4096)))
        bits[offset] = 1

    def has(self, partition: int, offset: int) -> bool:
        bits = self.offsets.get(partition, b"")
        return 0 <= offset < len(bits) and bits[offset] == 1

    def count(self) -> int:
        return sum(sum(bits) for bits in self.offsets.values())


def reader_of(who: str) -> str:
    """Members of a group are called GROUP/MEMBER; what one of them read, the group has read."""
    return who.partition("/")[0]


class _Check:
    """One pass over the events, then the questions that need all of them."""

    def __init__(self) -> None:
        self.report = Report()
        self._writes: dict[str, _Write] = {}
        self._at: dict[int, dict[int, str]] = {}  # partition -> offset -> value
        self._highest: dict[int, int] = {}  # partition -> highest offset that anybody read
        self._readers: dict[str, _Reader] = {}
        self._position: dict[tuple[str, int], int] = {}  # last offset polled since the assignment
        self._jumps: list[_Jump] = []

    def add(self, event: Event) -> None:
        match event:
            case Send():
                value = value_of(event.who, event.number)
                self._writes[value] = _Write(event.who, event.number, event.partition)
                self.report.sent += 1
            case Sent():
                self._add_sent(event)
            case Polled():
                self._add_polled(event)
            case Assigned():
                for key in [key for key in self._position if key[0] == event.who]:
                    del self._position[key]
            case ClientError():
                self.report.found("client-error", f"{event.who}: {event.error}")

    def _add_sent(self, event: Sent) -> None:
        value = value_of(event.who, event.number)
        write = self._writes[value]
        write.outcome = event.outcome
        if event.outcome == OK:
            self.report.acked += 1
            if event.offset is not None and event.offset >= 0:
                self._lies_at(write.partition, event.offset, value)
        elif event.outcome == FAIL:
            self.report.failed += 1

    def _add_polled(self, event: Polled) -> None:
        reader = self._readers.setdefault(reader_of(event.who), _Reader())
        in_this_poll: set[int] = set()
        for partition, offset, value in event.records:
            key = (event.who, partition)
            before = self._position.get(key)
            if before is not None and offset != before + 1:
                internal = partition in in_this_poll
                self._jumps.append(_Jump(event.who, partition, before, offset, internal))
            self._position[key] = offset
            in_this_poll.add(partition)
            reader.got(partition, offset)
            self._highest[partition] = max(self._highest.get(partition, -1), offset)
            self._lies_at(partition, offset, value)
            write = self._writes.get(value)
            if write is not None:
                write.was_read = True

    def _lies_at(self, partition: int, offset: int, value: str) -> None:
        known = self._at.setdefault(partition, {}).setdefault(offset, value)
        if known != value:
            self.report.found("inconsistent-offsets", f"{partition}@{offset}: {known} and {value}")
        write = self._writes.get(value)
        if write is None:
            return  # `_check_values_read` tells
        if write.offset < 0:
            write.offset = offset
        if write.offset != offset or write.partition != partition:
            where = f"{write.partition}@{write.offset} and {partition}@{offset}"
            self.report.found("duplicate", f"{value}: {where}")

    def finish(self, drained: Collection[str]) -> Report:
        self.report.unknown = self.report.sent - self.report.acked - self.report.failed
        self.report.read = {who: reader.count() for who, reader in self._readers.items()}
        self._check_values_read()
        self._check_writes(drained)
        self._check_order_of_sends()
        self._check_jumps()
        return self.report

    def _check_values_read(self) -> None:
        for partition, values in self._at.items():
            for offset, value in values.items():
                write = self._writes.get(value)
                if write is None:
                    self.report.found("unknown-value", f"{partition}@{offset}: {value!r}")
                elif write.outcome == FAIL and write.was_read:
                    self.report.found("aborted-read", f"{partition}@{offset}: {value}")

    def _check_writes(self, drained: Collection[str]) -> None:
        for value, write in self._writes.items():
            if write.outcome != OK:
                continue
            where = f"{value} at {write.partition}@{write.offset}"
            if not write.was_read and 0 <= write.offset <= self._highest.get(write.partition, -1):
                self.report.found("lost-write", where)
                continue
            for who in drained:
                reader = self._readers.get(who)
                if reader is None or not reader.has(write.partition, write.offset):
                    self.report.found("unseen", f"{where} by {who}")
                    break

    def _check_order_of_sends(self) -> None:
        last: dict[tuple[str, int], _Write] = {}
        for write in sorted(self._writes.values(), key=lambda write: (write.who, write.number)):
            if write.offset < 0:
                continue
            before = last.get((write.who, write.partition))
            if before is not None and before.offset > write.offset:
                self.report.found(
                    "nonmonotonic-send",
                    f"{write.who}:{before.number} at {write.partition}@{before.offset}, "
                    f"then :{write.number} at @{write.offset}",
                )
            last[write.who, write.partition] = write

    def _check_jumps(self) -> None:
        for who, partition, before, after, is_internal in self._jumps:
            kind = "int-" if is_internal else ""
            if after <= before:
                self.report.found(
                    f"{kind}nonmonotonic-poll", f"{who} {partition}@{before}->{after}"
                )
                continue
            known = self._at[partition]
            if any(offset in known for offset in range(before + 1, after)):
                self.report.found(f"{kind}poll-skip", f"{who} {partition}@{before}->{after}")


def check(events: Iterable[Event], *, drained: Collection[str]) -> Report:
    """Every anomaly of the history.

    `drained` names the readers that were given the time to read to the end, after all faults were
    over: only they can have failed to see something. Of one `who` the events must come in order.
    The events are gone through twice: first what was sent, then what was read.
    """
    found = _Check()
    for of_readers in (False, True):
        for event in events:
            if isinstance(event, Polled | Assigned) is of_readers:
                found.add(event)
    return found.finish(drained)


def assert_clean(report: Report) -> None:
    """Fail with every anomaly in the message."""
    assert not report.counts, str(report)
