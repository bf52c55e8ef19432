"""`segments --offsets`: what is named is read, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.segments.segments import SegmentsOptions, parse_offsets, plan_segments


def planned(log_dir: Path, offsets: str) -> list[int]:
    starts, ends = parse_offsets(offsets)
    options = SegmentsOptions(str(log_dir), ("orders",), from_offsets=starts, to_offsets=ends)
    return [one.partition for one in plan_segments(options)]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    for name in ("orders-0", "orders-1", "orders-2", "other-7"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_only_partitions_that_are_named_are_read(log_dir: Path) -> None:
    assert planned(log_dir, "0:100-200") == [0]
    assert planned(log_dir, "2:-5,1:7-") == [1, 2]
    assert planned(log_dir, "100-200") == [0, 1, 2]
    assert planned(log_dir, "5-,1:7-9") == [0, 1, 2]


def test_a_partition_that_is_not_there_is_an_error(log_dir: Path) -> None:
    with pytest.raises(PipelineError, match=r"no partition 7 in .*there are: 0, 1, 2"):
        planned(log_dir, "0:1-2,7:5-")
    with pytest.raises(PipelineError, match="no partition 9"):
        planned(log_dir, "1-2,9:5-")
