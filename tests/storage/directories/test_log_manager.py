"""The log directories of a node: who owns them, what is opened, what a stop leaves behind."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.checkpoint import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
    read_leader_epochs,
    read_partition_metadata,
)
from storage.config import LogConfig, LogManagerConfig
from storage.directories.flusher import Flusher
from storage.directories.log_dir import RESERVE_FILE
from storage.directories.log_dirs import (
    FormattedDirs,
    LogDirError,
    is_valid_topic,
    parse_partition_dir,
    partition_dir_name,
    prepare_log_dirs,
    renamed_dir_name,
)
from storage.directories.log_manager import LogManager
from storage.log.partition_log import FROM_COORDINATOR, PartitionLog
from testkit.calls import calls_of
from testkit.clock import WALL_MS, ManualClock
from testkit.wait import HANGS_S
from tests.storage.log_support import (
    FaultyDisk,
    ManualScheduler,
    append,
    make_log,
    read_from,
    values,
)
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition, uuid_to_text
from wire.records import end_txn_marker_batch

TOPIC_ID = b"a-topic's-own-id"
ORDERS = TopicPartition("orders", 0)


def uuids(seed: int = 1) -> Callable[[], bytes]:
    rng = random.Random(seed)
    return lambda: rng.randbytes(16)


class Node:
    """A node's storage, started, stopped and crashed like a broker's."""

    def __init__(self, *dirs: Path, config: LogConfig | None = None) -> None:
        self.dirs = dirs
        self.config = config or LogConfig()
        self.clock = ManualClock()
        self.scheduler = ManualScheduler()
        self.failures: list[Path] = []
        self.formatted: FormattedDirs
        self.manager: LogManager

    def start(self, config: LogManagerConfig | None = None) -> LogManager:
        self.formatted = prepare_log_dirs(self.dirs, 1, None, uuids(len(str(self.dirs))))
        self.manager = LogManager(
            self.formatted.directory_ids,
            self.config,
            self.clock,
            self.scheduler,
            lambda path, error: self.failures.append(path),
            config,
            failed=self.formatted.failed,
        )
        self.manager.startup(lambda topic: self.config)
        return self.manager

    def crash(self) -> None:
        self.formatted.release()

    def stop(self, broker_epoch: int = 5) -> None:
        self.manager.shutdown(broker_epoch)
        self.formatted.release()

    def create(self, topic: str = "orders", index: int = 0, **options: Path) -> PartitionLog:
        key = TopicPartition(topic, index)
        return self.manager.get_or_create(key, TOPIC_ID, self.config, **options)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


# --- identity (S-19) ---------------------------------------------------------------------------


def test_an_empty_directory_is_formatted_and_keeps_its_identity(tmp_path: Path) -> None:
    dirs = [tmp_path / "a" / "b", tmp_path / "c"]
    first = prepare_log_dirs(dirs, 7, None, uuids(1))
    assert len(set(first.directory_ids.values())) == 2
    first.release()
    again = prepare_log_dirs(dirs, 7, None, uuids(2))
    assert (again.cluster_id, again.directory_ids) == (first.cluster_id, first.directory_ids)
    again.release()
    prepare_log_dirs(dirs, 7, first.cluster_id, uuids(3)).release()
    text = (dirs[0] / META_PROPERTIES).read_text()
    assert f"cluster.id={first.cluster_id}" in text
    assert "node.id=7" in text
    assert f"directory.id={uuid_to_text(first.directory_ids[dirs[0]])}" in text


def test_a_directory_added_later_joins_the_same_cluster(tmp_path: Path) -> None:
    first = prepare_log_dirs([tmp_path / "a"], 1, None, uuids(1))
    first.release()
    both = prepare_log_dirs([tmp_path / "a", tmp_path / "b"], 1, None, uuids(2))
    assert both.cluster_id == first.cluster_id
    both.release()


def snapshot(root: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


@pytest.mark.parametrize(
    ("node_id", "cluster_id", "words"),
    [(2, None, "belongs to node 1, this is node 2"), (1, "another", "belongs to cluster")],
)
def test_another_nodes_directory_is_refused_before_anything_is_written(
    tmp_path: Path, node_id: int, cluster_id: str | None, words: str
) -> None:
    prepare_log_dirs([tmp_path / "a"], 1, None, uuids(1)).release()
    before = snapshot(tmp_path)
    with pytest.raises(LogDirError, match=words):
        prepare_log_dirs([tmp_path / "new", tmp_path / "a"], node_id, cluster_id, uuids(2))
    assert snapshot(tmp_path) == before


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    prepare_log_dirs([tmp_path / "a"], 1, None, uuids(1)).release()
    prepare_log_dirs([tmp_path / "b"], 1, None, uuids(2)).release()
    with pytest.raises(LogDirError, match="belongs to cluster"):
        prepare_log_dirs([tmp_path / "a", tmp_path / "b"], 1, None, uuids(3))


def test_a_copy_of_a_directory_is_refused(tmp_path: Path) -> None:
    prepare_log_dirs([tmp_path / "a"], 1, None, uuids(1)).release()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / META_PROPERTIES).write_bytes((tmp_path / "a" / META_PROPERTIES).read_bytes())
    with pytest.raises(LogDirError, match="copy of"):
        prepare_log_dirs([tmp_path / "a", tmp_path / "b"], 1, None, uuids(2))


def test_a_directory_with_other_peoples_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not touch")
    before = snapshot(tmp_path)
    with pytest.raises(LogDirError, match=r"not empty \(thesis.txt\)"):
        prepare_log_dirs([tmp_path], 1, None, uuids())
    assert snapshot(tmp_path) == before
    with pytest.raises(LogDirError, match="not a directory"):
        prepare_log_dirs([tmp_path / "thesis.txt"], 1, None, uuids())
    with pytest.raises(LogDirError, match="twice"):
        prepare_log_dirs([tmp_path, tmp_path / "." / ""], 1, None, uuids())


def test_a_damaged_identity_is_explained(tmp_path: Path) -> None:
    (tmp_path / META_PROPERTIES).write_text("version=1\nnode.id=1\n")
    with pytest.raises(LogDirError, match=r"cluster.id is missing.*restore the file"):
        prepare_log_dirs([tmp_path], 1, None, uuids())


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    held = prepare_log_dirs([tmp_path / "a"], 1, None, uuids())
    with pytest.raises(LogDirError, match="in use by another broker"):
        prepare_log_dirs([tmp_path / "a"], 1, None, uuids())
    held.release()
    prepare_log_dirs([tmp_path / "a"], 1, None, uuids()).release()


def test_a_directory_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from storage.checkpoint import DirectoryLock\n"
        "assert DirectoryLock(pathlib.Path(sys.argv[1])).try_acquire()\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    prepare_log_dirs([tmp_path], 1, None, uuids()).release()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LogDirError, match="in use by another broker"):
            prepare_log_dirs([tmp_path], 1, None, uuids())
        other.stdin.close()
    prepare_log_dirs([tmp_path], 1, None, uuids()).release()


def test_one_unusable_directory_among_several_is_reported_and_the_others_work(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    disk.fail("open_file", errno.EACCES, only=lambda path, *_: "bad" in str(path), count=99)
    good, bad = tmp_path / "good", tmp_path / "bad"
    formatted = prepare_log_dirs([bad, good], 1, None, uuids())
    assert list(formatted.directory_ids) == [good]
    assert list(formatted.failed) == [bad]
    formatted.release()
    with pytest.raises(LogDirError, match=r"bad cannot be used: Permission denied"):
        prepare_log_dirs([bad], 1, None, uuids())


# --- names (Z-7, Z-8, B-9) ---------------------------------------------------------------------


def test_a_directory_name_is_split_at_its_last_dash() -> None:
    for topic, index in [("t", 0), ("t-1", 0), ("t-1-0", 12), ("a.b_c-", 2**31 - 1), ("-", 3)]:
        key = TopicPartition(topic, index)
        assert parse_partition_dir(partition_dir_name(key)) == key


@pytest.mark.parametrize(
    "name",
    ["orders", "orders-", "-0", "orders-x", "orders-01", "orders--", "o/r-0", "orders-99999999999",
     "orders-0.0123456789abcdef0123456789abcdef-delete", "lost+found", "..-1", "ö-1", "t-²",
     "x" * 250 + "-0"],
)  # fmt: skip
def test_what_is_no_partition_directory_is_not_taken_for_one(name: str) -> None:
    assert parse_partition_dir(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "a\0b", "x" * 250, "a b", "a:b", "%2e%2e", "é", "a\n"]
)
def test_hostile_topic_names_never_become_paths(tmp_path: Path, name: str) -> None:
    node = Node(tmp_path)
    manager = node.start()
    assert not is_valid_topic(name)
    before = set(tmp_path.parent.iterdir())
    with pytest.raises(KafkaError) as error:
        manager.get_or_create(TopicPartition(name, 0), TOPIC_ID, LogConfig())
    assert error.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert set(tmp_path.parent.iterdir()) == before
    node.stop()


def test_the_longest_topic_can_be_created_and_deleted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    log = node.create("x" * 249, 99_999)
    assert len(log.directory.name) == 255
    node.manager.delete(log.topic_partition)
    assert len(log.directory.name) == 255
    assert log.directory.name.endswith("-delete")
    assert ".0" in renamed_dir_name(TopicPartition("x", 1), bytes(16), "-delete")
    node.stop()


# --- logs --------------------------------------------------------------------------------------


def test_a_restart_brings_everything_back(tmp_path: Path) -> None:
    node = Node(tmp_path / "a", tmp_path / "b")
    manager = node.start()
    for index in range(5):
        log = node.create("orders", index)
        append(log, f"{index}", "x")
        log.update_high_watermark(1)
    log.update_high_watermark(2)
    log.increment_log_start_offset(1)
    node.stop(broker_epoch=42)
    manager = node.start()
    assert manager.previous_broker_epoch == 42
    assert len(manager.all_logs()) == 5
    for index in range(5):
        again = manager.get(TopicPartition("orders", index))
        assert again is not None
        assert again.topic_id == TOPIC_ID
        assert again.high_watermark == (2 if index == 4 else 1)
        assert again.log_start_offset == (1 if index == 4 else 0)
        assert again.flushed_offset == again.log_end_offset == 2
    node.stop()


def test_the_clean_marker_is_gone_while_the_node_runs(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    assert manager.previous_broker_epoch == -1
    node.stop(3)
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    node.start()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    node.crash()
    assert node.start().previous_broker_epoch == -1
    node.stop()


def test_after_a_crash_what_was_not_flushed_is_checked(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    log = node.create()
    append(log, "a")
    append(log, "b")
    node.crash()
    with open(log.active_segment.path, "ab") as file:
        file.write(b"torn")
    recovered = node.start().get(ORDERS)
    assert recovered is not None
    assert values(read_from(recovered)) == [b"a", b"b"]
    assert recovered.active_segment.path.stat().st_size == recovered.size
    node.stop()


def test_a_log_that_cannot_be_opened_leaves_no_clean_marker(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    node.create("broken")
    node.create("fine")
    node.stop()
    (tmp_path / "broken-0" / "partition.metadata").write_text("nonsense")
    manager = node.start()
    assert manager.get(TopicPartition("broken", 0)) is None
    assert manager.get(TopicPartition("fine", 0)) is not None
    assert node.failures == []
    node.stop()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_new_partitions_go_where_there_are_fewest(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "abc"]
    node = Node(*dirs)
    node.start()
    placed = [node.create("t", index).directory.parent for index in range(9)]
    assert all(placed.count(path) == 3 for path in dirs)
    assert node.create("asked", 0, directory=dirs[1]).directory.parent == dirs[1]
    with pytest.raises(KafkaError) as error:
        node.create("asked", 1, directory=tmp_path / "elsewhere")
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    directory_id = node.manager.directory_id(dirs[2])
    assert node.manager.directory_by_id(directory_id) == dirs[2]
    assert node.manager.directory_by_id(bytes(16)) is None
    total, usable = node.manager.dir_space(dirs[0])
    assert total >= usable > 0
    node.stop()


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_new_partition_costs_as_much_however_many_there_are(tmp_path: Path, names: str) -> None:
    """A topic of ten thousand is made one by one, on the thread that applies metadata."""
    node = Node(*(tmp_path / name for name in names))
    node.start()
    node.create("t", 0)
    few = calls_of(lambda: node.create("t", 1))
    for index in range(2, 60):
        node.create("t", index)
    many = calls_of(lambda: node.create("t", 61))
    # Of those in several directories one look at each.
    assert many - few < 10 + (60 if len(names) > 1 else 0)
    node.stop()


def test_new_partitions_go_where_nothing_is_cordoned_unless_all_is(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    node = Node(a, b)
    node.start()
    node.manager.cordoned_dirs = frozenset((a,))
    assert {node.create("t", index).directory.parent for index in range(3)} == {b}
    node.manager.cordoned_dirs = frozenset((a, b))
    assert node.create("t", 3).directory.parent == a, "the controller did not know yet"
    node.stop()


def test_the_topic_id_is_written_once_and_guarded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    assert node.create() is log
    assert read_partition_metadata(tmp_path / "orders-0" / "partition.metadata") == TOPIC_ID
    with pytest.raises(KafkaError) as error:
        manager.get_or_create(ORDERS, bytes(16), LogConfig())
    assert error.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    node.stop()


def test_a_deleted_log_is_renamed_now_and_gone_later(tmp_path: Path) -> None:
    node = Node(tmp_path, config=LogConfig(file_delete_delay_ms=777))
    manager = node.start()
    append(node.create(), "a")
    manager.delete(ORDERS)
    manager.delete(ORDERS)
    assert manager.get(ORDERS) is None
    assert [p.name.endswith("-delete") for p in tmp_path.glob("orders*")] == [True]
    assert [task.delay_ms for task in node.scheduler.once] == [0, 777]  # checkpoints, files
    new = node.create()
    assert new.log_end_offset == 0
    node.scheduler.run()
    assert [p.name for p in tmp_path.glob("orders*")] == ["orders-0"]
    node.stop()


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.read(0, 1000, True, 2),
        lambda log: log.offset_for_timestamp(WALL_MS),
        lambda log: log.truncate_to(1),
        lambda log: log.delete_old_segments(WALL_MS),
        lambda log: log.roll(),
        lambda log: log.truncate_fully_and_start_at(7),
    ],
)
def test_who_still_has_a_log_that_is_deleted_does_not_blame_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[PartitionLog], object]
) -> None:
    """Its directory has another name already, which the log does not know yet."""
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    append(log, "a", timestamp=-1)
    log.roll()
    append(log, "b")
    log.update_high_watermark(2)
    real = files.replace
    told: list[ErrorCode] = []

    def replace(old: Path, new: Path) -> None:
        real(old, new)
        monkeypatch.undo()
        with pytest.raises(KafkaError) as refused:
            use(log)
        told.append(refused.value.code)

    monkeypatch.setattr(files, "replace", replace)
    manager.delete(ORDERS)
    assert told == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert not log.is_offline
    node.stop()


def test_a_deletion_interrupted_by_a_crash_is_finished_at_start(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    append(node.create(), "a")
    manager.delete(ORDERS)
    node.crash()
    node.scheduler.once.clear()
    assert node.start().all_logs() == []
    node.scheduler.run()
    assert list(tmp_path.glob("orders*")) == []
    node.stop()


def test_strays_and_strangers_are_never_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node = Node(tmp_path)
    manager = node.start()
    append(node.create(), "a")
    manager.mark_stray(ORDERS)
    assert manager.get(ORDERS) is None
    node.stop()
    for name in ("notes", "t-0.0123456789abcdef0123456789abcdef-future"):
        (tmp_path / name).mkdir()
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert len(kept) == 3
    node.start()
    node.scheduler.run()
    node.stop()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == kept
    assert all(name in caplog.text for name in kept)


def test_a_start_names_the_strays_of_earlier_starts_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    manager = node.start()
    for _twice in range(2):
        append(node.create(), "a")
        manager.mark_stray(ORDERS)
    node.stop()
    caplog.clear()
    node.start()
    node.stop()
    assert [record.getMessage() for record in caplog.records if "stray" in record.getMessage()] == [
        "stray logs of earlier starts take space until a person removes them"
        f" log_dir={tmp_path} count=2"
    ]


def test_a_log_that_is_corrupt_below_its_recovery_point_keeps_no_other_from_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing but the producers' state reads there at a start, when their snapshots are gone."""
    node = Node(tmp_path, config=LogConfig(segment_bytes=300))
    node.start()
    log, other = node.create(), node.create(index=1)
    for text in ("a" * 150, "b" * 150, "c" * 150):
        append(log, text)
    append(other, "d")
    node.stop()
    os.truncate(log.directory / "00000000000000000000.log", 100)
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()
    manager = node.start()
    assert [log.topic_partition for log in manager.all_logs()] == [TopicPartition("orders", 1)]
    assert "cannot open log" in caplog.text
    assert "is corrupt at position 0" in caplog.text
    node.stop()


def test_the_metadata_log_is_left_to_the_quorum(tmp_path: Path) -> None:
    prepare_log_dirs([tmp_path], 1, None, uuids()).release()
    make_log(tmp_path)  # orders-0
    (tmp_path / "__cluster_metadata-0").mkdir()
    node = Node(tmp_path)
    assert [log.topic_partition for log in node.start().all_logs()] == [ORDERS]
    assert list((tmp_path / "__cluster_metadata-0").iterdir()) == []
    node.stop()


def test_a_config_change_reaches_every_partition_of_the_topic(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    logs = [node.create("orders", 0), node.create("orders", 1), node.create("other", 0)]
    manager.update_topic_config("orders", LogConfig(retention_ms=5))
    assert [log.config.retention_ms for log in logs] == [5, 5, 604_800_000]
    node.stop()


# --- checkpoints -------------------------------------------------------------------------------


def test_checkpoints_say_what_is_flushed_deleted_and_replicated(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    append(log, "a", "b", "c")
    log.update_high_watermark(2)
    log.increment_log_start_offset(1)
    manager.upkeep.checkpoint_recovery_points()
    assert OffsetCheckpoint(tmp_path / RECOVERY_POINT_CHECKPOINT).read() == {ORDERS: 0}
    log.flush()
    manager.upkeep.checkpoint_recovery_points()
    manager.upkeep.checkpoint_high_watermarks()
    assert OffsetCheckpoint(tmp_path / RECOVERY_POINT_CHECKPOINT).read() == {ORDERS: 3}
    # Delete-records is recorded at once, not in a minute.
    node.scheduler.run()
    assert OffsetCheckpoint(tmp_path / LOG_START_OFFSET_CHECKPOINT).read() == {ORDERS: 1}
    node.crash()
    again = node.start().get(ORDERS)
    assert again is not None
    assert (again.log_start_offset, again.high_watermark, again.flushed_offset) == (1, 2, 3)
    node.stop()


def test_truncation_lowers_the_recorded_recovery_point_first(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    for value in "abcd":
        append(log, value)
    log.flush()
    manager.upkeep.checkpoint_recovery_points()
    log.truncate_to(2)
    assert OffsetCheckpoint(tmp_path / RECOVERY_POINT_CHECKPOINT).read() == {ORDERS: 2}
    assert log.flushed_offset == 2
    node.stop()


def test_a_recreated_partition_does_not_inherit_a_recovery_point(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    append(log, "a", "b", "c")
    log.flush()
    manager.upkeep.checkpoint_recovery_points()
    manager.delete(ORDERS)
    node.create()
    assert OffsetCheckpoint(tmp_path / RECOVERY_POINT_CHECKPOINT).read() == {}
    node.stop()


def test_a_corrupt_checkpoint_means_more_recovery_not_less_data(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    append(node.create(), "a")
    node.stop()
    for path in tmp_path.glob("*-checkpoint"):
        path.write_bytes(b"nonsense\n")
    log = node.start().get(ORDERS)
    assert log is not None
    assert values(read_from(log)) == [b"a"]
    node.stop()


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_gaps_that_apache_kafkas_cleaner_left_are_no_loss(tmp_path: Path, policy: str) -> None:
    """Of a log that Kafka cleaned a minute ago no recovery point may be noted, and the topic may
    not be compacted any more."""
    node = Node(tmp_path, config=LogConfig(cleanup_policy=frozenset({policy}), segment_bytes=200))
    node.start()
    log = node.create()
    for offset in range(12):
        append(log, f"{offset}")
    first = log.segments.items[0]
    *_, (position, last) = first.batches(0)
    node.crash()
    os.truncate(first.path, position)
    OffsetCheckpoint(tmp_path / CLEANER_OFFSET_CHECKPOINT).write({ORDERS: 8})
    recovered = node.start().get(ORDERS)
    assert recovered is not None
    expected = [offset for offset in range(12) if offset != last.base_offset]
    assert [int(value) for value in values(read_from(recovered))] == expected
    node.stop()


# --- background --------------------------------------------------------------------------------


def test_the_background_work_is_scheduled_and_ends_with_the_shutdown(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start(LogManagerConfig(retention_check_interval_ms=123))
    manager.start_background()
    periods = {task.name: task.delay_ms for task in node.scheduler.periodic}
    assert periods == {
        "log-retention": 123,
        "log-flusher": 1000,
        "recovery-point-checkpoint": 60_000,
        "log-start-offset-checkpoint": 60_000,
        "highwatermark-checkpoint": 5000,
        "producer-expiration": 600_000,
    }
    append(node.create(), "a")
    for task in node.scheduler.periodic:
        task.fn()
    node.stop()
    assert all(task.is_cancelled for task in node.scheduler.periodic)


def test_retention_runs_over_all_logs(tmp_path: Path) -> None:
    node = Node(tmp_path, config=LogConfig(retention_ms=1000))
    manager = node.start()
    for index in range(3):
        log = node.create("t", index)
        append(log, "old", timestamp=WALL_MS - 2000)
        log.roll()
        log.update_high_watermark(1)
    assert manager.upkeep.delete_old_segments() == 3
    node.stop()


def test_data_older_than_flush_ms_is_flushed(tmp_path: Path) -> None:
    node = Node(tmp_path, config=LogConfig(flush_ms=500))
    manager = node.start()
    log = node.create()
    append(log, "a")
    node.clock.ms = 499
    manager.upkeep.flush_dirty_logs()
    assert log.flushed_offset == 0
    node.clock.ms = 500
    manager.upkeep.flush_dirty_logs()
    assert log.flushed_offset == 1
    node.stop()


def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    append(log, "a", producer_id=1, producer_epoch=0, base_sequence=0)
    node.clock.ms = 86_400_001
    append(log, "b", producer_id=2, producer_epoch=0, base_sequence=0)
    assert manager.upkeep.remove_expired_producers() == 1
    assert [entry.producer_id for entry in log.active_producers()] == [2]
    node.stop()


# --- group commit ------------------------------------------------------------------------------


def test_waiters_share_a_sync_and_are_all_told(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    syncs = 0
    started, go_on = threading.Event(), threading.Event()
    real = log.flush

    def flush() -> None:
        nonlocal syncs
        syncs += 1
        started.set()
        go_on.wait(HANGS_S)
        real()

    log.flush = flush  # type: ignore[method-assign]
    flusher = Flusher()
    done: list[tuple[KafkaError | None, int]] = []
    told = threading.Semaphore(0)

    def callback(error: KafkaError | None) -> None:
        done.append((error, log.flushed_offset))
        told.release()

    append(log, "a")
    flusher.flush_async(log, callback)
    assert started.wait(60)
    for _ in range(20):  # all of these arrive during the first sync
        append(log, "b")
        flusher.flush_async(log, callback)
    go_on.set()
    for _ in range(21):
        assert told.acquire(timeout=60)
    assert syncs == 2
    assert [error for error, _ in done] == [None] * 21
    assert all(flushed == 21 for _, flushed in done[1:])
    flusher.shutdown()


def test_a_waiter_learns_that_the_disk_failed(tmp_path: Path, disk: FaultyDisk) -> None:
    log = make_log(tmp_path)
    append(log, "a")
    flusher = Flusher()
    disk.fail("fsync")
    answers: list[KafkaError | None] = []
    flusher.flush_async(log, answers.append)
    flusher.shutdown()
    assert [answer and answer.code for answer in answers] == [ErrorCode.KAFKA_STORAGE_ERROR]
    flusher.flush_async(log, answers.append)  # after the shutdown: at once
    assert len(answers) == 2


# --- failing directories (B-7, S-16) -----------------------------------------------------------


def test_a_failing_directory_goes_offline_and_the_others_go_on(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    node = Node(bad, good)
    manager = node.start()
    broken = node.create("t", 0, directory=bad)
    fine = node.create("t", 1, directory=good)
    append(broken, "a")
    disk.fail("pwritev")
    with pytest.raises(KafkaError):
        append(broken, "b")
    assert node.failures == []  # told by the scheduler's thread, outside of the log's lock
    node.scheduler.run("log-dir-failure")
    assert node.failures == [bad]
    assert manager.offline_dirs == {bad}
    assert manager.get(TopicPartition("t", 0)) is None
    assert append(fine, "a").first_offset == 0
    assert node.create("t", 2).directory.parent == good
    with pytest.raises(KafkaError) as error:
        node.create("t", 3, directory=bad)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    node.stop()
    assert not (bad / CLEAN_SHUTDOWN).exists()
    assert (good / CLEAN_SHUTDOWN).exists()


def test_a_new_partition_goes_where_the_disk_takes_it(tmp_path: Path, disk: FaultyDisk) -> None:
    """Nobody had noticed that a disk is full, or broken."""
    full, broken, good = (tmp_path / name for name in ("full", "broken", "good"))
    node = Node(full, broken, good)
    manager = node.start()
    append(node.create("t", 0, directory=good), "a")
    assert manager.release_reserve(full)
    disk.fail("open_file", only=lambda path, *_: Path(path).is_relative_to(broken))
    assert node.create("t", 1).directory.parent == good
    node.scheduler.run("log-dir-failure")
    assert manager.offline_dirs == {broken}
    with pytest.raises(KafkaError, match="no space left"):
        node.create("t", 2, directory=full)
    disk.repair()
    node.stop()


def test_a_log_that_cannot_be_opened_is_not_begun_anew_elsewhere(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "ab"]
    node = Node(*dirs)
    node.start()
    append(node.create("t", 0, directory=dirs[1]), "a")
    node.stop()
    (dirs[1] / "t-0" / "partition.metadata").write_text("nonsense")
    node.start()
    with pytest.raises(KafkaError):
        node.create("t", 0)
    assert not (dirs[0] / "t-0").exists()
    node.stop()


def with_a_damaged_log(*dirs: Path) -> Node:
    """A node that has started; the second directory has a log of t-0 that cannot be opened."""
    node = Node(*dirs)
    node.start()
    log = node.create("t", 0, directory=dirs[1])
    append(log, "x" * 1500)
    log.roll()
    append(log, "y")
    node.stop()
    folder = dirs[1] / "t-0"
    for snapshot in folder.glob("*.snapshot"):  # all that is there is looked at
        snapshot.unlink()
    first = min(folder.glob("*.log"))
    data = bytearray(first.read_bytes())
    data[16] = 9  # no magic that there is
    first.write_bytes(data)
    node.start()
    return node


def test_a_damaged_log_is_refused_as_a_fault_of_its_disk(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "ab"]
    node = with_a_damaged_log(*dirs)
    with pytest.raises(KafkaError) as refused:
        node.create("t", 0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not (dirs[0] / "t-0").exists()
    node.stop()


def test_a_damaged_log_is_not_in_the_way_of_another_topic_of_its_name(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "ab"]
    node = with_a_damaged_log(*dirs)
    for index in range(3):
        node.create("u", index, directory=dirs[0])
    key = TopicPartition("t", 0)
    log = node.manager.get_or_create(key, b"another topic..!", node.config)
    assert log.directory.parent == dirs[0]
    node.stop()


def test_a_directory_that_cannot_be_read_at_start_goes_offline(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    node = Node(bad, good)
    node.start()
    append(node.create("t", 0, directory=bad), "a")
    append(node.create("t", 1, directory=good), "a")
    node.stop()
    disk.fail("pread", only=lambda fd, *_: "bad" in os.readlink(f"/proc/self/fd/{fd}"))
    manager = node.start()
    node.scheduler.run("log-dir-failure")
    assert manager.offline_dirs == {bad}
    assert [log.directory.parent for log in manager.all_logs()] == [good]
    assert manager.previous_broker_epoch == -1
    node.stop()


def test_a_full_disk_keeps_no_log_from_being_recovered(tmp_path: Path, disk: FaultyDisk) -> None:
    node = Node(tmp_path)
    node.start()
    append(node.create(), "a")
    node.crash()
    disk.fail("open_file", errno.ENOSPC, only=lambda path, *_: str(path).endswith("index"))
    log = node.start().get(ORDERS)
    assert log is not None
    assert values(read_from(log)) == [b"a"]
    with pytest.raises(KafkaError):
        append(log, "b")
    node.manager.upkeep.checkpoint_high_watermarks()  # there is room again
    assert append(log, "b").first_offset == 1
    node.stop()


def test_a_full_disk_still_takes_checkpoints_and_serves_again_by_itself(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    append(log, "a")
    log.update_high_watermark(1)
    log.flush()
    reserve = tmp_path / RESERVE_FILE
    assert reserve.stat().st_blocks * 512 >= 4 << 20
    is_full = True

    def out_of_space(*_: object) -> bool:
        return is_full and reserve.exists()  # while the reserve is held, nothing else fits

    for name in ("pwrite", "pwritev"):
        disk.fail(name, errno.ENOSPC, count=10**6, only=out_of_space)
    disk.fail("allocate", errno.ENOSPC, count=10**6, only=lambda *_: is_full)
    with pytest.raises(KafkaError):
        append(log, "b")
    manager.upkeep.checkpoint_recovery_points()
    assert OffsetCheckpoint(tmp_path / RECOVERY_POINT_CHECKPOINT).read() == {ORDERS: 1}
    # The reserve is for checkpoints: appends are refused as long as it is not back.
    with pytest.raises(KafkaError) as error:
        append(log, "b")
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert values(read_from(log)) == [b"a"]
    assert manager.offline_dirs == set()
    manager.upkeep.checkpoint_high_watermarks()
    assert not reserve.exists()
    is_full = False
    manager.upkeep.checkpoint_high_watermarks()
    assert reserve.exists()
    assert append(log, "b").first_offset == 1
    node.stop()


def test_a_full_disk_that_retention_may_empty_whole_is_emptied(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """To give up the active segment it makes another, which found no room; so nothing was given up,
    and nothing ever made room."""
    node = Node(tmp_path, config=LogConfig(retention_ms=1_000, segment_bytes=200))
    manager = node.start()
    log = node.create()
    for value in "abc":
        append(log, value * 100)
    log.update_high_watermark(3)
    manager.upkeep.checkpoint_high_watermarks()
    reserve = tmp_path / RESERVE_FILE

    def makes_a_file(_path: object, flags: int, *_: object) -> bool:
        return bool(flags & os.O_CREAT) and reserve.exists()

    disk.fail("open_file", errno.ENOSPC, count=10**6, only=makes_a_file)
    disk.fail("allocate", errno.ENOSPC, count=10**6)
    node.clock.ms += 2_000
    manager.upkeep.delete_old_segments()
    assert (log.log_start_offset, log.size) == (3, 0)
    disk.repair()
    node.scheduler.run()
    assert len(list(log.directory.glob("*.log*"))) == 1
    manager.upkeep.checkpoint_high_watermarks()
    assert append(log, "d").first_offset == 3
    node.stop()


def test_an_election_on_a_full_disk_takes_the_reserve_and_reads_go_on(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """S-16: that the epoch could not be noted took the partition away from readers, too."""
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    append(log, "a")
    reserve = tmp_path / RESERVE_FILE
    for name in ("pwrite", "pwritev"):
        disk.fail(name, errno.ENOSPC, count=10**6, only=lambda *_: reserve.exists())
    disk.fail("allocate", errno.ENOSPC, count=10**6)
    log.assign_epoch_start(1, None)
    assert read_leader_epochs(log.leader_epochs.path) == [(0, 0), (1, 1)]
    assert values(read_from(log)) == [b"a"]
    with pytest.raises(KafkaError):
        append(log, "b", epoch=1)
    disk.repair()
    manager.upkeep.checkpoint_high_watermarks()
    assert append(log, "b", epoch=1).first_offset == 1
    node.stop()


def test_an_abort_that_fits_on_a_full_disk_takes_the_reserve_and_not_the_directory(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """What its marker leaves in the log's last block is no room for the transaction index."""
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    manager.producers.requires_verification = False
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    append(log, "a", base_sequence=0, **producer)
    reserve = tmp_path / RESERVE_FILE
    is_full = True

    def finds_no_block(path: Any, *_: object) -> bool:
        return is_full and reserve.exists() and str(path).endswith(".txnindex")

    disk.fail("open_file", errno.ENOSPC, count=10**6, only=finds_no_block)
    disk.fail("allocate", errno.ENOSPC, count=10**6, only=lambda *_: is_full)
    marker = end_txn_marker_batch(
        EndTxnMarker(ControlRecordType.ABORT, 0), producer_id=7, producer_epoch=0,
        timestamp=WALL_MS,
    )  # fmt: skip
    log.append_as_leader(marker, 0, WALL_MS, FROM_COORDINATOR)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2
    assert [(txn.first_offset, txn.last_offset) for txn in log.aborted_transactions(0, 2)] == [
        (0, 1)
    ]
    assert manager.offline_dirs == set()
    with pytest.raises(KafkaError):
        append(log, "b")
    is_full = False
    manager.upkeep.checkpoint_high_watermarks()
    assert append(log, "b").first_offset == 2
    node.stop()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_reserve_that_cannot_be_opened_now_is_taken_later(
    tmp_path: Path, disk: FaultyDisk, number: int
) -> None:
    disk.fail(
        "open_file", number, count=10**6, only=lambda path, *_: str(path).endswith(RESERVE_FILE)
    )
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    manager.upkeep.checkpoint_high_watermarks()
    assert manager.offline_dirs == set()
    assert append(log, "a").first_offset == 0
    disk.repair()
    manager.upkeep.checkpoint_high_watermarks()
    assert (tmp_path / RESERVE_FILE).exists()
    node.stop()


@pytest.mark.parametrize("name", ["pwritev", "open_file", "fsync", "fsync_directory"])
def test_a_log_that_a_full_disk_refuses_leaves_nothing_behind(
    tmp_path: Path, disk: FaultyDisk, name: str
) -> None:
    """Neither a new one nor a future one, however often it is tried."""
    one, other = tmp_path / "one", tmp_path / "other"
    node = Node(one, other)
    manager = node.start()
    append(node.create(directory=one), "a")
    before = len(os.listdir("/proc/self/fd"))
    disk.fail(name, errno.ENOSPC, count=10**6)
    for _ in range(3):
        with pytest.raises(KafkaError):
            node.create("more", directory=one)
        with pytest.raises(KafkaError):
            manager.future_logs.create(ORDERS, TOPIC_ID, node.config, other)
    disk.repair()
    assert [path.name for path in one.iterdir() if path.is_dir()] == ["orders-0"]
    assert [path.name for path in other.iterdir() if path.is_dir()] == []
    assert len(os.listdir("/proc/self/fd")) <= before
    assert append(node.create("more", directory=one), "a").first_offset == 0
    assert manager.future_logs.create(ORDERS, TOPIC_ID, node.config, other).log_end_offset == 0
    node.stop()


@pytest.mark.parametrize("name", ["pwritev", "fsync", "replace"])
def test_a_full_disk_leaves_no_temporary_file(tmp_path: Path, disk: FaultyDisk, name: str) -> None:
    """Nor half a producer snapshot, which a start would have to find out about."""
    node = Node(tmp_path)
    manager = node.start()
    log = node.create()
    append(log, "a", producer_id=7, producer_epoch=0, base_sequence=0)
    log.update_high_watermark(1)
    before = {path for path in tmp_path.rglob("*") if path.name != RESERVE_FILE}
    disk.fail(name, errno.ENOSPC, count=10**6)
    manager.upkeep.checkpoint_high_watermarks()
    with suppress(KafkaError):
        log.roll()
    disk.repair()
    after = {path for path in tmp_path.rglob("*") if path.name != RESERVE_FILE}
    assert [path for path in after if path.suffix in (".tmp", ".cleaned", ".swap")] == []
    if name == "pwritev":
        assert after == before
    node.stop()


def test_a_limit_that_is_hit_and_lifted_costs_nothing_but_the_refused_appends(
    tmp_path: Path,
) -> None:
    """D5 in small, with real system calls: writes end short at a file size limit, then fail."""
    node = Node(tmp_path)
    node.start()
    log = node.create()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    appended = refused = 0
    try:
        for round_number in range(1, 21):
            resource.setrlimit(resource.RLIMIT_FSIZE, (round_number * 50_000, hard))
            before = appended
            for _ in range(80):
                try:
                    append(log, "x" * 1000)
                    appended += 1
                except KafkaError:
                    refused += 1
            assert appended > before
            assert len(read_from(log)) == appended
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert refused > 100
    node.crash()
    recovered = node.start().get(ORDERS)
    assert recovered is not None
    assert recovered.log_end_offset == appended
    node.stop()
