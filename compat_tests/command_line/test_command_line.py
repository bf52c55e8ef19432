"""`barnabas` as a person meets it: ready line, exit codes, and one clear line for each mistake."""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.clients.cli import BARNABAS, assert_one_clear_line, heed_signals, run

READY = re.compile(r"barnabas ready: (127\.0\.0\.1):(\d+) \(node 1, cluster \S{22}, data (\S+)\)\n")


class Started:
    """A `barnabas start` in a process of its own."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*BARNABAS, "start", *arguments],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        self.port = int(match.group(2)) if (match := READY.match(self.ready_line)) else 0

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    broker = Started(tmp_path, "--listen", "127.0.0.1:0")
    yield broker
    if broker.process.poll() is None:
        broker.process.kill()
        broker.process.communicate()


def test_start_uses_barnabas_data_in_the_current_directory_and_says_ready_once(
    started: Started, tmp_path: Path
) -> None:
    match = READY.match(started.ready_line)
    assert match is not None, started.ready_line
    assert Path(match.group(3)).resolve() == (tmp_path / "barnabas-data").resolve()
    with socket.create_connection(("127.0.0.1", started.port), timeout=5):
        pass
    code, out, err = started.stop()
    assert (code, out) == (0, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_cleanly_with_exit_code_0(started: Started, number: int) -> None:
    code, _out, err = started.stop(number)
    assert code == 0
    assert "Traceback" not in err


def test_data_survives_a_restart_and_the_cluster_id_stays(tmp_path: Path) -> None:
    first = Started(tmp_path, "--listen", "127.0.0.1:0")
    first.stop()
    second = Started(tmp_path, "--listen", "127.0.0.1:0")
    second.stop()
    cluster = re.search(r"cluster (\S{22})", first.ready_line)
    assert cluster is not None
    assert cluster.group(1) in second.ready_line


def test_an_occupied_port_is_named_with_the_remedy(started: Started, tmp_path: Path) -> None:
    done = run("start", "--data-dir", str(tmp_path / "b"), "--listen", f"127.0.0.1:{started.port}")
    assert_one_clear_line(done, 1, str(started.port), "--listen")
    assert not (tmp_path / "b" / "meta.properties").exists()


def test_a_directory_in_use_is_named_with_the_remedy(started: Started, tmp_path: Path) -> None:
    done = run("start", "--data-dir", "barnabas-data", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert_one_clear_line(done, 1, "barnabas-data", "--data-dir")
    assert started.process.poll() is None


def test_a_directory_of_another_node_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    text = "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=7\n"
    (data / "meta.properties").write_text(text + "directory.id=BBBBBBBBBBBBBBBBBBBBBB\n")
    before = {p.name: p.read_bytes() for p in data.iterdir()}
    done = run("start", "--data-dir", str(data), "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, 1, "node.id", "7")
    after = {p.name: p.read_bytes() for p in data.iterdir() if p.name != ".lock"}
    assert after == before


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    done = run("start", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, 1, "data", "--data-dir")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    # Nobody can make a directory in /proc, not even root: it fails as a read-only disk does.
    done = run("start", "--data-dir", "/proc/barnabas", "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, 1, "/proc", "--data-dir")


@pytest.mark.parametrize("name", ["quorum-state", "00000000000000000007-0000000001.checkpoint"])
def test_damaged_metadata_is_named_with_the_remedy(
    started: Started, tmp_path: Path, name: str
) -> None:
    started.stop()
    damaged = tmp_path / "barnabas-data" / "__cluster_metadata-0" / name
    damaged.write_bytes(b"\xfe nonsense")
    done = run("start", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert_one_clear_line(done, 1, str(damaged.name), "restore the file", "other nodes")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lissten", "127.0.0.1:0"], ["--lissten"]),
        (["--listen", "nonsense"], ["--listen", "HOST:PORT"]),
        (["--listen", "127.0.0.1:99999"], ["--listen", "65535"]),
        (["--set", "num.partitions"], ["--set", "KEY=VALUE"]),
        (["--set", "num.partitons=3"], ["num.partitons", "num.partitions"]),
        (["--set", "num.partitions=three"], ["num.partitions", "three", "whole number"]),
        (["--set", "num.partitions=0"], ["num.partitions", "at least 1"]),
        (["--set", "log.cleanup.policy=shred"], ["log.cleanup.policy", "compact, delete"]),
        (["--set", "auto.create.topics.enable=perhaps"], ["auto.create.topics.enable", "true"]),
        (["--config", "missing.properties"], ["missing.properties"]),
        (["--data-dir", ""], ["log.dirs", "at least one directory"]),
    ],
)
def test_a_bad_flag_or_config_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = run("start", *arguments, cwd=tmp_path)
    assert_one_clear_line(done, 2, *words)
    assert not (tmp_path / "barnabas-data").exists()


def test_ephemeral_leaves_nothing_behind(tmp_path: Path) -> None:
    broker = Started(tmp_path, "--ephemeral", "--listen", "127.0.0.1:0")
    match = READY.match(broker.ready_line)
    assert match is not None
    directory = Path(match.group(3))
    assert directory.is_dir()
    code, _out, _err = broker.stop()
    assert code == 0
    assert not directory.exists()
    assert not (tmp_path / "barnabas-data").exists()


def test_check_config_accepts_a_kafka_file_and_names_a_mistake(tmp_path: Path) -> None:
    good = tmp_path / "server.properties"
    good.write_text(
        "# as Apache Kafka ships it\nprocess.roles=broker,controller\nnode.id=1\n"
        "controller.quorum.voters=1@localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\n"
        "log.dirs=data\nnum.partitions=3\nlog.retention.hours=168\n"
    )
    done = run("check-config", str(good))
    assert done.returncode == 0, done.stderr
    assert str(good) in done.stdout
    assert json.loads(run("check-config", str(good), "--json").stdout)["keys"] == 8
    bad = tmp_path / "bad.properties"
    bad.write_text("log.retention.hors=1\n")
    assert_one_clear_line(run("check-config", str(bad)), 2, "hors", "log.retention.hours")


def test_the_config_file_is_obeyed_and_flags_win_over_it(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path / 'from-file'}\nlisteners=PLAINTEXT://127.0.0.1:1\n")
    broker = Started(tmp_path, "--config", str(file), "--listen", "127.0.0.1:0")
    assert str(tmp_path / "from-file") in broker.ready_line
    assert broker.port > 1
    assert broker.stop()[0] == 0


def test_demo_shows_records_arriving() -> None:
    done = run("demo")
    assert done.returncode == 0, done.stderr
    assert "consumed" in done.stdout
    assert "Traceback" not in done.stderr


def test_version_names_the_kafka_it_speaks() -> None:
    done = run("version")
    assert done.returncode == 0
    assert re.fullmatch(r"barnabas \d+\.\d+\.\d+ \(speaks Kafka 4\.3\)\n", done.stdout)


def test_health_says_in_one_line_whether_the_broker_answers(started: Started) -> None:
    address = f"127.0.0.1:{started.port}"
    done = run("health", "--bootstrap", address)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        rf"healthy: {address} \(cluster \S{{22}}, 1 broker, \d+ ms\)\n", done.stdout
    )
    told = json.loads(run("health", "--bootstrap", address, "--json").stdout)
    assert (told["address"], told["members"], told["kind"]) == (address, 1, "broker")
    started.stop()
    assert_one_clear_line(run("health", "--bootstrap", address), 1, address, "refused")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_health_refuses_a_timeout_that_is_none(seconds: str) -> None:
    assert_one_clear_line(run("health", f"--timeout={seconds}"), 2, "--timeout", seconds)


def test_start_takes_kafka_variables_only_with_env(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITONS", "3")
    broker = Started(tmp_path, "--listen", "127.0.0.1:0")
    assert broker.stop()[0] == 0
    assert_one_clear_line(run("start", "--env"), 2, "KAFKA_NUM_PARTITONS", "num.partitions")


def test_help_of_every_command_is_short_and_complete() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("start", "dump-log", "check-config", "health", "demo", "version"):
        assert command in done.stdout
    assert "--listen" in run("start", "--help").stdout


def test_dump_log_of_a_missing_or_foreign_file_is_one_line(tmp_path: Path) -> None:
    assert_one_clear_line(run("dump-log", str(tmp_path / "no.log")), 1, "no.log")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert_one_clear_line(run("dump-log", str(tmp_path / "picture.png")), 1, "picture.png")


def test_dump_log_whose_reader_has_gone_says_nothing(tmp_path: Path) -> None:
    entries = b"".join(struct.pack(">II", n, n) for n in range(1, 20_001))
    (tmp_path / f"{0:020}.index").write_bytes(entries)
    with subprocess.Popen(
        [*BARNABAS, "dump-log", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dump:
        assert dump.stdout is not None
        assert dump.stderr is not None
        dump.stdout.readline()
        dump.stdout.close()
        assert dump.stderr.read() == ""
    assert dump.returncode == 0
