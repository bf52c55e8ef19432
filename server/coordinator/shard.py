"""The one pattern: a replicated state machine behind every coordinator (groups, transactions).

Why: a coordinator's answer must be as durable as an acknowledged record, and a new leader must know
everything an old one answered. So a coordinator is a deterministic machine over a compacted log:

    decide                         on fresh state, changing nothing (`machine.Decision`)
    encode                         the records as one batch
    append                         acks=all, to this partition of the topic
    change and replay              so the next request is decided on what this one did
    hold answers and effects       until the high watermark covers all they were based on, reads
                                   too: nobody may act on what can still be lost

Whatever fails before the records are in the log, costs that one request and nobody else: nothing
was changed yet. The machine is thrown away only if leadership is lost, or if `change` or `replay`
fails, which is a fault of ours; then it is loaded again from the log, and everybody else who waits
is told NOT_COORDINATOR, which every client takes as "ask again". A deadline whose decision could
not be written comes again after `RETRY_MS`, unless it is of those that need not (`Once`).

A `Shard` is one partition. Its states:

    Initial --elected--> Loading --log replayed--> Active --resigned--> Closed
                            |                        |  '--fault of ours--> Loading
                            '--cannot be replayed--> Failed (until the next election)

Loading answers COORDINATOR_LOAD_IN_PROGRESS, Failed and Closed NOT_COORDINATOR. Elections carry the
leader epoch; late ones are ignored (G-2). Waiting requests of a closed shard get NOT_COORDINATOR.

Threads: a shard has one owner at a time and nobody ever waits for it. Events (requests, timers, the
outcome of appends, elections) go into a mailbox; whoever can take the lock without waiting works
off the mailbox, everybody else leaves. So handlers never block, callbacks from under other locks
cannot deadlock, and on one thread a request is served before `write` returns. Answers are delivered
after the lock was released. A log that is not empty is loaded by the loader's thread, without the
lock. A deadline that writes does so on the timer's thread: a few hundred bytes into the page cache,
a few times a minute.

Duties of the caller (who wires it up):
1. `elected(epoch)` and `resigned()` for every change of leadership of the partition.
2. `on_complete` callbacks must not raise and must not wait; they get a response or a KafkaError.

Budget: 4 µs for a read, 8 µs for a write, on top of the machine and the log.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol

from server.coordinator.deadlines import Job, Moment, Once
from server.coordinator.held import Held, HeldAnswers, coordinator_error
from server.coordinator.machine import (
    Answer,
    Batch,
    Decision,
    Effect,
    M,
    R,
    Reply,
    Transaction,
    replay_batch,
)
from server.coordinator.transaction_markers import TxnMarker
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

RETRY_MS = 500
"""After how long a deadline that could not be written comes again (Kafka: CoordinatorTimerImpl),
and a load that could not be done just then is begun again."""

_REFUSED_MS = RETRY_MS // 2
"""After a deadline that the log did not take for want of replicas or room, how long no other one is
written: of thousands that are due one tries it, each time another."""

_TAKES_NOTHING = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR})

_LOADED_AGAIN = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE})
"""The disk would not be read, for want of descriptors perhaps; or the log's start moved beyond
where the load was: records were deleted (retention, kafka-delete-records, a shard of before)."""


class AppendOutcome(NamedTuple):
    """What became of one append; `error_code` 0 = the high watermark covers it."""

    error_code: int
    is_appended: bool
    """Whether the records are in the log, committed or not."""


class ShardLog(Protocol[R]):
    """One partition of the coordinator's topic, as the shard sees it."""

    def encode(
        self, records: Sequence[R], wall_ms: int, transaction: Transaction | TxnMarker | None
    ) -> bytes:
        """The records as one batch, or the marker. KafkaError: the log cannot keep them."""

    def append(
        self,
        batch: bytes,
        leader_epoch: int,
        transaction: Transaction | TxnMarker | None,
        on_complete: Callable[[AppendOutcome], None],
    ) -> None:
        """Append one batch with acks=all. `on_complete` runs exactly once: with an error before
        this returns if nothing was appended, else when the outcome is known.
        """

    def end_offset(self) -> int:
        """The log end offset; 0 if the log is gone."""

    def high_watermark(self, leader_epoch: int) -> int:
        """The high watermark; -1 if the log is gone, or another leader may have cut off and written
        anew what was appended in this epoch."""

    def read(self) -> Iterator[Batch[R]]:
        """All batches from the log's start to its end. KafkaError if we do not lead it."""

    def is_empty(self) -> bool:
        """Whether there is nothing to read, so that loading takes no time."""

    def watch(self, on_moved: Callable[[], None]) -> None:
        """Call `on_moved` whenever the high watermark may have moved, on any thread."""

    def unwatch(self, on_moved: Callable[[], None]) -> None:
        """Call it no more."""


class Alarm(Protocol):
    """A pending timer."""

    def cancel(self) -> object: ...


class Services(NamedTuple):
    """What a shard needs of the world."""

    now_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    add_timer: Callable[[int, Callable[[], None]], Alarm]
    """Run a function once after a delay in ms; it may run on any thread."""
    run_on_loader: Callable[[str, Callable[[], None]], object]
    """Run a slow job (name, job) on the loader's thread."""
    held_timeout_ms: int
    """How long an answer may wait for the high watermark (offsets.commit.timeout.ms)."""


class ShardState(enum.Enum):
    """See the module."""

    INITIAL = "Initial"
    LOADING = "Loading"
    ACTIVE = "Active"
    FAILED = "Failed"
    CLOSED = "Closed"


class _Append:
    """One append on its way. `outcome` stays None while it waits for the high watermark."""

    __slots__ = ("held", "load_number", "outcome")

    def __init__(self, load_number: int) -> None:
        self.load_number = load_number
        self.outcome: AppendOutcome | None = None
        self.held: Held | None = None


class Shard(Generic[M, R]):
    """One partition: its machine, its log, and the answers that wait. See the module for threads.

    Everything below `_lock` is touched by its holder only.
    """

    def __init__(
        self,
        name: str,
        log: ShardLog[R],
        new_machine: Callable[[int, Moment], M],
        services: Services,
    ) -> None:
        """`new_machine` is told the leader epoch that the machine is for."""
        self.name = name
        self.state = ShardState.INITIAL
        """Written by the owner; may be read by anybody as a hint."""
        self.leader_epoch = -1
        self._log = log
        self._new_machine = new_machine
        self._services = services
        self._mailbox: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._moment = Moment()
        self._machine: M | None = None
        self._load_number = 0
        self._held = HeldAnswers(services.held_timeout_ms)
        self._alarm: Alarm | None = None
        self._alarm_ms = 0
        self._refused_until_ms = 0
        """Until when deadlines are not written."""

    # -- events, from any thread -------------------------------------------------------------

    def elected(self, leader_epoch: int) -> None:
        """We lead the partition in this epoch: load it."""
        self.note_elected(leader_epoch)
        self.work()

    def resigned(self) -> None:
        """We lead it no more: forget everything."""
        self.note_resigned()
        self.work()

    def note_elected(self, leader_epoch: int) -> None:
        """As `elected`, once somebody works; for callers that hold a lock over their order."""
        self._mailbox.append(partial(self._elected, leader_epoch))

    def note_resigned(self) -> None:
        """As `resigned`, once somebody works."""
        self._mailbox.append(partial(self._close, KafkaError(ErrorCode.NOT_COORDINATOR)))

    def write(self, decide: Callable[[M], Decision[R]], on_complete: Reply) -> None:
        """Decide, append, replay, and answer when it is committed.

        A KafkaError that `decide` raises is the answer; any other exception is answered
        UNKNOWN_SERVER_ERROR.
        """
        self._mailbox.append(partial(self._write, decide, on_complete))
        self.work()

    def read(self, look: Callable[[M], object], on_complete: Reply) -> None:
        """Look, and answer when what was seen is committed; `look` raises as `decide` does."""
        self._mailbox.append(partial(self._read, look, on_complete))
        self.work()

    def high_watermark_moved(self) -> None:
        """The log's high watermark may cover what answers wait for.

        Who is about to hold an answer looks at the high watermark once it is on the list, so
        nothing is missed when there is none yet.
        """
        if self._held.is_waiting:
            self._mailbox.append(self._release)
            self.work()

    def inspect(self) -> M | None:
        """The machine, for a look by whoever does not own it: what is seen may be over. None unless
        active."""
        return self._machine

    # -- the owner ---------------------------------------------------------------------------

    def _post(self, event: Callable[[], None]) -> None:
        self._mailbox.append(event)
        self.work()

    def work(self) -> None:
        """Work off the mailbox, unless somebody does."""
        mailbox = self._mailbox
        # Looked at again after each release: an event posted while we held the lock has nobody
        # else to work it off.
        while mailbox and self._lock.acquire(False):
            try:
                self._work_off(mailbox)
            finally:
                deliveries = self._held.take_deliveries()
                self._lock.release()
            for reply, response in deliveries:
                try:
                    reply(response)
                except Exception:
                    logger.exception("answering a request failed shard=%s", self.name)

    def _work_off(self, mailbox: deque[Callable[[], None]]) -> None:
        services = self._services
        while mailbox:
            event = mailbox.popleft()
            moment = self._moment
            moment.now_ms = services.now_ms()
            moment.wall_ms = services.wall_ms()
            try:
                event()
                if self._machine is not None:
                    self._run_deadlines(self._machine)
            except Exception:
                self._reset()

    def _write(self, decide: Callable[[M], Decision[R]], on_complete: Reply) -> None:
        machine = self._machine
        if machine is None:
            self._held.deliveries.append((on_complete, self._refusal()))
            return
        try:
            self._attempt(machine, decide, on_complete)
        except Exception:
            self._reset()
            # Unless it was parked: then it was told what all that wait were told.
            if all(reply is not on_complete for reply, _ in self._held.deliveries):
                error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
                self._held.deliveries.append((on_complete, error))

    def _read(self, look: Callable[[M], object], on_complete: Reply) -> None:
        machine = self._machine
        if machine is None:
            self._held.deliveries.append((on_complete, self._refusal()))
            return
        try:
            response = look(machine)
        except KafkaError as error:
            response = error
        except Exception:
            response = self._fault()
        self._deliver([(on_complete, response)], [])

    def _refusal(self) -> KafkaError:
        if self.state is ShardState.LOADING:
            return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return KafkaError(ErrorCode.NOT_COORDINATOR)

    def _fault(self) -> KafkaError:
        """What is told of an exception that nobody thought of; nothing was changed."""
        logger.exception("a request to a coordinator failed shard=%s", self.name)
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)

    # -- decide, encode, append, change, replay ----------------------------------------------

    def _attempt(
        self, machine: M, decide: Callable[[M], Decision[R] | None], on_complete: Reply | None
    ) -> bool:
        """Carry one decision out; False if nothing came of it, which was told to who asked.

        An exception means that the machine cannot be trusted any more.
        """
        data = None
        try:
            decision = decide(machine)
            if decision is None:
                return True
            _, response, change, transaction = decision
            if decision.is_written:
                data = self._encode(decision, is_deadline=on_complete is None)
        except KafkaError as error:
            return self._refuse(on_complete, error)
        except Exception:
            return self._refuse(on_complete, self._fault())
        append = None
        if data is not None:
            append = _Append(self._load_number)
            self._log.append(data, self.leader_epoch, transaction, partial(self._appended, append))
            outcome = append.outcome
            if outcome is not None and not outcome.is_appended:
                return self._not_appended(outcome.error_code, on_complete)
        if change is not None:
            change()
        if data is not None:
            replay_batch(machine, self._appended_batch(machine, decision))
        answers: list[Answer] = []
        if response is not None and on_complete is not None:
            answers.append((on_complete, response))
        self._settle(machine, answers, append)
        return True

    def _encode(self, decision: Decision[R], *, is_deadline: bool) -> bytes:
        """See ShardLog.encode; KafkaError, too, for a deadline that is not to be written now."""
        if is_deadline and self._moment.now_ms < self._refused_until_ms:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._log.encode(decision.records, self._moment.wall_ms, decision.transaction)

    def _appended_batch(self, machine: M, decision: Decision[R]) -> Batch[R]:
        batch = decision.batch()
        if not machine.needs_offsets:
            return batch
        return batch._replace(base_offset=self._log.end_offset() - len(batch.records))

    def _not_appended(self, code: int, on_complete: Reply | None) -> bool:
        logger.warning(
            "coordinator record was not appended shard=%s error=%s", self.name, ErrorCode(code).name
        )
        if on_complete is None and code in _TAKES_NOTHING:
            self._refused_until_ms = self._moment.now_ms + _REFUSED_MS
        return self._refuse(on_complete, coordinator_error(code))

    def _refuse(self, on_complete: Reply | None, error: KafkaError) -> bool:
        if on_complete is not None:
            self._deliver([(on_complete, error)], [])
        return False

    def _settle(self, machine: M, answers: list[Answer], append: _Append | None) -> None:
        """Tell what the machine has to tell, now or when the high watermark has come."""
        effects: list[Effect] = []
        if machine.outbox:
            answers += machine.outbox
            machine.outbox.clear()
        if machine.effects:
            effects += machine.effects
            machine.effects.clear()
        held = self._held
        outcome = None if append is None else append.outcome
        if append is None or (outcome is not None and not outcome.error_code):
            self._deliver(answers, effects)
            return
        # One more at least: a leader after us may have cut the log meanwhile.
        held.required_offset = max(held.required_offset + 1, self._log.end_offset())
        append.held = held.hold(answers, effects, self._moment.now_ms)
        self._release()
        if append.outcome is not None:  # another thread was faster
            self._mailbox.append(partial(self._append_done, append))

    def _deliver(self, answers: list[Answer], effects: list[Effect]) -> None:
        if self._held.deliver(answers, effects, self._moment.now_ms) is not None:
            self._release()

    def _appended(self, append: _Append, outcome: AppendOutcome) -> None:
        """The log's callback: inline, or from any thread and from under any lock."""
        append.outcome = outcome
        if append.held is not None:
            self._mailbox.append(partial(self._append_done, append))
            self.work()

    def _append_done(self, append: _Append) -> None:
        held, outcome = append.held, append.outcome
        assert held is not None
        assert outcome is not None
        if append.load_number != self._load_number:
            return
        if outcome.error_code:
            # It is in the log and may be committed yet; only the wait is over.
            self._held.fail(held, outcome.error_code)
            self._release()
        else:
            self._held.commit_to(held.required_offset, self._moment.now_ms)

    def _release(self) -> None:
        """Tell what the high watermark covers by now."""
        offset = self._log.high_watermark(self.leader_epoch)
        self._held.commit_to(offset, self._moment.now_ms)

    # -- deadlines ---------------------------------------------------------------------------

    def _run_deadlines(self, machine: M) -> None:
        """Run what is due, and be woken for the next; an alarm that rings too early is set again.

        After every event: where nothing is due, it must cost next to nothing.
        """
        wake_ms = machine.deadlines.next_wake_ms()
        if wake_ms is not None and wake_ms <= self._moment.now_ms:
            self._run_due(machine)
            if self._machine is not machine:
                return
            wake_ms = machine.deadlines.next_wake_ms()
        if self._held.is_waiting:
            self._release()
            held_ms = self._held.next_deadline_ms()
            if held_ms is not None:
                wake_ms = held_ms if wake_ms is None else min(wake_ms, held_ms)
        if wake_ms is not None and (self._alarm is None or wake_ms < self._alarm_ms):
            self._set_alarm(wake_ms)

    def _run_due(self, machine: M) -> None:
        deadlines, now_ms = machine.deadlines, self._moment.now_ms
        while self._machine is machine and (due := deadlines.pop_due(now_ms)) is not None:
            key, job = due
            refused_until_ms = self._refused_until_ms
            if self._attempt(machine, partial(_run_job, job), None) or type(job) is Once:
                continue
            if key not in deadlines:
                # Who tried the log comes after those who waited for that.
                is_tried = refused_until_ms <= now_ms
                deadlines.set(key, now_ms + RETRY_MS if is_tried else refused_until_ms, job)

    def _set_alarm(self, wake_ms: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = wake_ms
        delay_ms = max(wake_ms - self._moment.now_ms, 0)
        self._alarm = self._services.add_timer(delay_ms, self._ring)

    def _ring(self) -> None:
        self._post(self._rang)

    def _rang(self) -> None:
        # What is due is run after every event; this event is there to make that happen.
        self._alarm = None

    # -- leadership --------------------------------------------------------------------------

    def _elected(self, leader_epoch: int) -> None:
        serves = self.state in (ShardState.LOADING, ShardState.ACTIVE)
        if leader_epoch < self.leader_epoch or (serves and leader_epoch == self.leader_epoch):
            return
        if serves:
            self._close(KafkaError(ErrorCode.NOT_COORDINATOR))
        self.leader_epoch = leader_epoch
        self._log.watch(self.high_watermark_moved)
        self._load()

    def _reset(self) -> None:
        """Nobody knows what the machine holds now: start from what the log says."""
        logger.exception("coordinator shard failed, loading it again shard=%s", self.name)
        if self.state is ShardState.ACTIVE:
            self._close(KafkaError(ErrorCode.NOT_COORDINATOR))
            self._log.watch(self.high_watermark_moved)
            self._load()

    def _close(self, error: KafkaError) -> None:
        """Answer everything that waits; whoever was loading finds out that it is too late."""
        machine, self._machine = self._machine, None
        self._load_number += 1
        self.state = ShardState.CLOSED
        self._log.unwatch(self.high_watermark_moved)
        self._held.close(error)
        if machine is not None:
            try:
                machine.on_unloaded(error)
            except Exception:  # it may be torn, which is why it is thrown away
                logger.exception("a coordinator was not ended in order shard=%s", self.name)
            self._held.deliveries += [(reply, error) for reply, _ in machine.outbox]
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _load(self) -> None:
        self.state = ShardState.LOADING
        self._load_number += 1
        job = partial(self._load_machine, self._load_number, self.leader_epoch)
        if self._log.is_empty():
            job()
        else:
            self._services.run_on_loader(f"load-{self.name}", job)

    def _load_machine(self, load_number: int, leader_epoch: int) -> None:
        """Replay the whole log into a new machine; on the loader's thread unless it is empty."""
        moment = Moment(self._services.now_ms(), self._services.wall_ms())
        started_ms, count = moment.now_ms, 0
        machine: M | None = self._new_machine(leader_epoch, moment)
        assert machine is not None
        try:
            for batch in self._log.read():
                if load_number != self._load_number:
                    return  # somebody else's by now; the next in line need not wait for it
                replay_batch(machine, batch)
                count += len(batch.records)
        except Exception as error:
            machine = None
            if isinstance(error, KafkaError) and error.code in _LOADED_AGAIN:
                logger.warning("coordinator is loaded later shard=%s error=%s", self.name, error)
                again = partial(self._load_again, load_number)
                self._services.add_timer(RETRY_MS, partial(self._post, again))
                return
            logger.exception("loading a coordinator partition failed shard=%s", self.name)
        elapsed_ms = self._services.now_ms() - started_ms
        if machine is not None and count:
            logger.info(
                "loaded coordinator partition shard=%s records=%s ms=%s",
                self.name, count, elapsed_ms,
            )  # fmt: skip
        self._post(partial(self._loaded, load_number, machine, moment))

    def _load_again(self, load_number: int) -> None:
        """See `_LOADED_AGAIN`; if the log's directory is gone, so is our leadership soon."""
        if load_number == self._load_number:
            self._load()

    def _loaded(self, load_number: int, machine: M | None, moment: Moment) -> None:
        if load_number != self._load_number or self.state is not ShardState.LOADING:
            return
        if machine is None:
            self.state = ShardState.FAILED
            return
        moment.now_ms, moment.wall_ms = self._moment.now_ms, self._moment.wall_ms
        self._moment = moment
        self._held.required_offset = self._log.end_offset()
        self._held.committed_offset = self._log.high_watermark(self.leader_epoch)
        try:
            machine.on_loaded()
        except Exception:  # loaded again, it would do so again
            logger.exception("a loaded coordinator does not begin shard=%s", self.name)
            self.state = ShardState.FAILED
            return
        self._machine = machine
        self.state = ShardState.ACTIVE
        self._settle(machine, [], None)


def _run_job(job: Job, _: object) -> Decision[Any] | None:
    return job()
