"""The parts that travel to executors, against the broker's own codec; no Spark, no broker."""

from __future__ import annotations

import datetime
import json
import os
import struct
import subprocess
import sys
import zipimport
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.archive.listing import plain_path
from pipeline.errors import PipelineError, explain
from pipeline.progress import table
from pipeline.replay.replay import target_names
from pipeline.replay.task import COLUMNS, chunks_of
from pipeline.segments.crc import NumpyCrc32c
from pipeline.segments.decode import SegmentError, read_part
from pipeline.segments.plan import PlanError, Wanted, plan
from pipeline.segments.segments import parse_offsets
from pipeline.segments.source import narrow, parse_options
from pipeline.sink.pieces import Place
from pipeline.spark import session
from pipeline.spark.hadoop_files import local_path
from wire.records import (
    EndTxnMarker,
    Record,
    build_batch,
    end_txn_marker_batch,
    read_records,
)

ABORT, COMMIT = 0, 1

byte_strings = st.none() | st.binary(max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=8), byte_strings), max_size=4)
rows = st.lists(
    st.tuples(st.integers(0, 2**45), byte_strings, byte_strings, header_lists),
    min_size=1,
    max_size=40,
)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    (tmp_path / "meta.properties").write_text("version=1\n")
    return tmp_path


def write_segment(
    log_dir: Path, batches: list[bytes], *, base: int = 0, high_watermark: int | None = None
) -> Path:
    folder = log_dir / "t-0"
    folder.mkdir(exist_ok=True)
    path = folder / f"{base:020d}.log"
    path.write_bytes(b"".join(batches))
    if high_watermark is not None:
        checkpoint = log_dir / "replication-offset-checkpoint"
        checkpoint.write_text(f"0\n1\nt 0 {high_watermark}\n")
    return path


def read(log_dir: Path, **wanted: Any) -> list[tuple[Any, ...]]:
    """(offset, ms, key, value, headers) of all that the plan reads."""
    found = []
    for one in plan([str(log_dir)], Wanted("t", **wanted)):
        for part in one.parts:
            for batch in read_part(part, True):
                found += [
                    (
                        row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"],
                        row["value"], row["headers"],
                    )
                    for row in batch.to_pylist()
                ]  # fmt: skip
    return found


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(rows, min_size=1, max_size=4), codec=st.integers(0, 4))
def test_decoding_in_columns_gives_what_the_brokers_codec_reads(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], codec: int
) -> None:
    log_dir = tmp_path_factory.mktemp("log")
    (log_dir / "meta.properties").touch()
    built: list[bytes] = []
    expected: list[tuple[Any, ...]] = []
    offset = 0
    for batch in batches:
        records = [Record(-1, ms, key, value, headers) for ms, key, value, headers in batch]
        built.append(build_batch(records, base_offset=offset, codec=codec))
        expected += [
            (one.offset, one.timestamp, one.key, one.value, one.headers)
            for one in read_records(built[-1])
        ]
        offset += len(batch)
    write_segment(log_dir, built, high_watermark=offset)
    found = [
        (number, ms, key, value, [(h["key"], h["value"]) for h in headers or []])
        for number, ms, key, value, headers in read(log_dir)
    ]
    assert found == expected


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 130, 4097, 70_001])
def test_the_checksum_without_a_c_library_is_the_same(size: int) -> None:
    data = os.urandom(size)
    assert NumpyCrc32c()(data) == crc32c(data)


def test_batches_are_cut_where_a_slot_ends_and_rows_know_their_places() -> None:
    big = 2**63 - 1

    def rows(*these: tuple[Any, ...]) -> Any:
        kinds = (pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int32(),
                 pa.binary(), pa.binary(),
                 pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                 pa.timestamp("us", tz="UTC"))  # fmt: skip
        arrays = [pa.array(column, kind) for column, kind in zip(zip(*these), kinds)]  # noqa: B905
        return pa.RecordBatch.from_arrays(arrays, list(COLUMNS))

    def row(topic: str, source: int, generation: int, offset: int, total: int) -> tuple[Any, ...]:
        key = None if offset % 2 else b"k"
        return (topic, source, generation, offset, total, None, key, b"v%d" % offset,
                [{"key": "h", "value": None}] if offset == 9 else None, offset * 1000)  # fmt: skip

    batches = [
        rows(row("a", 0, 0, 5, big), row("a", 0, 0, 9, big), row("a", 0, 1, 2, -1),
             row("a", 1, 0, 0, 7)),
        rows(row("a", 1, 0, 1, 7), row("b", 1, 0, 1, 7)),
        rows(row("b", 1, 0, 3, 7)),
    ]  # fmt: skip
    chunks = list(chunks_of(iter(batches)))
    assert [(chunk.slot, len(chunk)) for chunk in chunks] == [
        (("a", 0), 3), (("a", 1), 1), (("a", 1), 1), (("b", 1), 1), (("b", 1), 1),
    ]  # fmt: skip
    first = chunks[0]
    assert [first.up_to(Place(*to)) for to in ((0, 5), (0, 6), (0, 10), (1, 2), (1, 3))] == [
        0, 1, 2, 2, 3,
    ]  # fmt: skip
    before = Place(0, 4, 10, 2**64 - 1)
    assert first.place(before, 0, 2) == Place(0, 10, 12, (2**64 - 1 + 2 * big) % 2**64)
    assert first.place(before, 0, 3) == Place(1, 3, 13, (2**64 - 2 + 2 * big) % 2**64)
    assert list(first.rows(1, 3)) == [
        ("a", None, None, b"v9", [("h", None)], 9),
        ("a", None, b"k", b"v2", None, 2),
    ]
    assert first.size(1, 3) == 2 + 3


def simple(offset: int, count: int = 3, **options: Any) -> bytes:
    records = [Record(-1, 1000 + offset + n, b"k", b"v%d" % (offset + n)) for n in range(count)]
    return build_batch(records, base_offset=offset, **options)


def offsets(found: list[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in found]


def test_only_what_lies_below_the_high_watermark_is_read_unless_the_log_end_is_asked_for(
    log_dir: Path,
) -> None:
    write_segment(log_dir, [simple(0), simple(3), simple(6)], high_watermark=5)
    assert offsets(read(log_dir)) == [0, 1, 2, 3, 4]
    assert offsets(read(log_dir, log_end=True)) == list(range(9))


def test_a_torn_end_of_the_active_segment_is_no_error_but_of_a_closed_one_it_is(
    log_dir: Path,
) -> None:
    write_segment(log_dir, [simple(0), simple(3)[:-1]])
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2]
    write_segment(log_dir, [simple(6)], base=6)
    with pytest.raises(SegmentError, match="ends within the batch at offset 3"):
        read(log_dir, log_end=True)


def test_a_closed_segment_may_not_end_within_a_batchs_header_either(log_dir: Path) -> None:
    write_segment(log_dir, [simple(0), simple(3)[:40]])
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2]
    write_segment(log_dir, [simple(6)], base=6)
    with pytest.raises(SegmentError, match="ends within the batch at offset 3"):
        read(log_dir, log_end=True)
    write_segment(log_dir, [simple(0), simple(3), bytes(40)])  # of a file that was preallocated
    assert offsets(read(log_dir, log_end=True)) == list(range(9))


@pytest.mark.parametrize("end", [simple(3)[:-1], simple(3)[:40], b"", bytes(200)])
def test_a_log_that_ends_below_its_high_watermark_has_lost_records(
    log_dir: Path, end: bytes
) -> None:
    """The file that says so was on disk when the power failed, and they were not."""
    write_segment(log_dir, [simple(0), end], high_watermark=6)
    with pytest.raises(
        SegmentError, match=r"ends before offset 6.* --log-end .* reads what is left"
    ):
        read(log_dir)
    assert offsets(read(log_dir, log_end=True)) == [0, 1, 2]
    assert offsets(read(log_dir, to_offsets={0: 3})) == [0, 1, 2]
    write_segment(log_dir, [simple(0), simple(3), end], high_watermark=6)
    assert offsets(read(log_dir)) == list(range(6))


def txn(offset: int, producer: int) -> bytes:
    return simple(offset, producer_id=producer, producer_epoch=0, base_sequence=0,
                  is_transactional=True)  # fmt: skip


def marker(offset: int, producer: int, kind: int) -> bytes:
    return end_txn_marker_batch(
        EndTxnMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp=1,
        base_offset=offset,
    )  # fmt: skip


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


class Counted(int):
    """An offset that counts how often it is compared."""

    times = 0

    def __le__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) > other


def test_a_batch_is_not_compared_with_every_aborted_transaction(log_dir: Path) -> None:
    """A producer that aborts often has thousands of them in a segment."""
    write_segment(log_dir, [txn(3 * n, 1) for n in range(400)], high_watermark=1200)
    (part,) = plan([str(log_dir)], Wanted("t", committed_only=False))[0].parts
    aborted = tuple((1, Counted(3 * n), 3 * n + 2) for n in range(0, 400, 2))
    read_back = list(read_part(part._replace(aborted=aborted), False))
    assert sum(batch.num_rows for batch in read_back) == 600
    assert Counted.times < 400 * 20


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
    told = {"path": "/logs", "topic": "t,u", "preparedcommits": json.dumps({"t": prepared})}
    assert [one.prepared for one in parse_options(told)[1]] == [prepared, {}]


def test_an_aborted_transaction_is_left_out_where_its_index_was_lost(log_dir: Path) -> None:
    write_segment(log_dir, [txn(0, 1), txn(3, 2), marker(6, 1, ABORT), marker(7, 2, COMMIT)])
    assert offsets(read(log_dir, log_end=True)) == [3, 4, 5]


def test_deleted_records_below_the_log_start_are_not_read(log_dir: Path) -> None:
    write_segment(log_dir, [simple(0), simple(3)], high_watermark=6)
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    assert offsets(read(log_dir)) == [4, 5]


def test_a_time_that_no_timestamp_of_spark_holds_is_its_latest_or_earliest(log_dir: Path) -> None:
    nanoseconds = 1_764_000_000_000_000_000
    latest = 9_223_372_036_854_775
    records = [Record(-1, ms, b"k", b"v") for ms in (5, latest, nanoseconds, -nanoseconds)]
    write_segment(log_dir, [build_batch(records, base_offset=0)], high_watermark=4)
    (part,) = plan([str(log_dir)], Wanted("t"))[0].parts
    (batch,) = read_part(part, False)
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert micros == [5000, latest * 1000, latest * 1000, -latest * 1000]


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


def test_a_segment_deleted_after_planning_is_still_read_under_its_other_name(
    log_dir: Path,
) -> None:
    path = write_segment(log_dir, [simple(0)], high_watermark=3)
    (part,) = plan([str(log_dir)], Wanted("t"))[0].parts
    path.rename(path.with_name(path.name + ".deleted"))
    assert sum(batch.num_rows for batch in read_part(part, False)) == 3
    path.with_name(path.name + ".deleted").unlink()
    with pytest.raises(SegmentError, match="is gone"):
        list(read_part(part, False))


def test_filters_of_pyspark_narrow_the_plan() -> None:
    def of(kind: str, column: str, value: Any) -> Any:
        return type(kind, (), {"attribute": (column,), "value": value})()

    wanted = Wanted("t", from_offsets={0: 50})
    wanted = narrow(wanted, of("In", "partition", (0, 2)))
    wanted = narrow(wanted, of("EqualTo", "partition", 2))
    wanted = narrow(wanted, of("GreaterThan", "offset", 9))
    wanted = narrow(wanted, of("LessThanOrEqual", "offset", 99))
    assert [wanted.has(partition) for partition in range(3)] == [False, False, True]
    assert wanted.from_offsets == {-1: 10, 0: 50}
    assert wanted.to_offsets == {-1: 100}
    moment = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
    ms = int(moment.timestamp() * 1000)
    wanted = narrow(wanted, of("GreaterThanOrEqual", "timestamp", moment))
    wanted = narrow(wanted, of("LessThan", "timestamp", moment))
    assert (wanted.since_ms, wanted.until_ms) == (ms, ms + 1)
    assert narrow(wanted, of("StringContains", "value", "x")) == wanted


def test_a_filter_may_name_partitions_that_are_not_there(log_dir: Path) -> None:
    """Of several topics some have fewer; an option that names one is a mistake."""
    write_segment(log_dir, [simple(0)], high_watermark=3)
    nine = type("EqualTo", (), {"attribute": ("partition",), "value": 9})()
    assert plan([str(log_dir)], narrow(Wanted("t"), nine)) == []
    with pytest.raises(PlanError, match="has no partition 9"):
        plan([str(log_dir)], Wanted("t", frozenset([9])))


ZIPS = """\
import importlib, os, sys, zipfile, zipimport
sys.path.insert(0, sys.argv[1])
from pipeline.segments import source

def write(*names):
    with zipfile.ZipFile("modules.zip", "w") as made:
        for name in names:
            made.writestr(name + ".py", "")

write("one")
sys.path.insert(0, os.path.abspath("modules.zip"))
import one
source.spare_worker()
spared = zipimport.zipimporter.invalidate_caches
importlib.reload(source).spare_worker()
assert zipimport.zipimporter.invalidate_caches is spared, "the next task's copy does it again"
importlib.invalidate_caches()
before = zipimport._zip_directory_cache[sys.path[0]]
importlib.invalidate_caches()
assert zipimport._zip_directory_cache[sys.path[0]] is before, "read again though it is as it was"
write("one", "two")
importlib.invalidate_caches()
import two
os.unlink("modules.zip")
importlib.invalidate_caches()
"""


@pytest.mark.skipif(
    hasattr(zipimport.zipimporter, "_get_files"), reason="this Python reads lazily itself"
)
def test_a_spared_worker_reads_a_zip_again_when_it_changed_and_only_then(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ZIPS, str(root)], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(PlanError, match="unknown option 'subscribe'"):
        parse_options({"path": "/x", "topic": "t", "subscribe": "t"})
    with pytest.raises(PlanError, match="needs the option 'topic'"):
        parse_options({"path": "/x"})


@pytest.mark.parametrize("option", ["since", "until", "partitions"])
def test_an_option_that_is_no_number_is_named(option: str) -> None:
    with pytest.raises(PlanError, match=f"option {option} has 'x'; expected a whole number"):
        parse_options({"path": "/x", "topic": "t", option: "x"})


def test_a_topic_that_is_named_twice_is_read_once() -> None:
    _, wanted = parse_options({"path": "/x", "topic": "b, a,b"})
    assert [one.topic for one in wanted] == ["b", "a"]


def test_offsets_as_people_write_them() -> None:
    assert parse_offsets("100-200") == ({-1: 100}, {-1: 200})
    assert parse_offsets("0:5-,3:-9") == ({0: 5}, {3: 9})
    with pytest.raises(PipelineError, match="expected FROM-TO"):
        parse_offsets("5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5-3", "'5-3' has no offsets"),
        ("0:5-5", "'0:5-5' has no offsets"),
        ("0:0-5,0:7-9", "partition 0 is named twice"),
        ("0-5,7-9", "all partitions are named twice"),
    ],
)
def test_offsets_that_would_read_nothing_or_not_all_that_is_named(text: str, words: str) -> None:
    with pytest.raises(PipelineError, match=words) as told:
        parse_offsets(text)
    assert told.value.exit_code == 2


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


def test_what_a_person_configured_for_spark_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a cluster\nspark.master   spark://head:7077\nspark.ui.enabled=true\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", "--conf spark.a='b c' --packages org:avro:1 pyspark-shell"
    )
    configured = session._configured()
    made = session._settings(configured, {"spark.sql.x": "1"}, None, session._packages(True, ()))
    assert made["spark.master"] == "spark://head:7077"
    assert "spark.ui.enabled" not in made
    assert made["spark.jars.packages"] == f"org:avro:1,{session.connector()}"
    assert configured["spark.a"] == "b c"
    assert made["spark.sql.session.timeZone"] == "UTC"
    assert session._settings(configured, {}, "local[2]", [])["spark.master"] == "local[2]"


def test_spark_is_given_what_a_table_format_needs_beside_what_a_person_configured() -> None:
    configured = {
        "spark.sql.extensions": "org.Mine",
        "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.1",
    }
    made = session._settings(configured, {}, None, session._packages(True, ["delta"]))
    assert made["spark.sql.extensions"] == "org.Mine,io.delta.sql.DeltaSparkSessionExtension"
    assert made["spark.jars.packages"] == (f"io.delta:delta-spark_2.13:4.0.1,{session.connector()}")
    plain = session._settings({}, {}, None, session._packages(True, ["iceberg"]))
    assert "spark.sql.extensions" not in plain
    assert plain["spark.jars.packages"].endswith(
        ",org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"
    )


def test_a_topic_flag_picks_one_or_renames_the_only_one() -> None:
    assert target_names(["a", "b"], None, "x-") == {"a": "x-a", "b": "x-b"}
    assert target_names(["a", "b"], "b", "") == {"b": "b"}
    assert target_names(["a"], "other", "") == {"a": "other"}
    with pytest.raises(PipelineError, match="but no c"):
        target_names(["a", "b"], "c", "")


def test_known_causes_are_found_in_what_spark_says() -> None:
    error = RuntimeError("Job aborted: java.io.IOException: No space left on device")
    assert "the disk is full" in (explain(error) or "")
    error = RuntimeError("Job aborted: java.lang.ArithmeticException: long overflow")
    assert "a timestamp that Spark cannot hold" in (explain(error) or "")
    error = RuntimeError("x\npipeline.segments.decode.SegmentError: /d/0.log: damaged\n at y")
    assert explain(error) == "/d/0.log: damaged"
    assert explain(ValueError("nothing we know")) is None


def test_paths_of_sparks_log_are_urls() -> None:
    assert plain_path("file:///lake/topic=a%20b/x.parquet") == "file:/lake/topic=a b/x.parquet"
    assert plain_path("hdfs://host:8020/lake/x") == "hdfs://host:8020/lake/x"
    assert local_path("file:/a/b") == local_path("file:///a/b") == "/a/b"


def test_a_table_lines_up() -> None:
    text = table(["name", "count"], [["a", 1234], ["bcd", None]])
    assert text.splitlines() == ["name  count", "----  -----", "a     1,234", "bcd       -"]
