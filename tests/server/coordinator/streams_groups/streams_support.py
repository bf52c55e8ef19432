"""A shard with streams groups, and what its members send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.coordinator.group_config import StreamsConfig
from server.coordinator.group_messages import Client
from server.coordinator.streams_groups.protocol import StreamsOutside
from tests.server.coordinator.modern_world import ModernWorld, image_of
from wire.errors import ErrorCode, KafkaError
from wire.messages.streams import StreamsGroupHeartbeatRequest

CLIENT = Client("c", "/h", 0)
Topology = StreamsGroupHeartbeatRequest.Topology
_Subtopology = Topology.Subtopology


def subtopology(
    id_: str = "0",
    reads: tuple[str, ...] = ("in",),
    changelogs: tuple[str, ...] = (),
    sinks: tuple[str, ...] = (),
    repartition: dict[str, int] | None = None,
    together: list[tuple[list[int], list[int]]] | None = None,
) -> _Subtopology:
    """`repartition`: names to counts, 0: not said; `together`: copartition groups by position."""

    def topic(name: str, partitions: int = 0) -> Any:
        config = _Subtopology.TopicInfo.Config(key="cleanup.policy", value="compact")
        return _Subtopology.TopicInfo(
            name=name, partitions=partitions, replication_factor=0, topic_configs=[config]
        )

    return _Subtopology(
        subtopology_id=id_,
        source_topics=list(reads),
        source_topic_regex=[],
        state_changelog_topics=[topic(name) for name in changelogs],
        repartition_sink_topics=list(sinks),
        repartition_source_topics=[topic(*one) for one in (repartition or {}).items()],
        copartition_groups=[
            _Subtopology.CopartitionGroup(
                source_topics=sources, source_topic_regex=[], repartition_source_topics=others
            )
            for sources, others in together or []
        ],
    )


def topology(*subtopologies: _Subtopology, epoch: int = 0) -> Topology:
    return Topology(epoch=epoch, subtopologies=list(subtopologies) or [subtopology()])


class StreamsWorld(ModernWorld):
    """See the module. `in` has two partitions."""

    def __init__(self) -> None:
        self.config = StreamsConfig()
        self.missing: list[str] = []
        """Topics that the last heartbeat would have made."""
        super().__init__(image_of(**{"in": 2}))

    def _streams(self) -> StreamsOutside:
        return StreamsOutside(lambda: self.image, lambda _: self.config)

    @property
    def group(self) -> Any:
        return self.shard.streams.groups["g"]

    def beat(
        self, member: str, epoch: int, owned: dict[str, list[int]] | None = None, **fields: Any
    ) -> Any:
        """The answer of a heartbeat; `owned`: the active tasks that the member says it has."""
        if owned is not None:
            task = StreamsGroupHeartbeatRequest.Task
            tasks = [task(subtopology_id=id_, partitions=of) for id_, of in owned.items()]
            fields = {"active_tasks": tasks, "standby_tasks": [], "warmup_tasks": [], **fields}
        given = {
            "group_id": "g",
            "member_id": member,
            "member_epoch": epoch,
            "endpoint_information_epoch": 0,
            "shutdown_application": False,
        }
        request = StreamsGroupHeartbeatRequest(**{**given, **fields})
        answer = self.play(self.shard.streams.heartbeat(request, CLIENT))
        self.missing = [topic.name for topic in answer.missing]
        return answer.response

    def join(self, member: str, *subtopologies: _Subtopology, **fields: Any) -> Any:
        """A member comes; each is a process of its own unless it says `process_id`."""
        given = {
            "rebalance_timeout_ms": 60_000,
            "topology": topology(*subtopologies),
            "process_id": f"p-{member}",
        }
        return self.beat(member, 0, {}, **{**given, **fields})


def tasks(answer: Any) -> dict[str, list[int]] | None:
    """The active tasks of an answer; None: nothing new is told."""
    if answer.active_tasks is None:
        return None
    return {task.subtopology_id: task.partitions for task in answer.active_tasks}


def standbys(answer: Any) -> dict[str, list[int]]:
    return {task.subtopology_id: task.partitions for task in answer.standby_tasks}


def statuses(answer: Any) -> list[int]:
    return [status.status_code for status in answer.status]


def refused(call: Callable[[], object], code: ErrorCode) -> str:
    with pytest.raises(KafkaError) as raised:
        call()
    assert raised.value.code is code
    return raised.value.detail
