"""A user's streaming job, to be killed: BOOTSTRAP FROM TO SLOTS CHECKPOINT MASTER.

Copies a topic through `format("barnabas")`, slowly enough (ROW_SECONDS a row) that most of the time
a transaction is open. With AVAILABLE_NOW=1 it ends when all that is there is copied. SINK_CLIENT
chooses the client.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


PADDING = "repeat('x', 20000)"
"""Spark hands rows to Python 64 KiB at a time: short ones would all come at once."""


def slowly(frame: DataFrame, row_seconds: float) -> DataFrame:
    """The frame as it is, in small batches, after so many seconds for each row."""

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(row_seconds * batch.num_rows)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def main() -> None:
    import barnabas
    from pipeline.spark.session import open_session
    from testkit.quick_jvm import SPARK_JVM

    bootstrap, source, target, slots, checkpoint, master = sys.argv[1:]
    row_seconds = float(os.environ.get("ROW_SECONDS", "0"))
    conf = {
        "spark.sql.shuffle.partitions": slots,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        "spark.executor.memory": "500m",
        "spark.executor.extraJavaOptions": " ".join(SPARK_JVM),
        "spark.driver.memory": "500m",
    }

    with open_session("sink-job", master=master, conf=conf) as job:
        barnabas.register_source(job.spark)
        rows = (
            job.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "300")
            .load()
            .selectExpr("key", f"concat(cast(value as string), '-', {PADDING}) value", "timestamp")
            .repartition(int(slots), "key")
        )
        if row_seconds:
            rows = slowly(rows, row_seconds)
        stream = (
            rows.writeStream.format("barnabas")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("slots", slots)
            .option("client", os.environ.get("SINK_CLIENT", "auto"))
            .option("checkpointLocation", checkpoint)
        )
        if os.environ.get("AVAILABLE_NOW"):
            stream = stream.trigger(availableNow=True)
        stream.start().awaitTermination()


if __name__ == "__main__":
    main()
