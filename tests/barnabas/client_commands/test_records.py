from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from barnabas.client_commands import records
from barnabas.client_commands.records import BadLine, NewRecord


class Consumed(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    topic: str = "t"
    partition: int = 1
    offset: int = 7
    timestamp: int = 5


def test_a_line_is_a_value_and_a_separator_splits_off_the_key() -> None:
    assert records.parse_line(b"a:b:c", None) == NewRecord(None, b"a:b:c", [])
    assert records.parse_line(b"a:b:c", b":") == NewRecord(b"a", b"b:c", [])
    with pytest.raises(BadLine, match="no ':' between key and value"):
        records.parse_line(b"abc", b":")
    with pytest.raises(BadLine, match="between key and value"):
        records.parse_line(b"abc", b"\xff")


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ({}, NewRecord(None, None, [])),
        ({"key": "k", "value": None}, NewRecord(b"k", None, [])),
        ({"value": {"a": [1, "é"]}}, NewRecord(None, '{"a":[1,"é"]}'.encode(), [])),
        ({"value": 1.5, "partition": 0}, NewRecord(None, b"1.5", [], 0)),
        ({"value": [0.1, 1e22, -0.0]}, NewRecord(None, b"[0.1,1e+22,-0.0]", [])),
        ({"value": {"base64": "/w=="}}, NewRecord(None, b"\xff", [])),
        ({"headers": {"a": "1"}, "timestamp": 9}, NewRecord(None, None, [("a", b"1")], None, 9)),
        (
            {"headers": [["a", "1"], ["a", {"base64": "/w=="}]]},
            NewRecord(None, None, [("a", b"1"), ("a", b"\xff")]),
        ),
    ],
)
def test_a_json_line_is_a_record(line: dict[str, Any], record: NewRecord) -> None:
    assert records.parse_json(json.dumps(line).encode()) == record


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ("[]", "JSON object"),
        ('{"vlaue": 1}', "unknown field 'vlaue'"),
        ('{"headers": "a"}', "headers: expected"),
        ('{"headers": [["a"]]}', "headers: expected"),
        ('{"partition": "0"}', "partition '0'"),
        ('{"timestamp": -1}', "timestamp -1"),
        ('{"partition": true}', "partition True"),
        ('{"value": {"base64": "?"}}', "no base64"),
        ('{"value": {"price": 12345678901234567890.5}}', "12345678901234567890.5 cannot be kept"),
        ('{"value": 1e400}', "1e400 cannot be kept"),
        ('{"value": [NaN]}', "NaN cannot be kept"),
        ('{"value": ' + "[" * 100_000, "no JSON: maximum recursion"),
        ('{"partition": 2147483648}', "partition 2147483648"),
        ('{"timestamp": 9223372036854775808}', "timestamp 9223372036854775808"),
        ('{"value": "\\ud800"}', "no text"),
        ('{"value": ["\\ud800"]}', "no text"),
        ('{"key": "k", "headers": {"\\ud800": ""}}', "no text"),
        ('{"value": "v", "headers": [["h", null]]}', "header 'h' is null"),
    ],
)
def test_a_line_that_is_no_record_says_why(line: str, words: str) -> None:
    with pytest.raises(BadLine, match=words.replace("[", r"\[")):
        records.parse_json(line.encode())


@pytest.mark.parametrize("value", [None, b"", b"text", b"\xff\x00", '{"a": "é"}'.encode()])
def test_what_consume_prints_as_json_produce_writes_again(value: bytes | None) -> None:
    consumed = Consumed(value, value, [("h", value or b""), ("h", b"\xfe")])
    line = records.render(consumed, "json")
    assert line.count(b"\n") == 1
    assert records.parse_json(line) == NewRecord(value, value, consumed.headers, 1, 5)


def test_text_in_a_json_line_is_as_people_read_it() -> None:
    assert '"value": "é"'.encode() in records.render(Consumed(None, "é".encode(), []), "json")


def test_the_other_formats() -> None:
    record = Consumed(b"k", b"v\xff", [])
    tombstone = Consumed(None, None, [])
    assert records.render(record, "value") == b"v\xff\n"
    assert records.render(record, "key-value", b"=") == b"k=v\xff\n"
    assert records.render(record, "hex") == b"1:7\t6b\t76ff\n"
    assert records.render(tombstone, "hex") == b"1:7\t-\t-\n"
    assert records.render(tombstone, "value") == b"\n"
