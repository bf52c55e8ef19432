"""A group of KIP-848 whose members join, hang, die and leave, while its coordinator moves.

The coordinator assigns; a member says in its heartbeats what it has given back, and commits with
its member epoch. Who was not answered for a session gives everything up by itself.

    OwnedOnceInAnEpoch        no partition is given to two members in one epoch
    OwnedByOne                nobody is given what another, who was answered within its session,
                              has not given back
    NothingIsForgotten        a group that a member was told of is there as long as it has members

and to what `teams` holds all of them to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from server.coordinator.group_messages import Client
from tests.sim.clients import coordinator_of
from tests.sim.teams import Offsets, Team, TeamMember, code_of
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode
from wire.messages.groups import ConsumerGroupHeartbeatRequest

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

SESSION_MS = 1_500
CONFIG = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "200",
}
"""What the brokers of such a run are configured with."""
_HEARTBEAT_MS = 300
REBALANCE_MS = 60_000
"""Not what ends a member here: its session does, which it knows of itself."""
_TIMEOUT_MS = 900
_CLIENT = Client("sim", "/sim", 1)
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class ConsumerTeam(Team):
    """Its members, and what any of them was told."""

    def __init__(self, cluster: SimCluster, name: str, topic: str, members: int) -> None:
        super().__init__(cluster, name, topic)
        self._owners: dict[tuple[int, int], str] = {}
        """By epoch and partition: who was given it then."""
        self.members = [self._member(number) for number in range(members)]

    def _member(self, number: int) -> ConsumerMember:
        return ConsumerMember(self, number)

    def is_settled(self) -> bool:
        """Everybody is in one epoch, and between them they own everything."""
        epochs = {member.epoch for member in self.members}
        owned = sorted(index for member in self.members for index in member.owned)
        return not self.members or (
            len(epochs) == 1 and owned == list(range(self.cluster.options.partitions))
        )

    def given(self, member: ConsumerMember, index: int) -> None:
        """A member was answered that a partition is its own, which it had not before."""
        owner = self._owners.setdefault((member.epoch, index), member.member_id)
        if owner != member.member_id:
            raise InvariantBroken(
                f"OwnedOnceInAnEpoch: {self.topic}-{index} in {member.epoch} is "
                f"{owner}'s and {member.member_id}'s"
            )
        for other in self.members:
            if other is not member and index in other.owned and other.is_alive():
                raise InvariantBroken(
                    f"OwnedByOne: {self.topic}-{index} is {other.member_id}'s and now "
                    f"{member.member_id}'s"
                )


class ConsumerMember(TeamMember):
    """One consumer of the group."""

    def __init__(self, team: ConsumerTeam, number: int) -> None:
        super().__init__(team, number, _TIMEOUT_MS)
        self._consumers = team
        self.epoch = 0
        self.owned: dict[int, int | None] = {}
        """Partitions, and what was committed of each as far as it is known."""
        self._says_all = True
        self._answered_ms = 0
        """When the last heartbeat that was answered was sent."""

    def is_alive(self) -> bool:
        """Whether its session cannot have ended yet, whatever the clocks of the brokers say."""
        return self._world.ms < self._answered_ms + SESSION_MS * 9 // 10

    # ---- life

    def _begin(self) -> None:
        """A new life, with nothing."""
        if self._team.is_over:
            return
        self._life += 1
        self.member_id = f"c{self._number}-{self._life}"
        self.epoch, self.owned, self._says_all = 0, {}, True
        self._find()

    def _turn(self) -> None:
        world = self._world
        if self._cluster.is_faulty and world.chance(0.03):
            self._die(leaves=world.chance(0.5))
        elif self.epoch and world.ms > self._answered_ms + SESSION_MS:
            world.tell(f"{self.member_id} was not answered for a session")
            self._begin()
        else:
            self._heartbeat()

    def _die(self, *, leaves: bool) -> None:
        self._world.tell(f"{self.member_id} {'leaves' if leaves else 'dies'}")
        if leaves and self.epoch:
            self._ask(self._request(-1), lambda answer: None)
        self._life += 1
        self.epoch, self.owned, self._answered_ms = 0, {}, 0
        self._world.after(self._world.between(100, 3_000), self._begin)

    # ---- heartbeats

    def _ask(self, request: Any, answered: Callable[[Any], object]) -> None:
        self._call(
            lambda node, reply: node.group_coordinator.consumer_group_heartbeat(
                request, _CLIENT, reply
            ),
            answered,
        )

    def _request(self, epoch: int) -> Any:
        """One that says nothing new."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self._team.name, member_id=self.member_id, member_epoch=epoch
        )

    def _say_all(self, request: Any) -> None:
        """What it wants and has."""
        topic = ConsumerGroupHeartbeatRequest.Topic(
            topic_id=self._team.topic_id, partitions=sorted(self.owned)
        )
        request.topic_partitions = [topic] if self.owned else []
        request.rebalance_timeout_ms = REBALANCE_MS
        request.subscribed_topic_names = [self._team.topic]

    def _wanted(self, answer: Any) -> set[int] | None:
        """What it is to have; None is as before."""
        if answer.assignment is None:
            return None
        return {i for topic in answer.assignment.topic_partitions for i in topic.partitions}

    def _heartbeat(self) -> None:
        request = self._request(self.epoch)
        if self._says_all:
            self._say_all(request)
        sent_ms = self._world.ms
        self._ask(request, lambda answer: self._beaten(sent_ms, answer))

    def _beaten(self, sent_ms: int, answer: Any) -> None:
        code = code_of(answer)
        if code in _FENCED:
            self._world.tell(f"{self.member_id} is fenced")
            self._begin()
        elif code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.GROUP_ID_NOT_FOUND):
            raise InvariantBroken(f"NothingIsForgotten: {self.member_id} was told {code}")
        elif code != 0:
            self._says_all = True
            self._later(self._world.between(20, 150), self._find_again)
        else:
            self._taken(sent_ms, answer)

    def _find_again(self) -> None:
        self._coordinator = coordinator_of(self._cluster, self._team.name) or self._coordinator
        self._turn()

    def _taken(self, sent_ms: int, answer: Any) -> None:
        self.epoch, self._answered_ms, self._says_all = answer.member_epoch, sent_ms, False
        fresh: list[int] = []
        wanted = self._wanted(answer)
        if wanted is not None:
            fresh = sorted(wanted - self.owned.keys())
            self._says_all = not self.owned.keys() <= wanted
            for index in self.owned.keys() - wanted:
                del self.owned[index]
            for index in fresh:
                self._consumers.given(self, index)
                self.owned[index] = None
            self._world.tell(f"{self.member_id} owns {sorted(wanted)} in epoch {self.epoch}")
        if fresh:
            self._read_offsets(fresh)
        elif any(offset is not None for offset in self.owned.values()):
            stands_still = self._stands_still()
            self._later(self._world.between(1_000, 4_000) if stands_still else 0, self._commit)
        else:
            self._later(_HEARTBEAT_MS, self._turn)

    # ---- offsets

    def _read_offsets(self, fresh: list[int]) -> None:
        def answered(_code: int | None, offsets: Offsets) -> None:
            self._know(offsets)
            self._later(_HEARTBEAT_MS, self._turn)

        self._fetch_offsets(fresh, answered, member_id=self.member_id, member_epoch=self.epoch)

    def _know(self, offsets: Offsets) -> None:
        self.owned.update((i, offset) for i, offset in offsets.items() if i in self.owned)

    def _commit(self) -> None:
        wanted = {i: offset + 1 for i, offset in self.owned.items() if offset is not None}

        def answered(code: int | None) -> None:
            if code in _FENCED:
                self._begin()
                return
            if code == 0:
                self._know(wanted)
            self._later(_HEARTBEAT_MS, self._turn)

        self._commit_offsets(self.epoch, wanted, answered)
