"""What is left of an answer that was cut at so many bytes: whole batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.partition.requests import FetchResult
from replication.replicas.whole_batches import answer_whole_batches
from storage.open_files import FileHandle, FileSlice
from wire.records import Record, build_batch


@pytest.fixture
def batches(tmp_path: Path) -> list[bytes]:
    """Large ones and small ones; the file `log` has them, one behind the other."""
    made = [
        bytes(build_batch([Record(value=bytes(size))], base_offset=at))
        for at, size in enumerate([20_000, 10, 10, 30_000, *[5] * 300, 700])
    ]
    (tmp_path / "log").write_bytes(b"".join(made))
    return made


def read(tmp_path: Path, size: int) -> FetchResult:
    return FetchResult(records=FileSlice(FileHandle.open(tmp_path / "log"), 0, size))


def keep_whole_batches(max_bytes: int, results: list[FetchResult]) -> None:
    told: list[FetchResult] = []
    answer_whole_batches(max_bytes, told.extend, results)
    assert told == results


def sizes(*results: FetchResult) -> list[int]:
    return [0 if one.records is None else one.records.size for one in results]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 50, 304])
@pytest.mark.parametrize("more", [0, 1, 11, 60])
def test_the_batch_that_was_cut_goes(
    batches: list[bytes], tmp_path: Path, count: int, more: int
) -> None:
    whole = len(b"".join(batches[:count]))
    result = read(tmp_path, whole + more)
    keep_whole_batches(whole + more, [result])
    assert result.records is not None
    assert result.records.read() == b"".join(batches[:count])


def test_the_first_batch_stays(batches: list[bytes], tmp_path: Path) -> None:
    """Who reads at the end of a segment's file, or a short file, is answered as before."""
    result = read(tmp_path, 500)
    keep_whole_batches(500, [result])
    assert sizes(result) == [500]


def test_only_the_last_partition_was_cut(batches: list[bytes], tmp_path: Path) -> None:
    first, nothing, last = read(tmp_path, 20_500), FetchResult(), read(tmp_path, 900)
    keep_whole_batches(21_400, [first, nothing, last, nothing])
    assert sizes(first, nothing, last) == [20_500, 0, 0], "the next fetch begins with that batch"


def test_what_was_not_cut_is_not_looked_at(batches: list[bytes], tmp_path: Path) -> None:
    result = read(tmp_path, 20_500)
    keep_whole_batches(20_501, [result])
    keep_whole_batches(20_499, [result])
    assert sizes(result) == [20_500]
    keep_whole_batches(0, [FetchResult()])


def test_what_the_disk_refuses_is_told_as_it_is(
    batches: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(5, "EIO")

    result = read(tmp_path, 20_500)
    monkeypatch.setattr(FileSlice, "read", refuse)
    keep_whole_batches(20_500, [result])
    assert sizes(result) == [20_500]
