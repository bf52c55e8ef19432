"""Snapshots of the metadata log: `<end offset, 20 digits>-<epoch, 10 digits>.checkpoint` (KIP-630).

What: one file holds the state of all records below its end offset, as record batches whose offsets
start at 0 and whose leader epoch is that of the last record contained. The first batch is the
control record SnapshotHeader (with the quorum's kraft version and voters when they are dynamic),
the last one SnapshotFooter: a file without footer is no snapshot. Why: the log below a snapshot
may be deleted, and loading is shorter. How (K-9): written as `.checkpoint.part`, fsynced, renamed,
the directory fsynced. What a failure leaves is deleted at once, what a crash leaves at the next
start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from replication.raft.own_events import SnapshotId
from replication.raft.voter_records import ControlRecord
from storage import files
from wire.control_records import ControlRecordType, control_record_type
from wire.errors import KafkaError, MalformedFrame
from wire.record_batch import check_crc, iterate_headers
from wire.record_body import Record
from wire.records import build_batch, build_control_batch, read_records

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"
_RECORDS_PER_BATCH = 1024


class CorruptSnapshot(Exception):
    """The file is no complete snapshot; the text names it and says why."""


class SnapshotContent(NamedTuple):
    """What a snapshot holds; `timestamp` (wall ms) is that of the last record contained."""

    timestamp: int
    controls: list[ControlRecord]
    values: list[bytes]


def parse_name(name: str) -> SnapshotId | None:
    """The id in a snapshot's file name; None for other files."""
    if not name.endswith(SUFFIX):
        return None
    offset, dash, epoch = name.removesuffix(SUFFIX).partition("-")
    if not dash or len(offset) != 20 or len(epoch) != 10 or not (offset + epoch).isdecimal():
        return None
    return SnapshotId(int(offset), int(epoch))


def list_snapshots(directory: Path) -> list[SnapshotId]:
    """Ids of all finished snapshots, oldest first."""
    return sorted(found for name in os.listdir(directory) if (found := parse_name(name)))


def remove_leftovers(directory: Path) -> None:
    """Delete what a crash left of unfinished and of deleted snapshots."""
    for name in os.listdir(directory):
        if name.endswith((PART_SUFFIX, DELETED_SUFFIX)):
            files.unlink(directory / name)


def write_snapshot(
    directory: Path,
    snapshot_id: SnapshotId,
    timestamp: int,
    wall_ms: int,
    controls: Sequence[ControlRecord],
    values: Iterable[bytes],
    mode: int = 0o644,
) -> None:
    """Write a snapshot so that it is there completely, durably, or not at all: what a failure
    leaves is removed at once, since the next attempt has another name. `mode`: who may read it,
    from the first byte on. Raises OSError.
    """
    final = directory / snapshot_id.file_name
    part = directory / (snapshot_id.file_name + ".part")
    batches = _batches(snapshot_id.epoch, timestamp, wall_ms, controls, values)
    discard(part)  # what is there keeps its own mode
    try:
        _write(part, batches, mode)
        files.replace(part, final)
    except BaseException:
        discard(part)
        raise
    files.sync_directory(directory)


def _write(path: Path, batches: Iterable[bytes], mode: int) -> None:
    """Write a whole file and sync it."""
    fd = files.open_or_relieve(path, files.CREATE | os.O_TRUNC, mode)
    try:
        position = 0
        for batch in batches:
            files.write_fully(fd, [batch], len(batch), position)
            position += len(batch)
        files.fsync(fd)
    finally:
        files.close(fd)


def discard(path: Path) -> None:
    """Delete what became of an unfinished file, if that is possible; the next start tries again."""
    with contextlib.suppress(OSError):
        files.unlink(path)


def _batches(
    epoch: int,
    timestamp: int,
    wall_ms: int,
    controls: Sequence[ControlRecord],
    values: Iterable[bytes],
) -> Iterator[bytes]:
    from wire.messages.raft_records import SnapshotFooterRecord, SnapshotHeaderRecord

    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp)
    first = ControlRecord(ControlRecordType.SNAPSHOT_HEADER, header.encode_bytes(0))
    yield build_control_batch(
        [first, *controls], timestamp=wall_ms, base_offset=0, leader_epoch=epoch
    )
    offset = 1 + len(controls)
    chunk: list[Record] = []
    for value in values:
        chunk.append(Record(-1, wall_ms, None, value, ()))
        if len(chunk) == _RECORDS_PER_BATCH:
            yield build_batch(chunk, base_offset=offset, leader_epoch=epoch)
            offset += len(chunk)
            chunk = []
    if chunk:
        yield build_batch(chunk, base_offset=offset, leader_epoch=epoch)
        offset += len(chunk)
    footer = SnapshotFooterRecord(version=0).encode_bytes(0)
    yield build_control_batch(
        [(ControlRecordType.SNAPSHOT_FOOTER, footer)],
        timestamp=wall_ms,
        base_offset=offset,
        leader_epoch=epoch,
    )


def read_snapshot(path: Path) -> SnapshotContent:
    """Read and check a whole snapshot (or a `bootstrap.checkpoint`). Raises CorruptSnapshot."""
    from wire.messages.raft_records import SnapshotHeaderRecord

    data = files.read_file(path)
    controls: list[ControlRecord] = []
    values: list[bytes] = []
    end = 0
    try:
        for position, header in iterate_headers(data):
            if not check_crc(data, position, header):
                raise CorruptSnapshot(f"{path}: wrong checksum at byte {position}")
            records = read_records(data, position, header)
            if header.is_control:
                controls += [
                    ControlRecord(control_record_type(record.key), record.value or b"")
                    for record in records
                ]
            else:
                values += [record.value or b"" for record in records]
            end = position + header.size
        types = [control.type for control in controls]
        if (
            end != len(data)
            or types[:1] != [ControlRecordType.SNAPSHOT_HEADER]
            or types[-1] is not ControlRecordType.SNAPSHOT_FOOTER
        ):
            raise CorruptSnapshot(f"{path}: not complete")
        first = SnapshotHeaderRecord.decode(controls[0].value, 0)
    except (MalformedFrame, KafkaError) as error:
        raise CorruptSnapshot(f"{path}: {error}") from error
    return SnapshotContent(first.last_contained_log_timestamp, controls[1:-1], values)


__all__ = [
    "ControlRecord",
    "CorruptSnapshot",
    "SnapshotContent",
    "SnapshotId",
    "list_snapshots",
    "parse_name",
    "read_snapshot",
    "remove_leftovers",
    "write_snapshot",
]
