"""The listeners: accept connections, spread them over processors, start and stop the lot.

    Acceptor thread -> Processor threads (num.network.threads) -> RequestChannel -> handler threads

Names and roles are Kafka's (SocketServer). Each listener has an Acceptor; all share the processors
(Kafka: processors of their own for each), for more threads only make CPython slower. The listeners
of controllers belong to a SocketServer of their own.

Accepting (N-10): over a connection limit a socket is accepted and closed at once, and counted; over
a rate it waits for its turn, a second at most, and holds up nobody (`ConnectionQuotas`). When the
process has no descriptor or memory left, the acceptor pauses 100 ms and goes on; connections wait
in the backlog and nothing spins (S-17). The broker-wide limits never keep out a broker that comes
to a listener of its own: clients must not starve replication.

Stopping is controlled: stop accepting, let what is in flight be answered (parked requests at once,
with what there is), close, end the threads.

Gaps: of the keys of one listener those for security (`security`) and for connections (`limits`)
are obeyed, others (listener.name.X.num.network.threads) are not.
"""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from server.network import last_requests
from server.network.channel import Channel
from server.network.connection import ConnectionLimits
from server.network.limits import (
    NO_LIMIT,
    ConnectionQuotas,
    ListenerLimits,
    MemoryPool,
    UnreadAnswers,
)
from server.network.listeners import PLAINTEXT
from server.network.processor import Processor
from server.network.request_channel import RequestChannel
from server.network.transport import PlaintextTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.network.api import Api
    from server.network.listeners import Listener

logger = logging.getLogger(__name__)

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# A peer that vanished is found after 60 s + 6 x 10 s, instead of the system's two hours (N-11).
_KEEPALIVE = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
    if hasattr(socket, name)
)
_PAUSE_S = 0.1
_SWITCH_INTERVAL_S = 0.0002
_PARKED_S = 1.0
_POLL_S = 0.02
_COMPLAIN_MS = 60_000
_OS_DEFAULT = -1
_STRANGERS_BYTES = 16 << 20
"""What large frames of peers hold who are not known yet: no login needs one, and they must not use
up what the others have."""


class BindError(Exception):
    """A listener's address cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class SocketServerConfig:
    """What the socket server obeys; names are Kafka's keys with _ for a dot.

    Byte counts in bytes, -1 for buffers is the operating system's default. Times in ms.

    Defaults differ from Kafka's in four places. Threads: with the GIL more of them make one broker
    slower, so there is one network thread (3 in Kafka) and two handler threads (8), measured in
    benchmarks/micro/requests.py; more cores are used by more brokers. Memory of large requests is
    bounded (queued.max.request.bytes, no bound in Kafka): a bit above the largest request (N-9).
    The backlog is 512 (50): a burst of clients beyond it would wait a second for their next SYN.
    The receive buffer is the operating system's (102,400), which grows with the connection: 2/3
    of the CPU time for each megabyte received. The send buffer is 384 KiB (102,400), a third faster
    for a consumer; the operating system's, which grows to megabytes, costs 1.5 times the CPU for
    each megabyte sent (kcat, 900 MB, five sizes in turn).
    """

    num_network_threads: int = 1
    num_io_threads: int = 2
    queued_max_requests: int = 500
    queued_max_request_bytes: int = 134_217_728
    socket_request_max_bytes: int = 104_857_600
    socket_send_buffer_bytes: int = 393_216
    socket_receive_buffer_bytes: int = _OS_DEFAULT
    socket_listen_backlog_size: int = 512
    max_connections: int = NO_LIMIT
    max_connections_per_ip: int = NO_LIMIT
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    max_connection_creation_rate: int = NO_LIMIT
    listener_limits: Mapping[str, ListenerLimits] = field(default_factory=dict)
    connections_max_idle_ms: int = 600_000
    frame_complete_ms: int = 30_000
    send_stall_ms: int = 60_000

    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            frame_bytes_max=self.socket_request_max_bytes,
            idle_ms=self.connections_max_idle_ms,
            frame_ms=self.frame_complete_ms,
            send_stall_ms=self.send_stall_ms,
        )


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ListenerSecurity(Protocol):
    """What a listener that is not PLAINTEXT makes of its connections;
    `server.security.listener_security`."""

    def new_channel(
        self,
        sock: socket.socket,
        processor: Processor,
        limits: ConnectionLimits,
        requests: RequestChannel,
        connection_id: int,
        peer_host: str,
    ) -> Channel: ...


class SocketServer:
    """Everything between the wire and the handlers.

    `listeners`: host "" or "0.0.0.0" listens on every address; port 0 takes a free one. `apis` is
    their dispatch table (of `server.handlers`), `broker` what handlers find as `ctx.broker`.
    `inter_broker_name` names the listener of brokers, if it is one of several; `security` is of
    the listeners that are not PLAINTEXT: none may be missing. Duties of the caller: `start` once,
    when the broker can answer; `shutdown` once. `bind` may be called before `start` to learn the
    ports: clients can connect then, and are answered from `start` on.
    """

    def __init__(
        self,
        config: SocketServerConfig,
        listeners: Sequence[Listener],
        broker: object,
        apis: Mapping[int, Api],
        clock_ms: Callable[[], int] = monotonic_ms,
        inter_broker_name: str = "",
        security: Mapping[str, ListenerSecurity] | None = None,
    ) -> None:
        self.config = config
        self.listeners = listeners
        open_ones = {one.name for one in listeners if one.protocol != PLAINTEXT}
        if open_ones - set(security or ()):
            raise RuntimeError(f"listeners without their security: {open_ones}")
        self.request_channel = RequestChannel(
            apis, broker, config.num_io_threads, config.queued_max_requests
        )
        self.quotas = ConnectionQuotas(
            config.max_connections,
            config.max_connections_per_ip,
            config.max_connections_per_ip_overrides,
            config.max_connection_creation_rate,
            config.listener_limits,
        )
        self.memory = MemoryPool(config.queued_max_request_bytes)
        strangers = MemoryPool(_STRANGERS_BYTES)
        unread: UnreadAnswers[Channel] = UnreadAnswers(config.queued_max_request_bytes)
        self.processors = [
            Processor(
                index, self.request_channel, clock_ms, self.quotas, self.memory, strangers, unread
            )
            for index in range(max(1, config.num_network_threads))
        ]
        self._clock_ms = clock_ms
        self._security = security or {}
        self._limits = config.connection_limits()
        self._reserved = inter_broker_name if len(listeners) > 1 else ""
        self._next_id = itertools.count()
        self._acceptors: list[Acceptor] = []

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.ports[self.listeners[0].name]

    @property
    def ports(self) -> dict[str, int]:
        """The ports listened on, by the listeners' names."""
        if not self._acceptors:
            raise RuntimeError("the socket server is not bound")
        return {acceptor.listener_name: acceptor.port for acceptor in self._acceptors}

    def bind(self) -> None:
        """Take the addresses; BindError if one cannot be had, and none is kept then."""
        if self._acceptors:
            return
        try:
            for listener in self.listeners:
                self._acceptors.append(Acceptor(self, listener, listener.name == self._reserved))
        except BindError:
            self.stop_accepting()
            for processor in self.processors:
                processor.stop(0)
            raise

    def new_channel(self, sock: socket.socket, listener_name: str, peer_host: str) -> Channel:
        """A connection for one of the processors, which take them in turn."""
        connection_id = next(self._next_id)
        processor = self.processors[connection_id % len(self.processors)]
        security = self._security.get(listener_name)
        if security is not None:
            return security.new_channel(
                sock, processor, self._limits, self.request_channel, connection_id, peer_host
            )
        return Channel(
            PlaintextTransport(sock),
            processor,
            self._limits,
            listener_name=listener_name,
            connection_id=connection_id,
            peer_host=peer_host,
        )

    def now_ms(self) -> int:
        return self._clock_ms()

    def start(self) -> None:
        """Bind, unless that was done, and serve."""
        self.bind()
        # Threads that compute (cleaner, loading) keep the interpreter's lock for a whole interval
        # after each system call of a processor. With one such thread 5 ms (the default) left 2,200
        # requests a second, 0.2 ms 13,400; without one it makes no difference (measured).
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL_S))
        for processor in self.processors:
            processor.start()
        for acceptor in self._acceptors:
            acceptor.start()

    def last_requests(self, wall_ms: int) -> list[str]:
        """The last requests, a line each; `wall_ms` is now. From any thread."""
        done, under_way = [], []
        for processor in self.processors:
            done += list(processor.recent)
            requests = [channel.in_flight for channel in list(processor.channels.values())]
            under_way += [request for request in requests if request is not None]
        return last_requests.told(done, under_way, self.now_ms(), wall_ms)

    def stop_accepting(self) -> None:
        """Close the listeners; connections there are go on."""
        for acceptor in self._acceptors:
            acceptor.stop()

    def after_answers(self, job: Callable[[], None]) -> None:
        """Run what follows from a request but must not hold up its answer: on a network thread once
        that has left, before the thread reads anything more; on any other thread at once."""
        if not any(processor.after_answers(job) for processor in self.processors):
            job()

    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop accepting, answer what is in flight for at most `timeout` seconds, close.

        What only waits, and cannot be answered early (a JoinGroup), gets a second of it.
        """
        self.stop_accepting()
        started = [processor for processor in self.processors if processor.is_started]
        for processor in started:
            processor.begin_drain()
        begun = time.monotonic()
        while not all(processor.drained.wait(_POLL_S) for processor in started):
            waited = time.monotonic() - begun
            if waited > timeout or (waited > _PARKED_S and not self.request_channel.is_busy):
                break
        for processor in self.processors:
            processor.stop(1.0)
        self.request_channel.shutdown(1.0)


class Acceptor:
    """Listens, accepts, and hands connections to the processors in turn; one per listener."""

    def __init__(self, server: SocketServer, listener: Listener, is_reserved: bool) -> None:
        """`is_reserved`: for brokers, which the limits for all connections do not keep out."""
        self._server = server
        self._config = server.config
        self._is_reserved = is_reserved
        self.listener_name = listener.name
        self._complained_ms = -_COMPLAIN_MS
        self._listener = _listen(listener, server.config)
        self.port: int = self._listener.getsockname()[1]
        self.exhausted = 0
        self._waiting: list[tuple[int, int, socket.socket, str]] = []
        """Who is over a rate: a heap by the time from which he is served; the acceptor's thread."""
        self._turns = itertools.count()
        self._stopping = threading.Event()
        self._wake_reader, self._wake_writer = socket.socketpair()
        name = f"acceptor-{listener.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the listener; returns when no connection will be accepted any more."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._wake_writer.close()
        if self._thread.ident is not None:
            self._thread.join()
        for _, _, sock, host in self._waiting:
            self._give_up(sock, host)
        self._listener.close()
        self._wake_reader.close()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._listener.fileno(), select.POLLIN)
        poller.register(self._wake_reader.fileno(), select.POLLIN)
        while True:
            poller.poll(self._until_next_ms())
            if self._stopping.is_set():
                return
            try:
                self._accept_all()
            except OSError as error:
                self._pause(error)
            except Exception:
                logger.exception("accepting failed")

    def _until_next_ms(self) -> int | None:
        """How long nobody's turn comes, unless somebody connects."""
        return max(0, self._waiting[0][0] - self._server.now_ms()) if self._waiting else None

    def _accept_all(self) -> None:
        while not self._stopping.is_set():
            now_ms = self._server.now_ms()
            while self._waiting and self._waiting[0][0] <= now_ms:
                _, _, sock, host = heappop(self._waiting)
                self._hand_on(sock, host)
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            host = address[0].removeprefix("::ffff:")
            admission = self._server.quotas.admit(
                host, now_ms, self.listener_name, self._is_reserved
            )
            if admission.refused_by is not None:
                logger.debug("connection refused peer=%s limit=%s", host, admission.refused_by)
                sock.close()
            elif admission.wait_ms:
                due_ms = now_ms + admission.wait_ms
                heappush(self._waiting, (due_ms, next(self._turns), sock, host))
            else:
                self._hand_on(sock, host)

    def _hand_on(self, sock: socket.socket, host: str) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            if self._config.socket_send_buffer_bytes != _OS_DEFAULT:
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.socket_send_buffer_bytes
                )
            channel = self._server.new_channel(sock, self.listener_name, host)
        except Exception as error:
            self._give_up(sock, host)
            if isinstance(error, OSError):  # the peer has left already
                return
            raise
        channel.processor.adopt(channel)

    def _give_up(self, sock: socket.socket, host: str) -> None:
        sock.close()
        self._server.quotas.release(host, self.listener_name)

    def _pause(self, error: OSError) -> None:
        """Out of descriptors or memory: closing connections will free some."""
        self.exhausted += 1
        now_ms = self._server.now_ms()
        if now_ms - self._complained_ms >= _COMPLAIN_MS:
            self._complained_ms = now_ms
            level = logging.WARNING if error.errno in _EXHAUSTED else logging.ERROR
            logger.log(level, "cannot accept connections error=%s; trying on", error)
        self._stopping.wait(_PAUSE_S)


def _listen(address: Listener, config: SocketServerConfig) -> socket.socket:
    host = address.host
    everywhere = host in ("", "0.0.0.0", "::")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if everywhere and host != "0.0.0.0" and socket.has_dualstack_ipv6():
            family = socket.AF_INET6
        elif host and family == socket.AF_INET:
            info = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
            family, host = info[0], str(info[4][0])
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name can be so
        raise BindError(_bind_message(address, error)) from error
    try:
        # A restarted broker must not wait for the old connections' TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only = 0 if everywhere and address.host != "::1" else 1
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        if config.socket_receive_buffer_bytes != _OS_DEFAULT:
            # On the listener: the window's scale is settled when a connection is accepted.
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes
            )
        listener.bind(("::" if family == socket.AF_INET6 and everywhere else host, address.port))
        listener.listen(config.socket_listen_backlog_size)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        listener.close()
        raise BindError(_bind_message(address, error)) from error
    return listener


def _bind_message(listener: Listener, error: Exception) -> str:
    address = f"{listener.host or '*'}:{listener.port}"
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return f"{address} is in use by another process: stop it, or listen elsewhere (--listen)"
    if code == errno.EACCES:
        return f"{address} needs more rights than this user has: choose a port above 1023"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"cannot listen on {address}: {reason}"


def keep_freed_memory(size: int = 16 << 20) -> None:
    """Make the C library keep freed blocks up to `size` bytes for the next request.

    glibc gives large freed blocks back to the kernel, and the next large request pays a page fault
    for each 4 KiB: a 1 MiB frame cost 1,230 µs of CPU to receive before this call and 126 µs after
    it (measured). Freeing one block of `size` that was never touched raises both of glibc's
    thresholds for good (mallopt's dynamic M_MMAP_THRESHOLD); elsewhere it does nothing.
    """
    block = bytes(size)
    del block


def freeze_collector() -> None:
    """Take what exists after start out of the garbage collector's sight, and let it run rarely.

    Called once by the broker when it is ready. The request path makes no reference cycles (a test
    counts them), so the collector finds nothing there, and its pauses are the tail of the latency.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
