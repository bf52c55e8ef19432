"""The loader's image when a snapshot takes its place at run time, and what publishers hear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.metadata.image import (
    EMPTY_IMAGE,
    MetadataDelta,
    MetadataImage,
    delta_between,
    image_records,
)
from replication.metadata.loader import MetadataLoader, SnapshotConfig
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import CommittedBatch
from replication.raft.snapshots import SnapshotId
from testkit.clock import ManualClock
from wire.messages import metadata_records as m


class NoDriver:
    """Only what the loader asks of its driver."""

    def __init__(self) -> None:
        self.snapshots: list[SnapshotId] = []
        self.values: list[bytes] = []

    def wait_until_caught_up(self, timeout_s: float | None = None) -> bool:
        return True

    def write_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Any, *, serde: Any = None
    ) -> None:
        self.snapshots.append(snapshot_id)
        self.values = [(serde or MetadataRecordSerde()).encode(record) for record in records]


def topic(number: int, partitions: int = 1, leader: int = 1) -> list[Any]:
    topic_id = bytes([number]) * 16
    return [
        m.TopicRecord(name=f"t{number}", topic_id=topic_id),
        *(
            m.PartitionRecord(
                partition_id=index, topic_id=topic_id, replicas=[1, 2], isr=[1, 2],
                removing_replicas=[], adding_replicas=[], leader=leader, leader_epoch=1,
                partition_epoch=1,
            )
            for index in range(partitions)
        ),
    ]  # fmt: skip


def config(name: str, value: str | None) -> m.ConfigRecord:
    return m.ConfigRecord(resource_type=2, resource_name=name, name="retention.ms", value=value)


def image_of(records: Sequence[Any]) -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(records)
    return delta.apply(len(records), 1, 0)


def batch(offset: int, *records: Any) -> CommittedBatch:
    return CommittedBatch(offset, offset + len(records) - 1, 1, 0, 100, records)


def loader() -> tuple[MetadataLoader, list[tuple[MetadataDelta, MetadataImage]]]:
    made = MetadataLoader(NoDriver(), ManualClock(1_000))  # type: ignore[arg-type]
    return made, []


def test_a_snapshot_at_run_time_replaces_the_image_and_tells_what_is_different() -> None:
    made, published = loader()
    made.handle_commit([batch(0, *topic(1), *topic(2, 2), config("t2", "5"))])
    made.begin([lambda delta, image: published.append((delta, image))])
    published.clear()
    new = image_of([*topic(2, 2, leader=2), *topic(3)])
    made.handle_commit([batch(6, *topic(9))])
    made.handle_snapshot(SnapshotId(50, 4), 7, list(image_records(new)))
    made.handle_commit([batch(50, config("t3", "1"))])
    assert made.has_work
    made.turn()
    ((delta, image),) = published
    assert (image.offset, image.epoch) == (50, 1)
    assert set(image.topics_by_name) == {"t2", "t3"}
    assert delta.deleted_topics == {"t1": b"\x01" * 16}
    assert delta.changed_topics == {"t2", "t3"}
    assert delta.changed_partitions == {b"\x02" * 16: {0, 1}, b"\x03" * 16: {0}}
    assert delta.changed_configs == {(2, "t2"), (2, "t3")}


def test_a_snapshot_before_the_start_forgets_what_came_before() -> None:
    made, published = loader()
    made.handle_commit([batch(0, *topic(1))])
    made.handle_snapshot(SnapshotId(50, 4), 7, topic(2))
    made.begin([lambda delta, image: published.append((delta, image))])
    ((delta, image),) = published
    assert (image.offset, image.epoch, image.timestamp) == (49, 4, 7)
    assert delta.changed_topics == {"t2"}
    assert delta.deleted_topics == {}


def test_a_transaction_that_the_snapshot_has_overtaken_is_forgotten() -> None:
    made, _ = loader()
    made.begin([])
    made.handle_commit([batch(0, m.BeginTransactionRecord(), *topic(1))])
    made.turn()
    assert made.in_transaction
    made.handle_snapshot(SnapshotId(9, 1), 7, topic(2))
    made.turn()
    assert not made.in_transaction


def test_a_topic_deleted_and_made_anew_meanwhile_is_both() -> None:
    old, new = image_of(topic(1)), EMPTY_IMAGE
    again = topic(1)
    for record in again:
        record.topic_id = b"\x77" * 16
    new = image_of(again)
    delta = delta_between(old, new)
    assert delta.deleted_topics == {"t1": b"\x01" * 16}
    assert delta.changed_topics == {"t1"}


_CHANGES: list[Callable[[int], list[Any]]] = [
    lambda n: topic(n % 5 + 1, 1 + n % 3, leader=n % 2),
    lambda n: [config(f"t{n % 5 + 1}", str(n % 2))],
    lambda n: [m.FeatureLevelRecord(name=f"f{n % 3}", feature_level=n % 4)],
    lambda n: [m.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=n)],
]


def _some_image(numbers: list[int]) -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    for number in numbers:
        records = _CHANGES[number % 4](number)
        kind = type(records[0])
        known = kind is m.TopicRecord and records[0].name in delta.next.topics_by_name
        falls = kind is m.ProducerIdsRecord and number < delta.next.next_producer_id
        if not known and not falls:
            delta.replay_all(records)
    return delta.apply(1, 1, 1)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 200), max_size=20), st.lists(st.integers(0, 200), max_size=20))
def test_the_difference_applied_to_the_old_image_is_the_new_one(
    old_numbers: list[int], new_numbers: list[int]
) -> None:
    old, new = _some_image(old_numbers), _some_image(new_numbers)
    delta = delta_between(old, new)
    assert delta.apply(1, 1, 1).state_equals(new)
    for name in delta.changed_topics:
        assert old.topic(name) != new.topic(name)
    for name in old.topics_by_name.keys() & new.topics_by_name.keys():
        if old.topic(name) != new.topic(name):
            assert name in delta.changed_topics
    if old.state_equals(new):
        assert not delta.changed_topics
        assert not delta.changed_configs
        assert not delta.features_changed


def test_who_comes_later_hears_the_whole_image_and_then_each_change() -> None:
    loader = MetadataLoader(NoDriver(), ManualClock(1_000))  # type: ignore[arg-type]
    early: list[set[str]] = []
    late: list[set[str]] = []
    loader.handle_commit([batch(0, *topic(1))])
    loader.start([lambda delta, _image: early.append(set(delta.changed_topics))])
    try:
        loader.handle_commit([batch(2, *topic(2))])
        assert loader.install([lambda delta, _image: late.append(set(delta.changed_topics))])
        loader.handle_commit([batch(4, *topic(3))])
        image = loader.caught_up_image()
    finally:
        loader.shutdown()
    assert image is not None
    assert set(image.topics_by_name) == {"t1", "t2", "t3"}
    assert set.union(*early) == set.union(*late) == {"t1", "t2", "t3"}
    assert {"t1"} <= late[0]
    assert late[-1] == {"t3"} or late[-1] == {"t2", "t3"}


def test_nobody_waits_for_a_loader_that_has_ended() -> None:
    loader = MetadataLoader(NoDriver(), ManualClock(1_000))  # type: ignore[arg-type]
    loader.start([])
    loader.shutdown()
    assert not loader.install([lambda _delta, _image: None])


@pytest.mark.parametrize(("interval_ms", "written"), [(0, []), (1_000, [2]), (5_000, [])])
def test_time_calls_for_a_snapshot_unless_its_interval_is_zero(
    interval_ms: int, written: list[int]
) -> None:
    driver, clock = NoDriver(), ManualClock(1_000)
    made = MetadataLoader(
        driver,  # type: ignore[arg-type]
        clock,
        snapshot_config=SnapshotConfig(max_snapshot_interval_ms=interval_ms),
        run_in_background=lambda job: job(),
    )
    made.begin([])
    clock.ms += 1_000
    for offset in (0, 2):
        made.handle_commit([batch(offset, m.NoOpRecord(), m.NoOpRecord())])
        made.turn()
    assert [snapshot.offset for snapshot in driver.snapshots] == written


@pytest.mark.parametrize(("level", "versions"), [(7, (1, 0)), (17, (3, 1)), (23, (3, 2))])
def test_a_snapshot_is_written_for_the_release_the_cluster_agreed_on(
    level: int, versions: tuple[int, int]
) -> None:
    """Whoever wrote it: this loader's node never was the active controller."""
    made, _ = loader()
    made.handle_commit(
        [
            batch(
                0,
                m.FeatureLevelRecord(name="metadata.version", feature_level=level),
                m.RegisterBrokerRecord(
                    broker_id=1, incarnation_id=b"i" * 16, broker_epoch=1, end_points=[],
                    features=[], rack=None, fenced=False, log_dirs=[b"d" * 16],
                ),
                *topic(1),
            )
        ]
    )  # fmt: skip
    made.begin([])
    made.write_snapshot(made.image)
    driver: Any = made._driver
    # Frame version, record type, record version.
    written = {value[1]: value[2] for value in driver.values}
    assert (written[0], written[3]) == versions  # RegisterBrokerRecord, PartitionRecord
    serde = MetadataRecordSerde()
    again = image_of([serde.decode(value) for value in driver.values])
    assert again.feature("metadata.version") == level
    assert again.topics_by_name.keys() == {"t1"}
