"""What something costs, told by a number that no load of the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls_of(what: Callable[[], object]) -> int:
    """How many calls of Python's functions it takes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        what()
    finally:
        sys.setprofile(None)
    return count
