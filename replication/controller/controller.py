"""The active controller: takes requests one by one, decides, appends, answers once it is committed.

What: the shell around the PURE modules of this package. `submit` hands in a request; `on_complete`
gets the response, or the KafkaError, when the records are committed AND this node has published
them, so that a client may use at once what it was told exists. How (the one pattern):
`handle(request, now_ms) -> (records, response)`; the records are replayed into the controller's
own image, appended to the quorum's log, and the next request is decided on that image. Every
answer, errors and reads too, waits until what it was based on is published: "exists already" may
rest on a record that is not committed yet. When leadership is lost or an append fails, the image
is thrown away and the committed one taken again: there is no undo code. What a previous controller
began (reassignments, fencing, shutdowns) stands in the image and goes on.

Records of one decision are one atomic batch; more than 10,000 (the death of a broker that leads
many partitions) are batches inside a metadata transaction, which readers see as one too (KIP-868).

What nobody expected ends the process (`faults`): a controller that is dead, on a node that goes on
leading the quorum, would be asked for ever. Only the decision on a request may fail alone, as it
changes nothing; Apache Kafka, which replays while it decides, fails over.

Threads: one thread, `controller`, owns image and sessions and only does `while: wait; turn()`;
answers are given on the loader's thread. Time: what is due by the clock is in `periodic`; a node
that is alone in its cluster sleeps until a request comes.

Transitions:
    inactive -> claiming   the quorum elected this node; everything earlier epochs committed is on
                           its way through the loader
    claiming -> active     the loader's image has all of it: activation records are written
    any -> inactive        another epoch: answers that rest on what is not committed are refused
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from replication.controller import bootstrap
from replication.controller.context import (
    ConfigSchema,
    ControllerConfig,
    ControllerContext,
    ControllerResult,
    is_transaction,
)
from replication.controller.deferred import DeferredAnswers, OnComplete, complete, not_controller
from replication.controller.periodic import PeriodicTasks
from replication.controller.requests import ActiveState, decide
from replication.controller.sessions import BrokerSessions
from replication.metadata.image import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    ControllerRegistration,
    MetadataDelta,
    TransactionBuffer,
)
from replication.metadata.loader import MetadataLoader
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import CommittedBatch, RaftDriver
from replication.raft.faults import FaultHandler
from replication.raft.snapshots import SnapshotId
from storage.config import Clock
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import BeginTransactionRecord, EndTransactionRecord
from wire.messages.quorum import BrokerHeartbeatRequest

logger = logging.getLogger(__name__)

_RETRY_MS = 100
"""After periodic work failed; what made it fail (a lost leadership) is about to be told."""


class _Submitted(NamedTuple):
    request: Any
    on_complete: OnComplete
    context: ControllerContext
    arrived_ms: int
    """Monotonic."""


class _LeaderChanged(NamedTuple):
    epoch: int
    """The epoch this node leads; -1 when it leads no longer."""
    committed_offset: int
    lost_leader: tuple[int, int] | None
    """The other node that led last before this one, and when (monotonic ms) it was given up."""


class Controller:
    """See the module. `config` validators and defaults come from the server as a ConfigSchema."""

    def __init__(
        self,
        config: ControllerConfig,
        driver: RaftDriver,
        loader: MetadataLoader,
        serde: MetadataRecordSerde,
        clock: Clock,
        schema: ConfigSchema,
        *,
        new_id: Callable[[], bytes],
        registration: ControllerRegistration | None = None,
        bootstrap_records: Sequence[Any] = (),
        faults: FaultHandler | None = None,
    ) -> None:
        """`new_id` gives random topic ids, `registration` is what this controller is known by; the
        broker of its process has the same incarnation.
        """
        self.config = config
        self.on_wake: Callable[[], None] | None = None
        """Called when there is something to do (any thread): for who turns without a thread."""
        self._driver = driver
        self._loader = loader
        self._serde = serde
        self._clock = clock
        self._registration = registration
        self._bootstrap_records = bootstrap_records
        self._faults = faults or FaultHandler()
        self._wake = threading.Condition()
        # Guarded by _wake:
        self._events: deque[_Submitted | _LeaderChanged] = deque()
        self._stopping = False
        self._answers = DeferredAnswers()
        # The raft driver's thread only:
        self._committed_offset = -1
        self._leader_id = -1
        self._led_epoch = -1
        self._lost_leader: tuple[int, int] | None = None
        # The controller's thread only:
        sessions = BrokerSessions(
            config.broker_session_timeout_ms,
            config.node_id,
            None if registration is None else registration.incarnation_id,
        )
        self._state = ActiveState(config, schema, new_id, sessions)
        self._state.upgrade_kraft_version = self._upgrade_kraft_version
        self._periodic = PeriodicTasks(self._state)
        self._epoch = -1
        self._claim: _LeaderChanged | None = None
        self._retry_ms = 0
        self._awaited_ms: int | None = None
        self._thread: threading.Thread | None = None
        loader.when_published(self._published)
        driver.add_listener(self)

    # --- for callers ----------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Does this node lead the quorum and has its controller taken over."""
        return self._epoch >= 0

    def start(self) -> None:
        self._thread = self._faults.thread("controller", self._run)
        self._thread.start()

    def shutdown(self) -> None:
        """Take no more requests; whoever waits still gets NOT_CONTROLLER. Before the driver's."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        else:
            self._finish()

    def submit(
        self,
        request: Any,
        on_complete: OnComplete,
        *,
        context: ControllerContext | None = None,
    ) -> None:
        """Queue a request of one of the classes `requests` knows.

        `on_complete` is called exactly once, on another thread or, when nothing can be done, at
        once.
        """
        with self._wake:
            stopping = self._stopping
            if not stopping:
                now_ms = self._clock.now_ms()
                context = context or ControllerContext()
                self._events.append(_Submitted(request, on_complete, context, now_ms))
        if stopping:
            complete(on_complete, not_controller())
        else:
            self._notify()

    def turn(self) -> bool:
        """One bounded piece of work: an event, and one task if one is due. Never blocks.

        True when there may be more to do now; otherwise at the next event or `next_due_ms`. For the
        controller's thread, or for who has none.
        """
        began_ms = self._clock.now_ms()
        if self._awaited_ms is not None:
            self._excuse(began_ms - self._awaited_ms)
        worked = self._take_event()
        worked = self._run_periodic(began_ms) or worked
        ended_ms = self._clock.now_ms()
        self._excuse(ended_ms - began_ms)
        due_ms = self.next_due_ms()
        self._awaited_ms = None if due_ms is None else max(due_ms, ended_ms)
        return worked

    def next_due_ms(self) -> int | None:
        """When the next turn is due without an event, in monotonic ms; None: only events."""
        due_ms = self._periodic.next_due_ms() if self._epoch >= 0 else None
        return None if due_ms is None else max(due_ms, self._retry_ms)

    # --- listener of the driver -----------------------------------------------------------------

    def handle_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Sequence[Any]
    ) -> None:
        """The loader reads it for both."""
        self._committed_offset = max(self._committed_offset, snapshot_id.offset - 1)

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        if batches:
            self._committed_offset = batches[-1].last_offset

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        own_id = self.config.node_id
        if leader_id != self._leader_id:
            if self._leader_id == own_id:
                self._lost_leader = None  # whom this node took over from may be back long since
            elif self._leader_id != -1:
                self._lost_leader = (self._leader_id, self._clock.now_ms())
            self._leader_id = leader_id
        led = epoch if leader_id == own_id else -1
        if self._led_epoch not in (-1, led):
            self._answers.epoch_ended(self._led_epoch, self._committed_offset)
        self._led_epoch = led
        with self._wake:
            self._events.append(_LeaderChanged(led, self._committed_offset, self._lost_leader))
        self._notify()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            while self.turn():
                pass
        self._finish()

    def _finish(self) -> None:
        """Nobody who asked stays without an answer."""
        self._claim = None
        with self._wake:
            events, self._events = self._events, deque()
        for event in events:
            if type(event) is _Submitted:
                complete(event.on_complete, not_controller())
        self._renounce()
        self._answers.refuse_unpublished()

    def _wait_for_work(self) -> bool:
        """Wait for an event, or for what is due. False when the controller should end."""
        with self._wake:
            if self._stopping and (self._claim is not None or not self._events):
                return False
            if self._has_event() or self._stopping:
                return True
            due_ms = self.next_due_ms()
            if due_ms is None:
                self._wake.wait()
                return True
            wait_ms = due_ms - self._clock.now_ms()
            if wait_ms > 0:
                self._wake.wait(wait_ms / 1000)
        return True

    def _has_event(self) -> bool:
        """Can an event be taken now. One behind a claim waits for the loader."""
        return self._loader_has_caught_up() if self._claim is not None else bool(self._events)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()
        if self.on_wake is not None:
            self.on_wake()

    def _take_event(self) -> bool:
        if self._claim is not None:
            if not self._loader_has_caught_up():
                return False
            claim, self._claim = self._claim, None
            self._become_active(claim)
            return True
        with self._wake:
            event = self._events.popleft() if self._events else None
        if event is None:
            return False
        if type(event) is _LeaderChanged:
            self._leader_changed(event)
        else:
            self._serve(event)  # type: ignore[arg-type]
        return True

    def _excuse(self, late_ms: int) -> None:
        """This node stood still (suspended, starved): silence meanwhile means nothing (B-2)."""
        if self._epoch >= 0 and late_ms > self.config.broker_session_timeout_ms // 2:
            logger.warning("controller stood still ms=%s", late_ms)
            self._state.sessions.excuse(late_ms)

    def _run_periodic(self, now_ms: int) -> bool:
        due_ms = self.next_due_ms()
        if due_ms is None or now_ms < due_ms:
            return False
        self._hear_waiting_heartbeats()
        self._state.wall_ms = self._clock.wall_ms()
        work = self._periodic.run(now_ms)
        if work is None:
            return False
        if work.records:
            try:
                self._append(work.records)
            except KafkaError as error:
                self._retry_ms = now_ms + _RETRY_MS
                logger.warning("periodic work failed task=%s error=%s", work.name, error)
                return False
            if work.name != "no-op":
                logger.warning("%s records=%s", work.name, len(work.records))
        return True

    def _hear_waiting_heartbeats(self) -> None:
        with self._wake:
            waiting = [
                (event.request, event.arrived_ms)
                for event in self._events
                if type(event) is _Submitted and type(event.request) is BrokerHeartbeatRequest
            ]
        for request, arrived_ms in waiting:
            self._state.sessions.heard(self._state.image, request, arrived_ms)

    # --- leadership -----------------------------------------------------------------------------

    def _leader_changed(self, event: _LeaderChanged) -> None:
        if event.epoch == self._epoch:
            return
        if self._epoch >= 0:
            self._renounce()
            self._answers.refuse_above(event.committed_offset)
        if event.epoch >= 0:
            self._claim = event

    def _loader_has_caught_up(self) -> bool:
        claim = self._claim
        return claim is not None and self._loader.image.offset >= claim.committed_offset

    def _become_active(self, claim: _LeaderChanged) -> None:
        epoch, image = claim.epoch, self._loader.image
        try:
            self._driver.next_offset(epoch)
        except KafkaError:
            return  # leadership went as it came; the driver's next word about it is on its way
        now_ms = self._clock.now_ms()
        self._state.image, self._epoch = image, epoch
        self._serde.metadata_version = image.feature(METADATA_VERSION) or (
            self._serde.metadata_version
        )
        self._state.sessions.restart(image, now_ms)
        if claim.lost_leader is not None:
            node_id, given_up_ms = claim.lost_leader
            silent_ms = self.config.controller_quorum_fetch_timeout_ms
            self._state.sessions.silent_since(node_id, given_up_ms - silent_ms, now_ms)
        self._periodic.restart(now_ms)
        in_transaction = self._loader.in_transaction
        records = bootstrap.activation_records(
            image, in_transaction, self.config, self._registration, self._bootstrap_records
        )
        logger.info("controller is active epoch=%s offset=%s", epoch, image.offset)
        if not records:
            return
        try:
            self._append(records, in_transaction)
        except KafkaError as error:
            if error.code != ErrorCode.NOT_CONTROLLER:
                raise  # a leader that cannot write its first records
            logger.warning("activation failed error=%s", error)

    def _renounce(self) -> None:
        """Leadership is lost, and all that was decided on it."""
        if self._epoch >= 0:
            logger.info("controller is inactive epoch=%s", self._epoch)
        self._epoch = -1
        self._state.image = EMPTY_IMAGE

    # --- one request ----------------------------------------------------------------------------

    def _serve(self, event: _Submitted) -> None:
        if self._epoch < 0:
            complete(event.on_complete, not_controller())
            return
        answer: Any
        try:
            result = self._decide(event)
            if result.records:
                self._append(result.records)
            answer = result.response
        except KafkaError as error:
            if error.code == ErrorCode.NOT_CONTROLLER:
                complete(event.on_complete, error)
                return
            answer = error
        self._answers.give(self._state.image.offset, self._epoch, event.on_complete, answer)

    def _decide(self, event: _Submitted) -> ControllerResult:
        """Raises KafkaError; a bug is UNKNOWN_SERVER_ERROR, since nothing was replayed or
        appended: it stays with this request.
        """
        state = self._state
        state.next_offset = self._driver.next_offset(self._epoch)
        state.now_ms, state.wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        state.voters = self._driver.voters
        try:
            return decide(state, event.request, event.context)
        except KafkaError:
            raise
        except Exception as error:
            logger.exception("controller request failed request=%s", type(event.request).__name__)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def _upgrade_kraft_version(self, level: int, validate_only: bool) -> None:
        try:
            self._driver.upgrade_kraft_version(self._epoch, level, validate_only)
        except KafkaError:
            raise
        except Exception as error:  # asked by a decision, but the quorum's own fault
            self._faults.fatal("controller", error)
            raise

    def _append(self, records: list[Any], in_transaction: bool = False) -> None:
        """Replay, then append: a record that cannot be replayed must not get into the log."""
        state = self._state
        if is_transaction(state.image.feature(METADATA_VERSION), len(records)):
            name = "More records than a batch holds"
            records = [BeginTransactionRecord(name=name), *records, EndTransactionRecord()]
        offset = self._driver.next_offset(self._epoch) + len(records) - 1
        delta = MetadataDelta(state.image)
        buffer = TransactionBuffer(in_transaction)
        delta.replay_all(buffer.filter(records))
        assert not buffer.in_transaction, "an operation ends the transaction it begins"
        image = delta.apply(offset, self._epoch, self._clock.wall_ms())
        self._serde.metadata_version = image.feature(METADATA_VERSION) or (
            self._serde.metadata_version
        )
        last = self._driver.append(self._epoch, records)
        # A voter set may have come between (the quorum's own record).
        state.image = image if last == offset else replace(image, offset=last)
        self._periodic.appended(records, self._clock.now_ms())

    def _published(self, offset: int) -> None:
        """On the loader's thread."""
        self._answers.published(offset)
        if self._claim is not None:
            self._notify()
