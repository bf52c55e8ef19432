"""Mistakes in the flags of decoded columns are told before Spark starts; types without Spark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.typed import flags
from pipeline.typed.columns import TypedOptions, Typing, check_formats, data_ddl
from pipeline.typed.flags import add_flags, typed_options
from testkit.clients.fake_registry import fake_registry


def options(*words: str) -> TypedOptions:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return typed_options(parser.parse_args(words))


def schema_file(folder: Path, **fields: str) -> str:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    path = folder / "schema.json"
    path.write_text(json.dumps({"type": "object", "properties": properties}))
    return str(path)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--value-format", "avro"], "--value-format avro needs --value-schema or --registry"),
        (["--key-schema", "x"], "--key-schema needs --key-format"),
        (["--value-message", "M"], "--value-message needs --value-format"),
        (["--key-subject", "s"], "--key-subject needs --key-format"),
        (["--value-format", "avro", "--value-message", "M"], "goes with --value-format protobuf"),
        (
            ["--value-format", "json", "--value-schema", "x", "--value-subject", "s"],
            "--value-subject goes with --registry",
        ),
        (["--registry", "http://x"], "--registry needs --value-format"),
        (["--value-format", "string", "--value-schema", "x"], "takes no --value-schema"),
        (["--value-format", "json", "--value-schema", "/no/such"], "No such file"),
        (["--value-format", "json", "--registry", "x:80"], "expected http://"),
        (["--value-format", "json", "--registry", "http://[::1"], "expected http://"),
        (["--value-format", "json", "--registry", "http://x,y:80"], "--registry y:80: expected"),
        (["--value-format", "json", "--registry", "me:secret@x:80"], "--registry x:80: expected"),
    ],
)
def test_wrong_flags(words: list[str], why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        options(*words)


def test_a_file_that_is_no_schema(tmp_path: Path) -> None:
    path = tmp_path / "schema"
    path.write_text("{")
    for kind, why in (("json", "no JSON"), ("avro", "no Avro"), ("protobuf", "no descriptor")):
        with pytest.raises(PipelineError, match=rf"--key-schema .*: {why}"):
            options("--key-format", kind, "--key-schema", str(path))


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "is_installed", lambda _: False)
    with pytest.raises(PipelineError, match=r"fastavro; install it with: pip install 'barnabas\["):
        options("--value-format", "avro", "--registry", "http://x")


def test_a_registry_that_is_not_there() -> None:
    with fake_registry() as gone:
        pass
    with pytest.raises(PipelineError, match="does not answer"):
        options("--value-format", "avro", "--registry", gone.url)


def test_a_type_grows_from_run_to_run(tmp_path: Path) -> None:
    words = ["--key-format", "string", "--value-format", "json", "--value-schema"]
    first = Typing(options(*words, schema_file(tmp_path, id="integer")))
    first.look(["orders"])
    changed = options(*words, schema_file(tmp_path, id="string", note="string"))
    second = Typing(changed, json.loads(json.dumps(first.remembered())))
    second.look(["orders"])
    assert second.notes == [
        "the schema file: value_data.id is string and not bigint; what does not fit is in"
        " value_problem"
    ]
    assert data_ddl(second.remembered()) == (
        ", key_data string, key_problem string"
        ", value_data struct<`id`:bigint,`note`:string>, value_problem string"
    )


def test_types_of_all_subjects_are_one_and_a_missing_one_is_told() -> None:
    with fake_registry() as fake:
        for topic, name in (("orders", "id"), ("payments", "paid")):
            text = {"type": "record", "name": topic, "fields": [{"name": name, "type": "long"}]}
            fake.register(f"{topic}-value", {"schema": json.dumps(text)})
        typing = Typing(options("--value-format", "avro", "--registry", fake.url))
        (side,) = typing.look(["payments", "orders", "empty"])
        assert side.type == {"struct": {"id": "bigint", "paid": "bigint"}}
        assert side.schemas["empty"] == "the registry has no subject empty-value"
        assert typing.notes == ["values of empty: the registry has no subject empty-value"]
        fake.failing = 401
        with pytest.raises(PipelineError, match="answers 401"):
            typing.look(["orders"])


def test_an_archive_is_decoded_from_its_first_record_on_or_never(tmp_path: Path) -> None:
    typed = options("--value-format", "json", "--value-schema", schema_file(tmp_path, id="integer"))
    made = Typing(typed).remembered()
    check_formats("lake", made, typed)
    check_formats("lake", None, TypedOptions())
    with pytest.raises(PipelineError, match="was made with --value-format json; give the same"):
        check_formats("lake", made, TypedOptions())
    with pytest.raises(PipelineError, match="was made without --key-format"):
        check_formats("lake", None, typed)
