"""Which leader each followed partition is fetched from, and the threads that do it.

What: one `ReplicaFetcher` per leader broker and fetcher number (num.replica.fetchers); partitions
are spread over the numbers by name. A fetcher whose leader moved to another address is replaced,
one without partitions is ended. Kafka: ReplicaFetcherManager, ReplicaFetcherThread.

A partition has at most one fetcher: giving it to another takes it from the one before. What the
old one still has in flight is refused by the partition, because the leader epoch is another.

Threads: metadata's thread calls `follow` and `unfollow`, anybody reads. A `FetcherThread` blocks in
its leader's answers; ending it closes the connection. Lock: `_lock` guards the maps; runners are
started and ended without it.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from replication.fetcher import FetcherConfig, FollowedPartition, LeaderEndpoint, ReplicaFetcher

if TYPE_CHECKING:
    from replication.partition import Partition
    from replication.registrations import Endpoint
    from replication.replication_quota import ReplicationQuota
    from storage.config import Clock
    from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

_JOIN_S = 10.0


class FetcherRunner(Protocol):
    """Who makes a fetcher's turns: a thread, or a simulator."""

    def wake(self) -> None:
        """There is something new in the inbox."""

    def shutdown(self) -> None:
        """Make no more turns; returns when none is being made."""


class FetcherThread:
    """Runs one fetcher on a thread of its own: `turn`, or wait until there is a reason to."""

    def __init__(self, fetcher: ReplicaFetcher, endpoint: LeaderEndpoint, clock: Clock) -> None:
        self._fetcher = fetcher
        self._endpoint = endpoint
        self._clock = clock
        self._condition = threading.Condition()
        self._is_woken = False
        self._is_stopping = False
        self._thread = threading.Thread(
            target=self._run, name=f"replica-fetcher-leader-{fetcher.leader_id}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        with self._condition:
            self._is_woken = True
            self._condition.notify()

    def shutdown(self) -> None:
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._endpoint.close()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            logger.error("fetcher does not end leader=%s", self._fetcher.leader_id)

    def _run(self) -> None:
        fetcher, endpoint = self._fetcher, self._endpoint
        while not self._is_stopping:
            self._is_woken = False
            try:
                if not fetcher.turn(endpoint):
                    self._wait(fetcher.wake_ms)
            except Exception as error:  # a fault of ours: the others must not suffer from it
                logger.exception("fetcher failed leader=%s", fetcher.leader_id)
                fetcher.handle_failure(error)

    def _wait(self, wake_ms: int | None) -> None:
        with self._condition:
            if self._is_woken or self._is_stopping:
                return
            if wake_ms is None:
                self._condition.wait()
            else:
                self._condition.wait(max(wake_ms - self._clock.now_ms(), 0) / 1000)


RunFetcher = Callable[[ReplicaFetcher, "Endpoint"], FetcherRunner]
"""Start a fetcher against its leader's address."""


class _Running(NamedTuple):
    fetcher: ReplicaFetcher
    runner: FetcherRunner
    address: Endpoint


class ReplicaFetcherManager:
    """See the module."""

    def __init__(
        self,
        config: FetcherConfig,
        fetcher_count: int,
        node_id: int,
        broker_epoch: Callable[[], int],
        clock: Clock,
        run: RunFetcher,
        *,
        quota: ReplicationQuota,
        on_progress: Callable[[Partition], object],
    ) -> None:
        self._config = config
        self._fetcher_count = fetcher_count
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._run = run
        self._quota = quota
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._running: dict[tuple[int, int], _Running] = {}
        self._fetched_by: dict[TopicPartition, tuple[tuple[int, int], Partition]] = {}
        self._is_stopped = False

    def follow(self, partition: Partition, leader: int, address: Endpoint, epoch: int) -> None:
        """Fetch a partition from `leader`, at this address, under this leader epoch."""
        key = partition.topic_partition
        slot = (leader, self._number(key))
        with self._lock:
            if self._is_stopped:
                return
            before = self._fetched_by.get(key)
            running = self._running.get(slot)
            moved = running is not None and running.address != address
        if before is not None and (before[0] != slot or before[1] is not partition):
            self._take_away(key)
        if moved:
            self._move(slot, address)
        running = self._runner_of(slot, address)
        with self._lock:
            self._fetched_by[key] = slot, partition
        running.fetcher.add_partitions([FollowedPartition(partition, epoch)])
        running.runner.wake()

    def unfollow(self, keys: Iterable[TopicPartition]) -> None:
        """Fetch these no more; unknown ones are ignored."""
        for key in keys:
            self._take_away(key)
        self._end_idle()

    def _take_away(self, key: TopicPartition) -> None:
        with self._lock:
            slot, partition = self._fetched_by.pop(key, (None, None))
            running = None if slot is None else self._running.get(slot)
        if running is not None and partition is not None:
            running.fetcher.remove_partitions([(partition.topic_id, key[1])])
            running.runner.wake()

    def _move(self, slot: tuple[int, int], address: Endpoint) -> None:
        """The leader has another address: end its fetcher, give its partitions to a new one."""
        with self._lock:
            old = self._running.pop(slot)
            partitions = [p for where, p in self._fetched_by.values() if where == slot]
        logger.info("leader moved leader=%s from=%s:%s", slot[0], old.address[0], old.address[1])
        old.runner.shutdown()
        new = self._runner_of(slot, address)
        new.fetcher.add_partitions(FollowedPartition(p, p.leader_epoch) for p in partitions)
        new.runner.wake()

    def _runner_of(self, slot: tuple[int, int], address: Endpoint) -> _Running:
        running = self._running.get(slot)
        if running is None:
            fetcher = ReplicaFetcher(
                self._config,
                slot[0],
                self._node_id,
                self._broker_epoch,
                self._clock,
                quota=self._quota,
                on_progress=self._on_progress,
                number=slot[1],
            )
            running = _Running(fetcher, self._run(fetcher, address), address)
            with self._lock:
                self._running[slot] = running
            logger.info(
                "fetching from leader=%s address=%s:%s", slot[0], address.host, address.port
            )
        return running

    def _end_idle(self) -> None:
        with self._lock:
            used = {slot for slot, _ in self._fetched_by.values()}
            idle = [self._running.pop(slot) for slot in list(self._running) if slot not in used]
        for running in idle:
            running.runner.shutdown()

    def _number(self, key: TopicPartition) -> int:
        """Which of a leader's fetchers; the same for a partition as long as there are as many."""
        if self._fetcher_count == 1:
            return 0
        return (zlib.crc32(key[0].encode()) + key[1]) % self._fetcher_count

    def shutdown(self) -> None:
        """End every fetcher; nothing is followed any more."""
        with self._lock:
            self._is_stopped = True
            ending = list(self._running.values())
            self._running.clear()
            self._fetched_by.clear()
        for running in ending:
            running.runner.shutdown()

    # ------------------------------------------------------------------ describing

    @property
    def fetchers(self) -> list[ReplicaFetcher]:
        with self._lock:
            return [running.fetcher for running in self._running.values()]

    @property
    def max_lag(self) -> int:
        """The largest lag of a followed partition, in records (Kafka: MaxLag)."""
        return max((fetcher.max_lag for fetcher in self.fetchers), default=0)
