"""`barnabas pipeline archive`: topics into a lake, every record once, whatever is killed when.

How: batch after batch, each of offsets that the broker was asked for. What to read next is decided
by `state` from what the archive has and what the broker says; Spark's Kafka source reads
exactly those offsets into a scratch folder; the files are moved into place; and the archive's log
(`log`) makes them count, with the state they lead to, in one step. After a kill -9 at any
moment the next run goes on from the last batch that counts, and files of the one that was cut off
are in no log. Records of open and aborted transactions stay out (isolation level read_committed).

Why not Structured Streaming: its checkpoint ties an archive to one list of topics for ever, and
what it says of lost data is a guess.

Keys and values are kept as they are; `typed` puts decoded columns beside them.

Layout: `DIR/topic=<topic>/day=<yyyy-MM-dd>[/hour=<HH>]/part-*.parquet`, UTC, by the record's
timestamp. Columns: key, value, headers, partition, offset, timestamp, timestampType, generation
(`state`); topic, day, hour from the folders. Read it with `spark.read.parquet(DIR)`, the
whole directory: that is where Spark finds the log. Other engines list files, and would also see
those that do not count until `--compact` has removed them. `--compact`: see compaction.

Gaps: Spark guesses the types of folder columns: if all topics of an archive have names that are
numbers, read it with spark.sql.sources.partitionColumnTypeInference.enabled=false.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.archive.log import ArchiveLog, Description
from pipeline.archive.opening import table_of
from pipeline.archive.state import (
    ArchivedTopic,
    Range,
    advanced,
    next_ranges,
    position,
)
from pipeline.broker_facts import BrokerTopic
from pipeline.preflight import check_fresh, check_made_as, no_match, no_topics
from pipeline.progress import done_of, human_bytes, many, rate, table
from pipeline.sink.registers import REPLAY_PREFIX
from pipeline.spark.hadoop_files import HadoopFiles
from pipeline.spark.kafka_admin import KafkaAdmin
from pipeline.spark.session import Job, records_read, run_watched, signal_of
from pipeline.typed.columns import COLUMNS, TypedOptions, Typing, check_formats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STOP_WAIT_S = 15.0
_ALL = 2**62


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What the flags say. `every_ms` None means: all there is now, then end."""

    bootstrap: str
    to: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    format: str = "parquet"
    partition_by: str = "day"
    every_ms: int | None = None
    max_per_trigger: int = 2_000_000
    skip_lost: bool = False
    dry_run: bool = False
    client_properties: Mapping[str, str] = field(default_factory=dict)
    typed: TypedOptions = field(default_factory=TypedOptions)


@dataclass(slots=True)
class ArchiveTotals:
    """What one run did."""

    planned: list[Range] = field(default_factory=list)
    """With dry_run: what would be read."""
    rows: dict[str, int] = field(default_factory=dict)
    """By topic; those that were asked for and had nothing new are in it with 0."""
    topics: Mapping[str, ArchivedTopic] = field(default_factory=dict)
    """As the last batch leaves them."""
    batches: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """By topic: offsets that the broker had at the last look and the archive has not."""
    undecoded: dict[str, int] = field(default_factory=dict)
    """Keys and values that have a problem instead of data, by side."""
    notes: list[str] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)
    stopped_by: int = 0
    """Number of the signal that ended it early; 0 when it ended by itself."""
    waits: bool = False
    """For records that are not there yet."""
    waited_s: float = 0.0

    @property
    def worked_s(self) -> float:
        return time.monotonic() - self.started_at - self.waited_s

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """All is archived; the next look is later."""
        self.waits = True
        began = time.monotonic()
        yield
        self.waited_s += time.monotonic() - began

    def begin(self) -> None:
        """There is a batch to do."""
        self.waits = False

    def progress(self, under_way: int) -> str:
        """`under_way`: records that the batch of now has read so far, of whichever topics."""
        if self.waits:
            return f"{many(self.all_rows, 'record')} archived; waiting for more"
        known = {name: rows + self.left.get(name, 0) for name, rows in self.rows.items()}
        if not any(known.values()):
            return f"looking at broker and archive ... {self.worked_s:.0f} s"
        return done_of(self.rows, known, self.worked_s, under_way)

    @property
    def lag(self) -> int:
        return sum(self.left.values())

    @property
    def all_rows(self) -> int:
        return sum(self.rows.values())

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(slots=True)
class _Batch:
    """What to do next: offsets to read, and the state when that is done."""

    number: int
    ranges: list[Range]
    state: dict[str, ArchivedTopic]
    generations: dict[str, int]
    is_needed: bool
    """Whether it changes anything."""


def run_archive(job: Job, options: ArchiveOptions) -> ArchiveTotals:
    """Archive until all is done, or until interrupted. Raises PipelineError."""
    with KafkaAdmin(job.jvm, options.bootstrap, options.client_properties) as admin:
        run = _Run(job, options, admin)
        try:
            run_watched(job, run.work, lambda _: run.progress())
        except KeyboardInterrupt as stop:
            run.totals.stopped_by = signal_of(stop)
        finally:
            run.stop()
    return run.totals


def summary(job: Job, options: ArchiveOptions, totals: ArchiveTotals) -> str:
    """The last words of a run: what was done, what is there now, what to do next."""
    if options.dry_run:
        return _dry_summary(options, totals)
    log = ArchiveLog(HadoopFiles(job.spark, options.to))
    archive = table_of(job.spark, log, _made_as(options))
    count, size = archive.size(archive.look())
    lines = [_table(totals), "", *totals.notes, *undecoded_text(totals.undecoded)]
    lines += [
        f"archived {many(totals.all_rows, 'row')} in {many(totals.batches, 'batch')},"
        f" {totals.worked_s:.1f} s"
        f" ({rate(totals.all_rows, totals.worked_s)}); lag {totals.lag:,}",
        f"{options.to} holds {many(count, 'file')}, {human_bytes(size)}",
    ]
    if totals.stopped_by:
        lines.append("stopped; the same command goes on where this one ended")
    else:
        lines.append(f'read it: spark.read.format("{options.format}").load("{options.to}")')
    return "\n".join(lines)


def undecoded_text(undecoded: Mapping[str, int]) -> list[str]:
    """What did not decode, in a line for each side that has such."""
    return [
        f"{many(count, side)} did not decode; {side}_problem says why"
        for side, count in undecoded.items()
        if count
    ]


def _table(totals: ArchiveTotals) -> str:
    """What became of each topic; partitions and groups are those that the archive has now."""
    rows: list[list[object]] = []
    for name, count in sorted(totals.rows.items()):
        known = totals.topics.get(name)
        facts = [len(known.offsets), len(known.groups)] if known else [None, None]
        rows.append([name, facts[0], count, totals.left.get(name, 0), facts[1]])
    return table(["topic", "partitions", "archived", "left", "groups"], rows)


def _dry_summary(options: ArchiveOptions, totals: ArchiveTotals) -> str:
    rows = [[one.topic, one.partition, one.start, one.end] for one in sorted(totals.planned)]
    offsets = sum(one.end - one.start for one in totals.planned)
    groups = {group for topic in totals.topics.values() for group in topic.groups}
    return "\n".join(
        [
            table(["topic", "partition", "from offset", "to (exclusive)"], rows),
            "",
            *totals.notes,
            f"would read {many(offsets, 'offset')} of {many(len(rows), 'partition')}, of"
            f" {many(len(totals.rows), 'topic')}, into {options.to}, and keep the committed"
            f" offsets of {many(len(groups), 'group')}; nothing was written",
        ]
    )


class _Staged(NamedTuple):
    """Rows of a batch that are written and do not count yet; how many of each topic, and how many
    keys and values did not decode."""

    what: Any
    rows: dict[str, int]
    undecoded: dict[str, int]


class _Run:
    """One run: batches, one after the other, until there is nothing left or someone stops it."""

    def __init__(self, job: Job, options: ArchiveOptions, admin: KafkaAdmin) -> None:
        self._job, self._options, self._admin = job, options, admin
        self._log = ArchiveLog(HadoopFiles(job.spark, options.to))
        self._table = table_of(job.spark, self._log, _made_as(options))
        self._typing = Typing(options.typed)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._under_way: int | None = None
        """Records that a batch has read so far; None between two batches."""
        self.totals = ArchiveTotals()

    def work(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()

    def stop(self) -> None:
        """Begin no other batch, and wait for the one under way."""
        self._stopping.set()
        self._ended.wait(_STOP_WAIT_S)

    def progress(self) -> str:
        if self._under_way is not None:
            self._under_way = max(self._under_way, records_read(self._job))
        return self.totals.progress(self._under_way or 0)

    def _work(self) -> None:
        broker = self._look()
        if self._options.dry_run:
            self.totals.planned = self._plan(broker).ranges
            return
        self._typing = Typing(self._options.typed, _prepare(self._log, self._options))
        self._table.settle()
        while True:
            began = time.monotonic()
            self._take(broker)
            if self._options.every_ms is None:
                return
            left = self._options.every_ms / 1000 - (time.monotonic() - began)
            with self.totals.waiting():
                self._stopping.wait(max(0.0, left))
            if self._stopping.is_set():
                return
            broker = self._look()

    def _take(self, goal: Mapping[str, BrokerTopic]) -> None:
        """All that the broker had at a look, and what else was to be kept of it then: groups that
        go on committing would have no last batch, and records that go on coming no interval."""
        broker, is_kept = goal, False
        while not self._stopping.is_set():
            batch = self._plan(_capped(broker, goal))
            if not batch.is_needed or (is_kept and not batch.ranges):
                return
            is_done, broker = self._do(batch, broker)
            is_kept = is_kept or is_done

    def _look(self) -> dict[str, BrokerTopic]:
        """What the broker has now that the archive, as it is, was asked to keep."""
        return self._survey(self._table.state(self._table.look()))

    def _survey(self, state: Mapping[str, ArchivedTopic]) -> dict[str, BrokerTopic]:
        """What the broker has of the topics that were asked for. Raises PipelineError when a name
        is neither on the broker nor in the archive."""
        there = self._admin.topics()
        asked = _asked(self._options, there, state)
        for name in asked:
            if name in there:
                self.totals.rows.setdefault(name, 0)
            elif name in state:
                self.totals.note(f"topic {name} is not on the broker any more; its archive stays")
        return self._admin.survey(asked, without_groups=REPLAY_PREFIX)

    def _plan(self, broker: Mapping[str, BrokerTopic]) -> _Batch:
        moment = self._table.look()
        state = self._table.state(moment)
        topics, notes = position(state, broker, skip_lost=self._options.skip_lost)
        for note in notes:
            self.totals.note(note)
        limit = _ALL if self._options.dry_run else self._options.max_per_trigger
        ranges = next_ranges(topics, broker, limit)
        after = advanced(state, topics, ranges)
        self.totals.topics = {name: after[name] for name in topics}
        generations = {name: topic.generation for name, topic in topics.items()}
        self.totals.left = _lengths(next_ranges(topics, broker, _ALL))
        return _Batch(moment.latest_batch + 1, ranges, after, generations, after != state)

    def _do(
        self, batch: _Batch, broker: Mapping[str, BrokerTopic]
    ) -> tuple[bool, Mapping[str, BrokerTopic]]:
        """Whether it is done, and what the broker has by then; if not, the next plan knows better.

        What is read of a topic that is made again meanwhile may be the new one's: nobody can tell.
        """
        self.totals.begin()
        staged = _Staged(None, {}, {})
        after = broker
        if batch.ranges:
            try:
                staged = self._stage(batch)
            except Exception:
                # Topics were deleted, or records, while it was read: then the next plan knows.
                # What goes on being deleted elsewhere is no reason to try for ever.
                after = self._survey(batch.state)
                if self._stopping.is_set() or not _is_gone(batch.ranges, broker, after):
                    raise
                return False, after
            after = self._survey(batch.state)
            if again := sorted(_made_again(batch, broker, after)):
                for name in again:
                    self.totals.note(
                        f"topic {name} was made again while it was read; that is not kept"
                    )
                return False, after
        if not self._table.publish(batch.number, staged.what, batch.state):
            return False, after
        _add(self.totals.rows, staged.rows)
        _add(self.totals.undecoded, staged.undecoded)
        self.totals.batches += bool(batch.ranges)
        for name, length in _lengths(batch.ranges).items():
            self.totals.left[name] -= length
        return True, after

    def _stage(self, batch: _Batch) -> _Staged:
        """Write the batch's rows."""
        from pyspark.sql import Observation, functions

        names = sorted({one.topic for one in batch.ranges})
        counts = [
            functions.count_if(functions.col("topic") == name).alias(f"n{index}")
            for index, name in enumerate(names)
        ]
        decoded = self._decoded(self._read(batch.ranges), names)
        sides = [side for side in ("key", "value") if f"{side}_problem" in decoded.columns]
        counts += [
            functions.count_if(functions.col(f"{side}_problem").isNotNull()).alias(side)
            for side in sides
        ]
        observation = Observation("archived")
        frame = archive_columns(
            _with_generation(decoded, batch.generations), self._options.partition_by
        ).observe(observation, *counts)
        self._under_way = 0
        try:
            staged = self._table.stage(frame)
            found = observation.get
        finally:
            self._under_way = None
        rows = {name: int(found[f"n{index}"]) for index, name in enumerate(names)}
        return _Staged(staged, rows, {side: int(found[side]) for side in sides})

    def _decoded(self, frame: DataFrame, topics: Sequence[str]) -> DataFrame:
        sides = self._typing.look(topics)
        if not sides:
            return frame
        self._log.remember_typed(self._typing.remembered())
        for note in self._typing.notes:
            self.totals.note(note)
        return self._typing.decoded(frame, sides)

    def _read(self, ranges: Sequence[Range]) -> DataFrame:
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for one in ranges:
            starts.setdefault(one.topic, {})[str(one.partition)] = one.start
            ends.setdefault(one.topic, {})[str(one.partition)] = one.end
        assigned = {name: [int(index) for index in offsets] for name, offsets in starts.items()}
        reader = (
            self._job.spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._options.bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("assign", json.dumps(assigned))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
        )
        for key, value in self._options.client_properties.items():
            reader = reader.option(f"kafka.{key}", value)
        return reader.load()


def _add(sums: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        sums[name] = sums.get(name, 0) + count


def _lengths(ranges: Sequence[Range]) -> dict[str, int]:
    """Offsets by topic."""
    found: dict[str, int] = {}
    for one in ranges:
        found[one.topic] = found.get(one.topic, 0) + one.end - one.start
    return found


def _asked(
    options: ArchiveOptions, there: Sequence[str], state: Mapping[str, ArchivedTopic]
) -> list[str]:
    """Names of the topics to archive, of those on the broker and those in the archive."""
    known = sorted({*there, *state})
    if options.pattern is None:
        missing = [name for name in options.topics if name not in known]
        if missing:
            raise no_topics(options.bootstrap, missing, there)
        return list(dict.fromkeys(options.topics))
    asked = [name for name in known if re.fullmatch(options.pattern, name)]
    if not asked and options.every_ms is None:
        raise no_match(options.bootstrap, options.pattern, there)
    return asked


def _capped(
    broker: Mapping[str, BrokerTopic], goal: Mapping[str, BrokerTopic]
) -> dict[str, BrokerTopic]:
    """What there was when the run began: later records are for the next run."""
    capped: dict[str, BrokerTopic] = {}
    for name, now in broker.items():
        then = goal.get(name)
        if then is None or then.id != now.id:
            continue
        bounds = tuple(
            one._replace(end=max(one.earliest, min(one.end, before.end)))
            for one, before in zip(now.partitions, then.partitions, strict=False)
        )
        capped[name] = replace(now, partitions=bounds)
    return capped


def _made_again(
    batch: _Batch, before: Mapping[str, BrokerTopic], after: Mapping[str, BrokerTopic]
) -> set[str]:
    """Topics of a batch that are others by now; what is gone was read whole, or not at all."""
    names = {one.topic for one in batch.ranges}
    return {name for name in names & after.keys() if after[name].id != before[name].id}


def _is_gone(
    ranges: Sequence[Range], before: Mapping[str, BrokerTopic], after: Mapping[str, BrokerTopic]
) -> bool:
    """Whether the broker has lost something of these ranges, or a topic of them."""
    for one in ranges:
        now = after.get(one.topic)
        if now is None or now.id != before[one.topic].id or one.partition >= len(now.partitions):
            return True
        bounds = now.partitions[one.partition]
        if one.start < bounds.earliest or bounds.end < one.end:
            return True
    return False


def _prepare(log: ArchiveLog, options: ArchiveOptions) -> Mapping[str, Any] | None:
    """Make a new archive, or check that the one that is there is made as was asked for; what it
    knows of its decoded columns."""
    made = log.description()
    if made is None:
        check_fresh(options.to, log.files.names(log.files.root))
        new = _made_as(options)
        log.describe(new)
        return new.typed
    wanted = (options.format, options.partition_by)
    check_made_as(options.to, (made.format, made.partition_by), wanted)
    check_formats(options.to, made.typed, options.typed)
    return made.typed


def _made_as(options: ArchiveOptions) -> Description:
    typed = Typing(options.typed).remembered()
    return Description(options.format, options.partition_by, typed=typed)


def _with_generation(frame: DataFrame, generations: Mapping[str, int]) -> DataFrame:
    again = {name: number for name, number in generations.items() if number}
    cases = " ".join(f"when '{name}' then {number}" for name, number in again.items())
    return frame.selectExpr("*", f"case topic {cases} else 0 end as generation" if again
                            else "0 as generation")  # fmt: skip


def archive_columns(frame: DataFrame, partition_by: str) -> DataFrame:
    """The archive's columns of a frame in Kafka's columns and `generation`, decoded ones if there
    are some; folder columns last."""
    columns = [
        "key", "value", "headers", "partition", "offset", "timestamp", "timestampType",
        "generation", *(name for name in COLUMNS if name in frame.columns),
        "topic", "date_format(timestamp, 'yyyy-MM-dd') as day",
    ]  # fmt: skip
    if partition_by == "hour":
        columns.append("date_format(timestamp, 'HH') as hour")
    return frame.selectExpr(*columns)
