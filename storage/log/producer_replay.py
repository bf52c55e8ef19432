"""Producer state from the batches of a log: when it is opened, recovered or truncated.

Replayed batches were checked when they were first appended, so nothing is refused here (P-3).
Markers of aborted transactions are written to the transaction index of their segment when that is
being rebuilt; a plain replay finds them there already.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from storage import files
from storage.log.append import read_marker
from storage.log.producer_state import ProducerStateManager
from storage.segments.index import CorruptIndexError
from storage.segments.log_segments import LogSegments
from storage.segments.segment import LogSegment
from storage.segments.transaction_index import AbortedTxn
from wire.control_records import EndTxnMarker
from wire.record_batch import BatchHeader


def note_batch(
    producer_state: ProducerStateManager,
    segment: LogSegment,
    header: BatchHeader,
    first_offset: int,
    wall_ms: int,
    marker: EndTxnMarker | None,
    make_room: Callable[[], bool] = files.no_room,
    *,
    index_aborted: bool = True,
) -> None:
    """Bring the state forward by a batch of a producer that is in the log at `first_offset`.

    A transaction it aborts goes into the segment's transaction index first; if that fails the last
    stable offset stays where it was (P-7), and the error is final. On a full disk the entry goes
    into what `make_room` frees: its batch cannot be taken back, and is what a producer whose
    records found no room sends next (S-16).
    """
    last_offset = first_offset + header.last_offset_delta
    completed = producer_state.update(header, first_offset, last_offset, wall_ms, marker)
    if completed is None:
        return
    if completed.is_aborted and index_aborted:
        aborted = AbortedTxn(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            producer_state.last_stable_offset_after(completed),
        )
        try:
            files.with_room(lambda: segment.txn_index.append(aborted), make_room)
        except CorruptIndexError as error:
            failure = OSError(errno.EIO, str(error))
            failure.is_final = True  # type: ignore[attr-defined]
            raise failure from error
        except OSError as error:
            error.is_final = True  # type: ignore[attr-defined]
            raise
    producer_state.complete_txn(completed)


def apply_batch(
    producer_state: ProducerStateManager,
    segment: LogSegment,
    position: int,
    header: BatchHeader,
    wall_ms: int,
    *,
    index_aborted: bool,
) -> None:
    """`note_batch` for a batch in a segment's file; batches without producer id change nothing."""
    if header.producer_id >= 0:
        marker = None
        if header.is_control:
            marker = read_marker(header, segment.slice(position, header.size).read())
        note_batch(
            producer_state,
            segment,
            header,
            header.base_offset,
            wall_ms,
            marker,
            index_aborted=index_aborted,
        )
    producer_state.map_end_offset = header.next_offset


def replay_producer_state(
    producer_state: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    end_offset: int,
    wall_ms: int,
) -> None:
    """Make the state that of the log up to `end_offset`: newest snapshot, then the batches (P-4).

    Raises IndexMismatch, CorruptSegment and OSError.
    """
    producer_state.truncate_and_reload(log_start_offset, end_offset, wall_ms)
    _replay(producer_state, segments, end_offset, wall_ms)


def replayed_state(
    producer_state: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    end_offset: int,
    wall_ms: int,
) -> ProducerStateManager:
    """What the state would be if the log ended at `end_offset`; this one is not changed, and the
    snapshots above that stay. Errors as in `replay_producer_state`.
    """
    state = producer_state.without_producers()
    state.load_newest_snapshot(log_start_offset, end_offset, wall_ms)
    _replay(state, segments, end_offset, wall_ms)
    return state


def _replay(
    producer_state: ProducerStateManager, segments: LogSegments, end_offset: int, wall_ms: int
) -> None:
    for segment in segments.from_floor(producer_state.map_end_offset):
        start = producer_state.map_end_offset
        if start >= end_offset or segment.base_offset >= end_offset:
            break
        first = segment.search(max(start, segment.base_offset))
        if first is None:
            continue
        for position, header in segment.batches(first[0]):
            if header.base_offset >= end_offset:
                break
            apply_batch(producer_state, segment, position, header, wall_ms, index_aborted=False)
    producer_state.map_end_offset = max(producer_state.map_end_offset, end_offset)
