"""`spark.read.format("barnabas")`: a broker's log directory as a DataFrame, with no broker in the
way.

    barnabas.register_source(spark)
    spark.read.format("barnabas").option("topic", "orders").load("/var/lib/barnabas")

Columns are those of `format("kafka")`. One input partition per segment. The directory must be
visible to the driver and to all executors (a local Spark, or a shared disk).

| option | meaning | default |
|---|---|---|
| path | log directory; several with commas | needed |
| topic | one topic; several with commas | needed |
| partitions | `0,2` | all |
| startingOffsets, endingOffsets | JSON as for kafka, `{"orders": {"0": 5}}`; ends exclusive | all |
| since, until | record timestamps, ms since 1970; until exclusive | all |
| includeHeaders | `true` adds the column headers | false |
| isolationLevel | `read_committed`; `read_uncommitted`: open, aborted ones too | read_committed |
| readTo | `highWatermark`, or `logEnd`: also what is not known to be replicated | highWatermark |
| preparedCommits | `{"orders": {"0": [7]}}`: producers whose open transaction is committed | none |
| leftOut | `{"orders-0/00000000000000000000.log": [[61, 200]]}`: bytes not to be looked at | none |

PySpark 4.1 also pushes WHERE on partition, offset and timestamp down (when
spark.sql.python.filterPushdown.enabled is true); with 4.0 give the options: its data sources hear
of no filters. Spark applies every filter itself again, so pushing down only saves reading.

Travels by value to where Spark runs it; imports only its two sisters, PySpark, NumPy and PyArrow.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import zipimport
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .decode import read_part
from .plan import PlanError, SegmentPart, Wanted, plan

_OPTIONS = (
    "path", "topic", "partitions", "startingoffsets", "endingoffsets", "since", "until",
    "includeheaders", "isolationlevel", "readto", "preparedcommits", "leftout",
)  # fmt: skip


class SegmentInput(InputPartition):
    """One segment to read."""

    def __init__(self, part: SegmentPart) -> None:
        super().__init__(part)
        self.part = part


class SegmentReader(DataSourceReader):
    """Plans once, then reads one segment per task."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = {key.lower(): value for key, value in given.items()}
        self._paths, self._wanted = parse_options(options)
        self._include_headers = options.get("includeheaders", "false").lower() == "true"

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 - PySpark's name
        """Narrow the plan by what the filters allow; all are left for Spark to apply as well."""
        for one in filters:
            self._wanted = [narrow(wanted, one) for wanted in self._wanted]
            yield one

    def partitions(self) -> list[InputPartition]:
        spare_worker()
        plans = plan(self._paths, *self._wanted)
        parts = [part for one in plans for part in one.parts]
        # The largest first: the last task to end decides how long it takes.
        return [SegmentInput(part) for part in sorted(parts, key=lambda part: -part.size)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        spare_worker()
        if isinstance(partition, SegmentInput):
            yield from read_part(partition.part, self._include_headers)


def spare_worker() -> None:
    """Let the next task of this Python worker start in 30 ms instead of 170.

    Before each task PySpark empties all import caches, and up to Python 3.12 zipimport then reads
    the directory of pyspark.zip once more for each of the packages in it; a zip that is as it was
    need not be read again. After each task PySpark collects garbage; what was imported is none.
    """
    plain = zipimport.zipimporter.invalidate_caches
    # Each task has a copy of this module; of gc.freeze Python 3.12 does one itself at its start.
    if plain.__qualname__.startswith(spare_worker.__name__):
        return  # done in an earlier task
    gc.freeze()
    states: dict[tuple[str, str], tuple[int, int]] = {}

    def invalidate_caches(self: zipimport.zipimporter) -> None:
        try:
            found = os.stat(self.archive)
        except OSError:
            return plain(self)
        state = (found.st_mtime_ns, found.st_size)
        if states.get((self.archive, self.prefix)) != state:
            plain(self)
            states[self.archive, self.prefix] = state
        return None

    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign]


def parse_options(options: dict[str, str]) -> tuple[list[str], list[Wanted]]:
    """Log directories and what to read of each topic. Raises PlanError that names the option."""
    for key in options:
        if key not in _OPTIONS:
            raise PlanError(
                f"unknown option {key!r} of format barnabas; there are {list(_OPTIONS)}"
            )
    for key in ("path", "topic"):
        if not options.get(key):
            raise PlanError(f"format barnabas needs the option {key!r}")
    partitions: frozenset[int] | None = None
    if "partitions" in options:
        named = options["partitions"].split(",")
        partitions = frozenset(_number("partitions", one) for one in named)
    since, until = (
        _number(key, options[key]) if key in options else None for key in ("since", "until")
    )
    isolation = _one_of(options, "isolationlevel", ("read_committed", "read_uncommitted"))
    log_end = _one_of(options, "readto", ("highwatermark", "logend")) == "logend"
    wanted = [
        Wanted(
            topic,
            partitions,
            _offsets(options, "startingoffsets", topic),
            _offsets(options, "endingoffsets", topic),
            since,
            until,
            isolation == "read_committed",
            log_end,
            prepared=_prepared(options, topic),
            left_out=json.loads(options.get("leftout", "{}")),
        )
        # One that is named twice is not to be read twice.
        for topic in dict.fromkeys(one.strip() for one in options["topic"].split(","))
    ]
    return [path.strip() for path in options["path"].split(",")], wanted


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"option {key} has {text!r}; expected a whole number") from None


def _one_of(options: dict[str, str], key: str, choices: tuple[str, ...]) -> str:
    value = options.get(key, choices[0]).lower()
    if value not in choices:
        raise PlanError(f"option {key} is {value!r}; expected one of {', '.join(choices)}")
    return value


def _offsets(options: dict[str, str], key: str, topic: str) -> dict[int, int]:
    """Kafka's JSON of offsets for one topic; -2 (earliest) and -1 (latest) mean no limit."""
    text = options.get(key, "")
    if text.lower() in ("", "earliest", "latest"):
        return {}
    try:
        given = json.loads(text).get(topic, {})
        return {int(index): int(offset) for index, offset in given.items() if int(offset) >= 0}
    except (ValueError, AttributeError):
        raise PlanError(f'option {key} is {text!r}; expected {{"{topic}": {{"0": 5}}}}') from None


def _prepared(options: dict[str, str], topic: str) -> dict[int, list[int]]:
    """As `read_frame` of segments writes it."""
    given = json.loads(options.get("preparedcommits", "{}")).get(topic, {})
    return {int(index): producers for index, producers in given.items()}


def narrow(wanted: Wanted, one: Any) -> Wanted:
    """`wanted` without what a filter of PySpark 4.1 excludes; unchanged for one it does not
    know."""
    column = ".".join(getattr(one, "attribute", ()))
    kind, value = type(one).__name__, getattr(one, "value", None)
    if column == "partition":
        return _narrow_partitions(wanted, kind, value)
    if column == "offset" and isinstance(value, int):
        return _narrow_offsets(wanted, kind, value)
    if column == "timestamp" and isinstance(value, datetime.datetime):
        return _narrow_times(wanted, kind, value)
    return wanted


def _narrow_partitions(wanted: Wanted, kind: str, value: Any) -> Wanted:
    if kind not in ("EqualTo", "In"):
        return wanted
    allowed = frozenset([value] if kind == "EqualTo" else value)
    return wanted._replace(only=allowed if wanted.only is None else wanted.only & allowed)


def _narrow_offsets(wanted: Wanted, kind: str, value: int) -> Wanted:
    lowest = {"EqualTo": value, "GreaterThan": value + 1, "GreaterThanOrEqual": value}.get(kind)
    highest = {"EqualTo": value + 1, "LessThan": value, "LessThanOrEqual": value + 1}.get(kind)
    starts, ends = wanted.from_offsets, wanted.to_offsets
    if lowest is not None:
        starts = {key: max(lowest, old) for key, old in ({-1: 0} | starts).items()}
    if highest is not None:
        ends = {key: min(highest, old) for key, old in ({-1: 2**63 - 1} | ends).items()}
    return wanted._replace(from_offsets=starts, to_offsets=ends)


def _narrow_times(wanted: Wanted, kind: str, value: datetime.datetime) -> Wanted:
    if value.tzinfo is None:
        return wanted  # in the session's time zone, which is not known here
    ms = int(value.timestamp() * 1000)
    if kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo"):
        since = ms if wanted.since_ms is None else max(ms, wanted.since_ms)
        wanted = wanted._replace(since_ms=since)
    if kind in ("LessThan", "LessThanOrEqual", "EqualTo"):
        until = ms + 1 if wanted.until_ms is None else min(ms + 1, wanted.until_ms)
        wanted = wanted._replace(until_ms=until)
    return wanted
