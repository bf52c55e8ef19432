"""The one pattern: a replicated state machine behind every coordinator (groups now, transactions
later).

Why: a coordinator's answer must be as durable as an acknowledged record, and a new leader must know
everything an old one answered. So a coordinator is a deterministic machine over a compacted log:

    handle(request) -> (records, response)    decide on fresh state
    append the records                        one batch, acks=all, to this partition of the topic
    replay each at once                       so the next request is decided on what this one did
    hold the answer                           until the high watermark covers all it was based on,
                                              reads too: nobody may act on what can still be lost

State changes in `replay` only, so loading at start and running live are one path, and there is no
undo code: if an append fails after the machine moved, or leadership is lost, the machine is thrown
away and, if we still lead, loaded again from the log.

A `Shard` is one partition. Its states:

    Initial --elected--> Loading --log replayed--> Active --resigned--> Closed
                            |                        |  '--append failed--> Loading
                            '--cannot read--> Failed (until the next election)

Loading answers COORDINATOR_LOAD_IN_PROGRESS, Failed and Closed NOT_COORDINATOR. Elections carry the
leader epoch; late ones are ignored (G-2). Waiting requests of a closed shard get NOT_COORDINATOR.

Threads: a shard has one owner at a time and nobody ever waits for it. Events (requests, timers, the
outcome of appends, elections) go into a mailbox; whoever can take the lock without waiting works
off the mailbox, everybody else leaves. So handlers never block, callbacks from under other locks
cannot deadlock, and on one thread a request is served before `write` returns. Answers are delivered
after the lock was released. A deadline that writes does so on the timer's thread: a few hundred
bytes into the page cache, a few times a minute.

How errors of the log reach the client (CoordinatorOperationExceptionHelper):

    UNKNOWN_TOPIC_OR_PARTITION, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT   COORDINATOR_NOT_AVAILABLE
    NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR                          NOT_COORDINATOR
    MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_FETCH_SIZE         UNKNOWN_SERVER_ERROR

Duties of the caller (who wires it up):
1. `elected(index, epoch)` and `resigned(index)` for every change of leadership of the topic.
2. `on_complete` callbacks must not raise and must not wait; they get a response or a KafkaError.

Budget: 4 µs for a read, 8 µs for a write, on top of the machine and the log.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from server.coordinator.deadlines import Deadlines, Moment
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

Reply = Callable[[object], None]
"""Takes a response or a KafkaError, once."""

Records = list[Any]
"""Records of the machine's own type; only the machine and the log's serde look into them."""

M = TypeVar("M", bound="Machine")

_MAPPED_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(code: int) -> KafkaError:
    """What a client is told when the coordinator's log answered `code`."""
    known = ErrorCode(code)
    return KafkaError(_MAPPED_ERRORS.get(known, known))


class Machine(Protocol):
    """A coordinator's pure state over one partition.

    `moment` is set before every call. `outbox` collects answers to requests that were parked.
    Callbacks in `deadlines` return records (or None).
    """

    moment: Moment
    deadlines: Deadlines
    outbox: list[tuple[Reply, object]]

    def replay(self, record: Any, /) -> None: ...

    def on_loaded(self) -> None: ...

    def on_unloaded(self, error: KafkaError, /) -> None: ...


class AppendOutcome(NamedTuple):
    """What became of one append; `error_code` 0 = the high watermark covers it."""

    error_code: int
    is_appended: bool
    """Whether the records are in the log, committed or not."""


class ShardLog(Protocol):
    """One partition of the coordinator's topic, as the shard sees it."""

    def append(
        self,
        records: Records,
        wall_ms: int,
        leader_epoch: int,
        on_complete: Callable[[AppendOutcome], None],
    ) -> None:
        """Append one batch with acks=all. `on_complete` runs exactly once: with an error before
        this returns if nothing was appended, else when the outcome is known.
        """

    def end_offset(self) -> int:
        """The log end offset; 0 if the log is gone."""

    def high_watermark(self) -> int:
        """The high watermark; -1 if the log is gone."""

    def read(self) -> Iterator[object]:
        """All records from the log's start to its end. KafkaError if we do not lead it."""

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
    run_in_background: Callable[[str, Callable[[], None]], None]
    """Run a slow job (name, job) on another thread."""
    held_timeout_ms: int
    """How long an answer may wait for the high watermark (offsets.commit.timeout.ms)."""


class ShardState(enum.Enum):
    """See the module."""

    INITIAL = "Initial"
    LOADING = "Loading"
    ACTIVE = "Active"
    FAILED = "Failed"
    CLOSED = "Closed"


class _Held:
    """Answers that wait until the high watermark reaches `required_offset`."""

    __slots__ = ("answers", "deadline_ms", "required_offset")

    def __init__(
        self, required_offset: int, deadline_ms: int, answers: list[tuple[Reply, object]]
    ) -> None:
        self.required_offset = required_offset
        self.deadline_ms = deadline_ms
        self.answers = answers


class _Append:
    """One append on its way. `outcome` stays None while it waits for the high watermark."""

    __slots__ = ("held", "load_number", "outcome")

    def __init__(self, load_number: int) -> None:
        self.load_number = load_number
        self.outcome: AppendOutcome | None = None
        self.held: _Held | None = None


class Shard(Generic[M]):
    """One partition: its machine, its log, and the answers that wait. See the module for threads.

    Everything below `_lock` is touched by its holder only.
    """

    def __init__(
        self,
        name: str,
        log: ShardLog,
        new_machine: Callable[[Moment], M],
        services: Services,
    ) -> None:
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
        self._required_offset = 0
        self._committed_offset = 0
        self._held: list[_Held] = []
        self._deliveries: list[tuple[Reply, object]] = []
        self._alarm: Alarm | None = None
        self._alarm_ms = 0

    # -- events, from any thread -------------------------------------------------------------

    def elected(self, leader_epoch: int) -> None:
        """We lead the partition in this epoch: load it."""
        self._post(partial(self._elected, leader_epoch))

    def resigned(self) -> None:
        """We lead it no more: forget everything."""
        self._post(partial(self._close, KafkaError(ErrorCode.NOT_COORDINATOR)))

    def write(
        self,
        handle: Callable[[M], tuple[Records, object | None]],
        on_complete: Reply,
        *,
        is_pure: bool = False,
    ) -> None:
        """Decide, append, replay, and answer when it is committed.

        `handle` returns the records and the response, or None if it parked `on_complete`; a
        KafkaError it raises is the answer, and means that nothing changed. `is_pure`: `handle`
        changes nothing itself, so a failed append need not throw the machine away.
        """
        self._post(partial(self._write, handle, on_complete, is_pure))

    def read(self, handle: Callable[[M], object], on_complete: Reply) -> None:
        """Decide, and answer when what it was based on is committed."""
        self._post(partial(self._read, handle, on_complete))

    def high_watermark_moved(self) -> None:
        """The log's high watermark may cover what answers wait for.

        Who is about to hold an answer looks at the high watermark once it is on the list, so
        nothing is missed when there is none yet.
        """
        if self._held:
            self._post(self._release)

    def inspect(self) -> M | None:
        """The machine, for tests and diagnosis; None unless active."""
        return self._machine

    # -- the owner ---------------------------------------------------------------------------

    def _post(self, event: Callable[[], None]) -> None:
        mailbox = self._mailbox
        mailbox.append(event)
        # Looked at again after each release: an event posted while we held the lock has nobody
        # else to work it off.
        while mailbox and self._lock.acquire(False):
            try:
                self._work_off(mailbox)
            finally:
                deliveries = self._deliveries
                if deliveries:
                    self._deliveries = []
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
                self._failed()

    def _write(
        self,
        handle: Callable[[M], tuple[Records, object | None]],
        on_complete: Reply,
        is_pure: bool,
    ) -> None:
        machine = self._machine
        if machine is None:
            self._deliveries.append((on_complete, self._refusal()))
            return
        response: object | None
        try:
            try:
                records, response = handle(machine)
            except KafkaError as error:
                records, response = [], error
            answers = [] if response is None else [(on_complete, response)]
            self._commit(machine, records, answers, is_pure)
        except Exception:
            self._failed(on_complete)

    def _read(self, handle: Callable[[M], object], on_complete: Reply) -> None:
        machine = self._machine
        if machine is None:
            self._deliveries.append((on_complete, self._refusal()))
            return
        try:
            response = handle(machine)
        except KafkaError as error:
            response = error
        except Exception:
            self._failed(on_complete)
            return
        if self._committed_offset >= self._required_offset:
            self._deliveries.append((on_complete, response))
        else:
            self._hold([(on_complete, response)])

    def _failed(self, on_complete: Reply | None = None) -> None:
        """A bug of ours: nobody knows what the machine holds now, so it goes."""
        logger.exception("coordinator shard failed, loading it again shard=%s", self.name)
        error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._reload(error)
        if on_complete is None or any(reply is on_complete for reply, _ in self._deliveries):
            return
        self._deliveries.append((on_complete, error))

    def _refusal(self) -> KafkaError:
        if self.state is ShardState.LOADING:
            return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return KafkaError(ErrorCode.NOT_COORDINATOR)

    def _commit(
        self,
        machine: M,
        records: Records,
        answers: list[tuple[Reply, object]],
        is_pure: bool,
    ) -> None:
        """Append, replay, and answer now or when the high watermark has come."""
        if not records:
            self._settle(machine, answers)
            return
        append = _Append(self._load_number)
        self._log.append(
            records, self._moment.wall_ms, self.leader_epoch, partial(self._appended, append)
        )
        outcome = append.outcome
        if outcome is not None and not outcome.is_appended:
            self._append_failed(machine, answers, outcome.error_code, is_pure)
            return
        for record in records:
            machine.replay(record)
        if outcome is None or outcome.error_code:
            self._required_offset = self._log.end_offset()
            answers += self._take_outbox(machine)
            append.held = self._hold(answers)
            if append.outcome is not None:  # another thread was faster
                self._mailbox.append(partial(self._append_done, append))
        else:
            self._settle(machine, answers)

    def _settle(self, machine: M, answers: list[tuple[Reply, object]]) -> None:
        """Answer, or hold if something earlier is not committed yet."""
        if machine.outbox:
            answers += self._take_outbox(machine)
        if self._committed_offset >= self._required_offset:
            self._deliveries += answers
        elif answers:
            self._hold(answers)

    def _take_outbox(self, machine: M) -> list[tuple[Reply, object]]:
        taken = machine.outbox[:]
        machine.outbox.clear()
        return taken

    # -- appends -----------------------------------------------------------------------------

    def _appended(self, append: _Append, outcome: AppendOutcome) -> None:
        """The log's callback: inline, or from any thread and from under any lock."""
        append.outcome = outcome
        if append.held is not None:
            self._post(partial(self._append_done, append))

    def _append_done(self, append: _Append) -> None:
        held, outcome = append.held, append.outcome
        assert held is not None
        assert outcome is not None
        if append.load_number != self._load_number:
            return
        if outcome.error_code and held in self._held:
            # It is in the log and may be committed yet; only the wait is over.
            self._held.remove(held)
            error = coordinator_error(outcome.error_code)
            self._deliveries += [(reply, error) for reply, _ in held.answers]
        elif not outcome.error_code:
            self._committed_offset = max(self._committed_offset, held.required_offset)
        self._release()

    def _append_failed(
        self, machine: M, answers: list[tuple[Reply, object]], code: int, is_pure: bool
    ) -> None:
        """Nothing was appended. What the machine did on the way is void."""
        logger.warning(
            "coordinator record was not appended shard=%s error=%s", self.name, ErrorCode(code).name
        )
        error = coordinator_error(code)
        answers += self._take_outbox(machine)
        self._deliveries += [(reply, error) for reply, _ in answers]
        if not is_pure:
            self._reload(error)

    def _hold(self, answers: list[tuple[Reply, object]]) -> _Held:
        deadline_ms = self._moment.now_ms + self._services.held_timeout_ms
        held = _Held(self._required_offset, deadline_ms, answers)
        self._held.append(held)
        self._release()
        return held

    def _release(self) -> None:
        """Deliver what the high watermark covers, and give up on what waited too long."""
        if not self._held:
            return
        self._committed_offset = max(self._committed_offset, self._log.high_watermark())
        waiting = []
        for held in self._held:
            if held.required_offset <= self._committed_offset:
                self._deliveries += held.answers
            elif held.deadline_ms <= self._moment.now_ms:
                error = coordinator_error(ErrorCode.REQUEST_TIMED_OUT)
                self._deliveries += [(reply, error) for reply, _ in held.answers]
            else:
                waiting.append(held)
        self._held = waiting

    # -- deadlines ---------------------------------------------------------------------------

    def _run_deadlines(self, machine: M) -> None:
        deadlines, now_ms = machine.deadlines, self._moment.now_ms
        while (job := deadlines.pop_due(now_ms)) is not None:
            records = job()
            assert records is None or isinstance(records, list)
            self._commit(machine, records or [], [], False)
            if self._machine is not machine:
                return
        if self._held:
            self._release()
        self._set_alarm(machine)

    def _set_alarm(self, machine: M) -> None:
        """Be woken for the next deadline; an alarm that rings too early is set again."""
        wake_ms = machine.deadlines.next_wake_ms()
        if self._held:
            held_ms = min(held.deadline_ms for held in self._held)
            wake_ms = held_ms if wake_ms is None else min(wake_ms, held_ms)
        if wake_ms is None or (self._alarm is not None and self._alarm_ms <= wake_ms):
            return
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

    def _reload(self, error: KafkaError) -> None:
        """Throw the machine away and start from what the log says."""
        if self.state is ShardState.ACTIVE:
            self._close(error)
            self._log.watch(self.high_watermark_moved)
            self._load()

    def _close(self, error: KafkaError) -> None:
        """Answer everything that waits; whoever was loading finds out that it is too late."""
        machine, self._machine = self._machine, None
        self._load_number += 1
        self.state = ShardState.CLOSED
        self._log.unwatch(self.high_watermark_moved)
        if machine is not None:
            machine.on_unloaded(error)
            self._deliveries += [(reply, error) for reply, _ in self._take_outbox(machine)]
        for held in self._held:
            self._deliveries += [(reply, error) for reply, _ in held.answers]
        self._held = []
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _load(self) -> None:
        self.state = ShardState.LOADING
        self._load_number += 1
        job = partial(self._load_machine, self._load_number)
        if self._log.is_empty():
            job()
        else:
            self._services.run_in_background(f"load-{self.name}", job)

    def _load_machine(self, load_number: int) -> None:
        """Replay the whole log into a new machine; on a background thread unless it is empty."""
        moment = Moment(self._services.now_ms(), self._services.wall_ms())
        started_ms, count = moment.now_ms, 0
        machine: M | None = self._new_machine(moment)
        assert machine is not None
        try:
            for record in self._log.read():
                machine.replay(record)
                count += 1
        except Exception:
            logger.exception("loading a coordinator partition failed shard=%s", self.name)
            machine = None
        elapsed_ms = self._services.now_ms() - started_ms
        if machine is not None and count:
            logger.info(
                "loaded coordinator partition shard=%s records=%s ms=%s",
                self.name, count, elapsed_ms,
            )  # fmt: skip
        self._mailbox.append(partial(self._loaded, load_number, machine, moment))
        self._post(_nothing)

    def _loaded(self, load_number: int, machine: M | None, moment: Moment) -> None:
        if load_number != self._load_number or self.state is not ShardState.LOADING:
            return
        if machine is None:
            self.state = ShardState.FAILED
            return
        moment.now_ms, moment.wall_ms = self._moment.now_ms, self._moment.wall_ms
        self._moment = moment
        self._required_offset = self._log.end_offset()
        self._committed_offset = self._log.high_watermark()
        self._machine = machine
        self.state = ShardState.ACTIVE
        machine.on_loaded()


def _nothing() -> None:
    """An event that only makes somebody look at the mailbox."""
