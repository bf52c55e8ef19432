"""Nobody leaves anything behind: a test that ends with a thread or a socket more than it began with
fails, not the one after it. And no test fails by luck: threads may take turns at any moment, and
Hypothesis draws the same examples each time, however slowly (--hypothesis-profile=default: others).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

_FDS = "/proc/self/fd"
_ENDS_WITHIN_S = 10
_FILES_MAX = 400
"""So many may lie in garbage: those of processes that died within tests. select() takes 1,024."""


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Threads that run and sockets that are open when the test and its fixtures have ended."""
    threads, sockets = set(threading.enumerate()), _sockets(_open_files())
    yield
    left = [thread for thread in threading.enumerate() if thread not in threads]
    for thread in left:
        thread.join(_ENDS_WITHIN_S)  # it may have been told to end, and not have had its turn
    assert [thread.name for thread in left if thread.is_alive()] == [], "threads go on"
    files = _open_files()
    if len(_sockets(files) - sockets) > 0 or len(files) > _FILES_MAX:
        gc.collect()  # a test that failed keeps its frames, and what they hold, for the report
        files = _open_files()
    assert _sockets(files) - sockets == set(), "sockets are open"


@pytest.fixture
def in_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts this process into a zone, until the test ends."""

    def enter(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield enter
    monkeypatch.undo()
    time.tzset()


def _open_files() -> list[str]:
    """What this process's descriptors are of (Linux; elsewhere none are seen)."""
    found = []
    for fd in os.listdir(_FDS) if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # the one that was listed with
            found.append(os.readlink(f"{_FDS}/{fd}"))
    return found


def _sockets(files: list[str]) -> set[str]:
    """Their inodes."""
    return {file for file in files if file.startswith("socket:")}
