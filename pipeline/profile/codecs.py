"""With which codecs producers compressed: from the headers of batches, none of them opened."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import NamedTuple

from pipeline.segments.plan import SegmentPart
from wire.errors import MalformedFrame
from wire.layout import CODEC_NAMES
from wire.record_batch import iterate_headers


class CodecUse(NamedTuple):
    """Batches of one codec; `bytes` as they are stored."""

    name: str
    batches: int
    records: int
    bytes: int


def codecs_in(parts: Iterable[SegmentPart]) -> list[CodecUse]:
    """What the batches of these parts are compressed with, the most used first; control batches
    and what an executor alone can see are left out."""
    found = [[0, 0, 0] for _ in CODEC_NAMES]
    for part in parts:
        try:
            with open(part.path, "rb") as file:
                if os.fstat(file.fileno()).st_size > part.position:
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                        _count(data, part, found)
        except (OSError, MalformedFrame):
            continue  # deleted meanwhile; or the remains of a crash
    uses = [CodecUse(name, *counts) for name, counts in zip(CODEC_NAMES, found, strict=True)]
    return sorted((one for one in uses if one.batches), key=lambda one: -one.records)


def _count(data: mmap.mmap, part: SegmentPart, found: list[list[int]]) -> None:
    with memoryview(data) as view:
        for _, header in iterate_headers(view, part.position):
            if header.base_offset >= part.to_offset:
                return
            if not header.is_control and header.codec < len(found):
                counts = found[header.codec]
                counts[0] += 1
                counts[1] += header.records_count
                counts[2] += header.size
