"""Three voters over real sockets: elections, failures, snapshots, changes of voters, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.raft.snapshots import SnapshotId
from tests.server.quorum_support import (
    CLUSTER_ID,
    LISTENER,
    Quorum,
    QuorumNode,
    directory_id_of,
    eventually,
)
from tests.server.wire_client import WireClient
from wire.control_records import ControlRecordType, control_record_type
from wire.errors import ErrorCode
from wire.messages.data import FetchRequest
from wire.messages.quorum import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from wire.messages.raft_records import LeaderChangeMessage
from wire.primitives import METADATA_TOPIC_ID
from wire.record_batch import iterate_headers
from wire.records import read_records

METADATA = "__cluster_metadata"


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    made = Quorum(tmp_path)
    yield made
    made.close()
    assert [node.fatal for node in made.nodes.values() if node.fatal] == []


def described(node: QuorumNode) -> Any:
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequest.Topic(
                topic_name=METADATA,
                partitions=[DescribeQuorumRequest.Topic.Partition(partition_index=0)],
            )
        ]
    )
    return node.ask(request, 2)


def voter_ids(node: QuorumNode) -> set[int]:
    return set(node.raft.voters.ids)


def add_voter(leader: QuorumNode, newcomer: QuorumNode, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER_ID,
        "timeout_ms": 60_000,
        "voter_id": newcomer.node_id,
        "voter_directory_id": newcomer.directory_id,
        "listeners": [
            AddRaftVoterRequest.Listener(name=LISTENER, host="127.0.0.1", port=newcomer.port)
        ],
    }
    return leader.ask(AddRaftVoterRequest(**{**values, **changes}), 1)


def remove_voter(leader: QuorumNode, node_id: int, directory_id: bytes) -> Any:
    return leader.ask(
        RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=directory_id
        ),
        0,
    )


def test_three_voters_elect_one_leader_and_replicate(quorum: Quorum) -> None:
    quorum.start_static(1, 2, 3)
    leader = quorum.leader()
    leader.append("a", "b")
    leader.append("c")
    for node in quorum.nodes.values():
        node.has("a", "b", "c")
    eventually(lambda: {n.raft.leader_id for n in quorum.nodes.values()} == {leader.node_id})


def test_the_others_go_on_when_the_leader_vanishes_and_it_follows_when_it_returns(
    quorum: Quorum,
) -> None:
    quorum.start_static(1, 2, 3)
    first = quorum.leader()
    first.append("before")
    for node in quorum.nodes.values():
        node.has("before")
    epoch = first.raft.leader_epoch
    first.kill()
    quorum.pass_fetch_timeout()
    second = quorum.leader()
    assert second.raft.leader_epoch > epoch
    second.append("after")
    for node in quorum.running():
        node.has("before", "after")
    returned = quorum.restart(first.node_id)
    returned.has("before", "after")
    assert not returned.raft.is_leader


def test_a_leader_that_stops_hands_over_at_once(quorum: Quorum) -> None:
    quorum.start_static(1, 2, 3)
    leader = quorum.leader()
    leader.append("a")
    for node in quorum.nodes.values():
        node.has("a")
    leader.stop()
    assert quorum.leader() is not leader


def test_nothing_is_committed_without_a_majority(quorum: Quorum) -> None:
    quorum.start_static(1, 2, 3)
    leader = quorum.leader()
    leader.append("a")
    leader.has("a")
    for follower in quorum.followers():
        follower.kill()
    offset = leader.append("lost")
    quorum.pass_fetch_timeout()
    eventually(lambda: not leader.raft.is_leader, "for a leader without followers to resign")
    assert leader.recorder.records == ["a"]
    assert leader.raft.high_watermark <= offset


def test_what_a_lone_leader_wrote_is_cut_off_when_it_returns(quorum: Quorum) -> None:
    quorum.start_static(1, 2, 3)
    old = quorum.leader()
    old.append("a")
    for node in quorum.nodes.values():
        node.has("a")
    others = quorum.followers()
    for node in others:
        node.kill()
    old.append("never committed", "nor this")
    old.kill()
    for node in others:
        quorum.restart(node.node_id)
    quorum.leader().append("b")
    returned = quorum.restart(old.node_id)
    returned.has("a", "b")


def test_a_voter_whose_records_are_gone_rejoins_by_snapshot(quorum: Quorum) -> None:
    quorum.start_static(1, 2, 3)
    leader = quorum.leader()
    absent = quorum.followers()[0]
    leader.append("a")
    for node in quorum.nodes.values():
        node.has("a")
    absent.kill()
    offset = leader.append("b", "c")
    for node in quorum.running():
        node.has("a", "b", "c")
    epoch = leader.raft.leader_epoch
    for node in quorum.running():
        node.raft.write_snapshot(SnapshotId(offset + 1, epoch), 1, ["a+b+c"])
    eventually(lambda: leader.raft.log.start_offset == offset + 1, "for the log to be given up")
    leader.append("d")
    returned = quorum.restart(absent.node_id)
    eventually(lambda: returned.recorder.snapshot == ["a+b+c"])
    eventually(lambda: returned.recorder.records[-1:] == ["d"])
    assert returned.raft.log.latest_snapshot == SnapshotId(offset + 1, epoch)


def test_a_snapshot_larger_than_one_answer_arrives_whole(quorum: Quorum) -> None:
    quorum.start_static(1, 2, 3)
    leader = quorum.leader()
    absent = quorum.followers()[0]
    absent.kill()
    offset = leader.append("a")
    for node in quorum.running():
        node.has("a")
    state = [f"{number}:" + "x" * 100_000 for number in range(200)]
    leader.raft.write_snapshot(SnapshotId(offset + 1, leader.raft.leader_epoch), 1, state)
    eventually(lambda: leader.raft.log.start_offset == offset + 1)
    returned = quorum.restart(absent.node_id)
    eventually(lambda: returned.recorder.snapshot)
    assert returned.recorder.snapshot == state


def test_an_observer_follows_and_never_votes(quorum: Quorum) -> None:
    quorum.start_dynamic(1, 2, 3)
    leader = quorum.leader()
    observer = quorum.add(4, bootstrap_servers=quorum.bootstrap_servers, can_vote=False)
    observer.start()
    leader.append("a")
    observer.has("a")
    leader.kill()
    quorum.pass_fetch_timeout()
    quorum.leader().append("b")
    observer.has("a", "b")
    assert voter_ids(observer) == {1, 2, 3}


def test_a_voter_is_added_and_counts(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    leader.append("a")
    newcomer = quorum.add(2, bootstrap_servers=quorum.bootstrap_servers)
    newcomer.start()
    newcomer.has("a")
    answer = eventually(lambda: (r := add_voter(leader, newcomer)).error_code == 0 and r)
    assert answer.error_message is None
    assert voter_ids(leader) == {1, 2}
    eventually(lambda: voter_ids(newcomer) == {1, 2})
    newcomer.kill()
    leader.append("not without it")
    quorum.pass_fetch_timeout()
    eventually(lambda: not leader.raft.is_leader, "for a leader of two without the other")


def test_a_removed_leader_resigns_and_the_rest_go_on(quorum: Quorum) -> None:
    quorum.start_dynamic(1, 2, 3)
    leader = quorum.leader()
    leader.append("a")
    answer = remove_voter(leader, leader.node_id, leader.directory_id)
    assert answer.error_code == 0
    eventually(lambda: not leader.raft.is_leader)
    second = eventually(lambda: next((n for n in quorum.nodes.values() if n.raft.is_leader), None))
    assert second is not leader
    assert voter_ids(second) == {1, 2, 3} - {leader.node_id}
    second.append("b")
    for node in quorum.nodes.values():
        node.has("a", "b")


def test_a_voter_with_a_new_disk_is_another_voter(quorum: Quorum) -> None:
    quorum.start_dynamic(1, 2, 3)
    leader = quorum.leader()
    leader.append("a")
    lost = quorum.followers()[0]
    lost.kill()
    wiped = quorum.add(lost.node_id, 2, bootstrap_servers=quorum.bootstrap_servers)
    wiped.start()
    wiped.has("a")
    assert add_voter(leader, wiped).error_code == ErrorCode.DUPLICATE_VOTER
    assert not wiped.raft.is_voter
    assert remove_voter(leader, lost.node_id, lost.directory_id).error_code == 0
    eventually(lambda: add_voter(leader, wiped).error_code in (0, ErrorCode.DUPLICATE_VOTER))
    eventually(lambda: wiped.raft.is_voter)


def test_a_controller_joins_by_itself_when_it_is_told_to(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    quorum.leader()
    newcomer = quorum.add(2, bootstrap_servers=quorum.bootstrap_servers, config={"auto_join": True})
    newcomer.start()

    def has_joined() -> bool:
        newcomer.pass_fetch_timeout()  # so often it asks, until it has caught up
        return newcomer.raft.is_voter

    eventually(has_joined)


def test_a_voter_that_moved_tells_the_leader(quorum: Quorum) -> None:
    quorum.start_dynamic(1, 2, 3)
    leader = quorum.leader()
    moved = quorum.followers()[0]
    moved.kill()
    quorum._ports.pop(moved.node_id)
    again = quorum.restart(moved.node_id)
    assert again.port != moved.port

    def known() -> bool:
        voter = leader.raft.voters.get(moved.node_id)
        return voter is not None and voter.endpoints == (again.endpoint,)

    eventually(known, "for UpdateRaftVoter")


def test_the_leader_describes_the_quorum_and_the_others_refuse(quorum: Quorum) -> None:
    quorum.start_dynamic(1, 2, 3)
    leader = quorum.leader()
    observer = quorum.add(4, bootstrap_servers=quorum.bootstrap_servers, can_vote=False)
    observer.start()
    offset = leader.append("a")
    observer.has("a")

    def complete() -> Any:
        response = described(leader)
        [partition] = response.topics[0].partitions
        ends = {state.log_end_offset for state in partition.current_voters}
        return partition.observers and ends == {offset + 1} and response

    response = eventually(complete)
    [partition] = response.topics[0].partitions
    assert (partition.leader_id, partition.error_code) == (leader.node_id, 0)
    assert partition.leader_epoch == leader.raft.leader_epoch
    assert partition.high_watermark == offset + 1
    assert {
        (state.replica_id, state.replica_directory_id) for state in partition.current_voters
    } == {(node_id, directory_id_of(node_id)) for node_id in (1, 2, 3)}
    [seen] = partition.observers
    assert (seen.replica_id, seen.replica_directory_id) == (4, directory_id_of(4))
    assert seen.last_fetch_timestamp > 0
    listeners = {
        node.node_id: [(x.name, x.port) for x in node.listeners] for node in response.nodes
    }
    assert listeners == {i: [(LISTENER, quorum.nodes[i].port)] for i in (1, 2, 3)}
    for follower in quorum.followers():
        [refused] = described(follower).topics[0].partitions
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_change_is_written_in_the_only_version_apache_kafka_reads(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    leader.append("a")
    leader.has("a")
    segment = leader.path / "__cluster_metadata-0" / f"{0:020d}.log"
    data = segment.read_bytes()
    _, header = next(iterate_headers(data))
    record = next(iter(read_records(data, 0, header)))
    assert control_record_type(record.key) is ControlRecordType.LEADER_CHANGE
    message = LeaderChangeMessage.decode(record.value, 0)
    assert (message.version, message.leader_id) == (0, 1)
    assert [voter.voter_id for voter in message.voters] == [1]
    assert record.value == message.encode_bytes(0), "nothing stands behind version 0"


# ---- errors, as Kafka's


def vote_request(leader: QuorumNode, **changes: Any) -> VoteRequest:
    topic = VoteRequest.Topic
    values: dict[str, Any] = {
        "partition_index": 0,
        "replica_epoch": leader.raft.leader_epoch,
        "replica_id": 9,
        "replica_directory_id": directory_id_of(9),
        "voter_directory_id": leader.directory_id,
        "last_offset_epoch": 0,
        "last_offset": 0,
    }
    top = {key: changes.pop(key) for key in ("cluster_id", "voter_id") if key in changes}
    name = changes.pop("topic_name", METADATA)
    return VoteRequest(
        **{"cluster_id": CLUSTER_ID, "voter_id": leader.node_id, **top},
        topics=[topic(topic_name=name, partitions=[topic.Partition(**{**values, **changes})])],
    )


def test_vote_is_refused_as_kafka_does(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    epoch = leader.raft.leader_epoch
    top = leader.ask(vote_request(leader, cluster_id="another-cluster"), 2)
    assert (top.error_code, top.topics) == (ErrorCode.INCONSISTENT_CLUSTER_ID, [])
    other = leader.ask(vote_request(leader, topic_name="t"), 2)
    assert (other.error_code, other.topics) == (ErrorCode.INVALID_REQUEST, [])
    for changes, error in (
        ({"replica_epoch": epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"voter_id": 2}, ErrorCode.INVALID_VOTER_KEY),
        ({"voter_directory_id": directory_id_of(1, 7)}, ErrorCode.INVALID_VOTER_KEY),
        ({"last_offset_epoch": epoch}, ErrorCode.INVALID_REQUEST),
        ({"last_offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": -1}, ErrorCode.INVALID_REQUEST),
    ):
        answer = leader.ask(vote_request(leader, **changes), 2)
        [partition] = answer.topics[0].partitions
        assert (answer.error_code, partition.error_code) == (0, error), changes
        assert not partition.vote_granted
        assert (partition.leader_id, partition.leader_epoch) == (1, epoch)
        [node] = answer.node_endpoints
        assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", leader.port)
    assert leader.raft.is_leader


def test_an_old_epoch_of_a_leader_is_fenced(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    topic = BeginQuorumEpochRequest.Topic
    answer = leader.ask(
        BeginQuorumEpochRequest(
            cluster_id=CLUSTER_ID,
            voter_id=1,
            topics=[
                topic(
                    topic_name=METADATA,
                    partitions=[
                        topic.Partition(
                            partition_index=0, leader_id=2,
                            leader_epoch=leader.raft.leader_epoch - 1,
                        )
                    ],
                )
            ],
        ),
        1,
    )  # fmt: skip
    [partition] = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert partition.leader_id == 1


def fetch_request(epoch: int, offset: int, last_epoch: int, **changes: Any) -> FetchRequest:
    topic = FetchRequest.Topic
    topic_id = changes.pop("topic_id", METADATA_TOPIC_ID)
    values: dict[str, Any] = {
        "cluster_id": CLUSTER_ID,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "isolation_level": 0,
        "replica_state": FetchRequest.ReplicaState(replica_id=9),
    }
    return FetchRequest(
        **{**values, **changes},
        topics=[
            topic(
                topic_id=topic_id,
                partitions=[
                    topic.Partition(
                        partition=0, current_leader_epoch=epoch, fetch_offset=offset,
                        last_fetched_epoch=last_epoch, partition_max_bytes=0,
                        replica_directory_id=directory_id_of(9), high_watermark=-1,
                    )
                ],
            )
        ],
    )  # fmt: skip


def test_fetch_is_answered_and_refused_as_kafka_does(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    leader.append("a")
    leader.has("a")
    epoch, end = leader.raft.leader_epoch, leader.raft.log.end_offset
    for request in (
        fetch_request(epoch, 0, 0, topic_id=bytes(16)),
        fetch_request(epoch, 0, 0, topic_id=directory_id_of(5)),
    ):
        answer = leader.ask(request, 18)
        assert (answer.error_code, answer.responses) == (ErrorCode.INVALID_REQUEST, [])
    wrong = leader.ask(fetch_request(epoch, 0, 0, cluster_id="another-cluster"), 18)
    assert wrong.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    for request, error in (
        (fetch_request(epoch - 1, 0, 0), ErrorCode.FENCED_LEADER_EPOCH),
        (fetch_request(epoch + 1, 0, 0), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch_request(epoch, -1, 0), ErrorCode.INVALID_REQUEST),
        (fetch_request(epoch, 0, epoch + 1), ErrorCode.INVALID_REQUEST),
    ):
        answer = leader.ask(request, 18)
        [partition] = answer.responses[0].partitions
        assert (answer.error_code, partition.error_code) == (0, error)
        assert partition.current_leader.leader_epoch == epoch
        assert answer.node_endpoints[0].port == leader.port
    answer = leader.ask(fetch_request(epoch, 0, 0), 18)
    [partition] = answer.responses[0].partitions
    assert partition.error_code == 0
    assert b"a" in bytes(partition.records)
    assert partition.high_watermark == end
    assert answer.responses[0].topic_id == METADATA_TOPIC_ID
    ahead = leader.ask(fetch_request(epoch, end + 10, epoch), 18)
    [partition] = ahead.responses[0].partitions
    assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (epoch, end)


def test_a_fetch_waits_until_there_is_something_new(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    leader.append("a")
    leader.has("a")
    request = fetch_request(
        leader.raft.leader_epoch,
        leader.raft.log.end_offset,
        leader.raft.leader_epoch,
        max_wait_ms=60_000,
    )
    request.topics[0].partitions[0].high_watermark = leader.raft.log.end_offset
    with WireClient(leader.port) as client:
        sent = client.send(request, 18)
        leader.append("new")
        received, answer = client.read(1, 18)
    assert received == sent
    assert b"new" in bytes(answer.responses[0].partitions[0].records)


def test_a_fetch_that_waits_is_answered_when_the_node_stops(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    request = fetch_request(
        leader.raft.leader_epoch,
        leader.raft.log.end_offset,
        leader.raft.leader_epoch,
        max_wait_ms=60_000,
    )
    eventually(lambda: leader.raft.high_watermark == leader.raft.log.end_offset)
    request.topics[0].partitions[0].high_watermark = leader.raft.log.end_offset
    with WireClient(leader.port) as client:
        client.send(request, 18)
        eventually(lambda: leader.socket_server.processors[0].requests >= 1)
        leader.running = False
        leader.socket_server.shutdown()
        _, answer = client.read(1, 18)
    leader.raft.shutdown(timeout_ms=0)
    leader.peers.shutdown()
    [partition] = answer.responses[0].partitions
    assert partition.error_code == ErrorCode.BROKER_NOT_AVAILABLE


def snapshot_request(leader: QuorumNode, snapshot_id: SnapshotId, position: int, **top: Any) -> Any:
    topic = FetchSnapshotRequest.Topic
    name = top.pop("name", METADATA)
    epoch = top.pop("epoch", leader.raft.leader_epoch)
    request = FetchSnapshotRequest(
        **{"cluster_id": CLUSTER_ID, "replica_id": 9, "max_bytes": 100, **top},
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.Partition(
                        partition=0, current_leader_epoch=epoch, position=position,
                        snapshot_id=topic.Partition.SnapshotId(
                            end_offset=snapshot_id.offset, epoch=snapshot_id.epoch
                        ),
                    )
                ],
            )
        ],
    )  # fmt: skip
    return leader.ask(request, 1)


def test_a_snapshot_is_served_by_position_and_refused_as_kafka_does(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    offset = leader.append("a")
    leader.has("a")
    snapshot_id = SnapshotId(offset + 1, leader.raft.leader_epoch)
    leader.raft.write_snapshot(snapshot_id, 1, ["state " * 100])
    eventually(lambda: leader.raft.log.start_offset == offset + 1)
    whole = (leader.path / "__cluster_metadata-0" / snapshot_id.file_name).read_bytes()
    pieces = b""
    while len(pieces) < len(whole):
        answer = snapshot_request(leader, snapshot_id, len(pieces))
        [partition] = answer.topics[0].partitions
        assert (partition.error_code, partition.size) == (0, len(whole))
        assert partition.position == len(pieces)
        assert 0 < len(bytes(partition.unaligned_records)) <= 100
        pieces += bytes(partition.unaligned_records)
    assert pieces == whole
    for position in (-1, len(whole)):
        [partition] = snapshot_request(leader, snapshot_id, position).topics[0].partitions
        assert partition.error_code == ErrorCode.POSITION_OUT_OF_RANGE
    [partition] = snapshot_request(leader, SnapshotId(7, 1), 0).topics[0].partitions
    assert partition.error_code == ErrorCode.SNAPSHOT_NOT_FOUND
    assert partition.current_leader.leader_id == 1
    [partition] = snapshot_request(leader, snapshot_id, 0, name="t").topics[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    [partition] = snapshot_request(leader, snapshot_id, 0, epoch=99).topics[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    answer = snapshot_request(leader, snapshot_id, 0, cluster_id="another-cluster")
    assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_change_of_voters_is_refused_as_kafka_does(quorum: Quorum) -> None:
    quorum.start_dynamic(1, 2, 3)
    leader = quorum.leader()
    leader.append("a")
    leader.has("a")
    newcomer = quorum.add(4)
    assert add_voter(leader, newcomer, cluster_id="another").error_code == 104
    for changes, error in (
        ({"voter_directory_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
        ({"voter_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST),
        ({"voter_id": 2}, ErrorCode.DUPLICATE_VOTER),
    ):
        answer = add_voter(leader, newcomer, **changes)
        assert answer.error_code == error, changes
        assert answer.error_message
    follower = quorum.followers()[0]
    assert add_voter(follower, newcomer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert remove_voter(leader, 4, newcomer.directory_id).error_code == ErrorCode.VOTER_NOT_FOUND
    wrong_disk = remove_voter(leader, 2, directory_id_of(2, 9))
    assert wrong_disk.error_code == ErrorCode.VOTER_NOT_FOUND
    assert remove_voter(leader, 2, bytes(16)).error_code == ErrorCode.INVALID_REQUEST
    assert voter_ids(leader) == {1, 2, 3}


def test_static_voters_cannot_be_changed(quorum: Quorum) -> None:
    quorum.start_static(1, 2, 3)
    leader = quorum.leader()
    leader.append("a")
    leader.has("a")
    newcomer = quorum.add(4)
    assert add_voter(leader, newcomer).error_code == ErrorCode.UNSUPPORTED_VERSION
    removed = remove_voter(leader, 2, directory_id_of(2))
    assert removed.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_update_voter_is_refused_as_kafka_does(quorum: Quorum) -> None:
    quorum.start_dynamic(1)
    leader = quorum.leader()
    leader.append("a")
    leader.has("a")
    epoch = leader.raft.leader_epoch
    listeners = [UpdateRaftVoterRequest.Listener(name=LISTENER, host="127.0.0.1", port=1)]
    feature = UpdateRaftVoterRequest.KRaftVersionFeature
    values: dict[str, Any] = {
        "cluster_id": CLUSTER_ID,
        "current_leader_epoch": epoch,
        "voter_id": 2,
        "voter_directory_id": directory_id_of(2),
        "listeners": listeners,
        "kraft_version_feature": feature(min_supported_version=0, max_supported_version=1),
    }
    bad_range = feature(min_supported_version=2, max_supported_version=1)
    for changes, error in (
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"current_leader_epoch": epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": epoch + 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"voter_directory_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST),
        ({"kraft_version_feature": bad_range}, ErrorCode.INVALID_REQUEST),
        ({}, ErrorCode.VOTER_NOT_FOUND),
    ):
        answer = leader.ask(UpdateRaftVoterRequest(**{**values, **changes}), 0)
        assert answer.error_code == error, changes
        assert answer.current_leader.leader_id == 1
        assert answer.current_leader.port == leader.port
