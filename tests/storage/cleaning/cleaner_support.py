"""What the tests of compaction share: keyed appends, a cleaner without a thread, a reader that
behaves like a consumer with `isolation.level=read_committed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.cleaning.cleaner import CleanerConfig, LogCleaner
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from testkit.clock import WALL_MS, ManualClock
from tests.storage.log_support import make_log
from wire.records import (
    BatchHeader,
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    check_crc,
    control_record_type,
    end_txn_marker_batch,
    iterate_headers,
    read_records,
)

Table = dict[bytes, bytes]
Pairs = Iterable[tuple[bytes | None, bytes | None]]

DAY_MS = 86_400_000
COMPACT = frozenset({"compact"})


def compacted(**options: object) -> LogConfig:
    """A config whose logs are cleaned as soon as there is anything to clean."""
    chosen: dict[str, object] = {"cleanup_policy": COMPACT, "min_cleanable_dirty_ratio": 0.0}
    return LogConfig(**{**chosen, **options})  # type: ignore[arg-type]


class Cleaned:
    """One log and its cleaner, told of truncations as the log manager does it."""

    def __init__(
        self,
        root: Path,
        config: LogConfig | None = None,
        cleaner_config: CleanerConfig | None = None,
        **options: object,
    ) -> None:
        self.root = root
        self.clock = ManualClock()
        self.config = config or compacted()
        self.cleaner_config = cleaner_config
        self.open(**options)

    def open(self, **options: object) -> None:
        """Open the log, for the first time or after `log.close` or a crash."""
        self.cleaner = LogCleaner(lambda: [self.log], self.clock, self.cleaner_config)
        environment = LogEnvironment(self.root, clock=self.clock)
        environment.checkpoints.read()
        self.log: PartitionLog = make_log(self.root, self.config, environment, **options)
        environment.checkpoints.trim({self.log.topic_partition: self.log.log_end_offset})

    def append(self, *pairs: tuple[bytes | None, bytes | None], **options: object) -> int:
        """Append one batch of (key, value); the offset of its first record."""
        rows = [Record(-1, self.clock.wall_ms(), key, value) for key, value in pairs]
        batch = build_batch(rows, **options)  # type: ignore[arg-type]
        info = self.log.append_as_leader(batch, 0, self.clock.wall_ms())
        return info.first_offset

    def end_transaction(self, producer_id: int, kind: ControlRecordType, epoch: int = 0) -> int:
        marker = end_txn_marker_batch(
            EndTxnMarker(kind, 0),
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp=self.clock.wall_ms(),
        )
        return self.log.append_as_leader(
            marker, 0, self.clock.wall_ms(), FROM_COORDINATOR
        ).first_offset

    def roll(self) -> None:
        """Close the segment, so that what is in it may be cleaned."""
        self.log.roll()
        self.log.update_high_watermark(self.log.log_end_offset)

    def clean(self, *, roll: bool = True) -> bool:
        if roll:
            self.roll()
        return self.cleaner.clean_filthiest()


def batches(log: PartitionLog, offset: int | None = None) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch from an offset on, fetched like a consumer does it."""
    at = log.log_start_offset if offset is None else offset
    while at < log.log_end_offset:
        result = log.read(at, 4096, True, log.log_end_offset)
        if result.records is None:
            return
        data = result.records.read()
        for position, header in iterate_headers(data):
            assert check_crc(data, position, header), f"bad CRC at {header.base_offset}"
            assert header.last_offset >= at, "offsets go back"
            yield header, data[position : position + header.size]
            at = header.next_offset


def records(log: PartitionLog) -> list[Record]:
    """All data records, of aborted transactions too."""
    return [
        record
        for header, data in batches(log)
        if not header.is_control
        for record in read_records(data, 0, header)
    ]


def committed(log: PartitionLog) -> list[Record]:
    """What a read_committed consumer gets, aborted transactions filtered out as clients do it."""
    found: list[Record] = []
    at = log.log_start_offset
    stable = log.last_stable_offset
    while at < stable:
        result = log.read(at, 4096, True, stable, include_aborted=True)
        if result.records is None:
            break
        assert result.aborted is not None
        upcoming = sorted(result.aborted, key=lambda txn: txn.first_offset)
        aborted: set[int] = set()
        data = result.records.read()
        for position, header in iterate_headers(data):
            while upcoming and upcoming[0].first_offset <= header.last_offset:
                aborted.add(upcoming.pop(0).producer_id)
            rows = list(read_records(data, position, header))
            if header.is_control:
                if rows and control_record_type(rows[0].key) is ControlRecordType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [row for row in rows if row.offset >= at]
            at = header.next_offset
    return found


def table(rows: Iterable[Record]) -> Table:
    """What somebody who reads from the start knows at the end."""
    known: Table = {}
    for row in rows:
        assert row.key is not None
        if row.value is None:
            known.pop(row.key, None)
        else:
            known[row.key] = row.value
    return known


def offsets(rows: Iterable[Record]) -> list[int]:
    return [row.offset for row in rows]


__all__ = [
    "COMPACT",
    "DAY_MS",
    "WALL_MS",
    "Cleaned",
    "batches",
    "committed",
    "compacted",
    "offsets",
    "records",
    "table",
]
