"""Frames and headers: what stands around a message on a connection.

    frame     size int32 | header | body                 size counts what follows it
    request header v1   api_key int16 | api_version int16 | correlation_id int32 | client_id
                   v2   the same, then tagged fields; client_id keeps its int16 length
    response header v0  correlation_id int32
                    v1  the same, then tagged fields

A message's flexible versions have the newer header; only ApiVersions is always answered with v0, so
that a client can read the answer to a version the broker does not know (KIP-511).

FrameReader turns a stream of bytes into frames and owns no socket. Duties of the caller:
1. Receive into what `buffer()` returns, at once, then call `advance(count)`.
2. Do not keep that buffer: readers of one thread may share it.
3. After MalformedFrame close the connection; there is no way to find the next frame.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from wire.errors import MalformedFrame
from wire.primitives import skip_tags

if TYPE_CHECKING:
    from wire.primitives import Part
    from wire.schema import Request, Response

_API_VERSIONS = 18
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
_NEVER = 1 << 15
_SCRATCH_BYTES = 64 * 1024
_SMALL_FRAME_BYTES = 16 * 1024
_CHUNK_BYTES_MIN = 4096
_CHUNK_BYTES_MAX = 128 * 1024
_SPARE_CHUNKS_MAX = 32


def request_header_version(api_key: int, version: int) -> int:
    """1, or 2 in flexible versions. An unknown API counts as not flexible."""
    return 2 if version >= FIRST_FLEXIBLE.get(api_key, _NEVER) else 1


def response_header_version(api_key: int, version: int) -> int:
    """0, or 1 in flexible versions of all APIs but ApiVersions."""
    return int(version >= FIRST_FLEXIBLE.get(api_key, _NEVER) and api_key != _API_VERSIONS)


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
        if version >= FIRST_FLEXIBLE.get(api_key, _NEVER):
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


def decode_response_header(api_key: int, version: int, frame: bytes) -> tuple[int, int]:
    """(correlation_id, position of the body) of a response's frame; MalformedFrame if too short."""
    if len(frame) < 4:
        raise MalformedFrame(f"a response header is longer than {len(frame)} bytes")
    (correlation_id,) = _INT32.unpack_from(frame)
    pos = 4
    if response_header_version(api_key, version):
        pos = _skip_header_tags(frame, pos)
    return correlation_id, pos


class FrameReader:
    """Cuts a byte stream into frames, without their size prefix.

    Bytes are received into `scratch`, which the readers of one thread may share, and complete
    frames are copied out of it once. When a read ends inside a frame, a small one's beginning is
    kept aside and put back in front of the next read. A large one's goes into a list of chunks,
    into which the rest is received directly; each chunk is at most as large as what has arrived
    before it, so that a claimed size allocates nothing until its sender pays in bytes; at the end
    they are joined once. Chunks of full size are used again, for the first touch of fresh memory
    costs several times what copying it does. An idle connection holds nothing.

    Budget (`python -m benchmarks.codec`): 0.3 us a frame of 100 bytes when many arrive in one read,
    1 us when it comes alone; 1 MiB in pieces of 64 KiB costs three times what copying it once does.
    """

    __slots__ = ("_begun", "_chunks", "_failure", "_filled", "_left", "_scratch", "limit")

    def __init__(self, limit: int, scratch: bytearray | None = None) -> None:
        """`limit`: largest frame allowed, in bytes (socket.request.max.bytes)."""
        self.limit = limit
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES) if scratch is None else scratch)
        self._begun = b""  # a small frame's beginning, its size prefix included
        self._chunks: list[memoryview] = []  # a large frame's bytes, without the prefix
        self._filled = 0  # bytes received into the last chunk
        self._left = 0  # bytes the large frame still lacks
        self._failure: MalformedFrame | None = None

    @property
    def pending(self) -> int:
        """Bytes this reader holds for an incomplete frame: what has arrived, and room for more."""
        return len(self._begun) + sum(map(len, self._chunks))

    def buffer(self) -> memoryview:
        """Where to receive next; never empty. MalformedFrame if the stream went wrong before."""
        if self._failure is not None:
            raise self._failure
        if self._left:
            return self._room()
        begun = len(self._begun)
        if begun:
            self._scratch[:begun] = self._begun
            return self._scratch[begun:]
        return self._scratch

    def advance(self, count: int) -> list[bytes]:
        """Say that `count` bytes were received; the frames that are complete now, in order.

        MalformedFrame for a size that is negative or above the limit. Frames that came before it
        in the same read are returned first; then the next call raises.
        """
        if self._failure is not None:
            raise self._failure
        if not self._left:
            return self._cut(len(self._begun) + count)
        self._filled += count
        self._left -= count
        if self._left:
            return []
        frame = b"".join(self._chunks)
        _give_back(self._chunks)
        self._chunks = []
        return [frame]

    def feed(self, data: bytes) -> list[bytes]:
        """Receive `data` as a socket would deliver it; for tests and for data at hand."""
        frames: list[bytes] = []
        pos = 0
        while pos < len(data):
            room = self.buffer()
            assert len(room) > 0
            count = min(len(room), len(data) - pos)
            room[:count] = data[pos : pos + count]
            frames += self.advance(count)
            pos += count
        return frames

    def _cut(self, filled: int) -> list[bytes]:
        """Take the frames out of the scratch's first `filled` bytes, and keep what is left."""
        scratch = self._scratch
        limit = self.limit
        frames: list[bytes] = []
        pos = 0
        self._begun = b""
        while filled - pos >= 4:
            (size,) = _INT32.unpack_from(scratch, pos)
            if not 0 <= size <= limit:
                self._failure = MalformedFrame(f"frame size {size} is not between 0 and {limit}")
                if frames:
                    return frames
                raise self._failure
            end = pos + 4 + size
            if end > filled:
                if size > _SMALL_FRAME_BYTES or 4 + size > len(scratch):
                    self._chunks = [memoryview(scratch[pos + 4 : filled].tobytes())]
                    self._filled = filled - pos - 4
                    self._left = end - filled
                    return frames
                break
            frames.append(scratch[pos + 4 : end].tobytes())
            pos = end
        self._begun = scratch[pos:filled].tobytes()
        return frames

    def _room(self) -> memoryview:
        """Free space for the rest of a large frame, a new chunk if need be."""
        chunk = self._chunks[-1]
        if self._filled == len(chunk):
            size = min(max(self.pending, _CHUNK_BYTES_MIN), _CHUNK_BYTES_MAX)
            fresh = _take(size) if size == _CHUNK_BYTES_MAX else bytearray(size)
            chunk = memoryview(fresh)[: self._left]
            self._chunks.append(chunk)
            self._filled = 0
        return chunk[self._filled :]


# Chunks of full size that no frame needs at the moment; shared by all readers.
_SPARE_CHUNKS: list[bytearray] = []


def _take(size: int) -> bytearray:
    try:
        return _SPARE_CHUNKS.pop()
    except IndexError:
        return bytearray(size)


def _give_back(chunks: list[memoryview]) -> None:
    """Keep chunks of full size, a few megabytes of them, for the next large frame."""
    for chunk in chunks:
        whole = chunk.obj
        if (
            type(whole) is bytearray
            and len(whole) == _CHUNK_BYTES_MAX
            and len(_SPARE_CHUNKS) < _SPARE_CHUNKS_MAX
        ):
            _SPARE_CHUNKS.append(whole)
