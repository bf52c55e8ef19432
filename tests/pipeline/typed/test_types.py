"""Types of decoded columns: how they merge, and what Spark is told of them."""

from __future__ import annotations

import datetime

import pytest

from pipeline.typed.framing import Undecodable
from pipeline.typed.types import (
    JSON,
    Structs,
    Type,
    arrow,
    converter,
    ddl,
    leaves,
    merged,
    struct,
)


def test_fields_are_added_at_every_depth_and_never_removed() -> None:
    known = struct({"id": "bigint", "lines": {"array": struct({"sku": "string"})}})
    new = struct({"lines": {"array": struct({"sku": "string", "n": "bigint"})}, "note": "string"})
    conflicts: list[str] = []
    both = merged(known, new, "value_data", conflicts)
    assert ddl(both) == (
        "struct<`id`:bigint,`lines`:array<struct<`sku`:string,`n`:bigint>>,`note`:string>"
    )
    assert conflicts == []


def test_a_field_keeps_the_type_it_had_first_and_the_conflict_is_told() -> None:
    conflicts: list[str] = []
    known = struct({"a": struct({"b": "bigint"}), "Name": "string"})
    new = struct({"a": struct({"b": "string"}), "name": "string"})
    assert merged(known, new, "value_data", conflicts) == known
    assert conflicts == [
        "value_data.a.b is string and not bigint",
        "value_data.name differs from Name in case only, and is left out",
    ]


def test_json_text_and_a_string_are_the_same_column() -> None:
    conflicts: list[str] = []
    assert merged("string", JSON, "key_data", conflicts) == "string"
    assert conflicts == []


def test_a_struct_that_spark_cannot_keep_is_json_text() -> None:
    assert struct({}) == JSON
    assert struct({"id": "bigint", "ID": "bigint"}) == JSON
    assert ddl(struct({"odd`name": "date"})) == "struct<`odd``name`:date>"


def test_leaves_are_fields_below_structs() -> None:
    given = struct({"a": struct({"b": "bigint"}), "c": {"array": "string"}})
    assert list(leaves(given)) == [(("a", "b"), "bigint"), (("c",), {"array": "string"})]


def test_maps_become_pairs_and_what_has_no_type_becomes_text() -> None:
    given = struct({"m": {"map": JSON}, "n": "bigint", "l": {"array": {"map": "bigint"}}})
    convert = converter(given, given)
    assert convert is not None
    moment = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)
    value = {"m": {"x": {"at": moment, "raw": b"\xff"}}, "n": 1, "l": [{"y": 2}, None]}
    assert convert(value) == {
        "m": [("x", '{"at": "2026-01-31T00:00:00+00:00", "raw": "\u00ff"}')],
        "n": 1,
        "l": [[("y", 2)], None],
    }
    assert convert(None) is None
    plain = struct({"n": "bigint", "l": {"array": "date"}})
    assert converter(plain, plain) is None


def test_a_field_whose_column_has_another_type_is_refused_unless_it_is_null() -> None:
    own = struct({"a": {"array": struct({"b": "double"})}, "c": "string", "new": "bigint"})
    column = struct({"a": {"array": struct({"b": "bigint"})}, "c": "string"})
    convert = converter(own, column)
    assert convert is not None
    fits = {"a": [{"b": None}], "c": "x", "new": 1}
    assert convert(fits) == fits
    with pytest.raises(Undecodable, match=r"a\[\]\.b is double, and its column bigint"):
        convert({"a": [{"b": 1.0}], "c": "x"})
    text = converter(struct({"a": "bigint"}), struct({"a": JSON}))
    assert text is not None
    assert text({"a": 5}) == {"a": "5"}


@pytest.mark.parametrize(
    ("leaf", "good", "bad"),
    [
        ("bigint", [1, 1.0, None], [1.5, True, "1", [1]]),
        ("double", [1, 1.5, 2**53 + 1, None], [True, "1"]),
        ("boolean", [True, None], [1, "true"]),
        ("string", ["x", None], [1, {"a": 1}]),
        ({"array": "bigint"}, [[], [1, None], None], [1, {"a": 1}, [1.5]]),
        ({"map": "string"}, [{}, {"a": "x"}, None], [[["a", "x"]], {"a": 1}]),
        (struct({"x": "bigint"}), [{}, {"x": 1, "y": "more"}, None], [[["x", 1]], [], 1]),
    ],
)
def test_what_is_not_bound_to_its_schema_is_looked_at(
    leaf: Type, good: list[object], bad: list[object]
) -> None:
    given = struct({"field": leaf})
    convert = converter(given, given, strict=True)
    assert convert is not None
    for value in good:
        convert({"field": value})
    for value in bad:
        with pytest.raises(Undecodable, match=r"^field"):
            convert({"field": value})


def test_a_field_that_its_schema_does_not_name_is_left_out_though_the_column_has_it() -> None:
    """A later schema has taken it away, or it is another topic's: nobody says what is in it."""
    own, column = struct({"b": "string"}), struct({"a": "bigint", "b": "string"})
    convert = converter({"array": own}, {"array": column}, strict=True)
    assert convert is not None
    for a in (1.5, "7", {"k": 1}):  # Arrow would make 1 of 1.5
        assert convert([{"a": a, "b": "x"}, {"a": a}]) == [{"b": "x"}, {}]


def test_only_a_time_of_a_zone_has_one() -> None:
    assert arrow("timestamp").tz == "UTC"
    assert arrow("timestamp_ntz").tz is None


def test_a_types_structs_have_a_bound_of_fields() -> None:
    structs = Structs()
    structs.of({f"f{number}": "bigint" for number in range(5_000)})
    structs.of({f"f{number}": "bigint" for number in range(5_000)})
    with pytest.raises(ValueError, match="a schema of more than 10,000 fields"):
        structs.of({"one more": "bigint"})


def test_json_goes_into_a_column_of_text_only() -> None:
    text, number = converter(JSON, "string"), converter(JSON, "bigint", "f")
    assert text is not None
    assert number is not None
    assert text([1]) == "[1]"
    with pytest.raises(Undecodable, match="f is string, and its column bigint"):
        number([1])


@pytest.mark.parametrize(
    ("own", "named"), [({"struct": {"a": "bigint"}}, "object"), ({"array": "bigint"}, "array")]
)
def test_what_is_no_object_or_array_is_told_as_such(own: Type, named: str) -> None:
    convert = converter(own, own, "f", strict=True)
    assert convert is not None
    with pytest.raises(Undecodable, match=f"f is 7, and no {named}"):
        convert(7)
