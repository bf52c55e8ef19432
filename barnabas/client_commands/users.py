"""`barnabas user`: list, set and delete the users who log in by SCRAM.

A password comes from the terminal, a pipe, a file or the environment, never from a flag, which
everybody sees who may list processes; what is sent is salted (KIP-554).
"""

from __future__ import annotations

import argparse
import getpass
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from barnabas.client_commands.acls import explained
from barnabas.client_commands.connection import admin_client, finish, plain
from barnabas.client_commands.output import print_table
from server.commands.outcomes import EXIT_OK, UserError, print_json
from server.config.secret_files import warn_of_others
from server.security.sasl.scram import salt_of

_MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
_ITERATIONS = range(4096, 16_384 + 1)  # what Apache Kafka takes (ScramControlManager)
_LIST = "`barnabas user list` shows who is there"


def add_commands(commands: Any) -> None:
    """Add `user` to the parser."""
    user = commands.add_parser("user", help="users who log in by SCRAM, and their passwords")
    actions = user.add_subparsers(metavar="ACTION", required=True)
    found = actions.add_parser("list", help="the users, and how they may log in")
    found.add_argument("names", metavar="NAME", nargs="*", help="only these")
    finish(found, _list)

    changed = actions.add_parser(
        "set",
        help="make a user, or change the password of one",
        description="Set a user's password, which is asked for on a terminal, and else read from"
        " standard input.",
    )
    changed.add_argument("name", metavar="NAME")
    _add_mechanism(changed, "only for this mechanism, others keep the password they have")
    changed.add_argument(
        "--iterations",
        metavar="N",
        type=_iterations,
        default=_ITERATIONS[0],
        help=f"how often it is hashed, which slows down whoever guesses ({_ITERATIONS[0]})",
    )
    source = changed.add_mutually_exclusive_group()
    source.add_argument(
        "--password-file", metavar="FILE", type=Path, help="the password is the line in this file"
    )
    source.add_argument(
        "--password-env", metavar="VARIABLE", help="the password is in this environment variable"
    )
    finish(changed, _set)

    deleted = actions.add_parser("delete", help="let users log in no more")
    deleted.add_argument("names", metavar="NAME", nargs="+")
    _add_mechanism(deleted, "only by this mechanism")
    finish(deleted, _delete)


def _add_mechanism(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--mechanism", choices=_MECHANISMS, action="append", help=f"{what}; may be given again"
    )


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) in _ITERATIONS):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected {_ITERATIONS[0]} to {_ITERATIONS[-1]}, as Kafka's brokers do"
        )
    return int(text)


def _described(admin: Any, names: list[str] | None) -> dict[str, list[tuple[str, int]]]:
    """Mechanisms and iterations of these users, or of all. Raises UserError for one who is not
    there."""
    answer = admin.describe_user_scram_credentials(names)
    found = {}
    for name in sorted(answer):
        if (error := answer[name]["error"]) is not None:
            raise UserError(f"user {name!r}: {plain(error)}; {_LIST}")
        found[name] = sorted(
            (one["mechanism"].name.replace("_", "-"), one["iterations"])
            for one in answer[name]["credential_infos"]
        )
    return found


def _list(arguments: argparse.Namespace) -> int:
    with admin_client(arguments) as admin, explained():
        found = _described(admin, arguments.names or None)
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, credentials in found.items()
        for mechanism, iterations in credentials
    ]
    if arguments.json:
        print_json(rows)
    else:
        print_table(["USER", "MECHANISM", "ITERATIONS"], [list(row.values()) for row in rows])
    return EXIT_OK


def _set(arguments: argparse.Namespace) -> int:
    from kafka.admin import UserScramCredentialUpsertion

    name, iterations = arguments.name, arguments.iterations
    mechanisms = arguments.mechanism or _MECHANISMS
    secret = password(arguments)
    with admin_client(arguments) as admin, explained():
        is_new = admin.describe_user_scram_credentials([name])[name]["error"] is not None
        for mechanism in mechanisms:  # a request may name a user once only
            salt = salt_of(secrets.token_bytes())
            made = UserScramCredentialUpsertion(name, mechanism, secret, iterations, salt)
            _alter(admin, [made])
    if arguments.json:
        done = {"user": name, "created": is_new, "mechanisms": mechanisms}
        print_json(done | {"iterations": iterations})
    else:
        what = "created user" if is_new else "changed the password of user"
        print(f"{what} {name}{_for(mechanisms)}")
    return EXIT_OK


def _delete(arguments: argparse.Namespace) -> int:
    from kafka.admin import UserScramCredentialDeletion

    names = list(dict.fromkeys(arguments.names))
    with admin_client(arguments) as admin, explained():
        there = _described(admin, names)
        for mechanism in arguments.mechanism or _MECHANISMS:
            found = [name for name in names if mechanism in dict(there[name])]
            if arguments.mechanism and (missing := [n for n in names if n not in found]):
                raise UserError(f"user {missing[0]!r} has no {mechanism}; {_LIST}")
            if found:
                _alter(admin, [UserScramCredentialDeletion(name, mechanism) for name in found])
    if arguments.json:
        print_json({"deleted": names})
    else:
        for name in names:
            print(f"deleted user {name}{_for(arguments.mechanism)}")
    return EXIT_OK


def _for(mechanisms: list[str] | None) -> str:
    return f" for {', '.join(mechanisms)}" if mechanisms else ""


def _alter(admin: Any, alterations: list[Any]) -> None:
    answer = admin.alter_user_scram_credentials(alterations)
    for name, error in answer.items():
        if error is not None:
            raise UserError(f"user {name!r}: {plain(error)}")


def password(arguments: argparse.Namespace) -> str:
    """The password from where it is told to be. Raises UserError."""
    file, variable = arguments.password_file, arguments.password_env
    if variable is not None:
        return _line(os.environb.get(os.fsencode(variable), b""), f"the variable {variable}")
    if file is not None:
        try:
            with open(file, "rb") as opened:
                warn_of_others(file, opened.fileno())
                return _line(opened.read(), str(file))
        except OSError as error:
            raise UserError(f"--password-file {file}: {error.strerror}") from None
    if not sys.stdin.isatty():
        return _line(sys.stdin.buffer.read(), "standard input")
    try:
        first = getpass.getpass(f"Password of {arguments.name}: ")
        again = getpass.getpass("Once more: ")
    except EOFError:
        raise UserError("no password was given") from None
    if first != again:
        raise UserError("these are two passwords: nothing was set")
    return _line(first.encode(), "the terminal")


def _line(data: bytes, where: str) -> str:
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UserError(f"the password in {where} is not UTF-8") from None
    if not text or "\n" in text:
        raise UserError(f"expected the password in {where}: one line that is not empty")
    return text
