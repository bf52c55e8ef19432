"""A connection with its transport, and how answers get into it.

Bytes that stand together are gathered into one sendmsg, announced with MSG_MORE if record data
follow; record data go from file to socket with sendfile, except small pieces, which are read and
gathered (one system call less). What the socket does not take stays in the outbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from server.network.connection import Connection, ConnectionLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.network.limits import MemoryPool
    from server.network.transport import Transport
    from wire.primitives import Part

SENDFILE_BYTES_MAX = 1 << 20
SMALL_SLICE_BYTES = 32_768
"""Record data up to this are read and sent with their header, 6 µs instead of 11 (measured); from
256 KiB on sendfile is the cheaper one."""
READ_SLICES_BYTES_MAX = 65_536
"""Record data of one answer held in memory at most."""
BURST_BYTES = 65_536
"""Answers gathered before they are sent although more requests wait."""
BYTES = (bytes, bytearray, memoryview)
_IOV_MAX = 512
_TURN_BYTES = 4 << 20
"""Record data of one answer sent before other connections have their turn; a small piece counts for
SMALL_SLICE_BYTES, as its system calls take as long."""


ANONYMOUS = "User:ANONYMOUS"
"""Who is nobody in particular."""


class TokenPrincipal(str):
    """A principal who logged in by a delegation token: equal to the same one who did not, but it
    may have no tokens made (DT-2)."""

    __slots__ = ()


class ChannelOwner(Protocol):
    """What a channel, and whoever answers its requests, asks of the thread that serves it:
    `server.network.processor`."""

    now_ms: int
    bytes_out: int

    @property
    def has_line(self) -> bool:
        """Whether other connections wait for room in the queue of requests."""

    def adopt(self, channel: Any) -> None:
        """Take over a connection that was just accepted."""

    def pause(self, channel: Any, pause_ms: int) -> None:
        """Start no request of the connection for so long. On the owner's thread."""

    def complete(self, channel: Any, request: Any, parts: list[Part] | None) -> None:
        """The request was answered with `parts`; [] sends nothing, None closes the connection."""

    def answer_first(self, channel: Any, request: Any, parts: list[Part]) -> None:
        """Of several that are served as one request the first were answered with `parts`."""

    def resume(self) -> None:
        """There is room for requests again."""


class RequestReceiver(Protocol):
    """Takes frames; `server.network.request_channel.RequestChannel` is the one there is."""

    def receive(self, channel: Channel, frame: bytes) -> bool:
        """Run or queue the request in `frame`; False, with nothing done, while there is no room."""

    def receive_together(self, channel: Channel, most: int) -> int:
        """Run the first of the requests that wait as one, at most so many; returns how many these
        are, 0 with nothing done."""

    def await_room(self, processor: ChannelOwner) -> None:
        """Call `processor.resume` as soon as there is room, for who is first in its line."""


class Gate(Protocol):
    """Takes the frames of a connection in the request channel's place, while its peer is not known
    or may not be known any longer; `server.security.gates`. On the processor's thread."""

    def receive(self, channel: Channel, frame: bytes) -> bool:
        """Answer it, or hand it on to the request channel; as `RequestChannel.receive`."""

    def overdue(self, channel: Channel) -> str | None:
        """Why the connection must end now: its peer takes too long to say who it is; or None."""


def told_as(listener_name: str, connection_id: int, peer_host: str) -> str:
    """What the log calls a connection."""
    return f"{listener_name}-{connection_id}({peer_host})"


class Channel(Connection):
    """A connection with its transport, as handlers and the processor see it (Kafka's KafkaChannel).

    `principal` is who the peer is; `local_host` and `local_port` are the address it dialled. With
    authentication `gate` takes the frames until the peer `is_known`, and `limit` is small so long;
    PLAINTEXT needs none of that.
    """

    __slots__ = (
        "client_id",
        "client_id_raw",
        "client_software",
        "connection_id",
        "ending",
        "fd",
        "gate",
        "interest",
        "is_known",
        "listener_name",
        "local_host",
        "local_port",
        "memory",
        "on_closed",
        "peer_host",
        "principal",
        "processor",
        "security_protocol",
        "slice_sent",
        "transport",
    )

    def __init__(
        self,
        transport: Transport,
        processor: ChannelOwner,
        limits: ConnectionLimits,
        *,
        listener_name: str,
        connection_id: int,
        peer_host: str,
        security_protocol: str = "PLAINTEXT",
    ) -> None:
        super().__init__(limits, processor.now_ms)
        self.transport = transport
        self.fd = transport.fd
        self.processor = processor
        self.connection_id = connection_id
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self.gate: Gate | None = None
        self.principal = ANONYMOUS
        self.is_known = True
        self.peer_host = peer_host
        self.local_host, self.local_port = transport.local_address
        self.client_id = ""
        self.client_id_raw = b""
        self.client_software = ("unknown", "unknown")
        self.interest = 0
        """What the selector tells of it; 0: it does not stand there."""
        self.ending = False
        self.memory: MemoryPool
        """That was charged for the large frame."""
        self.slice_sent = 0
        self.on_closed: Callable[[object], None] | None = None
        """Told of the end; must return soon."""

    def __repr__(self) -> str:
        return told_as(self.listener_name, self.connection_id, self.peer_host)

    @property
    def peer_port(self) -> int:
        """Where the peer comes from at its own address; -1 when it has left."""
        return self.transport.peer_port

    # -- writing

    def is_worth_sending(self) -> bool:
        """Whether the gathered answers are worth a system call of their own."""
        if len(self.outbox) == 1 and type(self.outbox[0]) is bytearray:
            return len(self.outbox[0]) > BURST_BYTES
        return self.unsent_bytes() > BURST_BYTES or not all(
            isinstance(part, BYTES) for part in self.outbox
        )

    def send(self) -> bool:
        """True when all was sent; False or BlockingIOError when the socket is full."""
        outbox = self.outbox
        if len(outbox) == 1:
            part = outbox[0]
            if isinstance(part, bytearray):  # the common case: one small answer
                sent = self.transport.send(part)
                self.processor.bytes_out += sent
                if sent == len(part):
                    outbox.clear()
                    return True
                outbox[0] = memoryview(part)[sent:]
                return False
        room = _TURN_BYTES
        while outbox and room > 0:
            if not isinstance(outbox[0], BYTES):
                room -= max(self._send_slice(outbox), SMALL_SLICE_BYTES)
            elif not self._send_bytes(outbox):
                return False
        return not outbox

    def _send_bytes(self, outbox: list[Part]) -> bool:
        """Send the bytes in front of the outbox with one call; False if some are left."""
        count = 0
        size = 0
        is_more = False
        for part in outbox:
            if not isinstance(part, BYTES):
                is_more = True
                break
            if count == _IOV_MAX:
                break
            count += 1
            size += len(part)
        sent = self.transport.send_parts(outbox[:count], is_more)
        self.processor.bytes_out += sent
        if sent == size:
            del outbox[:count]
            return True
        _consume(outbox, sent)
        return False

    def _send_slice(self, outbox: list[Part]) -> int:
        """Send from the file slice in front of the outbox; returns how many bytes."""
        part: Any = outbox[0]
        left, sent = len(part) - self.slice_sent, 0
        if left:
            sent = self.transport.send_file(part, self.slice_sent, min(left, SENDFILE_BYTES_MAX))
            self.processor.bytes_out += sent
            self.slice_sent += sent
            left -= sent
        if not left:
            part.close()
            self.slice_sent = 0
            del outbox[0]
        return sent


class SecureChannel(Channel):
    """A channel whose transport keeps bytes that were sent until the socket takes them."""

    __slots__ = ()

    def send(self) -> bool:
        done = super().send()
        return self.transport.flush() and done

    def unsent_bytes(self) -> int:
        return super().unsent_bytes() + self.transport.unsent_bytes


def _consume(outbox: list[Part], sent: int) -> None:
    """Take `sent` bytes off the front of an outbox that begins with bytes."""
    while sent:
        part = outbox[0]
        size = len(part)
        if sent < size:
            outbox[0] = memoryview(part)[sent:]  # type: ignore[arg-type]
            return
        del outbox[0]
        sent -= size


def read_small_slices(parts: list[Part]) -> None:
    """Put the bytes of small file slices in their place; OSError if a file lost them."""
    budget = READ_SLICES_BYTES_MAX
    for at, part in enumerate(parts):
        if isinstance(part, BYTES):
            continue
        file_slice: Any = part
        size = len(file_slice)
        if size <= SMALL_SLICE_BYTES and size <= budget:
            parts[at] = file_slice.read()
            file_slice.close()
            budget -= size


def release_slices(parts: list[Part]) -> None:
    for part in parts:
        close = getattr(part, "close", None)
        if close is not None:
            close()
