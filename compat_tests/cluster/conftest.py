"""How long the tests of this folder go on.

`--broker kafka` runs the same faults against three nodes of Apache Kafka 4.3.1. CHAOS_ROUNDS is
how many rounds of its fault each test does in the long form (`make chaos`); without it each does
the few that fit into a change's checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from testkit.faults.rounds import LONG_FORM


@pytest.fixture(scope="session")
def rounds() -> Callable[[int], int]:
    """`rounds(10)`: ten, or as many as the long form asks for."""
    return lambda short: LONG_FORM or short


@pytest.fixture(scope="session")
def slack(broker_kind: str) -> float:
    """What a time limit is multiplied with: 1 for Barnabas in the long form, on a quiet machine.

    A change's checks share their machine. Three JVMs on two cores are the reference for what is
    right, not for how fast: their times are printed, no more.
    """
    return math.inf if broker_kind == "kafka" else 1 if LONG_FORM else 2
