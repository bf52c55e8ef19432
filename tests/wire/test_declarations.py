"""The declarations against Apache Kafka's own, field by field."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from wire.frame import FIRST_FLEXIBLE, request_header_version, response_header_version
from wire.messages import AREAS, RECORD_MODULES, find, request_class, response_class
from wire.primitives import uuid_from_text
from wire.schema import REQUIRED, Field, Message, Struct

# Where Kafka has a struct of defaults, we have None: not sent (see wire.schema).
NOT_DECLARED = {
    "RemoteLogSegmentMetadataRecord",
    "RemoteLogSegmentMetadataSnapshotRecord",
    "RemoteLogSegmentMetadataUpdateRecord",
    "RemotePartitionDeleteMetadataRecord",
    "RequestHeader",  # wire.frame reads and writes headers by hand
    "ResponseHeader",
}


def version_range(text: str | None, highest: int) -> tuple[int, int] | None:
    """ "3-7" or "3+" as numbers."""
    if text is None:
        return None
    if text.endswith("+"):
        return int(text[:-1]), highest
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def kafka_default(field: dict[str, Any]) -> Any:
    """A default in Kafka's terms, as the value our blank object has."""
    value = field["default"]
    if value is None:
        return None
    if field["type"] == "uuid":
        return uuid_from_text(value)
    if field["type"] == "bytes":
        return value.encode()
    return value


def compare(
    where: str, ours: tuple[Field, ...], theirs: list[dict[str, Any]], span: tuple[int, int]
) -> list[str]:
    """The differences between our fields and Kafka's, as sentences."""
    plain = [f.name for f in ours if f.tag is None]
    expected_plain = [f["name"] for f in theirs if f["tag"] is None]
    if plain != expected_plain:
        return [f"{where}: wire order {plain}, Kafka has {expected_plain}"]
    if {f.name for f in ours} != {f["name"] for f in theirs}:
        return [f"{where}: other tagged fields than Kafka"]
    found = []
    by_name = {f["name"]: f for f in theirs}
    for field in ours:
        found += compare_field(f"{where}.{field.name}", field, by_name[field.name], span)
    return found


def compare_field(
    where: str, field: Field, fact: dict[str, Any], span: tuple[int, int]
) -> list[str]:
    theirs = version_range(fact["versions"], span[1])
    assert theirs is not None
    since = span[0] if field.since is None else field.since
    until = span[1] if field.until is None else field.until
    null_since = None
    if fact["nullable"]:
        null_range = version_range(fact["nullable"], span[1])
        assert null_range is not None
        null_since = null_range[0]
        # We have no word for "no longer nullable": it never happens within a field's life.
        assert null_range[1] >= min(theirs[1], span[1]), where
    checks = {
        "type": (field.kind, fact["type"]),
        "versions": ((since, until), (max(theirs[0], span[0]), min(theirs[1], span[1]))),
        "nullable": (field.nullable, null_since),
        "tag": (field.tag, fact["tag"]),
    }
    found = [f"{where}: {k} is {a}, Kafka's is {b}" for k, (a, b) in checks.items() if a != b]
    if field.struct is not None:
        found += compare(where, field.struct.schema, fact["fields"], (since, until))
    if fact["default"] == {}:
        tagged_not_null = fact["tag"] is not None and fact["nullable"] is None
        expected = None if tagged_not_null else field.struct and field.struct.blank()
    else:
        expected = kafka_default(fact)
    if field.blank() != expected or type(field.blank()) is not type(expected):
        found.append(f"{where}: default is {field.blank()!r}, Kafka's is {expected!r}")
    return found


def test_every_message_and_record_of_kafka_is_declared(
    kafka: dict[str, Any], classes: dict[str, type[Message]]
) -> None:
    assert set(kafka["schemas"]) - set(classes) == NOT_DECLARED
    assert set(classes) <= set(kafka["schemas"])
    requests = [cls for cls in classes.values() if cls.kind == "request"]
    responses = [cls for cls in classes.values() if cls.kind == "response"]
    assert len(requests) == len(responses) == 89


def test_every_field_equals_kafkas_in_name_type_versions_null_tag_and_default(
    kafka: dict[str, Any], classes: dict[str, type[Message]]
) -> None:
    found = []
    for name, cls in classes.items():
        fact = kafka["schemas"][name]
        span = version_range(fact["versions"], -1)
        flexible = version_range(fact["flexible"], -1)
        assert cls.versions == span, name
        assert cls.flexible == (flexible and flexible[0]), name
        found += compare(name, cls.schema, fact["fields"], cls.versions)
    assert found == []


def test_the_comparison_notices_a_wrong_declaration(kafka: dict[str, Any]) -> None:
    """Guards the test above: each kind of mistake is seen."""
    fields = find("FetchRequest")[0].schema
    for slot, wrong in [
        ("kind", "int8"),
        ("since", 17),
        ("until", 4),
        ("nullable", 4),
        ("tag", 9),
        ("default", 77),
    ]:
        theirs = kafka["schemas"]["FetchRequest"]["fields"]
        field = next(f for f in fields if f.name == "session_id")
        before = getattr(field, slot)
        setattr(field, slot, wrong)
        try:
            assert compare("FetchRequest", fields, theirs, (4, 18)), slot
        finally:
            setattr(field, slot, before)


def test_api_keys_and_type_ids_are_kafkas(
    kafka: dict[str, Any], classes: dict[str, type[Message]]
) -> None:
    for name, cls in classes.items():
        fact = kafka["schemas"][name]
        if cls.kind in ("request", "response"):
            assert cls.api_key == fact["api_key"]  # type: ignore[attr-defined]
            assert cls.kind == fact["kind"]
        elif isinstance(fact.get("type_id"), int):
            assert cls.type_id == fact["type_id"], name  # type: ignore[attr-defined]
        else:
            assert cls.type_id is None, name  # type: ignore[attr-defined]


def test_only_the_version_that_kafka_calls_unstable_is_unstable(kafka: dict[str, Any]) -> None:
    unstable = [
        api["api_key"] for api in kafka["apis"] if api["versions"] != api["stable_versions"]
    ]
    ours = [k for ks in AREAS.values() for k in ks if request_class(k).latest_version_unstable]
    assert sorted(ours) == sorted(unstable)


def test_header_versions_are_kafkas_for_every_api_and_version(kafka: dict[str, Any]) -> None:
    for api in kafka["apis"]:
        key = api["api_key"]
        assert FIRST_FLEXIBLE.get(key) == api["first_flexible"] == request_class(key).flexible
        for version, expected in api["request_header"].items():
            assert request_header_version(key, int(version)) == expected, (key, version)
        for version, expected in api["response_header"].items():
            assert response_header_version(key, int(version)) == expected, (key, version)


def test_the_area_table_finds_every_api() -> None:
    keys = [key for keys in AREAS.values() for key in keys]
    assert len(keys) == len(set(keys)) == 89
    for area, keys_of_area in AREAS.items():
        for key in keys_of_area:
            request, response = request_class(key), response_class(key)
            assert request.api_key == response.api_key == key
            assert request.__module__ == response.__module__ == f"wire.messages.{area}"
            assert request.versions == response.versions
    with pytest.raises(KeyError):
        request_class(7)


def test_importing_one_area_leaves_the_others_alone() -> None:
    code = (
        "import sys; from wire.messages import request_class; request_class(18); "
        "print(sorted(m for m in sys.modules if m.startswith('wire.')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "wire.messages.cluster" in result.stdout
    for module in {*AREAS, *RECORD_MODULES} - {"cluster"}:
        assert f"wire.messages.{module}'" not in result.stdout
    assert "wire.codec" not in result.stdout


def test_every_message_says_in_one_line_what_it_is(classes: dict[str, type[Message]]) -> None:
    for name, cls in classes.items():
        assert cls.__doc__, name
        assert cls.__doc__.endswith((".", ".)")), name


def nested_structs(cls: type[Struct]) -> list[type[Struct]]:
    inner = [f.struct for f in cls.schema if f.struct is not None]
    return [deeper for struct in inner for deeper in (struct, *nested_structs(struct))]


def test_a_nested_struct_lives_in_the_class_that_uses_it(
    classes: dict[str, type[Message]],
) -> None:
    for cls in classes.values():
        for struct in nested_structs(cls):
            assert struct.__qualname__.startswith(cls.__name__ + ".")
            assert not struct.__name__.endswith(("Batche", "Statu", "Indexe", "s" * 2))


def test_fields_that_all_versions_have_must_be_given_and_others_have_defaults(
    classes: dict[str, type[Message]],
) -> None:
    for cls in classes.values():
        for struct in (cls, *nested_structs(cls)):
            for field in struct.schema:
                partial = field.since is not None or field.until is not None
                assert not (partial and field.default is REQUIRED), (cls, field.name)


def test_record_modules_import_alone() -> None:
    for name in RECORD_MODULES:
        assert import_module(f"wire.messages.{name}").__doc__
