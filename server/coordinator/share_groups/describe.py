"""What ShareGroupDescribe tells of a group (PURE)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.coordinator.share_groups import assignor
from server.coordinator.share_groups.group import ShareGroup
from wire.messages.share import ShareGroupDescribeResponse

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from wire.errors import KafkaError

_Group = ShareGroupDescribeResponse.Group


def described(group: ShareGroup, image: MetadataImage) -> _Group:
    """Where the group is, and what each member has of topics that are there."""
    known = image.topics_by_id
    topic = _Group.Member.Assignment.Topic
    return _Group(
        error_code=0,
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=assignor.NAME,
        members=[
            _Group.Member(
                member_id=member.member_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.subscribed_names),
                assignment=_Group.Member.Assignment(
                    topic_partitions=[
                        topic(topic_id=id_, topic_name=known[id_].name, partitions=sorted(of))
                        for id_, of in member.assigned.items()
                        if id_ in known
                    ]
                ),
            )
            for member in group.members.values()
        ],
    )


def not_described(group_id: str, error: KafkaError) -> _Group:
    """A group that cannot be described."""
    return _Group(
        error_code=int(error.code),
        error_message=error.detail or None,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )
