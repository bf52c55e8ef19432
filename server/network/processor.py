"""Network threads: each Processor owns a selector and the sockets registered with it.

What: a Processor reads frames, hands each to the request channel (which may run it at once on this
thread: the caller-runs rule), and writes answers. It decodes nothing.
Why one owner: no lock is needed around a socket, and answers leave in order (N-7).
How: one loop of poll, read, serve, write. A connection whose request is in flight is not muted by
a system call; only if bytes arrive meanwhile they are read once (so that a client that goes away is
noticed and its parked request cancelled) and then the read interest is dropped.
Answers completed by other threads come through a queue; the processor is woken only if it sleeps,
and once for any number of answers. On its own thread an answer is written straight away, also for
another connection: a produce that completes a parked fetch has sent the consumer its records before
the producer has its acknowledgement. Answers of requests that were pipelined in one read and ran at
once leave with one system call.

Writing: bytes are gathered into one sendmsg, announced with MSG_MORE if record data follow; record
data go from file to socket with sendfile. What the socket does not take waits in the connection's
outbox; nothing new is started meanwhile, so a reader that stops costs one answer (N-8). All those,
of all processors, hold at most as much as large requests may (queued.max.request.bytes).

Lock: none. Other threads call only what stands before `_command`.

Budget: a small inline request over loopback and back 22 µs for a waiting client, three times that
if it is handed to another thread (benchmarks/micro/requests.py, inline).
"""

from __future__ import annotations

import heapq
import logging
import select
import threading
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Any

from server.network.channel import Channel, RequestReceiver, release_slices
from server.network.last_requests import RECENT, Served
from server.network.limits import Unread, half_sent_fill
from server.network.poller import GONE, MUTED, READ, WRITE, Wakeup, new_poller

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.network.limits import ConnectionQuotas, MemoryPool, UnreadAnswers
    from server.network.request_context import RequestContext
    from wire.primitives import Part

logger = logging.getLogger(__name__)

BURST_REQUESTS = 16
"""Pipelined requests of one connection run before the others have their turn."""
SWEEP_MS = 1_000


class Processor:
    """One network thread; see the module docstring. Counters are plain attributes for metrics."""

    def __init__(
        self,
        index: int,
        requests: RequestReceiver,
        clock_ms: Callable[[], int],
        quotas: ConnectionQuotas,
        memory: MemoryPool,
        strangers: MemoryPool,
        unread: UnreadAnswers[Channel],
    ) -> None:
        self.index = index
        self.now_ms = clock_ms()
        self.channels: dict[int, Channel] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.requests = 0
        self.recent: deque[Served] = deque(maxlen=RECENT)
        """The last requests that were answered; `last_requests` puts them into words."""
        self.connections_expired = 0
        self._requests = requests
        self._clock_ms = clock_ms
        self._quotas = quotas
        self._memory = memory
        self._strangers = strangers
        self._unread = unread
        self._poller = new_poller()
        self._wakeup = Wakeup(self._poller)
        self._completed: deque[tuple[Callable[..., None], Channel, RequestContext[Any], Any]]
        self._completed = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._ready: deque[Channel] = deque()
        self._line: OrderedDict[Channel, None] = OrderedDict()
        """Whose next request found no room, the first one first."""
        self._is_lines_turn = False
        self._throttled: list[tuple[int, int, Channel]] = []
        self._serving: Channel | None = None
        self._next_sweep_ms = self.now_ms + SWEEP_MS
        self._draining = False
        self.drained = threading.Event()
        """Set when no connection is left after `begin_drain`: everything is answered."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"processor-{index}", daemon=True)
        self._thread_id = -1

    # -- called by any thread

    def start(self) -> None:
        self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    def adopt(self, channel: Channel) -> None:
        """Take over a connection that was just accepted."""
        self._command(partial(self._guarded, channel, self._register))

    def complete(
        self, channel: Channel, request: RequestContext[Any], parts: list[Part] | None
    ) -> None:
        """The request was answered with `parts`; [] sends nothing, None closes the connection."""
        if threading.get_ident() == self._thread_id and not request.is_partly_answered:
            self._finish(channel, request, parts)
        else:
            self._completed.append((self._finish, channel, request, parts))
            self._wakeup.wake()

    def answer_first(self, channel: Channel, request: RequestContext[Any], parts: Any) -> None:
        """Some of several that are served as one were answered; all come in line from now on."""
        request.is_partly_answered = True
        self._completed.append((self._send_first, channel, request, parts))
        self._wakeup.wake()

    def resume(self) -> None:
        """There is room for requests again."""
        self._command(self._serve_line)

    @property
    def has_line(self) -> bool:
        """Whether others wait for room: who comes now is not served before them."""
        return bool(self._line) and not self._is_lines_turn

    def after_answers(self, job: Callable[[], None]) -> bool:
        """Run `job` on this thread, once the answers of what it serves now have left; False, with
        nothing done, on any other thread."""
        if threading.get_ident() != self._thread_id:
            return False
        self._commands.append(job)
        return True

    def begin_drain(self) -> None:
        """Start no more requests; close connections as soon as they have been answered."""
        self._command(self._drain)

    def stop(self, timeout: float) -> None:
        """Close every connection and end the thread."""
        if not self.is_started:
            self._close_everything()
            return
        self._command(self._stop)
        self._thread.join(timeout)

    def _command(self, run: Callable[[], None]) -> None:
        self._commands.append(run)
        self._wakeup.wake()

    # -- the loop

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        while not self._stopping:
            try:
                self._turn()
            except Exception:
                logger.exception("processor turn failed processor=%s", self.index)
        self._close_everything()

    def _turn(self) -> None:
        """Wait for events and handle them all once."""
        wakeup = self._wakeup
        wakeup.is_asleep = True
        timeout = 0.0 if self._completed or self._commands or self._ready else self._timeout()
        events = self._poller.poll(timeout)
        wakeup.is_asleep = False
        self.now_ms = self._clock_ms()
        channels = self.channels
        for fd, event in events:
            channel = channels.get(fd)
            if channel is None:
                wakeup.heard(fd)
                continue
            try:
                self._on_event(channel, event)
            except Exception:
                logger.exception("connection failed connection=%r", channel)
                self._close(channel)
        if self._completed or self._commands or self._ready or self._throttled:
            self._run_queues()
        if self.now_ms >= self._next_sweep_ms:
            self._sweep()
        if self._draining and not channels:
            self.drained.set()

    def _timeout(self) -> float:
        due_ms = self._next_sweep_ms
        if self._throttled:
            due_ms = min(due_ms, self._throttled[0][0])
        return max(0.0, (due_ms - self.now_ms) / 1000)

    def _run_queues(self) -> None:
        completed = self._completed
        while completed:
            finish, channel, request, parts = completed.popleft()
            self._guarded(channel, finish, request, parts)
        while self._throttled and self._throttled[0][0] <= self.now_ms:
            self._ready.append(heapq.heappop(self._throttled)[2])
        for _ in range(len(self._ready)):
            self._guarded(self._ready.popleft(), self._serve)
        while self._commands:  # last: `after_answers` of what was served above
            self._commands.popleft()()

    def _guarded(self, channel: Channel, do: Callable[..., None], *given: Any) -> None:
        """`do` with the connection, which is closed if that fails: others go on."""
        try:
            do(channel, *given)
        except Exception:
            logger.exception("connection failed connection=%r", channel)
            self._close(channel)

    # -- reading

    def _on_event(self, channel: Channel, event: int) -> None:
        if event & WRITE and channel.send_stalled_ms >= 0:
            self._flush(channel)
            if not channel.closed:
                self._serve(channel)
        if channel.closed:
            return
        if event & (select.POLLIN | channel.transport.wants) and channel.reading:
            if not channel.frames:
                self._read(channel)
            elif channel.in_flight is not None:
                # Requests wait behind one that is parked: the kernel keeps what comes after them.
                # Read interest would report it in every turn until then.
                channel.mute()
                self._settle(channel)
            # else it waits for its turn in `_ready`
        elif event & (select.POLLHUP | select.POLLERR):
            self._close(channel)
        elif event & GONE and channel.interest == MUTED:  # and not only when this was reported
            self._peer_left_while_muted(channel)

    def _read(self, channel: Channel) -> None:
        is_large = channel.is_receiving_large
        if is_large and not self._may_read(channel):
            return
        try:
            data = channel.transport.recv(channel.read_bytes())
        except (BlockingIOError, InterruptedError):
            self._settle(channel)  # the transport may want something else
            return
        except OSError:
            self._close(channel)
            return
        if not data:
            self._peer_left(channel)
            return
        self.bytes_in += len(data)
        channel.receive(data, self.now_ms)
        if is_large:
            self._charge(channel, len(data))
        if channel.transport.has_ended:
            self._peer_left(channel)
        elif channel.in_flight is None:
            self._serve(channel)
        else:
            # Read ahead once, to notice a peer that leaves; the rest stays in the kernel.
            channel.mute()
            self._settle(channel)

    def _may_read(self, channel: Channel) -> bool:
        """Whether more of a large frame may be read now; else it waits for memory (N-9)."""
        if not channel.charged_bytes:
            channel.charged_ms = self.now_ms
            channel.memory = self._memory if channel.is_known else self._strangers
            self._charge(channel, channel.frame_bytes_arrived)
        has_room = partial(self._guarded, channel, self._has_room)
        if channel.memory.may_read(channel, partial(self._command, has_room)):
            return True
        channel.awaits_memory = True
        channel.mute()
        self._settle(channel)
        return False

    def _charge(self, channel: Channel, count: int) -> None:
        channel.charged_bytes += count
        channel.memory.charge(count)

    def _has_room(self, channel: Channel) -> None:
        channel.awaits_memory = False
        self._serve(channel)

    def _give_memory_back(self, channel: Channel) -> None:
        count, channel.charged_bytes = channel.charged_bytes, 0
        channel.awaits_memory = False  # a frame behind it must ask again: it loses its place
        channel.memory.release(channel, count)

    def _peer_left(self, channel: Channel) -> None:
        """End of stream: run what was received before it (acks=0 batches count), then close."""
        channel.ending = True
        channel.mute()
        self._set_interest(channel, 0)
        if self._cancel_parked(channel) or channel.in_flight is None:
            self._serve(channel)

    def _peer_left_while_muted(self, channel: Channel) -> None:
        """What it sent before it left is still unread: stop waiting for an answer, then read on."""
        if self._cancel_parked(channel):
            self._serve(channel)
        else:
            self._set_interest(channel, 0)

    @staticmethod
    def _cancel_parked(channel: Channel) -> bool:
        """Drop the request in flight if it waits; one that a handler works on, when it does."""
        channel.has_left = True
        request = channel.in_flight
        if request is None or not request.cancel():
            return False
        channel.in_flight = None
        return True

    # -- serving

    def _serve(self, channel: Channel) -> None:
        """Run the waiting requests of a connection, send their answers, set what to wait for."""
        self._serving = channel
        budget = BURST_REQUESTS
        while budget and channel.may_start(self.now_ms) and not self._draining:
            taken = 0
            if len(channel.frames) > 1 and channel.gate is None:
                taken = self._requests.receive_together(channel, budget)
            if not taken:
                frame = channel.frames.popleft()
                if not (channel.gate or self._requests).receive(channel, frame):
                    channel.frames.appendleft(frame)
                    self._line[channel] = None  # who stands there already keeps the place
                    self._requests.await_room(self)
                    break
                taken = 1
            if channel.charged_bytes and channel.in_flight is None:  # a gate took it
                self._give_memory_back(channel)
            self.requests += taken
            budget -= taken
            if channel.outbox and channel.is_worth_sending():
                budget = 0
        self._serving = None
        if channel.outbox and not channel.closed and channel.send_stalled_ms < 0:
            self._flush(channel)
        if not budget and channel.may_start(self.now_ms):
            self._ready.append(channel)
        else:
            self._settle(channel)

    def _finish(
        self, channel: Channel, request: RequestContext[Any], parts: list[Part] | None
    ) -> None:
        """A request was answered: put the answer in line, send it, look at what waits behind it."""
        received_ms = request.received_ms
        self.recent.append((
            received_ms, self.now_ms - received_ms, request.api.name, request.api_version,
            request.client_id, channel.listener_name, channel.connection_id,
        ))  # fmt: skip
        if parts is None:
            if channel.in_flight is request:
                channel.in_flight = None
                channel.violation = channel.violation or "its request could not be served"
                channel.frames.clear()
        elif not channel.answer(request, parts):
            release_slices(parts)
            return
        if channel.charged_bytes:
            self._give_memory_back(channel)
        if request.throttle_ms > 0:
            self.pause(channel, request.throttle_ms)
        if channel is self._serving:
            return  # its loop in _serve sends and settles
        if channel.outbox:
            self._flush(channel)
        if channel.may_start(self.now_ms):
            self._ready.append(channel)
        else:
            self._settle(channel)

    def _send_first(
        self, channel: Channel, request: RequestContext[Any], parts: list[Part]
    ) -> None:
        if channel.answer(request, parts, is_last=False):
            self._flush(channel)
            self._settle(channel)

    def pause(self, channel: Channel, pause_ms: int) -> None:
        """Start no request of the connection for so long (KIP-219); on this thread."""
        channel.throttled_until_ms = until_ms = self.now_ms + pause_ms
        heapq.heappush(self._throttled, (until_ms, channel.connection_id, channel))

    def _settle(self, channel: Channel) -> None:
        """After something happened to a connection: close it if it is done, else set its interest.

        The common case, nothing parked and reading, makes no system call.
        """
        if channel.closed:
            return
        if channel.send_stalled_ms >= 0:
            # Nothing is read before the answer has left, nor asked whether the peer has said all:
            # who has may still read. One that is gone is reported whatever we wait for.
            channel.mute()
            interest = WRITE
        else:
            if channel.in_flight is None:
                if not channel.outbox and self._is_done(channel):
                    self._close(channel)
                    return
                if channel.frames or not channel.reading or channel.frame_started_ms >= 0:
                    self._update_reading(channel)
                elif channel.throttled_until_ms > self.now_ms:
                    channel.mute()
            interest = 0 if channel.ending else READ if channel.reading else MUTED
        interest |= channel.transport.wants
        if interest != channel.interest:
            self._set_interest(channel, interest)

    def _is_done(self, channel: Channel) -> bool:
        """Nothing is left to answer on a connection that must end."""
        if self._draining:
            return True
        return not channel.frames and (channel.ending or channel.violation is not None)

    def _update_reading(self, channel: Channel) -> None:
        """Read on, unless requests wait already, or the rest of a large one for memory."""
        if (
            channel.frames
            or channel.ending
            or channel.awaits_memory
            or channel.throttled_until_ms > self.now_ms
        ):
            channel.mute()
            return
        if not channel.reading:
            channel.unmute(self.now_ms)

    def _set_interest(self, channel: Channel, interest: int) -> None:
        """0 takes the socket out of the selector: a gone peer would be reported for ever."""
        if not interest:
            if channel.interest:
                self._poller.unregister(channel.fd)
        elif not channel.interest:
            self._poller.register(channel.fd, interest)
        else:
            self._poller.modify(channel.fd, interest)
        channel.interest = interest

    def _serve_line(self) -> None:
        """There is room: those who wait for it have their turn in the order in which they came, so
        that nobody waits for ever behind those who always have one more request."""
        line = self._line
        while line:
            channel, _ = line.popitem(last=False)
            self._is_lines_turn = True
            try:
                self._guarded(channel, self._serve)
            finally:
                self._is_lines_turn = False
            if channel in line:
                line.move_to_end(channel, last=False)
                return

    # -- writing

    def _flush(self, channel: Channel) -> None:
        """Send the outbox as far as the socket takes it."""
        left = self.bytes_out - channel.transport.unsent_bytes
        try:
            done = channel.send()
        except (BlockingIOError, InterruptedError):
            done = False
        except OSError as error:
            logger.debug("answer not sent connection=%r error=%s", channel, error)
            self._close(channel)
            return
        if done:
            channel.send_stalled_ms = -1
            channel.last_active_ms = self.now_ms
            return
        if channel.send_stalled_ms < 0:
            channel.send_stalled_ms = channel.sent_ms = self.now_ms
        elif self.bytes_out - channel.transport.unsent_bytes != left:
            channel.sent_ms = self.now_ms

    # -- beginning and end of connections

    def _register(self, channel: Channel) -> None:
        self.channels[channel.fd] = channel
        if self._draining:
            self._close(channel)
        else:
            self._set_interest(channel, READ)

    def _close(self, channel: Channel) -> None:
        """End a connection: cancel what it waits for, free what it holds."""
        if channel.closed:
            return
        channel.closed = True
        if channel.violation is not None:
            logger.info("closing connection=%r reason=%s", channel, channel.violation)
        del self.channels[channel.fd]
        self._line.pop(channel, None)
        self._set_interest(channel, 0)
        channel.transport.close()
        self._quotas.release(channel.peer_host, channel.listener_name)
        if channel.charged_bytes:
            self._give_memory_back(channel)
        release_slices(channel.outbox)
        channel.outbox = []
        channel.frames.clear()
        self._cancel_parked(channel)
        channel.in_flight = None
        if channel.on_closed is not None:
            channel.on_closed(channel)

    def _sweep(self) -> None:
        """Close connections that ran out of time, or hold too much."""
        self._next_sweep_ms = self.now_ms + SWEEP_MS
        blockers = self._memory.blocker, self._strangers.blocker
        is_memory_short = half_sent_fill(self._memory, self.channels.values())
        for channel in list(self.channels.values()):
            reason = channel.expired(self.now_ms, is_memory_short)
            if channel.gate is not None:
                reason = channel.gate.overdue(channel) or reason
            if channel in blockers and channel.is_silent(self.now_ms):
                if channel.in_flight is None:
                    reason = "frame paused while others waited for queued.max.request.bytes"
                else:  # it is not read before its answer has left, when it asks again
                    channel.memory.release(channel, 0)
            if reason is not None:
                self._expire(channel, reason)
        unread = [
            Unread(one.peer_host, one.unsent_bytes(), self.now_ms - one.send_stalled_ms + 1, one)
            for one in self.channels.values()
            if one.send_stalled_ms >= 0
        ]
        for channel in self._unread.too_much(self.index, unread):
            self._expire(channel, "answers that nobody reads hold too much memory")
        if self._throttled:  # what closed connections held until they may go on is free
            self._throttled = [entry for entry in self._throttled if not entry[2].closed]
            heapq.heapify(self._throttled)

    def _expire(self, channel: Channel, reason: str) -> None:
        logger.info("closing connection=%r reason=%s", channel, reason)
        self.connections_expired += 1
        self._close(channel)

    def _drain(self) -> None:
        self._draining = True
        for channel in list(self.channels.values()):
            self._guarded(channel, self._end_early)

    def _end_early(self, channel: Channel) -> None:
        request = channel.in_flight
        if request is not None:
            request.complete_early()
        elif not channel.outbox and channel.send_stalled_ms < 0:
            self._close(channel)

    def _stop(self) -> None:
        self._draining = self._stopping = True

    def _close_everything(self) -> None:
        for channel in list(self.channels.values()):
            self._close(channel)
        self.drained.set()
        self._poller.close()
        self._wakeup.close()
