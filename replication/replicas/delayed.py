"""The three requests of the replica manager that may have to wait.

    DelayedProduce         until the HW covers every appended batch (acks=all), or the batch is
                           flushed (acks=1 with flush.messages); then, or at its deadline, answer
    DelayedFetch           until min_bytes can be read, or something about a partition changed
    DelayedDeleteRecords   until the low watermark of all living replicas has come up

Each is watched under the (topic, partition_index) tuples it concerns. `try_complete` only reads
partitions, or guards its own progress with its own lock, as `purgatory` asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from replication.partition.log_reads import diverges
from replication.partition.requests import UNKNOWN_EPOCH, AppendResult, FetchPartition, FetchResult
from replication.replicas.purgatory import DelayedOperation
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from replication.replicas.follower_session import FollowerSession, SessionPartition

_REQUEST_TIMED_OUT = int(ErrorCode.REQUEST_TIMED_OUT)

LARGE = 256
"""A fetch of more partitions is not read by who lets it go on: a producer's thread, the timer's."""


@dataclass(slots=True)
class ProduceStatus:
    """One appended batch that is not acknowledged yet.

    `next_offset` must be below or at the HW (`acks` -1) or the flushed offset (`acks` 1).
    `leader_epoch` is the one it was appended under: in a later, interrupted leadership other
    records may stand at its offsets.
    """

    result: AppendResult
    partition: Partition
    next_offset: int
    leader_epoch: int
    acks: int
    position: int
    """Of the result among those of its request."""

    def try_settle(self) -> bool:
        """Is the outcome known? If so it is in `result`."""
        partition = self.partition
        if partition.must_wait(self.next_offset, self.acks, self.leader_epoch):
            if partition.role.leads_since(self.leader_epoch):
                return False
            not_serving = partition.role.not_serving
            self.result.error_code = int(not_serving)
            self.result.error_message = not_serving.name
        elif self.acks == -1 and not partition.role.has_enough_in_sync:
            # The ISR shrank after the append: the records stay, but the promise is not kept (H-11).
            self.result.error_code = int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            self.result.error_message = "the ISR became too small after the records were appended"
        return True


class DelayedProduce(DelayedOperation):
    """A Produce whose acknowledgement waits; `results` has every partition in request order.

    `on_settled` is told how many of the first are known, while others are not.
    """

    __slots__ = ("_lock", "_on_complete", "_on_settled", "_pending", "_results")

    def __init__(
        self,
        timeout_ms: int,
        results: list[AppendResult],
        pending: list[ProduceStatus],
        on_complete: Callable[[list[AppendResult]], None],
        on_settled: Callable[[list[AppendResult], int], None] | None = None,
    ) -> None:
        super().__init__(timeout_ms)
        self._results = results
        self._pending = dict(enumerate(pending))
        """What is not known, by the position of its watch key."""
        self._on_complete = on_complete
        self._on_settled = on_settled
        self._lock = threading.Lock()

    def try_complete(self) -> bool:
        return self._look_at(None)

    def try_complete_at(self, position: int) -> bool:
        """Of thousands of partitions, each with events of its own, one has changed."""
        return self._look_at(None if position < 0 else (position,))

    def _look_at(self, positions: Iterable[int] | None) -> bool:
        """Settle what is known now of these, None: of all; True if this call completed it."""
        pending, on_settled, known = self._pending, self._on_settled, 0
        with self._lock:  # a leaf: settling reads partitions without their locks
            if self.is_completed:
                return False
            for position in tuple(pending) if positions is None else positions:
                if position in pending and pending[position].try_settle():
                    del pending[position]
            is_settled = not pending
            if on_settled is not None and pending:
                known = next(iter(pending.values())).position
        if is_settled:
            return self.force_complete()
        if on_settled is not None:
            on_settled(self._results, known)
        return False

    def on_complete(self) -> None:
        with self._lock:
            for status in self._pending.values():
                if not status.try_settle():
                    status.result.error_code = _REQUEST_TIMED_OUT
                    status.result.error_message = "not acknowledged in time; it may be later"
        self._on_complete(self._results)


OnFollowed = Callable[["Sequence[SessionPartition]", list[FetchResult]], None]
"""Takes the answer to a follower: what was looked at, and one result for each."""


class Reader(Protocol):
    """What a delayed fetch needs of the replica manager to answer."""

    def complete_fetch(self, fetch: DelayedFetch) -> None: ...

    def complete_follower_fetch(self, fetch: DelayedFollowerFetch) -> None: ...

    def partition_of(self, key: tuple[str, int]) -> Partition | None: ...

    def is_held_back(self, partition: Partition, replica_id: int) -> bool: ...


class DelayedFetch(DelayedOperation):
    """A Fetch that found less than `min_bytes`; when completed it reads once more and answers.

    Complete when (Kafka's DelayedFetch): a partition is not led here any more (or not here at
    all, for a consumer that may read from followers), its leader epoch
    changed, its log was truncated below the fetch offset, the fetcher diverges, or enough bytes
    are there. One that did not exist when it was read is None among `partitions` and waits with the
    others. Differs from Kafka in that an offset between the visible bound and the log end
    waits (Kafka answers at once with nothing, and the client asks again in a tight loop).
    """

    __slots__ = (
        "_available",
        "_lock",
        "_total",
        "isolation",
        "leader_only",
        "max_bytes",
        "min_bytes",
        "on_answer",
        "partitions",
        "reader",
        "replica_epoch",
        "replica_id",
        "requests",
    )

    def __init__(
        self,
        reader: Reader,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: int | None,
        replica_id: int,
        requests: Sequence[FetchPartition],
        partitions: Sequence[Partition | None],
        on_answer: Callable[[list[FetchResult]], None],
        leader_only: bool = True,
        replica_epoch: int = -1,
    ) -> None:
        super().__init__(max_wait_ms)
        self.reader = reader
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.replica_id = replica_id
        self.requests = requests
        self.partitions = partitions
        self.on_answer = on_answer
        self.leader_only = leader_only
        self.replica_epoch = replica_epoch
        self._available: dict[int, int] = {}
        """By position, how many bytes were there when it was last looked at."""
        self._total = 0
        self._lock = threading.Lock()  # guards these two

    def try_complete(self) -> bool:
        """Look at every partition: when it is parked."""
        for position, (partition, request) in enumerate(
            zip(self.partitions, self.requests, strict=True)
        ):
            if partition is None or _is_at_end(partition, request):
                continue
            if self._is_enough_with(position, partition, request):
                return self.force_complete()
        return False

    def try_complete_at(self, position: int) -> bool:
        """Something happened to one partition: what the others have is known."""
        if position < 0:
            return self.try_complete()
        partition = self.partitions[position]
        return (
            partition is not None
            and self._is_enough_with(position, partition, self.requests[position])
            and self.force_complete()
        )

    def _is_enough_with(self, position: int, partition: Partition, request: FetchPartition) -> bool:
        with self._lock:
            size = self._available_bytes(partition, request)
            self._total += size - self._available.get(position, 0)
            self._available[position] = size
            return size < 0 or self._total >= self.min_bytes

    def _available_bytes(self, partition: Partition, request: FetchPartition) -> int:
        """How many bytes a read would find; -1 if the fetch must be answered whatever there is."""
        log = partition.readable_log(self.leader_only)
        if log is None:
            return -1
        epoch = request.current_leader_epoch
        if epoch != UNKNOWN_EPOCH and epoch != partition.role.leader_epoch:
            return -1
        if (
            request.last_fetched_epoch != UNKNOWN_EPOCH
            and log is partition.leader_log
            and diverges(log, request, FetchResult(log_start_offset=log.log_start_offset))
        ):
            return -1
        offset, view = request.fetch_offset, log.view
        if self.isolation is None:
            bound = view.end_offset
        else:
            bound = view.last_stable_offset if self.isolation else view.high_watermark
        if offset >= bound:
            is_beyond = offset > view.end_offset and log is partition.leader_log
            return -1 if is_beyond else 0
        if self.reader.is_held_back(partition, self.replica_id):
            return 0  # it would be answered with nothing, and come back at once
        if self.min_bytes <= 1:
            return 1
        return min(log.readable_bytes(offset, bound), request.max_bytes)

    def on_complete(self) -> None:
        self.reader.complete_fetch(self)


def _is_at_end(partition: Partition, request: FetchPartition) -> bool:
    """Nothing to read: most partitions of a session, at any time."""
    log = partition.leader_log
    return (
        log is not None
        and log.view.end_offset == request.fetch_offset
        and request.current_leader_epoch == partition.role.leader_epoch
    )


def _no_answer(results: list[FetchResult]) -> None:
    """A follower's fetch in a session is answered through `on_followed`."""


class DelayedFollowerFetch(DelayedFetch):
    """A follower's Fetch in a session: only what was touched can complete it, or be in its answer.

    It has no watch keys: its session is told of the partitions and asks `try_complete_of`.
    """

    __slots__ = ("on_followed", "session", "unknown")

    def __init__(
        self,
        reader: Reader,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        follower: tuple[int, int],
        session: FollowerSession,
        on_followed: OnFollowed,
        unknown: frozenset[tuple[str, int]],
    ) -> None:
        """`unknown` are the partitions that did not exist when they were looked at."""
        super().__init__(
            reader, max_wait_ms, min_bytes, max_bytes, None, follower[0], (), (), _no_answer, True,
            follower[1],
        )  # fmt: skip
        self.session = session
        self.on_followed = on_followed
        self.unknown = unknown

    def try_complete(self) -> bool:
        if not self.session.missed:
            return False  # what was looked at was not enough, and nothing has happened since
        requests = self.session.requests()
        partitions = [self.reader.partition_of(request.key) for request in requests]
        for partition, request in zip(partitions, requests, strict=True):
            if partition is None and request.key not in self.unknown:
                return self.force_complete()
        available = 0
        for partition, request in zip(partitions, requests, strict=True):
            if partition is None or _is_at_end(partition, request):
                continue
            size = self._available_bytes(partition, request)
            available += size
            if size < 0 or available >= self.min_bytes:
                return self.force_complete()
        return False

    def try_complete_of(self, request: FetchPartition) -> bool:
        """Something happened to the partition of this request."""
        partition = self.reader.partition_of(request.key)
        if partition is None or self.min_bytes > 1:
            return self.try_complete()
        size = self._available_bytes(partition, request)
        return size != 0 and self.force_complete()

    def on_complete(self) -> None:
        self.reader.complete_follower_fetch(self)


@dataclass(slots=True)
class DeleteStatus:
    """One partition of a DeleteRecords: its log start moved here, not yet on all replicas."""

    partition: Partition
    requested_offset: int
    error_code: int = _REQUEST_TIMED_OUT
    low_watermark: int = -1

    def try_settle(self) -> bool:
        try:
            self.low_watermark = self.partition.low_watermark()
        except KafkaError as error:
            self.error_code = int(error.code)
            self.low_watermark = -1
            return True
        if self.low_watermark < self.requested_offset:
            return False
        self.error_code = 0
        return True


class DelayedDeleteRecords(DelayedOperation):
    """A DeleteRecords that waits for followers to move their log start too."""

    __slots__ = ("_all", "_done", "_lock", "_on_complete", "_pending")

    def __init__(
        self,
        timeout_ms: int,
        done: dict[tuple[str, int], tuple[int, int]],
        pending: dict[tuple[str, int], DeleteStatus],
        on_complete: Callable[[dict[tuple[str, int], tuple[int, int]]], None],
    ) -> None:
        super().__init__(timeout_ms)
        self._done = done
        self._pending = pending
        self._all = tuple(pending)  # in the order of the watch keys
        self._on_complete = on_complete
        self._lock = threading.Lock()

    def try_complete(self) -> bool:
        return self._look_at(self._all)

    def try_complete_at(self, position: int) -> bool:
        """Of thousands of partitions, each with events of its own, one has changed."""
        return self._look_at((self._all[position],))

    def _look_at(self, keys: Iterable[tuple[str, int]]) -> bool:
        with self._lock:
            if self.is_completed:
                return False
            self._settle(keys)
            is_settled = not self._pending
        return is_settled and self.force_complete()

    def on_complete(self) -> None:
        with self._lock:
            self._settle(self._all)
            for key, status in self._pending.items():
                self._done[key] = (_REQUEST_TIMED_OUT, status.low_watermark)
        self._on_complete(self._done)

    def _settle(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            status = self._pending.get(key)
            if status is not None and status.try_settle():
                self._done[key] = (status.error_code, status.low_watermark)
                del self._pending[key]
