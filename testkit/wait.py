"""Polling with a deadline: the only way a compatibility test waits for anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HANGS_S = 300
"""How long something hangs that a test lets go on. Whoever must not wait for it is waited for much
shorter: were both the same the hang would be over first, and the test could not fail."""


def eventually(
    probe: Callable[[], T], *, timeout_s: float = 20.0, every_s: float = 0.05, what: str = ""
) -> T:
    """The first true value of `probe()`, asked again and again until `timeout_s` has passed.

    An AssertionError or an exception of `probe` counts as "not yet"; the last one is the cause of
    the failure that this raises, so that the message says what was still wrong at the end.
    """
    deadline = time.monotonic() + timeout_s
    last: Exception | None = None
    value: T | None = None
    while True:
        try:
            value = probe()
            if value:
                return value
            last = None
        except Exception as not_yet:
            last = not_yet
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {timeout_s} s: {what or probe}; last value {value!r}, error {last!r}"
            ) from last
        time.sleep(every_s)
