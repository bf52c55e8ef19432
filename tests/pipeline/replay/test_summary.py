"""What topics a replay makes, and its last words."""

from __future__ import annotations

import pytest

from pipeline.archive.checksum import ContentSum
from pipeline.errors import PipelineError
from pipeline.replay.replay import ReplayOptions, ReplayTotals, summary, target_names


def last_words(timed: dict[tuple[str, int], int], types: dict[str, str]) -> list[str]:
    """Of topics whose records are as archived, and their times as `timed` says (1: as archived)."""
    totals = ReplayTotals(
        source={key: ContentSum(10, 7, 1) for key in timed},
        target={key: ContentSum(10, 7, sum_) for key, sum_ in timed.items()},
        configs={name: {"message.timestamp.type": kind} for name, kind in types.items()},
    )
    return summary(ReplayOptions("lake", "b:1"), totals).splitlines()


def test_times_are_told_by_topic() -> None:
    types = {"a": "CreateTime", "b": "LogAppendTime", "c": "LogAppendTime"}
    assert "timestamps: as archived" in last_words({("a", 0): 1, ("a", 1): 1}, types)
    assert "timestamps: the topic's own (LogAppendTime)" in last_words({("b", 0): 2}, types)
    mixed = last_words({("a", 0): 1, ("b", 0): 2, ("b", 1): 2, ("c", 0): 3}, types)
    assert "timestamps: as archived, but in b, c the topic's own (LogAppendTime)" in mixed


def test_times_that_differ_where_they_should_not_are_told() -> None:
    types = {"a": "CreateTime", "b": "LogAppendTime"}
    lines = last_words({("a", 0): 2, ("b", 0): 2}, types)
    assert "timestamps: as archived, but in b the topic's own (LogAppendTime)" in lines
    assert "timestamps: other than archived in a, though it is of CreateTime" in lines


def test_a_topic_flag_picks_one_or_renames_the_only_one() -> None:
    assert target_names(["a", "b"], None, "x-") == {"a": "x-a", "b": "x-b"}
    assert target_names(["a", "b"], "b", "") == {"b": "b"}
    assert target_names(["a"], "other", "") == {"a": "other"}
    with pytest.raises(PipelineError, match="but no c"):
        target_names(["a", "b"], "c", "")
