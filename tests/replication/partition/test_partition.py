"""One partition: who may write and read what, and when a record is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from replication.metadata.image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
)
from replication.partition.follower_writes import truncate_follower_to
from replication.partition.partition import Partition
from replication.partition.requests import FetchPartition, FetchResult, IsolationLevel
from storage import files
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_CLIENT, FROM_COORDINATOR, AppendSource
from storage.log.partition_log import LogAppendInfo, PartitionLog
from storage.recovery import open_log
from testkit.clock import WALL_MS, ManualClock
from wire.control_records import ControlRecordType, EndTxnMarker, encode_end_txn_marker
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.records import Record, build_batch, build_control_batch, read_records

TP = TopicPartition("orders", 0)
TOPIC_ID = b"orders-topic-id!"
NODE, LAG_MS = 1, 30_000


class Flusher:
    """`LogManager.flush_async`, one step at a time."""

    def __init__(self) -> None:
        self.waiting: list[tuple[PartitionLog, Callable[..., object]]] = []

    def flush_async(self, log: PartitionLog, callback: Callable[..., object]) -> None:
        self.waiting.append((log, callback))

    def run(self) -> int:
        jobs, self.waiting = self.waiting, []
        for log, callback in jobs:
            log.flush()
            callback(None)
        return len(jobs)


class Node:
    """A partition with all that it needs; `followers` are brokers 2 and 3."""

    def __init__(self, directory: Path, config: LogConfig | None = None) -> None:
        self.clock = ManualClock(100)
        self.flusher = Flusher()
        self.progress: list[Partition] = []
        self.image: MetadataImage = replace(
            EMPTY_IMAGE,
            brokers={
                i: BrokerRegistration(i, 70 + i, bytes(16), {}, fenced=False) for i in (1, 2, 3)
            },
        )
        self.log = open_log(
            directory,
            TP,
            config or LogConfig(),
            LogEnvironment(directory.parent, clock=self.clock),
            topic_id=TOPIC_ID,
        )
        self.partition = Partition(
            TP,
            TOPIC_ID,
            NODE,
            self.clock,
            metadata=lambda: self.image,
            flush_async=self.flusher.flush_async,
            on_progress=self.progress.append,
            lag_ms_max=LAG_MS,
        )

    def lead(
        self, epoch: int = 0, *, isr: tuple[int, ...] = (1,), replicas: tuple[int, ...] = (1,)
    ) -> bool:
        return self.partition.make_leader(registered(NODE, epoch, isr, replicas), self.log)

    def follow(self, epoch: int, leader: int = 2) -> bool:
        registration = registered(leader, epoch, (1, 2), (1, 2))
        return self.partition.make_follower(registration, self.log)

    def append(
        self,
        *values: bytes,
        acks: int = -1,
        source: AppendSource = FROM_CLIENT,
        **batch: int,
    ) -> tuple[LogAppendInfo, bool]:
        data = records(*values, **batch)
        return self.partition.append_records_to_leader(data, acks, WALL_MS, source)

    def fetch(
        self, offset: int, *, isolation: int | None = 0, epoch: int = -1, last_epoch: int = -1
    ) -> FetchResult:
        request = fetch_partition(offset, epoch, last_epoch)
        return self.partition.read_records(request, 1 << 20, True, isolation)

    def values(self, offset: int, isolation: int | None = 0) -> list[bytes | None]:
        result = self.fetch(offset, isolation=isolation)
        assert result.error_code == 0
        return [] if result.records is None else read_values(result.records.read())

    def follower_fetches(self, replica: int, offset: int, broker_epoch: int = -1) -> bool:
        return self.partition.update_follower_fetch_state(
            replica, broker_epoch, fetch_partition(offset, start=0), *self.partition.leader_end()
        )

    def must_wait(self, next_offset: int, acks: int) -> bool:
        return self.partition.must_wait(next_offset, acks, self.partition.leader_epoch)


def registered(
    leader: int, epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...], version: int = -1
) -> PartitionRegistration:
    return PartitionRegistration(
        replicas,
        (bytes(16),) * len(replicas),
        isr,
        leader,
        leader_epoch=epoch,
        partition_epoch=epoch if version < 0 else version,
    )


def fetch_partition(
    offset: int, epoch: int = -1, last_epoch: int = -1, start: int = -1
) -> FetchPartition:
    return FetchPartition(TP.topic, TOPIC_ID, 0, offset, start, 1 << 20, epoch, last_epoch)


def records(*values: bytes, **batch: int) -> bytes:
    rows = [Record(-1, WALL_MS + i, b"k", value) for i, value in enumerate(values)]
    return build_batch(rows, **batch)  # type: ignore[arg-type]


def read_values(data: bytes) -> list[bytes | None]:
    values, position = [], 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        values += [record.value for record in read_records(data, position)]
        position += size
    return values


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "orders-0")
    yield node
    node.log.close()


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


# ---------------------------------------------------------------------- append, HW


def test_a_leader_alone_commits_at_once_and_consumers_read_it(node: Node) -> None:
    node.lead()
    info, is_advanced = node.append(b"a", b"b")
    assert (info.first_offset, info.last_offset) == (0, 1)
    assert is_advanced
    assert node.partition.high_watermark == 2
    assert node.values(0) == [b"a", b"b"]
    assert node.flusher.waiting == []


def test_nobody_appends_before_leadership_or_after_it(node: Node) -> None:
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        node.append(b"too early")
    node.lead(epoch=1)
    node.append(b"in time")
    node.follow(epoch=2)
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        node.append(b"too late")
    assert node.log.log_end_offset == 1


def test_batches_carry_the_leader_epoch_they_were_appended_under(node: Node) -> None:
    node.lead(epoch=4)
    node.append(b"a")
    node.lead(epoch=7)
    info, _ = node.append(b"b")
    assert info.leader_epoch == 7
    assert node.partition.end_offset_for_epoch(-1, 4) == (4, 1)
    assert node.partition.end_offset_for_epoch(-1, 7) == (7, 2)


def test_acks_all_is_refused_before_anything_is_written_when_the_isr_is_too_small(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "orders-0", LogConfig(min_insync_replicas=2))
    node.lead(isr=(1,), replicas=(1, 2))
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        node.append(b"a", acks=-1)
    assert node.log.log_end_offset == 0
    _, is_advanced = node.append(b"a", acks=1)
    assert not is_advanced
    assert node.values(0) == []


def test_what_is_in_the_log_is_never_told_as_not_written_when_the_isr_is_too_small(
    tmp_path: Path,
) -> None:
    """NOT_ENOUGH_REPLICAS means "not appended" to an idempotent producer, which may then write the
    records again under its next epoch."""
    node = Node(tmp_path / "orders-0", LogConfig(min_insync_replicas=2))
    node.lead(isr=(1, 2), replicas=(1, 2))
    batch = {"producer_id": 7, "producer_epoch": 0}
    node.append(b"a", base_sequence=0, **batch)
    node.lead(epoch=1, isr=(1,), replicas=(1, 2))
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        node.append(b"a", base_sequence=0, **batch)
    for sequence in (1, 2):  # the next one, and one after a gap
        with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
            node.append(b"b", base_sequence=sequence, **batch)
    assert node.log.log_end_offset == 1
    node.log.update_high_watermark(1)
    again, is_advanced = node.append(b"a", base_sequence=0, **batch)
    assert (again.duplicate, again.first_offset, is_advanced) == (True, 0, False)


def test_a_coordinators_batch_is_no_duplicate_of_its_last_one_when_the_isr_is_too_small(
    tmp_path: Path,
) -> None:
    """Offsets of a transaction, and its marker, have their producer's id and no sequence."""
    node = Node(tmp_path / "orders-0", LogConfig(min_insync_replicas=2))
    node.lead(isr=(1, 2), replicas=(1, 2))
    batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": -1}
    node.append(b"offsets", source=FROM_COORDINATOR, **batch)
    node.log.update_high_watermark(1)
    node.lead(epoch=1, isr=(1,), replicas=(1, 2))
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        node.append(b"others", source=FROM_COORDINATOR, **batch)
    assert node.log.log_end_offset == 1


def test_min_insync_replicas_never_asks_for_more_than_there_are(tmp_path: Path) -> None:
    node = Node(tmp_path / "orders-0", LogConfig(min_insync_replicas=2))
    node.lead()
    assert node.append(b"a", acks=-1)[1]


def test_a_lower_min_insync_replicas_commits_what_waited(tmp_path: Path) -> None:
    node = Node(tmp_path / "orders-0", LogConfig(min_insync_replicas=2))
    node.lead(isr=(1,), replicas=(1, 2))
    node.append(b"a", acks=1)
    node.log.update_config(LogConfig(min_insync_replicas=1))
    node.partition.config_changed()
    assert node.values(0) == [b"a"]


def test_records_are_committed_when_the_whole_isr_has_them(node: Node) -> None:
    node.lead(isr=(1, 2, 3), replicas=(1, 2, 3))
    assert node.append(b"a", b"b")[1] is False
    assert node.follower_fetches(2, 2) is True
    assert node.partition.high_watermark == 0
    assert node.follower_fetches(3, 1)
    assert node.partition.high_watermark == 1
    node.follower_fetches(3, 2)
    assert node.partition.high_watermark == 2


def test_offsets_from_an_earlier_leadership_do_not_count(node: Node) -> None:
    """H-2: leader, follower, leader again, with a follower that has not fetched since."""
    node.lead(epoch=1, isr=(1, 2), replicas=(1, 2))
    node.append(b"a")
    node.follower_fetches(2, 5)
    node.follow(epoch=2)
    node.lead(epoch=3, isr=(1, 2), replicas=(1, 2))
    high_watermark = node.partition.high_watermark
    node.append(b"b")
    assert node.partition.high_watermark == high_watermark == 1
    node.follower_fetches(2, 2)
    assert node.partition.high_watermark == 2


def test_who_leads_again_after_an_epoch_it_never_heard_of_trusts_no_older_offset(
    node: Node,
) -> None:
    """H-2: one image held two elections. In the epoch between, another replica led and the
    follower cut off what it had from us."""
    node.lead(epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
    node.append(b"a", b"b")
    node.follower_fetches(2, 2)
    node.follower_fetches(3, 0)
    node.lead(epoch=3, isr=(1, 2), replicas=(1, 2, 3))
    assert node.partition.high_watermark == 0
    node.follower_fetches(2, 1)
    assert node.partition.high_watermark == 1


def test_who_leads_on_in_the_next_epoch_keeps_what_followers_told(node: Node) -> None:
    """A replica was removed: nobody else can have led between two epochs in a row."""
    node.lead(epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
    node.append(b"a", b"b")
    node.follower_fetches(2, 2)
    node.lead(epoch=2, isr=(1, 2), replicas=(1, 2))
    assert node.partition.high_watermark == 2


def test_a_fetch_from_an_earlier_incarnation_of_a_broker_is_refused(node: Node) -> None:
    node.lead(isr=(1, 2), replicas=(1, 2))
    node.append(b"a")
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        node.follower_fetches(2, 1, broker_epoch=71)  # broker 2 has registered as 72
    assert node.partition.high_watermark == 0
    assert node.follower_fetches(2, 1, broker_epoch=72)
    assert node.partition.high_watermark == 1


def test_an_unassigned_replica_is_told_to_retry(node: Node) -> None:
    node.lead(epoch=3, isr=(1, 2), replicas=(1, 2))
    node.partition.check_follower(2, fetch_partition(1, epoch=3), 3)
    with refused(ErrorCode.UNKNOWN_LEADER_EPOCH):
        node.partition.check_follower(9, fetch_partition(1, epoch=3), 3)
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        node.partition.check_follower(9, fetch_partition(1), 3)
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        node.follower_fetches(9, 1)


# ---------------------------------------------------------------------- election


def test_each_election_is_recorded_before_the_first_append(node: Node) -> None:
    """E-3: three fast elections without writes; a replica of the old epoch gets a usable offset."""
    node.lead(epoch=1)
    node.append(b"a", b"b", b"c")
    for epoch in (2, 3, 4):
        node.lead(epoch=epoch)
    assert node.partition.end_offset_for_epoch(-1, 1) == (1, 3)
    assert node.partition.end_offset_for_epoch(-1, 3)[1] == 3
    assert node.partition.end_offset_for_epoch(4, 4) == (4, 3)
    assert node.partition.end_offset_for_epoch(-1, 5) == (-1, -1)


def test_the_epoch_is_on_disk_before_make_leader_returns(node: Node) -> None:
    node.lead(epoch=6)
    assert (node.log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n6 0\n"


def test_make_leader_again_changes_nothing_and_old_metadata_is_ignored(node: Node) -> None:
    assert node.lead(epoch=5)
    node.append(b"a")
    assert node.lead(epoch=5) is False
    assert node.lead(epoch=4) is False
    assert node.partition.leader_epoch == 5
    assert node.partition.role.epoch_start_offset == 0
    assert node.follow(epoch=3) is False
    assert node.partition.is_leader


def test_a_new_partition_epoch_alone_updates_the_isr_without_a_new_leader_epoch(
    node: Node,
) -> None:
    node.lead(isr=(1, 2), replicas=(1, 2))
    node.append(b"a")
    shrunk = registered(NODE, 0, (1,), (1, 2), version=1)
    assert node.partition.make_leader(shrunk, node.log) is False
    assert node.partition.isr == {1}
    assert node.partition.high_watermark == 1


def test_a_stopped_partition_stays_stopped(node: Node) -> None:
    node.lead(epoch=1)
    node.partition.stop(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert node.lead(epoch=2) is False
    assert node.fetch(0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        node.append(b"a")


# ---------------------------------------------------------------------- reads (V)


@pytest.fixture
def lagging(node: Node) -> Node:
    """HW 3, log end 5, log start 1."""
    node.lead(isr=(1, 2), replicas=(1, 2))
    for value in (b"a", b"b", b"c", b"d", b"e"):
        node.append(value)
    node.follower_fetches(2, 3)
    node.partition.delete_records(1)
    return node


@pytest.mark.parametrize(
    ("offset", "code", "values"),
    [
        (0, ErrorCode.OFFSET_OUT_OF_RANGE, None),
        (1, 0, [b"b", b"c"]),
        (2, 0, [b"c"]),
        (3, 0, None),
        (4, 0, None),
        (5, 0, None),
        (6, ErrorCode.OFFSET_OUT_OF_RANGE, None),
    ],
)
def test_consumers_see_up_to_the_high_watermark(
    lagging: Node, offset: int, code: int, values: list[bytes] | None
) -> None:
    result = lagging.fetch(offset)
    assert result.error_code == code
    found = None if result.records is None else read_values(result.records.read())
    assert found == values
    if not code:
        assert (result.high_watermark, result.log_start_offset) == (3, 1)
        assert result.last_stable_offset == 3
        assert result.aborted is None


def test_replicas_see_up_to_the_log_end(lagging: Node) -> None:
    assert lagging.values(2, isolation=None) == [b"c", b"d", b"e"]
    assert lagging.fetch(5, isolation=None).error_code == 0
    assert lagging.fetch(6, isolation=None).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_committed_stops_before_an_open_transaction_and_lists_aborted_ones(
    node: Node,
) -> None:
    node.lead()
    node.append(b"plain")
    txn = {"producer_id": 9, "producer_epoch": 0}
    node.append(b"in txn", base_sequence=0, is_transactional=True, **txn)
    node.append(b"after")
    assert node.values(0, isolation=1) == [b"plain"]
    assert node.values(0, isolation=0) == [b"plain", b"in txn", b"after"]
    assert node.fetch(0).last_stable_offset == 1

    abort = EndTxnMarker(ControlRecordType.ABORT, coordinator_epoch=0)
    marker = build_control_batch(
        [(abort.type, encode_end_txn_marker(abort))],
        timestamp=WALL_MS,
        is_transactional=True,
        **txn,
    )
    node.partition.append_records_to_leader(marker, -1, WALL_MS, FROM_COORDINATOR)
    result = node.fetch(0, isolation=1)
    assert result.last_stable_offset == result.high_watermark == 4
    assert result.aborted is not None
    assert [(txn.producer_id, txn.first_offset) for txn in result.aborted] == [(9, 1)]
    assert node.fetch(0, isolation=0).aborted is None
    assert node.fetch(4, isolation=1).aborted == ()


def test_the_first_batch_may_exceed_the_limit_only_if_asked_for(node: Node) -> None:
    node.lead()
    node.append(bytes(1000))
    request = fetch_partition(0)
    read = node.partition.read_records
    assert read(request, 10, False, 0).records is None
    big = read(request, 10, True, 0).records
    assert big is not None
    assert big.size > 1000
    assert read(request, 0, False, 0).high_watermark == 1


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize(("epoch", "offset_of_epoch"), [(4, -1), (5, 0), (6, 1), (-1, None)])
def test_requests_with_another_leader_epoch_are_fenced(
    node: Node, role: str, epoch: int, offset_of_epoch: int | None
) -> None:
    """E-2 for Fetch, ListOffsets and OffsetForLeaderEpoch."""
    node.lead(epoch=5) if role == "leader" else node.follow(epoch=5)
    expected = {
        -1: ErrorCode.FENCED_LEADER_EPOCH,
        1: ErrorCode.UNKNOWN_LEADER_EPOCH,
    }.get(
        offset_of_epoch or 0,
        ErrorCode.NONE if role == "leader" else ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )

    def code(call: Callable[[], object]) -> ErrorCode:
        try:
            call()
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    partition = node.partition
    latest = (-1, IsolationLevel.READ_UNCOMMITTED, epoch)
    assert node.fetch(0, epoch=epoch).error_code == expected
    assert code(lambda: partition.fetch_offset_for_timestamp(*latest)) == expected
    assert code(lambda: partition.end_offset_for_epoch(epoch, 5)) == expected


def test_a_fetcher_whose_epoch_ended_earlier_here_is_told_where(node: Node) -> None:
    """KIP-595/KIP-320: epoch 1 ends at 2 here; the fetcher has three records of it."""
    node.lead(epoch=1)
    node.append(b"a", b"b")
    node.lead(epoch=3)
    node.append(b"c")
    assert node.fetch(3, last_epoch=1).diverging_epoch == (1, 2)
    assert node.fetch(3, last_epoch=2).diverging_epoch == (1, 2)
    fine = node.fetch(2, last_epoch=1)
    assert fine.diverging_epoch is None
    assert fine.records is not None
    assert node.fetch(3, last_epoch=3).diverging_epoch is None
    assert node.fetch(3, last_epoch=4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    node.partition.delete_records(2)
    assert node.fetch(1, last_epoch=1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# ---------------------------------------------------------------------- ListOffsets, deletes


def test_special_timestamps_answer_as_a_topic_without_remote_storage(node: Node) -> None:
    node.lead(epoch=2)
    node.append(b"a", b"b")  # times +0, +1
    node.append(b"c")  # time +0 again

    def ask(timestamp: int) -> tuple[int, int, int]:
        return node.partition.fetch_offset_for_timestamp(timestamp, IsolationLevel.READ_UNCOMMITTED)

    assert ask(-1) == (-1, 3, 2)
    assert ask(-2) == (-1, 0, 2)
    assert ask(-3) == (WALL_MS + 1, 1, 2)
    assert ask(-4) == (-1, 0, 2)
    assert ask(-5) == (-1, -1, -1)
    assert ask(-6) == (-1, -1, -1)
    assert ask(WALL_MS + 1) == (WALL_MS + 1, 1, 2)
    assert ask(WALL_MS + 2) == (-1, -1, -1)
    with refused(ErrorCode.UNSUPPORTED_VERSION):
        ask(-7)


def test_list_offsets_on_an_empty_log(node: Node) -> None:
    node.lead(epoch=0)
    ask = node.partition.fetch_offset_for_timestamp
    assert ask(-1, IsolationLevel.READ_COMMITTED) == (-1, 0, 0)
    assert ask(-2, IsolationLevel.READ_COMMITTED) == (-1, 0, 0)
    assert ask(-3, IsolationLevel.READ_COMMITTED) == (-1, -1, -1)
    assert ask(0, IsolationLevel.READ_COMMITTED) == (-1, -1, -1)


def test_list_offsets_shows_a_client_only_what_is_committed(lagging: Node) -> None:
    ask = lagging.partition.fetch_offset_for_timestamp
    assert ask(-1, IsolationLevel.READ_UNCOMMITTED)[1] == 3
    assert ask(-1, None)[1] == 5
    assert ask(-2, IsolationLevel.READ_UNCOMMITTED)[1] == 1


def test_a_new_leader_hides_its_end_until_the_high_watermark_reaches_its_epoch(
    node: Node,
) -> None:
    """V-4, KIP-207: end offsets must not step back after an election."""
    node.lead(epoch=1, isr=(1, 2), replicas=(1, 2))
    node.append(b"a", b"b")
    node.follow(epoch=2)
    node.lead(epoch=3, isr=(1, 2), replicas=(1, 2))
    ask = node.partition.fetch_offset_for_timestamp
    with refused(ErrorCode.OFFSET_NOT_AVAILABLE):
        ask(-1, IsolationLevel.READ_UNCOMMITTED)
    with refused(ErrorCode.OFFSET_NOT_AVAILABLE):
        ask(WALL_MS, IsolationLevel.READ_UNCOMMITTED)
    assert ask(-2, IsolationLevel.READ_UNCOMMITTED)[1] == 0
    assert ask(-1, None)[1] == 2
    node.follower_fetches(2, 2)
    assert ask(-1, IsolationLevel.READ_UNCOMMITTED)[1] == 2


def test_delete_records_moves_the_log_start_up_to_the_high_watermark(node: Node) -> None:
    node.lead()
    node.append(b"a", b"b", b"c")
    assert node.partition.delete_records(2) == (2, 2)
    assert node.partition.delete_records(1) == (1, 2)
    assert node.partition.delete_records(-1) == (3, 3)
    assert node.fetch(2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    for offset in (4, -2):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            node.partition.delete_records(offset)


def test_delete_records_is_refused_where_only_compaction_may_delete(node: Node) -> None:
    node.lead()
    node.append(b"a")
    node.log.update_config(LogConfig(cleanup_policy=frozenset(("compact",))))
    with refused(ErrorCode.POLICY_VIOLATION):
        node.partition.delete_records(1)
    node.log.update_config(LogConfig(cleanup_policy=frozenset(("compact", "delete"))))
    assert node.partition.delete_records(1) == (1, 1)


def test_low_watermark_waits_for_living_followers(node: Node) -> None:
    node.lead(isr=(1, 2), replicas=(1, 2))
    node.append(b"a")
    node.follower_fetches(2, 1)
    assert node.partition.delete_records(1) == (1, 0)
    node.image.brokers[2].fenced = True
    assert node.partition.low_watermark() == 1


# ---------------------------------------------------------------------- group commit


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "orders-0", LogConfig(flush_messages=1))
    node.lead()
    yield node
    node.log.close()


def test_nothing_is_visible_before_it_is_flushed(durable: Node) -> None:
    _, is_advanced = durable.append(b"a")
    assert not is_advanced
    assert durable.must_wait(1, -1)
    assert durable.must_wait(1, 1)
    assert durable.values(0) == []
    durable.partition.request_flush()
    durable.flusher.run()
    assert durable.values(0) == [b"a"]
    assert durable.progress == [durable.partition]
    assert not durable.must_wait(1, -1)
    assert not durable.must_wait(1, 1)


def test_many_appends_share_one_fsync_and_those_during_it_share_the_next(durable: Node) -> None:
    for value in (b"a", b"b", b"c"):
        durable.append(value)
        durable.partition.request_flush()
    assert len(durable.flusher.waiting) == 1
    [(log, callback)] = durable.flusher.waiting
    durable.flusher.waiting = []
    log.flush()
    durable.append(b"d")
    durable.partition.request_flush()
    assert durable.flusher.waiting == []
    callback(None)
    assert durable.partition.high_watermark == 3
    assert durable.flusher.run() == 1
    assert durable.partition.high_watermark == 4
    assert durable.flusher.waiting == []


def test_a_failed_fsync_is_not_asked_for_again(durable: Node) -> None:
    durable.append(b"a")
    durable.partition.request_flush()
    [(_, callback)] = durable.flusher.waiting
    durable.flusher.waiting = []
    callback(OSError(5, "EIO"))
    assert durable.flusher.waiting == []
    assert durable.partition.high_watermark == 0
    assert durable.must_wait(1, -1)


def test_an_fsync_that_a_truncation_overtook_is_asked_for_again(
    durable: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leader comes and goes during one slow fsync: what it synced is not there any more,
    and what is appended since waits for an fsync of its own."""
    for value in (b"a", b"b"):
        durable.append(value)
    durable.partition.request_flush()
    durable.flusher.run()
    durable.append(b"c")
    durable.partition.request_flush()
    fsync = files.fsync

    def overtaken(fd: int) -> None:
        monkeypatch.setattr(files, "fsync", fsync)
        durable.follow(1)
        truncate_follower_to(durable.partition, 1, 1)
        durable.lead(2, replicas=(1, 2))
        durable.append(b"d")
        durable.partition.request_flush()
        fsync(fd)

    monkeypatch.setattr(files, "fsync", overtaken)
    durable.flusher.run()
    assert durable.values(0) == [b"a"]
    assert durable.flusher.run() == 1
    assert durable.values(0) == [b"a", b"d"]
    assert durable.flusher.waiting == []


@pytest.mark.parametrize("is_closed", [False, True])
def test_after_an_fsync_of_the_log_before_a_move_the_one_since_is_flushed(
    durable: Node, tmp_path: Path, is_closed: bool
) -> None:
    """The log moved to another directory while its fsync was under way."""
    copy = open_log(tmp_path / "orders-0.copy", TP, durable.log.config, durable.log.environment)
    durable.append(b"a")
    durable.partition.request_flush()
    [(old, callback)] = durable.flusher.waiting
    durable.flusher.waiting = []
    old.flush()
    with durable.partition.lock:
        copy.append_as_follower(old.read_bytes(0, 1 << 20, 1), 0)
        durable.partition.replace_log(copy)
    durable.append(b"b")
    durable.partition.request_flush()
    if is_closed:
        copy.close()
    callback(None)
    assert durable.flusher.run() == (0 if is_closed else 1)
    assert durable.flusher.waiting == []
    assert copy.flushed_offset == (0 if is_closed else 2)
    copy.close()


def test_what_a_crash_left_unflushed_is_flushed_before_it_is_served(tmp_path: Path) -> None:
    node = Node(tmp_path / "orders-0", LogConfig(flush_messages=1))
    node.log.append_as_leader(records(b"a"), 0, WALL_MS)
    node.lead(epoch=1)
    assert node.values(0) == []
    assert node.flusher.run() == 1
    assert node.values(0) == [b"a"]
    node.log.close()


def test_a_re_elected_leader_still_waits_for_the_fsync_it_promised(tmp_path: Path) -> None:
    node = Node(tmp_path / "orders-0", LogConfig(flush_messages=3))
    node.lead(epoch=1)
    for value in (b"a", b"b", b"c"):
        node.append(value)
    node.log.update_config(LogConfig(flush_messages=100))
    node.lead(epoch=2)
    assert node.must_wait(3, -1)
    assert node.partition.high_watermark == 2
    node.log.close()


def test_appends_are_refused_and_reads_go_on_while_an_election_is_recorded(node: Node) -> None:
    """E-3: no batch of the new epoch before its start is on disk, none of the old one after."""
    node.lead(epoch=1)
    node.append(b"a")
    seen: list[object] = []
    record = node.log.assign_epoch_start

    def record_slowly(epoch: int, offset: int) -> None:
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            node.append(b"too early")
        seen.append(node.values(0))
        record(epoch, offset)

    node.log.assign_epoch_start = record_slowly  # type: ignore[method-assign]
    node.lead(epoch=2)
    assert seen == [[b"a"]]
    assert node.append(b"b")[0].leader_epoch == 2


def test_page_cache_mode_never_waits_for_the_disk(node: Node) -> None:
    node.lead()
    node.append(b"a")
    assert not node.must_wait(1, -1)
    assert not node.must_wait(1, 1)
    node.partition.request_flush()
    assert node.flusher.waiting == []
