"""Which leader and ISR changes an event of a broker brings, and elections on demand. PURE.

`leader_and_isr_updates` looks at every partition that names a broker when that broker is fenced,
unfenced, shuts down or comes back after a crash (Kafka: generateLeaderAndIsrUpdates). It scans the
image: about 1 ms for 5,000 partitions, and only on such events, so no index is kept.

`balance_leaders` and `elect_unclean_leaders` are what the controller does from time to time: give
partitions back to their preferred leaders (auto.leader.rebalance.enable), and elect a leader that
may miss records where nobody else is left and the topic allows it (E-11).
leader.imbalance.per.broker.percentage has no effect, as in Apache Kafka's KRaft mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from replication.controller.context import (
    RECORDS_PER_OPERATION_MAX,
    ControllerConfig,
    ControllerResult,
)
from replication.controller.partition_change import Election, PartitionChange
from replication.metadata.image import (
    ELR_VERSION,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from replication.raft.own_events import NO_LEADER
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from wire.messages.admin import ElectLeadersRequest, ElectLeadersResponse

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"
ELECTIONS_PER_PASS_MAX = 1_000
"""Periodic elections of one pass (Kafka: MAX_ELECTIONS_PER_IMBALANCE); the next follows at once."""

_ELECT_PREFERRED = 0
_ELECT_UNCLEAN = 1


class BrokerChange(NamedTuple):
    """What happens to brokers, as far as elections care; NO_LEADER = to none."""

    removed: int = NO_LEADER
    """Leaves ISRs and leaderships: fenced, shutting down."""
    added: int = NO_LEADER
    """May lead from now on, though the image still shows it fenced."""
    unclean_shutdown: int = NO_LEADER
    """Came back and may have lost unsynced data: leaves ISRs and ELRs (rule B-3)."""


class NamedPartition(NamedTuple):
    """A partition with its names."""

    topic: TopicImage
    partition_index: int
    registration: PartitionRegistration


def partitions(image: MetadataImage) -> Iterable[NamedPartition]:
    for topic in image.topics_by_id.values():
        for index, registration in topic.partitions.items():
            yield NamedPartition(topic, index, registration)


def partition_change(
    image: MetadataImage,
    config: ControllerConfig,
    partition: NamedPartition,
    election: Election,
    is_active: Callable[[int], bool],
) -> PartitionChange:
    """A change of one partition with the rules that hold for its topic filled in. A replica may
    lead where it will be: a report of its directory elects who could not lead from the old one.
    """
    registration = partition.registration

    def may_lead(broker_id: int) -> bool:
        if not is_active(broker_id) or broker_id not in registration.replicas:
            return False
        broker = image.brokers.get(broker_id)
        return broker is not None and broker.has_online_directory(change.directories[broker_id])

    change = PartitionChange(
        registration,
        may_lead,
        min_isr=min_insync_replicas(image, config, partition.topic.name),
        elr_enabled=image.feature(ELR_VERSION) > 0,
        knows_directories=image.knows_directories,
        election=election,
    )
    return change


def min_insync_replicas(image: MetadataImage, config: ControllerConfig, topic: str) -> int:
    value = _topic_value(image, config, topic, MIN_INSYNC_REPLICAS)
    return config.min_insync_replicas if value is None else int(value)


def unclean_election_enabled(image: MetadataImage, config: ControllerConfig, topic: str) -> bool:
    value = _topic_value(image, config, topic, UNCLEAN_LEADER_ELECTION)
    return config.unclean_leader_election_enable if value is None else value.lower() == "true"


def _topic_value(
    image: MetadataImage, config: ControllerConfig, topic: str, name: str
) -> str | None:
    """The topic's own, what was set for this controller's node, or for all nodes; None: nothing was
    (Kafka: resolveEffectiveTopicConfig).
    """
    for kind, resource in (
        (RESOURCE_TOPIC, topic),
        (RESOURCE_BROKER, str(config.node_id)),
        (RESOURCE_BROKER, ""),
    ):
        value = image.config(kind, resource).get(name)
        if value is not None:
            return value
    return None


def leader_and_isr_updates(
    image: MetadataImage,
    config: ControllerConfig,
    change: BrokerChange,
    concerned: Callable[[PartitionRegistration], bool],
) -> list[Any]:
    """PartitionChangeRecords for all `concerned` partitions that must change."""
    gone = (change.removed, change.unclean_shutdown)

    def is_active(broker_id: int) -> bool:
        return broker_id not in gone and (broker_id == change.added or image.is_active(broker_id))

    records = []
    for partition in partitions(image):
        registration = partition.registration
        if not concerned(registration):
            continue
        name = partition.topic.name
        unclean = unclean_election_enabled(image, config, name)
        election = Election.UNCLEAN if unclean else Election.ONLINE
        builder = partition_change(image, config, partition, election, is_active)
        builder.unclean_shutdown_replica = change.unclean_shutdown
        builder.isr = tuple(replica for replica in registration.isr if replica not in gone)
        record = builder.build(partition.topic.topic_id, partition.partition_index)
        if record is not None:
            records.append(record)
    return records


# --- elections from time to time ----------------------------------------------------------------


def balance_leaders(image: MetadataImage, config: ControllerConfig) -> list[Any]:
    """Records that give partitions to their preferred leaders, where those are in sync, and one to
    those that have none though some replica may lead; at most ELECTIONS_PER_PASS_MAX.
    """
    return _elections(
        image,
        config,
        Election.PREFERRED,
        (
            partition
            for partition in partitions(image)
            if not partition.registration.has_preferred_leader()
            and _may_change(image, partition.registration)
        ),
    )


def _may_change(image: MetadataImage, registration: PartitionRegistration) -> bool:
    preferred = registration.replicas[0]
    is_in_sync = preferred in registration.isr and image.is_active(preferred)
    if is_in_sync or registration.has_leader():
        return is_in_sync
    may_lead = (*registration.isr, *registration.elr, *registration.last_known_elr)
    return any(map(image.is_active, may_lead))


def elect_unclean_leaders(image: MetadataImage, config: ControllerConfig) -> list[Any]:
    """Records that elect a leader for partitions without one whose topic allows an unclean one; at
    most ELECTIONS_PER_PASS_MAX.
    """
    return _elections(
        image,
        config,
        Election.UNCLEAN,
        (
            partition
            for partition in partitions(image)
            if not partition.registration.has_leader()
            and unclean_election_enabled(image, config, partition.topic.name)
        ),
    )


def _elections(
    image: MetadataImage,
    config: ControllerConfig,
    election: Election,
    wanted: Iterable[NamedPartition],
) -> list[Any]:
    changes = (
        partition_change(image, config, partition, election, image.is_active).build(
            partition.topic.topic_id, partition.partition_index
        )
        for partition in wanted
    )
    return list(islice((c for c in changes if c is not None), ELECTIONS_PER_PASS_MAX))


# --- ElectLeaders -------------------------------------------------------------------------------


def elect_leaders(
    image: MetadataImage, config: ControllerConfig, request: ElectLeadersRequest
) -> ControllerResult:
    """Serve ElectLeaders; without a list, for all partitions, leaving out those that need none."""
    from wire.messages.admin import ElectLeadersResponse

    if request.election_type not in (_ELECT_PREFERRED, _ELECT_UNCLEAN):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        )
    election = Election.UNCLEAN if request.election_type == _ELECT_UNCLEAN else Election.PREFERRED
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        wanted = [(name, sorted(t.partitions)) for name, t in sorted(image.topics_by_name.items())]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    records: list[Any] = []
    results = []
    for name, indexes in wanted:
        outcomes = [
            (index, _elect(image, config, name, index, election, records)) for index in indexes
        ]
        if request.topic_partitions is None:
            outcomes = [o for o in outcomes if o[1].code != ErrorCode.ELECTION_NOT_NEEDED]
            if not outcomes:
                continue
        results.append(_topic_result(name, outcomes))
    return ControllerResult(
        records, ElectLeadersResponse(error_code=0, replica_election_results=results)
    )


def _topic_result(name: str, outcomes: list[tuple[int, KafkaError]]) -> ElectLeadersResponse.Topic:
    from wire.messages.admin import ElectLeadersResponse

    return ElectLeadersResponse.Topic(
        topic=name,
        partition_result=[
            ElectLeadersResponse.Topic.Partition(
                partition_id=index, error_code=error.code, error_message=error.detail or None
            )
            for index, error in outcomes
        ],
    )


def _elect(
    image: MetadataImage,
    config: ControllerConfig,
    name: str,
    index: int,
    election: Election,
    records: list[Any],
) -> KafkaError:
    topic = image.topics_by_name.get(name)
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    registration = topic.partitions.get(index)
    if registration is None:
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
        )
    if election is Election.PREFERRED:
        not_needed = registration.has_preferred_leader()
        impossible = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    else:
        not_needed = registration.has_leader()
        impossible = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    if not_needed:
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed")
    partition = NamedPartition(topic, index, registration)
    change = partition_change(image, config, partition, election, image.is_active)
    record = change.build(topic.topic_id, index)
    if record is None:
        return KafkaError(impossible, "")
    if len(records) == RECORDS_PER_OPERATION_MAX:
        return KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of records.")
    records.append(record)
    return KafkaError(ErrorCode.NONE, "")
