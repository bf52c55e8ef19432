"""Consumers of one group, polled together in one thread: a rebalance test without sleeps.

kafka-python heartbeats in its own thread but rejoins only inside `poll`, so the members of a group
have to be polled in turns until the group has settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any


def poll_all_until(
    members: Iterable[Any],
    settled: Callable[[], Any],
    *,
    timeout_s: float = 30.0,
    poll: Callable[[Any], Any] = lambda member: member.poll(timeout_ms=50),
    what: str = "the group settles",
) -> list[Any]:
    """Polls each member in turn until `settled()` is true; everything that the polls returned."""
    deadline = time.monotonic() + timeout_s
    answers: list[Any] = []
    while not settled():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        for member in members:
            answers.append(poll(member))
    return answers
