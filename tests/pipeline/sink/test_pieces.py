"""The argument of replay, tried: a run dies at every step, others run at every step of it.

`Topics` is what a broker with transactions promises, as in test_exactly_once. Here the rows of a
slot are written in pieces of two, so that there are many moments to die at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from pipeline.sink.pieces import Chunk, Pace, Place, Sent, write_in_pieces
from pipeline.sink.registers import Fenced, Mark, Register, Row, SinkError
from testkit.clock import ManualClock
from tests.pipeline.sink.steps import Death, Hook, Steps

RECORDS = [(0, 0), (0, 1), (0, 5), (1, 0), (1, 1), (1, 7), (1, 9)]
"""The slot: (generation, offset)."""
ROWS = [b"%d-%d" % one for one in RECORDS]


class Topics:
    """What is committed, and who holds the register."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.mark: Mark | None = None
        self.epoch = 0
        self.open = 0
        """Rows in a transaction that nobody has ended."""

    def is_a_prefix(self) -> bool:
        return self.rows == ROWS[: len(self.rows)]


class Run(Steps, Register):
    """One run of the slot's task."""

    def __init__(self, topics: Topics, hook: Hook = lambda _: None) -> None:
        super().__init__(hook)
        self.topics = topics
        self.epoch = -1
        self.open: list[bytes] = []
        self.has_begun = False
        self.aborted = self.connected = self.closed = 0
        self.trouble = False
        self.pace = EveryTwo()

    def replay(self, records: Sequence[tuple[int, int]] = RECORDS, size: int = 3) -> Sent:
        chunks = [ListChunk(records[n : n + size]) for n in range(0, len(records), size)]
        return write_in_pieces("partition 0 of t", chunks, self.connect, self.pace)

    def connect(self) -> Register:
        self.open = []
        self.has_begun = False
        self.epoch = -1
        self.connected += 1
        return self

    def has_trouble(self) -> bool:
        found, self.trouble = self.trouble, False
        if found:
            self.open.clear()  # what was sent may not have come
        return found

    def claim(self) -> None:
        def effect() -> None:
            self.topics.epoch += 1
            self.epoch = self.topics.epoch

        self.step(effect)

    def look(self) -> Mark | None:
        found: list[Mark | None] = []
        self.step(lambda: found.append(self.topics.mark))
        return found[0]

    def begin(self) -> None:
        assert not self.has_begun
        self.has_begun = True
        self.step(self.check)

    def send(self, row: Row) -> None:
        assert self.has_begun, "a row belongs to a transaction"

        def effect() -> None:
            self.check()
            self.open.append(row[3] or b"")

        self.step(effect)

    def commit(self, mark: Mark) -> None:
        def effect() -> None:
            self.check()
            self.topics.rows += self.open
            self.topics.mark = mark
            self.open = []
            self.has_begun = False

        self.step(effect)

    def check(self) -> None:
        if self.epoch != self.topics.epoch:
            raise Fenced

    def abort(self) -> None:
        self.aborted += 1
        self.step(self.open.clear)

    def close(self) -> None:
        self.closed += 1


class ListChunk(Chunk):
    def __init__(self, records: Sequence[tuple[int, int]]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def up_to(self, place: Place) -> int:
        return sum(one < (place.generation, place.offset) for one in self.records)

    def place(self, before: Place, start: int, end: int) -> Place:
        generation, offset = self.records[end - 1]
        total = sum(hash(one) for one in self.records[start:end])
        rows = before.rows + end - start
        return Place(generation, offset + 1, rows, (before.checksum + total) % 2**64)

    def rows(self, start: int, end: int) -> Iterator[Row]:
        for generation, offset in self.records[start:end]:
            yield ("t", None, None, b"%d-%d" % (generation, offset), None, None)

    def size(self, start: int, end: int) -> int:
        return 3 * (end - start)


class EveryTwo(Pace):
    """A piece is over after two rows, whatever the time."""

    def __init__(self) -> None:
        super().__init__(None, lambda: 0.0, lambda _: None)
        self.step = 1
        self.rows = self.held = 0

    def hold(self) -> None:
        self.held += 1

    def begin(self) -> None:
        self.rows = 0

    def is_over(self, sent: int) -> bool:
        self.rows += sent
        return self.rows >= 2


def moments() -> range:
    """Before and after each step of a run that nobody disturbs."""
    run = Run(Topics())
    run.replay()
    return range(2 * run.steps)


def at(moment: int, act: Callable[[], object]) -> Hook:
    return lambda now: act() if now == moment else None  # type: ignore[func-returns-value, return-value]


def die() -> None:
    raise Death


def test_a_slot_is_written_in_order_and_once() -> None:
    topics = Topics()
    run = Run(topics)
    assert run.replay() == Sent(0, 7, 21)
    assert topics.rows == ROWS
    assert (run.aborted, run.closed, run.pace.held) == (0, 1, 7)
    assert Run(topics).replay() == Sent(7, 0, 0)
    assert topics.rows == ROWS
    assert Place.of(topics.mark)[:3] == (1, 10, 7)


@pytest.mark.parametrize("moment", moments())
@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_run_that_dies_at_any_step_is_gone_on_with(moment: int, size: int) -> None:
    """The next run may have its rows in chunks of another size: files and cores are its own."""
    topics = Topics()
    with pytest.raises(Death):
        Run(topics, at(moment, die)).replay()
    assert topics.is_a_prefix(), "a reader sees whole pieces"
    assert len(topics.rows) % 2 == 0 or topics.rows == ROWS
    before = len(topics.rows)
    assert Run(topics).replay(size=size) == Sent(before, 7 - before, 3 * (7 - before))
    assert topics.rows == ROWS


@pytest.mark.parametrize("moment", moments())
def test_a_second_run_at_any_step_shuts_the_first_out(moment: int) -> None:
    topics = Topics()
    second: list[Sent] = []
    first = Run(topics, at(moment, lambda: second.append(Run(topics).replay())))
    try:
        first.replay()
    except SinkError as error:
        assert "another run of this replay has taken over partition 0 of t" in str(error)  # noqa: PT017
    assert topics.rows == ROWS
    assert second


@pytest.mark.parametrize("moment", moments())
def test_a_second_run_that_dies_at_any_step_while_the_first_is_at_any(moment: int) -> None:
    for death in moments():
        topics = Topics()

        def copy(topics: Topics = topics, death: int = death) -> None:
            try:
                Run(topics, at(death, die)).replay()
            except Death:
                return  # none when it had fewer steps to do

        try:
            Run(topics, at(moment, copy)).replay()
        except SinkError as error:
            assert "another run" in str(error)  # noqa: PT017
        assert topics.is_a_prefix(), (moment, death)
        Run(topics).replay()
        assert topics.rows == ROWS, (moment, death)


@pytest.mark.parametrize("moment", moments())
def test_what_the_archive_got_since_is_sent_and_a_zombie_with_the_old_one_adds_nothing(
    moment: int,
) -> None:
    topics = Topics()
    old = RECORDS[:4]

    def new_run() -> None:
        Run(topics).replay()

    try:
        Run(topics, at(moment, new_run)).replay(old)
    except SinkError as error:
        assert "another run" in str(error) or "is not the one" in str(error)  # noqa: PT017
    Run(topics).replay()
    assert topics.rows == ROWS


@pytest.mark.parametrize(
    "records",
    [
        [],  # all gone
        RECORDS[:2],  # an older archive
        [(0, 0), (0, 1), (0, 6), *RECORDS[3:]],  # another record in its place
        [*RECORDS[:3], (0, 6), *RECORDS[3:]],  # one more in between
        RECORDS[1:],
    ],
)
def test_an_archive_that_is_another_one_is_refused_and_nothing_is_sent(
    records: list[tuple[int, int]],
) -> None:
    topics = Topics()
    Run(topics).replay(RECORDS[:4])
    run = Run(topics)
    with pytest.raises(
        SinkError, match=r"not the one .* it sent 4 records, up to offset 0 of gene"
    ):
        run.replay(records)
    assert topics.rows == ROWS[:4]
    assert (run.aborted, run.closed) == (0, 1), "there is nothing to abort"


def test_what_the_client_refuses_ends_the_piece_and_what_was_committed_stays() -> None:
    topics = Topics()
    run = Run(topics)

    def refuse(now: int) -> None:
        if len(topics.rows) == 4:
            raise SinkError("too large")

    run.hook = refuse
    with pytest.raises(SinkError, match="too large"):
        run.replay()
    assert topics.rows == ROWS[:4]
    assert (run.aborted, run.closed) == (1, 1), "readers of what is committed wait for its end"
    Run(topics).replay()
    assert topics.rows == ROWS


@pytest.mark.parametrize("moment", moments())
def test_a_piece_whose_connection_is_lost_is_sent_again_after_a_claim(moment: int) -> None:
    topics = Topics()
    run = Run(topics)

    def lose() -> None:
        run.trouble = True

    run.hook = at(moment, lose)
    assert run.replay() == Sent(0, 7, 21)
    assert topics.rows == ROWS
    assert run.closed == run.connected


@pytest.mark.parametrize("moment", moments())
def test_who_lost_the_connection_and_the_slot_does_not_send_again(moment: int) -> None:
    topics = Topics()
    run = Run(topics)

    def lose() -> None:
        run.trouble = True
        Run(topics).replay()

    run.hook = at(moment, lose)
    try:
        run.replay()
    except SinkError as error:
        assert "another run" in str(error)  # noqa: PT017
    assert topics.rows == ROWS


def test_a_mark_of_somebody_else_is_named() -> None:
    place = Place(3, 7, 11, 2**64 - 1)
    assert Place.of(place.mark()) == place
    with pytest.raises(SinkError, match="somebody else commits offsets"):
        Place.of(Mark(3, ""))


def paced(clock: ManualClock, rate: float | None) -> Pace:
    def sleep(seconds: float) -> None:
        clock.ms += round(seconds * 1000)

    return Pace(rate, lambda: clock.ms / 1000, sleep)


def test_a_piece_is_over_after_five_seconds() -> None:
    clock = ManualClock(100_000)
    pace = paced(clock, None)
    pace.begin()
    assert not pace.is_over(4000)
    clock.ms += 4_900
    assert not pace.is_over(4000)
    clock.ms += 200
    assert pace.is_over(1)
    pace.begin()
    assert not pace.is_over(1)


def test_a_rate_is_held_and_no_piece_is_open_through_a_long_wait() -> None:
    clock = ManualClock(100_000)
    pace = paced(clock, 0.1)
    assert pace.step == 1
    pace.begin()
    assert pace.is_over(1), "the next row comes in ten seconds"
    pace.hold()
    assert clock.ms == 110_000
    fast = paced(clock, 400.0)
    assert fast.step == 100
    fast.begin()
    for _ in range(10):
        assert not fast.is_over(100)
        fast.hold()
    assert clock.ms == pytest.approx(112_500)
