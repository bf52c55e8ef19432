"""What the controller writes to the metadata log.

A record's value is the frame version (uvarint 1), type_id (uvarint), version (uvarint) and the
fields; it has no key.
"""

from __future__ import annotations

from wire.schema import (
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Record,
    String,
    Struct,
    Uint16,
    Uuid,
)


class RegisterBrokerRecord(Record, type_id=0, versions=(0, 4), flexible=0):
    """A broker incarnation registered."""

    broker_id: int = Int32()
    is_migrating_zk_broker: bool = Bool(since=2, default=False)
    incarnation_id: bytes = Uuid()
    broker_epoch: int = Int64()

    class Endpoint(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()
        security_protocol: int = Int16()

    end_points: list[Endpoint] = Array(Endpoint)

    class Feature(Struct):
        name: str = String()
        min_supported_version: int = Int16()
        max_supported_version: int = Int16()

    features: list[Feature] = Array(Feature)
    rack: str | None = String(nullable=0)
    fenced: bool = Bool(default=True)
    in_controlled_shutdown: bool = Bool(since=1, default=False)
    log_dirs: list[bytes] = Array(Uuid, since=3, tag=0, default=())
    cordoned_log_dirs: list[bytes] | None = Array(Uuid, since=4, nullable=4, tag=1, default=None)


class UnregisterBrokerRecord(Record, type_id=1, versions=(0, 0), flexible=0):
    """A broker's registration was removed."""

    broker_id: int = Int32()
    broker_epoch: int = Int64()


class TopicRecord(Record, type_id=2, versions=(0, 0), flexible=0):
    """A topic was created."""

    name: str = String()
    topic_id: bytes = Uuid()


class PartitionRecord(Record, type_id=3, versions=(0, 2), flexible=0):
    """The whole state of a partition."""

    partition_id: int = Int32(default=-1)
    topic_id: bytes = Uuid()
    replicas: list[int] = Array(Int32)
    isr: list[int] = Array(Int32)
    removing_replicas: list[int] = Array(Int32)
    adding_replicas: list[int] = Array(Int32)
    leader: int = Int32(default=-1)
    leader_epoch: int = Int32(default=-1)
    partition_epoch: int = Int32(default=-1)
    directories: list[bytes] = Array(Uuid, since=1, default=())
    leader_recovery_state: int = Int8(tag=0, default=0)
    eligible_leader_replicas: list[int] | None = Array(
        Int32, since=2, nullable=2, tag=1, default=None
    )
    last_known_elr: list[int] | None = Array(Int32, since=2, nullable=2, tag=2, default=None)


class ConfigRecord(Record, type_id=4, versions=(0, 0), flexible=0):
    """One config of one resource was set; a null value deletes it."""

    resource_type: int = Int8()
    resource_name: str = String()
    name: str = String()
    value: str | None = String(nullable=0)


class PartitionChangeRecord(Record, type_id=5, versions=(0, 2), flexible=0):
    """What changed in a partition; absent tagged fields mean no change."""

    partition_id: int = Int32(default=-1)
    topic_id: bytes = Uuid()
    isr: list[int] | None = Array(Int32, nullable=0, tag=0, default=None)
    leader: int = Int32(tag=1, default=-2)
    replicas: list[int] | None = Array(Int32, nullable=0, tag=2, default=None)
    removing_replicas: list[int] | None = Array(Int32, nullable=0, tag=3, default=None)
    adding_replicas: list[int] | None = Array(Int32, nullable=0, tag=4, default=None)
    leader_recovery_state: int = Int8(tag=5, default=-1)
    eligible_leader_replicas: list[int] | None = Array(
        Int32, since=2, nullable=2, tag=6, default=None
    )
    last_known_elr: list[int] | None = Array(Int32, since=2, nullable=2, tag=7, default=None)
    directories: list[bytes] | None = Array(Uuid, since=1, nullable=1, tag=8, default=None)


class FenceBrokerRecord(Record, type_id=7, versions=(0, 0), flexible=0):
    """A broker was fenced (old form of BrokerRegistrationChangeRecord)."""

    id: int = Int32()
    epoch: int = Int64()


class UnfenceBrokerRecord(Record, type_id=8, versions=(0, 0), flexible=0):
    """A broker was unfenced (old form of BrokerRegistrationChangeRecord)."""

    id: int = Int32()
    epoch: int = Int64()


class RemoveTopicRecord(Record, type_id=9, versions=(0, 0), flexible=0):
    """A topic was deleted."""

    topic_id: bytes = Uuid()


class DelegationTokenRecord(Record, type_id=10, versions=(0, 0), flexible=0):
    """A delegation token was issued or prolonged."""

    owner: str = String()
    requester: str = String()
    renewers: list[str] = Array(String)
    issue_timestamp: int = Int64()
    max_timestamp: int = Int64()
    expiration_timestamp: int = Int64()
    token_id: str = String()


class UserScramCredentialRecord(Record, type_id=11, versions=(0, 0), flexible=0):
    """A user's SCRAM credential was set."""

    name: str = String()
    mechanism: int = Int8()
    salt: bytes = Bytes()
    stored_key: bytes = Bytes()
    server_key: bytes = Bytes()
    iterations: int = Int32()


class FeatureLevelRecord(Record, type_id=12, versions=(0, 0), flexible=0):
    """A feature was finalized at a level; 0 removes it."""

    name: str = String()
    feature_level: int = Int16()


class ClientQuotaRecord(Record, type_id=14, versions=(0, 0), flexible=0):
    """A client quota was set or removed."""

    class Entity(Struct):
        entity_type: str = String()
        entity_name: str | None = String(nullable=0)

    entity: list[Entity] = Array(Entity)
    key: str = String()
    value: float = Float64()
    remove: bool = Bool()


class ProducerIdsRecord(Record, type_id=15, versions=(0, 0), flexible=0):
    """A block of producer ids was given to a broker."""

    broker_id: int = Int32()
    broker_epoch: int = Int64(default=-1)
    next_producer_id: int = Int64()


class BrokerRegistrationChangeRecord(Record, type_id=17, versions=(0, 3), flexible=0):
    """A broker was fenced, unfenced, put into controlled shutdown, or lost directories."""

    broker_id: int = Int32()
    broker_epoch: int = Int64()
    fenced: int = Int8(tag=0, default=0)
    in_controlled_shutdown: int = Int8(since=1, tag=1, default=0)
    log_dirs: list[bytes] = Array(Uuid, since=2, tag=2, default=())
    cordoned_log_dirs: list[bytes] | None = Array(Uuid, since=3, nullable=3, tag=3, default=None)


class AccessControlEntryRecord(Record, type_id=18, versions=(0, 0), flexible=0):
    """An access rule was added."""

    id: bytes = Uuid()
    resource_type: int = Int8()
    resource_name: str = String()
    pattern_type: int = Int8()
    principal: str = String()
    host: str = String()
    operation: int = Int8()
    permission_type: int = Int8()


class RemoveAccessControlEntryRecord(Record, type_id=19, versions=(0, 0), flexible=0):
    """An access rule was removed."""

    id: bytes = Uuid()


class NoOpRecord(Record, type_id=20, versions=(0, 0), flexible=0):
    """Nothing: written so that the metadata log moves on."""


class ZkMigrationStateRecord(Record, type_id=21, versions=(0, 0), flexible=0):
    """State of a migration from ZooKeeper (only ever NONE in new clusters)."""

    zk_migration_state: int = Int8()


class RemoveUserScramCredentialRecord(Record, type_id=22, versions=(0, 0), flexible=0):
    """A user's SCRAM credential was deleted."""

    name: str = String()
    mechanism: int = Int8()


class BeginTransactionRecord(Record, type_id=23, versions=(0, 0), flexible=0):
    """Records up to the matching end belong together."""

    name: str | None = String(nullable=0, tag=0, default=None)


class EndTransactionRecord(Record, type_id=24, versions=(0, 0), flexible=0):
    """The metadata transaction is complete."""


class AbortTransactionRecord(Record, type_id=25, versions=(0, 0), flexible=0):
    """The metadata transaction is void."""

    reason: str | None = String(nullable=0, tag=0, default=None)


class RemoveDelegationTokenRecord(Record, type_id=26, versions=(0, 0), flexible=0):
    """A delegation token was removed."""

    token_id: str = String()


class RegisterControllerRecord(Record, type_id=27, versions=(0, 0), flexible=0):
    """A controller incarnation registered."""

    controller_id: int = Int32()
    incarnation_id: bytes = Uuid()
    zk_migration_ready: bool = Bool()

    class Endpoint(Struct):
        name: str = String()
        host: str = String()
        port: int = Uint16()
        security_protocol: int = Int16()

    end_points: list[Endpoint] = Array(Endpoint)

    class Feature(Struct):
        name: str = String()
        min_supported_version: int = Int16()
        max_supported_version: int = Int16()

    features: list[Feature] = Array(Feature)


class ClearElrRecord(Record, type_id=28, versions=(0, 0), flexible=0):
    """The ELR of one topic, or of all, was cleared."""

    topic_name: str = String()
