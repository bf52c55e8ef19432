"""What waits for a partition hears of what happens to it, whoever comes and goes meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from replication.replicas import parked_requests
from replication.replicas.parked_requests import ParkedRequests
from replication.replicas.timer import Timer
from testkit.clock import ManualClock
from tests.replication.interleaving import interleavings

KEY = ("orders", 0)


def test_a_listener_misses_nothing_while_another_leaves() -> None:
    """A coordinator that lost its partition and is given it again: the one before takes its leave
    on a thread of its own, as late as it may be."""
    parked = ParkedRequests(Timer(ManualClock()))
    heard: list[int] = []

    def stays() -> None:
        heard.append(1)

    def leaves() -> None:
        pass

    def race() -> tuple[Callable[[], object], Callable[[], object]]:
        heard.clear()
        for listener in (leaves, stays):
            parked.remove_high_watermark_listener(KEY, listener)
            parked.add_high_watermark_listener(KEY, listener)
        return (
            lambda: parked.remove_high_watermark_listener(KEY, leaves),
            lambda: parked.appended([(KEY, True)]),
        )

    for number in interleavings(parked_requests, race):
        assert heard == [1], f"before line {number}"
    parked.remove_high_watermark_listener(KEY, stays)
    parked.remove_high_watermark_listener(KEY, leaves)
    assert parked._high_watermark_listeners == {}
