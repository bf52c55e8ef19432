"""Which leader each followed partition is fetched from, and the threads that do it.

What: one `ReplicaFetcher` per leader broker and fetcher number (num.replica.fetchers); partitions
are spread over the numbers by name. A fetcher whose leader moved to another address is replaced,
one without partitions is ended. Kafka: ReplicaFetcherManager, ReplicaFetcherThread.

A partition has at most one fetcher: giving it to another takes it from the one before. What the
old one still has in flight is refused by the partition, because the leader epoch is another.

How: whoever changed a partition says so (`update`), and what is to be done is read from the
partition when its turn comes: its leader, epoch and log of that moment. So it does not matter in
which order threads tell of their changes; the last look sees the last state. Where the system gives
no thread for a fetcher, it is tried again with the next update: each change of metadata makes one.

Threads: any may call `update`. What is told goes through an inbox, and one thread at a time, the
owner, works it off: it alone decides, starts and ends fetchers. `_owner` is held meanwhile, and
only `shutdown` waits for it. A `FetcherThread` blocks in its leader's answers; ending it closes the
connection. Fetchers in turn take what they are given through an inbox of their own.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from replication.following.fetch_state import FollowedPartition
from replication.following.fetcher import FetcherConfig, LeaderEndpoint, ReplicaFetcher
from replication.raft.own_events import NO_LEADER

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
            # Under the lock, without which the next exchange does not begin: it would be the one
            # that fails, and wait for replica.fetch.backoff.ms. Nothing is sent by it.
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


Slot = tuple[int, int]
"""(leader's broker id, fetcher number)."""


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
        address_of: Callable[[int], Endpoint | None],
        quota: ReplicationQuota,
        on_progress: Callable[[Partition], object],
    ) -> None:
        """`address_of` says where a broker is reached now, None if nobody knows."""
        self.fetchers: tuple[ReplicaFetcher, ...] = ()
        """Those that run, for who describes them; replaced whole."""
        self._config = config
        self._fetcher_count = fetcher_count
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._run = run
        self._address_of = address_of
        self._quota = quota
        self._on_progress = on_progress
        self._inbox: deque[tuple[Partition, ...]] = deque()
        self._owner = threading.Lock()
        # The owner's:
        self._running: dict[Slot, _Running] = {}
        self._fetched_by: dict[TopicPartition, tuple[Slot, Partition]] = {}
        self._told: dict[Slot, None] = {}
        self._missing: dict[Slot, None] = {}
        self._is_stopped = False

    def update(self, partitions: Iterable[Partition]) -> None:
        """Something about these changed: fetch each as it is now, or no more.

        A change may still be under way on another thread when this returns.
        """
        self._inbox.append(tuple(partitions))
        # Who finds an owner at work leaves it to them; who was owner looks once more.
        while self._inbox and self._owner.acquire(blocking=False):
            try:
                self._work_off_inbox()
            finally:
                self._owner.release()

    def shutdown(self) -> None:
        """End every fetcher; nothing is followed any more."""
        with self._owner:
            self._is_stopped = True
            self._inbox.clear()
            self._fetched_by.clear()
            self._end_idle()

    # ------------------------------------------------------------------ the owner

    def _work_off_inbox(self) -> None:
        while self._inbox:
            partitions = self._inbox.popleft()
            if self._is_stopped:
                continue
            self._start_missing()
            for partition in partitions:
                self._look_at(partition)
            self._end_idle()
            told, self._told = self._told, {}
            for slot in told:
                running = self._running.get(slot)
                if running is not None:
                    running.runner.wake()

    def _look_at(self, partition: Partition) -> None:
        key = partition.topic_partition
        slot, followed = self._fetched_by.get(key, (None, None))
        address = self._leader_address(partition)
        if address is None:
            if followed is partition:
                self._take_away(key)
            return
        wanted = partition.leader_id, self._number(key)
        if followed is not None and (slot != wanted or followed is not partition):
            self._take_away(key)
        self._fetched_by[key] = wanted, partition
        running = self._running.get(wanted)
        if running is not None and running.address == address:
            running.fetcher.add_partitions([FollowedPartition(partition, partition.leader_epoch)])
            self._told[wanted] = None
        elif wanted not in self._missing:
            self._start(wanted, address)

    def _start_missing(self) -> None:
        """Start the fetchers for which there was no thread."""
        missing, self._missing = self._missing, {}
        for slot in missing:
            address = self._address_of(slot[0])
            is_wanted = any(slot == used for used, _ in self._fetched_by.values())
            if address is not None and is_wanted:
                self._start(slot, address)

    def _leader_address(self, partition: Partition) -> Endpoint | None:
        """Where the partition is to be fetched from; None if it is not to be fetched."""
        leader_id = partition.leader_id
        if leader_id in (NO_LEADER, self._node_id) or partition.log is None:
            return None
        address = self._address_of(leader_id)
        if address is None:
            logger.warning(
                "leader has no address yet partition=%s-%s leader=%s",
                *partition.topic_partition, leader_id,
            )  # fmt: skip
        return address

    def _take_away(self, key: TopicPartition) -> None:
        slot, partition = self._fetched_by.pop(key)
        running = self._running.get(slot)
        if running is not None:
            running.fetcher.remove_partitions([(partition.topic_id, key[1])])

    def _start(self, slot: Slot, address: Endpoint) -> None:
        """Fetch what there is from a leader, in place of the fetcher of another address if there is
        one."""
        old = self._running.pop(slot, None)
        if old is not None:
            logger.info("leader moved leader=%s from=%s:%s", slot[0], *old.address[:2])
            old.runner.shutdown()
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
        fetcher.add_partitions(
            FollowedPartition(partition, partition.leader_epoch)
            for where, partition in self._fetched_by.values()
            if where == slot
        )
        try:
            runner = self._run(fetcher, address)
        except RuntimeError as error:
            logger.error("no thread to fetch with, tried again later leader=%s error=%s",
                         slot[0], error)  # fmt: skip
            self._missing[slot] = None
            return
        self._running[slot] = _Running(fetcher, runner, address)
        self._publish()
        logger.info("fetching from leader=%s address=%s:%s", slot[0], address.host, address.port)

    def _end_idle(self) -> None:
        used = {slot for slot, _ in self._fetched_by.values()}
        idle = [self._running.pop(slot) for slot in list(self._running) if slot not in used]
        for running in idle:
            running.runner.shutdown()
        self._publish()

    def _publish(self) -> None:
        self.fetchers = tuple(running.fetcher for running in self._running.values())

    def _number(self, key: TopicPartition) -> int:
        """Which of a leader's fetchers; the same for a partition as long as there are as many."""
        if self._fetcher_count == 1:
            return 0
        return (zlib.crc32(key[0].encode()) + key[1]) % self._fetcher_count
