"""Mistakes in the use of the library are told before a process is started."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import barnabas
from barnabas import cluster_run, launch
from barnabas.broker import BrokerError
from barnabas.process import NodeProcess, properties_text, property_texts, write_private
from server.config.kafka_config import load_properties
from storage.checkpoint import DirectoryLock
from testkit.ports import free_block


def test_a_broker_that_was_not_started_has_no_address_and_no_directory() -> None:
    broker = barnabas.Broker()
    assert broker.pid is None
    assert broker.log_text == ""
    assert repr(broker) == "<barnabas.Broker not started yet (not running)>"
    with pytest.raises(BrokerError, match=r"call start\(\), or use it in a `with`"):
        broker.bootstrap_servers  # noqa: B018
    with pytest.raises(BrokerError, match="no data directory before it is started"):
        broker.data_dir  # noqa: B018
    broker.kill()
    broker.stop()


def test_all_that_the_library_has_is_found_by_who_looks() -> None:
    """Notebooks complete names by `dir`; the classes are imported when they are asked for."""
    assert set(barnabas.__all__) <= set(dir(barnabas))
    assert all(callable(getattr(barnabas, name)) for name in barnabas.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Brokr'"):
        barnabas.Brokr  # type: ignore[attr-defined]  # noqa: B018


def test_a_cluster_that_was_not_started_has_no_addresses() -> None:
    cluster = barnabas.Cluster(nodes=2)
    assert cluster.nodes == (1, 2)
    with pytest.raises(BrokerError, match=r"call start\(\), or use it in a `with`"):
        cluster.bootstrap_servers  # noqa: B018


@pytest.mark.parametrize("nodes", [0, "3", 2.5, True])
def test_how_many_nodes_is_a_number(nodes: Any) -> None:
    with pytest.raises(ValueError, match=r"nodes = .*: expected at least 1"):
        barnabas.Cluster(nodes=nodes)


def test_ports_and_addresses_of_another_kind_are_told_at_once() -> None:
    wrong: Any
    for wrong in (0, 65_536, "9092"):
        with pytest.raises(ValueError, match=r"base_port = .*: expected a port, 1 to 65535"):
            barnabas.Cluster(base_port=wrong)
    wrong = 9092
    with pytest.raises(ValueError, match='listen 9092: expected a text, "HOST:PORT"'):
        barnabas.Broker(listen=wrong)


def test_the_address_of_a_node_that_is_not_there_is_refused_as_the_rest_of_it() -> None:
    cluster = barnabas.Cluster(nodes=2)
    for asked in (cluster.address, cluster.pid, cluster.log_text):
        with pytest.raises(ValueError, match="node 3: expected 1 to 2"):
            asked(3)


def test_a_place_that_cannot_be_used_is_told_as_a_brokers_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerError, match="file cannot be used: File exists"):
        barnabas.Cluster(data_dir=tmp_path / "file").start()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: barnabas.Broker().bootstrap_servers,
        lambda: barnabas.Broker(listen="x", config={"listeners": "PLAINTEXT://:9092"}),
        lambda: barnabas.Cluster().address(1),
        lambda: barnabas.Cluster().kill(1),
        lambda: barnabas.Cluster().slow(1, 4, 100),
        lambda: barnabas.Acl("alice", "raed", topic="orders"),
    ],
)
def test_of_a_mistake_pytest_shows_the_users_line_alone(mistake: Callable[[], object]) -> None:
    with pytest.raises((BrokerError, ValueError)) as caught:
        mistake()
    assert {str(entry.path) for entry in caught.traceback.filter(caught)} == {__file__}


def test_in_asynchronous_code_neither_the_loops_lines_are_shown(tmp_path: Path) -> None:
    async def use() -> None:
        async with barnabas.Cluster(data_dir=tmp_path / "file"):
            pass

    (tmp_path / "file").touch()
    with pytest.raises(BrokerError, match="cannot be used") as caught:
        asyncio.run(use())
    names = {entry.path.name for entry in caught.traceback}
    assert not names & {"threads.py", "thread.py"}


def test_a_log_that_was_removed_is_not_shown_as_an_empty_one(tmp_path: Path) -> None:
    process = NodeProcess("node 1", tmp_path / "node-1" / "node.log")
    assert str(process.error("stopped with exit code 1")) == (
        f"node 1 stopped with exit code 1; its log {process.log_path} was removed meanwhile"
    )


def test_a_base_port_whose_ports_are_taken_is_not_written_down(tmp_path: Path) -> None:
    base = free_block(3)
    with socket.create_server(("127.0.0.1", base + 2)):
        cluster = barnabas.Cluster(data_dir=tmp_path, base_port=base)
        with pytest.raises(BrokerError, match=rf"port {base + 2} is in use .* another base port"):
            cluster.start()
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_runs_keeps_its_files_when_another_process_opens_its_directory(
    tmp_path: Path,
) -> None:
    port = free_block(1)
    known = f"cluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnodes=1\nnode.1.plaintext={port}\n"
    (tmp_path / "cluster.properties").write_text(known)
    with socket.create_server(("127.0.0.1", port)):
        cluster = barnabas.Cluster(1, tmp_path, {"num.partitions": 9})
        for _ in range(2):
            with pytest.raises(BrokerError, match=rf"port {port} of the cluster in .* is in use"):
                cluster.start()
    assert [one.name for one in tmp_path.iterdir()] == ["cluster.properties"]
    assert (tmp_path / "cluster.properties").read_text() == known


def test_the_end_of_a_node_that_did_not_start_is_not_told_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(barnabas.Cluster):
        def begin_start(self) -> list[int]:
            raise BrokerError("node 1 did not start: why")

        def stop(self) -> None:
            self.stop = super().stop  # type: ignore[method-assign]
            raise BrokerError("node 2 stopped with exit code 1")

    monkeypatch.setattr(cluster_run, "Cluster", Failing)
    monkeypatch.setattr("server.commands.main.on_stop_signals", lambda _handler: None)
    assert cluster_run.run(tmp_path, 3, None, {}, False) == 1
    assert capsys.readouterr().err == "barnabas: node 1 did not start: why\n"


def test_one_node_has_no_links() -> None:
    with pytest.raises(BrokerError, match="cannot be cut: one node has none"):
        barnabas.Cluster(nodes=1).heal()


def test_a_brokers_data_is_no_place_for_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(BrokerError, match="is the data of one broker: use another directory"):
        barnabas.Cluster(data_dir=tmp_path).start()
    assert [one.name for one in tmp_path.iterdir()] == ["meta.properties"]


def test_a_cluster_beside_a_running_broker_is_told_whose_the_directory_is(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    lock = DirectoryLock(tmp_path)
    assert lock.try_acquire()
    with (
        pytest.raises(BrokerError, match="is the data of one broker"),
        cluster_run._locked(tmp_path),
    ):
        pass
    lock.release()


def test_a_broker_finds_its_directory_again_wherever_the_test_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    broker = barnabas.Broker(data_dir="data")
    monkeypatch.chdir("/")
    assert broker.data_dir == tmp_path / "data"


def test_where_it_listens_is_said_once_and_with_ports() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        barnabas.Broker(config={"listeners": "PLAINTEXT://:9092"}, listen="127.0.0.1:0")
    with pytest.raises(ValueError, match="expected ports"):
        barnabas.Broker(config={"listeners": "PLAINTEXT://a:9092, OTHER://b:0"})


@pytest.mark.parametrize("made", [barnabas.Broker, barnabas.Cluster])
def test_properties_that_cannot_be_meant_are_told_at_once(made: Any) -> None:
    with pytest.raises(ValueError, match="expected a dict such as"):
        made(config="num.partitions=3")
    with pytest.raises(ValueError, match="= None: expected a value; for the default leave it out"):
        made(config={"log.dirs": None})


def test_properties_are_text_as_kafka_writes_it() -> None:
    given = {"a": True, "b": 3, "c": ["PLAIN", "SCRAM-SHA-256"], "d": (), 5: "e"}
    assert property_texts(given) == {  # type: ignore[arg-type]
        "a": "true", "b": "3", "c": "PLAIN,SCRAM-SHA-256", "d": "", "5": "e",
    }  # fmt: skip
    assert property_texts(None) == {}


def test_a_foreign_module_of_our_name_is_not_mixed_with_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = types.ModuleType("server")
    for place in ("/somebody/else/server.py", None):  # None: a folder without __init__.py
        foreign.__file__ = place
        monkeypatch.setitem(sys.modules, "server", foreign)
        with pytest.raises(RuntimeError, match="a foreign module 'server' is already imported"):
            launch.expose_app()
    monkeypatch.undo()
    ours = str(launch.app_dir())
    monkeypatch.setattr(sys, "path", ["first", ours, "last"])
    launch.expose_app()
    launch.expose_app()
    assert sys.path == [ours, "first", ours, "last"]


def test_a_child_runs_our_packages_wherever_it_is_started_and_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of the user's own that has the name of one of ours is not in their way."""
    (tmp_path / "server.py").write_text("raise SystemExit('not ours')\n")
    run = subprocess.run(
        launch.command("random-uuid"), cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (run.stderr, len(run.stdout.strip())) == ("", 22)
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "barnabas" / "launch.py"))
    assert launch.app_dir() == tmp_path, "in a checkout"
    (tmp_path / "barnabas" / "_app").mkdir(parents=True)
    assert launch.app_dir() == tmp_path / "barnabas" / "_app", "installed"


def test_properties_are_written_for_their_owner_alone_and_read_back_as_they_were(
    tmp_path: Path,
) -> None:
    values = {
        "a.b": "plain",
        "c": " \\ \n\t\r é 日本 🐍 = : #",
        "d": "",
        "e": "x " * 3,
        "#f:g h=!\\é": "i",
    }
    path = tmp_path / "server.properties"
    path.touch(0o644)
    write_private(path, properties_text(values))
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_properties(path) == values
