"""TLS between a connection and its socket: the Transport beside the plaintext one.

How: OpenSSL works on two memory buffers (`wrap_bio`), the socket is ours. Why not an SSLSocket: a
write that the socket takes in part would have to be repeated with the very same bytes (PT-2); here
what was encrypted waits in a queue of our own (`unsent_bytes`), and the caller is told that nothing
more is taken until it has left. Record data is read from files and encrypted: no sendfile.

    recv      reads the socket once, 256 KiB at most, and gives all that could be decrypted of it:
              nothing waits inside where no poller sees it (PT-3). It may be a record (16 KiB) more
              than asked for. A peer may put a byte in each record, so what is read at once is also
              what others wait for: a megabyte of such records took 70 ms, this is a quarter of it
    send      takes at most 256 KiB at a time; BlockingIOError while older bytes have not left
    flush     sends what is encrypted; True when nothing is left

OpenSSL's buffers never give back what they once held: through them it goes in pieces of 64 KiB. A
connection that had fetched once kept a megabyte for as long as it lasted, idle or not.

Records without data (key updates, which OpenSSL takes without end) are counted: one takes 60 µs,
and 256 KiB of them held up all others for 0.7 s. Few at a time, few in all.

The handshake is part of `recv`. It costs half a millisecond of the network thread and more: on a
listener `budget` says how many steps it may take at once, the rest comes when others had their
turn. A failed handshake sends its alert and raises OSError, without a word about keys.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from server.network.poller import READ, WRITE
from server.network.transport import Buffer, peer_port_of

logger = logging.getLogger(__name__)

PIECE_BYTES = 262_144
"""What is encrypted and what is decrypted at once: 1.2 and 1.4 times the speed of 64 KiB, and more
brings nothing (measured)."""
_BUFFER_BYTES = 65_536
"""What lies in one of OpenSSL's buffers at once, or little more; 256 KiB decrypt 1.05 times as fast
and keep four times as much, encrypting is alike (measured)."""
_RECORD_BYTES = 16_384
_HEAD_BYTES = 5
"""Of a record: type, version (2), size (2)."""
_HELLO_BYTES = _HEAD_BYTES + 4
"""What says how long it is: type, size (3)."""
_HELLO_MAX = 32_768
"""As Java takes of any message (jdk.tls.maxHandshakeMessageSize); hellos have 0.3 to 2 KB."""
_HANDSHAKE = 0x16
_RECORDS_AT_ONCE = 64
_SILENT_MAX = 64
"""Records without data that a peer may send, and one more for each _PER_SILENT with some: clients
renew their keys after millions of records, if ever."""
_PER_SILENT = 1_024
_BUFFERS_MAX = 512
_PENDING_BYTES_MAX = 1 << 20
_STEPS_PER_MS = 2
_MEANINGS = {
    "WRONG_VERSION_NUMBER": "as of a peer that does not encrypt",
    "UNEXPECTED_EOF_WHILE_READING": "the peer hung up",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust who signed our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer does not believe our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not believe our certificate, or the host in it",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says that our certificate has expired",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "ssl.client.auth=required asks for one",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer asks for a certificate of ours",
}
"""What OpenSSL's reasons mean to who has to mend it."""


class HandshakeBudget:
    """How many steps of handshakes a network thread takes before others have their turn.

    Counted by the clock that stands still during a turn: two steps, about a millisecond, and all
    connections that are ready are looked at again.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._at_ms = -1
        self._left = 0

    def take(self) -> bool:
        """Whether a step may be taken now."""
        now_ms = self._now_ms()
        if now_ms != self._at_ms:
            self._at_ms, self._left = now_ms, _STEPS_PER_MS
        self._left -= 1
        return self._left >= 0


class TlsTransport:
    """One connection; see the module. One thread."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        budget: HandshakeBudget | None = None,
        told_as: str = "",
    ) -> None:
        """`server_hostname`: as a client of that host; None as a server. `told_as`: what the log
        calls the connection when its handshake fails; it says nothing without."""
        self.sock = sock
        self.fd = sock.fileno()
        self.wants = 0
        self.is_ready = False
        """Whether the handshake is done."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_hostname is None,
            server_hostname=server_hostname,
        )  # fmt: skip
        self._budget = budget
        self._told_as = told_as
        self._arrived: bytes | memoryview = b""
        """What OpenSSL was not given yet; between two reads the beginning of a head at most."""
        self._is_hello_known = server_hostname is not None
        self._record_left = 0
        """Bytes of the record under way that it was not given."""
        self._silent = self._spoken = 0
        """Records that had no data, and those that had."""
        self._pending: list[memoryview] = []
        self._pending_bytes = 0
        self._ahead = b""
        self.has_ended = False

    @property
    def local_address(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()[:2]
        return host.removeprefix("::ffff:"), port

    @property
    def peer_port(self) -> int:
        return peer_port_of(self.sock)

    @property
    def unsent_bytes(self) -> int:
        """Encrypted, and not taken by the socket."""
        return self._pending_bytes

    def peer_certificate(self) -> bytes | None:
        """The verified certificate of the peer in DER; None if it showed none."""
        return self._tls.getpeercert(True)

    # -- handshake

    def handshake(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._take_in(_BUFFER_BYTES)
        return self._advance()

    def shake_hands(self, deadline_s: float, /) -> None:
        while not self._advance():
            if self._pending or time.monotonic() >= deadline_s:
                raise BlockingIOError  # the time-out of a blocking socket
            self._take_in(_BUFFER_BYTES)

    def _advance(self) -> bool:
        """Go on as far as what has arrived allows; True when it is done."""
        while not self.is_ready:
            try:
                self._tls.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not self._give_next():
                    break
            except ssl.SSLError as error:
                self._give_up(error)
            else:
                self.is_ready, self._silent = True, 0
        self._queue()
        self._flush_and_want()
        return self.is_ready

    def _flush_and_want(self) -> None:
        self.flush()
        self.wants = 0 if self.is_ready else READ | (WRITE if self._pending else 0)

    def _give_up(self, error: ssl.SSLError) -> NoReturn:
        """Tell the peer why (its alert waits in the buffer), then end the connection."""
        with contextlib.suppress(OSError):
            self._queue()
            self.flush()
        reason = error.reason or type(error).__name__
        if meaning := _MEANINGS.get(reason):
            reason = f"{reason}, {meaning}"
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"certificate: {error.verify_message}"
        self._end(reason)

    def _end(self, reason: str) -> NoReturn:
        if self._told_as:
            logger.info("closing connection=%s reason=TLS failed: %s", self._told_as, reason)
        raise ConnectionAbortedError(f"TLS failed: {reason}") from None

    # -- reading

    def recv(self, count: int, /) -> bytes:
        if not self.is_ready and self._budget is not None and not self._budget.take():
            raise BlockingIOError
        if self._pending:
            self._flush_and_want()
        self._take_in(min(count, PIECE_BYTES if self.is_ready else _BUFFER_BYTES))
        if not self.is_ready and not self._advance():
            if self.has_ended:
                return b""
            raise BlockingIOError
        return self._decrypted()

    def _take_in(self, count: int) -> None:
        """Read the socket once. Raises BlockingIOError when there is nothing."""
        if self.has_ended:
            return
        data = self.sock.recv(count)
        if data:
            head = self._arrived
            if head:
                data = bytes(head) + data
            self._arrived = data if len(data) < _BUFFER_BYTES else memoryview(data)
        else:
            self.has_ended = True
            self._in.write_eof()

    def _give_next(self) -> int:
        """Give OpenSSL the next few records, the beginning of one included; returns how many bytes.
        What of them are whole counts as silent until it has given data."""
        if not self._is_hello_known and not self._look_at_hello():
            return 0
        arrived, left, end, whole = self._arrived, self._record_left, 0, 0
        size = len(arrived)
        while size:
            if left > size - end:
                left -= size - end
                end = size
                break
            if left:
                end += left
                left = 0
                whole += 1
            if size - end < _HEAD_BYTES or end >= _BUFFER_BYTES or whole == _RECORDS_AT_ONCE:
                break
            left = _HEAD_BYTES + (arrived[end + 3] << 8 | arrived[end + 4])
        if end:
            self._in.write(arrived[:end])
            self._arrived = arrived[end:]
            self._record_left = left
            self._silent += whole
        return end

    def _look_at_hello(self) -> bool:
        """Whether so much of it has arrived that OpenSSL may have it. It would take memory for as
        long a one as it says it is."""
        begin = bytes(self._arrived[:_HELLO_BYTES])
        if begin[:1] == bytes([_HANDSHAKE]):
            if len(begin) < _HELLO_BYTES:
                return False
            record_bytes, size = int.from_bytes(begin[3:5]), int.from_bytes(begin[6:])
            if record_bytes < _HELLO_BYTES - _HEAD_BYTES or size > _HELLO_MAX:
                self._end("a hello of another kind than clients have")
        self._is_hello_known = bool(begin)
        return True

    def _decrypted(self) -> bytes:
        """All there is; b"" at the end, BlockingIOError if more must arrive."""
        pieces: list[bytes] = []
        is_more: int = True  # what the handshake left, too
        self._give_next()
        while is_more and not self.has_ended:
            count = len(pieces)
            self._decrypt(pieces)
            self._silent -= len(pieces) - count
            self._spoken += len(pieces) - count
            if self._silent > _SILENT_MAX + self._spoken // _PER_SILENT:
                self._end("too many records without data")
            is_more = self._give_next()
        if self._out.pending:  # a key update is answered
            self._queue()
            self.flush()
            if self._pending_bytes > _PENDING_BYTES_MAX:
                raise ConnectionAbortedError("TLS failed: the peer does not read")
        if not pieces and not self.has_ended:
            raise BlockingIOError
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _decrypt(self, pieces: list[bytes]) -> None:
        """What OpenSSL was given, as far as its records are whole; a piece for each with data
        (SSL_read)."""
        try:
            while piece := self._tls.read(_RECORD_BYTES):
                pieces.append(piece)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.has_ended = True
        except ssl.SSLError as error:
            self._give_up(error)

    def recv_all(self, count: int, deadline_s: float, /) -> bytes:
        pieces = [self._ahead] if self._ahead else []
        size = len(self._ahead)
        while size < count and not self.has_ended:
            if time.monotonic() >= deadline_s:
                raise BlockingIOError
            self._take_in(max(_RECORD_BYTES, min(count - size, PIECE_BYTES)))
            with contextlib.suppress(BlockingIOError):  # a record is not complete
                data = self._decrypted()
                pieces.append(data)
                size += len(data)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._ahead = data[count:]
        return data[:count]

    # -- writing

    def send(self, data: Buffer, /) -> int:
        self._may_take()
        taken = min(len(data), PIECE_BYTES)
        self._encrypt(data if taken == len(data) else memoryview(data)[:taken])
        self.flush()
        return taken

    def send_all(self, data: Buffer, /) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]
            while self._pending:
                if not self.flush():
                    raise BlockingIOError  # the time-out of a blocking socket

    def send_parts(self, parts: Sequence[Any], is_more: bool) -> int:
        self._may_take()
        size = sum(map(len, parts))
        if size <= PIECE_BYTES:
            self._encrypt(parts[0] if len(parts) == 1 else b"".join(parts))
        else:
            size = min(len(parts[0]), PIECE_BYTES)
            self._encrypt(memoryview(parts[0])[:size])
        if not is_more:
            self.flush()
        return size

    def send_file(self, part: Any, offset: int, count: int) -> int:
        if self._pending_bytes > PIECE_BYTES:
            self._may_take()
        data = part.read(offset, min(count, PIECE_BYTES))
        self._encrypt(data)
        self.flush()
        return len(data)

    def flush(self) -> bool:
        """Send what is encrypted, as far as the socket takes it; True when nothing is left."""
        pending = self._pending
        while pending:
            try:
                sent = self.sock.sendmsg(pending[:_BUFFERS_MAX])
            except (BlockingIOError, InterruptedError):
                return False
            self._pending_bytes -= sent
            while pending and sent >= len(pending[0]):
                sent -= len(pending.pop(0))
            if sent:
                pending[0] = pending[0][sent:]
        return True

    def _may_take(self) -> None:
        if not self.is_ready or (self._pending and not self.flush()):
            raise BlockingIOError

    def _encrypt(self, data: Buffer) -> None:
        view = memoryview(data)
        try:
            for at in range(0, len(view), _BUFFER_BYTES):
                self._tls.write(view[at : at + _BUFFER_BYTES])
                self._queue()
        except ssl.SSLError as error:
            self._give_up(error)

    def _queue(self) -> None:
        if self._out.pending:
            data = self._out.read()
            self._pending.append(memoryview(data))
            self._pending_bytes += len(data)

    def close(self) -> None:
        """Say goodbye, if there is room for it, and close the socket."""
        with contextlib.suppress(OSError, ValueError):
            if self.is_ready and not self._pending:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                self._queue()
                self.sock.setblocking(False)
                self.flush()
        self._pending.clear()
        self.sock.close()
