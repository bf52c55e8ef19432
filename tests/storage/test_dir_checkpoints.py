"""What a directory has written down: every line has a log, and the files say what is known."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from storage.checkpoint import OffsetCheckpoint
from storage.dir_checkpoints import (
    CHECKPOINTS,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    DirCheckpoints,
)
from wire.primitives import TopicPartition

KEY = TopicPartition("t", 0)


@dataclass
class Log:
    offset: int | None
    topic_partition: TopicPartition = KEY
    truncations: int = 0
    is_closed: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)  # type: ignore[valid-type]


def written(directory: Path, kind: str) -> dict[TopicPartition, int]:
    return dict(OffsetCheckpoint(directory / kind).read())


def test_all_files_are_there_from_the_first_write_on(tmp_path: Path) -> None:
    checkpoints = DirCheckpoints(tmp_path)
    checkpoints.read()
    checkpoints.write()
    assert sorted(os.listdir(tmp_path)) == sorted(CHECKPOINTS)


def test_a_file_that_says_what_is_known_is_not_written_again(tmp_path: Path) -> None:
    DirCheckpoints(tmp_path).note(LOG_START_OFFSET_CHECKPOINT, [Log(7)], lambda log: log.offset)
    before = (tmp_path / LOG_START_OFFSET_CHECKPOINT).stat().st_ino
    checkpoints = DirCheckpoints(tmp_path)
    checkpoints.read()
    checkpoints.write()
    assert checkpoints.get(LOG_START_OFFSET_CHECKPOINT, KEY) == 7
    assert (tmp_path / LOG_START_OFFSET_CHECKPOINT).stat().st_ino == before


def test_a_line_goes_when_its_log_has_nothing_to_say(tmp_path: Path) -> None:
    checkpoints = DirCheckpoints(tmp_path)
    for offset, lines in ((7, {KEY: 7}), (None, {})):
        checkpoints.note(LOG_START_OFFSET_CHECKPOINT, [Log(offset)], lambda log: log.offset)
        assert checkpoints.get(LOG_START_OFFSET_CHECKPOINT, KEY) == offset
        assert written(tmp_path, LOG_START_OFFSET_CHECKPOINT) == lines


def test_what_is_compacted_is_written_at_once_if_the_log_is_as_it_was(tmp_path: Path) -> None:
    checkpoints = DirCheckpoints(tmp_path)
    checkpoints.note_cleaned(Log(None), 5, truncations=0)
    checkpoints.note_cleaned(Log(None, truncations=1), 6, truncations=0)
    checkpoints.note_cleaned(Log(None, is_closed=True), 7, truncations=0)
    assert written(tmp_path, CLEANER_OFFSET_CHECKPOINT) == {KEY: 5}


def test_forgetting_a_log_looks_at_no_other(tmp_path: Path) -> None:
    """A topic of ten thousand partitions is deleted log by log."""
    looks: list[str] = []

    class Key(TopicPartition):
        __hash__ = TopicPartition.__hash__

        def __eq__(self, other: object) -> bool:
            looks.append("==")
            return tuple.__eq__(self, other)

        def __ne__(self, other: object) -> bool:
            looks.append("!=")
            return tuple.__ne__(self, other)

    checkpoints = DirCheckpoints(tmp_path)
    checkpoints.read()
    logs = [Log(number, Key("t", number)) for number in range(100)]
    for kind in CHECKPOINTS:
        checkpoints.note(kind, logs, lambda log: log.offset)
    looks.clear()
    checkpoints.forget(logs[50].topic_partition)
    assert len(looks) < 10
    assert checkpoints.get(LOG_START_OFFSET_CHECKPOINT, TopicPartition("t", 50)) is None
