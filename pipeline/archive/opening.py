"""Which kind of table an archive is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pipeline.archive.delta import DeltaTable
from pipeline.archive.file_table import FileTable
from pipeline.archive.iceberg import IcebergTable
from pipeline.archive.log import ArchiveLog, Description, open_archive, unfinished
from pipeline.archive.table import ArchiveTable, Moment
from pipeline.errors import PipelineError
from pipeline.spark.hadoop_files import HadoopFiles
from pipeline.spark.session import has_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Opened(NamedTuple):
    """An archive to read."""

    table: ArchiveTable
    moment: Moment
    made: Description


def table_of(spark: SparkSession, log: ArchiveLog, made: Description) -> ArchiveTable:
    """The archive of that directory, which may be new. Raises PipelineError when this Spark was
    not given what its format needs."""
    if made.format not in ("delta", "iceberg"):
        return FileTable(spark, log, made)
    if not has_package(spark, made.format):
        raise PipelineError(
            f"{log.files.root} is an archive of --format {made.format}; say so by that flag, so"
            " that Spark is started with what it needs"
        )
    kind = DeltaTable if made.format == "delta" else IcebergTable
    return kind(spark, log.files, made)


def open_table(spark: SparkSession, directory: str) -> Opened:
    """An archive to read. Raises PipelineError for a directory that is none, or only half of
    one."""
    log = ArchiveLog(HadoopFiles(spark, directory))
    made = log.description()
    if made is None or made.format not in ("delta", "iceberg"):
        log, _, made = open_archive(spark, directory)
    table = table_of(spark, log, made)
    moment = table.look()
    if moment.latest_batch < 0:
        raise unfinished(directory)
    return Opened(table, moment, made)
