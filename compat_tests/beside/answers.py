"""What two brokers' answers have to have in common, and where they differ.

Ids that a broker makes have a `Name` for both: the place at which they came up first. Told apart by
nobody, so left out or made equal: throttle times, ports, epochs of brokers, sizes of disks, the
words of an error, the clock's times. What an array of structs tells is a set.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from compat_tests.fuzz.requests import Field, Plan

_LEFT_OUT = frozenset((
    "throttle_time", "port", "broker_epoch", "total_bytes", "usable_bytes", "push_interval",
    "error_message", "acknowledge_error_message", "status_detail", "documentation",
    "batch_index_error_message",
))  # fmt: skip
_IN_ORDER = frozenset(("filter_results",))
"""Answered by place."""
_TIMES = re.compile("timestamp|(^|_)time$|_time_ms$")
_MEMBERS = frozenset(("member_id", "leader"))
_NUMBERS = frozenset(("producer_id", "session_id", "subscription_id"))
_MADE_MEMBER = re.compile(r"(.*-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[\w-]{22}")
ZERO, STRANGE, UNTOLD = "0" * 32, "0123456789abcdef" * 2, "f" * 32
"""Ids of nothing: Kafka's own, the one that requests say, and what a broker never told."""
_DAY_MS = 86_400_000
_BATCH = struct.Struct(">qiibIhiqqqhii")


class Name(str):
    """Of something that each broker calls otherwise: where it came up first."""

    __slots__ = ()


class Names:
    """One broker's own words for things, and their names."""

    def __init__(self, base_ms: int, data_dir: str) -> None:
        self.where = ""
        self._base_ms = base_ms
        self._data_dir = data_dir
        self._name_of: dict[tuple[str, Any], Name] = {}
        self._own: dict[Name, Any] = {}

    def own(self, value: Any) -> Any:
        """What a request says, in this broker's words. What it never named is unknown to it."""
        if isinstance(value, Name):
            strange: Any = 987_654 if value.startswith("number") else value.partition("@")[0]
            return self._own.get(value, UNTOLD if value.startswith("uuid") else strange)
        if isinstance(value, dict):
            return {key: self.own(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.own(one) for one in value]
        if isinstance(value, str):
            return value.replace("DATA", self._data_dir)
        own = getattr(value, "own", None)
        return value if own is None else own(self.own)

    def normal(self, plan: Plan, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer with names in it, which those that are new get."""
        return self._struct(plan, answer, self.where, give=True)

    def _struct(self, plan: Plan, value: Any, path: str, give: bool) -> dict[str, Any]:
        return {
            field.name: self._field(field, value[field.name], f"{path}.{field.name}", give)
            for field in plan.fields
            if field.name not in _LEFT_OUT and (give or not field.name.endswith("error_code"))
        }

    def _field(self, field: Field, value: Any, path: str, give: bool) -> Any:
        if value is None:
            return None
        if not field.is_array:
            return self._element(field, value, path, give)
        if give and field.name not in _IN_ORDER:
            value = sorted(value, key=lambda one: _order(self._element(field, one, path, False)))
        found = [self._element(field, one, path, give) for one in value]
        return found if give else sorted(found, key=_order)

    def _element(self, field: Field, value: Any, path: str, give: bool) -> Any:
        if value is None:
            return None
        if field.nested is not None:
            return self._struct(field.nested, value, path, give)
        return self._leaf(field, value, path, give)

    def _leaf(self, field: Field, value: Any, path: str, give: bool) -> Any:
        name, kind = field.name, field.kind
        if kind == "uuid":
            return (
                value
                if value in (ZERO, STRANGE, UNTOLD)
                else self._named("uuid", value, path, give)
            )
        if name in _MEMBERS and _MADE_MEMBER.fullmatch(str(value)):
            return self._named("member", value, path, give)
        if name == "cluster_id":
            return self._named("cluster", value, path, give)
        if (name in _NUMBERS and value > 0) or (name == "producer_id" and value == 0):
            return self._named("number", value, path, give)
        if kind == "records":
            return [self._batch(*one, path, give) for one in batches(value)]
        if kind == "datetime_i64" or (kind == "int64" and _TIMES.search(name)):
            return self._time(value)
        if kind == "string":
            return value.replace(self._data_dir, "DATA")
        return value.hex() if isinstance(value, bytes) else value

    def _named(self, kind: str, value: Any, path: str, give: bool) -> str:
        known = self._name_of.get((kind, value))
        if known is None and give:
            known = Name(f"{kind}@{path}")
            while known in self._own:
                known = Name(known + "'")
            self._name_of[kind, value] = known
            self._own[known] = value
        return known or f"{kind}@?"

    def _time(self, value: int) -> Any:
        """Times that were sent are told from the first second on, others are the clock's."""
        if (value - self._base_ms) % 1000 == 0 and abs(value - self._base_ms) < _DAY_MS:
            return f"T{(value - self._base_ms) // 1000:+d}"
        return "clock" if abs(value - time.time() * 1000) < _DAY_MS else value

    def _batch(self, head: tuple[Any, ...], body: bytes, path: str, give: bool) -> str:
        base, _size, epoch, magic, _crc, attributes, last, first_ms, max_ms, *producer, count = head
        id_, *sequence = producer
        who = self._named("number", id_, path + ".batch", give) if id_ >= 0 else id_
        logged = bool(attributes & 8)
        times = f"{'clock' if logged else self._time(max_ms)}"
        control = bool(attributes & 0x20)
        content = "" if control else hashlib.sha1(body, usedforsecurity=False).hexdigest()[:8]
        first = "" if control or logged else self._time(first_ms)
        return (
            f"{base}+{last} epoch {epoch} v{magic} attributes {attributes:#x} {first}..{times}"
            f" by {who} {sequence}, {count} records {content}"
        )


def batches(data: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """The headers and bodies of whole batches v2."""
    at = 0
    while at + _BATCH.size <= len(data):
        head = _BATCH.unpack_from(data, at)
        end = at + 12 + head[1]
        if end > len(data) or head[3] != 2:
            return
        yield head, data[at + _BATCH.size : end]
        at = end


def _order(element: Any) -> tuple[str, str]:
    """By what an element is of, then by what is said of it, which may differ."""
    if not isinstance(element, dict):
        return "", shown(element)
    names = {
        key: value
        for key, value in element.items()
        if isinstance(value, str) or key in ("partition_index", "partition")
    }
    return shown(names), shown(element)


def shown(value: Any) -> str:
    """As text, which is equal for what is equal."""
    return json.dumps(value, sort_keys=True, default=repr)


class Difference(NamedTuple):
    path: str
    kafka: Any
    barnabas: Any

    @property
    def kind(self) -> str:
        """Without the places in arrays."""
        return re.sub(r"\[\d+\]", "[]", self.path)


def differences(kafka: Any, barnabas: Any, path: str = "") -> Iterator[Difference]:
    """The leaves that differ; arrays of different lengths as a whole."""
    if isinstance(kafka, dict) and isinstance(barnabas, dict) and kafka.keys() == barnabas.keys():
        for key in kafka:
            yield from differences(kafka[key], barnabas[key], f"{path}.{key}" if path else key)
    elif isinstance(kafka, list) and isinstance(barnabas, list) and len(kafka) == len(barnabas):
        for at, (one, other) in enumerate(zip(kafka, barnabas, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif kafka != barnabas:
        yield Difference(path, kafka, barnabas)


def error_codes(answer: Any) -> set[int]:
    """All that stand anywhere in an answer."""
    if isinstance(answer, list):
        return set().union(*map(error_codes, answer))
    if not isinstance(answer, dict):
        return set()
    found = {one for key, one in answer.items() if key.endswith("error_code")}
    return found.union(*map(error_codes, answer.values()))


def tidy_fetch(answer: dict[str, Any], *, is_share: bool) -> None:
    """One entry for each topic. Of a ShareFetch without the partitions that have neither records
    nor errors, which Kafka may name or not. Where no record is, none was aborted: Kafka says null
    if the first did not fit."""
    by_topic: dict[str, dict[str, Any]] = {}
    for topic in answer["responses"]:
        key = topic["topic"] if "topic" in topic else topic["topic_id"]
        told = by_topic.setdefault(key, {**topic, "partitions": []})
        for one in topic["partitions"]:
            if not one["records"] and "aborted_transactions" in one:
                one["aborted_transactions"] = one["aborted_transactions"] or None
        told["partitions"] += [
            one
            for one in topic["partitions"]
            if not is_share
            or one["error_code"]
            or one["acknowledge_error_code"]
            or one["acquired_records"]
        ]
    answer["responses"] = [one for one in by_topic.values() if one["partitions"]]
