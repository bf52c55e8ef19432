"""The limit of a row: the smallest programs that do only what no broker can leave out.

`server.c` and, to see what the interpreter costs, `echo.py`. Both are processes of their own, as a
broker is, driven by `benchmarks.loads.limits` with the frames that a broker would get.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testkit.jars import CACHE_DIR
from testkit.require import require_command

_SOURCE = Path(__file__).with_name("server.c")


def compiled() -> str:
    """The C server, built once for each version of its source by the machine's `cc`."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    built = CACHE_DIR.parent / f"limit-server-{digest}"
    if not built.exists():
        compiler = require_command("cc", "apt-get install gcc libc6-dev")
        built.parent.mkdir(parents=True, exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-Wall", "-o", str(fresh), str(_SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
        fresh.rename(built)
    return str(built)


@contextmanager
def running(program: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """`program` is "c" or "python"; yields the address it serves at, and its process id."""
    words = [compiled()] if program == "c" else [sys.executable, "-m", "benchmarks.limits.echo"]
    with subprocess.Popen(
        [*words, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.stdin.close()
