"""Each anomaly of transactional histories is found where it is planted, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from testkit.checking import checker
from testkit.checking.checker import Report
from testkit.checking.checker_cycles import cycles, knots
from testkit.checking.history import (
    FAIL,
    INFO,
    OK,
    Assigned,
    Begin,
    Ended,
    Event,
    Hung,
    Polled,
    Positions,
    Send,
    Sent,
)

A, B = 0, 1  # partitions
Record = tuple[int, int, str]  # partition, offset, value


def transaction(
    name: str,
    outcome: str | None,
    *,
    sends: Sequence[tuple[int, int | None]] = (),
    polls: Sequence[Sequence[Record]] = (),
    positions: Sequence[tuple[int, int]] | None = None,
) -> list[Event]:
    """`name` is who#number; each send has a partition and the offset that its acknowledgement told.

    The records of transaction 3 are numbered from 30. An outcome of None: its process died.
    """
    who, number = name.split("#")
    first = int(number) * 10
    events: list[Event] = [Begin(0, who, int(number))]
    events += [Polled(1, who, list(records)) for records in polls]
    events += [Send(2, who, first + n, partition) for n, (partition, _) in enumerate(sends)]
    events += [
        Sent(3, who, first + n, OK, offset)
        for n, (_, offset) in enumerate(sends)
        if offset is not None
    ]
    if positions is not None:
        events.append(Positions(4, who, list(positions)))
    if outcome is not None:
        events.append(Ended(5, who, int(number), outcome))
    return events


def read(*records: Record, who: str = "reader") -> list[Event]:
    """What a reader beside all transactions got, in one poll."""
    return [Assigned(6, who, [A, B]), Polled(7, who, list(records))]


def check(*parts: list[Event], drained: Sequence[str] = ("reader",)) -> Report:
    return checker.check([event for part in parts for event in part], drained=drained)


def good() -> list[list[Event]]:
    """Two committed, one aborted between them; p#1 is read by q#1; markers take offsets, too."""
    return [
        transaction("p#1", OK, sends=[(A, 0), (B, 0)]),
        transaction("p#2", FAIL, sends=[(A, 2), (B, 2)]),
        transaction("q#1", OK, sends=[(B, 4)], polls=[[(A, 0, "p:10"), (B, 0, "p:11")]]),
        read((A, 0, "p:10"), (B, 0, "p:11"), (B, 4, "q:10")),
    ]


def test_a_good_history_has_no_anomaly() -> None:
    report = check(*good())
    checker.assert_clean(report)
    assert report.transactions == {OK: 2, FAIL: 1, INFO: 0}
    assert (report.sent, report.acked, report.failed, report.unknown) == (5, 3, 2, 0)
    assert report.permitted == {}
    assert "3 transactions: 2 committed, 1 aborted, 0 unknown" in str(report)


def test_a_record_of_an_aborted_transaction_is_an_aborted_read() -> None:
    report = check(*good(), read((A, 2, "p:20"), who="careless"))
    assert report.counts == {"aborted-read": 1}
    assert report.examples["aborted-read"] == ["0@2: p:20 of p#2, read by careless"]


def test_a_record_of_a_committed_transaction_that_nobody_reads_is_lost_or_unseen() -> None:
    below = check(transaction("p#1", OK, sends=[(A, 0), (A, 1)]), read((A, 1, "p:11")))
    assert below.examples == {"lost-write": ["p:10 at 0@0"]}
    at_the_end = check(transaction("p#1", OK, sends=[(A, 0), (B, 0)]), read((A, 0, "p:10")))
    assert at_the_end.examples == {"unseen": ["p:11 at 1@0 by reader"]}


@pytest.mark.parametrize("end", [INFO, None])
def test_a_transaction_of_unknown_end_is_committed_in_all_partitions_or_in_none(
    end: str | None,
) -> None:
    unknown = transaction("p#1", end, sends=[(A, 0), (B, 0)])
    nothing, everything = check(unknown), check(unknown, read((A, 0, "p:10"), (B, 0, "p:11")))
    assert nothing.counts == everything.counts == {}
    assert nothing.transactions[INFO] == everything.transactions[OK] == 1
    half = check(unknown, read((A, 0, "p:10")))
    assert half.examples == {"unseen": ["p:11 at 1@0 by reader"]}


def test_an_unknown_transaction_is_over_when_its_producer_begins_the_next() -> None:
    found = check(
        transaction("p#1", None, sends=[(A, 0)]),
        transaction("p#2", OK, sends=[(A, 2)]),
        read((A, 2, "p:20")),
    )
    assert found.counts == {}
    assert found.transactions == {OK: 1, FAIL: 0, INFO: 1}


def test_a_transaction_that_polls_its_own_record_reads_what_is_not_committed() -> None:
    report = check(
        transaction("p#1", OK, sends=[(A, 0)], polls=[[(A, 0, "p:10")]]), read((A, 0, "p:10"))
    )
    assert report.examples == {"precommitted-read": ["p#1 polled p:10 at 0@0"]}


def test_a_transaction_that_polls_behind_its_own_record_reads_past_the_last_stable_offset() -> None:
    report = check(
        transaction("q#1", OK, sends=[(A, 1)]),
        transaction("p#1", OK, sends=[(A, 0)], polls=[[(A, 1, "q:10")]]),
        read((A, 0, "p:10"), (A, 1, "q:10")),
    )
    assert report.examples["read-past-lso"] == ["p#1 polled q:10 at 0@1, behind its own at @0"]
    assert set(report.counts) == {"read-past-lso"}


def test_two_values_at_one_offset_and_one_value_at_two_are_found_in_transactions() -> None:
    two_values = check(
        transaction("p#1", OK, sends=[(A, 0)]),
        transaction("q#1", OK, sends=[(A, 0)]),
        read((A, 0, "p:10")),
    )
    assert two_values.examples["inconsistent-offsets"] == ["0@0: p:10 and q:10"]
    two_offsets = check(
        transaction("p#1", OK, sends=[(A, 0)]), read((A, 0, "p:10"), (A, 3, "p:10"))
    )
    assert two_offsets.examples == {"duplicate": ["p:10: 0@0 and 0@3"]}
    aborted = check(
        transaction("p#1", FAIL, sends=[(A, 0)]),
        transaction("q#1", OK, sends=[(A, 0)]),
        read((A, 0, "q:10")),
    )
    assert aborted.counts == {}, "whose record was aborted proves nothing about an offset"


def test_what_an_aborted_transaction_wrote_is_no_gap_for_a_poll() -> None:
    sent = [
        transaction("p#1", OK, sends=[(A, 0)]),
        transaction("p#2", FAIL, sends=[(A, 2)]),
        transaction("p#3", OK, sends=[(A, 4)]),
    ]
    everything = read((A, 0, "p:10"), (A, 4, "p:30"))
    assert check(*sent, everything).counts == {}
    between = transaction("q#1", OK, sends=[(A, 3)])
    skipped = check(*sent, between, everything, read((A, 3, "q:10"), who="other"), drained=())
    assert skipped.examples == {"int-poll-skip": ["reader 0@0->4"]}


def test_records_of_one_transaction_in_another_order_are_reordered() -> None:
    report = check(
        transaction("p#1", OK, sends=[(A, 1), (A, 0)]), read((A, 0, "p:11"), (A, 1, "p:10"))
    )
    assert report.examples == {"int-nonmonotonic-send": ["p:10 at 0@1, then :11 at @0"]}
    assert report.reordered == 1


def test_records_of_two_transactions_in_another_order_are_reordered() -> None:
    report = check(
        transaction("p#1", OK, sends=[(A, 2)]),
        transaction("p#2", OK, sends=[(A, 0)]),
        read((A, 0, "p:20"), (A, 2, "p:10")),
    )
    assert report.examples == {"nonmonotonic-send": ["p:10 at 0@2, then :20 at @0"]}


def consuming(name: str, outcome: str, offset: int, value: str) -> list[Event]:
    """One more record consumed; the positions go with the transaction."""
    return transaction(name, outcome, polls=[[(A, offset, value)]], positions=[(A, offset + 1)])


def produced() -> list[Event]:
    return transaction("p#1", OK, sends=[(A, 0), (A, 1)])


def test_a_group_consumes_each_record_in_one_committed_transaction() -> None:
    again = [Assigned(0, "g/1", [A])]
    clean = check(
        produced(),
        consuming("g/1#1", FAIL, 0, "p:10"),
        again,
        consuming("g/1#2", OK, 0, "p:10"),
        consuming("g/2#1", OK, 1, "p:11"),
        drained=["g"],
    )
    assert clean.counts == {}
    twice = check(
        produced(),
        consuming("g/1#1", OK, 0, "p:10"),
        consuming("g/2#1", OK, 0, "p:10"),
        consuming("h/1#1", OK, 0, "p:10"),
        drained=(),
    )
    assert twice.examples == {"consumed-twice": ["p:10 at 0@0 by g/1#1 and g/2#1"]}


def test_a_record_that_a_group_passed_over_was_never_consumed() -> None:
    aborted = consuming("g/1#1", FAIL, 0, "p:10")
    report = check(produced(), aborted, consuming("g/1#2", OK, 1, "p:11"), drained=())
    assert report.examples == {"consumed-never": ["p:10 at 0@0 by g, committed to 2"]}
    maybe = consuming("g/1#1", INFO, 0, "p:10")
    assert check(produced(), maybe, consuming("g/1#2", OK, 1, "p:11"), drained=()).counts == {}


def test_an_unknown_consumption_hides_no_second_one() -> None:
    report = check(
        produced(),
        consuming("g/1#1", INFO, 0, "p:10"),
        consuming("g/2#1", OK, 0, "p:10"),
        consuming("g/3#1", OK, 0, "p:10"),
        drained=(),
    )
    assert report.examples == {"consumed-twice": ["p:10 at 0@0 by g/2#1 and g/3#1"]}


def test_g0_two_transactions_each_before_the_other_is_told_and_permitted() -> None:
    report = check(
        transaction("p#1", OK, sends=[(A, 0), (B, 1)]),
        transaction("q#1", OK, sends=[(A, 1), (B, 0)]),
        read((A, 0, "p:10"), (A, 1, "q:10"), (B, 0, "q:11"), (B, 1, "p:11")),
    )
    assert report.counts == {}
    assert report.permitted == {"G0": 1}
    assert report.examples["G0"] == [
        "p#1 sent p:10 to 0@0 before q#1 sent q:10 to @1 (ww), "
        "q#1 sent q:11 to 1@0 before p#1 sent p:11 to @1 (ww)"
    ]


def test_g1c_two_transactions_that_polled_from_each_other_is_an_anomaly() -> None:
    report = check(
        transaction("p#1", OK, sends=[(A, 0)], polls=[[(B, 0, "q:10")]]),
        transaction("q#1", OK, sends=[(B, 0)], polls=[[(A, 0, "p:10")]]),
        read((A, 0, "p:10"), (B, 0, "q:10")),
    )
    assert report.counts == {"G1c": 1}
    assert report.examples["G1c"] == [
        "p#1 sent p:10 to 0@0, which q#1 polled (wr), q#1 sent q:10 to 1@0, which p#1 polled (wr)"
    ]


def test_g1c_of_three_is_told_edge_by_edge_and_a_chain_is_none() -> None:
    def three(first_polls: list[Record]) -> Report:
        return check(
            transaction("p#1", OK, sends=[(A, 0)], polls=[first_polls]),
            transaction("q#1", OK, sends=[(A, 2)], polls=[[(A, 0, "p:10")]]),
            transaction("r#1", OK, sends=[(B, 0)], polls=[[(A, 2, "q:10")]]),
            read((A, 0, "p:10"), (A, 2, "q:10"), (B, 0, "r:10")),
        )

    assert three([]).counts == {}
    (circle,) = three([(B, 0, "r:10")]).examples["G1c"]
    assert circle.count("(wr)") == 3
    assert "r#1 sent r:10 to 1@0, which p#1 polled" in circle


def test_a_circle_of_a_poll_and_of_writes_among_each_other_is_permitted() -> None:
    report = check(
        transaction("p#1", OK, sends=[(A, 0)], polls=[[(B, 0, "q:11")]]),
        transaction("q#1", OK, sends=[(A, 1), (B, 0)]),
        read((A, 0, "p:10"), (A, 1, "q:10"), (B, 0, "q:11")),
    )
    assert report.counts == {}
    assert report.permitted == {"G1c-ww": 1}
    assert "q#1 sent q:11 to 1@0, which p#1 polled (wr)" in report.examples["G1c-ww"][0]
    assert "p#1 sent p:10 to 0@0 before q#1 sent q:10" in report.examples["G1c-ww"][0]


def test_foreign_records_between_two_of_a_transaction_are_permitted() -> None:
    report = check(
        transaction("p#1", OK, sends=[(A, 0), (A, 2)]),
        transaction("q#1", OK, sends=[(A, 1)]),
        read((A, 0, "p:10"), (A, 1, "q:10"), (A, 2, "p:11")),
    )
    assert report.counts == {}
    assert report.permitted == {"int-send-skip": 1, "G0": 1}


def test_a_client_that_hung_is_named_and_is_no_anomaly_of_the_log() -> None:
    report = check(*good(), [Hung(9, "p", "commit_transaction")])
    assert report.hung == ["p in commit_transaction"]
    assert report.counts == {}
    assert "hung: p in commit_transaction" in str(report)


def test_every_knot_of_a_graph_is_found_with_one_of_its_shortest_cycles() -> None:
    words = ["ab", "bc", "cd", "db", "be", "ef", "fe", "gh"]
    graph = {word[0]: {} for word in words}
    for one, other in words:
        graph[one][other] = one + other
    assert sorted(map(sorted, knots(graph))) == [["b", "c", "d"], ["e", "f"]]
    assert sorted(cycles(graph)) == ["bc, cd, db", "ef, fe"]
    assert list(cycles(graph, through={"c": {"d": "CD"}})) == ["CD, db, bc"]
    assert list(cycles(graph, through={"b": {"e": "be"}})) == []
