"""How a task writes its rows in exactly one committed transaction, however often it is tried.

The argument, step by step and death by death, is in docs/pipeline.md ("sink: every row once"). In
short: the mark of a slot's `Register` says which batch was written last. Claiming the register
shuts out who held it before; the mark changes only in the transaction that holds the rows. So of
all attempts at (batch, slot) one commits, and the others find that out.

Knows no client, no Spark and no clock: `clients` makes registers, `writers` has the rows. Travels
to executors by value.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from .registers import ID_PREFIX, Connect, Fenced, Mark, Register, Row, SinkError

_WAITS = 120
_RACES = 20


class Written(NamedTuple):
    """What a mark says: the batch, its number of slots, and what was written in this one."""

    batch: int
    slots: int
    rows: int = 0
    checksum: int = 0

    def mark(self) -> Mark:
        """The batch is the offset itself."""
        known = {"slots": self.slots, "rows": self.rows, "checksum": self.checksum}
        return Mark(self.batch, json.dumps(known))

    @classmethod
    def of(cls, mark: Mark | None) -> Written | None:
        """What a mark says. Raises SinkError for one that is not ours."""
        if mark is None:
            return None
        try:
            known = json.loads(mark.metadata)
            return cls(mark.offset, known["slots"], known["rows"], known["checksum"])
        except (ValueError, KeyError, TypeError):
            raise SinkError(
                f"the sink's mark is not one of ours ({mark!r}): somebody else commits offsets"
                f" to groups whose names begin with {ID_PREFIX}; use another checkpoint or writeId"
            ) from None


class Task(NamedTuple):
    """Which slot of which batch, of which query or write."""

    write_id: str
    batch: int
    slot: int
    slots: int
    may_begin: bool
    """Whether a missing head is right: batch 0, a batch write, or the user said so."""


class Receipt(NamedTuple):
    """What became of a task."""

    rows: int
    was_done: bool
    """Whether an earlier attempt had written them."""


Pause = Callable[[int], None]
"""Waits a little before try number n, n = 0, 1, ..."""


def write_once(task: Task, rows: Iterable[Row], connect: Connect, pause: Pause) -> Receipt:
    """Write the rows of a slot unless they are written. Raises SinkError."""
    if task.slot >= task.slots:
        raise SinkError(
            f"the batch has a partition {task.slot}, but slots is {task.slots}; put"
            f" .repartition({task.slots}, <columns>) before the sink, or raise slots"
        )
    prefix = f"{ID_PREFIX}{task.write_id}-"
    _declare(task, connect, f"{prefix}head", pause)
    register = connect(f"{prefix}{task.slot}")
    counted = _Counted(rows)
    try:
        return _write(task, counted, register)
    except Fenced:
        return _wait_for_the_other(task, counted, register, pause)
    finally:
        register.close()


class _Counted:
    """Rows, counted and summed as they pass. The sum does not depend on their order."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = iter(rows)
        self._seeds: dict[tuple[str, int | None], int] = {}
        self.rows = 0
        self.checksum = 0

    def __iter__(self) -> Iterator[Row]:
        crc32, seeds = zlib.crc32, self._seeds
        for row in self._rows:
            topic, partition, key, value, _, _ = row
            seed = seeds.get((topic, partition))
            if seed is None:
                seed = seeds[topic, partition] = crc32(f"{topic}-{partition}".encode())
            self.rows += 1
            self.checksum += crc32(value or b"", crc32(key, seed) if key else seed)
            yield row

    def agrees_with(self, mark: Written) -> bool:
        """Whether what passed, and all that is left, are the rows of a mark."""
        for _ in self:
            pass
        return (self.rows, self.checksum) == (mark.rows, mark.checksum)


def _declare(task: Task, connect: Connect, name: str, pause: Pause) -> None:
    """Make sure that the head names this batch with this number of slots. Raises SinkError."""
    head = connect(name)
    try:
        for number in range(_RACES):
            if _is_declared(task, Written.of(head.look())):
                return
            if task.slot and number < _RACES // 2:
                pause(number)  # slot 0 declares; the others would only shut each other out
                continue
            with suppress(Fenced):
                head.claim()
                if not _is_declared(task, Written.of(head.look())):
                    head.begin()
                    head.commit(Written(task.batch, task.slots).mark())
                return
            head.close()
            pause(number)
            head = connect(name)
    finally:
        head.close()
    raise SinkError(
        f"tasks of {task.write_id} shut each other out {_RACES} times; do two jobs use one"
        " checkpoint or writeId?"
    )


def _is_declared(task: Task, head: Written | None) -> bool:
    """Whether the head names this batch; False when it may be written. Raises SinkError."""
    if head is None:
        if task.may_begin:
            return False
        raise SinkError(
            f"nothing is known of the batches before {task.batch} of query {task.write_id}: their"
            " marks expired (offsets.retention.minutes), or this is another cluster; if that"
            " batch was not half done, go on with the option lostMarks=goOn, once"
        )
    if head.batch > task.batch:
        raise SinkError(
            f"batch {task.batch} of {task.write_id} is over: batch {head.batch} was begun since;"
            " is the checkpoint an older copy, or used by another query? Begin with a new one"
        )
    if head.batch == task.batch and head.slots != task.slots:
        raise SinkError(
            f"batch {task.batch} of {task.write_id} was begun with slots={head.slots}, now it is"
            f" {task.slots}; run it with slots={head.slots} until that batch is done, then change"
        )
    return head.batch == task.batch


def _write(task: Task, counted: _Counted, register: Register) -> Receipt:
    rows = iter(counted)
    first = next(rows, None)
    if first is not None:
        register.claim()
    found = Written.of(register.look())
    if found is not None and found.batch >= task.batch:
        return _was_done(task, counted, found)
    if first is None:
        return Receipt(0, was_done=False)
    try:
        register.begin()
        send = register.send
        send(first)
        for row in rows:
            send(row)
        written = Written(task.batch, task.slots, counted.rows, counted.checksum)
        register.commit(written.mark())
    except BaseException as problem:
        if not isinstance(problem, Fenced):
            register.abort()
        raise
    return Receipt(counted.rows, was_done=False)


def _was_done(task: Task, counted: _Counted, found: Written) -> Receipt:
    """The slot is written; check that it was with these rows. Raises SinkError."""
    if found.batch > task.batch:
        raise SinkError(
            f"slot {task.slot} of {task.write_id} is at batch {found.batch} already, beyond"
            f" {task.batch}; is the checkpoint an older copy? Begin with a new one"
        )
    if not counted.agrees_with(found):
        raise SinkError(
            f"batch {task.batch} of {task.write_id} was computed again and slot {task.slot} has"
            f" other rows now ({counted.rows:,}; {found.rows:,} were written): its input is not"
            " the same twice. Undo what was changed and start again; if nothing was, put"
            " .repartition(slots, <columns>) before the sink, drop what is random, and begin with"
            " a new checkpoint or writeId"
        )
    return Receipt(counted.rows, was_done=True)


def _wait_for_the_other(task: Task, counted: _Counted, register: Register, pause: Pause) -> Receipt:
    """Somebody else has this slot: done when it is. Raises SinkError when it never is."""
    for number in range(_WAITS):
        found = Written.of(register.look())
        if found is not None and found.batch >= task.batch:
            return _was_done(task, counted, found)
        pause(number)
    raise SinkError(
        f"slot {task.slot} of {task.write_id} was taken over by another attempt, which did not"
        " finish; if this repeats, another job uses the same checkpoint or writeId"
    )
