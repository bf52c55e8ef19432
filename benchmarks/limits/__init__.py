"""The limit of a row: the smallest programs that do only what no broker can leave out.

`server.c` and, to see what the interpreter costs, `echo.py`. Both are processes of their own, as a
broker is, driven by `benchmarks.loads.limits` with the frames that a broker would get.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testkit.compiled import compiled

_SOURCE = Path(__file__).with_name("server.c")


@contextmanager
def running(program: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """`program` is "c" or "python"; yields the address it serves at, and its process id."""
    words = (
        [str(compiled(_SOURCE, "-O2", "-Wall"))]
        if program == "c"
        else [sys.executable, "-m", "benchmarks.limits.echo"]
    )
    with subprocess.Popen(
        [*words, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.stdin.close()
