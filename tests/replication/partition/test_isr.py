"""The rules of the ISR and the high watermark, against a model that is short enough to believe."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.partition.isr import (
    NEVER_MS,
    UNKNOWN_OFFSET,
    IsrState,
    IsrUpdate,
    ReplicaState,
    effective_min_isr,
    high_watermark,
    is_isr_eligible,
    low_watermark,
    may_join_isr,
    out_of_sync_replicas,
)

LEADER = 1
LAG_MS = 30


def committed(*ids: int) -> IsrState:
    return IsrState(frozenset(ids))


def follower(end_offset: int, caught_up_ms: int = NEVER_MS, **more: int) -> ReplicaState:
    return ReplicaState(log_end_offset=end_offset, last_caught_up_ms=caught_up_ms, **more)


def advance(
    current: int,
    end: int,
    state: IsrState,
    replicas: dict[int, ReplicaState],
    *,
    eligible: tuple[int, ...] = (),
    min_isr: int = 1,
    now_ms: int = 1_000,
) -> int:
    return high_watermark(current, end, state, replicas, eligible, min_isr, now_ms, LAG_MS)


# ---------------------------------------------------------------------- H-1, H-3


def test_a_leader_alone_commits_what_it_has() -> None:
    assert advance(3, 10, committed(LEADER), {}) == 10


def test_the_slowest_member_of_the_isr_decides() -> None:
    replicas = {2: follower(7), 3: follower(9)}
    assert advance(3, 10, committed(1, 2, 3), replicas) == 7


def test_a_replica_outside_the_isr_does_not_hold_the_high_watermark_back() -> None:
    assert advance(3, 10, committed(1, 2), {2: follower(9), 3: follower(4)}) == 9


def test_it_never_goes_back_when_a_replica_restarts_from_an_earlier_offset() -> None:
    assert advance(8, 10, committed(1, 2), {2: follower(5)}) == 8


def test_it_does_not_move_while_the_committed_isr_is_below_the_minimum() -> None:
    assert advance(3, 10, committed(1), {2: follower(10)}, min_isr=2) == 3
    pending = committed(1).expand(2)
    assert advance(3, 10, pending, {2: follower(10)}, min_isr=2) == 3
    assert advance(3, 10, pending.commit((1, 2)), {2: follower(10)}, min_isr=2) == 10


def test_a_member_nothing_was_heard_from_holds_it_back() -> None:
    """H-2: offsets known from an earlier leadership must not count."""
    replica = follower(10, caught_up_ms=990)
    replica.reset(1_000, 10, is_new_leader=True, is_in_isr=True)
    assert replica.log_end_offset == UNKNOWN_OFFSET
    assert advance(3, 10, committed(1, 2), {2: replica}) == 3


def test_a_pending_expand_counts_the_new_member_at_once() -> None:
    assert advance(3, 10, committed(1).expand(2), {2: follower(6)}) == 6


def test_a_pending_shrink_still_counts_the_members_to_be_removed() -> None:
    pending = committed(1, 2).shrink([2])
    assert advance(3, 10, pending, {2: follower(6)}) == 6
    assert advance(6, 10, pending.commit((1,)), {2: follower(6)}) == 10


def test_a_replica_about_to_join_is_waited_for_only_if_eligible_and_caught_up() -> None:
    soon = {2: follower(6, caught_up_ms=1_000 - LAG_MS)}
    assert advance(3, 10, committed(1), soon, eligible=(2,)) == 6
    assert advance(3, 10, committed(1), soon) == 10
    late = {2: follower(6, caught_up_ms=1_000 - LAG_MS - 1)}
    assert advance(3, 10, committed(1), late, eligible=(2,)) == 10


def test_a_replica_that_never_fetched_is_not_caught_up_just_after_boot() -> None:
    """A monotonic clock may start near zero: "never" must not look like "a moment ago"."""
    assert advance(3, 10, committed(1), {2: ReplicaState()}, eligible=(2,), now_ms=5) == 10


@pytest.mark.parametrize(("configured", "replicas", "expected"), [(2, 3, 2), (2, 1, 1), (1, 3, 1)])
def test_no_more_replicas_are_demanded_than_there_are(
    configured: int, replicas: int, expected: int
) -> None:
    assert effective_min_isr(configured, replicas) == expected


# ---------------------------------------------------------------------- transitions


def test_maximal_isr_over_the_life_of_a_change() -> None:
    state = committed(1, 2)
    assert state.maximal_isr == {1, 2}
    assert not state.is_inflight
    growing = state.expand(3)
    assert (growing.isr, growing.maximal_isr) == ({1, 2}, {1, 2, 3})
    assert growing.update is IsrUpdate.EXPAND
    assert growing.roll_back() == state
    shrinking = state.shrink([2])
    assert (shrinking.isr, shrinking.maximal_isr) == ({1, 2}, {1, 2})
    assert shrinking.commit([1]) == committed(1)


def test_only_one_change_may_be_in_flight() -> None:
    with pytest.raises(AssertionError):
        committed(1).expand(2).expand(3)
    with pytest.raises(AssertionError):
        committed(1, 2).shrink([2]).shrink([1])


# ---------------------------------------------------------------------- H-4, H-5, H-6


def test_reaching_the_current_end_is_caught_up_now() -> None:
    replica = ReplicaState()
    replica.update_fetch_state(10, 0, 500, 10, -1)
    assert replica.last_caught_up_ms == 500


def test_reaching_the_end_of_the_previous_fetch_is_caught_up_as_of_then() -> None:
    """Under steady small writes a follower never equals the current end, and is in sync still."""
    replica = ReplicaState()
    now_ms, end = 0, 0
    for now_ms in range(0, 1_000, 10):
        end += 5
        replica.update_fetch_state(end - 5, 0, now_ms, end, -1)
        assert replica.log_end_offset != end
    assert replica.is_caught_up(end, now_ms, LAG_MS)
    assert replica.last_caught_up_ms == now_ms - 10


def test_a_frozen_follower_leaves_after_the_lag_time_and_not_before() -> None:
    replicas = {2: ReplicaState()}
    replicas[2].update_fetch_state(10, 0, 100, 10, -1)
    state = committed(1, 2)
    assert out_of_sync_replicas(1, 11, state, replicas, 100 + LAG_MS, LAG_MS) == set()
    assert out_of_sync_replicas(1, 11, state, replicas, 101 + LAG_MS, LAG_MS) == {2}
    assert out_of_sync_replicas(1, 10, state, replicas, 10_000, LAG_MS) == set()


def test_an_unknown_member_is_out_of_sync_and_nothing_is_while_a_change_is_in_flight() -> None:
    assert out_of_sync_replicas(1, 5, committed(1, 9), {}, 0, LAG_MS) == {9}
    assert out_of_sync_replicas(1, 5, committed(1, 9).shrink([9]), {}, 0, LAG_MS) == set()


def test_a_replica_at_the_high_watermark_must_also_reach_the_start_of_the_leader_epoch() -> None:
    def may_join(end_offset: int) -> bool:
        return may_join_isr(2, follower(end_offset), committed(1), (2,), 5, 8)

    assert not may_join(4)
    assert not may_join(7)
    assert may_join(8)


def test_only_eligible_new_replicas_join_and_only_one_change_at_a_time() -> None:
    replica = follower(10)
    assert not may_join_isr(2, replica, committed(1), (), 5, 5)
    assert not may_join_isr(2, replica, committed(1, 2), (2,), 5, 5)
    assert not may_join_isr(2, replica, committed(1).expand(3), (2,), 5, 5)


@pytest.mark.parametrize(
    ("fetch_epoch", "registered", "active", "eligible"),
    [
        (7, 7, True, True),
        (-1, 7, True, True),
        (6, 7, True, False),
        (7, 7, False, False),
        (7, None, True, False),
        (None, 7, True, False),
    ],
)
def test_a_fetch_from_an_earlier_incarnation_does_not_qualify(
    fetch_epoch: int | None, registered: int | None, active: bool, eligible: bool
) -> None:
    replica = ReplicaState(broker_epoch=fetch_epoch)
    assert is_isr_eligible(replica, is_active=active, registered_epoch=registered) is eligible


def test_re_election_keeps_the_followers_offsets_but_not_their_fetch_times() -> None:
    inside, outside = follower(9), follower(9)
    for replica, is_in_isr in ((inside, True), (outside, False)):
        replica.update_fetch_state(9, 2, 100, 9, 5)
        replica.reset(500, 12, is_new_leader=False, is_in_isr=is_in_isr)
        assert (replica.log_end_offset, replica.log_start_offset) == (9, 2)
        assert replica.last_fetch_leader_end_offset == 12
    assert inside.is_caught_up(12, 500 + LAG_MS, LAG_MS)
    assert not outside.is_caught_up(12, 500, LAG_MS)
    outside.update_fetch_state(12, 2, 500 + LAG_MS, 15, 5)
    assert not outside.is_caught_up(15, 500 + LAG_MS, LAG_MS), "it was behind when the epoch began"


def test_low_watermark_counts_living_followers_only() -> None:
    replicas = {2: ReplicaState(log_start_offset=3), 3: ReplicaState(log_start_offset=1)}
    assert low_watermark(5, replicas, (1, 2)) == 3
    assert low_watermark(2, replicas, (1, 2)) == 2
    assert low_watermark(5, {}, ()) == 5


# ---------------------------------------------------------------------- the model


@dataclass
class Model:
    """What H-1 to H-4 say, computed the slow way from a full history."""

    isr: set[int]
    proposed: set[int] = field(default_factory=set)
    ends: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # leader ends over time
    caught_up: dict[int, int] = field(default_factory=dict)

    def fetched(self, replica: int, offset: int, now_ms: int, leader_end: int) -> None:
        history = self.ends.setdefault(replica, [])
        reached = [now_ms] if offset >= leader_end else []
        if history and offset >= max(end for _, end in history):
            reached.append(history[-1][0])
        self.caught_up[replica] = max([self.caught_up.get(replica, NEVER_MS), *reached])
        history.append((now_ms, leader_end))

    def high_watermark(
        self, current: int, end: int, ends: dict[int, int], eligible: set[int], now_ms: int
    ) -> int:
        waits_for = {
            r
            for r in ends
            if r in self.isr | self.proposed
            or (
                r in eligible
                and (ends[r] == end or now_ms - self.caught_up.get(r, NEVER_MS) <= LAG_MS)
            )
        }
        fits = (o for o in range(end, current, -1) if all(ends[r] >= o for r in waits_for))
        return next(fits, current)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "fetch", "fetch", "expand", "shrink", "commit", "back", "fence"]
        ),
        st.sampled_from([2, 3]),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(events=EVENTS, min_isr=st.integers(1, 3))
def test_the_high_watermark_agrees_with_the_model_after_any_events(  # noqa: C901
    events: list[tuple[str, int, int]], min_isr: int
) -> None:
    state, model = committed(1, 2, 3), Model({1, 2, 3})
    replicas = {2: ReplicaState(), 3: ReplicaState()}
    eligible = {2, 3}
    now_ms, end, committed_to = 100, 0, 0
    for replica in replicas.values():
        replica.reset(now_ms, 0, is_new_leader=True, is_in_isr=True)
    model.caught_up = dict.fromkeys(replicas, now_ms)

    for event, replica_id, amount in events:
        now_ms += amount
        replica = replicas[replica_id]
        if event == "append":
            end += amount
        elif event == "fetch":
            offset = min(max(replica.log_end_offset, 0) + amount, end)
            replica.update_fetch_state(offset, 0, now_ms, end, -1)
            model.fetched(replica_id, offset, now_ms, end)
        elif event == "fence":
            eligible ^= {replica_id}
        elif event == "expand":
            if may_join_isr(replica_id, replica, state, eligible, committed_to, 0):
                state = state.expand(replica_id)
        elif event == "shrink":
            out = out_of_sync_replicas(LEADER, end, state, replicas, now_ms, LAG_MS)
            state = state.shrink(out) if out else state
        elif state.is_inflight:
            state = state.commit(state.proposed) if event == "commit" else state.roll_back()
        model.isr, model.proposed = set(state.isr), set(state.proposed)

        moved = high_watermark(
            committed_to, end, state, replicas, eligible, min_isr, now_ms, LAG_MS
        )
        ends = {r: s.log_end_offset for r, s in replicas.items()}
        expected = model.high_watermark(committed_to, end, ends, eligible, now_ms)
        assert moved == (committed_to if len(state.isr) < min_isr else expected)
        assert committed_to <= moved <= end
        for member in state.maximal_isr - {LEADER}:
            # StrongIsr: what is committed is on every replica that may be elected.
            assert max(replicas[member].log_end_offset, 0) >= moved
        committed_to = moved
