"""What the metadata log says about one partition, broker or controller. PURE.

Each class is made from its record and turned back into it (Kafka: PartitionRegistration,
BrokerRegistration, ControllerRegistration). An object is never changed once it is part of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from replication.raft.own_events import NO_LEADER
from wire.messages import metadata_records as m
from wire.primitives import ZERO_UUID

NO_LEADER_CHANGE = -2
RECOVERED = 0
RECOVERING = 1

# Reserved directory ids (Kafka: DirectoryId): the replica is from before directories were known,
# its broker has not said yet where it is, or has lost it.
DIRECTORY_MIGRATING = ZERO_UUID
DIRECTORY_UNASSIGNED = bytes(15) + b"\x01"
DIRECTORY_LOST = bytes(15) + b"\x02"
DIRECTORIES_RESERVED = 100


class Endpoint(NamedTuple):
    """Where a listener of a broker or controller is reached."""

    host: str
    port: int
    security_protocol: int


class VersionRange(NamedTuple):
    """Levels of a feature a node supports, inclusive."""

    minimum: int
    maximum: int


@dataclass(slots=True)
class PartitionRegistration:
    """One partition as the controller sees it (Kafka's class of this name). Read-only once made.

    `leader_epoch` rises with each leader change, also to the same leader; `partition_epoch` with
    each change at all. `directories` is parallel to `replicas`.
    """

    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED

    @classmethod
    def from_record(cls, record: m.PartitionRecord) -> PartitionRegistration:
        replicas = tuple(record.replicas)
        # Before version 1 of the record nobody knew directories.
        directories = tuple(record.directories) or (DIRECTORY_MIGRATING,) * len(replicas)
        return cls(
            replicas=replicas,
            directories=directories,
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            removing_replicas=tuple(record.removing_replicas),
            adding_replicas=tuple(record.adding_replicas),
            elr=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            leader_recovery_state=record.leader_recovery_state,
        )

    def merge(self, change: m.PartitionChangeRecord) -> PartitionRegistration:
        """The registration after `change`: what the record leaves out stays as it is."""
        merged = replace(self, partition_epoch=self.partition_epoch + 1)
        for name in _CHANGEABLE_LISTS:
            value = getattr(change, name)
            if value is not None:
                setattr(merged, _ATTRIBUTE.get(name, name), tuple(value))
        if change.directories is None and change.replicas is not None:
            merged.directories = self._directories_for(merged.replicas)
        if change.leader != NO_LEADER_CHANGE:
            merged.leader = change.leader
            merged.leader_epoch = self.leader_epoch + 1
        if change.leader_recovery_state != -1:
            merged.leader_recovery_state = change.leader_recovery_state
        return merged

    def _directories_for(self, replicas: tuple[int, ...]) -> tuple[bytes, ...]:
        """Only a record from before directories were known leaves out those of new replicas."""
        known = dict(zip(self.replicas, self.directories, strict=True))
        return tuple(known.get(replica, DIRECTORY_MIGRATING) for replica in replicas)

    def to_record(self, topic_id: bytes, partition_index: int) -> m.PartitionRecord:
        return m.PartitionRecord(
            partition_id=partition_index,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            leader_recovery_state=self.leader_recovery_state,
            eligible_leader_replicas=list(self.elr) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )

    def directory(self, broker_id: int) -> bytes:
        """Directory id of this broker's replica."""
        return self.directories[self.replicas.index(broker_id)]

    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    def has_preferred_leader(self) -> bool:
        return self.leader == self.replicas[0]


_CHANGEABLE_LISTS = (
    "isr",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "eligible_leader_replicas",
    "last_known_elr",
    "directories",
)
_ATTRIBUTE = {"eligible_leader_replicas": "elr"}


@dataclass(slots=True)
class BrokerRegistration:
    """A registered broker. `broker_epoch` is an offset of the metadata log: unique per
    incarnation.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    endpoints: dict[str, Endpoint]
    features: dict[str, VersionRange] = field(default_factory=dict)
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    directories: tuple[bytes, ...] = ()
    cordoned_directories: tuple[bytes, ...] | None = None
    is_migrating_zk_broker: bool = False

    @property
    def active(self) -> bool:
        """May lead and join an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def takes_replicas(self) -> bool:
        """May new replicas be placed here: not all its directories are cordoned (KIP-1066)."""
        cordoned = self.cordoned_directories or ()
        return not self.directories or not set(self.directories) <= set(cordoned)

    def has_online_directory(self, directory: bytes) -> bool:
        """Is the directory usable: listed as online, or one nobody can judge yet (KIP-858; Kafka:
        DirectoryId.isOnline)."""
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        if directory == DIRECTORY_LOST:
            return False
        return directory in self.directories or not self.directories

    def to_record(self) -> m.RegisterBrokerRecord:
        cordoned = self.cordoned_directories
        return m.RegisterBrokerRecord(
            broker_id=self.broker_id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.broker_epoch,
            end_points=_end_points(m.RegisterBrokerRecord.Endpoint, self.endpoints),
            features=_features(m.RegisterBrokerRecord.Feature, self.features),
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=list(self.directories),
            cordoned_log_dirs=None if cordoned is None else list(cordoned),
        )


@dataclass(slots=True)
class ControllerRegistration:
    """A registered controller (KIP-919)."""

    controller_id: int
    incarnation_id: bytes
    endpoints: dict[str, Endpoint]
    features: dict[str, VersionRange]
    zk_migration_ready: bool = False

    def to_record(self) -> m.RegisterControllerRecord:
        return m.RegisterControllerRecord(
            controller_id=self.controller_id,
            incarnation_id=self.incarnation_id,
            zk_migration_ready=self.zk_migration_ready,
            end_points=_end_points(m.RegisterControllerRecord.Endpoint, self.endpoints),
            features=_features(m.RegisterControllerRecord.Feature, self.features),
        )


_Row = TypeVar("_Row")


def _end_points(row: Callable[..., _Row], endpoints: Mapping[str, Endpoint]) -> list[_Row]:
    return [
        row(name=name, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for name, e in endpoints.items()
    ]


def _features(row: Callable[..., _Row], features: Mapping[str, VersionRange]) -> list[_Row]:
    return [
        row(name=name, min_supported_version=r.minimum, max_supported_version=r.maximum)
        for name, r in sorted(features.items())
    ]


def endpoints_of(end_points: Iterable[Any]) -> dict[str, Endpoint]:
    return {e.name: Endpoint(e.host, e.port, e.security_protocol) for e in end_points}


def features_of(features: Iterable[Any]) -> dict[str, VersionRange]:
    return {
        f.name: VersionRange(f.min_supported_version, f.max_supported_version) for f in features
    }
