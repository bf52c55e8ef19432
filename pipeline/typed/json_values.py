"""JSON: the type of a JSON Schema, and values.

Why JSON Schema and not Spark's DDL: it is what registries hold, and what a producer's side has
already. Only types are taken from it; whether a value keeps all its rules is not looked at. What
has no single type there is JSON text.

Travels to executors by value.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from .framing import Undecodable
from .registry import Schema
from .types import JSON, Structs, Type

_LEAVES: dict[str, Type] = {
    "string": "string",
    "integer": "bigint",
    "number": "double",
    "boolean": "boolean",
    "null": "string",
}


class JsonValues:
    """Values by a JSON Schema. Raises ValueError when it is none."""

    kind = "JSON"

    def __init__(self, reader: Schema) -> None:
        try:
            root = json.loads(reader.text)
            imports = {name: json.loads(text) for name, text in reader.imports}
        except ValueError as error:
            raise ValueError(f"no JSON: {error}") from None
        if not isinstance(root, dict):
            raise ValueError("no JSON Schema: it is no object")
        try:
            self.type = _Types(imports | {"": root}).of(root, "", ())
        except (AttributeError, TypeError) as error:
            raise ValueError(f"no JSON Schema: {error}") from None

    def writer(self, schema: Schema) -> Any:
        """Nothing: a value says its own fields."""
        return None

    def read(self, data: bytes, at: int, writer: Any) -> Any:
        """One value. Raises Undecodable."""
        try:
            return json.loads(data[at:], parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"no JSON: {error}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


class _Types:
    """Types of the parts of a document, whose name is "", and of those it refers to."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self._documents, self._structs = documents, Structs()

    def of(self, node: Any, home: str, within: tuple[str, ...]) -> Type:
        """`home`: name of the document that the node is in, which references may leave out;
        `within`: references around it, which it must not follow again."""
        if not isinstance(node, dict):
            return JSON
        if "$ref" in node:
            document, _, pointer = str(node["$ref"]).partition("#")
            home = document or home
            name = f"{home}#{pointer}"
            if name in within:
                return JSON
            return self.of(self._target(home, pointer), home, (*within, name))
        several = node.get("anyOf") or node.get("oneOf")
        if several:
            some = [one for one in several if not _is_null(one)]
            return self.of(some[0], home, within) if len(some) == 1 else JSON
        kinds = node.get("type", "object" if "properties" in node else ())
        names = [kinds] if isinstance(kinds, str) else [one for one in kinds if one != "null"]
        return self._single(node, names[0], home, within) if len(names) == 1 else _of_enum(node)

    def _single(self, node: dict[str, Any], kind: str, home: str, within: tuple[str, ...]) -> Type:
        if kind == "array":
            return {"array": self.of(node.get("items"), home, within)}
        if kind != "object":
            return _LEAVES.get(kind, JSON)
        properties = node.get("properties")
        if properties:
            fields = {name: self.of(one, home, within) for name, one in properties.items()}
            return self._structs.of(fields)
        others = node.get("additionalProperties")
        is_map = isinstance(others, dict) and others
        return {"map": self.of(others, home, within)} if is_map else JSON

    def _target(self, document: str, pointer: str) -> Any:
        found: Any = self._documents.get(document)
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found


def _is_null(node: Any) -> bool:
    """Of alternatives, the one that says that there may be none, whatever else stands beside it:
    Confluent's serializer for Java gives it a title."""
    return isinstance(node, dict) and node.get("type") == "null"


def _of_enum(node: dict[str, Any]) -> Type:
    values = node.get("enum")
    return "string" if values and all(isinstance(one, str) for one in values) else JSON
