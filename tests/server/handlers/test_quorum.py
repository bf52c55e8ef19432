"""Which node answers what is asked about the quorum, and when."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from replication.raft import events
from replication.raft.voter_set import Endpoint, Voter
from tests.server.handler_support import Asked, FakeBroker, image_of, topic_image
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    VoteRequest,
)

METADATA = "__cluster_metadata"
DIRECTORY = bytes(range(16))


class Replica(NamedTuple):
    replica_id: int
    directory_id: bytes = DIRECTORY
    log_end_offset: int = 42
    last_fetch_timestamp: int = 1000
    last_caught_up_timestamp: int = 900


class Quorum(NamedTuple):
    leader_id: int = 1
    leader_epoch: int = 7
    high_watermark: int = 40
    voters: tuple[Replica, ...] = (Replica(1), Replica(2))
    observers: tuple[Replica, ...] = (Replica(9),)
    nodes: tuple[Voter, ...] = (
        Voter(1, DIRECTORY, (Endpoint("CONTROLLER", "one", 9093),)),
        Voter(2, DIRECTORY, (Endpoint("CONTROLLER", "two", 9093),)),
    )


class FakeRaft:
    """Keeps what it was asked; the test replies."""

    def __init__(self, is_leader: bool) -> None:
        self.is_leader = is_leader
        self.leader_id, self.leader_epoch = 1, 7
        self.asked: list[tuple[Any, Any]] = []

    def describe_quorum(self) -> Quorum:
        return Quorum()

    def handle(self, request: Any, on_reply: Any) -> None:
        self.asked.append((request, on_reply))


class FakeChannelToController:
    def __init__(self) -> None:
        self.submitted: list[Any] = []

    def submit(self, request: Any, on_complete: Any, *, context: Any = None) -> None:
        self.submitted.append((request, on_complete, context))


def node(role: str, *, leads: bool, alone: bool = False) -> Asked:
    broker = FakeBroker(image_of(topic_image("t")))
    broker.role = role
    broker.is_alone = alone
    broker.raft = FakeRaft(leads)
    broker.controller = FakeChannelToController()
    return Asked(broker)


def describe(topic: str = METADATA, index: int = 0) -> DescribeQuorumRequest:
    asked = DescribeQuorumRequest.Topic
    return DescribeQuorumRequest(
        topics=[
            asked(topic_name=topic, partitions=[asked.Partition(partition_index=index)]),
        ]
    )


ADD = AddRaftVoterRequest(
    cluster_id=None, timeout_ms=100, voter_id=3, voter_directory_id=DIRECTORY, listeners=[]
)
REMOVE = RemoveRaftVoterRequest(cluster_id=None, voter_id=3, voter_directory_id=DIRECTORY)


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_the_leader_describes_the_quorum(role: str) -> None:
    response = node(role, leads=True).ask(describe(), 2)
    [partition] = response.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 7, 40)
    assert [state.replica_id for state in partition.current_voters] == [1, 2]
    assert [state.replica_id for state in partition.observers] == [9]
    assert [(n.node_id, n.listeners[0].name, n.listeners[0].host) for n in response.nodes] == [
        (1, "CONTROLLER", "one"),
        (2, "CONTROLLER", "two"),
    ]


def test_a_controller_that_does_not_lead_says_so() -> None:
    response = node("controller", leads=False).ask(describe(), 2)
    assert response.error_code == 0
    [partition] = response.topics[0].partitions
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.error_message
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (0, 0, 0)
    assert (partition.current_voters, response.nodes) == ([], [])


@pytest.mark.parametrize(("request_", "version"), [(describe(), 2), (ADD, 1), (REMOVE, 0)])
def test_a_broker_asks_the_leader(request_: Any, version: int) -> None:
    asked = node("broker", leads=False)
    assert asked.ask(request_, version) is None
    [(sent, on_complete, context)] = asked.broker.controller.submitted
    assert type(sent) is type(request_)
    assert (context.api_version, context.client_id) == (version, "test")
    on_complete(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody leads"))
    answer = asked.received(request_, version)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert asked.broker.raft.asked == []


def test_the_leaders_answer_is_passed_on() -> None:
    asked = node("broker", leads=False)
    asked.ask(ADD, 1)
    asked.broker.controller.submitted[0][1](
        AddRaftVoterResponse(error_code=ErrorCode.DUPLICATE_VOTER, error_message="is one")
    )
    answer = asked.received(ADD, 1)
    assert (answer.error_code, answer.error_message) == (ErrorCode.DUPLICATE_VOTER, "is one")


def test_a_change_of_voters_that_finds_this_node_leading_by_now_is_for_its_raft() -> None:
    asked = node("broker", leads=False)
    asked.ask(ADD, 1)
    asked.broker.raft.is_leader = True
    asked.broker.controller.submitted[0][1](KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert len(asked.broker.raft.asked) == 1


def test_a_node_alone_asks_nobody() -> None:
    asked = node("broker", leads=False, alone=True)
    [partition] = asked.ask(describe(), 2).topics[0].partitions
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    asked.ask(ADD, 1)
    assert asked.broker.controller.submitted == []
    assert len(asked.broker.raft.asked) == 1


@pytest.mark.parametrize(("topic", "index"), [("t", 0), (METADATA, 1)])
def test_only_the_metadata_log_is_a_quorum(topic: str, index: int) -> None:
    response = node("broker", leads=True).ask(describe(topic, index), 2)
    [partition] = response.topics[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (response.topics[0].topic_name, partition.partition_index) == (topic, index)


@pytest.mark.parametrize(
    "named",
    [
        [],
        [(METADATA, [])],
        [(METADATA, [0, 1])],
        [(METADATA, [0, 0])],
        [(METADATA, [0]), ("t", [0])],
    ],
)
@pytest.mark.parametrize("leads", [True, False])
def test_who_asks_for_more_than_the_quorum_is_refused_all_of_it(
    named: list[tuple[str, list[int]]], leads: bool
) -> None:
    asked = DescribeQuorumRequest.Topic
    request = DescribeQuorumRequest(
        topics=[
            asked(topic_name=name, partitions=[asked.Partition(partition_index=i) for i in indexes])
            for name, indexes in named
        ]
    )
    response = node("controller", leads=leads).ask(request, 2)
    assert response.error_code == 0
    assert response.nodes == []
    assert [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ] == named
    codes = {p.error_code for topic in response.topics for p in topic.partitions}
    assert codes <= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_describe_quorum_is_answered(version: int) -> None:
    response: DescribeQuorumResponse = node("broker", leads=True).ask(describe(), version)
    [partition] = response.topics[0].partitions
    times = [state.last_fetch_timestamp for state in partition.current_voters]
    assert times == ([-1, -1] if version == 0 else [1000, 1000])
    assert len(response.nodes) == (2 if version == 2 else 0)


def test_an_answer_comes_when_the_driver_gives_it() -> None:
    asked = node("controller", leads=True)
    topic = VoteRequest.Topic
    request = VoteRequest(
        voter_id=1,
        topics=[
            topic(
                topic_name=METADATA,
                partitions=[
                    topic.Partition(
                        partition_index=0, replica_epoch=8, replica_id=2, last_offset_epoch=7,
                        last_offset=42,
                    )
                ],
            )
        ],
    )  # fmt: skip
    assert asked.ask(request, 2) is None
    [(event, reply)] = asked.broker.raft.asked
    assert (event.candidate.node_id, event.epoch) == (2, 8)
    reply(events.VoteReply(ErrorCode.NONE, 8, granted=True))
    assert asked.received(request, 2).topics[0].partitions[0].vote_granted


def test_a_change_that_waits_is_answered_when_the_node_stops() -> None:
    asked = node("controller", leads=True)
    assert asked.ask(ADD, 1) is None
    asked.channel.in_flight.complete_early()
    assert asked.received(ADD, 1).error_code == ErrorCode.BROKER_NOT_AVAILABLE
    [(_, reply)] = asked.broker.raft.asked
    reply(events.VoterChangeReply(ErrorCode.NONE, 7))  # too late, and harmless
    assert asked.received(ADD, 1) is None


def test_what_waits_for_a_connection_that_ended_is_dropped() -> None:
    asked = node("controller", leads=True)
    asked.ask(REMOVE, 0)
    assert asked.channel.in_flight.cancel()
    asked.channel.in_flight = None
    [(_, reply)] = asked.broker.raft.asked
    reply(events.VoterChangeReply(ErrorCode.NONE, 7))
    assert asked.received(REMOVE, 0) is None
