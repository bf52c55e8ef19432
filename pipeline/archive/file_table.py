"""An archive of Parquet or ORC files: staged in a scratch folder, moved, published by `log`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING
from uuid import uuid4

from pipeline.archive.file_compaction import compact_files
from pipeline.archive.log import (
    OWN,
    ArchiveLog,
    Description,
    LoggedFile,
    Snapshot,
    land,
    read_files,
    topic_of,
)
from pipeline.archive.state import ArchivedTopic, State
from pipeline.archive.table import CompactionTotals, Moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class FileTable:
    """See `table.ArchiveTable`."""

    def __init__(self, spark: SparkSession, log: ArchiveLog, made: Description) -> None:
        self._spark, self._log, self._made = spark, log, made

    def look(self) -> Moment:
        snapshot = self._log.snapshot()
        return Moment(snapshot.latest_batch, snapshot)

    def state(self, moment: Moment) -> dict[str, ArchivedTopic]:
        return self._log.state(_snapshot(moment))

    def known(self, moment: Moment) -> dict[str, ArchivedTopic]:
        return {} if _snapshot(moment).state is None else self.state(moment)

    def stage(self, frame: DataFrame) -> str:
        scratch = self._log.files.join(OWN, f"batch-{uuid4().hex[:12]}")
        try:
            writer = frame.write.format(self._made.format)
            writer.partitionBy(*self._made.folders).save(scratch)
        except Exception:
            self._log.files.delete(scratch, recursive=True)
            raise
        return scratch

    def publish(self, batch: int, staged: str | None, state: State) -> bool:
        landed = [] if staged is None else land(self._log.files, staged)
        self._log.commit(batch, [file.entry for file in landed], state)
        return True

    def settle(self) -> None:
        self._log.settle()

    def topics(self, moment: Moment) -> set[str]:
        return {topic_of(file) for file in _snapshot(moment).files}

    def rows(self, moment: Moment, topics: Collection[str]) -> DataFrame:
        files = [file for file in _snapshot(moment).files if topic_of(file) in topics]
        frame: DataFrame = read_files(self._spark, self._log, files, self._made)
        return frame

    def size(self, moment: Moment) -> tuple[int, int]:
        files: list[LoggedFile] = _snapshot(moment).files
        return len(files), sum(file.size for file in files)

    def compact(self, grace_ms: int, show: Callable[[str], None]) -> CompactionTotals:
        return compact_files(self._spark, self._log, self._made, grace_ms, show)


def _snapshot(moment: Moment) -> Snapshot:
    assert isinstance(moment.at, Snapshot)
    return moment.at
