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

from replication.following.fetch_state import FollowedPartition
from replication.following.fetcher import FetcherConfig, LeaderEndpoint, ReplicaFetcher

if TYPE_CHECKING:
    from replication.following.replication_quota import ReplicationQuota
    from replication.metadata.registrations import Endpoint
    from replication.partition.partition import Partition
    from storage.config import Clock
    from wire.messages.data import FetchRequest, ListOffsetsRequest
    from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)

_JOIN_S = 10.0
_PATIENCE_MS = 10
_INTERRUPT_MS = 100


class FetcherRunner(Protocol):
    """Who makes a fetcher's turns: a thread, or a simulator."""

    def wake(self) -> None:
        """There is something new in the inbox."""

    def shutdown(self) -> None:
        """Make no more turns; returns when none is being made."""


class InterruptibleEndpoint(LeaderEndpoint, Protocol):
    """A leader whose answer need not be waited for."""

    def interrupt(self) -> None:
        """Make an exchange under way fail; the next one works again. From any thread."""


class FetcherThread:
    """Runs one fetcher on a thread of its own: ask, or wait until there is a reason to.

    A fetch without news stays with the leader for replica.fetch.wait.max.ms, and what is added
    meanwhile is not in it: nobody could commit to a new partition for half a second. So a wake-up
    interrupts an exchange that has waited a while, but not more than once in `_INTERRUPT_MS`,
    because a new connection and a new session cost something too. (Kafka lets it wait.)
    """

    def __init__(
        self, fetcher: ReplicaFetcher, endpoint: InterruptibleEndpoint, clock: Clock
    ) -> None:
        self._fetcher = fetcher
        self._endpoint = endpoint
        self._clock = clock
        self._condition = threading.Condition()
        # Guarded by _condition:
        self._is_woken = False
        self._is_stopping = False
        self._asked_ms: int | None = None
        self._interrupted_ms = -_INTERRUPT_MS
        self._is_interrupted = False
        self._thread = threading.Thread(
            target=self._run, name=f"replica-fetcher-leader-{fetcher.leader_id}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        now_ms = self._clock.now_ms()
        with self._condition:
            self._is_woken = True
            self._condition.notify()
            if (
                self._asked_ms is None
                or now_ms - self._asked_ms < _PATIENCE_MS
                or now_ms - self._interrupted_ms < _INTERRUPT_MS
            ):
                return
            self._interrupted_ms = now_ms
            self._is_interrupted = True
        self._endpoint.interrupt()

    def shutdown(self) -> None:
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._endpoint.close()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            logger.error("fetcher does not end leader=%s", self._fetcher.leader_id)

    def _run(self) -> None:
        while not self._is_stopping:
            self._is_woken = False
            try:
                request = self._fetcher.next_request()
                if request is None:
                    self._wait(self._fetcher.wake_ms)
                else:
                    self._exchange(request)
            except Exception as error:  # a fault of ours: the others must not suffer from it
                logger.exception("fetcher failed leader=%s", self._fetcher.leader_id)
                self._fetcher.handle_failure(error)

    def _exchange(self, request: FetchRequest | ListOffsetsRequest) -> None:
        with self._condition:
            self._is_interrupted = False
            self._asked_ms = self._clock.now_ms()
        failure: OSError | None = None
        try:
            response = self._endpoint.exchange(request)
        except OSError as error:
            failure = error
        with self._condition:
            self._asked_ms = None
            is_interrupted = self._is_interrupted
        if failure is None:
            self._fetcher.handle_response(response)
        elif is_interrupted:
            self._fetcher.handle_interruption()
        elif not self._is_stopping:
            self._fetcher.handle_failure(failure)

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
        self._changed: set[tuple[int, int]] = set()
        self._is_stopped = False

    def follow(self, partition: Partition, leader: int, address: Endpoint, epoch: int) -> None:
        """Fetch a partition from `leader`, at this address, under this leader epoch.

        Takes effect at the fetcher's next request; `wake` once everything is told.
        """
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
        with self._lock:
            self._changed.add(slot)

    def wake(self) -> None:
        """Let the fetchers that were told something look at it now."""
        with self._lock:
            changed = [self._running[slot] for slot in self._changed if slot in self._running]
            self._changed.clear()
        for running in changed:
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

    def _move(self, slot: tuple[int, int], address: Endpoint) -> None:
        """The leader has another address: end its fetcher, give its partitions to a new one."""
        with self._lock:
            old = self._running.pop(slot)
            partitions = [p for where, p in self._fetched_by.values() if where == slot]
        logger.info("leader moved leader=%s from=%s:%s", slot[0], old.address[0], old.address[1])
        old.runner.shutdown()
        new = self._runner_of(slot, address)
        new.fetcher.add_partitions(FollowedPartition(p, p.leader_epoch) for p in partitions)

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
