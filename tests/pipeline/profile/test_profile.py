"""A profile without Spark: spans and classes, what is odd, the page."""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import run_command
from pipeline.profile.codecs import CodecUse, codecs_in
from pipeline.profile.odd import odd
from pipeline.profile.page import buckets, page, write
from pipeline.profile.text import summary
from pipeline.profile.topic_profile import (
    Format,
    PartitionProfile,
    SizeClass,
    Span,
    TopicProfile,
    TopKey,
    per_second,
    percent,
    size_classes,
    span_for,
    span_name,
)
from pipeline.progress import utc
from pipeline.segments.plan import Wanted, plan
from pipeline.typed import statistics
from pipeline.typed.statistics import FieldProfile, ProblemProfile
from wire.compression import LZ4
from wire.records import Record, build_batch

NOW, Y1990 = 1_767_225_600_000, 631_152_000_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def partition(number: int, records: int = 500, **other: int) -> PartitionProfile:
    one = PartitionProfile(
        number, records, 0, records - 1, 0, 3 * records, 30 * records, 0, 0, 3, NOW - HOUR, NOW
    )
    return replace(one, **other)


def profile(*partitions: PartitionProfile) -> TopicProfile:
    return TopicProfile(
        "t", "here", list(partitions), MINUTE, [Span(0, NOW, 2, 22)], 3, [1, 2, 3, 4, 5, 6],
        [SizeClass(8, 15, 3)], [TopKey(b"a", 90, 9, None)], [Format("JSON", 900, 9)], [], 0,
        measured_ms=NOW,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("length", "span", "name"),
    [
        (0, 1000, "one second"),
        (30_000, 1000, "one second"),
        (90 * MINUTE, MINUTE, "one minute"),
        (DAY, 15 * MINUTE, "15 minutes"),
        (29 * DAY, 6 * HOUR, "6 hours"),
        (9000 * DAY, 365 * DAY, "one year"),
        (55 * 365 * DAY, 365 * DAY, "one year"),
        (119 * 28 * DAY - 1, 28 * DAY, "28 days"),
        (3000 * 365 * DAY, 26 * 365 * DAY, "26 years"),
    ],
)
def test_spans_of_time_are_short_where_there_is_little_of_it(
    length: int, span: int, name: str
) -> None:
    assert span_for(NOW, NOW + length) == span
    assert span_name(span) == name


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (5, 5), (100, 130), (1000, 3999), (0, 9), (1, 10**7), (0, 2**31)]
)
def test_size_classes_have_no_holes_and_hold_all(low: int, high: int) -> None:
    classes = size_classes(low, high)
    assert len(classes) <= 16
    assert classes[0][0] <= low
    assert classes[-1][1] >= high
    assert [top + 1 for _, top in classes[:-1]] == [bottom for bottom, _ in classes[1:]]


def test_sizes_of_one_magnitude_are_told_apart() -> None:
    assert size_classes(100, 130)[:2] == [(100, 101), (102, 103)]
    assert size_classes(1000, 3999)[0] == (1000, 1199)
    assert size_classes(0, 2000)[:4] == [(0, 0), (1, 1), (2, 3), (4, 7)]


def test_nothing_is_odd_in_an_even_topic() -> None:
    assert odd(profile(partition(0), partition(1, 600))) == []
    assert "Nothing odd" in page(profile(partition(0)))


def test_skew_is_told_with_its_key() -> None:
    one = profile(partition(0, 100), partition(1, 100), partition(2, 800))
    assert odd(one) == ["partition 2 has 80 % of the records (2.4 times an even share)"]
    one.top_keys = [TopKey(None, 700, 9, 2), TopKey(b"whale", 600, 9, 2)]
    assert odd(one)[0].endswith("; 75 % of them have the key whale")
    even = profile(partition(0), partition(1))
    even.top_keys = [TopKey(b"whale", 400, 9, None)]
    assert odd(even) == ["the key whale has 40 % of the records"]
    few = profile(partition(0, 5), partition(1, 50))
    assert odd(few) == [], "too few to say anything"


def test_partitions_without_records_count_for_skew_and_are_told() -> None:
    one = profile(partition(3))
    one.partition_count, one.top_keys = 6, []
    assert odd(one) == ["partition 3 has 100 % of the records (6.0 times an even share)"]
    assert "partitions   1 of 6 have records" in summary(one)
    assert "1 of 6" in page(one)
    assert "partitions   1 of 1 have records" not in summary(profile(partition(0)))


def test_times_that_are_late_of_long_ago_or_of_the_future_are_told() -> None:
    late = partition(1, late=7, latest_ms=3 * HOUR)
    assert odd(profile(partition(0), late)) == [
        "7 records (0.7 %) are older than one before them by more than 60 s; at most 3 hours, in"
        " partition 1"
    ]
    (said,) = odd(profile(partition(0, first_ms=0)))
    assert said == "there are times before 1990 (1970-01-01 00:00:00, partition 0)"
    assert "times in the future" in odd(profile(partition(0, last_ms=NOW + DAY)))[0]


def test_gaps_and_what_is_rare_are_told() -> None:
    one = profile(partition(0, missing=50, null_keys=3))
    one.gaps, one.gap_count = [(0, 17, 30)], 4
    one.top_keys = []
    one.codecs = [CodecUse("zstd", 9, 490, 1), CodecUse("none", 1, 10, 1)]
    one.formats = [Format("null", 900, 0), Format("JSON", 300, 9), Format("binary", 2, 9)]
    assert odd(one) == [
        "50 offsets (9.09 %) have no record, in 4 gaps; the largest are the 30 from 17 on in"
        " partition 0",
        "10 records (2 %) are of codec none, the others mostly zstd",
        "2 values (0.662 %) look like binary, the others mostly like JSON",
        "3 records (0.6 %) have no key",
    ]


def test_one_record_is_told_of_as_one() -> None:
    one = profile(partition(0, null_keys=1, late=1, latest_ms=HOUR))
    one.top_keys = []
    one.codecs = [CodecUse("zstd", 9, 499, 1), CodecUse("none", 1, 1, 1)]
    one.formats = [Format("JSON", 499, 9), Format("binary", 1, 9)]
    assert odd(one) == [
        "1 record (0.2 %) is older than one before it by more than 60 s; at most 60 minutes, in"
        " partition 0",
        "1 record (0.2 %) is of codec none, the others mostly zstd",
        "1 value (0.2 %) looks like binary, the others mostly like JSON",
        "1 record (0.2 %) has no key",
    ]


def lone(records: int = 1000, *, top: int = 0, count: int = 1, **other: Any) -> TopicProfile:
    """One partition with records, of so many; the rest is of it or of the topic."""
    own = {field.name for field in fields(PartitionProfile)}
    one = profile(partition(0, records, **{name: other[name] for name in own & other.keys()}))
    one.partition_count, one.top_keys, one.gaps = count, [TopKey(b"k" * 25, top, 9, 0)], [(0, 1, 1)]
    for name in other.keys() - own:
        setattr(one, name, other[name])
    return one


def codecs(rare: int) -> list[CodecUse]:
    return [CodecUse("zstd", 9, 1000 - rare, 1), CodecUse("none", 1, rare, 1)]


def formats(rare: int) -> list[Format]:
    return [Format("JSON", 1000 - rare, 9), Format("binary", rare, 9)]


@pytest.mark.parametrize(
    ("told", "untold", "words"),
    [
        (lone(100, top=100), lone(99, top=99), f"the key {'k' * 24}... has 100 % of the records"),
        (lone(top=200), lone(top=199), "has 20 % of the records"),
        (lone(count=2), lone(count=1), "partition 0 has 100 % of the records (2.0 times an"),
        (lone(first_ms=Y1990 - 1), lone(first_ms=Y1990), "before 1990 (1989-12-31 23:59:59, part"),
        (lone(last_ms=NOW + HOUR + 1), lone(last_ms=NOW + HOUR), "times in the future (2026-01-01"),
        (lone(990, missing=11), lone(990, missing=10), "11 offsets (1.1 %) have no record"),
        (lone(codecs=codecs(99)), lone(codecs=codecs(100)), "(9.9 %) are of codec none"),
        (lone(formats=formats(99)), lone(formats=formats(100)), "(9.9 %) look like binary"),
        (lone(null_keys=99), lone(null_keys=100), "99 records (9.9 %) have no key"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_is_odd_is_so_from_its_limit_on(
    told: TopicProfile, untold: TopicProfile, words: str
) -> None:
    (said,) = odd(told)
    assert words in said
    assert odd(untold) == []


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (119_000, "119 s"), (2 * MINUTE, "2 minutes"), (2 * HOUR - 1, "120 minutes"),
        (2 * HOUR, "2 hours"), (2 * DAY - 1, "48 hours"), (2 * DAY, "2 days"),
    ],
)  # fmt: skip
def test_how_late_a_record_is_is_told_in_the_largest_unit_it_has_two_of(
    ms: int, words: str
) -> None:
    (said,) = odd(lone(late=1, latest_ms=ms))
    assert f"at most {words}, in partition 0" in said


def test_reasons_of_any_length_can_be_read() -> None:
    one = profile(partition(0))
    long = "no JSON: " + "x" * 280
    one.problems = [ProblemProfile("value", long, 3), ProblemProfile("key", "short", 12)]
    lines = summary(one).splitlines()
    (row,) = [line for line in lines if "no JSON" in line]
    assert len(row) < 120
    assert row.endswith("...")
    assert row.split()[0] == "3", "figures stand before what may be long"
    html = page(one)
    assert '<td class="text">no JSON: ' + "x" * 280 in html, "wraps, and hides no other reason"


def test_what_is_not_shown_or_not_exact_is_said_to_be_so() -> None:
    one = profile(partition(0))
    one.fields = [FieldProfile("value_data.id", "bigint", 3, 3, "1", "3")]
    assert "not shown" not in summary(one) + page(one)
    one.more_fields = 1_500
    for told in (summary(one), page(one)):
        assert "1,500 more fields not shown" in told
        assert "distinct (about)" in told
        assert "keys (about)" in told


def test_of_many_fields_the_first_are_looked_at_and_the_others_counted() -> None:
    class Frame:
        def selectExpr(self, *_wanted: str) -> Frame:  # noqa: N802
            return self

        def first(self) -> defaultdict[str, str]:
            return defaultdict(lambda: "0")

    types: dict[str, Any] = {"value": {"struct": {f"f{n}": "bigint" for n in range(203)}}}
    frame: Any = Frame()
    found, more = statistics.fields(frame, types)
    assert [found[0].path, found[-1].path, more] == ["value_data.f0", "value_data.f199", 3]


def test_years_of_five_digits_are_shown_whole() -> None:
    late = NOW + 56_000 * 365 * DAY
    one = profile(partition(0, first_ms=late, last_ms=late))
    one.span_ms, one.spans = DAY, [Span(0, late, 1, 1), Span(0, late + 99 * DAY, 1, 1)]
    day = utc(late).partition(" ")[0]
    assert len(day) == 11
    assert f"<b>{utc(late)[:-3]}</b>" in page(one)
    assert f"<span>{day}</span>" in page(one)


def test_what_no_record_has_has_no_bar() -> None:
    one = profile(partition(0))
    one.sizes = [SizeClass(0, 7, 0), SizeClass(8, 15, 3)]
    assert 'style="width:0;min-width:0" title="0 to 7 bytes' in page(one)


def test_a_share_is_never_all_or_nothing_when_it_is_not() -> None:
    assert [percent(part, 10_000) for part in (0, 1, 5000, 9999, 10_000)] == [
        "0 %", "< 0.1 %", "50 %", "> 99.9 %", "100 %",
    ]  # fmt: skip


def test_the_page_escapes_keys_and_shows_spans_without_records() -> None:
    one = profile(partition(0))
    one.top_keys = [TopKey(b"<script>", 2, 22, 0), TopKey(None, 1, 11, 0)]
    one.spans = [Span(0, NOW, 1, 1), Span(0, NOW + 5 * MINUTE, 2, 2), Span(1, NOW, 2, 2)]
    assert buckets(one) == [(NOW + index * MINUTE, n) for index, n in enumerate([3, 0, 0, 0, 0, 2])]
    html = page(one)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_codecs_are_counted_from_the_headers_of_batches(tmp_path: Path) -> None:
    rows = [Record(-1, 5, None, b"x" * 100) for _ in range(3)]
    batches = [
        build_batch(rows, base_offset=0, codec=LZ4),
        build_batch(rows, base_offset=3, codec=LZ4),
        build_batch(rows[:1], base_offset=6),
        build_batch(rows[:1], base_offset=7),
    ]
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches) + bytes(99))
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    (one,) = plan([str(tmp_path)], Wanted("t"))
    assert [use[:3] for use in codecs_in(one.parts)] == [("lz4", 2, 6), ("none", 1, 1)]


def test_a_page_for_which_there_is_no_room_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "t.html"
    write("before", str(path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write("x" * 1_000_000, str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_profile_that_fails_leaves_no_empty_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.html"
    command = ["profile", "--from", str(tmp_path / "none"), "--topic", "t", "--html"]
    assert run_command([*command, str(path)]) == 1
    assert "does not exist; check --from" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert run_command([*command, str(tmp_path)]) == 1
    assert run_command([*command, str(tmp_path / "none" / "t.html")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert ["Is a directory" in said[0], "No such file" in said[1]] == [True, True]


def test_a_page_may_go_to_what_is_no_file() -> None:
    write("x", os.devnull)
    assert not Path(os.devnull).is_file()


def test_a_single_record_is_counted_as_one() -> None:
    told = summary(lone(1, spans=[Span(0, NOW, 1, 5)], formats=[Format("JSON", 1, 5)]))
    assert "\n1 record, " in told
    assert "profiled 1 row in" in told
    assert ", 1 record (" in told


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0, "-"), (-1, "-"), (1000, "10"), (10, "1,000"), (1_000_000, "0.01"), (10**9, "< 0.01")],
)
def test_records_a_second_are_a_few_digits(ms: int, words: str) -> None:
    assert per_second(partition(0, 10, first_ms=NOW, last_ms=NOW + ms)) == words
