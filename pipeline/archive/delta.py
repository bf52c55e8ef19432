"""An archive as a table of Delta Lake: `spark.read.format("delta").load(DIR)`.

Staging writes data files that no commit names. Publishing is one commit of Delta's: it adds those
files, and sets the domain metadata `barnabas` (Delta's place for what an application knows of
a table; kept by checkpoints, compaction and clean-up of the log) to the batch's number and state.
Of two commits that set it at a time, Delta refuses the later one. Readers need not know of it.

Through Py4J: these transactions are what Delta's own writers use, and its Python API has nothing
that commits rows and domain metadata together. Paths in a Delta table are relative, so it may be
moved and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.archive.log import Description, empty_archive
from pipeline.archive.state import ArchivedTopic, State
from pipeline.archive.table import (
    REMAINS_AGE_MS,
    CompactionTotals,
    Moment,
    another_run,
    from_text,
    rows_of,
    shape,
    to_text,
    topics_of,
)
from pipeline.spark.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DOMAIN = "barnabas"
_NTZ = "'delta.feature.timestampNtz' = 'supported'"


class _Staged(NamedTuple):
    transaction: Any
    actions: Any
    """A Seq of Scala's: the files that were written."""


class DeltaTable:
    """See `table.ArchiveTable`."""

    def __init__(self, spark: SparkSession, files: HadoopFiles, made: Description) -> None:
        self._spark, self._files, self._made = spark, files, made
        self._jvm: Any = spark._jvm
        self._sql_name = "delta.`" + files.root.replace("`", "``") + "`"

    def look(self) -> Moment:
        nothing = self._jvm.scala.Option.empty()
        snapshot = self._log().update(False, nothing, nothing)
        return Moment(self._found(snapshot)[0], snapshot)

    def state(self, moment: Moment) -> dict[str, ArchivedTopic]:
        return self._found(moment.at)[1]

    known = state

    def stage(self, frame: DataFrame) -> _Staged:
        self._make_room_for(frame)
        transaction = self._log().startTransaction()
        return _Staged(transaction, transaction.writeFiles(frame._jdf))

    def publish(self, batch: int, staged: _Staged | None, state: State) -> bool:
        if staged is None:
            if not self._log().tableExists():
                self._make_room_for(empty_archive(self._spark, self._made))
            nothing = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq([])
            staged = _Staged(self._log().startTransaction(), nothing)
        if self._found(staged.transaction.snapshot())[0] != batch - 1:
            raise another_run(self._files.root)
        delta = self._jvm.org.apache.spark.sql.delta
        note = delta.actions.DomainMetadata(_DOMAIN, to_text(batch, state), False)
        operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        try:
            staged.transaction.commit(staged.actions.appended(note), operation)
        except Exception as error:
            if "io.delta.exceptions." in str(error):  # where all of its conflicts are
                raise another_run(self._files.root) from error
            raise
        return True

    def settle(self) -> None:
        """A moved table needs nothing."""

    def topics(self, moment: Moment) -> set[str]:
        return topics_of(self._frame(moment))

    def rows(self, moment: Moment, topics: Collection[str]) -> DataFrame:
        return rows_of(self._frame(moment), topics)

    def size(self, moment: Moment) -> tuple[int, int]:
        return int(moment.at.numOfFiles()), int(moment.at.sizeInBytes())

    def compact(self, grace_ms: int, show: Callable[[str], None]) -> CompactionTotals:
        """OPTIMIZE; VACUUM LITE of what was replaced `grace_ms` ago, and VACUUM of remains."""
        show("merging small files (OPTIMIZE) ...")
        optimized = self._spark.sql(f"OPTIMIZE {self._sql_name}").collect()[0]["metrics"]
        totals = CompactionTotals(optimized["numFilesRemoved"], optimized["numFilesAdded"])
        totals.bytes_after = self.size(self.look())[1]
        show("removing files that were replaced (VACUUM) ...")
        before = self._data_files()
        with self._vacuum_settings():
            self._vacuum(grace_ms)
        totals.removed = before - self._data_files()
        return totals

    def _vacuum(self, grace_ms: int) -> None:
        remains = f"VACUUM {self._sql_name} RETAIN {_hours(max(grace_ms, REMAINS_AGE_MS))} HOURS"
        try:
            self._spark.sql(f"VACUUM {self._sql_name} LITE RETAIN {_hours(grace_ms)} HOURS")
        except Exception as error:
            # It goes by the log since the last VACUUM, which may be cleaned up by now.
            if "VACUUM_LITE" not in str(error):
                raise
        self._spark.sql(remains)

    @contextmanager
    def _vacuum_settings(self) -> Iterator[None]:
        settings = {
            # It refuses to remove what is younger than a week, for the sake of writers under way.
            # Of those we keep the files of a day, and LITE touches none.
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            # In how many tasks it lists files: 10,000, if nobody says otherwise.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(
                4 * self._spark.sparkContext.defaultParallelism
            ),
        }
        conf = self._spark.conf
        before = {name: conf.get(name, None) for name in settings}
        for name, value in settings.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, known in before.items():
                conf.unset(name) if known is None else conf.set(name, known)

    def _log(self) -> Any:
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog
        return log.forTable(self._spark._jsparkSession, self._files.root)

    def _found(self, snapshot: Any) -> tuple[int, dict[str, ArchivedTopic]]:
        """Number and state of the latest batch."""
        domains = snapshot.domainMetadata()
        for index in range(domains.size()):
            if domains.apply(index).domain() == _DOMAIN:
                return from_text(domains.apply(index).configuration(), self._files.root)
        return from_text(None, self._files.root)

    def _make_room_for(self, frame: DataFrame) -> None:
        """Create the table, or add columns (decoded ones may grow), in a commit without rows."""
        if self._log().tableExists():
            there = self._spark.read.format("delta").load(self._files.root)
            if shape(there.schema) == shape(frame.schema):
                return
            if "timestamp_ntz" in frame.schema.simpleString():
                # Tables that are new have the feature by themselves; others must be told.
                self._spark.sql(f"ALTER TABLE {self._sql_name} SET TBLPROPERTIES ({_NTZ})")
        writer = self._spark.createDataFrame([], frame.schema).write.format("delta").mode("append")
        writer.partitionBy(*self._made.folders).option("mergeSchema", "true").option(
            "delta.feature.domainMetadata", "supported"
        ).save(self._files.root)

    def _frame(self, moment: Moment) -> DataFrame:
        if moment.at.version() < 0:
            return empty_archive(self._spark, self._made)
        reader = self._spark.read.format("delta").option("versionAsOf", moment.at.version())
        return reader.load(self._files.root)

    def _data_files(self) -> int:
        return sum(
            file.path.endswith(".parquet") and "/_delta_log/" not in file.path
            for file in self._files.walk(self._files.root)
        )


def _hours(ms: int) -> float:
    return ms / 3_600_000
