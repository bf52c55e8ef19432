"""What the replica manager is asked and what it answers, partition by partition.

Plain slotted records between `server.handlers.produce` and `fetch`, which know the wire's versions,
and `ReplicaManager`, which knows none. Error codes are wire codes as ints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from storage.log.append_source import FROM_CLIENT, AppendSource
from wire.errors import ErrorCode
from wire.primitives import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage.log.append_source import Verification
    from storage.open_files import FileSlice
    from wire.primitives import TopicPartition

CONSUMER_REPLICA_ID = -1
"""The replica id of a client's Fetch or ListOffsets."""
DEBUGGING_REPLICA_ID = -2
"""ListOffsets by a debugging consumer: any replica may answer, up to its log end offset."""


LIST_OFFSETS_MIN_VERSION = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""First ListOffsets version that may ask for each special timestamp; older or unknown negative
ones are UNSUPPORTED_VERSION (ReplicaManager.isListOffsetsTimestampUnsupported)."""

UNKNOWN_EPOCH = -1
ACKS_ALL = -1
"""Required acks of a coordinator: answered when the high watermark covers it."""
DELETE_TO_HIGH_WATERMARK = -1
"""The offset in DeleteRecords that means "everything below the high watermark"."""


class IsolationLevel(IntEnum):
    """A consumer's `isolation.level` (KIP-98), with its wire value."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


Named = tuple[str | bytes, int]
"""A partition as its requests name it, by the topic's name or its id: one that is not known yet has
no other name, and a producer keeps to one of both."""


class AppendRequest(NamedTuple):
    """What one request appends, one batch for each entry, and who hears what became of it.

    `on_done` gets one result for each entry, in order, exactly once. With `leader_epoch`, a
    partition that is not led under exactly that epoch refuses with NOT_LEADER_OR_FOLLOWER
    (coordinators: what they know is from that leadership).
    """

    required_acks: int
    """0 or 1: written by the leader; -1: below the high watermark."""
    timeout_ms: int
    entries: Sequence[tuple[tuple[str, int], memoryview | bytes]]
    """Partitions and their records."""
    on_done: Callable[[list[AppendResult]], None]
    source: AppendSource = FROM_CLIENT
    leader_epoch: int | None = None
    verifications: Mapping[tuple[str, int], Verification] | None = None
    """What `TransactionVerification.start` told of these partitions; None: nothing to verify."""
    topic_ids: Mapping[str, bytes] | None = None
    """Which topics of these names are meant; None: whichever is here."""
    on_settled: Callable[[list[AppendResult], int], None] | None = None
    """It is several requests of a client: what they have for one partition is written together, and
    who waits for the last hears, as long as it waits, how many of the first results are known."""

    def named(self, key: tuple[str, int]) -> Named:
        """One of the partitions, as the client named it."""
        return key if self.topic_ids is None else (self.topic_ids[key[0]], key[1])


@dataclass(slots=True)
class AppendResult:
    """One partition's part of a Produce response.

    `base_offset` is -1 if nothing was appended; after a timeout (7) or a shrunken ISR (20) it is
    where the records are. A duplicate has the offsets of the original.
    """

    topic_partition: tuple[str, int]
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[Any] = ()
    last_offset: int = -1


@dataclass(slots=True)
class FetchPartition:
    """One partition's part of a Fetch request, topic id resolved to a name."""

    topic: str
    topic_id: bytes | None
    partition_index: int
    fetch_offset: int
    log_start_offset: int = -1
    """A follower's log start offset; -1 from a consumer."""
    max_bytes: int = 1 << 20
    current_leader_epoch: int = UNKNOWN_EPOCH
    last_fetched_epoch: int = UNKNOWN_EPOCH
    key: tuple[str, int] = field(init=False, repr=False, compare=False)
    """(topic, partition_index), made once: a session asks the same for hours."""

    def __post_init__(self) -> None:
        self.key = (self.topic, self.partition_index)


@dataclass(slots=True)
class FetchResult:
    """One partition's part of a Fetch response.

    `records` is a file slice whose owner is now the receiver: send it or close it.
    `aborted` is None for read_uncommitted; its entries have producer_id and first_offset.
    `diverging_epoch` is (epoch, end_offset) where the fetcher's log left the leader's (KIP-595).
    """

    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None
    aborted: Sequence[Any] | None = None
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1


class QuietAnswer(FetchResult):
    """The result for a follower in sync that asks again what it asked before: offsets only.

    The same object as long as they stay the same.
    """

    __slots__ = ()


@dataclass(slots=True)
class ReplicaLogInfo:
    """One partition in DescribeLogDirs: size in bytes, and how far the log is behind its HW."""

    topic: str
    partition_index: int
    size: int
    offset_lag: int
    is_future: bool = False


@dataclass(slots=True)
class LogDirInfo:
    """One log directory in DescribeLogDirs; an offline one has an error code and no partitions."""

    path: str
    error_code: int = 0
    total_bytes: int = -1
    usable_bytes: int = -1
    partitions: Sequence[ReplicaLogInfo] = ()
    is_cordoned: bool = False


class AlteredIsr(NamedTuple):
    """The controller's answer to a change of an ISR: what is committed now."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class IsrChange(NamedTuple):
    """A leader's wish for another ISR, valid only at exactly these two epochs (KIP-497).

    `isr` holds (broker id, broker epoch); -1 where the epoch is not known (KIP-903). `on_answer`
    is called once, with no lock held.
    """

    topic_partition: TopicPartition
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    on_answer: Callable[[AlteredIsr | ErrorCode], None]
