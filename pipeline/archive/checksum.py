"""Whether two sets of records are the same, whatever their order and storage.

One 64-bit hash per record over key, value and headers (nulls told apart from empty, headers in
their order), summed: a sum does not depend on the order of rows, and a lost, doubled or changed
record changes it. Computed by Spark where the data is. Not a cryptographic proof; chance
collisions only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADERS = "transform(coalesce(headers, array()), h -> struct(h.key, h.value is null, h.value))"
RECORD_HASH = f"xxhash64(key is null, key, value is null, value, {_HEADERS})"
TIMED_HASH = f"xxhash64({RECORD_HASH}, unix_millis(timestamp))"


class ContentSum(NamedTuple):
    """Number of records, sum of their hashes, and that of the hashes with the timestamp."""

    records: int
    content: int
    timed: int

    @property
    def text(self) -> str:
        """The content sum as 16 hex digits."""
        return f"{self.content % 2**64:016x}"


def content_sums(frame: DataFrame, *groups: str) -> dict[tuple[Any, ...], ContentSum]:
    """The sum of each group of rows; needs the columns key, value, headers and timestamp."""
    rows = (
        frame.selectExpr(
            *groups,
            f"cast({RECORD_HASH} as decimal(38, 0)) as content",
            f"cast({TIMED_HASH} as decimal(38, 0)) as timed",
        )
        .groupBy(*groups)
        .agg({"*": "count", "content": "sum", "timed": "sum"})
        .collect()
    )
    return {
        tuple(row[name] for name in groups): ContentSum(
            int(row["count(1)"]), int(row["sum(content)"] or 0), int(row["sum(timed)"] or 0)
        )
        for row in rows
    }


def content_sum(frame: DataFrame) -> ContentSum:
    """The sum over all rows."""
    return content_sums(frame)[()]
