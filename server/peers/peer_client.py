"""Requests to other nodes from one selector thread, for callers that must not wait.

`PeerClient` (Kafka's NetworkClient under an InterBrokerSendThread) carries what raft and the
channel to the controller ask; a thread that has nothing else to do has
`server.peers.blocking_peer`. Requests are made in our own highest versions without asking for
ApiVersions first: all nodes of a cluster run the same release.

What becomes of each connection, and of what waits for it: `server.peers.peer_connection`.

Threads: `send` and `shutdown` from any thread; the rest on the client's own. Duties of the caller:
`on_complete` runs on the client's thread (or, after `shutdown`, on the caller's): take note and
return. A request must not be changed once it was handed in. The simulator replaces this module.

Gaps: connections to peers that left are kept until the peer closes them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from server.network.poller import READ, WRITE, Wakeup, new_poller
from server.peers.call import Call, OnComplete, PeerError, always
from server.peers.peer_connection import NEVER_MS, PeerConnection, addresses_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.security.peer_security import PeerSecurity
    from wire.schema import Request, Response

logger = logging.getLogger(__name__)

_LONG_S = 3600.0


class Peer(Protocol):
    """Where a peer listens; `replication.metadata.registrations.Endpoint` is one."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class PeerClient:
    """Sends requests to many peers from one thread; see the module docstring.

    `clock_ms` is monotonic. `client_id` names the thread. `security` is that of the listener which
    all its peers are reached on, None for PLAINTEXT. `start` once, `shutdown` once.
    """

    def __init__(
        self, clock_ms: Callable[[], int], client_id: str, security: PeerSecurity | None = None
    ) -> None:
        self.client_id = client_id
        self.security = security
        self.now_ms = clock_ms
        self._poller = new_poller()
        self._connections: dict[tuple[str, int, str], PeerConnection] = {}
        self._by_fd: dict[int, PeerConnection] = {}
        self._wakeup = Wakeup(self._poller)
        self._inbox: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # guards _closed against what is put into _inbox
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)

    # -- called by any thread

    def start(self) -> None:
        self._thread.start()

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
    ) -> None:
        """Send `request` to `peer`; `on_complete` gets the decoded response or a PeerError.

        `timeout_ms` counts from now and covers waiting, connecting and the answer. Requests of one
        (peer, channel) are sent in this order, each after the answer to the one before. When its
        turn comes and `is_wanted` says no, it is not sent.
        """
        deadline_ms = self.now_ms() + timeout_ms
        call = Call(request, version, response_class, on_complete, deadline_ms, is_wanted)
        key = (peer.host, peer.port, channel)
        if not self._post(lambda: self._enqueue(key, call)):
            call.complete(PeerError("the client is shut down"))

    def shutdown(self) -> None:
        """Close every connection; whoever waits gets a PeerError. Harmless when repeated."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        self._wakeup.wake()
        if self._thread.ident is None:
            self._close_everything()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _post(self, job: Callable[[], None]) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._inbox.append(job)
        self._wakeup.wake()
        return True

    # -- the thread

    def _run(self) -> None:
        while not self._closed:
            try:
                self.turn()
            except Exception:
                logger.exception("peer client turn failed client=%s", self.client_id)
        self._close_everything()

    def turn(self) -> None:
        """Wait for something to happen, and handle it."""
        self._wakeup.is_asleep = True
        timeout = 0.0 if self._inbox or self._closed else self._timeout()
        events = self._poller.poll(timeout)
        self._wakeup.is_asleep = False
        for fd, event in events:
            connection = self._by_fd.get(fd)
            if connection is not None:
                connection.on_event(event, self.now_ms())
            else:
                self._wakeup.heard(fd)
        while self._inbox:
            self._inbox.popleft()()
        now_ms = self.now_ms()
        for connection in self._connections.values():
            connection.advance(now_ms)

    def _timeout(self) -> float:
        """Seconds until a deadline."""
        due = (c.due_ms() for c in self._connections.values() if c.calls or c.in_flight)
        return min(_LONG_S, max(0.0, (min(due, default=NEVER_MS) - self.now_ms()) / 1000))

    def _enqueue(self, key: tuple[str, int, str], call: Call) -> None:
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = PeerConnection(self, *key)
        connection.add(call)

    def _close_everything(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        for connection in self._connections.values():
            connection.close("the client is shut down")
        self._connections.clear()
        self._poller.close()
        self._wakeup.close()

    # -- for connections

    def register(self, connection: PeerConnection, sock: socket.socket) -> None:
        self._by_fd[sock.fileno()] = connection
        self._poller.register(sock.fileno(), READ | WRITE)

    def set_writing(self, fd: int, writing: bool) -> None:
        self._poller.modify(fd, READ | WRITE if writing else READ)

    def unregister(self, sock: socket.socket) -> None:
        del self._by_fd[sock.fileno()]
        self._poller.unregister(sock.fileno())

    def resolve(self, host: str, port: int, on_done: Callable[[list[Any] | OSError], None]) -> None:
        """Look up addresses without holding up the thread; `on_done` runs on it."""
        with contextlib.suppress(OSError):  # a number needs no server to be asked
            on_done(addresses_of(host, port, socket.AI_NUMERICHOST))
            return

        def look_up() -> None:
            found: list[Any] | OSError
            try:
                found = addresses_of(host, port)
            except OSError as error:
                found = error
            self._post(lambda: on_done(found))

        threading.Thread(target=look_up, name=f"{self.client_id}-resolver", daemon=True).start()
