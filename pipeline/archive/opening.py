"""Which kind of table an archive is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pipeline.archive.file_table import FileTable
from pipeline.archive.log import ArchiveLog, Description, open_archive
from pipeline.archive.table import ArchiveTable, Moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Opened(NamedTuple):
    """An archive to read."""

    table: ArchiveTable
    moment: Moment
    made: Description


def table_of(spark: SparkSession, log: ArchiveLog, made: Description) -> ArchiveTable:
    """The archive of that directory, which may be new."""
    return FileTable(spark, log, made)


def open_table(spark: SparkSession, directory: str) -> Opened:
    """An archive to read. Raises PipelineError for a directory that is none, or only half of
    one."""
    log, _, made = open_archive(spark, directory)
    table = table_of(spark, log, made)
    return Opened(table, table.look(), made)
