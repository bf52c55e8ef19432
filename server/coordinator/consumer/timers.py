"""How long members of consumer and streams groups may be silent, and may take for what they must
do (PURE).

session      until a member must be heard again; one of the classic protocol says how long
revocation   until it has given back what it must (CG-19)
join, sync   until a member of the classic protocol has come for its assignment (CG-36)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from server.coordinator.consumer.member import ConsumerMember, MemberState
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group import GroupDecision

SESSION, REVOCATION, JOIN, SYNC = "member", "revocation", "member join", "member sync"

Fence = Callable[[str, str, "int | None"], "GroupDecision | None"]
"""Takes group, member and, if it matters, the epoch that the member should have left."""


class MemberTimers:
    """Those of one shard. Owner: the shard; takes no lock, owns no clock."""

    def __init__(
        self,
        deadlines: Deadlines,
        moment: Moment,
        session_timeout_ms: Callable[[str], int],
        fence: Fence,
    ) -> None:
        self._deadlines = deadlines
        self._moment = moment
        self._session_timeout_ms = session_timeout_ms
        self._fence = fence

    def heard(self, group_id: str, member: ConsumerMember, *, has_moved: bool) -> None:
        """A member was heard; `has_moved`: its assignment is another than before."""
        id_, classic = member.member_id, member.classic
        if classic is not None:
            self._set(SESSION, group_id, id_, classic.session_timeout_ms)
            return
        self.spoke(group_id, id_)
        if not has_moved:
            return
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self.must_give_back(group_id, id_, member.rebalance_timeout_ms, member.epoch)
        else:
            self.gave_back(group_id, id_)

    def spoke(self, group_id: str, member_id: str) -> None:
        """A session of the group's own length begins anew."""
        self._set(SESSION, group_id, member_id, self._session_timeout_ms(group_id))

    def must_give_back(self, group_id: str, member_id: str, timeout_ms: int, epoch: int) -> None:
        """It has so long to leave the epoch."""
        self._set(REVOCATION, group_id, member_id, timeout_ms, epoch)

    def gave_back(self, group_id: str, member_id: str) -> None:
        """It has nothing to give back."""
        self._deadlines.cancel((REVOCATION, group_id, member_id))

    def must_join(self, group_id: str, member: ConsumerMember) -> None:
        """It was told to join again; told once more, its time does not begin anew."""
        if (JOIN, group_id, member.member_id) not in self._deadlines:
            self._set(JOIN, group_id, member.member_id, member.rebalance_timeout_ms)

    def joined(self, group_id: str, member: ConsumerMember, sync_timeout_ms: int) -> None:
        """It did, and is to ask for its assignment now."""
        self._deadlines.cancel((JOIN, group_id, member.member_id))
        self._set(SYNC, group_id, member.member_id, sync_timeout_ms)
        self.heard(group_id, member, has_moved=True)

    def synced(self, group_id: str, member: ConsumerMember) -> None:
        """It has asked."""
        self._deadlines.cancel((SYNC, group_id, member.member_id))
        self.heard(group_id, member, has_moved=False)

    def gone(self, group_id: str, member_id: str) -> None:
        """It is no member any more."""
        for what in (SESSION, REVOCATION, JOIN, SYNC):
            self._deadlines.cancel((what, group_id, member_id))

    def _set(
        self, what: str, group_id: str, member_id: str, delay_ms: int, epoch: int | None = None
    ) -> None:
        fence = partial(self._fence, group_id, member_id, epoch)
        self._deadlines.set((what, group_id, member_id), self._moment.now_ms + delay_ms, fence)
