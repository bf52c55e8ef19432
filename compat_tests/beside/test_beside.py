"""The same requests get the same answers from Barnabas and Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.beside.__main__ import both, run
from testkit import jars
from testkit.require import require

REQUESTS = 400


@pytest.mark.java
@pytest.mark.slow
def test_what_is_asked_side_by_side_is_answered_alike(tmp_path: Path) -> None:
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka: {missing}")
    with both(tmp_path) as brokers:
        found = run(*brokers, "compat", REQUESTS)
    assert not found, "\n".join(found)
