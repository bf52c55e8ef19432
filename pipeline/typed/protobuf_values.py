"""Protobuf: a message's type, and values read by google.protobuf.

A schema is a descriptor: a set of files (`protoc --include_imports --descriptor_set_out`), or what
a registry gives, a single file in base64. Fields with presence that are not set are null (or the
declared default of proto2); others have their default. Enumerations are their names,
google.protobuf.Timestamp is a timestamp, a message within itself is JSON text.

Travels to executors by value.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Iterable
from typing import Any

from .framing import Undecodable, message_path
from .registry import Schema
from .types import JSON, Structs, Type

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_Get = Callable[[Any], Any]


class ProtobufValues:
    """Values of one message. Raises ValueError when the schema has no such message."""

    kind = "PROTOBUF"

    def __init__(self, reader: Schema, message: str | None = None) -> None:
        from google.protobuf import message_factory

        pool, files = _loaded(reader)
        descriptor = _message(pool, files, message)
        self.message = descriptor.full_name
        self._class: Any = message_factory.GetMessageClass(descriptor)
        self.type, self._get = _message_type(descriptor, (), Structs())

    def writer(self, schema: Schema) -> Any:
        """The messages of the schema that values were written with, by their places."""
        _, files = _loaded(schema)
        return files[-1]

    def read(self, data: bytes, at: int, writer: Any) -> Any:
        """One value. Raises Undecodable."""
        from google.protobuf.message import DecodeError

        if writer is not None:
            path, at = message_path(data, at)
            name = _name_at(writer, path)
            if name != self.message:
                raise Undecodable(f"is a message {name}, and no {self.message}")
        message = self._class()
        try:
            message.ParseFromString(data[at:])
        except DecodeError as error:
            raise Undecodable(f"no message {self.message}: {error}") from None
        return self._get(message)


def _loaded(schema: Schema) -> tuple[Any, list[Any]]:
    """A pool with all files of a schema, and those of its own, the main one last."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    try:
        if schema.id is None:
            given = descriptor_pb2.FileDescriptorSet.FromString(schema.text.encode("latin-1"))
            return pool, [_added(pool, one) for one in given.file]
        files = []
        for name, text in (*schema.imports, ("", schema.text)):
            file = descriptor_pb2.FileDescriptorProto.FromString(
                base64.b64decode(text, validate=True)
            )
            file.name = name or file.name  # as those that import it name it
            files.append(_added(pool, file))
        return pool, files
    except Exception as error:  # of the C or the Python implementation, each its own
        raise ValueError(
            f"no descriptor of protobuf: {error}"
            + ("; its registry gives no serialized ones?" if schema.id is not None else "")
        ) from None


def _added(pool: Any, file: Any) -> Any:
    """The file in the pool; what Google ships and it imports is there before it."""
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    shipped = (
        any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2,
        source_context_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2,
    )  # fmt: skip
    known = {one.DESCRIPTOR.name: one.DESCRIPTOR for one in shipped}

    def require(names: Iterable[str]) -> None:
        for name in names:
            try:
                pool.FindFileByName(name)
            except KeyError:
                if name in known:
                    require(one.name for one in known[name].dependencies)
                    pool.AddSerializedFile(known[name].serialized_pb)

    require(file.dependency)
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(file.name)


def _message(pool: Any, files: list[Any], name: str | None) -> Any:
    if name is not None:
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError:
            raise ValueError(f"there is no message {name}") from None
    first = next(iter(files[-1].message_types_by_name.values()), None) if files else None
    if first is None:
        raise ValueError("its last file has no message")
    return first


def _name_at(file: Any, path: tuple[int, ...]) -> str:
    name, inside = "", list(file.message_types_by_name.values())
    for index in path:
        if not 0 <= index < len(inside):
            raise Undecodable(f"names a message at {list(path)}, where its schema has none")
        name, inside = str(inside[index].full_name), inside[index].nested_types
    return name


def _message_type(descriptor: Any, within: tuple[str, ...], structs: Structs) -> tuple[Type, _Get]:
    """Its type, and what makes a value of a message."""
    if descriptor.full_name == _TIMESTAMP:
        return "timestamp", _moment
    if descriptor.full_name in within or not descriptor.fields:
        return JSON, _as_dict
    inside = (*within, descriptor.full_name)
    fields = {field.name: _field(field, inside, structs) for field in descriptor.fields}
    given = structs.of({name: one for name, (one, _) in fields.items()})
    if given == JSON:
        return JSON, _as_dict
    gets = [(name, get) for name, (_, get) in fields.items()]
    return given, lambda message: {name: get(message) for name, get in gets}


def _field(field: Any, within: tuple[str, ...], structs: Structs) -> tuple[Type, _Get]:
    """Its type, and what takes it from its message."""
    name = field.name
    if _is_repeated(field):
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            given, get = _single(entry.fields_by_name["value"], within, structs)
            return {"map": given}, lambda message: {
                str(key): get(one) for key, one in getattr(message, name).items()
            }
        given, get = _single(field, within, structs)
        return {"array": given}, lambda message: [get(one) for one in getattr(message, name)]
    given, get = _single(field, within, structs)
    if not field.has_presence:
        return given, lambda message: get(getattr(message, name))
    unset = get(field.default_value) if field.has_default_value else None
    return given, lambda message: get(getattr(message, name)) if message.HasField(name) else unset


def _is_repeated(field: Any) -> bool:
    """Its name changed between versions of protobuf that executors may have."""
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _single(field: Any, within: tuple[str, ...], structs: Structs) -> tuple[Type, _Get]:
    if field.message_type is not None:
        return _message_type(field.message_type, within, structs)
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return "string", lambda value: names.get(value, str(value))
    if field.cpp_type == field.CPPTYPE_UINT64:
        return "decimal(20,0)", lambda value: value
    if field.type == field.TYPE_BYTES:
        return "binary", lambda value: value
    by_type: dict[int, Type] = {
        field.CPPTYPE_BOOL: "boolean",
        field.CPPTYPE_STRING: "string",
        field.CPPTYPE_DOUBLE: "double",
        field.CPPTYPE_FLOAT: "double",
    }
    return by_type.get(field.cpp_type, "bigint"), lambda value: value


def _moment(message: Any) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _as_dict(message: Any) -> Any:
    from google.protobuf import json_format

    return json_format.MessageToDict(message, preserving_proto_field_name=True)
