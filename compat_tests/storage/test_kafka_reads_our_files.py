"""Apache Kafka's DumpLogSegments reads every file our storage writes, without a complaint.

Black box through files: a directory is written by `storage`, closed or abandoned in the middle, and
handed to Kafka's own tool: each batch and record, each index entry against the log, each producer
snapshot's checksum.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from testkit.clients.java_tools import JavaTools
from testkit.clock import WALL_MS
from wire.primitives import TopicPartition
from wire.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    end_txn_marker_batch,
    iterate_headers,
    read_records,
)

pytestmark = pytest.mark.java

COMPLAINTS = ("mismatch", "isvalid: false", "out of order", "corrupt", "error", "exception")


class Writer:
    """Appends what producers of many kinds send, and remembers it."""

    def __init__(self, directory: Path, config: LogConfig, seed: int) -> None:
        self.rng = random.Random(seed)
        self.directory = directory / "orders-0"
        self.config = config
        self.environment = LogEnvironment(directory)
        self.sequences = dict.fromkeys(range(1000, 1004), 0)
        self.open_transactions: set[int] = set()
        self.log = self.open()

    def open(self, **options: object) -> PartitionLog:
        return open_log(
            self.directory,
            TopicPartition("orders", 0),
            self.config,
            self.environment,
            **options,  # type: ignore[arg-type]
        )

    def write(self, count: int) -> None:
        for _ in range(count):
            rng = self.rng
            producer_id = rng.choice([-1, -1, *self.sequences])
            rows = [
                Record(
                    -1,
                    WALL_MS + rng.randint(-100_000, 100_000),
                    rng.choice([None, b"k%d" % rng.randrange(50)]),
                    rng.choice([None, rng.randbytes(rng.randrange(300))]),
                    [("h", b"v")] if rng.random() < 0.2 else [],
                )
                for _ in range(rng.randint(1, 12))
            ]
            options: dict[str, object] = {}
            if producer_id >= 0:
                is_transactional = producer_id % 2 == 0
                options = {
                    "producer_id": producer_id,
                    "producer_epoch": 3,
                    "base_sequence": self.sequences[producer_id],
                    "is_transactional": is_transactional,
                }
                self.sequences[producer_id] += len(rows)
                if is_transactional:
                    self.open_transactions.add(producer_id)
            batch = build_batch(rows, codec=rng.randrange(5), **options)  # type: ignore[arg-type]
            self.log.append_as_leader(batch, self.log.segments.active.base_offset // 100, WALL_MS)
            if self.open_transactions and rng.random() < 0.15:
                self.end_transaction(self.open_transactions.pop())

    def end_transaction(self, producer_id: int) -> None:
        kind = self.rng.choice([ControlRecordType.COMMIT, ControlRecordType.ABORT])
        marker = end_txn_marker_batch(
            EndTxnMarker(kind, 1), producer_id=producer_id, producer_epoch=3, timestamp=WALL_MS
        )
        self.log.append_as_leader(marker, 0, WALL_MS, FROM_COORDINATOR)

    def close(self) -> None:
        self.log.flush()
        self.log.close()


def closed(writer: Writer) -> None:
    writer.close()


def still_open_but_flushed(writer: Writer) -> None:
    writer.log.flush()
    writer.log.active_segment.flush()


def reopened_and_continued(writer: Writer) -> None:
    end = writer.log.log_end_offset
    writer.close()
    writer.log = writer.open(had_clean_shutdown=True, recovery_point=end)
    writer.write(60)
    writer.close()


def recovered_after_a_crash(writer: Writer) -> None:
    path = writer.log.active_segment.path
    writer.log.flush()
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 7)
    writer.sequences = dict.fromkeys(range(2000, 2004), 0)
    writer.open_transactions.clear()
    writer.log = writer.open()
    writer.write(40)
    writer.close()


def truncated_and_continued(writer: Writer) -> None:
    writer.log.truncate_to(writer.log.log_end_offset * 2 // 3)
    writer.sequences = dict.fromkeys(range(2000, 2004), 0)
    writer.open_transactions.clear()
    writer.write(60)
    writer.close()


def with_deleted_records(writer: Writer) -> None:
    writer.log.roll()
    writer.log.update_high_watermark(writer.log.log_end_offset)
    writer.log.increment_log_start_offset(writer.log.log_end_offset)
    assert writer.log.delete_old_segments(WALL_MS) > 0
    writer.write(30)
    writer.close()


CONFIGS = {
    "default": LogConfig(),
    "small segments": LogConfig(segment_bytes=20_000, index_interval_bytes=500),
    "index at every batch": LogConfig(segment_bytes=30_000, index_interval_bytes=0),
    "tiny indexes": LogConfig(segment_index_bytes=256, index_interval_bytes=300),
    "log append time": LogConfig(
        segment_bytes=20_000, index_interval_bytes=300, message_timestamp_type="LogAppendTime"
    ),
    "recompressed": LogConfig(
        segment_bytes=20_000, index_interval_bytes=300, compression_type="zstd"
    ),
}


@pytest.mark.parametrize(
    "then",
    [
        closed,
        still_open_but_flushed,
        reopened_and_continued,
        recovered_after_a_crash,
        truncated_and_continued,
        with_deleted_records,
    ],
)
@pytest.mark.parametrize("config", CONFIGS)
def test_the_tool_finds_nothing_wrong(
    tmp_path: Path, java_tools: JavaTools, config: str, then: Callable[[Writer], None]
) -> None:
    writer = Writer(tmp_path, CONFIGS[config], seed=len(config) + len(then.__name__))
    writer.write(300)
    then(writer)
    paths = sorted(
        path
        for path in writer.directory.iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    )
    kinds = {path.suffix for path in paths}
    assert {".log", ".index", ".timeindex"} <= kinds
    assert ".snapshot" in kinds or then is still_open_but_flushed
    names = ",".join(map(str, paths))
    for options in (["--index-sanity-check"], ["--deep-iteration"], ["--verify-index-only"]):
        report = java_tools.run("DumpLogSegments", "--files", names, *options).ok()
        found = [
            line for line in report.splitlines() if any(word in line.lower() for word in COMPLAINTS)
        ]
        assert found == [], options
    for path in paths:
        if path.suffix == ".index":
            passed = java_tools.run(
                "DumpLogSegments", "--files", str(path), "--index-sanity-check"
            ).ok()
            assert f"{path} passed sanity check." in passed


def test_the_tool_prints_the_records_we_appended(tmp_path: Path, java_tools: JavaTools) -> None:
    writer = Writer(tmp_path, LogConfig(segment_bytes=30_000), seed=5)
    writer.write(200)
    writer.close()
    printed: list[tuple[int, int, int]] = []
    expected: list[tuple[int, int, int]] = []
    for path in sorted(writer.directory.glob("*.log")):
        report = java_tools.run("DumpLogSegments", "--files", str(path), "--print-data-log").ok()
        pattern = r"\| offset: (\d+) .*?CreateTime: (\d+).*? valueSize: (-?\d+)"
        printed += [(int(o), int(t), int(size)) for o, t, size in re.findall(pattern, report)]
        data = path.read_bytes()
        for position, header in iterate_headers(data):
            expected += [
                (record.offset, record.timestamp, -1 if record.value is None else len(record.value))
                for record in read_records(data, position, header)
            ]
    assert len(expected) > 500
    assert printed == expected


def test_the_tool_notices_when_an_index_is_wrong(tmp_path: Path, java_tools: JavaTools) -> None:
    """The check above can fail: a shifted index entry is reported."""
    writer = Writer(tmp_path, LogConfig(index_interval_bytes=500), seed=1)
    writer.write(100)
    writer.close()
    index = next(writer.directory.glob("*.index"))
    data = bytearray(index.read_bytes())
    data[3] += 1
    index.write_bytes(data)
    report = java_tools.run("DumpLogSegments", "--files", str(index), "--verify-index-only").text
    assert "Mismatches in" in report
