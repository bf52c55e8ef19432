"""How a command ends: exit codes, failures that a person can mend, answers for programs."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2


class UserError(Exception):
    """A failure the person can mend: one line for stderr, and the exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CommandParser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where to read on. Commands below it are of its class, so
    that each speaks of its own flags."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"barnabas: {message}; see {self.prog} --help\n")


def add_json(command: argparse.ArgumentParser) -> None:
    """The flag of commands that can answer a program."""
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def print_json(value: Any) -> None:
    """One JSON document; what is no JSON is its text."""
    import json  # no broker needs it to start

    is_utf8 = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not is_utf8, default=str))
