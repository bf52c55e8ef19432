"""What a node does itself of a change of configs, before the controller hears of the rest.

Kafka: ConfigAdminManager and RuntimeLoggerManager. Each resource of the request gets a verdict
here: an error, success (log levels, which change in this process and are not kept), or none: then
it is the controller's to decide. A broker judges its own values and the cluster-wide ones, because
it knows what it was started with; the controller could only look at names and types. The answer
names all resources in the order of the request, whoever judged them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from replication.controller.configs import (
    CORDONED_LOG_DIRS,
    ConfigOperation,
    invalid_request,
    values_after,
)
from replication.controller.context import repeated
from server.config import schema
from server.config.schema import ConfigEntry, ConfigSchema
from server.config.validation import validate_reconfiguration
from server.handlers.controller import controller_context
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import AnyNode
    from server.network.request_context import RequestContext

Response = AlterConfigsResponse | IncrementalAlterConfigsResponse

_LEVELS = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
_LEVEL_NAMES = {number: name for name, number in _LEVELS.items()}
_ROOT_LOGGER = "root"
_INTEGER = re.compile(r"[+-]?\d{1,10}")
_UNDECIDED = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the controller did not answer for it")
_PASSED_ON = (schema.TOPIC, schema.BROKER, schema.CLIENT_METRICS, schema.GROUP)


def incremental_alter(
    ctx: RequestContext[AnyNode], request: IncrementalAlterConfigsRequest
) -> Response | None:
    """Serve IncrementalAlterConfigs."""

    def judge(resource: IncrementalAlterConfigsRequest.Resource) -> KafkaError | None:
        nulls = [
            entry.name
            for entry in resource.configs
            if entry.value is None and entry.config_operation != ConfigOperation.DELETE
        ]
        _check_entries(resource, nulls)
        if resource.resource_type == schema.BROKER_LOGGER:
            _alter_loggers(ctx, resource, request.validate_only)
            return KafkaError(ErrorCode.NONE, "")
        if resource.resource_type == schema.BROKER and ctx.broker.role == "broker":
            _check_node_id(ctx, resource.resource_name)
            schemas = ConfigSchema(ctx.broker.config)
            _check_broker(ctx, resource, values_after(ctx.broker.metadata, resource, schemas))
        elif resource.resource_type == schema.BROKER:
            schemas = ConfigSchema(ctx.broker.config)
            _check_cordoned(ctx, resource, values_after(ctx.broker.metadata, resource, schemas))
        return None

    return _alter(ctx, request, judge, IncrementalAlterConfigsResponse)


def alter(ctx: RequestContext[AnyNode], request: AlterConfigsRequest) -> Response | None:
    """Serve AlterConfigs."""

    def judge(resource: AlterConfigsRequest.Resource) -> KafkaError | None:
        _check_entries(resource, [e.name for e in resource.configs if e.value is None])
        if resource.resource_type == schema.BROKER and ctx.broker.role == "broker":
            _check_node_id(ctx, resource.resource_name)
            _check_broker(ctx, resource, {e.name: e.value or "" for e in resource.configs})
        elif resource.resource_type == schema.BROKER:
            _check_cordoned(ctx, resource, {e.name: e.value or "" for e in resource.configs})
        return None

    return _alter(ctx, request, judge, AlterConfigsResponse)


def _alter(
    ctx: RequestContext[AnyNode],
    request: Any,
    judge: Callable[[Any], KafkaError | None],
    answer: Any,
) -> Response | None:
    keys = [(resource.resource_type, resource.resource_name) for resource in request.resources]
    twice = repeated(keys)
    verdicts: list[KafkaError | None] = []
    for key, resource in zip(keys, request.resources, strict=True):
        try:
            if key in twice:
                raise invalid_request("Each resource must appear at most once.")
            verdicts.append(judge(resource))
        except KafkaError as error:
            verdicts.append(error)

    def complete(decided: Mapping[tuple[int, str], KafkaError]) -> Response:
        whole: Response = answer(
            responses=[
                answer.Resource(
                    error_code=error.code,
                    error_message=error.detail or None,
                    resource_type=key[0],
                    resource_name=key[1],
                )
                for key, verdict in zip(keys, verdicts, strict=True)
                for error in [verdict or decided.get(key, _UNDECIDED)]
            ]
        )
        return whole

    undecided = [r for r, v in zip(request.resources, verdicts, strict=True) if v is None]
    if not undecided and request.resources:
        return complete({})

    def answered(response: Any) -> None:
        if isinstance(response, KafkaError):
            ctx.respond_error(request, response.code, response.detail)
        else:
            decided = {
                (row.resource_type, row.resource_name): KafkaError(
                    row.error_code, row.error_message or ""
                )
                for row in response.responses
            }
            ctx.respond(complete(decided))

    part = type(request)(resources=undecided, validate_only=request.validate_only)
    ctx.broker.controller.submit(part, answered, context=controller_context(ctx))
    return None


def _check_entries(resource: Any, nulls: list[str]) -> None:
    if repeated(entry.name for entry in resource.configs):
        raise invalid_request("Error due to duplicate config keys")
    if nulls:
        raise invalid_request(f"Null value not supported for : {', '.join(nulls)}")
    is_logger = resource.resource_type == schema.BROKER_LOGGER
    has_loggers = isinstance(resource, IncrementalAlterConfigsRequest.Resource)
    if resource.resource_type not in _PASSED_ON and not (is_logger and has_loggers):
        raise invalid_request(f"Unknown resource type {resource.resource_type}")


def _check_broker(ctx: RequestContext[AnyNode], resource: Any, values: dict[str, str]) -> None:
    validate_reconfiguration(
        ctx.broker.config,
        values,
        per_broker=bool(resource.resource_name),
        named=[one.name for one in resource.configs],
    )


def _check_cordoned(ctx: RequestContext[AnyNode], resource: Any, values: dict[str, str]) -> None:
    """A controller knows no paths of brokers: who asks it itself may only take some out."""
    now = ctx.broker.metadata.config(schema.BROKER, resource.resource_name)
    known, wanted = (
        {item.strip() for item in of.get(CORDONED_LOG_DIRS, "").split(",")} | {""}
        for of in (now, values)
    )
    if not ctx.is_forwarded and not wanted <= known:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"When updating {CORDONED_LOG_DIRS} via controllers, the new value must be a subset of"
            " the current configuration value.",
        )


def _check_node_id(ctx: RequestContext[AnyNode], name: str) -> None:
    """A broker's values are changed by that broker; the empty name stands for all of them. What is
    set for another spelling of its id (`01`) would be kept and never read."""
    if name:
        check_own_id(ctx, name)
        if name != str(ctx.broker.node_id):
            raise _another_id(ctx, name)


def check_own_id(ctx: RequestContext[AnyNode], name: str) -> None:
    """Raise KafkaError INVALID_REQUEST unless `name` is this node's id, however it is written."""
    if not _INTEGER.fullmatch(name):
        raise invalid_request(f"Node id must be an integer, but it is: {name}")
    if int(name) != ctx.broker.node_id:
        raise _another_id(ctx, name)


def _another_id(ctx: RequestContext[AnyNode], name: str) -> KafkaError:
    return invalid_request(
        f"Unexpected broker id, expected {ctx.broker.node_id}, but received {name}"
    )


# ---- log levels


def _alter_loggers(
    ctx: RequestContext[AnyNode],
    resource: IncrementalAlterConfigsRequest.Resource,
    validate_only: bool,
) -> None:
    check_own_id(ctx, resource.resource_name)
    changes = {entry.name: _level(entry) for entry in resource.configs}
    if not validate_only:
        for name, level in changes.items():
            _logger(name).setLevel(level)


def _level(entry: IncrementalAlterConfigsRequest.Resource.Config) -> int:
    """The level that one operation gives a logger; NOTSET is that of the logger above it."""
    if entry.config_operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        raise invalid_request(f"log levels are set or deleted, not {entry.config_operation}")
    if entry.name not in _logger_names():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {entry.name} does not exist!")
    if entry.config_operation == ConfigOperation.DELETE:
        if entry.name == _ROOT_LOGGER:
            raise invalid_request("Removing the log level of the root logger is not allowed")
        return logging.NOTSET
    if entry.value not in _LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {entry.name} to {entry.value}: expected one of"
            f" {', '.join(_LEVELS)}",
        )
    return _LEVELS[entry.value]


def describe_loggers() -> list[ConfigEntry]:
    """Every logger of this process with the level that counts for it."""
    source, kind = schema.DYNAMIC_BROKER_LOGGER_CONFIG, schema.CONFIG_TYPES["STRING"]
    levels = {name: _logger(name).getEffectiveLevel() for name in _logger_names()}
    return [
        ConfigEntry(name, _LEVEL_NAMES.get(level, "INFO"), False, source, False, (), kind)
        for name, level in levels.items()
    ]


def _logger_names() -> list[str]:
    return [_ROOT_LOGGER, *sorted(logging.Logger.manager.loggerDict)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == _ROOT_LOGGER else name)
