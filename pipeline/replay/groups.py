"""Committed offsets of consumer groups, translated: where each group goes on in replayed topics.

A committed offset names the first record that a group has not read. Offsets in the target are new,
and without `--keep-partitions` a partition's records may be spread over several. So the rule is: in
each partition of the target a group goes on at the first record that it has not read; where there
is none, at the end. Nothing is skipped. With `--keep-partitions`, what a group goes on with is
exactly what it had not read; without it, records that it has read may follow there once more.

How: a record is found again by its hash and by which of those with that hash it is. Order within a
partition is kept, so the n-th of one source partition is the n-th in the target, or a later one
where several source partitions hold the same record: then the group goes on too early, not too
late. Records that were compacted away, or left out by `--since`, have no place; the next one that
is there has.

What the target's groups have is not overwritten silently: see `judge`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pipeline.archive.state import ArchivedTopic
from pipeline.broker_facts import Committed
from pipeline.spark.kafka_admin import KafkaAdmin, Offsets, Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SET, KEPT, ACTIVE = "set", "has other offsets there: left alone", "has members: left alone"
_NOT_READ = (-1, 0)
_IDLE = ("Empty", "Dead", "")


class Stop(NamedTuple):
    """How far a group had read a source partition: all of earlier generations, and of this one and
    later ones all below this offset."""

    topic: str
    """The target."""
    group: str
    partition: int
    generation: int
    """The first one of the topic that the group had committed this offset in. There are later ones
    when the broker lost the end of some log: the others went on, and what the group had not read
    may lie in any of them."""
    offset: int


class Outcome(NamedTuple):
    """What became of a group in one topic."""

    group: str
    topic: str
    partitions: int
    lag: int
    """Offsets from where it goes on to the end."""
    text: str


def stops(
    topics: Mapping[str, ArchivedTopic], names: Mapping[str, str], *, keeps_partitions: bool
) -> list[Stop]:
    """How far the groups of these archived topics had read; `names` has the target of each.

    Where partitions are not kept, one that a group had not committed is one it has not read.
    """
    found: list[Stop] = []
    for name, target in sorted(names.items()):
        topic = topics.get(name)
        for group, offsets in sorted(topic.groups.items()) if topic else ():
            assert topic is not None
            for partition in range(max(len(topic.offsets), max(offsets, default=0) + 1)):
                if partition in offsets:
                    place = (topic.generation - topic.earlier, offsets[partition].offset)
                elif keeps_partitions:
                    continue
                else:
                    place = _NOT_READ
                found.append(Stop(target, group, partition, *place))
    return found


def translate(
    source: DataFrame, target: DataFrame, read: Iterable[Stop]
) -> dict[tuple[str, str, int], int]:
    """The offset of the first record of each (topic, group, target partition) that was not read;
    nothing where all were.

    Columns of `source`: topic, source, generation, offset, hash, partition (of the target; null
    where it is not known); of `target`: topic, partition, offset, hash.
    """
    rows = list(read)
    spark = source.sparkSession
    number = "row_number() over (partition by topic, {}, hash order by {}) as n"
    spark.createDataFrame(rows, _STOP_SCHEMA).createOrReplaceTempView("barnabas_stops")
    source.selectExpr("*", number.format("source", "generation, offset")).createOrReplaceTempView(
        "barnabas_sent"
    )
    target.selectExpr(
        "topic as t", "partition as p", "hash as h", "offset as at",
        number.format("partition", "offset").replace("as n", "as m"),
    ).createOrReplaceTempView("barnabas_found")  # fmt: skip
    found = spark.sql(
        "select /*+ broadcast(s) */ s.topic, s.name, p, min(at) as at from barnabas_sent r"
        " join barnabas_found on t = r.topic and h = r.hash and m = r.n"
        " and p = coalesce(r.partition, p)"
        " join barnabas_stops s on s.topic = r.topic and s.source = r.source"
        " and r.generation >= s.generation and r.offset >= s.offset group by 1, 2, 3"
    ).collect()
    return {(row["topic"], row["name"], row["p"]): row["at"] for row in found}


_STOP_SCHEMA = "topic string, name string, source int, generation int, offset long"


def wanted(
    read: Iterable[Stop],
    first: Mapping[tuple[str, str, int], int],
    ends: Offsets,
    *,
    keeps_partitions: bool,
) -> dict[tuple[str, str], dict[int, int]]:
    """Where each (group, topic) is to go on, by partition of the target."""
    there: dict[str, set[int]] = {}
    for topic, index in ends:
        there.setdefault(topic, set()).add(index)
    found: dict[tuple[str, str], dict[int, int]] = {}
    for stop in read:
        group = (stop.group, stop.topic)
        partitions = there.get(stop.topic, set())
        if keeps_partitions:  # it may have an offset of one that is not there (any more)
            partitions = partitions & {stop.partition}
        elif group in found:
            continue
        for index in partitions:
            end = ends[stop.topic, index]
            place = first.get((stop.topic, stop.group, index), end)
            found.setdefault(group, {})[index] = place
    return found


def judge(
    places: Mapping[int, int], there: Mapping[int, Committed], state: str, *, overwrites: bool
) -> str:
    """What is to become of a group in one topic: `there` is what it has committed of that now."""
    if there and all(index in there and there[index].offset == places[index] for index in places):
        return SET  # as an earlier run of the same command left it
    if state not in _IDLE:
        return ACTIVE
    return KEPT if there and not overwrites else SET


def restore(
    admin: KafkaAdmin,
    plan: Mapping[tuple[str, str], Mapping[int, int]],
    notes: Mapping[tuple[str, str, int], str],
    ends: Offsets,
    *,
    overwrites: bool,
) -> list[Outcome]:
    """Commit what `wanted` says for the groups that may have it. `notes` has the metadata of
    (group, topic, partition)."""
    states = admin.group_states()
    now = admin.positions(sorted({group for group, _ in plan if group in states}))
    outcomes: list[Outcome] = []
    for (group, topic), places in sorted(plan.items()):
        there = {index: one for (name, index), one in now.get(group, {}).items() if name == topic}
        text = judge(places, there, states.get(group, ""), overwrites=overwrites)
        if text == SET:
            text = _commit(admin, group, _positions(group, topic, places, notes))
        lag = sum(ends[topic, index] - place for index, place in places.items())
        outcomes.append(Outcome(group, topic, len(places), lag, text))
    return outcomes


def _positions(
    group: str, topic: str, places: Mapping[int, int], notes: Mapping[tuple[str, str, int], str]
) -> Positions:
    return {
        (topic, index): Committed(place, notes.get((group, topic, index), ""))
        for index, place in places.items()
    }


def _commit(admin: KafkaAdmin, group: str, positions: Positions) -> str:
    try:
        admin.commit(group, positions)
    except Exception as error:
        # A member came since we looked: the broker refuses then.
        if not any(name in str(error) for name in ("UnknownMemberId", "GroupNotEmpty")):
            raise
        return ACTIVE
    return SET
