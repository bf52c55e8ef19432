"""Types of decoded columns, as plain data: what an archive remembers as JSON.

A type is the name of a leaf ("bigint", "string", "decimal(10,2)", ...), {"struct": {name: type}},
{"array": type} or {"map": type} (keys are strings). Integers of any width are bigint and floating
point of any width double, so that a schema that widens a field changes no column. The leaf "json"
is a string to Spark: what has no single type (a union of several, a type that contains itself, an
object without fields) is kept as JSON text.

Travels to executors by value.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any

from .framing import Undecodable

Type = str | dict[str, Any]
Convert = Callable[[Any], Any]

JSON = "json"
_MOST_FIELDS = 10_000
_ARROW = {
    "boolean": "bool_",
    "bigint": "int64",
    "double": "float64",
    "string": "string",
    JSON: "string",
    "binary": "binary",
    "date": "date32",
}


def struct(fields: dict[str, Type]) -> Type:
    """A struct of these fields; JSON text where Spark could not keep it: without fields, or with
    names that differ in case only."""
    if not fields or len({name.lower() for name in fields}) < len(fields):
        return JSON
    return {"struct": fields}


class Structs:
    """The structs of one type, whose fields have a bound: of a schema of a kilobyte, in which each
    record has two of the next, they may be 2^30. Raises ValueError above it."""

    def __init__(self) -> None:
        self._fields = 0

    def of(self, fields: dict[str, Type]) -> Type:
        self._fields += len(fields)
        if self._fields > _MOST_FIELDS:
            raise ValueError(f"a schema of more than {_MOST_FIELDS:,} fields")
        return struct(fields)


def ddl(given: Type) -> str:
    """As Spark's DDL names it."""
    if isinstance(given, str):
        return "string" if given == JSON else given
    if "array" in given:
        return f"array<{ddl(given['array'])}>"
    if "map" in given:
        return f"map<string,{ddl(given['map'])}>"
    fields = ((name.replace("`", "``"), one) for name, one in given["struct"].items())
    return "struct<" + ",".join(f"`{name}`:{ddl(one)}" for name, one in fields) + ">"


def arrow(given: Type) -> Any:
    """As PyArrow has it."""
    import pyarrow

    if not isinstance(given, str):
        if "array" in given:
            return pyarrow.list_(arrow(given["array"]))
        if "map" in given:
            return pyarrow.map_(pyarrow.string(), arrow(given["map"]))
        return pyarrow.struct([(name, arrow(one)) for name, one in given["struct"].items()])
    if given.startswith("timestamp"):
        return pyarrow.timestamp("us", None if given == "timestamp_ntz" else "UTC")
    if given.startswith("decimal"):
        precision, scale = given[len("decimal(") : -1].split(",")
        return pyarrow.decimal128(int(precision), int(scale))
    return getattr(pyarrow, _ARROW[given])()


def merged(known: Type, new: Type, path: str, conflicts: list[str]) -> Type:
    """`known` with the fields that `new` adds, at every depth.

    Where they differ in type `known` stays, and `conflicts` gets a line.
    """
    if isinstance(known, dict) and isinstance(new, dict) and known.keys() == new.keys():
        if "struct" not in known:
            kind = next(iter(known))
            return {kind: merged(known[kind], new[kind], path, conflicts)}
        return {"struct": _merged_fields(known["struct"], new["struct"], path, conflicts)}
    if ddl(known) != ddl(new):
        conflicts.append(f"{path} is {ddl(new)} and not {ddl(known)}")
    return known


def _merged_fields(
    known: dict[str, Type], new: dict[str, Type], path: str, conflicts: list[str]
) -> dict[str, Type]:
    fields = dict(known)
    names = {name.lower(): name for name in known}
    for name, one in new.items():
        there = names.get(name.lower())
        if there is None:
            fields[name] = one
        elif there != name:
            conflicts.append(f"{path}.{name} differs from {there} in case only, and is left out")
        else:
            fields[name] = merged(known[name], one, f"{path}.{name}", conflicts)
    return fields


def leaves(given: Type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Type]]:
    """Fields below structs, as paths; arrays and maps are leaves, too."""
    if isinstance(given, dict) and "struct" in given:
        for name, one in given["struct"].items():
            yield from leaves(one, (*path, name))
    else:
        yield path, given


def converter(own: Type, column: Type, path: str = "", *, strict: bool = False) -> Convert | None:
    """What makes a value of type `own` one that Arrow takes for `column`; None when it is one.

    It raises Undecodable, with the field's path, for what is of another type: Arrow would make a 1
    of 1.5 and a time of a number. `strict`: values are not bound to be of the type `own`.
    """
    if column == JSON or (own == JSON and column == "string"):
        return _json_text
    if isinstance(own, str) or isinstance(column, str) or own.keys() != column.keys():
        if own != column:
            return _refusing(path, f"is {ddl(own)}, and its column {ddl(column)}")
        return _leaf_check(path, ddl(own)) if strict else None
    if "struct" in own:
        return _of_struct(own["struct"], column["struct"], path, strict)
    kind = next(iter(own))
    inner = converter(own[kind], column[kind], f"{path}[]", strict=strict)
    if kind == "map":
        return _expecting(dict, path, lambda value: list(_each(inner, value)))
    if inner is None and not strict:
        return None
    return _expecting(list, path, lambda value: [inner(one) for one in value] if inner else value)


def _each(inner: Convert | None, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, one in value.items():
        yield key, inner(one) if inner else one


def _of_struct(
    own: dict[str, Type], column: dict[str, Type], path: str, strict: bool
) -> Convert | None:
    converters = {
        name: converter(one, column[name], f"{path}.{name}", strict=strict)
        for name, one in own.items()
        if name in column
    }
    inner = [(name, one) for name, one in converters.items() if one is not None]

    if not inner and not strict:
        return None

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        found = {name: one(value[name]) for name, one in inner if name in value}
        # What is not bound to its schema may have more fields, and the column others of that name.
        return found if strict else value | found

    return _expecting(dict, path, convert)


def _expecting(
    kind: type[dict[str, Any]] | type[list[Any]], path: str, convert: Convert
) -> Convert:
    """Null stays null, and a value of another kind is refused."""
    name = "object" if kind is dict else "array"

    def checked(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, kind):
            raise Undecodable(f"{_shown(path)} is {_brief(value)}, and no {name}")
        return convert(value)

    return checked


def _refusing(path: str, why: str) -> Convert:
    def refuse(value: Any) -> None:
        if value is not None:
            raise Undecodable(f"{_shown(path)} {why}")

    return refuse


def _leaf_check(path: str, leaf: str) -> Convert:
    """For the leaves that JSON has: exactly their values, whole numbers as 1.0 too."""

    def check(value: Any) -> Any:
        kind = type(value)
        if value is None or (kind is bool and leaf == "boolean"):
            return value
        if kind is str and leaf == "string":
            return value
        if kind in (int, float) and leaf == "double":
            return float(value)
        if (kind is int or (kind is float and value.is_integer())) and leaf == "bigint":
            return int(value)
        raise Undecodable(f"{_shown(path)} is {_brief(value)}, and no {leaf}")

    return check


def _shown(path: str) -> str:
    return path.removeprefix(".") or "it"


def _brief(value: Any) -> str:
    text = json.dumps(value, default=_plain)
    return text if len(text) <= 40 else text[:40] + "..."


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> str:
    """What JSON has no word for; bytes as Avro's JSON encoding has them."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
