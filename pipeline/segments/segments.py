"""`barnabas pipeline segments`: look into a broker's log directory, or copy it into an archive.

Without `--to`: what there is in each partition, how much of it is readable, and the first rows.
With `--to`: an archive like that of `archive` (same folders, same log, so `replay` takes it),
written in one batch. How the directory is read: plan, decode; as a DataFrame: pipeline.data_source.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.archive.archive import archive_columns
from pipeline.archive.log import (
    METADATA,
    OWN,
    ArchiveLog,
    Description,
    land,
)
from pipeline.errors import PipelineError
from pipeline.progress import human_bytes, rate, table
from pipeline.segments.plan import PartitionPlan, PlanError, Wanted, plan
from pipeline.spark.hadoop_files import HadoopFiles
from pipeline.spark.session import Job, run_watched, stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAMPLE_ROWS = 10
_UNFINISHED = "unfinished"
_OFFSETS = re.compile(r"(?:(\d+):)?(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class SegmentsOptions:
    """What the flags say. Offsets by partition, -1 for all; ends exclusive."""

    data_dir: str
    topic: str
    to: str | None = None
    from_offsets: dict[int, int] | None = None
    to_offsets: dict[int, int] | None = None
    since_ms: int | None = None
    log_end: bool = False

    @property
    def partitions(self) -> frozenset[int] | None:
        """Those that the offsets name; None for all: no offsets, or some for all (-1)."""
        named = {*(self.from_offsets or {}), *(self.to_offsets or {})}
        return frozenset(named) if named and -1 not in named else None


@dataclass(slots=True)
class SegmentsTotals:
    """What one run found and did."""

    plans: list[PartitionPlan]
    rows: int
    seconds: float
    sample: list[Any]
    files: int = 0
    bytes: int = 0


def parse_offsets(text: str) -> tuple[dict[int, int], dict[int, int]]:
    """`100-200`, `0:100-200,3:50-`: first offsets and ends (exclusive), by partition."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for item in text.split(","):
        match = _OFFSETS.fullmatch(item.strip())
        if match is None or not (match.group(2) or match.group(3)):
            raise PipelineError(
                f"--offsets {item!r}: expected FROM-TO or PARTITION:FROM-TO (TO is exclusive;"
                " either may be left out)",
                2,
            )
        partition = int(match.group(1)) if match.group(1) else -1
        if match.group(2):
            starts[partition] = int(match.group(2))
        if match.group(3):
            ends[partition] = int(match.group(3))
    return starts, ends


def plan_segments(options: SegmentsOptions) -> list[PartitionPlan]:
    """What would be read. Raises PipelineError; needs no Spark."""
    wanted = Wanted(
        options.topic,
        partitions=options.partitions,
        from_offsets=options.from_offsets or {},
        to_offsets=options.to_offsets or {},
        since_ms=options.since_ms,
        log_end=options.log_end,
    )
    try:
        return plan(options.data_dir.split(","), wanted)
    except PlanError as error:
        raise PipelineError(str(error)) from None


def read_frame(job: Job, options: SegmentsOptions) -> DataFrame:
    """The rows as a DataFrame in Kafka's columns with headers."""
    from pipeline import data_source  # PySpark only when a command runs

    data_source.register(job.spark)
    reader = (
        job.spark.read.format("barnabas")
        .option("topic", options.topic)
        .option("includeHeaders", "true")
        .option("readTo", "logEnd" if options.log_end else "highWatermark")
    )
    if options.partitions is not None:
        reader = reader.option("partitions", ",".join(str(one) for one in options.partitions))
    plans = plan_segments(options)
    for name, offsets in (
        ("startingOffsets", options.from_offsets),
        ("endingOffsets", options.to_offsets),
    ):
        if offsets:
            # The data source wants partitions by number: -1 (all) is spelled out.
            full = {str(one.partition): offsets[-1] for one in plans if -1 in offsets}
            full |= {str(index): offset for index, offset in offsets.items() if index >= 0}
            reader = reader.option(name, json.dumps({options.topic: full}))
    if options.since_ms is not None:
        reader = reader.option("since", str(options.since_ms))
    # Spark's Python workers run where its JVM does, which need not be here.
    return reader.load(",".join(os.path.abspath(path) for path in options.data_dir.split(",")))


def run_segments(job: Job, options: SegmentsOptions) -> SegmentsTotals:
    """Read, and write when asked. Raises PipelineError."""
    plans = plan_segments(options)
    frame = read_frame(job, options)
    started = time.monotonic()
    totals = SegmentsTotals(plans, 0, 0.0, [])
    if options.to is None:
        totals.rows = run_watched(job, frame.count, stages(job))
        totals.seconds = time.monotonic() - started
        totals.sample = frame.limit(_SAMPLE_ROWS).collect()
    else:
        run_watched(job, lambda: _write_archive(job, frame, options.to or "", totals), stages(job))
        totals.seconds = time.monotonic() - started
    return totals


def summary(options: SegmentsOptions, totals: SegmentsTotals) -> str:
    rows = [
        [
            one.partition,
            one.log_start,
            None if one.readable_to >= 2**62 else one.readable_to,
            len(one.parts),
            sum(part.size for part in one.parts),
        ]
        for one in totals.plans
    ]
    lines = [
        table(["partition", "log start", "readable to", "segments", "bytes"], rows),
        "",
        f"read {totals.rows:,} rows of {options.topic} in {totals.seconds:.1f} s"
        f" ({rate(totals.rows, totals.seconds)})",
    ]
    if options.to is not None:
        lines.append(f"{options.to} holds {totals.files} files, {human_bytes(totals.bytes)}")
    elif totals.sample:
        shown = [
            [
                row["partition"],
                row["offset"],
                row["timestamp"],
                _show(row["key"]),
                _show(row["value"]),
            ]
            for row in totals.sample
        ]
        lines += ["", table(["partition", "offset", "timestamp", "key", "value"], shown)]
    if not options.log_end and any(not one.has_checkpoint for one in totals.plans):
        lines.append(
            "some partitions have no high watermark on disk yet (a broker writes it every 5 s, and"
            " when it stops): nothing of them was read; --log-end reads to the end of the log"
        )
    return "\n".join(lines)


def _show(data: bytes | None, limit: int = 40) -> str:
    if data is None:
        return "(null)"
    if not data:
        return "(empty)"
    text = bytes(data[: limit + 1]).decode("utf-8", "backslashreplace").replace("\n", "\\n")
    return text if len(text) <= limit else text[:limit] + "..."


def _make_room(files: HadoopFiles, log: ArchiveLog) -> None:
    """Remove what a run left that was killed, or had no room; raise PipelineError for all else."""
    names = files.names(files.root)
    if names and (log.exists() or not files.exists(files.join(OWN, _UNFINISHED))):
        raise PipelineError(f"{files.root} is not empty; choose an empty directory")
    for name in sorted(names, key=lambda name: name == OWN):  # the note of it goes last
        files.delete(files.join(name), recursive=True)


def _write_archive(job: Job, frame: DataFrame, to: str, totals: SegmentsTotals) -> None:
    """One batch: data files first, then the log that makes them count, in one step."""
    files = HadoopFiles(job.spark, to)
    log = ArchiveLog(files)
    _make_room(files, log)
    unfinished = files.join(OWN, _UNFINISHED)
    files.replace_text_in_new_folder(unfinished, "")
    log.describe(Description("parquet", "day"))
    scratch = files.join(OWN, "segments")
    columns = archive_columns(frame.selectExpr("*", "0 as generation"), "day")
    columns.write.partitionBy("topic", "day").parquet(scratch)
    landed = land(files, scratch)
    totals.files, totals.bytes = len(landed), sum(file.size for file in landed)
    text = "\n".join(["v1", *(json.dumps(file.entry, separators=(",", ":")) for file in landed)])
    files.replace_text_in_new_folder(files.join(METADATA, "0"), text)
    files.delete(unfinished)
    totals.rows = job.spark.read.parquet(files.root).count()
