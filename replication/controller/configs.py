"""Changing dynamic configs of topics, brokers, groups and client metrics. PURE.

Both APIs end in the same place: the values a resource would have are checked as a whole by the
`ConfigSchema`, then each change becomes a ConfigRecord (null deletes). A resource changes
completely or not at all; resources succeed or fail alone. Duplicate resources, duplicate keys and
null values are refused as in Apache Kafka. A broker's values are written even when unchanged: the
record makes brokers reload what the value points at, such as a renewed key store (KAFKA-14136).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from replication.controller.context import (
    RECORDS_PER_OPERATION_MAX,
    ConfigSchema,
    ControllerResult,
    repeated,
)
from replication.controller.elections import MIN_INSYNC_REPLICAS
from replication.metadata.image import (
    ELR_VERSION,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    MetadataImage,
)
from replication.metadata.topic_names import check_topic_name
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.metadata_records import (
    ClearElrRecord,
    ConfigRecord,
    PartitionChangeRecord,
)

CORDONED_LOG_DIRS = "cordoned.log.dirs"
RESOURCE_CLIENT_METRICS = 16
RESOURCE_GROUP = 32
RESOURCE_TYPES = {
    RESOURCE_TOPIC: "topic",
    RESOURCE_BROKER: "broker",
    RESOURCE_CLIENT_METRICS: "client-metrics",
    RESOURCE_GROUP: "group",
}


VALUE_BYTES_MAX = (1 << 15) - 1
"""Where APPEND stops, in UTF-8: a ConfigRecord holds no longer value. A longer one would be written
and committed, and end every node that reads it (Kafka counts characters, and its writer fails)."""


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_Row = TypeVar("_Row")


def incremental_alter_configs(
    image: MetadataImage, request: IncrementalAlterConfigsRequest, schema: ConfigSchema
) -> ControllerResult:
    """Serve IncrementalAlterConfigs: SET, DELETE, APPEND, SUBTRACT per key."""

    def changes(resource: IncrementalAlterConfigsRequest.Resource) -> dict[str, str | None]:
        current = image.config(resource.resource_type, resource.resource_name)
        return _changes(current, resource, schema)

    records, outcomes = _alter(image, request.resources, changes, schema)
    response = IncrementalAlterConfigsResponse(
        responses=_responses(IncrementalAlterConfigsResponse.Resource, outcomes)
    )
    return ControllerResult([] if request.validate_only else records, response)


def alter_configs(
    image: MetadataImage, request: AlterConfigsRequest, schema: ConfigSchema
) -> ControllerResult:
    """Serve AlterConfigs: the given values replace all there are."""

    def changes(resource: AlterConfigsRequest.Resource) -> dict[str, str | None]:
        nulls = [entry.name for entry in resource.configs if entry.value is None]
        if nulls:
            raise invalid_request(f"Null value not supported for : {', '.join(nulls)}")
        current = image.config(resource.resource_type, resource.resource_name)
        wanted = {entry.name: entry.value for entry in resource.configs}
        return {**wanted, **{name: None for name in current if name not in wanted}}

    records, outcomes = _alter(image, request.resources, changes, schema)
    response = AlterConfigsResponse(responses=_responses(AlterConfigsResponse.Resource, outcomes))
    return ControllerResult([] if request.validate_only else records, response)


def _responses(
    row: Callable[..., _Row], outcomes: Iterable[tuple[tuple[int, str], KafkaError]]
) -> list[_Row]:
    return [
        row(
            error_code=error.code,
            error_message=error.detail or None,
            resource_type=resource_type,
            resource_name=resource_name,
        )
        for (resource_type, resource_name), error in outcomes
    ]


def _alter(
    image: MetadataImage,
    resources: Sequence[Any],
    changes: Callable[[Any], dict[str, str | None]],
    schema: ConfigSchema,
) -> tuple[list[Any], list[tuple[tuple[int, str], KafkaError]]]:
    """Records of all resources that may change, and every resource's outcome in request order."""
    keys = [(resource.resource_type, resource.resource_name) for resource in resources]
    twice = repeated(keys)
    records: list[Any] = []
    outcomes: list[tuple[tuple[int, str], KafkaError]] = []
    for key, resource in zip(keys, resources, strict=True):
        try:
            if key in twice:
                raise invalid_request("Each resource must appear at most once.")
            _check_name(*key)
            _check_keys(resource)
            added = _records(image, key, changes(resource), schema)
            if len(records) + len(added) > RECORDS_PER_OPERATION_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, "Excessively large number of records per request."
                )
            records += added
            outcomes.append((key, KafkaError(ErrorCode.NONE, "")))
        except KafkaError as error:
            outcomes.append((key, error))
    return records, outcomes


def _check_keys(resource: Any) -> None:
    if repeated(entry.name for entry in resource.configs):
        raise invalid_request("Error due to duplicate config keys")


def _check_name(resource_type: int, name: str) -> None:
    """Can there be such a resource?"""
    if resource_type not in RESOURCE_TYPES:
        raise invalid_request(f"Unknown resource type {resource_type}")
    if resource_type == RESOURCE_BROKER:
        if name and not (name.isdecimal() and len(name) < 20):
            raise invalid_request(f"Node id must be an integer, but it is: {name}")
    elif not name:
        kind = RESOURCE_TYPES[resource_type]
        raise invalid_request(f"Default {kind} resources are not allowed.")
    elif resource_type == RESOURCE_TOPIC:
        check_topic_name(name)


def _check_existence(image: MetadataImage, resource_type: int, name: str) -> None:
    """Asked last, as in Kafka: what is wrong with the values is told of absent resources too."""
    if resource_type == RESOURCE_TOPIC and name not in image.topics_by_name:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    if resource_type == RESOURCE_BROKER and name and int(name) not in image.brokers:
        raise invalid_request(f"Unexpected broker id: no broker {name} is registered")


def values_after(
    image: MetadataImage, resource: IncrementalAlterConfigsRequest.Resource, schema: ConfigSchema
) -> dict[str, str]:
    """All dynamic values the resource would have. Raises KafkaError for operations that are none:
    INVALID_REQUEST, or INVALID_CONFIG for APPEND and SUBTRACT on what is no list.
    """
    _check_keys(resource)
    current = image.config(resource.resource_type, resource.resource_name)
    return _changed(current, _changes(current, resource, schema))


def _changed(current: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    values = {**current, **changes}
    return {name: value for name, value in values.items() if value is not None}


def _changes(
    current: Mapping[str, str],
    resource: IncrementalAlterConfigsRequest.Resource,
    schema: ConfigSchema,
) -> dict[str, str | None]:
    return {
        entry.name: _operate(resource.resource_type, current.get(entry.name), entry, schema)
        for entry in resource.configs
    }


def _operate(
    resource_type: int, current: str | None, entry: Any, schema: ConfigSchema
) -> str | None:
    """The value of one key after one operation; None deletes it."""
    try:
        operation = ConfigOperation(entry.config_operation)
    except ValueError:
        raise invalid_request(f"Unknown operations type {entry.config_operation}") from None
    if operation is ConfigOperation.DELETE:
        return None
    value: str | None = entry.value
    if value is None:
        raise invalid_request(f"Null value not supported for : {entry.name}")
    if operation is ConfigOperation.SET:
        return value
    if not schema.is_list(resource_type, entry.name):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {entry.name} because its type is not LIST.",
        )
    base = schema.default_value(resource_type, entry.name) if current is None else current
    before, given = _items(base or ""), _items(value)
    if operation is ConfigOperation.APPEND:
        return ",".join(dict.fromkeys((*before, *given)))
    return ",".join(item for item in before if item not in given)


def _items(text: str) -> dict[str, None]:
    """The items of a list, without blanks around them and each once, in their order."""
    return dict.fromkeys(item for item in map(str.strip, text.split(",")) if item)


def _records(
    image: MetadataImage,
    key: tuple[int, str],
    changes: Mapping[str, str | None],
    schema: ConfigSchema,
) -> list[Any]:
    current = image.config(*key)
    for name, value in changes.items():
        size = len((value or "").encode())
        if size > VALUE_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"config {name}: a value of {size} bytes, at most {VALUE_BYTES_MAX} are allowed",
            )
    schema.validate(*key, _changed(current, changes))
    _check_existence(image, *key)
    _check_min_insync_replicas(image, key, changes)
    is_cordoning = key[0] == RESOURCE_BROKER and CORDONED_LOG_DIRS in changes
    if is_cordoning and not image.knows_cordoned_directories:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"The {CORDONED_LOG_DIRS} configuration value cannot be set because it requires"
            " metadata.version >= 4.3-IV0",
        )
    records: list[Any] = [
        ConfigRecord(resource_type=key[0], resource_name=key[1], name=name, value=value)
        for name, value in changes.items()
        if value != current.get(name) or key[0] == RESOURCE_BROKER
    ]
    if any(r.name == MIN_INSYNC_REPLICAS and r.value != current.get(r.name) for r in records):
        records += _clear_elr_records(image, key)
    return records


def _clear_elr_records(image: MetadataImage, key: tuple[int, str]) -> list[Any]:
    """Another min.insync.replicas: who is eligible under the old one may miss records committed
    under the new one.

    A partition without any in-sync replica keeps its ELR: nothing can be committed there before one
    of it leads, and clearing it would leave nobody who may (Apache Kafka clears it too).
    """
    if not image.feature(ELR_VERSION):
        return []
    topics = [image.topics_by_name[key[1]]] if key[0] == RESOURCE_TOPIC else None
    named = [
        (topic.topic_id, index, partition)
        for topic in (image.topics_by_id.values() if topics is None else topics)
        for index, partition in topic.partitions.items()
        if partition.elr or partition.last_known_elr
    ]
    if not named:
        return []
    if all(partition.isr for _, _, partition in named):
        return [ClearElrRecord(topic_name=key[1] if topics else "")]
    return [
        PartitionChangeRecord(
            topic_id=topic_id, partition_id=index, eligible_leader_replicas=[], last_known_elr=[]
        )
        for topic_id, index, partition in named
        if partition.isr
    ]


def _check_min_insync_replicas(
    image: MetadataImage, key: tuple[int, str], changes: Mapping[str, str | None]
) -> None:
    """With ELR (KIP-966) the controller needs one cluster-wide value: never unset, never per
    broker.
    """
    if key[0] != RESOURCE_BROKER or MIN_INSYNC_REPLICAS not in changes:
        return
    if not image.feature(ELR_VERSION):
        return
    if key[1]:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        )
    if changes[MIN_INSYNC_REPLICAS] is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )


def invalid_request(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
