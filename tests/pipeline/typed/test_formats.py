"""Each format: the type of its schema, its values, and what its values are not."""

from __future__ import annotations

import datetime
import io
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pipeline.typed.avro_values import AvroValues, _parsed
from pipeline.typed.decode import values_of
from pipeline.typed.framing import Undecodable, message_path, schema_id
from pipeline.typed.json_values import JsonValues
from pipeline.typed.protobuf_values import ProtobufValues
from pipeline.typed.registry import Schema
from pipeline.typed.types import JSON, arrow, ddl

# ---- the wire format


def test_the_schema_id_is_the_four_bytes_behind_the_magic_one() -> None:
    assert schema_id(b"\0\0\1\0\2rest") == 0x10002


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "0 bytes are too short"), (b"\0\0\0\1", "4 bytes"), (b"\1\0\0\0\1x", "byte 0x01")],
)
def test_bytes_without_a_schema_id_say_so(data: bytes, why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        schema_id(data)


def test_message_indexes_are_zigzag_varints_and_a_zero_is_the_first_message() -> None:
    assert message_path(b"\0rest", 0) == ((0,), 1)
    assert message_path(b"xx\x04\x02\x80\x02rest", 2) == ((1, 128), 6)
    for damaged in (b"", b"\x04\x02", b"\xff" * 12, b"\x01"):
        with pytest.raises(Undecodable):
            message_path(damaged, 0)


# ---- Avro


def avro(schema: Any, *, number: int | None = None) -> Schema:
    return Schema(json.dumps(schema), "AVRO", (), number)


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "opens", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "either", "type": ["null", "long", "string"]},
        {"name": "tags", "type": {"type": "map", "values": "float"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "also", "type": "Kind"},
        {"name": "parent", "type": ["null", "Order"]},
    ],
}  # fmt: skip
MOMENT = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
VALUE = {
    "id": 7, "price": Decimal("12.30"), "at": MOMENT, "opens": 5, "note": None, "either": "x",
    "tags": {"a": 0.5}, "kind": "A", "also": "B", "parent": None,
}  # fmt: skip


def test_avro_types_and_values() -> None:
    values = AvroValues(avro(ORDER))
    assert ddl(values.type) == (
        "struct<`id`:bigint,`price`:decimal(9,2),`at`:timestamp,`opens`:bigint,`note`:string,"
        "`either`:string,`tags`:map<string,double>,`kind`:string,`also`:string,`parent`:string>"
    )
    plain = json.loads(json.dumps(ORDER).replace('"logicalType": "time-millis"', '"x": 1'))
    assert values.read(b"12345" + encoded(plain, VALUE), 5, None) == VALUE


def test_avro_values_of_an_older_writer_get_the_default_of_a_field_that_was_added() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    added = {"name": "b", "type": "string", "default": "none"}
    values = AvroValues(avro(old | {"fields": [{"name": "a", "type": "long"}, added]}))
    assert ddl(values.type) == "struct<`a`:bigint,`b`:string>"
    writer = values.writer(avro(old, number=1))
    assert values.read(encoded(old, {"a": 5}), 0, writer) == {"a": 5, "b": "none"}


@pytest.mark.parametrize(
    ("kind", "said", "value"),
    [
        ("bytes", "\xff\0", b"\xff\0"),
        ({"type": "fixed", "name": "F", "size": 2}, "\xff\1", b"\xff\1"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "\0",
         Decimal("0.00")),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4},
         "\xff\x85", Decimal(-123)),
        (["bytes", "null"], "\xff", b"\xff"),
        (["null", "bytes"], None, None),
        ({"type": "array", "items": "bytes"}, ["\xff"], [b"\xff"]),
        ({"type": "map", "values": "bytes"}, {"a": "\xff"}, {"a": b"\xff"}),
        ({"type": "record", "name": "I", "fields": [
            {"name": "n", "type": "int", "default": 7}, {"name": "raw", "type": "bytes"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"},
             "default": 1}]},
         {"raw": "\xff"}, {"n": 7, "raw": b"\xff", "at": 1000}),
    ],
)  # fmt: skip
def test_an_avro_default_is_the_value_that_its_json_stands_for(
    kind: Any, said: Any, value: Any
) -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    added = {"name": "b", "type": kind, "default": said}
    values = AvroValues(avro(old | {"fields": [{"name": "a", "type": "int"}, added]}, number=2))
    found = values.read(encoded(old, {"a": 5}), 0, values.writer(avro(old, number=1)))
    assert found == {"a": 5, "b": value}
    assert pyarrow.array([found], arrow(values.type)).is_valid().to_pylist() == [True]


@pytest.mark.parametrize("local", ["", "local-"])
@pytest.mark.parametrize(
    ("place", "value", "wanted"),
    [
        ("time", 1_700_000_000_123, 1_700_000_000_123_000),
        (["null", "time"], 5, 5000),
        (["null", "time"], None, None),
        ({"type": "array", "items": "time"}, [1, 2], [1000, 2000]),
        ({"type": "map", "values": ["null", "time"]}, {"a": 1, "b": None}, {"a": 1000, "b": None}),
        ({"type": "record", "name": "I", "fields": [
            {"name": "at", "type": "time"}, {"name": "n", "type": "long"}]},
         {"at": 3, "n": 3}, {"at": 3000, "n": 3}),
    ],
)  # fmt: skip
def test_an_avro_number_that_was_said_to_be_a_time_later_is_that_time(
    place: Any, value: Any, wanted: Any, local: str
) -> None:
    """As microseconds, which times are to Arrow."""
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": place}]})
    time = json.dumps({"type": "long", "logicalType": f"{local}timestamp-millis"})
    old, new = (json.loads(text.replace('"time"', one)) for one in ('"long"', time))
    values = AvroValues(avro(new, number=2))
    written = encoded(old, {"f": value})
    assert values.read(written, 0, values.writer(avro(old, number=1))) == {"f": wanted}
    own = values.read(written, 0, values.writer(avro(new, number=2)))
    column = pyarrow.array([own, {"f": wanted}], arrow(values.type))
    assert column[0] == column[1]  # a time as such is the same


def test_a_writer_that_avro_cannot_read_as_the_reader_is_named() -> None:
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    user = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "string"}]}
    values = AvroValues(avro(user))
    with pytest.raises(Undecodable, match=r"^Key cannot be read as User$"):
        values.read(encoded(key, {"id": 5}), 0, values.writer(avro(key, number=1)))
    other = user | {"fields": [{"name": "id", "type": "long"}]}
    with pytest.raises(Undecodable, match=r"^User cannot be read as User: long is not string"):
        values.read(encoded(other, {"id": 5}), 0, values.writer(avro(other, number=1)))
    with pytest.raises(Undecodable, match=r"^string cannot be read as User$"):
        values.read(b"\x02a", 0, values.writer(avro("string", number=2)))


def test_avro_bytes_that_are_too_few_or_too_many_do_not_decode() -> None:
    values = AvroValues(avro({"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "string"}, {"name": "b", "type": "long"}]}))  # fmt: skip
    whole = b"\x06abc\x02"
    assert values.read(whole, 0, None) == {"a": "abc", "b": 1}
    for end in range(len(whole)):
        with pytest.raises((Undecodable, EOFError, IndexError)):
            values.read(whole[:end], 0, None)
    with pytest.raises(Undecodable, match="1 bytes are left"):
        values.read(whole + b"x", 0, None)


def test_avro_takes_named_types_of_schemas_it_refers_to() -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "n", "type": "long"}]}
    text = {"type": "record", "name": "R", "fields": [{"name": "paid", "type": "shop.Money"}]}
    schema = Schema(json.dumps(text), "AVRO", (("shop.Money", json.dumps(money)),), 3)
    values = AvroValues(schema)
    assert ddl(values.type) == "struct<`paid`:struct<`n`:bigint>>"
    assert values.read(b"\x0a", 0, values.writer(schema)) == {"paid": {"n": 5}}


PAID = {"type": "record", "name": "shop.Paid", "fields": [
    {"name": "by", "type": {"type": "enum", "name": "How", "symbols": ["CASH", "CARD"]}}
]}  # fmt: skip
SENT = {"type": "record", "name": "shop.Sent", "fields": [{"name": "to", "type": "string"}]}


@pytest.mark.parametrize(
    ("root", "data", "value"),
    [
        (["shop.Paid", "shop.Sent"], b"\2\4at", {"to": "at"}),
        (["shop.How", "shop.Paid"], b"\2\2", {"by": "CARD"}),
        ("shop.Sent", b"\4at", {"to": "at"}),
        ({"type": "array", "items": "shop.Paid"}, b"\4\0\2\0", [{"by": "CASH"}, {"by": "CARD"}]),
        ({"type": "map", "values": ["null", "shop.Sent"]}, b"\2\2a\0\0", {"a": None}),
    ],
)
def test_an_avro_schema_that_is_no_record_takes_named_types_it_refers_to(
    root: Any, data: bytes, value: Any
) -> None:
    imports = tuple((one["name"], json.dumps(one)) for one in (PAID, SENT))
    schema = Schema(json.dumps(root), "AVRO", imports, 3)
    values = AvroValues(schema)
    assert values.read(data, 0, values.writer(schema)) == value
    assert values.read(data, 0, None) == value


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"type": ["null", "long"], "logicalType": "timestamp-millis"}, "bigint"),
        ({"type": {"type": "long"}, "logicalType": "timestamp-millis"}, "bigint"),
        ({"type": {"type": "bytes", "logicalType": "decimal"}}, "binary"),
        ({"type": {"type": "bytes", "logicalType": "decimal", "precision": "9"}}, "binary"),
        ({"type": {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}},
         "binary"),
        ({"type": {"type": "bytes", "logicalType": "decimal", "precision": 0}}, "binary"),
        ({"type": {"type": "string", "logicalType": "decimal", "precision": 9}}, "string"),
    ],
)  # fmt: skip
def test_an_avro_logical_type_that_is_not_valid_means_nothing(
    said: dict[str, Any], kept: str
) -> None:
    schema = avro({"type": "record", "name": "R", "fields": [{"name": "f"} | said]})
    assert AvroValues(schema).type == {"struct": {"f": kept}}


def test_an_avro_union_of_a_string_and_the_record_around_it_is_json_text() -> None:
    either = [{"name": "v", "type": ["string", "T"]}, {"name": "w", "type": ["null", "string"]}]
    values = AvroValues(avro({"type": "record", "name": "T", "fields": either}))
    assert values.type == {"struct": {"v": JSON, "w": "string"}}


EMPTY = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
PAIR = {"type": "record", "name": "P", "fields": [
    {"name": "a", "type": EMPTY},
    {"name": "more", "type": {"type": "array", "items": "E"}}]}  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "map", "values": {"type": "array", "items": EMPTY}},
        ["null", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}],
        PAIR,
    ],
)
def test_an_avro_array_whose_items_take_no_bytes_is_refused(schema: Any) -> None:
    """Ten bytes of a record would make 2^62 of them."""
    with pytest.raises(ValueError, match="an array whose items take no bytes"):
        AvroValues(avro(schema))
    values = AvroValues(avro("string"))
    with pytest.raises(ValueError, match="an array whose items take no bytes"):
        values.writer(avro(schema, number=1))


def test_an_avro_array_whose_items_take_bytes_is_read() -> None:
    tree = {"type": "record", "name": "T", "fields": [
        {"name": "none", "type": EMPTY},
        {"name": "below", "type": {"type": "array", "items": "T"}}]}  # fmt: skip
    leaf = {"none": {"n": None}, "below": []}
    for schema, value in (
        ({"type": "array", "items": ["null", "int"]}, [None, 1]),
        ({"type": "map", "values": "null"}, {"a": None}),
        ({"type": "array", "items": tree}, [leaf | {"below": [leaf]}]),
    ):
        assert AvroValues(avro(schema)).read(encoded(schema, value), 0, None) == value


NODE = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
AROUND = {"type": "map", "values": {"type": "array", "items": NODE}}


@pytest.mark.parametrize(("schema", "before"), [(NODE, b""), (AROUND, b"\x02\x00\x02")])
def test_an_avro_value_that_lies_deep_within_itself_ends_no_process(
    schema: Any, before: bytes
) -> None:
    """fastavro's C goes down as deep as the bytes say."""
    program = (
        "import sys, json\n"
        "from pipeline.typed.avro_values import AvroValues\n"
        "from pipeline.typed.registry import Schema\n"
        "values = AvroValues(Schema(sys.argv[1], 'AVRO'))\n"
        "for writer in (None, values.writer(Schema(sys.argv[1], 'AVRO', (), 1))):\n"
        "    try:\n"
        "        values.read(bytes.fromhex(sys.argv[2]) + b'\\2' * 1_000_000, 0, writer)\n"
        "    except Exception as error:\n"
        "        print(error)\n"
    )
    command = [sys.executable, "-c", program, json.dumps(schema), before.hex()]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "lies too deep within itself\n" * 2), run.stderr


def test_which_avro_schemas_contain_themselves_and_how_their_values_are_read() -> None:
    """What is named before, and not around it, is no recursion."""
    twice = {"type": "record", "name": "T", "fields": [
        {"name": "a", "type": EMPTY}, {"name": "b", "type": "E"}]}  # fmt: skip
    assert [_parsed(avro(one)).is_recursive for one in (twice, ORDER, NODE, AROUND)] == [
        False, True, True, True,
    ]  # fmt: skip
    deep: Any = {"next": None}
    for _ in range(500):
        deep = {"next": deep}
    found = AvroValues(avro(NODE)).read(b"\2" * 500 + b"\0", 0, None)
    assert json.dumps(found) == json.dumps(deep)


@pytest.mark.parametrize("text", ["", "{", '{"type": "recrd"}', '"Unknown"', "[]x"])
def test_what_is_no_avro_schema_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="no Avro schema"):
        AvroValues(Schema(text, "AVRO"))


# ---- JSON


def test_json_schema_types() -> None:
    document = {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "ok": {"type": "boolean"},
            "lines": {"type": "array", "items": {"type": "object",
                                                 "properties": {"sku": {"type": "string"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "kind": {"enum": ["a", "b"]},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "either": {"type": ["integer", "string"]},
            "any": {},
            "tree": {"$ref": "#/$defs/node"},
            "other": {"$ref": "money.json#/$defs/money"},
        },
    }  # fmt: skip
    money = {"$defs": {"money": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    values = JsonValues(Schema(json.dumps(document), "JSON", (("money.json", json.dumps(money)),)))
    assert ddl(values.type) == (
        "struct<`id`:bigint,`price`:double,`ok`:boolean,`lines`:array<struct<`sku`:string>>,"
        "`labels`:map<string,string>,`kind`:string,`maybe`:bigint,`either`:string,`any`:string,"
        "`tree`:struct<`next`:string>,`other`:struct<`n`:bigint>>"
    )


def test_what_a_json_schema_refers_to_may_refer_to_parts_of_its_own() -> None:
    address = {"type": "object", "properties": {"street": {"type": "string"}}}
    parts = {"address": {"$ref": "#/$defs/Address"}, "next": {"$ref": "#"}}
    customer = {"$defs": {"Address": address}, "type": "object", "properties": parts}
    order = {"$defs": {"Address": {"type": "integer"}}, "type": "object", "properties": {
        "by": {"$ref": "customer.json"}, "number": {"$ref": "#/$defs/Address"}}}  # fmt: skip
    imports = (("customer.json", json.dumps(customer)),)
    values = JsonValues(Schema(json.dumps(order), "JSON", imports))
    assert ddl(values.type) == (
        "struct<`by`:struct<`address`:struct<`street`:string>,`next`:string>,`number`:bigint>"
    )


def test_a_json_null_with_a_title_is_a_null() -> None:
    """As Confluent's serializer for Java has it in the schemas that it makes of classes."""
    kinds = [{"type": "null", "title": "Not included"}, {"type": "integer"}]
    assert JsonValues(Schema(json.dumps({"oneOf": kinds}), "JSON")).type == "bigint"


@pytest.mark.parametrize(
    "document",
    [[], {"properties": ["a"]}, {"type": 5}, {"type": [{}]}, {"enum": 5}, {"anyOf": 5}],
)
def test_what_is_no_json_schema_says_so(document: Any) -> None:
    with pytest.raises(ValueError, match="no JSON Schema"):
        JsonValues(Schema(json.dumps(document), "JSON"))


@pytest.mark.parametrize("data", [b"", b'{"a": ', b"\xff\xfe\xfd", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_no_json_does_not_decode(data: bytes) -> None:
    with pytest.raises(Undecodable, match="no JSON"):
        JsonValues(Schema("{}", "JSON")).read(data, 0, None)


# ---- protobuf


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    """Two messages, Order and Other, with one field of each kind."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_INT32, label=1)
    order.field.add(name="big", number=2, type=kinds.TYPE_UINT64, label=1)
    order.field.add(name="at", number=3, type=kinds.TYPE_MESSAGE, label=1,
                    type_name=".google.protobuf.Timestamp")  # fmt: skip
    order.field.add(name="tags", number=4, type=kinds.TYPE_STRING, label=3)
    order.field.add(name="parent", number=5, type=kinds.TYPE_MESSAGE, label=1,
                    type_name=".shop.Order")  # fmt: skip
    order.field.add(name="kind", number=6, type=kinds.TYPE_ENUM, label=1, type_name=".shop.Kind")
    order.field.add(name="raw", number=7, type=kinds.TYPE_BYTES, label=1)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SOME", number=1)
    file.message_type.add(name="Other").field.add(
        name="text", number=1, type=kinds.TYPE_STRING, label=1
    )
    return file


def a_set() -> Schema:
    files = descriptor_pb2.FileDescriptorSet(file=[protobuf_file()])
    return Schema(files.SerializeToString().decode("latin-1"), "protobuf")


def message(name: str) -> Any:
    # Importing it puts the file into the default pool.
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(protobuf_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def test_protobuf_types_and_values() -> None:
    values = ProtobufValues(a_set())
    assert ddl(values.type) == (
        "struct<`id`:bigint,`big`:decimal(20,0),`at`:timestamp,`tags`:array<string>,"
        "`parent`:string,`kind`:string,`raw`:binary>"
    )
    order = message("shop.Order")
    order.id, order.big, order.kind = 5, 2**64 - 1, 1
    order.at.FromDatetime(MOMENT)
    order.tags.extend(["a", "b"])
    order.parent.id = 4
    assert values.read(order.SerializeToString(), 0, None) == {
        "id": 5, "big": 2**64 - 1, "at": MOMENT, "tags": ["a", "b"], "parent": {"id": 4},
        "kind": "SOME", "raw": b"",
    }  # fmt: skip
    assert values.read(b"", 0, None) == {
        "id": 0, "big": 0, "at": None, "tags": [], "parent": None, "kind": "NONE", "raw": b"",
    }  # fmt: skip


def test_protobuf_bytes_that_are_cut_off_or_of_another_message_do_not_decode() -> None:
    values = ProtobufValues(a_set(), "shop.Other")
    other = message("shop.Other")
    other.text = "hello"
    data = other.SerializeToString()
    assert values.read(data, 0, None) == {"text": "hello"}
    with pytest.raises(Undecodable, match=r"no message shop\.Other"):
        values.read(data[:-1], 0, None)
    import base64

    text = base64.b64encode(protobuf_file().SerializeToString()).decode()
    writer = values.writer(Schema(text, "PROTOBUF", (), 3))
    assert values.read(b"\x02\x02" + data, 0, writer) == {"text": "hello"}
    with pytest.raises(Undecodable, match=r"is a message shop\.Order, and no shop\.Other"):
        values.read(b"\0" + data, 0, writer)
    for index in (b"\x08", b"\x01"):  # 4, and -1
        with pytest.raises(Undecodable, match="where its schema has none"):
            values.read(b"\x02" + index + data, 0, writer)


@pytest.mark.parametrize("name", ["api", "descriptor", "source_context", "struct", "type"])
def test_protobuf_files_that_google_ships_may_be_imported_without_a_reference(name: str) -> None:
    """As a registry gives a schema; descriptor.proto is there for options of one's own."""
    import base64

    file = protobuf_file()
    file.dependency.append(f"google/protobuf/{name}.proto")
    text = base64.b64encode(file.SerializeToString()).decode()
    values = ProtobufValues(Schema(text, "PROTOBUF", (), 3), "shop.Other")
    assert values.read(b"\x0a\x02hi", 0, None) == {"text": "hi"}


def test_what_is_no_descriptor_and_a_message_that_is_not_there_say_so() -> None:
    with pytest.raises(ValueError, match="no descriptor of protobuf"):
        ProtobufValues(Schema("no descriptor", "protobuf"))
    with pytest.raises(ValueError, match=r"no descriptor of protobuf.*serialized"):
        ProtobufValues(Schema('syntax = "proto3";', "PROTOBUF", (), 1))
    with pytest.raises(ValueError, match="no message"):
        ProtobufValues(Schema("", "protobuf"))
    with pytest.raises(ValueError, match=r"there is no message shop\.Nothing"):
        ProtobufValues(a_set(), "shop.Nothing")


# ---- a schema in which each part has two of the next


def avro_doubling(parts: int) -> AvroValues:
    field: Any = "long"
    for number in range(parts):
        again = f"R{number - 1}" if number else "long"
        pair = [{"name": "a", "type": field}, {"name": "b", "type": again}]
        field = {"type": "record", "name": f"R{number}", "fields": pair}
    return AvroValues(avro(field))


def json_doubling(parts: int) -> JsonValues:
    pairs = [
        {"properties": {name: {"$ref": f"#/$defs/{number + 1}"} for name in "ab"}}
        for number in range(parts)
    ]
    defs = {str(number): pair for number, pair in enumerate(pairs)} | {str(parts): {"type": "null"}}
    return JsonValues(Schema(json.dumps({"$defs": defs, "$ref": "#/$defs/0"}), "JSON"))


def protobuf_doubling(parts: int) -> ProtobufValues:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number in range(parts):
        message = file.message_type.add(name=f"M{number}")
        for place, name in enumerate("ab", 1):
            field = message.field.add(name=name, number=place, type=kinds.TYPE_INT32, label=1)
            if number + 1 < parts:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".M{number + 1}"
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    return ProtobufValues(Schema(files.SerializeToString().decode("latin-1"), "protobuf"))


@pytest.mark.parametrize("doubling", [avro_doubling, json_doubling, protobuf_doubling])
def test_a_schema_that_says_more_fields_than_can_be_is_refused(
    doubling: Callable[[int], Any],
) -> None:
    """A kilobyte of it took all memory of who read it."""
    assert ddl(doubling(5).type).count("`") == 2 * (2 + 4 + 8 + 16 + 32)
    with pytest.raises(ValueError, match="a schema of more than 10,000 fields"):
        doubling(40)


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_a_schema_that_is_too_deep_is_refused(kind: str) -> None:
    """It is a registry's, perhaps: then a topic's values do not decode, and all else goes on."""
    avro_text, json_text = '"long"', "{}"
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    for number in range(2000):
        fields = f'[{{"name": "a", "type": {avro_text}}}]'
        avro_text = f'{{"type": "record", "name": "R{number}", "fields": {fields}}}'
        json_text = f'{{"properties": {{"a": {json_text}}}}}'
        below = file.message_type.add(name=f"M{number}").field.add(name="a", number=1, label=1)
        below.type, below.type_name = below.TYPE_MESSAGE, f".M{min(number + 1, 1999)}"
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    texts = {"avro": avro_text, "json": json_text,
             "protobuf": files.SerializeToString().decode("latin-1")}  # fmt: skip
    with pytest.raises(ValueError, match=r"too deep in each other|no Avro schema: RecursionError"):
        values_of(kind, Schema(texts[kind], kind), None)
