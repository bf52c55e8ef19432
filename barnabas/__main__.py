"""The `barnabas` command, and `python -m barnabas`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the process's exit code."""
    from barnabas.launch import expose_app

    expose_app()
    from pipeline.cli import add_commands
    from server.cli import main as run

    return int(run(extend=add_commands))


if __name__ == "__main__":
    sys.exit(main())
