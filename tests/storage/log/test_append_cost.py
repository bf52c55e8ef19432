"""Which batches are worth another thread, judged by their header; and what opening them finds."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from storage.config import LogConfig
from storage.log.append import is_soon_opened, needs_records_opened
from storage.log.append_source import FROM_CLIENT
from testkit.clock import WALL_MS
from tests.storage.log_support import make_log
from wire.crc import crc32c
from wire.errors import ErrorCode, KafkaError
from wire.records import BATCH_OVERHEAD, Record, build_batch

HOUR_MS = 3_600_000
PLAIN = LogConfig()
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))


def batch(count: int = 100, *, ahead_ms: int = 0, codec: int = 0) -> bytes:
    rows = [Record(-1, WALL_MS + ahead_ms, b"key", os.urandom(100)) for _ in range(count)]
    return build_batch(rows, codec=codec)


@pytest.mark.parametrize(
    ("data", "config", "opens_compressed", "expected"),
    [
        (batch(), PLAIN, True, False),
        (batch(codec=4), PLAIN, False, False),
        (batch(codec=4), PLAIN, True, True),
        (batch(3, codec=4), PLAIN, True, False),
        (batch(codec=4, ahead_ms=2 * HOUR_MS), PLAIN, False, True),
        (batch(ahead_ms=2 * HOUR_MS), PLAIN, False, True),
        (batch(3, ahead_ms=2 * HOUR_MS), PLAIN, False, False),
        (batch(ahead_ms=HOUR_MS), PLAIN, False, False),
        (batch(), COMPACTED, False, True),
        (batch(3), COMPACTED, False, False),
        (batch(3, codec=1), COMPACTED, False, True),
        (batch(), LogConfig(message_timestamp_before_max_ms=1), False, True),
        (batch(), LogConfig(compression_type="zstd"), False, True),
        (batch()[:60], COMPACTED, True, False),
    ],
)
def test_what_must_open_many_records_is_known_from_the_header(
    data: bytes, config: LogConfig, opens_compressed: bool, expected: bool
) -> None:
    """N3: a batch of 357 KB with a time two hours ahead held up the network thread for 1.25 s."""
    records = memoryview(data)
    is_costly = needs_records_opened(records, config, WALL_MS, opens_compressed)
    assert (is_costly and not is_soon_opened(records)) is expected


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_log_that_opens_what_is_compressed_refuses_what_cannot_be(
    tmp_path: Path, codec: int
) -> None:
    log = make_log(tmp_path)
    good = batch(codec=codec)
    cut = bytearray(good[: BATCH_OVERHEAD + (len(good) - BATCH_OVERHEAD) // 2])
    struct.pack_into(">i", cut, 8, len(cut) - 12)
    struct.pack_into(">I", cut, 17, crc32c(memoryview(cut)[21:]))
    source = FROM_CLIENT._replace(opens_compressed=True)
    with pytest.raises(KafkaError) as refused:
        log.append_as_leader(bytes(cut), 0, WALL_MS, source)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0
    assert log.append_as_leader(good, 0, WALL_MS, source).last_offset == 99
