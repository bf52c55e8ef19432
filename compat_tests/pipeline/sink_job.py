"""A user's streaming job, to be killed: BOOTSTRAP FROM TO SLOTS CHECKPOINT MASTER.

Copies a topic through `format("barnabas")`, slowly enough (ROW_SECONDS a row) that most of the time
a transaction is open. With AVAILABLE_NOW=1 it ends when all that is there is copied.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def slowly(row_seconds: float) -> Any:
    """A column as it is, after so many seconds for each row."""
    from pyspark.sql.functions import udf

    @udf("binary")
    def waited(value: bytes) -> bytes:
        time.sleep(row_seconds)
        return value

    return waited


def main() -> None:
    import barnabas
    from pipeline.session import open_session

    bootstrap, source, target, slots, checkpoint, master = sys.argv[1:]
    row_seconds = float(os.environ.get("ROW_SECONDS", "0"))
    conf = {
        "spark.sql.shuffle.partitions": slots,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        "spark.executor.memory": "500m",
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
            .repartition(int(slots), "key")
        )
        if row_seconds:
            rows = rows.withColumn("value", slowly(row_seconds)("value"))
        stream = (
            rows.select("key", "value", "timestamp")
            .writeStream.format("barnabas")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("slots", slots)
            .option("checkpointLocation", checkpoint)
        )
        if os.environ.get("AVAILABLE_NOW"):
            stream = stream.trigger(availableNow=True)
        stream.start().awaitTermination()


main()
