"""`barnabas pipeline profile`: what is in a topic, from a broker or straight from its directory.

One read of the topic into Spark's cache (only what is counted: partition, offset, timestamp, key,
sizes and what kind of value it is), then a few aggregations. Cardinality and percentiles are
Spark's approximations (5 % and 0.01 of the rank); everything else is exact. Codecs are counted from
the headers of batches, so only for a directory. What is odd in it: `odd`; for people: `text` and
`page`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.archive.opening import open_table
from pipeline.errors import PipelineError
from pipeline.preflight import some
from pipeline.profile.codecs import CodecUse, codecs_in
from pipeline.progress import many
from pipeline.segments.plan import Wanted, plan
from pipeline.segments.segments import read_frame
from pipeline.spark.kafka_admin import KafkaAdmin
from pipeline.spark.session import Job, run_watched, stages
from pipeline.typed.columns import COLUMNS, TypedOptions, Typing
from pipeline.typed.statistics import FieldProfile, ProblemProfile, fields, problems
from pipeline.typed.types import Type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOP = 20
_PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
PERCENTILE_NAMES = ("min", "p50", "p90", "p99", "p99.9", "max")
_SPANS_MAX = 120
_S, _MIN, _H, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_YEAR = 365 * _DAY
_SPANS_MS = (
    _S, 5 * _S, 15 * _S, _MIN, 5 * _MIN, 15 * _MIN, _H, 3 * _H, 6 * _H, _DAY, 7 * _DAY, 28 * _DAY,
)  # fmt: skip
_CLASSES_MAX = 16
LATE_MS = 60_000
"""A record is late that is older than one before it in its partition by more than this."""
_FORMATS = r"""case when value is null then 'null' when length(value) = 0 then 'empty'
 when length(value) > 5 and substring(value, 1, 1) = X'00' then 'schema registry'
 when not is_valid_utf8(cast(value as string)) then 'binary'
 when rlike(cast(value as string), '^\\s*[{\\[]')
  and try_parse_json(cast(value as string)) is not null then 'JSON'
 when rlike(cast(value as string), '^-?[0-9]+(\\.[0-9]+)?$') then 'number'
 when rlike(cast(value as string), '[\\x00-\\x08\\x0E-\\x1F]') then 'binary'
 else 'text' end"""
"""What a value looks like; `schema registry`: a zero byte and a schema's number before it."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What the flags say: one of `bootstrap`, `data_dir` and `archive`."""

    topic: str
    bootstrap: str | None = None
    data_dir: str | None = None
    html: str | None = None
    client_properties: Mapping[str, str] = field(default_factory=dict)
    typed: TypedOptions = field(default_factory=TypedOptions)
    archive: str | None = None


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
    late: int = 0
    latest_ms: int = 0
    """How much the latest of them is late."""

    @property
    def seconds(self) -> float:
        return (self.last_ms - self.first_ms) / 1000


class Span(NamedTuple):
    """Records of a partition in one span of time that begins at `start` (ms since 1970)."""

    partition: int
    start: int
    records: int
    bytes: int


class SizeClass(NamedTuple):
    """Records of `low` to `high` bytes of key and value, both inclusive."""

    low: int
    high: int
    records: int


class TopKey(NamedTuple):
    """A frequent key; `partition` is None when it is in several."""

    key: bytes | None
    records: int
    bytes: int
    partition: int | None


class Format(NamedTuple):
    """Values that look alike."""

    name: str
    records: int
    bytes: int


@dataclass(slots=True)
class TopicProfile:
    """All that is known of a topic."""

    topic: str
    source: str
    partitions: list[PartitionProfile]
    span_ms: int
    spans: list[Span]
    """Of `span_ms` each, ascending by time."""
    keys: int
    percentiles: list[int]
    sizes: list[SizeClass]
    top_keys: list[TopKey]
    """The most frequent first."""
    formats: list[Format]
    """Of values, the most frequent first."""
    gaps: list[tuple[int, int, int]]
    """(partition, first missing offset, how many), the largest first."""
    gap_count: int
    codecs: list[CodecUse] = field(default_factory=list)
    """The most used first; none where batches are not seen (from a broker)."""
    fields: list[FieldProfile] = field(default_factory=list)
    """Of decoded keys and values; empty when none are."""
    more_fields: int = 0
    """How many there are beside these."""
    problems: list[ProblemProfile] = field(default_factory=list)
    seconds: float = 0.0
    measured_ms: int = 0
    partition_count: int = 0
    """Those without records among them; 0 where it is not known."""

    @property
    def all_partitions(self) -> int:
        return max(self.partition_count, len(self.partitions))

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.key_bytes + one.value_bytes for one in self.partitions)


def run_profile(job: Job, options: ProfileOptions) -> TopicProfile:
    """Measure one topic. Raises PipelineError."""
    started = time.monotonic()
    decoded, types, partition_count = _decoded(job, options)
    frame = decoded.selectExpr(
        "partition",
        "offset",
        "key",
        "unix_millis(timestamp) as ms",
        "coalesce(length(key), 0) as key_size",
        "coalesce(length(value), 0) as value_size",
        "value is null as is_tombstone",
        f"{_FORMATS} as format",
        *(name for name in COLUMNS if name in decoded.columns),
    )
    frame = frame.persist()
    try:
        profile: TopicProfile = run_watched(
            job, lambda: _measure(frame, options, types), stages(job)
        )
    finally:
        frame.unpersist()
    profile.partition_count = partition_count
    profile.seconds = time.monotonic() - started
    profile.measured_ms = int(time.time() * 1000)
    return profile


class _Source(NamedTuple):
    """Where records come from."""

    frame: DataFrame
    types: Mapping[str, Type]
    """Of decoded columns, by side."""
    partition_count: int
    """0 where it is not known."""


def _decoded(job: Job, options: ProfileOptions) -> _Source:
    """The topic's records with decoded columns, and their types: what the flags say, or what
    an archive has."""
    if options.data_dir is not None:
        paths, wanted = options.data_dir.split(","), Wanted(options.topic)
        source = _Source(read_frame(job, paths, [wanted]), {}, len(plan(paths, wanted)))
    elif options.archive is not None:
        source = _archived(job, options.archive, options.topic)
    else:
        source = _from_broker(job, options)
    if not options.typed.sides:
        return source
    typing = Typing(options.typed)
    sides = typing.look([options.topic])
    decoded = typing.decoded(source.frame.drop(*COLUMNS), sides)
    return source._replace(frame=decoded, types=typing.types())


def _from_broker(job: Job, options: ProfileOptions) -> _Source:
    assert options.bootstrap is not None
    with KafkaAdmin(job.jvm, options.bootstrap, options.client_properties) as admin:
        count = admin.require([options.topic])[options.topic]
    reader = (
        job.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", options.topic)
    )
    for key, value in options.client_properties.items():
        reader = reader.option(f"kafka.{key}", value)
    return _Source(reader.load(), {}, count)


def _archived(job: Job, directory: str, topic: str) -> _Source:
    """Of a topic that was deleted and created again, the last one."""
    table, moment, made = open_table(job.spark, directory)
    require_archived(directory, topic, table.topics(moment))
    known = table.known(moment).get(topic)
    rows = table.rows(moment, [topic])
    frame = rows.where(f"generation = {known.generation if known is not None else 0}")
    types = {
        name: one["type"]
        for name, one in (made.typed or {}).items()
        if f"{name}_data" in frame.columns
    }
    return _Source(frame, types, len(known.offsets) if known is not None else 0)


def require_archived(directory: str, topic: str, topics: Collection[str]) -> None:
    """Raise PipelineError for a topic that is not among those an archive holds records of."""
    if topic not in topics:
        raise PipelineError(
            f"{directory} holds no records of {topic}; there are: {some(sorted(topics))}"
        )


def _measure(frame: DataFrame, options: ProfileOptions, types: Mapping[str, Type]) -> TopicProfile:
    partitions = _partitions(frame)
    if not partitions:
        raise PipelineError(
            f"topic {options.topic} holds no readable records"
            + ("; a broker writes its high watermark to disk every 5 s" if options.data_dir else "")
        )
    totals = frame.selectExpr(
        "approx_count_distinct(key) as keys",
        f"percentile_approx(key_size + value_size, array{_PERCENTILES}) as sizes",
        "min(key_size + value_size) as low",
        "max(key_size + value_size) as high",
    ).first()
    assert totals is not None
    gaps, gap_count = _gaps(frame) if any(one.missing for one in partitions) else ([], 0)
    span_ms = span_for(
        min(one.first_ms for one in partitions), max(one.last_ms for one in partitions)
    )
    of_fields, more_fields = fields(frame, types)
    codecs: list[CodecUse] = []
    if options.data_dir is not None:
        plans = plan(options.data_dir.split(","), Wanted(options.topic))
        codecs = codecs_in(part for one in plans for part in one.parts)
    return TopicProfile(
        options.topic,
        options.data_dir or options.archive or options.bootstrap or "",
        partitions,
        span_ms,
        _spans(frame, span_ms),
        int(totals["keys"]),
        [int(size) for size in totals["sizes"]],
        _sizes(frame, int(totals["low"]), int(totals["high"])),
        _top_keys(frame),
        _formats(frame),
        gaps,
        gap_count,
        codecs,
        of_fields,
        more_fields,
        problems(frame),
    )


def _partitions(frame: DataFrame) -> list[PartitionProfile]:
    frame.createOrReplaceTempView("profiled")
    rows = frame.sparkSession.sql(
        "select partition, count(*) as n, min(offset) as low, max(offset) as high,"
        " sum(key_size) as kb, sum(value_size) as vb, count_if(key is null) as nk,"
        " count_if(is_tombstone) as nv, approx_count_distinct(key) as k, min(ms) as t0,"
        f" max(ms) as t1, count_if(newest - ms > {LATE_MS}) as late,"
        " coalesce(max(newest - ms), 0) as worst"
        " from (select *, max(ms) over (partition by partition order by offset rows between"
        " unbounded preceding and 1 preceding) as newest from profiled)"
        " group by partition order by partition"
    ).collect()
    return [
        PartitionProfile(
            row["partition"], row["n"], row["low"], row["high"],
            row["high"] - row["low"] + 1 - row["n"], row["kb"], row["vb"], row["nk"], row["nv"],
            row["k"], row["t0"], row["t1"], row["late"], max(0, row["worst"]),
        )
        for row in rows
    ]  # fmt: skip


def span_for(first_ms: int, last_ms: int) -> int:
    """Ms of a span, so that the time between is at most 120 of them: seconds to weeks."""
    for span in _SPANS_MS:
        if (last_ms - first_ms) // span < _SPANS_MAX - 1:
            return span
    years = (last_ms - first_ms) // (_SPANS_MAX - 1) // _YEAR + 1
    return years * _YEAR


def _spans(frame: DataFrame, span_ms: int) -> list[Span]:
    rows = frame.sparkSession.sql(
        f"select partition, floor(ms / {span_ms}) * {span_ms} as start, count(*) as n,"
        " sum(key_size + value_size) as b from profiled group by 1, 2 order by start, partition"
    ).collect()
    return [Span(row["partition"], int(row["start"]), row["n"], row["b"]) for row in rows]


def size_classes(low: int, high: int) -> list[tuple[int, int]]:
    """Bounds (both inclusive) of at most 16 classes of sizes from `low` to `high` bytes: equal
    round steps where all are of one magnitude, else doubling, or more."""
    if high < 4 * max(low, 16):
        steps = (digit * 10**power for power in range(10) for digit in (1, 2, 5))
        step = next(one for one in steps if high // one - low // one < _CLASSES_MAX)
        return [(at, at + step - 1) for at in range(low // step * step, high + 1, step)]
    first, last = low.bit_length(), high.bit_length()
    bits = -(-(last - first + 1) // _CLASSES_MAX)
    return [
        (1 << (at - 1) if at else 0, (1 << (at + bits - 1)) - 1)
        for at in range(first, last + 1, bits)
    ]


def _sizes(frame: DataFrame, low: int, high: int) -> list[SizeClass]:
    classes = size_classes(low, high)
    tops = ", ".join(f"{top}L" for _, top in classes)
    rows = frame.sparkSession.sql(
        f"select array_min(filter(array({tops}), top -> top >= key_size + value_size)) as top,"
        " count(*) as n from profiled group by 1"
    ).collect()
    counts = {int(row["top"]): int(row["n"]) for row in rows}
    return [SizeClass(bottom, top, counts.get(top, 0)) for bottom, top in classes]


def _formats(frame: DataFrame) -> list[Format]:
    rows = frame.sparkSession.sql(
        "select format, count(*) as n, sum(value_size) as b from profiled group by 1"
        " order by n desc, format"
    ).collect()
    return [Format(row["format"], row["n"], row["b"]) for row in rows]


def _top_keys(frame: DataFrame) -> list[TopKey]:
    rows = frame.sparkSession.sql(
        "select key, count(*) as n, sum(key_size + value_size) as b, min(partition) as p0,"
        f" max(partition) as p1 from profiled group by key order by n desc, key limit {_TOP}"
    ).collect()
    return [_top_key(row) for row in rows]


def _top_key(row: Any) -> TopKey:
    key = None if row["key"] is None else bytes(row["key"])
    return TopKey(key, row["n"], row["b"], row["p0"] if row["p0"] == row["p1"] else None)


def _gaps(frame: DataFrame) -> tuple[list[tuple[int, int, int]], int]:
    """The largest gaps between records, and how many there are in all."""
    jumps = frame.sparkSession.sql(
        "select partition, before + 1 as first, offset - before - 1 as n from (select partition,"
        " offset, lag(offset) over (partition by partition order by offset) as before from"
        " profiled) where offset - before > 1"
    )
    largest = jumps.orderBy("n", "partition", "first", ascending=[False, True, True]).limit(_TOP)
    return [(row["partition"], row["first"], row["n"]) for row in largest.collect()], jumps.count()


def percent(part: int, whole: int) -> str:
    """`98.2 %`; what is not all, or not nothing, never looks so."""
    value = 100 * part / max(whole, 1)
    if 0 < value < 0.1:
        return "< 0.1 %"
    return "> 99.9 %" if 99.9 < value < 100 else f"{value:.3g} %"


def span_name(span_ms: int) -> str:
    """`15 minutes`, `one hour`."""
    units = ((_YEAR, "year"), (_DAY, "day"), (_H, "hour"), (_MIN, "minute"), (_S, "second"))
    for size, name in units:
        if span_ms >= size:
            count = span_ms // size
            return f"one {name}" if count == 1 else f"{count} {name}s"
    raise AssertionError("a span is a second at least")


FIELD_NAMES = ["field", "type", "present", "distinct (about)", "lowest", "highest"]


def field_row(profile: TopicProfile, one: FieldProfile) -> list[str]:
    """One field for people, by `FIELD_NAMES`."""
    share = f"{one.present:,} ({percent(one.present, profile.records)})"
    return [one.path, one.type, share, f"{one.distinct:,}", one.lowest or "-", one.highest or "-"]


def fields_left_out(profile: TopicProfile) -> list[str]:
    """What is said of fields that are not shown."""
    count = profile.more_fields
    return [f"{many(count, 'more field')} not shown"] if count else []


def per_second(one: PartitionProfile) -> str:
    """Records a second between the first and the last timestamp, three digits; a dash for none."""
    if one.seconds <= 0:
        return "-"
    value = one.records / one.seconds
    if value < 0.01:
        return "< 0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def totals_by_span(profile: TopicProfile) -> dict[int, int]:
    """Records by the start of their span."""
    spans: dict[int, int] = {}
    for one in profile.spans:
        spans[one.start] = spans.get(one.start, 0) + one.records
    return spans
