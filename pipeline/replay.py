"""`barnabas pipeline replay`: topics restored from an archive, and proved to be what was archived.

Rows of one source partition go to one task, sorted by offset, so the order within a partition
(and so within a key) is kept; `producer` sends them with their keys, headers and timestamps, to
the same partition with `--keep-partitions`, else where Kafka's own partitioner puts the key.
Topics that do not exist are created with the partitions and the configuration that they had when
they were archived, the empty ones too.

At the end the records are read back from the broker and compared: count and checksum over key,
value and headers of each topic (and of each partition with `--keep-partitions`), and whether
timestamps are the same (not on topics with message.timestamp.type=LogAppendTime).

A replay writes into empty topics only, unless `--append` is given: run twice, it would double
them. If it is cut off, delete the topics and run it again. A task is never tried twice by Spark
(that would send its records twice); broker failures are retried by the idempotent producer
itself.

Gaps: PLAINTEXT listeners only. Offsets are new: a topic with gaps (compacted, transactions)
closes up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.archive_log import open_archive, read_files
from pipeline.archive_state import ArchivedTopic
from pipeline.checksum import ContentSum, content_sums
from pipeline.errors import PipelineError
from pipeline.kafka_admin import KafkaAdmin, Offsets
from pipeline.progress import human_bytes, rate, table
from pipeline.session import Job, run_watched
from pipeline.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ONE_TRY = {"spark.task.maxFailures": "1", "spark.speculation": "false"}
"""Settings the session of a replay must have."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the flags say. Times are ms since 1970; `until_ms` is exclusive."""

    source: str
    bootstrap: str
    topic: str | None = None
    topic_prefix: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    keep_partitions: bool = False
    rate: float | None = None
    append: bool = False
    dry_run: bool = False
    client_properties: Mapping[str, str] = field(default_factory=dict)


class Restored(NamedTuple):
    """What a target topic is to be."""

    partitions: int
    configs: Mapping[str, str]


@dataclass(slots=True)
class ReplayTotals:
    """What one run did. Sums are by target topic, and partition when those are kept."""

    targets: dict[str, Restored] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    """Targets that were not there (with dry_run: that would be created)."""
    rows: int = 0
    bytes: int = 0
    retries: int = 0
    seconds: float = 0.0
    source: dict[tuple[Any, ...], ContentSum] = field(default_factory=dict)
    target: dict[tuple[Any, ...], ContentSum] = field(default_factory=dict)

    @property
    def matches(self) -> bool:
        """Whether counts and checksums of keys, values and headers are those of the source."""
        return _contents(self.source) == _contents(self.target)

    @property
    def same_times(self) -> bool:
        return self.source == self.target


def run_replay(job: Job, options: ReplayOptions) -> ReplayTotals:
    """Restore and verify. Raises PipelineError."""
    _refuse_security(options.client_properties)
    rows, names, archived = _rows(job, options)
    groups = ("topic", "partition") if options.keep_partitions else ("topic",)
    totals = ReplayTotals()
    job.progress.show("reading the archive ...")
    needed = totals.targets = _needed(rows, names, archived, options)
    with KafkaAdmin(job.jvm, options.bootstrap, options.client_properties) as admin:
        targets, totals.created = _prepare_topics(admin, needed, options)
        totals.source = content_sums(rows, *groups)
        if options.dry_run:
            return totals
        before = admin.latest(targets)
        expected = sum(one.records for one in totals.source.values())
        started = time.monotonic()

        def text(seconds: float) -> str:
            sent = sum(admin.latest(targets).values()) - sum(before.values())
            return f"{sent:,} of {expected:,} rows  {rate(sent, seconds)}  {len(names)} topics"

        stats = run_watched(job, lambda: _send(job, rows, targets, options), text)
        totals.seconds = time.monotonic() - started
        totals.rows, totals.bytes, totals.retries = stats
        after = admin.latest(targets)
    job.progress.show("verifying ...")
    totals.target = content_sums(_read_back(job, options, before, after), *groups)
    return totals


def summary(options: ReplayOptions, totals: ReplayTotals) -> str:
    """The last words of a run."""
    return _dry_summary(totals) if options.dry_run else _done_summary(totals)


def _dry_summary(totals: ReplayTotals) -> str:
    records: dict[str, int] = {}
    for key, one in totals.source.items():
        records[key[0]] = records.get(key[0], 0) + one.records
    rows = [
        [
            name,
            "create" if name in totals.created else "there",
            target.partitions,
            records.get(name, 0),
            " ".join(f"{key}={value}" for key, value in sorted(target.configs.items())),
        ]
        for name, target in sorted(totals.targets.items())
    ]
    return "\n".join(
        [
            table(["topic", "on the broker", "partitions", "records", "configs"], rows),
            "",
            f"would replay {sum(records.values()):,} rows into {len(rows)} topics and create"
            f" {len(totals.created)} of them; nothing was written",
        ]
    )


def _done_summary(totals: ReplayTotals) -> str:
    rows = [
        [
            "-".join(str(part) for part in key),
            source.records,
            totals.target.get(key, ContentSum(0, 0, 0)).records,
            source.text,
            totals.target.get(key, ContentSum(0, 0, 0)).text,
        ]
        for key, source in sorted(totals.source.items())
    ]
    lines = [
        table(["topic", "archived", "restored", "checksum", "restored checksum"], rows),
        "",
        f"replayed {totals.rows:,} rows, {human_bytes(totals.bytes)} in {totals.seconds:.1f} s"
        f" ({rate(totals.rows, totals.seconds)})"
        + (f"; {totals.retries} retries" if totals.retries else ""),
    ]
    if totals.matches:
        lines.append("counts and checksums of keys, values and headers match the archive")
        times = "as archived" if totals.same_times else "the topic's own (LogAppendTime)"
        lines.append(f"timestamps: {times}")
    return "\n".join(lines)


def _refuse_security(properties: Mapping[str, str]) -> None:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol != "PLAINTEXT":
        raise PipelineError(
            f"replay cannot write to a {protocol} listener yet; give a PLAINTEXT one", 2
        )


def _rows(
    job: Job, options: ReplayOptions
) -> tuple[DataFrame, dict[str, str], dict[str, ArchivedTopic]]:
    """The rows to send, `topic` being the target; the target of each archived topic; and what the
    archive knows of the topics themselves (nothing when `segments` wrote it)."""
    log, snapshot, description = open_archive(job.spark, options.source)
    archived = {} if snapshot.state is None else log.state(snapshot)
    topics = sorted({_topic_of(file.relative) for file in snapshot.files} | set(archived))
    names = target_names(topics, options.topic, options.topic_prefix)
    files = [file for file in snapshot.files if _topic_of(file.relative) in names]
    rows: DataFrame = read_files(job.spark, log, files, description)
    if options.since_ms is not None:
        rows = rows.where(f"timestamp >= timestamp_millis({options.since_ms})")
    if options.until_ms is not None:
        rows = rows.where(f"timestamp < timestamp_millis({options.until_ms})")
    renamed = {old: new for old, new in names.items() if old != new}
    if renamed:
        cases = " ".join(f"when '{old}' then '{new}'" for old, new in renamed.items())
        rows = rows.selectExpr(
            "key", "value", "headers", "generation", "partition", "offset", "timestamp",
            f"case topic {cases} else topic end as topic",
        )  # fmt: skip
    return rows, names, archived


def _topic_of(relative: str) -> str:
    return relative.partition("topic=")[2].partition("/")[0]


def target_names(topics: list[str], topic: str | None, prefix: str) -> dict[str, str]:
    """Target by archived topic. `topic` picks one of several, or renames the only one."""
    if topic is None:
        return {name: prefix + name for name in topics}
    if topic in topics:
        return {topic: topic}
    if len(topics) == 1:
        return {topics[0]: topic}
    raise PipelineError(
        f"the archive holds {', '.join(topics) or 'no topics'}, but no {topic}; --topic picks one"
        " of them (or renames the only one); --topic-prefix renames all"
    )


def _needed(
    rows: DataFrame,
    names: Mapping[str, str],
    archived: Mapping[str, ArchivedTopic],
    options: ReplayOptions,
) -> dict[str, Restored]:
    """Partitions and configuration of each target topic, the empty ones among them; with a range
    of times, of those that have records in it."""
    known = {
        names[name]: Restored(len(topic.offsets), topic.configs)
        for name, topic in archived.items()
        if name in names
    }
    ranged = options.since_ms is not None or options.until_ms is not None
    needed = {} if ranged else dict(known)
    for row in rows.groupBy("topic").agg({"partition": "max"}).collect():
        one = known.get(row["topic"], Restored(0, {}))
        count = max(one.partitions, row["max(partition)"] + 1)
        needed[row["topic"]] = one._replace(partitions=count)
    return needed


def _prepare_topics(
    admin: KafkaAdmin, needed: dict[str, Restored], options: ReplayOptions
) -> tuple[dict[str, int], list[str]]:
    """Create what is missing; partition counts of all targets, and the names of the new ones.

    Raises PipelineError."""
    if not needed:
        raise PipelineError("the archive holds no rows in that range; check --since and --until")
    existing = admin.partition_counts(list(needed))
    held = admin.latest(existing)
    for topic, count in existing.items():
        if options.keep_partitions and count < needed[topic].partitions:
            raise PipelineError(
                f"topic {topic} has {count} partitions, the archive {needed[topic].partitions};"
                " add partitions to it, or leave out --keep-partitions"
            )
    full = sorted({topic for (topic, _), offset in held.items() if offset})
    if full and not options.append:
        raise PipelineError(
            f"there are records already in {', '.join(full)}; replay into other topics (another"
            " --topic-prefix), delete these first, or add to them with --append"
        )
    missing = {
        topic: target.partitions for topic, target in needed.items() if topic not in existing
    }
    if missing and not options.dry_run:
        admin.create(missing, {topic: needed[topic].configs for topic in missing})
    return existing | missing, sorted(missing)


def _send(
    job: Job, rows: DataFrame, targets: dict[str, int], options: ReplayOptions
) -> tuple[int, int, int]:
    from pipeline import crc, producer

    ship(crc, producer)
    tasks = max(1, min(sum(targets.values()), job.parallelism()))
    per_task = options.rate / tasks if options.rate is not None else None
    target = producer.Target(options.bootstrap, targets, options.keep_partitions, per_task)
    stats = (
        rows.selectExpr(
            "topic", "generation", "partition", "offset", "key", "value", "headers",
            "unix_millis(timestamp) as timestamp_ms",
        )
        .repartition(tasks, "topic", "partition")
        .sortWithinPartitions("topic", "generation", "partition", "offset")
        .mapInArrow(producer.replay_rows(target), producer.STATS_SCHEMA)  # type: ignore[arg-type]
        .collect()
    )  # fmt: skip
    return (
        sum(row["records"] for row in stats),
        sum(row["bytes"] for row in stats),
        sum(row["retries"] for row in stats),
    )


def _read_back(job: Job, options: ReplayOptions, before: Offsets, after: Offsets) -> DataFrame:
    reader = (
        job.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", ",".join(sorted({topic for topic, _ in before})))
        .option("includeHeaders", "true")
        .option("startingOffsets", _as_json(before))
        .option("endingOffsets", _as_json(after))
    )
    for key, value in options.client_properties.items():
        reader = reader.option(f"kafka.{key}", value)
    return reader.load()


def _as_json(offsets: Offsets) -> str:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(by_topic)


def _contents(sums: Mapping[tuple[Any, ...], ContentSum]) -> dict[tuple[Any, ...], tuple[int, int]]:
    return {key: (one.records, one.content) for key, one in sums.items() if one.records}
