"""Codecs against the libraries that clients use, and against bombs."""

from __future__ import annotations

import gzip
import os
import random
import struct
import tracemalloc
import warnings
from contextlib import suppress

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.compression import (
    CODEC_IDS,
    CODECS,
    GZIP,
    LZ4,
    RATIO_FREE_BYTES,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
    decompressed_chunks,
    decompressed_limit,
)
from wire.errors import ErrorCode, KafkaError

with warnings.catch_warnings():
    # Importing kafka-python warns about its own use of importlib.
    warnings.simplefilter("ignore")
    import kafka.codec

MIB = 1 << 20

payloads = st.binary(max_size=4000) | st.builds(
    lambda unit, count: unit * count, st.binary(max_size=50), st.integers(0, 4000)
)


@given(payloads, st.sampled_from(range(5)))
@settings(max_examples=150, deadline=None)
def test_each_codec_gives_back_what_it_got(data: bytes, codec: int) -> None:
    packed = compress(data, codec)
    assert decompress(packed, codec) == data
    assert decompress(memoryview(bytearray(packed)), codec) == data
    assert packed.startswith(CODECS[codec].magic)


@given(payloads)
@settings(max_examples=50, deadline=None)
def test_kafka_python_reads_ours_and_we_read_its(data: bytes) -> None:
    assert kafka.codec.gzip_decode(compress(data, GZIP)) == data
    if data:  # kafka-python does not take the bare framing header that Java writes for nothing
        assert kafka.codec.snappy_decode(compress(data, SNAPPY)) == data
    assert kafka.codec.lz4_decode(compress(data, LZ4)) == data
    assert kafka.codec.zstd_decode(compress(data, ZSTD)) == data
    assert decompress(kafka.codec.gzip_encode(data), GZIP) == data
    assert decompress(kafka.codec.snappy_encode(data), SNAPPY) == data
    assert decompress(kafka.codec.lz4_encode(data), LZ4) == data
    assert decompress(kafka.codec.zstd_encode(data), ZSTD) == data


def test_levels_change_the_result_and_not_the_content() -> None:
    rng = random.Random(1)
    words = [b"%x" % rng.randrange(1 << rng.randrange(4, 40)) for _ in range(500)]
    data = b" ".join(rng.choices(words, k=20_000))
    for codec, low, high in ((GZIP, 1, 9), (LZ4, 3, 17), (ZSTD, 1, 19)):
        assert decompress(compress(data, codec, low), codec) == data
        assert decompress(compress(data, codec, high), codec) == data
        assert len(compress(data, codec, high)) < len(compress(data, codec, low))


def test_snappy_is_read_raw_and_in_java_frames_and_written_in_frames() -> None:
    data = os.urandom(100_000)
    packed = compress(data, SNAPPY)
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    assert decompress(snappy.compress(data), SNAPPY) == data
    assert decompress(packed[:16], SNAPPY) == b""


def test_lz4_frames_have_independent_64_kb_blocks_and_no_content_checksum() -> None:
    info = lz4.frame.get_frame_info(compress(bytes(200_000), LZ4))
    assert info["block_size"] == 65536
    assert not info["block_linked"]
    assert not info["content_checksum"]
    assert info["content_size"] == 0


def test_streams_without_a_declared_size_and_of_several_parts_are_read() -> None:
    data = os.urandom(300_000)
    writer = zstandard.ZstdCompressor().compressobj()
    assert decompress(writer.compress(data) + writer.flush(), ZSTD) == data
    for codec in (GZIP, LZ4, ZSTD):
        assert decompress(compress(data, codec) + compress(b"more", codec), codec) == data + b"more"


@pytest.mark.parametrize("window_log", [25, 26, 27])
def test_a_zstd_stream_of_any_level_is_read_however_little_it_holds(window_log: int) -> None:
    """Java's producer does not say how much will come: its window is that of levels 20 to 22."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = writer.compress(b"record") + writer.flush()
    assert zstandard.get_frame_parameters(packed).window_size == 1 << window_log
    assert decompress(packed, ZSTD) == b"record"


def test_the_table_has_the_names_of_compression_type() -> None:
    assert [codec.name for codec in CODECS] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [codec.id for codec in CODECS] == list(range(5))
    assert CODEC_IDS["uncompressed"] == 0


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_an_unknown_codec_is_unsupported(codec: int) -> None:
    for function in (compress, decompress):
        with pytest.raises(KafkaError) as error:
            function(b"x", codec)
        assert error.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def outcome(data: bytes, codec: int) -> ErrorCode | None:
    """The code of the refusal; None when it decompresses."""
    try:
        decompress(data, codec)
    except KafkaError as error:
        return error.code
    return None


# --- hostile -----------------------------------------------------------------------------------


def bomb(codec: int, size: int) -> bytes:
    """Zeros, as small as the codec makes them, and of no declared size where that can be."""
    zeros = bytes(size)
    if codec == GZIP:
        return gzip.compress(zeros, 9)
    if codec == LZ4:
        return lz4.frame.compress(zeros, block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False)
    if codec == ZSTD:
        writer = zstandard.ZstdCompressor().compressobj()
        return writer.compress(zeros) + writer.flush()
    return compress(zeros, SNAPPY)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_bomb_is_refused_before_its_memory_is_allocated(codec: int) -> None:
    packed = bomb(codec, 200 * MIB)
    decompress(bomb(codec, MIB), codec)  # the library is imported outside of the measurement
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as error:
            decompress(packed, codec, 8 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.value.code == ErrorCode.INVALID_RECORD
    assert peak < 10 * MIB + len(packed)


@pytest.mark.parametrize("codec", [GZIP, ZSTD, LZ4])
def test_above_one_mebibyte_the_ratio_counts(codec: int) -> None:
    """64 MiB are allowed, but not out of a few kilobytes."""
    packed = bomb(codec, 30 * MIB)
    if decompressed_limit(len(packed), 64 * MIB) < 30 * MIB:
        with pytest.raises(KafkaError):
            decompress(packed, codec)
    assert decompress(bomb(codec, RATIO_FREE_BYTES), codec) == bytes(RATIO_FREE_BYTES)


def test_limits_are_exact() -> None:
    data = os.urandom(100_000)
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        packed = compress(data, codec)
        assert decompress(packed, codec, len(data)) == data
        with pytest.raises(KafkaError):
            decompress(packed, codec, len(data) - 1)


def test_sizes_that_frames_merely_declare_are_not_believed() -> None:
    liar = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    with pytest.raises(KafkaError, match=r"claim|exceed"):
        decompress(liar, SNAPPY)
    framed = compress(b"", SNAPPY) + struct.pack(">i", len(liar)) + liar
    with pytest.raises(KafkaError, match=r"claim|exceed"):
        decompress(framed, SNAPPY)
    for length in (-1, 2**31 - 1, 5):
        with pytest.raises(KafkaError):
            decompress(compress(b"", SNAPPY) + struct.pack(">i", length) + b"abc", SNAPPY)
    # A zstd header that declares 1 GiB over nothing.
    parameters = zstandard.ZstdCompressionParameters.from_level(3)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=1 << 30)
    with pytest.raises(KafkaError, match="exceed"):
        decompress(
            writer.compress(bytes(1 << 18)) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), ZSTD
        )


@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.binary(max_size=200), st.booleans())
@settings(max_examples=300, deadline=None)
def test_garbage_is_an_invalid_record_and_nothing_else(
    codec: int, data: bytes, with_magic: bool
) -> None:
    raw = CODECS[codec].magic + data if with_magic else data
    assert outcome(raw, codec) in (ErrorCode.INVALID_RECORD, None)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_a_stream_cut_anywhere_is_refused(codec: int) -> None:
    packed = compress(os.urandom(300) + bytes(300), codec)
    start = 17 if codec == SNAPPY else 1  # the bare Java header is an empty stream
    for cut in range(start, len(packed)):
        with pytest.raises(KafkaError):
            decompress(packed[:cut], codec)


def test_a_cut_zstd_frame_never_gives_the_whole_content() -> None:
    """The library does not report a missing end, so with no declared size the result is short."""
    data = os.urandom(300_000)
    writer = zstandard.ZstdCompressor().compressobj()
    for packed in (compress(data, ZSTD), writer.compress(data) + writer.flush()):
        for cut in (len(packed) - 1, len(packed) // 2, 6):
            with suppress(KafkaError):
                assert len(decompress(packed[:cut], ZSTD)) < len(data)


def refusal(data: bytes, codec: int) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        decompress(data, codec)
    return refused.value.code


EMPTY = {
    "gzip": gzip.compress(b"", mtime=0),
    "snappy": (1).to_bytes(4, "big") + b"\0",
    "lz4": lz4.frame.compress(b""),
    "zstd": zstandard.ZstdCompressor().compress(b""),
}
XERIAL = b"\x82SNAPPY\x00" + bytes((0, 0, 0, 1, 0, 0, 0, 1))


def repeated(name: str, part: bytes, count: int) -> bytes:
    return (XERIAL if name == "snappy" else b"") + part * count


@pytest.mark.parametrize("name", EMPTY)
def test_a_megabyte_of_empty_parts_is_refused_before_much_work(name: str) -> None:
    """N3: it took up to 1.4 s, quadratic in what arrived, and the bound on output never tripped."""
    codec = CODEC_IDS[name]
    part = EMPTY[name]
    data = repeated(name, part, 1_000_000 // len(part))
    assert refusal(data, codec) is ErrorCode.INVALID_RECORD
    assert decompress(repeated(name, part, 50), codec) == b""


@pytest.mark.parametrize("name", EMPTY)
def test_concatenated_parts_are_read_whole(name: str) -> None:
    codec = CODEC_IDS[name]
    plain = [os.urandom(size) for size in (1, 5000, 40, 200_000, 0, 70_000)]
    if name == "snappy":
        blocks = [snappy.compress(value) for value in plain]
        data = XERIAL + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    else:
        data = b"".join(compress(value, codec) for value in plain)
    assert decompress(data, codec) == b"".join(plain)


@pytest.mark.parametrize("options", [{}, {"write_checksum": True}])
def test_a_zstd_stream_without_a_declared_size_may_not_be_cut_short(
    options: dict[str, bool],
) -> None:
    """Java's producer declares none, and the library ends without a word."""
    packer = zstandard.ZstdCompressor(write_content_size=False, **options).compressobj()
    data = packer.compress(os.urandom(300_000)) + packer.flush()
    assert len(decompress(data, ZSTD)) == 300_000
    for end in (len(data) - 1, len(data) // 2, 140_000, 20):
        assert refusal(data[:end], ZSTD) is ErrorCode.INVALID_RECORD
    assert refusal(data + b"\x28\xb5", ZSTD) is ErrorCode.INVALID_RECORD


def test_skippable_zstd_frames_are_skipped() -> None:
    skippable = b"\x53\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    data = skippable + compress(b"plain", ZSTD) + skippable
    assert decompress(data, ZSTD) == b"plain"


@pytest.mark.parametrize("name", EMPTY)
def test_chunks_are_bounded_and_make_up_the_whole(name: str) -> None:
    plain = b"0123456789abcdef" * 60_000
    chunks = list(decompressed_chunks(compress(plain, CODEC_IDS[name]), CODEC_IDS[name]))
    assert b"".join(chunks) == plain
    assert max(map(len, chunks)) <= 256 * 1024
