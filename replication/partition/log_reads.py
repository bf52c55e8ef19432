"""One read of a log for a Fetch: how far it may see, and where the fetcher's log left ours.

Takes no lock: a read sees one log below its high watermark, which stays true even if leadership
moves meanwhile (V-6). Who may read what (V-1, V-5, KIP-392):

    replica              the leader's log, up to its end
    consumer             the leader's log, up to the high watermark or the last stable offset
    consumer, v11+       a follower's log too, up to the follower's own high watermark; an offset
                         beyond the follower's end is waited for, unless the consumer's epoch says
                         that it means this very history: then it is out of range, and the consumer
                         asks the leader
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.partition.requests import UNKNOWN_EPOCH, FetchPartition, FetchResult
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from storage.log.partition_log import PartitionLog

_OFFSET_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)


def read_log(
    log: PartitionLog,
    fetch: FetchPartition,
    max_bytes: int,
    min_one: bool,
    isolation: int | None,
    is_leader: bool,
) -> FetchResult:
    """Read what `isolation` may see (None: a replica, all of it).

    Never raises KafkaError: the result carries the code. V-1: an offset between the bound and the
    log end gives no records, beyond the end or below the start OFFSET_OUT_OF_RANGE. `min_one` lets
    the first batch exceed `max_bytes` (KIP-74).
    """
    log_start_offset, last_stable_offset, high_watermark, log_end_offset, _, _ = log.view
    offset = fetch.fetch_offset
    result = FetchResult(0, high_watermark, last_stable_offset, log_start_offset)
    if fetch.last_fetched_epoch != UNKNOWN_EPOCH and diverges(log, fetch, result):
        return result
    if not log_start_offset <= offset <= log_end_offset:
        epoch = fetch.current_leader_epoch
        if offset > log_end_offset and epoch == UNKNOWN_EPOCH and not is_leader:
            return result  # the follower is behind its leader: wait (V-5)
        return FetchResult(_OFFSET_OUT_OF_RANGE)
    upper_offset = log_end_offset
    if isolation == 0:
        upper_offset = high_watermark
    elif isolation is not None:
        upper_offset = last_stable_offset
        result.aborted = ()
    if offset < upper_offset and (max_bytes > 0 or min_one):
        _read_records(result, log, offset, max_bytes, min_one, upper_offset)
    return result


def _read_records(
    result: FetchResult,
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    min_one: bool,
    upper_offset: int,
) -> None:
    wants_aborted = result.aborted is not None
    try:
        read = log.read(offset, max_bytes, min_one, upper_offset, include_aborted=wants_aborted)
    except KafkaError as error:  # deleted by retention just now, or a storage error
        result.error_code = int(error.code)
        return
    if read.records is not None:
        result.records = read.records
        if wants_aborted:
            result.aborted = read.aborted


def diverges(log: PartitionLog, fetch: FetchPartition, result: FetchResult) -> bool:
    """E-5: the fetcher's last epoch must end where ours does; True if `result` says otherwise.

    An epoch we cannot place, and an offset below the log start, are OFFSET_OUT_OF_RANGE.
    """
    if (
        fetch.last_fetched_epoch == log.leader_epochs.latest_epoch
        and result.log_start_offset <= fetch.fetch_offset <= log.log_end_offset
    ):
        return False  # the latest epoch ends where the log does: nearly always
    epoch, end_offset = log.end_offset_for_epoch(fetch.last_fetched_epoch)
    if epoch < 0 or end_offset < 0 or fetch.fetch_offset < result.log_start_offset:
        result.error_code = _OFFSET_OUT_OF_RANGE
        result.high_watermark = result.last_stable_offset = result.log_start_offset = -1
        return True
    if epoch < fetch.last_fetched_epoch or end_offset < fetch.fetch_offset:
        result.diverging_epoch = (epoch, end_offset)
        return True
    return False
