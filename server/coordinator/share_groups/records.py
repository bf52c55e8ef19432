"""Between a share group and its records (PURE).

type  what                            tombstone: the member or group is no more
10    a member: what it asked for     last of a member's
11    the group's epoch               last of all of a group's
12    epoch and time of the target
13    a member's target
14    a member's epoch and partitions
15    whose state is kept
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from server.coordinator.consumer.member import MemberState, Partitions
from server.coordinator.consumer.records import target_of
from server.coordinator.modern_group import MemberRecords
from server.coordinator.records import CoordinatorRecord
from server.coordinator.share_groups.group import ShareGroup
from server.coordinator.share_groups.member import ShareMember
from server.coordinator.share_groups.topics import SharedTopic, StateTopics, Topics
from wire.messages.groups_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)

# ---- written


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """The group's epoch was bumped."""
    return CoordinatorRecord(
        ShareGroupMetadataKey(group_id=group_id),
        ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def member_record(group_id: str, member: ShareMember) -> CoordinatorRecord:
    """What the member asked for."""
    return CoordinatorRecord(
        ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_names),
        ),
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    """What a member is to have."""
    topic = ShareGroupTargetAssignmentMemberValue.Topic
    return CoordinatorRecord(
        ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                topic(topic_id=id_, partitions=sorted(of)) for id_, of in target.items()
            ]
        ),
    )


def current_record(group_id: str, member: ShareMember) -> CoordinatorRecord:
    """What the member has."""
    topic = ShareGroupCurrentMemberAssignmentValue.Topic
    return CoordinatorRecord(
        ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=MemberState.STABLE,
            assigned_partitions=[
                topic(topic_id=id_, partitions=sorted(of)) for id_, of in member.assigned.items()
            ],
        ),
    )


def topics_record(group_id: str, topics: StateTopics) -> CoordinatorRecord:
    """Whose state is kept."""
    value = ShareGroupStatePartitionMetadataValue
    return CoordinatorRecord(
        ShareGroupStatePartitionMetadataKey(group_id=group_id),
        value(
            initializing_topics=_topics(topics.initializing),
            initialized_topics=_topics(topics.initialized),
            deleting_topics=[
                value.DeletingTopic(topic_id=id_, topic_name=name)
                for id_, name in topics.deleting.items()
            ],
        ),
    )


def _topics(topics: Topics) -> list[ShareGroupStatePartitionMetadataValue.Topic]:
    topic = ShareGroupStatePartitionMetadataValue.Topic
    return [
        topic(topic_id=id_, topic_name=one.name, partitions=sorted(one.partitions))
        for id_, one in topics.items()
    ]


def group_tombstones(group: ShareGroup) -> list[CoordinatorRecord]:
    """All of a group is no more."""
    return MEMBERS.tombstones_of_all(
        group,
        ShareGroupStatePartitionMetadataKey(group_id=group.group_id),
        ShareGroupMetadataKey(group_id=group.group_id),
    )


# ---- read


def _with_metadata(member: ShareMember, value: ShareGroupMemberMetadataValue) -> ShareMember:
    """The member as the record says; what it has stays."""
    return replace(
        member,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_names=frozenset(value.subscribed_topic_names),
    )


def _with_assignment(
    member: ShareMember, value: ShareGroupCurrentMemberAssignmentValue | None
) -> ShareMember:
    """The member with what the record says that it has; a tombstone: nothing, and no epoch."""
    if value is None:
        return replace(member, epoch=-1, previous_epoch=-1, assigned={})
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned={
            topic.topic_id: frozenset(topic.partitions) for topic in value.assigned_partitions
        },
    )


def topics_of(value: ShareGroupStatePartitionMetadataValue, now_ms: int) -> StateTopics:
    """The lists that the record says, heard of now."""
    return StateTopics(
        _shared(value.initializing_topics, now_ms),
        _shared(value.initialized_topics, now_ms),
        {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
    )


def _shared(
    topics: Iterable[ShareGroupStatePartitionMetadataValue.Topic], now_ms: int
) -> dict[bytes, SharedTopic]:
    return {
        topic.topic_id: SharedTopic(topic.topic_name, frozenset(topic.partitions), now_ms)
        for topic in topics
    }


MEMBERS = MemberRecords(
    metadata=ShareGroupMemberMetadataKey,
    current=ShareGroupCurrentMemberAssignmentKey,
    target=ShareGroupTargetAssignmentMemberKey,
    target_epoch=ShareGroupTargetAssignmentMetadataKey,
    target_epoch_value=ShareGroupTargetAssignmentMetadataValue,
    new_member=ShareMember,
    with_metadata=_with_metadata,
    with_assignment=_with_assignment,
    target_of=target_of,
)
member_tombstones = MEMBERS.tombstones_of
