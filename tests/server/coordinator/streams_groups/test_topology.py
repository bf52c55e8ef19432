"""What topologies need, held against the topics that are there (ST-10)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from server.coordinator.java_order import hash_map_order
from server.coordinator.streams_groups.requests import topology_of
from server.coordinator.streams_groups.topology import ConfiguredTopology, _Counts, configured
from tests.server.coordinator.streams_groups.streams_support import (
    image_of,
    refused,
    subtopology,
    topology,
)
from wire.errors import ErrorCode
from wire.messages.streams import StreamsGroupHeartbeatRequest

NO_SOURCE, WRONG_COUNT, NO_INTERNAL = 1, 2, 3


def found(*subtopologies: Any, **counts: int) -> ConfiguredTopology:
    request = StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        endpoint_information_epoch=0,
        topology=topology(*subtopologies),
        shutdown_application=False,
    )
    asked = topology_of(request)
    assert asked is not None
    return configured(asked, image_of(**counts))


def missing(answer: ConfiguredTopology) -> dict[str, int]:
    assert answer.problem is not None
    assert answer.problem.status_code == NO_INTERNAL
    return {topic.name: topic.partitions for topic in answer.missing}


def problem(answer: ConfiguredTopology) -> tuple[int, str]:
    assert answer.problem is not None
    assert not answer.missing
    assert not answer.subtopologies
    return answer.problem.status_code, answer.problem.status_detail


def task_counts(answer: ConfiguredTopology) -> dict[str, int]:
    return {id_: one.task_count for id_, one in answer.subtopologies.items()}


def test_there_are_as_many_tasks_as_the_largest_input_has_partitions():
    answer = found(subtopology(reads=("a", "b")), subtopology("1", reads=("b",)), a=2, b=3)
    assert answer.is_ready
    assert task_counts(answer) == {"0": 3, "1": 3}


def test_a_changelog_has_one_partition_for_each_task():
    one = subtopology(reads=("a", "b"), changelogs=("log", "log2"))
    assert missing(found(one, a=2, b=3)) == {"log": 3, "log2": 3}
    assert missing(found(one, a=2, b=3, log=3)) == {"log2": 3}
    assert found(one, a=2, b=3, log=3, log2=3).is_ready


def test_an_internal_topic_takes_its_configuration_from_the_topology():
    (topic,) = found(subtopology(changelogs=("log",)), **{"in": 1}).missing
    assert topic.configs == (("cleanup.policy", "compact"),)
    assert topic.replication_factor == 0


def test_one_that_is_there_must_have_the_count():
    answer = found(subtopology(changelogs=("log",)), **{"in": 3, "log": 2})
    assert problem(answer) == (
        WRONG_COUNT,
        "Existing topic log has different number of partitions: expected 3, found 2",
    )


def test_sources_that_are_not_there_are_told_three_at_a_time():
    answer = found(subtopology(reads=("a", "b", "c", "d", "in")), **{"in": 1})
    assert problem(answer) == (
        NO_SOURCE, "Source topics a, b, c and 1 additional topics are missing.",
    )  # fmt: skip


def test_a_repartition_topic_has_what_whoever_writes_it_reads():
    answer = found(
        subtopology("0", reads=("a", "b"), sinks=("re",)),
        subtopology("1", reads=(), repartition={"re": 0}, changelogs=("log",)),
        a=2,
        b=5,
    )
    assert missing(answer) == {"re": 5, "log": 5}
    assert task_counts(answer) == {"0": 5, "1": 5}


def test_or_what_the_topology_says():
    answer = found(
        subtopology("0", sinks=("re",)),
        subtopology("1", reads=(), repartition={"re": 7}),
        **{"in": 2},
    )
    assert missing(answer) == {"re": 7}
    assert task_counts(answer) == {"0": 2, "1": 7}


def test_counts_go_on_from_one_to_the_next_whatever_the_order():
    answer = found(
        subtopology("0", reads=(), repartition={"re2": 0}),
        subtopology("1", reads=(), repartition={"re1": 0}, sinks=("re2",)),
        subtopology("2", sinks=("re1",)),
        **{"in": 4},
    )
    assert missing(answer) == {"re1": 4, "re2": 4}


@pytest.mark.parametrize(
    "parts",
    [
        [subtopology("0", reads=(), repartition={"re": 0}, sinks=("re",))],
        [subtopology("0", reads=("in",), repartition={"re": 0})],
        [subtopology("0", reads=())],
        [subtopology("0", together=[([3], [])])],
        [subtopology("0", together=[([-1], [])])],
    ],
    ids=["a loop", "never written", "reads nothing", "names nothing", "names less"],
)
def test_some_topologies_cannot_work(parts):
    refused(lambda: found(*parts, **{"in": 2}), ErrorCode.STREAMS_INVALID_TOPOLOGY)


def round_by_round(subtopologies: list[Any], counts: dict[str, int]) -> dict[str, int] | None:
    """Kafka's way: over all of them, again and again; None: that leads nowhere."""
    repartition = {}
    for one in subtopologies:
        said = {topic.name: topic.partitions for topic in one.repartition_source_topics}
        repartition.update({name: count for name, count in said.items() if count})
    has_found = is_open = True
    while is_open:
        if not has_found:
            return None
        has_found = is_open = False
        for one in subtopologies:
            read = [repartition.get(topic.name, 0) for topic in one.repartition_source_topics]
            most = max([*read, *(counts[name] for name in one.source_topics)])
            left = [name for name in one.repartition_sink_topics if name not in repartition]
            repartition.update(dict.fromkeys(left if most else (), most))
            has_found |= bool(left and most)
            is_open |= bool(left and not most)
    return repartition


def some_subtopologies(rng: random.Random) -> list[Any]:
    """Each reads something; every repartition topic that is read is written or said."""
    names = [f"r{i}" for i in range(6)]
    read = [rng.sample(names, rng.randrange(3)) for _ in range(rng.randrange(1, 9))]
    sinks = [rng.sample(names, rng.randrange(3)) for _ in read]
    written = {name for some in sinks for name in some}
    return [
        subtopology(
            str(i),
            tuple(rng.sample("ab", rng.randrange(0 if mine else 1, 2))),
            sinks=tuple(sinks[i]),
            repartition={
                name: 0 if name in written and rng.random() < 0.8 else 1 + names.index(name)
                for name in mine
            },
        )
        for i, mine in enumerate(read)
    ]


@pytest.mark.parametrize("seed", range(200))
def test_counts_are_those_that_are_found_round_by_round(seed):
    subtopologies = some_subtopologies(random.Random(seed))
    counts = {"a": 3, "b": 5}
    expected = round_by_round(subtopologies, counts)
    if expected is None:
        refused(lambda: found(*subtopologies, **counts), ErrorCode.STREAMS_INVALID_TOPOLOGY)
        return
    answer = found(*subtopologies, **counts)
    assert {
        topic.name: topic.partitions
        for one in answer.subtopologies.values()
        for topic in one.repartition_source_topics
    } == {
        topic.name: topic.partitions or expected[topic.name]
        for one in subtopologies
        for topic in one.repartition_source_topics
    }


def test_a_long_chain_is_gone_along_once(monkeypatch):
    """Thousands of subtopologies are within what one request may bring."""
    looks = []
    look = _Counts._most_read
    monkeypatch.setattr(
        _Counts, "_most_read", lambda *given: (looks.append(given), look(*given))[1]
    )
    order = hash_map_order([str(i) for i in range(100)])[::-1]
    chain = [
        subtopology(
            id_,
            () if i else ("a",),
            sinks=(f"r{i}",),
            repartition={f"r{i - 1}": 0} if i else {},
        )
        for i, id_ in enumerate(order)
    ]
    assert set(task_counts(found(*chain, a=3)).values()) == {3}
    assert len(looks) <= 2 * len(chain)


def test_more_tasks_than_can_be_written_are_refused():
    many = [subtopology(str(i), ("a",)) for i in range(251)]
    detail = refused(lambda: found(*many, a=1_000), ErrorCode.STREAMS_INVALID_TOPOLOGY)
    assert detail == "The topology has 251000 tasks, more than 250000."
    assert found(*many[1:], a=1_000).is_ready


class TestCopartition:
    def test_sources_that_are_joined_have_as_many(self):
        one = subtopology(reads=("a", "b"), together=[([0, 1], [])])
        assert found(one, a=2, b=2).is_ready
        assert problem(found(one, a=2, b=3)) == (
            WRONG_COUNT, "Following topics do not have the same number of partitions: [{a=2, b=3}]",
        )  # fmt: skip

    def test_a_repartition_topic_follows_the_source_that_it_is_joined_with(self):
        parts = [
            subtopology("0", reads=("a",), sinks=("re",)),
            subtopology("1", reads=("b",), repartition={"re": 0}, together=[([0], [0])]),
        ]
        assert missing(found(*parts, a=2, b=6)) == {"re": 6}

    def test_one_whose_count_is_said_must_fit(self):
        parts = [
            subtopology("0", reads=("a",), sinks=("re",)),
            subtopology("1", reads=("b",), repartition={"re": 4}, together=[([0], [0])]),
        ]
        assert problem(found(*parts, a=2, b=6)) == (
            WRONG_COUNT,
            "Number of partitions [4] of repartition topic [re] doesn't match number of "
            "partitions [6] of the source topic.",
        )

    def test_repartition_topics_alone_have_the_most_of_them(self):
        parts = [
            subtopology("0", reads=("a",), sinks=("re1",)),
            subtopology("1", reads=("b",), sinks=("re2",)),
            subtopology("2", (), repartition={"re1": 0, "re2": 0}, together=[([], [0, 1])]),
        ]
        assert missing(found(*parts, a=2, b=6)) == {"re1": 6, "re2": 6}

    def test_or_what_is_said_of_one_of_them(self):
        parts = [
            subtopology("0", reads=("a",), sinks=("re1",)),
            subtopology("1", reads=("b",), sinks=("re2",)),
            subtopology("2", (), repartition={"re1": 3, "re2": 0}, together=[([], [0, 1])]),
        ]
        assert missing(found(*parts, a=2, b=6)) == {"re1": 3, "re2": 3}
