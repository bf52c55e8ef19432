"""`barnabas start --secure`: what it makes, and for whom."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from barnabas import authority
from barnabas.__main__ import _add_secure
from barnabas.process import BrokerError
from barnabas.secure_start import prepare, start
from server.commands.client_config import client_config
from server.commands.main import _parser, main, properties
from server.commands.outcomes import UserError
from server.config.environment import read_environment
from server.config.kafka_config import KafkaConfig, load_properties
from server.network.listeners import Listener
from server.security.listener_security import secured_listeners


def let_in(directory: Path) -> str:
    """What the broker's file calls the user that the clients' file is of."""
    security = client_config(argparse.Namespace(client_config=directory / "client.properties"))
    assert security is not None
    user, password = security.login
    return f'user_{user}="{password}"'


def test_the_files_fit_each_other_and_are_used_again(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    server = prepare(directory, "127.0.0.1", {})
    client = directory / "client.properties"
    for private in (server, client, directory / "broker.pem"):
        assert private.stat().st_mode & 0o777 == 0o600
    secured_listeners(
        KafkaConfig(load_properties(server)),
        [Listener("SASL_SSL", "", 1, "SASL_SSL")],
        lambda _mechanism, _user: None,
        lambda _mechanism, _token_id: None,
    )
    jaas = load_properties(server)["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    assert let_in(directory) in jaas
    before = {path: path.read_bytes() for path in directory.iterdir()}
    assert prepare(directory, "127.0.0.1", {}) == server
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("lost", ["client.properties", "server.properties"])
def test_a_file_that_is_lost_is_made_again_with_the_one_that_it_fits(
    tmp_path: Path, lost: str
) -> None:
    prepare(tmp_path, "127.0.0.1", {})
    (tmp_path / lost).unlink()
    server = prepare(tmp_path, "127.0.0.1", {})
    jaas = load_properties(server)["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    assert let_in(tmp_path) in jaas


def test_another_host_has_another_certificate_and_the_same_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, "127.0.0.1", {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert capsys.readouterr().err == ""
    prepare(tmp_path, "broker.example", {})
    changed = {path.name for path in tmp_path.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"ca.pem", "broker.pem"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"barnabas: {tmp_path / 'broker.pem'} was made again, for broker.exam")
    assert line.endswith("need the new ca.pem")


def test_a_certificate_that_is_used_up_is_made_again_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(authority, "_DAYS", 0)
        prepare(tmp_path, "127.0.0.1", {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    prepare(tmp_path, "127.0.0.1", {})
    changed = {path.name for path in tmp_path.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"ca.pem", "broker.pem"}
    (line,) = capsys.readouterr().err.splitlines()
    assert "broker.pem was made again, for 127.0.0.1 and a year: clients elsewhere" in line
    prepare(tmp_path, "127.0.0.1", {})
    assert capsys.readouterr().err == ""


def test_nothing_else_says_where_to_listen(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="listeners: --secure says this already"):
        prepare(tmp_path, "", {"listeners": "PLAINTEXT://:9092"})
    assert not list(tmp_path.iterdir())


def test_a_broker_is_started_where_it_was_told_to_listen_and_nowhere_in_plaintext(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, str] = {}

    def run(arguments: argparse.Namespace) -> int:
        told.update(properties(arguments, read_environment({})))
        return 7

    def started(*flags: str) -> str:
        line = ["start", "--secure", str(tmp_path), *flags]
        assert start(_parser(_add_secure).parse_args(line), run) == 7
        assert let_in(tmp_path) in told["listener.name.sasl_ssl.plain.sasl.jaas.config"]
        return told["listeners"]

    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://:9092")  # is read with --env only
    assert started() == "SASL_SSL://127.0.0.1:9092"
    assert started("--listen", "[::1]:0") == "SASL_SSL://[::1]:0"
    with pytest.raises(UserError, match="listeners: --secure says this already"):
        started("--env")


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["start", "--secure", str(tmp_path / "s")]
    assert main([*there, "--set", "listeners=PLAINTEXT://:1"], _add_secure) == 1
    assert capsys.readouterr().err.startswith("barnabas: config listeners: --secure says this")
    (tmp_path / "file").touch()
    assert main(["start", "--secure", str(tmp_path / "file")], _add_secure) == 1
    assert "file" in capsys.readouterr().err
