"""StreamsGroupHeartbeat: what a request must be, and what it says of its member (PURE; ST-2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from server.coordinator.consumer.member import JOIN_EPOCH, LEAVE_STATIC_EPOCH, NOT_SET
from server.coordinator.consumer.requests import check_not_empty, invalid
from server.coordinator.group_messages import Client
from server.coordinator.streams_groups.member import StreamsMember
from server.coordinator.streams_groups.tasks import Partitions, Tasks
from server.coordinator.streams_groups.topology import (
    ConfiguredTopology,
    TopicInfo,
    Topology,
    invalid_topology,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups_records import StreamsGroupTopologyValue
from wire.messages.streams import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse

_Request = StreamsGroupHeartbeatRequest
_Task = StreamsGroupHeartbeatResponse.Task

ID_MAX = 255
"""Longest id of a member, a process or a subtopology, characters. Kafka has no limit, and Kafka
Streams' ids are UUIDs and numbers. Where loads are alike, tasks are given in the order of a Java
HashMap: each target reads every character of every id."""


def validate_heartbeat(request: _Request) -> None:
    """ST-2. KafkaError INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY."""
    _validate_supported(request)
    check_not_empty(MemberId=request.member_id, GroupId=request.group_id, RackId=request.rack_id)
    _check_length("ProcessId", request.process_id)
    epoch, topology = request.member_epoch, request.topology
    if epoch == JOIN_EPOCH:
        _check_length("MemberId", request.member_id)
        _validate_join(request)
    elif epoch == LEAVE_STATIC_EPOCH:
        raise invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if None in tasks and tasks != (None, None, None):
        raise invalid("If one task-type is non-null, all must be non-null.")
    if epoch != JOIN_EPOCH and topology is not None:
        raise invalid("Topology can only be provided when (re-)joining.")


def _check_length(name: str, id_: str | None) -> None:
    if id_ is not None and len(id_) > ID_MAX:
        raise invalid(f"{name} can't be longer than {ID_MAX} characters.")


def _validate_supported(request: _Request) -> None:
    """What Kafka 4.3 does not take yet either."""
    if request.instance_id is not None:
        raise invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(
        one.source_topic_regex for one in request.topology.subtopologies
    ):
        raise invalid("Regular expressions for source topics are not supported yet.")


def _validate_join(request: _Request) -> None:
    if request.rebalance_timeout_ms == NOT_SET:
        raise invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            raise invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise invalid("Topology must be non-null when (re-)joining.")
    _validate_topology(request.topology)


def _validate_topology(topology: _Request.Topology) -> None:
    ids = [one.subtopology_id for one in topology.subtopologies]
    if len(set(ids)) < len(ids):
        raise invalid_topology("Subtopologies must have different ids.")
    if any(len(id_) > ID_MAX for id_ in ids):
        raise invalid_topology(f"Subtopology ids can't be longer than {ID_MAX} characters.")
    if topology.epoch < 0:
        raise invalid_topology("Topology epoch must be non-negative.")
    for one in topology.subtopologies:
        for topic in one.state_changelog_topics:
            if topic.partitions != 0:
                raise invalid_topology(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it "
                    f"is set to {topic.partitions}."
                )
        if any(topic.partitions < 0 for topic in one.repartition_source_topics):
            raise invalid_topology("Number of partitions must be at least 1.")


def topology_of(request: _Request) -> Topology | None:
    """The topology that a member brings, as the log keeps it."""
    asked = request.topology
    if asked is None:
        return None
    value = StreamsGroupTopologyValue.Subtopology

    def topics(infos: list[_Request.Topology.Subtopology.TopicInfo]) -> list[TopicInfo]:
        return [
            value.TopicInfo(
                name=info.name,
                partitions=info.partitions,
                replication_factor=info.replication_factor,
                topic_configs=[
                    value.TopicInfo.Config(key=config.key, value=config.value)
                    for config in info.topic_configs
                ],
            )
            for info in infos
        ]

    return Topology(
        StreamsGroupTopologyValue(
            epoch=asked.epoch,
            subtopologies=[
                value(
                    subtopology_id=one.subtopology_id,
                    source_topics=one.source_topics,
                    source_topic_regex=one.source_topic_regex,
                    state_changelog_topics=topics(one.state_changelog_topics),
                    repartition_sink_topics=one.repartition_sink_topics,
                    repartition_source_topics=topics(one.repartition_source_topics),
                    copartition_groups=[
                        value.CopartitionGroup(
                            source_topics=group.source_topics,
                            source_topic_regex=group.source_topic_regex,
                            repartition_source_topics=group.repartition_source_topics,
                        )
                        for group in one.copartition_groups
                    ],
                )
                for one in asked.subtopologies
            ],
        )
    )


def validate_epoch(member: StreamsMember, epoch: int, owned: Tasks | None) -> None:
    """The answer that told the epoch may have been lost: then the one before is right, if the
    member has nothing but what it was given. KafkaError FENCED_MEMBER_EPOCH."""
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    is_lost_answer = (
        epoch == member.previous_epoch
        and epoch < member.epoch
        and owned is not None
        and owned.is_within(member.assigned)
    )
    if not is_lost_answer:
        order = "greater" if epoch > member.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The streams group member has a {order} member epoch ({epoch}) than the one known by "
            f"the group coordinator ({member.epoch}). The member must abandon all its partitions "
            "and rejoin.",
        )


def validate_tasks(topology: ConfiguredTopology, owned: Tasks | None) -> None:
    """KafkaError INVALID_REQUEST: a task that does not exist."""
    for partitions in owned or ():
        for id_, of in partitions.items():
            known = topology.subtopologies.get(id_)
            if known is None:
                raise invalid(f"Subtopology {id_} does not exist in the topology.")
            for partition in sorted(of):
                if not 0 <= partition < known.task_count:
                    raise invalid(
                        f"Task {partition} for subtopology {id_} is invalid. Number of tasks for "
                        f"this subtopology: {known.task_count}"
                    )


def asked(member: StreamsMember, request: _Request, client: Client) -> StreamsMember:
    """The member with what the request says anew; what it does not say stays."""
    knows_it = member.client_id == client.client_id and member.client_host == client.host
    timeout_ms, tags = request.rebalance_timeout_ms, request.client_tags
    said = (request.rack_id, request.topology, request.process_id, request.user_endpoint, tags)
    if knows_it and timeout_ms == NOT_SET and said == (None,) * len(said):
        return member  # nearly every heartbeat
    endpoint = request.user_endpoint
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == NOT_SET else timeout_ms,
        topology_epoch=(
            member.topology_epoch if request.topology is None else request.topology.epoch
        ),
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint if endpoint is None else (endpoint.host, endpoint.port),
        tags=member.tags if tags is None else {tag.key: tag.value for tag in tags},
    )


def owned_tasks(request: _Request) -> Tasks | None:
    """What a member says that it has; None if it does not say."""
    sorts = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    found = [
        {task.subtopology_id: frozenset(task.partitions) for task in tasks if task.partitions}
        for tasks in sorts
        if tasks is not None
    ]
    return Tasks(*found) if len(found) == len(sorts) else None


def told(partitions: Partitions | Mapping[str, Mapping[int, int]]) -> list[_Task]:
    """As a member is told them."""
    return [_Task(subtopology_id=id_, partitions=sorted(of)) for id_, of in partitions.items()]
