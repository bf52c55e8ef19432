"""What read_committed consumers see (V-2, V-3, TX-60..65), against an oracle.

The oracle knows, of every batch, whether it is plain or of which transaction, and how that ended.
A consumer, written after Java's CompletedFetch, must see exactly what was committed, in order, and
nothing at or above the last stable offset.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from replication.partition.requests import AppendRequest, AppendResult, FetchResult
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from testkit.clock import WALL_MS
from tests.replication.replicas.test_replica_manager import (
    ORDERS,
    ORDERS_0,
    Answer,
    Broker,
    codes,
    led,
    read_from,
    topic,
)
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.primitives import LATEST_TIMESTAMP, MAX_TIMESTAMP
from wire.record_batch import read_header
from wire.records import Record, build_batch, end_txn_marker_batch, read_records

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
ROWS_MAX = 3


@dataclass
class Transaction:
    """What the oracle knows of one: how it ended, and where its marker is."""

    marker: int = -1
    end: str = OPEN


@dataclass
class Producer:
    """A transactional producer of version 2: each transaction has the next epoch."""

    pid: int
    epoch: int = 0
    sequence: int = 0
    transaction: Transaction | None = None


@dataclass
class History:
    """Offset -> value and the transaction it belongs to, None if to none."""

    rows: list[tuple[int, bytes, Transaction | None]] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)

    def last_stable_offset(self, high_watermark: int, start: int = 0) -> int:
        """TX-63: before the first transaction whose end is not known to all replicas; as told by
        the records from `start` on."""
        undecided = [
            offset
            for offset, _, t in self.rows
            if offset >= start and t and (t.end == OPEN or t.marker >= high_watermark)
        ]
        return min([*undecided, high_watermark])

    def committed(self, begin: int, stable: int) -> list[tuple[int, bytes]]:
        return [
            (offset, value)
            for offset, value, transaction in self.rows
            if begin <= offset < stable and (transaction is None or transaction.end == COMMITTED)
        ]


class World:
    """A partition on two nodes, led here; producers, a follower, and its own copy of the log."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng = rng
        self.broker = Broker(root)
        # Segments of a few batches, and an index entry for each of them.
        self.config = LogConfig(segment_bytes=700, index_interval_bytes=1)
        self.broker.configs["orders"] = self.config
        self.broker.publish(topic("orders", ORDERS, led(isr=(1, 2), replicas=(1, 2))))
        self.copy = open_log(
            root / "copy", ORDERS_0, self.config, LogEnvironment(root, clock=self.broker.clock)
        )
        self.producers = [Producer(pid) for pid in range(1, 5)]
        self.history = History()
        self.start = self.stable = 0
        self.number = 0

    @property
    def log(self) -> PartitionLog:
        return self.broker.logs.logs[ORDERS_0]

    def close(self) -> None:
        self.broker.manager.shutdown()
        for log in (*self.broker.logs.all_logs(), self.copy):
            log.close()

    # -- what happens

    def append(self, batch: bytes, *, version: int = 0, is_marker: bool = False) -> int:
        answer: Answer[list[AppendResult]] = Answer()
        source = FROM_COORDINATOR._replace(transaction_version=version)
        request = AppendRequest(1, 1000, [(ORDERS_0, batch)], answer)
        self.broker.manager.append_records(
            request._replace(source=source) if is_marker else request
        )
        assert codes(answer) == [0]
        return answer.value[0].base_offset

    def _records(self) -> list[Record]:
        rows = []
        for _ in range(self.rng.randint(1, ROWS_MAX)):
            self.number += 1
            rows.append(Record(-1, WALL_MS + self.number, b"k", b"%d" % self.number))
        return rows

    def _written(self, rows: list[Record], base: int, transaction: Transaction | None) -> None:
        for delta, row in enumerate(rows):
            assert row.value is not None
            self.history.rows.append((base + delta, row.value, transaction))

    def write_plain(self) -> None:
        rows = self._records()
        self._written(rows, self.append(build_batch(rows)), None)

    def write(self) -> None:
        producer = self.rng.choice(self.producers)
        rows = self._records()
        base = self.append(
            build_batch(
                rows,
                producer_id=producer.pid,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
                is_transactional=True,
            )
        )
        producer.sequence += len(rows)
        if producer.transaction is None:
            producer.transaction = Transaction()
            self.history.transactions.append(producer.transaction)
        self._written(rows, base, producer.transaction)

    def end(self) -> None:
        """A marker; also of a producer that wrote nothing here, and twice (TX-60, TX-61)."""
        producer = self.rng.choice(self.producers)
        kind = self.rng.choice((ControlRecordType.COMMIT, ControlRecordType.ABORT))
        producer.epoch, producer.sequence = producer.epoch + 1, 0
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            marker = end_txn_marker_batch(
                EndTxnMarker(kind, 0),
                producer_id=producer.pid,
                producer_epoch=producer.epoch,
                timestamp=WALL_MS,
            )
            at = self.append(marker, version=2, is_marker=True)
            if producer.transaction is not None:
                producer.transaction.marker = at
                producer.transaction.end = ABORTED if kind is ControlRecordType.ABORT else COMMITTED
                producer.transaction = None

    def replicate(self) -> None:
        """The follower takes some batches, and acknowledges them with its next fetch."""
        for _ in range(self.rng.randint(1, 4)):
            self._copy_one()
        self.broker.follower_fetches(self.copy.log_end_offset)
        self.copy.update_high_watermark(self.log.high_watermark)

    def _copy_one(self) -> None:
        at = self.copy.log_end_offset
        if at >= self.log.log_end_offset:
            return
        read = self.log.read(at, 1 << 20, True, self.log.log_end_offset).records
        assert read is not None
        data = read.read()
        read.close()
        self.copy.append_as_follower(data[: read_header(data).size], 0)

    def delete_records(self) -> None:
        """Up to an offset anywhere below the high watermark, in an open transaction too."""
        self.start = self.rng.randint(self.start, self.log.high_watermark)
        for log in (self.log, self.copy):
            log.increment_log_start_offset(self.start)

    def restart(self) -> None:
        """The copy is opened again, after a clean stop or as after a kill."""
        is_clean = self.rng.random() < 0.5
        copy = self.copy
        if is_clean:
            copy.flush()
        copy.close()
        recovery_point = copy.log_end_offset if is_clean else 0
        self.copy = open_log(
            copy.directory,
            ORDERS_0,
            self.config,
            copy.environment,
            recovery_point=recovery_point,
            log_start_offset=self.start,
            had_clean_shutdown=is_clean,
        )
        self.copy.update_high_watermark(self.log.high_watermark)

    # -- what must hold

    def check(self) -> None:
        high_watermark = self.log.high_watermark
        stable = max(self.history.last_stable_offset(high_watermark), self.start)
        assert self.log.last_stable_offset == stable
        assert stable >= self.stable, "the last stable offset went back"
        self.stable = stable
        assert self.copy.high_watermark == min(high_watermark, self.copy.log_end_offset)
        # Who was started after records were deleted may not know where a transaction began: it
        # begins with what is left of it there.
        rebuilt = self.history.last_stable_offset(high_watermark, self.start)
        assert stable <= self.copy.last_stable_offset <= max(rebuilt, self.start)

    def check_readers(self) -> None:
        begin = self.rng.randint(self.start, self.stable)
        self.check_list_offsets()
        for log in (self.log, self.copy):
            seen = self.consume(begin, log is self.copy)
            assert seen == self.history.committed(begin, log.last_stable_offset)

    def check_list_offsets(self) -> None:
        """TX-65."""
        for timestamp in (LATEST_TIMESTAMP, MAX_TIMESTAMP, WALL_MS + self.rng.randint(1, 99)):
            code, _, offset, _ = self.broker.manager.list_offset(ORDERS_0, timestamp, 1, -1, -1)
            assert code == 0
            if timestamp == LATEST_TIMESTAMP:
                assert offset == self.stable
            elif timestamp == MAX_TIMESTAMP:
                assert offset < self.stable
            else:
                first = min(
                    (
                        at
                        for at, value, _ in self.history.rows
                        if at >= self.start and WALL_MS + int(value) >= timestamp
                    ),
                    default=-1,
                )
                assert offset == (first if first < self.stable else -1)

    def consume(self, begin: int, of_copy: bool) -> list[tuple[int, bytes]]:
        """Fetch from `begin` until there is nothing more, in pieces of any size."""
        seen: list[tuple[int, bytes]] = []
        position = begin
        while True:
            result = self._fetch(position, self.rng.choice((1, 100, 400, 2000, 1 << 20)), of_copy)
            assert result.aborted is not None
            if result.records is None:
                return seen
            data = result.records.read()
            result.records.close()
            to = _without_aborted(result, data, position, seen)
            assert to > position
            position = to

    def _fetch(self, offset: int, max_bytes: int, of_copy: bool) -> FetchResult:
        if not of_copy:
            request = read_from(offset, max_bytes=max_bytes)
            answer = self.broker.fetch(request, max_wait_ms=0, isolation=1)
            assert answer.value[0].error_code == 0
            return answer.value[0]
        log = self.copy
        stable = log.last_stable_offset
        result = FetchResult(0, log.high_watermark, stable, 0, aborted=())
        if offset < stable:
            read = log.read(offset, max_bytes, True, stable, include_aborted=True)
            result.records, result.aborted = read.records, read.aborted
        return result


def _without_aborted(
    result: FetchResult, data: bytes, position: int, seen: list[tuple[int, bytes]]
) -> int:
    """What Java's consumer hands out of one answer; the offset it goes on from."""
    assert result.aborted is not None
    waiting = sorted((txn.first_offset, txn.producer_id) for txn in result.aborted)
    aborted: set[int] = set()
    at = 0
    while at + 12 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + size > len(data):
            break
        header = read_header(data, at)
        assert header.last_offset < result.last_stable_offset
        while waiting and waiting[0][0] <= header.last_offset:
            aborted.add(waiting.pop(0)[1])
        rows = list(read_records(data, at))
        if header.is_control:
            assert rows[0].key is not None
            if rows[0].key[3] == ControlRecordType.ABORT:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            seen += [(r.offset, r.value or b"") for r in rows if r.offset >= position]
        position = max(position, header.next_offset)
        at += size
    return position


@pytest.mark.parametrize("seed", range(8))
def test_readers_see_what_was_committed_and_nothing_else(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, rng)
    steps = (
        [world.write] * 6 + [world.end] * 4 + [world.write_plain] * 2
        + [world.replicate] * 5 + [world.restart]
        + [world.delete_records] * (seed % 2)
    )  # fmt: skip
    for number in range(260):
        rng.choice(steps)()
        world.check()
        if number % 5 == 0:
            world.check_readers()
    ends = [transaction.end for transaction in world.history.transactions]
    assert min(ends.count(end) for end in (COMMITTED, ABORTED)) > 5
    assert len(world.log.segments) > 5
    world.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, random.Random(0))
    yield world
    world.close()


@pytest.mark.parametrize("min_bytes", [1, 50])
def test_a_consumer_waits_while_there_is_only_undecided_data(world: World, min_bytes: int) -> None:
    """TX-64: it is woken when the marker is on all replicas, not when it is written."""
    producer = world.producers[0]
    world.producers = [producer]

    def replicate() -> None:
        while world.copy.log_end_offset < world.log.log_end_offset:
            world.replicate()
        world.replicate()

    world.write()
    replicate()
    committed, dirty = (
        world.broker.fetch(read_from(0), isolation=isolation, min_bytes=min_bytes)
        for isolation in (1, 0)
    )
    assert (committed.is_pending, dirty.is_pending) == (True, False)
    world.write()
    replicate()
    assert committed.is_pending
    world.end()
    assert committed.is_pending
    replicate()
    (result,) = committed.value
    assert result.last_stable_offset == world.log.log_end_offset
    assert result.records is not None
    result.records.close()


def test_an_answer_without_records_has_an_empty_list_of_aborted_transactions(
    world: World,
) -> None:
    """TX-64: None is for read_uncommitted."""
    world.write()
    found = [world._fetch(0, 1 << 20, False)]
    found += world.broker.fetch(read_from(0), max_wait_ms=0).value
    assert [(one.records, one.aborted) for one in found] == [(None, ()), (None, None)]
