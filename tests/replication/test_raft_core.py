"""The quorum's decisions, without network, disk or clock."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.raft.core import (
    BeginQuorumEpoch,
    ElectionState,
    FetchSucceeded,
    Flushed,
    LeaderChange,
    LogPosition,
    RaftCore,
    Ready,
    ReplicaFetch,
    Resign,
    Role,
    Start,
    Tick,
    VoteRequest,
    VoteResponse,
    committed_offset,
)

EMPTY_LOG = LogPosition(0, 0)


def core(node_id: int = 1, voters: tuple[int, ...] = (1,)) -> RaftCore:
    return RaftCore(node_id, voters, Random(node_id))


def started(
    node_id: int = 1,
    voters: tuple[int, ...] = (1,),
    state: ElectionState | None = None,
    log: LogPosition = EMPTY_LOG,
) -> tuple[RaftCore, Ready]:
    made = core(node_id, voters)
    return made, made.step(Start(state or ElectionState(), log), 0)


# --- one voter ----------------------------------------------------------------------------------


def test_a_single_voter_elects_itself_at_once() -> None:
    voter, ready = started()
    assert voter.role is Role.LEADER
    assert ready.persist == ElectionState(1, 1)
    assert ready.append == [LeaderChange(1, 1, (1,), (1,))]
    assert ready.send == []


def test_a_single_voter_commits_only_what_is_flushed() -> None:
    voter, ready = started()
    assert ready.high_watermark is None
    assert voter.step(Flushed(LogPosition(1, 1)), 0).high_watermark == 1
    assert voter.step(Flushed(LogPosition(1, 5)), 0).high_watermark == 5
    assert voter.step(Flushed(LogPosition(1, 5)), 0).high_watermark is None


def test_records_of_older_epochs_are_committed_only_with_the_leader_change() -> None:
    voter, ready = started(log=LogPosition(3, 10), state=ElectionState(3, 1))
    assert ready.persist == ElectionState(4, 1)
    assert voter.step(Flushed(LogPosition(3, 10)), 0).high_watermark is None
    assert voter.step(Flushed(LogPosition(4, 11)), 0).high_watermark == 11


def test_a_restarted_leader_goes_to_a_new_epoch() -> None:
    voter, _ = started(state=ElectionState(7, 1), log=LogPosition(7, 100))
    assert voter.epoch == 8


def test_a_lost_vote_file_does_not_take_the_epoch_back_below_the_log() -> None:
    voter, _ = started(log=LogPosition(9, 100))
    assert voter.epoch == 10


def test_a_leader_that_resigned_stands_again_only_after_a_timeout() -> None:
    voter, _ = started()
    voter.step(Resign(), 0)
    assert voter.role is Role.RESIGNED
    assert voter.step(Tick(), 10).persist is None
    assert voter.deadline_ms is not None
    ready = voter.step(Tick(), voter.deadline_ms)
    assert ready.persist == ElectionState(2, 1)
    assert voter.role is Role.LEADER


# --- votes (K-2) --------------------------------------------------------------------------------


def test_one_vote_per_epoch() -> None:
    voter, _ = started(1, (1, 2, 3))
    first = voter.step(VoteRequest(2, 1, LogPosition(0, 0)), 0)
    assert first.persist == ElectionState(1, -1, 2)
    assert first.send[0].message == VoteResponse(1, 1, True)
    second = voter.step(VoteRequest(3, 1, LogPosition(0, 0)), 0)
    assert second.persist is None
    assert second.send[0].message == VoteResponse(1, 1, False)
    again = voter.step(VoteRequest(2, 1, LogPosition(0, 0)), 0)
    assert again.persist is None
    assert again.send[0].message == VoteResponse(1, 1, True)


def test_a_candidate_with_a_shorter_log_gets_no_vote_but_its_epoch_is_adopted() -> None:
    voter, _ = started(1, (1, 2, 3), log=LogPosition(2, 10), state=ElectionState(2, 3))
    for shorter in (LogPosition(1, 99), LogPosition(2, 9)):
        ready = voter.step(VoteRequest(2, voter.epoch + 1, shorter), 0)
        assert ready.send[0].message == VoteResponse(1, voter.epoch, False)
    assert voter.epoch == 4
    assert voter.state.voted_id == -1


def test_no_vote_while_a_leader_is_known_in_the_epoch() -> None:
    voter, _ = started(1, (1, 2, 3))
    voter.step(BeginQuorumEpoch(3, 5), 0)
    ready = voter.step(VoteRequest(2, 5, LogPosition(9, 99)), 0)
    assert ready.send[0].message == VoteResponse(1, 5, False, 3)


def test_two_leaders_in_one_epoch_are_a_bug_not_a_choice() -> None:
    voter, _ = started(1, (1, 2, 3))
    voter.step(BeginQuorumEpoch(3, 5), 0)
    with pytest.raises(AssertionError, match="two leaders in epoch 5"):
        voter.step(BeginQuorumEpoch(2, 5), 0)


def test_a_majority_of_votes_makes_a_leader_and_announces_it() -> None:
    voter, _ = started(1, (1, 2, 3))
    assert voter.deadline_ms is not None
    asked = voter.step(Tick(), voter.deadline_ms)
    assert [send.to for send in asked.send] == [2, 3]
    assert voter.role is Role.CANDIDATE
    won = voter.step(VoteResponse(2, 1, True), 0)
    assert won.append == [LeaderChange(1, 1, (1, 2, 3), (1, 2))]
    assert [send.message for send in won.send] == [BeginQuorumEpoch(1, 1)] * 2


def test_votes_of_an_older_epoch_do_not_count() -> None:
    voter, _ = started(1, (1, 2, 3))
    for _ in range(2):
        assert voter.deadline_ms is not None
        voter.step(Tick(), voter.deadline_ms)
    assert voter.epoch == 2
    voter.step(VoteResponse(2, 1, True), 0)
    assert voter.role is Role.CANDIDATE


def test_a_follower_stays_while_its_fetches_succeed() -> None:
    voter, _ = started(1, (1, 2, 3))
    voter.step(BeginQuorumEpoch(2, 1), 0)
    for now_ms in range(0, 10_000, 1000):
        voter.step(FetchSucceeded(1, 0), now_ms)
        assert voter.step(Tick(), now_ms + 999).persist is None
    assert voter.step(Tick(), 20_000).persist == ElectionState(2, -1, 1)


def test_a_follower_believes_a_high_watermark_only_as_far_as_its_log() -> None:
    voter, _ = started(1, (1, 2, 3))
    voter.step(BeginQuorumEpoch(2, 1), 0)
    voter.step(Flushed(LogPosition(1, 4)), 0)
    assert voter.step(FetchSucceeded(1, 9), 0).high_watermark == 4


# --- commit (K-3) -------------------------------------------------------------------------------


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=9))
def test_the_committed_offset_is_the_largest_a_majority_has(ends: list[int]) -> None:
    found = committed_offset(ends)
    assert sum(end >= found for end in ends) > len(ends) // 2
    assert sum(end > found for end in ends) <= len(ends) // 2


def test_a_leader_does_not_count_itself_before_its_flush() -> None:
    voter, _ = started(1, (1, 2, 3))
    assert voter.deadline_ms is not None
    voter.step(Tick(), voter.deadline_ms)
    voter.step(VoteResponse(2, 1, True), 0)
    assert voter.step(ReplicaFetch(2, 1, 1), 0).high_watermark is None
    assert voter.step(Flushed(LogPosition(1, 1)), 0).high_watermark == 1


def test_observers_never_count() -> None:
    voter, _ = started(1, (1, 2, 3))
    assert voter.deadline_ms is not None
    voter.step(Tick(), voter.deadline_ms)
    voter.step(VoteResponse(2, 1, True), 0)
    voter.step(Flushed(LogPosition(1, 1)), 0)
    assert voter.step(ReplicaFetch(9, 1, 1), 0).high_watermark is None


def test_a_majority_on_an_old_record_does_not_commit_it() -> None:
    """Raft's figure 8: the record of epoch 1 is on a majority, yet only epoch 3's own counts."""
    voter, _ = started(1, (1, 2, 3), log=LogPosition(1, 2), state=ElectionState(2, -1, 1))
    assert voter.deadline_ms is not None
    voter.step(Tick(), voter.deadline_ms)
    voter.step(VoteResponse(2, 3, True), 0)
    voter.step(Flushed(LogPosition(1, 2)), 0)
    assert voter.step(ReplicaFetch(2, 3, 2), 0).high_watermark is None
    voter.step(Flushed(LogPosition(3, 3)), 0)
    assert voter.step(ReplicaFetch(2, 3, 3), 0).high_watermark == 3


# --- a small quorum under chance ----------------------------------------------------------------


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_never_two_leaders_in_an_epoch_and_one_vote_each(random: Random) -> None:
    """Three voters, messages delayed, lost, repeated and reordered, restarts from what was
    persisted.
    """
    voters = (1, 2, 3)
    cores = {n: core(n, voters) for n in voters}
    disk = {n: ElectionState() for n in voters}
    net: deque[tuple[int, object]] = deque()
    leaders: dict[int, int] = {}
    votes: dict[tuple[int, int], int] = {}
    now_ms = 0

    def perform(node: int, ready: Ready) -> None:
        if ready.persist is not None:
            disk[node] = ready.persist
            if ready.persist.voted_id != -1:
                key = (ready.persist.epoch, node)
                assert votes.setdefault(key, ready.persist.voted_id) == ready.persist.voted_id
        for change in ready.append:
            assert leaders.setdefault(change.epoch, node) == node
        net.extend((send.to, send.message) for send in ready.send)

    for node in voters:
        perform(node, cores[node].step(Start(disk[node], LogPosition(0, 0)), now_ms))
    for _ in range(300):
        now_ms += random.randrange(200)
        action = random.random()
        node = random.choice(voters)
        if action < 0.6 and net:
            net.rotate(-random.randrange(len(net)))
            to, message = net[0] if random.random() < 0.1 else net.popleft()
            if random.random() > 0.1:
                perform(to, cores[to].step(message, now_ms))  # type: ignore[arg-type]
        elif action < 0.97:
            perform(node, cores[node].step(Tick(), now_ms))
        else:
            cores[node] = core(node, voters)
            perform(node, cores[node].step(Start(disk[node], LogPosition(0, 0)), now_ms))


def test_three_voters_agree_on_a_leader_when_the_network_works() -> None:
    voters = (1, 2, 3)
    cores = {n: core(n, voters) for n in voters}
    net: deque[tuple[int, object]] = deque()
    for node in voters:
        cores[node].step(Start(ElectionState(), LogPosition(0, 0)), 0)
    for now_ms in range(0, 3000, 50):
        for node in voters:
            net.extend((s.to, s.message) for s in cores[node].step(Tick(), now_ms).send)
        while net:
            to, message = net.popleft()
            ready = cores[to].step(message, now_ms)  # type: ignore[arg-type]
            net.extend((s.to, s.message) for s in ready.send)
        leading = [n for n in voters if cores[n].is_leader]
        if leading:
            break
    assert len(leading) == 1
    assert {cores[n].leader_id for n in voters} == set(leading)
    assert len({cores[n].epoch for n in voters}) == 1
