"""Compression of record batches: one table from codec id to (name, compress, chunks).

Why: the broker only stores what producers compressed, so codecs are rare guests here: batches are
opened for compaction, for topics whose rules need the records, for the coordinators' own logs and
by tools, and run through to see that consumers will be able to. Each library is imported on first
use and costs a broker's start nothing.

What arrives may be hostile. 1 MiB of gzip can become 1 GiB, so `decompress` never makes more than
the caller's `max_bytes`, nor more than RATIO_MAX times the input beyond what RATIO_FREE_BYTES
allows: output is drawn in chunks and counted, declared sizes are compared with the cap before
anything is allocated for them. Nor is output the only work: a
megabyte of empty gzip members makes none. So their number (members, frames, blocks of snappy and
zstd) has a bound in proportion to the input too, input is handed to the libraries in pieces, which
they may copy, and all work is linear in what arrived. Every failure is KafkaError INVALID_RECORD,
which clients do not retry. (Apache Kafka has no such bounds; it answers INVALID_RECORD for bad
bodies too.)

Formats as Java's producer writes them:
    gzip     one gzip stream (concatenated members are read)
    snappy   xerial framing: 0x82 "SNAPPY" 0x00, int32 version 1, int32 compatible 1, then blocks of
             int32 length + raw snappy of at most 32 KiB; a raw block without framing is read too
    lz4      LZ4 frame v1, independent blocks of 64 KB, no content size, no content checksum
    zstd     zstd frames
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wire.errors import ErrorCode, KafkaError
from wire.layout import CODEC_NAMES, XERIAL_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator

Buffer: TypeAlias = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
RATIO_MAX = 200
RATIO_FREE_BYTES = 1024 * 1024
"""Up to here any ratio is allowed: a batch of a thousand equal records compresses honestly well."""

_CHUNK_BYTES = 256 * 1024
_FIRST_PIECE_BYTES = 1024
_PIECE_BYTES = 64 * 1024
_PARTS_FREE = 128
_PART_BYTES = 256
"""Input that pays for one more member, frame or block: honest ones have thousands of bytes."""
_XERIAL_HEADER = XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = Struct(">i")
_SNAPPY_RATIO_MAX = 64
"""Snappy's longest copy makes 64 bytes of 3, so a larger declared length is a lie."""
_ZSTD_WINDOW_BYTES_MAX = 128 * 1024 * 1024
"""As Java's reader. Streams of levels 20 to 22 declare 32 to 128 MiB, however little they hold; of
the library's buffer only what is written becomes memory, and that is counted."""
_ZSTD_HEADER_BYTES_MAX = 18
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
_ZSTD_RLE_BLOCK = 1
_LZ4_LEVEL_DEFAULT = 9
_LZ4_FLAGS_FIXED, _LZ4_FLAGS = 0b11100011, 0b01100000
"""Version 1, blocks that do not depend on each other, nothing reserved."""


class Codec(NamedTuple):
    """One row of the table. `magic` is how its streams start: a cheap check of a codec id."""

    id: int
    name: str
    magic: bytes
    compress: Callable[[Buffer, int | None], bytes]
    chunks: Callable[[memoryview, _Bounds], Iterator[bytes]]


def compress(data: Buffer, codec: int, level: int | None = None) -> bytes:
    """`data` in the form Java's producer would send. `level` None is Kafka's default of the codec
    (gzip -1, lz4 9, zstd 3; none and snappy have no levels)."""
    return _codec(codec).compress(data, level)


def compress_within_bounds(data: Buffer, codec: int, level: int | None = None) -> tuple[bytes, int]:
    """As `compress`, so that `decompress` takes it back, and in which codec that is: what becomes
    too small for its bounds is in snappy, which makes nothing as small; what is too large for them
    in any codec stays as it is. (Apache Kafka has no bounds, and reads either.)"""
    for id, its_level in ((codec, level), (SNAPPY, None)):
        if id == NONE:
            break
        found = compress(data, id, its_level)
        if len(data) <= decompressed_limit(len(found), DECOMPRESSED_BYTES_MAX):
            return found, id
    return bytes(data), NONE


def decompress(data: Buffer, codec: int, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The uncompressed bytes, at most min(max_bytes, max(1 MiB, 200 x len(data))) of them.

    Raises KafkaError: INVALID_RECORD for garbage, truncation and bombs,
    UNSUPPORTED_COMPRESSION_TYPE for an id that is in no table. Slow: never on a thread that
    serves sockets.
    """
    parts = list(decompressed_chunks(data, codec, max_bytes))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decompressed_chunks(
    data: Buffer, codec: int, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[bytes]:
    """What `decompress` returns, in pieces of at most 256 KiB as they are made, for who needs not
    hold them all; bounds and errors are the same. The libraries release the GIL meanwhile."""
    view = memoryview(data)
    found = _codec(codec)
    return found.chunks(view, _Bounds(found.name, view.nbytes, max_bytes))


def starts_as(data: Buffer, codec: int) -> bool:
    """Whether the bytes begin as Java's reader of the codec wants them, which takes no lz4 frame
    whose blocks depend on each other (Lz4BlockOutputStream.FLG)."""
    magic = CODECS[codec].magic
    if data[: len(magic)] != magic:
        return False
    return codec != LZ4 or (
        len(data) > len(magic) and data[len(magic)] & _LZ4_FLAGS_FIXED == _LZ4_FLAGS
    )


def decompressed_limit(compressed_bytes: int, max_bytes: int) -> int:
    """The largest result `decompress` allows for that many bytes."""
    return min(max_bytes, max(RATIO_FREE_BYTES, RATIO_MAX * compressed_bytes))


def _codec(id: int) -> Codec:
    if 0 <= id < len(CODECS):
        return CODECS[id]
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {id}")


def _bad(codec: str, error: object) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"cannot decompress {codec} records: {error}")


class _Bounds:
    """What one body may cost: the one place that counts."""

    __slots__ = ("_parts_left", "codec", "limit", "size")

    def __init__(self, codec: str, compressed_bytes: int, max_bytes: int) -> None:
        self.codec = codec
        self.limit = decompressed_limit(compressed_bytes, max_bytes)
        self.size = 0
        self._parts_left = _PARTS_FREE + compressed_bytes // _PART_BYTES

    @property
    def room(self) -> int:
        """How much to ask a decoder for: one byte more than allowed shows that there is more."""
        return min(_CHUNK_BYTES, self.limit - self.size + 1)

    def made(self, chunk: bytes) -> bytes:
        """Count what was made, and hand it on."""
        self.expect(len(chunk))
        self.size += len(chunk)
        return chunk

    def expect(self, size: int) -> None:
        """Refuse before making: raises when `size` more bytes would pass the limit."""
        if self.size + size > self.limit:
            raise _bad(self.codec, f"they would exceed {self.limit} bytes")

    def begin_part(self) -> None:
        """Another member, frame or block begins."""
        self._parts_left -= 1
        if self._parts_left < 0:
            raise _bad(self.codec, "they are in too many small parts")


def _store(data: Buffer, level: int | None) -> bytes:
    return bytes(data)


def _stored_chunks(data: memoryview, bounds: _Bounds) -> Iterator[bytes]:
    yield bytes(data)


def _gzip_compress(data: Buffer, level: int | None) -> bytes:
    import zlib

    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def _gzip_chunks(data: memoryview, bounds: _Bounds) -> Iterator[bytes]:
    import zlib

    pos = 0
    try:
        while pos < len(data):
            bounds.begin_part()
            member = zlib.decompressobj(31)
            step = _FIRST_PIECE_BYTES
            while not member.eof:
                piece: Buffer = member.unconsumed_tail
                if not piece:
                    piece = data[pos : pos + step]
                    pos += len(piece)
                    step = min(2 * step, _PIECE_BYTES)
                chunk = member.decompress(piece, bounds.room)
                if chunk:
                    yield bounds.made(chunk)
                elif not len(piece) and not member.eof:
                    raise _bad("gzip", "the stream is cut short")
            pos -= len(member.unused_data)
    except zlib.error as error:
        raise _bad("gzip", error) from None


def _snappy_compress(data: Buffer, level: int | None) -> bytes:
    import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(bytes(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _snappy_chunks(data: memoryview, bounds: _Bounds) -> Iterator[bytes]:
    import snappy

    for block in _snappy_blocks(bytes(data)):
        bounds.begin_part()
        bounds.expect(_snappy_declared_bytes(block))
        try:
            chunk = bytes(snappy.uncompress(block))
        except (
            Exception
        ) as error:  # the library raises a class of its own, depending on its backend
            raise _bad("snappy", error) from None
        yield bounds.made(chunk)


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(XERIAL_MAGIC):
        yield data
        return
    pos = len(_XERIAL_HEADER)
    if len(data) < pos:
        raise _bad("snappy", "the framing header is cut short")
    while pos < len(data):
        if len(data) - pos < 4:
            raise _bad("snappy", "a block length is cut short")
        (size,) = _BLOCK_SIZE.unpack_from(data, pos)
        pos += 4
        if not 0 <= size <= len(data) - pos:
            raise _bad("snappy", f"a block of {size} bytes with {len(data) - pos} left")
        yield data[pos : pos + size]
        pos += size


def _snappy_declared_bytes(block: bytes) -> int:
    """The uncompressed length a raw block starts with: believed only as a reason to refuse."""
    value = shift = 0
    for byte in block[:5]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > len(block) * _SNAPPY_RATIO_MAX:
                raise _bad("snappy", f"{len(block)} bytes claim to hold {value}")
            return value
        shift += 7
    raise _bad("snappy", "no length")


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    # lz4-java: level 9 means its fast compressor, any other one the high compressor.
    effective = 0 if level is None or level == _LZ4_LEVEL_DEFAULT else max(level, 3)
    packed: bytes = lz4.frame.compress(
        data,
        compression_level=effective,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return packed


def _lz4_chunks(data: memoryview, bounds: _Bounds) -> Iterator[bytes]:
    import lz4.frame

    pos = 0
    try:
        while pos < len(data):
            bounds.begin_part()
            frame: Any = lz4.frame.LZ4FrameDecompressor()
            step = _FIRST_PIECE_BYTES
            while not frame.eof:
                piece = b""
                if frame.needs_input:
                    piece = bytes(data[pos : pos + step])
                    if not piece:
                        raise _bad("lz4", "the frame is cut short")
                    pos += len(piece)
                    step = min(2 * step, _PIECE_BYTES)
                chunk: bytes = frame.decompress(piece, max_length=bounds.room)
                if chunk:
                    yield bounds.made(chunk)
            pos -= len(frame.unused_data or b"")
    except (RuntimeError, EOFError, ValueError) as error:
        raise _bad("lz4", error) from None


def _zstd_compress(data: Buffer, level: int | None) -> bytes:
    import zstandard

    packer: Any = zstandard.ZstdCompressor(level=3 if level is None else level)
    packed: bytes = packer.compress(data)
    return packed


def _zstd_chunks(data: memoryview, bounds: _Bounds) -> Iterator[bytes]:
    import zstandard

    opener: Any = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    try:
        _check_zstd_frames(data, bounds)
        with opener.stream_reader(data, read_across_frames=True) as reader:
            while chunk := reader.read(bounds.room):
                yield bounds.made(chunk)
    except zstandard.ZstdError as error:
        raise _bad("zstd", error) from None


def _check_zstd_frames(data: memoryview, bounds: _Bounds) -> None:
    """Step over the frames and their blocks: they must end where the data does, which the library
    does not tell, and what they claim to hold must be allowed (RFC 8878, 3.1)."""
    import zstandard

    pos, size = 0, len(data)
    while pos < size:
        bounds.begin_part()
        if size - pos >= 8 and data[pos + 1 : pos + 4] == _ZSTD_SKIPPABLE and data[pos] >> 4 == 5:
            pos += 8 + int.from_bytes(data[pos + 4 : pos + 8], "little")
            continue
        head = data[pos : pos + _ZSTD_HEADER_BYTES_MAX]
        declared: int = zstandard.frame_content_size(head)
        if declared > 0:
            bounds.expect(declared)
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        pos += zstandard.frame_header_size(head)
        is_last = False
        while not is_last:
            if pos + 3 > size:
                raise _bad("zstd", "the frame is cut short")
            bounds.begin_part()
            block = int.from_bytes(data[pos : pos + 3], "little")
            is_last = bool(block & 1)
            pos += 3 + (1 if block >> 1 & 3 == _ZSTD_RLE_BLOCK else block >> 3)
        pos += 4 if has_checksum else 0
    if pos > size:
        raise _bad("zstd", "the frame is cut short")


CODECS: tuple[Codec, ...] = (
    Codec(NONE, CODEC_NAMES[NONE], b"", _store, _stored_chunks),
    Codec(GZIP, CODEC_NAMES[GZIP], b"\x1f\x8b", _gzip_compress, _gzip_chunks),
    Codec(SNAPPY, CODEC_NAMES[SNAPPY], b"", _snappy_compress, _snappy_chunks),
    Codec(LZ4, CODEC_NAMES[LZ4], b"\x04\x22\x4d\x18", _lz4_compress, _lz4_chunks),
    Codec(ZSTD, CODEC_NAMES[ZSTD], b"\x28\xb5\x2f\xfd", _zstd_compress, _zstd_chunks),
)

CODEC_IDS: dict[str, int] = {codec.name: codec.id for codec in CODECS} | {"uncompressed": NONE}
"""`compression.type` to codec id ("producer" is no codec: it keeps the batch's own)."""
