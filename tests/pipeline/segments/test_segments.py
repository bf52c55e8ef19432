"""What `segments` takes and prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import Row

from pipeline.errors import PipelineError
from pipeline.segments.segments import SegmentsOptions, SegmentsTotals, parse_offsets, summary

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


def test_offsets_as_people_write_them() -> None:
    assert parse_offsets("100-200") == ({-1: 100}, {-1: 200})
    assert parse_offsets("0:5-,3:-9") == ({0: 5}, {3: 9})
    with pytest.raises(PipelineError, match="expected FROM-TO"):
        parse_offsets("5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5-3", "'5-3' has no offsets"),
        ("0:5-5", "'0:5-5' has no offsets"),
        ("0:0-5,0:7-9", "partition 0 is named twice"),
        ("0-5,7-9", "all partitions are named twice"),
    ],
)
def test_offsets_that_would_read_nothing_or_not_all_that_is_named(text: str, words: str) -> None:
    with pytest.raises(PipelineError, match=words) as told:
        parse_offsets(text)
    assert told.value.exit_code == 2
