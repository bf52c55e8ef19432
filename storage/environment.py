"""What the logs of one data directory share, and how a log tells its owner that a disk failed.

A log never decides alone what a disk error means. It reports it here once; the owner (the log
manager) takes the directory offline, and every log in it answers KAFKA_STORAGE_ERROR from then on,
because each looks at `is_offline` before it writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from storage import files
from storage.config import Clock, ProducerStateConfig, Scheduler, SystemClock
from storage.dir_checkpoints import DirCheckpoints
from storage.open_files import OpenFileCache
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


def _nobody_notes_it() -> None:
    """No checkpoints are kept of these logs."""


@dataclass(slots=True)
class LogEnvironment:
    """One per log directory; shared by its logs, written by whoever sees a failure first."""

    log_dir: Path
    clock: Clock = field(default_factory=SystemClock)
    open_files: OpenFileCache = field(default_factory=lambda: OpenFileCache(1024))
    scheduler: Scheduler | None = None
    """Runs deferred work on this disk (flush after a roll, unlinking); None: it is done at once, or
    left."""
    on_failure: Callable[[Path, OSError], None] | None = None
    """Called once, by who saw the error and may hold any lock: it hands on and does not wait."""
    on_log_start_moved: Callable[[], object] = _nobody_notes_it
    """Called when a log start moved, without the log's lock: it should be noted before long. Plans
    that and does not wait."""
    producers: ProducerStateConfig = field(default_factory=ProducerStateConfig)
    is_writable: bool = True
    """False if appends are refused: offline, or the disk is full and its reserve is in use."""
    is_offline: bool = False
    failure: OSError | None = None
    make_room: Callable[[], bool] = files.no_room
    """Frees some space of a full disk for what cannot be refused (checkpoints, an aborted
    transaction's entry); False if there is none to free (S-16). Called under any lock."""
    checkpoints: DirCheckpoints = field(init=False)
    """Told before a truncation touches a file (S-6); without effect until it has read its files."""

    def __post_init__(self) -> None:
        self.checkpoints = DirCheckpoints(self.log_dir, self.make_room)

    def fail(self, error: OSError) -> None:
        """Take the directory offline for good; only the first error is reported."""
        if self.is_offline:
            return
        self.is_offline = True
        self.is_writable = False
        self.failure = error
        logger.error("log directory failed log_dir=%s error=%s", self.log_dir, error)
        if self.on_failure is not None:
            self.on_failure(self.log_dir, error)

    def check_online(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the directory is offline."""
        if self.is_offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"log directory is offline: {self.failure}"
            )

    def check_writable(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if nothing may be appended (now, or for good)."""
        self.check_online()
        if not self.is_writable:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no space left on {self.log_dir}")

    def storage_error(self, error: OSError, doing: str) -> KafkaError:
        """What an OSError means to clients; takes the directory offline unless it may recover.

        A full disk and a lack of descriptors pass: the operation failed and was undone, and the
        next is tried afresh (S-16, S-17). Everything else is final (S-4).
        """
        if files.may_pass(error) and not getattr(error, "is_final", False):
            logger.warning("%s failed log_dir=%s error=%s", doing, self.log_dir, error)
        else:
            self.fail(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing} failed: {error.strerror}")
