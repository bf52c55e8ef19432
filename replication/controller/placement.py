"""Which brokers get a new partition's replicas. PURE.

Replica j of partition i goes to broker (i + j) mod n of the brokers in the topic's own order; when
every broker has a rack, brokers of racks that have no replica yet go first. Fenced brokers are used
only when the active ones are too few, and never first, whether they crashed or were shut down;
brokers amid a controlled shutdown never, nor those whose directories are all cordoned.

Why an order of its own: were it always that of the ids, every topic of one partition would be led
by the first broker, and the death of any broker would move all it led to the next one. So the n-th
topic begins n brokers further on, and topics go round with different strides. Apache Kafka shuffles
for the same reason; here the same metadata gives the same placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd

from replication.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
)
from wire.errors import ErrorCode, KafkaError


def place(
    image: MetadataImage,
    start_partition: int,
    count: int,
    replication_factor: int,
    topic_number: int = 0,
) -> list[PartitionRegistration]:
    """Registrations of `count` new partitions. `topic_number` gives topics different orders.

    Raises KafkaError INVALID_REPLICATION_FACTOR when there are not enough brokers, or none is
    active.
    """
    usable = [b for b in image.brokers.values() if b.takes_replicas and (b.active or b.fenced)]
    active = _ordered([b for b in usable if b.active], topic_number)
    fenced = _ordered([b for b in usable if b.fenced], topic_number)
    if not active:
        raise _cannot_place(
            replication_factor,
            "All brokers are currently fenced, or have all their log directories cordoned.",
        )
    if replication_factor > len(usable):
        raise _cannot_place(
            replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {len(usable)} broker(s) are registered or some brokers have all their log "
            "directories cordoned.",
        )
    racks = _racks(usable)
    return [
        new_partition(image, _replicas(active, fenced, racks, index, replication_factor))
        for index in range(start_partition, start_partition + count)
    ]


def _cannot_place(replication_factor: int, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): {reason}",
    )


def _ordered(brokers: list[BrokerRegistration], topic_number: int) -> list[int]:
    """The topic's order: begun elsewhere than the last one's, and later with another stride."""
    by_id = sorted(broker.broker_id for broker in brokers)
    count = len(by_id)
    if count < 2:
        return by_id
    strides = [step for step in range(1, count) if gcd(step, count) == 1]
    stride = strides[topic_number // count % len(strides)]
    return [by_id[(topic_number + step * stride) % count] for step in range(count)]


def _racks(brokers: list[BrokerRegistration]) -> dict[int, str | int]:
    """Each broker's rack; one of its own, unless all have one."""
    known = {broker.broker_id: broker.rack for broker in brokers if broker.rack is not None}
    return {b.broker_id: b.broker_id for b in brokers} if len(known) < len(brokers) else {**known}


def _replicas(
    active: list[int], fenced: list[int], racks: dict[int, str | int], index: int, count: int
) -> list[int]:
    """`count` brokers, of either list from position `index` on, one of each rack before the second
    of any.
    """
    chosen: list[int] = []
    in_rack: Counter[str | int] = Counter()
    for brokers in (active, fenced):
        turn = index % max(len(brokers), 1)
        for already in range(count):
            for broker_id in brokers[turn:] + brokers[:turn]:
                if len(chosen) == count:
                    return chosen
                rack = racks[broker_id]
                if in_rack[rack] == already and broker_id not in chosen:
                    chosen.append(broker_id)
                    in_rack[rack] += 1
    return chosen


def manual(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None, index: int
) -> PartitionRegistration:
    """The registration of a partition whose replicas the client chose.

    Raises KafkaError INVALID_REPLICA_ASSIGNMENT as `validate_manual`, and when no chosen broker is
    active.
    """
    validate_manual(image, replicas, replication_factor)
    if not any(image.is_active(broker_id) for broker_id in replicas):
        raise _invalid_assignment(
            f"All brokers specified in the manual partition assignment for partition {index} "
            "are fenced or in controlled shutdown."
        )
    return new_partition(image, replicas)


def validate_manual(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None
) -> None:
    """Raises KafkaError INVALID_REPLICA_ASSIGNMENT for an empty list, an unknown or repeated
    broker, or another number of replicas than `replication_factor` (None: any will do).
    """
    prefix = "The manual partition assignment includes "
    if not replicas:
        raise _invalid_assignment(prefix + "an empty replica list.")
    for position, broker_id in enumerate(replicas):
        if broker_id not in image.brokers:
            raise _invalid_assignment(
                f"{prefix}broker {broker_id}, but no such broker is registered."
            )
        if broker_id in replicas[:position]:
            raise _invalid_assignment(f"{prefix}the broker {broker_id} more than once.")
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _invalid_assignment(
            f"{prefix}a partition with {len(replicas)} replica(s), but this is not consistent with "
            f"previous partitions, which have {replication_factor} replica(s)."
        )


def _invalid_assignment(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)


def new_partition(image: MetadataImage, replicas: Sequence[int]) -> PartitionRegistration:
    """Leader is the first active replica, the ISR all active ones; both epochs start at 0."""
    isr = tuple(replica for replica in replicas if image.is_active(replica))
    return PartitionRegistration(
        replicas=tuple(replicas),
        directories=tuple(default_directory(image, replica) for replica in replicas),
        isr=isr,
        leader=isr[0],
    )


def default_directory(image: MetadataImage, broker_id: int) -> bytes:
    """A broker's only directory; with several the broker chooses and tells later (KIP-858), with
    none it registered before directories were known.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or len(broker.directories) > 1:
        return DIRECTORY_UNASSIGNED
    return broker.directories[0] if broker.directories else DIRECTORY_MIGRATING
