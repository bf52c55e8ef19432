"""Committed offsets of the groups of one shard (PURE).

A committed offset is a record in `__consumer_offsets`: key (group, topic, partition), value
OffsetCommitValue. This module decides whether a commit is allowed, which records it writes, what
OffsetFetch answers, and which offsets have expired. `replay` alone changes what is stored, so a
loaded shard and a live one are the same.

Who may commit to a classic group (ClassicGroup.validateOffsetCommit; G-4); for the members of a
consumer group see `ConsumerGroup.check_commit`:

    group            generation and member id         outcome
    unknown, Empty   generation < 0                   accepted: a consumer without group management
    unknown          generation >= 0                  ILLEGAL_GENERATION; GROUP_ID_NOT_FOUND from v9
    not Empty        none given                       UNKNOWN_MEMBER_ID
    any              unknown member                   UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID
    any              another generation               ILLEGAL_GENERATION
    CompletingReb.   right ones                       REBALANCE_IN_PROGRESS

A commit in a transaction (TX-38) is accepted without any of them whatever the group's state, and
while it rebalances: its fence is the transaction. An unknown group with a generation is always
ILLEGAL_GENERATION.

When an offset expires (KIP-211), `offsets.retention.minutes` after:

    group never had members      the commit
    group Empty                  the group became Empty
    Stable consumers             the commit, for topics that no member subscribes to
    consumer group (KIP-848)     the same, whatever its state
    anything else                never
    commit with its own expiry   that time (OffsetCommit v2 to v4), under the same conditions
    a transaction has another    never (TX-42)

Topic ids: a commit carries the id its topic had (v10 by the client, else found by the broker). A
fetch that knows the topic's present id never sees an offset of a deleted topic of the same name. A
commit in a transaction carries none, as in Kafka.

Budget: `commit` of one partition plus `replay` <= 12 µs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView, Mapping
from sys import intern
from typing import NamedTuple

from server.coordinator.group import Committer, Expiry, Group, PartitionCheck
from server.coordinator.pending_offsets import PartitionKey, PendingOffsets
from server.coordinator.records import NO_EXPIRY, CoordinatorRecord, Records
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from wire.messages.groups_records import OffsetCommitKey, OffsetCommitValue
from wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from wire.primitives import NO_LEADER_EPOCH, ZERO_UUID

INVALID_OFFSET = -1
_NO_RETENTION = -1
_NEVER_MS = 2**63 - 1
"""The last time that a record can say."""
_GROUP_ID_NOT_FOUND_VERSION = 9


def check_commit_without_group(group_id: str, committer: Committer) -> None:
    """KafkaError as the first table says of unknown groups."""
    if committer.epoch < 0:
        return
    if committer.api_version >= _GROUP_ID_NOT_FOUND_VERSION and not committer.is_transactional:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


class Committed(NamedTuple):
    """What a group had for one partition at some time."""

    group_id: str
    key: PartitionKey
    values: list[OffsetCommitValue]
    """The offset, and those of open transactions. Each is its own: one that is committed anew is
    another."""


class Offsets:
    """All committed offsets of one shard. Owner: the shard; takes no lock."""

    __slots__ = ("_by_group", "_metadata_max", "_pending", "_retention_ms")

    def __init__(self, metadata_max: int, retention_ms: int) -> None:
        self._metadata_max = metadata_max
        self._retention_ms = retention_ms
        self._by_group: dict[str, dict[PartitionKey, OffsetCommitValue]] = {}
        self._pending = PendingOffsets()

    def group_ids(self) -> KeysView[str]:
        """The groups that have offsets."""
        return self._by_group.keys()

    def of_group(self, group_id: str) -> dict[PartitionKey, OffsetCommitValue]:
        """One group's offsets; not to be changed by the caller."""
        return self._by_group.get(group_id, {})

    def pending_digest(self) -> tuple[object, ...]:
        """What open transactions would commit, to be compared."""
        return self._pending.digest()

    # -- deciding ----------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, wall_ms: int, check: PartitionCheck | None = None
    ) -> tuple[Records, OffsetCommitResponse]:
        """The records of a commit that was found valid; each partition is answered. One that does
        not pass `check` is an error of all."""
        expire_ms = NO_EXPIRY
        if request.retention_time_ms != _NO_RETENTION:
            expire_ms = min(wall_ms + request.retention_time_ms, _NEVER_MS)
        group_id = request.group_id
        records: Records = []
        answers = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                index = partition.partition_index
                error = 0
                if check is not None:
                    check(topic.name, topic.topic_id, index)
                record = self._record(
                    group_id, topic.name, partition, wall_ms, topic.topic_id, expire_ms
                )
                if record is None:
                    error = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                else:
                    records.append(record)
                partitions.append(
                    OffsetCommitResponse.Topic.Partition(partition_index=index, error_code=error)
                )
            answers.append(
                OffsetCommitResponse.Topic(
                    name=topic.name, topic_id=topic.topic_id, partitions=partitions
                )
            )
        return records, OffsetCommitResponse(topics=answers)

    def commit_transactional(
        self, request: TxnOffsetCommitRequest, wall_ms: int
    ) -> tuple[Records, TxnOffsetCommitResponse]:
        """The records of a commit in a transaction that was found valid; each partition is
        answered.
        """
        records: Records = []
        answers = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                index = partition.partition_index
                error = 0
                record = self._record(request.group_id, topic.name, partition, wall_ms, ZERO_UUID)
                if record is None:
                    error = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                else:
                    records.append(record)
                partitions.append(
                    TxnOffsetCommitResponse.Topic.Partition(partition_index=index, error_code=error)
                )
            answers.append(TxnOffsetCommitResponse.Topic(name=topic.name, partitions=partitions))
        return records, TxnOffsetCommitResponse(topics=answers)

    def _record(
        self,
        group_id: str,
        topic: str,
        partition: OffsetCommitRequest.Topic.Partition | TxnOffsetCommitRequest.Topic.Partition,
        wall_ms: int,
        topic_id: bytes,
        expire_ms: int = NO_EXPIRY,
    ) -> CoordinatorRecord | None:
        """The record of one offset; None if its metadata is too long."""
        metadata = partition.committed_metadata or ""
        if self._is_too_long(metadata):
            return None
        return CoordinatorRecord(
            OffsetCommitKey(group=group_id, topic=topic, partition=partition.partition_index),
            OffsetCommitValue(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=metadata,
                commit_timestamp=wall_ms,
                expire_timestamp=expire_ms,
                topic_id=topic_id,
            ),
        )

    def fetch(
        self, request: OffsetFetchRequest.Group, require_stable: bool
    ) -> OffsetFetchResponse.Group:
        """The offsets asked for, or all of them (null topics); -1 without an error where there is
        none, even for a group that does not exist. With `require_stable`, partitions that an open
        transaction commits are UNSTABLE_OFFSET_COMMIT.
        """
        stored = self._by_group.get(request.group_id, {})
        unstable = self._pending.partitions(request.group_id) if require_stable else ()
        if request.topics is None:
            return self._fetch_all(request.group_id, stored, unstable)
        topics = []
        for topic in request.topics:
            name, topic_id = topic.name, topic.topic_id
            partitions = []
            for index in topic.partition_indexes:
                key = name, index
                value = stored.get(key)
                if value is not None and _is_another_topic(value.topic_id, topic_id):
                    value = None
                partitions.append(_answer(key, value, unstable))
            topics.append(
                OffsetFetchResponse.Group.Topic(name=name, topic_id=topic_id, partitions=partitions)
            )
        return OffsetFetchResponse.Group(group_id=request.group_id, topics=topics, error_code=0)

    def _fetch_all(
        self,
        group_id: str,
        stored: dict[PartitionKey, OffsetCommitValue],
        unstable: Collection[PartitionKey],
    ) -> OffsetFetchResponse.Group:
        topics: dict[str, OffsetFetchResponse.Group.Topic] = {}
        for key, value in stored.items():
            name = key[0]
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = OffsetFetchResponse.Group.Topic(
                    name=name, topic_id=value.topic_id, partitions=[]
                )
            topic.partitions.append(_answer(key, value, unstable))
        return OffsetFetchResponse.Group(
            group_id=group_id, topics=list(topics.values()), error_code=0
        )

    def delete(
        self, group: Group, request: OffsetDeleteRequest
    ) -> tuple[Records, OffsetDeleteResponse]:
        """Tombstones for the partitions of topics that no member subscribes to (KIP-496)."""
        stored = self._all_partitions(request.group_id)
        records: Records = []
        answers = []
        for topic in request.topics:
            subscribed = group.is_subscribed_to(topic.name)
            error = int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC) if subscribed else 0
            partitions = []
            for partition in topic.partitions:
                index = partition.partition_index
                if not subscribed and (topic.name, index) in stored:
                    records.append(_tombstone(request.group_id, (topic.name, index)))
                partitions.append(
                    OffsetDeleteResponse.Topic.Partition(partition_index=index, error_code=error)
                )
            answers.append(OffsetDeleteResponse.Topic(name=topic.name, partitions=partitions))
        return records, OffsetDeleteResponse(error_code=0, topics=answers)

    def tombstones_of_group(self, group_id: str) -> Records:
        """Tombstones for everything the group has committed, in open transactions, too."""
        return [_tombstone(group_id, key) for key in self._all_partitions(group_id)]

    def in_topics(self, deleted: Mapping[str, bytes]) -> list[Committed]:
        """What every group has, or is about to have, in these topics, by name and id; what was
        committed for another topic of the name, which was made since, is not of them."""
        found = []
        for group_id in {**self._by_group, **dict.fromkeys(self._pending.group_ids())}:
            stored = self._by_group.get(group_id, {})
            for key in self._all_partitions(group_id):
                if (topic_id := deleted.get(key[0])) is None:
                    continue
                value = stored.get(key)
                if value is None or not _is_another_topic(value.topic_id, topic_id):
                    found.append(Committed(group_id, key, self._values(group_id, key)))
        return found

    def tombstone_of(self, committed: Committed) -> CoordinatorRecord | None:
        """A tombstone unless something newer was said: an offset that a transaction committed does
        not tell that it is of another topic of the name."""
        group_id, key, values = committed
        now = self._values(group_id, key)
        is_old = now and all(any(value is old for old in values) for value in now)
        return _tombstone(group_id, key) if is_old else None

    def _values(self, group_id: str, key: PartitionKey) -> list[OffsetCommitValue]:
        """What is committed for a partition, and what open transactions would."""
        value = self._by_group.get(group_id, {}).get(key)
        pending = self._pending.values(group_id, key)
        return pending if value is None else [value, *pending]

    def _all_partitions(self, group_id: str) -> Collection[PartitionKey]:
        """Where the group has an offset, committed or pending."""
        stored = self._by_group.get(group_id, {})
        pending = self._pending.partitions(group_id)
        return {**stored, **dict.fromkeys(pending)} if pending else stored

    def expired(
        self, group_id: str, group: Group | None, wall_ms: int
    ) -> Iterator[CoordinatorRecord]:
        """Tombstones for the group's expired offsets."""
        pending = self._pending.partitions(group_id)
        expiry = Expiry(None) if group is None else group.expiry()
        if expiry is None:
            return
        for key, value in self._by_group.get(group_id, {}).items():
            if group is not None and group.is_subscribed_to(key[0]):
                continue
            since_ms = value.commit_timestamp if expiry.since_ms is None else expiry.since_ms
            expire_ms = value.expire_timestamp
            if expire_ms == NO_EXPIRY:
                expire_ms = since_ms + self._retention_ms
            if wall_ms >= expire_ms and key not in pending:
                yield _tombstone(group_id, key)

    def has_only(self, group_id: str, count: int) -> bool:
        """Whether the group has as many offsets, and none in open transactions."""
        stored = self._by_group.get(group_id, {})
        return len(stored) == count and not self._pending.partitions(group_id)

    # -- what is true ------------------------------------------------------------------------

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Store the offset, or drop it (null value)."""
        partition = (intern(key.topic), key.partition)
        if value is None:
            stored = self._by_group.get(key.group)
            if stored is not None and stored.pop(partition, None) is not None and not stored:
                del self._by_group[key.group]
            self._pending.forget(key.group, partition)
            return
        self._store(key.group, partition, value)
        if self._pending:
            self._pending.void(key.group, partition)

    def replay_pending(
        self, key: OffsetCommitKey, value: OffsetCommitValue, producer_id: int
    ) -> None:
        """Keep the offset until the producer's transaction ends."""
        self._pending.add(producer_id, key.group, (intern(key.topic), key.partition), value)

    def replay_marker(self, producer_id: int, is_commit: bool) -> None:
        """Store what the producer's transaction committed, or drop it."""
        for group_id, partition, value in self._pending.end(producer_id, is_commit):
            self._store(group_id, partition, value)

    def _store(self, group_id: str, partition: PartitionKey, value: OffsetCommitValue) -> None:
        stored = self._by_group.get(group_id)
        if stored is None:
            self._by_group[group_id] = {partition: value}
        else:
            stored[partition] = value

    def _is_too_long(self, metadata: str) -> bool:
        """Whether the metadata exceeds offset.metadata.max.bytes, which Kafka counts in UTF-16
        units.
        """
        if len(metadata) * 2 <= self._metadata_max or metadata.isascii():
            return len(metadata) > self._metadata_max
        return len(metadata.encode("utf-16-le", "surrogatepass")) > self._metadata_max * 2


def _is_another_topic(stored_id: bytes, asked_id: bytes) -> bool:
    """Whether both ids are known and differ: the topic was deleted and made again."""
    return stored_id != asked_id and stored_id != ZERO_UUID and asked_id != ZERO_UUID


def _answer(
    key: PartitionKey, value: OffsetCommitValue | None, unstable: Collection[PartitionKey]
) -> OffsetFetchResponse.Group.Topic.Partition:
    index = key[1]
    is_unstable = key in unstable
    if value is None or is_unstable:
        return OffsetFetchResponse.Group.Topic.Partition(
            partition_index=index,
            committed_offset=INVALID_OFFSET,
            committed_leader_epoch=NO_LEADER_EPOCH,
            metadata="",
            error_code=int(ErrorCode.UNSTABLE_OFFSET_COMMIT) if is_unstable else 0,
        )
    return OffsetFetchResponse.Group.Topic.Partition(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=0,
    )


def _tombstone(group_id: str, key: PartitionKey) -> CoordinatorRecord:
    topic, partition = key
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), None
    )
