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
_PIECE_BYTES = 64 * 2**20
"""How much of a piece is kept, to be sent again when its connection is lost."""
_TRIES = 20
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
        """These rows; may be asked for again."""

    @abstractmethod
    def size(self, start: int, end: int) -> int:
        """Bytes of their keys and values."""


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
    bytes: int
    """Of keys and values."""


def write_in_pieces(
    name: str, chunks: Iterable[Chunk], connect: Callable[[], Register], pace: Pace
) -> Sent:
    """Write what is not yet written of a slot, whose register `connect` makes; `name` is for
    people. Raises SinkError."""
    slot = _Slot(name, connect, pace)
    try:
        slot.begin()
        for chunk in chunks:
            slot.take(chunk)
        return slot.end()
    except Fenced:
        raise SinkError(
            f"another run of this replay has taken over {name}; let that one end, or stop it and"
            " run the same command again"
        ) from None
    except BaseException:
        slot.abort()
        raise
    finally:
        slot.close()


class _Slot:
    """A slot under way: passes what is written, then sends piece after piece."""

    def __init__(self, name: str, connect: Callable[[], Register], pace: Pace) -> None:
        self._name, self._connect, self._pace = name, connect, pace
        self._register = connect()
        self._found = Place()  # by this run, when it began
        self._written = Place()
        self._seen = Place()  # behind the rows that have come by
        self._has_passed = False
        self._piece: list[tuple[Chunk, int, int]] = []  # what was sent and is not committed
        self._piece_bytes = self._bytes = 0

    def begin(self) -> None:
        self._register.claim()
        self._found = self._written = Place.of(self._register.look())

    def take(self, chunk: Chunk) -> None:
        done = chunk.up_to(self._found)
        if done:
            self._seen = chunk.place(self._seen, 0, done)
        for start in range(done, len(chunk), self._pace.step):
            self._require_passed()
            self._send(chunk, start, min(start + self._pace.step, len(chunk)))

    def end(self) -> Sent:
        self._require_passed()
        if self._piece:
            self._commit()
        return Sent(self._found.rows, self._seen.rows - self._found.rows, self._bytes)

    def abort(self) -> None:
        if self._piece:
            self._register.abort()

    def close(self) -> None:
        self._register.close()

    def _send(self, chunk: Chunk, start: int, end: int) -> None:
        if not self._piece:
            self._register.begin()
            self._pace.begin()
        self._piece.append((chunk, start, end))
        self._piece_bytes += chunk.size(start, end)
        self._send_rows(chunk, start, end)
        self._seen = chunk.place(self._seen, start, end)
        if self._pace.is_over(end - start) or self._piece_bytes >= _PIECE_BYTES:
            self._commit()
        self._pace.hold()

    def _send_rows(self, chunk: Chunk, start: int, end: int) -> None:
        send = self._register.send
        for row in chunk.rows(start, end):
            send(row)

    def _commit(self) -> None:
        for _ in range(_TRIES):
            if not self._register.has_trouble():
                break
            self._send_again()
        self._register.commit(self._seen.mark())
        self._written = self._seen
        self._bytes += self._piece_bytes
        self._piece, self._piece_bytes = [], 0

    def _send_again(self) -> None:
        """With a register of its own, after a claim that ends what is open of this piece."""
        self._register.close()
        self._register = self._connect()
        self._register.claim()
        if Place.of(self._register.look()) != self._written:
            raise Fenced  # and the other has ended
        self._register.begin()
        for chunk, start, end in self._piece:
            self._send_rows(chunk, start, end)

    def _require_passed(self) -> None:
        """Raise SinkError unless the rows that came by first are those that the mark tells of."""
        if self._has_passed:
            return
        self._has_passed = True
        written, seen = self._found, self._seen
        if (seen.rows, seen.checksum) != (written.rows, written.checksum):
            raise SinkError(
                f"the archive is not the one that an earlier run of this command replayed: of"
                f" {self._name} it sent {written.rows:,} records, up to offset"
                f" {written.offset - 1} of generation {written.generation}; now there are"
                f" {seen.rows:,} up to there, or others. Give the archive as it was; or delete the"
                " topic and replay again; or add all of this archive with --id NEW --append"
            )
