"""The columns that decoded keys and values are in, and which type they have.

Columns of a side: `<side>_data` and `<side>_problem`. The type of the data is the merged type
of all schemas seen: the archive's so far, then a file's, or the latest of each topic's subject.
Fields are added, never removed, and keep the type they had first: values of a schema that has
another type there go to the problem column. (A column of two types no reader could read.)

The registry is asked anew for each batch, after its offsets are known: what was written by then
was registered before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import PipelineError
from pipeline.spark.shipping import carry, ship
from pipeline.typed import (
    avro_values,
    decode,
    framing,
    json_values,
    protobuf_values,
    registry,
    types,
)
from pipeline.typed.decode import CARRIED, PACKAGES, Side, decode_batches, values_of
from pipeline.typed.registry import Registry, RegistryError, Schema
from pipeline.typed.types import Type, ddl, merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("key_data", "key_problem", "value_data", "value_problem")
_BATCH_BYTES = 16 * 1024 * 1024
"""Of raw records in one Arrow batch: few of nine megabytes, ten thousand of a kilobyte."""


@dataclass(frozen=True, slots=True)
class SideOptions:
    """What the flags say of keys, or of values."""

    name: str
    format: str
    schema: Schema | None = None
    """Of a file: then values are plain. Otherwise they have ids of a registry's schemas."""
    message: str | None = None
    subject: str = ""
    """`{topic}` in it stands for the topic."""


@dataclass(frozen=True, slots=True)
class TypedOptions:
    """What the flags say; no sides: nothing is decoded."""

    sides: tuple[SideOptions, ...] = ()
    registry: str | None = None

    def formats(self) -> dict[str, str]:
        """Format by side: what stays the same for an archive's whole life."""
        return {side.name: side.format for side in self.sides}


class Typing:
    """Decodes frames in Kafka's columns; knows the types so far.

    `known` is what `remembered` returned in an earlier run.
    """

    def __init__(self, options: TypedOptions, known: Mapping[str, Any] | None = None) -> None:
        self._options = options
        self._types: dict[str, Type | None] = {
            side.name: (known or {}).get(side.name, {}).get("type") for side in options.sides
        }
        self.notes: list[str] = []

    def remembered(self) -> dict[str, Any] | None:
        """What an archive has to know of its columns, as JSON."""
        formats = self._options.formats()
        found = {
            name: {"format": formats[name], "type": given} for name, given in self._types.items()
        }
        return found or None

    def types(self) -> dict[str, Type]:
        """The type of each side's data, where one is known."""
        return {name: given for name, given in self._types.items() if given is not None}

    def look(self, topics: Iterable[str]) -> list[Side]:
        """What executors need to decode records of these topics. Raises PipelineError."""
        try:
            return [self._side(side, sorted(topics)) for side in self._options.sides]
        except RegistryError as error:
            raise PipelineError(str(error)) from None

    def decoded(self, frame: DataFrame, sides: list[Side]) -> DataFrame:
        """The frame, which has a column topic, with the columns of these sides."""
        if not sides:
            return frame
        ship(
            types, framing, registry, avro_values, json_values, protobuf_values, decode,
        )  # fmt: skip
        spark = frame.sparkSession
        if any(side.format in PACKAGES for side in sides):
            carry(spark, CARRIED, [name for name in PACKAGES.values() if is_installed(name)])
        spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_BATCH_BYTES))
        added = [part for side in sides for part in _added(side)]
        schema = f"{_ddl_of(frame)}, {', '.join(added)}"
        return frame.mapInArrow(lambda batches: decode_batches(batches, sides), schema)

    def _side(self, side: SideOptions, topics: Sequence[str]) -> Side:
        if side.format == "string":
            self._types[side.name] = "string"
            return Side(side.name, "string", "string", {})
        if side.schema is not None:
            self._merge(side, side.schema, "the schema file")
            return self._ready(side, {"": side.schema}, None)
        assert self._options.registry is not None
        asked = Registry(self._options.registry)
        schemas: dict[str, Schema | str] = {}
        for topic in topics:
            schemas[topic] = found = self._latest(side, asked, topic)
            if isinstance(found, str):
                self._note(f"{side.name}s of {topic}: {found}")
        return self._ready(side, schemas, asked)

    def _ready(
        self, side: SideOptions, schemas: dict[str, Schema | str], asked: Registry | None
    ) -> Side:
        return Side(
            side.name, side.format, self._types[side.name], schemas, side.message, asked
        )  # fmt: skip

    def _latest(self, side: SideOptions, asked: Registry, topic: str) -> Schema | str:
        """The schema of a topic's subject, which is merged; or why there is none."""
        subject = side.subject.replace("{topic}", topic)
        found = asked.latest(subject)
        if found is None:
            return f"the registry has no subject {subject}"
        if found.kind.lower() != side.format:
            return f"subject {subject} is of {found.kind}, not {side.format.upper()}"
        try:
            self._merge(side, found, f"subject {subject}")
        except ValueError as error:
            return f"subject {subject} is {error}"
        return found

    def _merge(self, side: SideOptions, schema: Schema, whose: str) -> None:
        new = values_of(side.format, schema, side.message).type
        known = self._types[side.name]
        conflicts: list[str] = []
        both = new if known is None else merged(known, new, f"{side.name}_data", conflicts)
        self._types[side.name] = both
        for conflict in conflicts:
            self._note(f"{whose}: {conflict}; what does not fit is in {side.name}_problem")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def check_formats(to: str, made: Mapping[str, Any] | None, options: TypedOptions) -> None:
    """Raise PipelineError when an archive was made with other formats: one is typed or is not,
    from its first record on."""
    known = {name: one["format"] for name, one in (made or {}).items()}
    if known != options.formats():
        flags = " ".join(f"--{name}-format {one}" for name, one in sorted(known.items()))
        how = f"with {flags}" if flags else "without --key-format and --value-format"
        raise PipelineError(f"{to} was made {how}; give the same, or choose another --to")


def data_ddl(remembered: Mapping[str, Any] | None) -> str:
    """An archive's decoded columns, to be read with its own."""
    parts: list[str] = []
    for name, one in (remembered or {}).items():
        parts += _added(Side(name, one["format"], one["type"], {}))
    return "".join(f", {part}" for part in parts)


def _added(side: Side) -> Iterator[str]:
    if side.type is not None:
        yield f"{side.name}_data {ddl(side.type)}"
    yield f"{side.name}_problem string"


def _ddl_of(frame: DataFrame) -> str:
    return ", ".join(
        f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields
    )


def is_installed(package: str) -> bool:
    """Whether this Python has a package, without importing it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def read_schema(path: str, name: str, kind: str) -> Schema:
    """A schema file. Raises PipelineError with the side's flag when there is none."""
    try:
        data = Path(os.path.expanduser(path)).read_bytes()
    except OSError as error:
        raise PipelineError(f"--{name}-schema {path}: {error.strerror or error}") from None
    if kind == "protobuf":
        return Schema(data.decode("latin-1"), kind)  # a descriptor set is bytes: so none is lost
    try:
        return Schema(data.decode("utf-8"), kind)
    except UnicodeDecodeError as error:
        raise PipelineError(f"--{name}-schema {path}: no UTF-8: {error}") from None
