"""Faults of thought about groups of KIP-848; `tests.sim.mutants` names them.

Each is one rule of the group reference replaced by what one might have written instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from server.coordinator.consumer.group import ConsumerGroup
from server.coordinator.consumer.protocol import ConsumerGroups
from server.coordinator.consumer.step import Step

Broken = AbstractContextManager[Any]


def nothing_is_held() -> Broken:
    """CG-23: a partition goes to its next owner before the one before has given it back."""
    return patch.object(Step, "_is_held", lambda *asked: False)


def anybody_commits() -> Broken:
    """CG-50: who was fenced commits on."""
    return patch.object(ConsumerGroup, "check_commit", lambda *asked: None)


def sessions_end_with_the_coordinator() -> Broken:
    """CG-9: whoever died before a fail-over is a member for ever."""
    return patch.object(ConsumerGroups, "on_loaded", lambda groups: None)


CONSUMER_MUTANTS: dict[str, tuple[Callable[[], Broken], dict[str, Any]]] = {
    "a partition is given before it was given back": (nothing_is_held, {}),
    "a commit of any member epoch counts": (anybody_commits, {"member_stops": 0.2}),
    "members have no session after a load": (sessions_end_with_the_coordinator, {}),
}
"""By the names of `tests.sim.mutants`: what is broken, and options that bring it about."""
