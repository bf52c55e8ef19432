"""Which bytes of a log directory are read, and what of it may not be."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from pipeline.segments import plan as segment_plan
from pipeline.segments.layout import SNAPSHOT_ENTRY, SNAPSHOT_HEAD
from pipeline.segments.plan import (
    PlanError,
    Segment,
    Wanted,
    file_key,
    partitions_in,
    plan,
    segments_in,
)
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


# ---- directories


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([], "is no log directory of a Kafka broker"),
        (["some/"], "is no log directory of a Kafka broker"),
        ([f"{0:020d}.log"], r"is the directory of one partition; give .* above it, .*, and"),
        (None, "is no directory"),
    ],
)
def test_what_is_no_log_directory_is_told(
    tmp_path: Path, made: list[str] | None, words: str
) -> None:
    place = tmp_path / "orders-0"
    for name in made or ():
        (place / name).mkdir(parents=True)
    if made == []:
        place.mkdir()
    with pytest.raises(PlanError, match=words):
        plan([str(place)], Wanted("t"))


def test_a_copy_of_a_log_directory_need_not_say_whose_it_was(tmp_path: Path) -> None:
    write_segment(tmp_path, [simple(0)], high_watermark=3)
    assert offsets(read(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize(("count", "end"), [(7, "orders-6"), (8, "orders-7"), (9, "and 1 more")])
def test_eight_topics_are_told_of_those_that_are_there(log_dir: Path, count: int, end: str) -> None:
    (log_dir / "__consumer_offsets-0").mkdir()
    for number in range(count):
        (log_dir / f"orders-{number}-0").mkdir()
    with pytest.raises(PlanError, match=rf"no topic 'orders' in .*: orders-0, .*{end}$"):
        plan([str(log_dir)], Wanted("orders"))


def test_no_topics_at_all(log_dir: Path) -> None:
    with pytest.raises(PlanError, match=r"there are: none at all$"):
        plan([str(log_dir)], Wanted("orders"))


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("t", frozenset([0, 7])),
        Wanted("t", from_offsets={-1: 0, 7: 1}),
        Wanted("t", to_offsets={7: 1}),
    ],
)
def test_a_partition_that_is_named_must_be_there(log_dir: Path, wanted: Wanted) -> None:
    (log_dir / "t-0").mkdir()
    (log_dir / "t-3").mkdir()
    with pytest.raises(PlanError, match=r"'t' has no partition 7 in .*; there are: 0, 3$"):
        plan([str(log_dir)], wanted)


def test_partitions_come_in_the_order_of_their_numbers_and_topics_as_they_were_named(
    log_dir: Path,
) -> None:
    for name in ("t-10", "t-2", "b-0"):
        (log_dir / name).mkdir()
    found = plan([str(log_dir)], Wanted("t"), Wanted("b"))
    assert [(one.topic, one.partition) for one in found] == [("t", 2), ("t", 10), ("b", 0)]
    assert [one[2:] for one in found] == [(0, 0, [], False)] * 3


# ---- what there is and what of it is read


def three_segments(log_dir: Path, high_watermark: int | None = 18) -> Path:
    """Offsets 0 to 17, two batches of three records in each; the folder."""
    for base in (0, 6, 12):
        path = write_segment(
            log_dir, [simple(base), simple(base + 3)], base=base, high_watermark=high_watermark
        )
    return path.parent


def parts_of(log_dir: Path, **wanted: Any) -> list[tuple[int, int, int]]:
    """(first offset, end, position) of each part."""
    (one,) = plan([str(log_dir)], Wanted("t", **wanted))
    return [(part.from_offset, part.to_offset, part.position) for part in one.parts]


def test_a_part_for_each_segment_that_has_wanted_offsets(log_dir: Path) -> None:
    three_segments(log_dir)
    assert parts_of(log_dir) == [(0, 6, 0), (6, 12, 0), (12, 18, 0)]
    assert parts_of(log_dir, from_offsets={0: 6}, to_offsets={0: 12}) == [(6, 12, 0)]
    assert parts_of(log_dir, from_offsets={-1: 5}, to_offsets={-1: 13}) == [
        (5, 6, 0), (6, 12, 0), (12, 13, 0),
    ]  # fmt: skip
    assert parts_of(log_dir, from_offsets={-1: 1, 0: 17}) == [(17, 18, 0)], "its own wins"
    assert parts_of(log_dir, from_offsets={0: 18}) == []
    assert parts_of(log_dir, to_offsets={0: 99}) == [(0, 6, 0), (6, 12, 0), (12, 18, 0)]


def test_what_a_plan_says_of_a_partition(log_dir: Path) -> None:
    folder = three_segments(log_dir, high_watermark=16)
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    (one,) = plan([str(log_dir)], Wanted("t"))
    assert (one.log_start, one.readable_to, one.has_checkpoint) == (7, 16, True)
    first, last = one.parts
    assert (first.is_last, first.is_whole, last.is_last, last.is_whole) == (
        False, False, True, True,
    )  # fmt: skip
    assert (first.topic, first.partition) == ("t", 0)
    assert first.path == str(folder / f"{6:020d}.log")
    assert first.size == (folder / f"{6:020d}.log").stat().st_size
    (folder / f"{0:020d}.log").unlink()
    (log_dir / "log-start-offset-checkpoint").unlink()
    (one,) = plan([str(log_dir)], Wanted("t", log_end=True))
    assert (one.log_start, one.readable_to) == (6, 2**63 - 1)
    assert [(part.is_last, part.is_whole) for part in one.parts] == [(False, False), (True, False)]


def test_without_a_high_watermark_nothing_is_known_to_be_replicated(log_dir: Path) -> None:
    three_segments(log_dir, high_watermark=None)
    (one,) = plan([str(log_dir)], Wanted("t"))
    assert (one.readable_to, one.parts, one.has_checkpoint) == (0, [], False)


def test_topics_to_their_logs_ends_beside_one_that_is_not(log_dir: Path) -> None:
    three_segments(log_dir, high_watermark=3)
    beside = Wanted("t", log_end=True)
    assert [len(one.parts) for one in plan([str(log_dir)], Wanted("t"), beside)] == [1, 3]


# ---- indexes


def index(folder: Path, base: int, *entries: tuple[int, int], rest: bytes = b"") -> None:
    data = b"".join(struct.pack(">ii", *entry) for entry in entries)
    (folder / f"{base:020d}.index").write_bytes(data + rest)


def time_index(folder: Path, base: int, *entries: tuple[int, int]) -> None:
    data = b"".join(struct.pack(">qi", *entry) for entry in entries)
    (folder / f"{base:020d}.timeindex").write_bytes(data + bytes(24))


@pytest.mark.parametrize("rest", [b"", bytes(16), bytes(3), b"\x01\x02\x03"])
def test_the_first_batch_is_found_by_the_offset_index(log_dir: Path, rest: bytes) -> None:
    """An entry has a batch's last offset; what a file was preallocated with is none, nor a half."""
    folder = three_segments(log_dir)
    size = len(simple(12))
    index(folder, 6, (5, size), rest=rest)
    assert parts_of(log_dir, from_offsets={0: 11})[0] == (11, 12, 0)
    index(folder, 6, (2, 0), (5, size), rest=rest)
    assert parts_of(log_dir, from_offsets={0: 11})[0] == (11, 12, 0)
    index(folder, 12, (2, size), rest=rest)
    assert parts_of(log_dir, from_offsets={0: 15}) == [(15, 18, size)]
    assert parts_of(log_dir, from_offsets={0: 14}) == [(14, 18, 0)]
    assert plan([str(log_dir)], Wanted("t", from_offsets={0: 15}))[0].parts[0].size == size
    index(folder, 12, (0, size), rest=rest)
    assert parts_of(log_dir, from_offsets={0: 13}) == [(13, 18, size)], "of offset 12"
    index(folder, 12, (2, 0), rest=rest)
    assert parts_of(log_dir, from_offsets={0: 15}) == [(15, 18, 0)]


def test_a_closed_segment_whose_last_time_is_too_old_is_not_read(log_dir: Path) -> None:
    folder = three_segments(log_dir)
    for base in (0, 6, 12):  # of simple(): 1000 ms and the offset
        time_index(folder, base, (1000 + base + 5, 5))
    assert [part[0] for part in parts_of(log_dir, since_ms=1006)] == [6, 12]
    assert [part[0] for part in parts_of(log_dir, since_ms=1005)] == [0, 6, 12]
    assert offsets(read(log_dir, since_ms=1005)) == list(range(5, 18))
    assert parts_of(log_dir, since_ms=1011)[0] == (6, 12, 0)
    assert parts_of(log_dir, since_ms=1018) == [], "of the active one all to its last entry is old"
    write_segment(log_dir, [simple(12), simple(15), simple(18)], base=12, high_watermark=21)
    assert parts_of(log_dir, since_ms=1018) == [(18, 21, 0)]
    assert offsets(read(log_dir, since_ms=1019, until_ms=1020)) == [19]


def test_reading_begins_behind_the_last_entry_that_is_too_old(log_dir: Path) -> None:
    folder = three_segments(log_dir)
    size = len(simple(0))
    time_index(folder, 0, (1002, 2), (1005, 5))
    index(folder, 0, (2, size))
    assert parts_of(log_dir, since_ms=1002, to_offsets={0: 6}) == [(0, 6, 0)]
    assert parts_of(log_dir, since_ms=1003, to_offsets={0: 6}) == [(3, 6, size)]
    assert parts_of(log_dir, since_ms=1003, to_offsets={0: 3}) == []
    assert parts_of(log_dir, since_ms=1003, to_offsets={0: 4}) == [(3, 4, size)]
    assert parts_of(log_dir, since_ms=1003, from_offsets={0: 4}, to_offsets={0: 6})[0][0] == 4


def test_without_a_time_index_all_is_looked_at(log_dir: Path) -> None:
    three_segments(log_dir)
    assert [part[0] for part in parts_of(log_dir, since_ms=5000)] == [0, 6, 12]
    assert read(log_dir, since_ms=5000) == []


# ---- transactions


def snapshot(folder: Path, offset: int, /, *opened: tuple[int, int], **wrong: int) -> None:
    """Of producers, and where their open transaction begins (-1: none)."""
    entries = [
        struct.pack(SNAPSHOT_ENTRY, producer, 0, 0, 0, 0, 0, 0, first) for producer, first in opened
    ]
    head = struct.pack(SNAPSHOT_HEAD, wrong.get("version", 1), 0, wrong.get("count", len(entries)))
    (folder / f"{offset:020d}.snapshot").write_bytes(head + b"".join(entries))


def test_what_is_open_is_known_by_the_newest_snapshot_and_what_follows_it(log_dir: Path) -> None:
    folder = write_segment(log_dir, [txn(0, 1), simple(3)], base=0).parent
    write_segment(log_dir, [simple(6), marker(9, 1, ABORT), txn(10, 2)], base=6, high_watermark=13)
    snapshot(folder, 6, (1, 0), (3, -1))
    (one,) = plan([str(log_dir)], Wanted("t"))
    assert one.readable_to == 10
    assert [part.aborted for part in one.parts] == [((1, 0, 9),), ((1, 0, 9),)]
    assert offsets(read(log_dir)) == [3, 4, 5, 6, 7, 8]
    snapshot(folder, 6, (3, -1))  # as if the first one were of another time
    (one,) = plan([str(log_dir)], Wanted("t"))
    assert [part.aborted for part in one.parts] == [(), ()]


@pytest.mark.parametrize(
    "wrong", [{"version": 2}, {"count": 3}, {"count": 1}, {"offset": 14}, {"cut": 1}]
)
def test_a_snapshot_that_is_not_right_is_none(log_dir: Path, wrong: dict[str, int]) -> None:
    """One of before the power failed, say, or behind what may be read."""
    folder = write_segment(log_dir, [txn(0, 1), simple(3)], base=0).parent
    write_segment(log_dir, [simple(6), marker(9, 1, ABORT), txn(10, 2)], base=6, high_watermark=13)
    snapshot(folder, 3, (1, 0))
    offset = wrong.get("offset", 9)
    snapshot(folder, offset, (8, 4), (9, 5), **wrong)
    path = folder / f"{offset:020d}.snapshot"
    if wrong.get("cut"):
        path.write_bytes(path.read_bytes()[:10])
    (one,) = plan([str(log_dir)], Wanted("t"))
    assert one.readable_to == 10


def test_a_part_knows_the_aborted_transactions_that_reach_into_it(log_dir: Path) -> None:
    folder = three_segments(log_dir)
    rows = [(1, 0, 5, 0), (2, 0, 6, 0), (3, 4, 11, 0), (4, 11, 12, 0), (5, 12, 13, 0)]
    (folder / f"{6:020d}.txnindex").write_bytes(
        b"".join(struct.pack(">hqqqq", 0, *row) for row in rows) + bytes(20)
    )
    (one,) = plan([str(log_dir)], Wanted("t"))
    assert [[txn[0] for txn in part.aborted] for part in one.parts] == [
        [1, 2, 3], [2, 3, 4], [4, 5],
    ]  # fmt: skip
    assert one.parts[0].aborted[0] == (1, 0, 5)
    (one,) = plan([str(log_dir)], Wanted("t", committed_only=False))
    assert [part.aborted for part in one.parts] == [(), (), ()]
    assert not any(part.committed_only for part in one.parts)


def test_a_marker_says_whether_its_transaction_counts(log_dir: Path) -> None:
    for kind, expected in ((ABORT, []), (COMMIT, [0, 1, 2])):
        write_segment(log_dir, [txn(0, 1), marker(3, 1, kind)], high_watermark=4)
        assert offsets(read(log_dir)) == expected


def test_a_marker_at_the_end_of_what_may_be_read_does_not_count_yet(log_dir: Path) -> None:
    write_segment(log_dir, [txn(0, 1), marker(3, 1, COMMIT)], high_watermark=3)
    assert read(log_dir) == []
    write_segment(log_dir, [txn(0, 1), marker(3, 1, COMMIT)], high_watermark=4)
    assert offsets(read(log_dir)) == [0, 1, 2]


# ---- a broker that goes on


@pytest.mark.parametrize(("moments", "looks"), [(0, 1), (1, 2), (19, 20), (99, 20)])
def test_a_swap_of_a_broker_that_runs_is_gone_in_a_moment(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, moments: int, looks: int
) -> None:
    path = write_segment(log_dir, [simple(0)])
    swap = path.with_suffix(".log.swap")
    swap.write_bytes(simple(0, 1))
    seen: list[int] = []
    plain = os.listdir

    def listdir(folder: str) -> list[str]:
        if len(seen) == moments:
            swap.replace(path)
        seen.append(len(seen))
        return plain(folder)

    monkeypatch.setattr(segment_plan.os, "listdir", listdir)
    (found,) = segments_in(str(path.parent))
    assert len(seen) == looks
    assert (found.base, found.suffix) == (0, "" if moments < 20 else ".swap")


def test_what_is_to_be_left_out_is_told_to_the_segment_that_has_it(log_dir: Path) -> None:
    folder = three_segments(log_dir)
    out = {f"t-0/{6:020d}.log": [[len(simple(6)), len(simple(6)) + len(simple(9))]]}
    assert file_key(f"{folder}/{6:020d}.log") == f"t-0/{6:020d}.log"
    (one,) = plan([str(log_dir)], Wanted("t", left_out=out))
    assert [part.left_out for part in one.parts] == [(), *out.values(), ()]
    assert offsets(read(log_dir, left_out=out)) == [
        *range(9), *range(12, 18),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("batches", "left"),
    [([simple(3), simple(6)], [9, 12]), ([simple(3)], [6, 8, 9, 12]), ([], [6, 8, 9, 12])],
)
def test_a_swap_stands_for_the_segments_that_begin_before_its_end(
    log_dir: Path, batches: list[bytes], left: list[int]
) -> None:
    for base in (0, 6, 8, 9, 12):
        path = write_segment(log_dir, [simple(base)], base=base)
    (path.parent / f"{0:020d}.log.swap").write_bytes(b"".join(batches))
    found = [(one.base, one.suffix) for one in segments_in(str(path.parent))]
    assert found == [(0, ".swap"), *((base, "") for base in left)]
