"""W15: Spark's own connector: the sink, a batch read, and availableNow to Parquet, in one session.

The first job of a session is slow whoever the broker is (class loading, compiling), so a small
write comes first and is not counted. Spark's own overhead dominates: see the CPU seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.loads.base import Figures, LoadFailed, Place, create_topic, expect_records

_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"


def _session(scratch: str) -> Any:
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.master("local[2]")
        .appName("barnabas-bench")
        .config("spark.jars.packages", f"{_CONNECTOR}:{pyspark.__version__}")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def sink_and_source(place: Place, size: int, count: int, partitions: int) -> Figures:
    """Seconds to write `count` records, to read them as a batch, and to archive them."""
    spark = _session(place.scratch)
    options = {"kafka.bootstrap.servers": place.bootstrap}
    source = {**options, "subscribe": place.topic, "startingOffsets": "earliest"}

    def write(rows: int, topic: str) -> None:
        frame = spark.range(0, rows, 1, partitions).selectExpr(
            "cast(id as string) as key", f"rpad(cast(id as string), {size}, 'x') as value"
        )
        frame.write.format("kafka").options(**options).option("topic", topic).save()

    create_topic(place.bootstrap, f"{place.topic}-warm", partitions)
    write(1000, f"{place.topic}-warm")
    create_topic(place.bootstrap, place.topic, partitions)
    began = time.perf_counter()
    write(count, place.topic)
    figures = {"sink_s": time.perf_counter() - began}
    expect_records(place.bootstrap, place.topic, partitions, count)
    began = time.perf_counter()
    frame = spark.read.format("kafka").options(**source).load()
    found = frame.selectExpr("count(*)", "sum(length(value))").collect()[0]
    figures["batch_read_s"] = time.perf_counter() - began
    if (found[0], found[1]) != (count, count * size):
        raise LoadFailed(f"Spark read {found[0]} records of {found[1]} bytes")
    began = time.perf_counter()
    _archive(spark, source, Path(place.scratch))
    figures["available_now_s"] = time.perf_counter() - began
    archived = spark.read.parquet(f"{place.scratch}/archive")
    kept = archived.select("partition", "offset").distinct().count()
    if (archived.count(), kept) != (count, count):
        raise LoadFailed(f"the archive holds {kept} of {count} records")
    spark.stop()
    return figures


def _archive(spark: Any, source: dict[str, str], scratch: Path) -> None:
    query = (
        spark.readStream.format("kafka").options(**source).load()
        .selectExpr("partition", "offset", "key", "value")
        .writeStream.format("parquet")
        .option("path", str(scratch / "archive"))
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    if not query.awaitTermination(240):
        raise LoadFailed("availableNow did not end in 240 s")
