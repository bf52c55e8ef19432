"""How a long run of rows is written once, in pieces that leave behind how far they came.

The argument, death by death, is in docs/pipeline.md ("replay: restore and prove"). In short: the
rows of a slot have one order and each has a place in it. Every piece commits, with its rows, a mark
that says the place of the last one, and the number and checksum of all rows up to there. Who
writes has claimed the register and looked at the mark since; so it goes on where the mark is,
whoever wrote before and however that ended.

Knows no client and no Spark; `rows` come in chunks of whatever makes them. Travels to executors by
value.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .registers import Fenced, Mark, Register, Row, SinkError

PIECE_S = 5.0
"""How long a piece is open, about. A commit costs two round trips; what is open when everything
dies is sent again, and holds up readers until then."""
_STEP = 4000
"""Rows between two looks at the clock."""


class Names(NamedTuple):
    """What the registers of a topic's slots are called, but for the slot."""

    transactional_id: str
    group: str


class Place(NamedTuple):
    """How far a slot is written: up to which record of the archive, and what those were."""

    generation: int = 0
    offset: int = 0
    """That of the last record, plus one."""
    rows: int = 0
    checksum: int = 0
    """Sum of the rows' hashes, modulo 2**64."""

    def mark(self) -> Mark:
        known = {"generation": self.generation, "rows": self.rows, "checksum": self.checksum}
        return Mark(self.offset, json.dumps(known))

    @classmethod
    def of(cls, mark: Mark | None) -> Place:
        """What a mark says; the beginning without one. Raises SinkError for one not ours."""
        if mark is None:
            return cls()
        try:
            known = json.loads(mark.metadata)
            return cls(known["generation"], mark.offset, known["rows"], known["checksum"])
        except (ValueError, KeyError, TypeError):
            raise SinkError(
                f"a mark of the replay is not one of ours ({mark!r}): somebody else commits offsets"
                " to its groups; replay with another --id"
            ) from None


class Chunk(ABC):
    """Some rows of one slot, in their order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many."""

    @abstractmethod
    def up_to(self, place: Place) -> int:
        """How many of them, at its beginning, lie at or before a place."""

    @abstractmethod
    def place(self, before: Place, start: int, end: int) -> Place:
        """The place behind rows start to end (exclusive), at least one, when `before` is the place
        in front of them."""

    @abstractmethod
    def rows(self, start: int, end: int) -> Iterator[Row]:
        """These rows."""


class Pace:
    """The clock of a task: when a piece is long enough, and how long to wait before the next rows.

    `clock` gives seconds, `sleep` takes them; `records_per_s` None is as fast as it goes.
    """

    def __init__(
        self,
        records_per_s: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], object],
    ) -> None:
        self._rate, self._clock, self._sleep = records_per_s, clock, sleep
        self._started = clock()
        self._begun = 0.0
        self._sent = 0
        self.step = _STEP if records_per_s is None else max(1, min(_STEP, int(records_per_s / 4)))

    def begin(self) -> None:
        """A piece begins."""
        self._begun = self._clock()

    def is_over(self, sent: int) -> bool:
        """Whether the piece is to be committed, now that so many more rows are sent."""
        self._sent += sent
        return self._clock() + self._wait_s() - self._begun >= PIECE_S

    def hold(self) -> None:
        """Wait as the rate says."""
        self._sleep(self._wait_s())

    def _wait_s(self) -> float:
        if self._rate is None:
            return 0.0
        return max(0.0, self._started + self._sent / self._rate - self._clock())


class Sent(NamedTuple):
    """What became of a slot."""

    passed: int
    """Rows that an earlier attempt had written."""
    rows: int


def write_in_pieces(name: str, chunks: Iterable[Chunk], register: Register, pace: Pace) -> Sent:
    """Write what is not yet written of a slot; `name` is for people. Raises SinkError."""
    try:
        register.claim()
        slot = _Slot(name, register, pace, Place.of(register.look()))
        try:
            for chunk in chunks:
                slot.take(chunk)
            return slot.end()
        except Fenced:
            raise
        except BaseException:
            slot.abort()
            raise
    except Fenced:
        raise SinkError(
            f"another run of this replay has taken over {name}; let that one end, or stop it and"
            " run the same command again"
        ) from None


class _Slot:
    """A slot under way: passes what is written, then sends piece after piece."""

    def __init__(self, name: str, register: Register, pace: Pace, written: Place) -> None:
        self._name, self._register, self._pace = name, register, pace
        self._written = written
        self._seen = Place()  # behind the rows that have come by
        self._has_passed = False
        self._is_open = False

    def take(self, chunk: Chunk) -> None:
        done = chunk.up_to(self._written)
        if done:
            self._seen = chunk.place(self._seen, 0, done)
        for start in range(done, len(chunk), self._pace.step):
            self._require_passed()
            self._send(chunk, start, min(start + self._pace.step, len(chunk)))

    def end(self) -> Sent:
        self._require_passed()
        if self._is_open:
            self._commit()
        return Sent(self._written.rows, self._seen.rows - self._written.rows)

    def abort(self) -> None:
        if self._is_open:
            self._register.abort()

    def _send(self, chunk: Chunk, start: int, end: int) -> None:
        if not self._is_open:
            self._register.begin()
            self._pace.begin()
            self._is_open = True
        send = self._register.send
        for row in chunk.rows(start, end):
            send(row)
        self._seen = chunk.place(self._seen, start, end)
        if self._pace.is_over(end - start):
            self._commit()
        self._pace.hold()

    def _commit(self) -> None:
        self._register.commit(self._seen.mark())
        self._is_open = False

    def _require_passed(self) -> None:
        """Raise SinkError unless the rows that came by first are those that the mark tells of."""
        if self._has_passed:
            return
        self._has_passed = True
        written, seen = self._written, self._seen
        if (seen.rows, seen.checksum) != (written.rows, written.checksum):
            raise SinkError(
                f"the archive is not the one that an earlier run of this command replayed: of"
                f" {self._name} it sent {written.rows:,} records, up to offset"
                f" {written.offset - 1} of generation {written.generation}; now there are"
                f" {seen.rows:,} up to there, or others. Give the archive as it was; or delete the"
                " topic and replay again; or add all of this archive with --id NEW --append"
            )
