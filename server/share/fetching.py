"""A ShareFetch that waits: for `min_bytes`, for records that come back, or for its deadline.

It is parked with the fetches, under its partitions, which appends look at, and under its share
partitions, which everything looks at that makes records available there.

Which of its share partitions it may read for is decided again at each attempt (`begin_fetch`); what
it got hold of it reads, and keeps if that is enough. What happens to one share partition has it
look at that one: what the others had is known. Several attempts may run at once, on several
threads: they get hold of different share partitions, and the first with enough answers.

Of the records only the batches' heads are read, as far as the member may be given something; they
leave as slices of the log's files, as those of a Fetch do.

Kafka: DelayedShareFetch, ShareFetchUtils.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from replication.partition.requests import CONSUMER_REPLICA_ID, FetchPartition, FetchResult
from replication.replicas.delayed import LARGE
from replication.replicas.purgatory import DelayedOperation
from server.share.acquisition import Acquired, AcquireMode, Fetched, Span
from server.share.leading import ShareLeader
from wire.errors import ErrorCode, MalformedFrame
from wire.record_batch import BATCH_OVERHEAD, BatchHeader, read_header

if TYPE_CHECKING:
    from replication.replicas.replica_manager import ReplicaManager
    from storage.open_files import FileSlice

logger = logging.getLogger(__name__)

EARLIEST = -2
_PIECE = 4096
"""Bytes that are read to see a batch's head, and those of small ones behind it."""
_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_LED_ELSEWHERE = frozenset((ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH))
"""The share partition is of another leadership than the log is now."""


class ShareFetchParams(NamedTuple):
    """What the member asks for."""

    member_id: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode


class Delivery(NamedTuple):
    """What the member gets of one share partition."""

    leader: ShareLeader
    error_code: int
    records: FileSlice | bytes = b""
    acquired: Sequence[Acquired] = ()


class _Read(NamedTuple):
    """A share partition that this fetch alone may read for, and what was read."""

    leader: ShareLeader
    offset: int
    result: FetchResult


class DelayedShareFetch(DelayedOperation):
    """See the module."""

    __slots__ = (
        "_leaders", "_lock", "_on_answer", "_params", "_reads", "_replica_manager", "_sizes",
    )  # fmt: skip

    def __init__(
        self,
        params: ShareFetchParams,
        leaders: Sequence[ShareLeader],
        replica_manager: ReplicaManager,
        on_answer: Callable[[list[Delivery]], None],
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._params = params
        self._leaders = leaders
        self._replica_manager = replica_manager
        self._on_answer = on_answer
        self._lock = threading.Lock()
        self._reads: list[_Read] | None = None
        """What it answers with, if an attempt had enough."""
        self._sizes: dict[ShareLeader, int] = {}
        """How many bytes each had when it was last looked at."""

    def keys(self) -> list[Hashable]:
        """What it is to be parked under: two of each share partition."""
        return [key for leader in self._leaders for key in (leader.key, leader.topic_partition)]

    def try_complete_at(self, position: int) -> bool:
        """Look at all only if they may have enough, now that one has changed."""
        if position >= 0 and len(self._leaders) > 1:
            if not self._is_worth_it(self._leaders[position // 2]):
                return False
            if len(self._leaders) > LARGE:
                return self.force_complete()
        return self.try_complete()

    def _is_worth_it(self, changed: ShareLeader) -> bool:
        reads = self._read((changed,))
        with self._lock:
            self._sizes[changed] = sum(map(_size, reads))
            size = sum(self._sizes.values())
        _let_go(reads)
        return _is_told_of((changed,), reads) or (bool(reads) and size >= self._params.min_bytes)

    def try_complete(self) -> bool:
        """Answer if there is enough, or something is wrong with a partition."""
        reads = self._read(self._leaders)
        if not self._is_enough(reads) or not self._offer(reads):
            _let_go(reads)
            return False
        if self.force_complete():
            return True
        if self._take() is not None:  # its deadline was faster, and has not seen it
            _let_go(reads)
        return False

    def on_complete(self) -> None:
        """Acquire and answer; at the deadline with what there is. Many are not read by whose thread
        this is: the timer's, or a producer's."""
        reads = self._take()
        if reads is not None:
            self._answer(reads)
        elif len(self._leaders) > LARGE:
            self._replica_manager.run_aside(self._read_and_answer)
        else:
            self._read_and_answer()

    def _read_and_answer(self) -> None:
        self._answer(self._read(self._leaders))

    def _answer(self, reads: list[_Read]) -> None:
        try:
            deliveries = self._deliver(reads)
        finally:
            _let_go(reads)
        self._on_answer(deliveries)

    def _offer(self, reads: list[_Read]) -> bool:
        with self._lock:
            if self._reads is not None:
                return False
            self._reads = reads
            return True

    def _take(self) -> list[_Read] | None:
        with self._lock:
            reads, self._reads = self._reads, None
            return reads

    # -- reading -----------------------------------------------------------------------------

    def _read(self, leaders: Sequence[ShareLeader]) -> list[_Read]:
        """Get hold of what can be had, and read it."""
        held = [
            (leader, offset) for leader in leaders if (offset := leader.begin_fetch()) is not None
        ]
        if not held:
            return []
        try:
            results = self._fetch(held)
        except BaseException:  # or nobody would ever read for these again
            for leader, _ in held:
                leader.end_fetch()
            raise
        return [_Read(*one, result) for one, result in zip(held, results, strict=True)]

    def _fetch(self, held: Sequence[tuple[ShareLeader, int]]) -> list[FetchResult]:
        share_bytes = max(self._params.max_bytes // len(held), 1)
        results: list[FetchResult] = []
        self._replica_manager.fetch(
            CONSUMER_REPLICA_ID,
            0,
            self._params.min_bytes,
            self._params.max_bytes,
            held[0][0].settings.isolation_level,
            [
                FetchPartition(
                    leader.topic, leader.key.topic_id, leader.key.partition, offset,
                    max_bytes=share_bytes, current_leader_epoch=leader.leader_epoch,
                )
                for leader, offset in held
            ],
            results.extend,
        )  # fmt: skip
        return [
            self._in_range(leader, offset, result)
            for (leader, offset), result in zip(held, results, strict=True)
        ]

    def _in_range(self, leader: ShareLeader, offset: int, result: FetchResult) -> FetchResult:
        """What the log has left behind is passed over, and the member asks again at once. What it
        has not reached (offsets may be altered to any) is waited for; Kafka answers with nothing,
        and is asked again without end."""
        if result.error_code != _OUT_OF_RANGE:
            return result
        code, _, log_start_offset, _ = self._replica_manager.list_offset(
            leader.topic_partition, EARLIEST, 0
        )
        if code:
            return FetchResult(code)
        leader.log_start_moved(log_start_offset)
        return result if offset < log_start_offset else FetchResult()

    def _is_enough(self, reads: list[_Read]) -> bool:
        sizes = {read.leader: _size(read) for read in reads}
        with self._lock:
            self._sizes = sizes
        has_enough = bool(reads) and sum(sizes.values()) >= self._params.min_bytes
        return has_enough or _is_told_of(self._leaders, reads)

    # -- delivering --------------------------------------------------------------------------

    def _deliver(self, reads: list[_Read]) -> list[Delivery]:
        """Acquire in order; `max_records` is shared."""
        deliveries: list[Delivery] = []
        left = self._params.max_records
        for read in reads:
            delivery = self._deliver_one(read, left)
            deliveries.append(delivery)
            left -= sum(got.last - got.first + 1 for got in delivery.acquired)
        return deliveries

    def _deliver_one(self, read: _Read, max_records: int) -> Delivery:
        leader, result = read.leader, read.result
        if result.error_code == _OUT_OF_RANGE:
            return Delivery(leader, 0)
        if result.error_code in _LED_ELSEWHERE:
            return Delivery(leader, int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if result.error_code or result.records is None:
            return Delivery(leader, result.error_code)
        if max_records <= 0:
            return Delivery(leader, 0)
        try:
            last_offset = leader.last_wanted(max_records, result.high_watermark)
            headers = _headers_to(last_offset, result.records)
        except (OSError, MalformedFrame) as error:  # up the stack nobody answers who waited
            logger.warning("share fetch failed key=%s error=%s", leader.key, error)
            is_disk = isinstance(error, OSError)
            code = ErrorCode.KAFKA_STORAGE_ERROR if is_disk else ErrorCode.CORRUPT_MESSAGE
            return Delivery(leader, int(code))
        fetched = Fetched(
            read.offset,
            [Span(header.base_offset, header.last_offset) for _, header in headers],
            _aborted(headers, result),
        )
        params = self._params
        acquired = leader.acquire(
            params.member_id, fetched, max_records, params.mode, params.batch_size
        )
        return Delivery(leader, 0, _cut(result.records, headers, acquired), acquired)


def _headers_to(last_offset: int, records: FileSlice) -> list[tuple[int, BatchHeader]]:
    """Where whole batches are, up to the one with this offset. What is in them is not read: it may
    be fifty megabytes, of which the member gets one record. Raises OSError, and MalformedFrame for
    bytes that are no batch."""
    headers: list[tuple[int, BatchHeader]] = []
    at = start = 0
    piece = b""
    while at + BATCH_OVERHEAD <= records.size:
        if at + BATCH_OVERHEAD > start + len(piece):
            start, piece = at, records.read(at, _PIECE)
        header = read_header(piece, at - start)
        if at + header.size > records.size:
            break
        headers.append((at, header))
        if header.last_offset >= last_offset:
            break
        at += header.size
    return headers


def _size(read: _Read) -> int:
    return 0 if read.result.records is None else read.result.records.size


def _is_told_of(leaders: Sequence[ShareLeader], reads: Sequence[_Read]) -> bool:
    """Whether something is wrong with one of them, which is told at once."""
    is_wrong = any(read.result.error_code for read in reads)
    return is_wrong or any(leader.is_over for leader in leaders)


def _let_go(reads: list[_Read]) -> None:
    for read in reads:
        if read.result.records is not None:
            read.result.records.close()
        read.leader.end_fetch()


def _aborted(headers: Sequence[tuple[int, BatchHeader]], result: FetchResult) -> list[Span]:
    """The batches of aborted transactions; their markers are none of them."""
    if not result.aborted:
        return []
    coming = sorted((one.first_offset, one.producer_id) for one in result.aborted)
    coming.reverse()
    aborting: set[int] = set()
    aborted = []
    for _, header in headers:
        while coming and coming[-1][0] <= header.last_offset:
            aborting.add(coming.pop()[1])
        if not header.is_transactional or header.producer_id not in aborting:
            continue
        if header.is_control:
            aborting.discard(header.producer_id)
        else:
            aborted.append(Span(header.base_offset, header.last_offset))
    return aborted


def _cut(
    records: FileSlice, headers: Sequence[tuple[int, BatchHeader]], acquired: Sequence[Acquired]
) -> FileSlice | bytes:
    """Whole batches, from the first to the last that has something acquired."""
    if not acquired:
        return b""
    first, last = acquired[0].first, acquired[-1].last
    inside = [
        (position, header)
        for position, header in headers
        if header.last_offset >= first and header.base_offset <= last
    ]
    if not inside:
        return b""
    begin, (end, last_header) = inside[0][0], inside[-1]
    return records.part(begin, end + last_header.size - begin)
