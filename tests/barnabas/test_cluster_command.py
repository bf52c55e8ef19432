"""`barnabas cluster`: what its flags may say, what is run with them, and what becomes of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from barnabas import cluster_command
from server.commands import cluster_status
from testkit.ports import free_ports


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cluster_command.add_commands(parser.add_subparsers())
    return parser.parse_args(["cluster", *words])


def run(*words: str) -> int:
    arguments = parsed(*words)
    return int(arguments.run(arguments))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("", ("barnabas-cluster", 3, None, {}, False)),
        ("--data-dir d --nodes 1 --base-port 1", ("d", 1, 1, {}, False)),
        ("--nodes 99 --base-port 65000 --secure", ("barnabas-cluster", 99, 65_000, {}, True)),
        ("--set a=1 --set b=x=y", ("barnabas-cluster", 3, None, {"a": "1", "b": "x=y"}, False)),
    ],
)
def test_a_cluster_is_started_as_the_flags_say(
    flags: str, told: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(directory: Path, *rest: object) -> int:
        assert (str(directory), *rest) == told
        return 7

    monkeypatch.setattr("barnabas.cluster_run.run", started)
    assert run("start", *flags.split()) == 7


@pytest.mark.parametrize("pair", ["a", "=1", " =1"])
def test_a_property_without_a_name_or_a_value_is_a_mistake(
    pair: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("barnabas.cluster_run.run", lambda *_told: 7)
    assert run("start", "--set", pair) == 2
    assert capsys.readouterr().err == f"barnabas: --set {pair!r}: expected KEY=VALUE\n"


@pytest.mark.parametrize(
    "line",
    [
        "", "kill", "restart", "kill 0", "stop 100", "restart x", "start --nodes 0",
        "start --nodes 100", "start --nodes \u00b2", "start --nodes \u0663",
        "start --base-port 0", "start --base-port 65001", "status --timeout 0",
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_done(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*line.split())
    assert ended.value.code == 2


@pytest.mark.parametrize("action", ["kill", "stop", "restart"])
def test_what_is_done_to_a_node_is_what_was_asked_for(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def act(*told: object) -> int:
        done.append(told)
        return 7

    monkeypatch.setattr("barnabas.cluster_nodes.act", act)
    assert run(action, "2", "--data-dir", "d") == run(action, "1") == 7
    assert done == [(action, Path("d"), 2), (action, Path("barnabas-cluster"), 1)]


def test_without_a_node_all_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Path] = []
    monkeypatch.setattr("barnabas.cluster_nodes.stop_all", lambda where: done.append(where) or 7)
    assert run("stop") == run("stop", "--data-dir", "d") == 7
    assert done == [Path("barnabas-cluster"), Path("d")]


def test_a_cluster_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    assert run("status", "--bootstrap", address) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("barnabas: no answer")
    assert address in said.err


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_status_is_told_for_people_and_for_programs_and_by_the_exit_code(
    is_whole: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Status:
        def __init__(self) -> None:
            self.is_whole = is_whole

        def lines(self) -> list[str]:
            return ["one", "two"]

        def document(self) -> dict[str, bool]:
            return {"is_whole": self.is_whole}

    asked: list[object] = []

    def ask(*told: object) -> Status:
        asked.append(told)
        return Status()

    monkeypatch.setattr(cluster_status, "ask", ask)
    code = 0 if is_whole else 1
    assert run("status") == code
    assert capsys.readouterr().out == "one\ntwo\n"
    assert run("status", "--bootstrap-server", "a:1", "--timeout", "0.5", "--json") == code
    assert json.loads(capsys.readouterr().out) == {"is_whole": is_whole}
    assert asked == [([("127.0.0.1", 9092)], 5.0, None), ([("a", 1)], 0.5, None)]
    assert parsed("status", "--client-config", "f").client_config == Path("f")
