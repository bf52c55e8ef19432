from __future__ import annotations

import argparse
import contextlib
import getpass
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ScramMechanism, UserScramCredentialDeletion

from barnabas.client_commands import users
from barnabas.client_commands.users import password
from server.commands.outcomes import EXIT_USAGE, UserError


class Admin:
    """kafka-python's client of a cluster with these users; a request names each of them once."""

    def __init__(self, **found: dict[ScramMechanism, int]) -> None:
        self.users = found
        self.salts: list[bytes] = []

    def describe_user_scram_credentials(self, names: list[str] | None) -> dict[str, Any]:
        return {
            name: {
                "error": None if name in self.users else "no such user.",
                "credential_infos": [
                    {"mechanism": mechanism, "iterations": iterations}
                    for mechanism, iterations in self.users.get(name, {}).items()
                ],
            }
            for name in (self.users if names is None else names)
        }

    def alter_user_scram_credentials(self, alterations: list[Any]) -> dict[str, str | None]:
        names = [alteration.user for alteration in alterations]
        assert len(set(names)) == len(names)
        for one in alterations:
            if isinstance(one, UserScramCredentialDeletion):
                del self.users[one.user][one.mechanism]
            else:
                self.salts.append(one.salt)
                self.users.setdefault(one.user, {})[one.mechanism] = one.iterations
        self.users = {name: found for name, found in self.users.items() if found}
        return dict.fromkeys(names, None)


SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    users.add_commands(parser.add_subparsers())
    return parser.parse_args(["user", *words])


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts bytes into standard input, which is no terminal."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


def run(admin: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(users, "admin_client", lambda _arguments: contextlib.nullcontext(admin))
    arguments = parsed(*words)
    assert arguments.run(arguments) == 0


def test_users_are_listed_with_each_mechanism(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin(bob={SHA_512: 8192, SHA_256: 4096}, alice={SHA_256: 4096})
    run(admin, monkeypatch, "list")
    assert capsys.readouterr().out.splitlines() == [
        "alice\tSCRAM-SHA-256\t4096",
        "bob\tSCRAM-SHA-256\t4096",
        "bob\tSCRAM-SHA-512\t8192",
    ]
    run(admin, monkeypatch, "list", "alice", "--json")
    told = [{"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096}]
    assert json.loads(capsys.readouterr().out) == told
    with pytest.raises(UserError, match="user 'eve': no such user; `barnabas user list`"):
        run(admin, monkeypatch, "list", "eve")


def test_a_new_password_is_that_of_every_mechanism_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: Any
) -> None:
    """Else the old one would go on to log in by the other."""
    admin = Admin(bob={SHA_512: 4096})
    typed(b"secret\n")
    run(admin, monkeypatch, "set", "bob", "--iterations", "8192")
    assert admin.users == {"bob": {SHA_512: 8192, SHA_256: 8192}}
    typed(b"secret\n")
    run(admin, monkeypatch, "set", "eve", "--mechanism", "SCRAM-SHA-512")
    assert admin.users["eve"] == {SHA_512: 4096}
    assert capsys.readouterr().out.splitlines() == [
        "changed the password of user bob for SCRAM-SHA-256, SCRAM-SHA-512",
        "created user eve for SCRAM-SHA-512",
    ]


def test_each_salt_is_of_the_kind_that_is_shown_for_users_who_are_not_there(
    monkeypatch: pytest.MonkeyPatch, typed: Any
) -> None:
    admin = Admin()
    typed(b"secret\n")
    run(admin, monkeypatch, "set", "bob")
    one, other = admin.salts
    assert one != other
    assert re.fullmatch(rb"[0-9a-z]{20,26}", one)
    assert re.fullmatch(rb"[0-9a-z]{20,26}", other)


def test_deleting_ends_every_mechanism_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin(bob={SHA_256: 4096, SHA_512: 4096}, eve={SHA_512: 4096})
    run(admin, monkeypatch, "delete", "bob", "--mechanism", "SCRAM-SHA-256")
    with pytest.raises(UserError, match="user 'bob' has no SCRAM-SHA-256; `barnabas user list`"):
        run(admin, monkeypatch, "delete", "bob", "--mechanism", "SCRAM-SHA-256")
    assert admin.users == {"bob": {SHA_512: 4096}, "eve": {SHA_512: 4096}}
    with pytest.raises(UserError, match="user 'nobody'"):
        run(admin, monkeypatch, "delete", "bob", "nobody")
    run(admin, monkeypatch, "delete", "bob", "eve")
    assert admin.users == {}
    assert capsys.readouterr().out.splitlines() == [
        "deleted user bob for SCRAM-SHA-256",
        "deleted user bob",
        "deleted user eve",
    ]


def test_a_program_is_told_who_was_set_and_who_was_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: Any
) -> None:
    admin = Admin(eve={SHA_256: 4096})
    typed(b"secret\n")
    run(admin, monkeypatch, "set", "bob", "--json")
    both = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    told = {"user": "bob", "created": True, "mechanisms": both, "iterations": 4096}
    assert json.loads(capsys.readouterr().out) == told
    run(admin, monkeypatch, "delete", "eve", "bob", "eve", "--json")
    assert json.loads(capsys.readouterr().out) == {"deleted": ["eve", "bob"]}


def test_what_the_cluster_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch, typed: Any) -> None:
    class Refusing(Admin):
        def alter_user_scram_credentials(self, alterations: list[Any]) -> dict[str, str | None]:
            return {one.user: "Not so." for one in alterations}

    typed(b"secret\n")
    with pytest.raises(UserError, match=r"user 'bob': Not so$"):
        run(Refusing(), monkeypatch, "set", "bob")


@pytest.mark.parametrize(
    ("data", "found"), [(b"a b\n", "a b"), (b"a\r\n", "a"), ("é".encode(), "é"), (b" a", " a")]
)
def test_a_password_is_a_line_from_a_pipe_a_file_or_the_environment(
    data: bytes,
    found: str,
    tmp_path: Path,
    typed: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who lets others read the file is warned."""
    typed(data)
    assert password(parsed("set", "bob")) == found
    file = tmp_path / "secret"
    file.write_bytes(data)
    for mode, warnings in ((0o600, 0), (0o644, 1)):
        file.chmod(mode)
        assert password(parsed("set", "bob", "--password-file", str(file))) == found
        assert caplog.text.count(f"others may read the secrets in {file}") == warnings
    monkeypatch.setenv("BOBS_PASSWORD", data.decode())
    assert password(parsed("set", "bob", "--password-env", "BOBS_PASSWORD")) == found


@pytest.mark.parametrize("data", [b"", b"\n", b"a\nb\n", b"\xff\n"])
def test_what_is_no_password(data: bytes, typed: Any) -> None:
    typed(data)
    with pytest.raises(UserError, match="standard input"):
        password(parsed("set", "bob"))


def test_a_password_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="none: No such file"):
        password(parsed("set", "bob", "--password-file", str(tmp_path / "none")))
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(UserError, match="the variable NOWHERE"):
        password(parsed("set", "bob", "--password-env", "NOWHERE"))


def test_a_terminal_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    answers = iter(["one", "one", "one", "two"])
    monkeypatch.setattr(getpass, "getpass", lambda _prompt: next(answers))
    assert password(parsed("set", "bob")) == "one"
    with pytest.raises(UserError, match="two passwords"):
        password(parsed("set", "bob"))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "set bob --iterations 4095",
        "set bob --iterations 16385",
        "set bob --iterations many",
        "set bob --password-file f --password-env V",
        "set bob --mechanism PLAIN",
        "delete",
    ],
)
def test_what_cannot_be_meant_and_iterations_that_kafka_does_not_take_are_refused(
    line: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*line.split())
    assert ended.value.code == EXIT_USAGE
