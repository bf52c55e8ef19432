"""`format("barnabas")`, as Spark knows it: a reader of log directories, a writer of topics.

What reads is segments.source, what writes is sink; both travel to executors by value, with all they
import. A client that executors may lack travels as a file beside them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from .segments import crc, decode, plan, source
from .segments.source import SegmentReader
from .sink import clients, exactly_once, registers, rows, settings, tokens, writers
from .sink.writers import BatchWriter, Sink, StreamWriter
from .spark.shipping import carry, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int"
)
_HEADERS_COLUMN = ", headers array<struct<key: string, value: binary>>"


def register(spark: SparkSession) -> None:
    """Make `format("barnabas")` known to a session (a user's own, too)."""
    ship(
        crc, plan, decode, source, registers, exactly_once, tokens, settings, clients,
        rows, writers, sys.modules[__name__],
    )  # fmt: skip
    carry_client(spark)
    spark.dataSource.register(BarnabasDataSource)


def carry_client(spark: SparkSession) -> None:
    """Give executors the kafka-python of this process, for those that have no client at all."""
    if find_spec("kafka") is not None:  # otherwise executors need confluent-kafka
        carry(spark, clients.CARRIED, ["kafka"])


class BarnabasDataSource(DataSource):
    """Registered under the name `barnabas`."""

    @classmethod
    def name(cls) -> str:
        return "barnabas"

    def schema(self) -> str:
        include_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return _KAFKA_COLUMNS + (_HEADERS_COLUMN if include_headers else "")

    def reader(self, schema: Any) -> DataSourceReader:
        return SegmentReader(dict(self.options))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(Sink(schema, dict(self.options)), overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's name
        return StreamWriter(Sink(schema, dict(self.options)))
