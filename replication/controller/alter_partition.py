"""AlterPartition: a leader asks for another ISR, or says that its recovery is over. PURE.

What: each partition of the request is a compare-and-set on (leader epoch, partition epoch); the
answer of each is its own code, or the state that holds now (Kafka: alterPartition; rule H-8).
Order of checks, and what a leader does about each code:
    the sender's broker epoch        STALE_BROKER_EPOCH for the whole request
    the topic id, the partition      UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
    epochs ahead of this controller  NOT_CONTROLLER: a newer controller gave them, ask that one;
                                     FENCED_LEADER_EPOCH would stop a good leader (KAFKA-14154)
    an older leader epoch            FENCED_LEADER_EPOCH
    sender is not the leader         INVALID_REQUEST
    an older partition epoch         INVALID_UPDATE_VERSION
    the new ISR itself               INVALID_REQUEST: empty, repeated, not replicas, without leader
    the recovery state               INVALID_REQUEST: RECOVERING with more than the leader, or again
    each member of the new ISR       INELIGIBLE_REPLICA: not registered, fenced, shutting down, or
                                     another incarnation than the leader means (KIP-903; -1 skips)
An ISR change may complete a reassignment. When that takes the leadership from the sender, the
record is written and the answer is NEW_LEADER_ELECTED: wait for the metadata.
"""

from __future__ import annotations

from typing import Any

from replication.controller.context import ControllerConfig, ControllerResult
from replication.controller.elections import (
    NamedPartition,
    partition_change,
    unclean_election_enabled,
)
from replication.controller.partition_change import Election
from replication.controller.producer_ids import check_broker_epoch
from replication.metadata.image import (
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    MetadataImage,
    PartitionRegistration,
)
from wire.errors import ErrorCode
from wire.messages.quorum import AlterPartitionRequest, AlterPartitionResponse

_Wanted = AlterPartitionRequest.Topic.Partition
_Topic = AlterPartitionResponse.Topic
_Answer = _Topic.Partition
_ANY_EPOCH = -1


def alter_partition(
    image: MetadataImage, config: ControllerConfig, request: AlterPartitionRequest
) -> ControllerResult:
    """Serve AlterPartition. Raises KafkaError STALE_BROKER_EPOCH."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    change = _Alteration(image, config, request.broker_id)
    topics = [
        _Topic(
            topic_id=topic.topic_id,
            partitions=[change.alter(topic.topic_id, wanted) for wanted in topic.partitions],
        )
        for topic in request.topics
    ]
    return ControllerResult(change.records, AlterPartitionResponse(error_code=0, topics=topics))


class _Alteration:
    """The partitions of one request, one after the other."""

    def __init__(self, image: MetadataImage, config: ControllerConfig, sender: int) -> None:
        self.records: list[Any] = []
        self._image = image
        self._config = config
        self._sender = sender
        # What this request changed already: a partition named twice meets its own new epoch.
        self._altered: dict[tuple[bytes, int], PartitionRegistration] = {}

    def alter(self, topic_id: bytes, wanted: _Wanted) -> _Answer:
        index = wanted.partition_index
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None:
            return _refused(index, ErrorCode.UNKNOWN_TOPIC_ID)
        current = self._altered.get((topic_id, index)) or topic.partitions.get(index)
        if current is None:
            return _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        members = _members(wanted)
        code = self._check(current, wanted, members)
        if code != ErrorCode.NONE:
            return _refused(index, code)
        unclean = unclean_election_enabled(self._image, self._config, topic.name)
        change = partition_change(
            self._image,
            self._config,
            NamedPartition(topic, index, current),
            Election.UNCLEAN if unclean else Election.ONLINE,
            self._image.is_active,
        )
        change.isr = tuple(broker_id for broker_id, _ in members)
        change.leader_recovery_state = wanted.leader_recovery_state
        record = change.build(topic_id, index)
        if record is not None:
            self.records.append(record)
            current = self._altered[topic_id, index] = current.merge(record)
            if record.leader not in (self._sender, NO_LEADER_CHANGE):
                return _refused(index, ErrorCode.NEW_LEADER_ELECTED)
        return _Answer(
            partition_index=index,
            error_code=0,
            leader_id=current.leader,
            leader_epoch=current.leader_epoch,
            isr=list(current.isr),
            leader_recovery_state=current.leader_recovery_state,
            partition_epoch=current.partition_epoch,
        )

    def _check(
        self, current: PartitionRegistration, wanted: _Wanted, members: list[tuple[int, int]]
    ) -> ErrorCode:
        if (
            wanted.leader_epoch > current.leader_epoch
            or wanted.partition_epoch > current.partition_epoch
        ):
            return ErrorCode.NOT_CONTROLLER
        if wanted.leader_epoch < current.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self._sender != current.leader:
            return ErrorCode.INVALID_REQUEST
        if wanted.partition_epoch < current.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if not _is_valid_isr(current, wanted, [broker_id for broker_id, _ in members]):
            return ErrorCode.INVALID_REQUEST
        if not all(self._is_eligible(*member) for member in members):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self._image.brokers.get(broker_id)
        return (
            broker is not None
            and broker.active
            and broker_epoch in (_ANY_EPOCH, broker.broker_epoch)
        )


def _members(wanted: _Wanted) -> list[tuple[int, int]]:
    """(broker id, broker epoch) of the new ISR; version 2 knows no epochs."""
    if wanted.new_isr_with_epochs:
        return [(state.broker_id, state.broker_epoch) for state in wanted.new_isr_with_epochs]
    return [(broker_id, _ANY_EPOCH) for broker_id in wanted.new_isr]


def _is_valid_isr(current: PartitionRegistration, wanted: _Wanted, isr: list[int]) -> bool:
    if len(set(isr)) < len(isr) or not set(isr) <= set(current.replicas):
        return False
    if current.leader not in isr:
        return False
    if wanted.leader_recovery_state == RECOVERING:
        return len(isr) == 1 and current.leader_recovery_state == RECOVERING
    return wanted.leader_recovery_state == RECOVERED


def _refused(partition_index: int, code: ErrorCode) -> _Answer:
    return _Answer(
        partition_index=partition_index,
        error_code=code,
        leader_id=0,
        leader_epoch=0,
        isr=[],
        leader_recovery_state=0,
        partition_epoch=0,
    )
