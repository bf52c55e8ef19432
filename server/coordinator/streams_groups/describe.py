"""What StreamsGroupDescribe tells of a group (PURE; ST-23)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from server.coordinator.streams_groups.group import StreamsGroup
from server.coordinator.streams_groups.member import StreamsMember
from server.coordinator.streams_groups.tasks import NO_TASKS, Tasks
from server.coordinator.streams_groups.topology import ConfiguredTopology, InternalTopic, Topology
from wire.messages.streams import StreamsGroupDescribeResponse

if TYPE_CHECKING:
    from wire.errors import KafkaError

_Group = StreamsGroupDescribeResponse.Group
_Member = _Group.Member
_Subtopology = _Group.Topology.Subtopology


def described(group: StreamsGroup, configured: ConfiguredTopology | None) -> _Group:
    """Where the group is, its topology, with counts if it is ready, and each member: what it has,
    and what it is to have."""
    return _Group(
        error_code=0,
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        topology=_topology(group.topology, configured),
        members=[
            _member(member, group.target.get(id_, NO_TASKS))
            for id_, member in group.members.items()
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
        members=[],
    )


def _topology(
    topology: Topology | None, configured: ConfiguredTopology | None
) -> _Group.Topology | None:
    if topology is None:
        return None
    if configured is not None and configured.is_ready:
        subtopologies = [
            _subtopology(
                id_,
                one.source_topics,
                one.repartition_sink_topics,
                one.repartition_source_topics,
                one.state_changelog_topics,
            )
            for id_, one in configured.subtopologies.items()
        ]
    else:
        subtopologies = [
            _subtopology(
                id_,
                one.source_topics,
                one.repartition_sink_topics,
                map(InternalTopic.asked, one.repartition_source_topics),
                map(InternalTopic.asked, one.state_changelog_topics),
            )
            for id_, one in topology.subtopologies.items()
        ]
    return _Group.Topology(epoch=topology.epoch, subtopologies=subtopologies)


def _subtopology(
    id_: str,
    sources: Iterable[str],
    sinks: Iterable[str],
    repartition: Iterable[InternalTopic],
    changelogs: Iterable[InternalTopic],
) -> _Subtopology:
    return _Subtopology(
        subtopology_id=id_,
        source_topics=sorted(sources),
        repartition_sink_topics=sorted(sinks),
        state_changelog_topics=_topics(changelogs),
        repartition_source_topics=_topics(repartition),
    )


def _topics(topics: Iterable[InternalTopic]) -> list[_Subtopology.TopicInfo]:
    config = _Subtopology.TopicInfo.Config
    return [
        _Subtopology.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[config(key=key, value=value) for key, value in topic.configs],
        )
        for topic in sorted(topics)
    ]


def _member(member: StreamsMember, target: Tasks) -> _Member:
    endpoint = None
    if member.endpoint is not None:
        endpoint = _Member.Endpoint(host=member.endpoint[0], port=member.endpoint[1])
    return _Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=endpoint,
        client_tags=[_Member.ClientTag(key=key, value=value) for key, value in member.tags.items()],
        task_offsets=[],
        task_end_offsets=[],
        assignment=_assignment(member.assigned.without_epochs()),
        target_assignment=_assignment(target),
        is_classic=False,
    )


def _assignment(tasks: Tasks) -> _Member.Assignment:
    def told(partitions: Mapping[str, frozenset[int]]) -> list[_Member.Assignment.Task]:
        return [
            _Member.Assignment.Task(subtopology_id=id_, partitions=sorted(of))
            for id_, of in sorted(partitions.items())
        ]

    return _Member.Assignment(
        active_tasks=told(tasks.active),
        standby_tasks=told(tasks.standby),
        warmup_tasks=told(tasks.warmup),
    )
