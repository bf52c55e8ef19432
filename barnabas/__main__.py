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
    from barnabas import client_commands, cluster_command
    from pipeline import cli as pipeline_command
    from server.commands.main import main as run

    def extend(commands: Any) -> None:
        client_commands.add_commands(commands)
        cluster_command.add_commands(commands)
        pipeline_command.add_commands(commands)

    return int(run(extend=extend))


if __name__ == "__main__":
    sys.exit(main())
