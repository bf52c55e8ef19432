"""`barnabas pipeline rescue DATA_DIR --to DIR`: a whole dead broker into an archive.

What there is is known before Spark starts (dead_broker); the records are read as `segments` reads
them, to the end of each log, and written with the state of the topics in one batch, so that
`replay` makes topics, records and committed offsets again, and `archive` could go on. Records of
transactions that were open or aborted are left out; those whose commit was decided are not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.archive.log import open_archive, read_files
from pipeline.archive.state import ArchivedTopic
from pipeline.errors import PipelineError
from pipeline.progress import human_bytes, many, rate, table
from pipeline.rescue.dead_broker import DeadBroker
from pipeline.segments.plan import Wanted
from pipeline.segments.segments import read_frame, write_archive
from pipeline.spark.session import Job, run_watched, stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class RescueOptions:
    """What the flags say."""

    paths: list[str]
    to: str


@dataclass(slots=True)
class RescueTotals:
    """What one run did."""

    rows: dict[str, int] = field(default_factory=dict)
    """By topic."""
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0


def require_topics(broker: DeadBroker, options: RescueOptions) -> None:
    """Raise PipelineError when there is nothing to rescue."""
    if not broker.topics:
        raise PipelineError(f"{','.join(options.paths)} holds no topics ({broker.owner})")


def run_rescue(job: Job, options: RescueOptions, broker: DeadBroker) -> RescueTotals:
    """Write the archive. Raises PipelineError."""
    started = time.monotonic()
    wanted = [
        Wanted(
            name,
            to_offsets=topic.ends,
            log_end=True,
            prepared=topic.prepared,
            left_out=topic.left_out,
        )
        for name, topic in broker.topics.items()
        if topic.ends
    ]
    state = {
        name: ArchivedTopic(
            topic.id,
            0,
            tuple(topic.ends.get(index, 0) for index in range(topic.partitions)),
            topic.configs,
            topic.groups,
        )
        for name, topic in broker.topics.items()
    }

    def work() -> RescueTotals:
        frame: DataFrame | None = read_frame(job, options.paths, wanted) if wanted else None
        landed = write_archive(job, frame, options.to, state)
        log, snapshot, description = open_archive(job.spark, options.to)
        counted = read_files(job.spark, log, snapshot.files, description).groupBy("topic").count()
        rows = {str(row["topic"]): int(row["count"]) for row in counted.collect()}
        return RescueTotals(rows, len(landed), sum(file.size for file in landed))

    totals: RescueTotals = run_watched(job, work, stages(job))
    totals.seconds = time.monotonic() - started
    return totals


def summary(options: RescueOptions, broker: DeadBroker, totals: RescueTotals | None) -> str:
    """What was rescued; without totals, what would be."""
    rows = [
        [
            name,
            topic.partitions,
            len(topic.ends),
            topic.bytes,
            None if totals is None else totals.rows.get(name, 0),
            len(topic.groups),
            " ".join(f"{key}={value}" for key, value in sorted(topic.configs.items())),
        ]
        for name, topic in broker.topics.items()
    ]
    headings = ["topic", "partitions", "here", "bytes", "records", "groups", "configs"]
    size = sum(topic.bytes for topic in broker.topics.values())
    facts = (
        f"{many(len(broker.topics), 'topic')}, {human_bytes(size)} of logs and the committed"
        f" offsets of {many(len(broker.groups), 'group')}"
    )
    lines = [table(headings, rows), "", *broker.notes]
    if totals is None:
        lines.append(
            f"would rescue {facts} of {broker.owner} into {options.to}; nothing was written"
        )
    else:
        count = sum(totals.rows.values())
        lines += [
            f"rescued {many(count, 'row')} in {totals.seconds:.1f} s"
            f" ({rate(count, totals.seconds)}): {facts} of {broker.owner}",
            f"{options.to} holds {many(totals.files, 'file')}, {human_bytes(totals.bytes)};"
            f" bring it back: barnabas pipeline replay --from {options.to} --bootstrap HOST:PORT"
            " --keep-partitions",
        ]
    return "\n".join(lines)
