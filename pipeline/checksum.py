"""Whether two sets of records are the same, whatever their order and storage.

One 64-bit hash per record over key, value and headers (nulls told apart from empty, headers in their
order), summed: a sum does not depend on the order of rows, and a lost, doubled or changed record
changes it. Computed by Spark where the data is. Not a cryptographic proof; chance collisions only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADERS = "transform(coalesce(headers, array()), h -> struct(h.key, h.value is null, h.value))"
_RECORD_HASH = f"xxhash64(key is null, key, value is null, value, {_HEADERS})"
_TIMED_HASH = f"xxhash64({_RECORD_HASH}, unix_millis(timestamp))"


class ContentSum(NamedTuple):
    """Number of records, sum of their hashes, and that of the hashes with the timestamp."""

    count: int
    content: int
    timed: int

    @property
    def text(self) -> str:
        """The content sum as 16 hex digits."""
        return f"{self.content % 2**64:016x}"


def content_sum(frame: DataFrame) -> ContentSum:
    """The sum over all rows; needs the columns key, value, headers and timestamp."""
    row = (
        frame.selectExpr(
            f"cast({_RECORD_HASH} as decimal(38, 0)) as content",
            f"cast({_TIMED_HASH} as decimal(38, 0)) as timed",
        )
        .selectExpr("count(*) as n", "sum(content) as content", "sum(timed) as timed")
        .first()
    )
    assert row is not None  # an aggregate without groups has one row
    return ContentSum(int(row["n"]), int(row["content"] or 0), int(row["timed"] or 0))
