"""Kafka Streams with exactly_once_v2: what it counted is what was there, however often it dies.

The same on three nodes: `compat_tests/cluster/test_streams.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testkit import jars
from testkit.require import require
from testkit.workloads.streams import SHORT_SESSIONS, CountingWords

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_words_are_counted_once_through_deaths_of_application_and_broker(
    fresh_broker: Any, tmp_path: Path, protocol: str
) -> None:
    try:
        jars.streams_class_path()
    except jars.JarsUnavailable as missing:
        require(False, f"Kafka Streams: {missing}")
    broker = fresh_broker(SHORT_SESSIONS)
    with CountingWords(broker.bootstrap_servers, tmp_path, replicas=1, protocol=protocol) as words:
        words.say(600)
        words.start()
        words.await_counts(100)
        words.kill()
        words.say(600)
        words.start()
        words.await_counts(700)
        words.say(600)
        broker.kill()
        broker.start()
        words.await_counts(1_300)
        words.kill()
        words.start()
        words.say(200)
        words.prove()
