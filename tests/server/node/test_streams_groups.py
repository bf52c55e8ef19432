"""Streams groups over the wire, against a whole broker: one topology, two members (KIP-1071)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from tests.server.coordinator.streams_groups.streams_support import (
    statuses,
    subtopology,
    tasks,
    topology,
)
from tests.server.wire_client import WireClient
from wire.messages.admin import CreateTopicsRequest, IncrementalAlterConfigsRequest
from wire.messages.cluster import MetadataRequest
from wire.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
)
from wire.messages.streams import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest

_GROUP, _TOPIC = "g", "in"
_CHANGELOG = "g-log-changelog"
_PATIENT_S = 60.0
_GROUP_RESOURCE = 32


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENT_S
    while not is_so():
        assert time.monotonic() < deadline, "it does not come"


class Member:
    """One member, spoken byte by byte."""

    def __init__(self, node: Node, member_id: str) -> None:
        self.wire = WireClient(node.port)
        self.id, self.epoch = member_id, 0
        self.tasks: list[int] = []

    def beat(self, epoch: int | None = None) -> int:
        """The error code."""
        make = StreamsGroupHeartbeatRequest
        joins = epoch is None and self.epoch == 0
        owned = [make.Task(subtopology_id="0", partitions=self.tasks)] if self.tasks else []
        request = make(
            group_id=_GROUP,
            member_id=self.id,
            member_epoch=self.epoch if epoch is None else epoch,
            endpoint_information_epoch=0,
            rebalance_timeout_ms=60_000 if joins else -1,
            topology=topology(subtopology(changelogs=(_CHANGELOG,))) if joins else None,
            active_tasks=owned,
            standby_tasks=[],
            warmup_tasks=[],
            process_id=f"p-{self.id}" if joins else None,
            shutdown_application=False,
        )
        answer = self.wire.ask(request, 0)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            self.statuses = statuses(answer)
            found = tasks(answer)
            if found is not None:
                self.tasks = found.get("0", [])
        return int(answer.error_code)

    def join(self) -> None:
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[_GROUP])
        until(lambda: self.wire.ask(find, 6).coordinators[0].error_code == 0)
        until(lambda: self.beat() == 0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path),
        "group.streams.assignment.interval.ms": "0",
        "group.streams.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    node = Node(KafkaConfig(config))
    try:
        node.start()
        with WireClient(node.port) as wire:
            topic = CreateTopicsRequest.Topic(
                name=_TOPIC, num_partitions=2, replication_factor=1, assignments=[], configs=[]
            )
            answer = wire.ask(CreateTopicsRequest(topics=[topic], validate_only=False), 7)
            assert answer.topics[0].error_code == 0
        yield node
    finally:
        node.shutdown()


@pytest.fixture
def members(node: Node) -> Iterator[tuple[Member, Member]]:
    both = Member(node, "a"), Member(node, "b")
    yield both
    for member in both:
        member.wire.close()


def test_two_members_share_tasks_whose_topics_the_broker_makes(
    node: Node, members: tuple[Member, Member]
) -> None:
    one, two = members
    one.join()
    assert (one.tasks, one.statuses) == ([], [3])
    until(lambda: one.beat() == 0 and one.tasks)
    assert one.tasks == [0, 1]
    made = node.shared.metadata.topics_by_name[_CHANGELOG]
    assert len(made.partitions) == 2
    assert node.shared.metadata.config(2, _CHANGELOG) == {"cleanup.policy": "compact"}
    two.join()

    def settles() -> bool:
        assert (one.beat(), two.beat()) == (0, 0)
        return bool(one.tasks and two.tasks)

    until(settles)
    assert sorted(one.tasks + two.tasks) == [0, 1]


def test_a_group_is_shown_and_deleted(node: Node, members: tuple[Member, Member]) -> None:
    one, _ = members
    one.join()
    until(lambda: one.beat() == 0 and one.tasks)
    wire = one.wire
    (listed,) = wire.ask(ListGroupsRequest(states_filter=[], types_filter=["streams"]), 5).groups
    assert (listed.group_id, listed.group_state, listed.protocol_type) == ("g", "Stable", "streams")
    asked = StreamsGroupDescribeRequest(
        group_ids=[_GROUP, "x"], include_authorized_operations=False
    )
    group, unknown = wire.ask(asked, 0).groups
    assert (unknown.error_code, unknown.error_message) == (69, "Group x not found.")
    assert (group.error_code, group.group_state) == (0, "Stable")
    (part,) = group.topology.subtopologies
    assert [(topic.name, topic.partitions) for topic in part.state_changelog_topics] == [
        (_CHANGELOG, 2)
    ]
    assert [task.partitions for task in group.members[0].assignment.active_tasks] == [[0, 1]]
    assert wire.ask(DeleteGroupsRequest(groups_names=[_GROUP]), 2).results[0].error_code == 68
    assert one.beat(-1) == 0
    assert wire.ask(DeleteGroupsRequest(groups_names=[_GROUP]), 2).results[0].error_code == 0
    assert wire.ask(ListGroupsRequest(states_filter=[], types_filter=["streams"]), 5).groups == []


def test_commits_are_fenced_by_the_members_epoch(
    node: Node, members: tuple[Member, Member]
) -> None:
    one, _ = members
    one.join()
    until(lambda: one.beat() == 0 and one.tasks)

    def commit(epoch: int) -> int:
        make = OffsetCommitRequest
        partition = make.Topic.Partition(
            partition_index=0, committed_offset=1, committed_metadata=None
        )
        request = make(
            group_id=_GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=one.id,
            topics=[make.Topic(name=_TOPIC, partitions=[partition])],
        )
        return int(one.wire.ask(request, 9).topics[0].partitions[0].error_code)

    assert (commit(one.epoch), commit(one.epoch + 1)) == (0, 113)


def test_a_groups_own_configuration_counts(node: Node, members: tuple[Member, Member]) -> None:
    one, _ = members
    make = IncrementalAlterConfigsRequest.Resource
    for key, value, code in (
        ("streams.num.standby.replicas", "3", 40),
        ("streams.num.standby.replicas", "1", 0),
    ):
        config = make.Config(name=key, config_operation=0, value=value)
        resource = make(resource_type=_GROUP_RESOURCE, resource_name=_GROUP, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        assert one.wire.ask(request, 1).responses[0].error_code == code
    one.join()
    until(lambda: one.beat() == 0 and one.tasks)
    with WireClient(node.port) as wire:
        metadata = MetadataRequest(
            topics=None,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        names = {topic.name for topic in wire.ask(metadata, 12).topics}
    assert _CHANGELOG in names
