"""`barnabas dump-log`: what a person sees of the files, and what it says when they are wrong."""

from __future__ import annotations

import io
import os
import random
import re
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from storage.checkpoint import (
    META_PROPERTIES,
    MetaProperties,
    OffsetCheckpoint,
    write_meta_properties,
    write_partition_metadata,
)
from storage.config import LogConfig
from storage.dump import DumpError, dump_files
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from testkit.clock import WALL_MS
from tests.storage.log_support import (
    append,
    batch,
    make_log,
)
from wire.primitives import TopicPartition
from wire.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    end_txn_marker_batch,
)


def dump(*paths: Path, records: bool = True) -> str:
    out = io.StringIO()
    dump_files(paths, out, records=records)
    return out.getvalue()


def problems_of(*paths: Path) -> list[str]:
    out = io.StringIO()
    with pytest.raises(DumpError, match=r"problems? found"):
        dump_files(paths, out)
    return [line for line in out.getvalue().splitlines() if line.startswith("!")]


def written(root: Path, config: LogConfig | None = None) -> PartitionLog:
    log = make_log(root, config or LogConfig(index_interval_bytes=100))
    for number in range(20):
        rows = [Record(-1, WALL_MS + number, b"key %d" % number, b"value", [("h", b"1")])]
        log.append_as_leader(build_batch(rows * 3, codec=number % 5), number // 10, WALL_MS)
    transactional = batch(
        "t", producer_id=7, producer_epoch=2, base_sequence=0, is_transactional=True
    )
    log.append_as_leader(transactional, 1, WALL_MS)
    marker = end_txn_marker_batch(
        EndTxnMarker(ControlRecordType.ABORT, 4), producer_id=7, producer_epoch=2, timestamp=WALL_MS
    )
    log.append_as_leader(marker, 1, WALL_MS, FROM_COORDINATOR)
    log.flush()
    log.close()
    return log


def test_batches_and_records_of_a_log(tmp_path: Path) -> None:
    log = written(tmp_path)
    text = dump(log.active_segment.path)
    lines = text.splitlines()
    assert lines[0] == f"{log.active_segment.path}:"
    assert re.match(
        r"batch offset=0\.\.2 position=0 size=\d+ records=3 codec=none leader_epoch=0 "
        rf"create_time={WALL_MS} crc=0x[0-9a-f]{{8}}$",
        lines[1],
    )
    assert lines[2] == (
        f"  offset=0 timestamp={WALL_MS} key='key 0' value='value' headers={{'h': '1'}}"
    )
    assert [f"codec={name}" in text for name in ("gzip", "snappy", "lz4", "zstd")] == [True] * 4
    assert "producer_id=7 producer_epoch=2 sequence=0..0 transactional" in text
    assert "transactional control\n" in text
    assert "marker=ABORT coordinator_epoch=4" in lines[-1]
    assert sum(line.startswith("  offset=") for line in lines) == log.log_end_offset
    assert "key=" not in dump(log.active_segment.path, records=False)


def test_a_directory_stands_for_the_files_in_it(tmp_path: Path) -> None:
    log = written(tmp_path)
    write_partition_metadata(log.directory / "partition.metadata", b"0123456789abcdef")
    text = dump(log.directory)
    for part in (
        "00000000000000000000.index:\n  offset=",
        "00000000000000000000.timeindex:\n  timestamp=",
        "00000000000000000000.txnindex:\n  aborted producer_id=7 first_offset=60 last_offset=61",
        "00000000000000000062.snapshot:\n  producer_id=7 producer_epoch=2 coordinator_epoch=4",
        "leader-epoch-checkpoint:\n  leader_epoch=0 start_offset=0\n  leader_epoch=1 start_off",
        "partition.metadata:\n  topic_id=MDEyMzQ1Njc4OWFiY2RlZg",
    ):
        assert part in text


def test_a_time_index_of_older_apache_kafka_is_sound(tmp_path: Path) -> None:
    """It names the record with the time, not the last one of its batch."""
    log = make_log(tmp_path)
    append(log, "a", "b", "c")
    index = log.directory / "00000000000000000000.timeindex"
    index.write_bytes(struct.pack(">qi", WALL_MS, 0))
    assert f"timestamp={WALL_MS} offset=0" in dump(index)
    for time, offset in ((WALL_MS, 3), (WALL_MS + 1, 0)):
        index.write_bytes(struct.pack(">qi", time, offset))
        assert problems_of(index) == [
            f"! no batch with offset {offset} has the max timestamp {time}"
        ]


def test_the_files_of_a_log_directory(tmp_path: Path) -> None:
    write_meta_properties(tmp_path / META_PROPERTIES, MetaProperties("cluster", 3, None))
    OffsetCheckpoint(tmp_path / "recovery-point-offset-checkpoint").write(
        {TopicPartition("a-b", 1): 77}
    )
    text = dump(tmp_path)
    assert "cluster_id=cluster node_id=3 directory_id=none" in text
    assert "partition=a-b-1 offset=77" in text


def test_a_kraft_snapshot_is_printed_as_batches(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000009-0000000002.checkpoint"
    path.write_bytes(batch("x", base_offset=0) + batch("y", base_offset=1))
    assert dump(path).count("batch offset=") == 2


def test_bytes_that_are_no_text_cannot_play_tricks_on_the_terminal(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, b"\x1b[31mred\x07", b"\xff\xfe", b"line\nbreak", "grün", b"x" * 5000)
    text = dump(log.active_segment.path)
    assert r"value='\x1b[31mred\x07'" in text
    assert r"value=b'\xff\xfe'" in text
    assert r"value='line\nbreak'" in text
    assert "value='grün'" in text
    assert "... (5000 bytes)" in text
    assert "\x1b" not in text


def test_null_keys_and_values_are_named(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append_as_leader(build_batch([Record(-1, 5, None, None)]), 0, WALL_MS)
    assert "offset=0 timestamp=5 key=null value=null" in dump(log.active_segment.path)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[:-1] + b"!", "checksum differs"),
        (lambda data: data[:-5], "cut short"),
        (lambda data: data + b"garbage", "no batch"),
        (lambda data: data + b"\0" * 100, "no batch"),
        (lambda data: data + data[: len(data) // 2], "is below"),
    ],
)
def test_damage_is_shown_where_it_is(tmp_path: Path, damage: object, expected: str) -> None:
    path = tmp_path / "00000000000000000000.log"
    two = batch("abc") + batch("def", base_offset=1)
    path.write_bytes(damage(two))  # type: ignore[operator]
    assert any(expected in line for line in problems_of(path))


def test_an_index_that_does_not_fit_its_log_is_reported(tmp_path: Path) -> None:
    log = written(tmp_path)
    for path in (log.active_segment.offset_index.path, log.active_segment.time_index.path):
        assert "!" not in dump(path)
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        assert problems_of(path)


def test_an_index_without_its_log_is_printed_unchecked(tmp_path: Path) -> None:
    log = written(tmp_path)
    index = log.active_segment.offset_index.path
    log.active_segment.path.unlink()
    assert "not compared" in dump(index)


def test_a_damaged_snapshot_or_checkpoint_is_a_problem(tmp_path: Path) -> None:
    log = written(tmp_path)
    snapshot = next(log.directory.glob("*.snapshot"))
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    (log.directory / "leader-epoch-checkpoint").write_text("0\n5\n")
    found = problems_of(log.directory)
    assert len(found) == 2


def test_what_is_no_log_file_is_refused_in_one_line(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG")
    with pytest.raises(DumpError, match=r"picture\.png is no file of a log: expected \.log"):
        dump(picture)
    with pytest.raises(DumpError, match="no files of a log"):
        dump(tmp_path)
    with pytest.raises(FileNotFoundError):
        dump(tmp_path / "missing.log")
    with pytest.raises(FileNotFoundError):
        dump(tmp_path / "missing")
    (tmp_path / "wrong.index").write_bytes(b"")
    with pytest.raises(DumpError, match="base offset"):
        dump(tmp_path / "wrong.index")


def test_random_bytes_never_end_in_a_traceback(tmp_path: Path) -> None:
    rng = random.Random(1)
    log = written(tmp_path)
    for path in sorted(log.directory.iterdir()):
        original = path.read_bytes()
        for _ in range(40):
            data = bytearray(original)
            for _ in range(rng.randint(1, 8)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(rng.choice([bytes(data), rng.randbytes(len(data)), data[:-3]]))
            with suppress(DumpError):
                dump(path)
        path.write_bytes(original)
    assert os.listdir(log.directory)
