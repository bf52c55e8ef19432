"""What the tests of `wire` share: Kafka's facts as data, and made-up values for any message."""

from __future__ import annotations

import gzip
import json
import random
import string
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from wire.messages import all_messages
from wire.schema import Field, Message, Struct

DATA = Path(__file__).parent / "data"


class Vector(NamedTuple):
    """Bytes as Apache Kafka writes them."""

    name: str
    version: int
    filling: str
    data: bytes


@pytest.fixture(scope="session")
def kafka() -> dict[str, Any]:
    """Kafka's schemas, apis and errors."""
    with gzip.open(DATA / "schemas.json.gz") as file:
        facts: dict[str, Any] = json.load(file)
    return facts


@pytest.fixture(scope="session")
def classes() -> dict[str, type[Message]]:
    """Every message and record we declare, by name."""
    return {cls.__name__: cls for cls in all_messages()}


@pytest.fixture(scope="session")
def vectors(classes: dict[str, type[Message]]) -> list[Vector]:
    """Kafka's byte vectors for what we declare."""
    with gzip.open(DATA / "vectors.txt.gz", "rt") as file:
        rows = [line.rstrip("\n").split(" ") for line in file]
    return [
        Vector(name, int(version), filling, bytes.fromhex(data))
        for name, version, filling, data in rows
        if name in classes
    ]


class Maker:
    """Makes messages with random content, every field filled that the version has.

    A tagged struct is None or differs from its defaults: between those two the wire cannot tell.
    """

    BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

    def __init__(self, rng: random.Random, *, highest: int | None = None) -> None:
        """`highest`: keep integers in 0..highest, for peers that give some of them a meaning."""
        self.rng = rng
        self.highest = highest

    def message(self, cls: type[Message], version: int) -> Message:
        made = self.struct(cls, version)
        assert isinstance(made, Message)
        return made

    def struct(self, cls: type[Struct], version: int) -> Struct:
        values = {f.name: self.value(f, version) for f in cls.schema if f.present(version)}
        absent = {f.name: f.blank() for f in cls.schema if not f.present(version)}
        return cls(**values, **absent)

    def value(self, field: Field, version: int) -> Any:
        rng = self.rng
        if field.null_allowed(version) and rng.random() < 0.2:
            return None
        if field.kind.startswith("[]"):
            return [self.element(field, version) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        if field.kind == "struct" and field.tag is not None and field.nullable is None:
            made = self.element(field, version)
            return made if rng.random() < 0.7 and made != field.struct.blank() else None
        return self.element(field, version)

    def element(self, field: Field, version: int) -> Any:
        kind = field.kind.removeprefix("[]")
        if field.struct is not None:
            return self.struct(field.struct, version)
        return self.scalar(kind)

    def scalar(self, kind: str) -> Any:
        rng = self.rng
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "float64":
            return rng.uniform(-1e300, 1e300)
        if kind == "uuid":
            return rng.randbytes(16)
        if kind == "string":
            return "".join(rng.choices(string.ascii_letters + "äß€𝄞", k=rng.choice((0, 1, 9, 130))))
        if kind in ("bytes", "records"):
            return rng.randbytes(rng.choice((0, 1, 50, 127, 128, 300)))
        return self.integer(kind)

    def integer(self, kind: str) -> int:
        rng = self.rng
        if self.highest is not None:
            return rng.randint(0, self.highest)
        if kind.startswith("uint"):
            bits = int(kind[4:])
            return rng.choice((0, 1, 2**bits - 1, rng.getrandbits(bits)))
        bits = self.BITS[kind]
        top = 2 ** (bits - 1)
        return rng.choice((0, 1, -1, top - 1, -top, rng.randrange(-top, top)))


@pytest.fixture(scope="session")
def make() -> type[Maker]:
    """The Maker class; give it a seeded random.Random."""
    return Maker
