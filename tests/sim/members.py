"""A group whose members join, commit what they own, die and leave, while its coordinator moves.

Members are classic ones: join, sync (who leads assigns), heartbeats, offsets committed with the
generation and read back by the next owner. Each keeps to the coordinator it joined until that one
refuses it.

    OwnedOnceInAGeneration    no partition is given to two members of one generation (C14)
    OneAssignment             a generation that was answered is never assigned anew (G-2, G-3)
    NobodyElsePays            no honest member is told UNKNOWN_SERVER_ERROR, which a Java consumer
                              takes as final; what a `Vandal` sends costs the vandal

and to what `teams` holds all of them to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from server.coordinator.group_messages import Client, LeavingMember
from tests.sim.clients import coordinator_of
from tests.sim.teams import Offsets, Team, TeamMember, code_of
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.network import Reply
    from tests.sim.node import SimNode

_SESSION_MS = 1_500
_HEARTBEAT_MS = 400
_TIMEOUT_MS = 1_500
_JOIN_TIMEOUT_MS = 4_000
_CLIENT = Client("sim", "/sim", 9)
_FORGOTTEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class Group(Team):
    """Its members, and what any of them was told."""

    def __init__(self, cluster: SimCluster, name: str, topic: str, members: int) -> None:
        super().__init__(cluster, name, topic)
        self.owners: dict[int, dict[int, str]] = {}
        """By generation: partition, and the member it was given to."""
        self.members = [Member(self, number) for number in range(members)]

    def is_settled(self) -> bool:
        """Everybody works in one generation, and between them they own everything."""
        generations = {member.generation for member in self.members}
        owned = sorted(index for member in self.members for index in member.positions)
        return len(generations) <= 1 and (
            not self.members or owned == list(range(self.cluster.options.partitions))
        )

    def given(self, generation: int, member: str, partitions: list[int]) -> None:
        """A member was answered its part."""
        owners = self.owners.setdefault(generation, {})
        for index in partitions:
            if owners.setdefault(index, member) != member:
                raise InvariantBroken(
                    f"OwnedOnceInAGeneration: {self.topic}-{index} in {generation} is "
                    f"{owners[index]}'s and {member}'s"
                )
        before = {index for index, owner in owners.items() if owner == member}
        if before != set(partitions):
            raise InvariantBroken(
                f"OneAssignment: {member} has {sorted(before)} and {partitions} in {generation}"
            )


class Member(TeamMember):
    """One consumer of the group."""

    def __init__(self, group: Group, number: int) -> None:
        super().__init__(group, number, _TIMEOUT_MS)
        self._group = group
        self.generation = -1
        self.positions: dict[int, int] = {}
        """Owned partitions, and what was committed of each."""

    def _begin(self) -> None:
        """Find the coordinator and join, as nobody in particular if we have no id."""
        if self._group.is_over:
            return
        self._coordinator = coordinator_of(self._cluster, self._group.name)
        if self._coordinator is None:
            self._world.after(200, self._begin)
        else:
            self._join()

    def _failed(self, code: int | None) -> None:
        """Begin again; as somebody new if the coordinator does not know us."""
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            raise InvariantBroken(f"NobodyElsePays: {self.member_id} was told {code}")
        if code in _FORGOTTEN:
            self.member_id = ""
        self._life += 1
        self.generation, self.positions = -1, {}
        self._world.after(self._world.between(20, 150), self._begin)

    # ---- join and sync

    def _join(self) -> None:
        protocol = JoinGroupRequest.Protocol(name="range", metadata=b"%d" % self._number)
        request = JoinGroupRequest(
            group_id=self._group.name,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        self._call(
            lambda node, reply: node.group_coordinator.join_group(request, _CLIENT, reply),
            self._joined,
            _JOIN_TIMEOUT_MS,
        )

    def _joined(self, answer: Any) -> None:
        code = code_of(answer)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._join()
            return
        if code != 0:
            self._failed(code)
            return
        self.member_id, generation = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == self.member_id:
            parts = self._cluster.options.partitions
            members = [member.member_id for member in answer.members]
            assignments = [
                SyncGroupRequest.Assignment(
                    member_id=one, assignment=bytes(range(at, parts, len(members)))
                )
                for at, one in enumerate(members)
            ]
        request = SyncGroupRequest(
            group_id=self._group.name,
            generation_id=generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        self._call(
            lambda node, reply: node.group_coordinator.sync_group(request, reply),
            lambda answer: self._synced(generation, answer),
        )

    def _synced(self, generation: int, answer: Any) -> None:
        code = code_of(answer)
        if code != 0:
            self._failed(code)
            return
        mine = list(bytes(answer.assignment))
        self._group.given(generation, self.member_id, mine)
        self.generation = generation
        self._world.tell(f"{self.member_id[-4:]} owns {mine} in generation {generation}")
        if mine:
            self._read_offsets(mine)
        self._world.after(_HEARTBEAT_MS, self._turn_of(self._life, generation))

    # ---- offsets

    def _read_offsets(self, mine: list[int]) -> None:
        def answered(code: int | None, offsets: Offsets) -> None:
            if code != 0:
                self._failed(code)
            self.positions.update(offsets)

        self._fetch_offsets(mine, answered)

    def _commit(self) -> None:
        wanted = {index: offset + 1 for index, offset in self.positions.items()}

        def answered(code: int | None) -> None:
            if code != 0:
                self._failed(code)
                return
            self.positions.update(wanted)
            self._world.after(_HEARTBEAT_MS, self._turn_of(self._life, self.generation))

        self._commit_offsets(self.generation, wanted, answered)

    # ---- life

    def _turn_of(self, life: int, generation: int) -> Callable[[], None]:
        def turn() -> None:
            if life == self._life and generation == self.generation and not self._group.is_over:
                self._turn()

        return turn

    def _turn(self) -> None:
        """A heartbeat, then a commit; or the end."""
        world = self._world
        if self._cluster.is_faulty and world.chance(0.03):
            self._die(leaves=world.chance(0.5))
            return
        request = HeartbeatRequest(
            group_id=self._group.name, generation_id=self.generation, member_id=self.member_id
        )
        self._call(
            lambda node, reply: node.group_coordinator.heartbeat(request, reply), self._beaten
        )

    def _beaten(self, answer: Any) -> None:
        code = code_of(answer)
        if code != 0:
            self._failed(code)
        elif not self.positions:
            self._world.after(_HEARTBEAT_MS, self._turn_of(self._life, self.generation))
        elif self._stands_still():
            self._world.after(self._world.between(1_000, 4_000), self._commit_of(self._life))
        else:
            self._commit()

    def _commit_of(self, life: int) -> Callable[[], None]:
        return lambda: self._commit() if life == self._life else None

    def _die(self, *, leaves: bool) -> None:
        self._world.tell(f"{self.member_id[-4:]} {'leaves' if leaves else 'dies'}")
        if leaves:
            leaving = [LeavingMember(self.member_id, None)]
            self._call(
                lambda node, reply: node.group_coordinator.leave_group(
                    self._group.name, leaving, reply
                ),
                lambda answer: None,
            )
        self._life += 1
        self.member_id, self.generation, self.positions = "", -1, {}
        self._world.after(self._world.between(100, 3_000), self._begin)


class Vandal:
    """Sends the team's coordinator what honest clients never send, under names of its own."""

    def __init__(self, cluster: SimCluster, every_ms: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._every_ms = every_ms
        self._count = 0
        self._world.after(every_ms, self._next)

    def _next(self) -> None:
        if not self._cluster.is_faulty:
            return
        self._world.after(self._world.between(1, self._every_ms), self._next)
        node_id = coordinator_of(self._cluster, self._cluster.team.name)
        if node_id is not None:
            harm = self._world.random.choice((self._join_twice, self._borrow, self._shout))
            harm(node_id)

    def _name(self, node: SimNode, filling: str = "") -> str:
        """A new group beside the team's."""
        home = node.group_coordinator.partition_for(self._cluster.team.name)
        while True:
            self._count += 1
            name = f"vandal-{self._count}{filling}"
            if node.group_coordinator.partition_for(name) == home:
                return name

    def _send(self, node_id: int, serve: Callable[[SimNode, Reply], object]) -> None:
        self._cluster.network.call(
            None, node_id, serve, lambda answer: None, _JOIN_TIMEOUT_MS, needs_broker=True
        )

    def _join_twice(self, node_id: int) -> None:
        """One protocol, listed twice."""

        def serve(node: SimNode, reply: Reply) -> None:
            request = _strange_join(self._name(node), "", None)
            node.group_coordinator.join_group(request, _CLIENT._replace(api_version=3), reply)

        self._send(node_id, serve)

    def _borrow(self, node_id: int) -> None:
        """A promised member comes with the instance id of another."""

        def serve(node: SimNode, reply: Reply) -> None:
            name, groups = self._name(node), node.group_coordinator

            def promised(answer: Any) -> None:
                if isinstance(answer, KafkaError):
                    return
                borrowed = _strange_join(name, answer.member_id, "i")
                groups.join_group(borrowed, _CLIENT, reply)

            groups.join_group(_strange_join(name, "", "i"), _CLIENT, lambda answer: None)
            groups.join_group(_strange_join(name, "", None), _CLIENT, promised)

        self._send(node_id, serve)

    def _shout(self, node_id: int) -> None:
        """A group id that no record can hold."""

        def serve(node: SimNode, reply: Reply) -> None:
            partition = OffsetCommitRequest.Topic.Partition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
            topic = OffsetCommitRequest.Topic(name=self._cluster.team.topic, partitions=[partition])
            name = self._name(node, "!" * 40_000)
            request = OffsetCommitRequest(group_id=name, member_id="", topics=[topic])
            node.group_coordinator.commit_offsets(request, 9, reply)

        self._send(node_id, serve)


def _strange_join(name: str, member_id: str, instance_id: str | None) -> JoinGroupRequest:
    protocol = JoinGroupRequest.Protocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id=name,
        session_timeout_ms=_SESSION_MS,
        rebalance_timeout_ms=_SESSION_MS,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[protocol, protocol],
    )
