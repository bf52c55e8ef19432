"""Whose state is kept for a share group: one record of three lists (PURE; SG-5, SG-6).

initializing   was asked for; asked again if it takes too long
initialized    is kept: these partitions may be assigned
deleting       is to go; asked again by whoever deletes next

A value: what differs from the one before is written whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.consumer.member import Partitions
from server.coordinator.modern_group import is_within

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

UNKNOWN_NAME = "<UNKNOWN>"
"""Of a topic that was deleted, as Kafka writes it."""


class SharedTopic(NamedTuple):
    """One topic of a list."""

    name: str
    partitions: frozenset[int]
    since_ms: int = 0
    """Wall clock when this node heard of it; in no record."""


Topics = Mapping[bytes, SharedTopic]
"""By topic id; no topic without a partition."""


class StateTopics(NamedTuple):
    """See the module."""

    initializing: Topics
    initialized: Topics
    deleting: Mapping[bytes, str]
    """Topic id to name."""

    def to_initialize(
        self, names: Iterable[str], image: MetadataImage, now_ms: int, retry_ms: int
    ) -> dict[bytes, SharedTopic]:
        """Partitions of these topics that are neither initialized nor about to be, unless that
        takes `retry_ms` already."""
        found = {}
        for name in sorted(names):
            topic = image.topics_by_name.get(name)
            if topic is None:
                continue
            known = self.partitions_of(self.initialized, topic.topic_id)
            pending = self.initializing.get(topic.topic_id)
            if pending is not None and is_within(retry_ms, pending.since_ms, now_ms):
                known |= pending.partitions
            lacking = frozenset(topic.partitions) - known
            if lacking:
                found[topic.topic_id] = SharedTopic(name, lacking, now_ms)
        return found

    @staticmethod
    def partitions_of(topics: Topics, topic_id: bytes) -> frozenset[int]:
        """Those of one topic in a list."""
        topic = topics.get(topic_id)
        return frozenset() if topic is None else topic.partitions

    def begun(self, topics: Topics) -> StateTopics:
        """These were asked for; what was to go is not to go any more."""
        deleting = {id_: name for id_, name in self.deleting.items() if id_ not in topics}
        return self._replace(initializing=joined(self.initializing, topics), deleting=deleting)

    def done(self, topics: Topics) -> StateTopics:
        """These are kept now, as far as somebody still waits for them: who was told so late may
        have forgotten them with their topic, or be about to."""
        awaited = _without(topics, _without(topics, self.initializing))
        return self._replace(
            initializing=_without(self.initializing, awaited),
            initialized=joined(self.initialized, awaited),
        )

    def failed(self, topics: Topics) -> StateTopics:
        """These are not: whoever comes next asks again."""
        return self._replace(initializing=_without(self.initializing, topics))

    def has_any(self, topic_ids: frozenset[bytes]) -> bool:
        """Whether one of these topics is in a list."""
        return any(not topic_ids.isdisjoint(part) for part in self)

    def without(self, topic_ids: Collection[bytes]) -> StateTopics:
        """These topics are no more."""
        return StateTopics(
            {id_: one for id_, one in self.initializing.items() if id_ not in topic_ids},
            {id_: one for id_, one in self.initialized.items() if id_ not in topic_ids},
            {id_: name for id_, name in self.deleting.items() if id_ not in topic_ids},
        )

    @property
    def assignable(self) -> Partitions:
        """What members may have."""
        return {id_: topic.partitions for id_, topic in self.initialized.items()}


NO_TOPICS = StateTopics({}, {}, {})


def joined(first: Topics, second: Topics) -> dict[bytes, SharedTopic]:
    """The partitions of both; names and times are the second's."""
    both = dict(first)
    for topic_id, topic in second.items():
        before = StateTopics.partitions_of(both, topic_id)
        both[topic_id] = topic._replace(partitions=before | topic.partitions)
    return both


def _without(topics: Topics, gone: Topics) -> dict[bytes, SharedTopic]:
    left = {
        id_: topic._replace(partitions=topic.partitions - StateTopics.partitions_of(gone, id_))
        for id_, topic in topics.items()
    }
    return {id_: topic for id_, topic in left.items() if topic.partitions}


def named(partitions: Partitions, image: MetadataImage, now_ms: int) -> dict[bytes, SharedTopic]:
    """With the names of topics."""
    known = image.topics_by_id
    return {
        id_: SharedTopic(known[id_].name if id_ in known else UNKNOWN_NAME, of, now_ms)
        for id_, of in partitions.items()
    }
