"""Cutting a log's end off, or all of it, so that a failure on the way cannot leave it half cut.

Three steps, under the log's lock:

1. Plan: find where to cut, work out the producers as of there; lower the recovery point, and make
   the file of the new segment if one is needed. What fails here leaves the log as it was.
2. Install: segments, producers, epochs and the log's view are replaced. Memory only; cannot fail.
   No reader finds its way to what will be cut off any more.
3. Finish: bring the files to what the log says: rename what is gone, cut the file, write the
   epochs. What fails here is remembered and tried again before the next change of the log; until it
   succeeded appends are refused. A crash meanwhile leaves more than the log said: recovery finds
   it, and whoever asked for the cut asks again.

Why not roll back instead: a file that is cut has lost its bytes, and the rename that ran out of
descriptors will do so again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from storage import files
from storage.log.producer_replay import replayed_state
from storage.segments.log_segments import make_segment
from storage.segments.segment import LogSegment
from storage.segments.segment_files import DELETED_SUFFIX

if TYPE_CHECKING:
    from storage.log.partition_log import PartitionLog
    from storage.log.producer_state import ProducerStateManager


class Cut(NamedTuple):
    """What becomes of a log: it ends at `end_offset`, at `position` of the last of `kept`."""

    log_start_offset: int
    high_watermark: int
    end_offset: int
    position: int
    kept: tuple[LogSegment, ...]
    producer_state: ProducerStateManager
    is_new_start: bool
    """Nothing is kept of the log but its name; the only segment may be without a file yet."""


def plan_cut(log: PartitionLog, offset: int) -> Cut:
    """How to cut off every batch that reaches `offset` or beyond; it is below the log's end.

    Batches are cut whole, and the log will end where the last one left does, as it would when
    opened again: below `offset` too where compaction left a gap, for a segment that began in the
    gap would be taken for the remains of a loss. Raises OSError, IndexMismatch, CorruptSegment with
    nothing changed.
    """
    kept = tuple(segment for segment in log.segments if segment.base_offset <= offset)
    if not kept:
        return plan_new_start(log, offset)
    active = kept[-1]
    found = active.search(offset)
    position = active.size if found is None else found[0]
    end_offset = active.end_below(offset - 1, position)
    log_start_offset = min(log.log_start_offset, end_offset)
    high_watermark = min(log.high_watermark, end_offset)
    wall_ms = log.environment.clock.wall_ms()
    state = replayed_state(log.producer_state, log.segments, log_start_offset, end_offset, wall_ms)
    state.on_high_watermark_updated(high_watermark)
    return Cut(log_start_offset, high_watermark, end_offset, position, kept, state, False)


def plan_new_start(log: PartitionLog, offset: int) -> Cut:
    """How to throw all records away and begin anew at `offset`; a segment that begins there is used
    again, since there cannot be two files of that name. Raises OSError with nothing changed."""
    state = log.producer_state.without_producers()
    state.map_end_offset = offset
    segment = log.segments.floor(offset)
    if segment is None or segment.base_offset != offset:
        segment = make_segment(log.directory, offset, log.config, log.environment)
    return Cut(offset, offset, offset, 0, (segment,), state, True)


def install(log: PartitionLog, cut: Cut) -> list[LogSegment]:
    """Make it so, in memory; returns the segments that are no part of the log any more."""
    active = cut.kept[-1]
    gone = [segment for segment in log.segments if segment not in cut.kept]
    if cut.is_new_start:
        gone.reverse()  # From the oldest on, so that what is left leads up to the new start.
    active.cut(cut.position)
    log.producer_state = cut.producer_state
    if cut.is_new_start:
        log.leader_epochs.clear()
    log.leader_epochs.truncate_from_end(cut.end_offset)
    log.publish(cut.log_start_offset, cut.high_watermark, cut.end_offset, active, cut.position)
    log.segments.reset(cut.kept)
    return gone


class FilesBehind:
    """What the files of a log still have that the log has not: empty but after a failure."""

    __slots__ = ("_cut_active", "_gone", "_is_directory_dirty", "is_any")

    def __init__(self) -> None:
        self.is_any = False
        """Whether there is work left; while there is, nothing may be appended."""
        self._gone: list[LogSegment] = []
        self._cut_active: LogSegment | None = None
        self._is_directory_dirty = False

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """Those that are no part of the log any more and still have their names."""
        return tuple(self._gone)

    def note_cut(self, active: LogSegment, gone: list[LogSegment]) -> None:
        """The log ends in `active` now, `gone` are no part of it any more; as `note_removed`."""
        self.note_removed(gone)
        self._cut_active = active
        # A power loss would bring them back, to follow what is appended from here on.
        self._is_directory_dirty |= bool(gone)

    def note_removed(self, gone: list[LogSegment]) -> None:
        """Segments are no part of the log any more; their files go from the last of them on."""
        for segment in gone:
            segment.is_deleted = True
        self._gone += gone
        self.is_any = True

    def finish(self, log: PartitionLog) -> None:
        """Bring the files to what the log says; has the log's lock. May be called again and again.

        Raises OSError, IndexMismatch, CorruptSegment: what is left is done by the next call.
        """
        renamed: list[LogSegment] = []
        try:
            while self._gone:
                segment = self._gone[-1]
                segment.rename_suffix(DELETED_SUFFIX)
                log.producer_state.delete_snapshot(segment.base_offset)
                renamed.append(self._gone.pop())
        finally:
            unlink_later(log, renamed)
        if self._is_directory_dirty:
            files.sync_directory(log.directory)
            self._is_directory_dirty = False
        active = self._cut_active
        if active is not None:
            active.finish_cut(log.log_end_offset)
            log.producer_state.delete_snapshots_outside(log.log_start_offset, log.log_end_offset)
            log.leader_epochs.sync()
            self._cut_active = None
        self.is_any = False


def unlink_later(log: PartitionLog, gone: list[LogSegment]) -> None:
    """Unlink renamed segments after `file.delete.delay.ms`: readers may still be in them."""

    def unlink() -> None:
        for segment in gone:
            segment.change_directory(log.directory)  # which a move may have renamed meanwhile
            segment.delete()

    scheduler = log.environment.scheduler
    if not gone:
        return
    if scheduler is None:
        unlink()
    else:
        scheduler.schedule_once("delete-segments", log.config.file_delete_delay_ms, unlink)
