"""What a log must hold, as simple as it can be said: a row of batches, and what may be missing.

`Content` is a log at one moment. While an operation that failed or was cut short may have had its
effect or not, a log has several `Possible` contents; the next look at it tells which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from storage.log.producer_replay import read_marker
from wire.control_records import ControlRecordType
from wire.primitives import TopicPartition
from wire.record_batch import BatchHeader, read_header
from wire.records import read_records


class Batch(NamedTuple):
    """One batch as it lies in a log, its offset and leader epoch stamped."""

    header: BatchHeader
    rows: tuple[tuple[int, bytes | None, bytes | None], ...]
    """Offset, key and value of each record that is no marker."""
    is_abort: bool | None = None
    """Of a transaction's marker."""

    @classmethod
    def of(cls, data: bytes, at: int = 0) -> Batch:
        header = read_header(data, at)
        if header.is_control:
            marker = read_marker(header, data[at : at + header.size])
            return cls(header, (), marker and marker.type is ControlRecordType.ABORT)
        rows = ((r.offset, r.key, r.value) for r in read_records(data, at, header))
        return cls(header, tuple(rows))

    @property
    def identity(self) -> tuple[int, int, int]:
        """No two batches that were ever written to one log share it."""
        return self.header.base_offset, self.header.leader_epoch, self.header.crc

    def __str__(self) -> str:
        header = self.header
        of = f" of {header.producer_id}/{header.producer_epoch}" if header.producer_id >= 0 else ""
        return f"{header.base_offset}-{header.last_offset}@{header.leader_epoch}{of}"


class Content(NamedTuple):
    """A log's batches, where it starts, and where it ends."""

    start: int = 0
    batches: tuple[Batch, ...] = ()
    end: int = 0

    def cut(self, offset: int) -> Content:
        """Without the batches that reach `offset`; ends where the last one left does."""
        kept = tuple(b for b in self.batches if b.header.last_offset < offset)
        if len(kept) == len(self.batches):
            return self
        end = kept[-1].header.next_offset if kept else offset
        return Content(min(self.start, end), kept, end)

    def above(self, start: int) -> tuple[Batch, ...]:
        """The batches that are not wholly below `start`."""
        return tuple(b for b in self.batches if b.header.next_offset > start)

    def and_then(self, batches: Iterable[Batch]) -> Content:
        batches = (*self.batches, *batches)
        return Content(self.start, batches, batches[-1].header.next_offset)

    def __str__(self) -> str:
        return f"[{self.start},{self.end}) {' '.join(map(str, self.above(self.start)))}"


class Possible(NamedTuple):
    """A log may hold this, or any part from its beginning on that reaches `min_end`.

    Of what is deleted at the start nothing is asked: batches of `content` below its start may be
    there, and are, if the deletion was not noted.
    """

    content: Content
    min_end: int

    def explains(self, found: Content, *, is_compacted: bool) -> bool:
        """Is this what was found."""
        if not self.min_end <= found.end <= max(self.content.end, found.start):
            return False
        if is_compacted:
            return _is_compaction_of(found, self.content.cut(found.end))
        expected = self.content.above(found.start)
        if found.batches:
            ends_well = found.end == found.batches[-1].header.next_offset
        else:
            ends_well = found.end in (found.start, self.content.end)
        return ends_well and expected[: len(found.batches)] == found.batches

    def explains_up_to(self, found: Content, flushed: int, *, is_compacted: bool) -> bool:
        """Is this what was found below `flushed`."""
        if found.end < flushed:
            return False
        if is_compacted:
            return _is_compaction_of(found, self.content.cut(flushed))
        start = max(found.start, self.content.start)
        expected = self.content.cut(flushed).above(start)
        return found.above(start)[: len(expected)] == expected


def _is_compaction_of(found: Content, whole: Content) -> bool:
    """Below the end of `whole`, nothing was found that it has not, and of each key the newest; a
    deletion that is not there any more has left no older value."""
    rows = {row for batch in whole.batches for row in batch.rows}
    values = {offset: value for offset, _, value in rows}
    oldest_found: dict[bytes | None, int] = {}
    newest_found: dict[bytes | None, int] = {}
    offsets = set()
    for batch in found.batches:
        for row in batch.rows:
            if row[0] < whole.end and row not in rows:
                return False
            offsets.add(row[0])
            oldest_found.setdefault(row[1], row[0])
            newest_found[row[1]] = row[0]
    return all(
        offset < found.start
        or offset in offsets
        or newest_found.get(key, -1) > offset
        or (values[offset] is None and oldest_found.get(key, offset) >= offset)
        for key, offset in newest_by_key(whole).items()
    )


class Txn(NamedTuple):
    """A transaction's records and end within a content."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker, -1 while it is open."""
    is_aborted: bool


@dataclass(slots=True)
class Producer:
    """What batches tell of one."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    txn_first_offset: int = -1


def producers_of(batches: Iterable[Batch]) -> tuple[dict[int, Producer], list[Txn]]:
    """Producers and transactions, from the batches alone (KIP-98)."""
    producers: dict[int, Producer] = {}
    txns: list[Txn] = []
    for batch in batches:
        header = batch.header
        if header.producer_id < 0 or (header.is_control and batch.is_abort is None):
            continue
        one = producers.setdefault(header.producer_id, Producer())
        if header.producer_epoch != one.epoch:
            one.epoch, one.last_sequence, one.last_offset = header.producer_epoch, -1, -1
        if header.is_control:
            if one.txn_first_offset >= 0:
                txns.append(
                    Txn(header.producer_id, one.txn_first_offset, header.base_offset,
                        bool(batch.is_abort))
                )  # fmt: skip
            one.txn_first_offset = -1
            continue
        one.last_sequence, one.last_offset = header.last_sequence, header.last_offset
        if header.is_transactional and one.txn_first_offset < 0:
            one.txn_first_offset = header.base_offset
    for producer_id, one in producers.items():
        if one.txn_first_offset >= 0:
            txns.append(Txn(producer_id, one.txn_first_offset, -1, False))
    return producers, txns


def newest_by_key(content: Content) -> dict[bytes | None, int]:
    """Where the newest committed record of each key is: compaction keeps it."""
    _, txns = producers_of(content.batches)
    undone = [t for t in txns if t.is_aborted or t.last_offset < 0]
    newest = {}
    for batch in content.batches:
        header = batch.header
        if header.is_transactional and any(
            t.producer_id == header.producer_id
            and t.first_offset <= header.base_offset
            and (t.last_offset < 0 or header.base_offset < t.last_offset)
            for t in undone
        ):
            continue
        for offset, key, _ in batch.rows:
            newest[key] = offset
    return newest


@dataclass(slots=True)
class Replica:
    """One partition under test: what was done to it, and what it must hold."""

    key: TopicPartition
    topic_id: bytes
    directory: Path
    """Where the controller knows it; a move has it change before its end."""
    is_compacted: bool
    content: Content = field(default_factory=Content)
    """The newest of `possible`, where appends go on."""
    possible: list[Possible] = field(default_factory=list)
    may_be_gone: bool = False
    """It was never there for certain, or a deletion was cut short."""
    flushed: int = 0
    """Below it everything is on disk, as the log claims."""
    noted_start: int = 0
    """Nothing that was deleted below it comes back, not with a power loss either."""
    deleted_to: int = 0
    """The furthest that a deletion ever meant to come before a start."""
    high_watermark: int = 0
    compacted_to: int = 0
    """Below it records may be gone that are the newest of their keys once the log is cut there."""
    epoch: int = 0
    """The current leader epoch."""
    producer_epochs: dict[int, int] = field(default_factory=dict)
    """The newest that each producer ever had."""
    written: set[tuple[int, int, int]] = field(default_factory=set)
    """The identities of all batches that were ever sent to it."""

    def lower(self, offset: int) -> None:
        """What lies at or above `offset` is given up, whatever becomes of the operation."""
        self.flushed = min(self.flushed, offset)
        self.noted_start = min(self.noted_start, offset)

    def settle(self, content: Content) -> None:
        """It holds this, in memory and in its files."""
        self.content = content
        self.possible = [Possible(content, content.end)]
        self.high_watermark = min(max(self.high_watermark, content.start), content.end)
