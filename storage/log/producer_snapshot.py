"""One producer's state, and the file that holds those of a whole partition.

Why apart from `storage.log.producer_state`: this is a format, read by recovery and by `dump-log`
too; that is the rules. Kafka: ProducerStateEntry, ProducerStateManager's snapshot.

Snapshot layout, `<20 digits of map_end_offset>.snapshot`, big-endian (Kafka: ProducerSnapshot v1):

    int16 version 1, uint32 CRC-32C of byte 6 to the end, int32 count, then 46 bytes per producer:
    int64 producer_id, int16 epoch, int32 last_sequence, int64 last_offset, int32 offset_delta,
    int64 timestamp, int32 coordinator_epoch, int64 current_txn_first_offset (-1 none)

Only the last batch of each producer is in it: the others come back by replaying the log (P-4).
A snapshot is written in one go and synced later by its owner: the CRC tells a torn one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from storage import files
from storage.layout import PRODUCER_SNAPSHOT_ENTRY, PRODUCER_SNAPSHOT_HEAD
from wire.crc import crc32c
from wire.record_batch import SEQUENCE_MAX, BatchHeader

BATCHES_TO_RETAIN = 5
SNAPSHOT_SUFFIX = ".snapshot"

NONE = -1
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = Struct(PRODUCER_SNAPSHOT_HEAD)
_SNAPSHOT_ENTRY = Struct(PRODUCER_SNAPSHOT_ENTRY)
_CRC_END = 6


class CorruptSnapshot(Exception):
    """A producer snapshot cannot be what was written."""


class BatchMetadata(NamedTuple):
    """One of a producer's last batches; enough to answer when it is sent again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    """Last offset - first offset, and so last sequence - first sequence."""
    timestamp: int
    """The batch's max timestamp."""

    @property
    def first_sequence(self) -> int:
        """Sequence of its first record; -1 when it has none."""
        if self.last_sequence < 0:
            return NONE
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        """Offset of its first record: the base_offset of the answer to a duplicate."""
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """One producer. `current_txn_first_offset` is -1 when it has no open transaction here."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_append_ms",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = NONE
        self.coordinator_epoch = NONE
        self.current_txn_first_offset = NONE
        self.last_timestamp = NONE
        self.last_append_ms = 0
        self.batches: list[BatchMetadata] = []
        """At most BATCHES_TO_RETAIN, oldest first, all of the current epoch."""

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record in this epoch, -1 for none."""
        return self.batches[-1].last_sequence if self.batches else NONE

    @property
    def next_sequence(self) -> int:
        """What its next batch in this epoch begins with; 2**31-1 is followed by 0."""
        return (self.batches[-1].last_sequence + 1) & SEQUENCE_MAX if self.batches else 0

    @property
    def last_data_offset(self) -> int:
        """Offset of its last record that is no marker, -1 when unknown: compaction keeps it."""
        return self.batches[-1].last_offset if self.batches else NONE

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The kept batch that `header` repeats: same epoch, same first and last sequence."""
        if header.producer_epoch == self.producer_epoch:
            last_sequence = header.last_sequence
            for batch in self.batches:
                if (
                    batch.last_sequence == last_sequence
                    and batch.first_sequence == header.base_sequence
                ):
                    return batch
        return None

    def set_epoch(self, producer_epoch: int) -> None:
        """Enter an epoch; a new one starts its sequences anew."""
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()

    def add_batch(self, batch: BatchMetadata) -> None:
        """Remember the newest batch, forget the sixth."""
        if len(self.batches) == BATCHES_TO_RETAIN:
            del self.batches[0]
        self.batches.append(batch)

    def __repr__(self) -> str:
        return (
            f"ProducerStateEntry(producer_id={self.producer_id}, epoch={self.producer_epoch}, "
            f"txn_first_offset={self.current_txn_first_offset}, batches={self.batches})"
        )


def list_snapshots(directory: Path) -> list[int]:
    """Offsets of the producer snapshots in a partition directory, ascending. Raises OSError."""
    suffix = len(SNAPSHOT_SUFFIX)
    return sorted(
        int(name[:-suffix])
        for name in os.listdir(directory)
        if name.endswith(SNAPSHOT_SUFFIX) and name[:-suffix].isdecimal()
    )


def write_snapshot(path: Path, entries: Iterable[ProducerStateEntry]) -> None:
    """Write a snapshot, not synced. Raises OSError."""
    body = [
        _SNAPSHOT_ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.batches[-1].offset_delta if entry.batches else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in entries
    ]
    data = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(body)))
    data += b"".join(body)
    data[2:_CRC_END] = crc32c(memoryview(data)[_CRC_END:]).to_bytes(4, "big")
    fd = files.open_or_relieve(path, files.CREATE | os.O_TRUNC)
    try:
        files.write_fully(fd, [data], len(data), 0)
    except OSError:
        with suppress(OSError):
            files.unlink(path)
        raise
    finally:
        files.close(fd)


def read_snapshot(path: Path) -> list[ProducerStateEntry]:
    """The producers in a snapshot. Raises CorruptSnapshot and OSError."""
    data = files.read_file(path)
    try:
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    except struct_error:
        raise CorruptSnapshot(f"{len(data)} bytes are no snapshot") from None
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"unknown version {version}")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise CorruptSnapshot("the CRC is wrong")
    if _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size != len(data):
        raise CorruptSnapshot(f"{count} producers do not make {len(data)} bytes")
    return [
        _parse_entry(*fields) for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])
    ]


def _parse_entry(
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    current_txn_first_offset: int,
) -> ProducerStateEntry:
    entry = ProducerStateEntry(producer_id)
    entry.producer_epoch = producer_epoch
    entry.coordinator_epoch = coordinator_epoch
    entry.last_timestamp = timestamp
    entry.current_txn_first_offset = current_txn_first_offset
    if last_offset >= 0:
        entry.batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
    return entry
