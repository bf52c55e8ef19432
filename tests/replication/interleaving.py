"""Two threads, one interleaving at a time: what no run of real threads would find twice."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def interleavings(
    module: ModuleType,
    race: Callable[[], tuple[Callable[[], object], Callable[[], object]]],
    *,
    waits: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """Make a race, and run its first part; before the first line of `module` that it comes to,
    another thread runs all of the second. Then again for the second line, and so on, to the last.

    Yields the number of the line after each run. At a line where `waits()`, the other thread would
    have to wait for a lock: it runs at the next one where it would not.
    """
    for number in itertools.count(1):
        first, second = race()
        if not _run(module, first, second, number, waits):
            return
        yield number


def _run(
    module: ModuleType,
    first: Callable[[], object],
    second: Callable[[], object],
    number: int,
    waits: Callable[[], bool],
) -> bool:
    lines = 0
    errors: list[BaseException] = []
    is_due = True

    def caught() -> None:
        try:
            second()
        except BaseException as error:
            errors.append(error)

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines, is_due
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            lines += 1
            if is_due and lines >= number and not waits():
                is_due = False
                other = threading.Thread(target=caught)
                other.start()
                other.join(60)
                assert not other.is_alive(), "it waits for what the first thread holds"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        first()
    finally:
        sys.settrace(before)
    if errors:
        raise errors[0]
    return not is_due
