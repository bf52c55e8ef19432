"""Putting a cleaned segment in the place of those it was made from, whenever the process may end.

Files on the way (S-13; Kafka: LocalLog.replaceSegments):

1. `.cleaned`: being written, then synced together with the directory. A crash: removed at start.
   The producer snapshots where the old segments begin go before the next step: a transaction that
   was open there is never ended by what follows, once its marker is compacted away.
2. `.swap`: complete. A crash from here on: `storage.recovery.finish_interrupted_swaps` removes the
   old segments it covers and finishes.
3. The old segments become `.deleted`, and are unlinked after `file.delete.delay.ms`.
4. The new segment loses its suffix, the directory is synced.

Steps 2 to 4 happen under the log's lock and only if the log was not truncated since the cleaning
began and still has all the old segments; the syncs of files happen outside of it, so an append
waits for renames at most. That renames reach the disk in the order they were made is asked of the
file system, as Kafka asks it; nothing is unlinked before they are synced.

Readers: the list of segments changes in one step, before the old files are renamed. Who has an old
segment reads on from its open file; who finds it renamed looks at the list again (S-15).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage import files
from storage.log.partition_log import PartitionLog
from storage.segments.segment import LogSegment
from storage.segments.segment_files import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX


class CleaningAborted(Exception):
    """The log was truncated, shortened, closed or the cleaner stopped: nothing was changed."""


def replace_segments(
    log: PartitionLog, new: LogSegment, old: Sequence[LogSegment], truncations: int
) -> None:
    """Swap `new`, which is `.cleaned`, synced and not changed any more, for `old`.

    `truncations` is what `log.truncations` was when the old segments were first looked at. Raises
    CleaningAborted with `new` as it was, and OSError, after which only a restart knows which files
    are there: it is final for the directory.
    """
    assert new.suffix == CLEANED_SUFFIX, f"{new} is not a cleaned segment"
    assert old[0].base_offset == new.base_offset, f"{new} begins elsewhere than {old[0]}"
    files.sync_directory(log.directory)
    with log.lock:
        _check_unchanged(log, old, truncations)
        try:
            # Loaded and open: no reader looks for a file while its name changes.
            new.handle()
            _ = new.txn_index.aborted
            for segment in old:
                log.producer_state.delete_snapshot(segment.base_offset)
            new.rename_suffix(SWAP_SUFFIX)
            log.segments.replace(old, new)
            for segment in old:
                segment.is_deleted = True
                segment.rename_suffix(DELETED_SUFFIX)
            new.rename_suffix("")
        except OSError as error:
            error.is_final = True  # type: ignore[attr-defined]
            raise
    try:
        files.sync_directory(log.directory)
    except OSError as error:
        error.is_final = True  # type: ignore[attr-defined]
        raise
    _unlink_later(log, old)


def _check_unchanged(log: PartitionLog, old: Sequence[LogSegment], truncations: int) -> None:
    if log.is_closed or log.is_offline:
        raise CleaningAborted("log was closed")
    if log.truncations != truncations:
        raise CleaningAborted("log was truncated")
    present = {id(segment) for segment in log.segments}
    if not all(id(segment) in present for segment in old):
        raise CleaningAborted("segments were deleted")
    if old[-1] is log.active_segment:
        raise CleaningAborted("segment is active")


def _unlink_later(log: PartitionLog, old: Sequence[LogSegment]) -> None:
    scheduler = log.environment.scheduler
    for segment in old:
        if scheduler is None:
            segment.delete()
        else:
            scheduler.schedule_once(
                "delete-segments", log.config.file_delete_delay_ms, segment.delete
            )
