"""What the values of each decoded field are: for `profile`.

One aggregation over all fields. Numbers of distinct values are Spark's approximation (5 %); the
rest is exact. Of arrays and maps it is their lengths that are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.typed.types import Type, leaves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_FIELDS = 200
_MOST_PROBLEMS = 10
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class FieldProfile:
    """One field; `path` begins with its column."""

    path: str
    type: str
    present: int
    """Records where it is not null."""
    distinct: int
    lowest: str | None
    highest: str | None


@dataclass(frozen=True, slots=True)
class ProblemProfile:
    """Records of one side that did not decode, for one reason."""

    side: str
    problem: str
    records: int


def fields(frame: DataFrame, types: Mapping[str, Type]) -> tuple[list[FieldProfile], int]:
    """Statistics of the columns `<side>_data`, by side: of the first 200 fields; and how many more
    there are."""
    every = [
        ((f"{side}_data", *path), one)
        for side, given in types.items()
        for path, one in leaves(given)
    ]
    paths = every[:_MOST_FIELDS]
    if not paths:
        return [], 0
    row = frame.selectExpr(
        *(part for at, (path, one) in enumerate(paths) for part in _aggregates(at, path, one))
    ).first()
    assert row is not None
    found = [_profile(row, at, ".".join(path), one) for at, (path, one) in enumerate(paths)]
    return found, len(every) - len(paths)


def problems(frame: DataFrame) -> list[ProblemProfile]:
    """Why values did not decode: of each side the ten most frequent reasons, then all others."""
    found: list[ProblemProfile] = []
    for side in ("key", "value"):
        column = f"{side}_problem"
        if column not in frame.columns:
            continue
        undecoded = frame.where(f"{column} is not null")
        counted = undecoded.groupBy(column).count()
        rows = counted.orderBy("count", column, ascending=[False, True]).limit(_MOST_PROBLEMS)
        told = [ProblemProfile(side, row[column], row["count"]) for row in rows.collect()]
        found += told
        if len(told) == _MOST_PROBLEMS:
            others = undecoded.count() - sum(one.records for one in told)
            found += [ProblemProfile(side, "other reasons", others)] if others else []
    return found


def _aggregates(at: int, path: tuple[str, ...], given: Type) -> list[str]:
    name = ".".join("`" + part.replace("`", "``") + "`" for part in path)
    is_whole = isinstance(given, str)
    compared = name if is_whole else f"if({name} is null, null, size({name}))"
    if given == "binary":
        compared = f"length({name})"
    told = name if is_whole else compared
    return [
        f"count({name}) as n{at}",
        f"approx_count_distinct({told}) as d{at}",
        f"cast(min({compared}) as string) as a{at}",
        f"cast(max({compared}) as string) as b{at}",
    ]


def _profile(row: Any, at: int, path: str, given: Type) -> FieldProfile:
    kind = given if isinstance(given, str) else next(iter(given))
    unit = "" if isinstance(given, str) and given != "binary" else "size "
    low, high = (_short(row[f"{column}{at}"], unit) for column in "ab")
    return FieldProfile(path, kind, int(row[f"n{at}"]), int(row[f"d{at}"]), low, high)


def _short(text: str | None, unit: str) -> str | None:
    if text is None:
        return None
    whole = unit + "".join(char if char.isprintable() else "?" for char in text)
    return whole if len(whole) <= _LONGEST else whole[:_LONGEST] + "..."
