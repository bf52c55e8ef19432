"""Topics come and go between two archive runs: what was archived stays, what is asked for comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.records import create, fill_plain, read_all
from testkit.brokers.nodes import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]


class Lake:
    """One broker and one archive of it."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, bootstrap: str, folder: Path
    ) -> None:
        self._spark, self._pipeline = spark, pipeline
        self.bootstrap, self.folder = bootstrap, folder
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def topic(self, name: str, count: int, partitions: int = 1) -> None:
        create(self.bootstrap, name, partitions)
        fill_plain(self.bootstrap, name, count, partitions=partitions)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)

    def archive(self, *flags: object) -> str:
        """What a successful run prints, both streams."""
        done = self._pipeline("archive", "--bootstrap", self.bootstrap, "--to", self.folder, *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def refused(self, *flags: object) -> str:
        done = self._pipeline("archive", "--bootstrap", self.bootstrap, "--to", self.folder, *flags)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def replay(self, *flags: object) -> str:
        done = self._pipeline(
            "replay", "--from", self.folder, "--bootstrap", self.bootstrap, *flags
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def files(self) -> list[str]:
        """The data files that Spark's own reader sees."""
        return list(self._spark.read.parquet(str(self.folder)).inputFiles())

    def rows(self) -> dict[str, int]:
        """Distinct records by topic; fails when one is there twice."""
        frame = self._spark.read.parquet(str(self.folder))
        keys = [row.topic for row in frame.select("topic", "generation", "partition", "offset")
                .distinct().collect()]  # fmt: skip
        assert frame.count() == len(keys)
        return {name: keys.count(name) for name in sorted(set(keys))}


@pytest.fixture
def lake(
    spark: SparkSession,
    fresh_broker: Callable[..., RunningBroker],
    pipeline: Pipeline,
    tmp_path: Path,
) -> Lake:
    broker = fresh_broker({"log.retention.ms": -1})
    return Lake(spark, pipeline, broker.bootstrap_servers, tmp_path / "lake")


def test_command_lines_that_name_other_topics_alternate(lake: Lake) -> None:
    lake.topic("a", 10)
    lake.topic("b", 20, partitions=2)
    lake.archive("--pattern", ".*")
    assert lake.rows() == {"a": 10, "b": 20}
    lake.topic("c", 30)
    fill_plain(lake.bootstrap, "a", 5, start=10)
    assert "archived 35 rows" in lake.archive("--topics", "a,c")
    fill_plain(lake.bootstrap, "b", 4, partitions=2, start=20)
    assert "archived 4 rows" in lake.archive("--pattern", ".*")
    assert "archived 0 rows" in lake.archive("--topics", "c")
    fill_plain(lake.bootstrap, "c", 1, start=30)
    assert "archived 1 row in" in lake.archive("--topics", "c,b")
    assert lake.rows() == {"a": 15, "b": 24, "c": 31}


def test_a_topic_that_was_deleted_and_created_again_is_another_generation(lake: Lake) -> None:
    lake.topic("gone", 7)
    lake.topic("short", 10)
    lake.topic("long", 5)
    lake.archive("--pattern", ".*")
    for name in ("gone", "short", "long"):
        lake.delete(name)
    assert "topic gone is not on the broker any more" in lake.archive("--topics", "gone")
    lake.topic("short", 4)
    lake.topic("long", 9)
    said = lake.archive("--pattern", ".*")
    assert "archived 13 rows" in said
    assert "topic short was deleted and created again" in said
    assert "topic gone is not on the broker any more; its archive stays" in said
    assert lake.rows() == {"gone": 7, "long": 14, "short": 14}
    assert "archived 0 rows" in lake.archive("--topics", "short,long")
    done = lake.replay("--topic", "short", "--keep-partitions", "--append")
    assert "match the archive" in done, "both generations come back, the earlier one first"
    values = [row[1] for row in read_all(lake.bootstrap, "short", 1)[0]]
    assert values[4:] == [b"v%d" % n for n in range(10)] + [b"v%d" % n for n in range(4)]


def test_added_partitions_come_and_records_that_were_really_deleted_are_named(lake: Lake) -> None:
    lake.topic("grows", 4, partitions=1)
    lake.archive("--topics", "grows")
    lake.admin.create_partitions([NewPartitions("grows", 3)])["grows"].result(30)
    fill_plain(lake.bootstrap, "grows", 12, partitions=3, start=4)
    assert "archived 12 rows" in lake.archive("--topics", "grows")
    fill_plain(lake.bootstrap, "grows", 12, partitions=3, start=16)
    where = TopicPartition("grows", 1, 6)  # archived up to 4; 4 and 5 go
    lake.admin.delete_records([where])[where].result(30)
    said = lake.refused("--topics", "grows")
    assert "offsets 4 to 5 of partition grows-1 were deleted" in said
    assert "--skip-lost" in said
    lake.topic("other", 3)
    assert "archived 3 rows" in lake.archive("--topics", "other")
    said = lake.archive("--pattern", ".*", "--skip-lost")
    assert "archived 10 rows" in said
    assert "offsets 4 to 5 of partition grows-1 were deleted" in said
    assert lake.rows() == {"grows": 26, "other": 3}
    assert "archived 0 rows" in lake.archive("--pattern", ".*")


def test_a_moved_archive_is_read_replayed_and_continued(lake: Lake) -> None:
    lake.topic("a", 10)
    lake.archive("--topics", "a", "--max-per-trigger", 1)  # past the log's .compact file
    moved = lake.folder.with_name("moved")
    moved.mkdir()
    lake.folder.rename(moved / "lake")
    lake.folder = moved / "lake"
    assert "match the archive" in lake.replay("--topic-prefix", "back-", "--keep-partitions")
    fill_plain(lake.bootstrap, "a", 5, start=10)
    assert "archived 5 rows" in lake.archive("--topics", "a")
    assert lake.rows() == {"a": 15}
    assert all("/moved/lake/" in one for one in lake.files())
