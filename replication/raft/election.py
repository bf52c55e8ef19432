"""One round of asking the other voters: for pre-votes, for votes, or to hear our farewell. PURE.

What: whom we are asking, who said yes or no, when to ask again those whose answer did not come, and
when the round is over. Why: PROSPECTIVE, CANDIDATE and RESIGNED do the same thing with different
requests. How: a request is repeated after the retry backoff until it is answered or the round ends;
a round lasts between one and two election timeouts, so that two candidates rarely collide twice; a
candidate that lost waits a binary exponential backoff with jitter (K-7) before the next round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from replication.raft.own_events import Send

if TYPE_CHECKING:
    from replication.raft.events import Outgoing
    from replication.raft.own_events import Ready, Replica
    from replication.raft.voter_set import Voter

_BACKOFF_BASE_MS = 50


class Election:
    """Owner: the role that asks. `lost`: elections in a row that were lost before."""

    __slots__ = (
        "_asked",
        "_core",
        "_request",
        "_silent",
        "granted",
        "is_backing_off",
        "lost",
        "rejected",
        "retry_ms",
    )

    def __init__(self, core: Replica, lost: int = 0) -> None:
        self._core = core
        self._request: Callable[[Voter], Outgoing] | None = None
        self._asked: set[int] = set()
        self._silent: dict[int, int] = {}
        self.granted = {core.node_id}
        self.rejected: set[int] = set()
        self.is_backing_off = False
        self.retry_ms: int | None = None
        self.lost = lost

    def begin(self, request: Callable[[Voter], Outgoing], ready: Ready) -> None:
        """Ask each other voter `request(voter)`; we count as one who said yes."""
        self._request = request
        self._ask(ready)

    def _ask(self, ready: Ready) -> None:
        """Ask each voter that has not answered and is not being asked."""
        self.retry_ms = None
        core, request = self._core, self._request
        if request is None:
            return
        done = self._asked | self.granted | self.rejected
        for voter in core.other_voters():
            if voter.node_id not in done:
                self._asked.add(voter.node_id)
                ready.send.append(Send(core.peer_of(voter), request(voter)))

    def poll(self, ready: Ready, now_ms: int) -> None:
        """Ask again, if it is time to."""
        if self.retry_ms is not None and now_ms >= self.retry_ms:
            self._ask(ready)

    def answered(self, node_id: int, said: bool | None, now_ms: int) -> None:
        """A voter said yes, no, or (None) nothing. Others are not counted."""
        self._asked.discard(node_id)
        if node_id not in self._core.voters:
            return
        if said is None:
            self._silent[node_id] = self._silent.get(node_id, 0) + 1
            if not self.is_backing_off:
                self.retry_ms = now_ms + self._core.config.retry_backoff_ms
        else:
            (self.granted if said else self.rejected).add(node_id)

    @property
    def is_won(self) -> bool:
        voters = self._core.voters
        return sum(voter.node_id in self.granted for voter in voters) >= voters.majority

    @property
    def is_lost(self) -> bool:
        """So many refused that a majority cannot be reached."""
        voters = self._core.voters
        return len(self.rejected) > len(voters) - voters.majority

    @property
    def nobody_hears(self) -> bool:
        """Were all others asked twice in vain: they are gone too."""
        return all(self._silent.get(v.node_id, 0) > 1 for v in self._core.other_voters())

    def back_off(self, now_ms: int) -> int:
        """Lost: wait until the time returned before the next round."""
        self.is_backing_off = True
        self.retry_ms = None
        self.lost += 1
        longest = min(
            _BACKOFF_BASE_MS << min(self.lost, 10), self._core.config.election_backoff_max_ms
        )
        return now_ms + 1 + self._core.random_below(longest)
