"""Many small Parquet or ORC files become one.

A stream of small batches leaves small files, and reading ten thousand of them is slow. The
exchange, which no reader sees half done:

1. Take the small files that the sink log's last `.compact` file lists, per folder. (Batches after
   it, nine at most, are left for the next run.)
2. Write their rows, sorted by partition and offset, as few files of about 128 MiB, under names that
   no log lists: invisible. Compare row count, offsets and content hashes with the originals.
3. Publish: replace `<batch>.compact` by a list with the new files in place of the old, one atomic
   rename. A reader (`spark.read.parquet(DIR)`) has the old list or the new one, each complete.
   Readers that hold the old list go on: the old files stay.
4. A later run removes files that no list names: those replaced longer than `--grace` ago (default 1
   hour: longer than any reader runs), and remains of killed attempts older than a day.

A running archive query may write the log at the same moment: if it made its next `.compact` file
from the old list, old files are listed again and ours become remains. Nothing is lost or doubled
at any instant; the run notices and says so.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.archive.checksum import content_sum
from pipeline.archive.log import (
    DATA_SUFFIXES,
    OWN,
    ArchiveLog,
    Description,
    LoggedFile,
    Snapshot,
    land,
    read_files,
)
from pipeline.archive.table import REMAINS_AGE_MS, CompactionTotals
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.spark.hadoop_files import FileInfo

TARGET_BYTES = 128 * 1024 * 1024


def compact_files(
    spark: SparkSession,
    log: ArchiveLog,
    made: Description,
    grace_ms: int,
    show: Callable[[str], None],
) -> CompactionTotals:
    """Compact and clean up one archive. Raises PipelineError."""
    log.settle()
    snapshot = log.snapshot()
    # A run may have added decoded columns since; they are described before files have them.
    made = log.description() or made
    totals = CompactionTotals()
    totals.removed = _remove_unlisted(log, snapshot, grace_ms)
    totals.waiting = len({file.relative for file in snapshot.files}) - len(snapshot.compacted)
    small = _small_files(snapshot)
    if small and snapshot.compact_name is not None:
        show(f"merging {len(small)} files ...")
        merged = _merge(spark, log, small, made, totals)
        _publish(log, small, merged)
    return totals


def _small_files(snapshot: Snapshot) -> list[LoggedFile]:
    folders: dict[str, list[LoggedFile]] = {}
    for file in snapshot.compacted:
        if file.size < TARGET_BYTES // 2:
            folders.setdefault(file.folder, []).append(file)
    return [file for group in folders.values() if len(group) > 1 for file in group]


def _merge(
    spark: SparkSession,
    log: ArchiveLog,
    small: list[LoggedFile],
    description: Description,
    totals: CompactionTotals,
) -> list[dict[str, Any]]:
    """Write the rows of these files anew, in place but unlisted; the new log entries."""
    run = uuid.uuid4().hex[:12]
    scratch = log.files.join(OWN, f"compact-{run}")
    source = read_files(spark, log, small, description)
    expected = content_sum(source)
    rows_per_file = _rows_per_file(small, expected.records)
    try:
        _write(source, scratch, description.folders, description.format, rows_per_file)
        moved = land(log.files, scratch, f"compact-{run}-")
    finally:
        log.files.delete(scratch, recursive=True)
    got = content_sum(read_files(spark, log, moved, description))
    if got != expected:
        for file in moved:
            log.files.delete(log.files.join(file.relative))
        raise PipelineError(
            f"the merged files hold {got.records:,} rows instead of {expected.records:,} or other"
            " content; the archive was left as it was"
        )
    totals.files_before, totals.files_after = len(small), len(moved)
    totals.rows, totals.bytes_after = got.records, sum(file.size for file in moved)
    return [file.entry for file in moved]


def _rows_per_file(small: list[LoggedFile], rows: int) -> int:
    size = sum(file.size for file in small)
    return max(1000, int(TARGET_BYTES * rows / max(size, 1)))


def _write(
    source: DataFrame, scratch: str, folders: list[str], kind: str, rows_per_file: int
) -> None:
    (
        source.repartition(*folders)
        .sortWithinPartitions(*folders, "generation", "partition", "offset")
        .write.format(kind)
        .option("maxRecordsPerFile", rows_per_file)
        .partitionBy(*folders)
        .save(scratch)
    )


def _publish(log: ArchiveLog, replaced: list[LoggedFile], added: list[dict[str, Any]]) -> None:
    now = log.snapshot()
    gone = {file.relative for file in replaced}
    if not gone <= {file.relative for file in now.compacted}:
        _lost_race()  # another compaction has put files of its own in their place
    replaced_paths = {file.entry["path"] for file in replaced}
    entries = [one for one in now.compact_entries if one["path"] not in replaced_paths]
    assert now.compact_name is not None
    # First the note, then the exchange: files that are still listed are never removed, whereas
    # files that were replaced without a note might be removed under a reader.
    record = {"replaced_ms": int(time.time() * 1000), "files": sorted(gone)}
    name = log.files.join(OWN, f"replaced-{record['replaced_ms']}-{uuid.uuid4().hex[:8]}.json")
    log.files.replace_text_in_new_folder(name, json.dumps(record))
    log.replace_compact(now.compact_name, entries + added)
    if gone & {file.relative for file in log.snapshot().files}:
        _lost_race()


def _lost_race() -> None:
    raise PipelineError(
        "another run changed the archive's log at the same moment, so nothing was exchanged (and"
        " nothing lost); run --compact again"
    )


def _remove_unlisted(log: ArchiveLog, snapshot: Snapshot, grace_ms: int) -> int:
    """Delete data files that no list names and no reader can still hold."""
    now_ms = int(time.time() * 1000)
    expired, held = _replaced(log, now_ms - grace_ms)
    keep = held | {file.relative for file in snapshot.files}
    removed = 0

    def is_remains(info: FileInfo) -> bool:
        return now_ms - info.modified_ms > max(grace_ms, REMAINS_AGE_MS)

    for info in log.present():
        relative = info.path[len(log.files.root) + 1 :]
        if relative in keep or not relative.startswith("topic="):
            continue
        if relative.endswith(DATA_SUFFIXES) and (relative in expired or is_remains(info)):
            log.files.delete(info.path)
            removed += 1
    for info in log.files.infos(log.files.join(OWN)):
        name = info.path.rpartition("/")[2]
        # A batch that has just begun has a folder, and no file in it yet.
        is_old = name.startswith(("compact-", "batch-")) and is_remains(info)
        if is_old and all(is_remains(file) for file in log.files.walk(info.path)):
            log.files.delete(info.path, recursive=True)
    return removed


def _replaced(log: ArchiveLog, until_ms: int) -> tuple[set[str], set[str]]:
    """Files replaced up to that moment, and those replaced later; notes of the former go."""
    expired: set[str] = set()
    held: set[str] = set()
    for name in log.files.names(log.files.join(OWN)):
        if not name.startswith("replaced-"):
            continue
        path = log.files.join(OWN, name)
        record = json.loads(log.files.read_text(path))
        if record["replaced_ms"] <= until_ms:
            expired.update(record["files"])
            log.files.delete(path)
        else:
            held.update(record["files"])
    return expired, held
