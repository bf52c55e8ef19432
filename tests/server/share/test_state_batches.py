"""Joining what several writes tell of the same records, against a map of single offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server.share.state_batches import UNINITIALIZED, StateBatch, combine

BATCHES = st.lists(
    st.tuples(
        st.integers(0, 30), st.integers(0, 8), st.sampled_from((0, 2, 4)), st.integers(1, 4)
    ).map(lambda b: StateBatch(b[0], b[0] + b[1], b[2], b[3])),
    max_size=12,
)


@given(BATCHES, st.integers(-1, 35))
def test_each_record_has_its_highest_count_and_state(batches: list[StateBatch], start: int) -> None:
    expected: dict[int, tuple[int, int]] = {}
    for first, last, state, count in batches:
        for at in range(max(first, start), last + 1):
            expected[at] = max(expected.get(at, (0, 0)), (count, state))
    combined = combine(batches, start)
    found = {
        at: (count, state)
        for first, last, state, count in combined
        for at in range(first, last + 1)
    }
    assert found == expected
    assert all(a.last < b.first for a, b in pairwise(combined))
    assert all(a[2:] != b[2:] or a.last + 1 < b.first for a, b in pairwise(combined))
    assert combine(combined, start) == combined


def test_an_unknown_start_cuts_nothing() -> None:
    batches = [StateBatch(0, 4, 2, 1), StateBatch(5, 9, 2, 1)]
    assert combine(batches, UNINITIALIZED) == [StateBatch(0, 9, 2, 1)]
