"""The way to the active controller, wherever it is (Kafka: NodeToControllerChannelManager).

What: `submit` has the shape of `Controller.submit`, so a caller does not know whether the active
controller is in this process, on another node, or not elected yet. The local one is asked directly;
another over the network, on the controller listener of the quorum's leader:
    a broker's own request     as itself, in our highest version
    a client's request         (context.api_version >= 0) inside an Envelope, in the client's
                               version, with who and where the client is (KIP-590)
How: an attempt that meets no leader, a broken connection or NOT_CONTROLLER is made again after
50 ms, until the deadline; then the answer is KafkaError REQUEST_TIMED_OUT. When the leader changes
while a request is under way, it is sent to the new one at once: the old one may be frozen or cut
off, and its connection would hold the request until the timeout. So a request may be executed
twice, as in Kafka after a broken connection: who creates a topic may be told that it exists. What
still waits for its turn on a connection is not sent once it went elsewhere or is answered: the
topic that it deletes may have been made again.

Requests of one purpose go over one connection, one after the other, and connections are named for
their purposes as in Kafka ("broker-1-to-controller-heartbeat"): a heartbeat never waits for a
client's request.

Threads: none of its own. `submit` from any thread; `on_complete` is called exactly once, on the
peer client's, the timer's, the controller's or (when nothing can be done) the caller's thread: take
note and return.

Duty of whoever answers a client: a request that another node executed may be answered before this
node has read what changed.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Protocol

from replication.controller.context import ControllerContext
from server.peers.call import always
from server.peers.peer_connection import FRAME_BYTES_MAX
from wire.errors import ErrorCode, KafkaError
from wire.messages import response_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from replication.controller.controller import Controller
    from server.peers.peer_client import Peer
    from wire.schema import Request, Response

    OnComplete = Callable[[Any], None]

logger = logging.getLogger(__name__)

TIMEOUT_MS = 30_000
"""How long a request is tried, by default (request.timeout.ms of a client)."""
RETRY_MS = 50
WATCH_MS = 200
"""How often a request under way is checked for a change of the leader."""

_PURPOSES = {
    56: "alter-partition",
    62: "heartbeat",
    63: "heartbeat",
    70: "registration",
    73: "directory-assignments",
}
_OF_THE_QUORUM = frozenset({55, 80, 81})
"""Served by the leader's raft driver: the local controller knows nothing of them."""


class Quorum(Protocol):
    """What is asked of the raft driver."""

    @property
    def leader_id(self) -> int: ...
    def leader_endpoint(self) -> Peer | None: ...


class Peers(Protocol):
    """What is asked of the PeerClient."""

    def send(
        self,
        peer: Peer,
        request: Request,
        version: int,
        response_class: type[Response],
        on_complete: OnComplete,
        *,
        timeout_ms: int,
        channel: str,
        is_wanted: Callable[[], bool] = always,
    ) -> None: ...


class _Timer(Protocol):
    def add(self, delay_ms: int, fn: Callable[[], object]) -> Any: ...


class _Pending:
    """One request until it is answered. `attempt` counts how often it was sent."""

    __slots__ = (
        "attempt",
        "channel",
        "context",
        "deadline_ms",
        "failure",
        "leader_id",
        "on_complete",
        "request",
    )

    def __init__(
        self,
        request: Request,
        on_complete: OnComplete,
        context: ControllerContext,
        deadline_ms: int,
        channel: str,
    ) -> None:
        self.request = request
        self.on_complete: OnComplete | None = on_complete
        self.context = context
        self.deadline_ms = deadline_ms
        self.channel = channel
        self.attempt = 0
        self.leader_id = -1
        self.failure = "it is silent"
        """Why the last attempt led to nothing, for people."""

    def awaits(self, attempt: int) -> bool:
        """Is it not answered, and this the attempt that counts."""
        return self.on_complete is not None and self.attempt == attempt

    @property
    def is_clients(self) -> bool:
        return self.context.api_version >= 0


class ControllerChannel:
    """See the module. `shutdown` once; whoever waits is told NOT_CONTROLLER."""

    def __init__(
        self,
        node_id: int,
        local: Controller | None,
        raft: Quorum,
        peers: Peers,
        timer: _Timer,
        clock_ms: Callable[[], int],
        role: str = "broker",
        request_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """`local`: the controller of this process, if it has one. `role` names connections.
        `request_bytes_max`: socket.request.max.bytes, as far as we know of other nodes."""
        self._node_id = node_id
        self._local = local
        self._raft = raft
        self._peers = peers
        self._timer = timer
        self._clock_ms = clock_ms
        self._role = role
        self._request_bytes_max = request_bytes_max
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._pending: set[_Pending] = set()
        self._is_stopped = False
        self._is_watching = False

    def submit(
        self,
        request: Request,
        on_complete: OnComplete,
        *,
        context: ControllerContext | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Have the active controller answer; `on_complete` gets its response or a KafkaError.

        NOT_CONTROLLER is never an answer, but of a stopped channel; REQUEST_TIMED_OUT says that no
        controller answered in `timeout_ms`, and not whether one did what was asked.
        """
        context = context or ControllerContext()
        purpose = _PURPOSES.get(request.api_key, "forwarding")
        if context.api_version >= 0:
            purpose = "forwarding"
        channel = f"{self._role}-{self._node_id}-to-controller-{purpose}"
        deadline_ms = self._clock_ms() + timeout_ms
        pending = _Pending(request, on_complete, context, deadline_ms, channel)
        with self._lock:
            is_stopped = self._is_stopped
            if not is_stopped:
                self._pending.add(pending)
        if is_stopped:
            self._finish(pending, KafkaError(ErrorCode.NOT_CONTROLLER, "this node stops"))
        else:
            self._attempt(pending)

    def shutdown(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._is_stopped = True
            pending = list(self._pending)
        for one in pending:
            self._finish(one, KafkaError(ErrorCode.NOT_CONTROLLER, "this node stops"))

    # -- one attempt

    def _attempt(self, pending: _Pending) -> None:
        """Send, or wait for somebody to send to."""
        left_ms = pending.deadline_ms - self._clock_ms()
        if left_ms <= 0:
            detail = f"the active controller did not answer in time: {pending.failure}"
            self._finish(pending, KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail))
            return
        leader_id = self._raft.leader_id
        pending.attempt += 1
        pending.leader_id = leader_id
        attempt = pending.attempt
        if leader_id == self._node_id:
            self._ask_local(pending, attempt)
            return
        endpoint = self._raft.leader_endpoint() if leader_id >= 0 else None
        if endpoint is None:
            pending.failure = "the metadata quorum has no leader that this node knows"
            self._retry(pending, attempt)
            return
        try:
            self._ask_remote(pending, attempt, endpoint, left_ms)
        except KafkaError as error:
            self._finish(pending, error)
        except Exception as error:  # it cannot be encoded: a fault of ours, and it stays one
            logger.exception("request for the controller cannot be sent %r", pending.request)
            self._finish(pending, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))

    def _ask_local(self, pending: _Pending, attempt: int) -> None:
        if self._local is None or not self._local.is_active:
            # Before its first turn as the active one, or after its last: it resigned, say.
            self._retry(pending, attempt)
        elif pending.request.api_key in _OF_THE_QUORUM:
            # It came here while another node led; whoever asks again is answered by raft.
            self._finish(pending, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._local.submit(
                pending.request,
                lambda answer: self._answered(pending, attempt, answer),
                context=pending.context,
            )

    def _ask_remote(self, pending: _Pending, attempt: int, endpoint: Peer, left_ms: int) -> None:
        request: Request = pending.request
        if pending.is_clients:
            from server.peers import envelope

            version = pending.context.api_version
            request = envelope.wrap(pending.request, pending.context, self._request_bytes_max)

            def answered(answer: Any) -> None:
                if not isinstance(answer, Exception):
                    answer = envelope.unwrap(pending.request, version, answer)
                self._answered(pending, attempt, answer)
        else:

            def answered(answer: Any) -> None:
                self._answered(pending, attempt, answer)

        self._peers.send(
            endpoint,
            request,
            type(request).versions[1],
            response_class(request.api_key),
            answered,
            timeout_ms=left_ms,
            channel=pending.channel,
            is_wanted=lambda: pending.awaits(attempt),
        )
        self._watch()

    def _answered(self, pending: _Pending, attempt: int, answer: Any) -> None:
        if _is_delivered(answer):
            self._finish(pending, answer)
        elif attempt == pending.attempt:
            pending.failure = (
                str(answer) if isinstance(answer, Exception) else "it is not the active one"
            )
            self._retry(pending, attempt)

    def _retry(self, pending: _Pending, attempt: int) -> None:
        def again() -> None:
            if pending.awaits(attempt):
                self._attempt(pending)

        left_ms = pending.deadline_ms - self._clock_ms()
        self._timer.add(max(0, min(RETRY_MS, left_ms)), again)

    def _finish(self, pending: _Pending, answer: Any) -> None:
        with self._lock:
            self._pending.discard(pending)
            on_complete, pending.on_complete = pending.on_complete, None
        if on_complete is None:
            return  # answered before, by an attempt that was given up
        try:
            on_complete(answer)
        except Exception:
            logger.exception("completion failed request=%s", type(pending.request).__name__)

    # -- changes of the leader

    def _watch(self) -> None:
        """Look in a while whether the requests under way are still with the leader."""
        with self._lock:
            if self._is_watching or self._is_stopped:
                return
            self._is_watching = True
        self._timer.add(WATCH_MS, self._look)

    def _look(self) -> None:
        leader_id = self._raft.leader_id
        with self._lock:
            self._is_watching = False
            pending = list(self._pending)
        for one in pending:
            moved = one.leader_id not in (leader_id, -1, self._node_id)
            if moved and one.on_complete is not None:
                self._attempt(one)
        if pending:
            self._watch()


def _is_delivered(answer: Any) -> bool:
    """Did the active controller answer."""
    if isinstance(answer, KafkaError):
        return answer.code != ErrorCode.NOT_CONTROLLER
    if isinstance(answer, Exception):  # PeerError
        return False
    code = getattr(answer, "error_code", None)
    if code is not None:
        return bool(code != ErrorCode.NOT_CONTROLLER)
    topics = getattr(answer, "topics", ())
    return all(getattr(topic, "error_code", 0) != ErrorCode.NOT_CONTROLLER for topic in topics)
