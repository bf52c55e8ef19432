"""A batch and a stream of a few rows, which load what most jobs do; its word: a folder to fill."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    folder = sys.argv[1]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    frame = spark.range(100).selectExpr(
        "id", "id % 7 kind", "cast(cast(id as string) as binary) value"
    )
    frame.mapInArrow(lambda batches: batches, frame.schema).write.parquet(f"{folder}/rows")
    spark.read.parquet(f"{folder}/rows").groupBy("kind").count().collect()
    stream = spark.readStream.schema(frame.schema).parquet(f"{folder}/rows").writeStream
    stream = stream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    stream.trigger(availableNow=True).start(f"{folder}/copied").awaitTermination()
    spark.stop()
    gateway.proc.stdin.close()  # the JVM ends, and writes what it loaded
    gateway.proc.wait()


if __name__ == "__main__":
    main()
