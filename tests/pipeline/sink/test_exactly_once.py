"""The sink's argument, tried: every death and every interleaving of two attempts, step by step.

`Topics` is what a broker with transactions promises, and no more: claiming a register shuts out
earlier holders and aborts what they had open; a commit of who holds it takes effect whole. Each
call of an attempt is a step; before or after any step it may die, or other attempts may run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from zlib import crc32

import pytest

from pipeline.sink.exactly_once import Receipt, Task, Written, write_once
from pipeline.sink.registers import Connect, Fenced, Mark, Register, Row, SinkError
from tests.pipeline.sink.steps import Death, Hook, Steps

ROWS = [b"%d" % number for number in range(5)]
QUERY = "q"


class Topics:
    """What is committed, and who holds what."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.marks: dict[str, Mark] = {}
        self.epochs: Counter[str] = Counter()

    def once(self) -> bool:
        return max(Counter(self.rows).values(), default=0) <= 1


class Attempt(Steps):
    """One attempt at a task."""

    def __init__(self, topics: Topics, hook: Hook = lambda _: None) -> None:
        super().__init__(hook)
        self.topics = topics
        self.registers: list[FakeRegister] = []
        self.pauses: list[int] = []

    def run(
        self, batch: int = 0, slot: int = 0, slots: int = 1, *, rows: Iterable[bytes] | None = None
    ) -> Receipt:
        task = Task(QUERY, batch, slot, slots, may_begin=batch == 0)
        values = rows_of(batch, slot, slots) if rows is None else rows
        made: list[Row] = [("t", None, None, value, None, None) for value in values]
        connect: Connect = lambda name, group="": FakeRegister(self, name)  # noqa: E731
        try:
            return write_once(task, made, connect, self.pauses.append)
        finally:
            assert all(one.is_closed for one in self.registers)


def rows_of(batch: int, slot: int, slots: int) -> list[bytes]:
    """The rows of a slot: a function of batch, slot and slots, as the sink requires."""
    return [b"%d:%s" % (batch, value) for value in ROWS[slot::slots]]


class FakeRegister(Register):
    def __init__(self, attempt: Attempt, name: str) -> None:
        self.attempt, self.topics, self.name = attempt, attempt.topics, name
        self.epoch = -1
        self.open: list[bytes] = []
        self.has_begun = self.is_closed = False
        self.aborted = 0
        attempt.registers.append(self)

    def look(self) -> Mark | None:
        found: list[Mark | None] = []
        self.attempt.step(lambda: found.append(self.topics.marks.get(self.name)))
        return found[0]

    def claim(self) -> None:
        def effect() -> None:
            self.topics.epochs[self.name] += 1
            self.epoch = self.topics.epochs[self.name]

        self.attempt.step(effect)

    def begin(self) -> None:
        self.attempt.step(self.check)
        self.has_begun = True

    def send(self, row: Row) -> None:
        assert self.has_begun, "a row belongs to a transaction"

        def effect() -> None:
            self.check()
            self.open.append(row[3] or b"")

        self.attempt.step(effect)

    def commit(self, mark: Mark) -> None:
        assert self.has_begun, "so does a mark"

        def effect() -> None:
            self.check()
            self.topics.rows += self.open
            self.topics.marks[self.name] = mark

        self.attempt.step(effect)

    def check(self) -> None:
        if self.epoch != self.topics.epochs[self.name]:
            raise Fenced

    def abort(self) -> None:
        self.aborted += 1
        self.attempt.step(self.open.clear)

    def close(self) -> None:
        self.is_closed = True


def moments(batch: int = 0, slots: int = 1) -> range:
    """Before and after each step of an attempt that nobody disturbs."""
    attempt = Attempt(Topics())
    attempt.topics.marks["barnabas-q-head"] = Written(batch - 1, 1).mark()
    attempt.run(batch, slots - 1, slots)
    return range(2 * attempt.steps)


def at(moment: int, act: Callable[[], None]) -> Hook:
    return lambda now: act() if now == moment else None


def die() -> None:
    raise Death


def finish(topics: Topics, batch: int = 0, slots: int = 1) -> None:
    """What Spark does: each task of the batch once more, whatever was done."""
    for slot in range(slots):
        Attempt(topics).run(batch, slot, slots)


def test_a_task_writes_its_rows_and_says_so() -> None:
    topics = Topics()
    assert Attempt(topics).run() == Receipt(5, was_done=False)
    assert sorted(topics.rows) == rows_of(0, 0, 1)
    checksum = sum(crc32(value, crc32(b"t-None")) for value in rows_of(0, 0, 1))
    written = Written.of(topics.marks["barnabas-q-0"])
    assert written == Written(0, 1, 5, checksum), "later versions compare with it"
    assert Attempt(topics).run() == Receipt(5, was_done=True)
    assert len(topics.rows) == 5
    assert topics.epochs["barnabas-q-head"] == 1, "what is declared is not declared again"
    assert Attempt(topics).run(batch=1) == Receipt(5, was_done=False)
    assert len(topics.rows) == 10


@pytest.mark.parametrize("moment", moments())
def test_a_death_at_any_step_loses_nothing_and_doubles_nothing(moment: int) -> None:
    topics = Topics()
    with pytest.raises(Death):
        Attempt(topics, at(moment, die)).run()
    assert topics.rows in ([], rows_of(0, 0, 1)), "a reader sees all or nothing of a slot"
    finish(topics)
    assert sorted(topics.rows) == rows_of(0, 0, 1)


@pytest.mark.parametrize("moment", moments())
def test_a_second_attempt_at_any_step_of_the_first_and_both_succeed(moment: int) -> None:
    topics = Topics()
    copies: list[Receipt] = []
    first = Attempt(topics, at(moment, lambda: copies.append(Attempt(topics).run())))
    copies.append(first.run())
    assert sorted(copy.was_done for copy in copies) == [False, True]
    assert sorted(topics.rows) == rows_of(0, 0, 1)


@pytest.mark.parametrize("moment", moments())
def test_a_second_attempt_that_dies_at_any_step_while_the_first_is_at_any(moment: int) -> None:
    for death in moments():
        topics = Topics()

        def copy(topics: Topics = topics, death: int = death) -> None:
            with suppress(Death):  # none when it is done already: it has fewer steps then
                Attempt(topics, at(death, die)).run()

        try:
            Attempt(topics, at(moment, copy)).run()
        except SinkError as error:
            assert "taken over by another attempt" in str(error)  # noqa: PT017
        assert topics.once()
        finish(topics)
        assert sorted(topics.rows) == rows_of(0, 0, 1), (moment, death)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("moment", moments(batch=1))
def test_a_zombie_that_wakes_up_batches_later_adds_nothing(moment: int, slots: int) -> None:
    topics = Topics()
    finish(topics)

    def later() -> None:
        for batch in (1, 2, 3):
            finish(topics, batch, 1 if batch == 1 else slots)

    try:
        Attempt(topics, at(moment, later)).run(batch=1)
    except SinkError as error:
        assert "batch 3" in str(error)  # noqa: PT017
    assert topics.once()
    assert len(topics.rows) == 4 * len(ROWS)


@pytest.mark.parametrize("moment", moments(slots=2))
def test_another_number_of_slots_never_mixes_with_the_first(moment: int) -> None:
    """A zombie has one layout of the batch, the new run another."""
    topics = Topics()

    def new_run() -> None:
        for slot in (0, 1, 2):
            try:
                Attempt(topics).run(0, slot, 3)
            except SinkError as error:
                assert "was begun with slots=2" in str(error)  # noqa: PT017

    try:
        Attempt(topics, at(moment, new_run)).run(0, 1, 2)
    except SinkError as error:
        assert "was begun with slots=3" in str(error)  # noqa: PT017
    assert topics.once()
    head = Written.of(topics.marks["barnabas-q-head"])
    assert head is not None
    declared = head.slots
    finish(topics, slots=declared)
    assert sorted(topics.rows) == rows_of(0, 0, 1), declared


def test_the_number_of_slots_may_change_between_batches() -> None:
    topics = Topics()
    finish(topics, 0, slots=2)
    finish(topics, 1, slots=3)
    finish(topics, 2, slots=1)
    assert topics.once()
    assert len(topics.rows) == 3 * len(ROWS)


def test_rows_that_are_not_the_same_twice_are_told() -> None:
    topics = Topics()
    finish(topics, slots=2)
    for rows in ([b"0:0", b"0:2"], [b"0:0", b"0:2", b"0:5"], []):
        with pytest.raises(SinkError, match=r"slot 0 has other rows now .*3 were written"):
            Attempt(topics).run(0, 0, 2, rows=rows)
    assert len(topics.rows) == len(ROWS)
    again = Attempt(topics).run(0, 0, 2, rows=reversed(rows_of(0, 0, 2)))
    assert again == Receipt(3, was_done=True), "their order in a slot may differ"


def test_an_empty_slot_claims_nothing() -> None:
    topics = Topics()
    assert Attempt(topics).run(0, 0, 2, rows=[]) == Receipt(0, was_done=False)
    assert "barnabas-q-0" not in topics.epochs


def test_what_is_refused_before_anything_is_written() -> None:
    topics = Topics()
    with pytest.raises(SinkError, match=r"partition 4, but slots is 4; put .repartition\(4"):
        Attempt(topics).run(0, 4, 4)
    with pytest.raises(SinkError, match=r"nothing is known of the batches before 7 .*lostMarks"):
        Attempt(topics).run(7)
    assert not topics.marks
    finish(topics)
    finish(topics, 1)
    with pytest.raises(SinkError, match="batch 0 of q is over: batch 1 was begun"):
        Attempt(topics).run(0)
    assert len(topics.rows) == 2 * len(ROWS)


def test_rows_that_the_broker_refuses_are_aborted_and_told() -> None:
    topics = Topics()

    def refuse() -> None:
        raise SinkError("too large")

    attempt = Attempt(topics, at(18, refuse))  # the second row
    with pytest.raises(SinkError, match="too large"):
        attempt.run()
    assert attempt.registers[1].name == "barnabas-q-0"
    assert not topics.rows
    assert [one.aborted for one in attempt.registers] == [0, 1]


def test_slots_wait_for_the_first_one_to_declare_the_batch_and_then_do_it() -> None:
    """It may be dead; all at once would only shut each other out."""
    attempt = Attempt(Topics())
    assert attempt.run(0, 1, 2) == Receipt(2, was_done=False)
    assert attempt.pauses == list(range(10))
    assert attempt.topics.epochs["barnabas-q-head"] == 1


def test_who_is_shut_out_of_declaring_tries_again_after_a_pause() -> None:
    topics = Topics()
    rival = FakeRegister(Attempt(topics), "barnabas-q-head")
    attempt = Attempt(topics, at(3, rival.claim))  # the claim has just been made
    assert attempt.run() == Receipt(5, was_done=False)
    assert attempt.pauses == [0]


def test_a_slot_that_another_attempt_has_and_never_writes_is_waited_for_and_told() -> None:
    topics = Topics()
    Attempt(topics).run(0, 1, 2)  # the batch is declared
    rival = FakeRegister(Attempt(topics), "barnabas-q-0")
    attempt = Attempt(
        topics, lambda now: rival.claim() if topics.epochs["barnabas-q-0"] == 1 else None
    )
    with pytest.raises(SinkError, match="taken over by another attempt"):
        attempt.run(0, 0, 2)
    assert attempt.pauses == list(range(120))
    assert [one.aborted for one in attempt.registers] == [0, 0], "it is the other's now"


def test_a_mark_of_somebody_else_is_named() -> None:
    assert Written.of(Written(3, 2, 5, 7).mark()) == Written(3, 2, 5, 7)
    with pytest.raises(SinkError, match="somebody else commits offsets"):
        Written.of(Mark(3, ""))


def test_a_register_that_everybody_wants_is_given_up_with_the_reason() -> None:
    topics = Topics()
    rival = FakeRegister(Attempt(topics), "barnabas-q-head")
    with pytest.raises(SinkError, match="shut each other out"):
        Attempt(topics, lambda now: rival.claim() if now % 2 else None).run()
