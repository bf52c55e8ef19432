"""What a dead broker had: topics, configs, ends of logs and committed offsets, from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.rescue.dead_broker import DeadBroker, held, look
from pipeline.segments.decode import SegmentError, read_part
from pipeline.segments.plan import Wanted, plan
from storage.checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    DirectoryLock,
    MetaProperties,
    OffsetCheckpoint,
    write_meta_properties,
    write_partition_metadata,
)
from wire.messages import groups_records as g
from wire.messages import metadata_records as m
from wire.messages.transactions_records import TransactionLogKey, TransactionLogValue
from wire.primitives import TopicPartition, uuid_to_text, uvarint
from wire.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    build_control_batch,
    end_txn_marker_batch,
)

ORDERS, AGAIN, OTHER = (bytes([number]) * 16 for number in (1, 2, 3))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    write_meta_properties(tmp_path / "meta.properties", MetaProperties("the-cluster", 4, None))
    return tmp_path


def write(node: Path, name: str, *batches: bytes, file: str = f"{0:020d}.log") -> Path:
    (node / name).mkdir(exist_ok=True)
    (node / name / file).write_bytes(b"".join(batches))
    return node / name / file


def metadata(*records: Any, base: int = 0) -> bytes:
    values = [
        uvarint(1) + uvarint(one.type_id) + uvarint(0) + one.encode_bytes(0) for one in records
    ]
    return build_batch([Record(-1, 5, None, value) for value in values], base_offset=base)


def topic(name: str, topic_id: bytes, partitions: int) -> list[Any]:
    parts = [
        m.PartitionRecord(
            partition_id=index, topic_id=topic_id, replicas=[4], isr=[4], removing_replicas=[],
            adding_replicas=[], leader=4, leader_epoch=0, partition_epoch=0,
        )
        for index in range(partitions)
    ]  # fmt: skip
    return [m.TopicRecord(name=name, topic_id=topic_id), *parts]


def config(name: str, key: str, value: str | None, kind: int = 2) -> Any:
    return m.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


def rows(*values: bytes, base: int = 0) -> bytes:
    return build_batch([Record(-1, 7, None, value) for value in values], base_offset=base)


def seen(node: Path) -> DeadBroker:
    with held([str(node)]):
        return look([str(node)])


def test_topics_are_what_the_snapshot_says_and_the_log_behind_it(node: Path) -> None:
    snapshot = [
        build_control_batch([(ControlRecordType.SNAPSHOT_HEADER, b"")], timestamp=1),
        metadata(*topic("orders", ORDERS, 2), config("orders", "retention.ms", "1"), base=1),
        metadata(config("orders", "max.message.bytes", "9"), config("4", "x", "y", 4), base=5),
    ]
    write(node, "__cluster_metadata-0", *snapshot, file=f"{20:020d}-{3:010d}.checkpoint")
    log = [
        metadata(*topic("old", OTHER, 1), base=10),  # the snapshot has it, or not
        metadata(config("orders", "retention.ms", None), *topic("empty", OTHER, 3), base=20),
        metadata(*topic("gone", AGAIN, 1), m.RemoveTopicRecord(topic_id=AGAIN), base=26),
    ]
    write(node, "__cluster_metadata-0", *log)
    write(node, "orders-1", rows(b"a", b"b"))
    found = seen(node)
    assert found.owner == "node 4 of cluster the-cluster"
    assert list(found.topics) == ["empty", "orders"]
    orders = found.topics["orders"]
    assert (orders.id, orders.partitions) == (uuid_to_text(ORDERS), 2)
    assert orders.configs == {"max.message.bytes": "9"}
    assert orders.ends == {1: 2}
    assert found.topics["empty"].partitions == 3
    assert found.notes == [
        "3 of the 3 partitions of empty are not here",
        "1 of the 2 partitions of orders are not here",
    ]


def test_metadata_transactions_count_when_they_have_ended(node: Path) -> None:
    begin, end = m.BeginTransactionRecord(), m.EndTransactionRecord()
    records = [
        begin, *topic("whole", ORDERS, 1), end,
        begin, *topic("void", AGAIN, 1), m.AbortTransactionRecord(),
        begin, *topic("half", OTHER, 1),
    ]  # fmt: skip
    write(node, "__cluster_metadata-0", metadata(*records))
    assert list(seen(node).topics) == ["whole"]


def test_directories_of_deleted_topics_are_left_out(node: Path) -> None:
    gone = [*topic("gone", OTHER, 1), m.RemoveTopicRecord(topic_id=OTHER)]
    write(node, "__cluster_metadata-0", metadata(*topic("orders", AGAIN, 1), *gone))
    ids = {"orders-0": ORDERS, "gone-0": OTHER, "never-told-0": bytes([4]) * 16}
    for name, topic_id in ids.items():
        write(node, name, rows(b"old"))
        write_partition_metadata(node / name / "partition.metadata", topic_id)
    found = seen(node)
    assert found.topics["orders"].ends == {0: 0}
    assert list(found.topics) == ["orders", "never-told"]
    assert sum("was left out: its topic was deleted" in note for note in found.notes) == 2
    assert "the cluster's metadata does not know never-told: no configs" in found.notes


@pytest.mark.parametrize("rest", [b"", bytes(200), b"\x07" * 70, rows(b"c", b"d", base=2)[:-1]])
def test_a_log_ends_where_a_batch_is_not_whole(node: Path, rest: bytes) -> None:
    write(node, "orders-0", rows(b"a", b"b"), rest)
    assert seen(node).topics["orders"].ends == {0: 2}


def test_a_log_ends_where_a_checksum_is_wrong(node: Path) -> None:
    bad = bytearray(rows(b"c", base=2))
    bad[-3] ^= 1
    write(node, "orders-0", rows(b"a", b"b"), bytes(bad), rows(b"d", base=3))
    assert seen(node).topics["orders"].ends == {0: 2}


def broken(batch: bytes, at: int = -3) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 0x40]) + batch[at:][1:]


def read(node: Path, found: DeadBroker) -> list[bytes]:
    """The values of orders, as Spark's executors read them."""
    orders = found.topics["orders"]
    (planned,) = plan(
        [str(node)],
        Wanted("orders", to_offsets=orders.ends, log_end=True, left_out=orders.left_out),
    )
    return [
        bytes(value)
        for part in planned.parts
        for batch in read_part(part, False)
        for value in batch.column("value").to_pylist()
    ]


A, B, C, D = (rows(value, base=base) for base, value in enumerate((b"a", b"b", b"c", b"d")))


@pytest.mark.parametrize(
    ("batches", "kept", "offsets"),
    [
        ([A, broken(B), C], [b"a", b"c"], "1 to 1"),
        ([broken(A), B, broken(C)], [b"b"], "0 to 0, 2 to 2"),
        ([A, broken(B), broken(C)], [b"a"], "1 to 2"),
        ([A, broken(B, 16), C], [b"a"], "1 to 2"),  # not a batch: nobody knows where the next is
        ([A, broken(B, 10), C], [b"a"], "1 to 2"),
        ([A, bytes(len(B)), C], [b"a"], "1 to 2"),
        ([A, B[:-1]], [b"a"], "1 to 2"),
        ([A, A, C], [b"a", b"c"], "1 to 1"),  # an offset is in no checksum
        ([A, D, C], [b"a", b"c"], "1 to 1"),
    ],
)
def test_what_is_damaged_is_left_out_and_told_if_that_is_asked_for(
    node: Path, batches: list[bytes], kept: list[bytes], offsets: str
) -> None:
    path = write(node, "orders-0", *batches)
    write(node, "orders-0", D, file=f"{3:020d}.log")
    with held([str(node)]):
        found = look([str(node)], skips_damaged=True)
    assert read(node, found) == [*kept, b"d"]
    assert found.notes[-1].startswith(f"{path} is damaged; left out, ")
    assert found.notes[-1].endswith(f" offsets {offsets}")


@pytest.mark.parametrize("second", [broken(B), bytes(len(B)), broken(B, 16)])
def test_damage_ends_a_rescue_that_was_not_told_to_leave_it_out(node: Path, second: bytes) -> None:
    write(node, "orders-0", A, second, C)
    write(node, "orders-0", D, file=f"{3:020d}.log")
    with pytest.raises(SegmentError, match="rescue --skip-damaged"):
        read(node, seen(node))


@pytest.mark.parametrize("entries", [[], [(2, len(A) + len(B))]])
def test_in_the_active_segment_damage_is_below_the_high_watermark_and_an_end_behind_it(
    node: Path, entries: list[tuple[int, int]]
) -> None:
    write(node, "orders-0", A, broken(B), C, broken(D), rows(b"e", base=4))
    index = [offset.to_bytes(4) + position.to_bytes(4) for offset, position in entries]
    write(node, "orders-0", *index, file=f"{0:020d}.index")
    OffsetCheckpoint(node / HIGH_WATERMARK_CHECKPOINT).write({TopicPartition("orders", 0): 3})
    with pytest.raises(SegmentError, match="at offset 1 has a wrong checksum"):
        read(node, seen(node))
    with held([str(node)]):
        found = look([str(node)], skips_damaged=True)
    assert found.topics["orders"].ends == {0: 3}
    assert read(node, found) == [b"a", b"c"]
    assert found.notes[-1].endswith(" offsets 1 to 1")


@pytest.mark.parametrize("rest", [b"", bytes(90), b"\x07" * 70])
def test_a_log_that_ends_below_the_high_watermark_is_told(node: Path, rest: bytes) -> None:
    path = write(node, "orders-0", A, B, rest)
    OffsetCheckpoint(node / HIGH_WATERMARK_CHECKPOINT).write({TopicPartition("orders", 0): 4})
    for skips_damaged in (False, True):
        with held([str(node)]):
            found = look([str(node)], skips_damaged=skips_damaged)
        assert read(node, found) == [b"a", b"b"]
        assert f"{path} ends before offset 4, up to which" in found.notes[-1]
        assert "from offset 2 on is lost" in found.notes[-1]


def test_of_a_log_that_is_whole_nothing_is_left_out(node: Path) -> None:
    write(node, "orders-0", A, C)  # compacted
    write(node, "orders-0", D, b"\x07" * 70, file=f"{3:020d}.log")
    before = seen(node)
    with held([str(node)]):
        assert look([str(node)], skips_damaged=True) == before
    assert read(node, before) == [b"a", b"c", b"d"]


def test_an_index_that_leads_nowhere_is_not_believed(node: Path) -> None:
    write(node, "orders-0", rows(b"a"), rows(b"b", base=1), rows(b"c", base=2))
    write(node, "orders-0", b"\0\0\0\0\0\0\0\x05", b"\0\0\0\1\0\0\0\x09", file=f"{0:020d}.index")
    (node / "replication-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    assert seen(node).topics["orders"].ends == {0: 3}


def test_without_metadata_the_directories_tell(node: Path) -> None:
    write(node, "orders-3", rows(b"a"))
    found = seen(node)
    assert found.topics["orders"].partitions == 4
    assert "no metadata of the cluster" in found.notes[0]


def commit(
    group: str, partition: int, offset: int | None, *, kind: int = 1, **value: Any
) -> Record:
    key = g.OffsetCommitKey(group=group, topic="orders", partition=partition)
    body = None
    if offset is not None:
        said = g.OffsetCommitValue(offset=offset, metadata="m", commit_timestamp=1, **value)
        body = b"\0\x04" + said.encode_bytes(4)
    return Record(-1, 5, kind.to_bytes(2, "big") + key.encode_bytes(0), body)


def transactional(producer: int, base: int, *records: Record) -> bytes:
    return build_batch(
        list(records), base_offset=base, producer_id=producer, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip


def marker(producer: int, base: int, kind: ControlRecordType) -> bytes:
    said = EndTxnMarker(kind, 0)
    return end_txn_marker_batch(
        said, producer_id=producer, producer_epoch=0, timestamp=5, base_offset=base
    )


def test_committed_offsets_are_the_last_ones_that_count(node: Path) -> None:
    write(node, "__cluster_metadata-0", metadata(*topic("orders", ORDERS, 2)))
    member = Record(-1, 5, b"\0\x02" + g.GroupMetadataKey(group="a").encode_bytes(0), b"\0\3x")
    log = [
        build_batch([commit("a", 0, 1), commit("a", 1, 2), member, commit("b", 0, 3)]),
        build_batch([commit("a", 0, 9, kind=0), commit("b", 0, None)], base_offset=4),
        build_batch([commit("c", 0, 4, topic_id=OTHER)], base_offset=6),
        transactional(1, 7, commit("a", 1, 20)),
        transactional(2, 8, commit("a", 0, 30)),
        marker(1, 9, ControlRecordType.COMMIT),
        marker(2, 10, ControlRecordType.ABORT),
        transactional(1, 11, commit("a", 1, 40)),
    ]
    write(node, "__consumer_offsets-7", *log)
    found = seen(node)
    assert found.groups == {"a"}
    groups = found.topics["orders"].groups
    assert {index: one.offset for index, one in groups["a"].items()} == {0: 9, 1: 20}
    assert list(found.topics) == ["orders"]


def test_of_committed_offsets_the_newest_counts_whose_marker_ever_comes_last(node: Path) -> None:
    """As for the broker when it was alive: else its groups would skip records, or read them twice.
    A group that was deleted takes what is pending with it."""
    write(node, "__cluster_metadata-0", metadata(*topic("orders", ORDERS, 2)))
    log = [
        transactional(1, 0, commit("reset", 0, 30), commit("moved", 0, 30), commit("gone", 0, 30)),
        build_batch([commit("reset", 0, 5), commit("gone", 0, None)], base_offset=3),
        transactional(2, 5, commit("moved", 0, 50)),
        marker(2, 6, ControlRecordType.COMMIT),
        marker(1, 7, ControlRecordType.COMMIT),
    ]
    write(node, "__consumer_offsets-7", *log)
    groups = seen(node).topics["orders"].groups
    assert {name: one[0].offset for name, one in groups.items()} == {"reset": 5, "moved": 50}


def state(transactional_id: str, producer: int, status: int, **partitions: list[int]) -> Record:
    value = TransactionLogValue(
        producer_id=producer, producer_epoch=0, transaction_timeout_ms=1,
        transaction_status=status, transaction_last_update_timestamp_ms=1,
        transaction_start_timestamp_ms=1,
        transaction_partitions=[
            TransactionLogValue.Topic(topic=name, partition_ids=indexes)
            for name, indexes in partitions.items()
        ],
    )  # fmt: skip
    key = TransactionLogKey(transactional_id=transactional_id).encode_bytes(0)
    return Record(-1, 5, b"\0\0" + key, b"\0\1" + value.encode_bytes(1))


def test_a_commit_that_was_decided_counts_though_its_markers_are_not_written(node: Path) -> None:
    """Who asked for it was told that all is well; a broker would write them when it starts."""
    ongoing, prepare_commit, prepare_abort, complete_commit = 1, 2, 3, 4
    write(node, "__cluster_metadata-0", metadata(*topic("orders", ORDERS, 2)))
    there = {"orders": [0], "__consumer_offsets": [7]}
    states = [
        state("decided", 1, ongoing, **there),
        state("decided", 1, prepare_commit, **there),
        state("open", 2, ongoing, **there),
        state("aborted", 3, prepare_abort, **there),
        state("over", 4, prepare_commit, orders=[1]),
        state("over", 4, complete_commit),
        state("expired", 5, prepare_commit, orders=[1]),
        state("expired", 5, 0)._replace(value=None),
    ]
    write(node, "__transaction_state-3", *(build_batch([one]) for one in states))
    write(node, "orders-0", transactional(1, 0, Record(-1, 5, None, b"acknowledged")))
    write(node, "orders-1", rows(b"a"))
    commits = [transactional(number, number, commit("g", 0, 10 * number)) for number in (3, 2, 1)]
    write(node, "__consumer_offsets-7", *commits)
    found = seen(node).topics["orders"]
    assert found.prepared == {0: [1], 1: []}
    assert found.groups["g"][0].offset == 10


def test_what_a_damaged_file_of_the_brokers_own_hides_is_told(node: Path) -> None:
    """Groups would go on at older offsets, topics come back without their configs, and nobody would
    know."""
    bad = bytearray(rows(b"x", base=1))
    bad[-3] ^= 1
    place = "__cluster_metadata-0"
    described = metadata(*topic("orders", ORDERS, 1))
    snapshot = write(node, place, described, bytes(bad), file=f"{2:020d}-{1:010d}.checkpoint")
    first = build_batch([commit("a", 0, 1)])
    closed = write(node, "__consumer_offsets-7", first, bytes(bad))
    later = build_batch([commit("b", 0, 2)], base_offset=2)
    write(node, "__consumer_offsets-7", later, bytes(bad), file=f"{2:020d}.log")
    cut = write(node, "__consumer_offsets-8", first, bytes(bad))
    checkpoint = node / "replication-offset-checkpoint"
    checkpoint.write_text("0\n2\n__consumer_offsets 7 3\n__consumer_offsets 8 2\n")
    found = seen(node)
    sizes = {snapshot: len(described), closed: len(first), cut: len(first)}
    told = [f"{path} is damaged from byte {size} on" for path, size in sizes.items()]
    assert [note.partition(";")[0] for note in found.notes if "damaged" in note] == told
    assert set(found.topics["orders"].groups) == {"a", "b"}


def test_a_record_of_metadata_that_we_do_not_know_is_told(node: Path) -> None:
    value = uvarint(1) + uvarint(m.TopicRecord.type_id or 0) + uvarint(9)
    write(node, "__cluster_metadata-0", build_batch([Record(-1, 5, None, value)]))
    with pytest.raises(PipelineError, match="metadata cannot be read: TopicRecord has no version"):
        seen(node)


def test_a_marker_that_compaction_has_emptied_ends_nothing(node: Path) -> None:
    """The last batch of a segment stays, without its record."""
    write(node, "__cluster_metadata-0", metadata(*topic("orders", ORDERS, 2)))
    emptied = build_batch(
        [], base_offset=1, producer_id=1, producer_epoch=0, is_transactional=True, is_control=True,
        last_offset_delta=0,
    )  # fmt: skip
    kept = build_batch([commit("a", 0, 7)], base_offset=2)
    write(node, "__consumer_offsets-7", emptied, kept)
    assert seen(node).topics["orders"].groups["a"][0].offset == 7


def test_marks_of_replays_are_no_groups_of_anybody(node: Path) -> None:
    write(node, "__cluster_metadata-0", metadata(*topic("orders", ORDERS, 2)))
    marks = [commit("barnabas-replay-orders-4f-head", 0, 7), commit("barnabas", 0, 8)]
    write(node, "__consumer_offsets-7", build_batch(marks))
    assert seen(node).groups == {"barnabas"}, "as archive keeps them"


def test_a_broker_that_runs_is_noticed_and_none_starts_meanwhile(node: Path) -> None:
    write(node, "orders-0", rows(b"a"))
    broker = DirectoryLock(node)
    assert broker.try_acquire()
    with pytest.raises(PipelineError, match="a broker runs on"), held([str(node)]):
        pass
    broker.release()
    with held([str(node)]), held([str(node)]):
        assert not DirectoryLock(node).try_acquire()
    assert broker.try_acquire()
    broker.release()


def test_directories_of_two_brokers_are_refused(node: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_meta_properties(other / "meta.properties", MetaProperties("the-cluster", 5, None))
    with pytest.raises(PipelineError, match="are not of one broker"):
        look([str(node), str(other)])


def test_a_partition_that_lies_in_two_directories_is_not_rescued_from_one_of_them(
    tmp_path: Path,
) -> None:
    """A disk that came back, say: none of the two is known to be the right one."""
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in map(Path, paths):
        path.mkdir()
        write(path, "__consumer_offsets-3", rows(b"a"))
    with pytest.raises(PipelineError, match=r"__consumer_offsets-3 is in .*/a and in .*/b"):
        look(paths)
    assert look(paths[:1] * 2).topics == {}


def test_which_records_were_deleted_must_be_known_and_how_far_they_are_replicated_need_not(
    node: Path,
) -> None:
    write(node, "orders-0", rows(b"a", b"b"))
    (node / HIGH_WATERMARK_CHECKPOINT).write_bytes(b"0\n1\norders")
    assert seen(node).topics["orders"].ends == {0: 2}
    (one,) = plan([str(node)], Wanted("orders", to_offsets={0: 2}, log_end=True))
    assert len(one.parts) == 1
    (node / LOG_START_OFFSET_CHECKPOINT).write_bytes(b"0\n1\norders")
    with pytest.raises(PipelineError, match="log-start-offset-checkpoint is damaged; move it"):
        seen(node)
