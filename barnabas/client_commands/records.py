"""Records as lines: how `produce` reads them and `consume` prints them. Pure.

In JSON lines a key, a value or a header's value is a string when its bytes are UTF-8, null when
there is none, else `{"base64": "..."}`; so what `consume --format json` prints, `produce --format
json` writes again, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
import math
from typing import Any, NamedTuple

FORMATS = ("value", "key-value", "json", "hex")


class BadLine(ValueError):
    """A line that is no record; says why."""


class NewRecord(NamedTuple):
    """What is to be produced; None in `partition` and `timestamp` leaves it to the client."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None = None
    timestamp: int | None = None


def parse_line(line: bytes, key_separator: bytes | None) -> NewRecord:
    """A line without its end: the value, or key and value around the separator. Raises BadLine."""
    if key_separator is None:
        return NewRecord(None, line, [])
    key, found, value = line.partition(key_separator)
    if not found:
        raise BadLine(f"no {key_separator.decode(errors='replace')!r} between key and value")
    return NewRecord(key, value, [])


def parse_json(line: bytes) -> NewRecord:
    """{"key", "value", "headers", "partition", "timestamp"}, all optional. Raises BadLine.

    A key or value that is neither a string nor null nor base64 is written as its JSON text. What
    `consume` adds (topic, offset) is not looked at. `timestamp` is milliseconds since 1970.
    """
    try:
        record = json.loads(line, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"no JSON: {error}") from None
    if not isinstance(record, dict):
        raise BadLine("expected a JSON object with key, value, headers, partition, timestamp")
    known = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
    if unknown := sorted(record.keys() - known):
        raise BadLine(f"unknown field {unknown[0]!r}: expected {', '.join(sorted(known))}")
    return NewRecord(
        _bytes(record.get("key")),
        _bytes(record.get("value")),
        _headers(record.get("headers")),
        _whole(record, "partition", 31),
        _whole(record, "timestamp", 63),
    )


def _number(text: str) -> float:
    """Raises ValueError for one that Python would round (0.1 is not: it is written as it was), and
    for NaN and Infinity, which are no JSON."""
    number = float(text)
    if decimal.Decimal(repr(number)) != decimal.Decimal(text) or not math.isfinite(number):
        raise ValueError(f"{text} cannot be kept as it is; give it as a string")
    return number


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else _utf8(value)
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (TypeError, binascii.Error):
            raise BadLine(f"no base64: {value['base64']!r}") from None
    return _utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a pair, such as "\ud800"
        raise BadLine(f"no text: {text!r}") from None


def _headers(headers: Any) -> list[tuple[str, bytes]]:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in pairs
    ):
        raise BadLine('headers: expected {"name": "value"} or [["name", "value"], ...]')
    return [(_utf8(name).decode(), _header_value(name, value)) for name, value in pairs]


def _header_value(name: str, value: Any) -> bytes:
    data = _bytes(value)
    if data is None:
        raise BadLine(f'header {name!r} is null, which this client cannot write; "" is empty')
    return data


def _whole(record: dict[str, Any], name: str, bits: int) -> int | None:
    value = record.get(name)
    if value is None or (type(value) is int and 0 <= value < 2**bits):
        return value
    raise BadLine(f"{name} {value!r}: expected a whole number, less than 2^{bits}")


def render(record: Any, form: str, key_separator: bytes = b"\t") -> bytes:
    """A consumed record (kafka.consumer.fetcher.ConsumerRecord) as one line, with its end."""
    if form == "json":
        return _json_line(record)
    if form == "hex":
        place = f"{record.partition}:{record.offset}"
        return f"{place}\t{_hex(record.key)}\t{_hex(record.value)}\n".encode()
    value = record.value or b""
    if form == "key-value":
        return (record.key or b"") + key_separator + value + b"\n"
    return bytes(value) + b"\n"


def _json_line(record: Any) -> bytes:
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _json_value(record.key),
        "value": _json_value(record.value),
        "headers": [[name, _json_value(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _json_value(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _hex(value: bytes | None) -> str:
    return "-" if value is None else value.hex()
