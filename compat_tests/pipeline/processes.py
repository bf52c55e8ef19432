"""A Spark driver as a process, to be killed: with its JVM, and executors of their own below it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from compat_tests.pipeline.conftest import environment
from compat_tests.pipeline.records import holding
from testkit.wait import eventually

EXECUTOR = "CoarseGrainedExecutorBackend"


class Driver:
    """One after the other, in a folder that has what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start_process(self, *words: object, **settings: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "job.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in words], cwd=self.folder, stdout=log, stderr=log,
                env=environment(TMPDIR=str(self.folder), **settings), start_new_session=True,
            )  # fmt: skip
        return self._process

    def executors(self) -> list[psutil.Process]:
        return [one for one in self._family() if is_executor(one)]

    def kill_driver(self) -> None:
        """The driver only: executors live on until they notice."""
        spared = {one.pid for executor in self.executors() for one in with_children(executor)}
        for process in self._family():
            if process.pid not in spared:
                with suppress(psutil.Error):
                    process.kill()
        assert self._process is not None
        self._process.wait()

    def end(self) -> None:
        """Nothing of it lives on."""
        if self.is_alive():
            for process in self._family():
                with suppress(psutil.Error):
                    process.kill()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")[-4000:]

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None
        return with_children(psutil.Process(self._process.pid))


def is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended meanwhile
        return EXECUTOR in " ".join(process.cmdline())
    return False


def with_children(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def wait_for_an_open_transaction(
    bootstrap: str, topic: str, partitions: int, driver: Driver
) -> None:
    """Until rows are in the topic that no transaction has committed yet."""
    everything = holding(bootstrap, topic, partitions, "read_uncommitted")
    with holding(bootstrap, topic, partitions) as ask_stable, everything as ask_all:
        start = ask_stable()

        def is_open() -> bool:
            assert driver.is_alive(), driver.log()
            stable = ask_stable()
            # More than what a killed run left open: the first batch of this one has ended that.
            return start < stable < ask_all()

        eventually(is_open, timeout_s=600, every_s=0.02)
