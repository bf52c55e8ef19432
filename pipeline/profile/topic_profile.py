"""`barnabas pipeline profile`: what is in a topic, from a broker or straight from its directory.

One read of the topic into Spark's cache (only what is counted: partition, offset, timestamp, key
and sizes), then a few aggregations. Cardinality and percentiles are Spark's approximations (5 %
and
0.01 of the rank); everything else is exact. The page: `page`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.errors import PipelineError
from pipeline.progress import human_bytes, rate, table
from pipeline.segments.plan import Wanted
from pipeline.segments.segments import read_frame
from pipeline.spark.kafka_admin import KafkaAdmin
from pipeline.spark.session import Job, run_watched, stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOP = 20
_PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
PERCENTILE_NAMES = ("min", "p50", "p90", "p99", "p99.9", "max")


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What the flags say: one of `bootstrap` and `data_dir`."""

    topic: str
    bootstrap: str | None = None
    data_dir: str | None = None
    html: str | None = None
    client_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PartitionProfile:
    """One partition. Times are ms since 1970; `missing` counts offsets without a record."""

    partition: int
    records: int
    first_offset: int
    last_offset: int
    missing: int
    key_bytes: int
    value_bytes: int
    null_keys: int
    null_values: int
    keys: int
    first_ms: int
    last_ms: int

    @property
    def seconds(self) -> float:
        return (self.last_ms - self.first_ms) / 1000


@dataclass(slots=True)
class TopicProfile:
    """All that is known of a topic."""

    topic: str
    source: str
    partitions: list[PartitionProfile]
    hours: list[tuple[int, int, int, int]]
    """(partition, hour in ms since 1970, records, bytes), ascending by hour."""
    keys: int
    percentiles: list[int]
    sizes: list[tuple[int, int]]
    """(size class, records): class n holds records of 2^(n-1) to 2^n - 1 bytes; 0 the empty
    ones."""
    top_keys: list[tuple[bytes | None, int, int]]
    """(key, records, bytes), the most frequent first."""
    gaps: list[tuple[int, int, int]]
    """(partition, first missing offset, how many), the largest first."""
    gap_count: int
    seconds: float = 0.0

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.key_bytes + one.value_bytes for one in self.partitions)


def run_profile(job: Job, options: ProfileOptions) -> TopicProfile:
    """Measure one topic. Raises PipelineError."""
    started = time.monotonic()
    frame = _frame(job, options).selectExpr(
        "partition",
        "offset",
        "key",
        "unix_millis(timestamp) as ms",
        "coalesce(length(key), 0) as key_size",
        "coalesce(length(value), 0) as value_size",
        "value is null as is_tombstone",
    )

    frame = frame.persist()
    try:
        profile: TopicProfile = run_watched(job, lambda: _measure(frame, options), stages(job))
    finally:
        frame.unpersist()
    profile.seconds = time.monotonic() - started
    return profile


def _frame(job: Job, options: ProfileOptions) -> DataFrame:
    if options.data_dir is not None:
        return read_frame(job, options.data_dir.split(","), [Wanted(options.topic)])
    assert options.bootstrap is not None
    with KafkaAdmin(job.jvm, options.bootstrap, options.client_properties) as admin:
        admin.require([options.topic])
    reader = (
        job.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", options.topic)
    )
    for key, value in options.client_properties.items():
        reader = reader.option(f"kafka.{key}", value)
    return reader.load()


def _measure(frame: DataFrame, options: ProfileOptions) -> TopicProfile:
    partitions = _partitions(frame)
    if not partitions:
        raise PipelineError(
            f"topic {options.topic} holds no readable records"
            + ("; a broker writes its high watermark to disk every 5 s" if options.data_dir else "")
        )
    totals = frame.selectExpr(
        "approx_count_distinct(key) as keys",
        f"percentile_approx(key_size + value_size, array{_PERCENTILES}) as sizes",
    ).first()
    assert totals is not None
    gaps, gap_count = _gaps(frame) if any(one.missing for one in partitions) else ([], 0)
    return TopicProfile(
        options.topic,
        options.data_dir or options.bootstrap or "",
        partitions,
        _hours(frame),
        int(totals["keys"]),
        [int(size) for size in totals["sizes"]],
        _size_classes(frame),
        _top_keys(frame),
        gaps,
        gap_count,
    )


def _partitions(frame: DataFrame) -> list[PartitionProfile]:
    frame.createOrReplaceTempView("profiled")
    rows = frame.sparkSession.sql(
        "select partition, count(*) as n, min(offset) as low, max(offset) as high,"
        " sum(key_size) as kb, sum(value_size) as vb, count_if(key is null) as nk,"
        " count_if(is_tombstone) as nv, approx_count_distinct(key) as k, min(ms) as t0,"
        " max(ms) as t1 from profiled group by partition order by partition"
    ).collect()
    return [
        PartitionProfile(
            row["partition"], row["n"], row["low"], row["high"],
            row["high"] - row["low"] + 1 - row["n"], row["kb"], row["vb"], row["nk"], row["nv"],
            row["k"], row["t0"], row["t1"],
        )
        for row in rows
    ]  # fmt: skip


def _hours(frame: DataFrame) -> list[tuple[int, int, int, int]]:
    rows = frame.sparkSession.sql(
        "select partition, floor(ms / 3600000) * 3600000 as hour, count(*) as n,"
        " sum(key_size + value_size) as b from profiled group by 1, 2 order by hour, partition"
    ).collect()
    return [(row["partition"], int(row["hour"]), row["n"], row["b"]) for row in rows]


def _size_classes(frame: DataFrame) -> list[tuple[int, int]]:
    rows = frame.sparkSession.sql(
        "select if(size = 0, 0, cast(floor(log2(size)) as int) + 1) as class, count(*) as n from"
        " (select key_size + value_size as size from profiled) group by 1 order by 1"
    ).collect()
    return [(row["class"], row["n"]) for row in rows]


def _top_keys(frame: DataFrame) -> list[tuple[bytes | None, int, int]]:
    rows = frame.sparkSession.sql(
        "select key, count(*) as n, sum(key_size + value_size) as b from profiled group by key"
        f" order by n desc, key limit {_TOP}"
    ).collect()
    return [(None if row["key"] is None else bytes(row["key"]), row["n"], row["b"]) for row in rows]


def _gaps(frame: DataFrame) -> tuple[list[tuple[int, int, int]], int]:
    """The largest gaps between records, and how many there are in all."""
    jumps = frame.sparkSession.sql(
        "select partition, before + 1 as first, offset - before - 1 as n from (select partition,"
        " offset, lag(offset) over (partition by partition order by offset) as before from"
        " profiled) where offset - before > 1"
    )
    largest = jumps.orderBy("n", "partition", "first", ascending=[False, True, True]).limit(_TOP)
    return [(row["partition"], row["first"], row["n"]) for row in largest.collect()], jumps.count()


def summary(profile: TopicProfile) -> str:
    """The terminal's view."""
    rows = [
        [
            one.partition, one.records, one.first_offset, one.last_offset, one.missing,
            human_bytes(one.key_bytes + one.value_bytes), one.keys, one.null_keys, one.null_values,
            utc(one.first_ms), utc(one.last_ms), per_second(one),
        ]
        for one in profile.partitions
    ]  # fmt: skip
    sizes = zip(PERCENTILE_NAMES, profile.percentiles, strict=True)
    keys = [[show_key(key), count, human_bytes(size)] for key, count, size in profile.top_keys[:10]]
    lines = [
        f"topic {profile.topic} ({profile.source})",
        "",
        table(
            ["partition", "records", "first", "last", "missing", "bytes", "keys", "null keys",
             "tombstones", "from (UTC)", "to (UTC)", "records/s"],
            rows,
        ),
        "",
        f"{profile.records:,} records, {human_bytes(profile.bytes)} of keys and values,"
        f" about {profile.keys:,} keys",
        "record size  " + "  ".join(f"{name} {human_bytes(size)}" for name, size in sizes),
        f"busiest hour  {_busiest(profile)}",
        f"gaps         {profile.gap_count:,}"
        + (f", the largest {_gap(profile.gaps[0])}" if profile.gaps else ""),
        "",
        table(["top keys", "records", "bytes"], keys),
        "",
        f"profiled {profile.records:,} rows in {profile.seconds:.1f} s"
        f" ({rate(profile.records, profile.seconds)})",
    ]  # fmt: skip
    return "\n".join(lines)


def per_second(one: PartitionProfile) -> str:
    """Records a second between the first and the last timestamp, three digits; a dash for none."""
    if one.seconds <= 0:
        return "-"
    value = one.records / one.seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _gap(gap: tuple[int, int, int]) -> str:
    partition, first, count = gap
    return f"{count:,} offsets from {first:,} in partition {partition}"


def _busiest(profile: TopicProfile) -> str:
    hours: dict[int, int] = {}
    for _, hour, count, _ in profile.hours:
        hours[hour] = hours.get(hour, 0) + count
    hour = max(hours, key=lambda one: hours[one])
    return f"{utc(hour)[:16]}, {hours[hour]:,} records ({hours[hour] / 3600:,.2f}/s)"


def utc(ms: int) -> str:
    """'2026-01-31 12:00:00'; a dash for "no timestamp" and what no calendar has."""
    if ms < 0:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms / 1000))
    except (ValueError, OverflowError, OSError):
        return "-"


def show_key(key: bytes | None, limit: int = 40) -> str:
    """A key for people: text where it is text."""
    if not key:
        return "(null)" if key is None else "(empty)"
    text = key[: limit + 1].decode("utf-8", "backslashreplace")
    printable = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return printable if len(printable) <= limit else printable[:limit] + "..."
