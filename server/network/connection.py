"""One client connection's protocol state: frames in, one request at a time, answers out. PURE.

Why apart from the sockets: order of answers, limits and deadlines are rules (reliability.md N-1,
N-7, N-8, N-15), and rules must be testable without ports, threads or sleeps. The shell that owns
the socket is `server.network.processor.Channel`.

A frame is int32 size, then that many bytes (request header and body). Frames are handed on with
their size prefix, so that a frame which arrived alone in one read is not copied at all.

A connection's life:

    reading     no request in flight; complete frames may be waiting in `frames`
    in flight   `begin(request)` until its last `answer` or `end`: muted, nothing else of it is
                started, so answers leave in request order (Kafka mutes the channel likewise)
    sending     `outbox` holds bytes that the socket did not take yet: still nothing is started
    throttled   no request is started before `throttled_until_ms` (KIP-219)
    broken      `violation` says what the peer did wrong: what came before it is served, then closed
    closed      `closed`; answers that come later are dropped

Memory: a frame holds what has arrived, never what was announced; what a large one holds is charged
to the pool by the shell (`charged_bytes`). At most one read (READ_BYTES) is taken while a request
is in flight. The outbox holds the answers of one burst of pipelined requests,
bounded by the processor; record data in it are file slices, not bytes.

Duties of the caller: one thread only (the processor's); `begin` only when `may_start`; call
`expired` about once a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wire.frame import REQUEST_BYTES_MIN, FrameReader

if TYPE_CHECKING:
    from wire.primitives import Part

_FRAME_BYTES_PER_MS_MIN = 16
_HURRIED_BYTES_PER_MS_MIN = 1_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may do.

    frame_bytes_max: socket.request.max.bytes; a larger frame closes the connection.
    idle_ms: connections.max.idle.ms; closed after so long without a byte either way.
    frame_ms: a started frame must be complete after this, plus 1 s for each 16 KB of it that
        arrived, so that a slow line can send a large batch and a slowloris cannot (N-15).
    hurried_frame_ms: the same for a large frame while half-sent frames use up the memory for all,
        plus 1 s for each MB, waiting for memory included: who holds it must use it.
    silent_ms: the frame that goes on although no memory is left must not pause longer while
        others wait.
    send_stall_ms: an answer held in memory must make progress in this time (N-8).
    send_stall_bytes: unsent answers below this, and record data (they are in files), may wait as
        long as an idle connection: a consumer that processes for minutes is not an attacker.
    """

    frame_bytes_max: int = 104_857_600
    idle_ms: int = 600_000
    frame_ms: int = 30_000
    hurried_frame_ms: int = 10_000
    silent_ms: int = 1_000
    send_stall_ms: int = 60_000
    send_stall_bytes: int = 65_536


class Connection(FrameReader):
    """Protocol state of one connection; see the module docstring for its life."""

    __slots__ = (
        "awaits_memory",
        "charged_bytes",
        "charged_ms",
        "closed",
        "frame_started_ms",
        "has_left",
        "in_flight",
        "last_active_ms",
        "limits",
        "outbox",
        "reading",
        "send_stalled_ms",
        "sent_ms",
        "throttled_until_ms",
    )

    def __init__(self, limits: ConnectionLimits, now_ms: int) -> None:
        super().__init__(limits.frame_bytes_max, REQUEST_BYTES_MIN)
        self.limits = limits
        self.in_flight: Any = None
        self.outbox: list[Part] = []
        """Parts the socket has not taken yet, in order."""
        self.throttled_until_ms = 0
        self.closed = False
        self.has_left = False
        """The peer sends nothing more, or is gone: what begins to wait for it is cancelled."""
        self.reading = True
        """Whether the shell reads from the socket: time spent muted is not the peer's fault."""
        self.last_active_ms = now_ms
        self.frame_started_ms = -1
        """When the frame under way was first noticed incomplete; -1 if none is."""
        self.send_stalled_ms = -1
        """Since when the outbox waits for the socket; -1 if it is empty."""
        self.sent_ms = now_ms
        """When the socket last took some of the outbox that waits for it."""
        self.awaits_memory = False
        """The pool said no: nothing is read before it says that there is room."""
        self.charged_bytes = 0
        """What the pool was charged for the large frame, under way or in flight."""
        self.charged_ms = -1
        """When it was first charged; -1 once the frame has arrived whole."""

    # -- reading

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take the bytes of one read; complete frames go to `frames`."""
        self.last_active_ms = now_ms
        complete = len(self.frames)
        self.feed(data)
        if len(self.frames) != complete:
            self.charged_ms = self.frame_started_ms = -1
        if not self._chunks:
            self.frame_started_ms = -1
        elif self.frame_started_ms < 0:
            self.frame_started_ms = now_ms

    @property
    def holds_half_sent(self) -> bool:
        """Whether what the pool was charged for is a frame that has not arrived whole. What has
        arrived behind one that has is not charged yet."""
        return self.charged_bytes > 0 and self.charged_ms >= 0

    def mute(self) -> None:
        """Reading stops: a request is in flight, or there is no room for what would come."""
        self.reading = False

    def unmute(self, now_ms: int) -> None:
        """Reading goes on; a frame under way gets its whole time again."""
        self.reading = True
        self.last_active_ms = now_ms
        if self.frame_started_ms >= 0:
            self.frame_started_ms = now_ms

    # -- requests and answers

    def may_start(self, now_ms: int) -> bool:
        """Whether the next frame may be taken from `frames` and run."""
        return (
            self.in_flight is None
            and bool(self.frames)
            and self.send_stalled_ms < 0
            and self.throttled_until_ms <= now_ms
            and not self.closed
        )

    def begin(self, request: Any) -> None:
        """`request` is in flight: nothing else of this connection runs until it is answered."""
        if self.in_flight is not None:
            raise RuntimeError("a request of this connection is in flight already")
        self.in_flight = request

    def answer(self, request: Any, parts: list[Part], *, is_last: bool = True) -> bool:
        """Put the answer of the request in flight behind what is unsent; [] sends nothing (acks=0).
        It stays in flight unless this is the last of its answers.

        The answers of a burst, which are small, become one piece: one is sent sooner than many.
        False, with nothing done, when the connection was closed or `request` was answered before.
        """
        if self.in_flight is not request or self.closed:
            return False
        if is_last:
            self.in_flight = None
        outbox = self.outbox
        if outbox and len(parts) == 1 and type(outbox[-1]) is type(parts[0]) is bytearray:
            outbox[-1] += parts[0]
        else:
            outbox += parts
        return True

    # -- deadlines

    def expired(self, now_ms: int, is_memory_short: bool = False) -> str | None:
        """Why the connection must be closed now, or None.

        `is_memory_short`: half-sent frames use up queued.max.request.bytes.
        """
        limits = self.limits
        if is_memory_short and self.holds_half_sent:
            allowed = limits.hurried_frame_ms + self.charged_bytes // _HURRIED_BYTES_PER_MS_MIN
            if now_ms - self.charged_ms > allowed:
                return "frame was not completed in time while queued.max.request.bytes was used up"
        if self.frame_started_ms >= 0 and self.reading:
            allowed = limits.frame_ms + self._chunks_bytes // _FRAME_BYTES_PER_MS_MIN
            if now_ms - self.frame_started_ms > allowed:
                return "frame was not completed in time"
        if self.send_stalled_ms >= 0:
            stalled = now_ms - self.sent_ms
            if stalled > limits.idle_ms:
                return "answer was not read in time"
            if stalled > limits.send_stall_ms and self.unsent_bytes() > limits.send_stall_bytes:
                return "answer was not read in time"
        elif (self.reading or self.throttled_until_ms > now_ms) and self._is_idle(now_ms):
            return "idle"
        return None

    def is_silent(self, now_ms: int) -> bool:
        """Whether its half-sent frame makes no progress just now."""
        return self.holds_half_sent and now_ms - self.last_active_ms > self.limits.silent_ms

    def _is_idle(self, now_ms: int) -> bool:
        return self.in_flight is None and now_ms - self.last_active_ms > self.limits.idle_ms

    def unsent_bytes(self) -> int:
        """Bytes of unsent answers held in memory; file slices hold none."""
        return sum(
            len(part) for part in self.outbox if isinstance(part, (bytes, bytearray, memoryview))
        )
