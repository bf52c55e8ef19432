"""From frame to handler: the bounded RequestChannel, and dispatch.

What: a Processor gives a frame to `RequestChannel.receive`. The header is decoded, the API and its
version looked up in the dispatch table, and the request either runs at once on the processor's own
thread, when it is cheap (the caller-runs rule), or it goes into the bounded queue that the handler
threads take from (Kafka's RequestChannel and KafkaRequestHandler).
Why: handing a request to another thread costs CPython 20-40 µs and a long tail, running it in place
costs nothing; but a request that may take long must not hold up the connections of its processor,
and neither may a queue of such requests: what is inline never queues behind them.

Cheap is what the request turns out to be, not only its API:
    the API          cannot block (`inline` in the registry)
    the frame        at most INLINE_FRAME_BYTES
    its elements     at most INLINE_ELEMENTS, found while decoding: work is done for each
    its records      need not be opened (the area's `<api>_is_costly`, asked once it is decoded)
A small request of its API's ordinary form (`<api>_ordinary`) is not decoded at all, but read and
answered in place; what that says no to goes the long way, with the same outcome. Those that wait in
line behind one another are served together (`<api>_together`), with the outcome of one by one.
Whatever else is decoded by a handler thread, and there too elements have a bound in proportion to
the bytes that arrived (`elements_max`): a byte can become an object of a hundred.

Fates of a request (reliability.md N-3, N-4):
    unknown API or version       the connection is closed; ApiVersions is answered with error 35
    body cannot be decoded,      logged once at INFO, the connection is closed
    has too many elements
    handler returns a response   it is sent
    handler returns None         it answers later, or never (acks=0): `respond`, `no_response`
    handler raises KafkaError    answered with that code, in the shape of its API
    handler raises anything else our fault: traceback, UNKNOWN_SERVER_ERROR in the API's shape; for
                                 Produce REQUEST_TIMED_OUT, which is retriable and as true: nobody
                                 knows whether the batch was appended (P-1)
Full queue: `receive` refuses, the processor stops reading that connection (never drops) and gives
room to those who wait in the order in which they came; who comes later does not overtake them.

Budget: header, lookup, context, decoding, dispatch and encoding of a heartbeat: 2.5 µs
(benchmarks/micro/requests.py, path).
"""

from __future__ import annotations

import logging
import threading
from itertools import islice
from queue import SimpleQueue
from struct import Struct
from typing import TYPE_CHECKING, Any

from server.network.error_responses import error_response, fault_code
from server.network.request_context import RequestContext
from wire.errors import ErrorCode, KafkaError, MalformedFrame, TooManyElements
from wire.frame import API_VERSIONS
from wire.primitives import skip_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from server.network.api import Api
    from server.network.channel import Channel, ChannelOwner
    from wire.schema import Request, Response

logger = logging.getLogger(__name__)

_HEADER = Struct(">4xhhih")  # size, api_key, api_version, correlation_id, length of client_id

INLINE_FRAME_BYTES = 1_114_112
"""The largest frame that runs on a network thread: a batch of max.message.bytes (by default) and
what stands around it. Its bytes are checked and written without being opened, 1 ms a megabyte;
handing such a request over took a third of the throughput (200 KB batches, measured)."""
INLINE_ELEMENTS = 256
"""The most topics, partitions, names ... of a request that runs on a network thread."""
_ELEMENTS_FREE = 100_000
_BYTES_PER_ELEMENT = 32


def elements_max(frame_bytes: int) -> int:
    """How many elements a frame of this size may have: 100,000, and one more for each 32 bytes.

    So what is decoded takes about eight times the memory of what arrived, and 15 MB, at most.
    """
    return _ELEMENTS_FREE + frame_bytes // _BYTES_PER_ELEMENT


class RequestChannel:
    """The queue between processors and handler threads, and the rule who runs what.

    `handler_threads` (num.io.threads) are started when first needed. `queue_max` is
    queued.max.requests. `apis` is the dispatch table, `broker` is what handlers work on:
    each area names what it asks of it (`server.handlers.edges`), the channel asks nothing.
    """

    def __init__(
        self, apis: Mapping[int, Api], broker: object, handler_threads: int, queue_max: int
    ) -> None:
        self._apis = apis
        self._broker = broker
        self._queue: SimpleQueue[_Queued | Callable[[], None] | None] = SimpleQueue()
        self._queue_max = queue_max
        self._threads_max = max(1, handler_threads)
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()  # guards _threads, _busy, _waiting
        self._waiting: set[ChannelOwner] = set()
        self._stopped = False
        self._metered: Callable[..., RequestContext[Any]] | None = None
        self.handed_over = 0
        self.malformed = 0
        self.failed = 0

    # -- called by processors

    def receive(self, channel: Channel, frame: bytes) -> bool:
        """Run or queue one request; False, with nothing done, while the queue is full."""
        key, version, correlation_id, length = _HEADER.unpack_from(frame)
        api = self._apis.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            return self._receive_unsupported(channel, api, key, version, correlation_id)
        inline = api.inline and len(frame) <= INLINE_FRAME_BYTES
        if not inline and not self._has_room(channel):
            return False
        pos = 14
        if length > 0:
            pos += length
            raw = frame[14:pos]
            if raw != channel.client_id_raw and not self._set_client_id(channel, raw, length):
                return True
        client_id = channel.client_id if length > 0 else ""
        if self._metered is None or not channel.is_known:  # who is no user yet has no quota
            context = RequestContext(api, version, correlation_id, client_id, channel, self._broker)
        else:
            context = self._metered(
                api, version, correlation_id, client_id, channel, self._broker, len(frame)
            )
        channel.in_flight = context  # Connection.begin: the processor asked may_start
        if inline and self.run(context, frame, pos, INLINE_ELEMENTS):
            return True
        if inline and not self._has_room(channel):
            channel.in_flight = None
            return False
        self._hand_over((context, frame, pos))
        return True

    def receive_together(self, channel: Channel, most: int) -> int:
        """Serve the first of the requests that wait as one, if they are alike and their area knows
        how (`<api>_together`); returns how many these are, 0 with nothing done.

        They are of one version and one client id, and together no larger than one that runs on a
        network thread.
        """
        frames = channel.frames
        first = frames[0]
        key, version, correlation_id, length = _HEADER.unpack_from(first)
        api = self._apis.get(key)
        if api is None or api.together is None or self._metered is not None:
            return 0
        pos = 14 + max(length, 0)
        client_id, raw = (channel.client_id, channel.client_id_raw) if length > 0 else ("", b"")
        if first[14:pos] != raw or not api.min_version <= version <= api.max_version:
            return 0
        if version >= api.request_flexible:
            pos += 1
            if first[pos - 1 : pos] != b"\0":  # it has tags, or ends here
                return 0
        if len(frames) < 2 or frames[1][4:8] != first[4:8]:  # no context is made for one alone
            return 0
        context = RequestContext(api, version, correlation_id, client_id, channel, self._broker)
        channel.in_flight = context
        try:
            taken = api.together(context, _those_like_the_first(islice(frames, most), pos), pos)
        except Exception:
            self.failed += 1
            logger.exception("requests failed together %r", context)
            # Answered or not: nobody knows how many were served, so the connection ends.
            channel.violation = channel.violation or "its requests could not be served"
            taken = min(most, len(frames))
            frames.clear()
            context.close()
            return taken
        if not taken:
            channel.in_flight = None
        for _ in range(taken):
            frames.popleft()
        return taken

    def _has_room(self, channel: Channel) -> bool:
        return self._queue.qsize() < self._queue_max and not channel.processor.has_line

    def measure(self, metered: Callable[..., RequestContext[Any]] | None) -> None:
        """Make contexts with this, which is given a frame's size besides, from now on."""
        self._metered = metered

    def await_room(self, processor: ChannelOwner) -> None:
        """Call `processor.resume` as soon as the queue has room."""
        with self._lock:
            self._waiting.add(processor)
        if self._queue.qsize() < self._queue_max:
            self._tell_waiting()

    def _set_client_id(self, channel: Channel, raw: bytes, length: int) -> bool:
        try:
            channel.client_id = raw.decode()
        except UnicodeDecodeError:
            self._refuse(channel, "client id is not UTF-8")
            return False
        if len(raw) != length:
            self._refuse(channel, "client id is longer than the frame")
            return False
        channel.client_id_raw = raw
        return True

    def _receive_unsupported(
        self, channel: Channel, api: Api | None, key: int, version: int, correlation_id: int
    ) -> bool:
        """Close; or, for an ApiVersions newer than ours, answer in version 0 (N-3)."""
        if api is None or key != API_VERSIONS or version < 0:
            self._refuse(channel, f"unsupported API key={key} version={version}")
            return True
        context = RequestContext(api, 0, correlation_id, "", channel, self._broker)
        channel.in_flight = context
        context.respond(unsupported_version(api))
        return True

    def _refuse(self, channel: Channel, reason: str) -> None:
        self.malformed += 1
        channel.violation = reason
        channel.frames.clear()

    # -- running

    def run(self, context: RequestContext[Any], frame: bytes, pos: int, elements: int) -> bool:
        """Decode, handle, answer, on whatever thread this is.

        `elements`: how many it may have; INLINE_ELEMENTS on a network thread. False, with nothing
        done, if it is too costly for that thread.
        """
        api = context.api
        request: Request | None = None
        try:
            if context.api_version >= api.request_flexible:
                pos = pos + 1 if frame[pos] == 0 else skip_tags(frame, pos)
            handle = api.handle or api.load()
            if (
                elements == INLINE_ELEMENTS
                and api.ordinary is not None
                and self._is_ordinary(context, frame, pos)
            ):
                context.wait()
                return True
            request = api.request_class.decode(frame, context.api_version, pos, elements)
            is_costly = api.is_costly
            if is_costly and elements == INLINE_ELEMENTS and is_costly(context, request):
                return False
            response = handle(context, request)
            if response is not None:
                context.send(response)
            else:
                context.wait()
        except (MalformedFrame, IndexError) as error:
            if request is not None:  # not the frame's fault: a handler met this
                self._failed(context, request, error)
                return True
            if elements == INLINE_ELEMENTS and isinstance(error, TooManyElements):
                return False
            self.malformed += 1
            logger.info("malformed request %r reason=%s", context, error)
            context.close()
        except KafkaError as error:
            self._answer_error(context, request, error.code, error.detail)
        except Exception as error:
            self._failed(context, request, error)
        return True

    def _is_ordinary(self, context: RequestContext[Any], frame: bytes, pos: int) -> bool:
        """Serve the request the short way, if it is one that its area knows a short way for."""
        api = context.api
        try:
            return api.ordinary(context, frame, pos)  # type: ignore[misc]
        except Exception as error:
            request = api.request_class.decode(frame, context.api_version, pos, INLINE_ELEMENTS)
            if isinstance(error, KafkaError):
                self._answer_error(context, request, error.code, error.detail)
            else:
                self._failed(context, request, error)
            return True

    def _failed(
        self, context: RequestContext[Any], request: Request | None, error: Exception
    ) -> None:
        """A fault of ours."""
        self.failed += 1
        logger.error("request failed %r", context, exc_info=error)
        self._answer_error(context, request, fault_code(context.api_key), None)

    @staticmethod
    def _answer_error(
        context: RequestContext[Any], request: Request | None, code: int, message: str | None
    ) -> None:
        if request is None or getattr(request, "acks", None) == 0:
            context.close()
            return
        try:
            response = error_response(request, context.api_version, code, message)
        except Exception:
            logger.exception("error response failed %r", context)
            context.close()
        else:
            context.respond(response)

    # -- handler threads

    def resume(self, job: Callable[[], None]) -> None:
        """Run the rest of a request that waited on a handler thread (Kafka: wrapAsyncCallback).

        From any thread. It is not held to the queue's bound: its connection reads nothing more.
        """
        self._hand_over(job)

    def _hand_over(self, queued: _Queued | Callable[[], None]) -> None:
        self.handed_over += 1
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) < self._threads_max:
                self._start_thread()
        self._queue.put(queued)

    def _start_thread(self) -> None:
        """One more that handles requests. The lock is held."""
        name = f"request-handler-{len(self._threads)}"
        thread = threading.Thread(target=self._handle_queued, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                self._busy -= 1
                raise
            # The system gives no more of them: those there are do the work.
        else:
            self._threads.append(thread)

    def _handle_queued(self) -> None:
        while (queued := self._queue.get()) is not None:
            if self._waiting:
                self._tell_waiting()
            try:
                if isinstance(queued, tuple):
                    queued[0].begin()
                    self.run(*queued, elements_max(len(queued[1])))
                else:
                    queued()
            except Exception:
                logger.exception("request handler failed")
            with self._lock:
                self._busy -= 1
            del queued

    def _tell_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for processor in waiting:
            processor.resume()

    @property
    def queue_size(self) -> int:
        """Requests that wait for a handler thread."""
        return self._queue.qsize()

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for a handler thread or is run by one."""
        return self._busy > 0

    def shutdown(self, timeout: float) -> None:
        """End the handler threads once they have run what is queued."""
        with self._lock:
            threads, self._threads_max = self._threads, 0
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join(timeout)


def unsupported_version(api: Api) -> Response:
    """ApiVersions' answer to a version newer than ours: the versions of itself (KIP-511)."""
    from wire.messages.cluster import ApiVersionsResponse

    own = ApiVersionsResponse.ApiKey(
        api_key=api.api_key, min_version=api.min_version, max_version=api.max_version
    )
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


def _those_like_the_first(frames: Iterable[bytes], pos: int) -> Iterator[bytes]:
    """The frames up to one with another header, which ends at `pos`, or as large as may run."""
    first: bytes | None = None
    room = INLINE_FRAME_BYTES
    for frame in frames:
        if first is None:
            first = frame
        room -= len(frame)
        if room < 0 or frame[4:8] != first[4:8] or frame[12:pos] != first[12:pos]:
            break
        yield frame


_Queued = tuple[RequestContext[Any], bytes, int]
