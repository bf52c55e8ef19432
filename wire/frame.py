"""Frames and headers: what stands around a message on a connection.

    frame     size int32 | header | body                 size counts what follows it
    request header v1   api_key int16 | api_version int16 | correlation_id int32 | client_id
                   v2   the same, then tagged fields; client_id keeps its int16 length
    response header v0  correlation_id int32
                    v1  the same, then tagged fields

A message's flexible versions have the newer header; only ApiVersions is always answered with v0, so
that a client can read the answer to a version the broker does not know (KIP-511).

FrameReader turns a stream of bytes into frames and owns no socket; servers and peers use it alike.
After a `violation` its caller closes the connection: there is no way to find the next frame.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING

from wire.errors import MalformedFrame
from wire.primitives import skip_tags

if TYPE_CHECKING:
    from wire.primitives import Part
    from wire.schema import Request, Response

API_VERSIONS = 18
_BEGINNINGS = {
    0x1603: "TLS", 0x1503: "TLS", 0x4745: "HTTP", 0x504F: "HTTP", 0x4845: "HTTP", 0x5052: "HTTP",
}  # fmt: skip
"""How other protocols begin: a hello or an alert; GE(T), PO(ST), HE(AD), PR(I)."""
# The first flexible version of each API that has one. The declarations know it too, but a header
# must be readable before the API's area is imported; a test compares the two.
FIRST_FLEXIBLE: dict[int, int] = {
    0: 9,
    1: 12,
    2: 6,
    3: 9,
    8: 8,
    9: 6,
    10: 3,
    11: 6,
    12: 4,
    13: 4,
    14: 4,
    15: 5,
    16: 3,
    18: 3,
    19: 5,
    20: 4,
    21: 2,
    22: 2,
    23: 4,
    24: 3,
    25: 3,
    26: 3,
    27: 1,
    28: 3,
    29: 2,
    30: 2,
    31: 2,
    32: 4,
    33: 2,
    34: 2,
    35: 2,
    36: 2,
    37: 2,
    38: 2,
    39: 2,
    40: 2,
    41: 2,
    42: 2,
    43: 2,
    44: 1,
    45: 0,
    46: 0,
    48: 1,
    49: 1,
    50: 0,
    51: 0,
    52: 0,
    53: 1,
    54: 1,
    55: 0,
    56: 2,
    57: 0,
    58: 0,
    59: 0,
    60: 0,
    61: 0,
    62: 0,
    63: 0,
    64: 0,
    65: 0,
    66: 0,
    67: 0,
    68: 0,
    69: 0,
    70: 0,
    71: 0,
    72: 0,
    73: 0,
    74: 0,
    75: 0,
    76: 1,
    77: 1,
    78: 1,
    79: 1,
    80: 0,
    81: 0,
    82: 0,
    83: 0,
    84: 0,
    85: 0,
    86: 0,
    87: 0,
    88: 0,
    89: 0,
    90: 0,
    91: 0,
    92: 0,
}

_INT32 = Struct(">i")
_TWO_INT32 = Struct(">ii")
_REQUEST_START = Struct(">hhih")
_RESPONSE_START = bytes(8)
_RESPONSE_START_FLEXIBLE = bytes(9)  # and no tagged fields
NEVER = 1 << 15
SIZE_BYTES = 4
REQUEST_BYTES_MIN = 10
"""The shortest request header: api_key, api_version, correlation_id, length of the client id."""
RESPONSE_BYTES_MIN = 4
"""The shortest response header: correlation_id."""
READ_BYTES = 65_536
"""Asked of the socket in one read while no large frame is under way."""
READ_BYTES_MAX = 1_048_576
"""Asked at most in one read of a large frame."""
_SMALL_CHUNK_BYTES = 2_048


def request_header_version(api_key: int, version: int) -> int:
    """1, or 2 in flexible versions. An unknown API counts as not flexible."""
    return 2 if version >= FIRST_FLEXIBLE.get(api_key, NEVER) else 1


def response_header_version(api_key: int, version: int) -> int:
    """0, or 1 in flexible versions of all APIs but ApiVersions."""
    return int(version >= FIRST_FLEXIBLE.get(api_key, NEVER) and api_key != API_VERSIONS)


class RequestHeader:
    """A request's header; its body begins at `body_pos` of the frame."""

    __slots__ = ("api_key", "api_version", "body_pos", "client_id", "correlation_id")

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        body_pos: int,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_pos = body_pos

    @classmethod
    def decode(cls, frame: bytes) -> RequestHeader:
        """Read the header of a frame; MalformedFrame if it is not one. Budget: 1 us."""
        if len(frame) < 10:
            raise MalformedFrame(f"a request header is longer than {len(frame)} bytes")
        api_key, version, correlation_id, length = _REQUEST_START.unpack_from(frame)
        pos = 10
        client_id = None
        if length >= 0:
            pos = 10 + length
            try:
                client_id = frame[10:pos].decode()
            except UnicodeDecodeError as error:
                raise MalformedFrame(f"client id is not UTF-8: {error}") from error
        elif length != -1:
            raise MalformedFrame(f"client id of length {length}")
        if version >= FIRST_FLEXIBLE.get(api_key, NEVER):
            pos = _skip_header_tags(frame, pos)
        if pos > len(frame):
            raise MalformedFrame("request header ends beyond the frame")
        return cls(api_key, version, correlation_id, client_id, pos)

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )


def _skip_header_tags(frame: bytes, pos: int) -> int:
    try:
        return skip_tags(frame, pos) if frame[pos] else pos + 1
    except IndexError:
        raise MalformedFrame("header ends beyond the frame") from None


def encode_response(
    header_version: int, version: int, correlation_id: int, response: Response
) -> list[Part]:
    """A response as a whole frame: size, header and body, in parts to be sent in turn.

    `header_version` is `response_header_version` of the API, which a broker knows by heart.
    """
    out = bytearray(_RESPONSE_START_FLEXIBLE if header_version else _RESPONSE_START)
    parts = response.encode_into(out, version)
    size = len(out) if len(parts) == 1 else sum(map(len, parts))
    _TWO_INT32.pack_into(out, 0, size - 4, correlation_id)
    return parts


def encode_request(
    version: int, correlation_id: int, client_id: str | None, request: Request
) -> list[Part]:
    """A request as a whole frame; what clients and our own peers send."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    out = bytearray(4)
    out += _REQUEST_START.pack(request.api_key, version, correlation_id, length)
    out += name
    if request_header_version(request.api_key, version) == 2:
        out.append(0)
    parts = request.encode_into(out, version)
    _INT32.pack_into(out, 0, _size_of(parts))
    return parts


def _size_of(parts: list[Part]) -> int:
    """What the size prefix says: everything but itself."""
    if len(parts) == 1:
        return len(parts[0]) - 4
    return sum(map(len, parts)) - 4


def decode_response_header(
    api_key: int, version: int, frame: bytes, pos: int = 0
) -> tuple[int, int]:
    """(correlation_id, position of the body) of a response's frame; MalformedFrame if too short.

    `pos`: where the header begins, SIZE_BYTES if the frame has its size prefix.
    """
    if len(frame) - pos < 4:
        raise MalformedFrame(f"a response header is longer than {len(frame)} bytes")
    (correlation_id,) = _INT32.unpack_from(frame, pos)
    pos += 4
    if response_header_version(api_key, version):
        pos = _skip_header_tags(frame, pos)
    return correlation_id, pos


class FrameReader:
    """Cuts a byte stream into frames, which keep their size prefix.

    A frame that arrives whole in one read costs no copy, one that arrives in pieces one copy. What
    is held is what arrived, never what a frame claims to be. An idle connection holds nothing.

    Duties of the caller: read at most `read_bytes()` from the socket, hand it to `feed`, take the
    `frames`.
    """

    __slots__ = (
        "_chunks",
        "_chunks_bytes",
        "_frame_bytes",
        "_shortest",
        "frames",
        "limit",
        "violation",
    )

    def __init__(self, limit: int, shortest: int = RESPONSE_BYTES_MIN) -> None:
        """`limit`: largest frame allowed, in bytes (socket.request.max.bytes).

        `shortest`: the shortest one that makes sense.
        """
        self.limit = limit
        self._shortest = shortest
        self.frames: deque[bytes] = deque()
        """Complete frames, size prefix included, waiting for their turn."""
        self.violation: str | None = None
        """What the peer did wrong; frames that came before it are still there."""
        self._chunks: list[bytes | bytearray] = []
        self._chunks_bytes = 0
        self._frame_bytes = 0

    def set_shortest(self, shortest: int) -> None:
        """Frames shorter than this make no sense from now on, those that wait already neither."""
        self._shortest = shortest
        for at, frame in enumerate(self.frames):
            if len(frame) < SIZE_BYTES + shortest:
                self._refuse(len(frame) - SIZE_BYTES)
                while len(self.frames) > at:
                    self.frames.pop()
                break

    def feed(self, data: bytes) -> None:
        """Take the bytes of one read; complete frames go to `frames`.

        A size that is shorter than any header or above the limit ends reading for good.
        """
        if self._chunks:
            self._add_chunk(data)
            if self._chunks_bytes < self._frame_bytes:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        end = len(data)
        if (
            end >= SIZE_BYTES + self._shortest
            and _INT32.unpack_from(data)[0] == end - SIZE_BYTES <= self.limit
            and self.violation is None
        ):
            self.frames.append(data)  # the common case: one read, one frame
        else:
            self._split(data, end)

    def _split(self, data: bytes, end: int) -> None:
        """Cut `data`, which begins with a frame, into frames; keep the unfinished last one."""
        pos = 0
        wanted = SIZE_BYTES
        while self.violation is None and end - pos >= SIZE_BYTES:
            size = _INT32.unpack_from(data, pos)[0]
            if not self._shortest <= size <= self.limit:
                self._refuse(size)
                return
            wanted = SIZE_BYTES + size
            if end - pos < wanted:
                break
            self.frames.append(data[pos : pos + wanted])
            pos += wanted
            wanted = SIZE_BYTES
        if pos < end and self.violation is None:
            rest = data[pos:] if pos else data
            self._chunks.append(rest if len(rest) >= _SMALL_CHUNK_BYTES else bytearray(rest))
            self._chunks_bytes = len(rest)
            self._frame_bytes = wanted

    def _refuse(self, size: int) -> None:
        guess = _BEGINNINGS.get(size >> 16)
        self.violation = f"frame size {size} is not within {self._shortest}..{self.limit}" + (
            f": it begins as {guess} does" if guess else ""
        )

    def _add_chunk(self, data: bytes) -> None:
        """Keep a piece; small ones share a buffer, so that tiny segments cost only bytes."""
        last = self._chunks[-1]
        if len(data) < _SMALL_CHUNK_BYTES:
            if isinstance(last, bytearray):
                last += data
            else:
                self._chunks.append(bytearray(data))
        else:
            self._chunks.append(data)
        self._chunks_bytes += len(data)

    @property
    def is_receiving_large(self) -> bool:
        """Whether the frame under way is larger than one read."""
        return bool(self._chunks) and self._frame_bytes > READ_BYTES

    @property
    def frame_bytes_arrived(self) -> int:
        """What has arrived of the frame under way: all that is held for it."""
        return self._chunks_bytes if self._chunks else 0

    def read_bytes(self) -> int:
        """How many bytes to ask of the socket: never past the end of a large frame."""
        if self._chunks and self._frame_bytes > READ_BYTES:
            return min(self._frame_bytes - self._chunks_bytes, READ_BYTES_MAX)
        return READ_BYTES
