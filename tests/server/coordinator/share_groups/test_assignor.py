"""Many members for one partition, many partitions for one member (SG-4)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.coordinator.share_groups.assignor import ShareMemberSpec, assign

T, U = b"t" * 16, b"u" * 16


def shares(members, partitions, targets=None, *, topics=frozenset({T}), is_homogeneous=True):
    targets = targets or {}
    specs = {
        id_: ShareMemberSpec(topics, {T: frozenset(targets[id_])} if id_ in targets else {})
        for id_ in members
    }
    found = assign(specs, {T: frozenset(range(partitions))}, is_homogeneous=is_homogeneous)
    return {id_: sorted(target.get(T, ())) for id_, target in found.items()}


@pytest.mark.parametrize(
    ("count", "partitions", "expected"),
    [
        (1, 3, [[0, 1, 2]]),
        (3, 1, [[0], [0], [0]]),
        (2, 4, [[0, 2], [1, 3]]),
        (3, 2, [[0, 1], [0], [1]]),
        (2, 0, [[], []]),
    ],
)
def test_everybody_has_something_and_everything_somebody(count, partitions, expected):
    members = [f"m{i}" for i in range(count)]
    assert list(shares(members, partitions).values()) == expected


def test_what_is_in_order_stays():
    held = {"a": [0, 3], "b": [1, 2]}
    assert shares(["a", "b"], 4, held) == held


def test_a_member_more_takes_what_others_have_too_much():
    found = shares(["a", "b"], 4, {"a": [0, 1, 2, 3]})
    assert found == {"a": [2, 3], "b": [0, 1]}


def test_partitions_without_state_are_nobodys():
    specs = {"a": ShareMemberSpec(frozenset({T, U}), {})}
    assert assign(specs, {T: frozenset({0})}, is_homogeneous=True) == {"a": {T: frozenset({0})}}


def test_topics_that_some_subscribe_to_are_theirs_alone():
    specs = {
        "a": ShareMemberSpec(frozenset({T}), {U: frozenset({0})}),
        "b": ShareMemberSpec(frozenset({T, U}), {}),
    }
    assignable = {T: frozenset({0, 1}), U: frozenset({0, 1})}
    found = assign(specs, assignable, is_homogeneous=False)
    assert found == {"a": {T: frozenset({0})}, "b": {T: frozenset({1}), U: frozenset({0, 1})}}


@given(st.data())
def test_shares_are_even_whatever_was_before(data):
    members = [f"m{i}" for i in range(data.draw(st.integers(1, 6)))]
    partitions = data.draw(st.integers(1, 8))
    some = st.frozensets(st.integers(0, partitions - 1))
    found = shares(members, partitions, {id_: data.draw(some) for id_ in members})
    sharing = -(-len(members) // partitions)
    counts = Counter(index for held in found.values() for index in held)
    assert all(count <= sharing for count in counts.values())
    quota = -(-sharing * partitions // len(members))
    assert all(len(held) <= quota for held in found.values())
    if sharing == 1:  # with more, who lacks some may have all that is left already
        assert set(counts) == set(range(partitions))


def test_a_partition_is_not_looked_for_among_all_that_a_member_has():
    compared = []

    class Index(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            compared.append(other)
            return int(self) == int(other)

    count = 200
    specs = {"a": ShareMemberSpec(frozenset({T}), {})}
    found = assign(specs, {T: frozenset(map(Index, range(count)))}, is_homogeneous=True)
    assert len(found["a"][T]) == count
    assert len(compared) < 10 * count


def test_a_topic_is_not_looked_for_among_all_that_are_subscribed_to():
    compared = []

    class Id(bytes):
        __hash__ = bytes.__hash__

        def __eq__(self, other):
            compared.append(other)
            return bytes(self) == bytes(other)

    count = 200
    topics = frozenset(Id(index.to_bytes(16, "big")) for index in range(count))
    held = {topic_id: frozenset({0}) for topic_id in topics}
    specs = {"a": ShareMemberSpec(topics, held)}
    assert assign(specs, held, is_homogeneous=True) == {"a": held}
    assert len(compared) < 10 * count
