"""Faults of thought about streams groups; `tests.sim.mutants` names them.

Each is one rule of the group reference replaced by what one might have written instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from server.coordinator.streams_groups.group import StreamsGroup
from server.coordinator.streams_groups.protocol import StreamsGroups

Broken = AbstractContextManager[Any]


def nothing_runs() -> Broken:
    """A task goes to its next process before the one before has given it back."""
    return patch.object(StreamsGroup, "running", lambda *asked: None)


def anybody_commits() -> Broken:
    """ST-22: who was fenced commits on."""
    return patch.object(StreamsGroup, "check_commit", lambda *asked: None)


def sessions_end_with_the_coordinator() -> Broken:
    """CG-9: whoever died before a fail-over is a member for ever."""
    return patch.object(StreamsGroups, "on_loaded", lambda groups: None)


STREAMS_MUTANTS: dict[str, Callable[[], Broken]] = {
    "a task runs in two processes": nothing_runs,
    "a commit of any streams member's epoch counts": anybody_commits,
    "a streams member has no session after a load": sessions_end_with_the_coordinator,
}
