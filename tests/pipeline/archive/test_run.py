"""What a run of `archive` does when, beside a broker that goes on: no Spark, and no waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.archive import archive
from pipeline.archive.archive import ArchiveOptions
from pipeline.archive.state import ArchivedTopic, Range, State
from pipeline.archive.table import Moment
from pipeline.broker_facts import Bounds, BrokerTopic, Committed


class Broker:
    """One topic, which `happens` changes before every look; it is asked like KafkaAdmin."""

    def __init__(self, happens: Callable[[Broker], None] = lambda broker: None) -> None:
        self.topic = BrokerTopic("A", (Bounds(0, 10),))
        self.looks = 0
        self._happens = happens

    def grow(self, records: int) -> None:
        bounds = self.topic.partitions[0]
        self.topic = replace(self.topic, partitions=(bounds._replace(end=bounds.end + records),))

    def commit(self, offset: int) -> None:
        self.topic = replace(self.topic, groups={"g": {0: Committed(offset, "")}})

    def topics(self) -> list[str]:
        return ["orders"]

    def survey(self, topics: Sequence[str], *, without_groups: str) -> dict[str, BrokerTopic]:
        assert self.looks < 50, "it does not end"
        self.looks += 1
        self._happens(self)
        return {"orders": self.topic}


class Table:
    """An archive in memory; what was published, in its order."""

    def __init__(self) -> None:
        self.published: list[tuple[list[Range] | None, State]] = []

    def look(self) -> Moment:
        return Moment(len(self.published) - 1, self.published[-1][1] if self.published else {})

    def state(self, moment: Moment) -> Mapping[str, ArchivedTopic]:
        found: Mapping[str, ArchivedTopic] = moment.at
        return found

    def publish(self, batch: int, staged: list[Range] | None, state: State) -> bool:
        assert batch == len(self.published)
        self.published.append((staged, state))
        return True

    def settle(self) -> None: ...

    @property
    def batches(self) -> list[list[tuple[int, int]]]:
        """Offsets of each, of the one partition."""
        return [[(one.start, one.end) for one in staged or []] for staged, _ in self.published]


class Stopping:
    """The event that ends a run: set at the last of so many waits."""

    def __init__(self, waits: int) -> None:
        self.left = waits
        self.waited: list[float] = []

    def is_set(self) -> bool:
        return self.left == 0

    def set(self) -> None:
        self.left = 0

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.left -= 1


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table()
    monkeypatch.setattr(archive, "HadoopFiles", lambda spark, root: None)
    monkeypatch.setattr(archive, "ArchiveLog", lambda files: None)
    monkeypatch.setattr(archive, "table_of", lambda spark, log, made_as: made)
    monkeypatch.setattr(archive, "_prepare", lambda log, options: None)
    monkeypatch.setattr(
        archive._Run, "_stage",
        lambda run, batch: archive._Staged(batch.ranges, {"orders": len(batch.ranges)}, {}),
    )  # fmt: skip
    return made


def run(broker: Broker, stopping: Stopping | None = None, **options: Any) -> archive._Run:
    job: Any = type("Job", (), {"spark": None})
    admin: Any = broker
    made = archive._Run(job, ArchiveOptions("b:1", "lake", ("orders",), **options), admin)
    if stopping is not None:
        waits: Any = stopping
        made._stopping = waits
    made.work()
    return made


def test_groups_that_go_on_committing_do_not_keep_a_run_from_its_end(table: Table) -> None:
    run(Broker(lambda broker: broker.commit(broker.looks)))
    assert table.batches == [[(0, 10)]]
    run(Broker(lambda broker: broker.commit(100 + broker.looks)))
    assert table.batches == [[(0, 10)], []], "offsets of groups alone are kept, too, once"
    assert table.published[-1][1]["orders"].groups == {"g": {0: Committed(101, "")}}


def test_what_comes_meanwhile_is_for_the_next_run(table: Table) -> None:
    run(Broker(lambda broker: broker.grow(1)), max_per_trigger=4)
    assert table.batches == [[(0, 4)], [(4, 8)], [(8, 11)]]


def test_records_that_go_on_coming_are_one_batch_each_interval(table: Table) -> None:
    stopping = Stopping(3)
    run(Broker(lambda broker: broker.grow(1)), stopping, every_ms=30_000)
    assert table.batches == [[(0, 11)], [(11, 13)], [(13, 15)]]
    assert all(29 < seconds <= 30 for seconds in stopping.waited)


def test_a_backlog_is_taken_without_waiting(table: Table) -> None:
    run(Broker(), Stopping(1), every_ms=30_000, max_per_trigger=4)
    assert table.batches == [[(0, 4)], [(4, 8)], [(8, 10)]]


def failing(run: archive._Run, batch: archive._Batch) -> archive._Staged:
    raise OSError("no space left")


def test_a_failure_is_told_though_records_that_are_archived_go_on_being_deleted(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With records that are not, it is done once more with what is left."""

    def happens(broker: Broker) -> None:
        end = broker.topic.partitions[0].end
        broker.topic = replace(broker.topic, partitions=(Bounds(min(broker.looks, 12), end + 1),))

    run(Broker())
    staged = archive._Run._stage
    monkeypatch.setattr(archive._Run, "_stage", failing)
    broker = Broker(happens)
    with pytest.raises(OSError, match="no space left"):
        run(broker)
    assert broker.looks == 2

    def failing_once(made: archive._Run, batch: archive._Batch) -> archive._Staged:
        monkeypatch.setattr(archive._Run, "_stage", staged)
        broker.looks = 12
        return failing(made, batch)

    monkeypatch.setattr(archive._Run, "_stage", failing_once)
    run(broker, skip_lost=True)
    assert table.batches == [[(0, 10)], [(12, 13)]]


def test_what_may_be_of_a_topic_that_was_made_again_is_not_kept_as_the_old_ones(
    table: Table,
) -> None:
    def happens(broker: Broker) -> None:
        if broker.looks == 2:  # the first batch has just been read
            broker.topic = BrokerTopic("B", (Bounds(0, 12),))

    broker = Broker(happens)
    made = run(broker)
    assert table.batches == []
    assert made.totals.notes == ["topic orders was made again while it was read; that is not kept"]
    run(broker)
    assert table.batches == [[(0, 12)]]
    assert table.published[-1][1]["orders"].id == "B"
