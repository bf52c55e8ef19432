"""What who waits for an archive is told: within a batch, between batches, and when all is there."""

from __future__ import annotations

import pytest

from pipeline.archive import archive
from pipeline.archive.archive import ArchiveTotals, undecoded_text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(archive.time, "monotonic", lambda: now[0])
    return now


def test_before_the_broker_has_told_what_there_is(clock: list[float]) -> None:
    totals = ArchiveTotals(started_at=clock[0])
    clock[0] += 4
    assert totals.progress(0) == "looking at broker and archive ... 4 s"


def test_within_the_first_batch_the_records_that_were_read_are_told(clock: list[float]) -> None:
    totals = ArchiveTotals(rows={"a": 0}, left={"a": 1000}, started_at=clock[0])
    clock[0] += 10
    assert totals.progress(0) == "0 of 1,000 records  0 rows/s  a 0 %"
    assert totals.progress(250) == "250 of 1,000 records  25 rows/s  30 s left  a 25 %"
    assert totals.progress(1200).startswith("1,000 of 1,000 records"), "Spark reads other things"


def test_whose_the_records_of_a_batch_are_is_told_when_it_is_done(clock: list[float]) -> None:
    totals = ArchiveTotals(rows={"a": 0, "b": 0}, left={"a": 1000, "b": 500}, started_at=clock[0])
    clock[0] += 10
    assert totals.progress(300) == "300 of 1,500 records  30 rows/s  40 s left"
    totals.rows["a"], totals.left["a"] = 400, 600
    totals.batches = 1
    assert totals.progress(50) == "450 of 1,500 records  45 rows/s  23 s left  a 40 %, b 0 %"


def test_one_that_waits_says_so_in_words_that_do_not_change(clock: list[float]) -> None:
    totals = ArchiveTotals(rows={"a": 1000}, left={"a": 0}, batches=1, started_at=clock[0])
    clock[0] += 10
    with totals.waiting():
        clock[0] += 80
        assert totals.progress(0) == "1,000 records archived; waiting for more"
    assert totals.progress(0) == "1,000 records archived; waiting for more", "it looks, only"
    assert totals.worked_s == 10, "the rate is that of work"
    totals.begin()
    totals.left["a"] = 500
    assert totals.progress(0).startswith("1,000 of 1,500 records  100 rows/s  5 s left")


def test_what_did_not_decode_is_counted_at_the_end() -> None:
    assert undecoded_text({"key": 0, "value": 1200}) == [
        "1,200 values did not decode; value_problem says why"
    ]
    assert undecoded_text({"key": 1}) == ["1 key did not decode; key_problem says why"]
