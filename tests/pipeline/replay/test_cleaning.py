"""What a broker removes of replayed records is told, and not taken for somebody else's doing."""

from __future__ import annotations

import pytest

from pipeline.replay.cleaning import difference, too_old

DAY = 86_400_000
NOW = 20_000 * DAY
WEEK = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY)}


def test_records_that_are_older_than_their_topic_keeps_are_told_of() -> None:
    (line,) = too_old({"a": WEEK, "b": WEEK}, {"a": NOW - 8 * DAY, "b": NOW - 6 * DAY}, NOW)
    assert line.startswith("a keeps 7 days (retention.ms=604800000), but its oldest")
    assert "is of 2024-09-26: the broker will delete" in line
    assert "of 0001-01-01:" in too_old({"a": WEEK}, {"a": -(10**17)}, NOW)[0]


def test_what_is_as_old_as_its_topic_keeps_is_kept() -> None:
    assert too_old({"a": WEEK}, {"a": NOW - 7 * DAY}, NOW) == []
    at_once = {**WEEK, "retention.ms": "0"}
    assert too_old({"a": at_once}, {"a": NOW}, NOW) == []
    assert len(too_old({"a": at_once}, {"a": NOW - 1}, NOW)) == 1


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {**WEEK, "retention.ms": "-1"},
        {**WEEK, "cleanup.policy": "compact"},
        {**WEEK, "message.timestamp.type": "LogAppendTime"},
    ],
)
def test_other_topics_keep_them(configs: dict[str, str]) -> None:
    assert too_old({"a": configs}, {"a": 0}, NOW) == []


def test_a_difference_that_the_broker_may_have_made_is_not_somebody_elses() -> None:
    configs = {"a": {"cleanup.policy": "compact"}, "b": WEEK, "c": WEEK}
    oldest = {"a": NOW, "b": 0, "c": NOW}
    told = difference({"a", "b"}, configs, oldest, NOW)
    assert "removed records of a, b meanwhile, by their cleanup.policy or retention.ms" in told
    assert "somebody else" in difference({"a", "c"}, configs, oldest, NOW)
    assert "somebody else" in difference({"d"}, configs, oldest, NOW)
