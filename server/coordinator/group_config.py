"""What the group coordinator can be told: Kafka's keys as one frozen value (PURE).

Every field is named like its key with `_` for `.`; defaults and units are Kafka's
(GroupCoordinatorConfig). Those of `GroupConfig` are read-only in Kafka, so they are read once at
start; some of `ConsumerConfig` change while the broker runs, and a group may have its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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

    group_coordinator_rebalance_protocols: Sequence[str] = ("classic", "consumer", "streams")
    """The kinds of groups that are served."""


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How groups of KIP-848 are kept; those of one group where it has its own."""

    group_consumer_session_timeout_ms: int = 45_000
    """How long a member may be silent, ms."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """How often a member is asked to speak, ms."""
    group_consumer_assignment_interval_ms: int = 1_000
    """The least time between two targets of one group, ms."""
    group_consumer_regex_refresh_interval_ms: int = 600_000
    """After so long regular expressions are looked at again, ms."""
    group_consumer_max_size: int = _INT_MAX
    """Most members of one group; above: GROUP_MAX_SIZE_REACHED."""
    group_consumer_assignors: Sequence[str] = ("uniform", "range")
    """Names of the assignors that members may ask for; the first is the default."""
    group_consumer_migration_policy: str = "bidirectional"
    """Which way a group may change its protocol while it has members."""
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group becomes a consumer group when such a member comes."""
        return self.group_consumer_migration_policy.lower() in ("upgrade", "bidirectional")

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group becomes a classic group when only such members are left."""
        return self.group_consumer_migration_policy.lower() in ("downgrade", "bidirectional")

    @property
    def takes_classic_members(self) -> bool:
        """Whether a member of the classic protocol may be in a consumer group."""
        return self.group_consumer_migration_policy.lower() != "disabled"

    def of_group(self, values: Mapping[str, str]) -> ConsumerConfig:
        """With a group's own values, brought between the broker's bounds, which may have become
        narrower since (GroupConfig.evaluate)."""
        own = {}
        for name in _OF_GROUPS:
            text = values.get(f"consumer.{name.replace('_', '.')}")
            if text is not None:
                low = getattr(self, f"group_consumer_min_{name}")
                high = getattr(self, f"group_consumer_max_{name}")
                own[f"group_consumer_{name}"] = min(max(int(text), low), high)
        return replace(self, **own) if own else self


_OF_GROUPS = ("session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms")


NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1_000
"""How long a member whose first JoinGroup is parked may stay without asking again, ms; fixed in
Kafka (GroupCoordinatorService: classicGroupNewMemberJoinTimeoutMs).
"""
