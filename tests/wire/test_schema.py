"""The rules of the declaration language."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wire.errors import MalformedFrame
from wire.messages.data import ProduceRequest, ProduceResponse
from wire.messages.groups import ConsumerGroupDescribeResponse
from wire.schema import (
    REQUESTS,
    RESPONSES,
    Array,
    Int32,
    Int64,
    Nested,
    Record,
    Request,
    Response,
    String,
    Struct,
)

ROOT = Path(__file__).parents[2]


def test_a_declaration_becomes_a_class_with_slots_and_a_codec() -> None:
    class Example(Record, versions=(0, 2), flexible=2):
        """For this test only."""

        class Item(Struct):
            name: str = String()
            size: int = Int64(since=1, default=-1)

        items: list[Item] = Array(Item)
        count: int = Int32(until=1, default=7)

    example = Example(items=[Example.Item(name="a", size=3)])
    assert example.count == 7
    assert example.encode_bytes(0) == b"\0\0\0\1\0\1a\0\0\0\7"
    assert example.encode_bytes(1) == b"\0\0\0\1\0\1a" + bytes(7) + b"\3\0\0\0\7"
    assert example.encode_bytes(2) == b"\2\2a" + bytes(7) + b"\3\0\0"
    assert Example.decode(example.encode_bytes(0), 0).items[0].size == -1
    with pytest.raises(AttributeError):
        example.misspelled = 1  # type: ignore[attr-defined]


def test_a_field_that_can_be_absent_needs_a_default() -> None:
    for kwargs in ({"since": 1}, {"until": 1}, {"tag": 0}):
        with pytest.raises(TypeError, match="needs a default"):

            class Wrong(Record, versions=(0, 2), flexible=0):
                count: int = Int32(**kwargs)  # type: ignore[arg-type]


def test_construction_is_keyword_only_and_complete() -> None:
    with pytest.raises(TypeError):
        ProduceRequest()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ProduceRequest(1, 2, [])  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError, match="misspelt"):
        ProduceRequest(acks=1, timeout_ms=1, topic_data=[], misspelt=1)  # type: ignore[call-arg]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[])
    assert request.transactional_id is None


def test_mypy_finds_missing_misspelt_and_mistyped_arguments() -> None:
    """What dataclass_transform promises, asked of mypy itself."""
    code = (
        "from wire.messages.data import ProduceRequest as P\n"
        "P(acks=1, timeout_ms=1)\n"
        "P(acks=1, timeout_ms=1, topic_data=[], tmeout=2)\n"
        "P(acks='all', timeout_ms=1, topic_data=[])\n"
        "P(acks=1, timeout_ms=1, topic_data=[P.Topic(partition_data=[])])\n"
        "reveal_type(P.decode(b'', 9).topic_data[0].partition_data[0].records)\n"
    )
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file=",
            "--strict",
            "--no-error-summary",
            "-c",
            code,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=110,
    )
    # With a cache of an earlier run mypy adds notes where each class is defined.
    errors = [line for line in result.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 3, result.stdout + result.stderr
    assert 'Missing named argument "topic_data"' in errors[0]
    assert "tmeout" in errors[1]
    assert 'incompatible type "str"' in errors[2]
    assert 'Revealed type is "memoryview' in result.stdout


def test_equality_is_by_fields_and_class() -> None:
    one = ProduceResponse.Topic(name="t", partition_responses=[])
    two = ProduceResponse.Topic(name="t", partition_responses=[])
    assert one == two
    two.name = "other"
    assert one != two
    assert one != "t"
    assert ProduceRequest.Topic(name="t", partition_data=[]) != one
    with pytest.raises(TypeError):
        hash(one)


def test_a_message_shows_its_fields() -> None:
    topic = ProduceRequest.Topic(name="orders", partition_data=[])
    assert repr(topic) == (
        "ProduceRequest.Topic(name='orders', topic_id=" + repr(bytes(16)) + ", partition_data=[])"
    )
    hollow = object.__new__(ProduceRequest.Topic)
    assert "<unassigned>" in repr(hollow)


def test_messages_can_be_copied() -> None:
    topic = ProduceRequest.Topic(name="orders", partition_data=[])
    assert copy.deepcopy(topic) == topic


def test_blank_gives_new_objects_at_every_depth() -> None:
    member = ConsumerGroupDescribeResponse.Group.Member
    one, two = member.blank(), member.blank()
    assert one == two
    one.assignment.topic_partitions.append(member.Assignment.Topic.blank())
    one.subscribed_topic_names.append("t")
    assert two.assignment.topic_partitions == two.subscribed_topic_names == []


def test_a_list_that_is_given_is_kept_even_when_empty() -> None:
    errors: list[ProduceResponse.Topic.Partition.RecordError] = []
    partition = ProduceResponse.Topic.Partition(
        index=0, error_code=0, base_offset=0, record_errors=errors
    )
    assert partition.record_errors is errors


def test_a_response_has_the_versions_of_its_request() -> None:
    keys = (set(REQUESTS), set(RESPONSES))

    class EchoRequest(Request, key=9999, versions=(1, 3), flexible=2):
        text: str = String()

    class EchoResponse(Response, to=EchoRequest):
        class Inner(Struct):
            value: int = Int32(default=-1)

        inner: Inner | None = Nested(Inner, since=2, tag=0, default=None)

    try:
        assert (EchoResponse.versions, EchoResponse.flexible) == ((1, 3), 2)
        assert EchoResponse.api_key == 9999
        assert REQUESTS[9999] is EchoRequest
        assert EchoResponse(inner=EchoResponse.Inner(value=5)).encode_bytes(1) == b""
        tagged = EchoResponse(inner=EchoResponse.Inner(value=5)).encode_bytes(2)
        assert tagged == b"\x01\x00\x05\0\0\0\5\0"
        assert EchoResponse.decode(b"\0", 2).inner is None
        with pytest.raises(MalformedFrame):
            EchoResponse.decode(b"\0", 4)
    finally:
        del REQUESTS[9999], RESPONSES[9999]
    assert (set(REQUESTS), set(RESPONSES)) == keys


@pytest.mark.parametrize(
    "absent",
    [
        lambda: String(nullable=0, tag=0),
        lambda: Array(Int32, since=1),
        lambda: Nested(Struct, until=1),
    ],
    ids=["tagged", "new", "old"],
)
def test_a_field_that_some_version_lacks_needs_a_default(absent: Callable[[], Any]) -> None:
    """Or decoding that version would have nothing to put there."""
    with pytest.raises(TypeError, match="what: a field that can be absent needs a default"):
        type(Struct)("Lacking", (Struct,), {"what": absent()})


def test_messages_are_made_by_name_only_and_are_equal_to_nothing_else() -> None:
    class Example(Struct):
        """For this test only."""

        one: int = Int32()
        other: int = Int32(default=2)

    made: Any = Example
    assert made(one=1) == made(one=1, other=2)
    with pytest.raises(TypeError):
        made(1)
    assert made(one=1).__eq__(5) is NotImplemented
