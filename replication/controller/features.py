"""UpdateFeatures: which level of each feature the whole cluster uses (KIP-584). PURE.

What: each update names a feature, a level and how it is meant: an upgrade, or a safe or unsafe
downgrade. All updates of a request are made, or none. Checks of one update, in order (Kafka:
FeatureControlManager), all answered INVALID_UPDATE_VERSION with a message that says which failed:
    the kind of update is known; the level is not negative
    this controller, every broker, every registered controller support the level, and every voter
    has registered: one that is away may be of a release that does not
    a lower level was asked for as a downgrade, a higher one was not
    metadata.version: no record type would be lost by going back
    what the level depends on: eligible leader replicas need metadata.version 4.0-IV1
`kraft.version` stands in the quorum's own control records, not here: `upgrade_kraft_version` asks
the quorum to write them, and a NoOpRecord behind them is what the answer waits for. It never goes
back.

Turning eligible leader replicas on writes the cluster-wide min.insync.replicas they are judged by,
and removes per-broker ones: the controller must know one value (KIP-966).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.controller.context import (
    ControllerConfig,
    ControllerContext,
    ControllerResult,
    UpgradeKRaftVersion,
)
from replication.controller.elections import MIN_INSYNC_REPLICAS
from replication.metadata.image import (
    CONTROLLER_REGISTRATION_SINCE,
    ELR_VERSION,
    METADATA_VERSION,
    RESOURCE_BROKER,
    MetadataImage,
    VersionRange,
)
from replication.metadata.tables import KRAFT_VERSION
from replication.raft.voter_set import VoterSet
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import UpdateFeaturesRequest, UpdateFeaturesResponse
from wire.messages.metadata_records import ConfigRecord, FeatureLevelRecord, NoOpRecord

# metadata.version levels that brought new records or fields; going back below one loses them.
_LEVELS_WITH_NEW_RECORDS = (7, 8, 11, 13, 14, 15, 17, 23, 30)
_DEPENDENCIES: dict[tuple[str, int], tuple[str, int]] = {(ELR_VERSION, 1): (METADATA_VERSION, 23)}
_NOT_SUPPORTED = VersionRange(0, 0)

_Update = UpdateFeaturesRequest.FeatureUpdate


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    image: MetadataImage,
    config: ControllerConfig,
    request: UpdateFeaturesRequest,
    context: ControllerContext,
    voters: VoterSet,
    upgrade_kraft_version: UpgradeKRaftVersion,
) -> ControllerResult:
    """Serve UpdateFeatures. `voters`: the quorum's, with its own level. Of a feature that is named
    twice the last update counts.
    """
    updates = {update.feature: update for update in request.feature_updates}
    proposed = dict(image.features)
    proposed.update((name, update.max_version_level) for name, update in updates.items())
    records: list[Any] = []
    upgrades = voters.kraft_version < proposed.get(KRAFT_VERSION, voters.kraft_version)
    try:
        for update in updates.values():
            records += _update(image, config, update, context.api_version, proposed, voters)
        if upgrades:
            # Last: whatever else is asked for may be refused, this cannot be taken back.
            upgrade_kraft_version(proposed[KRAFT_VERSION], request.validate_only)
    except KafkaError as error:
        message = (
            "The update failed for all features since the following feature had an error: "
            f"{error.detail}"
        )
        return ControllerResult(
            [], UpdateFeaturesResponse(error_code=error.code, error_message=message)
        )
    if proposed.get(ELR_VERSION, 0) > 0 and not request.validate_only:
        records = _elr_safety_records(image, config) + records
    response = UpdateFeaturesResponse(error_code=0, error_message=None)
    if 0 <= context.api_version <= 1:
        response.results = [
            UpdateFeaturesResponse.Feature(feature=update.feature, error_code=0, error_message=None)
            for update in request.feature_updates
        ]
    return ControllerResult([] if request.validate_only else records, response)


def _update(
    image: MetadataImage,
    config: ControllerConfig,
    update: _Update,
    api_version: int,
    proposed: dict[str, int],
    voters: VoterSet,
) -> list[Any]:
    """The records of one update. Raises KafkaError INVALID_UPDATE_VERSION."""
    name, level = update.feature, update.max_version_level
    kind = _upgrade_type(update, api_version)
    current = voters.kraft_version if name == KRAFT_VERSION else image.feature(name)
    reason = (
        _reason_of_level(level)
        or _reason_not_supported(image, config, name, level, voters)
        or _reason_of_direction(level, current, kind)
    )
    if not reason:
        if name == KRAFT_VERSION:
            reason = "Can't downgrade the version of this feature." if level < current else ""
        elif name == METADATA_VERSION:
            reason = _reason_of_metadata_version(level, current, kind)
        else:
            reason = reason_of_dependency(name, level, proposed)
    if reason:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. {reason}",
        )
    if level == current:
        return []
    if name == KRAFT_VERSION:
        return [NoOpRecord()]
    return [FeatureLevelRecord(name=name, feature_level=level)]


def _upgrade_type(update: _Update, api_version: int) -> UpgradeType:
    if api_version == 0:
        return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    try:
        return UpgradeType(update.upgrade_type)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {update.max_version_level} for feature {update.feature}. "
            "The controller does not support the given upgrade type.",
        ) from None


def _reason_of_level(level: int) -> str:
    return "A feature version cannot be less than 0." if level < 0 else ""


def _reason_not_supported(
    image: MetadataImage, config: ControllerConfig, name: str, level: int, voters: VoterSet
) -> str:
    """Who in the cluster does not support the level, or may not; empty when all do."""
    own = SUPPORTED_FEATURES.get(name, _NOT_SUPPORTED)
    nodes = [(f"Local controller {config.node_id}", own)]
    nodes += [
        (f"Broker {broker_id}", broker.features.get(name, _NOT_SUPPORTED))
        for broker_id, broker in sorted(image.brokers.items())
    ]
    nodes += [
        (f"Controller {controller_id}", controller.features.get(name, _NOT_SUPPORTED))
        for controller_id, controller in sorted(image.controllers.items())
        if controller_id != config.node_id
    ]
    for node, levels in nodes:
        if levels.minimum <= level <= levels.maximum:
            continue
        if levels.maximum == 0:
            return f"{node} does not support this feature."
        return f"{node} only supports versions {levels.minimum}-{levels.maximum}"
    if image.feature(METADATA_VERSION) >= CONTROLLER_REGISTRATION_SINCE:
        for node_id in voters.ids:
            if node_id != config.node_id and node_id not in image.controllers:
                return f"controller {node_id} has not registered, and may not support this feature"
    return ""


def _reason_of_direction(level: int, current: int, kind: UpgradeType) -> str:
    if level < current and kind is UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if level > current and kind is not UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return ""


def _reason_of_metadata_version(level: int, current: int, kind: UpgradeType) -> str:
    if not any(level < changed <= current for changed in _LEVELS_WITH_NEW_RECORDS):
        return ""
    if kind is UpgradeType.UNSAFE_DOWNGRADE:
        return "Unsafe metadata downgrade is not supported in this version."
    return (
        "Refusing to perform the requested downgrade because it might delete metadata information."
    )


def reason_of_dependency(name: str, level: int, proposed: Mapping[str, int]) -> str:
    """What keeps the feature from this level beside the proposed ones; empty: nothing does (Kafka:
    Feature.validateVersion)."""
    needed = _DEPENDENCIES.get((name, level))
    if needed is None or proposed.get(needed[0], 0) >= needed[1]:
        return ""
    return f"{name} could not be set to {level} because it depends on {needed[0]} level {needed[1]}"


def _elr_safety_records(image: MetadataImage, config: ControllerConfig) -> list[Any]:
    """One cluster-wide min.insync.replicas: set where there is none, never per broker."""
    records = []
    for (kind, name), values in image.configs.items():
        if kind == RESOURCE_BROKER and name and MIN_INSYNC_REPLICAS in values:
            records.append(
                ConfigRecord(
                    resource_type=RESOURCE_BROKER,
                    resource_name=name,
                    name=MIN_INSYNC_REPLICAS,
                    value=None,
                )
            )
    if MIN_INSYNC_REPLICAS not in image.config(RESOURCE_BROKER, ""):
        value = str(config.min_insync_replicas)
        records.append(
            ConfigRecord(
                resource_type=RESOURCE_BROKER,
                resource_name="",
                name=MIN_INSYNC_REPLICAS,
                value=value,
            )
        )
    return records
