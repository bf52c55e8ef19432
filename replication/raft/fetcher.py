"""What a replica asks the leader for: records, a snapshot's bytes, or who the leader is. PURE.

What: the one request that is under way, and the next one. Why: a follower's fetch is also its
acknowledgement, so it leaves only when what the last one brought is on disk (K-4): `in_hand` holds
it back until the caller stepped `Fetched`, `Truncated`, `SnapshotPart` or `SnapshotLoaded`.
How: a follower asks its leader; who knows none asks any voter or bootstrap server, whose refusal
names the leader (K-13). A fetch that failed is repeated after a backoff. Nobody announces a new
leader to an observer, so when its leader does not answer it asks others, as long as these answer,
before it turns to the old one again: a request to a node that is down can take a second to fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.raft.events import (
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Peer,
    Ready,
    Reply,
    Send,
    SnapshotId,
)

if TYPE_CHECKING:
    from replication.raft.own_events import Replica

ASK_INTERVAL_MS = 100
"""Between two questions who leads."""
OTHERS_ASKED = 10
"""How many questions an observer asks others before it tries a silent leader again."""
_NOBODY_MS = 1000


class Fetcher:
    """Owner: the role that fetches. Another leader, or none, is another role with its own."""

    __slots__ = (
        "_core",
        "_in_flight",
        "_others_to_ask",
        "_ready_ms",
        "_snapshot_id",
        "_snapshot_position",
        "has_fetched",
        "in_hand",
    )

    def __init__(self, core: Replica) -> None:
        self._core = core
        self._in_flight: tuple[Peer, Fetch | FetchSnapshot] | None = None
        self._ready_ms = 0
        self._others_to_ask = 0
        self._snapshot_id: SnapshotId | None = None
        self._snapshot_position = 0
        self.in_hand = False
        self.has_fetched = False
        """Did the present leader answer a fetch of ours (K-5)."""

    @property
    def deadline_ms(self) -> int | None:
        return None if self._in_flight is not None or self.in_hand else self._ready_ms

    def nobody_leads(self, now_ms: int) -> None:
        """What is under way means nothing any more; who leads is asked, but not at once. A leader
        that said farewell does not hold us from anything, nor answers.
        """
        self._in_flight = None
        self._snapshot_id = None
        self._others_to_ask = 0
        self._ready_ms = now_ms + ASK_INTERVAL_MS
        self.has_fetched = False

    def poll(self, leader: Peer | None, ready: Ready, now_ms: int) -> None:
        """Ask, if it is time to and nothing is under way."""
        if self._in_flight is not None or self.in_hand or now_ms < self._ready_ms:
            return
        target = leader
        if leader is None or self._others_to_ask:
            target = self._anyone_but(leader)
        if target is None:
            self._ready_ms = now_ms + _NOBODY_MS
            return
        request = self._request(target is leader)
        self._in_flight = (target, request)
        ready.send.append(Send(target, request))

    def _anyone_but(self, leader: Peer | None) -> Peer | None:
        """Somebody who may know who leads; the leader itself if there is nobody else."""
        core = self._core
        known = [core.peer_of(voter) for voter in core.other_voters()]
        known.extend(core.bootstrap)
        others = [peer for peer in known if peer != leader]
        return others[core.random_below(len(others))] if others else leader

    def _request(self, to_leader: bool) -> Fetch | FetchSnapshot:
        core = self._core
        if self._snapshot_id is not None and to_leader:
            return FetchSnapshot(
                core.key,
                core.epoch,
                self._snapshot_id,
                self._snapshot_position,
                core.config.fetch_max_bytes,
                core.cluster_id,
            )
        return Fetch(
            core.key,
            core.epoch,
            core.log.end_offset,
            core.log.epoch,
            core.config.fetch_max_wait_ms,
            core.config.fetch_max_bytes,
            core.high_watermark,
            core.cluster_id,
        )

    def answered(
        self,
        peer: Peer,
        request: Fetch | FetchSnapshot,
        reply: Reply | None,
        useful: bool,
        ready: Ready,
        now_ms: int,
    ) -> None:
        """What came of our request. `useful`: it is the leader's of our epoch, without error."""
        if self._in_flight != (peer, request):
            return
        self._in_flight = None
        core = self._core
        if not useful:
            self._failed(peer, request, reply, now_ms)
            return
        self._ready_ms = now_ms
        self._others_to_ask = 0
        self.has_fetched = True
        core.wait_for_leader(now_ms)
        if isinstance(reply, FetchReply):
            # Our log may have grown since we asked: what we wrote as leader, synced after the end.
            assert isinstance(request, Fetch)
            if (request.last_epoch, request.offset) == core.log:
                self._take(reply, ready)
        elif isinstance(reply, FetchSnapshotReply):
            self._take_part(reply, ready)

    def _failed(
        self, peer: Peer, request: Fetch | FetchSnapshot, reply: Reply | None, now_ms: int
    ) -> None:
        if isinstance(request, FetchSnapshot) and reply is not None:
            self._snapshot_id = None  # gone, or the leader is another: ask anew what to take
        core = self._core
        leader = core.leader_peer()
        if leader is None or core.is_voter:
            self._others_to_ask = 0
        elif peer == leader:
            self._others_to_ask = OTHERS_ASKED
        else:
            self._others_to_ask = 0 if reply is None else max(0, self._others_to_ask - 1)
        is_at_once = leader is not None and (peer == leader or not self._others_to_ask)
        self._ready_ms = now_ms + (core.config.retry_backoff_ms if is_at_once else ASK_INTERVAL_MS)

    def _take(self, reply: FetchReply, ready: Ready) -> None:
        core = self._core
        if reply.diverging is not None:
            assert reply.diverging.end_offset >= core.high_watermark, (
                f"leader {reply.leader_id} of epoch {reply.epoch} asks to truncate to "
                f"{reply.diverging.end_offset}, below the high watermark {core.high_watermark}"
            )
            ready.truncate = reply.diverging
            self.in_hand = True
        elif reply.snapshot_id is not None:
            self._snapshot_id, self._snapshot_position = reply.snapshot_id, 0
            ready.begin_snapshot = reply.snapshot_id
        elif reply.records:
            ready.accept = reply
            self.in_hand = True
        else:
            core.follow_high_watermark(reply.high_watermark, ready)

    def _take_part(self, reply: FetchSnapshotReply, ready: Ready) -> None:
        if (reply.snapshot_id, reply.position) == (self._snapshot_id, self._snapshot_position):
            ready.accept_snapshot = reply
            self.in_hand = True
        else:
            self._snapshot_id = None

    def taken(self, now_ms: int, made_progress: bool) -> None:
        """What was in hand is on disk, or could not be used."""
        self._put_away(now_ms)
        if not made_progress:
            self._ready_ms = now_ms + ASK_INTERVAL_MS

    def snapshot_grew(self, position: int | None, now_ms: int) -> None:
        """The unfinished snapshot's size; None when its piece could not be used: on a full disk the
        next one will hardly do better at once.
        """
        self._put_away(now_ms)
        if position is None:
            self._snapshot_id = None
            self._ready_ms = now_ms + ASK_INTERVAL_MS
        else:
            self._snapshot_position = position

    def snapshot_loaded(self, now_ms: int) -> None:
        """There is nothing to download any more."""
        self._put_away(now_ms)
        self._snapshot_id = None

    def _put_away(self, now_ms: int) -> None:
        """Nothing is in hand any more. How long that took tells of our disk, not of the leader: who
        stood for election now would not fetch, and with one voter less the leader would be alone.
        """
        if self.in_hand and now_ms > self._ready_ms:  # when it came
            self._core.wait_for_leader(now_ms)
        self.in_hand = False
