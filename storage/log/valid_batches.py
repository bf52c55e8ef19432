"""The valid prefix of a segment's file, batch by batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from storage import files
from storage.log.leader_epochs import EpochEntry
from storage.segments.segment import RELATIVE_OFFSET_MAX, LogSegment
from wire.crc import crc32c
from wire.errors import MalformedFrame
from wire.record_batch import BATCH_OVERHEAD, CRC_START, BatchHeader, read_header

_CHUNK = 4 * 1024 * 1024


class ValidBatches:
    """Iterates (position, header) over the valid prefix of a segment's file, reading it all.

    Valid (S-1): the header is one, the batch lies within the file, offsets ascend from the
    segment's base and fit its indexes, leader epochs do not go back (below `epoch`, nor below what
    of `known` had begun at the batch's offset), the CRC-32C is right. `end` is where the valid
    prefix ends, `problem` why it ends there, None at the end of the file. Reads 4 MiB at a time,
    whatever a broken length field claims.

    Epochs: the pages of a log that was cut and written anew, and then lost its power, may hold
    whole batches of before, whose offsets fit. What was written anew had its epochs on disk before
    anybody was told of it.
    """

    def __init__(
        self, segment: LogSegment, epoch: int = -1, known: Sequence[EpochEntry] = ()
    ) -> None:
        self._epoch = epoch
        self._begins = deque(known)
        self._segment = segment
        self._handle = segment.handle()
        self._chunk = memoryview(b"")
        self._chunk_start = 0
        self._next_offset = segment.base_offset
        self.end = 0
        self.problem: str | None = None

    def __iter__(self) -> ValidBatches:
        return self

    def __next__(self) -> tuple[int, BatchHeader]:
        position = self.end
        if position >= self._segment.size:
            raise StopIteration
        try:
            header = read_header(self._bytes(position, BATCH_OVERHEAD))
        except MalformedFrame as error:
            self.problem = str(error)
            raise StopIteration from None
        self.problem = self._check(position, header)
        if self.problem is not None:
            raise StopIteration
        self.end = position + header.size
        self._next_offset = header.next_offset
        self._epoch = header.leader_epoch
        return position, header

    def _check(self, position: int, header: BatchHeader) -> str | None:
        if position + header.size > self._segment.size:
            return f"batch of {header.size} bytes ends beyond the file"
        if header.last_offset_delta < 0 or header.base_offset < self._next_offset:
            return f"offset {header.base_offset} does not follow {self._next_offset - 1}"
        while self._begins and self._begins[0].start_offset <= header.base_offset:
            self._epoch = max(self._epoch, self._begins.popleft().epoch)
        if header.leader_epoch < self._epoch:
            return f"leader epoch {header.leader_epoch} where {self._epoch} had begun"
        if header.last_offset - self._segment.base_offset > RELATIVE_OFFSET_MAX:
            return f"offset {header.last_offset} does not fit the segment"
        crc = 0
        at = position + CRC_START
        end = position + header.size
        while at < end:
            piece = self._bytes(at, min(end - at, _CHUNK))
            if not piece:
                return "file became shorter"
            crc = crc32c(piece, crc)
            at += len(piece)
        return None if crc == header.crc else "checksum differs"

    def _bytes(self, position: int, size: int) -> memoryview:
        """`size` bytes at `position`, or what is left of the file."""
        at = position - self._chunk_start
        if at < 0 or at + size > len(self._chunk):
            want = min(_CHUNK, self._segment.size - position)
            self._chunk = memoryview(files.read_fully(self._handle.fd, want, position))
            self._chunk_start, at = position, 0
        return self._chunk[at : at + size]
