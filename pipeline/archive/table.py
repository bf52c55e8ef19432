"""What an archive is to those who write and read it, whatever its format.

A batch is one commit of a table. Its rows are staged first, where no reader sees them; publishing
makes them count together with the state (`state`) that the batch leads to, in one atomic step,
which fails when somebody else has published since the writer looked. So a kill at any moment
leaves the state as it was or as it is after the batch, and the rows likewise.

    file_table   Parquet and ORC files with a log in the format of Spark's file sink (`log`)
    delta        Delta Lake: the state is domain metadata of the commit
    iceberg      Apache Iceberg: the state is a property, set by the commit that shows the rows
    opening      which one a directory holds
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pipeline.archive.state import ArchivedTopic, State, from_json, to_json
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

REMAINS_AGE_MS = 24 * 3600 * 1000
"""What no commit names is of a killed run, unless it is younger: a batch may be under way."""


class Moment(NamedTuple):
    """An archive as it was when somebody looked. `at` is the table's own name of that."""

    latest_batch: int
    """-1 before the first."""
    at: Any


@dataclass(slots=True)
class CompactionTotals:
    """What one run did."""

    files_before: int = 0
    files_after: int = 0
    rows: int | None = None
    """None where the format does not tell."""
    bytes_after: int = 0
    removed: int = 0
    waiting: int = 0
    """Batches that came after the last `.compact` file and wait for the next one."""


class ArchiveTable(Protocol):
    """One archive, new or not."""

    def look(self) -> Moment: ...

    def state(self, moment: Moment) -> dict[str, ArchivedTopic]:
        """How far it is with each topic; {} for a new one.

        Raises PipelineError for an archive that holds records, but not where they end.
        """

    def known(self, moment: Moment) -> dict[str, ArchivedTopic]:
        """The same; {} for such an archive."""

    def stage(self, frame: DataFrame) -> Any:
        """Write the rows of a batch; folder columns are the last ones. No reader sees them."""

    def publish(self, batch: int, staged: Any, state: State) -> bool:
        """Make them count (None: no rows), and the state with them, in one step.

        False when the files of the table changed meanwhile, so that the batch must be done again.
        Raises PipelineError when another run has published that batch.
        """

    def settle(self) -> None:
        """Before an archive is gone on with: mend what a move of its directory breaks."""

    def topics(self, moment: Moment) -> set[str]:
        """That it has records of."""

    def rows(self, moment: Moment, topics: Collection[str]) -> DataFrame:
        """All records of these topics."""

    def size(self, moment: Moment) -> tuple[int, int]:
        """Number and bytes of its data files."""

    def compact(self, grace_ms: int, show: Callable[[str], None]) -> CompactionTotals:
        """Merge small files; remove those that were replaced longer ago than `grace_ms`."""


def another_run(root: str) -> PipelineError:
    return PipelineError(
        f"another run archives into {root}; stop it first, or wait until it has ended"
    )


def to_text(batch: int, state: State) -> str:
    """A batch's number and state, for tables that keep them with the commit."""
    return json.dumps({"batch": batch, **json.loads(to_json(state))})


def from_text(text: str | None, where: str) -> tuple[int, dict[str, ArchivedTopic]]:
    """What `to_text` wrote; None: there was no batch yet."""
    if text is None:
        return -1, {}
    state = from_json(text, where)
    return int(json.loads(text)["batch"]), state


def topics_of(frame: DataFrame) -> set[str]:
    """Names of the topics whose records are in an archive's rows."""
    return {row["topic"] for row in frame.select("topic").distinct().collect()}


def rows_of(frame: DataFrame, topics: Collection[str]) -> DataFrame:
    """The rows of these topics."""
    return frame.where(frame["topic"].isin(*topics))


def nullable(schema: StructType) -> StructType:
    """The same columns, each of which may be null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType) for field in schema.fields])


def shape(schema: StructType) -> dict[str, str]:
    """Type by column: two frames of one shape fit into one table."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
