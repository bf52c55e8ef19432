"""What one voter asks arrives as it was meant at another, and so do the answers."""

from __future__ import annotations

from typing import Any

import pytest

from replication.raft import events
from replication.raft.events import LogPosition, Peer, SnapshotId
from replication.raft.voter_set import NO_REPLICA, Endpoint, ReplicaKey, Voter
from server.peers import raft_inbound as inbound
from server.peers.call import PeerError
from server.peers.raft_outbound import reply_event, request_message
from server.peers.raft_transport import RaftTransport
from wire.errors import ErrorCode
from wire.messages.cluster import ApiVersionsResponse
from wire.messages.data import FetchRequest, FetchResponse
from wire.messages.quorum import (
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from wire.schema import RESPONSES

DIR_1, DIR_2 = bytes(range(16)), bytes(range(1, 17))
ONE, TWO = ReplicaKey(1, DIR_1), ReplicaKey(2, DIR_2)
LISTENERS = (Endpoint("CONTROLLER", "one", 9093), Endpoint("OTHER", "uno", 9094))
AT = (Endpoint("CONTROLLER", "one", 9093),)
CLUSTER = "a-cluster-id"
VOTER = Voter(1, DIR_1, LISTENERS)

RECEIVED = {
    events.Vote: inbound.vote_event,
    events.BeginQuorumEpoch: inbound.begin_event,
    events.EndQuorumEpoch: inbound.end_event,
    events.Fetch: lambda request: inbound.fetch_event(request, 18),
    events.FetchSnapshot: inbound.fetch_snapshot_event,
    events.AddVoter: inbound.add_voter_event,
    events.RemoveVoter: inbound.remove_voter_event,
    events.UpdateVoter: inbound.update_voter_event,
}
ANSWERED = {
    events.Vote: inbound.vote_response,
    events.BeginQuorumEpoch: inbound.begin_response,
    events.EndQuorumEpoch: inbound.end_response,
    events.Fetch: inbound.fetch_response,
    events.FetchSnapshot: inbound.fetch_snapshot_response,
    events.AddVoter: inbound.add_voter_response,
    events.RemoveVoter: inbound.remove_voter_response,
    events.UpdateVoter: inbound.update_voter_response,
}

VOTE = events.Vote(ONE, 7, LogPosition(6, 42), True, TWO, CLUSTER)
BEGIN = events.BeginQuorumEpoch(1, 7, LISTENERS, TWO, CLUSTER)
END = events.EndQuorumEpoch(1, 7, (TWO, ONE), LISTENERS, CLUSTER)
FETCH = events.Fetch(TWO, 7, 42, 6, 500, 1 << 20, 40, CLUSTER)
FETCH_SNAPSHOT = events.FetchSnapshot(TWO, 7, SnapshotId(40, 6), 1024, 1 << 20, CLUSTER)
ADD = events.AddVoter(VOTER, 5000, False, CLUSTER)
REMOVE = events.RemoveVoter(TWO, CLUSTER)
UPDATE = events.UpdateVoter(VOTER, 7, CLUSTER)
NONE = ErrorCode.NONE


def over_the_wire(message: Any, version: int) -> Any:
    data = b"".join(bytes(part) for part in message.encode(version))
    return type(message).decode(data, version)


@pytest.mark.parametrize(
    "event",
    [
        VOTE,
        VOTE._replace(pre_vote=False, cluster_id=None, voter=NO_REPLICA),
        BEGIN,
        BEGIN._replace(leader_endpoints=(), voter=NO_REPLICA, cluster_id=None),
        END,
        END._replace(preferred=(), leader_endpoints=()),
        FETCH,
        FETCH._replace(high_watermark=-1, epoch=-1, cluster_id=None),
        FETCH_SNAPSHOT,
        ADD,
        ADD._replace(ack_when_committed=True),
        REMOVE,
        UPDATE,
        UPDATE._replace(voter=VOTER._replace(kraft_versions=(0, 0))),
    ],
)
def test_a_request_arrives_as_it_was_meant(event: Any) -> None:
    message, version, response_class = request_message(event)
    assert version == message.versions[1]
    assert RESPONSES[message.api_key] is response_class
    assert RECEIVED[type(event)](over_the_wire(message, version)) == event


@pytest.mark.parametrize(
    ("event", "reply"),
    [
        (VOTE, events.VoteReply(NONE, 7, -1, True)),
        (VOTE, events.VoteReply(NONE, 8, 1, False, AT)),
        (VOTE, events.VoteReply(ErrorCode.INVALID_VOTER_KEY, 7)),
        (VOTE, events.VoteReply(ErrorCode.INCONSISTENT_CLUSTER_ID, -1)),
        (BEGIN, events.BeginQuorumEpochReply(NONE, 7, 1, AT)),
        (BEGIN, events.BeginQuorumEpochReply(ErrorCode.FENCED_LEADER_EPOCH, 8, -1)),
        (BEGIN, events.BeginQuorumEpochReply(ErrorCode.INCONSISTENT_CLUSTER_ID, -1)),
        (END, events.EndQuorumEpochReply(NONE, 7, 1, AT)),
        (FETCH, events.FetchReply(NONE, 7, 1, AT, 40, 3, records=b"batches")),
        (FETCH, events.FetchReply(NONE, 7, 1, AT, 40, 3, diverging=LogPosition(5, 30))),
        (FETCH, events.FetchReply(NONE, 7, 1, AT, 40, 3, snapshot_id=SnapshotId(30, 5))),
        (FETCH, events.FetchReply(ErrorCode.NOT_LEADER_OR_FOLLOWER, 8, 1, AT)),
        (FETCH, events.FetchReply(ErrorCode.UNKNOWN_LEADER_EPOCH, 6)),
        (FETCH, events.FetchReply(ErrorCode.INCONSISTENT_CLUSTER_ID, -1)),
        (
            FETCH_SNAPSHOT,
            events.FetchSnapshotReply(NONE, 7, SnapshotId(40, 6), 1, AT, 4096, 1024, b"bytes"),
        ),
        (
            FETCH_SNAPSHOT,
            events.FetchSnapshotReply(ErrorCode.SNAPSHOT_NOT_FOUND, 7, SnapshotId(40, 6), 1, AT),
        ),
        (
            FETCH_SNAPSHOT,
            events.FetchSnapshotReply(ErrorCode.INCONSISTENT_CLUSTER_ID, -1, SnapshotId(40, 6)),
        ),
        (ADD, events.VoterChangeReply(NONE, -1)),
        (ADD, events.VoterChangeReply(ErrorCode.DUPLICATE_VOTER, -1, "is one")),
        (REMOVE, events.VoterChangeReply(ErrorCode.VOTER_NOT_FOUND, -1, "is none")),
        (UPDATE, events.VoterChangeReply(NONE, 7, "", 1, AT)),
        (UPDATE, events.VoterChangeReply(ErrorCode.FENCED_LEADER_EPOCH, 8)),
    ],
)
def test_a_reply_arrives_as_it_was_meant(event: Any, reply: Any) -> None:
    version = request_message(event).version
    response = over_the_wire(ANSWERED[type(event)](reply, "CONTROLLER"), version)
    assert reply_event(event, response, "CONTROLLER") == reply


def test_the_leader_is_named_by_the_endpoint_of_the_listener_that_was_asked() -> None:
    reply = events.VoteReply(NONE, 7, 1, False, LISTENERS)
    [node] = inbound.vote_response(reply, "OTHER").node_endpoints
    assert (node.node_id, node.host, node.port) == (1, "uno", 9094)
    assert inbound.vote_response(reply, "NO_SUCH").node_endpoints == []
    assert inbound.vote_response(reply._replace(leader_id=-1), "OTHER").node_endpoints == []


def test_errors_of_the_log_stand_with_its_partition() -> None:
    for error in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_REQUEST):
        response = inbound.vote_response(events.VoteReply(error, 7), "CONTROLLER")
        assert response.error_code == 0
        assert response.topics[0].partitions[0].error_code == error
    wrong = events.VoteReply(ErrorCode.INCONSISTENT_CLUSTER_ID, 7)
    assert inbound.vote_response(wrong, "CONTROLLER").error_code == 104
    assert inbound.vote_response(wrong, "CONTROLLER").topics == []


def test_an_old_candidate_does_not_say_whom_it_asks() -> None:
    message = over_the_wire(request_message(VOTE).message, 0)
    assert inbound.vote_event(message) == events.Vote(
        ReplicaKey(1), 7, LogPosition(6, 42), False, NO_REPLICA, CLUSTER
    )


def test_an_old_leader_names_its_successors_by_id() -> None:
    topic = EndQuorumEpochRequest.Topic
    request = EndQuorumEpochRequest(
        topics=[
            topic(
                topic_name="__cluster_metadata",
                partitions=[
                    topic.Partition(
                        partition_index=0, leader_id=1, leader_epoch=7, preferred_successors=[3, 2]
                    )
                ],
            )
        ]
    )
    event = inbound.end_event(over_the_wire(request, 0))
    assert event.preferred == (ReplicaKey(3), ReplicaKey(2))


def test_an_old_replica_names_the_log_and_itself_in_older_fields() -> None:
    topic = FetchRequest.Topic
    request = FetchRequest(
        replica_id=2, max_wait_ms=500, min_bytes=0, isolation_level=0,
        topics=[
            topic(
                topic="__cluster_metadata",
                partitions=[
                    topic.Partition(
                        partition=0, current_leader_epoch=7, fetch_offset=42, last_fetched_epoch=6,
                        partition_max_bytes=0,
                    )
                ],
            )
        ],
    )  # fmt: skip
    event = inbound.fetch_event(over_the_wire(request, 12), 12)
    assert event.replica == ReplicaKey(2)
    assert (event.epoch, event.offset, event.last_epoch) == (7, 42, 6)
    assert event.high_watermark == (1 << 63) - 1


def test_nothing_but_the_metadata_log_may_be_asked_about() -> None:
    def renamed(request: Any, **changes: Any) -> Any:
        for name, value in changes.items():
            setattr(request.topics[0], name, value)
        return request

    for broken in (
        lambda: inbound.vote_event(renamed(request_message(VOTE).message, topic_name="t")),
        lambda: inbound.vote_event(renamed(request_message(VOTE).message, partitions=[])),
        lambda: inbound.vote_event(VoteRequest(topics=[])),
        lambda: inbound.fetch_event(renamed(request_message(FETCH).message, topic_id=DIR_1), 18),
        lambda: inbound.fetch_event(renamed(request_message(FETCH).message, topic="t"), 12),
        lambda: inbound.fetch_snapshot_event(renamed(request_message(FETCH_SNAPSHOT).message,
                                                     name="t")),
        lambda: inbound.fetch_snapshot_event(FetchSnapshotRequest(topics=[])),
    ):  # fmt: skip
        with pytest.raises(inbound.OtherLog):
            broken()


def test_an_answer_about_another_log_is_no_answer() -> None:
    response = inbound.vote_response(events.VoteReply(NONE, 7), "CONTROLLER")
    response.topics[0].topic_name = "t"
    assert reply_event(VOTE, response, "CONTROLLER") is None
    assert reply_event(FETCH, FetchResponse(responses=[]), "CONTROLLER") is None


def test_a_probe_learns_the_kraft_versions_of_its_peer() -> None:
    feature = ApiVersionsResponse.SupportedFeature
    known = ApiVersionsResponse(
        error_code=0,
        api_keys=[],
        supported_features=[
            feature(name="metadata.version", min_version=7, max_version=30),
            feature(name="kraft.version", min_version=0, max_version=1),
        ],
    )
    probe = events.ProbeVersions()
    exchange = request_message(probe)
    assert exchange.version == 4, "versions below hide a feature whose minimum is 0"
    received = over_the_wire(known, exchange.version)
    assert reply_event(probe, received, "CONTROLLER") == events.VersionsReply(NONE, (0, 1))
    known.supported_features = []
    assert reply_event(probe, known, "CONTROLLER") == events.VersionsReply(NONE, (0, 0))


def test_a_code_that_we_do_not_know_is_an_error_all_the_same() -> None:
    response = UpdateRaftVoterResponse(error_code=9999)
    assert reply_event(UPDATE, response, "CONTROLLER").error is ErrorCode.UNKNOWN_SERVER_ERROR


class PeersOfTests:
    """Answers what the test says, at once."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.sent: list[tuple[Any, str, int, int]] = []

    def send(self, peer, request, version, response_class, on_complete, *, timeout_ms, channel):
        self.sent.append((peer, channel, version, timeout_ms))
        on_complete(self.answer)


def test_no_answer_is_told_as_none() -> None:
    peers = PeersOfTests(PeerError("refused"))
    replies: list[Any] = []
    RaftTransport(peers, 1, "CONTROLLER").send(Peer(2, "two", 9093), VOTE, replies.append, 2000)
    assert replies == [None]
    assert peers.sent == [(Peer(2, "two", 9093), "raft-client-1-votes", 2, 2000)]


def test_an_answer_that_makes_no_sense_is_none_and_the_driver_goes_on_asking() -> None:
    answer: VoteResponse = inbound.vote_response(events.VoteReply(NONE, 7), "CONTROLLER")
    answer.topics = None  # type: ignore[assignment]
    replies: list[Any] = []
    RaftTransport(PeersOfTests(answer), 1, "CONTROLLER").send(
        Peer(2, "two", 9093), VOTE, replies.append, 2000
    )
    assert replies == [None]


def test_votes_do_not_queue_behind_a_fetch_that_waits() -> None:
    peers = PeersOfTests(PeerError("refused"))
    transport = RaftTransport(peers, 1, "CONTROLLER")
    for request in (FETCH, FETCH_SNAPSHOT, VOTE, BEGIN, END, UPDATE, ADD, REMOVE):
        transport.send(Peer(2, "two", 9093), request, lambda _reply: None, 2000)
    channels = [channel for _, channel, _, _ in peers.sent]
    assert set(channels[:2]) == {"raft-client-1"}
    assert set(channels[2:]) == {"raft-client-1-votes"}


def test_an_answer_reaches_the_driver_as_a_reply() -> None:
    reply = events.VoteReply(NONE, 7, -1, True)
    answer: VoteResponse = inbound.vote_response(reply, "CONTROLLER")
    replies: list[Any] = []
    RaftTransport(PeersOfTests(answer), 1, "CONTROLLER").send(
        Peer(2, "two", 9093), VOTE, replies.append, 2000
    )
    assert replies == [reply]


def test_a_peer_of_another_cluster_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    reply = events.VoteReply(ErrorCode.INCONSISTENT_CLUSTER_ID, 7, -1, False)
    answer: VoteResponse = inbound.vote_response(reply, "CONTROLLER")
    transport = RaftTransport(PeersOfTests(answer), 1, "CONTROLLER")
    for _again in range(3):
        transport.send(Peer(2, "two", 9093), VOTE, lambda _reply: None, 2000)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "two" in line
    assert "of another cluster" in line
