"""The one pattern: decide, append, replay, answer when committed; and when that cannot be."""

from __future__ import annotations

import ast
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replication.metadata.image import PartitionRegistration
from replication.replicas.timer import BackgroundScheduler
from server.coordinator import held
from server.coordinator.deadlines import Deadlines, Moment, Once
from server.coordinator.gather import Gather
from server.coordinator.group_coordinator import GROUP_METADATA_TOPIC
from server.coordinator.machine import Batch, Decision, Effect, Machine, Reply
from server.coordinator.records import CoordinatorRecord, encode_record
from server.coordinator.runtime import TOPIC_WAIT_MS
from server.coordinator.shard import (
    RETRY_MS,
    AppendOutcome,
    Services,
    Shard,
    ShardState,
)
from server.coordinator.shard_log import RecordSerde, ReplicatedShardLog, ShardLogConfig
from storage.config import SystemClock
from storage.open_files import FileSlice
from testkit.clock import ManualTimer
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import Answer
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import OffsetCommitRequest
from wire.messages.groups_records import OffsetCommitKey, OffsetCommitValue
from wire.primitives import partition_for
from wire.records import Record, build_batch, end_txn_marker_batch

E = ErrorCode
HELD_MS = 5_000
BROKEN = 13


class Counter(Machine[int]):
    """A machine of one number; records are what to add. `parked` requests wait for a milestone."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.deadlines = Deadlines()
        self.outbox: list[tuple[Reply, object]] = []
        self.effects: list[Effect] = []
        self.done: list[int] = []
        self.parked: list[Reply] = []
        self.value = 0
        self.soft = 0

    def add(self, number: int) -> Decision[int]:
        return Decision([number], self.value + number)

    def park(self, reply: Reply) -> Decision[int]:
        return Decision(change=partial(self._park, reply))

    def _park(self, reply: Reply) -> None:
        self.soft += 1
        self.parked.append(reply)

    def release(self, number: int) -> Decision[int]:
        """Like a leader's SyncGroup: the record, once replayed, answers those that are parked."""
        return Decision([number], "released", self._soften)

    def _soften(self) -> None:
        self.soft += 1

    def replay(self, record: int) -> None:
        self.value += record
        if record == BROKEN:
            raise ZeroDivisionError
        if record >= 100:
            self.outbox += [(reply, self.value) for reply in self.parked]
            self.parked.clear()

    def on_loaded(self) -> None:
        pass

    def on_unloaded(self, error: KafkaError) -> None:
        self.outbox += [(reply, error) for reply in self.parked]
        self.parked.clear()


class MemoryLog:
    """A log whose appends are committed at once, later, or refused, as the test says."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.committed = 0
        self.replicates = False
        self.refuses = 0
        self.waiting: list[Callable[[AppendOutcome], None]] = []
        self.during_append: Callable[[], None] = lambda: None
        self.during_end_offset: Callable[[], None] = lambda: None
        self.epochs: list[int] = []
        self.broken: E | None = None
        self.led_since = 0
        self.watching: list[Callable[[], None]] = []

    def encode(self, records: Sequence[int], wall_ms: int, transaction: object) -> bytes:
        return repr(list(records)).encode()

    def append(
        self,
        batch: bytes,
        leader_epoch: int,
        transaction: object,
        on_complete: Callable[[AppendOutcome], None],
    ) -> None:
        self.during_append()
        if self.refuses:
            on_complete(AppendOutcome(self.refuses, is_appended=False))
            return
        self.epochs.append(leader_epoch)
        self.records += ast.literal_eval(batch.decode())
        if self.replicates:
            self.waiting.append(on_complete)
        else:
            self.committed = len(self.records)
            on_complete(AppendOutcome(0, is_appended=True))

    def commit(self) -> None:
        self.committed = len(self.records)
        waiting, self.waiting = self.waiting, []
        for on_complete in waiting:
            on_complete(AppendOutcome(0, is_appended=True))

    def commit_to(self, offset: int) -> None:
        """The high watermark moves, and no append of ours is behind it."""
        self.committed = offset
        for on_moved in self.watching:
            on_moved()

    def watch(self, on_moved: Callable[[], None]) -> None:
        self.watching.append(on_moved)

    def unwatch(self, on_moved: Callable[[], None]) -> None:
        self.watching.remove(on_moved)

    def time_out(self, code: int = E.REQUEST_TIMED_OUT) -> None:
        self.waiting.pop(0)(AppendOutcome(code, is_appended=True))

    def end_offset(self) -> int:
        self.during_end_offset()
        return len(self.records)

    def high_watermark(self, leader_epoch: int) -> int:
        return self.committed if self.led_since <= leader_epoch else -1

    def cut_off_and_led_by_another(self, led_since: int) -> None:
        """What was not committed is gone; others write as much, and it is committed."""
        del self.records[self.committed :]
        self.records += [0] * 10
        self.committed = len(self.records)
        self.led_since = led_since

    def is_empty(self) -> bool:
        return not self.records

    def read(self) -> Iterator[Batch[int]]:
        if self.broken is not None:
            raise KafkaError(self.broken)
        return iter([Batch([record]) for record in self.records])


class World:
    """One shard with everything around it in our hands."""

    def __init__(self) -> None:
        self.time = ManualTimer(1_000)
        self.log = MemoryLog()
        self.jobs: list[Callable[[], None]] = []
        services = Services(
            self.time.now_ms,
            self.time.wall_ms,
            self.time.add,
            lambda _, job: self.jobs.append(job),
            HELD_MS,
        )
        self.shard: Shard[Counter, int] = Shard(
            "test-0", self.log, lambda _, moment: Counter(moment), services
        )

    def active(self) -> World:
        self.shard.elected(1)
        self.run_jobs()
        assert self.shard.state is ShardState.ACTIVE
        return self

    def run_jobs(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()

    @property
    def machine(self) -> Counter:
        machine = self.shard.inspect()
        assert machine is not None
        return machine

    def add(self, number: int) -> Answer:
        answer = Answer()
        self.shard.write(lambda machine: machine.add(number), answer)
        return answer

    def read(self) -> Answer:
        answer = Answer()
        self.shard.read(lambda machine: machine.value, answer)
        return answer

    def park(self) -> Answer:
        answer = Answer()
        self.shard.write(lambda machine: machine.park(answer), answer)
        return answer

    def release(self, number: int = 100) -> Answer:
        answer = Answer()
        self.shard.write(lambda machine: machine.release(number), answer)
        return answer


# ---- the pattern


def test_a_write_is_appended_replayed_and_answered() -> None:
    world = World().active()
    assert world.add(5).response == 5
    assert world.add(2).response == 7
    assert (world.log.records, world.log.epochs) == ([5, 2], [1, 1])
    assert world.read().response == 7


def test_nothing_is_answered_before_the_high_watermark_covers_it_reads_included() -> None:
    world = World().active()
    assert world.read().response == 0
    world.log.replicates = True
    written = world.add(5)
    read = world.read()
    second = world.add(1)
    assert written.waits
    assert read.waits, "it would have told what can still be lost"
    assert second.waits
    world.log.commit()
    assert (written.response, read.response, second.response) == (5, 5, 6)
    assert world.read().response == 6


def test_the_next_request_is_decided_on_what_is_not_committed_yet() -> None:
    world = World().active()
    world.log.replicates = True
    world.add(5)
    later = world.add(1)
    world.log.commit()
    assert later.response == 6


def test_answers_go_out_one_commit_at_a_time() -> None:
    world = World().active()
    world.log.replicates = True
    first, second = world.add(1), world.add(2)
    on_complete = world.log.waiting.pop(0)
    world.log.committed = 1
    on_complete(AppendOutcome(0, is_appended=True))
    assert first.response == 1
    assert second.waits
    world.log.commit()
    assert second.response == 3


def test_a_refusal_is_an_answer_too_and_waits_like_one() -> None:
    world = World().active()
    world.log.replicates = True
    world.add(1)
    refused = Answer()

    def refuse(_: Counter) -> tuple[list[int], object]:
        raise KafkaError(E.UNKNOWN_MEMBER_ID)

    world.shard.write(refuse, refused)
    assert refused.waits
    world.log.commit()
    assert refused.error == E.UNKNOWN_MEMBER_ID


def test_a_parked_request_is_answered_when_the_record_that_frees_it_is_committed() -> None:
    world = World().active()
    parked = world.park()
    world.log.replicates = True
    released = world.release()
    assert parked.waits
    assert released.waits
    world.log.commit()
    assert (parked.response, released.response) == (100, "released")


def test_held_answers_are_given_when_the_high_watermark_moves() -> None:
    world = World().active()
    world.log.replicates = True
    world.add(1)
    read = world.read()
    world.log.commit_to(1)
    assert read.response == 1


# ---- when the log refuses


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.RECORD_LIST_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.INVALID_TIMESTAMP, E.INVALID_TIMESTAMP),
    ],
)
def test_the_client_is_told_what_kafka_tells_when_an_append_fails(
    code: ErrorCode, shown: ErrorCode
) -> None:
    world = World().active()
    world.add(3)
    world.log.refuses = code
    assert world.add(5).error == shown
    world.log.refuses = 0
    assert world.read().response == 3, "nothing of it is left"
    assert world.add(1).response == 4


def test_a_failed_append_disturbs_nobody_else() -> None:
    world = World().active()
    world.add(3)
    parked = world.park()
    before = world.machine
    world.log.refuses = E.NOT_ENOUGH_REPLICAS
    assert world.release().error == E.COORDINATOR_NOT_AVAILABLE
    assert parked.waits
    assert (before.value, before.soft) == (3, 1), "nothing was done of it"
    world.log.refuses = 0
    assert world.machine is before
    world.release()
    assert parked.response == 103


@pytest.mark.parametrize("code", [E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_an_append_that_is_not_confirmed_in_time_stays_since_it_is_in_the_log(
    code: ErrorCode,
) -> None:
    world = World().active()
    world.log.replicates = True
    answer = world.add(5)
    world.log.time_out(code)
    assert answer.error == E.COORDINATOR_NOT_AVAILABLE
    read = world.read()
    assert read.waits
    world.log.commit_to(1)
    assert read.response == 5


@pytest.mark.parametrize("code", [E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_an_append_that_is_given_up_when_it_is_committed_is_answered_once(code: ErrorCode) -> None:
    """Found by fuzzing: the high watermark came, and told, at the moment the append gave it up."""
    world = World().active()
    world.log.replicates = True
    answer = world.add(5)
    world.log.commit_to(1)
    world.log.time_out(code)
    assert answer.response == 5
    assert world.read().response == 5


def test_a_held_read_gives_up_when_the_high_watermark_never_comes() -> None:
    world = World().active()
    world.log.replicates = True
    world.add(5)
    read = world.read()
    world.time.pass_(HELD_MS - 1)
    assert read.waits
    world.time.pass_(1)
    assert read.error == E.COORDINATOR_NOT_AVAILABLE


def test_an_event_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a follower is slow thousands of producers may wait in one shard."""
    looks = 0

    class Looked(held.Held):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += 1
            return super().__getattribute__(name)

    monkeypatch.setattr(held, "Held", Looked)
    world = World().active()
    world.log.replicates = True
    answers, costs = [], []
    for _ in range(100):
        before = looks
        answers.append(world.add(1))
        costs.append(looks - before)
    assert costs[-1] == costs[5]
    assert all(answer.waits for answer in answers)
    world.log.commit()
    assert [answer.response for answer in answers] == list(range(1, 101))


def test_effects_wait_on_in_their_order_when_answers_have_given_up() -> None:
    waiting, ran = held.HeldAnswers(10), []
    for number in range(3):
        waiting.required_offset = number + 1
        waiting.hold([(ran.append, "told")], [partial(ran.append, number)], now_ms=number)
    waiting.commit_to(0, 11)
    assert waiting.next_deadline_ms() == 12
    run(waiting.take_deliveries())
    assert [str(error) for error in ran] == [str(held.coordinator_error(E.REQUEST_TIMED_OUT))] * 2
    ran.clear()
    waiting.commit_to(3, 11)
    run(waiting.take_deliveries())
    assert ran == [0, 1, "told", 2]
    assert not waiting.is_waiting


def run(deliveries: list[tuple[Callable[[Any], None], Any]]) -> None:
    for reply, what in deliveries:
        reply(what)


@pytest.mark.parametrize("moment", ["inside the append", "just after it"])
def test_an_append_that_another_thread_completes_early_is_not_lost(moment: str) -> None:
    world = World().active()
    log = world.log
    log.replicates = True

    def commit_elsewhere() -> None:
        thread = threading.Thread(target=log.commit)
        thread.start()
        thread.join()

    append = log.append

    def append_and_commit(*arguments: Any) -> None:
        append(*arguments)
        commit_elsewhere()

    if moment == "inside the append":
        log.append = append_and_commit  # type: ignore[method-assign]
    else:
        log.during_end_offset = commit_elsewhere
    assert world.add(5).response == 5


def test_a_failure_that_comes_before_we_began_to_wait_is_told_at_once() -> None:
    world = World().active()
    world.log.replicates = True
    world.log.during_end_offset = lambda: world.log.waiting and world.log.time_out()
    assert world.add(5).error == E.COORDINATOR_NOT_AVAILABLE


def _divides_by_zero(_: object, __: object = None) -> Any:
    raise ZeroDivisionError


def test_a_request_that_cannot_be_decided_costs_nobody_else_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World().active()
    world.add(3)
    parked = world.park()
    before = world.machine
    decided, read = Answer(), Answer()
    world.shard.write(_divides_by_zero, decided)
    world.shard.read(_divides_by_zero, read)
    assert decided.error == read.error == E.UNKNOWN_SERVER_ERROR
    assert parked.waits
    assert world.machine is before
    assert "ZeroDivisionError" in caplog.text


def test_a_record_that_cannot_be_encoded_costs_nobody_else_anything() -> None:
    world = World().active()
    parked = world.park()
    before = world.machine
    world.log.encode = _divides_by_zero  # type: ignore[method-assign]
    assert world.release().error == E.UNKNOWN_SERVER_ERROR
    assert (world.machine, world.machine.soft) == (before, 1)
    assert parked.waits
    assert not world.log.records


@pytest.mark.parametrize("number", [1, 0])
def test_a_change_of_ours_that_fails_is_told_and_the_machine_is_not_trusted_any_more(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World().active()
    world.add(3)
    parked = world.park()
    faulty = Answer()

    def break_down(machine: Counter) -> Decision[int]:
        def change() -> None:
            machine.value = 999
            raise ZeroDivisionError

        return Decision([number] if number else (), "done", change)

    world.shard.write(break_down, faulty)
    assert faulty.error == E.UNKNOWN_SERVER_ERROR
    assert parked.error == E.NOT_COORDINATOR, "it is asked to come back, not sent away"
    world.run_jobs()
    assert world.read().response == 3 + number
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("how", ["change", "elected", "resigned"])
def test_a_machine_that_cannot_even_say_farewell_is_let_go(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is torn may fail again when all that wait are to be told; the shard goes on without."""
    world = World().active()
    world.log.replicates = True
    waiting = world.add(3)
    world.machine.on_unloaded = _divides_by_zero  # type: ignore[method-assign]
    if how == "change":
        faulty = Answer()
        world.shard.write(lambda _: Decision(change=_divides_by_zero), faulty)
        assert faulty.error == E.UNKNOWN_SERVER_ERROR
    elif how == "elected":
        world.shard.elected(2)
    else:
        world.shard.resigned()
        world.shard.elected(2)
    assert waiting.error == E.NOT_COORDINATOR
    world.log.commit()
    world.run_jobs()
    assert world.read().response == 3
    assert "ZeroDivisionError" in caplog.text


def test_a_log_that_cannot_be_replayed_makes_us_no_coordinator() -> None:
    world = World().active()
    parked = world.park()
    assert world.add(BROKEN).error == E.UNKNOWN_SERVER_ERROR
    assert parked.error == E.NOT_COORDINATOR
    world.run_jobs()
    assert world.shard.state is ShardState.FAILED


# ---- effects


def test_an_effect_waits_until_what_led_to_it_is_committed() -> None:
    world = World().active()
    done: list[str] = []

    def prepare(machine: Counter) -> Decision[int]:
        return Decision([1], "ok", lambda: machine.effects.append(lambda: done.append("markers")))

    world.log.replicates = True
    answer = Answer()
    world.shard.write(prepare, answer)
    assert not done
    world.time.pass_(HELD_MS)
    assert answer.error == E.COORDINATOR_NOT_AVAILABLE, "who asked has waited long enough"
    assert not done
    world.log.commit_to(1)
    assert done == ["markers"], "it is committed all the same"


def test_an_effect_is_not_done_by_who_lost_the_leadership_but_told_again_after_loading() -> None:
    world = World()
    done: list[int] = []

    class Transactions(Counter):
        def on_loaded(self) -> None:
            if self.value == 1:
                self.effects.append(lambda: done.append(world.shard.leader_epoch))

        def replay(self, record: int) -> None:
            super().replay(record)
            self.on_loaded()

    class Loading(Transactions):
        def replay(self, record: int) -> None:
            Counter.replay(self, record)

    world.shard._new_machine = lambda _, moment: Transactions(moment)
    world.active()
    world.log.replicates = True
    world.add(1)
    world.shard.resigned()
    world.log.commit()
    assert not done, "whoever leads now does it"
    world.shard._new_machine = lambda _, moment: Loading(moment)
    world.log.committed = 0
    world.shard.elected(2)
    world.run_jobs()
    assert not done, "it is in the log, and may be lost yet"
    world.log.commit_to(1)
    assert done == [2]


# ---- leadership (G-2)


def test_before_the_election_and_after_the_resignation_we_are_not_the_coordinator() -> None:
    world = World()
    assert world.read().error == E.NOT_COORDINATOR
    world.active()
    world.shard.resigned()
    assert world.add(1).error == E.NOT_COORDINATOR
    assert not world.log.records


def test_while_loading_clients_are_asked_to_come_back() -> None:
    world = World()
    world.log.records = [1, 2]
    world.shard.elected(1)
    assert world.add(1).error == E.COORDINATOR_LOAD_IN_PROGRESS
    world.run_jobs()
    assert world.read().waits, "the high watermark has not come yet"
    world.log.commit_to(2)
    assert world.read().response == 3


def test_an_empty_log_is_loaded_before_the_election_returns() -> None:
    world = World()
    world.shard.elected(0)
    assert world.read().response == 0
    assert not world.jobs


def test_resigning_answers_everything_that_waits() -> None:
    world = World().active()
    parked = world.park()
    world.log.replicates = True
    written, read = world.add(1), world.read()
    world.shard.resigned()
    assert parked.error == written.error == read.error == E.NOT_COORDINATOR
    world.log.commit()
    assert len(written.results) == 1, "the late confirmation is ignored"
    assert world.time.is_idle


def test_a_load_that_was_overtaken_is_ignored() -> None:
    world = World()
    world.log.records, world.log.committed = [1], 1
    world.shard.elected(1)
    (late,) = world.jobs
    world.jobs.clear()
    world.shard.resigned()
    world.log.records, world.log.committed = [1, 2], 2
    world.shard.elected(2)
    late()
    assert world.shard.state is ShardState.LOADING
    world.run_jobs()
    assert world.read().response == 3


def test_a_load_that_was_overtaken_does_not_keep_the_next_one_waiting() -> None:
    world = World()
    world.log.records, world.log.committed = [1, 2, 3], 3
    read: list[int] = []

    def records() -> Iterator[Batch[int]]:
        for record in (1, 2, 3):
            read.append(record)
            if record == 1:
                world.shard.resigned()
            yield Batch([record])

    world.log.read = records  # type: ignore[method-assign]
    world.shard.elected(1)
    world.run_jobs()
    assert read == [1]
    assert world.shard.state is ShardState.CLOSED


def test_elected_resigned_and_elected_again_before_anything_was_loaded() -> None:
    world = World()
    world.log.records, world.log.committed = [1], 1
    parked = []
    for epoch in (1, 2):
        world.shard.elected(epoch)
        parked.append(world.add(1))
        world.shard.resigned()
    assert [answer.error for answer in parked] == [E.COORDINATOR_LOAD_IN_PROGRESS] * 2
    world.shard.elected(3)
    late = world.jobs[:2]
    world.jobs = world.jobs[2:]
    world.run_jobs()
    for job in late:
        job()
    assert world.shard.state is ShardState.ACTIVE
    assert world.read().response == 1
    assert world.add(1).response == 2
    assert world.log.epochs == [3]
    assert len(world.log.watching) == 1


def test_loading_is_a_matter_of_the_loaders_thread_alone() -> None:
    world = World()
    world.log.records, world.log.committed = [4], 1
    reached, go_on, active = threading.Event(), threading.Event(), threading.Event()

    def records() -> Iterator[Batch[int]]:
        reached.set()
        assert go_on.wait(60)
        yield Batch([4])

    class Told(Counter):
        def on_loaded(self) -> None:
            active.set()

    loader = BackgroundScheduler(SystemClock(), "loader")
    loader.start()
    world.log.read = records  # type: ignore[method-assign]
    world.shard._new_machine = lambda _, moment: Told(moment)
    world.shard._services = world.shard._services._replace(
        run_on_loader=lambda name, job: loader.schedule_once(name, 0, job)
    )
    try:
        world.shard.elected(1)
        assert reached.wait(60), "we came back, and somebody else reads"
        world.shard.high_watermark_moved()
        assert world.add(1).error == E.COORDINATOR_LOAD_IN_PROGRESS
        go_on.set()
        assert active.wait(60)
    finally:
        go_on.set()
        loader.shutdown()
    assert world.read().response == 4


def test_a_confirmation_of_an_earlier_leadership_confirms_nothing_now() -> None:
    world = World().active()
    world.log.replicates = True
    world.add(5)
    world.shard.elected(2)
    world.run_jobs()
    read = world.read()
    (late,) = world.log.waiting
    late(AppendOutcome(0, is_appended=True))
    assert read.waits, "in another leader's log the same offset may be another record"


@pytest.mark.parametrize("led_since", [2, 3])
def test_what_another_leader_committed_confirms_nothing_of_ours(led_since: int) -> None:
    world = World().active()
    world.log.replicates = True
    written = world.add(5)

    def lose_the_log_meanwhile(_: Counter) -> object:
        world.shard.resigned()  # heard of once this is done
        world.log.cut_off_and_led_by_another(led_since)
        return "looked"

    looked = Answer()
    world.shard.read(lose_the_log_meanwhile, looked)
    assert written.error == E.NOT_COORDINATOR, "5 is nowhere"
    assert looked.error == E.NOT_COORDINATOR, "it saw 5"


def test_what_another_leader_cut_off_while_we_appended_is_told_nobody() -> None:
    world = World().active()
    world.log.replicates = True
    read = Answer()

    def lose_the_log_meanwhile() -> None:
        if world.log.records:
            world.log.led_since = 2
            world.log.records.clear()
            world.shard.read(lambda machine: machine.value, read)
            world.shard.resigned()

    world.log.during_end_offset = lose_the_log_meanwhile
    written = world.add(5)
    assert (written.error, read.error) == (E.NOT_COORDINATOR, E.NOT_COORDINATOR)


@pytest.mark.parametrize("epoch", [0, 1])
def test_late_elections_are_ignored(epoch: int) -> None:
    world = World().active()
    parked = world.park()
    world.shard.elected(epoch)
    assert parked.waits
    assert world.shard.leader_epoch == 1


def test_a_new_epoch_starts_over() -> None:
    world = World().active()
    world.add(1)
    parked = world.park()
    world.shard.elected(2)
    assert parked.error == E.NOT_COORDINATOR
    world.run_jobs()
    world.add(1)
    assert world.log.epochs == [1, 2]


def test_a_damaged_log_makes_us_no_coordinator_until_the_next_election(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.log.records, world.log.committed, world.log.broken = [4], 1, E.CORRUPT_MESSAGE
    world.shard.elected(1)
    world.run_jobs()
    assert world.shard.state is ShardState.FAILED
    assert world.read().error == E.NOT_COORDINATOR
    assert "loading a coordinator partition failed" in caplog.text
    world.log.broken = None
    world.shard.elected(2)
    world.run_jobs()
    assert world.read().response == 4


@pytest.mark.parametrize("records", [[4], []])
def test_a_machine_that_does_not_begin_is_not_loaded_over_and_over(
    records: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty log is loaded on the spot, on whoever's thread that is."""
    world, begun = World(), []

    def begin(machine: Counter) -> None:
        begun.append(machine)
        if len(begun) < 5:
            raise ZeroDivisionError

    monkeypatch.setattr(Counter, "on_loaded", begin)
    world.log.records, world.log.committed = records, len(records)
    world.shard.elected(1)
    world.run_jobs()
    assert world.shard.state is ShardState.FAILED
    assert world.read().error == E.NOT_COORDINATOR
    assert len(begun) == 1
    assert not world.jobs
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("code", [E.KAFKA_STORAGE_ERROR, E.OFFSET_OUT_OF_RANGE])
def test_a_log_that_cannot_be_read_just_now_is_loaded_as_soon_as_it_can(code: ErrorCode) -> None:
    """Found by simulation: out of descriptors for a moment, and a group had no coordinator until
    somebody else was elected. Likewise where records were deleted at the start beside the load."""
    world = World()
    world.log.records, world.log.committed, world.log.broken = [4], 1, code
    world.shard.elected(1)
    world.run_jobs()
    assert world.read().error == E.COORDINATOR_LOAD_IN_PROGRESS
    world.log.broken = None
    world.time.pass_(RETRY_MS)
    world.run_jobs()
    assert world.read().response == 4


def test_a_load_that_is_begun_again_is_not_that_of_a_later_election() -> None:
    world = World()
    world.log.records, world.log.committed, world.log.broken = [4], 1, E.KAFKA_STORAGE_ERROR
    world.shard.elected(1)
    world.run_jobs()
    world.log.broken = None
    world.shard.resigned()
    world.time.pass_(RETRY_MS)
    assert not world.jobs
    assert world.read().error == E.NOT_COORDINATOR


# ---- deadlines


def test_deadlines_run_when_their_time_has_come_and_may_write() -> None:
    world = World().active()

    def plan(machine: Counter) -> object:
        machine.deadlines.set("tick", machine.moment.now_ms + 300, lambda: Decision([7]))
        machine.deadlines.set("later", machine.moment.now_ms + 900, lambda: Decision([1]))
        return "planned"

    answer = Answer()
    world.shard.read(plan, answer)
    assert answer.response == "planned"
    world.time.pass_(299)
    assert world.log.records == []
    world.time.pass_(1)
    assert world.log.records == [7]
    world.time.pass_(600)
    assert world.log.records == [7, 1]
    assert world.time.is_idle


def test_a_deadline_that_moved_later_runs_later_and_once() -> None:
    world = World().active()
    runs: list[int] = []

    def plan(machine: Counter) -> object:
        machine.deadlines.set("session", world.time.ms + 100, lambda: runs.append(world.time.ms))
        return "planned"

    world.shard.read(plan, Answer())
    for _ in range(5):
        world.time.pass_(90)
        world.shard.read(plan, Answer())
    world.time.pass_(100)
    assert runs == [world.time.ms]
    world.time.pass_(1_000)
    assert len(runs) == 1


@pytest.mark.parametrize("what", ["append", "encode", "decide"])
def test_a_deadline_that_could_not_be_written_comes_again(what: str) -> None:
    world = World().active()
    encode = world.log.encode
    faults = [what] if what == "decide" else []

    def tick() -> Decision[int]:
        if faults:
            raise ZeroDivisionError
        return Decision([7])

    world.shard.read(lambda m: m.deadlines.set("tick", world.time.ms + 300, tick), Answer())
    if what == "append":
        world.log.refuses = E.NOT_ENOUGH_REPLICAS
    elif what == "encode":
        world.log.encode = _divides_by_zero  # type: ignore[method-assign]
    world.time.pass_(300)
    assert world.log.records == []
    world.log.refuses, world.log.encode = 0, encode  # type: ignore[method-assign]
    faults.clear()
    world.time.pass_(RETRY_MS - 1)
    assert world.log.records == []
    world.time.pass_(1)
    assert world.log.records == [7]


@pytest.mark.parametrize("code", [E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR])
def test_of_many_deadlines_one_tries_a_log_that_takes_nothing(
    code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    """Each tried it every 500 ms, with a line in the log: thousands held up the timer's thread."""
    world = World().active()
    appends: list[int] = []
    told: list[int] = []

    def plan(machine: Counter) -> None:
        at_ms = world.time.ms + 100
        for number in range(1_000):
            machine.deadlines.set(number, at_ms, lambda: Decision([1]))
        tell = Decision[int](change=lambda: told.append(world.time.ms))
        machine.deadlines.set("tell", at_ms, lambda: tell)

    world.shard.read(plan, Answer())
    world.log.refuses = code
    world.log.during_append = lambda: appends.append(world.time.ms)
    began_ms = world.time.ms
    world.time.pass_(100)
    assert told == [world.time.ms], "what writes nothing waits for nobody"
    world.time.pass_(2_000)
    assert appends == list(range(began_ms + 100, world.time.ms + 1, 250))
    assert len(caplog.records) == len(appends)
    assert world.add(5).error is not None
    world.log.refuses = 0
    assert world.add(5).response == 5, "clients are served as soon as the log takes it"
    world.time.pass_(RETRY_MS)
    assert world.read().response == 1_005


def test_a_deadline_that_the_log_refuses_again_and_again_holds_no_other_one_up() -> None:
    """As where the disk has room for the small ones."""
    world = World().active()
    append = world.log.append

    def refuse_the_large(batch: bytes, *more: Any) -> None:
        world.log.refuses = E.KAFKA_STORAGE_ERROR if b"1000" in batch else 0
        append(batch, *more)

    world.log.append = refuse_the_large  # type: ignore[method-assign]

    def plan(machine: Counter) -> None:
        machine.deadlines.set("large", world.time.ms + 100, lambda: Decision([1_000]))
        for number in range(20):
            machine.deadlines.set(number, world.time.ms + 101 + number, lambda: Decision([1]))

    world.shard.read(plan, Answer())
    world.time.pass_(100 + RETRY_MS - 1)
    assert world.read().response == 20


def test_a_deadline_whose_work_others_will_do_comes_once() -> None:
    world = World().active()
    runs: list[int] = []

    def tick() -> Decision[int]:
        runs.append(world.time.ms)
        return Decision([7])

    world.shard.read(lambda m: m.deadlines.set("tick", world.time.ms + 300, Once(tick)), Answer())
    world.log.refuses = E.MESSAGE_TOO_LARGE
    world.time.pass_(300)
    world.log.refuses = 0
    assert world.time.is_idle
    assert (len(runs), world.log.records) == (1, [])


# ---- one owner, nobody waits


def test_a_callback_from_within_an_append_may_use_the_shard() -> None:
    world = World().active()
    inner = Answer()

    def from_under_the_lock() -> None:
        world.log.during_append = lambda: None
        world.shard.read(lambda machine: machine.value, inner)
        assert inner.waits, "it is the owner's turn first"

    world.log.during_append = from_under_the_lock
    assert world.add(5).response == 5
    assert inner.response == 5


class LeavingLock:
    """A shard's lock; another thread does something as the first owner leaves: between its last
    look and its release, or right after that."""

    def __init__(
        self, before: Callable[[], object] | None = None, after: Callable[[], object] | None = None
    ) -> None:
        self._inner = threading.Lock()
        self._before, self._after = before, after

    def acquire(self, blocking: bool) -> bool:
        return self._inner.acquire(blocking)

    def release(self) -> None:
        before, after, self._before, self._after = self._before, self._after, None, None
        if before is not None:
            before()
        self._inner.release()
        if after is not None:
            after()


def test_an_event_that_comes_while_the_owner_leaves_is_not_forgotten() -> None:
    world = World().active()
    late = Answer()

    def post() -> None:
        world.shard.read(lambda machine: machine.value, late)
        assert late.waits

    world.shard._lock = LeavingLock(before=post)  # type: ignore[assignment]
    world.add(5)
    assert late.response == 5


def test_what_the_next_owner_has_to_tell_is_told_once() -> None:
    """The next one is done before the one that leaves looks at anything."""
    world = World().active()
    told: list[object] = []

    def look() -> None:
        world.shard.read(lambda machine: machine.value, told.append)

    world.shard._lock = LeavingLock(after=look)  # type: ignore[assignment]
    world.shard._post(lambda: None)  # it has nothing to tell
    assert told == [0]


def test_an_answer_may_be_followed_by_the_next_request_on_the_spot() -> None:
    world = World().active()
    second = Answer()
    world.shard.write(
        lambda machine: machine.add(1),
        lambda _: world.shard.write(lambda machine: machine.add(2), second),
    )
    assert second.response == 3


def test_a_failing_callback_does_not_keep_others_from_their_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World().active()
    world.log.replicates = True
    world.shard.write(lambda machine: machine.add(1), lambda _: 1 // 0)
    other = world.add(2)
    world.log.commit()
    assert other.response == 3
    assert "answering a request failed" in caplog.text


def test_requests_of_many_threads_are_served_one_at_a_time_and_answered_once() -> None:
    world = World().active()
    threads_count, each = 6, 300
    answers: list[int] = []
    failures: list[BaseException] = []

    def client() -> None:
        try:
            for _ in range(each):
                done = threading.Event()
                found: list[Any] = []

                def take(result: Any, found: list[Any] = found, done: Any = done) -> None:
                    found.append(result)
                    done.set()

                world.shard.write(lambda machine: machine.add(1), take)
                assert done.wait(60)
                answers.append(found[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sorted(answers) == list(range(1, threads_count * each + 1)), "each saw its own state"
    assert world.machine.value == len(world.log.records) == threads_count * each


# ---- which partition (G-1)


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("console-consumer-1", None),
        ("\N{GRINNING FACE}", 1772899),
        ("gröup", None),
    ],
)
def test_keys_go_where_javas_hash_code_sends_them(key: str, java_hash: int | None) -> None:
    value = 0
    for unit in memoryview(key.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) % 2**32
    value = value - 2**32 if value >= 2**31 else value
    if java_hash is not None:
        assert value == java_hash
    positive = 0 if value == -(2**31) else abs(value)
    assert partition_for(key, 50) == positive % 50
    assert partition_for(key, 1) == 0


# ---- the whole coordinator on real logs


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def test_the_first_question_for_a_coordinator_makes_the_topic_and_waits_for_it(
    node: Node,
) -> None:
    node.controller.is_slow = True
    first, second = node.find("a"), node.find("b")
    assert first.waits
    (request, _), *others = node.controller.requests
    assert not others, "it is created once"
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (
        GROUP_METADATA_TOPIC, 3, 1,
    )  # fmt: skip
    assert {c.name: c.value for c in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    node.controller.run()
    assert first.response.broker_id == second.response.broker_id == 1
    assert node.commit("a", 5).response.topics[0].partitions[0].error_code == 0


def test_a_topic_that_does_not_come_in_time_is_not_waited_for(node: Node) -> None:
    node.controller.is_slow = True
    answer = node.find()
    node.pass_time(TOPIC_WAIT_MS - 100)
    assert answer.waits
    node.pass_time(200)
    assert answer.error == E.COORDINATOR_NOT_AVAILABLE
    node.controller.run()
    assert node.find().response.broker_id == 1


def test_a_wait_that_is_over_does_not_cut_the_next_one_short(node: Node) -> None:
    node.controller.is_slow = True
    node.controller.error = E.INVALID_REPLICATION_FACTOR
    first = node.find()
    node.pass_time(1_000)
    node.controller.run()
    assert first.error == E.COORDINATOR_NOT_AVAILABLE
    node.controller.error = 0
    second = node.find()
    node.pass_time(TOPIC_WAIT_MS - 500)
    assert second.waits, "it has asked half a second less than that ago"
    node.controller.run()
    assert second.response.broker_id == 1


def test_an_answer_to_an_earlier_wait_does_not_cut_the_next_one_short(node: Node) -> None:
    node.controller.is_slow = True
    first = node.find()
    node.pass_time(TOPIC_WAIT_MS + 100)
    assert first.error == E.COORDINATOR_NOT_AVAILABLE
    second = node.find()
    _, late = node.controller.requests[0]
    late(KafkaError(E.REQUEST_TIMED_OUT))
    assert second.waits
    node.controller.run()
    assert second.response.broker_id == 1


def test_a_topic_that_cannot_be_created_is_reported(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.controller.error = E.INVALID_REPLICATION_FACTOR
    assert node.find().error == E.COORDINATOR_NOT_AVAILABLE
    assert "INVALID_REPLICATION_FACTOR" in caplog.text
    node.controller.error = 0
    assert node.find().response.broker_id == 1


def test_offsets_are_in_the_log_and_there_again_after_a_restart(node: Node) -> None:
    node.find()
    groups = [f"group-{i}" for i in range(20)]
    for i, group in enumerate(groups):
        node.commit(group, i)
        node.commit(group, i + 100)
    assert len({node.groups.partition_for(group) for group in groups}) == 3
    before = [shard.inspect().digest() for shard in node.groups.runtime.shards()]  # type: ignore[union-attr]
    node.restart()
    assert [node.fetch(group) for group in groups] == [i + 100 for i in range(20)]
    assert [shard.inspect().digest() for shard in node.groups.runtime.shards()] == before  # type: ignore[union-attr]
    listed = Answer()
    node.groups.list_groups([], [], listed)
    assert {group.group_id for group in listed.response} == set(groups)


@pytest.mark.parametrize("codec", range(5))
def test_offsets_that_compress_very_well_are_there_again_after_a_restart(
    codec: int, tmp_path: Path
) -> None:
    """What was written compressed must be within what is decompressed: the partition could not be
    loaded, and all its groups had no coordinator."""
    node = Node(tmp_path, offsets_topic_compression_codec=codec)
    node.find()
    partition, answer = OffsetCommitRequest.Topic.Partition, Answer()
    topic = OffsetCommitRequest.Topic(
        name="t",
        partitions=[
            partition(partition_index=index, committed_offset=5, committed_metadata="a" * 4_096)
            for index in range(500 if codec else 100)
        ],
    )
    request = OffsetCommitRequest(group_id="g", member_id="", topics=[topic])
    node.groups.commit_offsets(request, 9, answer)
    assert {one.error_code for one in answer.response.topics[0].partitions} == {0}

    node.restart()

    assert node.fetch("g") == 5
    node.close()


def test_a_disk_that_does_not_give_a_coordinators_records_is_offline(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard alone was given up: the broker led on, and the group had no coordinator."""
    node.find()
    node.commit("g", 5)
    node.loads_slowly = True
    node.restart()

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(FileSlice, "read", fails)
        for load in node.loads:
            load()
    assert node.logs.offline_dirs == {node.root}
    assert node.groups.runtime.shards() == [], "another broker is elected"
    assert node.commit("g", 6).error == E.NOT_COORDINATOR


def test_offsets_of_transactions_count_when_they_were_committed(node: Node) -> None:
    """Apache Kafka may have written them; a shard must not serve what was aborted."""
    node.find()
    index = node.groups.partition_for("g")
    partition = node.replica_manager.partition((GROUP_METADATA_TOPIC, index))

    def append(batch: bytes) -> None:
        log = partition.open_log()
        log.append_as_follower(batch, 0)
        log.update_high_watermark(log.log_end_offset)

    def transaction(producer_id: int, topic: str, outcome: ControlRecordType | None) -> None:
        key, value = encode_record(
            CoordinatorRecord(
                OffsetCommitKey(group="g", topic=topic, partition=0),
                OffsetCommitValue(offset=producer_id, metadata="", commit_timestamp=1),
            )
        )
        end = partition.open_log().log_end_offset
        append(
            build_batch(
                [Record(-1, 1, key, value, ())],
                base_offset=end,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                leader_epoch=0,
                is_transactional=True,
            )
        )
        if outcome is not None:
            append(
                end_txn_marker_batch(
                    EndTxnMarker(outcome, 0),
                    producer_id=producer_id,
                    producer_epoch=0,
                    timestamp=1,
                    base_offset=end + 1,
                    leader_epoch=0,
                )
            )

    transaction(11, "committed", ControlRecordType.COMMIT)
    transaction(12, "aborted", ControlRecordType.ABORT)
    transaction(13, "open", None)
    node.restart()
    assert [node.fetch("g", t) for t in ("committed", "aborted", "open")] == [11, -1, -1]


def test_a_shard_that_resigned_does_not_watch_its_log_any_more() -> None:
    world = World().active()
    assert world.log.watching
    world.shard.elected(2)
    world.run_jobs()
    assert len(world.log.watching) == 1
    world.shard.resigned()
    assert world.log.watching == []


def test_nothing_is_appended_in_an_epoch_that_we_were_not_elected_in(node: Node) -> None:
    node.find()
    index = node.groups.partition_for("g")
    partition = node.replica_manager.partition((GROUP_METADATA_TOPIC, index))
    known = partition.registration
    assert known is not None
    newer = replace(
        known, leader_epoch=known.leader_epoch + 1, partition_epoch=known.partition_epoch + 1
    )
    partition.make_leader(newer, partition.open_log())
    end_offset = partition.open_log().log_end_offset
    assert node.commit("g", 1).error == E.NOT_COORDINATOR
    assert partition.open_log().log_end_offset == end_offset


def test_an_offset_is_committed_to_who_led_without_a_break_since_it_was_appended(
    node: Node,
) -> None:
    node.find()
    key = (GROUP_METADATA_TOPIC, node.groups.partition_for("g"))
    node.commit("g", 1)
    partition = node.replica_manager.partition(key)
    known = partition.registration
    assert known is not None
    epoch = known.leader_epoch
    serde = RecordSerde(encode_record, lambda _key, _value: None)
    log = ReplicatedShardLog(node.replica_manager, key, serde, ShardLogConfig(1, 1, 0))
    assert log.high_watermark(epoch) == log.end_offset() > 0

    def metadata(leader_epoch: int, leader: int) -> PartitionRegistration:
        return replace(
            known, leader=leader, leader_epoch=leader_epoch, partition_epoch=leader_epoch + 9
        )

    partition.make_leader(metadata(epoch + 1, known.leader), partition.open_log())
    assert log.high_watermark(epoch) == log.end_offset(), "nobody else led"
    partition.make_follower(metadata(epoch + 2, 2), partition.open_log())
    assert log.high_watermark(epoch) == -1
    partition.make_leader(metadata(epoch + 3, known.leader), partition.open_log())
    assert log.high_watermark(epoch) == -1
    assert log.high_watermark(epoch + 3) == log.end_offset()


def test_requests_for_partitions_of_others_are_turned_away(node: Node) -> None:
    assert node.commit("g", 1).error == E.NOT_COORDINATOR, "there is no topic yet"
    node.find()
    for index in range(3):
        node.groups.runtime.on_leadership((GROUP_METADATA_TOPIC, index), None)
    assert node.commit("g", 1).error == E.NOT_COORDINATOR


def test_the_coordinators_topic_may_be_deleted_and_made_again(node: Node) -> None:
    node.find()
    node.commit("g", 1)
    for index in range(3):
        node.groups.runtime.on_leadership((GROUP_METADATA_TOPIC, index), 5)
        node.groups.runtime.on_leadership((GROUP_METADATA_TOPIC, index), None)
        node.groups.runtime.on_leadership((GROUP_METADATA_TOPIC, index), 0)
    assert node.fetch("g") == 1


def test_the_topics_id_and_size_are_known_together_or_not_at_all(node: Node) -> None:
    """Another thread that asks in between sees the old pair or the new one."""
    node.find()
    runtime = node.groups.runtime
    expected = [runtime.partition_for(f"g{i}") for i in range(50)]
    runtime._placement = (b"another topic's", 1)
    seen: list[int] = []

    class Partitions(dict[int, object]):
        def __len__(self) -> int:
            seen.append(runtime.partition_for("g7"))
            return 3

    image = node.image
    topic = image.topics_by_name[GROUP_METADATA_TOPIC]
    peeking = replace(topic, partitions=Partitions())
    images = iter([replace(image, topics_by_name={GROUP_METADATA_TOPIC: peeking})])
    runtime._around = runtime._around._replace(metadata=lambda: next(images, image))
    assert runtime.partition_for("g7") == expected[7]
    assert seen == [expected[7]]


def test_a_resignation_that_overtakes_an_election_leaves_no_shard_behind(node: Node) -> None:
    """Each shard hears of its leadership in the order in which the runtime did."""
    node.find()
    runtime = node.groups.runtime
    key = (GROUP_METADATA_TOPIC, 0)
    shard = runtime._shards[0]
    note = shard.note_elected

    def resign_meanwhile(epoch: int) -> None:
        note(epoch)
        thread = threading.Thread(target=runtime.on_leadership, args=(key, None))
        thread.start()
        threads.append(thread)

    threads: list[threading.Thread] = []
    shard.note_elected = resign_meanwhile  # type: ignore[method-assign]
    runtime.on_leadership(key, 9)
    threads[0].join(60)
    assert 0 not in runtime._shards
    assert shard.state is ShardState.CLOSED


def test_an_election_during_the_shutdown_changes_nothing(node: Node) -> None:
    runtime = node.groups.runtime
    runtime.shutdown()
    runtime.on_leadership((GROUP_METADATA_TOPIC, 0), 7)
    assert not runtime._shards


def test_after_the_shutdown_clients_are_sent_away(node: Node) -> None:
    node.find()
    node.groups.shutdown()
    assert node.commit("g", 1).error == E.COORDINATOR_NOT_AVAILABLE
    listed = Answer()
    node.groups.list_groups([], [], listed)
    assert listed.error == E.COORDINATOR_NOT_AVAILABLE, "not that there are no groups"
    assert node.find("g").response.broker_id == 1, "where the group is, is still known"


def test_answers_of_many_parts_come_once_and_in_order() -> None:
    told: list[list[int]] = []
    gather = Gather(3, told.append)
    gather.put(2, 30)
    gather.put(0, 10)
    assert not told
    gather.put(1, 20)
    assert told == [[10, 20, 30]]
    Gather(0, told.append)
    assert told[1:] == [[]]
