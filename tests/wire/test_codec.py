"""Generated code: round trips over every message and version, tags, parts, and hostile bytes."""

from __future__ import annotations

import linecache
import os
import random
import struct
import subprocess
import sys
import traceback
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wire.codec import compile_decoder
from wire.errors import MalformedFrame, TooManyElements
from wire.messages import all_messages, request_class
from wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from wire.messages.data import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from wire.messages.groups import (
    ConsumerGroupHeartbeatResponse,
    DescribeGroupsRequest,
    OffsetCommitRequest,
)
from wire.messages.groups_records import ConsumerGroupMemberMetadataValue
from wire.messages.metadata_records import PartitionRecord
from wire.primitives import TAGS_MAX, skip_tags, uvarint
from wire.schema import Message

if TYPE_CHECKING:
    from tests.wire.conftest import Maker, Vector

ALL_VERSIONS = [
    (cls, version)
    for cls in all_messages()
    for version in range(cls.versions[0], cls.versions[1] + 1)
]


class InFile:
    """Stands for a storage.FileSlice: all the encoder may ask is its length."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


# --- round trips --------------------------------------------------------------------------------


def test_random_messages_of_every_version_come_back_equal(make: type[Maker]) -> None:
    maker = make(random.Random(random.getrandbits(32)))
    for cls, version in ALL_VERSIONS:
        for _ in range(5):
            message = maker.message(cls, version)
            assert cls.decode(message.encode_bytes(version), version) == message, version


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_messages_that_hypothesis_makes_come_back_equal(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(ALL_VERSIONS))
    message = data.draw(message_strategy(cls, version))
    encoded = message.encode_bytes(version)
    assert cls.decode(encoded, version) == message


INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in INTEGERS.items()},
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    "bytes": st.binary(max_size=300),
    "records": st.binary(max_size=300),
}


def message_strategy(cls: Any, version: int) -> st.SearchStrategy[Any]:
    """Any value that a message or struct can have in this version."""
    fields = {}
    for field in cls.schema:
        if not field.present(version):
            fields[field.name] = st.builds(field.blank)
            continue
        kind = field.kind.removeprefix("[]")
        one = SCALARS[kind] if field.struct is None else message_strategy(field.struct, version)
        if field.kind.startswith("[]"):
            one = st.lists(one, max_size=3)
        elif kind == "struct" and field.tag is not None and field.nullable is None:
            blank = field.struct.blank()
            one = st.none() | one.filter(lambda made, blank=blank: made != blank)
        if field.null_allowed(version):
            one = st.none() | one
        fields[field.name] = one
    return st.builds(cls, **fields)


def test_arrays_strings_and_bytes_of_more_than_127_need_longer_lengths() -> None:
    """Compact lengths grow from one byte to two at 127, and to three at 16,383."""
    for count in (0, 1, 126, 127, 128, 16_382, 16_383, 16_384):
        name = "x" * count
        request = MetadataRequest(
            topics=[MetadataRequest.Topic(name=name)] * count if count < 1000 else None,
            allow_auto_topic_creation=True,
        )
        assert MetadataRequest.decode(request.encode_bytes(13), 13) == request
        partition = ProduceRequest.Topic.Partition(index=0, records=memoryview(b"r" * count))
        topic = ProduceRequest.Topic(name=name, partition_data=[partition])
        produce = ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic])
        for version in (8, 9):
            encoded = produce.encode_bytes(version)
            assert ProduceRequest.decode(encoded, version) == produce


@pytest.mark.parametrize(
    ("cls", "version", "field"),
    [(OffsetCommitRequest, 8, "group_id"), (OffsetCommitRequest, 8, "group_instance_id"),
     (DescribeGroupsRequest, 5, "groups")],
)  # fmt: skip
def test_a_compact_string_is_no_longer_than_any_other(
    cls: type[Message], version: int, field: str
) -> None:
    """As Kafka's readers have it: what is longer could be in no record and no older response."""
    for size in (32_767, 32_768):
        message = cls.blank()
        setattr(message, field, ["g" * size] if field == "groups" else "g" * size)
        data = message.encode_bytes(version)
        if size == 32_767:
            assert getattr(cls.decode(data, version), field) == getattr(message, field)
        else:
            with pytest.raises(MalformedFrame, match="32768"):
                cls.decode(data, version)


def test_a_length_may_be_written_longer_than_needed() -> None:
    """Varints need not be minimal: Kafka reads them all, so do we."""
    padded = bytes([0x86, 0x80, 0x00]) + b"hello" + bytes([0x80 | 3, 0]) + b"42" + b"\0"
    request = ApiVersionsRequest.decode(padded, 3)
    assert (request.client_software_name, request.client_software_version) == ("hello", "42")


# --- what decode returns ------------------------------------------------------------------------


def test_records_decode_to_views_of_the_frame_and_bytes_to_bytes() -> None:
    partition = ProduceRequest.Topic.Partition(index=0, records=memoryview(b"batch"))
    topic = ProduceRequest.Topic(name="t", partition_data=[partition])
    frame = ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic]).encode_bytes(9)
    records = ProduceRequest.decode(frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    join = request_class(11)
    blank = join.blank()
    blank.protocols = [join.Protocol(name="range", metadata=b"meta")]
    assert type(join.decode(blank.encode_bytes(9), 9).protocols[0].metadata) is bytes


def test_absent_arrays_are_new_lists_in_each_object() -> None:
    data = bytes(8)  # version 4 of the answer: no throttling, no topics
    first, second = (ProduceResponse.decode(data, 4) for _ in range(2))
    first.node_endpoints.append(ProduceResponse.NodeEndpoint(node_id=1, host="h", port=1))
    assert second.node_endpoints == []
    assert ProduceResponse(responses=[]).node_endpoints == []


# --- parts --------------------------------------------------------------------------------------


def fetch_response(*records: Any) -> FetchResponse:
    partitions = [
        FetchResponse.Topic.Partition(
            partition_index=index,
            error_code=0,
            high_watermark=10,
            aborted_transactions=None,
            records=one,
        )
        for index, one in enumerate(records)
    ]
    return FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=partitions)])


def test_a_file_slice_comes_out_as_the_part_it_went_in_as() -> None:
    slices = [InFile(100), InFile(5000)]
    for version in range(4, 19):
        parts = fetch_response(*slices).encode(version)
        assert parts[1] is slices[0]
        assert parts[3] is slices[1]
        assert len(parts) == (4 if version < 12 else 5)  # flexible versions end with tags
        whole = b"".join(bytes(p) if isinstance(p, bytearray) else b"r" * len(p) for p in parts)
        decoded = FetchResponse.decode(whole, version)
        sizes = [len(p.records or b"") for p in decoded.responses[0].partitions]
        assert sizes == [100, 5000]


def test_small_records_are_copied_and_large_ones_become_parts() -> None:
    small, large = b"s" * 4095, b"l" * 4096
    for bytes_like in (bytes, bytearray, memoryview):
        parts = fetch_response(bytes_like(small), bytes_like(large)).encode(12)
        assert [type(part) for part in parts] == [bytearray, bytes_like, bytearray]
        assert small in parts[0]
        assert parts[1] == large


def test_a_response_without_records_is_one_part() -> None:
    assert len(fetch_response(None, b"").encode(12)) == 1
    assert len(ProduceResponse(responses=[]).encode(9)) == 1


def test_an_empty_file_slice_adds_no_part() -> None:
    parts = fetch_response(InFile(0)).encode(12)
    assert len(parts) == 1
    decoded = FetchResponse.decode(bytes(parts[0]), 12)  # type: ignore[arg-type]
    assert decoded.responses[0].partitions[0].records == b""


def test_encoding_to_bytes_refuses_what_lies_in_a_file() -> None:
    with pytest.raises(TypeError):
        fetch_response(InFile(10)).encode_bytes(12)


# --- tagged fields ------------------------------------------------------------------------------


def api_versions_v3(tags: bytes) -> bytes:
    return b"\x01\x01" + tags


def tag(number: int, content: bytes) -> bytes:
    return uvarint(number) + uvarint(len(content)) + content


def test_unknown_tags_are_skipped() -> None:
    tags = uvarint(2) + tag(0, b"abc") + tag(2**31, b"")
    assert ApiVersionsRequest.decode(api_versions_v3(tags), 3).client_software_name == ""


def test_unknown_tags_between_known_ones_are_skipped() -> None:
    response = ApiVersionsResponse(
        error_code=0,
        api_keys=[],
        finalized_features_epoch=7,
        supported_features=[
            ApiVersionsResponse.SupportedFeature(name="f", min_version=0, max_version=1)
        ],
        zk_migration_ready=True,
    )
    encoded = response.encode_bytes(4)
    assert ApiVersionsResponse.decode(encoded, 4) == response
    count_at = 2 + 1 + 4
    assert encoded[count_at] == 3
    appended = bytearray(encoded)
    appended[count_at] = 4
    appended += tag(200, b"x" * 300)
    assert ApiVersionsResponse.decode(bytes(appended), 4) == response


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param(uvarint(2) + tag(5, b"a") + tag(5, b"b"), id="twice the same"),
        pytest.param(uvarint(2) + tag(6, b"a") + tag(5, b"b"), id="descending"),
        pytest.param(uvarint(1) + uvarint(5) + uvarint(9) + b"short", id="beyond the end"),
        pytest.param(uvarint(2**32 - 1), id="four billion tags"),
        pytest.param(uvarint(1) + b"\xff" * 6, id="endless tag"),
        pytest.param(uvarint(1) + b"\x00" + b"\xff" * 6, id="endless size"),
        pytest.param(b"\x81", id="count cut off"),
    ],
)
def test_a_wrong_tag_section_is_malformed(tags: bytes) -> None:
    with pytest.raises(MalformedFrame):
        ApiVersionsRequest.decode(api_versions_v3(tags), 3)


@pytest.mark.parametrize(
    ("size", "behind"), [(0, b""), (2, b""), (4, b""), (6, b"\0"), (8, b"\0\0\0"), (9, b"\0")]
)
def test_a_known_tag_of_another_size_than_its_content_is_malformed(
    size: int, behind: bytes
) -> None:
    fetch = FetchRequest(
        max_wait_ms=1, min_bytes=1, isolation_level=0, topics=[], forgotten_topics_data=[]
    )
    encoded = fetch.encode_bytes(12)
    assert encoded[-1] == 0
    right = encoded[:-1] + uvarint(1) + tag(0, b"\x05abcd")  # cluster_id
    assert FetchRequest.decode(right, 12).cluster_id == "abcd"
    wrong = encoded[:-1] + uvarint(1) + uvarint(0) + uvarint(size) + b"\x05abcd" + behind
    with pytest.raises(MalformedFrame, match="beyond the data" if size == 9 else "another size"):
        FetchRequest.decode(wrong, 12)


def test_a_known_tag_twice_is_malformed() -> None:
    fetch = FetchRequest(
        max_wait_ms=1, min_bytes=1, isolation_level=0, topics=[], forgotten_topics_data=[]
    )
    twice = fetch.encode_bytes(12)[:-1] + uvarint(2) + tag(0, b"\x02a") * 2
    with pytest.raises(MalformedFrame, match="tag 0 follows tag 0"):
        FetchRequest.decode(twice, 12)


def test_tagged_fields_at_their_default_are_not_sent() -> None:
    bare = fetch_response(None)
    dressed = fetch_response(None)
    partition = dressed.responses[0].partitions[0]
    partition.diverging_epoch = FetchResponse.Topic.Partition.EpochEndOffset.blank()
    assert dressed.encode_bytes(12) == bare.encode_bytes(12)
    partition.diverging_epoch = FetchResponse.Topic.Partition.EpochEndOffset(epoch=3, end_offset=9)
    decoded = FetchResponse.decode(dressed.encode_bytes(12), 12).responses[0].partitions[0]
    assert decoded.diverging_epoch == partition.diverging_epoch
    assert decoded.current_leader is None


def test_many_tags_are_written_in_ascending_order() -> None:
    record = PartitionRecord.blank()
    record.partition_id = 1
    record.eligible_leader_replicas = [4]
    record.last_known_elr = [5]
    record.leader_recovery_state = 1
    encoded = record.encode_bytes(2)
    assert PartitionRecord.decode(encoded, 2) == record


# --- null ---------------------------------------------------------------------------------------


def test_null_arrays_and_strings_only_where_the_version_allows_them() -> None:
    every_topic = MetadataRequest(topics=None, allow_auto_topic_creation=True)
    assert MetadataRequest.decode(every_topic.encode_bytes(1), 1).topics is None
    assert MetadataRequest.decode(b"\0\0\0\0", 0).topics == []
    with pytest.raises(MalformedFrame):
        MetadataRequest.decode(b"\xff\xff\xff\xff", 0)
    with pytest.raises(MalformedFrame):
        MetadataRequest.decode(b"\xff\xff\xff\xfe", 1)
    with pytest.raises(MalformedFrame, match="null"):
        ApiVersionsRequest.decode(b"\x00\x01\x00", 3)


def test_encoding_null_where_it_is_not_allowed_fails() -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    request.client_software_name = None  # type: ignore[assignment]
    with pytest.raises((AttributeError, TypeError)):
        request.encode(3)


def test_a_nullable_struct_begins_with_an_int8_marker() -> None:
    response = ConsumerGroupHeartbeatResponse.blank()
    absent = response.encode_bytes(0)
    assert absent[-2:] == b"\xff\x00"
    response.assignment = ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=[])
    present = response.encode_bytes(0)
    assert present[-4:] == b"\x01\x01\x00\x00"
    assert ConsumerGroupHeartbeatResponse.decode(present, 0) == response
    assert ConsumerGroupHeartbeatResponse.decode(absent, 0).assignment is None


def test_a_tagged_nullable_struct_tells_null_from_absent() -> None:
    """classic_member_metadata: absent means a struct of defaults, null is sent as null."""
    record = ConsumerGroupMemberMetadataValue.blank()
    assert record.classic_member_metadata is not None
    assert record.encode_bytes(0)[-1:] == b"\0"
    record.classic_member_metadata = None
    encoded = record.encode_bytes(0)
    assert encoded[-4:] == b"\x01\x00\x01\x00"
    assert ConsumerGroupMemberMetadataValue.decode(encoded, 0).classic_member_metadata is None


# --- versions -----------------------------------------------------------------------------------


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(MalformedFrame, match="FetchRequest has no version 19"):
        FetchRequest.decode(b"", 19)
    with pytest.raises(MalformedFrame):
        FetchRequest.decode(b"", -1)
    with pytest.raises(ValueError, match="no version 3"):
        fetch_response().encode(3)


# --- hostile bytes ------------------------------------------------------------------------------


def test_elements_of_all_arrays_and_tags_together_are_bounded() -> None:
    """A byte can become an object of a hundred: who decodes for strangers says how many."""
    topic = FetchRequest.Topic
    partition = topic.Partition(partition=0, fetch_offset=5, partition_max_bytes=1000)
    two = topic(topic="t", partitions=[partition, partition])
    fetch = FetchRequest(max_wait_ms=1, min_bytes=1, isolation_level=0, topics=[two, two])
    encoded = fetch.encode_bytes(12)
    assert FetchRequest.decode(encoded, 12, 0, 6) == fetch
    with pytest.raises(TooManyElements):
        FetchRequest.decode(encoded, 12, 0, 5)
    tagged = encoded[:-1] + uvarint(2) + tag(100, b"a") + tag(101, b"b")
    assert FetchRequest.decode(tagged, 12, 0, 8) == fetch
    with pytest.raises(TooManyElements):
        FetchRequest.decode(tagged, 12, 0, 7)
    assert FetchRequest.decode(tagged, 12) == fetch


@pytest.mark.parametrize("version", [8, 9])
def test_a_bound_on_elements_bounds_the_memory_of_decoding(version: int) -> None:
    count = 1 << 20
    element = b"\0\0" if version == 8 else b"\1\0"
    head = struct.pack(">i", count) if version == 8 else uvarint(count + 1)
    tracemalloc.start()
    with pytest.raises(TooManyElements):
        MetadataRequest.decode(head + element * count + bytes(4), version, 0, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2 * count, "what arrived, and no objects"


def test_unknown_tags_of_a_header_are_bounded() -> None:
    tags = b"".join(tag(number, b"") for number in range(TAGS_MAX + 1))
    with pytest.raises(TooManyElements):
        skip_tags(uvarint(TAGS_MAX + 1) + tags, 0)
    assert skip_tags(uvarint(1) + tags, 0) == 3


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change bytes the way attackers, bugs and bad memory do."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            out[at : at + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
        elif kind == 3:
            out[at:at] = b"\xff\xff\xff\xff\x0f"
        elif kind == 4:
            del out[at : at + rng.randrange(1, 9)]
        else:
            start = rng.randrange(len(other) + 1)
            out[at:at] = other[start : start + 20]
    return bytes(out)


def test_100_000_mutations_raise_malformed_frame_or_decode_to_something_that_encodes(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    """The one invariant of the decoder; what it accepts must also survive a round trip."""
    rng = random.Random(random.getrandbits(32))
    accepted = refused = 0
    while accepted + refused < 100_000:
        vector, other = rng.choice(vectors), rng.choice(vectors)
        cls, version = classes[vector.name], vector.version
        data = mutate(rng, vector.data, other.data)
        try:
            message = cls.decode(data, version)
        except MalformedFrame:
            refused += 1
            continue
        accepted += 1
        again = message.encode_bytes(version)
        assert cls.decode(again, version).encode_bytes(version) == again
    assert accepted > 1000
    assert refused > 10_000


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=200), which=st.sampled_from(ALL_VERSIONS))
def test_any_bytes_decode_or_are_malformed(data: bytes, which: tuple[type[Message], int]) -> None:
    cls, version = which
    with suppress(MalformedFrame):
        cls.decode(data, version)


def test_hostile_bytes_allocate_no_more_than_they_bring(
    vectors: list[Vector], classes: dict[str, type[Message]]
) -> None:
    """A few hundred bytes must never cost more than some objects for each of them."""
    rng = random.Random(random.getrandbits(32))
    for vector in vectors:  # compile first: source text is not what is measured here
        classes[vector.name].decode(vector.data, vector.version)
    tracemalloc.start()
    try:
        for _ in range(4000):
            vector = rng.choice(vectors)
            data = mutate(rng, vector.data, vector.data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with suppress(MalformedFrame):
                classes[vector.name].decode(data, vector.version)
            used = tracemalloc.get_traced_memory()[1] - before
            assert used < 16_384 + 400 * len(data), (vector, data.hex())
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("claimed", [1 << 20, 2**31 - 2])
def test_an_array_count_that_cannot_be_is_refused_before_anything_is_made(
    version: int, claimed: int
) -> None:
    if version < 9:
        data = struct.pack(">hhii", -1, 1, 0, claimed) + bytes(1000)
    else:
        data = b"\0" + struct.pack(">hi", 1, 0) + uvarint(claimed + 1) + bytes(1000)
    with pytest.raises(MalformedFrame, match=f"{claimed} elements cannot be in"):
        ProduceRequest.decode(data, version)


def test_lengths_beyond_the_end_are_malformed_and_allocate_nothing() -> None:
    data = b"\0\x01\0\0\0\0\x02" + uvarint(2**31) + b"name"
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame):
            ProduceRequest.decode(data, 9)
        assert tracemalloc.get_traced_memory()[1] < 500_000  # compiling the decoder included
    finally:
        tracemalloc.stop()


def test_text_that_is_not_utf_8_is_malformed() -> None:
    with pytest.raises(MalformedFrame):
        ApiVersionsRequest.decode(b"\x03\xff\xfe\x01\x00", 3)


# --- magic that can be looked at ----------------------------------------------------------------


def test_the_generated_source_is_printed() -> None:
    command = [sys.executable, "-m", "wire.codec", "Produce", "9"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for name in ("decode_ProduceRequest_v9", "encode_ProduceResponse_v9"):
        assert f"def {name}(" in result.stdout
    compile(result.stdout, "printed", "exec")


@pytest.mark.parametrize("arguments", [[], ["Produce"], ["Nonsense", "1"], ["Produce", "99"]])
def test_printing_something_unknown_says_how_to_ask(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "wire.codec", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "index out of range" not in result.stderr
    assert "usage" in result.stderr or "versions 3 to 13" in result.stderr
    assert "Traceback" not in result.stderr


def test_who_has_seen_enough_of_it_may_go() -> None:
    """`python -m wire.codec Fetch 12 | head`"""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "wire.codec", "Produce", "9"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert result.stderr == ""


def test_a_traceback_shows_the_generated_line() -> None:
    response = fetch_response(None)
    response.responses[0].partitions[0].high_watermark = "no number"  # type: ignore[assignment]
    try:
        response.encode(12)
    except struct.error as error:
        shown = "".join(traceback.format_exception(error))
    linecache.checkcache()
    assert "high_watermark" in shown
    assert "<wire.codec encode_FetchResponse_v12>" in shown


def test_code_is_compiled_once() -> None:
    before = ApiVersionsRequest.decoder(3)
    assert ApiVersionsRequest.decoder(3) is before
    assert compile_decoder(ApiVersionsRequest, 3) is not before
