"""Cost of the replication layer per request: `python -m benchmarks.micro.replication [NAME...]`.

Each figure is the best of several rounds, in microseconds. "on top" is the difference to the log
call the request contains, measured in the same run: the budgets in the docstrings are about that.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from replication.metadata.image import EMPTY_IMAGE, MetadataDelta, PartitionRegistration, TopicImage
from replication.replicas.replica_manager import (
    AppendRequest,
    FetchPartition,
    ReplicaManager,
    ReplicaManagerConfig,
)
from replication.replicas.timer import Timer
from storage.config import LogConfig, SystemClock
from storage.directories.log_manager import LogManager
from testkit.clock import WALL_MS
from wire.primitives import TopicPartition
from wire.records import Record, build_batch

TOPIC_ID = b"benchmark topic!"
DIRECTORY_ID = b"benchmark direct"
PRODUCED, READ, QUIET = (TopicPartition("orders", index) for index in range(3))
BATCH = build_batch([Record(-1, WALL_MS, None, bytes(100))])


def microseconds(call: Callable[[], object], count: int, rounds: int = 5) -> float:
    """Best mean cost of one call."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter_ns()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter_ns() - started) / count)
    return best / 1000


def nothing(results: object) -> None:
    """The callback of a request whose answer nobody wants."""


def make_manager(root: Path, timer: Timer) -> tuple[ReplicaManager, LogManager]:
    """Three partitions in one directory, led by this node."""
    registration = PartitionRegistration((0,), (DIRECTORY_ID,), (0,), 0)
    topic = TopicImage("orders", TOPIC_ID, dict.fromkeys(range(3), registration))
    image = replace(
        EMPTY_IMAGE, offset=1, topics_by_name={"orders": topic}, topics_by_id={TOPIC_ID: topic}
    )
    clock = SystemClock()
    logs = LogManager({root: DIRECTORY_ID}, LogConfig(), clock, None, lambda *_: None)
    logs.startup(lambda _: LogConfig())
    manager = ReplicaManager(
        ReplicaManagerConfig(),
        logs,
        lambda: image,
        timer,
        clock,
        0,
        topic_config=lambda topic: LogConfig(),
    )
    manager.apply_delta(MetadataDelta(EMPTY_IMAGE), image)
    return manager, logs


def measure(root: Path, timer: Timer) -> dict[str, float]:
    """Microseconds by name."""
    manager, logs = make_manager(root, timer)
    log, read_log = logs.get(PRODUCED), logs.get(READ)
    assert log is not None
    assert read_log is not None
    wall_ms = SystemClock().wall_ms()
    entries = [(PRODUCED, BATCH)]
    read_log.append_as_leader(BATCH, 0, wall_ms)
    read_log.update_high_watermark(1)
    at_data = [FetchPartition("orders", TOPIC_ID, READ.partition_index, 0)]
    at_end = [FetchPartition("orders", TOPIC_ID, QUIET.partition_index, 0)]

    def append_to_log() -> None:
        log.append_as_leader(BATCH, 0, wall_ms)

    def produce(acks: int) -> Callable[[], object]:
        return lambda: manager.append_records(AppendRequest(acks, 1000, entries, nothing))

    def park() -> None:
        operation = manager.fetch(-1, 500, 1, 1 << 20, 0, at_end, nothing)
        assert operation is not None
        operation.cancel()

    def long_poll() -> None:
        end = [FetchPartition("orders", TOPIC_ID, PRODUCED.partition_index, log.log_end_offset)]
        manager.fetch(-1, 500, 1, 1 << 20, 0, end, nothing)
        manager.append_records(AppendRequest(1, 1000, entries, nothing))

    bare = microseconds(append_to_log, 5_000)
    figures = {
        "log append": bare,
        "produce acks=1, on top": microseconds(produce(1), 5_000) - bare,
        "produce acks=all, on top": microseconds(produce(-1), 5_000) - bare,
        "log read at the end": microseconds(lambda: read_log.read(0, 1 << 20, True, 1), 5_000),
        "fetch with data": microseconds(
            lambda: manager.fetch(-1, 500, 1, 1 << 20, 0, at_data, nothing), 5_000
        ),
        "park and cancel a fetch": microseconds(park, 5_000),
        "long poll: park, append, read": microseconds(long_poll, 2_000),
        "check_and_complete, nothing watched": microseconds(
            lambda: manager.parked.fetch.check_and_complete(QUIET), 100_000
        ),
        "timer add and cancel": microseconds(lambda: timer.add(500, print).cancel(), 50_000),
    }
    manager.shutdown()
    logs.shutdown(0)
    return figures


def main() -> None:
    wanted = sys.argv[1:]
    timer = Timer(SystemClock())
    timer.start()
    with tempfile.TemporaryDirectory() as root:
        for name, figure in measure(Path(root), timer).items():
            if not wanted or any(word in name for word in wanted):
                print(f"{name:40} {figure:8.2f} us")
    timer.shutdown()


if __name__ == "__main__":
    main()
