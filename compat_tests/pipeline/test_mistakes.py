"""Mistakes that need no Spark to see: one line, exit code 1 or 2, and Spark was never begun."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli import run_command
from pipeline.spark import session


@pytest.fixture(autouse=True)
def spark_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "open_session", begun)


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """What takes connections, as a broker does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def told(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    try:
        ended = run_command([str(word) for word in words])
    except SystemExit as stop:
        ended = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert ended == code, out + err
    assert out == ""
    assert err.startswith("barnabas: ")
    assert err.count("\n") == 1
    return err


def test_what_is_missing_or_wrong_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    to = tmp_path / "lake"
    broker = ("--bootstrap", "localhost:9092")
    assert "--topics or --pattern" in told(capsys, 2, "archive", *broker, "--to", to)
    assert "needs --bootstrap" in told(capsys, 2, "archive", "--topics", "a", "--to", to)
    assert "--to" in told(capsys, 2, "archive", *broker, "--topics", "a")
    assert "--from" in told(capsys, 2, "replay", *broker)
    assert "--bootstrap" in told(capsys, 2, "replay", "--from", to)
    assert "--topic" in told(capsys, 2, "segments", tmp_path)
    said = told(capsys, 2, "archive", *broker, "--topics", "a", "--to", to, "--format", "avro")
    assert "avro" in said
    said = told(capsys, 2, "archive", *broker, "--pattern", "*", "--to", to)
    assert "no regular expression" in said
    assert "expected HOST:PORT" in told(
        capsys, 2, "archive", "--bootstrap", "nowhere", "--topics", "a", "--to", to
    )
    assert not to.exists()


def test_a_broker_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    words = ("archive", "--bootstrap", address, "--topics", "a", "--to", tmp_path / "lake")
    assert f"no broker answers ({address}" in told(capsys, 1, *words)


def test_a_directory_that_cannot_be_written_or_is_of_another_kind(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = ("archive", "--bootstrap", bootstrap, "--topics", "a", "--to")
    (tmp_path / "file").touch()
    assert "file is no directory" in told(capsys, 1, *archive, tmp_path / "file" / "lake")
    made = tmp_path / "made" / "_barnabas"
    made.mkdir(parents=True)
    (made / "archive.json").write_text(json.dumps({"format": "orc", "partition_by": "day"}))
    assert "was made with --format orc" in told(capsys, 1, *archive, made.parent)
    # Who runs the tests may be root, who may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    said = told(capsys, 1, *archive, tmp_path / "new" / "lake")
    assert f"permission denied: {tmp_path} cannot be written" in said


def test_a_source_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bootstrap: str
) -> None:
    replay = ("replay", "--bootstrap", bootstrap, "--from")
    assert "does not exist; check --from" in told(capsys, 1, *replay, tmp_path / "none")
    (tmp_path / "file").touch()
    assert "is no directory" in told(capsys, 1, *replay, tmp_path / "file")
