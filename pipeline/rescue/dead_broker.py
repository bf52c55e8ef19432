"""What a broker that does not run any more had, from the files of its log directories.

Topics with their ids, partitions and configs from the cluster's metadata (the newest snapshot of
`__cluster_metadata`, and the log behind it), committed offsets from `__consumer_offsets`, commits
that were decided from `__transaction_state`, and where each log ends. Nothing is written. The
directories' locks are held, shared, meanwhile: neither Barnabas nor Apache Kafka starts on them
until all is read, and one that runs is noticed.

A crash may leave the last batches of a log half written; a broker would cut them off when it
starts, and so they are not read: a log ends where a batch is not whole, or its checksum is wrong.
Below the high watermark that the broker last wrote down no crash does that, but a disk may; it is
looked for where damage is to be left out, for every log is read once more then.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.broker_facts import Committed
from pipeline.errors import PipelineError, from_os
from pipeline.segments.plan import (
    PlanError,
    check_log_dir,
    file_key,
    in_two_places,
    log_starts,
    partitions_in,
    position_of,
    segments_in,
)
from pipeline.sink.registers import REPLAY_PREFIX
from storage.checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    PARTITION_METADATA,
    CorruptCheckpoint,
    MetaProperties,
    OffsetCheckpoint,
    read_meta_properties,
    read_partition_metadata,
)
from wire.errors import KafkaError, MalformedFrame
from wire.messages import metadata_records as m
from wire.messages.groups_records import OffsetCommitKey, OffsetCommitValue
from wire.messages.transactions_records import TransactionLogKey, TransactionLogValue
from wire.primitives import METADATA_TOPIC, ZERO_UUID, TopicPartition, read_uvarint, uuid_to_text
from wire.record_batch import BatchHeader, check_crc, iterate_headers
from wire.records import ControlRecordType, parse_end_txn_marker, read_records

_GROUPS_TOPIC = "__consumer_offsets"
_TRANSACTIONS_TOPIC = "__transaction_state"
_INTERNAL = re.compile(r"__(consumer_offsets|transaction_state|share_group_state|cluster_metadata)")
_SNAPSHOT = re.compile(r"(\d{20})-\d{10}\.checkpoint")
_TOPIC_RESOURCE = 2
_OFFSET_COMMITS = (0, 1)
_PREPARE_COMMIT = 2
"""Kafka: TransactionState."""
_NEEDED = {
    int(kind.type_id or 0): kind
    for kind in (
        m.TopicRecord, m.PartitionRecord, m.ConfigRecord, m.RemoveTopicRecord,
        m.BeginTransactionRecord, m.EndTransactionRecord, m.AbortTransactionRecord,
    )
}  # fmt: skip


@dataclass(slots=True)
class DeadTopic:
    """One topic. `ends` has the partitions that lie on this broker, and where their logs end."""

    id: str | None
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    prepared: dict[int, list[int]] = field(default_factory=dict)
    """By partition, producers whose commit was decided; its marker may be missing."""
    bytes: int = 0
    left_out: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By file, from which to which byte it is damaged (Wanted.left_out)."""
    groups: dict[str, dict[int, Committed]] = field(default_factory=dict)


@dataclass(slots=True)
class DeadBroker:
    """All there is to rescue, by topic, and what a person should know of it."""

    owner: str
    topics: dict[str, DeadTopic]
    notes: list[str]

    @property
    def groups(self) -> set[str]:
        return {group for topic in self.topics.values() for group in topic.groups}


def look(paths: Sequence[str], *, skips_damaged: bool = False) -> DeadBroker:
    """What the broker had. Raises PipelineError for directories that are not those of one broker;
    the caller holds their locks (`held`). `skips_damaged`: every log is read, and what is damaged
    of it is left out and told.
    """
    owner = _owner(paths)
    _require_log_starts(paths)
    notes: list[str] = []
    folders, high_watermarks = _folders(paths), _high_watermarks(paths)
    tables = _tables(folders, notes)
    topics = tables.topics()
    if not topics:
        notes.append(
            "no metadata of the cluster is in these directories: topics are as their directories"
            " say, without configs, empty partitions at the end may be missing"
        )
    strangers: list[str] = []
    prepared = _prepared(folders, high_watermarks, notes)
    for (name, index), folder in folders.items():
        if _INTERNAL.fullmatch(name):
            continue
        topic_id = _noted_id(folder)
        known = topics.get(name)
        if known is None and topic_id not in tables.deleted:
            strangers.append(name)
            known = topics[name] = DeadTopic(topic_id, 0)
        if known is None or (topic_id is not None and topic_id != known.id):
            notes.append(f"{folder} was left out: its topic was deleted")
            if known is not None:
                known.ends[index] = 0
            continue
        known.partitions = max(known.partitions, index + 1)
        known.prepared[index] = sorted(prepared.get(TopicPartition(name, index), ()))
        _measure(known, index, folder, high_watermarks.get(TopicPartition(name, index), 0), notes)
        if skips_damaged:
            _leave_out_damage(known, known.ends[index], folder, notes)
    if strangers and len(strangers) < len(topics):
        notes.append(f"the cluster's metadata does not know {', '.join(strangers)}: no configs")
    notes += [
        f"{elsewhere} of the {topic.partitions} partitions of {name} are not here"
        for name, topic in topics.items()
        if (elsewhere := topic.partitions - len(topic.ends))
    ]
    for key, folder in _of(_GROUPS_TOPIC, folders):
        batches = _log_batches(folder, notes, high_watermark=high_watermarks.get(key, 0))
        _add_groups(topics, _commits(batches, prepared.get(key, set())))
    return DeadBroker(owner, topics, notes)


@contextmanager
def held(paths: Sequence[str]) -> Iterator[None]:
    """The directories' locks, shared. Raises PipelineError while a broker has one."""
    with ExitStack() as stack:
        for path in paths:
            try:
                check_log_dir(path)
                fd = os.open(os.path.join(path, LOCK), os.O_RDONLY)
            except PlanError as error:
                raise PipelineError(str(error)) from None
            except FileNotFoundError:
                continue  # a copy of a directory: no broker was ever on it
            except OSError as error:
                raise from_os(error) from None
            stack.callback(os.close, fd)
            try:
                # As brokers lock it: Barnabas in both ways, Java in the second.
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                raise PipelineError(
                    f"a broker runs on {path}; `barnabas pipeline archive` takes topics from a"
                    " broker that runs; or stop it first"
                ) from None
        yield


def _owner(paths: Sequence[str]) -> str:
    owners: dict[tuple[str, int], str] = {}
    for path in paths:
        try:
            found: MetaProperties | None = read_meta_properties(Path(path, "meta.properties"))
        except CorruptCheckpoint as error:
            raise PipelineError(str(error)) from None
        if found is not None:
            owners[found.cluster_id, found.node_id] = path
    if len(owners) > 1:
        raise PipelineError(f"{' and '.join(owners.values())} are not of one broker; rescue each")
    return "".join(f"node {node} of cluster {cluster}" for cluster, node in owners) or "a broker"


def _folders(paths: Sequence[str]) -> dict[TopicPartition, str]:
    """Raises PipelineError for a partition that is there twice."""
    found: dict[TopicPartition, str] = {}
    for path in paths:
        for topic, index, folder in partitions_in(path):
            known = found.setdefault(TopicPartition(topic, index), folder)
            if known != folder:
                raise PipelineError(str(in_two_places(known, folder)))
    return found


def _of(topic: str, folders: Mapping[TopicPartition, str]) -> list[tuple[TopicPartition, str]]:
    return [(key, folder) for key, folder in folders.items() if key.topic == topic]


def _high_watermarks(paths: Sequence[str]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for path in paths:
        with suppress(CorruptCheckpoint):  # then logs are looked through from the beginning
            found |= OffsetCheckpoint(Path(path, HIGH_WATERMARK_CHECKPOINT)).read()
    return found


def _require_log_starts(paths: Sequence[str]) -> None:
    """Raise PipelineError where it is not known any more which records were deleted."""
    try:
        for path in paths:
            log_starts(path)
    except PlanError as error:
        raise PipelineError(str(error)) from None


def _noted_id(folder: str) -> str | None:
    try:
        found = read_partition_metadata(Path(folder, PARTITION_METADATA))
    except CorruptCheckpoint:
        return None
    return None if found is None else uuid_to_text(found)


# ---- batches


def _heads(path: str, start: int = 0) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """The file, and where each batch is in it from a position on, whatever its checksum; up to what
    is none: zeros of a preallocated file, or what a crash left."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size <= start:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                for position, header in iterate_headers(view, start):
                    yield view, position, header
            except MalformedFrame:
                return
            finally:
                view.release()


def _batches(path: str, start: int = 0, trusted_to: int = 0) -> Iterator[tuple[BatchHeader, bytes]]:
    """Whole batches of a file from a position on, up to the first that is not right. Checksums are
    looked at from offset `trusted_to` on."""
    for view, position, header in _heads(path, start):
        is_trusted = header.base_offset < trusted_to
        if not is_trusted and not check_crc(view, position, header):
            return
        yield header, bytes(view[position : position + header.size])


def _log_batches(
    folder: str, notes: list[str], *, start: int = 0, high_watermark: int = 0
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Batches of a log that end behind an offset. Noted is what a crash alone does not explain:
    only behind the high watermark, in the last segment, may a batch be half written."""
    segments = segments_in(folder)
    for segment in segments:
        path, at, end = segment.file(".log"), 0, segment.base
        for header, data in _batches(path):
            at, end = at + header.size, header.next_offset
            if end > start:
                yield header, data
        is_last = segment is segments[-1]
        if end < high_watermark if is_last else at < os.stat(path).st_size:
            notes.append(_damaged(path, at))


def _damaged(path: str, at: int) -> str:
    return f"{path} is damaged from byte {at} on; what follows in that file was left out"


def _measure(
    topic: DeadTopic, index: int, folder: str, high_watermark: int, notes: list[str]
) -> None:
    """Where a partition's log ends, and its bytes."""
    segments = segments_in(folder)
    topic.ends[index] = 0
    for segment in segments:
        topic.bytes += os.stat(segment.file(".log")).st_size
    if segments:
        last = segments[-1]
        path, start = last.file(".log"), position_of(last, max(last.base, high_watermark))
        # An index that a crash left may lead nowhere: then from the beginning.
        found = _end(path, start, high_watermark) or _end(path, 0, high_watermark)
        topic.ends[index] = end = found or last.base
        if end < high_watermark:
            notes.append(
                f"{path} ends before offset {high_watermark}, up to which its broker knew it to be"
                f" replicated: what was there from offset {end} on is lost, as by a power failure"
            )


class _Damage(NamedTuple):
    """A place in a log's file, from byte to byte, and the offsets that may have been there."""

    begin: int
    end: int
    first: int
    next_offset: int


def _leave_out_damage(topic: DeadTopic, end: int, folder: str, notes: list[str]) -> None:
    segments = segments_in(folder)
    limits = [*(one.base for one in segments[1:]), end]
    for segment, limit in zip(segments, limits, strict=True):
        path = segment.file(".log")
        places = _damage(path, segment.base, limit, is_last=segment is segments[-1])
        if places:
            topic.left_out[file_key(path)] = [(place.begin, place.end) for place in places]
            offsets = ", ".join(f"{place.first} to {place.next_offset - 1}" for place in places)
            notes.append(f"{path} is damaged; left out, if they were there: offsets {offsets}")


def _damage(path: str, first: int, limit: int, *, is_last: bool) -> list[_Damage]:
    """What is not right of a file of batches from offset `first` up to `limit`. What the active
    segment has behind that is the log's end, and no damage. Where one batch is not known to end,
    nothing behind it in that file is found."""
    size = os.stat(path).st_size
    places: list[_Damage] = []
    bad_from: int | None = None
    at, expected = 0, first
    for view, position, header in _heads(path):
        if is_last and expected >= limit:
            break
        fits = expected <= header.base_offset < header.next_offset <= limit
        if fits and check_crc(view, position, header):
            if bad_from is not None:
                places.append(_Damage(bad_from, position, expected, header.base_offset))
            bad_from, expected = None, header.next_offset
        elif bad_from is None:
            bad_from = position
        at = position + header.size
    if at < size and expected < limit and bad_from is None:
        bad_from = at
    if bad_from is not None:
        places.append(_Damage(bad_from, size, expected, limit))
    return places


def _end(path: str, start: int, high_watermark: int) -> int | None:
    """The offset behind the last batch that is whole, or below the high watermark: what is damaged
    there is not the log's end. None where there is none."""
    end = None
    for header, _ in _batches(path, start, trusted_to=high_watermark):
        is_below = header.base_offset < high_watermark
        end = min(header.next_offset, high_watermark) if is_below else header.next_offset
    return end


# ---- the cluster's metadata


def _tables(folders: Mapping[TopicPartition, str], notes: list[str]) -> _Tables:
    """Topics of the cluster; none without its metadata."""
    tables = _Tables()
    for _, folder in _of(METADATA_TOPIC, folders):
        for record in _settled(_metadata_records(folder, notes)):
            tables.apply(record)
    return tables


def _metadata_records(folder: str, notes: list[str]) -> Iterator[Any]:
    snapshots = [found for name in os.listdir(folder) if (found := _SNAPSHOT.fullmatch(name))]
    end = 0
    if snapshots:
        newest = max(snapshots, key=lambda found: found[0])
        path, at, end = os.path.join(folder, newest[0]), 0, int(newest[1])
        for header, data in _batches(path):
            at += header.size
            yield from _decoded(header, data, 0)
        if at < os.stat(path).st_size:
            notes.append(_damaged(path, at))
    for header, data in _log_batches(folder, notes, start=end):
        yield from _decoded(header, data, end)


def _decoded(header: BatchHeader, data: bytes, start: int) -> Iterator[Any]:
    """The records of a batch that we need, from an offset on (Kafka: MetadataRecordSerde)."""
    if header.is_control:
        return
    for record in read_records(data):
        if record.offset < start or record.value is None:
            continue
        with _read("a record of the cluster's metadata"):
            found = _metadata_in(record.value)
        if found is not None:
            yield found


def _metadata_in(value: bytes) -> Any:
    _, at = read_uvarint(value, 0)
    kind, at = read_uvarint(value, at)
    version, at = read_uvarint(value, at)
    return _NEEDED[kind].decode(value, version, at) if kind in _NEEDED else None


def _settled(records: Iterator[Any]) -> Iterator[Any]:
    """Without those of metadata transactions that did not end (KIP-868)."""
    pending: list[Any] | None = None
    for record in records:
        if isinstance(record, m.BeginTransactionRecord):
            pending = []
        elif isinstance(record, m.EndTransactionRecord | m.AbortTransactionRecord):
            if isinstance(record, m.EndTransactionRecord):
                yield from pending or ()
            pending = None
        elif pending is not None:
            pending.append(record)
        else:
            yield record


class _Tables:
    """Topics as the records leave them."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._counts: dict[bytes, int] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self.deleted: set[str | None] = set()
        """Ids of topics."""

    def apply(self, record: Any) -> None:
        if isinstance(record, m.TopicRecord):
            self._names[record.topic_id] = record.name
        elif isinstance(record, m.PartitionRecord):
            count = self._counts.get(record.topic_id, 0)
            self._counts[record.topic_id] = max(count, record.partition_id + 1)
        elif isinstance(record, m.RemoveTopicRecord):
            self._configs.pop(self._names.pop(record.topic_id, ""), None)
            self.deleted.add(uuid_to_text(record.topic_id))
        elif isinstance(record, m.ConfigRecord) and record.resource_type == _TOPIC_RESOURCE:
            configs = self._configs.setdefault(record.resource_name, {})
            configs.pop(record.name, None)
            if record.value is not None:
                configs[record.name] = record.value

    def topics(self) -> dict[str, DeadTopic]:
        return {
            name: DeadTopic(
                uuid_to_text(topic_id), self._counts.get(topic_id, 0), self._configs.get(name, {})
            )
            for topic_id, name in sorted(self._names.items(), key=lambda item: item[1])
            if not _INTERNAL.fullmatch(name)
        }


# ---- transactions


def _prepared(
    folders: Mapping[TopicPartition, str],
    high_watermarks: Mapping[TopicPartition, int],
    notes: list[str],
) -> dict[TopicPartition, set[int]]:
    """Producers of transactions whose commit was decided, by partition. Who asked for it was told
    so before the markers were written; a broker writes them when it starts again (Kafka:
    TransactionStateManager)."""
    decided: dict[str, TransactionLogValue] = {}
    for key, folder in _of(_TRANSACTIONS_TOPIC, folders):
        high_watermark = high_watermarks.get(key, 0)
        for _, data in _log_batches(folder, notes, high_watermark=high_watermark):
            for record in read_records(data):
                transactional_id, value = _transaction_in(record.key or b"", record.value)
                decided.pop(transactional_id, None)
                if value is not None and value.transaction_status == _PREPARE_COMMIT:
                    decided[transactional_id] = value
    found: dict[TopicPartition, set[int]] = {}
    for value in decided.values():
        for topic in value.transaction_partitions or ():
            for index in topic.partition_ids:
                found.setdefault(TopicPartition(topic.topic, index), set()).add(value.producer_id)
    return found


def _transaction_in(key: bytes, value: bytes | None) -> tuple[str, TransactionLogValue | None]:
    with _read("a transaction's state"):
        transactional_id = TransactionLogKey.decode(key, 0, 2).transactional_id
        if value is None:
            return transactional_id, None
        version = int.from_bytes(value[:2], "big")
        return transactional_id, TransactionLogValue.decode(value, version, 2)


@contextmanager
def _read(what: str) -> Iterator[None]:
    """Raises PipelineError for a record that is none of those that we know."""
    try:
        yield
    except (MalformedFrame, KafkaError, KeyError, ValueError) as error:
        raise PipelineError(f"{what} cannot be read: {error}") from None


# ---- committed offsets


_Where = tuple[str, str, int]
"""Group, topic, partition."""


def _add_groups(
    topics: Mapping[str, DeadTopic], commits: Mapping[_Where, OffsetCommitValue]
) -> None:
    for (group, name, index), value in commits.items():
        topic = topics.get(name)
        if topic is None or group.startswith(REPLAY_PREFIX):
            continue
        if value.topic_id != ZERO_UUID and uuid_to_text(value.topic_id) != topic.id:
            continue  # of a topic that had the name before
        topic.groups.setdefault(group, {})[index] = Committed(value.offset, value.metadata)


class _Commit(NamedTuple):
    at: int
    """The record's own offset."""
    value: OffsetCommitValue


def _commits(
    batches: Iterator[tuple[BatchHeader, bytes]], prepared: Set[int]
) -> dict[_Where, OffsetCommitValue]:
    """The committed offset of each (group, topic, partition) in a partition of
    `__consumer_offsets`: the newest record, whoever wrote it; those of transactions count when they
    are committed, and not where a newer one was there by then (Kafka: OffsetMetadataManager).
    At the end those of `prepared` producers are."""
    found: dict[_Where, _Commit] = {}
    pending: dict[int, dict[_Where, _Commit]] = {}
    for header, data in batches:
        records = list(read_records(data))
        if header.is_control:
            decided = pending.pop(header.producer_id, {})
            for marker in records:  # none: compaction has removed all of that transaction
                if parse_end_txn_marker(marker).type is ControlRecordType.COMMIT:
                    _take_newer(found, decided)
            continue
        committed = pending.setdefault(header.producer_id, {}) if header.is_transactional else found
        for record in records:
            key = record.key or b""
            if len(key) < 2 or int.from_bytes(key[:2], "big", signed=True) not in _OFFSET_COMMITS:
                continue  # a group's members
            where, value = _commit_in(key, record.value)
            if value is not None:
                committed[where] = _Commit(record.offset, value)
                continue
            for offsets in (found, *pending.values()):
                offsets.pop(where, None)
    for producer in pending.keys() & prepared:
        _take_newer(found, pending[producer])
    return {where: commit.value for where, commit in found.items()}


def _take_newer(found: dict[_Where, _Commit], decided: Mapping[_Where, _Commit]) -> None:
    for where, commit in decided.items():
        if where not in found or found[where].at < commit.at:
            found[where] = commit


def _commit_in(key: bytes, value: bytes | None) -> tuple[_Where, OffsetCommitValue | None]:
    with _read("a committed offset"):
        place = OffsetCommitKey.decode(key, 0, 2)
        where = (place.group, place.topic, place.partition)
        if value is None:
            return where, None
        return where, OffsetCommitValue.decode(value, int.from_bytes(value[:2], "big"), 2)
