"""Places in a topic as people write them: beginning, end, an offset, -N, a time. Pure."""

from __future__ import annotations

import argparse
import datetime
import re
from typing import NamedTuple

EXPECTED = "beginning, end, an offset, -N (N before the end), or a time as 2026-01-31T12:00"


class Position(NamedTuple):
    """`kind` is beginning, end, offset, before-end or time (`number`: milliseconds since 1970)."""

    kind: str
    number: int = 0


def parse(text: str) -> Position:
    """The type of flags that name a place. A time without a zone is of this machine's.

    Raises ArgumentTypeError.
    """
    if text in ("beginning", "end"):
        return Position(text)
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Position("offset", int(text))
    if re.fullmatch(r"-[0-9]{1,18}", text):
        return Position("before-end", -int(text))
    try:
        time_ms = int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {EXPECTED}") from None
    return Position("time", max(0, time_ms))  # negative ones are Kafka's names of other places


def offset(position: Position, begin: int, end: int, at_time: int | None) -> int:
    """The offset in a partition of which `begin` to `end` is there.

    `at_time` is the first offset at or after the position's time, None when there is none.
    """
    wanted = {
        "beginning": begin,
        "end": end,
        "offset": position.number,
        "before-end": end - position.number,
        "time": end if at_time is None else at_time,
    }[position.kind]
    return min(max(wanted, begin), end)
