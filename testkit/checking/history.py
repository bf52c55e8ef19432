"""What clients did to a topic and what came of it: append-only files of events, one JSON a line.

What: `Send` and `Sent` (invocation and completion of one record), `Begin`, `Positions` and `Ended`
of a transaction, `Polled`, `Assigned`, `ClientError`, `Hung` and `Fault`; `HistoryWriter` appends
them, `History` is the files of all processes.
Why: a check that keeps its books in the memory of the process it measures loses them with it, and
cannot be run again. Every conclusion about lost, doubled or reordered records is drawn from these
files by `checker`, after the fact.
How: each process writes a file of its own, so nobody waits for a lock; `t` is CLOCK_MONOTONIC in
nanoseconds, one clock for all processes of a machine. The file is outside the cluster's disks.

A completion has three outcomes, and the third is the important one (reliability rules, 1.4):
  ok    the cluster acknowledged the record, at `offset` (None when the client was not told)
  fail  the record definitely was not and will not be written
  info  unknown: a timeout is never proof that nothing was written

What `who` sends and polls between its `Begin` and its `Ended` belongs to that transaction, and the
transaction's outcome is theirs: a record whose transaction was aborted was not written, whatever
its own acknowledgement said. A transaction without an end is unknown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

OK, FAIL, INFO = "ok", "fail", "info"


class Send(NamedTuple):
    """A producer handed a record to its client. `number` counts up in the order of these calls."""

    t: int
    who: str
    number: int
    partition: int


class Sent(NamedTuple):
    """What became of it."""

    t: int
    who: str
    number: int
    outcome: str
    offset: int | None
    error: str = ""


class Begin(NamedTuple):
    """`who` began a transaction; `number` counts up. An earlier one without an end is unknown."""

    t: int
    who: str
    number: int


class Positions(NamedTuple):
    """The consumer's positions (partition, next offset) became a part of the open transaction.

    So what was polled in it counts as consumed by the group of `who`, if and only if it commits.
    """

    t: int
    who: str
    positions: list[tuple[int, int]]


class Ended(NamedTuple):
    """What became of a transaction: committed (ok), aborted for certain (fail), or unknown."""

    t: int
    who: str
    number: int
    outcome: str
    error: str = ""


class Assigned(NamedTuple):
    """A consumer was given partitions (again), or went back: its position may jump now."""

    t: int
    who: str
    partitions: list[int]


class Polled(NamedTuple):
    """One poll's records, as partition, offset, value; in the order the client gave them."""

    t: int
    who: str
    records: list[tuple[int, int, str]]


class ClientError(NamedTuple):
    """A client told its user about an error (not a record's outcome)."""

    t: int
    who: str
    error: str


class Hung(NamedTuple):
    """A client did not come back from a call, and its process was ended for it."""

    t: int
    who: str
    call: str


class Fault(NamedTuple):
    """Something was done to the cluster, by the test."""

    t: int
    who: str
    what: str


Event = (
    Send | Sent | Begin | Positions | Ended | Assigned | Polled | ClientError | Hung | Fault
)  # fmt: skip

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def now() -> int:
    """The clock of all events."""
    return time.monotonic_ns()


def value_of(who: str, number: int) -> str:
    """The unique value of a record; a record's bytes start with it (see `workload_worker`)."""
    return f"{who}:{number}"


class HistoryWriter:
    """Appends events to one file. Not for several threads at once without a lock of the caller."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1 << 16)  # noqa: SIM115

    def add(self, event: Event) -> None:
        self._file.write(json.dumps([type(event).__name__, *event]) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class History:
    """Every event of some files, file after file: in order for each `who`, not in order of time.

    Read anew each time it is gone through. A last line that a killed process left half written is
    not an event.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)

    def __iter__(self) -> Iterator[Event]:
        for path in self.paths:
            with open(path, encoding="utf-8") as lines:
                for line in lines:
                    if not line.endswith("\n"):
                        break
                    kind, *fields = json.loads(line)
                    yield _KINDS[kind](*fields)
