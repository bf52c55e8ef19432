"""Requests of every API and version, right in form and wild in content, from kio's declarations.

kio has a class for each message and version of Kafka; they are read here as a schema and encoded by
code of this module: so nothing is shared with the broker, and values can be written that a client
library refuses. Request number N of a seed and listener is always the same.

What the values are: mostly small, from a few names that exist, plus the edges of each type; in one
request of fifty something large (thousands of elements, a long string), in one of ten bytes that
were damaged afterwards (a bit, a length, the end).

Left out, because it would rightly stop an honest client: names of honest topics and groups (they
are not known here), the node's own id (likewise), configs that all topics obey.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import types
import typing
from typing import Any, NamedTuple

from kio.index import load_request_schema

from testkit.clients.kpy_records import batch, refreshed

PRODUCE = 0
INTERNAL = "__consumer_offsets"
_CHANGES_TOPICS = frozenset({20, 33, 37, 44, 45})
"""DeleteTopics and its like: of the internal topic they would rightly stop the honest group."""
NAMES = [
    "", "fuzz-a", "fuzz-b", "fuzz-compact", "g", "h", INTERNAL, "__cluster_metadata",
    "../x", "x\n\x1b[31m", "1", "0", "-1", "é", "*", "a.b", "a_b", "consumer", "range", "classic",
    "member", "retention.ms", "segment.bytes", "cleanup.policy", "compact", "delete", "PLAINTEXT",
    "127.0.0.1", "share",
]  # fmt: skip
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
CODES = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I",
    "float64": "d", "bool": "?", "timedelta_i32": "i", "timedelta_i64": "q", "uuid": "16s",
}  # fmt: skip
_WAITS = ("timeout", "max_wait", "rebalance_timeout", "session_timeout")
_LARGE_ELEMENTS = (300, 3_000, 20_000)
_LARGE_STRING = (1_000, 30_000)
_LARGE_BYTES = 2_000_000
_DISTINCT = 8
"""Elements of a large array that differ: making each anew would take longer than serving them."""


class Field(NamedTuple):
    name: str
    kind: str
    is_array: bool
    nullable: bool
    tag: int | None
    nested: Plan | None
    default: Any = None


class Plan(NamedTuple):
    flexible: bool
    fields: tuple[Field, ...]


def plan_of(cls: Any) -> Plan:
    """The wire form of one of kio's classes."""
    return Plan(bool(cls.__flexible__), tuple(map(_field, dataclasses.fields(cls))))


def _field(declared: Any) -> Field:
    shape: Any = declared.type
    nullable = False
    if isinstance(shape, types.UnionType) or typing.get_origin(shape) is typing.Union:
        (shape,) = [one for one in typing.get_args(shape) if one is not type(None)]
        nullable = True
    is_array = typing.get_origin(shape) is tuple
    if is_array:
        shape = typing.get_args(shape)[0]
    kind = declared.metadata.get("kafka_type", "struct")
    nested = plan_of(shape) if kind == "struct" else None
    # A uuid that is optional in kio is the zero uuid on the wire.
    nullable = nullable and (is_array or kind in ("string", "bytes", "records", "struct"))
    tag = declared.metadata.get("tag")
    return Field(declared.name, kind, is_array, nullable, tag, nested, declared.default)


class Request(NamedTuple):
    number: int
    key: int
    version: int
    frame: bytes
    expects_answer: bool
    is_damaged: bool


class Generator:
    """The requests of one seed for one listener.

    `apis`: as its ApiVersions tells, {key: (min, max)}. `topic_ids`: of topics that exist.
    """

    def __init__(self, seed: str, apis: dict[int, tuple[int, int]], topic_ids: list[bytes]) -> None:
        self._seed = seed
        self._topic_ids = [bytes(16), bytes(range(16)), *topic_ids]
        self._versions: list[tuple[int, int, Plan]] = []
        for key, (low, high) in sorted(apis.items()):
            for version in range(low, high + 1):
                try:
                    cls = load_request_schema(key, version)
                except Exception:  # Produce is advertised below what is served
                    continue
                self._versions.append((key, version, plan_of(cls)))
        self._batches = [
            batch([b"value"] * 3), batch([b"value"] * 50, "gzip"), batch([b"x" * 100] * 20, "lz4"),
            batch([b""] * 200, "zstd"), batch([bytes(5_000)]), batch([b"y"] * 9, "snappy"),
        ]  # fmt: skip

    @property
    def kinds(self) -> int:
        """How many (API, version) there are."""
        return len(self._versions)

    def request(self, number: int) -> Request:
        rng = random.Random(f"{self._seed}:{number}")
        key, version, plan = self._versions[number % len(self._versions)]
        names = [name for name in NAMES if name != INTERNAL or key not in _CHANGES_TOPICS]
        maker = _Maker(rng, names, self._topic_ids, self._batches)
        head = struct.pack(">hhih", key, version, number & 0x7FFF_FFFF, 4) + b"fuzz"
        body = maker.struct(plan)
        if plan.flexible:
            body = maker.tags(head=True) + body
        damaged = rng.random() < 0.1
        if damaged:
            body = damage(rng, body)
        frame = head + body
        expects = not (key == PRODUCE and maker.acks == 0)
        return Request(
            number, key, version, struct.pack(">i", len(frame)) + frame, expects, damaged
        )


class _Maker:
    """Writes one request."""

    def __init__(
        self, rng: random.Random, names: list[str], topic_ids: list[bytes], batches: list[bytes]
    ) -> None:
        self.rng = rng
        self.acks = 1
        self._names = names
        self._topic_ids = topic_ids
        self._batches = batches
        self._is_large = rng.random() < 0.02
        self._elements_left = 25_000

    def struct(self, plan: Plan, depth: int = 0) -> bytes:
        plain = b"".join(
            self.field(field, plan.flexible, depth) for field in plan.fields if field.tag is None
        )
        if not plan.flexible:
            return plain
        return plain + self.tags([field for field in plan.fields if field.tag is not None], depth)

    def tags(self, fields: list[Field] | None = None, depth: int = 0, head: bool = False) -> bytes:
        rng = self.rng
        found = {
            field.tag: self.field(field, True, depth)
            for field in fields or ()
            if rng.random() < 0.5 and field.tag is not None
        }
        if rng.random() < 0.02:
            for tag in rng.sample(range(50, 5_000), rng.choice((1, 3, 200))):
                found[tag] = rng.randbytes(rng.choice((0, 1, 9)))
        out = uvarint(len(found))
        for tag, content in sorted(found.items()):
            out += uvarint(tag) + uvarint(len(content)) + content
        return out

    def field(self, field: Field, flexible: bool, depth: int) -> bytes:
        rng = self.rng
        if field.nullable and rng.random() < 0.15:
            return self.null(field, flexible)
        if field.is_array:
            count = rng.choice((0, 1, 1, 1, 2, 3))
            if self._is_large and rng.random() < 0.3:
                count = rng.choice(_LARGE_ELEMENTS)
            count = min(count, self._elements_left)
            self._elements_left -= count
            some = [self.element(field, flexible, depth + 1) for _ in range(min(count, _DISTINCT))]
            if count > _DISTINCT:  # large, but not large of large ones
                count = max(_DISTINCT, min(count, _LARGE_BYTES // max(map(len, some))))
            elements = [some[at % _DISTINCT] for at in range(count)]
            return length(count, flexible, "i") + b"".join(elements)
        if field.nested is not None and field.nullable:
            return b"\1" + self.struct(field.nested, depth + 1)
        return self.element(field, flexible, depth)

    def null(self, field: Field, flexible: bool) -> bytes:
        if field.nested is not None and not field.is_array:
            return b"\0" if field.tag is not None else b"\xff"
        wide = "h" if field.kind == "string" and not field.is_array else "i"
        return b"\0" if flexible else struct.pack(">" + wide, -1)

    def element(self, field: Field, flexible: bool, depth: int) -> bytes:
        if field.nested is not None:
            return self.struct(field.nested, depth)
        if field.kind in CODES:
            return struct.pack(">" + CODES[field.kind], self.fixed(field))
        if field.kind == "string":
            content = self.string()
            return length(len(content), flexible, "h") + content
        content = self.records() if field.kind == "records" else self.content()
        return length(len(content), flexible, "i") + content

    def fixed(self, field: Field) -> Any:
        rng, kind = self.rng, field.kind
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "uuid":
            return rng.choice(self._topic_ids)
        if kind == "float64":
            return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
        if kind.startswith("timedelta") or field.name.startswith(_WAITS):
            return rng.choice((0, 1, 5, 20, -5))
        if kind.startswith("uint"):
            return rng.choice((0, 1, 2, 65_535))
        top = 1 << _BITS[kind]
        value = rng.choice((0, 0, 0, 1, 1, 2, 3, -1, -2, -top, top - 1, rng.randrange(-top, top)))
        if field.name == "acks":
            self.acks = value
        return value

    def string(self) -> bytes:
        rng = self.rng
        chance = rng.random()
        if chance < 0.9:
            return rng.choice(self._names).encode()
        if self._is_large and chance < 0.95:
            return b"n" * rng.choice(_LARGE_STRING)
        if chance > 0.998:
            return b"\xff\xfe"
        return rng.choice((b"a" * 249, b"a" * 250, b"\0", rng.randbytes(6).hex().encode()))

    def content(self) -> bytes:
        rng = self.rng
        if self._is_large and rng.random() < 0.3:
            return bytes(rng.choice((100_000, 1_000_000)))
        return rng.randbytes(rng.choice((0, 1, 20, 70)))

    def records(self) -> bytes:
        rng = self.rng
        data = bytearray(rng.choice(self._batches))
        chance = rng.random()
        if chance < 0.4:
            return bytes(data)
        if chance < 0.5:
            return rng.randbytes(rng.choice((0, 1, 20, 70)))
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(refreshed(data) if chance < 0.9 else data)


def length(count: int, flexible: bool, wide: str) -> bytes:
    return uvarint(count + 1) if flexible else struct.pack(">" + wide, count)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def damage(rng: random.Random, body: bytes) -> bytes:
    """The body with a bit, a length or its end wrong."""
    out = bytearray(body)
    at = rng.randrange(len(out) + 1)
    kind = rng.randrange(4)
    if kind == 0 and at < len(out):
        out[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        out[at : at + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
    elif kind == 2:
        out[at:at] = b"\xff\xff\xff\xff\x0f"
    else:
        del out[at:]
    return bytes(out)
