"""Record batches for hand-made Produce requests, built by kafka-python's encoder, not by ours."""

from __future__ import annotations

import struct
import time

import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_CRC_AT, _CRC_FROM = 17, 21


def batch(values: list[bytes], codec: str = "none") -> bytes:
    """One batch v2 without a producer id."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=_CODECS[codec], is_transactional=False, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, batch_size=1 << 30,
    )  # fmt: skip
    now_ms = int(time.time() * 1000)
    for offset, value in enumerate(values):
        builder.append(offset, timestamp=now_ms, key=None, value=value, headers=[])
    return bytes(builder.build())


def refreshed(data: bytearray) -> bytearray:
    """The batch with its checksum made right again after a change."""
    data[_CRC_AT:_CRC_FROM] = struct.pack(">I", crc32c.crc32c(bytes(data[_CRC_FROM:])))
    return data
