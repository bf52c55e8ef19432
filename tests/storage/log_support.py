"""What the tests of logs share: a clock, batches, a log, a disk that fails on demand."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.partition_log import LogAppendInfo, PartitionLog
from storage.open_files import OpenFileCache
from storage.recovery import open_log
from testkit.clock import WALL_MS, ManualClock
from wire.primitives import TopicPartition
from wire.records import Record, build_batch, check_crc, iterate_headers, read_records

PARTITION = TopicPartition("orders", 0)


class Task:
    """A job waiting in a ManualScheduler."""

    def __init__(self, name: str, delay_ms: int, fn: Callable[[], object]) -> None:
        self.name = name
        self.delay_ms = delay_ms
        self.fn = fn
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualScheduler:
    """Collects jobs; a test runs those it wants, when it wants."""

    def __init__(self) -> None:
        self.once: list[Task] = []
        self.periodic: list[Task] = []

    def schedule_once(self, name: str, delay_ms: int, fn: Callable[[], object]) -> Task:
        self.once.append(Task(name, delay_ms, fn))
        return self.once[-1]

    def schedule(
        self, name: str, period_ms: int, fn: Callable[[], object], delay_ms: int | None = None
    ) -> Task:
        self.periodic.append(Task(name, period_ms, fn))
        return self.periodic[-1]

    def run(self, name: str | None = None) -> int:
        """Run and forget the one-time jobs (of that name); how many."""
        due = [task for task in self.once if name in (None, task.name)]
        self.once = [task for task in self.once if task not in due]
        for task in due:
            if not task.is_cancelled:
                task.fn()
        return len(due)


def batch(
    *values: bytes | str,
    timestamp: int = WALL_MS,
    key: bytes | None = b"key",
    **options: Any,
) -> bytes:
    """A producer's batch with one record per value."""
    rows = [
        Record(-1, timestamp, key, value.encode() if isinstance(value, str) else value)
        for value in values or (b"value",)
    ]
    return build_batch(rows, **options)


def environment(root: Path, **options: Any) -> LogEnvironment:
    return LogEnvironment(root, clock=options.pop("clock", ManualClock()), **options)


def make_log(
    root: Path,
    config: LogConfig | None = None,
    env: LogEnvironment | None = None,
    **options: Any,
) -> PartitionLog:
    """Open (or create) the test partition's log below `root`."""
    root.mkdir(parents=True, exist_ok=True)
    if env is None:
        env = environment(root, open_files=OpenFileCache(64))
    return open_log(root / "orders-0", PARTITION, config or LogConfig(), env, **options)


def append(
    log: PartitionLog, *values: bytes | str, epoch: int = 0, **options: Any
) -> LogAppendInfo:
    return log.append_as_leader(batch(*values, **options), epoch, log.environment.clock.wall_ms())


def read_bytes(
    log: PartitionLog, offset: int, upper: int | None = None, size: int = 1 << 20
) -> bytes:
    return log.read_bytes(offset, size, log.log_end_offset if upper is None else upper)


def read_from(log: PartitionLog, offset: int | None = None, size: int = 1 << 20) -> list[Record]:
    """Read like a consumer: fetch by fetch up to the end; every checksum must be right."""
    at = log.log_start_offset if offset is None else offset
    found: list[Record] = []
    while at < log.log_end_offset:
        data = read_bytes(log, at, size=size)
        if not data:
            break
        before = at
        for position, header in iterate_headers(data):
            assert check_crc(data, position, header), f"bad CRC served at {header.base_offset}"
            found += [r for r in read_records(data, position, header) if r.offset >= at]
            at = header.next_offset
        assert at > before, "no progress"
    return found


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


class FaultyDisk:
    """Replaces the functions of `storage.files` to fail, write short, or count what happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls: dict[str, int] = {}

    def fail(
        self,
        name: str,
        error: int = errno.EIO,
        *,
        at: int = 1,
        count: int = 1,
        only: Callable[..., bool] | None = None,
    ) -> None:
        """Let call number `at` to `at + count - 1` of a function raise; the others pass."""
        real = getattr(files, name)
        self.calls[name] = 0

        def faulty(*args: Any, **kwargs: Any) -> Any:
            if only is not None and not only(*args, **kwargs):
                return real(*args, **kwargs)
            self.calls[name] += 1
            if at <= self.calls[name] < at + count:
                raise OSError(error, os.strerror(error))
            return real(*args, **kwargs)

        self._monkeypatch.setattr(files, name, faulty)

    def write_short(self, keep: Callable[[int], int]) -> None:
        """Let vectored writes write only `keep(size)` bytes; plain writes half of theirs."""
        real_pwrite = files.pwrite

        def pwritev(fd: int, buffers: Any, position: int) -> int:
            data = b"".join(buffers)
            return real_pwrite(fd, data[: keep(len(data))], position)

        def pwrite(fd: int, data: Any, position: int) -> int:
            return real_pwrite(fd, data[: max(len(data) // 2, 1)], position)

        self._monkeypatch.setattr(files, "pwritev", pwritev)
        self._monkeypatch.setattr(files, "pwrite", pwrite)

    def repair(self) -> None:
        """Everything works again."""
        self._monkeypatch.undo()


def interrupt(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    other: Callable[[], object],
    *,
    after: bool = False,
    at: int = 1,
    only: Callable[..., bool] = lambda *_: True,
) -> list[str]:
    """Run `other` once, right before (or after) call number `at` of a function; what is returned is
    not empty once it ran."""
    real = getattr(owner, name)
    calls = 0
    ran: list[str] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += not ran and only(*args)
        is_due = not ran and calls == at
        if is_due:
            ran.append(name)
            if not after:
                other()
        result = real(*args, **kwargs)
        if is_due and after:
            other()
        return result

    monkeypatch.setattr(owner, name, interrupted)
    return ran
