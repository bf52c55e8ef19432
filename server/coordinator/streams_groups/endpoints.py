"""Which partitions are behind which endpoint: what members tell those who query their state (PURE;
EndpointToPartitionsManager).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from server.coordinator.streams_groups.member import StreamsMember
from server.coordinator.streams_groups.tasks import Partitions
from server.coordinator.streams_groups.topology import ConfiguredTopology
from wire.messages.streams import StreamsGroupHeartbeatResponse

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

_Endpoint = StreamsGroupHeartbeatResponse.EndpointPartitions


def by_endpoint(
    members: Iterable[StreamsMember], topology: ConfiguredTopology, image: MetadataImage
) -> list[_Endpoint]:
    """Of each member that has an endpoint the partitions that its tasks read."""
    found = []
    for member in members:
        if member.endpoint is not None:
            host, port = member.endpoint
            tasks = member.assigned.without_epochs()
            found.append(
                _Endpoint(
                    user_endpoint=_Endpoint.Endpoint(host=host, port=port),
                    active_partitions=_topics(tasks.active, topology, image),
                    standby_partitions=_topics(tasks.standby, topology, image),
                )
            )
    return found


def _topics(
    tasks: Partitions, topology: ConfiguredTopology, image: MetadataImage
) -> list[_Endpoint.Topic]:
    """A topic may have fewer partitions than its subtopology has tasks."""
    topics = image.topics_by_name
    return [
        _Endpoint.Topic(
            topic=name, partitions=[p for p in sorted(of) if p in topics[name].partitions]
        )
        for id_, of in tasks.items()
        if id_ in topology.subtopologies
        for name in topology.subtopologies[id_].reads
        if name in topics
    ]
