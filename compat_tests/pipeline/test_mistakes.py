"""Mistakes that need no Spark to see: one line, exit code 1 or 2, and Spark was never begun."""

from __future__ import annotations

import errno
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import barnabas
from compat_tests.pipeline.records import create, fill_plain
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
    said = told(capsys, 2, "archive", *broker, "--topics", "a", "--to", to, "--compact")
    assert "--compact takes no --bootstrap, --topics" in said
    said = told(capsys, 2, "archive", "--to", to, "--compact", "--dry-run")
    assert "--compact takes no --dry-run" in said
    said = told(capsys, 2, "replay", *broker, "--from", to, "--since", 2000, "--until", 2000)
    assert "--until is not after --since" in said
    assert not to.exists()


def test_a_broker_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    words = ("archive", "--bootstrap", address, "--topics", "a", "--to", tmp_path / "lake")
    assert f"no broker answers ({address}" in told(capsys, 1, *words)


def test_a_topic_that_the_broker_has_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with barnabas.Broker() as broker:
        bootstrap = broker.bootstrap_servers
        create(bootstrap, "orders", 1)
        archive = ("archive", "--bootstrap", bootstrap, "--to", tmp_path / "lake", "--topics")
        said = f"no topic order on {bootstrap}; there are: orders"
        assert said in told(capsys, 1, *archive, "order,orders")
        assert said in told(capsys, 1, "profile", "--bootstrap", bootstrap, "--topic", "order")


def test_segments_and_rescue_know_what_they_would_do_without_spark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with barnabas.Broker() as broker:
        create(broker.bootstrap_servers, "orders", 2)
        fill_plain(broker.bootstrap_servers, "orders", 10, partitions=2)
        create(broker.bootstrap_servers, "payments", 1)
        data_dir, to = broker.data_dir, tmp_path / "lake"
        assert "a broker runs on" in told(capsys, 1, "rescue", data_dir, "--to", to)
        broker.kill()
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "a").touch()
        assert "is not empty" in told(capsys, 1, "rescue", data_dir, "--to", tmp_path / "full")
        segments = ("segments", data_dir, "--to", to, "--topic")
        assert "is of one topic" in told(capsys, 2, *segments, "orders,payments", "--offsets", "1-")
        assert "no topic 'order'" in told(capsys, 1, *segments, "order")
        assert run_command([*map(str, segments), "orders,payments", "--log-end", "--dry-run"]) == 0
        assert "would read 3 segments" in capsys.readouterr().out
        assert run_command(["rescue", str(data_dir), "--to", str(to), "--dry-run"]) == 0
        assert "would rescue 2 topics" in capsys.readouterr().out
        assert not to.exists()


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

    def refuse(dir: str) -> None:  # who runs the tests may be root, who may write everywhere
        raise PermissionError(errno.EACCES, "Permission denied", dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    said = told(capsys, 1, *archive, tmp_path / "new" / "lake")
    assert f"permission denied: {tmp_path} cannot be written" in said


def test_a_source_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bootstrap: str
) -> None:
    replay = ("replay", "--bootstrap", bootstrap, "--from")
    assert "does not exist; check --from" in told(capsys, 1, *replay, tmp_path / "none")
    (tmp_path / "file").touch()
    assert "is no directory" in told(capsys, 1, *replay, tmp_path / "file")
