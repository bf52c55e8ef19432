"""What is printed of long work."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from pipeline import progress
from pipeline.progress import Progress, done_of, human_bytes, many, rate, shown, table, utc


class Stream(io.TextIOWrapper):
    """Shows what was flushed."""

    def __init__(self, is_terminal: bool = False) -> None:
        self._bytes = io.BytesIO()
        self._is_terminal = is_terminal
        super().__init__(self._bytes, newline="")

    def isatty(self) -> bool:
        return self._is_terminal

    def shown(self) -> str:
        return self._bytes.getvalue().decode()


def test_on_a_terminal_one_line_is_written_over_and_over() -> None:
    terminal = Stream(is_terminal=True)
    line = Progress(terminal)
    line.clear()
    assert terminal.shown() == "", "there is nothing to clear yet"
    line.show("1,000 of 2,000")
    assert terminal.shown() == "\r1,000 of 2,000"
    line.show("done")
    assert terminal.shown() == "\r1,000 of 2,000\rdone          "
    line.note("archived")
    assert terminal.shown().endswith("\r    \rarchived\n")
    line.clear()
    assert terminal.shown().endswith("archived\n"), "there is nothing left to clear"
    line.show("again")
    line.clear()
    assert terminal.shown().endswith("\ragain\r     \r")


def test_a_line_too_long_for_a_terminal_is_cut() -> None:
    terminal = Stream(is_terminal=True)
    line = Progress(terminal)
    line.show("x" * 200)
    line.show("done")
    assert terminal.shown() == "\r" + "x" * 150 + "\r" + "done".ljust(150)


def test_a_log_gets_a_line_in_ten_seconds_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    log = Stream()
    line = Progress(log)
    line.show("1 of 3")
    assert log.shown() == "1 of 3\n"
    line.show("2 of 3")
    now += 9.9
    line.show("2 of 3")
    now += 0.1
    line.show("1 of 3")
    line.show("3 of 3")
    line.clear()
    assert log.shown() == "1 of 3\n3 of 3\n"


def test_numbers_of_a_table_stand_right_and_what_is_not_there_is_a_dash() -> None:
    text = table(["topic", "rows", "share"], [["a", 1234567, 0.25], ["long", None, None]])
    assert text.splitlines() == [
        "topic       rows  share",
        "-----  ---------  -----",
        "a      1,234,567    0.2",
        "long           -      -",
    ]
    assert table(["topic"], []).splitlines() == ["topic", "-----"]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        table(["topic"], [["a", 1]])


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 * 1024**2, "3.0 MiB"),
     (5000 * 1024**3, "5,000.0 GiB")],
)  # fmt: skip
def test_bytes_as_people_read_them(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_a_rate_of_no_time_is_none() -> None:
    assert rate(24690, 2.0) == "12,345 rows/s"
    assert rate(5, 0.5) == "10 rows/s"
    assert rate(1, 0.0) == "- rows/s"


def test_progress_has_records_rate_time_left_and_the_topics_with_the_most_left() -> None:
    known = {"a": 1000, "b": 3000, "c": 50, "d": 200, "e": 700, "empty": 0}
    done = {"a": 100, "b": 1200, "c": 50, "d": 0}
    assert done_of(done, known, 2.0) == (
        "1,350 of 4,950 records  675 rows/s  5 s left  b 40 %, a 10 %, e 0 % and 1 more topic"
    )


def test_records_under_way_count_for_the_whole_and_for_the_only_topic() -> None:
    assert done_of({"a": 100}, {"a": 1000}, 2.0, under_way=200) == (
        "300 of 1,000 records  150 rows/s  5 s left  a 30 %"
    )
    assert done_of({}, {"a": 1000}, 2.0, under_way=500).endswith("250 rows/s  2 s left  a 50 %")
    assert done_of({"a": 900}, {"a": 1000}, 2.0, under_way=200).startswith("1,000 of 1,000 records")


def test_of_several_topics_nothing_is_said_while_all_that_is_done_is_under_way() -> None:
    known = {"a": 1000, "b": 3000}
    assert done_of({}, known, 2.0, under_way=400) == "400 of 4,000 records  200 rows/s  18 s left"
    assert done_of({"a": 0, "b": 0}, known, 2.0, under_way=400).endswith("18 s left")
    for count, told in ((4, "33 min left"), (1, "2 h left")):
        assert done_of({}, known, 2.0, under_way=count).endswith(told), count
    assert done_of({"a": 600}, known, 2.0, under_way=400) == (
        "1,000 of 4,000 records  500 rows/s  6 s left  b 0 %, a 60 %"
    )
    assert done_of({}, {"a": 1, "b": 3}, 2.0) == "0 of 4 records  0 rows/s  b 0 %, a 0 %"


def test_nothing_is_divided_by_before_the_first_record() -> None:
    assert done_of({}, {"a": 1}, 0.0) == "0 of 1 records  - rows/s  a 0 %"
    assert done_of({}, {}, 1.0).startswith("0 of 0 records")


def test_one_of_something_is_not_several() -> None:
    assert [many(count, "topic") for count in (0, 1, 1200)] == [
        "0 topics",
        "1 topic",
        "1,200 topics",
    ]
    assert (many(1, "batch"), many(2, "batch")) == ("1 batch", "2 batches")


def test_keys_and_values_are_shown_as_text_that_harms_no_terminal() -> None:
    assert [shown(None), shown(b""), shown(b"abc")] == ["(null)", "(empty)", "abc"]
    assert shown(b"a\x00\n\x1b[31m\xff") == r"a\x00\n\x1b[31m\xff"
    assert shown("\u202eabc".encode()) == r"\u202eabc", "turns the line around"
    assert shown(("ä" * 30).encode()) == "ä" * 30, "characters count, not bytes"
    assert shown(("ä" * 50).encode()) == "ä" * 40 + "..."
    assert shown(("€" * 9).encode(), 5) == "€" * 5 + "..."
    assert shown("\U0001f511".encode() * 3, 3) == "\U0001f511" * 3, "so many are whole"
    assert shown(b"ab\n", 3) == "ab\\...", "an escape counts as it is printed"


def test_a_time_is_of_utc_and_no_time_is_a_dash(in_time_zone: Callable[[str], None]) -> None:
    in_time_zone("America/New_York")
    assert utc(1_769_860_800_000) == utc(1_769_860_800_999) == "2026-01-31 12:00:00"
    assert utc(0) == "1970-01-01 00:00:00", "the first moment is one, too"
    assert utc(2**63 - 1) == "292278994-08-17 07:12:55", "the last a record can have"
    assert utc(-1) == "-"


def test_a_table_lines_up() -> None:
    text = table(["name", "count"], [["a", 1234], ["bcd", None]])
    assert text.splitlines() == ["name  count", "----  -----", "a     1,234", "bcd       -"]
