"""The cleaner in the log manager: its thread, its checkpoint, several logs and directories."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.checkpoint import CLEANER_OFFSET_CHECKPOINT
from storage.cleaning.cleaner import THREAD_NAME, CleanerConfig
from storage.config import LogConfig
from storage.dir_checkpoints import DirCheckpoints
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from testkit.clock import WALL_MS, ManualClock
from testkit.wait import HANGS_S
from tests.storage.cleaning.cleaner_support import compacted, records, table
from tests.storage.log_support import ManualScheduler
from wire.primitives import TopicPartition
from wire.records import Record, build_batch

TOPIC_ID = b"a-topic's-own-id"
TABLE = TopicPartition("table", 0)


class Node:
    """A log manager that is stopped at the test's end."""

    def __init__(self, *dirs: Path, cleaner: CleanerConfig | None = None) -> None:
        for path in dirs:
            path.mkdir(exist_ok=True)
        self.clock = ManualClock()
        self.config = compacted()
        self.manager = LogManager(
            {path: b"%16d" % index for index, path in enumerate(dirs)},
            LogConfig(),
            self.clock,
            ManualScheduler(),
            lambda path, error: None,
            cleaner_config=cleaner,
        )
        self.manager.startup(lambda topic: self.config)

    def log(self, key: TopicPartition = TABLE, directory: Path | None = None) -> PartitionLog:
        return self.manager.get_or_create(key, TOPIC_ID, self.config, directory)


def fill(log: PartitionLog, *values: bytes, key: bytes = b"k") -> None:
    """Append values of one key and close the segment."""
    for value in values:
        log.append_as_leader(build_batch([Record(-1, WALL_MS, key, value)]), 0, WALL_MS)
    log.roll()
    log.update_high_watermark(log.log_end_offset)


def checkpoint(root: Path) -> str:
    return (root / CLEANER_OFFSET_CHECKPOINT).read_text()


@pytest.fixture
def start() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(*dirs: Path, **options: CleanerConfig) -> Node:
        nodes.append(Node(*dirs, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.manager.shutdown()


StartNode = Callable[..., Node]


def test_every_directory_has_its_own_checkpoint(tmp_path: Path, start: StartNode) -> None:
    node = start(tmp_path / "a", tmp_path / "b")
    for name, values in (("a", (b"1", b"2")), ("b", (b"1", b"2", b"3"))):
        fill(node.log(TopicPartition(f"in-{name}", 0), tmp_path / name), *values)
    cleaner = node.manager.cleaner
    assert cleaner.clean_filthiest()
    assert cleaner.clean_filthiest()
    assert not cleaner.clean_filthiest()
    assert checkpoint(tmp_path / "a") == "0\n1\nin-a 0 2\n"
    assert checkpoint(tmp_path / "b") == "0\n1\nin-b 0 3\n"


def test_a_topic_created_again_is_dirty_from_its_start(tmp_path: Path, start: StartNode) -> None:
    node = start(tmp_path)
    fill(node.log(), b"1", b"2", b"3")
    assert node.manager.cleaner.clean_filthiest()
    node.manager.delete(TABLE)
    again = node.log()
    assert checkpoint(tmp_path) == "0\n0\n"
    fill(again, b"1", b"2", b"3", b"4")
    assert node.manager.cleaner.clean_filthiest()
    assert [r.value for r in records(node.log())] == [b"4"]


def test_a_truncation_takes_the_checkpoint_back_before_anything_is_cut(
    tmp_path: Path, start: StartNode
) -> None:
    node = start(tmp_path)
    log = node.log()
    fill(log, b"1", key=b"a")
    fill(log, b"2", key=b"b")
    assert node.manager.cleaner.clean_filthiest()
    assert checkpoint(tmp_path) == "0\n1\ntable 0 2\n"
    log.truncate_to(1)
    assert checkpoint(tmp_path) == "0\n1\ntable 0 1\n"
    log.truncate_fully_and_start_at(0)
    assert checkpoint(tmp_path) == "0\n1\ntable 0 0\n"


def test_a_cleaned_log_is_opened_again_with_what_was_clean(
    tmp_path: Path, start: StartNode
) -> None:
    node = start(tmp_path)
    fill(node.log(), b"1", b"2")
    fill(node.log(), b"3", key=b"other")
    assert node.manager.cleaner.clean_filthiest()
    node.manager.shutdown()
    again = start(tmp_path)
    assert not again.manager.cleaner.clean_filthiest()
    assert table(records(again.log())) == {b"k": b"2", b"other": b"3"}
    fill(again.log(), b"4")
    chosen = again.manager.cleaner.choose()
    assert chosen is not None
    assert chosen.first_dirty_offset == 3


def cleaner_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def test_the_thread_cleans_by_itself_and_ends_with_the_manager(
    tmp_path: Path, start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tmp_path, cleaner=CleanerConfig(log_cleaner_backoff_ms=1))
    cleaned = threading.Event()
    real = node.manager.cleaner.clean_filthiest

    def clean_filthiest(directory: Path) -> bool:
        if not real(directory):
            return False
        cleaned.set()
        return True

    monkeypatch.setattr(node.manager.cleaner, "clean_filthiest", clean_filthiest)
    fill(node.log(), b"1", b"2")
    node.manager.start_background()
    assert len(cleaner_threads()) == 1
    assert cleaned.wait(60)
    assert [r.value for r in records(node.log())] == [b"2"]
    node.manager.shutdown()
    assert cleaner_threads() == []


def test_a_disk_that_hangs_keeps_no_other_from_being_cleaned(
    tmp_path: Path, start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(
        tmp_path / "bad", tmp_path / "good", cleaner=CleanerConfig(log_cleaner_backoff_ms=1)
    )
    for name in ("bad", "good"):
        fill(node.log(TopicPartition(f"in-{name}", 0), tmp_path / name), b"1", b"2")
    has_hung, answers, cleaned = (threading.Event() for _ in range(3))
    sync, note_cleaned = files.fsync, DirCheckpoints.note_cleaned

    def hanging(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path / "bad")):
            has_hung.set()
            answers.wait(HANGS_S)
        sync(fd)

    def noting(self: DirCheckpoints, *what: Any) -> None:
        note_cleaned(self, *what)
        cleaned.set()

    monkeypatch.setattr(files, "fsync", hanging)
    monkeypatch.setattr(DirCheckpoints, "note_cleaned", noting)
    node.manager.start_background()
    assert has_hung.wait(60)
    assert cleaned.wait(60)
    assert checkpoint(tmp_path / "good") == "0\n1\nin-good 0 2\n"
    assert not answers.is_set()
    answers.set()


def test_a_log_that_is_given_up_when_its_topic_is_made_again_leaves_the_new_one_to_be_cleaned(
    tmp_path: Path, start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tmp_path)
    fill(node.log(), b"1", b"2")

    def make_again(_cleanable: object) -> None:
        node.manager.delete(TABLE)
        fill(node.log(), b"3", b"4")
        raise ValueError("a batch that cannot be read")

    cleaner = node.manager.cleaner
    monkeypatch.setattr(cleaner, "clean", make_again)
    assert not cleaner.clean_filthiest()
    chosen = cleaner.choose()
    assert chosen is not None
    assert chosen.log is node.log()


def test_an_error_does_not_end_the_thread(
    tmp_path: Path, start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tmp_path, cleaner=CleanerConfig(log_cleaner_backoff_ms=0))
    again = threading.Event()
    calls = 0

    def fail(directory: Path) -> bool:
        nonlocal calls
        calls += 1
        if calls > 2:
            again.set()
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(node.manager.cleaner, "clean_filthiest", fail)
    node.manager.start_background()
    assert again.wait(60)


def test_a_disabled_cleaner_has_no_thread(tmp_path: Path, start: StartNode) -> None:
    node = start(tmp_path, cleaner=CleanerConfig(log_cleaner_enable=False))
    node.manager.start_background()
    assert cleaner_threads() == []


def test_a_new_configuration_is_obeyed_by_the_next_cleaning(
    tmp_path: Path, start: StartNode
) -> None:
    node = start(tmp_path)
    cleaner = node.manager.cleaner
    for number in range(5):
        fill(node.log(), b"1", key=b"k%d" % number)
    cleaner.reconfigure(
        CleanerConfig(
            log_cleaner_dedupe_buffer_size=200,
            log_cleaner_io_buffer_load_factor=1.0,
        )
    )
    assert cleaner.clean_filthiest()
    assert cleaner.last_stats.end_offset == 1
    cleaner.reconfigure(CleanerConfig())
    assert cleaner.clean_filthiest()
    assert cleaner.last_stats.end_offset == 5
