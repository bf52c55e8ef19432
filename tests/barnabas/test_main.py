"""The `barnabas` command as a whole: what it loads."""

from __future__ import annotations

import subprocess
import sys


def test_a_brokers_start_loads_no_code_of_other_commands() -> None:
    """Every start would wait for it: a fifth of its processor time."""
    command = [sys.executable, "-X", "importtime", "-m", "barnabas", "start", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "usage: barnabas start" in run.stdout
    loaded = [line.rpartition("|")[2].strip() for line in run.stderr.splitlines()]
    assert "server.commands.main" in loaded
    assert not [name for name in loaded if name.startswith(("barnabas.client", "pipeline"))]
