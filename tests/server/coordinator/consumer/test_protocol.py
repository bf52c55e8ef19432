"""Heartbeats of consumer groups: the worked rebalance of the reference, record for record."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from server.coordinator.consumer.protocol import Outside
from server.coordinator.consumer.records import member_record
from server.coordinator.deadlines import Moment
from server.coordinator.group import Committer
from server.coordinator.group_config import ConsumerConfig, GroupConfig
from server.coordinator.group_messages import Client
from server.coordinator.group_shard import GroupShard
from server.coordinator.records import CoordinatorRecord
from tests.server.coordinator.group_support import NO_SHARES, NO_STREAMS
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import ConsumerGroupHeartbeatRequest
from wire.messages.groups_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)

TOPIC_ID = bytes.fromhex("f2cf24ce94164d64abd1211bc17478e0")
SHORT = {
    "ConsumerGroupMetadataKey": "3",
    "ConsumerGroupMemberMetadataKey": "5",
    "ConsumerGroupTargetAssignmentMetadataKey": "6",
    "ConsumerGroupTargetAssignmentMemberKey": "7",
    "ConsumerGroupCurrentMemberAssignmentKey": "8",
}


class Shard:
    """Groups whose decisions are replayed at once."""

    def __init__(self) -> None:
        self.moment = Moment(0, 1_000_000)
        partitions = {index: SimpleNamespace(replicas=[1]) for index in range(4)}
        topic = SimpleNamespace(name="cg", topic_id=TOPIC_ID, partitions=partitions)
        self.image = SimpleNamespace(
            topics_by_name={"cg": topic}, topics_by_id={TOPIC_ID: topic}, brokers={}
        )
        config = ConsumerConfig()
        outside = Outside(
            lambda: self.image,
            lambda _: config,
            lambda: -1,
            lambda *_: None,
            lambda: "made",
        )
        self.shard = GroupShard(GroupConfig(), self.moment, outside, NO_SHARES, NO_STREAMS)
        self.deadlines = self.shard.deadlines
        self.consumer = self.shard.consumer
        self.groups: dict[str, Any] = self.consumer.groups
        self.wrote: list[str] = []
        self.log: list[CoordinatorRecord] = []

    def heartbeat(self, member: str, epoch: int, **fields: Any) -> tuple[int, list[int] | None]:
        """(epoch, partitions or None) of the answer."""
        owned = fields.pop("owned", None)
        topics = (
            None
            if owned is None
            else [ConsumerGroupHeartbeatRequest.Topic(topic_id=TOPIC_ID, partitions=owned)]
        )
        if owned == []:
            topics = []
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member, member_epoch=epoch, topic_partitions=topics, **fields
        )
        decision = self.consumer.heartbeat(request, Client("c", "/h", 1))
        self.play(decision)
        answer: Any = decision.response
        if answer.assignment is None:
            return answer.member_epoch, None
        given = [p for topic in answer.assignment.topic_partitions for p in topic.partitions]
        return answer.member_epoch, given

    def play(self, decision: Any) -> None:
        if decision.change is not None:
            decision.change()
        self.wrote = []
        for key, value in decision.records:
            kind = SHORT[type(key).__name__] + getattr(key, "member_id", "")
            self.wrote.append(kind if value is not None else f"-{kind}")
            self.log.append(CoordinatorRecord(key, value))
            self.shard.replay(self.log[-1])

    def join(self, member: str, **fields: Any) -> tuple[int, list[int] | None]:
        given = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["cg"], "owned": []}
        return self.heartbeat(member, 0, **(given | fields))

    def later(self, ms: int) -> None:
        self.moment.now_ms += ms
        self.moment.wall_ms += ms
        while (due := self.deadlines.pop_due(self.moment.now_ms)) is not None:
            decision = due[1]()
            if decision is not None:
                self.play(decision)


def test_a_rebalance_goes_as_apache_kafka_does_it() -> None:
    """Reference, B.8, which was seen on a 4.3.1 node."""
    shard = Shard()
    assert shard.join("A") == (2, [0, 1, 2, 3])
    assert shard.wrote == ["5A", "3", "7A", "6", "8A"]
    assert shard.join("B") == (2, [])
    assert shard.wrote == ["5B", "3", "8B"]
    assert shard.heartbeat("B", 2) == (2, None)
    assert shard.wrote == []
    shard.later(1_000)
    assert shard.heartbeat("B", 2) == (3, None)
    assert shard.wrote == ["7A", "7B", "6", "8B"]
    assert shard.heartbeat("A", 2) == (2, [0, 1])
    assert shard.wrote == ["8A"]
    assert shard.heartbeat("B", 3) == (3, None)
    assert shard.wrote == ["8B"]
    assert shard.heartbeat("A", 2, owned=[0, 1]) == (3, None)
    assert shard.wrote == ["8A"]
    assert shard.heartbeat("B", 3) == (3, [2, 3])
    assert shard.wrote == ["8B"]
    group = shard.groups["g"]
    assert group.state_name == "Stable"
    assert group.members["A"].assigned == {TOPIC_ID: {0: 2, 1: 2}}
    assert group.members["B"].assigned == {TOPIC_ID: {2: 3, 3: 3}}
    assert shard.heartbeat("B", -1)[0] == -1
    assert shard.wrote == ["-8B", "-7B", "-5B", "3"]
    shard.later(1_000)
    assert shard.heartbeat("A", 3) == (4, [0, 1, 2, 3])
    assert shard.wrote == ["7A", "6", "8A"]
    assert group.members["A"].assigned == {TOPIC_ID: {0: 2, 1: 2, 2: 4, 3: 4}}


def test_a_clock_that_was_ahead_holds_up_no_assignment() -> None:
    """It was set back; or another coordinator's was ahead of ours."""
    shard = Shard()
    shard.join("A")
    shard.moment.wall_ms -= 3_600_000
    assert shard.join("B") == (3, [])
    assert shard.wrote == ["5B", "3", "7A", "7B", "6", "8B"]
    assert shard.join("C") == (3, [])
    assert shard.wrote == ["5C", "3", "8C"], "within a second of the last one by this clock"


def test_what_a_member_has_may_be_older_than_what_it_asked_for() -> None:
    """The cleaner leaves of each key the newest record."""
    shard, another = Shard(), Shard()
    shard.join("A")
    assert shard.heartbeat("A", 2, rack_id="r") == (2, None)
    assert shard.wrote == ["5A"]
    for record in shard.log[1:]:
        another.shard.replay(record)
    assert another.shard.digest() == shard.shard.digest()
    assert another.heartbeat("A", 2) == (2, None)


def test_who_does_not_give_back_in_time_is_fenced() -> None:
    shard = Shard()
    shard.join("A", rebalance_timeout_ms=10_000)
    shard.join("B")
    shard.later(1_000)
    shard.heartbeat("B", 2)
    assert shard.heartbeat("A", 2) == (2, [0, 1])
    for _ in range(9):
        shard.later(1_000)
        shard.heartbeat("A", 2)
    assert "A" in shard.groups["g"].members
    shard.later(1_500)
    assert set(shard.groups["g"].members) == {"B"}
    shard.later(1_000)
    assert shard.heartbeat("B", 3) == (4, [0, 1, 2, 3])
    with pytest.raises(KafkaError) as refused:
        shard.heartbeat("A", 2)
    assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_a_session_is_gone() -> None:
    shard = Shard()
    shard.join("A")
    shard.later(44_999)
    assert shard.groups["g"].members
    shard.later(1)
    assert not shard.groups["g"].members
    assert shard.groups["g"].state_name == "Empty"


def test_a_static_member_that_comes_back_has_what_it_had_and_nobody_else_moves() -> None:
    shard = Shard()
    shard.join("A", instance_id="a")
    shard.later(1_000)
    shard.join("B", instance_id="b")
    shard.heartbeat("A", 2, instance_id="a")
    shard.heartbeat("A", 2, instance_id="a", owned=[0, 1])
    assert shard.heartbeat("B", 3, instance_id="b") == (3, [2, 3])
    epoch = shard.groups["g"].epoch
    with pytest.raises(KafkaError) as refused:
        shard.join("B2", instance_id="b")
    assert refused.value.code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert shard.heartbeat("B", -2, instance_id="b")[0] == -2
    assert shard.wrote == ["8B"]
    assert shard.join("B2", instance_id="b") == (3, [2, 3])
    assert shard.wrote == ["-8B", "-7B", "-5B", "5B2", "7B2", "8B2", "8B2"]
    assert shard.groups["g"].epoch == epoch
    with pytest.raises(KafkaError) as refused:
        shard.heartbeat("B", 3, instance_id="b")
    assert refused.value.code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_comes_back_under_its_own_id_counts_once() -> None:
    """As a client does that unsubscribes and subscribes to more: A reads both topics, B one."""
    shard = Shard()
    partitions = shard.image.topics_by_name["cg"].partitions
    more = SimpleNamespace(name="more", topic_id=b"m" * 16, partitions=partitions)
    shard.image.topics_by_name["more"] = shard.image.topics_by_id[more.topic_id] = more
    shard.join("B")
    shard.join("A", instance_id="a")
    shard.later(1_000)
    shard.heartbeat("A", 2, instance_id="a")
    assert shard.heartbeat("A", -2, instance_id="a")[0] == -2
    shard.later(1_000)
    shard.join("A", instance_id="a", subscribed_topic_names=["cg", "more"])
    group = shard.groups["g"]
    assert group.target["A"][more.topic_id] == frozenset(range(4))
    assert more.topic_id not in group.target["B"]
    names = group.subscriptions().topics(group.regexes)
    assert group.metadata_hash == shard.consumer.hashes(names, shard.image)


@pytest.mark.parametrize("epochs", [None, (), (4,)])
def test_partitions_of_records_without_epochs_are_of_the_members(
    epochs: tuple[int, ...] | None,
) -> None:
    """As Apache Kafka once wrote them: who is an epoch behind may not commit."""
    shard = Shard()
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="A")
    topic = ConsumerGroupCurrentMemberAssignmentValue.Topic(
        topic_id=TOPIC_ID, partitions=[0, 1], assignment_epochs=epochs
    )
    away = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=-2, previous_member_epoch=5, state=0, assigned_partitions=[topic],
        partitions_pending_revocation=[],
    )  # fmt: skip
    shard.shard.replay(CoordinatorRecord(key, away))
    assert shard.groups["g"].members["A"].assigned == {TOPIC_ID: {0: 0, 1: 0}}
    here = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=5, previous_member_epoch=4, state=0, assigned_partitions=[topic],
        partitions_pending_revocation=[topic],
    )  # fmt: skip
    shard.shard.replay(CoordinatorRecord(key, here))
    member = shard.groups["g"].members["A"]
    assert member.assigned == member.revoking == {TOPIC_ID: {0: 5, 1: 5}}
    check = shard.groups["g"].check_commit(Committer("A", None, 4, 9, is_transactional=False))
    with pytest.raises(KafkaError) as refused:
        check("cg", TOPIC_ID, 0)
    assert refused.value.code == ErrorCode.STALE_MEMBER_EPOCH


def test_only_a_transaction_of_generation_minus_1_says_nothing_of_who_commits() -> None:
    """ConsumerGroup.validateOffsetCommit; -2 is the epoch of a member that is away."""
    shard = Shard()
    shard.join("A")
    group = shard.groups["g"]
    assert group.check_commit(Committer("", None, -1, 5, is_transactional=True)) is None
    with pytest.raises(KafkaError) as refused:
        group.check_commit(Committer("", None, -2, 5, is_transactional=True))
    assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_assignor_that_is_not_here_has_no_vote() -> None:
    """A member may have asked for it where it was: of another broker's configuration, or a class
    that Apache Kafka had loaded."""
    shard = Shard()
    shard.join("A")
    group = shard.groups["g"]
    wants = member_record("g", replace(group.members["A"], server_assignor="of another broker"))
    shard.shard.replay(wants)
    assert shard.shard.describe_consumer_group("g").assignor_name == "uniform"
    shard.later(1_000)
    assert shard.join("B") == (3, [])
    assert shard.heartbeat("A", 2) == (2, [0, 1])


@pytest.mark.parametrize("first", ["range", "uniform"])
def test_of_two_assignors_with_as_many_votes_the_order_of_members_chooses_none(first: str) -> None:
    """Who compaction left last in the log is read last; a load would move all partitions."""
    shard = Shard()
    shard.join("A")
    shard.join("B")
    members = shard.groups["g"].members
    other = {"range": "uniform", "uniform": "range"}[first]
    shard.shard.replay(member_record("g", replace(members["A"], server_assignor=first)))
    shard.shard.replay(member_record("g", replace(members["B"], server_assignor=other)))
    assert shard.shard.describe_consumer_group("g").assignor_name == "uniform"
