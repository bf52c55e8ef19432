"""What a topology needs (PURE; InternalTopicManager, RepartitionTopics, ChangelogTopics,
CopartitionedTopicsEnforcer; ST-10).

A member sends its topology once; the group keeps it (record 23). Against the topics that are there
it is *configured*: how many partitions each internal topic must have, which of them are missing,
and how many tasks each subtopology has, or what stands in the way.

    topic          how many partitions
    source         as it has; it must be there
    repartition    as the topology says, else the most that whoever writes it reads; with others
                   that are joined with it (a copartition group) as many as those that cannot change
    changelog      the most of what its subtopology reads, which is how many tasks that has
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.java_order import hash_map_order
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups_records import StreamsGroupTopologyValue
from wire.messages.streams import StreamsGroupHeartbeatResponse

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

Subtopology = StreamsGroupTopologyValue.Subtopology
TopicInfo = StreamsGroupTopologyValue.Subtopology.TopicInfo
Status = StreamsGroupHeartbeatResponse.Status

STALE_TOPOLOGY = 0
MISSING_SOURCE_TOPICS = 1
INCORRECTLY_PARTITIONED_TOPICS = 2
MISSING_INTERNAL_TOPICS = 3
SHUTDOWN_APPLICATION = 4
ASSIGNMENT_DELAYED = 5

_SHOWN = 3
"""Topics that a text names."""
TASKS_MAX = 250_000
"""Tasks of a topology: the target of about as many goes into a batch of __consumer_offsets. Kafka
has no such limit, and fails when it writes the target that it has computed."""


class Topology:
    """A group's topology, as the log keeps it."""

    __slots__ = ("epoch", "reader_of", "required", "subtopologies", "value")

    def __init__(self, value: StreamsGroupTopologyValue) -> None:
        self.value = value
        self.epoch = value.epoch
        self.subtopologies: dict[str, Subtopology] = {
            one.subtopology_id: one
            for one in sorted(value.subtopologies, key=lambda one: one.subtopology_id)
        }
        self.reader_of: dict[str, str] = {
            name: id_ for id_, one in self.subtopologies.items() for name in sources(one)
        }
        """Source and repartition topics to the subtopology that reads them."""
        self.required = frozenset(self.reader_of).union(
            topic.name
            for one in self.subtopologies.values()
            for topic in one.state_changelog_topics
        )
        """All topics that must be there."""

    def is_same(self, other: Topology) -> bool:
        """Of one epoch and content; the order of subtopologies does not matter."""
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies


def sources(subtopology: Subtopology) -> list[str]:
    """What it reads."""
    repartition = [topic.name for topic in subtopology.repartition_source_topics]
    return [*subtopology.source_topics, *repartition]


class InternalTopic(NamedTuple):
    """A topic that the application makes for itself."""

    name: str
    partitions: int
    replication_factor: int
    """0: as the broker has it."""
    configs: tuple[tuple[str, str], ...]

    @classmethod
    def asked(cls, topic: TopicInfo) -> InternalTopic:
        """As the topology says; 0 partitions: as many as others have."""
        configs = tuple((config.key, config.value) for config in topic.topic_configs)
        return cls(topic.name, topic.partitions, topic.replication_factor, configs)


class Configured(NamedTuple):
    """A subtopology with all counts."""

    task_count: int
    source_topics: Sequence[str]
    repartition_source_topics: Sequence[InternalTopic]
    repartition_sink_topics: Sequence[str]
    state_changelog_topics: Sequence[InternalTopic]

    @property
    def reads(self) -> list[str]:
        """Names of the topics that its tasks read."""
        names = {*self.source_topics, *(topic.name for topic in self.repartition_source_topics)}
        return sorted(names)


class ConfiguredTopology(NamedTuple):
    """See the module."""

    epoch: int
    subtopologies: Mapping[str, Configured]
    """By id, in order; none where the counts do not work out."""
    missing: Sequence[InternalTopic] = ()
    """Internal topics that must be made."""
    problem: Status | None = None
    """Why no task may run."""

    @property
    def is_ready(self) -> bool:
        """Whether tasks may run."""
        return self.problem is None


class _UnusableError(Exception):
    """Topics are not as they must be."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(status_code=status, status_detail=detail)


def configured(topology: Topology, image: MetadataImage) -> ConfiguredTopology:
    """The topology against the topics that are there.

    KafkaError STREAMS_INVALID_TOPOLOGY: there are no topics with which it would work.
    """
    try:
        _check_sources(topology, image)
        counts = _Counts(topology, image)
        counts.decide()
        subtopologies = {id_: counts.configured(one) for id_, one in topology.subtopologies.items()}
        missing = _missing(subtopologies.values(), image)
    except _UnusableError as error:
        return ConfiguredTopology(topology.epoch, {}, problem=error.status)
    problem = None
    if missing:
        names = _named(topic.name for topic in missing)
        problem = Status(
            status_code=MISSING_INTERNAL_TOPICS,
            status_detail=f"Internal topics are missing: {names}",
        )
    return ConfiguredTopology(topology.epoch, subtopologies, missing, problem)


def invalid_topology(detail: str) -> KafkaError:
    """What is told of a topology that cannot work."""
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, detail)


def _check_sources(topology: Topology, image: MetadataImage) -> None:
    missing = sorted(
        name
        for one in topology.subtopologies.values()
        for name in one.source_topics
        if name not in image.topics_by_name
    )
    if missing:
        detail = f"Source topics {_named(dict.fromkeys(missing))} are missing."
        raise _UnusableError(MISSING_SOURCE_TOPICS, detail)


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - _SHOWN
    more = f" and {rest} additional topics" if rest > 0 else ""
    return ", ".join(listed[:_SHOWN]) + more


def _missing(
    subtopologies: Collection[Configured], image: MetadataImage
) -> tuple[InternalTopic, ...]:
    wanted = {
        topic.name: topic
        for one in subtopologies
        for topic in (*one.repartition_source_topics, *one.state_changelog_topics)
    }
    for topic in wanted.values():
        known = image.topics_by_name.get(topic.name)
        if known is not None and len(known.partitions) != topic.partitions:
            raise _UnusableError(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {topic.name} has different number of partitions: expected "
                f"{topic.partitions}, found {len(known.partitions)}",
            )
    return tuple(wanted[name] for name in sorted(wanted) if name not in image.topics_by_name)


class _Counts:
    """How many partitions the topics of one topology have, or are to have."""

    def __init__(self, topology: Topology, image: MetadataImage) -> None:
        order = hash_map_order([one.subtopology_id for one in topology.value.subtopologies])
        self._subtopologies = [topology.subtopologies[id_] for id_ in order]
        self._known = {name: len(one.partitions) for name, one in image.topics_by_name.items()}
        self._decided: dict[str, int] = {}

    def decide(self) -> None:
        """Find a count for every internal topic."""
        self._decide_repartition()
        self._enforce_copartition()
        task_count = 0
        for one in self._subtopologies:
            if not sources(one):
                raise invalid_topology(
                    f"No source topics found for subtopology {one.subtopology_id}"
                )
            most = self._most(one)
            task_count += most
            self._decided.update({topic.name: most for topic in one.state_changelog_topics})
        if task_count > TASKS_MAX:
            raise invalid_topology(f"The topology has {task_count} tasks, more than {TASKS_MAX}.")

    def configured(self, one: Subtopology) -> Configured:
        """The subtopology with all counts."""
        return Configured(
            self._most(one),
            sorted(one.source_topics),
            self._internal(one.repartition_source_topics),
            sorted(one.repartition_sink_topics),
            self._internal(one.state_changelog_topics),
        )

    def _internal(self, topics: Iterable[TopicInfo]) -> list[InternalTopic]:
        return [
            topic._replace(partitions=topic.partitions or self._decided[topic.name])
            for topic in sorted(map(InternalTopic.asked, topics))
        ]

    def _of(self, name: str) -> int | None:
        return self._known.get(name) or self._decided.get(name)

    def _must_be(self, name: str) -> int:
        count = self._of(name)
        if count is None:
            raise invalid_topology(f"Number of partitions is not set for topic: {name}")
        return count

    def _most(self, one: Subtopology) -> int:
        return max(self._must_be(name) for name in sources(one))

    # -- repartition topics ------------------------------------------------------------------

    def _decide_repartition(self) -> None:
        read = [topic for one in self._subtopologies for topic in one.repartition_source_topics]
        counts = {topic.name: topic.partitions for topic in read if topic.partitions}
        self._find_written(counts)
        if any(topic.name not in counts for topic in read):
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics, because a "
                "repartition source topic is never used as a sink topic."
            )
        self._decided.update(counts)

    def _find_written(self, counts: dict[str, int]) -> None:
        """Find counts of all that are written: as Kafka does, who goes over all subtopologies round
        by round, but each is looked at only when something that it reads has been found."""
        readers: dict[str, list[int]] = {}
        for at, one in enumerate(self._subtopologies):
            for topic in one.repartition_source_topics:
                readers.setdefault(topic.name, []).append(at)
        done: set[int] = set()
        due = [(0, at) for at in range(len(self._subtopologies))]
        while due:
            turn, at = heapq.heappop(due)
            one = self._subtopologies[at]
            most = None if at in done else self._most_read(one, counts)
            if most is None:
                continue
            done.add(at)
            found = [name for name in one.repartition_sink_topics if name not in counts]
            counts.update(dict.fromkeys(found, most))
            for reader in (reader for name in found for reader in readers.get(name, ())):
                heapq.heappush(due, (turn + (reader <= at), reader))
        sinks = (name for one in self._subtopologies for name in one.repartition_sink_topics)
        if not all(name in counts for name in sinks):
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics. There may be "
                "loops in the topology that cannot be resolved."
            )

    def _most_read(self, one: Subtopology, counts: Mapping[str, int]) -> int | None:
        inner = [counts.get(topic.name) for topic in one.repartition_source_topics]
        outer = [self._known.get(name) for name in one.source_topics]
        return max((count for count in (*inner, *outer) if count is not None), default=None)

    # -- copartition groups ------------------------------------------------------------------

    def _enforce_copartition(self) -> None:
        topics = [topic for one in self._subtopologies for topic in one.repartition_source_topics]
        fixed = {topic.name for topic in topics if topic.partitions}
        repartition = {topic.name for topic in topics}

        @cache
        def count_of_fixed() -> int:
            return _same({name: self._must_be(name) for name in sorted(fixed)})

        for one in self._subtopologies:
            for names in _copartition_groups(one):
                self._enforce(names, names & repartition, fixed, count_of_fixed)

    def _enforce(
        self,
        names: set[str],
        repartition: set[str],
        fixed: set[str],
        count_of_fixed: Callable[[], int],
    ) -> None:
        if not names:
            return
        before = {name: self._must_be(name) for name in sorted(repartition)}
        if names != repartition:
            count = _same({name: self._must_be(name) for name in sorted(names - repartition)})
        elif fixed:  # of the whole topology, as Kafka looks at them
            count = count_of_fixed()
        else:
            count = max(before.values())
        for name, had in before.items():
            if name in fixed and had != count:
                raise _UnusableError(
                    INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{had}] of repartition topic [{name}] doesn't match "
                    f"number of partitions [{count}] of the source topic.",
                )
            self._decided[name] = count


def _copartition_groups(one: Subtopology) -> list[set[str]]:
    repartition = [topic.name for topic in one.repartition_source_topics]
    return [
        {
            *_named_by(group.source_topics, one.source_topics, one),
            *_named_by(group.repartition_source_topics, repartition, one),
        }
        for group in one.copartition_groups
    ]


def _named_by(positions: Iterable[int], names: Sequence[str], one: Subtopology) -> list[str]:
    if not all(0 <= at < len(names) for at in positions):
        raise invalid_topology(
            f"A copartition group of subtopology {one.subtopology_id} names no topic of it."
        )
    return [names[at] for at in positions]


def _same(counts: Mapping[str, int]) -> int:
    count = next(iter(counts.values()))
    if any(other != count for other in counts.values()):
        shown = ", ".join(f"{name}={other}" for name, other in counts.items())
        raise _UnusableError(
            INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}}}]",
        )
    return count
