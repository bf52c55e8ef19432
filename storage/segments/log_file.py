"""The `.log` file of a segment: opened when it is needed, and never let go over unsynced bytes.

Descriptors are few, so a file that was not used lately is closed (`storage.open_files`). A write
that fails on its way from the page cache to the disk is told to those who have the file open then,
at their next sync, and forgotten with the last of them (S-4): so the cache's wish to close is a
sync first, and a failure of that is kept and told to who uses the file next.

Duties of the caller as in `storage.segments.segment`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from storage import files
from storage.open_files import FileHandle, FileSlice, OpenFileCache


class LogFile:
    """See the module. `size` is the owner's: what of the file is valid."""

    __slots__ = (
        "_handle",
        "_open_files",
        "_sync_failure",
        "_synced_size",
        "is_deleted",
        "path",
        "recently_used",
        "size",
    )

    def __init__(self, path: Path, open_files: OpenFileCache) -> None:
        self.path = path
        self.size = 0
        self.is_deleted = False
        self.recently_used = True
        self._open_files = open_files
        self._handle: FileHandle | None = None
        self._synced_size = 0
        self._sync_failure: OSError | None = None

    def handle(self) -> FileHandle:
        """The open file; opened again if it was closed to save descriptors. Raises OSError.

        Hold it while you use its `fd`: others may make us let go at any time, and the number is
        another file's then. FileNotFoundError if the file is renamed meanwhile.
        """
        self.recently_used = True
        handle = self._handle
        if handle is None:
            if self._sync_failure is not None:
                raise self._sync_failure
            handle = self._handle = self._open(files.READ_WRITE)
        return handle

    def _open(self, flags: int) -> FileHandle:
        path = self.path
        handle = FileHandle.open(path, flags)
        if self.path != path:  # what has the name now may be another segment
            del handle  # or the traceback would keep it
            raise FileNotFoundError(errno.ENOENT, "renamed while it was opened", str(path))
        self._open_files.opened(self)
        return handle

    def shorten(self, size: int) -> None:
        """Cut the file itself. Raises OSError."""
        handle = self.handle()
        files.ftruncate(handle.fd, size)

    def keep_unsynced(self, handle: FileHandle) -> None:
        """`handle` was written to, and `size` says so: it stays open until it is synced."""
        if self._handle is not handle:
            self._keep(handle)

    def _keep(self, handle: FileHandle) -> None:
        """Another thread made us let go while we wrote: what was written is not synced."""
        self._handle = handle
        self._open_files.opened(self)

    def load_size(self) -> None:
        """Take the size from the file (start-up: the file may be longer than what is valid)."""
        self.size = self._synced_size = os.stat(self.path).st_size

    def slice(self, position: int, size: int) -> FileSlice:
        return FileSlice(self.handle(), position, size)

    @property
    def is_synced(self) -> bool:
        """Nothing was written since it was synced."""
        return self._synced_size == self.size or self.is_deleted

    def flush_log(self) -> None:
        """Sync the file; OSError is final for the directory (S-4). Takes no lock."""
        self._sync(self.handle())

    def _sync(self, handle: FileHandle) -> None:
        size = self.size
        files.fsync(handle.fd)
        self._synced_size = size

    def release_files(self) -> None:
        """Let go of what the cache wants; there is nothing but the descriptor."""
        self.release_descriptor()

    def release_descriptor(self) -> None:
        """Let go of the descriptor, synced (the cache's wish); slices keep theirs.

        Never raises, for this may run in another log's append.
        """
        handle = self._handle
        if handle is not None and not self.is_synced:
            try:
                self._sync(handle)
            except OSError as error:
                self._note_sync_failure(error)
        self._handle = None

    def _note_sync_failure(self, error: OSError) -> None:
        """For who uses the file next; without its traceback, which would keep the descriptor."""
        error.is_final = True  # type: ignore[attr-defined]
        self._sync_failure = error.with_traceback(None)

    def close(self) -> None:
        """Let go, synced or not; a later use opens it again."""
        self._open_files.closed(self)
        self._handle = None
