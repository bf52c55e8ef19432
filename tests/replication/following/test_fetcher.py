"""A follower's fetching, one answer at a time: what is asked next, and what the log becomes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.following.fetch_state import FetchPhase, FollowedPartition
from replication.following.fetcher import FetcherConfig, ReplicaFetcher
from replication.following.fetcher_manager import FetcherThread
from replication.following.replication_quota import ReplicationQuota
from replication.metadata.image import EMPTY_IMAGE, PartitionRegistration
from replication.partition.partition import Partition
from storage import files
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from testkit.clock import WALL_MS, ManualClock
from testkit.wait import HANGS_S
from wire.errors import ErrorCode
from wire.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from wire.primitives import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from wire.records import Record, build_batch

TOPIC_ID = b"orders-topic-id!"
NODE, LEADER, EPOCH = 1, 2, 5


ORDERS_0 = TopicPartition("orders", 0)


class Follower:
    """A fetcher of node 1 with its partitions' logs; the test is the leader."""

    def __init__(self, root: Path, config: LogConfig | None = None, count: int = 1) -> None:
        self.clock = ManualClock(100)
        self.quota = ReplicationQuota(self.clock)
        self.progress: list[Partition] = []
        self.logs: list[PartitionLog] = []
        self.partitions: list[Partition] = []
        self.fetcher = ReplicaFetcher(
            FetcherConfig(), LEADER, NODE, lambda: 71, self.clock,
            quota=self.quota, on_progress=self.progress.append,
        )  # fmt: skip
        for index in range(count):
            key = TopicPartition("orders", index)
            log = open_log(
                root / str(key), key, config or LogConfig(),
                LogEnvironment(root, clock=self.clock), topic_id=TOPIC_ID,
            )  # fmt: skip
            partition = Partition(
                key, TOPIC_ID, NODE, self.clock, metadata=lambda: EMPTY_IMAGE,
                flush_async=lambda log, callback: None, on_progress=self.progress.append,
            )  # fmt: skip
            partition.make_follower(followed(), log)
            self.logs.append(log)
            self.partitions.append(partition)

    @property
    def log(self) -> PartitionLog:
        return self.logs[0]

    def follow(self, epoch: int = EPOCH) -> None:
        self.fetcher.add_partitions([FollowedPartition(p, epoch) for p in self.partitions])

    def asked(self) -> FetchRequest:
        request = self.fetcher.next_request()
        assert isinstance(request, FetchRequest)
        return FetchRequest.decode(request.encode_bytes(17), 17)

    def asked_end(self) -> int:
        """Which end of the leader's log is asked for."""
        request = self.fetcher.next_request()
        assert isinstance(request, ListOffsetsRequest)
        assert request.replica_id == NODE
        (partition,) = request.topics[0].partitions
        assert partition.current_leader_epoch == EPOCH
        return partition.timestamp

    def answer(self, *partitions: Any, session_id: int = 9, error: int = 0) -> None:
        response = FetchResponse(
            error_code=error,
            session_id=session_id,
            responses=[FetchResponse.Topic(topic_id=TOPIC_ID, partitions=list(partitions))],
        )
        self.fetcher.handle_response(FetchResponse.decode(response.encode_bytes(17), 17))

    def answer_end(self, offset: int, error: int = 0) -> None:
        partition = ListOffsetsResponse.Topic.Partition(
            partition_index=0, error_code=error, offset=offset
        )
        self.fetcher.handle_response(
            ListOffsetsResponse(
                topics=[ListOffsetsResponse.Topic(name="orders", partitions=[partition])]
            )
        )

    def exchange(self, *partitions: Any) -> None:
        self.asked()
        self.answer(*partitions)

    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms

    @property
    def phase(self) -> FetchPhase | None:
        state = self.fetcher.state((TOPIC_ID, 0))
        return None if state is None else state.phase

    def close(self) -> None:
        for log in self.logs:
            log.close()


def followed(epoch: int = EPOCH) -> PartitionRegistration:
    return PartitionRegistration(
        (1, 2), (bytes(16),) * 2, (1, 2), LEADER, leader_epoch=epoch, partition_epoch=epoch
    )


def sent(
    records: bytes = b"", hw: int = 0, *, index: int = 0, error: int = 0, start: int = 0,
    diverging: tuple[int, int] | None = None,
) -> Any:  # fmt: skip
    partition = FetchResponse.Topic.Partition
    return partition(
        partition_index=index,
        error_code=error,
        high_watermark=hw,
        log_start_offset=start,
        aborted_transactions=None,
        records=records,
        diverging_epoch=None
        if diverging is None
        else partition.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
    )


def batch(offset: int, count: int = 1, epoch: int = EPOCH) -> bytes:
    rows = [Record(-1, WALL_MS, b"k", b"%d" % (offset + i)) for i in range(count)]
    return build_batch(rows, base_offset=offset, leader_epoch=epoch)


def where(request: FetchRequest) -> list[tuple[int, int, int]]:
    """(partition, fetch offset, last fetched epoch) of each partition named."""
    return [
        (p.partition, p.fetch_offset, p.last_fetched_epoch)
        for t in request.topics
        for p in t.partitions
    ]


def failing(code: int) -> Any:
    def call(*_: object) -> int:
        raise OSError(code, "injected")

    return call


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(tmp_path)
    follower.follow()
    yield follower
    follower.close()


def test_a_request_says_who_asks_in_which_incarnation(follower: Follower) -> None:
    request = follower.asked()
    assert request.replica_state is not None
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (NODE, 71)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 10 << 20)
    assert where(request) == [(0, 0, -1)]
    assert request.topics[0].partitions[0].current_leader_epoch == EPOCH


def test_records_are_appended_and_the_next_fetch_starts_behind_them(follower: Follower) -> None:
    follower.exchange(sent(batch(0, 2) + batch(2, 1), hw=1))
    assert follower.log.log_end_offset == 3
    assert follower.partitions[0].high_watermark == 1
    assert follower.progress == follower.partitions
    assert where(follower.asked()) == [(0, 3, EPOCH)]


@pytest.mark.parametrize("error", [75, 6])
def test_a_leader_that_has_not_heard_of_its_election_is_asked_again_soon(
    follower: Follower, error: int
) -> None:
    """Nothing can be committed before it has been fetched from: a second was the gap of a clean
    restart."""
    for pause_ms in (10, 20, 40, 80, 160, 320, 640, 1000, 1000):
        assert where(follower.asked()) == [(0, 0, -1)]
        follower.answer(sent(error=error))
        follower.asked()  # what is left of the session is closed
        follower.answer(session_id=0)
        follower.pass_time(pause_ms - 1)
        assert follower.fetcher.next_request() is None
        follower.pass_time(1)
    follower.exchange(sent(batch(0)))
    follower.exchange(sent(error=error))
    follower.asked()
    follower.answer(session_id=0)
    follower.pass_time(10)
    assert where(follower.asked()) == [(0, 1, EPOCH)], "the count began anew"


def test_a_delayed_partition_does_not_wait_for_the_news_of_the_others(tmp_path: Path) -> None:
    follower = Follower(tmp_path, count=2)
    follower.follow()
    follower.exchange(sent(error=ErrorCode.UNKNOWN_LEADER_EPOCH), sent(index=1))
    assert follower.asked().max_wait_ms == 10
    follower.answer()
    follower.pass_time(10)
    request = follower.asked()
    assert (where(request), request.max_wait_ms) == ([(0, 0, -1)], 500)
    follower.close()


def test_an_empty_answer_keeps_the_last_epoch(follower: Follower) -> None:
    """KAFKA-15510: or the next divergence would go unseen."""
    follower.exchange(sent(batch(0)))
    follower.exchange(sent(hw=1))
    state = follower.fetcher.state((TOPIC_ID, 0))
    assert state is not None
    assert (state.fetch_offset, state.last_fetched_epoch) == (1, EPOCH)
    assert where(follower.asked()) == [], "nothing changed, so it is not named"


def test_a_replica_whose_log_was_replaced_is_fetched_into_the_new_one(
    follower: Follower, tmp_path: Path
) -> None:
    """It moved to another directory, under the same leader epoch and with a fetch under way."""
    follower.exchange(sent(batch(0)))
    follower.asked()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = open_log(
        elsewhere / "orders-0", ORDERS_0, LogConfig(),
        LogEnvironment(elsewhere, clock=follower.clock), topic_id=TOPIC_ID,
    )  # fmt: skip
    copy.append_as_follower(batch(0), EPOCH)
    partition = follower.partitions[0]
    with partition.lock:
        partition.replace_log(copy)
    follower.log.close()
    follower.answer(sent(batch(1)))
    assert copy.log_end_offset == 2
    follower.follow()
    assert where(follower.asked()) == [(0, 2, EPOCH)]
    follower.answer(sent(batch(2)))
    assert copy.log_end_offset == 3
    copy.close()


def test_the_high_watermark_never_passes_our_own_end(follower: Follower) -> None:
    follower.exchange(sent(batch(0), hw=50))
    assert follower.partitions[0].high_watermark == 1


def test_the_log_start_follows_the_leaders_once_it_is_committed_here(follower: Follower) -> None:
    follower.exchange(sent(batch(0, 4), hw=1, start=3))
    assert follower.log.log_start_offset == 0
    follower.exchange(sent(hw=4, start=3))
    assert follower.log.log_start_offset == 3
    assert follower.asked().topics[0].partitions[0].log_start_offset == 3


def test_diverging_histories_are_cut_back_step_by_step(follower: Follower) -> None:
    """E-6: we never had the epoch the leader names, so to before it, and ask again."""
    log = follower.log
    log.append_as_follower(batch(0, 1, 1) + batch(1, 1, 1) + batch(2, 1, 3), 5)
    log.append_as_follower(batch(3, 1, 4), 5)
    follower.follow(EPOCH)
    follower.fetcher.remove_partitions([(TOPIC_ID, 0)])
    follower.follow()
    assert where(follower.asked()) == [(0, 4, 4)]
    follower.answer(sent(hw=9, diverging=(2, 3), start=2))
    assert (log.log_end_offset, log.latest_epoch) == (2, 1)
    assert (follower.partitions[0].high_watermark, log.log_start_offset) == (0, 0), (
        "nothing else is taken from such an answer"
    )
    assert where(follower.asked()) == [(0, 2, 1)]
    follower.answer(sent(diverging=(1, 1)))
    assert log.log_end_offset == 1
    assert where(follower.asked()) == [(0, 1, 1)]


def test_an_epoch_without_records_is_forgotten_and_asked_again(follower: Follower) -> None:
    """A leader of epoch 4 that never wrote: the log is as long, but ends in another epoch."""
    log = follower.log
    log.append_as_follower(batch(0, 2, 1), 5)
    log.assign_epoch_start(4, 2)
    follower.fetcher.remove_partitions([(TOPIC_ID, 0)])
    follower.follow()
    assert where(follower.asked()) == [(0, 2, 4)]
    follower.answer(sent(diverging=(3, 7)))
    assert (log.log_end_offset, log.latest_epoch) == (2, 1)
    assert where(follower.asked()) == [(0, 2, 1)]


def test_a_follower_ahead_of_its_leader_is_cut_to_the_leaders_end(follower: Follower) -> None:
    follower.exchange(sent(batch(0, 5)))
    follower.exchange(sent(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert follower.asked_end() == LATEST_TIMESTAMP
    follower.answer_end(3)
    assert follower.log.log_end_offset == 0, "batches are cut whole"
    assert where(follower.asked()) == [(0, 0, -1)]


def test_a_follower_below_its_leaders_start_starts_over(follower: Follower) -> None:
    """E-10."""
    follower.exchange(sent(batch(0, 5), hw=5))
    follower.log.flush()
    follower.exchange(sent(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert follower.asked_end() == LATEST_TIMESTAMP
    follower.answer_end(100)
    assert follower.asked_end() == EARLIEST_TIMESTAMP
    follower.answer_end(90)
    log = follower.log
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (90, 90, 90)
    assert where(follower.asked()) == [(0, 90, -1)]
    follower.answer(sent(batch(90), hw=91, start=90))
    assert log.log_end_offset == 91


def test_out_of_range_without_a_reason_is_not_asked_in_a_tight_loop(follower: Follower) -> None:
    follower.exchange(sent(batch(0, 5)))
    follower.exchange(sent(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    follower.asked_end()
    follower.answer_end(7)
    follower.asked_end()
    follower.answer_end(0)
    assert follower.log.log_end_offset == 5
    follower.asked()  # closes the session that has nothing in it any more
    follower.answer(session_id=0)
    assert follower.fetcher.next_request() is None
    assert follower.fetcher.wake_ms == follower.clock.ms + 1000


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_refused_partition_is_left_out_for_a_while_and_the_others_go_on(
    tmp_path: Path, code: ErrorCode
) -> None:
    follower = Follower(tmp_path, count=2)
    follower.follow()
    follower.exchange(sent(error=code), sent(batch(0), index=1))
    request = follower.asked()
    assert where(request) == [(1, 1, EPOCH)]
    assert [t.partitions for t in request.forgotten_topics_data] == [[0]]
    follower.answer(sent(index=1))
    follower.pass_time(999)
    assert where(follower.asked()) == []
    follower.answer()
    follower.pass_time(1)
    assert where(follower.asked()) == [(0, 0, -1)]
    follower.close()


def test_a_fenced_partition_waits_for_metadata(follower: Follower) -> None:
    follower.exchange(sent(error=ErrorCode.FENCED_LEADER_EPOCH))
    assert follower.phase is None
    follower.pass_time(100_000)
    follower.asked()
    follower.answer(session_id=0)
    assert follower.fetcher.next_request() is None
    assert follower.fetcher.wake_ms is None
    follower.partitions[0].make_follower(followed(EPOCH + 1), follower.log)
    follower.follow(EPOCH + 1)
    assert where(follower.asked()) == [(0, 0, -1)]


def test_nothing_is_written_once_another_epoch_has_begun(follower: Follower) -> None:
    """E-7: the answer to the old epoch's fetch comes after the election."""
    follower.asked()
    follower.partitions[0].make_follower(followed(EPOCH + 1), follower.log)
    follower.answer(sent(batch(0), hw=1))
    assert follower.log.log_end_offset == 0
    assert follower.phase is None
    follower.follow(EPOCH + 1)
    assert follower.phase is None
    follower.fetcher.next_request()
    assert follower.phase is FetchPhase.FETCHING


def test_nothing_is_written_once_we_lead(follower: Follower) -> None:
    follower.asked()
    lead = PartitionRegistration(
        (1, 2), (bytes(16),) * 2, (1, 2), NODE, leader_epoch=EPOCH + 1, partition_epoch=EPOCH + 1
    )
    follower.partitions[0].make_leader(lead, follower.log)
    follower.answer(sent(batch(0), hw=1, diverging=None))
    assert follower.log.log_end_offset == 0
    assert follower.phase is None


def test_an_answer_to_an_older_fetch_offset_is_not_applied(follower: Follower) -> None:
    follower.asked()
    follower.log.append_as_follower(batch(0), EPOCH)
    state = follower.fetcher.state((TOPIC_ID, 0))
    assert state is not None
    state.read_log_end()
    follower.answer(sent(batch(0), hw=1))
    assert follower.log.log_end_offset == 1


def test_damaged_records_are_asked_for_again_later(follower: Follower) -> None:
    bad = bytearray(batch(0))
    bad[-1] ^= 1
    follower.exchange(sent(bytes(bad), hw=1))
    assert follower.log.log_end_offset == 0
    follower.asked()
    follower.answer(session_id=0)
    assert follower.fetcher.next_request() is None
    follower.pass_time(1000)
    follower.exchange(sent(batch(0), hw=1))
    assert follower.log.log_end_offset == 1


def test_a_full_disk_delays_and_a_dead_one_drops_the_partition(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "pwritev", failing(errno.ENOSPC))
        follower.exchange(sent(batch(0)))
    assert follower.phase is FetchPhase.FETCHING
    follower.asked()
    follower.answer(session_id=0)
    follower.pass_time(1000)
    with monkeypatch.context() as patch:
        patch.setattr(files, "pwritev", failing(errno.EIO))
        follower.exchange(sent(batch(0)))
    assert follower.phase is None


def test_what_must_be_on_disk_is_there_before_the_next_fetch_says_so(tmp_path: Path) -> None:
    follower = Follower(tmp_path, LogConfig(flush_messages=1))
    follower.follow()
    follower.exchange(sent(batch(0, 3)))
    assert follower.log.flushed_offset == 0
    assert where(follower.asked()) == [(0, 3, EPOCH)]
    assert follower.log.flushed_offset == 3
    follower.close()


def test_a_sync_that_found_no_descriptor_is_made_up_for_before_the_next_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-6: after the pause the fetch told the leader of records that no disk had."""
    follower = Follower(tmp_path, LogConfig(flush_messages=1), count=2)
    follower.follow()
    follower.exchange(sent(batch(0, 3)))
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", failing(errno.EMFILE))
        assert 0 not in [partition for partition, _, _ in where(follower.asked())]
        follower.answer()
        follower.pass_time(1000)
        assert 0 not in [partition for partition, _, _ in where(follower.asked())]
        follower.answer()
    follower.pass_time(1000)
    assert (0, 3, EPOCH) in where(follower.asked())
    assert follower.log.flushed_offset == 3
    follower.close()


def test_what_a_crash_left_unflushed_is_flushed_before_the_first_fetch(tmp_path: Path) -> None:
    follower = Follower(tmp_path, LogConfig(flush_messages=1))
    follower.log.append_as_follower(batch(0, 3), EPOCH)
    follower.follow()
    assert where(follower.asked()) == [(0, 3, EPOCH)]
    assert follower.log.flushed_offset == 3
    follower.close()


def test_a_leader_that_does_not_answer_is_asked_again_with_a_new_session(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    follower.exchange(sent(batch(0)))
    for _ in range(3):
        follower.asked()
        follower.fetcher.handle_failure(ConnectionRefusedError("refused"))
        assert follower.fetcher.next_request() is None
        assert follower.fetcher.wake_ms == follower.clock.ms + 1000
        follower.pass_time(1000)
    assert caplog.text.count("does not answer") == 1
    request = follower.asked()
    assert (request.session_id, request.session_epoch) == (9, 0)
    assert where(request) == [(0, 1, EPOCH)]


def test_a_refused_request_is_not_repeated_at_once(follower: Follower) -> None:
    follower.asked()
    follower.answer(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert follower.fetcher.next_request() is None
    follower.pass_time(1000)
    follower.asked()
    follower.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert follower.asked().session_epoch == 0, "a lost session is no reason to wait"


def test_a_throttled_replica_that_is_behind_waits_for_its_quota(tmp_path: Path) -> None:
    config = LogConfig(follower_replication_throttled_replicas=frozenset(("0:1",)))
    follower = Follower(tmp_path, config, count=2)
    follower.quota.rate_limit = 10
    follower.follow()
    follower.exchange(sent(batch(0), hw=50), sent(batch(0), hw=50, index=1))
    assert follower.quota.is_exceeded()
    request = follower.asked()
    assert where(request) == [(1, 1, EPOCH)]
    assert [t.partitions for t in request.forgotten_topics_data] == [[0]]
    follower.answer()
    follower.pass_time(60_000)
    assert where(follower.asked()) == [(0, 1, EPOCH)]
    follower.close()


def test_a_throttled_replica_in_sync_is_not_held_back(tmp_path: Path) -> None:
    follower = Follower(tmp_path, LogConfig(follower_replication_throttled_replicas=frozenset("*")))
    follower.quota.rate_limit = 10
    follower.follow()
    follower.exchange(sent(batch(0), hw=1))
    assert follower.quota.is_exceeded()
    assert where(follower.asked()) == [(0, 1, EPOCH)]
    follower.close()


# ---- threads and addresses


class Leader:
    """An endpoint that answers from a list, then waits until it is interrupted or closed."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.is_disturbed = threading.Event()
        self.is_waiting = threading.Event()

    def exchange(self, request: Any) -> Any:
        self.asked.append(request)
        if self.answers:
            return self.answers.pop(0)
        self.is_waiting.set()
        self.is_disturbed.wait(HANGS_S)
        self.is_disturbed.clear()
        raise ConnectionError("closed")

    def interrupt(self) -> None:
        self.is_waiting.clear()
        self.is_disturbed.set()

    def close(self) -> None:
        self.is_disturbed.set()


def test_a_thread_fetches_until_it_is_ended(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    answer = FetchResponse(
        error_code=0,
        session_id=9,
        responses=[FetchResponse.Topic(topic_id=TOPIC_ID, partitions=[sent(batch(0, 2), hw=2)])],
    )
    leader = Leader(answer)
    thread = FetcherThread(follower.fetcher, leader, follower.clock)
    follower.follow()
    thread.wake()
    assert leader.is_waiting.wait(60)
    assert follower.log.log_end_offset == 2
    thread.shutdown()
    assert not thread._thread.is_alive()
    follower.close()


def test_a_new_partition_does_not_wait_for_a_fetch_without_news(tmp_path: Path) -> None:
    follower = Follower(tmp_path, count=3)
    leader = Leader()
    thread = FetcherThread(follower.fetcher, leader, follower.clock)
    one, other, third = (FollowedPartition(p, EPOCH) for p in follower.partitions)
    follower.fetcher.add_partitions([one])
    thread.wake()
    assert leader.is_waiting.wait(60)
    follower.pass_time(50)
    follower.fetcher.add_partitions([other])
    thread.wake()
    assert leader.is_waiting.wait(60)
    assert len(where(leader.asked[-1])) == 2
    assert leader.asked[-1].session_epoch == 0, "nobody knows what became of the one before"
    follower.pass_time(50)
    follower.fetcher.add_partitions([third])
    thread.wake()
    assert leader.is_waiting.is_set(), "not again so soon"
    assert len(leader.asked) == 2
    thread.shutdown()
    follower.close()


def test_an_interruption_is_for_the_exchange_that_it_found(tmp_path: Path) -> None:
    """The one after it failed now and then, and was asked again a second later."""

    class Hesitant(Leader):
        """Answers the first exchange as soon as somebody interrupts it."""

        overlapped = False

        def exchange(self, request: Any) -> Any:
            if not self.asked:
                self.asked.append(request)
                self.is_waiting.set()
                self.is_disturbed.wait(HANGS_S)
                self.is_disturbed.clear()
                return FetchResponse(error_code=0, session_id=9, responses=[])
            return super().exchange(request)

        def interrupt(self) -> None:
            self.is_waiting.clear()
            self.is_disturbed.set()
            self.overlapped = self.is_waiting.wait(0.3)

    follower = Follower(tmp_path, count=2)
    leader = Hesitant()
    thread = FetcherThread(follower.fetcher, leader, follower.clock)
    one, other = (FollowedPartition(p, EPOCH) for p in follower.partitions)
    follower.fetcher.add_partitions([one])
    thread.wake()
    assert leader.is_waiting.wait(60)
    follower.pass_time(50)
    follower.fetcher.add_partitions([other])
    thread.wake()
    assert not leader.overlapped
    assert leader.is_waiting.wait(60)
    assert [index for index, *_ in where(leader.asked[-1])] == [1]
    thread.shutdown()
    follower.close()
