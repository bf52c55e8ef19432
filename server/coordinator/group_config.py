"""What the group coordinator can be told: Kafka's keys as one frozen value (PURE).

Every field is named like its key with `_` for `.`; defaults and units are Kafka's
(GroupCoordinatorConfig). All of them are read-only in Kafka, so they are read once at start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Limits and times of groups, and the shape of the topic that keeps them."""

    group_min_session_timeout_ms: int = 6_000
    """Shortest session a classic member may ask for, ms; below: INVALID_SESSION_TIMEOUT."""
    group_max_session_timeout_ms: int = 1_800_000
    """Longest session a classic member may ask for, ms."""
    group_initial_rebalance_delay_ms: int = 3_000
    """How long an empty group waits for more members before its first rebalance, ms."""
    group_max_size: int = _INT_MAX
    """Most members of one group; above: GROUP_MAX_SIZE_REACHED."""
    offset_metadata_max_bytes: int = 4_096
    """Longest metadata of one committed offset, characters; above: OFFSET_METADATA_TOO_LARGE."""
    offsets_retention_minutes: int = 10_080
    """How long offsets of an empty group or an unsubscribed topic live (KIP-211), minutes."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often expired offsets are looked for, ms."""
    offsets_commit_timeout_ms: int = 5_000
    """How long a coordinator's record may wait for the high watermark, ms."""
    offsets_load_buffer_size: int = 5_242_880
    """Most bytes read at once while loading, bytes."""
    offsets_topic_num_partitions: int = 50
    """Partitions of __consumer_offsets when it is created."""
    offsets_topic_replication_factor: int = 3
    """Replicas of __consumer_offsets when it is created."""
    offsets_topic_compression_codec: int = 0
    """Compression of what the coordinator writes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    offsets_topic_segment_bytes: int = 104_857_600
    """segment.bytes of __consumer_offsets when it is created, bytes."""

    @classmethod
    def from_values(cls, get: Callable[[str], object]) -> GroupConfig:
        """Read every field from a broker configuration by its key."""
        return cls(**{f.name: get(f.name.replace("_", ".")) for f in fields(cls)})  # type: ignore[arg-type]


NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1_000
"""How long a member whose first JoinGroup is parked may stay without asking again, ms; fixed in
Kafka (GroupCoordinatorService: classicGroupNewMemberJoinTimeoutMs).
"""
