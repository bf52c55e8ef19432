"""The batches of a replica's log, as its invariants look at them."""

from __future__ import annotations

from collections.abc import Iterator

from storage.log.partition_log import PartitionLog
from wire.records import BatchHeader, iterate_headers


def headers_of(log: PartitionLog, start: int, end: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """(bytes, position in them, header) of each batch above `start` and below `end`."""
    while start < end:
        read = log.read(start, 1 << 22, True, end)
        if read.records is None:
            break
        data = read.records.read()
        read.records.close()
        for position, header in iterate_headers(data):
            if header.next_offset > start:
                yield data, position, header
                start = header.next_offset
