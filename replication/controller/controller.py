"""The active controller: takes requests one by one, decides, appends, answers once it is committed.

What: the shell around the PURE modules of this package. `submit` hands in a request; `on_complete`
gets the response, or the KafkaError, when the records are committed AND this node has published
them, so that a client may use at once what it was told exists. How (the one pattern):
`handle(request, now_ms) -> (records, response)`; the records are replayed into the controller's
own image, appended to the quorum's log, and the next request is decided on that image. Every
answer, errors and reads too, waits until what it was based on is published: "exists already" may
rest on a record that is not committed yet. When leadership is lost or an append fails, the image
is thrown away and the committed one taken again: there is no undo code. Threads: one thread,
`controller`, owns image and sessions; answers are given on the loader's thread. Time: sessions of
other brokers are checked each second; with no other broker it sleeps until a request.

Gaps: AlterPartition, reassignments, UpdateFeatures, ACLs, quotas, SCRAM and delegation tokens are
not served yet; preferred leaders are elected on demand, not periodically; an idle quorum writes no
NoOpRecord (with one voter it would tell nobody anything).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replication.controller import bootstrap, cluster
from replication.controller.context import (
    ConfigSchema,
    ControllerConfig,
    ControllerContext,
    ControllerResult,
)
from replication.metadata import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    ControllerRegistration,
    MetadataDelta,
    TransactionBuffer,
)
from replication.metadata_loader import MetadataLoader
from replication.raft.driver import CommittedBatch, RaftDriver
from replication.raft.snapshots import SnapshotId
from replication.record_serde import MetadataRecordSerde
from storage.config import Clock
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_SESSION_CHECK_MS = 1000
OnComplete = Callable[[Any], None]
"""Called exactly once with the response or a KafkaError."""


class _Submitted(NamedTuple):
    request: Any
    on_complete: OnComplete
    context: ControllerContext


class _LeaderChanged(NamedTuple):
    epoch: int
    """The epoch this node leads; -1 when it leads no longer."""
    committed_offset: int


class _Waiting(NamedTuple):
    """An answer that waits for `offset` to be published."""

    offset: int
    on_complete: OnComplete
    answer: Any


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
    ) -> None:
        """`new_id` gives random topic ids, `registration` is what this controller is known by."""
        self.config = config
        self._driver = driver
        self._loader = loader
        self._serde = serde
        self._clock = clock
        self._schema = schema
        self._new_id = new_id
        self._registration = registration
        self._bootstrap_records = bootstrap_records
        self._wake = threading.Condition()
        # Guarded by _wake:
        self._events: deque[_Submitted | _LeaderChanged] = deque()
        self._stopping = False
        # Guarded by _answers_lock:
        self._answers_lock = threading.Lock()
        self._answers: deque[_Waiting] = deque()
        self._published_offset = -1
        # The raft driver's thread only:
        self._committed_offset = -1
        # The controller's thread only:
        self._image = EMPTY_IMAGE
        self._epoch = -1
        self._sessions = cluster.BrokerSessions(config.broker_session_timeout_ms, config.node_id)
        self._session_check_ms = 0
        self._thread: threading.Thread | None = None
        loader.when_published(self._published)
        driver.add_listener(self)

    # --- for callers ----------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Does this node lead the quorum and has its controller taken over."""
        return self._epoch >= 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Take no more requests; whoever waits still gets NOT_CONTROLLER. Before the driver's."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def submit(
        self,
        request: Any,
        on_complete: OnComplete,
        *,
        context: ControllerContext | None = None,
    ) -> None:
        """Queue a request of one of the classes in `_HANDLERS`.

        `on_complete` is called exactly once, on another thread or, when nothing can be done, at
        once.
        """
        with self._wake:
            if not self._stopping:
                self._events.append(
                    _Submitted(request, on_complete, context or ControllerContext())
                )
                self._wake.notify()
                return
        _complete(on_complete, _not_controller())

    # --- listener of the driver -----------------------------------------------------------------

    def handle_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Sequence[Any]
    ) -> None:
        """The loader reads it for both."""

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        if batches:
            self._committed_offset = batches[-1].last_offset

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        led = epoch if leader_id == self.config.node_id else -1
        with self._wake:
            self._events.append(_LeaderChanged(led, self._committed_offset))
            self._wake.notify()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            event = self._next_event()
            if event is None:
                with self._wake:
                    if self._stopping and not self._events:
                        break
            elif type(event) is _LeaderChanged:
                self._leader_changed(event)
            else:
                self._serve(event)  # type: ignore[arg-type]
            self._check_sessions()
        self._renounce(self._published_offset)

    def _next_event(self) -> _Submitted | _LeaderChanged | None:
        """The next event; None when it is time to look at the sessions, or to stop."""
        with self._wake:
            if not self._events and not self._stopping:
                watching = len(self._image.brokers) > 1 and self._epoch >= 0
                self._wake.wait(_SESSION_CHECK_MS / 1000 if watching else None)
            return self._events.popleft() if self._events else None

    def _leader_changed(self, event: _LeaderChanged) -> None:
        if event.epoch == self._epoch:
            return
        if self._epoch >= 0:
            self._renounce(event.committed_offset)
        image = self._loader.caught_up_image() if event.epoch >= 0 else None
        if image is None:
            return
        now_ms = self._clock.now_ms()
        self._image, self._epoch = image, event.epoch
        self._serde.metadata_version = image.feature(METADATA_VERSION) or (
            self._serde.metadata_version
        )
        self._sessions.restart(image, now_ms)
        in_transaction = self._loader.in_transaction
        records = bootstrap.activation_records(
            image, in_transaction, self.config, self._registration, self._bootstrap_records
        )
        logger.info("controller is active epoch=%s offset=%s", event.epoch, image.offset)
        if not records:
            return
        try:
            self._append(records, in_transaction)
        except KafkaError as error:
            # Leadership went as it came; the driver's next word about it is on its way.
            logger.warning("activation failed error=%s", error)

    def _renounce(self, committed_offset: int) -> None:
        """Leadership is lost: what is not committed never will be answered as if it were."""
        logger.info("controller is inactive epoch=%s", self._epoch)
        self._epoch = -1
        self._image = EMPTY_IMAGE
        with self._answers_lock:
            kept = [waiting for waiting in self._answers if waiting.offset <= committed_offset]
            failed = [waiting for waiting in self._answers if waiting.offset > committed_offset]
            self._answers = deque(kept)
        for waiting in failed:
            _complete(waiting.on_complete, _not_controller())

    # --- one request ----------------------------------------------------------------------------

    def _serve(self, event: _Submitted) -> None:
        if self._epoch < 0:
            _complete(event.on_complete, _not_controller())
            return
        answer: Any
        try:
            result = self._handle(event)
            if result.records:
                self._append(result.records)
            answer = result.response
        except KafkaError as error:
            if error.code == ErrorCode.NOT_CONTROLLER:
                _complete(event.on_complete, error)
                return
            answer = error
        except Exception as error:
            # Nothing was replayed or appended: the bug stays with this request.
            logger.exception("controller request failed request=%s", type(event.request).__name__)
            answer = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        self._answer(event.on_complete, answer)

    def _handle(self, event: _Submitted) -> ControllerResult:
        handler = _HANDLERS.get(type(event.request).__name__)
        if handler is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the controller does not serve {type(event.request).__name__}",
            )
        return handler(self, event.request, event.context)

    def _append(self, records: list[Any], in_transaction: bool = False) -> None:
        """Replay, then append: a record that cannot be replayed must not get into the log."""
        offset = self._driver.next_offset(self._epoch) + len(records) - 1
        delta = MetadataDelta(self._image)
        buffer = TransactionBuffer(in_transaction)
        delta.replay_all(buffer.filter(records))
        assert not buffer.in_transaction, "an operation ends the transaction it begins"
        image = delta.apply(offset, self._epoch, self._clock.wall_ms())
        self._serde.metadata_version = image.feature(METADATA_VERSION) or (
            self._serde.metadata_version
        )
        last = self._driver.append(self._epoch, records)
        assert last == offset, "only the controller appends"
        self._image = image

    def _answer(self, on_complete: OnComplete, answer: Any) -> None:
        """Answer when everything the controller has decided so far is published."""
        with self._answers_lock:
            if self._published_offset < self._image.offset:
                self._answers.append(_Waiting(self._image.offset, on_complete, answer))
                return
        _complete(on_complete, answer)

    def _published(self, offset: int) -> None:
        """On the loader's thread: give the answers that rest on nothing newer."""
        ready = []
        with self._answers_lock:
            self._published_offset = offset
            while self._answers and self._answers[0].offset <= offset:
                ready.append(self._answers.popleft())
        for waiting in ready:
            _complete(waiting.on_complete, waiting.answer)

    def _check_sessions(self) -> None:
        now_ms = self._clock.now_ms()
        if self._epoch < 0 or now_ms < self._session_check_ms:
            return
        self._session_check_ms = now_ms + _SESSION_CHECK_MS
        records = cluster.fence_stale_broker(self._image, self._sessions, self.config, now_ms)
        if records:
            logger.warning("fencing a silent broker record=%s", records[-1])
            try:
                self._append(records)
            except KafkaError as error:
                logger.warning("fencing waits for the quorum error=%s", error)

    # --- handlers: which pure function serves what; modules are imported on first use -----------

    def _create_topics(self, request: Any, context: ControllerContext) -> ControllerResult:
        from replication.controller import topics

        return topics.create_topics(
            self._image, request, self.config, self._schema, context, self._new_id
        )

    def _delete_topics(self, request: Any, context: ControllerContext) -> ControllerResult:
        from replication.controller import topics

        return topics.delete_topics(self._image, request, self.config, context)

    def _create_partitions(self, request: Any, _context: ControllerContext) -> ControllerResult:
        from replication.controller import topics

        return topics.create_partitions(self._image, request)

    def _incremental_alter_configs(
        self, request: Any, _context: ControllerContext
    ) -> ControllerResult:
        from replication.controller import configs

        return configs.incremental_alter_configs(self._image, request, self._schema)

    def _alter_configs(self, request: Any, _context: ControllerContext) -> ControllerResult:
        from replication.controller import configs

        return configs.alter_configs(self._image, request, self._schema)

    def _elect_leaders(self, request: Any, _context: ControllerContext) -> ControllerResult:
        from replication.controller import elections

        return elections.elect_leaders(self._image, self.config, request)

    def _allocate_producer_ids(self, request: Any, _context: ControllerContext) -> ControllerResult:
        from replication.controller import producer_ids

        return producer_ids.allocate_producer_ids(self._image, request)

    def _register_broker(self, request: Any, _context: ControllerContext) -> ControllerResult:
        return cluster.register_broker(
            self._image,
            self._sessions,
            self.config,
            request,
            self._driver.next_offset(self._epoch),
            self._clock.now_ms(),
        )

    def _broker_heartbeat(self, request: Any, _context: ControllerContext) -> ControllerResult:
        return cluster.broker_heartbeat(
            self._image,
            self._sessions,
            self.config,
            request,
            self._driver.next_offset(self._epoch),
            self._clock.now_ms(),
        )

    def _unregister_broker(self, request: Any, _context: ControllerContext) -> ControllerResult:
        from wire.messages.admin import UnregisterBrokerResponse

        records = cluster.unregister_broker(self._image, self.config, request.broker_id)
        self._sessions.remove(request.broker_id)
        return ControllerResult(records, UnregisterBrokerResponse(error_code=0, error_message=None))


_HANDLERS: dict[str, Callable[[Controller, Any, ControllerContext], ControllerResult]] = {
    "CreateTopicsRequest": Controller._create_topics,
    "DeleteTopicsRequest": Controller._delete_topics,
    "CreatePartitionsRequest": Controller._create_partitions,
    "IncrementalAlterConfigsRequest": Controller._incremental_alter_configs,
    "AlterConfigsRequest": Controller._alter_configs,
    "ElectLeadersRequest": Controller._elect_leaders,
    "AllocateProducerIdsRequest": Controller._allocate_producer_ids,
    "BrokerRegistrationRequest": Controller._register_broker,
    "BrokerHeartbeatRequest": Controller._broker_heartbeat,
    "UnregisterBrokerRequest": Controller._unregister_broker,
}


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller")


def _complete(on_complete: OnComplete, answer: Any) -> None:
    try:
        on_complete(answer)
    except Exception:
        logger.exception("a completion of a controller request failed")
