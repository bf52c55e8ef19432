"""What the groups of a run have in common, whatever protocol their members speak.

A team keeps what was committed for it, and holds its members to

    OffsetNeverGoesBack       an owner begins where the one before was acknowledged, or behind (G-1)
    OnlyOwnersCommit          who stood still past its session commits nothing any more (G-4)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tests.sim.clients import coordinates, coordinator_of
from tests.sim.world import InvariantBroken
from wire.errors import KafkaError
from wire.messages.groups import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.network import Reply
    from tests.sim.node import SimNode

Offsets = dict[int, int]
"""By partition."""


class Team:
    """One group, and what any of its members was told of offsets."""

    def __init__(self, cluster: SimCluster, name: str, topic: str) -> None:
        self.cluster = cluster
        self.name = name
        self.topic = topic
        self.is_over = False
        self.floor: Offsets = {}
        """The greatest offset whose commit was acknowledged."""
        self.asked: Offsets = {}
        """The greatest offset that was ever to be committed."""

    @property
    def topic_id(self) -> bytes:
        return self.cluster.check.image.topics_by_name[self.topic].topic_id

    def begins_at(self, index: int, offset: int, floor: Offsets) -> None:
        """An owner was told where to begin; `floor` is of when it asked."""
        asked = self.asked.get(index, -1)
        if not floor.get(index, -1) <= offset <= asked:
            raise InvariantBroken(
                f"OffsetNeverGoesBack: group {self.name} has {offset} of {index}, committed was "
                f"{floor.get(index)}, asked for {asked}"
            )

    def committed(self, who: str, wanted: Offsets, floor: Offsets) -> None:
        """A commit was acknowledged; `floor` is of when it was asked for."""
        for index, offset in wanted.items():
            if floor.get(index, -1) > offset:
                raise InvariantBroken(
                    f"OnlyOwnersCommit: {who} committed {offset} of {index}, which was at "
                    f"{floor[index]}"
                )
            self.floor[index] = max(self.floor.get(index, -1), offset)


class TeamMember:
    """One consumer; when it dies another takes its place."""

    def __init__(self, team: Team, number: int, timeout_ms: int) -> None:
        self.member_id = ""
        self._team = team
        self._cluster = team.cluster
        self._world = team.cluster.world
        self._number = number
        self._timeout_ms = timeout_ms
        self._life = 0
        """What was asked before the last beginning is not listened to."""
        self._coordinator: int | None = None
        self._world.after(1_000 + self._world.between(0, 500), self._begin)

    def _begin(self) -> None:
        raise NotImplementedError

    def _heartbeat(self) -> None:
        raise NotImplementedError

    def _find(self) -> None:
        """Find the coordinator, and send it the first heartbeat."""
        self._coordinator = coordinator_of(self._cluster, self._team.name)
        if self._coordinator is None:
            self._later(200, self._find)
        else:
            self._heartbeat()

    def _later(self, ms: int, then: Callable[[], object]) -> None:
        """Unless this life is over by then."""
        life = self._life

        def go_on() -> None:
            if life == self._life and not self._team.is_over:
                then()

        self._world.after(ms, go_on)

    def _stands_still(self) -> bool:
        return self._cluster.is_faulty and self._world.chance(self._cluster.options.member_stops)

    def _call(
        self,
        serve: Callable[[SimNode, Reply], object],
        answered: Callable[[Any], object],
        timeout_ms: int | None = None,
    ) -> None:
        """Ask the coordinator; `answered` gets a response, a KafkaError, or None."""
        life = self._life

        def heard(answer: Any) -> None:
            if life == self._life:
                answered(answer)

        assert self._coordinator is not None
        self._cluster.network.call(
            None, self._coordinator, serve, heard, timeout_ms or self._timeout_ms, needs_broker=True
        )

    def _fetch_offsets(
        self, indexes: Collection[int], answered: Callable[[int | None, Offsets], None], **who: Any
    ) -> None:
        """`answered` gets an error or 0, and the offsets."""
        team, floor = self._team, dict(self._team.floor)
        topic = OffsetFetchRequest.Group.Topic(name=team.topic, partition_indexes=list(indexes))
        request = OffsetFetchRequest.Group(group_id=team.name, topics=[topic], **who)

        def serve(node: SimNode, reply: Reply) -> None:
            def respond(answer: Any) -> None:
                reply((answer, coordinates(self._cluster, node, team.name)))

            node.group_coordinator.fetch_offsets(request, require_stable=False, on_complete=respond)

        def heard(answer: Any) -> None:
            found, is_current = answer or (None, False)
            code, offsets = code_of(found), {}
            if code == 0:
                told = found.topics[0].partitions
                offsets = {part.partition_index: part.committed_offset for part in told}
            for index, offset in offsets.items():
                if is_current:
                    team.begins_at(index, offset, floor)
            answered(code, offsets)

        self._call(serve, heard)

    def _commit_offsets(
        self, epoch: int, wanted: Offsets, answered: Callable[[int | None], None]
    ) -> None:
        """`answered` gets an error or 0."""
        team, floor, member_id = self._team, dict(self._team.floor), self.member_id
        for index, offset in wanted.items():
            team.asked[index] = max(team.asked.get(index, -1), offset)
        make = OffsetCommitRequest.Topic
        partitions = [
            make.Partition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in wanted.items()
        ]
        request = OffsetCommitRequest(
            group_id=team.name,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[make(name=team.topic, topic_id=team.topic_id, partitions=partitions)],
        )

        def heard(answer: Any) -> None:
            code = code_of(answer)
            if code == 0:
                team.committed(f"{member_id} in {epoch}", wanted, floor)
            answered(code)

        self._call(
            lambda node, reply: node.group_coordinator.commit_offsets(request, 9, reply), heard
        )


def code_of(answer: Any) -> int | None:
    """The error of an answer, 0 for none; None is no answer."""
    if answer is None:
        return None
    if isinstance(answer, KafkaError):
        return int(answer.code)
    if isinstance(answer, OffsetCommitResponse):
        return max(p.error_code for topic in answer.topics for p in topic.partitions)
    return int(answer.error_code)
