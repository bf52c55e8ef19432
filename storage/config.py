"""Settings of one partition log, and the seams through which storage sees time and background work.

`LogConfig` holds every topic config of Kafka 4.3 as a typed field; the field's name is the key with
dots as underscores, its default and unit are Kafka's. It is immutable: a changed topic config is a
new `LogConfig` handed to `PartitionLog.update_config`. Values arrive here validated (the server's
config catalogue refuses what Kafka refuses), so `from_values` only converts.

`Clock` and `Scheduler` are protocols: the broker passes real ones, tests pass their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol

STOP_WAIT_S = 30.0
"""How long a stop waits for a thread that may hang with its disk."""
LONG_MAX = 2**63 - 1

CLEANUP_DELETE = "delete"
CLEANUP_COMPACT = "compact"
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
COMPRESSION_PRODUCER = "producer"


@dataclass(slots=True)
class ProducerStateConfig:
    """What all logs of a broker are told of producers; it may change at any time."""

    expiration_ms: int = 86_400_000
    """How long an idle producer is remembered (producer.id.expiration.ms)."""
    requires_verification: bool = False
    """Whether the first batch of a transaction needs a guard
    (transaction.partition.verification.enable)."""


@dataclass(frozen=True, slots=True)
class LogManagerConfig:
    """Periods of the background work, in ms; Kafka's names without `log.` and `replica.`."""

    retention_check_interval_ms: int = 300_000
    flush_scheduler_interval_ms: int = LONG_MAX
    """Kafka's default never looks; topics with a `flush.ms` are looked at every second anyway."""
    flush_offset_checkpoint_interval_ms: int = 60_000
    flush_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_check_interval_ms: int = 600_000
    producer_id_expiration_ms: int = 86_400_000
    transaction_partition_verification_enable: bool = True


class Clock(Protocol):
    """Time as two different things: a monotonic clock for waiting, the wall clock for records."""

    def now_ms(self) -> int:
        """Monotonic milliseconds; only differences mean something."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as in record timestamps; may jump."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ScheduledTask(Protocol):
    """What a scheduler hands back; cancelling twice or after the run is harmless."""

    def cancel(self) -> object: ...


class Scheduler(Protocol):
    """Runs storage's background jobs on a thread of its own, never inside the call."""

    def schedule_once(self, name: str, delay_ms: int, fn: Callable[[], object]) -> ScheduledTask:
        """Run `fn` once, after `delay_ms`."""

    def schedule(
        self, name: str, period_ms: int, fn: Callable[[], object], delay_ms: int | None = None
    ) -> ScheduledTask:
        """Run `fn` every `period_ms`, first after `delay_ms` (default: one period)."""


def _parse_bool(text: str) -> bool:
    return text.strip().lower() == "true"


def _parse_set(text: str) -> frozenset[str]:
    return frozenset(part.strip().lower() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Topic configs of Kafka 4.3 (`kafka-4.3/configs.json`, "topic"); -1 means no limit."""

    cleanup_policy: frozenset[str] = frozenset((CLEANUP_DELETE,))
    """What retention does: `delete` old segments, `compact` by key, both, or nothing (empty)."""
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = COMPRESSION_PRODUCER
    """Codec batches are stored with; `producer` keeps the producer's."""
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    """How long a compacted log keeps tombstones."""
    file_delete_delay_ms: int = 60_000
    """Wait between renaming a file to `.deleted` and unlinking it."""
    flush_messages: int = LONG_MAX
    """Offsets that may be unsynced before an append must wait for fsync; 1 is fsync before ack."""
    flush_ms: int = LONG_MAX
    """Age of unsynced data that makes the background flush sync the log."""
    follower_replication_throttled_replicas: frozenset[str] = frozenset()
    """`partition:broker` pairs, or `*`; a set, for each partition looks for itself all the time."""
    index_interval_bytes: int = 4096
    """Bytes of log between two index entries."""
    leader_replication_throttled_replicas: frozenset[str] = frozenset()
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    """Largest record batch, as it arrives on the wire."""
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    """Largest index file; a segment whose index is full is rolled."""
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False
    takes_batches_as_sent: bool = field(init=False, compare=False, repr=False, default=True)
    """True if no config makes the log open or change a batch, but for a time in the future."""
    max_segment_ms: int = field(init=False, compare=False, repr=False, default=0)
    """Age at which a segment is rolled: `segment.ms`, or earlier so that it can be cleaned in time
    for `max.compaction.lag.ms`."""

    def __post_init__(self) -> None:
        as_sent = (
            not self.is_compacted
            and self.compression_type == COMPRESSION_PRODUCER
            and self.message_timestamp_type == CREATE_TIME
            and self.message_timestamp_before_max_ms == LONG_MAX
        )
        object.__setattr__(self, "takes_batches_as_sent", as_sent)
        lag_ms = self.max_compaction_lag_ms if self.is_compacted else LONG_MAX
        object.__setattr__(self, "max_segment_ms", min(self.segment_ms, lag_ms))

    @property
    def is_compacted(self) -> bool:
        """True if records need a key because the log is compacted by it."""
        return CLEANUP_COMPACT in self.cleanup_policy

    @property
    def deletes_by_retention(self) -> bool:
        return CLEANUP_DELETE in self.cleanup_policy

    @property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @classmethod
    def from_values(cls, values: Mapping[str, str]) -> LogConfig:
        """Build from effective values keyed by topic config names; an absent key is the default.

        `internal.segment.bytes` (Kafka's own, for tests) goes before `segment.bytes` and has no
        lower bound. Unknown keys are ignored: the caller has refused them already.
        """
        converted: dict[str, object] = {}
        for key, value in values.items():
            parser = _PARSERS.get(key)
            if parser is not None:
                converted[key.replace(".", "_")] = parser(value)
        internal = values.get("internal.segment.bytes")
        if internal:
            converted["segment_bytes"] = int(internal)
        return cls(**converted)  # type: ignore[arg-type]


_BY_TYPE: dict[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "bool": _parse_bool,
    "str": str,
    "frozenset[str]": _parse_set,
}
_PARSERS: dict[str, Callable[[str], object]] = {
    item.name.replace("_", "."): _BY_TYPE[str(item.type)] for item in fields(LogConfig) if item.init
}
