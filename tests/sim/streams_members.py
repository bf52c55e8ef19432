"""A streams group: its members run tasks of a topology with one subtopology, and lose them as
consumers lose partitions (`consumer_members`), to the same rules; two of them are one process.

    StandbyElsewhere          no process is given a copy of a task that it runs, in one epoch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from server.coordinator.group_messages import Client
from tests.sim.consumer_members import REBALANCE_MS, SESSION_MS, ConsumerMember, ConsumerTeam
from tests.sim.world import InvariantBroken
from wire.errors import KafkaError
from wire.messages.streams import StreamsGroupHeartbeatRequest

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.network import Reply
    from tests.sim.node import SimNode

CONFIG = {
    "group.streams.session.timeout.ms": str(SESSION_MS),
    "group.streams.min.session.timeout.ms": str(SESSION_MS),
    "group.streams.heartbeat.interval.ms": "300",
    "group.streams.min.heartbeat.interval.ms": "300",
    "group.streams.assignment.interval.ms": "200",
    "group.streams.initial.rebalance.delay.ms": "400",
    "group.streams.num.standby.replicas": "1",
}
"""What the brokers of such a run are configured with."""
_SUBTOPOLOGY = "0"
_CLIENT = Client("sim", "/sim", 0)
_Topology = StreamsGroupHeartbeatRequest.Topology


class StreamsTeam(ConsumerTeam):
    """Its members, and what any of them was told."""

    def __init__(self, cluster: SimCluster, name: str, topic: str, members: int) -> None:
        self._runs: dict[tuple[int, int], str] = {}
        """By epoch and task: the process that was given it then, or told that it has it."""
        super().__init__(cluster, name, topic, members)

    def _member(self, number: int) -> StreamsMember:
        return StreamsMember(self, number)

    def told(self, epoch: int, process: str, active: set[int], standby: set[int]) -> None:
        """A member was answered its tasks."""
        for task in active:
            owner = self._runs.setdefault((epoch, task), process)
            if owner != process:
                raise InvariantBroken(f"OwnedOnceInAnEpoch: {task} in {epoch}: {owner}, {process}")
        for task in standby:
            if self._runs.get((epoch, task)) == process:
                raise InvariantBroken(f"StandbyElsewhere: {task} in {epoch} of {process}")


class StreamsMember(ConsumerMember):
    """One thread of a process."""

    def __init__(self, team: StreamsTeam, number: int) -> None:
        super().__init__(team, number)
        self._streams = team
        self._process = f"process-{number // 2}"

    def _ask(self, request: Any, answered: Callable[[Any], object]) -> None:
        def serve(node: SimNode, reply: Reply) -> None:
            def respond(answer: Any) -> None:
                reply(answer if isinstance(answer, KafkaError) else answer.response)

            node.group_coordinator.streams_group_heartbeat(request, _CLIENT, respond)

        self._call(serve, answered)

    def _request(self, epoch: int) -> StreamsGroupHeartbeatRequest:
        return StreamsGroupHeartbeatRequest(
            group_id=self._team.name,
            member_id=self.member_id,
            member_epoch=epoch,
            endpoint_information_epoch=0,
            shutdown_application=False,
        )

    def _say_all(self, request: StreamsGroupHeartbeatRequest) -> None:
        task = StreamsGroupHeartbeatRequest.Task
        owned = [task(subtopology_id=_SUBTOPOLOGY, partitions=sorted(self.owned))]
        request.active_tasks = owned if self.owned else []
        request.standby_tasks, request.warmup_tasks = [], []
        request.rebalance_timeout_ms = REBALANCE_MS
        request.process_id = self._process
        if not self.epoch:
            request.topology = _Topology(
                epoch=0,
                subtopologies=[
                    _Topology.Subtopology(
                        subtopology_id=_SUBTOPOLOGY,
                        source_topics=[self._team.topic],
                        source_topic_regex=[],
                        state_changelog_topics=[],
                        repartition_sink_topics=[],
                        repartition_source_topics=[],
                        copartition_groups=[],
                    )
                ],
            )

    def _wanted(self, answer: Any) -> set[int] | None:
        if answer.active_tasks is None:
            return None
        active = _partitions(answer.active_tasks)
        self._streams.told(
            answer.member_epoch, self._process, active, _partitions(answer.standby_tasks)
        )
        return active


def _partitions(tasks: Any) -> set[int]:
    return {index for task in tasks for index in task.partitions}
