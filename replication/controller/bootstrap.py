"""What a controller writes when it becomes active. PURE.

An empty log gets, in one metadata transaction (KIP-868; a plain batch where metadata.version knows
none), the feature levels of a new cluster; with eligible leader replicas (KIP-966) also the
cluster-wide min.insync.replicas they are judged by, as Apache Kafka 4.3 does. A transaction that
was cut off by a crash is aborted first. Then the controller registers itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replication.controller.context import TRANSACTIONS_SINCE, ControllerConfig
from replication.controller.elections import MIN_INSYNC_REPLICAS
from replication.metadata.image import (
    CONTROLLER_REGISTRATION_SINCE,
    ELR_VERSION,
    METADATA_VERSION,
    RESOURCE_BROKER,
    ControllerRegistration,
    MetadataImage,
    VersionRange,
)
from wire.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
"""The file in which formatting leaves a cluster's first records (Kafka: BootstrapDirectory)."""
SUPPORTED_FEATURES: Mapping[str, VersionRange] = {
    "metadata.version": VersionRange(7, 30),
    "kraft.version": VersionRange(0, 1),
    "transaction.version": VersionRange(0, 2),
    "group.version": VersionRange(0, 1),
    "eligible.leader.replicas.version": VersionRange(0, 1),
    "share.version": VersionRange(0, 1),
    "streams.version": VersionRange(0, 1),
}
"""Ranges Apache Kafka 4.3.1's nodes register with. Ours are the same, or we could not join or open
what it wrote; which levels are finalised in a cluster of ours is `ControllerConfig.features`."""


def activation_records(
    image: MetadataImage,
    in_transaction: bool,
    config: ControllerConfig,
    registration: ControllerRegistration | None,
    bootstrap: Sequence[Any] = (),
) -> list[Any]:
    """Records to append before the first request is served.

    `in_transaction`: the log ends inside one. `bootstrap`: what `bootstrap.checkpoint` asked for,
    instead of the configured feature levels (Kafka's `kafka-storage format` writes it).
    """
    records: list[Any] = []
    if in_transaction:
        records.append(AbortTransactionRecord(reason="Controller failover"))
    features = image.features
    if image.is_empty:
        wanted = list(bootstrap) or _feature_records(config.features)
        features = {r.name: r.feature_level for r in wanted if isinstance(r, FeatureLevelRecord)}
        if features.get(ELR_VERSION):
            wanted.append(
                ConfigRecord(
                    resource_type=RESOURCE_BROKER,
                    resource_name="",
                    name=MIN_INSYNC_REPLICAS,
                    value=str(config.min_insync_replicas),
                )
            )
        if features.get(METADATA_VERSION, 0) >= TRANSACTIONS_SINCE:
            begin = BeginTransactionRecord(name="Bootstrap records")
            wanted = [begin, *wanted, EndTransactionRecord()]
        records += wanted
    known = registration is None or image.controllers.get(config.node_id) == registration
    if (
        registration is not None
        and not known
        and features.get(METADATA_VERSION, 0) >= CONTROLLER_REGISTRATION_SINCE
    ):
        records.append(registration.to_record())
    return records


def _feature_records(features: Mapping[str, int]) -> list[Any]:
    """metadata.version first: it decides how the records after it are read."""
    names = sorted(features, key=lambda name: (name != METADATA_VERSION, name))
    return [FeatureLevelRecord(name=name, feature_level=features[name]) for name in names]
