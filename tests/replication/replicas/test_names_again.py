"""What belongs to a deleted partition ends with it: its memory, and what stands under its name."""

from __future__ import annotations

import errno
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.partition.group_commit import GroupCommit
from replication.partition.isr import UNKNOWN_OFFSET
from replication.partition.leading import Leading
from replication.partition.partition import Partition
from replication.partition.requests import AppendRequest, AppendResult
from replication.replicas.replica_manager import ReplicaManager, ReplicaManagerConfig
from replication.replicas.timer import BackgroundScheduler
from storage import files
from storage.config import LogConfig
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from tests.replication.replicas.test_replica_manager import (
    ORDERS,
    ORDERS_0,
    ORDERS_1,
    Answer,
    Broker,
    batch,
    broker,
    codes,
    led,
    read_from,
    topic,
    values_of,
)
from wire.errors import ErrorCode

__all__ = ["broker"]  # the fixture

AGAIN = b"orders, another "
BOTH: dict[str, Any] = {"isr": (1, 2), "replicas": (1, 2)}


KINDS = (Partition, Leading, GroupCommit, PartitionLog)


def instances() -> dict[type, int]:
    """How many objects of what a partition is made of there are."""
    found = [type(one) for one in gc.get_objects()]
    return {kind: found.count(kind) for kind in KINDS}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Whatever is freed in this test is freed by its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class OneNode(Broker):
    """A broker with the real log manager."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "unused")
        self.scheduler = BackgroundScheduler(self.clock)
        self.log_manager = LogManager(
            {root: bytes(15) + b"d"}, LogConfig(), self.clock, self.scheduler, lambda *failure: None
        )
        self.log_manager.startup(lambda topic: LogConfig())
        self.manager = ReplicaManager(
            ReplicaManagerConfig(),
            self.log_manager,
            lambda: self.image,
            self.timer,
            self.clock,
            1,
            topic_config=lambda topic: self.configs.get(topic, LogConfig(file_delete_delay_ms=10)),
        )

    def pass_time(self, ms: int) -> None:
        super().pass_time(ms)
        self.scheduler.run_due()


def test_a_deleted_partition_is_freed_by_its_last_reference(
    tmp_path: Path, no_collector: None
) -> None:
    """13: each was a reference cycle, and with it its log and all that log held."""
    node = OneNode(tmp_path)
    before = instances()
    node.publish(topic("orders", ORDERS, led(**BOTH)))
    produced = node.produce((ORDERS_0, batch(b"a")))
    fetched = node.fetch(read_from(1))
    node.follower_fetches(0)
    assert instances() == {kind: before[kind] + 1 for kind in KINDS}

    node.publish(deleted={"orders": ORDERS})
    assert codes(produced) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetched.value[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.pass_time(60_000)
    produced.operation = fetched.operation = None  # each knows its callback: a cycle of this test

    assert instances() == before
    for purgatory in (
        node.manager.parked.produce,
        node.manager.parked.fetch,
        node.manager.parked.delete_records,
    ):
        assert purgatory.watchers == {}, "a watch key outlived its partition"
    node.manager.shutdown()
    node.log_manager.shutdown()


def test_records_are_for_the_topic_that_was_meant(broker: Broker) -> None:
    """KIP-516: a Produce that names a topic's id is not for another one of its name, be it the one
    before (whose records are about to be deleted) or the one after."""

    def code_of(topic_id: bytes) -> int:
        answer: Answer[list[AppendResult]] = Answer()
        entries = [(ORDERS_0, batch(b"a"))]
        request = AppendRequest(1, 1000, entries, answer, topic_ids={"orders": topic_id})
        broker.manager.append_records(request)
        return answer.value[0].error_code

    broker.publish(topic("orders", ORDERS, led(4, **BOTH)))
    assert code_of(AGAIN) == ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.manager.partition(ORDERS_0).open_log().log_end_offset == 0
    assert code_of(ORDERS) == 0
    broker.publish(topic("orders", AGAIN, led(0, **BOTH)), deleted={"orders": ORDERS})
    assert code_of(ORDERS) == ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.manager.partition(ORDERS_0).open_log().log_end_offset == 0


def test_nothing_of_a_partition_is_found_under_its_name_again(broker: Broker) -> None:
    broker.publish(topic("orders", ORDERS, led(4, **BOTH)))
    broker.produce((ORDERS_0, batch(b"a", b"b")), acks=1)
    broker.follower_fetches(2)
    broker.manager.delete_records({ORDERS_0: 1}, 0, lambda done: None)
    old = broker.manager.partition(ORDERS_0)
    waiting = broker.produce((ORDERS_0, batch(b"c")))
    parked = broker.fetch(read_from(3))

    broker.publish(topic("orders", AGAIN, led(0, **BOTH)), deleted={"orders": ORDERS})
    new = broker.manager.partition(ORDERS_0)

    assert codes(waiting) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert parked.value[0].error_code != 0
    assert new is not old
    assert (new.leader_epoch, new.role.partition_epoch) == (0, 0), "epochs begin again"
    log = new.open_log()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 0, 0)
    assert new.role.followers[2].log_end_offset == UNKNOWN_OFFSET
    late = read_from(3, start=1, topic_id=ORDERS)
    told = broker.fetch(late, max_wait_ms=0, replica=2)
    assert told.value[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    produced = broker.produce((ORDERS_0, batch(b"x")))
    assert produced.is_pending, "what the follower had of the dead topic does not count"
    broker.follower_fetches(1)
    assert codes(produced) == [0]
    assert values_of(broker.fetch(read_from(0)).value[0]) == [b"x"]


def test_what_is_under_way_to_a_deleted_partition_does_not_reach_the_next_of_its_name(
    broker: Broker,
) -> None:
    """An answer of the controller, an fsync, a fetch: each knows the partition it is for."""
    broker.configs["orders"] = LogConfig(flush_messages=1)
    broker.publish(topic("orders", ORDERS, led(0)))
    broker.produce((ORDERS_0, batch(b"a", b"b")))
    old = broker.manager.partition(ORDERS_0)
    end = old.leader_end()
    assert broker.logs.waiting, "an fsync is under way"
    broker.publish(topic("orders", AGAIN, led(0, **BOTH)), deleted={"orders": ORDERS})
    broker.produce((ORDERS_0, batch(b"x")), acks=1)
    with pytest.raises(Exception, match="UNKNOWN_TOPIC_OR_PARTITION"):
        old.update_follower_fetch_state(2, -1, read_from(2), *end)
    _, flushed = broker.logs.waiting.pop(0)
    flushed(None)
    assert broker.manager.partition(ORDERS_0).high_watermark == 0


# ---------------------------------------------------------------------- a disk that hangs


def heard_meanwhile(broker: Broker, failing: Path) -> bool:
    """Is the failure of another directory heard while this call lasts?"""
    thread = threading.Thread(
        target=broker.manager.log_dir_failed, args=(failing, OSError(5, "EIO")), daemon=True
    )
    thread.start()
    thread.join(60)
    return not thread.is_alive()


@pytest.mark.parametrize("slow", ["delete", "get_or_create", "assign_epoch_start"])
def test_while_metadata_waits_for_a_disk_the_failure_of_another_is_heard(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    slow: str,
) -> None:
    """N6: no fsync, unlink or rename under the lock that role changes and failures share."""
    broker.publish(topic("orders", ORDERS, led(), led()))
    failing = broker.manager.partition(ORDERS_1).open_log().directory.parent / "another disk"
    broker.manager.partition(ORDERS_1).open_log().directory = failing / "orders-1"
    owner: Any = PartitionLog if slow == "assign_epoch_start" else type(broker.logs)
    real = getattr(owner, slow)
    heard = []

    def hang(self: Any, *given: Any) -> Any:
        monkeypatch.setattr(owner, slow, real)
        heard.append(heard_meanwhile(broker, failing))
        return real(self, *given)

    monkeypatch.setattr(owner, slow, hang)
    broker.publish(topic("sales", AGAIN, led()), deleted={"orders": ORDERS})
    assert heard == [True]


def test_a_partition_whose_directory_fails_while_it_is_placed_is_not_served(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failure comes between the log's opening and the partition's publication."""
    real = Partition.make_leader

    def make_leader(self: Partition, registration: Any, log: PartitionLog) -> bool:
        is_new = real(self, registration, log)
        log.environment.is_offline = True
        broker.manager.log_dir_failed(log.directory.parent, OSError(5, "EIO"))
        return is_new

    monkeypatch.setattr(Partition, "make_leader", make_leader)
    broker.publish(topic("orders", ORDERS, led()))
    answer = broker.produce((ORDERS_0, batch(b"a")))
    assert codes(answer) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert broker.manager.offline_replicas == 1
    assert broker.leadership == []


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_log_that_a_full_disk_kept_from_being_led_goes_with_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """Nobody served it any more, so nobody deleted it: the disk stayed as full as it was, and what
    is stray after the next start only a person removes."""
    node = OneNode(tmp_path)
    node.publish(topic("orders", ORDERS, led(**BOTH)))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as disk:
        disk.setattr(files, "open_file", full)
        node.publish(topic("orders", ORDERS, led(1, **BOTH)))
        assert node.manager.offline_replicas == 1
        if is_deleted:
            node.publish(deleted={"orders": ORDERS})
        else:
            node.publish(topic("orders", ORDERS, led(2, leader=2, isr=(2,), replicas=(2, 3))))
    node.pass_time(60_000)
    assert node.log_manager.all_logs() == []
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    assert node.manager.offline_replicas == 0
    node.manager.shutdown()
    node.log_manager.shutdown()
