"""What a request names twice is answered once. PURE.

Why: where an answer tells much about each thing that is named (the configs of a broker, the members
of a group), a megabyte that names one thing a hundred thousand times would become gigabytes. Kafka
answers each time; clients name nothing twice. More of the same thing, other partitions of a topic,
is named for the first time. Who says something else of it (another epoch) is refused: half of that
would look like an answer to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wire.errors import ErrorCode, KafkaError
from wire.schema import Struct

_NAMES = frozenset({
    "group_id", "name", "resource_name", "resource_type", "topic", "topic_id", "topic_name",
})  # fmt: skip


def name_once(request: Struct) -> None:
    """Leave of each array, and of those in its items, what is named there for the first time.
    Raises KafkaError."""
    for field in type(request).schema:
        values = getattr(request, field.name, None)
        if values and field.kind.startswith("[]"):
            setattr(request, field.name, _first_time(values, {}))


def _first_time(values: Sequence[Any], seen: dict[Any, Any]) -> list[Any]:
    """Those that are not in `seen` yet, or have something that is not. It is put there."""
    if not isinstance(values[0], Struct):
        fresh = [value for value in dict.fromkeys(values) if value not in seen]
        seen.update(dict.fromkeys(fresh))
        return fresh
    schema = type(values[0]).schema
    arrays = [field.name for field in schema if field.kind.startswith("[]")]
    names = [field.name for field in schema if field.name in _NAMES]
    others = [field.name for field in schema if field.name not in (*arrays, *names)]
    return [value for value in values if _is_first_time(value, seen, names, others, arrays)]


def _is_first_time(
    value: Struct,
    seen: dict[Any, Any],
    names: Sequence[str],
    others: Sequence[str],
    arrays: Sequence[str],
) -> bool:
    name = tuple([getattr(value, field, None) for field in names])
    said = [getattr(value, field, None) for field in others]
    # An array that is null or empty names nothing: it asks for all, or for none.
    said += [None if (of := getattr(value, field, None)) is None else bool(of) for field in arrays]
    is_first = name not in seen
    known, parts = seen.setdefault(name, (said, {}))
    if known != said:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names the same thing twice.")
    for field in arrays:
        if named := getattr(value, field, None):
            fresh = _first_time(named, parts.setdefault(field, {}))
            setattr(value, field, fresh)
            is_first |= bool(fresh)
    return is_first
