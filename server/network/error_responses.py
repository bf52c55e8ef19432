"""An error answer for any API, in that API's own shape, written from its declaration.

Why generic: APIs fail in three ways (one top-level code; a code for each topic, group or resource;
a code for each partition), and clients need every topic and partition they asked about in the
answer (protocol.md rule 21). So the response is built by walking its schema: every error code gets
the code, arrays that hold one are filled from the request's array they answer, what names an
element is copied, and everything else is Kafka's "unknown" value: a result that happens to be
called like a field of the request (`high_watermark`) is no result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wire.errors import ErrorCode
from wire.schema import RESPONSES, Field, Request, Response, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

_PRODUCE = 0
_ERROR_CODES = frozenset({"error_code", "partition_error_code"})
# Which array of the request an array of the response answers, where the names differ.
_ANSWERS: dict[str, tuple[str, ...]] = {
    "responses": ("topic_data", "topics", "topic_names", "resources"),
    "partition_responses": ("partition_data",),
    "partitions": ("partitions", "partition_indexes"),
    "results": ("topics", "resources", "groups_names", "dirs", "creations", "deletions"),
    "filter_results": ("filters",),
    "coordinators": ("coordinator_keys",),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "transaction_states": ("transactional_ids",),
    "groups": ("groups", "group_ids"),
}
# What names an element (or the fetch session): the only values of a request that an error repeats.
# Where request and response call the same differently, the group has both.
_KEYS: tuple[frozenset[str], ...] = (
    frozenset({"name", "topic", "topic_name"}),
    frozenset({"user"}),
    frozenset({"topic_id"}),
    frozenset({"partition_index", "partition", "index", "partition_id"}),
    frozenset({"resource_name"}),
    frozenset({"resource_type"}),
    frozenset({"group_id"}),
    frozenset({"transactional_id"}),
    frozenset({"key"}),
    frozenset({"id"}),
    frozenset({"session_id"}),
    frozenset({"entity"}),
)
_SAME_KEY = {name: same for same in _KEYS for name in same} | {"user": frozenset({"user", "name"})}
# Keys of the members that leave a group, and of the producers of markers; elsewhere Kafka forgets
# them (JoinGroup, InitProducerId).
_MEMBER_KEYS = frozenset({"member_id", "group_instance_id", "producer_id"})
# What "unknown" is where Kafka's fresh object says 0.
_UNKNOWN_MINUS_ONE = frozenset(
    {
        "base_offset",
        "committed_offset",
        "high_watermark",
        "leader_id",
        "low_watermark",
        "node_id",
        "offset",
        "producer_epoch",
    }
)


def fault_code(api_key: int) -> ErrorCode:
    """What a fault of ours is told as. Of Produce nobody knows whether the batch was appended: the
    code is one that is retried (P-1)."""
    return ErrorCode.REQUEST_TIMED_OUT if api_key == _PRODUCE else ErrorCode.UNKNOWN_SERVER_ERROR


def error_response(
    request: Request, version: int, code: int, message: str | None = None
) -> Response:
    """The response to `request` in which everything failed with `code`."""
    response: Any = _failed(RESPONSES[request.api_key], request, version, code, message)
    return response  # type: ignore[no-any-return]


def _failed(
    struct: type[Struct], source: Any, version: int, code: int, message: str | None
) -> Struct:
    values: dict[str, Any] = {}
    for field in struct.schema:
        if field.name in _ERROR_CODES:
            values[field.name] = int(code)
        elif field.name == "error_message":
            values[field.name] = message if field.nullable is not None else message or ""
        elif field.struct is not None and _holds_error(field.struct):
            values[field.name] = [
                _failed(field.struct, item, version, code, message)
                for item in _answered(field.name, source)
            ]
        else:
            values[field.name] = _copied(field, source)
    return struct(**values)


def _holds_error(struct: type[Struct]) -> bool:
    return any(
        field.name in _ERROR_CODES or (field.struct is not None and _holds_error(field.struct))
        for field in struct.schema
    )


def _answered(name: str, source: Any) -> list[Any]:
    """The elements of the request that the response's array `name` answers."""
    for candidate in _ANSWERS.get(name, (name,)):
        items = getattr(source, candidate, None)
        if candidate == "deletions":  # of a user's credentials; upsertions are answered with them
            items = [*(items or ()), *getattr(source, "upsertions", ())]
        if items and candidate == "dirs":  # AlterReplicaLogDirs answers without the directories
            return [topic for directory in items for topic in directory.topics]
        if items:
            return list(items)
    return []


def _copied(field: Field, source: Any) -> Any:
    """The request's value of a key; else "unknown"."""
    if not isinstance(source, Struct):
        return source if field.name in _SAME_KEY else _unknown(field)
    names: Iterable[str] = _SAME_KEY.get(field.name, ())
    if field.name in _MEMBER_KEYS and not isinstance(source, Request):
        names = (field.name,)
    for name in names:
        value = getattr(source, name, None)
        if value is not None:
            return value
    return _unknown(field)


def _unknown(field: Field) -> Any:
    if field.name in _UNKNOWN_MINUS_ONE and field.kind.startswith("int"):
        return -1
    if field.kind == "records":
        return b""  # as Kafka: null records are only allowed, not expected
    return field.blank()
