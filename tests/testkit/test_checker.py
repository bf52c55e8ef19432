"""The checker finds each anomaly that is planted in a history, and none in a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testkit.checking import checker
from testkit.checking.availability import longest_gaps, recovery_times
from testkit.checking.history import (
    FAIL,
    INFO,
    OK,
    Assigned,
    ClientError,
    Event,
    Fault,
    History,
    HistoryWriter,
    Polled,
    Send,
    Sent,
)


def good() -> list[Event]:
    """One producer, two partitions, six records; one consumer reads all of them in two polls."""
    sends = [Send(n, "p", n, n % 2) for n in range(6)]
    acks = [Sent(10 + n, "p", n, OK, n // 2) for n in range(6)]
    return [
        *sends,
        *acks,
        Assigned(0, "c", [0, 1]),
        Polled(20, "c", [(0, 0, "p:0"), (1, 0, "p:1"), (0, 1, "p:2")]),
        Polled(21, "c", [(1, 1, "p:3"), (0, 2, "p:4"), (1, 2, "p:5")]),
    ]


def anomalies(events: list[Event], drained: tuple[str, ...] = ("c",)) -> dict[str, int]:
    return checker.check(events, drained=drained).counts


def without_polls(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Polled)]


def test_a_good_history_has_no_anomaly() -> None:
    report = checker.check(good(), drained=["c"])
    checker.assert_clean(report)
    assert (report.sent, report.acked, report.unknown, report.read) == (6, 6, 0, {"c": 6})
    assert (report.lost, report.duplicated, report.reordered) == (0, 0, 0)


def test_a_record_nobody_read_below_what_was_read_is_lost() -> None:
    history = [*without_polls(good()), Polled(20, "c", [(0, 0, "p:0"), (0, 2, "p:4")])]
    found = checker.check(history, drained=[])
    assert found.counts["lost-write"] == 1
    assert "p:2 at 0@1" in found.examples["lost-write"][0]
    with pytest.raises(AssertionError, match="lost-write"):
        checker.assert_clean(found)


def test_a_lost_write_is_found_even_when_its_place_was_taken_by_another_record() -> None:
    history = good()
    history += [Send(30, "q", 0, 0), Sent(31, "q", 0, OK, 2)]  # acked where p:4 lies
    found = anomalies(history)
    assert found["inconsistent-offsets"] == 1
    assert found["lost-write"] == 1


def test_an_acknowledged_record_at_the_end_that_is_never_read_is_unseen() -> None:
    history = [*good(), Send(30, "p", 6, 0), Sent(31, "p", 6, OK, 3)]
    assert anomalies(history) == {"unseen": 1}
    assert anomalies(history, drained=()) == {}


def test_an_acknowledged_record_without_an_offset_must_be_read_too() -> None:
    history = [*good(), Send(30, "p", 6, 0), Sent(31, "p", 6, OK, None)]
    assert anomalies(history) == {"unseen": 1}
    history.append(Polled(32, "c", [(0, 3, "p:6")]))
    assert anomalies(history) == {}


def test_each_group_must_see_everything_but_its_members_may_share() -> None:
    shared = [Polled(20, "g/1", [(0, n, f"p:{n * 2}") for n in range(3)])]
    history = [*good(), *shared]
    assert anomalies(history, ("c", "g")) == {"unseen": 3}
    history.append(Polled(21, "g/2", [(1, n, f"p:{n * 2 + 1}") for n in range(3)]))
    assert anomalies(history, ("c", "g")) == {}


def test_a_drained_reader_that_read_nothing_has_seen_nothing() -> None:
    assert anomalies(without_polls(good()), ("c",)) == {"unseen": 6}


def test_an_unknown_outcome_may_be_written_or_not() -> None:
    history: list[Event] = [*good(), Send(30, "p", 6, 0), Sent(31, "p", 6, INFO, None, "timed out")]
    history.append(Send(32, "p", 7, 1))  # never completed: unknown too
    assert anomalies(history) == {}
    assert checker.check(history, drained=["c"]).unknown == 2
    assert anomalies([*history, Polled(33, "c", [(0, 3, "p:6")])]) == {}


def test_one_value_at_two_offsets_is_a_duplicate() -> None:
    history = [*good(), Polled(22, "c", [(0, 3, "p:4")])]
    assert anomalies(history) == {"duplicate": 1}


def test_one_value_in_two_partitions_is_a_duplicate() -> None:
    history = [*good(), Polled(22, "c", [(1, 3, "p:4")])]
    assert anomalies(history) == {"duplicate": 1}


def test_two_values_at_one_offset_are_inconsistent() -> None:
    history = [*good(), Send(30, "p", 6, 0), Assigned(40, "d", [0])]
    history.append(Polled(41, "d", [(0, 1, "p:6")]))
    assert "inconsistent-offsets" in anomalies(history)


def test_a_value_that_nobody_sent_is_named() -> None:
    assert anomalies([*good(), Polled(22, "c", [(0, 3, "x:1")])]) == {"unknown-value": 1}


def test_a_failed_record_must_not_be_read() -> None:
    history = [*good(), Send(30, "p", 6, 0), Sent(31, "p", 6, FAIL, None)]
    assert anomalies(history) == {}
    assert anomalies([*history, Polled(32, "c", [(0, 3, "p:6")])]) == {"aborted-read": 1}


def test_records_of_one_producer_in_another_order_are_reordered() -> None:
    history = [*good(), Send(30, "p", 6, 0), Send(31, "p", 8, 0)]
    history += [Sent(32, "p", 6, OK, 4), Sent(33, "p", 8, OK, 3)]
    history.append(Polled(34, "c", [(0, 3, "p:8"), (0, 4, "p:6")]))
    report = checker.check(history, drained=["c"])
    assert report.counts == {"nonmonotonic-send": 1}
    assert report.reordered == 1


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        ([[(0, 0, "p:0")], [(0, 2, "p:4")]], "poll-skip"),
        ([[(0, 0, "p:0"), (0, 2, "p:4")]], "int-poll-skip"),
        ([[(0, 1, "p:2")], [(0, 0, "p:0")]], "nonmonotonic-poll"),
        ([[(0, 1, "p:2"), (0, 0, "p:0")]], "int-nonmonotonic-poll"),
    ],
)
def test_gaps_and_steps_back_of_one_consumer_are_found(polls: Any, expected: str) -> None:
    history = [*good(), Assigned(30, "d", [0])]
    history += [Polled(31 + n, "d", records) for n, records in enumerate(polls)]
    assert anomalies(history) == {expected: 1}


def test_an_assignment_allows_a_jump_and_an_empty_gap_is_none() -> None:
    history = [*good(), Assigned(30, "g/1", [0]), Polled(31, "g/1", [(0, 2, "p:4")])]
    history += [Assigned(32, "g/1", [0]), Polled(33, "g/1", [(0, 0, "p:0"), (0, 1, "p:2")])]
    assert anomalies(history) == {}
    skipped = [*good(), Send(40, "p", 6, 0), Sent(41, "p", 6, OK, 5)]
    skipped.append(Polled(42, "c", [(0, 5, "p:6")]))  # offsets 3 and 4 hold nothing
    assert anomalies(skipped) == {}


def test_an_error_that_a_client_showed_its_user_is_an_anomaly() -> None:
    assert anomalies([*good(), ClientError(30, "c", "offset out of range")]) == {"client-error": 1}


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    events = [*good(), Fault(50, "test", "kill 1")]
    writer = HistoryWriter(tmp_path / "h.jsonl")
    for event in events:
        writer.add(event)
    writer.close()
    with open(tmp_path / "h.jsonl", "a", encoding="utf-8") as file:
        file.write('["Send", 99, "p", 77')  # a writer that was killed
    history = History([tmp_path / "h.jsonl"])
    assert [type(event) for event in history] == [type(event) for event in events]
    assert checker.check(history, drained=["c"]).counts == {}


def test_recovery_counts_from_the_fault_to_the_last_partitions_new_record() -> None:
    s = 1_000_000_000
    history: list[Event] = []
    for number, (partition, sent, acked) in enumerate(
        [(0, 1, 2), (1, 1, 2), (0, 9, 12), (1, 9, 15), (0, 11, 13), (1, 11, 16), (1, 17, 18)]
    ):
        history.append(Send(sent * s, "p", number, partition))
        history.append(Sent(acked * s, "p", number, OK, number))
    found = recovery_times(history, {10 * s: [0, 1]})
    assert found == {10 * s: 6.0}  # records under way at the fault (sent at 9) do not count
    assert longest_gaps(history) == {0: 10.0, 1: 13.0}
