"""What a log shows, and what appends and reads return: one of each is made per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from storage.log.producer_snapshot import BatchMetadata
    from storage.open_files import FileSlice
    from storage.segments.segment import LogSegment
    from storage.segments.transaction_index import AbortedTxn


class LogAppendInfo:
    """What one append did.

    `log_append_time_ms` is -1 under CreateTime. `duplicate`: the batch was there already, these are
    its first offsets, and nothing was written (`size` 0). `must_flush`: acknowledge only when the
    log's `flushed_offset` is above `last_offset`.
    """

    __slots__ = (
        "duplicate",
        "first_offset",
        "last_offset",
        "leader_epoch",
        "log_append_time_ms",
        "log_start_offset",
        "max_timestamp",
        "must_flush",
        "size",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time_ms: int,
        log_start_offset: int,
        leader_epoch: int,
        size: int,
        must_flush: bool = False,
        duplicate: bool = False,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.leader_epoch = leader_epoch
        self.size = size
        self.must_flush = must_flush
        self.duplicate = duplicate

    @classmethod
    def of_duplicate(
        cls, original: BatchMetadata, log_start_offset: int, leader_epoch: int, must_flush: bool
    ) -> LogAppendInfo:
        """The answer to a batch that is here already: what it got the first time (P-1)."""
        return cls(
            original.first_offset,
            original.last_offset,
            original.timestamp,
            original.timestamp,  # as Kafka, whatever the topic's timestamp type
            log_start_offset,
            leader_epoch,
            0,
            must_flush,
            duplicate=True,
        )

    def __repr__(self) -> str:
        return f"LogAppendInfo({self.first_offset}..{self.last_offset}, duplicate={self.duplicate})"


class ReadResult(NamedTuple):
    """Records from the batch that holds an offset on; None when there is nothing to read yet.

    `aborted` is None unless the read asked for aborted transactions.
    """

    records: FileSlice | None
    aborted: list[AbortedTxn] | None = None


class LogView(NamedTuple):
    """What a log shows at one moment; the log replaces it as a whole at the end of a change.

    So a reader without a lock never sees an offset of one moment beside one of another. Always:
    log_start_offset <= last_stable_offset <= high_watermark <= end_offset, and all bytes of the
    log below `end_offset` are in its segments, the last of them in `segment` below `position`.
    """

    log_start_offset: int
    last_stable_offset: int
    """First offset a read_committed reader may not see yet (V-2)."""
    high_watermark: int
    end_offset: int
    """The offset the next record gets."""
    segment: LogSegment
    """The active segment: where the next batch goes."""
    position: int


new_view = tuple.__new__
"""Makes a LogView of a tuple in half the time; for the append path."""
