"""Which log directory of a broker holds which replica (KIP-858). PURE.

A broker with several directories chooses one when it creates a replica and tells the controller
with AssignReplicasToDirs. Why the controller wants to know: when a directory fails, the broker
names it in its heartbeat and the replicas in it leave their ISRs at once. A replica assigned to a
directory that is not online (any more) leaves in the same batch.
"""

from __future__ import annotations

from typing import Any

from replication.controller.context import ControllerConfig, ControllerResult
from replication.controller.elections import (
    BrokerChange,
    NamedPartition,
    leader_and_isr_updates,
    partition_change,
)
from replication.controller.partition_change import Election
from replication.controller.producer_ids import check_broker_epoch
from replication.metadata.image import (
    MetadataImage,
    PartitionRegistration,
    replayed,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

_Directory = AssignReplicasToDirsResponse.Directory


def assign_replicas_to_dirs(
    image: MetadataImage, config: ControllerConfig, request: AssignReplicasToDirsRequest
) -> ControllerResult:
    """Serve AssignReplicasToDirs; each partition has its own code.

    Raises KafkaError UNSUPPORTED_VERSION (metadata.version below 3.7-IV2), STALE_BROKER_EPOCH.
    """
    if not image.knows_directories:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet."
        )
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    broker = image.brokers[request.broker_id]
    records: list[Any] = []
    lost: set[bytes] = set()
    directories = []
    for wanted in request.directories:
        online = broker.has_online_directory(wanted.id)
        topics = []
        for topic in wanted.topics:
            answers = []
            for entry in topic.partitions:
                code, registration = _find(
                    image, topic.topic_id, entry.partition_index, request.broker_id
                )
                if registration is not None:
                    partition = NamedPartition(
                        image.topics_by_id[topic.topic_id], entry.partition_index, registration
                    )
                    records += _assigned(image, config, partition, request.broker_id, wanted.id)
                    if not online:
                        lost.add(wanted.id)
                answers.append(
                    _Directory.Topic.Partition(
                        partition_index=entry.partition_index, error_code=code
                    )
                )
            topics.append(_Directory.Topic(topic_id=topic.topic_id, partitions=answers))
        directories.append(_Directory(id=wanted.id, topics=topics))
    if lost:
        records += replicas_lost(replayed(image, records), config, request.broker_id, lost)
    answer = AssignReplicasToDirsResponse(error_code=0, directories=directories)
    return ControllerResult(records, answer)


def replicas_lost(
    image: MetadataImage, config: ControllerConfig, broker_id: int, directories: set[bytes]
) -> list[Any]:
    """The broker's replicas in these directories leave their ISRs and leaderships (B-7)."""

    def stood_there(partition: PartitionRegistration) -> bool:
        return broker_id in partition.isr and partition.directory(broker_id) in directories

    return leader_and_isr_updates(image, config, BrokerChange(removed=broker_id), stood_there)


def _find(
    image: MetadataImage, topic_id: bytes, index: int, broker_id: int
) -> tuple[ErrorCode, PartitionRegistration | None]:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, None
    registration = topic.partitions.get(index)
    if registration is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if broker_id not in registration.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    return ErrorCode.NONE, registration


def _assigned(
    image: MetadataImage,
    config: ControllerConfig,
    partition: NamedPartition,
    broker_id: int,
    directory: bytes,
) -> list[Any]:
    change = partition_change(image, config, partition, Election.ONLINE, image.is_active)
    change.directories[broker_id] = directory
    record = change.build(partition.topic.topic_id, partition.partition_index)
    return [] if record is None else [record]
