"""How a command ends: exit codes, failures that a person can mend, answers for programs."""

from __future__ import annotations

import argparse
from typing import Any

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2


class UserError(Exception):
    """A failure the person can mend: one line for stderr, and the exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_json(command: argparse.ArgumentParser) -> None:
    """The flag of commands that can answer a program."""
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def print_json(value: Any) -> None:
    """One JSON document; what is no JSON is its text."""
    import json  # no broker needs it to start

    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))
