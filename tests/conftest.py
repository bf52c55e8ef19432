"""Nobody leaves anything behind: a test that ends with a thread or a socket more than it began with
fails, not the one after it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator

import pytest

_FDS = "/proc/self/fd"


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Threads that run and sockets that are open when the test and its fixtures have ended."""
    threads, sockets = set(threading.enumerate()), _sockets()
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    assert left == [], "threads go on"
    if len(_sockets() - sockets) > 0:
        gc.collect()  # a test that failed keeps its frames, and what they hold, for the report
    assert _sockets() - sockets == set(), "sockets are open"


def _sockets() -> set[str]:
    """The inodes of this process's sockets (Linux; elsewhere none are seen)."""
    if sys.platform != "linux":
        return set()
    found = set()
    for fd in os.listdir(_FDS):
        try:
            target = os.readlink(f"{_FDS}/{fd}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
