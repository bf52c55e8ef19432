"""Writing what clients sent: one batch, or a run of batches that came together.

Each batch gets the next offsets and the leader's epoch, stamped into its first 16 bytes, and is
written as it came. A run is what was waiting in the connection of a producer that does not wait for
answers: it is written with one system call, as if each of its batches had come alone. Whatever
would not go the same way alone (a duplicate, a wrong sequence, a transaction, a segment that must
roll) leaves the whole run to be appended batch by batch, with nothing done.

All of it under the log's lock, but `prepare_run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage import files
from storage.log.append import PreparedBatch, prepare_batch, read_marker
from storage.log.producer_replay import note_batch
from storage.log.results import LogAppendInfo, LogView, new_view
from wire.errors import KafkaError
from wire.record_batch import BatchHeader, new_header, patch_for_log

RUN_MAX = 256
"""Batches of a run: each is two buffers, and the system takes 1,024 in one call."""

if TYPE_CHECKING:
    from storage.config import LogConfig
    from storage.log.append_source import AppendSource
    from storage.log.partition_log import PartitionLog


def append_batch(
    log: PartitionLog, batch: PreparedBatch, leader_epoch: int, wall_ms: int, source: AppendSource
) -> LogAppendInfo:
    """Write one batch; raises OSError, with nothing written, and KafkaError as `check` does."""
    header, records, log_append_time_ms = batch
    first_offset = log.view.end_offset
    last_offset = first_offset + header.last_offset_delta
    producer_state = log.producer_state
    marker = None
    if header.producer_id >= 0:
        if header.is_control:
            marker = read_marker(header, records)
        original = producer_state.check(header, source, marker)
        if original is not None:
            return log.of_duplicate(original, leader_epoch)
    segment = log.segment_for(header.size, last_offset, header.max_timestamp, wall_ms)
    segment.append(
        (patch_for_log(records, first_offset, leader_epoch), memoryview(records)[16:]),
        header.size,
        first_offset,
        last_offset,
        header.max_timestamp,
    )
    end_offset = last_offset + 1
    if header.producer_id >= 0:
        room = log.environment.make_room
        note_batch(producer_state, segment, header, first_offset, wall_ms, marker, room)
    producer_state.map_end_offset = end_offset
    start, stable, high_watermark = log.view[:3]
    log.view = new_view(LogView, (start, stable, high_watermark, end_offset, segment, segment.size))
    return LogAppendInfo(
        first_offset,
        last_offset,
        header.max_timestamp,
        log_append_time_ms,
        start,
        leader_epoch,
        header.size,
        end_offset - log.flushed_offset >= log.config.flush_messages,
    )


def prepare_run(
    batches: Sequence[files.Buffer], config: LogConfig, wall_ms: int, source: AppendSource
) -> list[PreparedBatch] | None:
    """The batches, checked; None if one is wrong or transactional, or if there are too many."""
    if len(batches) > RUN_MAX:
        return None
    try:
        prepared = [prepare_batch(records, config, wall_ms, source) for records in batches]
    except KafkaError:
        return None
    # (Clients' batches are no control batches.)
    return None if any(header.is_transactional for header, _, _ in prepared) else prepared


def append_run(
    log: PartitionLog,
    run: Sequence[PreparedBatch],
    leader_epoch: int,
    wall_ms: int,
    source: AppendSource,
) -> list[LogAppendInfo] | None:
    """Write these batches with one call; None, with nothing done, if they must be looked at one by
    one. Raises OSError, with nothing written."""
    if not log.producer_state.takes_in_a_row((header for header, _, _ in run), source):
        return None
    offset, position = log.view.end_offset, 0
    placed: list[tuple[int, BatchHeader]] = []
    buffers: list[files.Buffer] = []
    for header, records, _ in run:
        placed.append((position, new_header(BatchHeader, (offset, *header[1:]))))
        buffers += (patch_for_log(records, offset, leader_epoch), memoryview(records)[16:])
        position += header.size
        offset += header.last_offset_delta + 1
    newest = max(header.max_timestamp for header, _, _ in run)
    segment = log.view.segment
    config = log.config
    if not segment.size or segment.should_roll(
        position, offset - 1, newest, config.segment_bytes, config.max_segment_ms, wall_ms
    ):
        return None
    segment.append_run(buffers, position, placed)
    for _, header in placed:
        if header.producer_id >= 0:
            note_batch(log.producer_state, segment, header, header.base_offset, wall_ms, None)
    log.producer_state.map_end_offset = offset
    log.publish_end(offset, segment)
    return [
        LogAppendInfo(
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            log_append_time_ms,
            log.view.log_start_offset,
            leader_epoch,
            header.size,
            header.next_offset - log.flushed_offset >= log.config.flush_messages,
        )
        for (_, header), (_, _, log_append_time_ms) in zip(placed, run, strict=True)
    ]
