"""A longer log: starting with it, starting after a crash, and finding a record by its time.

The log is of batches of 64 KiB, a millisecond apart. Below 10 GB its segments are 64 MiB instead of
Kafka's 1 GiB, so that a small log has as many segments as a large one; from there on they are as
usual.
"""

from __future__ import annotations

import random
import shutil
import time
from typing import TYPE_CHECKING

from benchmarks.loads import frames
from benchmarks.loads.base import Figures, LoadFailed, create_topic, delete_topic, expect_records
from benchmarks.loads.lifetime import ready_again
from wire.messages.data import ListOffsetsRequest

if TYPE_CHECKING:
    from benchmarks.growth.axes import Session

_BATCH_BYTES = 65_536
_SMALL_SEGMENT, _USUAL_FROM_GB = 64 << 20, 10
_LOOKUPS = 500
_LIST_OFFSETS = 7


class Later:
    """Produce requests of the same batch, each a millisecond later than the one before."""

    def __init__(self, topic: str, batch: bytes, start_ms: int, count: int) -> None:
        self._batch, self._start_ms, self._count = batch, start_ms, count
        whole = frames.produce_frame(topic, 0, batch)
        at = whole.index(batch)
        self._head, self._tail = whole[:at], whole[at + len(batch) :]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> bytes:
        if not 0 <= number < self._count:
            raise IndexError(number)
        moved = frames.at_time(self._batch, self._start_ms + number)
        return b"".join((self._head, moved, self._tail))


def log_of(session: Session, gb: float) -> Figures:
    """ms of a start after a clean stop and after kill -9, each until the partition answers, and of
    a look-up; µs of the broker's CPU for a look-up.
    """
    free = shutil.disk_usage(session.broker.data_dir).free
    if free < gb * 1.1e9:
        raise LoadFailed(f"{gb:g} GB of log, {free / 1e9:.0f} GB of room; --dir chooses where")
    topic = f"log-{gb:g}".replace(".", "-")
    settings = {} if gb >= _USUAL_FROM_GB else {"segment.bytes": str(_SMALL_SEGMENT)}
    create_topic(session.address, topic, config=settings)
    batch, held = frames.batch_of(1000, _BATCH_BYTES, 1)
    count = max(2, int(gb * 1e9 / len(batch)))
    start_ms = int(time.time() * 1000) - count
    with frames.connect(session.address) as sock:
        fill_s = frames.pipelined(sock, Later(topic, batch, start_ms, count), count, 5)
    expect_records(session.address, topic, 1, count * held)
    broker = session.broker
    restart_s = ready_again(broker, broker.stop, topic, 1)
    crash_s = ready_again(broker, broker.kill, topic, 1)
    expect_records(session.address, topic, 1, count * held)
    lookups = [
        _lookup(topic, start_ms + random.Random(n).randrange(count)) for n in range(_LOOKUPS)
    ]
    with frames.connect(session.address) as sock:
        _check(sock, topic, start_ms + count // 2, count // 2 * held)
        cost = session.cost([sock], lookups)
    delete_topic(session.address, topic)
    return {
        "fill_s": fill_s,
        "restart_ms": restart_s * 1000,
        "crash_ms": crash_s * 1000,
        "lookup_ms": cost["p50_us"] / 1000,
        "lookup_cpu_us": cost["cpu_us"],
    }


def _request(topic: str, timestamp_ms: int) -> ListOffsetsRequest:
    asked = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=timestamp_ms)
    topics = [ListOffsetsRequest.Topic(name=topic, partitions=[asked])]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


def _lookup(topic: str, timestamp_ms: int) -> bytes:
    return frames.frame(_request(topic, timestamp_ms), _LIST_OFFSETS)


def _check(sock: frames.Socket, topic: str, timestamp_ms: int, expected: int) -> None:
    """One look-up whose answer is known."""
    answer = frames.ask(sock, _request(topic, timestamp_ms), _LIST_OFFSETS)
    found = answer.topics[0].partitions[0].offset  # type: ignore[attr-defined]
    if found != expected:
        raise LoadFailed(f"the record of {timestamp_ms} is at {expected}, not at {found}")
