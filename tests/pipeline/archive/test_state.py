"""What an archive does next, from what it has and what the broker says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pipeline.archive.state import (
    ArchivedTopic,
    Range,
    advanced,
    from_json,
    from_spark_offsets,
    next_ranges,
    position,
    to_json,
)
from pipeline.broker_facts import Bounds, BrokerTopic, Committed
from pipeline.errors import PipelineError


def on_broker(*bounds: tuple[int, int], topic_id: str | None = "A") -> BrokerTopic:
    return BrokerTopic(topic_id, tuple(Bounds(*one) for one in bounds), {"retention.ms": "5"})


STATE = {
    "orders": ArchivedTopic("A", 0, (10, 20)),
    "other": ArchivedTopic("B", 2, (7,), {"cleanup.policy": "compact"}),
}


def test_topics_that_were_not_asked_for_keep_their_place() -> None:
    broker = {"orders": on_broker((0, 15), (0, 20)), "fresh": on_broker((3, 9), topic_id="F")}
    topics, notes = position(STATE, broker, skip_lost=False)
    assert notes == []
    ranges = next_ranges(topics, broker, 100)
    assert ranges == [Range("orders", 0, 10, 15), Range("fresh", 0, 3, 9)]
    after = advanced(STATE, topics, ranges)
    assert after["orders"] == ArchivedTopic("A", 0, (15, 20), {"retention.ms": "5"})
    assert (after["fresh"].offsets, after["fresh"].generation) == ((9,), 0)
    assert after["other"] == STATE["other"]
    assert from_json(to_json(after), "a file") == after


def test_committed_offsets_of_groups_are_those_of_the_last_generation() -> None:
    groups = {"g": {1: Committed(3, "note")}}
    again = replace(on_broker((0, 4), (0, 4), topic_id="Z"), groups=groups)
    topics, _ = position(STATE, {"orders": again}, skip_lost=False)
    assert topics["orders"].groups == groups
    assert from_json(to_json(topics), "a file") == topics
    content = json.loads(to_json(topics))
    del content["topics"]["orders"]["groups"], content["topics"]["orders"]["earlier"]
    before = from_json(json.dumps(content), "of before there were groups")
    assert (before["orders"].groups, before["orders"].earlier) == ({}, 0)


@pytest.mark.parametrize("length", [4, 400])
def test_another_id_is_another_topic_however_long_it_is(length: int) -> None:
    broker = {"orders": on_broker((0, length), (1, length), topic_id="Z")}
    topics, notes = position(STATE, broker, skip_lost=False)
    assert topics["orders"].generation == 1
    assert topics["orders"].offsets == (0, 1)
    assert "was deleted and created again (topic id Z, was A)" in notes[0]


def test_added_partitions_begin_at_zero_and_what_was_deleted_of_them_is_lost() -> None:
    grown = {"orders": on_broker((0, 10), (0, 20), (0, 3))}
    topics, _ = position(STATE, grown, skip_lost=False)
    assert next_ranges(topics, grown, 100) == [Range("orders", 2, 0, 3)]
    cut = {"orders": on_broker((0, 10), (0, 20), (2, 3))}
    with pytest.raises(PipelineError, match="offsets 0 to 1 of partition orders-2 were deleted"):
        position(STATE, cut, skip_lost=False)


def test_lost_records_are_named_with_their_offsets_and_skipped_only_when_told() -> None:
    broker = {"orders": on_broker((12, 15), (0, 20))}
    with pytest.raises(PipelineError) as refused:
        position(STATE, broker, skip_lost=False)
    assert "offsets 10 to 11 of partition orders-0 were deleted from the broker" in str(
        refused.value
    )
    topics, notes = position(STATE, broker, skip_lost=True)
    assert topics["orders"].offsets == (12, 20)
    assert topics["orders"].generation == 0
    assert len(notes) == 1


def test_a_broker_that_lost_the_end_of_a_log_gives_its_offsets_out_again() -> None:
    broker = {"orders": on_broker((0, 8), (0, 25))}
    with pytest.raises(PipelineError, match="ends at offset 8 on the broker, but is archived up"):
        position(STATE, broker, skip_lost=False)
    topics, _ = position(STATE, broker, skip_lost=True)
    assert topics["orders"].offsets == (8, 20)
    assert topics["orders"].generation == 1, "offset 8 and 9 are in the archive already"
    assert topics["orders"].earlier == 1, "what a group had not read may be in both"


@pytest.mark.parametrize(
    ("archived", "now", "end", "earlier"),
    [
        ("A", "A", 8, 3),
        (None, "A", 8, 0),
        ("A", None, 8, 0),
        (None, None, 8, 0),
        (None, "A", 10, 2),
        ("A", None, 10, 2),
    ],
)
def test_a_shorter_topic_without_an_id_may_be_another_one(
    archived: str | None, now: str | None, end: int, earlier: int
) -> None:
    known = ArchivedTopic(archived, 4, (10,), earlier=2)
    topics, _ = position({"t": known}, {"t": on_broker((0, end), topic_id=now)}, skip_lost=True)
    assert topics["t"].earlier == earlier


def test_partitions_that_the_broker_does_not_name_keep_their_place() -> None:
    topics, _ = position(STATE, {"orders": on_broker((0, 15))}, skip_lost=False)
    assert topics["orders"].offsets == (10, 20)


def test_a_batch_takes_its_share_of_every_partition_and_batches_come_to_an_end() -> None:
    broker = {"orders": on_broker((0, 1000), (0, 21))}
    topics, _ = position({}, broker, skip_lost=False)
    state: dict[str, ArchivedTopic] = {}
    seen: dict[int, int] = {0: 0, 1: 0}
    while ranges := next_ranges(topics, broker, 100):
        assert sum(one.end - one.start for one in ranges) <= 102
        for one in ranges:
            assert one.start == seen[one.partition]
            assert one.end <= broker["orders"].partitions[one.partition].end
            seen[one.partition] = one.end
        state = advanced(state, topics, ranges)
        topics, _ = position(state, broker, skip_lost=False)
    assert seen == {0: 1000, 1: 21}


def test_a_partition_of_one_record_gives_one() -> None:
    broker = {"orders": on_broker((0, 1), (0, 1000))}
    topics, _ = position({}, broker, skip_lost=False)
    assert next_ranges(topics, broker, 10)[0] == Range("orders", 0, 0, 1)


def test_the_offsets_of_an_archive_that_spark_s_streaming_wrote_are_understood() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"1":20,"0":10}}'
    assert from_spark_offsets(text) == {"orders": ArchivedTopic(None, 0, (10, 20))}
    same, notes = position(
        from_spark_offsets(text), {"orders": on_broker((0, 12), (0, 20))}, skip_lost=False
    )
    assert same["orders"].offsets == (10, 20)
    assert same["orders"].id == "A"
    assert notes == []


def test_a_damaged_state_is_named() -> None:
    with pytest.raises(PipelineError, match="lake/state is damaged"):
        from_json('{"version": 1, "topics": {"a": 3}}', "lake/state")
