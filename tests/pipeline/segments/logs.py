"""Logs that a broker could have written, and all that a plan reads of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.segments.decode import read_part
from pipeline.segments.plan import Wanted, plan
from wire.records import EndTxnMarker, Record, build_batch, end_txn_marker_batch

ABORT, COMMIT = 0, 1


def write_segment(
    log_dir: Path, batches: list[bytes], *, base: int = 0, high_watermark: int | None = None
) -> Path:
    folder = log_dir / "t-0"
    folder.mkdir(exist_ok=True)
    path = folder / f"{base:020d}.log"
    path.write_bytes(b"".join(batches))
    if high_watermark is not None:
        checkpoint = log_dir / "replication-offset-checkpoint"
        checkpoint.write_text(f"0\n1\nt 0 {high_watermark}\n")
    return path


def read(log_dir: Path, **wanted: Any) -> list[tuple[Any, ...]]:
    """(offset, ms, key, value, headers) of all that the plan reads."""
    found = []
    for one in plan([str(log_dir)], Wanted("t", **wanted)):
        for part in one.parts:
            for batch in read_part(part, True):
                found += [
                    (
                        row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"],
                        row["value"], row["headers"],
                    )
                    for row in batch.to_pylist()
                ]  # fmt: skip
    return found


def simple(offset: int, count: int = 3, **options: Any) -> bytes:
    records = [Record(-1, 1000 + offset + n, b"k", b"v%d" % (offset + n)) for n in range(count)]
    return build_batch(records, base_offset=offset, **options)


def offsets(found: list[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in found]


def txn(offset: int, producer: int) -> bytes:
    return simple(offset, producer_id=producer, producer_epoch=0, base_sequence=0,
                  is_transactional=True)  # fmt: skip


def marker(offset: int, producer: int, kind: int) -> bytes:
    return end_txn_marker_batch(
        EndTxnMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp=1,
        base_offset=offset,
    )  # fmt: skip
