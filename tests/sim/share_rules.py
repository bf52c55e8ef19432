"""What members of a share group are told (`share_members`) is held to

    AcceptedStays             what was told as accepted is not delivered again
    AcceptedOnce              nobody else, whose lock held, or by a leader of before, was told that
                              it accepted it too
    RejectedStays             what was told as rejected is not delivered again
    CountsStay                a record comes back with more deliveries than were told to be kept
    BoundedDeliveries         with no more than the limit
    HandedToOne               one leader gives nobody what another member has, whose lock holds
    LocksHold                 nor refuses what the one who has it says of it
    DeliveredAtLeastOnce      in the end everything was given to somebody,
    NothingLost               who said what became of it, or it was given for the last time, and
    Liveness                  everything is done with

A leader that does not know that it was replaced may hand out what it remembers, as in Kafka: the
first four are of leaders that are. What is handed out is looked at where it is, before the network
may lose it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from server.share.share_partition import ACCEPT, REJECT, RELEASE
from tests.sim.teams import Team
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode
from wire.messages.share import ShareFetchResponse

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.node import SimNode
    from tests.sim.share_members import Connection

LOCK_MS = 1_500
DELIVERIES = 4
_HELD_MS = LOCK_MS * 9 // 10
"""So long a lock holds, whatever the clocks of the brokers say."""

Offset = tuple[int, int]
"""A partition of the topic, and the offset of a record."""


class Where(NamedTuple):
    """One leadership of one process."""

    node_id: int
    incarnation: int
    leader_epoch: int


class Hold:
    """A record in the hands of a member."""

    def __init__(
        self, connection: Connection, where: Where | None, count: int, asked_ms: int
    ) -> None:
        """`where` is None if somebody else led by then, or may have."""
        self.connection = connection
        self.where = where
        self.count = count
        self.until_ms = asked_ms + _HELD_MS
        self.handed_ms = asked_ms
        self.is_spent = False
        """Something was said of it."""

    def holds_at(self, ms: int) -> bool:
        """Whether the lock cannot have ended yet."""
        is_known = self.where is not None and not self.connection.is_dropped
        return is_known and not self.is_spent and ms < self.until_ms


class Asked(NamedTuple):
    """When a request came to a broker, and what it led."""

    ms: int
    leaderships: dict[int, Where]


class Told(NamedTuple):
    """Who was told, when, by a leader of which epoch, and whether it came in time for sure."""

    who: str
    ms: int
    epoch: int
    held: bool


class Said(NamedTuple):
    """What a member says of records of one partition."""

    who: str
    sent_ms: int
    kinds: dict[Offset, int]
    holds: dict[Offset, Hold | None]

    def held_until(self, ms: int) -> bool:
        """Whether all its locks held until then, in one leadership."""
        holds = self.holds.values()
        return all(
            hold is not None and not hold.connection.is_dropped and ms < hold.until_ms
            for hold in holds
        )


class ShareRules(Team):
    """What any member was told, and what follows from that."""

    def __init__(self, cluster: SimCluster, name: str, topic: str) -> None:
        super().__init__(cluster, name, topic)
        self.handed: dict[Offset, int] = {}
        """How often."""
        self.accepted: dict[Offset, Told] = {}
        self.rejected: dict[Offset, Told] = {}
        self.ended: set[Offset] = set()
        """What may have ended: somebody said so, or it was delivered for the last time."""
        self._counts: dict[Offset, tuple[int, int]] = {}
        """How many deliveries are kept, as was told, and when."""
        self._holds: dict[Offset, Hold] = {}

    # ---- what members are told

    def leaderships(self, node: SimNode) -> dict[int, Where]:
        """What a broker leads, and nobody else."""
        newest, found = self.cluster.check.image.topics_by_name[self.topic].partitions, {}
        for index, registration in newest.items():
            own = node.metadata.partition(self.topic, index)
            epoch = registration.leader_epoch
            if registration.leader == node.node_id and own and own.leader_epoch == epoch:
                found[index] = Where(node.node_id, node.incarnation, epoch)
        return found

    def hands_out(
        self, node: SimNode, connection: Connection, asked: Asked, answer: ShareFetchResponse
    ) -> None:
        """A broker answers a fetch, of which some may have waited for others."""
        before, now = asked.leaderships, self.leaderships(node)
        for topic in answer.responses:
            for told in topic.partitions:
                index = told.partition_index
                where = now[index] if index in now and before.get(index) == now[index] else None
                for batch in told.acquired_records:
                    for offset in range(batch.first_offset, batch.last_offset + 1):
                        record, count = (index, offset), batch.delivery_count
                        self._check(record, count, asked.ms, is_current=where is not None)
                        self._hand(record, Hold(connection, where, count, asked.ms), asked.ms)

    def _check(self, record: Offset, count: int, asked_ms: int, *, is_current: bool) -> None:
        if not 1 <= count <= DELIVERIES:
            raise InvariantBroken(f"BoundedDeliveries: {record} for the {count}th time")
        if not is_current:
            return
        for name, ended in (("AcceptedStays", self.accepted), ("RejectedStays", self.rejected)):
            if record in ended and ended[record].ms <= asked_ms:
                raise InvariantBroken(f"{name}: {record} of {ended[record]}, with {count}")
        kept, kept_ms = self._counts.get(record, (0, 0))
        if count <= kept and kept_ms <= asked_ms:
            raise InvariantBroken(f"CountsStay: {record} has {count} after {kept}")

    def _hand(self, record: Offset, hold: Hold, asked_ms: int) -> None:
        """A fetch that also acknowledged may be answered long after, and after a later one."""
        self.handed[record] = self.handed.get(record, 0) + 1
        if hold.count == DELIVERIES:
            self.ended.add(record)
        before, ms = self._holds.get(record), self.cluster.world.ms
        if before is not None and before.where == hold.where:
            if before.holds_at(ms) and before.handed_ms <= asked_ms:
                raise InvariantBroken(f"HandedToOne: {record} in {hold.where}, again {hold.count}")
            if before.count > hold.count:
                return
        hold.handed_ms = ms
        self._holds[record] = hold

    def hold(self, record: Offset, connection: Connection) -> Hold | None:
        """What is known of a record that a member was given, unless another has it since."""
        hold = self._holds.get(record)
        return hold if hold is not None and hold.connection is connection else None

    def acknowledged(self, said: Said, code: int, epoch: int, *, held: bool) -> None:
        """A broker's word on what was said of one partition arrived. Who comes too late is told of
        what is accepted by now that it is; but not by a leader of before."""
        told = Told(said.who, self.cluster.world.ms, epoch, held)
        for record, kind in said.kinds.items() if not code else ():
            hold = said.holds[record]
            if kind == ACCEPT:
                before = self.accepted.setdefault(record, told)
                if before is not told and before.held and (held or epoch < before.epoch):
                    raise InvariantBroken(f"AcceptedOnce: {record} by {before} and {told}")
            elif kind == REJECT:
                self.rejected.setdefault(record, told)
            elif kind == RELEASE and hold is not None:
                self._counts[record] = max((hold.count, told.ms), self._counts.get(record, (0, 0)))
            elif hold is not None:
                hold.until_ms = max(hold.until_ms, said.sent_ms + _HELD_MS)
        if code == ErrorCode.INVALID_RECORD_STATE and held:
            raise InvariantBroken(f"LocksHold: {said.who} was refused {said.kinds}")

    # ---- the end

    def check_end(self, index: int, end: int) -> None:
        """Of a partition that the group is through with."""
        for offset in range(end):
            if (index, offset) not in self.handed:
                raise InvariantBroken(f"DeliveredAtLeastOnce: {self.topic}-{index} at {offset}")
            if (index, offset) not in self.ended:
                raise InvariantBroken(f"NothingLost: {self.topic}-{index} at {offset}")
