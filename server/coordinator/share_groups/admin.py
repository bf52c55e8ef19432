"""What administrators do to the state of a share group (PURE; SG-7, SG-50).

State is deleted in two steps, and so is begun: first the group's record says what is to happen,
then whoever keeps the state does it, then the record says that it is done. What was cut off between
stands in the record and is done again by the next one who asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from server.coordinator.consumer.member import Partitions
from server.coordinator.group import GroupDecision
from server.coordinator.machine import Decision
from server.coordinator.share_groups import records as written
from server.coordinator.share_groups.group import ShareGroup
from server.coordinator.share_groups.protocol import ShareGroups, Starts
from server.coordinator.share_groups.topics import SharedTopic, StateTopics, Topics, joined
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
)
from wire.primitives import ZERO_UUID

_UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_TEXT = "This server does not host this topic-partition."


class Deleting(NamedTuple):
    """What is to be deleted where state is kept."""

    partitions: Partitions
    failed: Sequence[DeleteShareGroupOffsetsResponse.Topic] = ()


class Altering(NamedTuple):
    """What is to be begun where state is kept, and what is told if that succeeds."""

    epoch: int
    starts: Starts
    topics: Topics
    response: AlterShareGroupOffsetsResponse


def begin_delete(groups: ShareGroups, group_id: str) -> GroupDecision:
    """All state of a group is to go, also what an earlier attempt left. KafkaError NON_EMPTY_GROUP;
    nothing for a group that is no share group. Of a topic that was deleted while nobody
    coordinated the group there is nothing that could be deleted. What the record names after this
    was begun since, and keeps the group (`ShareGroups.tombstones`)."""
    group = groups.groups.get(group_id)
    if group is None:
        return Decision(response=Deleting({}))
    _must_be_empty(group)
    known = groups.outside.image().topics_by_id
    kept = joined(group.topics.initialized, group.topics.initializing)
    left_over = {
        id_: SharedTopic(known[id_].name, frozenset(known[id_].partitions))
        for id_ in group.topics.deleting
        if id_ in known
    }
    candidates = {id_: one for id_, one in joined(kept, left_over).items() if id_ in known}
    after = StateTopics({}, {}, {id_: topic.name for id_, topic in candidates.items()})
    partitions = {id_: topic.partitions for id_, topic in candidates.items()}
    records = [written.topics_record(group_id, after)] if after != group.topics else []
    return Decision(records, Deleting(partitions))


def begin_delete_offsets(groups: ShareGroups, group_id: str, names: Iterable[str]) -> GroupDecision:
    """State of these topics is to go, also what is just being begun: who is told that it was finds
    that nobody waits for it (`StateTopics.done`). KafkaErrors GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """
    group = groups.of_id(group_id)
    _must_be_empty(group)
    topics, image = group.topics, groups.outside.image()
    kept, deleting = joined(topics.initialized, topics.initializing), dict(topics.deleting)
    partitions: dict[bytes, frozenset[int]] = {}
    failed = []
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            failed.append(deleted(ZERO_UUID, name, _UNKNOWN, _UNKNOWN_TEXT))
        elif topic.topic_id in topics.initialized:
            partitions[topic.topic_id] = kept[topic.topic_id].partitions
            deleting[topic.topic_id] = name
        elif topic.topic_id in deleting:
            partitions[topic.topic_id] = frozenset(topic.partitions)
        else:
            text = "There is no offset information to delete."
            failed.append(deleted(ZERO_UUID, name, _UNKNOWN, text))
    after = topics.without(partitions)._replace(deleting=deleting)
    records = [written.topics_record(group_id, after)] if after != topics else []
    return Decision(records, Deleting(partitions, failed))


def end_delete_offsets(
    groups: ShareGroups, group_id: str, topic_ids: frozenset[bytes]
) -> GroupDecision:
    """State of these topics is gone."""
    group = groups.groups.get(group_id)
    if group is None or topic_ids.isdisjoint(group.topics.deleting):
        return Decision(response=ErrorCode.NONE)
    left = {id_: name for id_, name in group.topics.deleting.items() if id_ not in topic_ids}
    record = written.topics_record(group_id, group.topics._replace(deleting=left))
    return Decision([record], ErrorCode.NONE)


def alter_offsets(groups: ShareGroups, request: AlterShareGroupOffsetsRequest) -> GroupDecision:
    """These partitions are to begin at these offsets; makes the group if there is none.
    KafkaErrors GROUP_ID_NOT_FOUND for one of another kind, NON_EMPTY_GROUP."""
    group = groups.of_id(request.group_id, may_be_new=True)
    _must_be_empty(group)
    image, now_ms = groups.outside.image(), groups.moment.wall_ms
    starts: dict[bytes, dict[int, int]] = {}
    begun: dict[bytes, SharedTopic] = {}
    answers = []
    for topic in request.topics:
        known = image.topics_by_name.get(topic.topic_name)
        topic_id = ZERO_UUID if known is None else known.topic_id
        count = 0 if known is None else len(known.partitions)
        own = {
            one.partition_index: one.start_offset
            for one in topic.partitions
            if 0 <= one.partition_index < count
        }
        if own:
            named = starts.setdefault(topic_id, {})
            named.update(own)
            begun[topic_id] = SharedTopic(topic.topic_name, frozenset(named), now_ms)
        answers.append(_altered(topic, topic_id, own))
    topics = group.topics.begun(begun)
    records = [written.topics_record(group.group_id, topics)] if begun else []
    response = AlterShareGroupOffsetsResponse(error_code=0, responses=answers)
    return Decision(records, Altering(group.epoch, starts, begun, response))


def _altered(
    topic: AlterShareGroupOffsetsRequest.Topic, topic_id: bytes, own: dict[int, int]
) -> AlterShareGroupOffsetsResponse.Topic:
    make = AlterShareGroupOffsetsResponse.Topic
    return make(
        topic_name=topic.topic_name,
        topic_id=topic_id,
        partitions=[
            make.Partition(partition_index=one.partition_index, error_code=0)
            if one.partition_index in own
            else make.Partition(
                partition_index=one.partition_index,
                error_code=_UNKNOWN,
                error_message=_UNKNOWN_TEXT,
            )
            for one in topic.partitions
        ],
    )


def deleted(
    topic_id: bytes, name: str, code: int = 0, text: str | None = None
) -> DeleteShareGroupOffsetsResponse.Topic:
    """What is told of a topic."""
    return DeleteShareGroupOffsetsResponse.Topic(
        topic_id=topic_id, topic_name=name, error_code=code, error_message=text
    )


def _must_be_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
