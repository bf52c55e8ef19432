"""The same replay again: what is there is not sent again, what is another one is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.records import create, fill_plain, read_all
from testkit.brokers.nodes import RunningBroker

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_replay_goes_on_where_it_is_and_another_one_is_told_apart(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    bootstrap = fresh_broker({"log.retention.ms": -1}).bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(bootstrap, "a", 1)
    fill_plain(bootstrap, "a", 60)
    lake, topic = tmp_path / "lake", "back-a"
    archive = ("archive", "--bootstrap", bootstrap, "--topics", "a", "--to", lake)
    flags = ("--bootstrap", bootstrap, "--topic-prefix", "back-")

    def replay(*more: object, source: Path = lake) -> str:
        done = pipeline("replay", "--from", source, *flags, *more)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "match the archive" in done.stdout
        return done.stdout

    def refused(*more: object, source: Path = lake) -> str:
        done = pipeline("replay", "--from", source, *flags, *more)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def values() -> list[bytes]:
        return [row[1] for row in read_all(bootstrap, topic, 1)[0]]

    def expected(count: int) -> list[bytes]:
        return [b"v%d" % number for number in range(count)]

    assert pipeline(*archive).returncode == 0
    replay()
    fill_plain(bootstrap, "a", 10, start=60)
    assert pipeline(*archive).returncode == 0
    moved = tmp_path / "moved"
    lake.rename(moved)
    said = replay(source=moved)
    assert "replayed 10 rows" in said, "the archive grew, and its id went with it"
    assert "60 were there from an earlier run" in said
    assert values() == expected(70)

    assert "there are records already in back-a" in refused("--keep-partitions", source=moved)
    assert "replayed 70 rows" in replay("--id", "twice", "--append", source=moved)
    assert "replayed 0 rows" in replay("--id", "twice", "--append", source=moved)
    assert values() == expected(70) * 2

    admin.delete_topics([topic])[topic].result(30)
    assert "replayed 70 rows" in replay(source=moved), "marks do not outlive the topic they are of"
    assert values() == expected(70)

    # Another archive in the place of the first, as one that was restored from an older backup.
    admin.delete_topics(["a"])["a"].result(30)
    create(bootstrap, "a", 1)
    fill_plain(bootstrap, "a", 75, start=1)
    assert pipeline(*archive).returncode == 0
    shutil.copy(moved / "_barnabas" / "archive.json", lake / "_barnabas" / "archive.json")
    said = refused()
    assert "the archive is not the one that an earlier run of this command replayed" in said
    assert "it sent 70 records, up to offset 69 of generation 0; now there are 70" in said
    assert values() == expected(70)
