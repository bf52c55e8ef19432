"""`barnabas pipeline archive`: topics into a lake, every record once, whatever is killed when.

How: Structured Streaming from Kafka into Spark's file sink. The checkpoint fixes the offsets of a
batch before it is read, and the sink's log (archive_log) commits all files of a batch by one
atomic rename: after a kill -9 of the driver the same batch is done again under its own number,
and files of the first attempt are in no log. A killed broker only makes the batch wait or fail;
the next run goes on. Records of open and aborted transactions stay out (isolation level
read_committed).

Layout: `DIR/topic=<topic>/day=<yyyy-MM-dd>[/hour=<HH>]/part-*.parquet`, UTC, by the record's
timestamp. Columns: key, value, headers, partition, offset, timestamp, timestampType; topic, day,
hour from the folders. Read it with `spark.read.parquet(DIR)`, the whole directory: that is where
Spark finds the log. Other engines list files, and would also see those that do not count until
`--compact` has removed them. `--compact`: see compaction.

Gaps: Spark guesses the types of folder columns: if all topics of an archive have names that are
numbers, read it with spark.sql.sources.partitionColumnTypeInference.enabled=false.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.archive_log import METADATA, ArchiveLog, Description
from pipeline.errors import PipelineError
from pipeline.hadoop_files import HadoopFiles
from pipeline.kafka_admin import KafkaAdmin
from pipeline.progress import human_bytes, rate
from pipeline.session import Job, run_watched, signal_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What the flags say. `every` None means: all there is now, then end."""

    bootstrap: str
    to: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    format: str = "parquet"
    partition_by: str = "day"
    every: str | None = None
    checkpoint: str | None = None
    max_per_trigger: int = 2_000_000
    skip_lost: bool = False
    client_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ArchiveTotals:
    """What one run did."""

    rows: int = 0
    batches: int = 0
    lag: int = 0
    last_batch: int = -1
    last_batch_ms: int = 0
    started_at: float = field(default_factory=time.monotonic)
    stopped_by: int = 0
    """Number of the signal that ended it early; 0 when it ended by itself."""
    _seen: set[int] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    def add(self, progress: Mapping[str, Any]) -> bool:
        """Count one batch, once; whether it was new."""
        batch = int(progress["batchId"])
        if batch in self._seen or "addBatch" not in progress.get("durationMs", {}):
            return False
        self._seen.add(batch)
        self.rows += max(0, int(progress["numInputRows"]))
        self.batches += 1
        self.lag = _lag(progress)
        self.last_batch = batch
        self.last_batch_ms = int(progress["durationMs"].get("triggerExecution", 0))
        return True


def run_archive(job: Job, options: ArchiveOptions) -> ArchiveTotals:
    """Archive until all is done, or until interrupted. Raises PipelineError."""
    with KafkaAdmin(job.jvm, options.bootstrap, options.client_properties) as admin:
        if options.pattern is not None:
            admin.matching(options.pattern)
        else:
            admin.require(options.topics)
    checkpoint = _prepare(job, options)
    totals = ArchiveTotals()
    query = _start(job, options, checkpoint)
    try:
        run_watched(job, lambda: _follow(query, totals), lambda _: _progress(totals))
    except KeyboardInterrupt as stop:
        totals.stopped_by = signal_of(stop)
    finally:
        with suppress(Exception):
            query.stop()
    _collect(query, totals)
    return totals


def summary(job: Job, options: ArchiveOptions, totals: ArchiveTotals) -> str:
    """The last words of a run: what was done, what is there now, what to do next."""
    files = ArchiveLog(HadoopFiles(job.spark, options.to)).snapshot().files
    size = sum(file.size for file in files)
    lines = [
        f"archived {totals.rows:,} rows in {totals.batches} batches, {totals.seconds:.1f} s"
        f" ({rate(totals.rows, totals.seconds)}); lag {totals.lag:,}",
        f"{options.to} holds {len(files)} files, {human_bytes(size)}",
    ]
    if totals.stopped_by:
        lines.append("stopped; the same command goes on where this one ended")
    else:
        lines.append(f'read it: spark.read.{options.format}("{options.to}")')
    return "\n".join(lines)


def _prepare(job: Job, options: ArchiveOptions) -> str:
    """Check that directory and checkpoint belong together; the checkpoint's location."""
    files = HadoopFiles(job.spark, options.to)
    log = ArchiveLog(files)
    checkpoint = HadoopFiles(job.spark, options.checkpoint or files.join("_checkpoint")).root
    wanted = Description(options.format, options.partition_by, checkpoint)
    made = log.description()
    if made is None:
        _require_fresh(files, checkpoint, options)
        log.describe(wanted)
        return checkpoint
    if made.checkpoint != checkpoint:
        raise PipelineError(
            f"{options.to} was written with the checkpoint {made.checkpoint}, not {checkpoint}:"
            f" give --checkpoint {made.checkpoint}, or choose another --to"
        )
    if (made.format, made.partition_by) != (options.format, options.partition_by):
        raise PipelineError(
            f"{options.to} was made with --format {made.format} --partition-by"
            f" {made.partition_by}; give the same, or choose another --to"
        )
    if log.exists() and not files.exists(f"{checkpoint}/offsets"):
        raise PipelineError(
            f"half-written archive: {options.to} has batches, but its checkpoint {checkpoint} is"
            " gone; restore the checkpoint, or archive into another directory"
        )
    return checkpoint


def _require_fresh(files: HadoopFiles, checkpoint: str, options: ArchiveOptions) -> None:
    others = [name for name in files.names(files.root) if name != "_checkpoint"]
    if others:
        what = "an archive of another program" if METADATA in others else "other files"
        raise PipelineError(
            f"{options.to} already holds {what} ({others[0]}, ...); choose an empty directory"
        )
    if files.exists(f"{checkpoint}/offsets"):
        raise PipelineError(
            f"the checkpoint {checkpoint} belongs to another archive; give another --checkpoint"
        )


def _start(job: Job, options: ArchiveOptions, checkpoint: str) -> StreamingQuery:
    folders = ["topic", "day"] + (["hour"] if options.partition_by == "hour" else [])
    writer = (
        archive_columns(_source(job, options), options.partition_by)
        .writeStream.format(options.format)
        .partitionBy(*folders)
        .option("path", HadoopFiles(job.spark, options.to).root)
        .option("checkpointLocation", checkpoint)
        .queryName("archive")
    )
    if options.every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=options.every).start()


def _source(job: Job, options: ArchiveOptions) -> DataFrame:
    reader = (
        job.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false" if options.skip_lost else "true")
        .option("maxOffsetsPerTrigger", str(options.max_per_trigger))
    )
    for key, value in options.client_properties.items():
        reader = reader.option(f"kafka.{key}", value)
    if options.pattern is not None:
        return reader.option("subscribePattern", options.pattern).load()
    return reader.option("subscribe", ",".join(options.topics)).load()


def archive_columns(frame: DataFrame, partition_by: str) -> DataFrame:
    """The archive's columns of a frame in Kafka's columns, with the folder columns last."""
    columns = [
        "key", "value", "headers", "partition", "offset", "timestamp", "timestampType", "topic",
        "date_format(timestamp, 'yyyy-MM-dd') as day",
    ]  # fmt: skip
    if partition_by == "hour":
        columns.append("date_format(timestamp, 'HH') as hour")
    return frame.selectExpr(*columns)


def _follow(query: StreamingQuery, totals: ArchiveTotals) -> None:
    """Wait for the query's end, counting its batches."""
    while not query.awaitTermination(1):
        _collect(query, totals)


def _progress(totals: ArchiveTotals) -> str:
    if not totals.batches:
        return f"first batch ... {totals.seconds:.0f} s"
    return (
        f"{totals.rows:,} rows  {rate(totals.rows, totals.seconds)}  lag {totals.lag:,}"
        f"  batch {totals.last_batch} took {totals.last_batch_ms:,} ms"
    )


def _collect(query: StreamingQuery, totals: ArchiveTotals) -> None:
    with suppress(Exception):  # the JVM may be going down
        for progress in query.recentProgress:
            totals.add(progress)


def _lag(progress: Mapping[str, Any]) -> int:
    """Records that the broker had at the last look and the archive has not."""
    behind = 0
    for source in progress.get("sources", []):
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for topic, partitions in latest.items():
            for index, offset in partitions.items():
                behind += max(0, offset - end.get(topic, {}).get(index, 0))
    return behind


def _offsets(text: Any) -> dict[str, dict[str, int]]:
    value = json.loads(text) if isinstance(text, str) else text
    return value if isinstance(value, dict) else {}
