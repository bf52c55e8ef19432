"""Reading for Fetch: what a consumer or follower gets now, or what it waits for.

A fetch reads its partitions in order and is
answered at once if there is enough to say, else it is parked in the fetch purgatory; an append on
one of its partitions, a moved high watermark or a new role reads again and answers.

What does not exist, as far as metadata says, is told with the rest and hurries nothing: the others
would be read again and again until the client has heard of the deletion (Kafka's KafkaApis answers
for such partitions and keeps them from the read). Only a fetch of nothing else is answered at once.

A follower's fetch offset says what it has: it moves the high watermark and the ISR *after* the
leader's log was read for it (H-4). Its answer then carries the newest high watermark.

Consumers may be sent to a replica in their own rack (KIP-392): with `replica.selector.class` set to
Kafka's RackAwareReplicaSelector, a leader names the in-sync replica there that is furthest ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from replication.partition.requests import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    UNKNOWN_EPOCH,
    FetchPartition,
    FetchResult,
    IsolationLevel,
)
from replication.replicas.delayed import LARGE, DelayedFetch, DelayedFollowerFetch, OnFollowed
from wire.errors import ErrorCode, KafkaError
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from replication.following.replication_quota import ReplicationQuota
    from replication.metadata.image import MetadataImage
    from replication.partition.partition import Partition
    from replication.replicas.config import ReplicaManagerConfig
    from replication.replicas.follower_session import FollowerSession, SessionPartition
    from replication.replicas.local_replicas import LocalReplicas
    from replication.replicas.parked_requests import Key, ParkedRequests
    from replication.replicas.purgatory import DelayedOperation
    from wire.messages.data import FetchRequest

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_INCONSISTENT_TOPIC_ID = int(ErrorCode.INCONSISTENT_TOPIC_ID)
_UNKNOWN_TOPIC_ID = int(ErrorCode.UNKNOWN_TOPIC_ID)
_UNKNOWN = frozenset((int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), _UNKNOWN_TOPIC_ID))


class ReplicaReads:
    """See the module; any thread may call."""

    def __init__(
        self,
        local: LocalReplicas,
        parked: ParkedRequests,
        metadata: Callable[[], MetadataImage],
        now_ms: Callable[[], int],
        node_id: int,
        config: ReplicaManagerConfig,
        run_aside: Callable[[Callable[[], None]], object],
    ) -> None:
        self.config = config
        self.leader_quota: ReplicationQuota | None = None
        """Bounds what throttled replicas that are behind get; None while there is no limit."""
        self._local = local
        self._partitions = local.partitions
        self._parked = parked
        self._now_ms = now_ms
        self._metadata = metadata
        self._node_id = node_id
        self._run_aside = run_aside
        self._selects_by_rack = config.replica_selector_class == RACK_AWARE_SELECTOR

    def fetch(
        self,
        replica_id: int,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation_level: int,
        partitions: Sequence[FetchPartition],
        on_complete: Callable[[list[FetchResult]], None],
        *,
        rack: str | None = None,
        replica_epoch: int = -1,
    ) -> DelayedOperation | None:
        """Read the partitions in order; answer now if there is enough to say, else park.

        There is enough when: nobody wants to wait, `min_bytes` were found, a partition that exists
        has an error or a diverging epoch, or none exists. A request without a topic's name is one
        whose topic id is unknown. The first partition with data gives at least its first batch,
        whatever the limits; the rest share what is left of `max_bytes` (KIP-74).
        `on_complete` gets one result per partition, in order, exactly once, unless the returned
        operation is cancelled. File slices in the results belong to it. `rack` is None for a
        consumer that reads from leaders only (below version 11), else where it stands ("" if it
        does not say).
        Budget: 12 µs for one partition with data at the log's end; parking 15 µs.
        """
        limit = self.config.fetch_max_bytes
        if max_bytes > limit:
            max_bytes = limit
        if min_bytes > max_bytes:
            min_bytes = max_bytes
        is_follower = replica_id >= 0
        isolation = None if is_follower else isolation_level
        leader_only = is_follower or rack is None
        keys = [request.key for request in partitions]
        partition_of = self._partitions.get
        found = [partition_of(key) for key in keys]
        if is_follower:
            results, news = self._read_as_follower(
                partitions, found, max_bytes, replica_id, replica_epoch
            )
        else:
            news = results = self._read(partitions, found, max_bytes, isolation, leader_only)
            if rack and self._selects_by_rack:
                self._send_to_rack(rack, partitions, found, results)
        if max_wait_ms <= 0 or _is_answer(news, len(results), min_bytes):
            on_complete(results)
            return None
        _release(news)
        operation = DelayedFetch(
            self, max_wait_ms, min_bytes, max_bytes, isolation, replica_id, partitions, found,
            on_complete, leader_only, replica_epoch,
        )  # fmt: skip
        if self._parked.fetch.try_complete_else_watch(operation, keys):
            return None
        return operation

    def complete_fetch(self, fetch: DelayedFetch) -> None:
        """Read again for a parked fetch, and answer it: a large one elsewhere, for this may be the
        thread that appended."""
        if len(fetch.requests) > LARGE:
            self._run_aside(partial(self._complete_fetch, fetch))
        else:
            self._complete_fetch(fetch)

    def _complete_fetch(self, fetch: DelayedFetch) -> None:
        requests, replica_id = fetch.requests, fetch.replica_id
        found = [self._partitions.get(request.key) for request in requests]
        quiet: list[FetchResult | None] | None = None
        if replica_id >= 0:
            quiet = self._quiet_answers(requests, found, replica_id, fetch.replica_epoch, None)
        results = self._read(
            requests, found, fetch.max_bytes, fetch.isolation, fetch.leader_only, quiet, replica_id
        )
        fetch.on_answer(results)

    def follower_session(self) -> FollowerSession:
        """What `follow` needs to know of a session; one for each."""
        from replication.replicas.follower_session import FollowerSession

        return FollowerSession(self._parked.fetch, self.config.replica_lag_time_max_ms // 6)

    def follow(
        self,
        follower: tuple[int, int],
        wanted: FetchRequest,
        session: FollowerSession,
        on_followed: OnFollowed,
    ) -> DelayedOperation | None:
        """`fetch` for a follower (its broker's id and epoch) in a session: costs what was touched.

        `on_followed` gets what was looked at and the results, and must hand both to
        `FollowerSession.put_back` once it knows what will be told, and before it tells it.
        """
        max_wait_ms = wanted.max_wait_ms
        max_bytes = min(wanted.max_bytes, self.config.fetch_max_bytes)
        min_bytes = min(wanted.min_bytes, max_bytes)
        partition_of = self._partitions.get
        now_ms = self._now_ms()

        def is_quiet(one: SessionPartition) -> bool:
            request = one.request
            partition = partition_of(request.key)
            if partition is None or one.told is None:
                return False
            return partition.quiet_answer(*follower, request, now_ms) is one.told

        looked = session.take(follower, now_ms, is_quiet)
        requests = [one.request for one in looked]
        found = [partition_of(request.key) for request in requests]
        results, news = self._read_as_follower(requests, found, max_bytes, *follower)
        if max_wait_ms <= 0 or _is_answer(news, session.partition_count, min_bytes):
            on_followed(looked, results)
            return None
        session.put_back(looked, results)
        _release(news)
        unknown = frozenset(
            request.key
            for request, result in zip(requests, results, strict=True)
            if result.error_code
        )
        operation = DelayedFollowerFetch(
            self, max_wait_ms, min_bytes, max_bytes, follower, session, on_followed, unknown
        )
        session.parked = operation
        return None if self._parked.fetch.park(operation) else operation

    def complete_follower_fetch(self, fetch: DelayedFollowerFetch) -> None:
        """Read what was touched since it was parked, and answer it."""
        replica_id, replica_epoch = fetch.replica_id, fetch.replica_epoch
        looked = fetch.session.take((replica_id, replica_epoch))
        requests = [one.request for one in looked]
        partition_of = self._partitions.get
        found = [partition_of(request.key) for request in requests]
        quiet = self._quiet_answers(requests, found, replica_id, replica_epoch, None)
        results = self._read(requests, found, fetch.max_bytes, None, True, quiet, replica_id)
        fetch.on_followed(looked, results)

    def list_offset(
        self,
        tp: Key,
        timestamp: int,
        isolation_level: int,
        current_leader_epoch: int = UNKNOWN_EPOCH,
        replica_id: int = CONSUMER_REPLICA_ID,
    ) -> tuple[int, int, int, int]:
        """(error_code, timestamp, offset, leader_epoch); see `offset_lookup` for the timestamps.

        Only clients see by isolation level; a debugging replica (-2) may ask a follower. The
        handler checks versions against LIST_OFFSETS_MIN_VERSION.
        """
        isolation = IsolationLevel(isolation_level) if replica_id == CONSUMER_REPLICA_ID else None
        try:
            found = self._local.get(tp).fetch_offset_for_timestamp(
                timestamp,
                isolation,
                current_leader_epoch,
                leader_only=replica_id != DEBUGGING_REPLICA_ID,
            )
        except KafkaError as error:
            return int(error.code), -1, -1, UNKNOWN_EPOCH
        return (0, *found)

    def offset_for_leader_epoch(
        self, tp: Key, current_leader_epoch: int, leader_epoch: int
    ) -> tuple[int, int, int]:
        """(error_code, leader_epoch, end_offset); epoch and offset are -1 if unknown (E-4)."""
        try:
            found = self._local.get(tp).end_offset_for_epoch(current_leader_epoch, leader_epoch)
        except KafkaError as error:
            return int(error.code), UNKNOWN_EPOCH, -1
        return (0, *found)

    def partition_of(self, key: tuple[str, int]) -> Partition | None:
        return self._partitions.get(key)

    def _read(
        self,
        requests: Sequence[FetchPartition],
        found: Sequence[Partition | None],
        max_bytes: int,
        isolation: int | None,
        leader_only: bool,
        quiet: list[FetchResult | None] | None = None,
        replica_id: int = CONSUMER_REPLICA_ID,
    ) -> list[FetchResult]:
        """Read in order; where `quiet` has an answer already it is taken. What a replica's quota
        holds back takes no room from the others."""
        is_bounded = replica_id >= 0 and self.leader_quota is not None
        results: list[Any] = [None] * len(requests) if quiet is None else quiet.copy()
        is_first = True
        for at, answer in enumerate(results):
            if answer is not None:
                continue
            request, partition = requests[at], found[at]
            if partition is None:
                results[at] = self._absent(request)
                continue
            topic_id = request.topic_id
            if topic_id != partition.topic_id and topic_id is not None and topic_id != ZERO_UUID:
                results[at] = FetchResult(_INCONSISTENT_TOPIC_ID)
                continue
            limit = request.max_bytes
            if limit > max_bytes:
                limit = max_bytes
            min_one = is_first
            quota = self._quota_of(partition, replica_id) if is_bounded else None
            if quota is not None and quota.is_exceeded():
                limit, min_one = 0, False
            result = partition.read_records(request, limit, min_one, isolation, leader_only)
            results[at] = result
            if result.records is not None:
                is_first = False
                size = result.records.size
                if quota is not None:
                    quota.record(size)
                max_bytes = max_bytes - size if size < max_bytes else 0
        return results

    def _absent(self, request: FetchPartition) -> FetchResult:
        if not request.topic and request.topic_id is not None:
            return FetchResult(_UNKNOWN_TOPIC_ID, aborted=())
        code = int(self._local.absent(request.key).code)
        return FetchResult(code, aborted=() if code in _UNKNOWN else None)

    def _read_as_follower(
        self,
        requests: Sequence[FetchPartition],
        found: Sequence[Partition | None],
        max_bytes: int,
        replica_id: int,
        replica_epoch: int,
    ) -> tuple[list[FetchResult], list[FetchResult]]:
        """Read up to the log end, and take the fetch offsets as what the follower has (H-4).

        Returns all results, and those of them that are no quiet answers.
        """
        quiet = self._quiet_answers(requests, found, replica_id, replica_epoch, self._now_ms())
        looked = [at for at, answer in enumerate(quiet) if answer is None]
        ends = [
            None if partition is None else partition.leader_end()
            for partition in (found[at] for at in looked)
        ]
        results = self._read(requests, found, max_bytes, None, True, quiet, replica_id)
        for at, end in zip(looked, ends, strict=True):
            partition, result = found[at], results[at]
            if partition is None or end is None or result.error_code:
                continue
            error = self._follower_fetched(
                partition, replica_id, replica_epoch, requests[at], result, *end
            )
            if error:
                results[at] = _refused(result, error)
        return results, [results[at] for at in looked]

    @staticmethod
    def _quiet_answers(
        requests: Sequence[FetchPartition],
        found: Sequence[Partition | None],
        replica_id: int,
        replica_epoch: int,
        now_ms: int | None,
    ) -> list[FetchResult | None]:
        """The answers of the partitions in which nothing happened; None for the others."""
        return [
            None
            if partition is None
            else partition.quiet_answer(replica_id, replica_epoch, request, now_ms)
            for request, partition in zip(requests, found, strict=True)
        ]

    def _follower_fetched(
        self,
        partition: Partition,
        replica_id: int,
        replica_epoch: int,
        request: FetchPartition,
        result: FetchResult,
        leader_epoch: int,
        leader_end_offset: int,
    ) -> ErrorCode:
        """Take what a fetch tells, that was read under `leader_epoch`; why not, if it is refused.

        One that diverges tells nothing: the follower cuts off first.
        """
        try:
            if result.diverging_epoch is not None:
                partition.check_follower(replica_id, request, leader_epoch)
                return ErrorCode.NONE
            if partition.update_follower_fetch_state(
                replica_id, replica_epoch, request, leader_epoch, leader_end_offset
            ):
                self._parked.partition_changed(partition)
            result.high_watermark = partition.high_watermark
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def _quota_of(self, partition: Partition, replica_id: int) -> ReplicationQuota | None:
        """What a throttled replica that is behind is held to (KIP-73); None: nothing holds it."""
        quota, log = self.leader_quota, partition.leader_log
        if quota is None or log is None or replica_id in partition.isr:
            return None
        from replication.following.replication_quota import is_throttled

        throttled_replicas = log.config.leader_replication_throttled_replicas
        index = partition.topic_partition[1]
        return quota if is_throttled(throttled_replicas, index, replica_id) else None

    def is_held_back(self, partition: Partition, replica_id: int) -> bool:
        """Would a read for this replica, or consumer (-1), give no records for its quota is used
        up?"""
        quota = self._quota_of(partition, replica_id) if replica_id >= 0 else None
        return quota is not None and quota.is_exceeded()

    # ------------------------------------------------------------------ consumers by rack

    def _send_to_rack(
        self,
        rack: str,
        requests: Sequence[FetchPartition],
        found: Sequence[Partition | None],
        results: list[FetchResult],
    ) -> None:
        """Name a replica in the consumer's rack instead of records, where there is one."""
        for request, partition, result in zip(requests, found, results, strict=True):
            if partition is None or not partition.is_leader or result.error_code:
                continue
            replica_id = self._preferred_read_replica(partition, rack, request.fetch_offset)
            if replica_id >= 0:
                result.preferred_read_replica = replica_id
                result.aborted = None
                if result.records is not None:
                    result.records.close()
                    result.records = None

    def _preferred_read_replica(self, partition: Partition, rack: str, fetch_offset: int) -> int:
        """The in-sync replica in `rack` that is furthest ahead and has the offset; -1: ask us."""
        brokers = self._metadata().brokers
        own = brokers.get(self._node_id)
        if own is not None and own.rack == rack:
            return -1
        best = (-1, -1, -1)
        for replica_id, follower in partition.role.followers.items():
            broker = brokers.get(replica_id)
            if (
                broker is not None
                and broker.rack == rack
                and not broker.fenced
                and replica_id in partition.isr
                and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
            ):
                best = max(best, (follower.log_end_offset, follower.last_caught_up_ms, replica_id))
        return best[2]


def _refused(result: FetchResult, code: ErrorCode) -> FetchResult:
    if result.records is not None:
        result.records.close()
    return FetchResult(int(code))


def _release(results: Sequence[FetchResult]) -> None:
    """What was read is not enough: it is read again when the parked fetch is answered."""
    for result in results:
        if result.records is not None:
            result.records.close()


def _is_answer(news: list[FetchResult], count: int, min_bytes: int) -> bool:
    """Is there enough to answer a fetch of `count` partitions now? `news`: what is not quiet."""
    size = unknown = 0
    for result in news:
        if result.error_code in _UNKNOWN:
            unknown += 1
        elif (
            result.error_code
            or result.diverging_epoch is not None
            or result.preferred_read_replica >= 0
        ):
            return True
        elif result.records is not None:
            size += result.records.size
    return size >= min_bytes or unknown == count
