"""The brokers' own numbers (wire.layout, storage.layout), for what travels to executors.

An installed wheel keeps all packages in `barnabas._app`, and a user's process imports this one from
there: so the two are imported by the name that they have beside it. What travels has the values,
not the names.
"""

from __future__ import annotations

from importlib import import_module

_beside = __name__.removesuffix("pipeline.segments.layout")
_wire = import_module(f"{_beside}wire.layout")
_storage = import_module(f"{_beside}storage.layout")

HEADER_BYTES: int = _wire.BATCH_OVERHEAD
BEFORE_LENGTH: int = _wire.LOG_OVERHEAD
MAGIC: int = _wire.MAGIC
CRC_START: int = _wire.CRC_START
# Formats, not Struct objects: those cannot be pickled, and `struct` keeps compiled ones anyway.
HEADER: str = _wire.BATCH_HEADER
CODEC: int = _wire.CODEC_MASK
TIMESTAMP_TYPE: int = _wire.TIMESTAMP_TYPE_MASK
TRANSACTIONAL: int = _wire.TRANSACTIONAL_MASK
CONTROL: int = _wire.CONTROL_MASK
CODEC_NAMES: tuple[str, ...] = _wire.CODEC_NAMES
XERIAL_MAGIC: bytes = _wire.XERIAL_MAGIC
XERIAL_HEADER_BYTES: int = _wire.XERIAL_HEADER_BYTES
HIGH_WATERMARKS: str = _storage.HIGH_WATERMARK_CHECKPOINT
LOG_STARTS: str = _storage.LOG_START_OFFSET_CHECKPOINT
ABORTED_TXN: str = _storage.ABORTED_TXN
SNAPSHOT_HEAD: str = _storage.PRODUCER_SNAPSHOT_HEAD
SNAPSHOT_ENTRY: str = _storage.PRODUCER_SNAPSHOT_ENTRY
