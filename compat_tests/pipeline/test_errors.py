"""What a person reads when something is missing: one line, the next step, no traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.pipeline.conftest import Pipeline, environment
from compat_tests.pipeline.records import create, fill_plain
from testkit.brokers.nodes import RunningBroker
from testkit.ports import free_ports
from testkit.require import require

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(300)]


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The line that says what is wrong."""
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("barnabas: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_without_java_it_says_what_to_install(command: Pipeline, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    env = environment(PATH=str(bare))
    env.pop("JAVA_HOME", None)
    log_dir = empty_log_dir(tmp_path)
    done = command("segments", log_dir, "--topic", "orders", env=env)
    assert "install a Java runtime, 17 or newer" in complaint(done)
    env["JAVA_HOME"] = str(tmp_path)
    done = command("segments", log_dir, "--topic", "orders", env=env)
    assert "JAVA_HOME" in complaint(done)


def empty_log_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "orders-0"
    folder.mkdir(parents=True)
    return folder.parent


@pytest.mark.slow
def test_without_the_connector_it_says_how_to_reach_one(
    command: Pipeline, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    create(bootstrap, topic_name, 1)
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}/"
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><caches defaultCacheDir="'
        f'{tmp_path}/cache"/><resolvers><ibiblio name="none" m2compatible="true" root="{nowhere}"/>'
        "</resolvers></ivysettings>"
    )
    done = command(
        "archive", "--bootstrap", bootstrap, "--topic", topic_name, "--to", tmp_path / "lake",
        "--conf", f"spark.jars.ivySettings={settings}", "--conf", f"spark.jars.ivy={tmp_path}/ivy",
    )  # fmt: skip
    assert "could not fetch org.apache.spark:spark-sql-kafka-0-10_2.13:" in complaint(done)


def test_without_a_broker_it_says_so_at_once(command: Pipeline, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    for words in (
        ("archive", "--topics", "orders", "--to", tmp_path / "lake"),
        ("replay", "--from", tmp_path / "lake"),
        ("profile", "--topic", "orders"),
    ):
        said = complaint(command(*words, "--bootstrap", address))
        assert address in said
        assert "barnabas start" in said


@pytest.mark.slow
def test_an_unknown_topic_is_named_beside_those_there_are(
    pipeline: Pipeline, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    create(bootstrap, topic_name, 1)
    done = pipeline(
        "archive", "--bootstrap", bootstrap, "--topics", "no-such-topic", "--to", tmp_path / "lake"
    )
    said = complaint(done)
    assert "no topic no-such-topic" in said
    assert not (tmp_path / "lake").exists()


def test_a_wrong_log_directory_is_told_before_spark_starts(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    assert "is no directory" in complaint(pipeline("segments", tmp_path / "no", "--topic", "t"))
    assert "no log directory" in complaint(pipeline("segments", tmp_path, "--topic", "t"))
    data = empty_log_dir(tmp_path)
    assert "there are: orders" in complaint(pipeline("segments", data, "--topic", "t"))
    (data / "orders-0" / f"{0:020d}.log").touch()
    said = complaint(pipeline("segments", data / "orders-0", "--topic", "orders"))
    assert f"give the log directory above it, {data}" in said


@pytest.mark.slow
def test_wrong_and_half_written_archives_are_refused(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    bootstrap = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    create(bootstrap, "orders", 1)
    fill_plain(bootstrap, "orders", 50)
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "thesis.tex").touch()
    archive = ("archive", "--bootstrap", bootstrap, "--topics", "orders", "--to")
    assert "choose an empty directory" in complaint(pipeline(*archive, occupied))
    replay = ("replay", "--bootstrap", bootstrap, "--topic-prefix", "x-", "--from")
    assert "is no archive" in complaint(pipeline(*replay, occupied))
    lake = tmp_path / "lake"
    assert pipeline(*archive, lake).returncode == 0
    other = pipeline(*archive, lake, "--format", "orc")
    assert "was made with --format parquet --partition-by day" in complaint(other)
    next(lake.glob("topic=orders/*/*.parquet")).unlink()
    assert "half-written archive" in complaint(pipeline(*replay, lake))


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_same_command_finishes_later(
    small_disk: Path,
    fresh_broker: Callable[..., RunningBroker],
    command: Pipeline,
    pipeline: Pipeline,
) -> None:
    bootstrap = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    create(bootstrap, "orders", 1)
    fill_plain(bootstrap, "orders", 2000)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 1024 * 1024 - 40 * 1024))
    lake = small_disk / "lake"
    archive = ("archive", "--bootstrap", bootstrap, "--topics", "orders", "--to", lake)
    assert "disk is full" in complaint(command(*archive))
    ballast.unlink()
    done = pipeline(*archive)
    assert done.returncode == 0, done.stderr
    assert "archived 2,000 rows" in done.stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = sys.platform == "linux" and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)],
            capture_output=True, check=False,
        ).returncode == 0
    )  # fmt: skip
    require(mounted, "mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)
