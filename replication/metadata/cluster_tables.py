"""Features, brokers, controllers and producer ids, as tables of the image. PURE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from replication.metadata.registrations import (
    BrokerRegistration,
    ControllerRegistration,
    endpoints_of,
    features_of,
)
from replication.metadata.tables import METADATA_VERSION, Changes, MetadataImage, Table
from wire.messages import metadata_records as m

# --- features -----------------------------------------------------------------------------------


def _feature_level(changes: Changes, record: m.FeatureLevelRecord) -> None:
    if record.feature_level == 0:
        changes.remove("features", record.name)
    else:
        changes.put("features", record.name, record.feature_level)


def _write_features(image: MetadataImage) -> Iterator[Any]:
    """The metadata.version first: it decides how the others are read."""
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield m.FeatureLevelRecord(name=name, feature_level=image.features[name])


# --- brokers and controllers --------------------------------------------------------------------


def _register_broker(changes: Changes, record: m.RegisterBrokerRecord) -> None:
    cordoned = record.cordoned_log_dirs
    _set_broker(
        changes,
        BrokerRegistration(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=endpoints_of(record.end_points),
            features=features_of(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            directories=tuple(record.log_dirs),
            cordoned_directories=None if cordoned is None else tuple(cordoned),
            is_migrating_zk_broker=record.is_migrating_zk_broker,
        ),
    )


def _set_broker(changes: Changes, broker: BrokerRegistration) -> None:
    changes.put("brokers", broker.broker_id, broker)


def _registered(changes: Changes, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    broker = changes.next.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        raise ValueError(f"no broker {broker_id} is registered with epoch {broker_epoch}")
    return broker


def _unregister_broker(changes: Changes, record: m.UnregisterBrokerRecord) -> None:
    _registered(changes, record.broker_id, record.broker_epoch)
    changes.remove("brokers", record.broker_id)


def _fence_broker(changes: Changes, record: m.FenceBrokerRecord) -> None:
    _set_broker(changes, replace(_registered(changes, record.id, record.epoch), fenced=True))


def _unfence_broker(changes: Changes, record: m.UnfenceBrokerRecord) -> None:
    _set_broker(changes, replace(_registered(changes, record.id, record.epoch), fenced=False))


def _registration_change(changes: Changes, record: m.BrokerRegistrationChangeRecord) -> None:
    altered: dict[str, Any] = {}
    if record.fenced:
        altered["fenced"] = record.fenced > 0
    if record.in_controlled_shutdown:
        altered["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
    if record.log_dirs:
        altered["directories"] = tuple(record.log_dirs)
    if record.cordoned_log_dirs is not None:
        altered["cordoned_directories"] = tuple(record.cordoned_log_dirs)
    broker = _registered(changes, record.broker_id, record.broker_epoch)
    _set_broker(changes, replace(broker, **altered))


def _register_controller(changes: Changes, record: m.RegisterControllerRecord) -> None:
    controller = ControllerRegistration(
        controller_id=record.controller_id,
        incarnation_id=record.incarnation_id,
        endpoints=endpoints_of(record.end_points),
        features=features_of(record.features),
        zk_migration_ready=record.zk_migration_ready,
    )
    changes.put("controllers", record.controller_id, controller)


def _write_brokers(image: MetadataImage) -> Iterator[Any]:
    return (image.brokers[broker_id].to_record() for broker_id in sorted(image.brokers))


def _write_controllers(image: MetadataImage) -> Iterator[Any]:
    return (image.controllers[node_id].to_record() for node_id in sorted(image.controllers))


# --- producer ids -------------------------------------------------------------------------------


def _producer_ids(changes: Changes, record: m.ProducerIdsRecord) -> None:
    if record.next_producer_id < changes.next.next_producer_id:
        raise ValueError(
            f"producer ids never fall: {record.next_producer_id} < {changes.next.next_producer_id}"
        )
    changes.next.next_producer_id = record.next_producer_id


def _write_producer_ids(image: MetadataImage) -> Iterator[Any]:
    if image.next_producer_id >= 0:
        yield m.ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id
        )


FEATURES = Table("features", {m.FeatureLevelRecord: _feature_level}, _write_features)
BROKERS = Table(
    "brokers",
    {
        m.RegisterBrokerRecord: _register_broker,
        m.UnregisterBrokerRecord: _unregister_broker,
        m.FenceBrokerRecord: _fence_broker,
        m.UnfenceBrokerRecord: _unfence_broker,
        m.BrokerRegistrationChangeRecord: _registration_change,
    },
    _write_brokers,
)
CONTROLLERS = Table(
    "controllers", {m.RegisterControllerRecord: _register_controller}, _write_controllers
)
PRODUCER_IDS = Table(
    "next_producer_id",
    {m.ProducerIdsRecord: _producer_ids},
    _write_producer_ids,
    lambda changes, new: None,  # nobody acts on the next id alone
)
