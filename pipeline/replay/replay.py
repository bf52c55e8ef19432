"""`barnabas pipeline replay`: topics restored from an archive, and proved to be what was archived.

Rows of one archived partition are one slot, sorted by generation and offset, so the order within a
partition (and so within a key) is kept; `task` sends them with their keys, headers and
timestamps, to the same partition with `--keep-partitions`, else where Kafka's own partitioner puts
the key (records without one keep to their old neighbours). Topics that do not exist are created
with the partitions and the configuration that they had when they were archived, the empty ones too.

A replay that was cut off goes on when the same command is run again: docs/pipeline.md has the
argument. What is decided here: the names of a slot's register, made of what the command says and of
the target's topic id; and the head, the ends of a target before anything was sent to it.

At the end the records are read back from the broker and compared: count and checksum over key,
value and headers of each topic (and of each partition with `--keep-partitions`), and whether
timestamps are the same (not on topics with message.timestamp.type=LogAppendTime).

A replay writes into empty topics only, and into those that it has begun, unless `--append` is
given. Gaps: offsets are new: a topic with gaps (compacted, transactions) closes up.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.archive.checksum import RECORD_HASH, TIMED_HASH, ContentSum, content_sums
from pipeline.archive.opening import open_table
from pipeline.archive.state import ArchivedTopic
from pipeline.broker_facts import Committed
from pipeline.errors import PipelineError
from pipeline.progress import done_of, human_bytes, many, rate, table
from pipeline.replay import cleaning, groups
from pipeline.sink.pieces import Names
from pipeline.sink.registers import REPLAY_PREFIX, SinkError
from pipeline.sink.settings import Settings, from_java, settings_of
from pipeline.spark.hadoop_files import HadoopFiles
from pipeline.spark.kafka_admin import KafkaAdmin, Offsets, Positions
from pipeline.spark.session import Job, run_watched
from pipeline.spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_COPIES = {"spark.speculation": "false"}
"""A copy of a task would only shut out the first."""
_SETTLE_S = 60.0
_HEAD_MARGIN_MS = 3_600_000


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
    id: str | None = None
    """Tells replays of the same apart; None is the archive's own."""
    groups: str = "missing"
    """Committed offsets of groups: `missing` where a group has none, `overwrite` all, `none`."""
    client: str = "auto"
    dry_run: bool = False
    client_properties: Mapping[str, str] = field(default_factory=dict)


class Restored(NamedTuple):
    """What a target topic is to be."""

    partitions: int
    configs: Mapping[str, str]
    oldest_ms: int | None = None
    """Time of its oldest record."""


@dataclass(slots=True)
class ReplayTotals:
    """What one run did. Sums are by target topic, and partition when those are kept."""

    targets: dict[str, Restored] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    """Targets that were not there (with dry_run: that would be created)."""
    rows: int = 0
    passed: int = 0
    """Records that an earlier run of the same command had sent."""
    bytes: int = 0
    seconds: float = 0.0
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """What holds for each target; with dry_run, of those that would be created what was set."""
    source: dict[tuple[Any, ...], ContentSum] = field(default_factory=dict)
    target: dict[tuple[Any, ...], ContentSum] = field(default_factory=dict)
    archived_groups: int = 0
    """That have committed offsets in the topics of the archive."""
    groups: list[groups.Outcome] = field(default_factory=list)

    @property
    def matches(self) -> bool:
        """Whether counts and checksums of keys, values and headers are those of the source."""
        return _contents(self.source) == _contents(self.target)

    @property
    def same_times(self) -> bool:
        return self.source == self.target

    @property
    def oldest_ms(self) -> dict[str, int]:
        """Time of the oldest record of each target that has records."""
        return {
            name: one.oldest_ms for name, one in self.targets.items() if one.oldest_ms is not None
        }

    def too_old(self) -> list[str]:
        """What a person should know of what the broker will delete."""
        return cleaning.too_old(self.configs, self.oldest_ms, _now_ms())

    def difference(self) -> str:
        """What to do when it does not match."""
        source, target = _contents(self.source), _contents(self.target)
        wrong = {key[0] for key in source.keys() | target.keys()
                 if source.get(key) != target.get(key)}  # fmt: skip
        return cleaning.difference(wrong, self.configs, self.oldest_ms, _now_ms())


def run_replay(job: Job, options: ReplayOptions) -> ReplayTotals:
    """Restore and verify. Raises PipelineError."""
    run = _Run(job, options)
    run_watched(job, run.work, lambda _: run.progress())
    return run.totals


class _Run:
    """One replay, and how far it is for who waits."""

    def __init__(self, job: Job, options: ReplayOptions) -> None:
        self._job, self._options = job, options
        self.totals = ReplayTotals()
        self.progress: Callable[[], str] = lambda: "reading the archive ..."

    def work(self) -> None:
        options, totals = self._options, self.totals
        archive = _open(self._job, options)
        columns = ("topic", "partition") if options.keep_partitions else ("topic",)
        totals.targets = _needed(archive, options)
        if options.groups != "none":
            known = (archive.topics[name] for name in archive.names if name in archive.topics)
            totals.archived_groups = len({group for topic in known for group in topic.groups})
        with KafkaAdmin(self._job.jvm, options.bootstrap, options.client_properties) as admin:
            targets = _prepare_topics(admin, archive, totals, options)
            there = [name for name in targets if not (options.dry_run and name in totals.created)]
            totals.configs = {
                **{name: dict(one.configs) for name, one in totals.targets.items()},
                **admin.effective_configs(there),
            }
            totals.source = content_sums(archive.rows, *columns)
            if options.dry_run:
                return
            names = _names(admin, archive, targets, options)
            before = _heads(admin, names, targets)
            started = time.monotonic()
            expected = _by_topic(totals.source)
            self.progress = lambda: _sent(admin, before, targets, expected, started)
            stats = _send(self._job, archive, targets, names, totals.configs, options)
            totals.seconds = time.monotonic() - started
            totals.rows, totals.bytes, totals.passed = stats
            self.progress = lambda: "verifying ..."
            after = _settled(admin, targets)
            back = _read_back(self._job, options, before, after)
            totals.target = content_sums(back, *columns)
            if totals.matches and options.groups != "none":
                self.progress = lambda: "committed offsets of groups ..."
                _restore_groups(admin, archive, back, after, totals, options)


def _sent(
    admin: KafkaAdmin,
    before: Offsets,
    targets: Mapping[str, int],
    expected: Mapping[str, int],
    started: float,
) -> str:
    """How many of the expected records of each topic are on the broker."""
    ends = admin.latest(targets)
    sent = dict.fromkeys(expected, 0)
    for topic, index in before:
        if topic in sent:
            sent[topic] += ends[topic, index] - before[topic, index]
    # Markers of transactions have offsets too.
    done = {topic: min(count, expected[topic]) for topic, count in sent.items()}
    return done_of(done, expected, time.monotonic() - started)


def summary(options: ReplayOptions, totals: ReplayTotals) -> str:
    """The last words of a run."""
    return _dry_summary(totals) if options.dry_run else _done_summary(totals)


def _dry_summary(totals: ReplayTotals) -> str:
    records = _by_topic(totals.source)
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
            *totals.too_old(),
            f"would replay {many(sum(records.values()), 'row')} into {many(len(rows), 'topic')}"
            f" and create {len(totals.created)} of them, and set the committed offsets of"
            f" {many(totals.archived_groups, 'group')}; nothing was written",
        ]
    )


def _by_topic(sums: Mapping[tuple[Any, ...], ContentSum]) -> dict[str, int]:
    """Records of each topic."""
    records: dict[str, int] = {}
    for key, one in sums.items():
        records[key[0]] = records.get(key[0], 0) + one.records
    return records


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
        f"replayed {many(totals.rows, 'row')}, {human_bytes(totals.bytes)} in"
        f" {totals.seconds:.1f} s ({rate(totals.rows, totals.seconds)})"
        + (f"; {totals.passed:,} were there from an earlier run" if totals.passed else ""),
    ]
    if totals.matches:
        lines.append("counts and checksums of keys, values and headers match the archive")
        lines += _times(totals)
    lines += totals.too_old()
    if totals.groups:
        rows = [[one.group, one.topic, one.partitions, one.lag, one.text] for one in totals.groups]
        lines += ["", table(["group", "topic", "partitions", "lag", "committed offsets"], rows)]
        left = sum(one.text == groups.KEPT for one in totals.groups)
        if left:
            lines.append(
                f"{many(left, 'group')} with offsets of their own; --groups overwrite sets them"
            )
    return "\n".join(lines)


def _times(totals: ReplayTotals) -> list[str]:
    """Whose timestamps are those of the archive, and whose are not, and why."""
    changed = sorted(
        {key[0] for key, one in totals.source.items() if totals.target.get(key) != one}
    )
    own = [
        name
        for name in changed
        if totals.configs.get(name, {}).get(cleaning.TIME_TYPE) == "LogAppendTime"
    ]
    others = [name for name in changed if name not in own]
    lines = []
    if {key[0] for key in totals.source} == set(own) and own:
        lines.append("timestamps: the topic's own (LogAppendTime)")
    elif own or not others:
        but = f", but in {', '.join(own)} the topic's own (LogAppendTime)" if own else ""
        lines.append(f"timestamps: as archived{but}")
    if others:
        lines.append(
            f"timestamps: other than archived in {', '.join(others)}, though it is of CreateTime"
        )
    return lines


class _Archive(NamedTuple):
    """What is to be sent."""

    id: str
    """Of this archive and its copies; of an archive of earlier versions, its place."""
    rows: DataFrame
    """`topic` being the target."""
    names: dict[str, str]
    """The target of each archived topic."""
    topics: dict[str, ArchivedTopic]
    """What is known of the archived topics themselves; nothing when `segments` wrote it."""


def client_settings(options: ReplayOptions) -> Settings:
    """What the executors' client is made of. Raises PipelineError."""
    try:
        properties = from_java(options.client_properties)
        return settings_of({**properties, "bootstrap.servers": options.bootstrap}, options.client)
    except SinkError as error:
        raise PipelineError(str(error), 2) from None


def _open(job: Job, options: ReplayOptions) -> _Archive:
    table, moment, made = open_table(job.spark, options.source)
    archived = table.known(moment)
    topics = sorted(table.topics(moment) | set(archived))
    names = target_names(topics, options.topic, options.topic_prefix)
    rows = table.rows(moment, names)
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
    known_as = made.id or HadoopFiles(job.spark, options.source).root
    return _Archive(known_as, rows, names, archived)


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


def _needed(archive: _Archive, options: ReplayOptions) -> dict[str, Restored]:
    """Partitions and configuration of each target topic, the empty ones among them; with a range
    of times, of those that have records in it."""
    known = {
        archive.names[name]: Restored(len(topic.offsets), topic.configs)
        for name, topic in archive.topics.items()
        if name in archive.names
    }
    ranged = options.since_ms is not None or options.until_ms is not None
    needed = {} if ranged else dict(known)
    found = archive.rows.selectExpr("topic", "partition", "unix_millis(timestamp) as ms")
    for row in found.groupBy("topic").agg({"partition": "max", "ms": "min"}).collect():
        one = known.get(row["topic"], Restored(0, {}))
        count = max(one.partitions, row["max(partition)"] + 1)
        needed[row["topic"]] = one._replace(partitions=count, oldest_ms=row["min(ms)"])
    return needed


def _prepare_topics(
    admin: KafkaAdmin, archive: _Archive, totals: ReplayTotals, options: ReplayOptions
) -> dict[str, int]:
    """Create what is missing; partition counts of all targets. Raises PipelineError."""
    needed = totals.targets
    if not needed:
        raise PipelineError("the archive holds no rows in that range; check --since and --until")
    existing = admin.partition_counts(list(needed))
    for topic, count in existing.items():
        if options.keep_partitions and count < needed[topic].partitions:
            raise PipelineError(
                f"topic {topic} has {count} partitions, the archive {needed[topic].partitions};"
                " add partitions to it, or leave out --keep-partitions"
            )
    full = {topic for (topic, _), offset in admin.latest(existing).items() if offset}
    begun = _names(admin, archive, {topic: existing[topic] for topic in full}, options)
    full = {topic for topic in full if not _noted(admin, _head(begun[topic]))}
    if full and not options.append:
        raise PipelineError(
            f"there are records already in {', '.join(sorted(full))}, and no replay of this command"
            " was cut off there; replay into other topics (another --topic-prefix), delete these"
            " first, or add to them with --append"
        )
    missing = {
        topic: target.partitions for topic, target in needed.items() if topic not in existing
    }
    totals.created = sorted(missing)
    if missing and not options.dry_run:
        admin.create(missing, {topic: needed[topic].configs for topic in missing})
    return existing | missing


def _names(
    admin: KafkaAdmin, archive: _Archive, targets: Mapping[str, int], options: ReplayOptions
) -> dict[str, Names]:
    """What the registers of each target are called: transactional ids by what the command says,
    groups of marks by the topic's id, too, for names outlive the topics that they named."""
    ids = admin.ids(list(targets))
    sources = {target: source for source, target in archive.names.items()}
    found: dict[str, Names] = {}
    for topic in targets:
        said = (
            options.id or archive.id, sources[topic], topic, options.since_ms, options.until_ms,
            options.keep_partitions,
        )  # fmt: skip
        prefix = f"{REPLAY_PREFIX}{topic}-"
        found[topic] = Names(prefix + _digest(*said), prefix + _digest(*said, ids[topic]))
    return found


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _head(names: Names) -> str:
    return f"{names.group}-head"


def _noted(admin: KafkaAdmin, group: str) -> Positions:
    return admin.positions([group]).get(group, {})


def _heads(admin: KafkaAdmin, names: Mapping[str, Names], targets: Mapping[str, int]) -> Offsets:
    """Ends of all partitions before this replay sent anything: found, or written now.

    Raises PipelineError for heads so old that marks may have expired with them.
    """
    before = admin.latest(targets)
    now = _now_ms()
    for topic, count in targets.items():
        group = _head(names[topic])
        found = _noted(admin, group)
        if not found:
            admin.commit(
                group,
                {
                    (topic, index): Committed(before[topic, index], str(now))
                    for index in range(count)
                },
            )
            continue
        begun = min(int(one.metadata) for one in found.values())
        if now - begun > admin.offsets_retention_ms() - _HEAD_MARGIN_MS:
            raise PipelineError(
                f"the replay into {topic} was begun so long ago that its marks may have expired"
                " (offsets.retention.minutes of the broker); delete the topic and replay again"
            )
        for index in range(count):
            before[topic, index] = found.get((topic, index), Committed(0, "")).offset
    return before


def _send(
    job: Job,
    archive: _Archive,
    targets: Mapping[str, int],
    names: dict[str, Names],
    configs: Mapping[str, Mapping[str, str]],
    options: ReplayOptions,
) -> tuple[int, int, int]:
    """Send what is not there yet; records and bytes sent, and records that were there."""
    from pipeline.data_source import carry_client
    from pipeline.replay import task
    from pipeline.sink import clients, pieces, registers, rows, settings, tokens

    ship(registers, tokens, settings, clients, pieces, rows, task)
    carry_client(job.spark)
    tasks = max(1, min(sum(targets.values()), job.parallelism()))
    per_task = options.rate / tasks if options.rate is not None else None
    made = client_settings(options)
    of_topic = {name: made.for_topic(int(configs[name]["max.message.bytes"])) for name in targets}
    target = task.Target(of_topic, names, per_task)
    stats = (
        archive.rows.selectExpr(
            "topic", "partition as source", "generation", "offset", f"{TIMED_HASH} as hash",
            f"{_target_partition(targets, options)} as partition", "key", "value", "headers",
            "timestamp",
        )
        .repartition(tasks, "topic", "source")
        .sortWithinPartitions("topic", "source", "generation", "offset")
        .mapInArrow(task.replay_rows(target), task.STATS_SCHEMA)  # type: ignore[arg-type]
        .collect()
    )  # fmt: skip
    return (
        sum(row["records"] for row in stats),
        sum(row["bytes"] for row in stats),
        sum(row["passed"] for row in stats),
    )


def _restore_groups(
    admin: KafkaAdmin,
    archive: _Archive,
    back: DataFrame,
    ends: Offsets,
    totals: ReplayTotals,
    options: ReplayOptions,
) -> None:
    """Let groups go on in the targets where they were in the archived topics."""
    keeps = options.keep_partitions
    read = groups.stops(archive.topics, archive.names, keeps_partitions=keeps)
    read = [stop for stop in read if stop.topic in totals.targets]
    if not read:
        return
    found_in = "topic in ({})".format(
        ", ".join(f"'{name}'" for name in {one.topic for one in read})
    )
    hashed = TIMED_HASH if totals.same_times else RECORD_HASH
    counts = {topic: sum(name == topic for name, _ in ends) for topic in totals.targets}
    sent = archive.rows.where(found_in).selectExpr(
        "topic", "partition as source", "generation", "offset", f"{hashed} as hash",
        f"{_target_partition(counts, options)} as partition",
    )  # fmt: skip
    found = back.where(found_in).selectExpr("topic", "partition", "offset", f"{hashed} as hash")
    first = groups.translate(sent, found, read)
    plan = groups.wanted(read, first, ends, keeps_partitions=keeps)
    notes = {
        (group, archive.names[name], index): one.metadata
        for name, topic in archive.topics.items()
        if keeps and name in archive.names
        for group, offsets in topic.groups.items()
        for index, one in offsets.items()
    }
    overwrites = options.groups == "overwrite"
    totals.groups = groups.restore(admin, plan, notes, ends, overwrites=overwrites)


def _target_partition(counts: Mapping[str, int], options: ReplayOptions) -> str:
    """The partition of the target that a row goes to, as SQL; null: where the client puts it."""
    if options.keep_partitions:
        return "partition"
    pairs = ", ".join(f"'{topic}', {count}" for topic, count in counts.items())
    return f"if(key is null, partition % element_at(map({pairs}), topic), null)"


def _settled(admin: KafkaAdmin, targets: Mapping[str, int]) -> Offsets:
    """Ends of all partitions once every transaction below them is decided. Raises PipelineError."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        latest, stable = admin.latest(targets), admin.committed(targets)
        open_in = sorted({topic for (topic, index), end in latest.items()
                          if stable[topic, index] < end})  # fmt: skip
        if not open_in:
            return stable
        if time.monotonic() > deadline:
            raise PipelineError(
                f"all is sent, but a transaction of another program is open in {', '.join(open_in)}"
                " and hides what is behind it; run the same command again, which only compares"
            )
        time.sleep(0.2)


def _read_back(job: Job, options: ReplayOptions, before: Offsets, after: Offsets) -> DataFrame:
    reader = (
        job.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", ",".join(sorted({topic for topic, _ in before})))
        .option("kafka.isolation.level", "read_committed")
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


def _now_ms() -> int:
    return int(time.time() * 1000)


def _contents(sums: Mapping[tuple[Any, ...], ContentSum]) -> dict[tuple[Any, ...], tuple[int, int]]:
    return {key: (one.records, one.content) for key, one in sums.items() if one.records}
