"""Between a consumer group and its records (PURE).

type  what                            tombstone: the member or group is no more
3     the group's epoch               last of all of a group's
4     topics as Apache Kafka before 4.1 kept them; only ever deleted
5     a member: what it asked for     last of a member's
6     epoch and time of the target
7     a member's target
8     a member's epoch and partitions
16    topics of a regular expression
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from server.coordinator.consumer.group import ConsumerGroup, ResolvedRegex
from server.coordinator.consumer.member import (
    ClassicPart,
    ConsumerMember,
    Held,
    MemberState,
    Partitions,
)
from server.coordinator.modern_group import MemberRecords, epochs_of
from server.coordinator.records import CoordinatorRecord
from wire.messages.groups_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ShareGroupTargetAssignmentMemberValue,
)

# ---- written


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """The group's epoch was bumped."""
    return CoordinatorRecord(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def member_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """What the member asked for."""
    return CoordinatorRecord(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_names),
            subscribed_topic_regex=member.subscribed_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=_classic_metadata(member.classic),
        ),
    )


def _classic_metadata(
    classic: ClassicPart | None,
) -> ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None:
    if classic is None:
        return None
    make = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
    return make(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            make.Protocol(name=name, metadata=metadata) for name, metadata in classic.protocols
        ],
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    """What a member is to have."""
    topic = ConsumerGroupTargetAssignmentMemberValue.Topic
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                topic(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in target.items()
            ]
        ),
    )


def current_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """What the member has, and what it is giving back."""
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_topics(member.assigned),
            partitions_pending_revocation=_topics(member.revoking),
        ),
    )


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> CoordinatorRecord:
    """Topics that the expression names."""
    return CoordinatorRecord(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics),
            version=resolved.metadata_version,
            timestamp=resolved.resolved_ms,
        ),
    )


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    """Nobody subscribes by it any more."""
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key, None)


def group_tombstones(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """All of a group is no more."""
    return MEMBERS.tombstones_of_all(
        group,
        *(
            ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)
            for regex in group.regexes
        ),
        ConsumerGroupPartitionMetadataKey(group_id=group.group_id),
        ConsumerGroupMetadataKey(group_id=group.group_id),
    )


def group_records(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """All of a group that was made of a classic one."""
    group_id, members = group.group_id, group.members.values()
    return [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, group.epoch, group.metadata_hash),
        *(target_record(group_id, id_, target) for id_, target in group.target.items()),
        MEMBERS.target_epoch_record(group_id, group.target_epoch, group.target_ms),
        *(current_record(group_id, member) for member in members),
    ]


def topics_tombstone(group_id: str) -> CoordinatorRecord:
    """What Apache Kafka before 4.1 kept of topics is not used any more."""
    return CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def _topics(held: Held) -> list[ConsumerGroupCurrentMemberAssignmentValue.Topic]:
    return [
        ConsumerGroupCurrentMemberAssignmentValue.Topic(
            topic_id=topic_id,
            partitions=sorted(epochs),
            assignment_epochs=[epochs[partition] for partition in sorted(epochs)],
        )
        for topic_id, epochs in held.items()
    ]


# ---- read


def _with_metadata(
    member: ConsumerMember, value: ConsumerGroupMemberMetadataValue
) -> ConsumerMember:
    """The member as the record says; what it has stays."""
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        subscribed_names=frozenset(value.subscribed_topic_names),
        subscribed_regex=value.subscribed_topic_regex or "",
        server_assignor=value.server_assignor,
        classic=_classic_part(value.classic_member_metadata),
    )


def _classic_part(
    told: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None,
) -> ClassicPart | None:
    if told is None:
        return None
    protocols = tuple((p.name, bytes(p.metadata)) for p in told.supported_protocols)
    return ClassicPart(told.session_timeout_ms, protocols)


def _with_assignment(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> ConsumerMember:
    """The member with what the record says that it has; a tombstone: nothing, and no epoch."""
    if value is None:
        return replace(
            member, epoch=-1, previous_epoch=-1, state=MemberState.STABLE, assigned={}, revoking={}
        )
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_held(value.assigned_partitions, value.member_epoch),
        revoking=_held(value.partitions_pending_revocation, value.member_epoch),
    )


def _held(
    topics: Iterable[ConsumerGroupCurrentMemberAssignmentValue.Topic], member_epoch: int
) -> Held:
    """Without epochs of their own, as records once were, partitions are of the member's, which of
    a static member that is away is below 0 (Utils.assignmentFromTopicPartitions)."""
    held = {}
    for topic in topics:
        held[topic.topic_id] = epochs_of(
            topic.partitions, topic.assignment_epochs, max(member_epoch, 0)
        )
    return held


def target_of(
    value: ConsumerGroupTargetAssignmentMemberValue | ShareGroupTargetAssignmentMemberValue,
) -> Partitions:
    """The target that the record says; of a share group, too."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}


MEMBERS = MemberRecords(
    metadata=ConsumerGroupMemberMetadataKey,
    current=ConsumerGroupCurrentMemberAssignmentKey,
    target=ConsumerGroupTargetAssignmentMemberKey,
    target_epoch=ConsumerGroupTargetAssignmentMetadataKey,
    target_epoch_value=ConsumerGroupTargetAssignmentMetadataValue,
    new_member=ConsumerMember,
    with_metadata=_with_metadata,
    with_assignment=_with_assignment,
    target_of=target_of,
)
member_tombstones = MEMBERS.tombstones_of
