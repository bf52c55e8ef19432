"""What ConsumerGroupDescribe tells of a group (PURE)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from server.coordinator.consumer.group import NOTHING, ConsumerGroup
from server.coordinator.consumer.member import ConsumerMember
from server.coordinator.consumer.step import chosen_assignor
from wire.messages.groups import ConsumerGroupDescribeResponse

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

_Group = ConsumerGroupDescribeResponse.Group
_CLASSIC, _CONSUMER = 0, 1


def described(group: ConsumerGroup, assignors: Sequence[str], image: MetadataImage) -> _Group:
    """Where the group is, and each member: what it has, what it is giving back included, and what
    it is to have."""
    members = group.members.values()
    return _Group(
        error_code=0,
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=chosen_assignor(members, assignors),
        members=[_member(group, member, image) for member in members],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, image: MetadataImage) -> _Group.Member:
    held: dict[bytes, list[int]] = {}
    for part in (member.assigned, member.revoking):
        for topic_id, partitions in part.items():
            held.setdefault(topic_id, []).extend(partitions)
    return _Group.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_names),
        subscribed_topic_regex=member.subscribed_regex,
        assignment=_assignment(held, image),
        target_assignment=_assignment(group.target.get(member.member_id, NOTHING), image),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(
    partitions: Mapping[bytes, Collection[int]], image: MetadataImage
) -> _Group.Member.Assignment:
    topic = _Group.Member.Assignment.Topic
    known = image.topics_by_id
    return _Group.Member.Assignment(
        topic_partitions=[
            topic(topic_id=id_, topic_name=known[id_].name, partitions=sorted(of))
            for id_, of in partitions.items()
            if id_ in known
        ]
    )
