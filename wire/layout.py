"""The layout of a record batch v2 as numbers: what brokers and Spark's executors both go by.

Imports nothing, so that it can be loaded where no package is called `wire`
(pipeline.segments.layout). What the numbers mean: wire.record_batch, wire.compression.
"""

from __future__ import annotations

LOG_OVERHEAD = 12
BATCH_OVERHEAD = 61
MAGIC = 2
CRC_START = 21
BATCH_HEADER = ">qiibIhiqqqhii"
"""For `struct`: all 61 bytes."""

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the id that attributes have."""
XERIAL_MAGIC = b"\x82SNAPPY\x00"
"""How snappy begins in the framing of Java's clients: two int32 follow, then blocks."""
XERIAL_HEADER_BYTES = 16
