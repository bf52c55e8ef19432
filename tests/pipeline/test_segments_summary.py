"""What `segments` prints of the rows that it read."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Row

from pipeline.segments.segments import SegmentsOptions, SegmentsTotals, summary

YEAR_58873_MS = 1_795_695_543_503_000


def printed(*topics: str, ms: int = 1_700_000_000_250) -> list[str]:
    """Lines of the table of rows."""
    rows = [
        Row(topic=topic, partition=0, offset=7, ms=ms, key=b"k\x07", value=None) for topic in topics
    ]
    totals = SegmentsTotals([], rows=1, seconds=1, sample=rows)
    return summary(SegmentsOptions("data", topics), totals).splitlines()[-2 - len(rows) :]


def test_times_are_those_of_utc_and_say_so(in_time_zone: Callable[[str], None]) -> None:
    in_time_zone("America/New_York")
    names, _, row = printed("orders")
    assert names == "partition  offset  timestamp (UTC)          key    value"
    assert row == r"        0       7  2023-11-14 22:13:20.250  k\x07  (null)"


def test_times_that_no_datetime_of_python_holds_are_shown() -> None:
    assert "58873-04-29 05:38:23.000" in printed("orders", ms=YEAR_58873_MS)[-1]
    assert "  -  " in printed("orders", ms=-1)[-1]


def test_rows_of_several_topics_say_of_which_they_are() -> None:
    names, _, first, second = printed("orders", "payments")
    assert names.startswith("topic     partition")
    assert first.startswith("orders  ")
    assert second.startswith("payments  ")
