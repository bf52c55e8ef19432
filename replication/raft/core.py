"""The quorum's decisions: who leads, which epoch, what is committed, who may fetch what. PURE.

What: one replica's state machine of Kafka's Raft variant (KIP-595, 853, 996), voter or observer.
`step(event, now_ms)` takes one event and answers a `Ready`: what to persist, append, truncate,
send and answer, and the new high watermark. Words: `events`.
Why: no socket, clock, file or randomness of its own, so that a simulator may drive many of them.
How: replication is pull. Followers fetch from the leader, so the leader learns a voter's end offset
from its next fetch (`leader_state`). The leader counts *itself* only after `Flushed` told it that
its log is on disk (Apache Kafka counts before the flush; a single voter then exposes records a
power cut takes back). An offset is committed when a majority of voters hold it and it lies above
the leader's first record in its epoch, the LeaderChange record (Raft's rule for entries of older
epochs).
Here are the steps; what they know and change is `quorum_state`. A quorum of one voter needs no
more. The dealings with other replicas are `peers`, loaded when there are some: with `answers` (what
we are asked), `fetcher` (what we ask), `voter_changes`.

Roles are values of `roles`: what ends with a role is its own (timeout, election, fetcher, what the
leader said, what a leader knows). Moves to the same epoch never clear a vote; a move to a higher
epoch always does. Only a sole voter goes to CANDIDATE without a pre-vote.
An observer is UNATTACHED or FOLLOWER (RESIGNED when it was removed while it led). Who is removed by
a record that is not committed, as far as it knows, still stands.

Pre-vote (K-5): given without any promise to whoever's log is as long as ours, unless we lead or
have fetched from a leader in this epoch: an isolated voter that returns disturbs nobody. A leader's
farewell (EndQuorumEpoch) lifts that refusal.

Duties of the caller, in this order, for each Ready:
1. `persist` is written, fsynced, renamed and its directory fsynced before anything else happens.
2. `append` goes to the log as a control batch in the leader's epoch, a voter set is stepped as
   `VotersAppended` at once, and after the fsync the caller steps `Flushed(position)`. The same
   holds for each batch of records it appends as leader.
3. `send` leaves; each ends in one `Answered`. `reply`, `serve`, `change_reply` are given.
4. `high_watermark` is told to whoever waits.
5. Before any other event: `truncate` -> `Truncated`; `accept` -> `Fetched`; `accept_snapshot` ->
   `SnapshotPart` or `SnapshotLoaded`. `begin_snapshot` comes before `send`.
Steps must come from one thread. Call `step(Tick(), now_ms)` at `deadline_ms`, when all that came
until then has been stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from replication.raft.own_events import (
    Flushed,
    Ready,
    Resign,
    Shutdown,
    Start,
    Tick,
    VotersAppended,
)
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Leader, Resigned

if TYPE_CHECKING:
    from replication.raft.events import Event


class RaftCore(QuorumState):
    """One replica of the quorum's log. Owner: the raft driver's thread."""

    __slots__ = ()

    @property
    def deadline_ms(self) -> int | None:
        """When time alone gives it something to do (monotonic ms); None: never."""
        return self.current.deadline_ms

    def step(self, event: Event, now_ms: int) -> Ready:
        """Take one event; return what to do. See the module docstring for the order."""
        assert self.is_started or type(event) is Start, "the first event says what the disk holds"
        ready = Ready()
        handler = _HANDLERS.get(type(event)) or _with_peers().HANDLERS[type(event)]
        handler(self, event, ready, now_ms)
        current = self.current
        if isinstance(current, Leader):
            self._poll_leader(current, ready, now_ms)
        else:
            _with_peers().POLLS[self.role](self, current, ready, now_ms)
        return ready

    def _on_tick(self, _event: Tick, ready: Ready, now_ms: int) -> None:
        """Time has passed; what else it means is for the role's poll.

        Only here a leader finds that nobody fetches from it (K-6): whoever did while our own disk
        kept us has been heard by now. (Kafka's looks after each message that it handles.)
        """
        current = self.current
        if isinstance(current, Leader) and current.state.is_deserted(now_ms):
            self._resign(current, ready, now_ms)

    def _on_resign(self, _event: Resign, ready: Ready, now_ms: int) -> None:
        if isinstance(self.current, Leader):
            # Who could write nothing as leader leaves what comes to the others' timeouts: where no
            # disk has room, leaders would follow each other as fast as votes travel.
            self._resign(self.current, ready, now_ms, says_farewell=self.has_committed_in_epoch)

    def _on_shutdown(self, _event: Shutdown, ready: Ready, now_ms: int) -> None:
        self.is_stopping = True
        self.led_until_stop = self.is_leader and not self.is_only_voter
        if self.led_until_stop and isinstance(self.current, Leader):
            self._resign(self.current, ready, now_ms)

    def _on_flushed(self, event: Flushed, ready: Ready, _now_ms: int) -> None:
        self.log_ends(event.log)
        leader = self.leader
        if leader is not None:
            leader.flushed(event.log.end_offset)
            self.commit(ready)

    def _on_voters_appended(self, event: VotersAppended, ready: Ready, now_ms: int) -> None:
        leader = self.leader
        assert leader is not None, "only a leader appends"
        self.history.add(event.offset, event.voters)
        leader.change_voters(event.voters, self.log.end_offset, now_ms)
        if self.changes_begun is not None:
            self.changes_begun.appended(event.offset, ready)

    def _poll_leader(self, leading: Leader, ready: Ready, now_ms: int) -> None:
        leader = leading.state
        if leading.changes_begun is not None:
            leading.changes_begun.expire(ready, now_ms)
        if not leader.is_voter and self.history.latest_offset < self.high_watermark:  # removed
            self._resign(leading, ready, now_ms)
        elif leader.announce_ms is not None and now_ms >= leader.announce_ms:
            _with_peers().announce(self, leader, ready, now_ms)

    def _resign(
        self, leading: Leader, ready: Ready, now_ms: int, *, says_farewell: bool = True
    ) -> None:
        resigned, successors = Resigned(self), leading.state.successors()
        self.become(resigned, ready)
        resigned.wait_until(self.round_timeout(now_ms))
        if successors and says_farewell:
            _with_peers().say_farewell(self, resigned, successors, ready)


_HANDLERS: Mapping[type, Callable[[RaftCore, Any, Ready, int], None]] = {
    Start: RaftCore.initialize,
    Tick: RaftCore._on_tick,
    Resign: RaftCore._on_resign,
    Shutdown: RaftCore._on_shutdown,
    Flushed: RaftCore._on_flushed,
    VotersAppended: RaftCore._on_voters_appended,
}


def _with_peers() -> Any:
    """The dealings with other replicas; a single voter never loads them."""
    from replication.raft import peers

    return peers
