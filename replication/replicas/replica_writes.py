"""Appending and deleting: what changes the partitions led here, and when that is answered.

The path of a produce: `append_records` -> `Partition.append_records_to_leader` -> the log; then
delayed operations on that partition are completed, and the answer is given inline unless it must
wait for the high watermark or an fsync.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.requests import AppendRequest, AppendResult
from replication.replicas.delayed import (
    DelayedDeleteRecords,
    DelayedProduce,
    DeleteStatus,
    ProduceStatus,
)
from replication.replicas.refused_batches import RefusedBatches
from storage.log.append import is_soon_opened, needs_records_opened
from storage.log.append_source import AppendOrigin
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.record_batch import is_compressed

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from replication.partition.requests import Named
    from replication.replicas.local_replicas import LocalReplicas
    from replication.replicas.parked_requests import Key, ParkedRequests
    from replication.replicas.purgatory import DelayedOperation
    from storage.log.append_source import AppendSource
    from storage.log.partition_log import LogAppendInfo

logger = logging.getLogger(__name__)


class ReplicaWrites:
    """See the module; any thread may call."""

    def __init__(
        self, local: LocalReplicas, parked: ParkedRequests, wall_ms: Callable[[], int]
    ) -> None:
        self._local = local
        self._partitions = local.partitions
        self._parked = parked
        self._wall_ms = wall_ms
        self.refused = RefusedBatches()

    def append_records(self, request: AppendRequest) -> DelayedOperation | None:
        """Append one batch to each partition; partitions succeed and fail alone.

        `on_done` is called before this returns unless acks=-1 waits for the HW or `flush.messages`
        for the disk. A parked operation is returned so that the end of its connection can cancel
        it (the records stay appended); it keeps nothing of the records.
        Budget: 6 µs for one entry on top of `PartitionLog.append_as_leader` when nothing waits.
        """
        acks, on_done = request.required_acks, request.on_done
        if acks not in (-1, 0, 1):
            on_done([_refused(key, *_INVALID_ACKS) for key, _ in request.entries])
            return None
        wall_ms = self._wall_ms()
        results: list[AppendResult] = []
        appended: list[tuple[Key, bool]] = []
        pending: list[ProduceStatus] = []
        written = _NOTHING_WRITTEN
        if request.on_settled is not None:
            written = self._write_runs(request, wall_ms)
        for position, (key, records) in enumerate(request.entries):
            if position in written:
                outcome = written[position]
            else:
                outcome = self._append(request, key, records, wall_ms)
            if isinstance(outcome, AppendResult):
                results.append(outcome)
                continue
            partition, info, is_advanced = outcome
            next_offset = info.last_offset + 1
            result = _appended_result(key, info)
            results.append(result)
            if not info.duplicate and is_advanced is not None:
                appended.append((key, is_advanced))
            if info.must_flush:
                partition.request_flush()
            epoch = info.leader_epoch
            if acks and partition.must_wait(next_offset, acks, epoch):
                pending.append(ProduceStatus(result, partition, next_offset, epoch, acks, position))
        if not pending:
            try:
                on_done(results)
            finally:
                self._parked.appended(appended)
            return None
        operation = DelayedProduce(
            request.timeout_ms, results, pending, on_done, request.on_settled
        )
        self._parked.appended(appended)
        keys = [status.result.topic_partition for status in pending]
        is_done = self._parked.produce.try_complete_else_watch(operation, keys)
        return None if is_done else operation

    def _append(
        self, request: AppendRequest, key: Key, records: memoryview | bytes, wall_ms: int
    ) -> _Written | AppendResult:
        """Append one batch; the result is that of a failure."""
        partition = self._partitions.get(key)
        try:
            if partition is None or not _is_meant(partition, request):
                raise self._not_here(key, partition)
            if self.refused and request.source.origin is AppendOrigin.CLIENT:
                self.refused.check(request.named(key), partition, records, wall_ms)
            info, is_advanced = partition.append_records_to_leader(
                records,
                request.required_acks,
                wall_ms,
                _source(request, key),
                request.leader_epoch,
            )
        except KafkaError as error:
            if request.source.origin is AppendOrigin.CLIENT:
                self.refused.note(request.named(key), records, wall_ms, error.code)
            return self._append_failed(key, partition, error)
        except Exception:
            if request.source.origin is not AppendOrigin.CLIENT:
                raise  # a coordinator must know that it knows nothing
            return _unforeseen(key)
        return partition, info, is_advanced

    def _write_runs(
        self, request: AppendRequest, wall_ms: int
    ) -> Mapping[int, _Written | AppendResult]:
        """Write what a burst has for one partition with one call, where that is all or nothing; by
        position in its entries. What is not told of is appended as if it had come alone."""
        positions: dict[Key, list[int]] = {}
        for position, (key, _) in enumerate(request.entries):
            positions.setdefault(key, []).append(position)
        written: dict[int, _Written | AppendResult] = {}
        for key, together in positions.items():
            partition = self._partitions.get(key)
            if len(together) == 1 or partition is None or not _is_meant(partition, request):
                continue
            batches = [request.entries[position][1] for position in together]
            try:
                for batch in batches if self.refused else ():
                    self.refused.check(request.named(key), partition, batch, wall_ms)
                run = partition.append_run_to_leader(
                    batches, request.required_acks, wall_ms, request.source
                )
            except KafkaError:
                continue  # nothing was written: each hears why
            except Exception:
                written.update((position, _unforeseen(key)) for position in together)
                continue
            if run is not None:
                infos, is_advanced = run
                for position, info in zip(together, infos, strict=True):
                    written[position] = partition, info, None
                written[together[-1]] = partition, infos[-1], is_advanced
        return written

    def note_refused(self, named: Named, records: memoryview | bytes, code: ErrorCode) -> None:
        """A client's batch was refused before it came here."""
        self.refused.note(named, records, self._wall_ms(), code)

    def _not_here(self, key: Key, partition: Partition | None) -> KafkaError:
        """Metadata is known before it is acted on: it may be another topic's of that name."""
        if partition is None:
            return self._local.absent(key)
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{key[0]} is another topic here")

    def must_open_records(
        self, entries: Iterable[tuple[Key, memoryview | bytes]], opens_compressed: bool
    ) -> bool:
        """Whether these batches cost more than a thread that serves sockets should spend.

        One small compressed batch is opened sooner than handed over, at worst, out of 1 KB of gzip,
        in 2.5 ms. A request may have many of them.
        """
        compressed = 0
        for key, records in entries:
            if is_soon_opened(records):
                continue
            if opens_compressed and is_compressed(records):
                compressed += 1
            partition = self._partitions.get(key)
            log = None if partition is None else partition.leader_log
            if compressed > 1 or (
                log is not None
                and needs_records_opened(records, log.config, self._wall_ms(), opens_compressed)
            ):
                return True
        return False

    def _append_failed(
        self, key: Key, partition: Partition | None, error: KafkaError
    ) -> AppendResult:
        result = _refused(key, error.code, error.detail or error.code.name)
        result.record_errors = getattr(error, "record_errors", ())
        if error.code not in _NO_LOG_START and partition is not None and partition.log is not None:
            result.log_start_offset = partition.log.log_start_offset
        return result

    def delete_records(
        self,
        offsets: dict[Any, int],
        timeout_ms: int,
        on_complete: Callable[[dict[Any, tuple[int, int]]], None],
        *,
        may_be_internal: bool = False,
    ) -> DelayedOperation | None:
        """Raise log start offsets (-1: to the HW); answers (error_code, low_watermark) for each.

        Internal topics are refused, unless their coordinator asks (`may_be_internal`). With
        followers it waits until all living ones have followed.
        """
        done: dict[Any, tuple[int, int]] = {}
        pending: dict[Any, DeleteStatus] = {}
        for key, offset in offsets.items():
            try:
                if key[0] in INTERNAL_TOPICS and not may_be_internal:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{key[0]} is internal")
                partition = self._local.get(key)
                requested_offset, low_watermark = partition.delete_records(offset)
            except KafkaError as error:
                done[key] = (int(error.code), -1)
                continue
            self._parked.fetch.check_and_complete(key)  # followers are to hear of it
            if low_watermark >= requested_offset:
                done[key] = (0, low_watermark)
            else:
                pending[key] = DeleteStatus(partition, requested_offset)
        if not pending:
            on_complete(done)
            return None
        operation = DelayedDeleteRecords(timeout_ms, done, pending, on_complete)
        if self._parked.delete_records.try_complete_else_watch(operation, list(pending)):
            return None
        return operation


_Written = tuple["Partition", "LogAppendInfo", "bool | None"]
"""Where a batch is, and whether the high watermark moved; None: a later one of its run says it."""
_NOTHING_WRITTEN: Mapping[int, _Written | AppendResult] = {}
_NO_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors told without the log's start offset (ReplicaManager.appendToLocalLog)."""
_INVALID_ACKS = (ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1")


def _unforeseen(key: Key) -> AppendResult:
    """An error nobody foresaw is being handled: it costs one partition's part. What is answered is
    retriable, and as true, as that nobody knows if it was appended (P-1)."""
    logger.exception("append failed partition=%s", TopicPartition(*key))
    return _refused(key, ErrorCode.REQUEST_TIMED_OUT, "nobody knows whether it was appended")


def _is_meant(partition: Partition, request: AppendRequest) -> bool:
    topic_ids = request.topic_ids
    return topic_ids is None or topic_ids[partition.topic_partition[0]] == partition.topic_id


def _source(request: AppendRequest, key: Key) -> AppendSource:
    guard = None if request.verifications is None else request.verifications.get(key)
    return request.source if guard is None else request.source._replace(verification=guard)


def _appended_result(key: Key, info: LogAppendInfo) -> AppendResult:
    return AppendResult(
        key,
        0,
        info.first_offset,
        info.log_append_time_ms,
        info.log_start_offset,
        None,
        (),
        info.last_offset,
    )


def _refused(key: Key, code: ErrorCode, message: str) -> AppendResult:
    return AppendResult(key, int(code), error_message=message)
