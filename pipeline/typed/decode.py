"""What runs on executors: Arrow batches with raw keys and values in, the same with columns out.

For each side two columns: `<side>_data`, of the type that all schemas together have, and
`<side>_problem`, why there is none. A null has neither. A value decodes whole or not at all.

Travels by value to where Spark runs it; imports only its sisters, and PyArrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from .avro_values import AvroValues
from .framing import HEADER_BYTES, Undecodable, schema_id
from .json_values import JsonValues
from .protobuf_values import ProtobufValues
from .registry import Registry, RegistryError, Schema
from .types import Type, arrow, converter

CARRIED = "barnabas-typed.zip"
PACKAGES = {"avro": "fastavro", "protobuf": "google.protobuf"}
"""What a format needs, by its module."""
_LONGEST_PROBLEM = 300
_Read = Callable[[bytes], Any]


class Side(NamedTuple):
    """How keys, or values, are decoded."""

    name: str
    """key or value."""
    format: str
    type: Type | None
    """Of the column; None when no topic has a schema yet."""
    schemas: dict[str, Schema | str]
    """By topic, "" for all topics; a text says why there is none."""
    message: str | None = None
    registry: Registry | None = None
    """Where values are framed: has the schemas they were written with."""


def values_of(name: str, schema: Schema, message: str | None) -> Any:
    """What reads values of a format. Raises ValueError for a schema that is none."""
    try:
        if name == "protobuf":
            return ProtobufValues(schema, message)
        return AvroValues(schema) if name == "avro" else JsonValues(schema)
    except RecursionError:
        raise ValueError("a schema whose parts lie too deep in each other") from None


def decode_batches(batches: Iterable[Any], sides: list[Side]) -> Iterator[Any]:
    """Each batch with the columns of each side behind its own."""
    import pyarrow

    decoders = [(side, _Decoder(side)) for side in sides]
    for batch in batches:
        names, arrays = list(batch.schema.names), list(batch.columns)
        topics = batch.column("topic").to_pylist()
        for side, decoder in decoders:
            data, problems = decoder.columns(batch.column(side.name).to_pylist(), topics)
            if data is not None:
                names.append(f"{side.name}_data")
                arrays.append(data)
            names.append(f"{side.name}_problem")
            arrays.append(pyarrow.array(problems, pyarrow.string()))
        yield pyarrow.RecordBatch.from_arrays(arrays, names)


class _Decoder:
    """One side, for one task."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._arrow = None if side.type is None else arrow(side.type)
        self._reads: dict[str, _Read] = {}
        _find_package(side.format)

    def columns(self, raw: list[bytes | None], topics: list[str]) -> tuple[Any, list[str | None]]:
        """An Arrow array of values (None without a type), and their problems."""
        values: list[Any] = []
        problems: list[str | None] = []
        for data, topic in zip(raw, topics, strict=True):
            value = problem = None
            if data is not None:
                try:
                    value = self._read(topic, data)
                except RegistryError:
                    raise
                except Undecodable as error:
                    problem = _line(str(error))
                except Exception as error:  # whatever a library says of bytes that are none of its
                    problem = _line(f"{type(error).__name__}: {error}")
            values.append(value)
            problems.append(problem)
        return self._fitted(values, problems), problems

    def _read(self, topic: str, data: bytes) -> Any:
        read = self._reads.get(topic)
        if read is None:
            read = self._reads[topic] = self._reader(topic)
        return read(data)

    def _reader(self, topic: str) -> _Read:
        side = self._side
        if side.format == "string":
            return lambda data: data.decode("utf-8")
        schema = side.schemas[""] if "" in side.schemas else side.schemas[topic]
        if isinstance(schema, str):
            return _refusal(schema)
        values = values_of(side.format, schema, side.message)
        assert side.type is not None  # it has the types of all schemas
        is_free = side.format == "json"  # whatever its schema says
        convert = converter(values.type, side.type, strict=is_free) or (lambda value: value)
        if side.registry is None:
            return lambda data: convert(values.read(data, 0, None))
        writers = _Writers(side.registry, values)

        def read(data: bytes) -> Any:
            written_with = writers.of(schema_id(data))
            return convert(values.read(data, HEADER_BYTES, written_with))

        return read

    def _fitted(self, values: list[Any], problems: list[str | None]) -> Any:
        """Values as an Arrow array; those that are out of its type's range become problems."""
        import pyarrow

        if self._arrow is None:
            return None
        try:
            return pyarrow.array(values, self._arrow)
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
            for index, value in enumerate(values):
                problem = _excess(value, self._arrow, "")
                if problem is not None:
                    values[index], problems[index] = None, _line(problem)
            return pyarrow.array(values, self._arrow)


class _Writers:
    """Schemas that values were written with, as their format reads them."""

    def __init__(self, registry: Registry, values: Any) -> None:
        self._registry, self._values = registry, values
        self._writers: dict[int, tuple[Any, str | None]] = {}

    def of(self, schema: int) -> Any:
        if schema not in self._writers:
            self._writers[schema] = self._look_up(schema)
        writer, problem = self._writers[schema]
        if problem is not None:
            raise Undecodable(problem)
        return writer

    def _look_up(self, number: int) -> tuple[Any, str | None]:
        """A writer, or why there is none."""
        schema = self._registry.by_id(number)
        if schema is None:
            return None, f"the registry has no schema {number}"
        if schema.kind != self._values.kind:
            return None, f"schema {number} is of {schema.kind}, not {self._values.kind}"
        try:
            return self._values.writer(schema), None
        except ValueError as error:
            return None, f"schema {number} is {error}"


def _refusal(problem: str) -> _Read:
    def refuse(data: bytes) -> Any:
        raise Undecodable(problem)

    return refuse


def _line(text: str) -> str:
    """What a column can hold: of limited length, and no half characters."""
    return text[:_LONGEST_PROBLEM].encode("utf-8", "replace").decode()


def _excess(value: Any, wanted: Any, path: str) -> str | None:
    """What of a value does not fit, by its deepest field; None when all does."""
    import pyarrow

    if isinstance(value, dict) and pyarrow.types.is_struct(wanted):
        for field in wanted:
            problem = _excess(value.get(field.name), field.type, f"{path}.{field.name}")
            if problem is not None:
                return problem
    try:
        pyarrow.array([value], wanted)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
        return f"{path[1:] or 'value'} does not fit its column of {wanted}: {error}"
    return None


def _find_package(name: str) -> None:
    """The executors' own package of a format, or what travelled with the job."""
    package = PACKAGES.get(name)
    if package is None:
        return
    try:
        __import__(package)
    except ImportError:
        import sys

        from pyspark import SparkFiles

        sys.path.append(SparkFiles.get(CARRIED))
        __import__(package)
