"""Doing something to every log directory at once, and waiting for those whose disks answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)


class _Job:
    """One directory's, on a thread of its own, since its disk may hang."""

    def __init__(self, name: str, path: Path, job: Callable[[], None]) -> None:
        self._path = path
        self._job = job
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"{name}-{path.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._job()
        except BaseException as error:
            self._error = error

    def wait(self, patience_s: float) -> None:
        self._thread.join(patience_s)
        if self._thread.is_alive():
            logger.error("disk does not answer, its logs stay open log_dir=%s", self._path)
        elif self._error is not None:
            raise self._error


def run_for_each(name: str, jobs: Mapping[Path, Callable[[], None]], patience_s: float) -> None:
    """Run the job of each directory; return when all are done or `patience_s` seconds are over.

    What does not end is logged and left to itself. Raises what a job raised.
    """
    running = [_Job(name, path, job) for path, job in jobs.items()]
    deadline_s = time.monotonic() + patience_s
    for job in running:
        job.wait(max(0.0, deadline_s - time.monotonic()))
