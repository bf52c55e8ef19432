"""Avro: a schema's type, and values read by fastavro, resolved from the writer's schema.

Logical types that are kept: decimal (38 digits at most), date, timestamps of milli- and
microseconds, with and without zone. Of others the value below is kept (time-millis: bigint).

Travels to executors by value.
"""

from __future__ import annotations

import decimal
import io
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from .framing import Undecodable
from .registry import Schema
from .types import JSON, Convert, Structs, Type

_LEAVES: dict[str, Type] = {
    "null": "string",
    "boolean": "boolean",
    "int": "bigint",
    "long": "bigint",
    "float": "double",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
_LOGICAL: dict[tuple[str, str], Type] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}
_MOST_DIGITS = 38
_FRAMES = 6_000
"""Of Python, for a value that lies within itself: a thousand times, as JSON text may."""
_LONGEST_REASON = 80
"""Characters: what is longer is both schemas as JSON."""


class AvroValues:
    """Values as the schema `reader` sees them. Raises ValueError when that is no Avro schema."""

    kind = "AVRO"

    def __init__(self, reader: Schema) -> None:
        self._schema = reader
        self._reader = _parsed(reader)
        self.type = _Types(self._reader.named).of(self._reader.root, ())
        self._times = _times(self._reader.root, self._reader.named, ())

    def writer(self, schema: Schema) -> Any:
        """What `read` needs of the schema that values were written with; None: it is the reader."""
        if (schema.text, schema.imports) == (self._schema.text, self._schema.imports):
            return None
        return _parsed(schema)

    def read(self, data: bytes, at: int, writer: Any) -> Any:
        """One value, of all bytes from `at` on. Raises Undecodable and what fastavro raises."""
        from fastavro.read import SchemaResolutionError

        written, wanted = (self._reader, None) if writer is None else (writer, self._reader.root)
        source = io.BytesIO(data)
        source.seek(at)
        try:
            value = _value(source, written, wanted)
        except EOFError:
            raise Undecodable("ends too early") from None
        except RecursionError:
            raise Undecodable("lies too deep within itself") from None
        except SchemaResolutionError as error:
            raise Undecodable(_mismatch(written.root, wanted, str(error))) from None
        left = len(data) - source.tell()
        if left:
            raise Undecodable(f"{left} bytes are left behind the value")
        return value if writer is None or self._times is None else self._times(value)


def _value(source: io.BytesIO, written: _Parsed, wanted: Any) -> Any:
    """What fastavro reads. Its code in C would end the process where a few thousand bytes say that
    a record is within itself a few thousand times: such schemas are read by that in Python."""
    import fastavro

    if not written.is_recursive:
        return fastavro.schemaless_reader(source, written.root, wanted)
    from fastavro import _read_py

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _FRAMES))
    try:
        return _read_py.schemaless_reader(source, written.root, wanted)
    finally:
        sys.setrecursionlimit(limit)


def _mismatch(writer: Any, reader: Any, said: str) -> str:
    """Whose schema cannot be read as whose; why, where fastavro does not quote both in full."""
    why = said.removeprefix("Schema mismatch: ")
    return f"{_named(writer)} cannot be read as {_named(reader)}" + (
        f": {why}" if len(why) <= _LONGEST_REASON else ""
    )


def _named(schema: Any) -> str:
    if not isinstance(schema, dict):
        return schema if isinstance(schema, str) else "union"
    return str(schema.get("name", schema["type"]))


def _times(node: Any, named: dict[str, Any], within: tuple[str, ...]) -> Convert | None:
    """What makes microseconds, which times are to Arrow, of the milliseconds in a reader's places;
    None where it has no such. fastavro goes by the writer's logical types: what was written as a
    long, before its field was said to be a time, it leaves a number."""
    if isinstance(node, list):
        some = [one for one in node if one != "null"]
        return _times(some[0], named, within) if len(some) == 1 else None  # several: JSON text
    if isinstance(node, str):
        return _times(named[node], named, within) if node in named else None
    kind = node["type"]
    if kind in ("record", "error"):
        if node["name"] in within:
            return None
        inside = (*within, node["name"])
        found = {one["name"]: _times(one["type"], named, inside) for one in node["fields"]}
        fields = {name: one for name, one in found.items() if one is not None}
        return _unless_null(_of_fields(fields)) if fields else None
    if kind in ("array", "map"):
        one = _times(node["items" if kind == "array" else "values"], named, within)
        return None if one is None else _unless_null(_of_each(one))
    if node.get("logicalType") in ("timestamp-millis", "local-timestamp-millis"):
        return lambda value: value * 1000 if isinstance(value, int) else value
    return _times(kind, named, within) if not isinstance(kind, str) else None


def _unless_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _of_fields(fields: dict[str, Convert]) -> Convert:
    return lambda value: value | {name: one(value[name]) for name, one in fields.items()}


def _of_each(one: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one(inner) for key, inner in value.items()}
        return [one(inner) for inner in value]

    return convert


class _Parsed(NamedTuple):
    """A schema as fastavro has it, its named types, and whether one contains itself."""

    root: Any
    named: dict[str, Any]
    is_recursive: bool


def _parsed(schema: Schema) -> _Parsed:
    import fastavro

    named: dict[str, Any] = {}
    try:
        for _, text in schema.imports:
            fastavro.parse_schema(_without_other_logical_types(json.loads(text)), named)
        raw = _without_other_logical_types(_json_or_name(schema.text))
        root = fastavro.parse_schema(raw, named)
        if schema.imports:
            whole, named = _whole(root, named, set()), {}
            root = fastavro.parse_schema(whole, named)
        _fill_defaults(named)
    except Exception as error:  # fastavro has many
        raise ValueError(f"no Avro schema: {type(error).__name__}: {error}") from None
    _require_bytes_of_items(root, named)
    return _Parsed(root, named, _contains_itself(root, named, (), set()))


def _fill_defaults(named: dict[str, Any]) -> None:
    """Make values of the defaults of all records' fields: fastavro gives what JSON has there, for
    bytes a text. Raises many kinds of errors for what is no value of its field."""
    for record in named.values():
        for field in record.get("fields", ()):
            if "default" in field:
                field["default"] = _default(field["type"], field["default"], named)


def _default(node: Any, said: Any, named: dict[str, Any]) -> Any:
    """The value that a default in JSON stands for (Avro: Complex Types, Records)."""
    if isinstance(node, list):
        some = [one for one in node if one != "null"]
        return said if said is None or not some else _default(some[0], said, named)
    if isinstance(node, str):
        if node in named:
            return _default(named[node], said, named)
        return said.encode("latin-1") if node == "bytes" and isinstance(said, str) else said
    kind = node["type"]
    if isinstance(said, dict) and "fields" in node:
        parts = ((one["name"], one["type"], one) for one in node["fields"])
        return {
            name: _default(inner, said[name] if name in said else one["default"], named)
            for name, inner, one in parts
        }
    if isinstance(said, dict) and kind == "map":
        return {key: _default(node["values"], one, named) for key, one in said.items()}
    if isinstance(said, list) and kind == "array":
        return [_default(node["items"], one, named) for one in said]
    raw = _default("bytes" if kind == "fixed" else kind, said, named)
    if isinstance(raw, bytes) and node.get("logicalType") == "decimal":
        unscaled = decimal.Decimal(int.from_bytes(raw, "big", signed=True))
        return unscaled.scaleb(-node.get("scale", 0), decimal.Context(_MOST_DIGITS))
    return raw


def _whole(node: Any, named: dict[str, Any], said: set[str]) -> Any:
    """A schema with all that it refers to: each named type is said where it comes first. fastavro
    knows other types only beside a record at the root, and not where a union or an array is there,
    as in a topic of several kinds of records."""
    if isinstance(node, list):
        return [_whole(one, named, said) for one in node]
    if isinstance(node, str):
        if node in said or node not in named:
            return node
        node = named[node]
    if "name" in node:
        if node["name"] in said:
            return node["name"]
        said.add(node["name"])
    found = {key: one for key, one in node.items() if not key.startswith("__")}
    for key in found.keys() & {"type", "items", "values"}:
        found[key] = _whole(found[key], named, said)
    if "fields" in found:
        fields = found["fields"]
        found["fields"] = [one | {"type": _whole(one["type"], named, said)} for one in fields]
    return found


def _contains_itself(
    node: Any, named: dict[str, Any], within: tuple[str, ...], done: set[str]
) -> bool:
    """`within`: names of the records around it; `done`: of those that do not contain themselves."""
    if isinstance(node, str):
        return node in named and _contains_itself(named[node], named, within, done)
    if isinstance(node, list):
        return any(_contains_itself(one, named, within, done) for one in node)
    if node["type"] not in ("record", "error"):
        inner = [node[key] for key in ("type", "items", "values") if key in node]
        return any(_contains_itself(one, named, within, done) for one in inner)
    name = node["name"]
    if name in within or name in done:
        return name in within
    types = [one["type"] for one in node["fields"]]
    found = _contains_itself(types, named, (*within, name), done)
    done.add(name)
    return found


def _require_bytes_of_items(root: Any, named: dict[str, Any]) -> None:
    """Raise ValueError for an array whose items take no bytes: ten bytes may say that there are
    2^62 of them, and fastavro would make them all."""
    known: dict[str, bool] = {}

    def is_empty(node: Any) -> bool:
        if isinstance(node, list):  # which of them it is takes a byte
            return False
        if isinstance(node, str):
            return node == "null" or (node not in _LEAVES and is_empty(named[node]))
        kind = node["type"]
        if kind == "fixed":
            return bool(node["size"] == 0)
        if kind in ("record", "error"):
            name = node["name"]
            if name not in known:
                known[name] = False  # what contains itself does so behind a byte
                known[name] = all(is_empty(field["type"]) for field in node["fields"])
            return known[name]
        return kind not in ("array", "map") and is_empty(kind)

    if any(is_empty(items) for node in (root, *named.values()) for items in _items(node)):
        raise ValueError("one with an array whose items take no bytes: nothing bounds how many")


def _items(node: Any) -> Iterator[Any]:
    """Of all arrays in a schema, but for those of types that it names only."""
    if isinstance(node, dict):
        if node.get("type") == "array":
            yield node["items"]
        node = [node.get(key) for key in ("type", "items", "values", "fields")]
    if isinstance(node, list):
        for one in node:
            yield from _items(one)


def _json_or_name(text: str) -> Any:
    """Registries may have a primitive type's schema as `"string"` or as `string`."""
    return text.strip() if text.strip() in _LEAVES else json.loads(text)


def _without_other_logical_types(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_other_logical_types(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _without_other_logical_types(one) for key, one in node.items() if key != "default"}
    if "default" in node:
        kept["default"] = node["default"]
    if "logicalType" in node and not _is_kept(node):
        del kept["logicalType"]
    return kept


def _is_kept(node: dict[str, Any]) -> bool:
    """Whether a type is one that its logicalType may be of. What is not valid there means nothing
    (Avro: Logical Types), such as one that stands beside a union, where a field says its type."""
    kind, logical = node.get("type"), node["logicalType"]
    if logical != "decimal" or kind not in ("bytes", "fixed"):
        return any(one == (kind, logical) for one in _LOGICAL)
    digits: Any = node.get("precision")
    scale: Any = node.get("scale", 0)
    are_numbers = type(digits) is int and type(scale) is int
    return are_numbers and 0 <= scale <= digits <= _MOST_DIGITS and digits > 0


class _Types:
    """Types of the parts of one schema."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named, self._structs = named, Structs()

    def of(self, node: Any, within: tuple[str, ...]) -> Type:
        """`within`: names of the records around it, which it must not contain again."""
        if isinstance(node, list):
            return self._union(node, within)
        if isinstance(node, str):
            return _LEAVES[node] if node in _LEAVES else self.of(self._named[node], within)
        kind = node["type"]
        if kind in ("record", "error"):
            if node["name"] in within:
                return JSON
            inside = (*within, node["name"])
            return self._structs.of(
                {one["name"]: self.of(one["type"], inside) for one in node["fields"]}
            )
        if kind == "array":
            return {"array": self.of(node["items"], within)}
        if kind == "map":
            return {"map": self.of(node["values"], within)}
        if node.get("logicalType") == "decimal":
            return f"decimal({node['precision']},{node.get('scale', 0)})"
        is_named = isinstance(kind, str)
        logical = _LOGICAL.get((kind, node.get("logicalType", ""))) if is_named else None
        return logical or self.of(kind, within)

    def _union(self, branches: list[Any], within: tuple[str, ...]) -> Type:
        types = [self.of(one, within) for one in branches if one != "null"] or ["string"]
        return types[0] if all(one == types[0] for one in types) else JSON
