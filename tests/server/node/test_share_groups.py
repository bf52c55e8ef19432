"""Share groups over the wire, against a whole broker: two members of one topic (KIP-932)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from tests.server.wire_client import WireClient
from wire.messages.admin import (
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    UpdateFeaturesRequest,
)
from wire.messages.data import ProduceRequest
from wire.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from wire.messages.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from wire.records import Record, build_batch

ACCEPT, RELEASE = 1, 2
_GROUP, _TOPIC = "g", "t"
_PATIENT_S = 60.0
_GROUP_RESOURCE = 32
_UNSUPPORTED_VERSION, _SESSION_NOT_FOUND = 35, 122


class Member:
    """One member, spoken byte by byte."""

    def __init__(self, node: Node, member_id: str) -> None:
        self.wire = WireClient(node.port)
        self.id, self.epoch, self.session_epoch = member_id, 0, 0
        self.topic_id = node.shared.metadata.topics_by_name[_TOPIC].topic_id
        self.partitions: list[int] = []

    def beat(self, epoch: int | None = None) -> int:
        """The error code."""
        joins = epoch is None and self.epoch == 0
        request = ShareGroupHeartbeatRequest(
            group_id=_GROUP,
            member_id=self.id,
            member_epoch=self.epoch if epoch is None else epoch,
            subscribed_topic_names=[_TOPIC] if joins else None,
        )
        answer = self.wire.ask(request, 1)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.partitions = [
                    index for one in answer.assignment.topic_partitions for index in one.partitions
                ]
        return int(answer.error_code)

    def join(self) -> None:
        """Until it has something."""
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[_GROUP])
        until(lambda: self.wire.ask(find, 6).coordinators[0].error_code == 0)
        until(lambda: self.beat() == 0 and self.partitions)

    def fetch(self, *, max_wait_ms: int = 0) -> list[tuple[int, int, int]]:
        """(first, last, delivery count) of what was acquired."""
        make = ShareFetchRequest
        first = make.Topic.Partition(partition_index=0, acknowledgement_batches=[])
        named = [first] if not self.session_epoch else []
        answer = self.wire.ask(
            make(
                group_id=_GROUP,
                member_id=self.id,
                share_session_epoch=self.session_epoch,
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=500,
                batch_size=500,
                topics=[make.Topic(topic_id=self.topic_id, partitions=named)] if named else [],
                forgotten_topics_data=[],
            ),
            2,
        )
        assert answer.error_code == 0, answer
        self.session_epoch += 1
        found = [one for topic in answer.responses for one in topic.partitions]
        assert [one.error_code for one in found] == [0] * len(found), found
        return [
            (batch.first_offset, batch.last_offset, batch.delivery_count)
            for one in found
            for batch in one.acquired_records
        ]

    def acquire(self) -> list[tuple[int, int, int]]:
        """As `fetch`, as often as it takes."""
        found: list[tuple[int, int, int]] = []

        def try_it() -> bool:
            found[:] = self.fetch(max_wait_ms=500)
            return bool(found)

        until(try_it)
        return found

    def acknowledge(self, first: int, last: int, kind: int) -> int:
        """The code, the partition's if the request is well."""
        make = ShareAcknowledgeRequest
        batch = make.Topic.Partition.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=[kind]
        )
        one = make.Topic.Partition(partition_index=0, acknowledgement_batches=[batch])
        answer = self.wire.ask(
            make(
                group_id=_GROUP,
                member_id=self.id,
                share_session_epoch=self.session_epoch,
                topics=[make.Topic(topic_id=self.topic_id, partitions=[one])],
            ),
            2,
        )
        if answer.error_code:
            return int(answer.error_code)
        self.session_epoch += 1
        return int(answer.responses[0].partitions[0].error_code)


def until(is_so: Any) -> None:
    deadline = time.monotonic() + _PATIENT_S
    while not is_so():
        assert time.monotonic() < deadline, "it does not come"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path),
        "group.share.assignment.interval.ms": "0",
        "group.share.min.record.lock.duration.ms": "1000",
        "offsets.topic.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "2",
    }
    node = Node(KafkaConfig(config))
    try:
        node.start()
        with WireClient(node.port) as wire:
            topic = CreateTopicsRequest.Topic(
                name=_TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            answer = wire.ask(CreateTopicsRequest(topics=[topic], validate_only=False), 7)
            assert answer.topics[0].error_code == 0
            configure(wire, "share.auto.offset.reset", "earliest")
        yield node
    finally:
        node.shutdown()


def set_share_version(wire: WireClient, level: int) -> None:
    make = UpdateFeaturesRequest
    update = make.FeatureUpdate(
        feature="share.version", max_version_level=level, upgrade_type=1 if level else 2
    )
    answer = wire.ask(make(timeout_ms=5_000, feature_updates=[update], validate_only=False), 1)
    assert answer.error_code == 0, answer
    assert [one.error_code for one in answer.results] == [0]


def configure(wire: WireClient, key: str, value: str) -> None:
    make = IncrementalAlterConfigsRequest.Resource
    config = make.Config(name=key, config_operation=0, value=value)
    resource = make(resource_type=_GROUP_RESOURCE, resource_name=_GROUP, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    assert wire.ask(request, 1).responses[0].error_code == 0


def produce(wire: WireClient, topic_id: bytes, count: int) -> None:
    batch = build_batch([Record(value=b"x") for _ in range(count)])
    one = ProduceRequest.Topic.Partition(index=0, records=batch)
    topic = ProduceRequest.Topic(name=_TOPIC, topic_id=topic_id, partition_data=[one])
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[topic])
    assert wire.ask(request, 12).responses[0].partition_responses[0].error_code == 0


@pytest.fixture
def members(node: Node) -> Iterator[tuple[Member, Member]]:
    both = Member(node, "m1"), Member(node, "m2")
    try:
        for member in both:
            member.join()
        yield both
    finally:
        for member in both:
            member.wire.close()


def where(wire: WireClient) -> tuple[int, int]:
    """(start offset, lag) of the partition."""
    make = DescribeShareGroupOffsetsRequest
    answer = wire.ask(make(groups=[make.Group(group_id=_GROUP, topics=None)]), 1)
    (group,) = answer.groups
    assert group.error_code == 0
    (topic,) = group.topics
    (one,) = topic.partitions
    return one.start_offset, one.lag


def test_two_members_share_one_partition(members: tuple[Member, Member]) -> None:
    one, two = members
    assert (one.partitions, two.partitions) == ([0], [0])
    assert where(one.wire) == (-1, -1)
    produce(one.wire, one.topic_id, 10)
    assert one.acquire() == [(0, 9, 1)]
    assert two.fetch() == [], "what is one's is nobody else's"
    assert two.acknowledge(0, 9, ACCEPT) == 121
    assert one.acknowledge(0, 5, ACCEPT) == 0
    assert one.acknowledge(6, 9, RELEASE) == 0
    assert two.acquire() == [(6, 9, 2)]
    assert two.acknowledge(6, 9, ACCEPT) == 0
    assert two.acknowledge(9, 9, ACCEPT) == 0, "what is done stays done"
    assert where(one.wire)[1] == 0


def test_records_of_a_lock_that_ran_out_and_of_a_lost_connection_come_again(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    configure(one.wire, "share.record.lock.duration.ms", "1000")
    produce(one.wire, one.topic_id, 3)
    assert one.acquire() == [(0, 2, 1)]
    assert two.acquire() == [(0, 2, 2)], "the lock ran out"
    two.wire.close()
    assert one.acquire() == [(0, 2, 3)], "the connection is lost"
    assert one.acknowledge(0, 2, ACCEPT) == 0


def test_without_share_groups_nothing_of_them_is_kept_in_memory(
    members: tuple[Member, Member],
) -> None:
    """share.version is lowered and raised again: sessions and locks are gone, what was
    acknowledged is not."""
    one, _ = members
    produce(one.wire, one.topic_id, 3)
    assert one.acquire() == [(0, 2, 1)]
    assert one.acknowledge(0, 0, ACCEPT) == 0
    set_share_version(one.wire, 0)
    until(lambda: one.beat() == _UNSUPPORTED_VERSION)
    set_share_version(one.wire, 1)
    until(lambda: one.beat() == 0)
    assert one.acknowledge(1, 1, ACCEPT) == _SESSION_NOT_FOUND
    one.session_epoch = 0
    assert one.acquire() == [(1, 2, 1)]


def test_a_group_is_shown_altered_and_deleted(node: Node, members: tuple[Member, Member]) -> None:
    one, two = members
    wire = one.wire
    produce(wire, one.topic_id, 4)
    (listed,) = wire.ask(ListGroupsRequest(states_filter=[], types_filter=["share"]), 5).groups
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Stable", "share")
    asked = ShareGroupDescribeRequest(group_ids=[_GROUP], include_authorized_operations=False)
    (group,) = wire.ask(asked, 1).groups
    assert (group.error_code, group.assignor_name) == (0, "simple")
    assert sorted(member.member_id for member in group.members) == ["m1", "m2"]
    make = AlterShareGroupOffsetsRequest
    start = make.Topic.Partition(partition_index=0, start_offset=3)
    alter = make(group_id=_GROUP, topics=[make.Topic(topic_name=_TOPIC, partitions=[start])])
    assert wire.ask(alter, 0).error_code == 68
    assert wire.ask(DeleteGroupsRequest(groups_names=[_GROUP]), 2).results[0].error_code == 68
    assert (one.beat(-1), two.beat(-1)) == (0, 0)
    answer = wire.ask(alter, 0)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
    assert where(wire) == (3, 1)
    delete = DeleteShareGroupOffsetsRequest
    request = delete(group_id=_GROUP, topics=[delete.Topic(topic_name=_TOPIC)])
    answer = wire.ask(request, 0)
    assert (answer.error_code, [one.error_code for one in answer.responses]) == (0, [0])
    assert wire.ask(DeleteGroupsRequest(groups_names=[_GROUP]), 2).results[0].error_code == 0
    assert wire.ask(ListGroupsRequest(states_filter=[], types_filter=["share"]), 5).groups == []


def test_who_keeps_the_state_is_found_by_brokers(members: tuple[Member, Member]) -> None:
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0", "g"])
    found = members[0].wire.ask(find, 6).coordinators
    assert [one.error_code for one in found] == [0, 42]
