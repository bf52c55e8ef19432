"""Which brokers get a new partition's replicas. PURE.

Replica j of partition i goes to broker (i + j) mod n of the brokers in order of their ids, racks
taking turns when every broker has one. Fenced brokers are used only when the active ones are too
few, and never first; brokers in controlled shutdown never.
"""

from __future__ import annotations

from collections.abc import Sequence

from replication.metadata import (
    DIRECTORY_UNASSIGNED,
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
)
from wire.errors import ErrorCode, KafkaError


def place(
    image: MetadataImage, start_partition: int, count: int, replication_factor: int
) -> list[PartitionRegistration]:
    """Registrations of `count` new partitions.

    Raises KafkaError INVALID_REPLICATION_FACTOR when there are not enough brokers, or none is
    active.
    """
    usable = [b for b in image.brokers.values() if not b.in_controlled_shutdown]
    active = _in_turns([b for b in usable if not b.fenced])
    fenced = _in_turns([b for b in usable if b.fenced])
    if not active:
        raise _cannot_place(replication_factor, "All brokers are currently fenced.")
    if replication_factor > len(usable):
        raise _cannot_place(
            replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {len(usable)} broker(s) are registered.",
        )
    return [
        new_partition(image, _replicas(active, fenced, index, replication_factor))
        for index in range(start_partition, start_partition + count)
    ]


def _cannot_place(replication_factor: int, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): {reason}",
    )


def _in_turns(brokers: list[BrokerRegistration]) -> list[int]:
    """Ids in ascending order; with racks, one of each rack before the second of any."""
    ids = sorted(broker.broker_id for broker in brokers)
    racks = {broker.broker_id: broker.rack for broker in brokers}
    if len(set(racks.values())) < 2 or None in racks.values():
        return ids
    by_rack: dict[str | None, list[int]] = {}
    for broker_id in ids:
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    rows = sorted(by_rack.items(), key=lambda item: str(item[0]))
    longest = max(len(row) for _, row in rows)
    return [row[i] for i in range(longest) for _, row in rows if i < len(row)]


def _replicas(active: list[int], fenced: list[int], index: int, count: int) -> list[int]:
    chosen = [active[(index + j) % len(active)] for j in range(min(count, len(active)))]
    return chosen + [fenced[(index + j) % len(fenced)] for j in range(count - len(chosen))]


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
    """A broker's only directory; with several the broker chooses and tells later (KIP-858)."""
    broker = image.brokers.get(broker_id)
    if broker is None or len(broker.directories) != 1:
        return DIRECTORY_UNASSIGNED
    return broker.directories[0]
