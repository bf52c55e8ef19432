"""`barnabas format`, `random-uuid` and `cluster` as a person meets them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import barnabas
from testkit.clients.cli import BARNABAS, assert_one_clear_line, heed_signals, run
from testkit.ports import free_block, free_ports

CLUSTER = "JEXY6aqzQY-32P5TStzaFg"


def properties(directory: Path, **changes: str) -> Path:
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093,2@localhost:9095",
        "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
    }
    values |= {key.replace("_", "."): value for key, value in changes.items()}
    file = directory / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


def test_random_uuid_is_an_id_that_format_takes(tmp_path: Path) -> None:
    uuid = run("random-uuid").stdout.strip()
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", uuid)
    done = run("format", "-t", uuid, "-c", str(properties(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"formatted {tmp_path}/data node.id=1 cluster.id={uuid}")
    assert f"cluster.id={uuid}" in (tmp_path / "data" / "meta.properties").read_text()


def test_mistakes_in_format_are_one_line_with_the_next_step(tmp_path: Path) -> None:
    file = str(properties(tmp_path))
    assert run("format", "--cluster-id", CLUSTER, "--config", file).returncode == 0
    again = run("format", "--cluster-id", CLUSTER, "--config", file)
    assert_one_clear_line(again, 1, "--ignore-formatted")
    other = run("format", "--cluster-id", "other", "--config", file, "--ignore-formatted")
    assert_one_clear_line(other, 1, "belongs to cluster")
    flag = run("format", "--cluster-id", CLUSTER, "--config", file, "--standalone")
    assert_one_clear_line(flag, 1, "controller.quorum.voters")
    missing = run("format", "--cluster-id", CLUSTER, "--config", str(tmp_path / "none"))
    assert_one_clear_line(missing, 2, "cannot be read")
    id_ = run("format", "--cluster-id", "no spaces please", "--config", file)
    assert_one_clear_line(id_, 2, "--cluster-id")


def test_a_node_of_a_cluster_does_not_start_unformatted(tmp_path: Path) -> None:
    port, controller = free_ports(2)
    file = properties(
        tmp_path,
        listeners=f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
    )
    done = run("start", "--config", str(file))
    assert_one_clear_line(done, 1, "barnabas format", "barnabas random-uuid")
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_a_voter_set_without_this_node_is_refused(tmp_path: Path) -> None:
    done = run("start", "--config", str(properties(tmp_path, node_id="7")))
    assert_one_clear_line(done, 2, "controller.quorum.voters", "must be in the set")


def test_status_of_nobody_is_one_line() -> None:
    (port,) = free_ports(1)
    done = run("cluster", "status", "--bootstrap", f"127.0.0.1:{port}")
    assert_one_clear_line(done, 1, "no answer", "refused")


def test_status_of_a_node_alone() -> None:
    with barnabas.Broker() as broker:
        done = run("cluster", "status", "--bootstrap", broker.bootstrap_servers)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 brokers alive, quorum led by node 1" in done.stdout
    assert "partitions: 0, 0 with a problem" in done.stdout


def test_status_names_who_is_missing_at_once_and_a_lost_quorum() -> None:
    with barnabas.Cluster(nodes=3, proxied=False) as cluster:
        everyone = cluster.bootstrap_servers
        whole = run("cluster", "status", "--bootstrap", everyone)
        assert (whole.returncode, whole.stderr) == (0, ""), whole.stdout
        cluster.kill(1)
        began = time.monotonic()
        one_less = run("cluster", "status", "--bootstrap", everyone)
        assert time.monotonic() - began < 8  # before its broker session, of 9 s, has ended
        assert one_less.returncode == 1
        assert "missing: node 1: Connection refused" in one_less.stdout
        as_json = run("cluster", "status", "--bootstrap", everyone, "--json")
        assert as_json.returncode == 1
        told = json.loads(as_json.stdout)
        assert not told["is_whole"]
        assert [node["broker"] for node in told["nodes"]] == ["missing", "alive", "alive"]
        assert told["nodes"][0]["failure"] == "Connection refused"
        assert sorted(node["quorum_role"] for node in told["nodes"]) == ["leader", "voter", "voter"]
        last = cluster.address(3)
        assert run("health", "--bootstrap", last).returncode == 0, "two of three are a majority"
        cluster.kill(2)  # node 3, if it leads, does so for another 3 s
        assert_one_clear_line(run("health", "--bootstrap", last), 1, "quorum lost")
        lost = run("cluster", "status", "--bootstrap", everyone, "--timeout", "2")
        assert lost.returncode == 1
        assert "1 of 3 brokers alive, quorum lost" in lost.stdout
        assert "missing: node 2: Connection refused" in lost.stdout
        cluster.kill(3)


@pytest.mark.parametrize(
    "arguments", [("--nodes", "0"), ("--base-port", "x"), ("--set", "a"), ("--nodes", "many")]
)
def test_a_bad_flag_of_cluster_start_is_refused(arguments: tuple[str, str], tmp_path: Path) -> None:
    done = run("cluster", "start", "--data-dir", str(tmp_path / "c"), *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("arguments", [("--timeout", "nan"), ("--timeout", "-1")])
def test_a_bad_flag_of_cluster_status_is_refused(arguments: tuple[str, str]) -> None:
    done = run("cluster", "status", *arguments)
    assert done.returncode == 2
    assert "expected seconds" in done.stderr


def test_a_cluster_directory_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    done = run("cluster", "start", "--data-dir", str(tmp_path / "c"))
    assert_one_clear_line(done, 1, str(tmp_path / "c"), "--data-dir")
    done = run("cluster", "start", "--data-dir", str(tmp_path / "d"), "--set", "foo=1")
    assert_one_clear_line(done, 1, "foo", "unknown key")
    assert len(done.stderr.splitlines()) == 1


class StartedCluster:
    """A `barnabas cluster start` in a process of its own, until it is ready."""

    def __init__(self, directory: Path, *flags: str, base: int | None = None) -> None:
        self.base = free_block(6) if base is None else base
        self.process = subprocess.Popen(
            [*BARNABAS, "cluster", "start", "--data-dir", directory, "--base-port", str(self.base),
             *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("barnabas cluster ready")

    def stop(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _out, err = self.process.communicate(timeout=40)
        return self.process.returncode, err


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StartedCluster]:
    """In `tmp_path / "c"`."""
    started = StartedCluster(tmp_path / "c")
    with started.process:
        yield started
        started.process.kill()


def test_a_second_cluster_start_in_a_directory_is_refused_and_the_first_goes_on(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    before = (tmp_path / "c" / "node-1" / "server.properties").read_bytes()
    done = run("cluster", "start", "--data-dir", str(tmp_path / "c"), "--set", "num.partitions=9")
    assert_one_clear_line(done, 1, "in use", "--data-dir")
    assert (tmp_path / "c" / "node-1" / "server.properties").read_bytes() == before
    code, err = cluster.stop(signal.SIGHUP)
    assert code == 0, err
    other = run("cluster", "start", "--data-dir", str(tmp_path / "c"), "--base-port", "4000")
    assert_one_clear_line(other, 1, f"base port is {cluster.base}", "4000")


def test_ctrl_c_ends_a_cluster_of_which_a_node_is_stopped(cluster: StartedCluster) -> None:
    status = run("cluster", "status", "--bootstrap", f"127.0.0.1:{cluster.base}")
    assert "3 of 3 brokers alive" in status.stdout
    assert cluster.process.stderr is not None
    pids = [re.search(r"pid (\d+)", cluster.process.stderr.readline()) for _node in range(3)]
    assert pids[1] is not None
    os.kill(int(pids[1].group(1)), signal.SIGSTOP)
    code, err = cluster.stop(signal.SIGINT)
    assert code == 0, err


def test_a_secured_cluster_in_one_line(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    file = directory / "client.properties"
    base = free_block(6)
    passwords = set()
    for flags in (("--secure",), ()):  # made secure, it stays so
        started = StartedCluster(directory, *flags, base=base)
        try:
            where = ("--bootstrap", f"127.0.0.1:{started.base}", "--client-config", str(file))
            status = run("cluster", "status", *where)
            assert "3 of 3 brokers alive" in status.stdout, status.stderr
            assert {p.stat().st_mode & 0o077 for p in directory.glob("*/server.properties")} == {0}
            assert file.stat().st_mode & 0o077 == 0
            assert run("cluster", "restart", "2", "--data-dir", str(directory)).returncode == 0
            assert run("topic", "list", *where).returncode == 0
            assert run("topic", "list", *where[:2], "--timeout", "2").returncode == 1
            code, err = started.stop(signal.SIGTERM)
            assert code == 0, err
            assert f"--client-config {file}" in err
        finally:
            started.process.kill()
            started.process.communicate()
        passwords.add(file.read_text())
    assert len(passwords) == 1


def test_one_node_is_killed_restarted_and_stopped_from_another_terminal(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    where = ("--data-dir", str(tmp_path / "c"))
    bootstrap = ("--bootstrap", f"127.0.0.1:{cluster.base}")
    killed = run("cluster", "kill", "2", *where)
    assert re.fullmatch(r"node 2 killed \(pid \d+\)\n", killed.stdout), killed.stderr
    assert "missing: node 2" in run("cluster", "status", *bootstrap).stdout
    assert_one_clear_line(run("cluster", "stop", "2", *where), 1, "node 2 does not run")
    for node in (2, 3):  # one that was dead and one that runs
        back = run("cluster", "restart", str(node), *where)
        address = f"127.0.0.1:{cluster.base + node - 1}"
        assert back.stdout.startswith(f"node {node} ready at {address}"), back.stderr
        assert run("health", "--bootstrap", address).returncode == 0
    assert "3 of 3 brokers alive" in run("cluster", "status", *bootstrap).stdout
    stopped = run("cluster", "stop", "1", *where)
    assert stopped.stdout.startswith("node 1 stopped"), stopped.stderr
    code, err = cluster.stop(signal.SIGTERM)
    assert code == 0, err
    assert "node 2 has ended; bring it back with `barnabas cluster restart 2`" in err
    assert re.search(r"node 2 is back   pid \d+", err)
    # Those that were brought back ended with the rest.
    for node in (2, 3):
        log = (tmp_path / "c" / f"node-{node}" / "node.log").read_text()
        assert "broker stopped" in log.splitlines()[-1], log[-500:]


def test_a_cluster_is_stopped_from_another_terminal(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    where = ("--data-dir", str(tmp_path / "c"))
    stopped = run("cluster", "stop", *where)
    assert stopped.stdout == f"cluster stopped (pid {cluster.process.pid})\n", stopped.stderr
    assert cluster.process.wait(5) == 0
    for node in (1, 2, 3):
        log = (tmp_path / "c" / f"node-{node}" / "node.log").read_text()
        assert "broker stopped" in log.splitlines()[-1], log[-500:]
    assert_one_clear_line(run("cluster", "stop", *where), 1, "no `barnabas cluster start` runs")


def test_a_node_that_was_started_by_hand_stops_with_the_rest(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    assert run("cluster", "kill", "3", "--data-dir", str(tmp_path / "c")).returncode == 0
    config = str(tmp_path / "c" / "node-3" / "server.properties")
    with subprocess.Popen(
        [*BARNABAS, "start", "--config", config],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_signals,
    ) as by_hand:
        assert by_hand.stdout is not None
        assert by_hand.stdout.readline().startswith("barnabas ready")
        code, err = cluster.stop(signal.SIGTERM)
        assert (code, by_hand.wait(5)) == (0, 0), err


def test_a_restarted_node_does_not_outlive_the_cluster(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    where = ("--data-dir", str(tmp_path / "c"))
    back = run("cluster", "restart", "2", *where)
    pid = re.search(r"\(pid (\d+)\)", back.stdout)
    assert pid is not None, back.stderr
    cluster.process.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid.group(1)}/cmdline").exists():
        assert time.monotonic() < deadline, "node 2 runs on"
        time.sleep(0.05)


def test_a_node_of_no_cluster_is_one_line(cluster: StartedCluster, tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path / "c"))
    assert_one_clear_line(run("cluster", "kill", "4", *where), 1, "no node 4", "[1, 2, 3]")
    elsewhere = run("cluster", "restart", "1", "--data-dir", str(tmp_path / "d"))
    assert_one_clear_line(elsewhere, 1, "no `barnabas cluster start` runs", "--data-dir")
    assert run("cluster", "stop", "x", *where).returncode == 2


def test_cluster_start_is_one_command_and_keeps_the_cluster(tmp_path: Path) -> None:
    ids = []
    base = free_block(12)
    for _run in range(2):
        process = subprocess.Popen(
            [*BARNABAS, "cluster", "start", "--data-dir", "c", "--base-port", str(base)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"barnabas cluster ready: 127.0.0.1:{base},127.0.0.1:{base + 1},")
        ids.append(re.search(r"cluster (\S{22}),", line))
        status = run("cluster", "status", "--bootstrap", f"127.0.0.1:{base + 2}")
        assert "3 of 3 brokers alive" in status.stdout, status.stdout + status.stderr
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out == ""
    assert ids[0] is not None
    assert ids[1] is not None
    assert ids[0].group(1) == ids[1].group(1)
    for node in (1, 2, 3):
        log = (tmp_path / "c" / f"node-{node}" / "node.log").read_text()
        assert "broker started" in log
        assert "broker stopped" in log
        assert "ERROR" not in log
