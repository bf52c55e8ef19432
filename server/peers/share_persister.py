"""The state of share partitions, kept by the share coordinator (Kafka: DefaultStatePersister).

Why: the leader of a partition hands out its records, and another broker may keep what became of
them; the group's coordinator has it begun and deleted. Who keeps it is in the metadata, and made
known by making the topic if there is none; the node itself is asked without a socket.

A broker has one request of a group under way on each channel. What comes meanwhile waits, and goes
with the next one all together, as far as it asks for the same: a hundred share partitions that are
acknowledged at once are not a hundred requests. The node itself is asked at once: there is nothing
to save.

Of one share partition nothing is asked before what was asked earlier is told, summaries aside: what
is deleted and begun again while the coordinator moves is there then. (Kafka: PersisterStateManager,
where a question may overtake one that pauses, or is of another kind.)

An answer that somebody else coordinates, or nobody yet, or that the topic is not known yet, is not
told at once: the question is asked again, `ATTEMPTS` times, with longer and longer pauses. What
waits behind a request that was not answered at all is asked again like that request.

Threads: none of its own; any thread may call.
Lock: `_lock` guards what waits; nothing is called under it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from replication.partition.requests import UNKNOWN_EPOCH
from server.coordinator.share.shard import Summary
from server.peers.call import PeerError
from server.share.leading import OnCode, PersistedState
from server.share.share_partition import StateChange
from server.share.state_batches import ShareKey, StateBatch
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration
    from server.peers.add_partitions_to_txn import Brokers

logger = logging.getLogger(__name__)

CHANNEL, SUMMARY_CHANNEL = "share-persister", "share-summaries"
"""The connections' names, which go on the wire as client id. An administrator asks about thousands
of share partitions at once: what consumers wait for is not to queue behind that."""

ATTEMPTS = 5
BACKOFF_MS = 1_000
"""The first pause, ms; each is twice the one before."""
PARTITIONS_MAX = 1_000
"""Most share partitions of one request: the answer tells the state of all of them."""
BATCHES_MAX = 50_000
"""Most batches of state in one request that has several share partitions: a request of too many
elements is refused by brokers."""

_TRY_AGAIN = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
_TOLD: dict[int, ErrorCode] = {
    ErrorCode.NONE: ErrorCode.NONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""What clients are told; anything else is UNKNOWN_SERVER_ERROR."""


class Coordinator(Protocol):
    """The node's own (`server.coordinator.share.coordinator.ShareCoordinator`)."""

    def find(
        self, key: ShareKey, on_complete: Callable[[BrokerRegistration | KafkaError], None]
    ) -> None: ...


class _Question(NamedTuple):
    """What is asked about one share partition, and who wants to know."""

    key: ShareKey
    request: Any
    """The class of the request."""
    partition: Any
    """What it says of the share partition."""
    on_answer: Callable[[ErrorCode, Any], None]
    channel: str = CHANNEL
    attempt: int = 1


class _To(NamedTuple):
    """Where there is one request under way at most."""

    broker_id: int
    channel: str
    group_id: str


class SharePersister:
    """A `server.share.leading.Persister` for leaders, and a
    `server.coordinator.share_groups.service.ShareState` for groups; one per broker."""

    def __init__(
        self,
        node_id: int,
        coordinator: Coordinator,
        brokers: Brokers,
        add_timer: Callable[[int, Callable[[], None]], object],
        request_timeout_ms: int,
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._brokers = brokers
        self._add_timer = add_timer
        self._request_timeout_ms = request_timeout_ms
        self._lock = threading.Lock()
        self._waiting: dict[_To, list[_Question]] = {}
        """Behind each request that is under way."""
        self._behind: dict[ShareKey, list[_Question]] = {}
        """Behind what was asked about each share partition and is not told yet."""

    def read(
        self,
        key: ShareKey,
        leader_epoch: int,
        on_complete: Callable[[PersistedState | KafkaError], None],
    ) -> None:
        """See Persister."""
        request = ReadShareGroupStateRequest
        asked = request.Topic.Partition(partition=key.partition, leader_epoch=leader_epoch)

        def answer(code: ErrorCode, found: Any) -> None:
            on_complete(KafkaError(code) if code else _state(found))

        self._ask(_Question(key, request, asked, answer))

    def write(
        self,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        change: StateChange,
        on_complete: OnCode,
    ) -> None:
        """See Persister."""
        request = WriteShareGroupStateRequest
        struct = request.Topic.Partition.StateBatch
        asked = request.Topic.Partition(
            partition=key.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.complete_count,
            state_batches=[
                struct(first_offset=first, last_offset=last, delivery_state=of, delivery_count=n)
                for first, last, of, n in change.batches
            ],
        )
        self._ask(_Question(key, request, asked, lambda code, _found: on_complete(code)))

    def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int, on_complete: OnCode
    ) -> None:
        """See ShareState."""
        request = InitializeShareGroupStateRequest
        asked = request.Topic.Partition(
            partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
        )
        self._ask(_Question(key, request, asked, lambda code, _found: on_complete(code)))

    def delete(self, key: ShareKey, on_complete: OnCode) -> None:
        """See ShareState."""
        request = DeleteShareGroupStateRequest
        asked = request.Topic.Partition(partition=key.partition)
        self._ask(_Question(key, request, asked, lambda code, _found: on_complete(code)))

    def summary(self, key: ShareKey, on_complete: Callable[[Summary | KafkaError], None]) -> None:
        """See ShareState."""
        request = ReadShareGroupStateSummaryRequest
        asked = request.Topic.Partition(partition=key.partition, leader_epoch=UNKNOWN_EPOCH)

        def answer(code: ErrorCode, found: Any) -> None:
            on_complete(KafkaError(code) if code else _summary(found))

        self._ask(_Question(key, request, asked, answer, SUMMARY_CHANNEL))

    # -- asking ------------------------------------------------------------------------------

    def _ask(self, question: _Question) -> None:
        if question.channel == CHANNEL:
            with self._lock:
                behind = self._behind.setdefault(question.key, [])
                behind.append(question)
                if behind[0] is not question:
                    return
        self._find(question)

    def _find(self, question: _Question) -> None:
        self._coordinator.find(question.key, partial(self._found, question))

    def _is_told(self, question: _Question) -> None:
        """What waits behind it may be asked."""
        if question.channel != CHANNEL:
            return
        with self._lock:
            _, *left = self._behind.pop(question.key)
            if left:
                self._behind[question.key] = left
        if left:  # not at once: each may be answered before the call is over, and asks the next
            self._add_timer(0, partial(self._find, left[0]))

    def _found(self, question: _Question, broker: BrokerRegistration | KafkaError) -> None:
        if isinstance(broker, KafkaError):
            self._tell(question, broker.code, None)
            return
        to = _To(broker.broker_id, question.channel, question.key.group_id)
        if to.broker_id == self._node_id:
            self._send(to, [question], partial(self._answered, [question]))
        else:
            self._queue(to, question)

    def _queue(self, to: _To, question: _Question) -> None:
        with self._lock:
            waiting = self._waiting.get(to)
            if waiting is None:
                self._waiting[to] = []
            else:
                waiting.append(question)
        if waiting is None:
            self._send_next(to, [question])

    def _send_next(self, to: _To, questions: Sequence[_Question]) -> None:
        def answered(response: Any) -> None:
            try:
                self._answered(questions, response)
            finally:
                self._go_on(to, response)

        self._send(to, questions, answered)

    def _go_on(self, to: _To, response: Any) -> None:
        """After a request: what waited is sent, or fails as that did and is asked again later."""
        is_failed = isinstance(response, PeerError)
        with self._lock:
            waiting = self._waiting.pop(to)
            taken, left = ([], []) if is_failed else _joined(waiting)
            if taken:
                self._waiting[to] = left
        if taken:
            self._send_next(to, taken)
        elif is_failed:
            self._answered(waiting, response)

    def _send(
        self, to: _To, questions: Sequence[_Question], answered: Callable[[Any], None]
    ) -> None:
        self._brokers.send(
            to.broker_id,
            _request(questions),
            answered,
            timeout_ms=self._request_timeout_ms,
            channel=to.channel,
        )

    def _answered(self, questions: Iterable[_Question], response: Any) -> None:
        if isinstance(response, PeerError):
            for question in questions:
                self._tell(question, ErrorCode.NETWORK_EXCEPTION, None)
            return
        results = {
            (topic.topic_id, partition.partition): partition
            for topic in response.results
            for partition in topic.partitions
        }
        for question in questions:
            found = results.get((question.key.topic_id, question.key.partition))
            code = ErrorCode.UNKNOWN_SERVER_ERROR if found is None else found.error_code
            self._tell(question, code, found)

    def _tell(self, question: _Question, code: int, found: Any) -> None:
        if code in _TRY_AGAIN and question.attempt < ATTEMPTS:
            again = question._replace(attempt=question.attempt + 1)
            self._add_timer(BACKOFF_MS << (question.attempt - 1), partial(self._find, again))
            return
        self._is_told(question)
        try:
            question.on_answer(_TOLD.get(code, ErrorCode.UNKNOWN_SERVER_ERROR), found)
        except Exception:  # others wait for the same answer
            logger.exception("going on with an answer failed key=%s", question.key)


def _joined(waiting: Sequence[_Question]) -> tuple[list[_Question], list[_Question]]:
    """What goes with the one that has waited longest, and what is left."""
    taken: list[_Question] = []
    left: list[_Question] = []
    batches = 0
    for question in waiting:
        is_alike = question.request is waiting[0].request
        batches += len(getattr(question.partition, "state_batches", ()))
        has_room = not taken or (len(taken) < PARTITIONS_MAX and batches <= BATCHES_MAX)
        (taken if is_alike and has_room else left).append(question)
    return taken, left


def _request(questions: Sequence[_Question]) -> Any:
    kind = questions[0].request
    topics: dict[bytes, list[Any]] = {}
    for question in questions:
        topics.setdefault(question.key.topic_id, []).append(question.partition)
    return kind(
        group_id=questions[0].key.group_id,
        topics=[kind.Topic(topic_id=id_, partitions=of) for id_, of in topics.items()],
    )


def _summary(found: Any) -> Summary:
    return Summary(
        found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count
    )


def _state(found: Any) -> PersistedState:
    return PersistedState(
        found.state_epoch,
        found.start_offset,
        [
            StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
            for b in found.state_batches
        ],
    )
