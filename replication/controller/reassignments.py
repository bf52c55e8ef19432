"""AlterPartitionReassignments and ListPartitionReassignments: moving replicas (KIP-455). PURE.

What: a reassignment is the partition's own state (`adding_replicas`, `removing_replicas`), so it
survives the controller. Altering writes one PartitionChangeRecord: replicas are the target plus
those that are to leave; `PartitionChange` drops the latter once all that are added are in the ISR,
in the same record when nothing is added. Cancelling takes the added replicas out again.
On one node every reassignment that is valid names the replica that is there already: it is
accepted and changes nothing, as on Apache Kafka with one broker.

A move under way may be replaced by another: what it was adding and the new one wants too goes on
being added (Kafka counts it as present, and would end the move before it is in sync); what it was
adding and nobody wants any more leaves like any removed replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from replication.controller import placement
from replication.controller.context import (
    RECORDS_PER_OPERATION_MAX,
    ControllerConfig,
    ControllerResult,
)
from replication.controller.elections import (
    NamedPartition,
    partition_change,
    unclean_election_enabled,
)
from replication.controller.partition_change import Election
from replication.metadata.image import MetadataImage, PartitionRegistration
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from wire.messages.admin import (
        AlterPartitionReassignmentsRequest,
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )


def alter_partition_reassignments(
    image: MetadataImage, config: ControllerConfig, request: AlterPartitionReassignmentsRequest
) -> ControllerResult:
    """Start, replace or (replicas null) cancel reassignments; partitions fail alone."""
    from wire.messages.admin import AlterPartitionReassignmentsResponse as Answer

    records: list[Any] = []
    # What this request moved already: a partition named twice moves on from there.
    moved: dict[tuple[str, int], NamedPartition] = {}
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            error, key = KafkaError(ErrorCode.NONE, ""), (topic.name, wanted.partition_index)
            try:
                partition = moved.get(key) or _named(image, *key)
                if wanted.replicas is None:
                    record = _cancel(image, config, partition)
                else:
                    allow = request.allow_replication_factor_change
                    record = _move(image, config, partition, wanted.replicas, allow)
                if record is not None:
                    if len(records) == RECORDS_PER_OPERATION_MAX:
                        raise KafkaError(
                            ErrorCode.POLICY_VIOLATION, "Excessively large number of records."
                        )
                    records.append(record)
                    registration = partition.registration.merge(record)
                    moved[key] = partition._replace(registration=registration)
            except KafkaError as refused:
                error = refused
            partitions.append(
                Answer.Topic.Partition(
                    partition_index=wanted.partition_index,
                    error_code=error.code,
                    error_message=error.detail or None,
                )
            )
        topics.append(Answer.Topic(name=topic.name, partitions=partitions))
    answer = Answer(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=0,
        error_message=None,
        responses=topics,
    )
    return ControllerResult(records, answer)


def list_partition_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """What is under way, of the named partitions or (null) of all; the unknown are left out."""
    from wire.messages.admin import ListPartitionReassignmentsResponse as Answer

    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        wanted = [(name, sorted(t.partitions)) for name, t in sorted(image.topics_by_name.items())]
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics = []
    for name, indexes in wanted:
        image_topic = image.topics_by_name.get(name)
        if image_topic is None:
            continue
        moving = [
            Answer.Topic.Partition(
                partition_index=index,
                replicas=list(registration.replicas),
                adding_replicas=list(registration.adding_replicas),
                removing_replicas=list(registration.removing_replicas),
            )
            for index in indexes
            if (registration := image_topic.partitions.get(index)) is not None
            and _in_progress(registration)
        ]
        if moving:
            topics.append(Answer.Topic(name=name, partitions=moving))
    return Answer(error_code=0, error_message=None, topics=topics)


def _named(image: MetadataImage, name: str, index: int) -> NamedPartition:
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
        )
    registration = topic.partitions.get(index)
    if registration is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}."
        )
    return NamedPartition(topic, index, registration)


def _in_progress(registration: PartitionRegistration) -> bool:
    return bool(registration.adding_replicas or registration.removing_replicas)


def _move(
    image: MetadataImage,
    config: ControllerConfig,
    partition: NamedPartition,
    target: Sequence[int],
    allow_replication_factor_change: bool,
) -> Any:
    """The record that starts moving to `target`, which may replace a reassignment under way."""
    placement.validate_manual(image, target, None)
    registration = partition.registration
    # What an earlier reassignment is removing counts no longer.
    settled = len(registration.replicas) - len(registration.removing_replicas)
    if not allow_replication_factor_change and settled != len(target):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {settled} to {len(target)}",
        )
    change = partition_change(image, config, partition, Election.ONLINE, image.is_active)
    settled_replicas = set(registration.replicas) - set(registration.adding_replicas)
    change.adding = sorted(set(target) - settled_replicas)
    change.removing = sorted(set(registration.replicas) - set(target))
    change.replicas = [*target, *change.removing]
    for replica in set(change.adding) - set(registration.replicas):
        change.directories[replica] = placement.default_directory(image, replica)
    return change.build(partition.topic.topic_id, partition.partition_index)


def _cancel(image: MetadataImage, config: ControllerConfig, partition: NamedPartition) -> Any:
    """Back to the replicas before the move. With none of them in the ISR one leads uncleanly, the
    first of them when it comes back if none is alive (Kafka: PartitionReassignmentRevert); one of
    the ELR, which has all that is committed, comes before the first (Kafka passes it over).
    """
    registration = partition.registration
    if not _in_progress(registration):
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
    adding = registration.adding_replicas
    replicas = [replica for replica in registration.replicas if replica not in adding]
    isr = [replica for replica in registration.isr if replica not in adding]
    election = Election.ONLINE
    if not isr:
        name = partition.topic.name
        if not unclean_election_enabled(image, config, name):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {name}:{partition.partition_index} "
                "because it would require an unclean leader election.",
            )
        eligible = [replica for replica in replicas if replica in registration.elr]
        alive = [replica for replica in eligible if image.is_active(replica)]
        isr = (alive or eligible or replicas)[:1]
        election = Election.UNCLEAN
    change = partition_change(image, config, partition, election, image.is_active)
    change.replicas, change.isr, change.adding, change.removing = replicas, isr, (), ()
    return change.build(partition.topic.topic_id, partition.partition_index)
