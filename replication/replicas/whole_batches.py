"""An answer that ends with a whole batch, for consumers whose bytes are counted (a quota).

A read that is cut at so many bytes ends in the middle of a batch, which its consumer lets go and
fetches again. Where the cut is some hundred kilobytes wide a consumer would so pay its quota for
bytes that it cannot use: half of it, with batches of 64 KiB and 300,000 bytes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING

from wire.records import LOG_OVERHEAD

if TYPE_CHECKING:
    from replication.partition.requests import FetchResult
    from storage.open_files import FileSlice

_SIZE = Struct(">8xi")  # of a batch, what follows its overhead
_PIECE = 8192


def answer_whole_batches(
    max_bytes: int,
    on_complete: Callable[[list[FetchResult]], None],
    results: list[FetchResult],
) -> None:
    """Of results that were cut at `max_bytes`, all together, take away the batch that was cut, and
    hand them on.

    The first batch stays, and what was not cut as it is. Reads the heads of the last partition's
    batches; where the disk refuses them the cut one is told, which only costs some of the quota.
    """
    with suppress(OSError):
        _keep_whole_batches(max_bytes, results)
    on_complete(results)


def _keep_whole_batches(max_bytes: int, results: Sequence[FetchResult]) -> None:
    read = [(result, records) for result in results if (records := result.records) is not None]
    if not read or sum(records.size for _, records in read) != max_bytes:
        return
    last, records = read[-1]
    size = _whole_bytes(records)
    if size < records.size and (size or len(read) > 1):
        last.records = records.part(0, size) if size else None
        records.close()


def _whole_bytes(records: FileSlice) -> int:
    """How many bytes the whole batches have at the start of a slice."""
    at = start = 0
    piece = b""
    while at + LOG_OVERHEAD <= records.size:
        if at + LOG_OVERHEAD > start + len(piece):
            start, piece = at, records.read(at, _PIECE)
        (length,) = _SIZE.unpack_from(piece, at - start)
        if length <= 0 or at + LOG_OVERHEAD + length > records.size:
            break
        at += LOG_OVERHEAD + length
    return at
