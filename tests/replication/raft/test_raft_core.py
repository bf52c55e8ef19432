"""The quorum's decisions, without network, disk or clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.raft import quorum_state
from replication.raft.core import RaftCore
from replication.raft.events import (
    Answered,
    BeginQuorumEpoch,
    ElectionState,
    EndQuorumEpoch,
    Event,
    Fetch,
    Fetched,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Flushed,
    LeaderChange,
    LogPosition,
    Peer,
    RaftConfig,
    Ready,
    Resign,
    Shutdown,
    SnapshotId,
    SnapshotLoaded,
    SnapshotPart,
    Start,
    Tick,
    Truncated,
    Vote,
    VoteReply,
    VotersAppended,
)
from replication.raft.leader_state import OBSERVER_SESSION_MS, committed_offset
from replication.raft.roles import Fetching, Role
from replication.raft.voter_set import Endpoint, ReplicaKey, VoterHistory, VoterSet
from tests.replication.interleaving import interleavings
from wire.errors import ErrorCode

EMPTY_LOG = LogPosition(0, 0)
NO = ErrorCode.NONE


@dataclass
class View:
    """A log of which only epochs and snapshots matter."""

    epochs: dict[int, int]
    """Epoch -> where it ends."""
    start_offset: int = 0
    latest_snapshot: SnapshotId | None = None

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.latest_snapshot

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        known = max((e for e in self.epochs if e <= epoch), default=epoch)
        return LogPosition(known, self.epochs.get(known, 0))


def started(
    node_id: int = 1,
    voters: tuple[int, ...] = (1,),
    state: ElectionState | None = None,
    log: LogPosition = EMPTY_LOG,
    view: View | None = None,
) -> tuple[RaftCore, Ready]:
    history = VoterHistory(VoterSet.of_ids(*voters))
    view = view or View({log.epoch: log.end_offset})
    made = RaftCore(ReplicaKey(node_id), history, Random(node_id), view, cluster_id="c")
    return made, made.step(Start(state or ElectionState(), log), 0)


def peer(node_id: int) -> Peer:
    return Peer(node_id, "", 0)


def vote(candidate: int, epoch: int, log: LogPosition = EMPTY_LOG, pre: bool = False) -> Vote:
    return Vote(ReplicaKey(candidate), epoch, log, pre)


def granted(voter: RaftCore, request: Vote, now_ms: int = 0) -> bool:
    reply = voter.step(request, now_ms).reply
    assert isinstance(reply, VoteReply)
    return reply.granted


def asked(ready: Ready, kind: type) -> list[int]:
    """Whom a request of that kind goes to."""
    return [to.node_id for to, request in ready.send if isinstance(request, kind)]


def due(core: RaftCore) -> int:
    assert core.deadline_ms is not None
    return core.deadline_ms


def until(core: RaftCore, role: Role, now_ms: int = 0) -> tuple[Ready, int]:
    """Let time pass until the core takes that role."""
    for _ in range(500):
        now_ms = max(now_ms, due(core))
        ready = core.step(Tick(), now_ms)
        if core.role is role:
            return ready, now_ms
    raise AssertionError(f"never {role}")


def leading(voters: tuple[int, ...] = (1, 2, 3), **start: object) -> tuple[RaftCore, Ready, int]:
    """Voter 1, elected by 2; its LeaderChange is appended, not flushed."""
    core, _ = started(1, voters, **start)  # type: ignore[arg-type]
    ready, now_ms = until(core, Role.PROSPECTIVE)
    for role in (Role.CANDIDATE, Role.LEADER):
        request = next(request for to, request in ready.send if to.node_id == 2)
        ready = core.step(
            Answered(peer(2), request, VoteReply(NO, core.epoch, granted=True)), now_ms
        )
        assert core.role is role
    return core, ready, now_ms


def fetch(replica: int, core: RaftCore, offset: int, last_epoch: int | None = None) -> Fetch:
    return Fetch(
        ReplicaKey(replica),
        core.epoch,
        offset,
        core.log.epoch if last_epoch is None else last_epoch,
    )


def following(leader: int = 2, epoch: int = 5) -> RaftCore:
    core, _ = started(1, (1, 2, 3))
    core.step(BeginQuorumEpoch(leader, epoch), 0)
    return core


def in_flight(core: RaftCore) -> tuple[Peer, Fetch | FetchSnapshot]:
    """The fetch of the role it has now."""
    assert isinstance(core.current, Fetching)
    assert core.current.fetcher._in_flight is not None
    return core.current.fetcher._in_flight


def fetched(core: RaftCore, now_ms: int, **reply: object) -> Ready:
    """The leader answers the fetch that is under way, which a tick sends if need be."""
    ready = core.step(Tick(), now_ms)
    request = next((r for _, r in ready.send if isinstance(r, Fetch)), None)
    if request is None:
        _, request = in_flight(core)
    answer = FetchReply(NO, core.epoch, core.leader_id, **reply)  # type: ignore[arg-type]
    return core.step(Answered(peer(core.leader_id), request, answer), now_ms)


# --- one voter ----------------------------------------------------------------------------------


def test_a_single_voter_elects_itself_at_once() -> None:
    voter, ready = started()
    assert voter.role is Role.LEADER
    assert ready.persist == ElectionState(1, 1)
    me = (ReplicaKey(1),)
    assert ready.append == [LeaderChange(1, 1, me, me)]
    assert ready.send == []
    assert voter.deadline_ms is None


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
    ready = voter.step(Tick(), due(voter))
    assert ready.persist == ElectionState(2, 1)
    assert voter.role is Role.LEADER


def test_a_single_voter_that_stops_says_farewell_to_nobody() -> None:
    voter, _ = started()
    assert voter.step(Shutdown(), 0) == Ready()


# --- votes (K-2) --------------------------------------------------------------------------------


def test_one_vote_per_epoch() -> None:
    voter, _ = started(1, (1, 2, 3))
    first = voter.step(vote(2, 1), 0)
    assert first.persist == ElectionState(1, -1, 2)
    assert first.reply == VoteReply(NO, 1, granted=True)
    second = voter.step(vote(3, 1), 0)
    assert second.persist is None
    assert second.reply == VoteReply(NO, 1, granted=False)
    assert granted(voter, vote(2, 1)), "the same candidate may ask again"


def test_the_vote_is_for_a_disk_not_only_for_a_number() -> None:
    """K-11: a candidate whose disk was wiped is another one."""
    voter, _ = started(1, (1, 2, 3))
    old, new = ReplicaKey(2, b"\x01" * 16), ReplicaKey(2, b"\x02" * 16)
    assert granted(voter, Vote(old, 1, EMPTY_LOG))
    assert not granted(voter, Vote(new, 1, EMPTY_LOG))


def test_a_request_for_a_disk_that_is_gone_is_refused() -> None:
    history = VoterHistory(VoterSet.of_ids(1, 2, 3))
    voter = RaftCore(ReplicaKey(1, b"\x07" * 16), history, Random(1), View({}), cluster_id="c")
    voter.step(Start(ElectionState(), EMPTY_LOG), 0)
    meant = ReplicaKey(1, b"\x06" * 16)
    reply = voter.step(Vote(ReplicaKey(2), 3, EMPTY_LOG, voter=meant), 0).reply
    assert reply == VoteReply(ErrorCode.INVALID_VOTER_KEY, 3)
    reply = voter.step(BeginQuorumEpoch(2, 4, voter=meant), 0).reply
    assert reply is not None
    assert (reply.error, voter.leader_id) == (ErrorCode.INVALID_VOTER_KEY, 2)


def test_a_candidate_with_a_shorter_log_gets_no_vote_but_its_epoch_is_adopted() -> None:
    voter, _ = started(1, (1, 2, 3), log=LogPosition(2, 10), state=ElectionState(2, 3))
    for shorter in (LogPosition(1, 99), LogPosition(2, 9)):
        assert not granted(voter, vote(2, voter.epoch + 1, shorter))
    assert voter.epoch == 4
    assert voter.state.voted_id == -1


def test_no_vote_while_a_leader_is_known_in_the_epoch() -> None:
    voter = following(3, 5)
    reply = voter.step(vote(2, 5, LogPosition(4, 99)), 0).reply
    assert reply == VoteReply(NO, 5, 3)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (vote(2, 4), ErrorCode.FENCED_LEADER_EPOCH),
        (vote(2, 6, LogPosition(6, 9)), ErrorCode.INVALID_REQUEST),
        (vote(2, 6, LogPosition(7, 9), pre=True), ErrorCode.INVALID_REQUEST),
        (vote(2, 6, LogPosition(1, -1)), ErrorCode.INVALID_REQUEST),
        (vote(-1, 6), ErrorCode.INVALID_REQUEST),
        (vote(2, 2**31 - 1), ErrorCode.INVALID_REQUEST),
        (vote(2, 2**31 - 1, pre=True), ErrorCode.INVALID_REQUEST),
        (vote(2, 6)._replace(cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
def test_votes_that_make_no_sense_are_refused(request_: Vote, error: ErrorCode) -> None:
    voter = following(3, 5)
    ready = voter.step(request_, 0)
    assert ready.reply == VoteReply(error, 5, 3)
    assert ready.persist is None


@pytest.mark.parametrize("kind", [BeginQuorumEpoch, EndQuorumEpoch])
@pytest.mark.parametrize(("leader", "epoch"), [(2, 5), (1, 6), (2, 2**31 - 1), (-3, 6)])
def test_who_cannot_lead_is_refused(
    kind: type[BeginQuorumEpoch | EndQuorumEpoch], leader: int, epoch: int
) -> None:
    """Anybody can send that: it must not end the node, nor use up the epochs."""
    voter = following(3, 5)
    ready = voter.step(kind(leader, epoch), 0)
    assert ready.reply is not None
    assert (ready.reply.error, ready.persist) == (ErrorCode.INVALID_REQUEST, None)
    assert (voter.epoch, voter.leader_id) == (5, 3)


def test_two_leaders_in_one_epoch_are_a_bug_not_a_choice() -> None:
    voter = following(3, 5)
    to, request = in_flight(voter)
    with pytest.raises(AssertionError, match="two leaders in epoch 5"):
        voter.step(Answered(to, request, FetchReply(NO, 5, 2)), 0)


@pytest.mark.parametrize("election_timeout_ms", [1, 2, 3, 4])
def test_an_election_timeout_may_be_as_short_as_the_clock_can_tell(
    election_timeout_ms: int,
) -> None:
    config = RaftConfig(election_timeout_ms=election_timeout_ms, election_backoff_max_ms=0)
    history = VoterHistory(VoterSet.of_ids(1, 2, 3))
    voter = RaftCore(ReplicaKey(1), history, Random(1), View({}), config=config)
    voter.step(Start(ElectionState(3, 2), EMPTY_LOG), 0)
    until(voter, Role.PROSPECTIVE)


def test_a_majority_of_pre_votes_then_of_votes_makes_a_leader_that_announces_itself() -> None:
    voter, _ = started(1, (1, 2, 3))
    ready, now_ms = until(voter, Role.PROSPECTIVE)
    assert ready.persist is None, "asking changes nothing"
    assert asked(ready, Vote) == [2, 3]
    request = ready.send[0].request
    ready = voter.step(Answered(peer(2), request, VoteReply(NO, 0, granted=True)), now_ms)
    assert ready.persist == ElectionState(1, -1, 1)
    assert asked(ready, Vote) == [2, 3]
    request = ready.send[0].request
    ready = voter.step(Answered(peer(2), request, VoteReply(NO, 1, granted=True)), now_ms)
    assert ready.persist == ElectionState(1, 1)
    keys = tuple(map(ReplicaKey, (1, 2, 3)))
    assert ready.append == [LeaderChange(1, 1, keys, keys[:2])]
    assert asked(ready, BeginQuorumEpoch) == [2, 3]


def test_votes_of_an_older_epoch_or_for_a_pre_vote_do_not_count() -> None:
    voter, _ = started(1, (1, 2, 3))
    ready, now_ms = until(voter, Role.PROSPECTIVE)
    pre = ready.send[0].request
    for to in (2, 3):
        voter.step(Answered(peer(to), pre, VoteReply(NO, 0, granted=True)), now_ms)
    assert voter.role is Role.CANDIDATE


def test_a_request_for_a_vote_that_is_not_answered_is_sent_again() -> None:
    voter, _ = started(1, (1, 2, 3))
    ready, now_ms = until(voter, Role.PROSPECTIVE)
    voter.step(Answered(peer(3), ready.send[1].request, None), now_ms)
    again = voter.step(Tick(), due(voter))
    assert asked(again, Vote) == [3]


def test_a_candidate_that_is_refused_waits_longer_and_longer_up_to_the_limit() -> None:
    """K-7."""
    waits = []
    voter, _ = started(1, (1, 2, 3))
    now_ms = 0
    for _ in range(12):
        ready, now_ms = until(voter, Role.PROSPECTIVE, now_ms)
        ready = voter.step(
            Answered(peer(2), ready.send[0].request, VoteReply(NO, voter.epoch, granted=True)),
            now_ms,
        )
        for send in ready.send:
            voter.step(Answered(send.to, send.request, VoteReply(NO, voter.epoch)), now_ms)
        waits.append(due(voter) - now_ms)
    assert max(waits[:2]) <= 200
    assert 200 < max(waits) <= 1000


# --- pre-vote (K-5) -----------------------------------------------------------------------------


def test_who_has_fetched_from_its_leader_refuses_a_pre_vote_who_never_did_grants_it() -> None:
    voter = following(3, 5)
    assert granted(voter, vote(2, 5, pre=True))
    fetched(voter, 0, high_watermark=0)
    assert not granted(voter, vote(2, 5, pre=True))
    assert voter.leader_id == 3


def test_a_pre_vote_promises_nothing_and_is_given_to_several() -> None:
    voter, _ = started(1, (1, 2, 3))
    for candidate in (2, 3):
        ready = voter.step(vote(candidate, 0, pre=True), 0)
        assert ready.reply == VoteReply(NO, 0, granted=True)
        assert ready.persist is None
    assert granted(voter, vote(2, 1))
    assert granted(voter, vote(3, 1, pre=True)), "even after a vote"


def test_a_pre_vote_needs_as_long_a_log() -> None:
    voter, _ = started(1, (1, 2, 3), log=LogPosition(2, 10), state=ElectionState(2))
    assert not granted(voter, vote(2, 2, LogPosition(2, 9), pre=True))
    assert granted(voter, vote(2, 2, LogPosition(2, 10), pre=True))


def test_a_pre_vote_of_a_higher_epoch_makes_the_voter_adopt_it() -> None:
    voter = following(3, 5)
    assert granted(voter, vote(2, 7, pre=True))
    assert (voter.epoch, voter.leader_id) == (7, -1)


def test_a_leader_refuses_a_pre_vote() -> None:
    core, _, now_ms = leading()
    assert not granted(core, vote(2, 1, LogPosition(1, 99), pre=True), now_ms)
    assert core.is_leader


def test_an_isolated_voter_keeps_its_epoch() -> None:
    voter = following(2, 5)
    fetched(voter, 0, high_watermark=0)
    now_ms = 0
    while now_ms < 60_000:
        now_ms = due(voter)
        for send in voter.step(Tick(), now_ms).send:
            voter.step(Answered(send.to, send.request, None), now_ms)
    assert voter.epoch == 5


def test_who_is_refused_goes_back_to_the_leader_it_knows() -> None:
    voter = following(2, 5)
    ready, now_ms = until(voter, Role.PROSPECTIVE)
    assert 2000 <= now_ms < 2250
    for send in ready.send:
        voter.step(Answered(send.to, send.request, VoteReply(NO, 5, 2)), now_ms)
    assert voter.role is Role.FOLLOWER


# --- a leader comes and goes --------------------------------------------------------------------


def test_a_follower_stays_while_its_fetches_succeed() -> None:
    voter = following(2, 1)
    for now_ms in range(0, 10_000, 1000):
        fetched(voter, now_ms, high_watermark=0)
        assert voter.role is Role.FOLLOWER
    voter.step(Tick(), 20_000)
    assert voter.role is Role.PROSPECTIVE


def test_the_announcement_is_repeated_to_those_that_do_not_fetch() -> None:
    core, ready, now_ms = leading()
    assert asked(ready, BeginQuorumEpoch) == [2, 3]
    core.step(fetch(2, core, 0, 0), now_ms + 990)
    again = core.step(Tick(), now_ms + 1000)
    assert asked(again, BeginQuorumEpoch) == [3]


def test_a_leader_that_no_majority_fetches_from_resigns_and_names_successors() -> None:
    """K-6: after one and a half fetch timeouts."""
    core, _, now_ms = leading(view=View({1: 1}))
    core.step(Flushed(LogPosition(1, 1)), now_ms)
    core.step(fetch(3, core, 1, 1), now_ms + 100)
    for passed in range(100, 3100, 100):
        assert core.is_leader
        ready = core.step(Tick(), now_ms + passed)
    ready = core.step(Tick(), now_ms + 3100)
    assert core.role is Role.RESIGNED
    assert asked(ready, EndQuorumEpoch) == [2, 3]
    request = ready.send[0].request
    assert isinstance(request, EndQuorumEpoch)
    assert [key.node_id for key in request.preferred] == [3, 2], "the furthest first"


def test_a_leader_with_a_majority_fetching_stays() -> None:
    core, _, now_ms = leading()
    for passed in range(0, 20_000, 500):
        core.step(fetch(2, core, 0, 0), now_ms + passed)
    assert core.is_leader


def test_observers_do_not_keep_a_leader_in_office() -> None:
    core, _, now_ms = leading()
    for passed in range(0, 3001, 500):
        core.step(fetch(9, core, 0, 0), now_ms + passed)
    core.step(Tick(), now_ms + 3000)
    assert core.role is Role.RESIGNED


def test_a_leader_whose_own_disk_was_slow_hears_who_fetched_meanwhile_before_it_resigns() -> None:
    core, _, now_ms = leading(view=View({1: 1}))
    core.step(Flushed(LogPosition(1, 1)), now_ms + 3500)
    core.step(fetch(9, core, 0, 0), now_ms + 3500)
    core.step(fetch(2, core, 1, 1), now_ms + 3500)
    core.step(Tick(), now_ms + 3500)
    assert (core.role, core.high_watermark) == (Role.LEADER, 1)
    core.step(Tick(), now_ms + 6500)
    assert core.role is Role.RESIGNED


def test_the_first_successor_stands_at_once_and_gets_the_others_pre_votes() -> None:
    first, second = following(3, 5), started(2, (1, 2, 3))[0]
    second.step(BeginQuorumEpoch(3, 5), 0)
    for voter in (first, second):
        fetched(voter, 0, high_watermark=0)
    farewell = EndQuorumEpoch(3, 5, (ReplicaKey(1), ReplicaKey(2)))
    second.step(farewell, 10)
    ready = first.step(farewell, 10)
    assert first.role is Role.PROSPECTIVE
    assert second.role is Role.FOLLOWER
    request = next(request for to, request in ready.send if to.node_id == 2)
    assert isinstance(request, Vote)
    assert granted(second, request, 10)


def test_a_farewell_of_an_older_epoch_is_fenced() -> None:
    reply = following(3, 5).step(EndQuorumEpoch(2, 4), 0).reply
    assert reply is not None
    assert reply.error is ErrorCode.FENCED_LEADER_EPOCH


def test_a_resigned_leader_neither_votes_in_nor_leads_its_epoch_again() -> None:
    core, _, now_ms = leading()
    core.step(Resign(), now_ms)
    assert not granted(core, vote(2, 1, LogPosition(0, 99)), now_ms)
    until(core, Role.UNATTACHED, now_ms)
    assert (core.epoch, core.leader_id) == (2, -1)


def test_a_removed_leader_that_hears_of_no_successor_goes_on_asking() -> None:
    """It votes no more, so no election timeout wakes it: it was never heard of again."""
    core, _, now_ms = leading(view=View({1: 2}))
    core.step(Flushed(LogPosition(1, 1)), now_ms)
    core.step(VotersAppended(1, VoterSet.of_ids(2, 3)), now_ms)
    core.step(Flushed(LogPosition(1, 2)), now_ms)
    for voter in (2, 3):
        core.step(fetch(voter, core, 2, 1), now_ms)
    assert core.role is Role.RESIGNED
    ready, now_ms = until(core, Role.UNATTACHED, now_ms)
    for _ in range(3):
        (question,) = [send for send in ready.send if isinstance(send.request, Fetch)]
        core.step(Answered(*question, None), now_ms)
        now_ms = due(core)
        ready = core.step(Tick(), now_ms)


def test_a_farewell_is_repeated_until_it_is_heard() -> None:
    core, _, now_ms = leading()
    ready = core.step(Shutdown(), now_ms)
    assert asked(ready, EndQuorumEpoch) == [2, 3]
    core.step(Answered(peer(2), ready.send[0].request, None), now_ms)
    again = core.step(Tick(), due(core))
    assert asked(again, EndQuorumEpoch) == [2]


def test_who_is_stopping_does_not_stand() -> None:
    voter = following(2, 5)
    voter.step(Shutdown(), 0)
    voter.step(Tick(), 60_000)
    assert voter.role is Role.FOLLOWER


# --- fetches (K-8, K-9) -------------------------------------------------------------------------


def test_a_fetch_is_refused_by_who_does_not_lead_its_epoch() -> None:
    core, _, now_ms = leading(state=ElectionState(4))
    for epoch, error in (
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (5, NO),
    ):
        ready = core.step(Fetch(ReplicaKey(2), epoch, 0, 0), now_ms)
        assert (ready.reply.error if ready.reply else NO) is error
        assert (ready.serve is not None) == (error is NO)
    follower = following(2, 5)
    reply = follower.step(Fetch(ReplicaKey(3), 5, 0, 0), 0).reply
    assert isinstance(reply, FetchReply)
    assert (reply.error, reply.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [
        (20, 5, None),
        (10, 3, None),
        (8, 3, None),
        (12, 3, LogPosition(3, 10)),
        (15, 4, LogPosition(3, 10)),
        (5, 2, LogPosition(2, 4)),
        (21, 5, LogPosition(5, 20)),
    ],
)
def test_a_fetch_tells_where_the_logs_part(
    offset: int, epoch: int, diverging: LogPosition | None
) -> None:
    view = View({2: 4, 3: 10, 5: 20})
    core, _, now_ms = leading(state=ElectionState(5), log=LogPosition(5, 20), view=view)
    ready = core.step(fetch(2, core, offset, epoch), now_ms)
    if diverging is None:
        assert ready.serve is not None
    else:
        assert isinstance(ready.reply, FetchReply)
        assert ready.reply.diverging == diverging


@pytest.mark.parametrize(
    ("offset", "epoch", "wants_snapshot"),
    [(0, 0, True), (5, 3, True), (10, 2, True), (12, 2, True), (10, 3, False), (20, 5, False)],
)
def test_a_fetch_below_the_log_gets_a_snapshot(
    offset: int, epoch: int, wants_snapshot: bool
) -> None:
    view = View({3: 15, 5: 20}, 10, SnapshotId(10, 3))
    core, _, now_ms = leading(state=ElectionState(5), log=LogPosition(5, 20), view=view)
    ready = core.step(fetch(2, core, offset, epoch), now_ms)
    if wants_snapshot:
        assert isinstance(ready.reply, FetchReply)
        assert ready.reply.snapshot_id == SnapshotId(10, 3)
    else:
        assert ready.serve is not None


def test_the_formats_own_checkpoint_is_never_offered() -> None:
    view = View({5: 20}, 0, SnapshotId(0, 0))
    core, _, now_ms = leading(state=ElectionState(5), log=LogPosition(5, 20), view=view)
    assert core.step(fetch(2, core, 0, 0), now_ms).serve is not None


def test_a_follower_truncates_where_the_leader_says_and_fetches_again() -> None:
    voter, _ = started(1, (1, 2, 3), log=LogPosition(3, 30), state=ElectionState(3))
    voter.step(BeginQuorumEpoch(2, 5), 0)
    ready = fetched(voter, 0, diverging=LogPosition(2, 12))
    assert ready.truncate == LogPosition(2, 12)
    assert ready.send == [], "not before it is done"
    again = voter.step(Truncated(LogPosition(2, 12)), 0)
    ((_, request),) = again.send
    assert isinstance(request, Fetch)
    assert (request.offset, request.last_epoch) == (12, 2)


def test_a_follower_that_cannot_truncate_now_asks_again_in_a_while() -> None:
    voter, _ = started(1, (1, 2, 3), log=LogPosition(3, 30), state=ElectionState(3))
    voter.step(BeginQuorumEpoch(2, 5), 0)
    fetched(voter, 0, diverging=LogPosition(2, 12))
    assert voter.step(Truncated(LogPosition(3, 30)), 0).send == []
    assert asked(voter.step(Tick(), 100), Fetch) == [2]


def test_an_answer_to_what_we_asked_before_our_log_grew_is_not_used() -> None:
    """Found by simulation: a leader steps down with a record that is not synced, asks from before
    it, and then has it; the answer would go behind it."""
    core, _, now_ms = leading(view=View({1: 1}))
    ready = core.step(BeginQuorumEpoch(2, 5), now_ms)
    request = next(request for _, request in ready.send if isinstance(request, Fetch))
    assert request.offset == 0
    core.step(Flushed(LogPosition(1, 1)), now_ms)
    answer = FetchReply(NO, 5, 2, high_watermark=7, records=b"x")
    ready = core.step(Answered(peer(2), request, answer), now_ms)
    assert ready.accept is None
    assert core.high_watermark == -1
    ((_, again),) = ready.send
    assert isinstance(again, Fetch)
    assert (again.offset, again.last_epoch) == (1, 1)


def test_truncation_below_the_high_watermark_is_a_bug_not_a_choice() -> None:
    voter = following(2, 5)
    ready = fetched(voter, 0, records=b"x", high_watermark=9)
    assert ready.accept is not None
    voter.step(Fetched(LogPosition(5, 9), 9), 0)
    assert voter.high_watermark == 9
    with pytest.raises(AssertionError, match="below the high watermark"):
        fetched(voter, 0, diverging=LogPosition(4, 8))


def test_a_follower_fetches_again_only_when_what_it_got_is_on_disk() -> None:
    """K-4."""
    voter = following(2, 5)
    assert fetched(voter, 0, records=b"x", high_watermark=1).send == []
    assert voter.step(Tick(), 5).send == []
    ready = voter.step(Fetched(LogPosition(5, 3), 1), 10)
    assert [request.offset for _, request in ready.send] == [3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sent", "put_away"),
    [
        ({"records": b"x"}, Fetched(LogPosition(5, 3), 1)),
        ({"snapshot_id": SnapshotId(50, 4)}, SnapshotPart(1)),
        ({"snapshot_id": SnapshotId(50, 4)}, SnapshotLoaded(LogPosition(4, 50), None)),
    ],
)
def test_a_follower_whose_disk_is_slow_fetches_on_and_does_not_stand(
    sent: dict[str, object], put_away: Event
) -> None:
    """Its leader answered at once: while it asked for votes, it would not fetch."""
    voter = following(2, 5)
    ready = fetched(voter, 0, **sent)
    if ready.begin_snapshot is not None:
        ((to, request),) = ready.send
        piece = FetchSnapshotReply(NO, 5, ready.begin_snapshot, 2, size=2, data=b"x")
        voter.step(Answered(to, request, piece), 0)
    late_ms = 2 * voter.config.fetch_timeout_ms
    ready = voter.step(put_away, late_ms)
    assert voter.role is Role.FOLLOWER
    assert [to.node_id for to, _ in ready.send] == [2]
    voter.step(Tick(), 2 * late_ms)
    assert voter.role is Role.PROSPECTIVE


def test_voters_among_what_a_slow_disk_took_make_no_follower_stand() -> None:
    voter = following(2, 5)
    fetched(voter, 0, records=b"x")
    late_ms = 2 * voter.config.fetch_timeout_ms
    sets = [(1, VoterSet.of_ids(1, 2)), (2, VoterSet.of_ids(1))]
    ready = voter.step(Fetched(LogPosition(5, 3), 2, sets), late_ms)
    assert (voter.role, ready.send) == (Role.FOLLOWER, [])
    assert voter.voters.ids == (1,)
    ready, _ = until(voter, Role.LEADER, late_ms)
    assert voter.leader is not None
    assert voter.leader.epoch_start_offset == 3


def test_a_follower_believes_a_high_watermark_only_as_far_as_its_log() -> None:
    voter = following(2, 5)
    fetched(voter, 0, records=b"x", high_watermark=9)
    assert voter.step(Fetched(LogPosition(5, 4), 9), 0).high_watermark == 4
    assert not voter.is_caught_up
    fetched(voter, 0, records=b"x", high_watermark=9)
    assert voter.step(Fetched(LogPosition(5, 9), 9), 0).high_watermark == 9
    assert voter.is_caught_up


def test_a_snapshot_is_downloaded_piece_by_piece_and_the_log_restarts_at_its_end() -> None:
    voter = following(2, 5)
    ready = fetched(voter, 0, snapshot_id=SnapshotId(50, 4))
    assert ready.begin_snapshot == SnapshotId(50, 4)
    ((_, request),) = ready.send
    assert isinstance(request, FetchSnapshot)
    assert (request.snapshot_id, request.position) == (SnapshotId(50, 4), 0)
    ready = voter.step(SnapshotLoaded(LogPosition(4, 50), None), 0)
    assert ready.high_watermark == 50
    assert voter.log == LogPosition(4, 50)


def test_an_observer_asks_around_when_its_leader_is_silent() -> None:
    """K-13."""
    observer, _ = started(9, (1, 2, 3))
    ready = observer.step(BeginQuorumEpoch(2, 5), 0)
    targets = []
    now_ms = 0
    while now_ms < 1500:
        for to, request in ready.send:
            targets.append(to.node_id)
            ready = observer.step(Answered(to, request, None), now_ms)
        now_ms = max(now_ms, due(observer))
        ready = observer.step(Tick(), now_ms)
    assert targets[0::2] == [2] * len(targets[0::2]), "the leader every other time"
    assert set(targets) == {1, 2, 3}
    assert observer.role is Role.FOLLOWER


def test_an_observer_asks_those_who_answer_before_it_tries_a_dead_leader_again() -> None:
    """A node that is down costs up to a second for each question; a new leader was known to all
    other voters all the while, and brokers were fenced because they could not find it."""
    observer, _ = started(9, (1, 2, 3))
    ready = observer.step(BeginQuorumEpoch(2, 5), 0)
    targets = []
    now_ms = 0
    while len(targets) < 24:
        for to, request in ready.send:
            targets.append(to.node_id)
            knows = None if to.node_id == 2 else FetchReply(ErrorCode.NOT_LEADER_OR_FOLLOWER, 5, 2)
            ready = observer.step(Answered(to, request, knows), now_ms)
        now_ms = max(now_ms, due(observer))
        ready = observer.step(Tick(), now_ms)
    assert [at for at, node in enumerate(targets) if node == 2] == [0, 11, 22]
    assert set(targets) == {1, 2, 3}
    ((to, request),) = ready.send
    assert to.node_id != 2
    news = FetchReply(ErrorCode.FENCED_LEADER_EPOCH, 6, 3)
    assert asked(observer.step(Answered(to, request, news), now_ms), Fetch) == [3]


def test_an_observer_learns_of_the_leader_from_a_refusal() -> None:
    observer, ready = started(9, (1, 2, 3))
    ((to, request),) = ready.send
    refusal = FetchReply(ErrorCode.FENCED_LEADER_EPOCH, 7, 3)
    ready = observer.step(Answered(to, request, refusal), 0)
    assert (observer.epoch, observer.leader_id) == (7, 3)
    assert asked(ready, Fetch) == [3]


def test_an_observer_never_stands() -> None:
    observer, _ = started(9, (1, 2, 3))
    observer.step(Tick(), 100_000)
    assert observer.role is Role.UNATTACHED


# --- commit (K-3) -------------------------------------------------------------------------------


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=9))
def test_the_committed_offset_is_the_largest_a_majority_has(ends: list[int]) -> None:
    found = committed_offset(ends)
    assert sum(end >= found for end in ends) > len(ends) // 2
    assert sum(end > found for end in ends) <= len(ends) // 2


def test_a_leader_does_not_count_itself_before_its_flush() -> None:
    core, _, now_ms = leading(view=View({1: 1}))
    assert core.step(fetch(2, core, 1, 1), now_ms).high_watermark is None
    assert core.step(Flushed(LogPosition(1, 1)), now_ms).high_watermark == 1


def test_who_has_the_leaders_id_on_another_disk_does_not_count_for_it() -> None:
    core, _, now_ms = leading(view=View({1: 1}))
    stranger = fetch(1, core, 1, 1)._replace(replica=ReplicaKey(1, b"another disk, id"))
    core.step(fetch(2, core, 1, 1), now_ms)
    assert core.step(stranger, now_ms).high_watermark is None


def test_observers_never_count() -> None:
    core, _, now_ms = leading(view=View({1: 1}))
    core.step(Flushed(LogPosition(1, 1)), now_ms)
    assert core.step(fetch(9, core, 1, 1), now_ms).high_watermark is None
    assert [o.key.node_id for o in core.leader.active_observers(now_ms)] == [9]  # type: ignore
    later = now_ms + OBSERVER_SESSION_MS
    assert core.leader.active_observers(later) == []  # type: ignore[union-attr]


def test_a_majority_on_an_old_record_does_not_commit_it() -> None:
    """Raft's figure 8: the record of epoch 1 is on a majority, yet only epoch 3's own counts."""
    view = View({1: 2, 3: 3})
    core, _, now_ms = leading(state=ElectionState(2, -1, 1), log=LogPosition(1, 2), view=view)
    core.step(Flushed(LogPosition(1, 2)), now_ms)
    assert core.step(fetch(2, core, 2, 1), now_ms).high_watermark is None
    core.step(Flushed(LogPosition(3, 3)), now_ms)
    assert core.step(fetch(2, core, 3, 3), now_ms).high_watermark == 3


# --- whatever arrives ---------------------------------------------------------------------------


def test_a_step_before_the_start_and_a_second_start_are_bugs() -> None:
    core, _ = started(1, (1, 2, 3))
    with pytest.raises(AssertionError, match="starts once"):
        core.step(Start(ElectionState(), EMPTY_LOG), 0)
    fresh = RaftCore(core.key, core.history, Random(0), View({}))
    with pytest.raises(AssertionError, match="first event"):
        fresh.step(Tick(), 0)


def test_what_came_for_a_role_that_ended_is_on_disk_and_moves_nothing_else() -> None:
    """The disk took longer than the voter's patience: it stands, and then hears of the records."""
    voter = following(2, 5)
    fetched(voter, 0, records=b"records", high_watermark=0)
    until(voter, Role.PROSPECTIVE)
    assert voter.step(Fetched(LogPosition(5, 3), 2), due(voter) - 1).send == []
    assert (voter.log, voter.high_watermark) == (LogPosition(5, 3), 2)
    assert voter.role is Role.PROSPECTIVE


def test_a_reply_of_an_older_epoch_changes_nothing() -> None:
    voter = following(2, 5)
    _, request = in_flight(voter)
    stale: Event = Answered(peer(2), request, FetchReply(NO, 4, 3, high_watermark=7))
    voter.step(stale, 0)
    assert (voter.epoch, voter.leader_id, voter.high_watermark) == (5, 2, -1)


def test_who_is_told_that_it_leads_a_higher_epoch_does_not_believe_it() -> None:
    """Its disk was wiped: another replica with its number led."""
    observer, ready = started(2, (1, 2, 3))
    ((to, request),) = ready.send
    observer.step(Answered(to, request, FetchReply(ErrorCode.FENCED_LEADER_EPOCH, 9, 2)), 0)
    assert (observer.epoch, observer.leader_id, observer.role) == (9, -1, Role.UNATTACHED)


def test_who_asks_for_the_leader_beside_a_change_is_not_sent_to_the_last_one() -> None:
    """Other threads ask, and wait for an answer as long as that one leads."""
    seen: list[tuple[int, Peer | None]] = []

    def race() -> tuple[Callable[[], object], Callable[[], object]]:
        core, _ = started(1, (1, 2, 3))
        for leader_id in (2, 3):
            new = BeginQuorumEpoch(leader_id, leader_id, (Endpoint("CONTROLLER", "h", leader_id),))
            change = partial(core.step, new, 0)
            if leader_id == 2:
                change()
        return change, lambda: seen.append((core.leader_id, core.leader_peer()))

    for _ in interleavings(quorum_state, race):
        leader_id, at = seen[-1]
        assert at is not None
        assert leader_id == 2 or at.port == 3, "node 3, at the address of node 2"
