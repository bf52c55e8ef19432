"""Committed offsets on replay: how far a group had read, where it goes on, what is left alone."""

from __future__ import annotations

import pytest

from pipeline.archive.state import ArchivedTopic, from_json, position, to_json
from pipeline.broker_facts import Bounds, BrokerTopic, Committed
from pipeline.replay.groups import (
    ACTIVE,
    KEPT,
    SET,
    Outcome,
    Stop,
    judge,
    restore,
    stops,
    wanted,
)

TOPIC = ArchivedTopic("A", 1, (9, 9, 9), {}, {"g": {0: Committed(4, "n"), 2: Committed(9, "")}})


def test_where_a_group_stopped_is_a_place_of_the_last_generation() -> None:
    assert stops({"t": TOPIC}, {"t": "new.t"}, keeps_partitions=True) == [
        Stop("new.t", "g", 0, 1, 4),
        Stop("new.t", "g", 2, 1, 9),
    ]


def test_a_group_that_lagged_when_the_broker_lost_the_end_of_a_log_still_lags() -> None:
    """Partition 1 went on, but its rows have another generation from then on, too."""
    known = ArchivedTopic("A", 0, (10, 20), {}, {"g": {1: Committed(5, "")}})
    now = BrokerTopic("A", (Bounds(0, 8), Bounds(0, 25)), {}, known.groups)
    topics, _ = position({"t": known}, {"t": now}, skip_lost=True)
    assert topics["t"].generation == 1
    assert stops(topics, {"t": "t"}, keeps_partitions=True) == [Stop("t", "g", 1, 0, 5)]
    kept = from_json(to_json(topics), "a file")
    later, _ = position(kept, {"t": now}, skip_lost=False)
    assert stops(later, {"t": "t"}, keeps_partitions=True) == [Stop("t", "g", 1, 0, 5)]


def test_what_was_created_again_has_no_group_of_the_one_before() -> None:
    """A topic without ids that is shorter may be another one."""
    for before, after in (("A", "B"), (None, "B"), (None, None)):
        known = ArchivedTopic(before, 0, (10,), {}, {}, 0)
        now = BrokerTopic(after, (Bounds(0, 8),), {}, {"g": {0: Committed(5, "")}})
        topics, _ = position({"t": known}, {"t": now}, skip_lost=True)
        assert stops(topics, {"t": "t"}, keeps_partitions=True) == [Stop("t", "g", 0, 1, 5)]


def test_a_partition_without_a_committed_offset_is_not_read_when_partitions_are_mixed() -> None:
    assert stops({"t": TOPIC}, {"t": "t"}, keeps_partitions=False)[1] == Stop("t", "g", 1, -1, 0)
    further = ArchivedTopic("A", 0, (9,), {}, {"g": {2: Committed(4, "")}})  # grown since
    found = stops({"t": further}, {"t": "t"}, keeps_partitions=False)
    assert [(one.partition, one.offset) for one in found] == [(0, 0), (1, 0), (2, 4)]


def test_topics_that_are_not_replayed_have_no_stops() -> None:
    assert stops({"t": TOPIC, "u": TOPIC}, {"u": "u"}, keeps_partitions=True)[0].topic == "u"


def test_a_group_goes_on_at_what_it_has_not_read_or_at_the_end() -> None:
    read = [Stop("t", "g", 0, 0, 4), Stop("t", "g", 1, 0, 4)]
    ends = {("t", 0): 20, ("t", 1): 30, ("t", 2): 40, ("u", 0): 1}
    first = {("t", "g", 1): 7}
    assert wanted(read, first, ends, keeps_partitions=True) == {("g", "t"): {0: 20, 1: 7}}
    spread = wanted(read, first, ends, keeps_partitions=False)
    assert spread == {("g", "t"): {0: 20, 1: 7, 2: 40}}


def test_an_offset_of_a_partition_that_is_not_there_is_left_out() -> None:
    """Of a topic of that name that had more, whose offsets nobody has cleaned up."""
    topic = ArchivedTopic("A", 0, (9,), {}, {"g": {0: Committed(4, ""), 5: Committed(7, "")},
                                             "h": {5: Committed(7, "")}})  # fmt: skip
    read = stops({"t": topic}, {"t": "t"}, keeps_partitions=True)
    assert wanted(read, {}, {("t", 0): 20}, keeps_partitions=True) == {("g", "t"): {0: 20}}


def test_what_a_group_has_is_not_overwritten_silently() -> None:
    places = {0: 5, 1: 6}
    same = {0: Committed(5, ""), 1: Committed(6, "x")}
    other = {0: Committed(9, "")}
    assert judge(places, {}, "", overwrites=False) == SET
    assert judge(places, {}, "Empty", overwrites=False) == SET
    assert judge(places, {}, "Stable", overwrites=True) == ACTIVE
    assert judge(places, same, "Stable", overwrites=False) == SET
    assert judge(places, other, "Empty", overwrites=False) == KEPT
    assert judge(places, other, "Empty", overwrites=True) == SET


class Admin:
    """Of a cluster with the groups `idle`, `busy` and `joined`, which a member joins now."""

    def __init__(self, error: str = "org.apache.kafka...UnknownMemberIdException: ...") -> None:
        self._error = error
        self.asked: list[str] = []
        self.committed: dict[str, dict[tuple[str, int], Committed]] = {}

    def group_states(self) -> dict[str, str]:
        return {"idle": "Empty", "busy": "Stable", "joined": "Empty", "elsewhere": "Empty"}

    def positions(self, groups: list[str]) -> dict[str, dict[tuple[str, int], Committed]]:
        self.asked += groups
        return {"idle": {("another", 0): Committed(3, "")}, "busy": {("t", 0): Committed(1, "")}}

    def commit(self, group: str, positions: dict[tuple[str, int], Committed]) -> None:
        if group == "joined":
            raise RuntimeError(self._error)
        self.committed[group] = positions


def test_groups_are_set_where_nobody_reads_and_each_outcome_is_told() -> None:
    admin = Admin()
    plan = {(group, "t"): {0: 5, 1: 8} for group in ("new", "joined", "idle", "busy")}
    notes = {("new", "t", 1): "a note"}
    outcomes = restore(admin, plan, notes, {("t", 0): 9, ("t", 1): 8}, overwrites=False)  # type: ignore[arg-type]
    assert outcomes == [
        Outcome("busy", "t", 2, 4, ACTIVE),
        Outcome("idle", "t", 2, 4, SET),
        Outcome("joined", "t", 2, 4, ACTIVE),
        Outcome("new", "t", 2, 4, SET),
    ]
    assert admin.asked == ["busy", "idle", "joined"], "of one that is not there nothing is asked"
    assert admin.committed == {
        "idle": {("t", 0): Committed(5, ""), ("t", 1): Committed(8, "")},
        "new": {("t", 0): Committed(5, ""), ("t", 1): Committed(8, "a note")},
    }


def test_a_commit_that_fails_for_another_reason_fails_the_replay() -> None:
    with pytest.raises(RuntimeError, match="no right"):
        restore(Admin("no right"), {("joined", "t"): {0: 5}}, {}, {("t", 0): 9}, overwrites=False)  # type: ignore[arg-type]
