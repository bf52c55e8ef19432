"""Messages as dicts and lists, from and to bytes, by kio's declarations; none of the broker's code.

Keys are kio's names of fields. A uuid is 32 hex digits, times and codes are numbers. A field that a
dict lacks is written as zero, a tagged one not at all; a tagged one that was not sent has its
default when read.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema

from compat_tests.fuzz.requests import CODES, Field, Plan, length, plan_of, uvarint

API_VERSIONS = 18
_CODES = {**CODES, "error_code": "h", "datetime_i64": "q"}


@cache
def request_plan(key: int, version: int) -> Plan:
    return plan_of(load_request_schema(key, version))


@cache
def response_plan(key: int, version: int) -> Plan:
    return plan_of(load_response_schema(key, version))


def name_of(key: int) -> str:
    """What Kafka calls an API. Raises KeyError for one that kio has not."""
    from kio.schema.index import api_key_map

    return "".join(word.capitalize() for word in api_key_map[key].split("_"))


# ---- writing


def encode_request(key: int, version: int, correlation: int, body: dict[str, Any]) -> bytes:
    """A whole frame."""
    plan = request_plan(key, version)
    client = b"beside"
    head = struct.pack(">hhih", key, version, correlation, len(client)) + client
    payload = head + (b"\0" if plan.flexible else b"") + _struct(plan, body)
    return struct.pack(">i", len(payload)) + payload


def _struct(plan: Plan, value: dict[str, Any]) -> bytes:
    out = b"".join(
        _field(field, value.get(field.name, ...), plan.flexible)
        for field in plan.fields
        if field.tag is None
    )
    if not plan.flexible:
        return out
    tagged = sorted(
        (field.tag, _field(field, value[field.name], True))
        for field in plan.fields
        if field.tag is not None and field.name in value
    )
    out += uvarint(len(tagged))
    return out + b"".join(uvarint(tag) + uvarint(len(sent)) + sent for tag, sent in tagged)


def _field(field: Field, value: Any, flexible: bool) -> bytes:
    if value is None:
        return _null(field, flexible)
    if field.is_array:
        elements = () if value is ... else value
        sent = b"".join(_element(field, one, flexible) for one in elements)
        return length(len(elements), flexible, "i") + sent
    if field.nested is not None and field.nullable:
        return b"\xff" if value is ... else b"\1" + _struct(field.nested, value)
    return _element(field, value, flexible)


def _null(field: Field, flexible: bool) -> bytes:
    if field.nested is not None and not field.is_array:
        return b"\xff"
    wide = "h" if field.kind == "string" and not field.is_array else "i"
    return b"\0" if flexible else struct.pack(">" + wide, -1)


def _element(field: Field, value: Any, flexible: bool) -> bytes:
    if field.nested is not None:
        return _struct(field.nested, {} if value is ... else value)
    if field.kind == "uuid":
        return bytes(16) if value is ... else bytes.fromhex(value)
    if field.kind in _CODES:
        return struct.pack(">" + _CODES[field.kind], 0 if value is ... else value)
    if field.kind == "string":
        content = b"" if value is ... else value.encode()
        return length(len(content), flexible, "h") + content
    content = b"" if value is ... else value
    return length(len(content), flexible, "i") + content


# ---- reading


def decode_response(key: int, version: int, frame: bytes) -> dict[str, Any]:
    """Raises ValueError, struct.error or IndexError for what is no such answer."""
    plan = response_plan(key, version)
    reader = _Reader(frame)
    reader.take(4)
    if plan.flexible and key != API_VERSIONS:
        reader.tags()
    answer = reader.struct(plan)
    if reader.at != len(frame):
        raise ValueError(f"{len(frame) - reader.at} bytes after the answer")
    return answer


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self._data):
            raise ValueError(f"{count} bytes at {self.at} of {len(self._data)}")
        self.at += count
        return self._data[self.at - count : self.at]

    def fixed(self, code: str) -> Any:
        return struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def size(self, flexible: bool, wide: str) -> int:
        """-1 for null."""
        return self.uvarint() - 1 if flexible else int(self.fixed(wide))

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}

    def struct(self, plan: Plan) -> dict[str, Any]:
        out = {
            field.name: self.field(field, plan.flexible)
            for field in plan.fields
            if field.tag is None
        }
        sent = self.tags() if plan.flexible else {}
        for field in plan.fields:
            if field.tag in sent:
                out[field.name] = _Reader(sent[field.tag]).field(field, True)
            elif field.tag is not None:
                out[field.name] = _plain(field.default)
        return out

    def field(self, field: Field, flexible: bool) -> Any:
        if field.is_array:
            count = self.size(flexible, "i")
            return None if count < 0 else [self.element(field, flexible) for _ in range(count)]
        if field.nested is not None and field.nullable and self.fixed("b") < 0:
            return None
        return self.element(field, flexible)

    def element(self, field: Field, flexible: bool) -> Any:
        if field.nested is not None:
            return self.struct(field.nested)
        if field.kind == "uuid":
            return self.take(16).hex()
        if field.kind in _CODES:
            return self.fixed(_CODES[field.kind])
        size = self.size(flexible, "h" if field.kind == "string" else "i")
        if size < 0:
            return None
        content = self.take(size)
        return content.decode() if field.kind == "string" else content


def _plain(default: Any) -> Any:
    """One of kio's defaults as it would have been read."""
    if dataclasses.is_dataclass(default):
        fields = dataclasses.fields(default)
        return {field.name: _plain(getattr(default, field.name)) for field in fields}
    if isinstance(default, tuple):
        return [_plain(one) for one in default]
    return default.hex if isinstance(default, uuid.UUID) else default
