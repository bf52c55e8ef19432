"""Faults of thought, put into storage for the time of a run: the fuzzer must notice each.

Some are what one might have written; some are what was written, until the fuzzer found it. Nothing
in the product knows of them. A swap of compacted segments without its sync is none of them: as
names reach this disk in their order, it would be undone as a whole (`tests/storage/cleaning` looks
for the sync itself).

    python -m tests.storage.faults.mutants               all of them
    python -m tests.storage.faults.mutants "epoch"       those whose name contains it
    python -m tests.storage.faults.mutants "epoch" 1000  with so many seeds each
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from storage import checkpoint, files
from storage.checkpoint import LOG_START_OFFSET_CHECKPOINT
from storage.directories import log_dir
from storage.directories.log_dir import LogDir
from storage.environment import LogEnvironment
from storage.log import log_sync, truncation
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_sync import LogSync
from storage.log.partition_log import PartitionLog
from storage.log.producer_state import ProducerStateManager
from storage.recovery import _Recovery
from storage.segments.log_segments import make_segment
from storage.segments.segment import LogSegment
from storage.segments.transaction_index import TransactionIndex
from tests.sim.world import InvariantBroken
from tests.storage.faults.run import simulate

SEEDS = 10_000
Patch = Callable[[], AbstractContextManager[Any]]


def _does_nothing(*_: Any, **__: Any) -> None:
    pass


def _checkpoints_in_place(path: Path, data: bytes) -> None:
    fd = files.open_or_relieve(path, files.CREATE | os.O_TRUNC)
    try:
        files.write_fully(fd, [data], len(data), 0)
        files.fsync(fd)
    finally:
        files.close(fd)


def _checkpoints_unsynced(path: Path, data: bytes) -> None:
    with patch.object(files, "fsync", _does_nothing):
        _atomic_write(path, data)


_atomic_write = checkpoint.atomic_write


def _roll_early(self: PartitionLog, base_offset: int) -> LogSegment:
    """The segment's file is made before all that may fail."""
    active = self.view.segment
    if active.size == 0 and active.base_offset >= base_offset:
        return active
    segment = make_segment(self.directory, base_offset, self.config, self.environment)
    segment.create()
    self.producer_state.take_snapshot()
    active.become_inactive()
    self.segments.add(segment)
    self.sync.note_sealed([active])
    self.sync.note_directory_changed()
    self.publish_end(self.view.end_offset, segment)
    return segment


def _lower_to_what_is_flushed(self: PartitionLog, offset: int) -> None:
    self.truncations += 1
    self.flushed_offset = min(self.flushed_offset, offset)
    self.environment.checkpoints.lower(self.topic_partition, self.flushed_offset)


def _flush_beside_files_behind() -> AbstractContextManager[Any]:
    real_flush, real_finish = LogSync.flush, PartitionLog.finish_files

    def flush(self: LogSync, log: PartitionLog) -> None:
        with patch.object(PartitionLog, "finish_files", _does_nothing):
            real_flush(self, log)

    assert real_finish is PartitionLog.finish_files
    return patch.object(LogSync, "flush", flush)


def _indexes_without_names() -> AbstractContextManager[Any]:
    real = TransactionIndex.flush

    def flush(self: TransactionIndex) -> None:
        self._is_new = False
        real(self)

    return patch.object(TransactionIndex, "flush", flush)


def _renamed_or_not(self: LogDir, path: Path, to: Path) -> None:
    try:
        files.replace(path, to)
    except OSError as error:
        raise self.environment.storage_error(error, f"renaming {path}") from error


def _taken_without_sync(self: LogDir) -> int | None:
    marker = self.clean_shutdown
    epoch = marker.read_broker_epoch() if marker.exists() else None
    marker.delete()
    return epoch


def _without_directory_sync(module: Any) -> AbstractContextManager[Any]:
    """In the files of a log; those of its directory are made elsewhere."""

    class Files:
        def __getattr__(self, name: str) -> Any:
            return _does_nothing if name == "sync_directory" else getattr(files, name)

    return patch.object(module, "files", Files())


def _forgive(self: LogEnvironment, error: OSError) -> None:
    """A failed disk is used on."""
    if self.on_failure is None:
        self.failure = error


def _snapshots_stay() -> AbstractContextManager[Any]:
    stack = ExitStack()
    for name in ("delete_snapshots_outside", "delete_snapshot", "remove_stray_snapshots"):
        stack.enter_context(patch.object(ProducerStateManager, name, _does_nothing))
    return stack


def _start_that_no_name_tells(log: PartitionLog) -> int | None:
    start = log.log_start_offset
    return start if start > log.segments.items[0].base_offset else None


def _sync_left_open(path: str) -> None:
    files.fsync(files.open_or_relieve(path, files.READ_ONLY))


MUTANTS: dict[str, Patch] = {
    "a checkpoint is written in place": partial(
        patch.object, checkpoint, "atomic_write", _checkpoints_in_place
    ),
    "a checkpoint is renamed before it is synced": partial(
        patch.object, checkpoint, "atomic_write", _checkpoints_unsynced
    ),
    "a failed roll leaves its segment": partial(patch.object, PartitionLog, "_roll", _roll_early),
    "the recovery point rises without a sync": partial(
        patch.object, log_sync, "_sync_segment", _does_nothing
    ),
    "the epoch cache is not truncated": partial(
        patch.object, LeaderEpochCache, "truncate_from_end", _does_nothing
    ),
    "a producer snapshot of a later offset is kept": _snapshots_stay,
    "a failed disk is used on": partial(patch.object, LogEnvironment, "fail", _forgive),
    "a moved log start is not noted": partial(
        patch.object, LogDir, "soon", _does_nothing
    ),
    "names of cut off segments are not synced": partial(_without_directory_sync, truncation),
    "a log's directory is not synced with its files": partial(_without_directory_sync, log_sync),
    "a descriptor stays open": partial(patch.object, files, "sync_file", _sync_left_open),
    # Found by the fuzzer.
    "a truncation lowers all that is noted to what is flushed": partial(
        patch.object, PartitionLog, "_lower_flushed_offset", _lower_to_what_is_flushed
    ),
    "a flush passes files that are behind": _flush_beside_files_behind,
    "the name of a transaction index is not synced": _indexes_without_names,
    "a log that cannot be renamed is neither there nor gone": partial(
        patch.object, LogDir, "rename_away", _renamed_or_not
    ),
    "a start does not sync names": partial(
        patch.object, LogDir, "take_clean_marker", _taken_without_sync
    ),
    "a log start that the first segment's name tells is not noted": partial(
        patch.dict, log_dir._SAID, {LOG_START_OFFSET_CHECKPOINT: _start_that_no_name_tells}
    ),
    "indexes of a segment that was flushed while active are believed": partial(
        patch.object, _Recovery, "_doubt_last_flushed", _does_nothing
    ),
}  # fmt: skip


def hunt(name: str, seeds: int = SEEDS) -> str | None:
    """Which invariant noticed, in which seed; None if none did."""
    with MUTANTS[name]():
        for seed in range(seeds):
            try:
                simulate(seed)
            except InvariantBroken as error:
                return f"caught by seed {seed}: {str(error).partition(chr(10))[0][:150]}"
    return None


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else SEEDS
    escaped = 0
    for name in MUTANTS:
        if wanted in name:
            verdict = hunt(name, seeds)
            escaped += verdict is None
            print(f"{name}: {verdict or f'ESCAPED {seeds} seeds'}", flush=True)
    return int(escaped > 0)


if __name__ == "__main__":
    from tests.sim.seeds import with_fixed_hashing

    with_fixed_hashing("tests.storage.faults.mutants")
    sys.exit(main())
