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

And of transactions. A record's outcome is its transaction's; one whose end nobody knows is
committed as soon as one of its records was read, and then all of them must be there:

  aborted-read            as above: a record of an aborted transaction was read (Adya's G1a)
  precommitted-read       a transaction polled what it had sent itself
  read-past-lso           a transaction polled a record that lies behind one of its own
  consumed-twice, consumed-never      a record that two committed transactions of one group polled
                          and sent their positions with, or none though later ones were
  int-nonmonotonic-send   records of one transaction to one partition landed in another order
  G1c                     transactions in a circle, each of which polled what the one before sent

Three patterns are told and are no anomalies: writes of open transactions lie among each other's in
Kafka's logs (Jepsen allows them too).

  int-send-skip           foreign records between two of one transaction
  G0                      a circle in which each sent to some partition before the next
  G1c-ww                  a circle of such edges and of polls
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from testkit.checking.checker_cycles import cycles
from testkit.checking.history import (
    FAIL,
    INFO,
    OK,
    Assigned,
    Begin,
    ClientError,
    Ended,
    Event,
    Hung,
    Polled,
    Positions,
    Send,
    Sent,
    value_of,
)

_EXAMPLES = 5
LOST = ("lost-write", "unseen")
DUPLICATED = ("duplicate",)
REORDERED = (
    "nonmonotonic-send", "int-nonmonotonic-send", "nonmonotonic-poll", "int-nonmonotonic-poll",
    "poll-skip", "int-poll-skip",
)  # fmt: skip
PERMITTED = ("int-send-skip", "G0", "G1c-ww")


@dataclass(slots=True)
class Report:
    """How often each anomaly was found, with a few examples, and how much there was to look at.

    `permitted` counts what is told though Kafka's model allows it. `hung` are clients' own.
    """

    sent: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    read: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    hung: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    permitted: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def found(self, anomaly: str, example: str) -> None:
        counts = self.permitted if anomaly in PERMITTED else self.counts
        counts[anomaly] = counts.get(anomaly, 0) + 1
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
        if self.transactions:
            of = self.transactions
            lines.append(
                f"{sum(of.values())} transactions: {of[OK]} committed, {of[FAIL]} aborted, "
                f"{of[INFO]} unknown"
            )
        lines += [f"hung: {call}" for call in self.hung]
        for anomaly, count in sorted(self.counts.items()):
            lines.append(f"  {anomaly} {count}: {'; '.join(self.examples[anomaly])}")
        for pattern, count in sorted(self.permitted.items()):
            lines.append(f"  (permitted) {pattern} {count}: {self.examples[pattern][0]}")
        return "\n".join(lines)


@dataclass(slots=True)
class _Write:
    who: str
    number: int
    partition: int
    transaction: _Transaction | None = None
    outcome: str = ""
    offset: int = -1
    reader: str = ""  # who read it first

    @property
    def was_read(self) -> bool:
        return bool(self.reader)


@dataclass(slots=True)
class _Transaction:
    who: str
    number: int
    outcome: str = INFO
    writes: list[_Write] = field(default_factory=list)
    reads: list[tuple[int, int, str]] = field(default_factory=list)
    positions: dict[int, int] | None = None

    @property
    def name(self) -> str:
        return f"{self.who}#{self.number}"


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
        self._transactions: dict[tuple[str, int], _Transaction] = {}
        self._open: dict[str, _Transaction] = {}

    def add_sending(self, event: Event) -> None:
        """The first time: what was sent, and what became of transactions."""
        match event:
            case Begin() | Ended():
                self._add_bound(event)
            case Send():
                value = value_of(event.who, event.number)
                write = _Write(event.who, event.number, event.partition, self._open.get(event.who))
                self._writes[value] = write
                if write.transaction is not None:
                    write.transaction.writes.append(write)
            case Sent():
                self._add_sent(event)
            case ClientError():
                self.report.found("client-error", f"{event.who}: {event.error}")
            case Hung():
                self.report.hung.append(f"{event.who} in {event.call}")

    def add_reading(self, event: Event) -> None:
        """The second time: what was read."""
        match event:
            case Begin() | Ended():
                self._add_bound(event)
            case Polled():
                self._add_polled(event)
            case Positions():
                self._open[event.who].positions = dict(event.positions)
            case Assigned():
                for key in [key for key in self._position if key[0] == event.who]:
                    del self._position[key]

    def _add_bound(self, event: Begin | Ended) -> None:
        key = event.who, event.number
        if isinstance(event, Begin):
            self._open[event.who] = self._transactions.setdefault(key, _Transaction(*key))
        else:
            self._transactions[key].outcome = event.outcome
            self._open.pop(event.who, None)

    def _add_sent(self, event: Sent) -> None:
        value = value_of(event.who, event.number)
        write = self._writes[value]
        write.outcome = event.outcome
        if event.outcome == OK and event.offset is not None and event.offset >= 0:
            if write.transaction is None:
                self._lies_at(write.partition, event.offset, value)
            else:
                write.offset = event.offset  # it lies there for readers if it commits

    def _add_polled(self, event: Polled) -> None:
        reader = self._readers.setdefault(reader_of(event.who), _Reader())
        transaction = self._open.get(event.who)
        if transaction is not None:
            transaction.reads.extend(event.records)
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
                write.reader = write.reader or event.who

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
        self._settle()
        self.report.read = {who: reader.count() for who, reader in self._readers.items()}
        self._check_values_read()
        self._check_writes(drained)
        self._check_order_of_sends()
        self._check_jumps()
        self._check_own_reads()
        self._check_consumed()
        self._check_cycles()
        return self.report

    def _settle(self) -> None:
        """Each record's fate: its own, or its transaction's; a read proves an unknown one."""
        for transaction in self._transactions.values():
            if transaction.outcome == INFO and any(write.reader for write in transaction.writes):
                transaction.outcome = OK
        for value, write in self._writes.items():
            if write.transaction is not None and write.outcome != FAIL:
                write.outcome = write.transaction.outcome
                if write.outcome == OK and write.offset >= 0:
                    self._lies_at(write.partition, write.offset, value)
        report, outcomes = self.report, [write.outcome for write in self._writes.values()]
        report.sent, report.acked = len(outcomes), outcomes.count(OK)
        report.failed = outcomes.count(FAIL)
        report.unknown = report.sent - report.acked - report.failed
        ends = [transaction.outcome for transaction in self._transactions.values()]
        report.transactions = {end: ends.count(end) for end in (OK, FAIL, INFO)} if ends else {}

    def _check_values_read(self) -> None:
        for partition, values in self._at.items():
            for offset, value in values.items():
                write = self._writes.get(value)
                if write is None:
                    self.report.found("unknown-value", f"{partition}@{offset}: {value!r}")
                elif write.outcome == FAIL and write.was_read:
                    whose = f" of {write.transaction.name}" if write.transaction else ""
                    where = f"{partition}@{offset}: {value}{whose}"
                    self.report.found("aborted-read", f"{where}, read by {write.reader}")

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
            if before is not None:
                self._check_pair_of_sends(before, write)
            last[write.who, write.partition] = write

    def _check_pair_of_sends(self, before: _Write, write: _Write) -> None:
        internal = write.transaction is not None and before.transaction is write.transaction
        what = (
            f"{write.who}:{before.number} at {write.partition}@{before.offset}, "
            f"then :{write.number} at @{write.offset}"
        )
        if before.offset > write.offset:
            self.report.found(f"{'int-' if internal else ''}nonmonotonic-send", what)
        elif internal:
            known = self._at.get(write.partition, {})
            if any(offset in known for offset in range(before.offset + 1, write.offset)):
                self.report.found("int-send-skip", what)

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

    def _check_own_reads(self) -> None:
        """What a transaction polled of its own, or behind its own, before it had ended."""
        for transaction in self._transactions.values():
            first: dict[int, int] = {}
            for write in transaction.writes:
                if write.offset >= 0:
                    first[write.partition] = min(
                        write.offset, first.get(write.partition, write.offset)
                    )
            for partition, offset, value in transaction.reads:
                where = f"{transaction.name} polled {value} at {partition}@{offset}"
                writer = self._writes.get(value)
                if writer is not None and writer.transaction is transaction:
                    self.report.found("precommitted-read", where)
                elif partition in first and offset > first[partition]:
                    behind = f"behind its own at @{first[partition]}"
                    self.report.found("read-past-lso", f"{where}, {behind}")

    def _check_consumed(self) -> None:
        """Groups whose positions commit with transactions consume each record once.

        A group starts at the beginning of each partition.
        """
        taken: dict[tuple[str, int, int], _Transaction] = {}
        reached: dict[tuple[str, int], int] = {}
        for transaction in self._transactions.values():
            if transaction.positions is None or transaction.outcome == FAIL:
                continue
            self._consume(transaction, taken)
            if transaction.outcome == OK:
                for partition, position in transaction.positions.items():
                    key = reader_of(transaction.who), partition
                    reached[key] = max(position, reached.get(key, 0))
        for (group, partition), position in reached.items():
            for offset, value in self._at.get(partition, {}).items():
                if offset < position and (group, partition, offset) not in taken:
                    where = f"{value} at {partition}@{offset} by {group}, committed to {position}"
                    self.report.found("consumed-never", where)

    def _consume(
        self, transaction: _Transaction, taken: dict[tuple[str, int, int], _Transaction]
    ) -> None:
        for partition, offset, value in transaction.reads:
            place = reader_of(transaction.who), partition, offset
            other = taken.setdefault(place, transaction)
            if other.outcome == INFO:
                taken[place] = transaction
            elif other is not transaction and transaction.outcome == OK:
                who = f"{value} at {partition}@{offset} by {other.name} and {transaction.name}"
                self.report.found("consumed-twice", who)

    def _check_cycles(self) -> None:
        if not self._transactions:
            return
        ww, wr = _graph(self._ww_edges()), _graph(self._wr_edges())
        both = {one: {**ww.get(one, {}), **wr.get(one, {})} for one in {**ww, **wr}}
        for name, found in (
            ("G0", cycles(ww)),
            ("G1c", cycles(wr)),
            ("G1c-ww", cycles(both, through=wr)),
        ):
            for cycle in found:
                if name != "G1c-ww" or "(ww)" in cycle:  # else it was told as G1c
                    self.report.found(name, cycle)

    def _ww_edges(self) -> Iterator[tuple[str, str, str]]:
        """Of each two neighbours in a log, the writer of the first came before the other's."""
        for partition, values in self._at.items():
            for (before, one), (after, other) in pairwise(sorted(values.items())):
                if one in self._writes and other in self._writes:
                    first, second = self._node(one), self._node(other)
                    why = f"{first} sent {one} to {partition}@{before} before {second} sent "
                    yield first, second, f"{why}{other} to @{after} (ww)"

    def _wr_edges(self) -> Iterator[tuple[str, str, str]]:
        """Who sent a record came before each transaction that polled it."""
        for transaction in self._transactions.values():
            for partition, offset, value in transaction.reads:
                if value in self._writes:
                    writer, reader = self._node(value), transaction.name
                    why = f"{writer} sent {value} to {partition}@{offset}, which {reader} polled"
                    yield writer, reader, f"{why} (wr)"

    def _node(self, value: str) -> str:
        """A record's transaction; a record without one is a transaction of its own."""
        transaction = self._writes[value].transaction
        return value if transaction is None else transaction.name


def _graph(edges: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    graph: dict[str, dict[str, str]] = {}
    for one, other, why in edges:
        if one != other:
            graph.setdefault(one, {}).setdefault(other, why)
    return graph


def check(events: Iterable[Event], *, drained: Collection[str]) -> Report:
    """Every anomaly of the history.

    `drained` names the readers that were given the time to read to the end, after all faults were
    over: only they can have failed to see something. Of one `who` the events must come in order.
    The events are gone through twice: first what was sent, then what was read.
    """
    found = _Check()
    for event in events:
        found.add_sending(event)
    for event in events:
        found.add_reading(event)
    return found.finish(drained)


def assert_clean(report: Report) -> None:
    """Fail with every anomaly in the message."""
    assert not report.counts, str(report)
