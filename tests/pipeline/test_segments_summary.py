"""What `segments` prints of the rows that it read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from pyspark.sql import Row

from pipeline.segments.segments import SegmentsOptions, SegmentsTotals, summary


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def printed(*topics: str) -> list[str]:
    """Lines of the table of rows."""
    rows = [
        Row(
            topic=topic,
            partition=0,
            offset=7,
            timestamp=datetime.fromtimestamp(1_700_000_000.25),
            key=b"k\x07",
            value=None,
        )
        for topic in topics
    ]
    totals = SegmentsTotals([], rows=1, seconds=1, sample=rows)
    return summary(SegmentsOptions("data", topics), totals).splitlines()[-2 - len(rows) :]


@pytest.mark.usefixtures("new_york")
def test_times_are_those_of_utc_and_say_so() -> None:
    names, _, row = printed("orders")
    assert names == "partition  offset  timestamp (UTC)          key    value"
    assert row == r"        0       7  2023-11-14 22:13:20.250  k\x07  (null)"


def test_rows_of_several_topics_say_of_which_they_are() -> None:
    names, _, first, second = printed("orders", "payments")
    assert names.startswith("topic     partition")
    assert first.startswith("orders  ")
    assert second.startswith("payments  ")
