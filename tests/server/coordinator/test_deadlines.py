"""Deadlines: nothing early, nothing lost, one per key, and cheap to move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.coordinator.deadlines import Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 200)),
        st.tuples(st.just("store"), st.integers(0, 5), st.integers(0, 200)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 120)),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_deadline_runs_once_at_its_time_whatever_was_done_to_it(
    steps: list[tuple[str, int, int]],
) -> None:
    deadlines = Deadlines()
    expected: dict[int, int] = {}
    held = {}
    ran: list[int] = []
    now_ms = 0
    for what, key, ms in steps:
        if what == "set":
            expected[key] = now_ms + ms
            held[key] = deadlines.set(key, now_ms + ms, lambda key=key: ran.append(key))
        elif what == "store" and key in expected:
            expected[key] += ms
            held[key].at_ms += ms
        elif what == "cancel":
            expected.pop(key, None)
            deadlines.cancel(key)
        elif what == "pass":
            wake_ms = deadlines.next_wake_ms()
            assert not expected or (wake_ms is not None and wake_ms <= min(expected.values()))
            now_ms += ms
            ran.clear()
            while (due := deadlines.pop_due(now_ms)) is not None:
                ran_key, job = due
                job()
                assert ran[-1] == ran_key
            due = sorted(key for key, at_ms in expected.items() if at_ms <= now_ms)
            assert sorted(ran) == due
            for key in due:
                del expected[key]
        assert len(deadlines) == len(expected)


def test_memory_stays_within_twice_what_is_pending() -> None:
    deadlines = Deadlines()
    for i in range(10_000):
        deadlines.set(i, i, lambda: None)
        if i >= 10:
            deadlines.cancel(i - 10)
    assert len(deadlines) == 10
    assert len(deadlines._heap) <= 100


def test_cleared_deadlines_never_run() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 1, lambda: None)
    deadlines.clear()
    assert deadlines.pop_due(10) is None
    assert deadlines.next_wake_ms() is None
