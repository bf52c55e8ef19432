"""What Spark needs to be given for table formats that it does not bring itself.

Versions are those that were tried with PySpark 4.0; one that a person configured (in
spark.jars.packages, or on Spark's class path) is taken instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TableFormat(NamedTuple):
    """A table format of Spark's, beside those that it has."""

    artifact: str
    """Group and name; `{scala}` in it is Spark's version of Scala."""
    version: str
    provider: str
    """A class that is there when the package is."""
    settings: Mapping[str, str]
    defaults: Mapping[str, str]
    """Settings that a person may have chosen otherwise."""

    def coordinates(self, scala: str) -> str:
        return f"{self.artifact.format(scala=scala)}:{self.version}"


TABLE_FORMATS = {
    "delta": TableFormat(
        "io.delta:delta-spark_{scala}",
        "4.0.0",
        "org.apache.spark.sql.delta.DeltaLog",
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
        # An archive's list of files is small, and fifty tasks to read it are slow.
        {"spark.databricks.delta.snapshotPartitions": "2"},
    ),
    "iceberg": TableFormat(
        "org.apache.iceberg:iceberg-spark-runtime-4.0_{scala}",
        "1.10.0",
        "org.apache.iceberg.spark.SparkCatalog",
        {},
        {},
    ),
}
FORMATS = ("parquet", "orc", *TABLE_FORMATS)
"""What an archive may be made of."""
