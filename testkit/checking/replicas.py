"""Are the replicas of a partition the same, byte for byte, below the high watermark?

Reads the segment files of each node's data directory: the one thing that no API shows. A batch is
taken as it lies there (base offset and length are its first twelve bytes); where the segments are
cut may differ between replicas, the bytes may not. Of a node that runs, call it when nothing is
written any more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_PREFIX = struct.Struct(">qi")
_RECORDS_COUNT_AT = 57


class Batch(NamedTuple):
    """A record batch as it lies in a segment file."""

    offset: int
    data: bytes

    def __str__(self) -> str:
        epoch, magic = struct.unpack_from(">ib", self.data, 12)
        (count,) = struct.unpack_from(">i", self.data, _RECORDS_COUNT_AT)
        return (
            f"offset {self.offset}, {len(self.data)} bytes, leader epoch {epoch}, magic {magic}, "
            f"{count} records"
        )


def batches(directory: Path) -> Iterator[Batch]:
    """Every whole batch of a partition's directory, in the order of the offsets."""
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        at = 0
        while at + _PREFIX.size <= len(data):
            offset, length = _PREFIX.unpack_from(data, at)
            end = at + _PREFIX.size + length
            if length <= 0 or end > len(data):
                break  # preallocated zeros, or a batch that is being written
            yield Batch(offset, data[at:end])
            at = end


def differences(directories: Mapping[int, Path], below: int | None = None) -> list[str]:
    """What is not the same in these replicas of one partition, by node; empty when all is.

    `below` is the high watermark; None compares all there is. Replicas may begin at different
    offsets (retention, snapshots): what all of them still have is compared.
    """
    found: list[str] = []
    logs = {
        node: {b.offset: b for b in batches(path) if below is None or b.offset < below}
        for node, path in directories.items()
    }
    if not all(logs.values()):
        if any(logs.values()) and (below is None or below > 0):
            empty = [node for node, log in logs.items() if not log]
            found.append(f"nothing on {empty}")
        return found
    start = max(min(log) for log in logs.values())
    (first, reference), *others = logs.items()
    for node, log in others:
        for offset in sorted({o for o in (*reference, *log) if o >= start}):
            one, two = reference.get(offset), log.get(offset)
            if one is None or two is None:
                found.append(
                    f"offset {offset}: node {first} {one or 'none'}; node {node} {two or 'none'}"
                )
            elif one.data != two.data:
                found.append(f"offset {offset} differs: node {first} {one}; node {node} {two}")
    return found


def assert_equal(
    where: Callable[[int, str, int], Path],
    topic: str,
    ends: Mapping[int, int],
    replicas: Mapping[int, Iterable[int]],
) -> int:
    """Compare every partition's replicas below its end; the number of bytes that were compared.

    `replicas` names the nodes that hold each partition, `where` the directory of one (node, topic,
    partition).
    """
    compared = 0
    for partition, end in ends.items():
        directories = {node: where(node, topic, partition) for node in replicas[partition]}
        found = differences(directories, end)
        assert not found, f"{topic}-{partition} below {end}: " + "\n".join(found[:10])
        lengths = [
            sum(len(b.data) for b in batches(d) if b.offset < end) for d in directories.values()
        ]
        assert end == 0 or min(lengths) > 0, f"{topic}-{partition}: nothing to compare"
        compared += sum(lengths)
    return compared
