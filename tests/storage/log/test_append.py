"""What a batch must be like before a log writes it, and what it is changed to: limits and edges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.config import LogConfig
from storage.log.append import check_follower_batches, prepare_batch
from storage.log.append_source import FROM_CLIENT, FROM_COORDINATOR, FROM_RAFT
from testkit.clock import WALL_MS
from tests.storage.log_support import append, batch, make_log
from wire.errors import ErrorCode, KafkaError
from wire.records import LOG_APPEND_TIME, build_batch, read_header, read_records

SENT = batch("value " * 20, timestamp=WALL_MS - 5)


def refused(code: ErrorCode, call: Callable[..., object], *args: object) -> None:
    with pytest.raises(KafkaError) as error:
        call(*args)
    assert error.value.code == code


def test_a_coordinators_batch_may_be_as_large_as_the_topic_says_and_no_larger() -> None:
    """Else a group that grew too large would be written and then read by nobody."""
    exact = LogConfig(max_message_bytes=len(SENT))
    assert prepare_batch(SENT, exact, WALL_MS, FROM_COORDINATOR)[1] == SENT
    smaller = LogConfig(max_message_bytes=len(SENT) - 1)
    refused(ErrorCode.MESSAGE_TOO_LARGE, prepare_batch, SENT, smaller, WALL_MS, FROM_COORDINATOR)
    assert prepare_batch(SENT, smaller, WALL_MS, FROM_RAFT)[1] == SENT


def test_log_append_time_holds_for_what_coordinators_write_too() -> None:
    """And the log is told the time that is in the batch: its indexes and retention go by that."""
    config = LogConfig(message_timestamp_type="LogAppendTime")
    header, records, append_time = prepare_batch(SENT, config, WALL_MS, FROM_COORDINATOR)
    assert (header.max_timestamp, header.timestamp_type) == (WALL_MS, LOG_APPEND_TIME)
    assert append_time == WALL_MS
    assert [record.timestamp for record in read_records(records)] == [WALL_MS]
    own = prepare_batch(SENT, config, WALL_MS, FROM_RAFT)
    assert (own[1], own[2]) == (SENT, -1), "the quorum's times are its own"
    assert prepare_batch(SENT, LogConfig(), WALL_MS, FROM_COORDINATOR)[1:] == (SENT, -1)


@pytest.mark.parametrize(
    "damaged", [SENT + b"x", SENT[:-1], SENT[:-1] + b"x"], ids=["longer", "shorter", "other bytes"]
)
def test_the_brokers_own_batches_are_held_to_frame_and_checksum(damaged: bytes) -> None:
    refused(ErrorCode.CORRUPT_MESSAGE, prepare_batch, damaged, LogConfig(), WALL_MS, FROM_RAFT)


def test_under_create_time_there_is_no_append_time_whatever_was_looked_at(tmp_path: Path) -> None:
    """Producers are told -1, and keep the timestamps they sent."""
    log = make_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    assert append(log, "a", timestamp=5).log_append_time_ms == -1


def test_under_log_append_time_the_producers_times_are_not_held_against_it() -> None:
    config = LogConfig(
        message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1_000
    )
    old = batch("a", timestamp=5)
    assert prepare_batch(old, config, WALL_MS, FROM_CLIENT)[2] == WALL_MS
    before = LogConfig(message_timestamp_before_max_ms=1_000)
    refused(ErrorCode.INVALID_TIMESTAMP, prepare_batch, old, before, WALL_MS, FROM_CLIENT)


def test_a_batch_in_the_codec_that_the_topic_asks_for_stays_as_it_was_sent() -> None:
    sent = batch("a" * 50, codec=1)
    gzip = LogConfig(compression_type="gzip")
    assert prepare_batch(sent, gzip, WALL_MS, FROM_CLIENT)[1] is sent
    plain = LogConfig(compression_type="uncompressed")
    assert prepare_batch(SENT, plain, WALL_MS, FROM_CLIENT)[1] is SENT


def test_a_batch_may_be_as_large_as_the_topic_says_once_it_is_in_its_codec() -> None:
    sent = batch("a" * 5_000, codec=1)
    plain = LogConfig(compression_type="uncompressed")
    size = len(prepare_batch(sent, plain, WALL_MS, FROM_CLIENT)[1])
    exact = LogConfig(compression_type="uncompressed", max_message_bytes=size)
    assert prepare_batch(sent, exact, WALL_MS, FROM_CLIENT)[0].size == size
    smaller = LogConfig(compression_type="uncompressed", max_message_bytes=size - 1)
    refused(ErrorCode.MESSAGE_TOO_LARGE, prepare_batch, sent, smaller, WALL_MS, FROM_CLIENT)


def test_the_topics_compression_level_is_the_one_that_is_used() -> None:
    text = " ".join(f"order {i * i % 997}" for i in range(2_000))
    sizes = [
        prepare_batch(
            batch(text),
            LogConfig(compression_type="gzip", compression_gzip_level=level),
            WALL_MS,
            FROM_CLIENT,
        )[0].size
        for level in (1, 9, -1)
    ]
    assert sizes[1] < sizes[0]
    assert sizes[2] == len(build_batch(read_records(batch(text)), codec=1))


def test_a_follower_takes_a_batch_that_compaction_left_empty() -> None:
    """It is 61 bytes, the header alone: who does not take the last one asks for it for ever."""
    empty = build_batch([], base_offset=4, last_offset_delta=2, leader_epoch=0)
    ((position, header),) = check_follower_batches(empty, 4, 0)
    assert (position, header.size, header.next_offset) == (0, 61, 7)
    full = batch("a", base_offset=3, leader_epoch=0)
    found = check_follower_batches(full + empty, 3, 0)
    assert [header.next_offset for _, header in found] == [4, 7]


def test_the_last_record_of_a_batch_may_be_where_an_empty_log_begins(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.truncate_fully_and_start_at(6)
    info = log.append_as_follower(batch("a", "b", "c", base_offset=4, leader_epoch=2), 2)
    assert (info.first_offset, info.last_offset) == (4, 6)


def test_what_is_no_batch_does_not_begin_an_empty_log(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.truncate_fully_and_start_at(6)
    refused(ErrorCode.CORRUPT_MESSAGE, log.append_as_follower, bytes(8) + b"\xff" * 90, 2)
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)


def test_the_headers_that_are_returned_are_those_of_the_bytes() -> None:
    for config in (
        LogConfig(),
        LogConfig(compression_type="lz4"),
        LogConfig(message_timestamp_type="LogAppendTime"),
        LogConfig(compression_type="gzip", message_timestamp_type="LogAppendTime"),
    ):
        header, records, _ = prepare_batch(SENT, config, WALL_MS, FROM_CLIENT)
        assert header == read_header(records)
