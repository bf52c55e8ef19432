"""Clusters of real processes: `make_cluster(...)` starts one of this test's own.

`--broker kafka` runs the same faults against three nodes of Apache Kafka 4.3.1. CHAOS_ROUNDS is
how many rounds of its fault each test does in the long form (`make chaos`); without it each does
the few that fit into a change's checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.conftest import BROKERS_USED
from compat_tests.support import jars
from compat_tests.support.clusters import CLUSTERS, ClusterOfNodes
from compat_tests.support.require import require

LONG_ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "0"))


@pytest.fixture(scope="session")
def rounds() -> Callable[[int], int]:
    """`rounds(10)`: ten, or as many as the long form asks for."""
    return lambda short: LONG_ROUNDS or short


@pytest.fixture
def make_cluster(
    broker_kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., ClusterOfNodes]]:
    """Starts a cluster (`start=False` only builds it); every process is killed at the test's end.

    Takes what `clusters.ClusterOfNodes` takes. When the test fails, the end of every node's log
    stands in its report.
    """
    if broker_kind == "kafka":
        try:
            jars.libs()
        except jars.JarsUnavailable as missing:
            require(False, f"Apache Kafka: {missing}")
    made: list[Any] = []
    request.node.stash[BROKERS_USED] = made

    def make(
        config: dict[str, Any] | None = None, *, start: bool = True, **options: Any
    ) -> ClusterOfNodes:
        home = tmp_path / f"cluster-{len(made)}"
        cluster = CLUSTERS[broker_kind](home, config, **options)
        made.append(cluster)
        if start:
            cluster.start()
        return cluster

    yield make
    for cluster in made:
        cluster.close()
