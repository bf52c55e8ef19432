"""The `barnabas` command, and `python -m barnabas`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the command line; returns the process's exit code."""
    try:
        return _main()
    except KeyboardInterrupt:  # while all this was imported
        return 130


def _main() -> int:
    from barnabas.launch import expose_app

    expose_app()
    from server.commands.main import main as run

    return int(run(extend=_extend))


def _extend(commands: Any) -> None:
    _add_secure(commands)
    if sys.argv[1:2] != ["start"]:  # which waits for no code of commands that are not the broker's
        _add_commands(commands)


def _add_secure(commands: Any) -> None:
    """`start --secure`, whose code no other start waits for."""
    start = commands.choices["start"]
    start.add_argument(
        "--secure",
        metavar="DIR",
        nargs="?",
        type=Path,
        const=Path("barnabas-secure"),
        help="serve SASL_SSL only: certificates, a user and a file for clients are made in DIR"
        " (./barnabas-secure), and used again at the next start",
    )
    run = start.get_default("run")

    def secured(arguments: Any) -> int:
        if arguments.secure is None:
            return int(run(arguments))
        from barnabas.secure_start import start as start_secured

        return start_secured(arguments, run)

    start.set_defaults(run=secured)


def _add_commands(commands: Any) -> None:
    from barnabas import client_commands, cluster_command
    from pipeline import cli as pipeline_command

    client_commands.add_commands(commands)
    cluster_command.add_commands(commands)
    pipeline_command.add_commands(commands)


if __name__ == "__main__":
    sys.exit(main())
