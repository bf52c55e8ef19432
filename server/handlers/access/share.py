"""Rules of share groups, their records and their offsets."""

from __future__ import annotations

from typing import Any

from server.handlers.access.guard import DENIED, Access, Verdict, With
from server.handlers.access.shapes import at_top, items, merged
from server.network.api import Operation, Resource
from wire.messages.share import DescribeShareGroupOffsetsResponse
from wire.primitives import ZERO_UUID

TOPIC, GROUP = Resource.TOPIC, Resource.GROUP
_Group = DescribeShareGroupOffsetsResponse.Group


def share_session(access: Access, request: Any) -> Verdict:
    """Of what is fetched and acknowledged: Read on the group. A session goes on with topics that
    are not named again, and beside those that are refused: the handler asks about each."""
    if request.group_id is not None and not access.may(Operation.READ, GROUP, request.group_id):
        refused: Any = at_top(access, request, GROUP)
        refused.error_message = None
        return refused
    return With(lambda name: access.may(Operation.READ, TOPIC, name))


def alter_share_group_offsets(access: Access, request: Any) -> Verdict:
    """Read on the group, Read on each topic."""
    return _of_topics(access, request, Operation.READ)


def delete_share_group_offsets(access: Access, request: Any) -> Verdict:
    """Delete on the group, Read on each topic."""
    return _of_topics(access, request, Operation.DELETE)


def _of_topics(access: Access, request: Any, operation: Operation) -> Verdict:
    if not access.may(operation, GROUP, request.group_id):
        return at_top(access, request, GROUP)
    verdict: Any = _read_topics(access, request)
    if not callable(verdict):
        if verdict is not None:  # all topics are refused: the whole is not
            verdict.error_code, verdict.error_message = 0, None
        return verdict
    # Of a group that could not be touched nothing else is said.
    return lambda response: response if response.error_code else verdict(response)


_read_topics = items(Operation.READ, TOPIC, "topics", "responses", lambda topic: topic.topic_name)


def describe_share_group_offsets(access: Access, request: Any) -> Verdict:
    """Describe on each group, then on each of its topics, asked for or found."""
    order = [group.group_id for group in request.groups]
    refused_groups = []
    refused_topics: dict[str, list[Any]] = {}
    kept = []
    for group in request.groups:
        if not access.may(Operation.DESCRIBE, GROUP, group.group_id):
            code = int(DENIED[GROUP][0])
            refused_groups.append(_Group(group_id=group.group_id, topics=[], error_code=code))
            continue
        kept.append(group)
        if group.topics is not None:
            refused = refused_topics.setdefault(group.group_id, [])
            refused += _take_refused(access, group)
    request.groups = kept
    if not kept:
        return DescribeShareGroupOffsetsResponse(groups=refused_groups)

    in_order = merged("groups", refused_groups, order)

    def finish(response: Any) -> Any:
        for group in response.groups:
            if not group.error_code:
                shown = [
                    topic
                    for topic in group.topics
                    if access.sees(Operation.DESCRIBE, TOPIC, topic.topic_name)
                ]
                group.topics = [*shown, *refused_topics.get(group.group_id, ())]
        return in_order(response)

    return finish


def _take_refused(access: Access, group: Any) -> list[Any]:
    """Take topics that may not be described out of a group, and answer them."""
    code, text = DENIED[TOPIC]
    kept, refused = [], []
    for topic in group.topics:
        if access.may(Operation.DESCRIBE, TOPIC, topic.topic_name):
            kept.append(topic)
            continue
        partitions = [
            _Group.Topic.Partition(
                partition_index=index,
                start_offset=-1,
                leader_epoch=0,
                error_code=int(code),
                error_message=text,
            )
            for index in topic.partitions
        ]
        refused.append(
            _Group.Topic(topic_name=topic.topic_name, topic_id=ZERO_UUID, partitions=partitions)
        )
    group.topics = kept
    return refused
