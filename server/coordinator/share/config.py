"""What the share coordinator can be told: Kafka's keys as one frozen value (PURE).

Every field is named like its key with `_` for `.`; defaults and units are Kafka's
(ShareCoordinatorConfig). None of them changes while running.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareCoordinatorConfig:
    """Limits and times, and the shape of the topic that keeps the state."""

    share_coordinator_state_topic_num_partitions: int = 50
    """Partitions of __share_group_state when it is created."""
    share_coordinator_state_topic_replication_factor: int = 3
    """Replicas of __share_group_state when it is created."""
    share_coordinator_state_topic_min_isr: int = 2
    """min.insync.replicas of __share_group_state when it is created."""
    share_coordinator_state_topic_segment_bytes: int = 104_857_600
    """segment.bytes of __share_group_state when it is created, bytes."""
    share_coordinator_snapshot_update_records_per_snapshot: int = 500
    """After so many updates of a share partition, its whole state is written."""
    share_coordinator_write_timeout_ms: int = 5_000
    """How long an answer may wait for the high watermark, ms."""
    share_coordinator_load_buffer_size: int = 5_242_880
    """Most bytes read at once while loading, bytes."""
    share_coordinator_state_topic_compression_codec: int = 0
    """Codec of what is written, by its number in a batch's attributes."""
    share_coordinator_cold_partition_snapshot_interval_ms: int = 300_000
    """A share partition without a write for as long is written whole, ms."""
    share_coordinator_state_topic_prune_interval_ms: int = 300_000
    """How often records that nobody needs any more are deleted, ms."""
