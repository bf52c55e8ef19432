"""A share partition at the leader of its partition: its state machine, and who persists it.

    EMPTY -> LOADING -> ACTIVE, or FAILED: whoever comes next begins anew
    any -> FENCED   another broker leads the partition, or the state is gone

Why: `SharePartition` decides; this module has it loaded before anybody is served, has every change
persisted before it is told, and rings when locks run out. One write is under way at a time; what
comes meanwhile goes with the next one, all together.

One fetch at a time reads for a share partition (`begin_fetch`, `end_fetch`): two would read, and
wish for, the same records.

Lock: `_lock` guards the state machine and what waits; nothing is called under it.

Kafka: SharePartition, SharePartitionManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol

from server.share.acquisition import Acquired, AcquireMode, Fetched, Span, Wish
from server.share.share_partition import Acknowledgement, Limits, SharePartition, StateChange
from server.share.state_batches import UNINITIALIZED, ShareKey, StateBatch
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

OnCode = Callable[[ErrorCode], None]

_RING_PAUSE_MS = 50
"""From one look at the locks that ran out to the next: it looks at all that is in flight, and has
one write follow. Records that were acquired one by one end one by one."""
_GONE = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
"""After these of the persister, what is in memory is worth nothing."""


class PersistedState(NamedTuple):
    """What the share coordinator knows."""

    state_epoch: int
    start_offset: int
    batches: Sequence[StateBatch]


class Persister(Protocol):
    """Whom state is read from and written by. Answers come once, from any thread, or at once; error
    codes are those for clients."""

    def read(
        self,
        key: ShareKey,
        leader_epoch: int,
        on_complete: Callable[[PersistedState | KafkaError], None],
    ) -> None: ...

    def write(
        self,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        change: StateChange,
        on_complete: OnCode,
    ) -> None: ...


class Alarm(Protocol):
    """A timer that was set."""

    def cancel(self) -> object: ...


class Settings(NamedTuple):
    """What holds for a group now (`group.share.*` and `share.*`)."""

    limits: Limits
    isolation_level: int
    reset_timestamp: int
    """Where a group begins, as ListOffsets asks: -1 latest, -2 earliest, or wall ms."""


class Around(NamedTuple):
    """The parts of the broker a share partition stands on."""

    persister: Persister
    settings: Callable[[str], Settings]
    find_offset: Callable[[ShareKey, int], int]
    """The offset of a timestamp as ListOffsets asks for it. Raises KafkaError."""
    now_ms: Callable[[], int]
    add_timer: Callable[[int, Callable[[], None]], Alarm]
    wake: Callable[[ShareKey], object]
    """Look at the fetches that wait for it; called with no lock held."""
    fenced: Callable[[ShareLeader], None]
    """It is worth nothing any more: forget it."""


class LoadState(Enum):
    """See the module."""

    EMPTY = "empty"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


class _Waiting(NamedTuple):
    change: StateChange
    on_complete: OnCode


class ShareLeader:
    """See the module."""

    def __init__(self, key: ShareKey, topic: str, leader_epoch: int, around: Around) -> None:
        """`topic` is the name of the topic of that id."""
        self.key = key
        self.topic = topic
        self.leader_epoch = leader_epoch
        self.state = LoadState.EMPTY
        self._around = around
        self._partition = SharePartition(0)
        self._state_epoch = 0
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._is_writing = False
        self._then: Callable[[], object] | None = None
        self._is_fetching = False
        self._is_fetch_refused = False
        self._is_waking = False
        self._alarm: Alarm | None = None
        self._alarm_ms = self._next_ring_ms = 0

    @property
    def topic_partition(self) -> tuple[str, int]:
        """What it is about, as the log is called."""
        return self.topic, self.key.partition

    @property
    def settings(self) -> Settings:
        """What holds for its group now."""
        return self._around.settings(self.key.group_id)

    @property
    def is_over(self) -> bool:
        """Whether it will never serve anybody (again)."""
        return self.state in (LoadState.FAILED, LoadState.FENCED)

    def when_written(self, then: Callable[[], object]) -> bool:
        """Whether something is not persisted yet; if so `then` is called once all is."""
        with self._lock:
            is_writing = self._is_writing or bool(self._waiting)
            if is_writing:
                self._then = then
        return is_writing

    # -- loading -----------------------------------------------------------------------------

    def load(self, on_failed: OnCode) -> None:
        """Load it unless somebody does or has; fetches that wait are woken when it is there."""
        with self._lock:
            if self.state is not LoadState.EMPTY:
                return
            self.state = LoadState.LOADING
        self._around.persister.read(self.key, self.leader_epoch, partial(self._loaded, on_failed))

    def _loaded(self, on_failed: OnCode, found: PersistedState | KafkaError) -> None:
        try:
            if isinstance(found, KafkaError):
                raise found
            start_offset = found.start_offset
            if start_offset == UNINITIALIZED:
                timestamp = self.settings.reset_timestamp
                start_offset = self._around.find_offset(self.key, timestamp)
            partition = SharePartition(start_offset, found.batches)
        except (KafkaError, ValueError) as error:
            logger.warning("share partition was not loaded key=%s error=%s", self.key, error)
            code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
            with self._lock:
                self.state = LoadState.FAILED
            on_failed(code)
            self._around.fenced(self)
        else:
            with self._lock:
                if self.state is LoadState.LOADING:
                    self._partition, self._state_epoch = partition, found.state_epoch
                    self.state = LoadState.ACTIVE
        self._around.wake(self.key)

    def fence(self) -> None:
        """Serve nobody any more."""
        with self._lock:
            self.state = LoadState.FENCED
            alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()
        self._around.wake(self.key)

    # -- fetching ----------------------------------------------------------------------------

    def begin_fetch(self) -> int | None:
        """Where to read; None if there is nothing to be had now. Who gets an offset must call
        `end_fetch`."""
        limits = self.settings.limits
        with self._lock:
            if self.state is not LoadState.ACTIVE:
                return None
            if self._is_fetching:
                self._is_fetch_refused = True
                return None
            if not self._partition.can_acquire(limits):
                return None
            self._is_fetching = True
            return self._partition.next_fetch_offset

    def end_fetch(self) -> None:
        """Let others fetch, whom this one kept from it. They keep each other from it, too: who is
        refused while they are woken is woken after them, by who wakes them, not within."""
        with self._lock:
            self._is_fetching = False
            if self._is_waking or not self._is_fetch_refused:
                return
            self._is_waking = True
        while self._must_wake():
            self._around.wake(self.key)

    def _must_wake(self) -> bool:
        """Whether somebody was refused; who fetches just now wakes them when that ends."""
        with self._lock:
            self._is_waking = self._is_fetch_refused and not self._is_fetching
            self._is_fetch_refused &= not self._is_waking
            return self._is_waking

    def last_wanted(self, max_records: int, end_offset: int) -> int:
        """See SharePartition."""
        limits = self.settings.limits
        with self._lock:
            return self._partition.last_wanted(max_records, end_offset, limits)

    def acquire(
        self,
        member_id: str,
        fetched: Fetched,
        max_records: int,
        mode: AcquireMode,
        batch_size: int,
    ) -> list[Acquired]:
        """Hand out records of what was read."""
        limits = self.settings.limits
        with self._lock:
            if self.state is not LoadState.ACTIVE:
                return []
            lock_until_ms = self._around.now_ms() + limits.lock_duration_ms
            wish = Wish(member_id, max_records, lock_until_ms, mode, batch_size)
            acquired = self._partition.acquire(fetched, wish, limits)
        self._set_alarm()
        return acquired

    def log_start_moved(self, log_start_offset: int) -> None:
        """What is before is in the log no more."""
        with self._lock:
            self._partition.log_start_moved(log_start_offset)

    # -- acknowledging -----------------------------------------------------------------------

    def run_count(self, span: Span) -> int:
        """See SharePartition."""
        with self._lock:
            return self._partition.run_count(span)

    def acknowledge(
        self, member_id: str, acks: Sequence[Acknowledgement], on_complete: OnCode
    ) -> None:
        """All of them or none; told when it is persisted."""
        limits, now_ms = self.settings.limits, self._around.now_ms()

        def decide(partition: SharePartition) -> StateChange | None:
            return partition.acknowledge(member_id, acks, limits, now_ms)

        self._change(decide, on_complete)
        self._set_alarm()

    def release(self, member_id: str, on_complete: OnCode) -> None:
        """Give what a member has to others; told when it is persisted."""
        limits = self.settings.limits
        self._change(lambda partition: partition.release(member_id, limits), on_complete)

    def _change(
        self, decide: Callable[[SharePartition], StateChange | None], on_complete: OnCode
    ) -> None:
        code = ErrorCode.NONE
        change: StateChange | None = None
        with self._lock:
            if self.state is not LoadState.ACTIVE:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                try:
                    change = decide(self._partition)
                except KafkaError as error:
                    code = error.code
                if change is not None:
                    self._waiting.append(_Waiting(change, on_complete))
        if change is None:
            on_complete(code)
        else:
            self._write()

    def _write(self) -> None:
        """Have everything that waits persisted, unless a write is under way."""
        with self._lock:
            if self._is_writing or not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
            self._is_writing = True
        newest = waiting[-1].change
        batches = [batch for one in waiting for batch in one.change.batches]
        self._around.persister.write(
            self.key,
            self._state_epoch,
            self.leader_epoch,
            newest._replace(batches=batches),
            partial(self._written, waiting),
        )

    def _written(self, waiting: list[_Waiting], code: ErrorCode) -> None:
        is_woken = False
        with self._lock:
            self._is_writing = False
            for change, _ in waiting:
                is_woken |= self._partition.settle(change, is_persisted=not code)
        if code in _GONE:
            self._around.fenced(self)
        for one in waiting:
            try:
                one.on_complete(code)
            except Exception:
                logger.exception("an acknowledgement was not answered key=%s", self.key)
        if code:
            self._set_alarm()
        if is_woken:
            self._around.wake(self.key)
        self._write()
        then = None
        with self._lock:
            if not self._is_writing:
                then, self._then = self._then, None
        if then is not None:
            then()

    # -- locks -------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        with self._lock:
            deadline_ms = self._partition.lock_deadline_ms
            if deadline_ms is None or self.state is not LoadState.ACTIVE:
                return
            deadline_ms = max(deadline_ms, self._next_ring_ms)
            old = self._alarm
            if old is not None and self._alarm_ms <= deadline_ms:
                return
            self._alarm_ms = deadline_ms
            delay_ms = max(deadline_ms - self._around.now_ms(), 0)
            self._alarm = self._around.add_timer(delay_ms, self._ring)
        if old is not None:
            old.cancel()

    def _ring(self) -> None:
        limits, now_ms = self.settings.limits, self._around.now_ms()
        with self._lock:
            self._alarm, self._next_ring_ms = None, now_ms + _RING_PAUSE_MS
        self._change(lambda partition: partition.expire_locks(now_ms, limits), _told_nobody)
        self._set_alarm()
        self._around.wake(self.key)


def _told_nobody(_code: ErrorCode) -> None:
    """Nobody waits for a lock that ran out."""
