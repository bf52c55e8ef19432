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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.archive.archive import archive_columns
from pipeline.archive.log import OWN, ArchiveLog, Description, LoggedFile, land
from pipeline.archive.state import State
from pipeline.errors import EXIT_USAGE, PipelineError
from pipeline.preflight import UNFINISHED, check_remains
from pipeline.progress import human_bytes, many, rate, shown, table, utc
from pipeline.segments.plan import PartitionPlan, PlanError, Wanted, plan
from pipeline.spark.hadoop_files import HadoopFiles
from pipeline.spark.session import Job, run_watched, stages
from pipeline.typed.columns import TypedOptions, Typing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAMPLE_ROWS = 10
_WIDEST = 120
"""Characters of a decoded value in the sample."""
_OFFSETS = re.compile(r"(?:(\d+):)?(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class SegmentsOptions:
    """What the flags say. Offsets by partition, -1 for all; ends exclusive."""

    data_dir: str
    topics: tuple[str, ...]
    to: str | None = None
    from_offsets: dict[int, int] | None = None
    to_offsets: dict[int, int] | None = None
    since_ms: int | None = None
    log_end: bool = False
    dry_run: bool = False
    typed: TypedOptions = field(default_factory=TypedOptions)

    @property
    def paths(self) -> list[str]:
        return self.data_dir.split(",")

    @property
    def wanted(self) -> list[Wanted]:
        return [
            Wanted(
                topic,
                partitions=self.partitions,
                from_offsets=self.from_offsets or {},
                to_offsets=self.to_offsets or {},
                since_ms=self.since_ms,
                log_end=self.log_end,
            )
            for topic in self.topics
        ]

    @property
    def partitions(self) -> frozenset[int] | None:
        """Those that the offsets name; None for all: no offsets, or some for all (-1)."""
        named = {*(self.from_offsets or {}), *(self.to_offsets or {})}
        return frozenset(named) if named and -1 not in named else None


@dataclass(slots=True)
class SegmentsTotals:
    """What one run found and did."""

    plans: list[PartitionPlan]
    rows: int = 0
    seconds: float = 0.0
    sample: list[Any] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


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
                EXIT_USAGE,
            )
        partition = int(match.group(1)) if match.group(1) else -1
        if partition in starts or partition in ends:
            named = "all partitions are" if partition < 0 else f"partition {partition} is"
            raise PipelineError(f"--offsets {text!r}: {named} named twice", EXIT_USAGE)
        if match.group(3) and int(match.group(2) or 0) >= int(match.group(3)):
            raise PipelineError(f"--offsets {item!r} has no offsets: TO is exclusive", EXIT_USAGE)
        if match.group(2):
            starts[partition] = int(match.group(2))
        if match.group(3):
            ends[partition] = int(match.group(3))
    return starts, ends


def plan_segments(options: SegmentsOptions) -> list[PartitionPlan]:
    """What would be read. Raises PipelineError; needs no Spark."""
    if len(options.topics) > 1 and (options.from_offsets or options.to_offsets):
        raise PipelineError("--offsets is of one topic; give one --topic", EXIT_USAGE)
    try:
        return plan(options.paths, *options.wanted)
    except PlanError as error:
        raise PipelineError(str(error)) from None


def read_frame(job: Job, paths: Sequence[str], wanted: Sequence[Wanted]) -> DataFrame:
    """The rows as a DataFrame in Kafka's columns with headers. What is wanted of the topics may
    differ in their offsets only."""
    from pipeline import data_source  # PySpark only when a command runs

    data_source.register(job.spark)
    first = wanted[0]
    reader = (
        job.spark.read.format("barnabas")
        .option("topic", ",".join(one.topic for one in wanted))
        .option("includeHeaders", "true")
        .option("readTo", "logEnd" if first.log_end else "highWatermark")
        .option("startingOffsets", json.dumps({one.topic: one.from_offsets for one in wanted}))
        .option("endingOffsets", json.dumps({one.topic: one.to_offsets for one in wanted}))
        .option("preparedCommits", json.dumps({one.topic: one.prepared for one in wanted}))
        .option("leftOut", json.dumps({k: v for one in wanted for k, v in one.left_out.items()}))
    )
    if first.partitions is not None:
        reader = reader.option("partitions", ",".join(str(one) for one in first.partitions))
    if first.since_ms is not None:
        reader = reader.option("since", str(first.since_ms))
    # Spark's Python workers run where its JVM does, which need not be here.
    return reader.load(",".join(os.path.abspath(path) for path in paths))


def run_segments(job: Job, options: SegmentsOptions) -> SegmentsTotals:
    """Read, and write when asked. Raises PipelineError."""
    plans = plan_segments(options)
    typing = Typing(options.typed)
    plain = read_frame(job, options.paths, options.wanted)
    frame = typing.decoded(plain, typing.look(options.topics))
    started = time.monotonic()
    totals = SegmentsTotals(plans, notes=typing.notes)
    if options.to is None:
        totals.rows = run_watched(job, plain.count, stages(job))
        totals.seconds = time.monotonic() - started
        # Python's datetimes end with the year 9999, and PySpark's are of this machine's zone.
        timed = frame.selectExpr("*", "unix_millis(timestamp) as ms").drop("timestamp")
        totals.sample = timed.limit(_SAMPLE_ROWS).collect()
    else:
        typed = typing.remembered()
        run_watched(job, lambda: _write(job, frame, options.to or "", typed, totals), stages(job))
        totals.seconds = time.monotonic() - started
    return totals


def summary(options: SegmentsOptions, totals: SegmentsTotals) -> str:
    lines = [plan_table(totals.plans), "", _read_line(options, totals)]
    if options.dry_run:
        return "\n".join([*lines, *totals.notes, *_unread(options, totals.plans)])
    if options.to is not None:
        lines.append(
            f"{options.to} holds {many(totals.files, 'file')}, {human_bytes(totals.bytes)}"
        )
    elif totals.sample:
        lines += ["", _sample(options, totals.sample)]
    return "\n".join([*lines, *totals.notes, *_unread(options, totals.plans)])


def _sample(options: SegmentsOptions, rows: Sequence[Any]) -> str:
    """The first rows; of which topic, where several were asked for."""
    names = ["partition", "offset", "timestamp (UTC)", "key", "value"]
    cells = [
        [
            row["partition"],
            row["offset"],
            _utc(row["ms"]),
            _shown(row, "key"),
            _shown(row, "value"),
        ]
        for row in rows
    ]
    if len(options.topics) == 1:
        return table(names, cells)
    cells = [[row["topic"], *one] for row, one in zip(rows, cells, strict=True)]
    return table(["topic", *names], cells)


def _utc(ms: int) -> str:
    day = utc(ms)
    return day if day == "-" else f"{day}.{ms % 1000:03d}"


def plan_table(plans: Sequence[PartitionPlan]) -> str:
    rows = [
        [
            one.topic,
            one.partition,
            one.log_start,
            None if one.readable_to >= 2**62 else one.readable_to,
            len(one.parts),
            sum(part.size for part in one.parts),
        ]
        for one in plans
    ]
    return table(["topic", "partition", "log start", "readable to", "segments", "bytes"], rows)


def _read_line(options: SegmentsOptions, totals: SegmentsTotals) -> str:
    names = ", ".join(options.topics)
    if not options.dry_run:
        return (
            f"read {many(totals.rows, 'row')} of {names} in {totals.seconds:.1f} s"
            f" ({rate(totals.rows, totals.seconds)})"
        )
    parts = [part for one in totals.plans for part in one.parts]
    size = human_bytes(sum(part.size for part in parts))
    to = f" into {options.to}" if options.to else ""
    return (
        f"would read {many(len(parts), 'segment')}, {size}, of"
        f" {many(len(totals.plans), 'partition')} of {names}{to}; nothing was written"
    )


def _unread(options: SegmentsOptions, plans: Sequence[PartitionPlan]) -> list[str]:
    if options.log_end or all(one.has_checkpoint for one in plans):
        return []
    return [
        "some partitions have no high watermark on disk yet (a broker writes it every 5 s, and"
        " when it stops): nothing of them was read; --log-end reads to the end of the log"
    ]


def _shown(row: Any, name: str) -> str:
    """A key or value: decoded where that was asked for, or why it is not."""
    decoded = row.asDict(recursive=True).get(f"{name}_data")
    if decoded is not None:
        text = str(decoded)
        return text if len(text) <= _WIDEST else text[:_WIDEST] + "..."
    problem = row.asDict().get(f"{name}_problem")
    return shown(row[name]) if problem is None else f"{shown(row[name])} ({problem})"


def _make_room(files: HadoopFiles, log: ArchiveLog) -> None:
    """Remove what a run left that was killed, or had no room; raise PipelineError for all else."""
    names = files.names(files.root)
    begun = files.exists(files.join(UNFINISHED)) and not log.exists()
    check_remains(files.root, names, begun=begun)
    for name in sorted(names, key=lambda name: name == OWN):  # the note of it goes last
        files.delete(files.join(name), recursive=True)


def write_archive(
    job: Job,
    frame: DataFrame | None,
    to: str,
    state: State | None,
    typed: Mapping[str, Any] | None = None,
) -> list[LoggedFile]:
    """One batch: data files first, then the log that makes them count, in one step. Without a
    `state`, `archive` cannot go on with it. `typed`: the frame's decoded columns."""
    files = HadoopFiles(job.spark, to)
    log = ArchiveLog(files)
    _make_room(files, log)
    unfinished = files.join(UNFINISHED)
    files.replace_text_in_new_folder(unfinished, "")
    log.describe(Description("parquet", "day", typed=typed))
    landed: list[LoggedFile] = []
    if frame is not None:
        scratch = files.join(OWN, "segments")
        columns = archive_columns(frame.selectExpr("*", "0 as generation"), "day")
        columns.write.partitionBy("topic", "day").parquet(scratch)
        landed = land(files, scratch)
    log.commit(0, [file.entry for file in landed], state)
    files.delete(unfinished)
    return landed


def _write(
    job: Job, frame: DataFrame, to: str, typed: Mapping[str, Any] | None, totals: SegmentsTotals
) -> None:
    landed = write_archive(job, frame, to, None, typed)
    totals.files, totals.bytes = len(landed), sum(file.size for file in landed)
    if landed:  # Spark would want the schema of an archive without records
        totals.rows = job.spark.read.parquet(HadoopFiles(job.spark, to).root).count()
