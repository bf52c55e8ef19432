"""Apache Kafka's DumpLogSegments reads what our cleaner leaves behind, without a complaint.

Black box through files: keyed, idempotent and transactional records in every codec, deleted keys,
several cleanings, a restart between them; then Kafka's own tool reads each file, and what it prints
of the records is compared with what was appended last for each key.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from storage.cleaning.cleaner import LogCleaner
from storage.config import LogConfig, SystemClock
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from testkit.clients.java_tools import JavaTools
from wire.primitives import TopicPartition
from wire.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    end_txn_marker_batch,
)

pytestmark = pytest.mark.java

COMPLAINTS = ("mismatch", "isvalid: false", "out of order", "corrupt", "error", "exception")
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    segment_bytes=16_000,
    index_interval_bytes=200,
    delete_retention_ms=0,
)


class Writer:
    """Appends keyed records of many producers and remembers the newest committed of each key."""

    def __init__(self, root: Path, config: LogConfig, seed: int) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.config = config
        self.directory = root / "table-0"
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        self.sequences = dict.fromkeys(range(1000, 1004), 0)
        self.log = self.open()

    def open(self, **options: object) -> PartitionLog:
        log = open_log(
            self.directory,
            TopicPartition("table", 0),
            self.config,
            LogEnvironment(self.root),
            **options,  # type: ignore[arg-type]
        )
        self.cleaner = LogCleaner(lambda: [log], SystemClock())
        return log

    def write(self, count: int) -> None:
        for _ in range(count):
            producer_id = self.rng.choice([-1, *self.sequences])
            is_transactional = producer_id >= 0 and producer_id % 2 == 0
            is_committed = not is_transactional or self.rng.random() < 0.6
            self._batch(producer_id, is_transactional, is_committed)
            if is_transactional:
                self._end(producer_id, is_committed)

    def _batch(self, producer_id: int, is_transactional: bool, is_committed: bool) -> None:
        rng = self.rng
        rows = [
            Record(
                -1,
                SystemClock().wall_ms() - rng.randint(0, 100_000),
                b"k%03d" % rng.randrange(120),
                rng.choice([None, rng.randbytes(rng.randrange(1, 200)), b"v"]),
                [("h", b"v")] if rng.random() < 0.2 else [],
            )
            for _ in range(rng.randint(1, 8))
        ]
        options: dict[str, object] = {}
        if producer_id >= 0:
            options = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": self.sequences[producer_id],
                "is_transactional": is_transactional,
            }
            self.sequences[producer_id] += len(rows)
        batch = build_batch(rows, codec=rng.randrange(5), **options)  # type: ignore[arg-type]
        first = self.log.append_as_leader(batch, 3, SystemClock().wall_ms()).first_offset
        if is_committed:
            for index, row in enumerate(rows):
                assert row.key is not None
                self.newest[row.key] = (first + index, row.value)

    def _end(self, producer_id: int, is_committed: bool) -> None:
        kind = ControlRecordType.COMMIT if is_committed else ControlRecordType.ABORT
        marker = end_txn_marker_batch(
            EndTxnMarker(kind, 1),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=SystemClock().wall_ms(),
        )
        self.log.append_as_leader(marker, 3, SystemClock().wall_ms(), FROM_COORDINATOR)

    def clean(self) -> None:
        self.log.roll()
        self.log.update_high_watermark(self.log.log_end_offset)
        assert self.cleaner.clean_filthiest()

    def restart(self) -> None:
        end = self.log.log_end_offset
        self.log.flush()
        self.log.close()
        self.log = self.open(had_clean_shutdown=True, recovery_point=end)
        self.log.update_high_watermark(end)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_the_tool_finds_nothing_wrong_in_a_compacted_log(
    tmp_path: Path, java_tools: JavaTools, timestamp_type: str
) -> None:
    from dataclasses import replace

    config = replace(CONFIG, message_timestamp_type=timestamp_type)
    writer = Writer(tmp_path, config, seed=len(timestamp_type))
    for _ in range(4):
        writer.write(120)
        writer.clean()
        writer.restart()
    writer.write(20)
    writer.clean()
    writer.log.flush()
    writer.log.close()
    paths = sorted(
        path
        for path in writer.directory.iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    )
    names = ",".join(map(str, paths))
    for options in (["--index-sanity-check"], ["--deep-iteration"], ["--verify-index-only"]):
        report = java_tools.run("DumpLogSegments", "--files", names, *options).ok()
        found = [
            line for line in report.splitlines() if any(word in line.lower() for word in COMPLAINTS)
        ]
        assert found == [], options
    printed = _printed(writer, java_tools)
    live = {key: offset for key, (offset, value) in writer.newest.items() if value is not None}
    assert {key: printed.get(key) for key in live} == live
    deleted = [key for key, (_, value) in writer.newest.items() if value is None]
    assert all(printed.get(key, writer.newest[key][0]) == writer.newest[key][0] for key in deleted)


def _printed(writer: Writer, java_tools: JavaTools) -> dict[bytes, int]:
    """Key to offset as the tool prints the data records; each key once."""
    found: dict[bytes, int] = {}
    for path in sorted(writer.directory.glob("*.log")):
        report = java_tools.run("DumpLogSegments", "--files", str(path), "--print-data-log").ok()
        for offset, key in re.findall(r"\| offset: (\d+) .*? key: (k\d{3})", report):
            assert key.encode() not in found, "two records of one key in a cleaned log"
            found[key.encode()] = int(offset)
    return found
