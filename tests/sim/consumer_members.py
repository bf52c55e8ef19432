"""A group of KIP-848 whose members join, hang, die and leave, while its coordinator moves.

The coordinator assigns; a member says in its heartbeats what it has given back, and commits with
its member epoch. Who was not answered for a session gives everything up by itself.

    OwnedOnceInAnEpoch        no partition is given to two members in one epoch
    OwnedByOne                nobody is given what another, who was answered within its session,
                              has not given back
    NothingIsForgotten        a group that a member was told of is there as long as it has members
    OffsetNeverGoesBack       an owner begins where the one before was acknowledged, or behind
    OnlyOwnersCommit          who stood still past its session commits nothing any more
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from server.coordinator.group_messages import Client
from tests.sim.clients import coordinates, coordinator_of
from tests.sim.members import code_of
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode
from wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.network import Reply
    from tests.sim.node import SimNode

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
_REBALANCE_MS = 60_000
"""Not what ends a member here: its session does, which it knows of itself."""
_TIMEOUT_MS = 900
_CLIENT = Client("sim", "/sim", 1)
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class ConsumerTeam:
    """Its members, and what any of them was told."""

    def __init__(self, cluster: SimCluster, name: str, topic: str, members: int) -> None:
        self.cluster = cluster
        self.name = name
        self.topic = topic
        self.is_over = False
        self.floor: dict[int, int] = {}
        """By partition, the greatest offset whose commit was acknowledged."""
        self.asked: dict[int, int] = {}
        """The greatest offset that was ever to be committed."""
        self._owners: dict[tuple[int, int], str] = {}
        """By epoch and partition: who was given it then."""
        self.members = [ConsumerMember(self, number) for number in range(members)]

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


class ConsumerMember:
    """One consumer of the group; when it dies another takes its place."""

    def __init__(self, team: ConsumerTeam, number: int) -> None:
        self._team = team
        self._cluster = team.cluster
        self._world = team.cluster.world
        self._number = number
        self._life = 0
        """What was asked before the last beginning is not listened to."""
        self.member_id = ""
        self.epoch = 0
        self.owned: dict[int, int | None] = {}
        """Partitions, and what was committed of each as far as it is known."""
        self._says_all = True
        self._answered_ms = 0
        """When the last heartbeat that was answered was sent."""
        self._coordinator: int | None = None
        self._world.after(1_000 + self._world.between(0, 500), self._begin)

    def is_alive(self) -> bool:
        """Whether its session cannot have ended yet, whatever the clocks of the brokers say."""
        return self._world.ms < self._answered_ms + SESSION_MS * 9 // 10

    def _call(
        self, serve: Callable[[SimNode, Reply], object], answered: Callable[[Any], object]
    ) -> None:
        life = self._life

        def heard(answer: Any) -> None:
            if life == self._life:
                answered(answer)

        assert self._coordinator is not None
        self._cluster.network.call(
            None, self._coordinator, serve, heard, _TIMEOUT_MS, needs_broker=True
        )

    # ---- life

    def _begin(self) -> None:
        """A new life, with nothing."""
        if self._team.is_over:
            return
        self._life += 1
        self.member_id = f"c{self._number}-{self._life}"
        self.epoch, self.owned, self._says_all = 0, {}, True
        self._find()

    def _find(self) -> None:
        self._coordinator = coordinator_of(self._cluster, self._team.name)
        if self._coordinator is None:
            self._later(200, self._find)
        else:
            self._heartbeat()

    def _later(self, ms: int, then: Callable[[], None]) -> None:
        life = self._life

        def go_on() -> None:
            if life == self._life and not self._team.is_over:
                then()

        self._world.after(ms, go_on)

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
            request = ConsumerGroupHeartbeatRequest(
                group_id=self._team.name, member_id=self.member_id, member_epoch=-1
            )
            self._ask(request, lambda answer: None)
        self._life += 1
        self.epoch, self.owned, self._answered_ms = 0, {}, 0
        self._world.after(self._world.between(100, 3_000), self._begin)

    # ---- heartbeats

    def _ask(
        self, request: ConsumerGroupHeartbeatRequest, answered: Callable[[Any], object]
    ) -> None:
        self._call(
            lambda node, reply: node.group_coordinator.consumer_group_heartbeat(
                request, _CLIENT, reply
            ),
            answered,
        )

    def _heartbeat(self) -> None:
        topic_id = self._cluster.check.image.topics_by_name[self._team.topic].topic_id
        topic = ConsumerGroupHeartbeatRequest.Topic(
            topic_id=topic_id, partitions=sorted(self.owned)
        )
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._team.name, member_id=self.member_id, member_epoch=self.epoch
        )
        if self._says_all:
            request.topic_partitions = [topic] if self.owned else []
            request.rebalance_timeout_ms = _REBALANCE_MS
            request.subscribed_topic_names = [self._team.topic]
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
        if answer.assignment is not None:
            wanted = {i for topic in answer.assignment.topic_partitions for i in topic.partitions}
            fresh = sorted(wanted - self.owned.keys())
            self._says_all = not self.owned.keys() <= wanted
            for index in self.owned.keys() - wanted:
                del self.owned[index]
            for index in fresh:
                self._team.given(self, index)
                self.owned[index] = None
            self._world.tell(f"{self.member_id} owns {sorted(wanted)} in epoch {self.epoch}")
        if fresh:
            self._read_offsets(fresh)
        elif any(offset is not None for offset in self.owned.values()):
            stands_still = self._cluster.is_faulty and self._world.chance(
                self._cluster.options.member_stops
            )
            self._later(self._world.between(1_000, 4_000) if stands_still else 0, self._commit)
        else:
            self._later(_HEARTBEAT_MS, self._turn)

    # ---- offsets

    def _read_offsets(self, fresh: list[int]) -> None:
        team, floor = self._team, dict(self._team.floor)
        topic = OffsetFetchRequest.Group.Topic(name=team.topic, partition_indexes=fresh)
        request = OffsetFetchRequest.Group(
            group_id=team.name, member_id=self.member_id, member_epoch=self.epoch, topics=[topic]
        )

        def serve(node: SimNode, reply: Reply) -> None:
            def respond(answer: Any) -> None:
                reply((answer, coordinates(self._cluster, node, team.name)))

            node.group_coordinator.fetch_offsets(request, require_stable=False, on_complete=respond)

        def answered(answer: Any) -> None:
            found, is_current = answer or (None, False)
            if code_of(found) == 0:
                for partition in found.topics[0].partitions:
                    self._begins_at(
                        partition.partition_index, partition.committed_offset, floor, is_current
                    )
            self._later(_HEARTBEAT_MS, self._turn)

        self._call(serve, answered)

    def _begins_at(self, index: int, offset: int, floor: dict[int, int], is_current: bool) -> None:
        asked = self._team.asked.get(index, -1)
        if is_current and not floor.get(index, -1) <= offset <= asked:
            raise InvariantBroken(
                f"OffsetNeverGoesBack: group {self._team.name} has {offset} of {index}, committed "
                f"was {floor.get(index)}, asked for {asked}"
            )
        if index in self.owned:
            self.owned[index] = offset

    def _commit(self) -> None:
        team, epoch = self._team, self.epoch
        wanted = {i: offset + 1 for i, offset in self.owned.items() if offset is not None}
        floor = dict(team.floor)
        for index, offset in wanted.items():
            team.asked[index] = max(team.asked.get(index, -1), offset)
        make = OffsetCommitRequest.Topic
        topic_id = self._cluster.check.image.topics_by_name[team.topic].topic_id
        partitions = [
            make.Partition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in wanted.items()
        ]
        request = OffsetCommitRequest(
            group_id=team.name,
            generation_id_or_member_epoch=epoch,
            member_id=self.member_id,
            topics=[make(name=team.topic, topic_id=topic_id, partitions=partitions)],
        )

        def answered(answer: Any) -> None:
            code = code_of(answer)
            if code in _FENCED:
                self._begin()
                return
            if code == 0:
                self._committed(epoch, wanted, floor)
            self._later(_HEARTBEAT_MS, self._turn)

        self._call(
            lambda node, reply: node.group_coordinator.commit_offsets(request, 9, reply), answered
        )

    def _committed(self, epoch: int, wanted: dict[int, int], floor: dict[int, int]) -> None:
        team = self._team
        for index, offset in wanted.items():
            if floor.get(index, -1) > offset:
                raise InvariantBroken(
                    f"OnlyOwnersCommit: {self.member_id} in {epoch} committed {offset} of {index}, "
                    f"which was at {floor[index]}"
                )
            team.floor[index] = max(team.floor.get(index, -1), offset)
            if index in self.owned:
                self.owned[index] = offset
