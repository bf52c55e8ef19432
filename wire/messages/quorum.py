"""The metadata quorum, and what brokers say to the controller."""

from __future__ import annotations

from wire.primitives import ZERO_UUID, Part
from wire.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Nested,
    Records,
    Request,
    Response,
    String,
    Struct,
    Uint16,
    Uuid,
)


class VoteRequest(Request, key=52, versions=(0, 2), flexible=0):
    """Ask for a vote, or a pre-vote, in a quorum election."""

    cluster_id: str | None = String(nullable=0, default=None)
    voter_id: int = Int32(since=1, default=-1)

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            replica_epoch: int = Int32()
            replica_id: int = Int32()
            replica_directory_id: bytes = Uuid(since=1, default=ZERO_UUID)
            voter_directory_id: bytes = Uuid(since=1, default=ZERO_UUID)
            last_offset_epoch: int = Int32()
            last_offset: int = Int64()
            pre_vote: bool = Bool(since=2, default=False)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class VoteResponse(Response, to=VoteRequest):
    """Whether the vote was granted, and the leader the voter knows."""

    error_code: int = Int16()

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            leader_id: int = Int32()
            leader_epoch: int = Int32()
            vote_granted: bool = Bool()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Uint16()

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint, since=1, tag=0, default=())


class BeginQuorumEpochRequest(Request, key=53, versions=(0, 1), flexible=1):
    """A new quorum leader announces itself to a voter."""

    cluster_id: str | None = String(nullable=0, default=None)
    voter_id: int = Int32(since=1, default=-1)

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            voter_directory_id: bytes = Uuid(since=1, default=ZERO_UUID)
            leader_id: int = Int32()
            leader_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class LeaderEndpoint(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()

    leader_endpoints: list[LeaderEndpoint] = Array(LeaderEndpoint, since=1, default=())


class BeginQuorumEpochResponse(Response, to=BeginQuorumEpochRequest):
    """Acceptance, or the epoch and leader the voter knows."""

    error_code: int = Int16()

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            leader_id: int = Int32()
            leader_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Uint16()

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint, since=1, tag=0, default=())


class EndQuorumEpochRequest(Request, key=54, versions=(0, 1), flexible=1):
    """A quorum leader resigns and names preferred successors."""

    cluster_id: str | None = String(nullable=0, default=None)

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            leader_id: int = Int32()
            leader_epoch: int = Int32()
            preferred_successors: list[int] = Array(Int32, until=0, default=())

            class Candidate(Struct):
                candidate_id: int = Int32()
                candidate_directory_id: bytes = Uuid()

            preferred_candidates: list[Candidate] = Array(Candidate, since=1, default=())

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class LeaderEndpoint(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()

    leader_endpoints: list[LeaderEndpoint] = Array(LeaderEndpoint, since=1, default=())


class EndQuorumEpochResponse(Response, to=EndQuorumEpochRequest):
    """Acceptance, or the epoch and leader the voter knows."""

    error_code: int = Int16()

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            leader_id: int = Int32()
            leader_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Uint16()

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint, since=1, tag=0, default=())


class DescribeQuorumRequest(Request, key=55, versions=(0, 2), flexible=0):
    """Ask for the state of the metadata quorum."""

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class DescribeQuorumResponse(Response, to=DescribeQuorumRequest):
    """Leader, voters and observers with their log end offsets."""

    error_code: int = Int16()
    error_message: str | None = String(since=2, nullable=2, default="")

    class Topic(Struct):
        topic_name: str = String()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            error_message: str | None = String(since=2, nullable=2, default="")
            leader_id: int = Int32()
            leader_epoch: int = Int32()
            high_watermark: int = Int64()

            class ReplicaState(Struct):
                replica_id: int = Int32()
                replica_directory_id: bytes = Uuid(since=2, default=ZERO_UUID)
                log_end_offset: int = Int64()
                last_fetch_timestamp: int = Int64(since=1, default=-1)
                last_caught_up_timestamp: int = Int64(since=1, default=-1)

            current_voters: list[ReplicaState] = Array(ReplicaState)
            observers: list[ReplicaState] = Array(ReplicaState)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class Node(Struct):
        node_id: int = Int32()

        class Listener(Struct):
            name: str = String()
            host: str = String()
            port: int = Uint16()

        listeners: list[Listener] = Array(Listener)

    nodes: list[Node] = Array(Node, since=2, default=())


class FetchSnapshotRequest(Request, key=59, versions=(0, 1), flexible=0):
    """Read a piece of a metadata snapshot from the quorum leader."""

    replica_id: int = Int32(default=-1)
    max_bytes: int = Int32(default=2147483647)

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            partition: int = Int32()
            current_leader_epoch: int = Int32()

            class SnapshotId(Struct):
                end_offset: int = Int64()
                epoch: int = Int32()

            snapshot_id: SnapshotId = Nested(SnapshotId)
            position: int = Int64()
            replica_directory_id: bytes = Uuid(since=1, tag=0, default=ZERO_UUID)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)
    cluster_id: str | None = String(nullable=0, tag=0, default=None)


class FetchSnapshotResponse(Response, to=FetchSnapshotRequest):
    """Bytes of the snapshot from the position asked."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()

    class Topic(Struct):
        name: str = String()

        class Partition(Struct):
            index: int = Int32()
            error_code: int = Int16()

            class SnapshotId(Struct):
                end_offset: int = Int64()
                epoch: int = Int32()

            snapshot_id: SnapshotId = Nested(SnapshotId)
            size: int = Int64()
            position: int = Int64()
            unaligned_records: Part | None = Records(default=None)

            class LeaderIdAndEpoch(Struct):
                leader_id: int = Int32()
                leader_epoch: int = Int32()

            current_leader: LeaderIdAndEpoch | None = Nested(LeaderIdAndEpoch, tag=0, default=None)

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)

    class NodeEndpoint(Struct):
        node_id: int = Int32()
        host: str = String()
        port: int = Uint16()

    node_endpoints: list[NodeEndpoint] = Array(NodeEndpoint, since=1, tag=0, default=())


class AddRaftVoterRequest(Request, key=80, versions=(0, 1), flexible=0):
    """Add a voter to the metadata quorum (KIP-853)."""

    cluster_id: str | None = String(nullable=0)
    timeout_ms: int = Int32()
    voter_id: int = Int32()
    voter_directory_id: bytes = Uuid()

    class Listener(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()

    listeners: list[Listener] = Array(Listener)
    ack_when_committed: bool = Bool(since=1, default=True)


class AddRaftVoterResponse(Response, to=AddRaftVoterRequest):
    """Whether the voter was added."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)


class RemoveRaftVoterRequest(Request, key=81, versions=(0, 0), flexible=0):
    """Remove a voter from the metadata quorum (KIP-853)."""

    cluster_id: str | None = String(nullable=0)
    voter_id: int = Int32()
    voter_directory_id: bytes = Uuid()


class RemoveRaftVoterResponse(Response, to=RemoveRaftVoterRequest):
    """Whether the voter was removed."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)


class UpdateRaftVoterRequest(Request, key=82, versions=(0, 0), flexible=0):
    """A voter announces new endpoints or versions (KIP-853)."""

    cluster_id: str | None = String(nullable=0)
    current_leader_epoch: int = Int32()
    voter_id: int = Int32()
    voter_directory_id: bytes = Uuid()

    class Listener(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()

    listeners: list[Listener] = Array(Listener)

    class KRaftVersionFeature(Struct):
        min_supported_version: int = Int16()
        max_supported_version: int = Int16()

    kraft_version_feature: KRaftVersionFeature = Nested(KRaftVersionFeature)


class UpdateRaftVoterResponse(Response, to=UpdateRaftVoterRequest):
    """Acceptance, and the leader to talk to."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()

    class CurrentLeader(Struct):
        leader_id: int = Int32(default=-1)
        leader_epoch: int = Int32(default=-1)
        host: str = String()
        port: int = Int32()

    current_leader: CurrentLeader | None = Nested(CurrentLeader, tag=0, default=None)


class BrokerRegistrationRequest(Request, key=62, versions=(0, 4), flexible=0):
    """A starting broker makes itself known to the controller."""

    broker_id: int = Int32()
    cluster_id: str = String()
    incarnation_id: bytes = Uuid()

    class Listener(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()
        security_protocol: int = Int16()

    listeners: list[Listener] = Array(Listener)

    class Feature(Struct):
        name: str = String()
        min_supported_version: int = Int16()
        max_supported_version: int = Int16()

    features: list[Feature] = Array(Feature)
    rack: str | None = String(nullable=0)
    is_migrating_zk_broker: bool = Bool(since=1, default=False)
    log_dirs: list[bytes] = Array(Uuid, since=2, default=())
    previous_broker_epoch: int = Int64(since=3, default=-1)


class BrokerRegistrationResponse(Response, to=BrokerRegistrationRequest):
    """The broker epoch of this incarnation."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    broker_epoch: int = Int64(default=-1)


class BrokerHeartbeatRequest(Request, key=63, versions=(0, 2), flexible=0):
    """A broker tells the controller that it lives, and what state it wants."""

    broker_id: int = Int32()
    broker_epoch: int = Int64(default=-1)
    current_metadata_offset: int = Int64()
    want_fence: bool = Bool()
    want_shut_down: bool = Bool()
    offline_log_dirs: list[bytes] = Array(Uuid, since=1, tag=0, default=())
    cordoned_log_dirs: list[bytes] | None = Array(Uuid, since=2, nullable=2, tag=1, default=None)


class BrokerHeartbeatResponse(Response, to=BrokerHeartbeatRequest):
    """Whether the broker is fenced and may shut down."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    is_caught_up: bool = Bool()
    is_fenced: bool = Bool(default=True)
    should_shut_down: bool = Bool()


class ControllerRegistrationRequest(Request, key=70, versions=(0, 0), flexible=0):
    """A controller makes itself known to the active controller."""

    controller_id: int = Int32()
    incarnation_id: bytes = Uuid()
    zk_migration_ready: bool = Bool()

    class Listener(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()
        security_protocol: int = Int16()

    listeners: list[Listener] = Array(Listener)

    class Feature(Struct):
        name: str = String()
        min_supported_version: int = Int16()
        max_supported_version: int = Int16()

    features: list[Feature] = Array(Feature)


class ControllerRegistrationResponse(Response, to=ControllerRegistrationRequest):
    """Whether it was registered."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)


class AllocateProducerIdsRequest(Request, key=67, versions=(0, 0), flexible=0):
    """A broker asks the controller for a block of producer ids."""

    broker_id: int = Int32()
    broker_epoch: int = Int64(default=-1)


class AllocateProducerIdsResponse(Response, to=AllocateProducerIdsRequest):
    """The first id and the size of the block."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    producer_id_start: int = Int64()
    producer_id_len: int = Int32()


class AlterPartitionRequest(Request, key=56, versions=(2, 3), flexible=2):
    """A leader asks the controller to change its ISR."""

    broker_id: int = Int32()
    broker_epoch: int = Int64(default=-1)

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition_index: int = Int32()
            leader_epoch: int = Int32()
            new_isr: list[int] = Array(Int32, until=2, default=())

            class BrokerState(Struct):
                broker_id: int = Int32()
                broker_epoch: int = Int64(default=-1)

            new_isr_with_epochs: list[BrokerState] = Array(BrokerState, since=3, default=())
            leader_recovery_state: int = Int8()
            partition_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class AlterPartitionResponse(Response, to=AlterPartitionRequest):
    """The partition state the controller settled on."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()

    class Topic(Struct):
        topic_id: bytes = Uuid()

        class Partition(Struct):
            partition_index: int = Int32()
            error_code: int = Int16()
            leader_id: int = Int32()
            leader_epoch: int = Int32()
            isr: list[int] = Array(Int32)
            leader_recovery_state: int = Int8()
            partition_epoch: int = Int32()

        partitions: list[Partition] = Array(Partition)

    topics: list[Topic] = Array(Topic)


class AssignReplicasToDirsRequest(Request, key=73, versions=(0, 0), flexible=0):
    """A broker tells the controller which directory holds which replica."""

    broker_id: int = Int32()
    broker_epoch: int = Int64(default=-1)

    class Directory(Struct):
        id: bytes = Uuid()

        class Topic(Struct):
            topic_id: bytes = Uuid()

            class Partition(Struct):
                partition_index: int = Int32()

            partitions: list[Partition] = Array(Partition)

        topics: list[Topic] = Array(Topic)

    directories: list[Directory] = Array(Directory)


class AssignReplicasToDirsResponse(Response, to=AssignReplicasToDirsRequest):
    """Whether each placement was recorded."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()

    class Directory(Struct):
        id: bytes = Uuid()

        class Topic(Struct):
            topic_id: bytes = Uuid()

            class Partition(Struct):
                partition_index: int = Int32()
                error_code: int = Int16()

            partitions: list[Partition] = Array(Partition)

        topics: list[Topic] = Array(Topic)

    directories: list[Directory] = Array(Directory)
