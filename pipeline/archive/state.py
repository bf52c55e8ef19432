"""How far an archive is with each topic, and what to read next: decided by what the broker says.

Pure: no Spark, no files. An archive's state is a JSON file of its own, and the log of a batch
names the one that belongs to it (`log`), so data and state are committed in one step.

A topic is known by its id (KIP-516): a topic of the same name with another id is another topic.
Its records are a new `generation` (0, 1, ...) in the archive, beside those of the one that was
deleted; (topic, generation, partition, offset) is in an archive once. A topic whose broker lost the
end of a log has a new generation, too, for its offsets are given out again; but it is the same
topic, and what its groups have read counts for both. Partitions that were added
to a topic begin at offset 0. What a topic held before it was archived for the first time and
deleted is no loss; what was deleted between two runs is one, and is told with its offsets.

What is kept of a topic besides, its id, partitions, dynamic configuration and the committed offsets
of groups in its last generation, is what a replay needs to make it again, with records or without.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pipeline.broker_facts import Bounds, BrokerTopic, Committed, Groups
from pipeline.errors import PipelineError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """One topic in an archive."""

    id: str | None
    """None when the broker told none (Apache Kafka before 2.8, archives of earlier versions)."""
    generation: int
    offsets: tuple[int, ...]
    """By partition: the offset after the last one that was archived."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """What was set on the topic, without what comes from the broker or is default."""
    groups: Groups = field(default_factory=dict)
    earlier: int = 0
    """How many generations before this one are of the same topic, and so of these groups."""


State = Mapping[str, ArchivedTopic]


class Range(NamedTuple):
    """Offsets of one partition that a batch reads; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int


class Position(NamedTuple):
    """Where archiving goes on, and what a person should know of it."""

    topics: dict[str, ArchivedTopic]
    notes: list[str]


def position(state: State, broker: Mapping[str, BrokerTopic], *, skip_lost: bool) -> Position:
    """Where to go on with the topics that the broker has.

    Raises PipelineError when records are gone that were never archived, unless `skip_lost`.
    """
    topics: dict[str, ArchivedTopic] = {}
    notes: list[str] = []
    for name, now in broker.items():
        known = state.get(name)
        if known is None:
            topics[name] = _from_the_start(now, 0)
        elif known.id is not None and now.id is not None and known.id != now.id:
            notes.append(
                f"topic {name} was deleted and created again (topic id {now.id}, was {known.id});"
                f" its records are archived as generation {known.generation + 1}"
            )
            topics[name] = _from_the_start(now, known.generation + 1)
        else:
            topics[name] = _same_topic(name, known, now, skip_lost, notes)
    return Position(topics, notes)


def _from_the_start(now: BrokerTopic, generation: int) -> ArchivedTopic:
    starts = tuple(bounds.earliest for bounds in now.partitions)
    return ArchivedTopic(now.id, generation, starts, now.configs, now.groups)


def _same_topic(
    name: str, known: ArchivedTopic, now: BrokerTopic, skip_lost: bool, notes: list[str]
) -> ArchivedTopic:
    """A topic that goes on: with its partitions, and those that were added."""
    archived = known.offsets + (0,) * (len(now.partitions) - len(known.offsets))
    offsets: list[int] = []
    shorter = False
    for partition, (to, bounds) in enumerate(zip(archived, now.partitions, strict=False)):
        problem = _problem(f"{name}-{partition}", to, bounds)
        if problem is not None and not skip_lost:
            raise PipelineError(f"{problem}; run again with --skip-lost to go on with what is left")
        if problem is not None:
            notes.append(f"{problem}; went on without them (--skip-lost)")
        shorter = shorter or bounds.end < to
        offsets.append(min(max(to, bounds.earliest), bounds.end))
    # Offsets that are given out a second time must not meet those of the archive.
    generation, earlier = known.generation + shorter, known.earlier + shorter
    if shorter and (known.id is None or now.id is None):
        earlier = 0  # it may as well be another topic, whose groups have read nothing of this one
    kept = tuple(offsets) + known.offsets[len(offsets) :]
    return ArchivedTopic(now.id or known.id, generation, kept, now.configs, now.groups, earlier)


def _problem(partition: str, archived_to: int, bounds: Bounds) -> str | None:
    if bounds.earliest > archived_to:
        return (
            f"offsets {archived_to} to {bounds.earliest - 1} of partition {partition} were deleted"
            f" from the broker before they were archived (the archive goes up to {archived_to},"
            f" the broker begins at {bounds.earliest})"
        )
    if bounds.end < archived_to:
        return (
            f"partition {partition} ends at offset {bounds.end} on the broker, but is archived up"
            f" to {archived_to}: the broker has lost the offsets between"
        )
    return None


def next_ranges(topics: State, broker: Mapping[str, BrokerTopic], limit: int) -> list[Range]:
    """What the next batch reads: all there is, or about `limit` offsets, shared in proportion."""
    whole = [
        Range(name, partition, start, broker[name].partitions[partition].end)
        for name, topic in topics.items()
        for partition, start in enumerate(topic.offsets[: len(broker[name].partitions)])
        if start < broker[name].partitions[partition].end
    ]
    total = sum(one.end - one.start for one in whole)
    if total <= limit:
        return whole
    return [
        one._replace(end=one.start + max(1, (one.end - one.start) * limit // total))
        for one in whole
    ]


def advanced(state: State, topics: State, ranges: Iterable[Range]) -> dict[str, ArchivedTopic]:
    """The state once these ranges are archived; topics that were not asked for stay."""
    after = dict(state) | dict(topics)
    for one in ranges:
        offsets = list(after[one.topic].offsets)
        offsets[one.partition] = one.end
        after[one.topic] = replace(after[one.topic], offsets=tuple(offsets))
    return after


def to_json(state: State) -> str:
    topics = {
        name: {
            "id": topic.id,
            "generation": topic.generation,
            "earlier": topic.earlier,
            "offsets": list(topic.offsets),
            "configs": dict(sorted(topic.configs.items())),
            "groups": {
                group: {str(index): list(one) for index, one in sorted(offsets.items())}
                for group, offsets in sorted(topic.groups.items())
            },
        }
        for name, topic in sorted(state.items())
    }
    return json.dumps({"version": _VERSION, "topics": topics}, indent=1)


def from_json(text: str, where: str) -> dict[str, ArchivedTopic]:
    """Raises PipelineError naming `where` for what `to_json` did not write."""
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise PipelineError(f"{where} is of a later version of Barnabas; install that")
        return {
            name: ArchivedTopic(
                topic["id"],
                int(topic["generation"]),
                tuple(topic["offsets"]),
                topic["configs"],
                {
                    group: {int(index): Committed(*one) for index, one in offsets.items()}
                    for group, offsets in topic.get("groups", {}).items()
                },
                int(topic.get("earlier", 0)),
            )
            for name, topic in content["topics"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PipelineError(f"{where} is damaged; restore it from a copy of the archive") from None


def from_spark_offsets(text: str) -> dict[str, ArchivedTopic]:
    """The state of an archive that Structured Streaming wrote: a file of its checkpoint's offsets
    (a version, metadata, then one line per source)."""
    by_topic: dict[str, dict[str, int]] = json.loads(text.splitlines()[2])
    return {
        name: ArchivedTopic(
            None, 0, tuple(offsets.get(str(index), 0) for index in range(len(offsets)))
        )
        for name, offsets in by_topic.items()
    }
