"""The `barnabas` command in a process of its own, for tests of what people meet."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

BARNABAS = [sys.executable, "-m", "barnabas"]


def heed_signals() -> None:
    """For `preexec_fn` of whoever is sent Ctrl-C or a hangup: what runs in the background ignores
    the one, what runs under nohup the other, and their children would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run(
    *arguments: str, cwd: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*BARNABAS, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_one_clear_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The mistake is named in the last line, and nothing looks like a crash."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("barnabas"), done.stderr
    for word in words:
        assert word in last
    assert done.stdout == ""
