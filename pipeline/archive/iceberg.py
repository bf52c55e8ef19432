"""An archive as an Iceberg table of a path: `spark.read.format("iceberg").load(DIR)`.

Staging is Iceberg's write-audit-publish: a snapshot that is in the table's metadata, but is not
its current one, so that no reader sees it. Publishing makes it the current one, and sets the
table's property `barnabas` to the batch's number and state, in one change of the metadata. That
is refused when somebody has changed the table since we looked: the staged snapshot must follow the
current one directly, and the metadata must be replaced by the next version of it (a rename, as in
any Hadoop table of Iceberg; no catalog and no server). The property is in all later metadata:
compaction and expiry of snapshots leave it alone.

Through Py4J: Iceberg's Java API. Paths in its metadata are whole ones, so a table that was moved
cannot be read; Iceberg's own procedure rewrite_table_path makes a copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipeline.archive.log import Description, empty_archive
from pipeline.archive.state import ArchivedTopic, State
from pipeline.archive.table import (
    REMAINS_AGE_MS,
    CompactionTotals,
    Moment,
    another_run,
    from_text,
    nullable,
    rows_of,
    shape,
    to_text,
    topics_of,
)
from pipeline.preflight import moved_table
from pipeline.spark.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROPERTY = "barnabas"
_STAGE = "spark.wap.id"
_PROPERTIES = {
    "format-version": "2",
    "write.wap.enabled": "true",
    # Each task writes what it read, to the folders of its records, as it does for Parquet.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergTable:
    """See `table.ArchiveTable`."""

    def __init__(self, spark: SparkSession, files: HadoopFiles, made: Description) -> None:
        self._spark, self._root, self._made = spark, files.root, made
        jvm: Any = spark._jvm
        self._jvm, self._iceberg = jvm, jvm.org.apache.iceberg
        hadoop: Any = spark._jsc
        self._tables = self._iceberg.hadoop.HadoopTables(hadoop.hadoopConfiguration())

    def look(self) -> Moment:
        if not self._tables.exists(self._root):
            return Moment(-1, None)
        metadata = self._metadata(self._tables.load(self._root))
        return Moment(self._found(metadata)[0], metadata)

    def state(self, moment: Moment) -> dict[str, ArchivedTopic]:
        return {} if moment.at is None else self._found(moment.at)[1]

    known = state

    def stage(self, frame: DataFrame) -> str:
        """The name of the staged snapshot."""
        self._make_room_for(frame)
        name = uuid4().hex
        self._spark.conf.set(_STAGE, name)
        try:
            frame.write.format("iceberg").mode("append").save(self._root)
        finally:
            self._spark.conf.unset(_STAGE)
        return name

    def publish(self, batch: int, staged: str | None, state: State) -> bool:
        if staged is None:
            self._make_room_for(empty_archive(self._spark, self._made))
        table = self._tables.load(self._root)
        before = self._metadata(table)
        if self._found(before)[0] != batch - 1:
            raise another_run(self._root)
        after = self._iceberg.TableMetadata.buildFrom(before)
        after = after.setProperties({_PROPERTY: to_text(batch, state)})
        if staged is not None:
            snapshot = _staged(before, staged)
            if snapshot is None or snapshot.parentId() != _current(before):
                return False
            after = after.setBranchSnapshot(snapshot.snapshotId(), "main")
        try:
            table.operations().commit(before, after.build())
        except Exception as error:
            if "CommitFailedException" not in str(error):
                raise
            return False
        return True

    def settle(self) -> None:
        """A moved table cannot be mended."""

    def topics(self, moment: Moment) -> set[str]:
        return topics_of(self._frame(moment))

    def rows(self, moment: Moment, topics: Collection[str]) -> DataFrame:
        return rows_of(self._frame(moment), topics)

    def size(self, moment: Moment) -> tuple[int, int]:
        if moment.at is None or moment.at.currentSnapshot() is None:
            return 0, 0
        summary = moment.at.currentSnapshot().summary()
        return int(summary.get("total-data-files")), int(summary.get("total-files-size"))

    def compact(self, grace_ms: int, show: Callable[[str], None]) -> CompactionTotals:
        """rewriteDataFiles, expireSnapshots and deleteOrphanFiles."""
        actions = self._iceberg.spark.actions.SparkActions.get(self._spark._jsparkSession)
        show("merging small files (rewriteDataFiles) ...")
        rewriting = actions.rewriteDataFiles(self._tables.load(self._root))
        rewritten = rewriting.option("min-input-files", "2").execute()
        totals = CompactionTotals(
            rewritten.rewrittenDataFilesCount(), rewritten.addedDataFilesCount()
        )
        totals.bytes_after = self.size(self.look())[1]
        show("removing files that were replaced (expireSnapshots, deleteOrphanFiles) ...")
        now_ms = int(time.time() * 1000)
        expiry = actions.expireSnapshots(self._tables.load(self._root))
        expired = expiry.expireOlderThan(now_ms - grace_ms).retainLast(1).execute()
        search = actions.deleteOrphanFiles(self._tables.load(self._root))
        orphans = search.olderThan(now_ms - max(grace_ms, REMAINS_AGE_MS)).execute()
        totals.removed = expired.deletedDataFilesCount() + sum(
            1 for _ in orphans.orphanFileLocations()
        )
        return totals

    def _metadata(self, table: Any) -> Any:
        """Raises PipelineError for a table that was moved."""
        metadata = table.operations().current()
        if metadata.location() != self._root:
            raise moved_table(self._root, metadata.location())
        return metadata

    def _found(self, metadata: Any) -> tuple[int, dict[str, ArchivedTopic]]:
        """Number and state of the latest batch."""
        return from_text(metadata.properties().get(_PROPERTY), self._root)

    def _make_room_for(self, frame: DataFrame) -> None:
        """Create the table, or add columns (decoded ones may grow)."""
        types = self._jvm.org.apache.spark.sql.types.DataType
        wanted = nullable(frame.schema)
        schema = self._iceberg.spark.SparkSchemaUtil.convert(types.fromJson(wanted.json()))
        if not self._tables.exists(self._root):
            spec = self._iceberg.PartitionSpec.builderFor(schema)
            for column in self._made.folders:
                spec = spec.identity(column)
            self._tables.create(schema, spec.build(), _PROPERTIES, self._root)
        elif shape(self._spark.read.format("iceberg").load(self._root).schema) != shape(wanted):
            self._tables.load(self._root).updateSchema().unionByNameWith(schema).commit()

    def _frame(self, moment: Moment) -> DataFrame:
        snapshot = _current(moment.at) if moment.at is not None else None
        if snapshot is None:
            return empty_archive(self._spark, self._made)
        reader = self._spark.read.format("iceberg").option("snapshot-id", snapshot)
        return reader.load(self._root)


def _current(metadata: Any) -> int | None:
    snapshot = metadata.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())


def _staged(metadata: Any, name: str) -> Any:
    for snapshot in metadata.snapshots():
        if snapshot.summary().get("wap.id") == name:
            return snapshot
    return None
