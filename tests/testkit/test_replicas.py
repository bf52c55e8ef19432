"""The comparison of replicas sees a byte that differs, a batch that is missing, and where."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from testkit.checking import replicas


def at(offset: int, *values: bytes) -> bytes:
    """A batch as far as its layout matters here: prefix, epoch, magic, count, records."""
    rest = struct.pack(">ib40xi", 3, 2, len(values)) + b"".join(values)
    return struct.pack(">qi", offset, len(rest)) + rest


LOG = [at(0, b"a", b"b"), at(2, b"c"), at(3, b"d")]


def replica(path: Path, *segments: list[bytes]) -> Path:
    path.mkdir(parents=True)
    for parts in segments:
        name = struct.unpack_from(">q", parts[0])[0]
        (path / f"{name:020}.log").write_bytes(b"".join(parts))
    return path


def test_equal_bytes_are_equal_however_they_are_cut_into_segments(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", LOG)
    two = replica(tmp_path / "2", LOG[:2], LOG[2:])
    assert replicas.differences({1: one, 2: two}) == []
    assert [b.offset for b in replicas.batches(two)] == [0, 2, 3]


def test_a_changed_byte_is_named_by_its_offset(tmp_path: Path) -> None:
    changed = bytearray(LOG[1])
    changed[-1] ^= 1
    one = replica(tmp_path / "1", LOG)
    two = replica(tmp_path / "2", [LOG[0], bytes(changed), LOG[2]])
    (found,) = replicas.differences({1: one, 2: two})
    assert found.startswith("offset 2 differs: node 1 offset 2")
    assert replicas.differences({1: one, 2: two}, below=2) == []


def test_a_missing_batch_is_a_difference_below_the_high_watermark_only(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", LOG)
    two = replica(tmp_path / "2", LOG[:2])
    (found,) = replicas.differences({1: one, 2: two})
    assert "offset 3" in found
    assert "node 2 none" in found
    assert replicas.differences({1: one, 2: two}, below=3) == []


def test_another_batching_of_the_same_records_is_a_difference(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", LOG)
    two = replica(tmp_path / "2", [at(0, b"a"), at(1, b"b"), *LOG[1:]])
    assert len(replicas.differences({1: one, 2: two})) == 2


def test_an_empty_replica_of_a_full_partition_is_a_difference(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", LOG)
    (tmp_path / "2").mkdir()
    assert replicas.differences({1: one, 2: tmp_path / "2"}) == ["nothing on [2]"]
    assert replicas.differences({1: one, 2: tmp_path / "2"}, below=0) == []


def test_what_one_replica_has_deleted_is_not_compared(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", LOG)
    two = replica(tmp_path / "2", LOG[1:])
    assert replicas.differences({1: one, 2: two}) == []


def test_a_batch_that_is_half_written_and_zeros_after_it_are_no_batches(tmp_path: Path) -> None:
    torn = replica(tmp_path / "1", [*LOG[:2], LOG[2][:-3]])
    zeros = replica(tmp_path / "2", [*LOG[:2], bytes(500)])
    assert replicas.differences({1: torn, 2: zeros}) == []


def test_all_partitions_are_compared_and_something_must_be_there(tmp_path: Path) -> None:
    def where(node: int, topic: str, partition: int) -> Path:
        return tmp_path / str(node) / f"{topic}-{partition}"

    for node in (1, 2):
        replica(where(node, "t", 0), LOG)
    holders = {0: (1, 2), 1: (1, 2)}
    assert replicas.assert_equal(where, "t", {0: 4}, holders) == 2 * sum(map(len, LOG))
    with pytest.raises(AssertionError, match="nothing to compare"):
        replicas.assert_equal(where, "t", {0: 4, 1: 4}, holders)
