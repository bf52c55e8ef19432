"""What consumers of a classic group tell each other (PURE; ConsumerProtocol).

To the coordinator of a classic group these are bytes. It reads and writes them for members of the
classic protocol in a consumer group, and when a group changes its protocol. An int16 in front says
the version; of a later version than ours what we know is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from server.coordinator.consumer.member import Held, Partitions
from wire.errors import MalformedFrame
from wire.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

_NEWEST = 3
_PREFIX = 2
_ELEMENTS_MAX = 100_000
"""Topics and partitions that a member may name, together; in memory each is many times as large."""


def version_of(data: bytes) -> int:
    """The version that is spoken. Raises MalformedFrame."""
    version = int.from_bytes(data[:_PREFIX], "big", signed=True)
    if len(data) < _PREFIX or version < 0:
        raise MalformedFrame(f"version {version} of the consumer protocol")
    return min(version, _NEWEST)


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Raises MalformedFrame."""
    return ConsumerProtocolSubscription.decode(data, version_of(data), _PREFIX, _ELEMENTS_MAX)


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Raises MalformedFrame."""
    return ConsumerProtocolAssignment.decode(data, version_of(data), _PREFIX, _ELEMENTS_MAX)


def write_assignment(given: Partitions | Held, version: int, image: MetadataImage) -> bytes:
    """As a member that speaks `version` reads it; topics that are no more are left out."""
    topic = ConsumerProtocolAssignment.Topic
    known = image.topics_by_id
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            topic(topic=known[topic_id].name, partitions=sorted(partitions))
            for topic_id, partitions in given.items()
            if topic_id in known
        ]
    )
    return version.to_bytes(_PREFIX, "big") + assignment.encode_bytes(version)


def by_id(
    topics: Iterable[ConsumerProtocolAssignment.Topic | ConsumerProtocolSubscription.Topic],
    image: MetadataImage,
) -> Mapping[bytes, frozenset[int]]:
    """Topic ids for names; topics that are no more are left out."""
    known = image.topics_by_name
    return {
        known[topic.topic].topic_id: frozenset(topic.partitions)
        for topic in topics
        if topic.topic in known and topic.partitions
    }
