"""Which bytes of a log directory are read, and what of it may not be."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pipeline.segments import plan as segment_plan
from pipeline.segments.plan import PlanError, Segment, Wanted, partitions_in, plan
from pipeline.segments.source import narrow
from tests.pipeline.segments.logs import (
    ABORT,
    COMMIT,
    marker,
    offsets,
    read,
    simple,
    txn,
    write_segment,
)


def test_only_what_lies_below_the_high_watermark_is_read_unless_the_log_end_is_asked_for(
    log_dir: Path,
) -> None:
    write_segment(log_dir, [simple(0), simple(3), simple(6)], high_watermark=5)
    assert offsets(read(log_dir)) == [0, 1, 2, 3, 4]
    assert offsets(read(log_dir, log_end=True)) == list(range(9))


def test_aborted_control_and_open_batches_are_left_out(log_dir: Path) -> None:
    path = write_segment(
        log_dir,
        [txn(0, 1), txn(3, 2), marker(6, 1, ABORT), marker(7, 2, COMMIT), txn(8, 1),
         marker(11, 1, COMMIT), txn(12, 3), simple(15)],
        high_watermark=18,
    )  # fmt: skip
    path.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 1, 0, 6, 3))
    assert offsets(read(log_dir)) == [3, 4, 5, 8, 9, 10]
    assert offsets(read(log_dir, committed_only=False)) == [
        *range(6), 8, 9, 10, *range(12, 18),
    ]  # fmt: skip


def test_to_the_logs_end_an_open_transaction_is_left_out_and_hides_nothing(log_dir: Path) -> None:
    write_segment(
        log_dir,
        [simple(0), txn(3, 1), txn(6, 2), marker(9, 2, COMMIT), simple(10), txn(13, 1)],
        high_watermark=16,
    )
    assert offsets(read(log_dir)) == [0, 1, 2]
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2, 6, 7, 8, 10, 11, 12]
    write_segment(log_dir, [simple(16)], base=16)
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2, 6, 7, 8, 10, 11, 12, 16, 17, 18]


def test_to_the_logs_end_an_open_transaction_counts_whose_commit_was_decided(log_dir: Path) -> None:
    write_segment(log_dir, [txn(0, 1), txn(3, 2), txn(6, 3), marker(9, 3, ABORT), txn(10, 1)])
    prepared = {0: [1, 3], 1: [2]}
    assert offsets(read(log_dir, log_end=True, prepared=prepared)) == [0, 1, 2, 10, 11, 12]


def test_an_aborted_transaction_is_left_out_where_its_index_was_lost(log_dir: Path) -> None:
    write_segment(log_dir, [txn(0, 1), txn(3, 2), marker(6, 1, ABORT), marker(7, 2, COMMIT)])
    assert offsets(read(log_dir, log_end=True)) == [3, 4, 5]


def test_deleted_records_below_the_log_start_are_not_read(log_dir: Path) -> None:
    write_segment(log_dir, [simple(0), simple(3)], high_watermark=6)
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    assert offsets(read(log_dir)) == [4, 5]


def test_an_interrupted_compaction_is_read_as_a_broker_would_finish_it(log_dir: Path) -> None:
    old = write_segment(log_dir, [simple(0), simple(3)], high_watermark=12)
    write_segment(log_dir, [simple(6)], base=6)
    write_segment(log_dir, [simple(9)], base=9)
    swap = old.with_suffix(".log.swap")
    swap.write_bytes(simple(3) + simple(6))
    cleaned = old.with_suffix(".index.cleaned")
    cleaned.touch()
    assert offsets(read(log_dir)) == list(range(12)), "its files were being renamed"
    cleaned.rename(old.with_suffix(".index.swap"))
    assert offsets(read(log_dir)) == list(range(3, 12))
    old.with_suffix(".index").write_bytes(struct.pack(">ii", 2, 7))  # of the old segment
    assert offsets(read(log_dir, from_offsets={0: 5})) == list(range(5, 12))
    swap.write_bytes(b"")
    assert offsets(read(log_dir)) == list(range(6, 12)), "compaction may leave nothing"


def test_a_filter_may_name_partitions_that_are_not_there(log_dir: Path) -> None:
    """Of several topics some have fewer; an option that names one is a mistake."""
    write_segment(log_dir, [simple(0)], high_watermark=3)
    nine = type("EqualTo", (), {"attribute": ("partition",), "value": 9})()
    assert plan([str(log_dir)], narrow(Wanted("t"), nine)) == []
    with pytest.raises(PlanError, match="has no partition 9"):
        plan([str(log_dir)], Wanted("t", frozenset([9])))


def test_a_topic_that_is_not_there_is_told_beside_some_that_are_and_how_many(
    log_dir: Path,
) -> None:
    for number in range(10):
        (log_dir / f"orders-{number}-0").mkdir()
    with pytest.raises(PlanError, match=r"orders-6, orders-7 and 2 more$"):
        plan([str(log_dir)], Wanted("orders"))


def test_a_partition_that_lies_in_two_directories_is_not_read_from_one_of_them(
    tmp_path: Path,
) -> None:
    """As with those of two brokers: the other may have more of it."""
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    for path in map(Path, paths):
        (path / f"only-{path.name}-0").mkdir(parents=True)
        write_segment(path, [simple(0)], high_watermark=3)
    with pytest.raises(PlanError, match=r"t-0 is in .*/a and in .*/b, as in two brokers"):
        plan(paths, Wanted("t"))
    assert len(plan(paths, Wanted("only-a"), Wanted("only-b"))) == 2
    assert len(plan([paths[0]] * 2, Wanted("t"))) == 1


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "log-start-offset-checkpoint"])
@pytest.mark.parametrize("text", ["0", "0\n2\nt 0 4", "0\n1\nt 0 x", "0\n1\nt 0", "\0\0", b"\xff"])
def test_a_damaged_checkpoint_is_named(log_dir: Path, name: str, text: str | bytes) -> None:
    write_segment(log_dir, [simple(0)], high_watermark=3)
    (log_dir / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError, match=f"{name} is damaged; move it away"):
        plan([str(log_dir)], Wanted("t"))


def test_a_checkpoint_that_a_broker_has_not_filled_yet_says_nothing(log_dir: Path) -> None:
    write_segment(log_dir, [simple(0)], high_watermark=3)
    (log_dir / "log-start-offset-checkpoint").touch()
    assert offsets(read(log_dir)) == [0, 1, 2]


def test_what_is_called_like_no_partition_is_none(log_dir: Path) -> None:
    for name in (
        "-7",
        "t-x",
        "t-1.0123abcd-delete",
        "t-2.0123abcd-future",
        "t-3.0123-stray",
        "t-\u0663",
    ):
        (log_dir / name).mkdir()
    (log_dir / "t-8").touch()
    (log_dir / "a-b-0").mkdir()
    assert [found[:2] for found in partitions_in(str(log_dir))] == [("a-b", 0)]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_segment_that_goes_while_it_is_looked_at_is_one_of_those_that_are_not_there(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Retention renames it between two looks of ours: then all is looked at again."""
    paths = [write_segment(log_dir, [simple(3 * n)], base=3 * n) for n in range(4)]
    write_segment(log_dir, [simple(12)], base=12, high_watermark=15)
    plain = segment_plan.position_of

    def position_of(segment: Segment, offset: int) -> int:
        if segment.base == 9 and len(paths) > 4 - times:
            path = paths.pop(0)
            path.rename(path.with_name(path.name + ".deleted"))
            (log_dir / "t-0" / "gone").stat()
        return plain(segment, offset)

    monkeypatch.setattr(segment_plan, "position_of", position_of)
    if times == 3:
        with pytest.raises(PlanError, match=r"gone was deleted just now; run the read again"):
            plan([str(log_dir)], Wanted("t"))
    else:
        assert offsets(read(log_dir)) == list(range(3 * times, 15))
