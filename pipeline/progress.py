"""What a person sees of long work: one line on a terminal, rare lines in a log, tables at the end.

Standard output carries results only; progress goes to stderr. On a terminal the line is rewritten
in place; elsewhere a line is printed at most every ten seconds, so that logs stay readable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

_LOG_EVERY_S = 10.0
_NAMED = 3


class Progress:
    """The one line. `show` as often as you like; `clear` before anything else is printed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._width = 0
        self._printed_at = 0.0
        self._text = ""

    def show(self, text: str) -> None:
        if self._is_terminal:
            self._stream.write("\r" + text[:150].ljust(self._width))
            self._width = len(text[:150])
        else:
            now = time.monotonic()
            if now - self._printed_at < _LOG_EVERY_S or text == self._text:
                return
            self._printed_at, self._text = now, text
            self._stream.write(text + "\n")
        self._stream.flush()

    def note(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        if self._is_terminal and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain text table; numbers to the right, with thousands separated."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max([len(heading), *(len(row[index]) for row in cells)])
        for index, heading in enumerate(headings)
    ]
    right = [
        bool(rows)
        and all(isinstance(row[index], int | float) or row[index] is None for row in rows)
        for index in range(len(headings))
    ]

    def line(values: Sequence[str]) -> str:
        padded = (
            value.rjust(width) if is_right else value.ljust(width)
            for value, width, is_right in zip(values, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(list(headings)), rule, *(line(row) for row in cells)])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def shown(data: bytes | None, limit: int = 40) -> str:
    """A key or value for people: text where it is text, so many characters, no control codes."""
    if not data:
        return "(null)" if data is None else "(empty)"
    text = bytes(data).decode("utf-8", "backslashreplace")
    printable = "".join(char if char.isprintable() else _escaped(char) for char in text[:limit])
    is_whole = max(len(text), len(printable)) <= limit
    return printable if is_whole else printable[:limit] + "..."


def utc(ms: int) -> str:
    """'2026-01-31 12:00:00'; a dash for "no timestamp"."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms // 1000)) if ms >= 0 else "-"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def many(count: int, noun: str) -> str:
    """'1 file', '1,200 files'."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def rate(rows: int, seconds: float) -> str:
    """'12,345 rows/s'."""
    return f"{rows / seconds:,.0f} rows/s" if seconds > 0 else "- rows/s"


def _duration(seconds: float) -> str:
    """'90 s', '45 min', '60 h': what is estimated, in two digits or so."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:,.0f} h"


def done_of(
    done: Mapping[str, int], known: Mapping[str, int], seconds: float, under_way: int = 0
) -> str:
    """Records done of records known, rate, time left; and of topics under way, those with the most
    left: '1,200 of 5,000 records  600 rows/s  6 s left  orders 10 %, payments 40 %'.

    `under_way`: more records, of which only their number is known. Of topics nothing is said until
    some of theirs are done."""
    whole = sum(known.values())
    if len(known) == 1:
        done = {name: min(done.get(name, 0) + under_way, known[name]) for name in known}
        under_way = 0
    count = min(sum(done.values()) + under_way, whole)
    text = f"{count:,} of {whole:,} records  {rate(count, seconds)}"
    if count:
        text += f"  {_duration((whole - count) * seconds / count)} left"
    if under_way and not any(done.values()):
        return text
    left = {name: known[name] - done.get(name, 0) for name in known}
    begun = sorted((name for name in left if left[name] > 0), key=lambda name: -left[name])
    topics = [f"{name} {100 * done.get(name, 0) // known[name]} %" for name in begun[:_NAMED]]
    more = len(begun) - len(topics)
    named = ", ".join(topics) + (f" and {many(more, 'more topic')}" if more else "")
    return f"{text}  {named}".rstrip()
