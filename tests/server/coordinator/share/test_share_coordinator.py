"""The share coordinator over real logs: requests of many share partitions, and a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replication.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from server.coordinator.runtime import Surroundings
from server.coordinator.share.config import ShareCoordinatorConfig
from server.coordinator.share.coordinator import ShareCoordinator, coordinator_key
from server.share.state_batches import ShareKey
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import Answer
from wire.errors import ErrorCode as E
from wire.messages.share import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)

TOPIC_ID = b"t".ljust(16)


class ShareNode:
    """A broker of one with its share coordinator."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root)
        self.node.create("t", 3)
        self.node.create(SHARE_GROUP_STATE_TOPIC, 3)
        self.start()

    def start(self) -> None:
        node = self.node
        self.shares = ShareCoordinator(
            ShareCoordinatorConfig(),
            Surroundings(
                1, lambda: node.image, node.replica_manager, node.controller, node.timer,
                node.clock, lambda _, job: job(),
            ),
        )  # fmt: skip
        for index in range(3):
            self.shares.runtime.on_leadership((SHARE_GROUP_STATE_TOPIC, index), 0)

    def restart(self) -> None:
        self.shares.shutdown()
        self.node.restart()
        self.start()

    def initialize(self, *partitions: int, group: str = "g", start: int = -1) -> list[E]:
        request = InitializeShareGroupStateRequest
        answer = Answer()
        self.shares.initialize(
            request(
                group_id=group,
                topics=[
                    request.Topic(
                        topic_id=TOPIC_ID,
                        partitions=[
                            request.Topic.Partition(partition=p, state_epoch=1, start_offset=start)
                            for p in partitions
                        ],
                    )
                ],
            ),
            answer,
        )
        return [E(p.error_code) for t in answer.response.results for p in t.partitions]

    def write(self, partition: int, first: int, last: int) -> E:
        request = WriteShareGroupStateRequest
        asked = request.Topic.Partition(
            partition=partition,
            state_epoch=1,
            leader_epoch=0,
            start_offset=0,
            delivery_complete_count=2,
            state_batches=[
                request.Topic.Partition.StateBatch(
                    first_offset=first, last_offset=last, delivery_state=2, delivery_count=1
                )
            ],
        )
        answer = Answer()
        topic = request.Topic(topic_id=TOPIC_ID, partitions=[asked])
        self.shares.write(request(group_id="g", topics=[topic]), answer)
        return E(answer.response.results[0].partitions[0].error_code)

    def read(self, partition: int) -> tuple[E, int, list[tuple[int, int]]]:
        request = ReadShareGroupStateRequest
        asked = request.Topic.Partition(partition=partition, leader_epoch=0)
        answer = Answer()
        topic = request.Topic(topic_id=TOPIC_ID, partitions=[asked])
        self.shares.read(request(group_id="g", topics=[topic]), answer)
        found = answer.response.results[0].partitions[0]
        batches = [(b.first_offset, b.last_offset) for b in found.state_batches]
        return E(found.error_code), found.start_offset, batches

    def summary(self, partition: int) -> tuple[int, int]:
        request = ReadShareGroupStateSummaryRequest
        asked = request.Topic.Partition(partition=partition, leader_epoch=-1)
        answer = Answer()
        topic = request.Topic(topic_id=TOPIC_ID, partitions=[asked])
        self.shares.read_summary(request(group_id="g", topics=[topic]), answer)
        found = answer.response.results[0].partitions[0]
        assert found.error_code == 0
        return found.start_offset, found.delivery_complete_count

    def delete(self, partition: int) -> E:
        request = DeleteShareGroupStateRequest
        answer = Answer()
        asked = request.Topic.Partition(partition=partition)
        topic = request.Topic(topic_id=TOPIC_ID, partitions=[asked])
        self.shares.delete(request(group_id="g", topics=[topic]), answer)
        return E(answer.response.results[0].partitions[0].error_code)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ShareNode]:
    node = ShareNode(tmp_path)
    yield node
    node.shares.shutdown()
    node.node.close()


def test_each_share_partition_is_answered_for_itself(node: ShareNode) -> None:
    assert node.initialize(0, 1, 7) == [E.NONE, E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert node.initialize(0, group="") == []
    assert node.write(0, 0, 1) is E.NONE
    assert node.write(2, 0, 1) is E.INVALID_REQUEST
    assert node.read(0) == (E.NONE, 0, [(0, 1)])
    assert node.read(2) == (E.INVALID_REQUEST, 0, [])
    assert (node.summary(0), node.summary(2)) == ((0, 2), (-1, -1))


def test_a_restart_finds_what_was_written(node: ShareNode) -> None:
    node.initialize(0, 1)
    node.write(0, 0, 1)
    node.write(0, 4, 4)
    assert node.delete(1) is E.NONE
    node.restart()
    assert node.read(0) == (E.NONE, 0, [(0, 1), (4, 4)])
    assert node.read(1)[0] is E.INVALID_REQUEST


def test_who_is_no_coordinator_says_so(node: ShareNode) -> None:
    node.initialize(0)
    index = node.shares.partition_for(ShareKey("g", TOPIC_ID, 0))
    node.shares.runtime.on_leadership((SHARE_GROUP_STATE_TOPIC, index), None)
    assert node.write(0, 0, 1) is E.NOT_COORDINATOR
    node.shares.shutdown()
    assert node.write(0, 0, 1) is E.COORDINATOR_NOT_AVAILABLE


def test_a_deleted_topic_takes_its_state_along(node: ShareNode) -> None:
    node.initialize(0, 1, 2)
    node.shares.topics_deleted([TOPIC_ID])
    assert [node.summary(p) for p in range(3)] == [(-1, -1)] * 3


def test_the_coordinator_is_found_by_group_topic_and_partition(node: ShareNode) -> None:
    answer = Answer()
    key = coordinator_key(ShareKey("g", TOPIC_ID, 0))
    assert key == "g:dCAgICAgICAgICAgICAgIA:0"
    node.shares.find_key(key, answer)
    assert answer.response.broker_id == 1


def test_the_log_is_pruned_and_what_counts_is_still_there(node: ShareNode) -> None:
    assert node.initialize(0) == [E.NONE]
    for _ in range(3):
        assert node.initialize(0, start=0) == [E.NONE]
    assert node.write(0, 0, 4) is E.NONE
    index = node.shares.partition_for(ShareKey("g", TOPIC_ID, 0))
    node.node.pass_time(300_000)
    partition = node.node.replica_manager.partition((SHARE_GROUP_STATE_TOPIC, index))
    assert partition.open_log().log_start_offset == 3
    before = node.read(0)
    node.restart()
    assert node.read(0) == before


@pytest.mark.parametrize(
    "key",
    ["", "g", "g:0", ":dCAgICAgICAgICAgICAgIA:0", "g:no id:0", "g:dCAgICAgICAgICAgICAgIA:x"],
)
def test_a_key_that_names_no_share_partition_is_refused(node: ShareNode, key: str) -> None:
    answer = Answer()
    node.shares.find_key(key, answer)
    assert answer.error == E.INVALID_REQUEST
