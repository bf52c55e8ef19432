"""Writing what a leader sent: batches that have their offsets and epochs already (E-9).

A follower gets many batches in one Fetch response. They lie back to back and stay as they are, so a
run of them is written with one system call; indexes, leader epochs and producer state are brought
forward batch by batch, from the headers alone. A run ends where the segment must roll or a leader
epoch begins.

Each run is written whole or not at all; when a later one fails, the runs before it stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage import files
from storage.log.append import read_marker
from storage.log.producer_replay import note_batch
from storage.log.results import LogAppendInfo
from storage.segments.segment import RELATIVE_OFFSET_MAX, Batch

if TYPE_CHECKING:
    from storage.log.partition_log import PartitionLog
    from storage.segments.segment import LogSegment


def write_given(
    log: PartitionLog, records: files.Buffer, batches: Sequence[Batch]
) -> LogAppendInfo:
    """Append `batches`, which `check_follower_batches` found in `records`; has the log's lock.

    Raises OSError, and KafkaError for a batch larger than a segment.
    """
    if not batches:
        end = log.log_end_offset
        return LogAppendInfo(end, end - 1, -1, -1, log.log_start_offset, -1, 0)
    wall_ms = log.environment.clock.wall_ms()
    view = memoryview(records)
    start, count = 0, len(batches)
    while start < count:
        header = batches[start][1]
        segment = log.segment_for(header.size, header.last_offset, header.max_timestamp, wall_ms)
        stop = _end_of_run(log, segment, batches, start)
        _write_run(log, segment, view, batches[start:stop], wall_ms)
        start = stop
    last = batches[-1]
    end = log.log_end_offset
    return LogAppendInfo(
        batches[0][1].base_offset,
        end - 1,
        max(header.max_timestamp for _, header in batches),
        -1,
        log.log_start_offset,
        last[1].leader_epoch,
        last[0] + last[1].size,
        end - log.flushed_offset >= log.config.flush_messages,
    )


def _end_of_run(
    log: PartitionLog, segment: LogSegment, batches: Sequence[Batch], start: int
) -> int:
    """How far the batches from `start` on may go into `segment` together."""
    position, first = batches[start]
    begin = position - segment.size
    limits = log.config.segment_bytes, segment.base_offset + RELATIVE_OFFSET_MAX
    oldest = segment.first_timestamp if segment.size else first.max_timestamp
    newest = oldest + log.config.max_segment_ms - segment.jitter_ms
    stop = start + 1
    for position, header in batches[stop:]:
        if (
            position + header.size - begin > limits[0]
            or header.last_offset > limits[1]
            or header.leader_epoch != first.leader_epoch
            or header.max_timestamp > newest
        ):
            break
        stop += 1
    return stop


def _write_run(
    log: PartitionLog,
    segment: LogSegment,
    view: memoryview,
    batches: Sequence[Batch],
    wall_ms: int,
) -> None:
    begin, first = batches[0]
    position, last = batches[-1]
    size = position + last.size - begin
    segment.append_run(
        (view[begin : begin + size],), size, [(at - begin, header) for at, header in batches]
    )
    if first.leader_epoch > log.leader_epochs.latest_epoch:
        log.leader_epochs.assign(first.leader_epoch, first.base_offset)
    producer_state, room = log.producer_state, log.environment.make_room
    for at, header in batches:
        if header.producer_id >= 0:
            marker = read_marker(header, view[at : at + header.size]) if header.is_control else None
            note_batch(producer_state, segment, header, header.base_offset, wall_ms, marker, room)
    producer_state.map_end_offset = last.next_offset
    log.publish_end(last.next_offset, segment)
