"""kill -9 of an archive that is being written, and what must then be in it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compat_tests.pipeline.conftest import SMALL_SPARK, command_line, environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def start_driver(archive: tuple[Any, ...], tmp_path: Path) -> subprocess.Popen[bytes]:
    """`barnabas pipeline` of these arguments, in a process group of its own."""
    return subprocess.Popen(
        command_line(*archive, *SMALL_SPARK),
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),  # who is killed removes nothing
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for_a_batch(
    driver: subprocess.Popen[bytes],
    traces: Callable[[Path], set[str]],
    lake: Path,
    before: set[str],
) -> None:
    """Until this run has left traces of a batch of its own, or ended."""
    deadline = time.monotonic() + 90
    while not traces(lake) - before and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def kill_driver(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)  # its JVM, too
    driver.wait()


def require_each_once(rows: DataFrame, expected: int) -> None:
    """That the archive holds what `fill_plain` wrote, each record once."""
    found = rows.select("partition", "offset", "value").collect()
    assert len(found) == expected
    assert len({(row.partition, row.offset) for row in found}) == expected
    assert {bytes(row.value) for row in found} == {b"v%d" % number for number in range(expected)}
