"""The `barnabas` command, and `python -m barnabas`."""

from __future__ import annotations

import sys
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

    # A broker's start waits for no code of commands that are not the broker's.
    return int(run(extend=None if sys.argv[1:2] == ["start"] else _add_commands))


def _add_commands(commands: Any) -> None:
    from barnabas import client_commands, cluster_command
    from pipeline import cli as pipeline_command

    client_commands.add_commands(commands)
    cluster_command.add_commands(commands)
    pipeline_command.add_commands(commands)


if __name__ == "__main__":
    sys.exit(main())
