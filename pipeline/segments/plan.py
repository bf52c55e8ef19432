"""Which bytes of a broker's log directory to read: one part per segment, narrowed by its indexes.

Runs in Spark's planning process, next to the driver, and travels there by value: it imports
nothing of ours but numbers, therefore it reads Kafka's small files itself instead of through
`storage`.

What is readable. Up to the high watermark that the broker last wrote down
(`replication-offset-checkpoint`, every 5 s and at a clean stop), or to the end of the log when
asked (`log_end`). Reading committed, not beyond the first record of an open transaction, but to
the log's end, where an open one counts as aborted: nobody will end it; unless its commit was
decided, as who reads `__transaction_state` knows (`prepared`). Which are open is known from
the latest producer snapshot plus a scan of the batch headers after it (the active segment, as a
rule); which were aborted, from the transaction indexes and that scan: what a power failure left of
an index may lack the latest. From the log start offset on (`log-start-offset-checkpoint`:
DeleteRecords).

Filters go down to the indexes: a segment outside of the wanted offsets is not read; the first
batch is found by the offset index; a segment whose time index says that it holds nothing young
enough is not read, and else reading begins after the last entry that is too old.

File formats, big-endian (Kafka: OffsetIndex, TimeIndex, AbortedTxn, ProducerSnapshot,
CheckpointFile): .index int32 relative offset, int32 position; .timeindex int64 timestamp, int32
relative offset; .txnindex int16 0, int64 producer id, first, last, last stable offset; .snapshot
int16 1, uint32 crc, int32 count, then 46 bytes each; checkpoints are text.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .layout import (
    ABORTED_TXN,
    BEFORE_LENGTH,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    HIGH_WATERMARKS,
    LOG_STARTS,
    MAGIC,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEAD,
    TRANSACTIONAL,
)

_MAX_OFFSET = 2**63 - 1
_SEGMENT_FILE = re.compile(r"(\d{20})(\.\w+?)(\.swap|\.cleaned)?")
_INDEX = re.compile("[0-9]+")
_LOOKS = 3
_NAMED_MAX = 8
"""Topics that are told when another one was asked for."""


class PlanError(Exception):
    """The directory, the topic or the options are wrong; the text says what to do."""


class Wanted(NamedTuple):
    """What to read of one topic. Offsets by partition, -1 standing for all; ends are exclusive."""

    topic: str
    partitions: frozenset[int] | None = None
    from_offsets: dict[int, int] = {}
    to_offsets: dict[int, int] = {}
    since_ms: int | None = None
    until_ms: int | None = None
    committed_only: bool = True
    log_end: bool = False
    only: frozenset[int] | None = None
    """What a filter leaves of the partitions. It may name some that there are not."""
    prepared: Mapping[int, Sequence[int]] = {}
    """By partition: producers whose open transaction is committed at the log's end."""
    left_out: Mapping[str, Sequence[Sequence[int]]] = {}
    """By partition's directory and file (`orders-0/0….log`): from which to which byte nothing is
    looked at."""

    def has(self, partition: int) -> bool:
        return all(named is None or partition in named for named in (self.partitions, self.only))


class SegmentPart(NamedTuple):
    """What one task reads: batches of a segment from a position, records of an offset range."""

    path: str
    topic: str
    partition: int
    from_offset: int
    to_offset: int
    position: int
    aborted: tuple[tuple[int, int, int], ...]
    """(producer id, first offset, offset of the abort marker) of transactions to leave out."""
    since_ms: int | None
    until_ms: int | None
    committed_only: bool
    size: int
    """Bytes of the segment file from `position` on: an estimate of the work."""
    is_last: bool
    """Whether the segment is the active one, whose end may be a batch half written."""
    is_whole: bool
    """Whether it must have all up to `to_offset`, as the active one up to the high watermark."""
    left_out: Sequence[Sequence[int]]
    """From which to which byte nothing is looked at."""


class Segment(NamedTuple):
    """One segment of a log. Each file's path is `stem`, its kind (`.log`, `.index`), `suffix`."""

    base: int
    stem: str
    suffix: str = ""

    def file(self, kind: str) -> str:
        return self.stem + kind + self.suffix


class PartitionPlan(NamedTuple):
    """One partition: what there is, and the parts to read."""

    topic: str
    partition: int
    log_start: int
    readable_to: int
    """End of what may be read: high watermark or last stable offset, exclusive."""
    parts: list[SegmentPart]
    has_checkpoint: bool
    """Whether the broker has written down a high watermark for it."""


class _Place(NamedTuple):
    """Where a partition lies, and what its directory's checkpoints say of it."""

    folder: str
    high_watermark: int | None
    log_start: int


def plan(paths: list[str], *wanted: Wanted) -> list[PartitionPlan]:
    """The plan of each partition of the wanted topics, in their order. Raises PlanError."""
    names = {one.topic for one in wanted}
    is_to_log_end = all(one.log_end for one in wanted)
    places: dict[str, dict[int, _Place]] = {}
    for path in paths:
        check_log_dir(path)
        high_watermarks = {} if is_to_log_end else _checkpoint(path, HIGH_WATERMARKS)
        starts = log_starts(path)
        for topic, partition, folder in partitions_in(path):
            key = (topic, partition)
            place = _Place(folder, high_watermarks.get(key), starts.get(key, 0))
            known = places.setdefault(topic, {}).setdefault(partition, place)
            if known.folder != folder and topic in names:
                raise in_two_places(known.folder, folder)
    plans: list[PartitionPlan] = []
    for one in wanted:
        _require(one, places, paths)
        plans += [
            _looked_at(place, partition, one)
            for partition, place in sorted(places[one.topic].items())
            if one.has(partition)
        ]
    return plans


def in_two_places(one: str, other: str) -> PlanError:
    """For a partition that lies in two log directories."""
    return PlanError(
        f"{os.path.basename(one)} is in {os.path.dirname(one)} and in {os.path.dirname(other)}, as"
        " in two brokers; give the log directories of one"
    )


def _require(wanted: Wanted, places: dict[str, dict[int, _Place]], paths: list[str]) -> None:
    """Raise PlanError for a topic or a partition that was named and is not in the directories."""
    if wanted.topic not in places:
        known = sorted(name for name in places if not name.startswith("__"))
        more = len(known) - _NAMED_MAX
        text = ", ".join(known[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        raise PlanError(
            f"no topic {wanted.topic!r} in {','.join(paths)}; there are: {text or 'none at all'}"
        )
    there = places[wanted.topic]
    named = {*(wanted.partitions or ()), *wanted.from_offsets, *wanted.to_offsets} - {-1}
    if named - there.keys():
        missing = ", ".join(str(one) for one in sorted(named - there.keys()))
        raise PlanError(
            f"topic {wanted.topic!r} has no partition {missing} in {','.join(paths)}; there are:"
            f" {', '.join(str(one) for one in sorted(there))}"
        )


def check_log_dir(path: str) -> None:
    """Raise PlanError unless a broker keeps logs there."""
    if not os.path.isdir(path):
        raise PlanError(f"{path} is no directory (on this machine); give a broker's log directory")
    names = os.listdir(path)
    if any(re.fullmatch(r"\d{20}\.log", name) for name in names):
        raise PlanError(
            f"{path} is the directory of one partition; give the log directory above it,"
            f" {os.path.dirname(os.path.abspath(path))}, and --topic"
        )
    if "meta.properties" not in names and not any(partitions_in(path)):
        raise PlanError(
            f"{path} is no log directory of a Kafka broker (no meta.properties, no partitions);"
            " give what its log.dirs or --data-dir says"
        )


def partitions_in(path: str) -> list[tuple[str, int, str]]:
    """(topic, partition, folder) of the partitions kept there; deleted and future ones left out."""
    found: list[tuple[str, int, str]] = []
    for name in sorted(os.listdir(path)):
        topic, _, index = name.rpartition("-")
        folder = os.path.join(path, name)
        if topic and _INDEX.fullmatch(index) and os.path.isdir(folder):
            found.append((topic, int(index), folder))
    return found


def _looked_at(place: _Place, partition: int, wanted: Wanted) -> PartitionPlan:
    """The plan of a partition whose broker may be deleting and compacting segments meanwhile."""
    gone = ""
    for _ in range(_LOOKS):
        try:
            return _plan_partition(place, partition, wanted)
        except FileNotFoundError as error:
            gone = str(error.filename)
    raise PlanError(f"{gone} was deleted just now; run the read again")


def _plan_partition(place: _Place, partition: int, wanted: Wanted) -> PartitionPlan:
    folder, high_watermark, log_start = place
    segments = segments_in(folder)
    log_start = max(log_start, segments[0].base) if segments else log_start
    end = high_watermark
    if wanted.log_end:
        end = _MAX_OFFSET
    elif end is None:
        end = log_start
    aborted: list[tuple[int, int, int]] = []
    if segments and wanted.committed_only:
        still_open, aborted = _transactions(folder, segments, end)
        if wanted.log_end:
            prepared = wanted.prepared.get(partition, ())
            aborted += [
                (producer, first, _MAX_OFFSET)
                for producer, first in still_open.items()
                if producer not in prepared
            ]
        else:
            end = min(still_open.values(), default=end)
    lower = max(log_start, wanted.from_offsets.get(partition, wanted.from_offsets.get(-1, 0)))
    upper = min(end, wanted.to_offsets.get(partition, wanted.to_offsets.get(-1, _MAX_OFFSET)))
    parts: list[SegmentPart] = []
    for segment, following in _with_ends(segments):
        start, stop = max(lower, segment.base), min(upper, following)
        if start >= stop:
            continue
        is_last = following == _MAX_OFFSET
        part = _part(segment, (start, stop), is_last, aborted, wanted, partition)
        if part is not None:
            parts.append(part)
    return PartitionPlan(wanted.topic, partition, log_start, end, parts, high_watermark is not None)


def _with_ends(segments: list[Segment]) -> Iterator[tuple[Segment, int]]:
    """Each segment and where the next one begins."""
    return zip(segments, [*(one.base for one in segments[1:]), _MAX_OFFSET], strict=False)


def _part(
    segment: Segment,
    offsets: tuple[int, int],
    is_last: bool,
    aborted: list[tuple[int, int, int]],
    wanted: Wanted,
    partition: int,
) -> SegmentPart | None:
    start, stop = offsets
    if wanted.since_ms is not None:
        young = _first_young(segment, wanted.since_ms, is_last)
        if young is None or young >= stop:
            return None
        start = max(start, young)
    path = segment.file(".log")
    position = position_of(segment, start)
    size = os.stat(path).st_size
    overlapping = tuple(txn for txn in aborted if txn[2] >= start and txn[1] < stop)
    return SegmentPart(
        path, wanted.topic, partition, start, stop, position, overlapping,
        wanted.since_ms, wanted.until_ms, wanted.committed_only, size - position, is_last,
        is_last and not wanted.log_end, wanted.left_out.get(file_key(path), ()),
    )  # fmt: skip


def file_key(path: str) -> str:
    """A log's file as `Wanted.left_out` names it."""
    folder, name = os.path.split(path)
    return f"{os.path.basename(folder)}/{name}"


def segments_in(folder: str) -> list[Segment]:
    """The segments of a log, ascending, as a broker would have them that starts there: where one
    was killed while it compacted, a `.swap` segment is complete and stands for all that it covers,
    unless files beside it are `.cleaned` yet (Kafka: LogLoader)."""
    for _ in range(20):  # of a broker that runs a `.swap` is gone in a moment
        found = [one for one in map(_SEGMENT_FILE.fullmatch, os.listdir(folder)) if one]
        if not any(one[3] == ".swap" for one in found):
            break
    cleaned = min((int(one[1]) for one in found if one[3] == ".cleaned"), default=_MAX_OFFSET)
    logs = [
        Segment(int(one[1]), os.path.join(folder, one[1]), one[3] or "")
        for one in found
        if one[2] == ".log" and one[3] != ".cleaned"
    ]
    swaps = [(one, _end_of(one)) for one in logs if one.suffix and one.base < cleaned]
    others = [
        one
        for one in logs
        if not one.suffix and not any(swap.base <= one.base < end for swap, end in swaps)
    ]
    return sorted([*others, *(swap for swap, _ in swaps)])


def _end_of(swap: Segment) -> int:
    """The offset behind its last batch, and behind its base where it has none."""
    end = swap.base + 1
    with open(swap.file(".log"), "rb") as file:
        for _, head in _heads(file.fileno(), 0):
            end = head[0] + head[6] + 1
    return end


def position_of(segment: Segment, offset: int) -> int:
    """Where to begin reading for an offset: a hint, right or too early."""
    kind = np.dtype([("offset", ">i4"), ("position", ">i4")])
    entries = _entries(segment.file(".index"), kind)
    # Entries name the last offset of a batch: the one below the wanted offset is safe.
    at = int(np.searchsorted(entries["offset"], offset - segment.base, side="left")) - 1
    return int(entries["position"][at]) if at >= 0 else 0


def _first_young(segment: Segment, since_ms: int, is_last: bool) -> int | None:
    """The first offset that may be young enough; None when the segment has none."""
    kind = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
    entries = _entries(segment.file(".timeindex"), kind)
    if not len(entries):
        return segment.base
    if not is_last and int(entries["timestamp"][-1]) < since_ms:
        return None  # a closed segment's last entry is its largest timestamp
    old = int(np.searchsorted(entries["timestamp"], since_ms, side="left"))
    return segment.base + int(entries["offset"][old - 1]) + 1 if old else segment.base


def _entries(path: str, kind: np.dtype[np.void]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Entries of an index without the zeros that Kafka preallocates; none without a file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return np.empty(0, kind)
    entries = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    first, second = kind.names or ("", "")
    used = np.flatnonzero((entries[first] != 0) | (entries[second] != 0))
    return entries[: int(used[-1]) + 1] if len(used) else entries[:0]


def log_starts(path: str) -> dict[tuple[str, int], int]:
    """Where logs of a directory begin whose records were deleted. Raises PlanError for a damaged
    checkpoint."""
    return _checkpoint(path, LOG_STARTS)


def _checkpoint(log_dir: str, name: str) -> dict[tuple[str, int], int]:
    """Offsets by partition; {} without the file, or with one that is empty yet. Raises PlanError
    for a damaged one: what was deleted might come back, or what is there be left out."""
    path = os.path.join(log_dir, name)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        rows = [line.split() for line in lines[2:]]
        found = {(topic, int(index)): int(offset) for topic, index, offset in rows}
        is_whole = not lines or len(found) == int(lines[1])
    except FileNotFoundError:
        return {}
    except (ValueError, IndexError):
        is_whole = False
    if not is_whole:
        raise PlanError(
            f"{path} is damaged; move it away to have its logs taken as those of a broker that"
            " has never written it"
        )
    return found


def _aborted(segments: list[Segment]) -> list[tuple[int, int, int]]:
    """(producer id, first offset, marker's offset) of all aborted transactions of a partition."""
    found: list[tuple[int, int, int]] = []
    for segment in segments:
        try:
            with open(segment.file(".txnindex"), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            continue
        whole = data[: len(data) - len(data) % struct.calcsize(ABORTED_TXN)]
        found += [row[1:4] for row in struct.iter_unpack(ABORTED_TXN, whole)]
    return found


def _transactions(
    folder: str, segments: list[Segment], end: int
) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
    """Transactions open at `end`, their first offsets by producer id; and the aborted ones, as
    `_aborted` has them."""
    scan_from, still_open = _snapshot(folder, segments[0].base, end)
    aborted = _aborted(segments)
    for segment, following in _with_ends(segments):
        if scan_from < following and segment.base < end:
            _follow_transactions(segment, scan_from, end, still_open, aborted)
    return still_open, aborted


def _snapshot(folder: str, log_start: int, end: int) -> tuple[int, dict[int, int]]:
    """The newest usable producer snapshot: its offset and the transactions open there."""
    offsets = [
        int(name[:20]) for name in os.listdir(folder) if re.fullmatch(r"\d{20}\.snapshot", name)
    ]
    for offset in sorted((one for one in offsets if one <= end), reverse=True):
        try:
            with open(os.path.join(folder, f"{offset:020d}.snapshot"), "rb") as file:
                data = file.read()
            version, _, count = struct.unpack_from(SNAPSHOT_HEAD, data)
            entries = data[struct.calcsize(SNAPSHOT_HEAD) :]
            if version == 1 and len(entries) == count * struct.calcsize(SNAPSHOT_ENTRY):
                rows = struct.iter_unpack(SNAPSHOT_ENTRY, entries)
                return offset, {row[0]: row[7] for row in rows if row[7] >= 0}
        except (OSError, struct.error):
            continue
    return log_start, {}


def _follow_transactions(
    segment: Segment,
    scan_from: int,
    end: int,
    still_open: dict[int, int],
    aborted: list[tuple[int, int, int]],
) -> None:
    """Keep both up to date over the batches of a segment. One pread a batch, two of a marker."""
    with open(segment.file(".log"), "rb") as file:
        fd = file.fileno()
        for position, head in _heads(fd, position_of(segment, max(scan_from, segment.base))):
            base, length, _, _, _, attributes, delta, _, _, producer, *_ = head
            if base >= end:
                return
            if attributes & TRANSACTIONAL and base + delta >= scan_from:
                if not attributes & CONTROL:
                    still_open.setdefault(producer, base)
                elif (first := still_open.pop(producer, None)) is not None and _is_abort(
                    os.pread(fd, length, position + HEADER_BYTES)
                ):
                    aborted.append((producer, first, base))


def _heads(fd: int, position: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Position and header fields of each batch from there on."""
    while len(data := os.pread(fd, HEADER_BYTES, position)) == HEADER_BYTES:
        head = struct.unpack(HEADER, data)
        length, magic = head[1], head[3]
        if magic != MAGIC or length < HEADER_BYTES - BEFORE_LENGTH:
            return
        yield position, head
        position += BEFORE_LENGTH + length


def _is_abort(record: bytes) -> bool:
    """Whether the one record of a marker says so: its key is two int16, a version and 0 (Kafka:
    ControlRecordType)."""
    at = 0
    for fixed in (1, 0, 0, 2):  # length, attributes; both deltas; the key's length, its version
        while at < len(record) and record[at] > 0x7F:
            at += 1
        at += 1 + fixed
    return record[at : at + 2] == b"\0\0"
