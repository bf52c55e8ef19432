"""The files of one segment: what they are called, opened, renamed, let go and deleted.

Those of the segment with base offset B are named by B in 20 digits: `.log` holds batches back to
back; `.index` maps offsets and `.timeindex` timestamps to positions, sparsely; `.txnindex` lists
aborted transactions and exists only when there are some.

Duties of the caller as in `storage.segments.segment`.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from storage import files
from storage.open_files import OpenFileCache
from storage.segments.index import OffsetIndex, TimeIndex
from storage.segments.log_file import LogFile
from storage.segments.transaction_index import TransactionIndex

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def file_name(offset: int, suffix: str) -> str:
    """Name of a segment's file: the offset in 20 digits, so that names sort like offsets."""
    return f"{offset:020d}{suffix}"


class SegmentFiles(LogFile):
    """A log file and its indexes, which are hints into it."""

    __slots__ = (
        "base_offset",
        "directory",
        "offset_index",
        "suffix",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        suffix: str,
        index_size_max: int,
        open_files: OpenFileCache,
    ) -> None:
        def path(of: str) -> Path:
            return directory / file_name(base_offset, of + suffix)

        super().__init__(path(LOG_SUFFIX), open_files)
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.offset_index = OffsetIndex(path(INDEX_SUFFIX), base_offset, index_size_max)
        self.time_index = TimeIndex(path(TIME_INDEX_SUFFIX), base_offset, index_size_max)
        self.txn_index = TransactionIndex(path(TXN_INDEX_SUFFIX), base_offset)

    def create(self) -> None:
        """Make the empty files; what an undone roll may have left in their place is set aside."""
        self._set_leftovers_aside()
        # Nothing may fail after the log file is there: a segment that was not wanted would stay.
        self.offset_index.start_empty()
        self.time_index.start_empty()
        self._handle = self._open(files.CREATE | os.O_EXCL)

    def _set_leftovers_aside(self) -> None:
        indexes = (self.offset_index.path, self.time_index.path, self.txn_index.path)
        for path in (self.path, *indexes):
            if path.exists():
                logger.warning("setting leftover file aside path=%s", path)
                files.replace(path, path.with_name(path.name + DELETED_SUFFIX))

    def release_descriptor(self) -> None:
        """As for the log file: the transaction index's too is let go synced."""
        super().release_descriptor()
        try:
            self.txn_index.let_go()
        except OSError as error:
            self._note_sync_failure(error)

    def release_files(self) -> None:
        """Let go of the descriptors and the indexes' memory (the cache's wish)."""
        super().release_files()
        self._close_indexes()

    def close(self) -> None:
        """Let everything go, synced or not; a later use opens it again."""
        super().close()
        self._close_indexes()

    def _close_indexes(self) -> None:
        """An index that cannot be written now stays in memory: it is only a hint."""
        for index in (self.offset_index, self.time_index, self.txn_index):
            try:
                index.close()
            except OSError as error:
                logger.warning("index not written path=%s error=%s", index.path, error)

    def flush(self) -> None:
        """Sync log and indexes; errors as in `flush_log`."""
        self.flush_log()
        for index in (self.offset_index, self.time_index, self.txn_index):
            index.flush()

    def rename_suffix(self, suffix: str) -> None:
        """Give all files of the segment another suffix (`.deleted`, or none after `.swap`)."""
        path = self.directory / file_name(self.base_offset, LOG_SUFFIX + suffix)
        files.replace(self.path, path)
        self.path = path
        self.suffix = suffix
        self._rename_indexes()

    def change_directory(self, directory: Path) -> None:
        """Note that the directory was renamed; open files stay open."""
        self.directory = directory
        self.path = directory / self.path.name
        for index in (self.offset_index, self.time_index, self.txn_index):
            index.path = directory / index.path.name

    def _rename_indexes(self) -> None:
        base, suffix = self.base_offset, self.suffix
        self.offset_index.rename(self.directory / file_name(base, INDEX_SUFFIX + suffix))
        self.time_index.rename(self.directory / file_name(base, TIME_INDEX_SUFFIX + suffix))
        self.txn_index.rename(self.directory / file_name(base, TXN_INDEX_SUFFIX + suffix))

    def delete(self) -> None:
        """Unlink all files; who still holds a slice reads on from the unlinked file."""
        self.close()
        with suppress(FileNotFoundError):
            files.unlink(self.path)
        for index in (self.offset_index, self.time_index, self.txn_index):
            index.delete()
