"""Rules of streams groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replication.metadata.topic_names import INTERNAL_TOPICS, absent_topic_error
from server.coordinator.streams_groups.topology import invalid_topology
from server.handlers.access.groups import with_operations
from server.handlers.access.guard import DENIED, Access, Verdict, With
from server.handlers.access.shapes import finished, items, itself
from server.network.api import Operation, Resource
from server.network.error_responses import error_response
from wire.errors import ErrorCode, KafkaError

TOPIC, GROUP, CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER


def topology_topics(topology: Any) -> list[str]:
    """The names of all topics of a topology, as a member brings it or as it is described, each
    once; None has none."""
    names: dict[str, None] = {}
    for one in () if topology is None else topology.subtopologies or ():
        names |= dict.fromkeys((*one.source_topics, *one.repartition_sink_topics))
        infos = (*one.repartition_source_topics, *one.state_changelog_topics)
        names |= dict.fromkeys(info.name for info in infos)
    return list(names)


def wrong_names(names: Sequence[str]) -> KafkaError | None:
    """What is wrong with the names of a topology's topics, if some are no member's to use."""
    prohibited = ",".join(name for name in names if name in INTERNAL_TOPICS)
    if prohibited:
        return invalid_topology(
            f"Use of Kafka internal topics {prohibited} in a Kafka Streams topology is prohibited."
        )
    invalid = ",".join(
        name
        for name in names
        if absent_topic_error(name).code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    return (
        invalid_topology(f"Topic names {invalid} are not valid topic names.") if invalid else None
    )


def streams_group_heartbeat(access: Access, request: Any) -> Verdict:
    """Read on the group, Describe on each topic of the topology; of names that none may use the
    handler says so. Internal topics are made for who may Create on the cluster or on each of them:
    the handler asks."""
    if not access.may(Operation.READ, GROUP, request.group_id):
        return error_response(request, access.ctx.api_version, DENIED[GROUP][0])
    names = topology_topics(request.topology)
    if wrong_names(names) is not None:
        return None
    if not all(access.may(Operation.DESCRIBE, TOPIC, name) for name in names):
        return error_response(request, access.ctx.api_version, DENIED[TOPIC][0])

    def uncreatable(names: Sequence[str]) -> list[str]:
        if access.sees(Operation.CREATE, CLUSTER):
            return []
        return [name for name in names if not access.may(Operation.CREATE, TOPIC, name)]

    return With(uncreatable)


def streams_group_describe(access: Access, request: Any) -> Verdict:
    """Each group; one with a topic in its topology that may not be described is not shown."""
    verdict = _described_streams_groups(access, request)
    include = request.include_authorized_operations

    def shown(group: Any) -> Any:
        names = topology_topics(group.topology)
        if all(access.sees(Operation.DESCRIBE, TOPIC, name) for name in names):
            return group
        hidden = type(group).blank()
        hidden.group_id, hidden.error_code = group.group_id, int(DENIED[TOPIC][0])
        hidden.error_message = (
            "The described group uses topics that the client is not authorized to describe."
        )
        return hidden

    def finish(response: Any) -> Any:
        response.groups = [shown(group) for group in response.groups]
        return with_operations(access, response) if include else response

    return finished(verdict, finish)


_described_streams_groups = items(Operation.DESCRIBE, GROUP, "group_ids", "groups", itself)
