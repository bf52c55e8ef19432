"""What the group coordinator can be told: Kafka's keys as one frozen value (PURE).

Every field is named like its key with `_` for `.`; defaults and units are Kafka's
(GroupCoordinatorConfig). Those of `GroupConfig` are read-only in Kafka, so they are read once at
start; some of `ConsumerConfig`, `ShareConfig` and `StreamsConfig` change while the broker runs, and
a group may have its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
        own = _own_values(self, "consumer", _OF_GROUPS, values)
        return replace(self, **own) if own else self


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """How share groups are kept; those of one group where it has its own."""

    group_share_session_timeout_ms: int = 45_000
    """How long a member may be silent, ms."""
    group_share_heartbeat_interval_ms: int = 5_000
    """How often a member is asked to speak, ms."""
    group_share_assignment_interval_ms: int = 1_000
    """The least time between two targets of one group, ms."""
    group_share_initialize_retry_interval_ms: int = 30_000
    """After so long the state of partitions is asked for again, ms."""
    group_share_max_size: int = 200
    """Most members of one group; above: GROUP_MAX_SIZE_REACHED."""
    group_share_max_share_sessions: int = 2_000
    """Most sessions of a broker; above: SHARE_SESSION_LIMIT_REACHED."""
    group_share_record_lock_duration_ms: int = 30_000
    """How long a record is a member's alone, ms."""
    group_share_delivery_count_limit: int = 5
    """How often a record is given out."""
    group_share_partition_max_record_locks: int = 2_000
    """Most records of a partition that are given out and not yet done."""
    group_share_min_session_timeout_ms: int = 45_000
    group_share_max_session_timeout_ms: int = 60_000
    group_share_min_heartbeat_interval_ms: int = 5_000
    group_share_max_heartbeat_interval_ms: int = 15_000
    group_share_min_assignment_interval_ms: int = 0
    group_share_max_assignment_interval_ms: int = 15_000
    group_share_min_record_lock_duration_ms: int = 15_000
    group_share_max_record_lock_duration_ms: int = 60_000
    group_share_min_delivery_count_limit: int = 2
    group_share_max_delivery_count_limit: int = 10
    group_share_min_partition_max_record_locks: int = 100
    group_share_max_partition_max_record_locks: int = 4_000

    auto_offset_reset: str = "latest"
    """Where a partition begins that nobody has acknowledged anything of; a group's alone."""
    isolation_level: str = "read_uncommitted"
    """A group's alone."""
    renew_acknowledge_enable: bool = True
    """Whether members may renew locks; a group's alone."""

    def of_group(self, values: Mapping[str, str]) -> ShareConfig:
        """As ConsumerConfig.of_group."""
        own = _own_values(self, "share", (*_OF_GROUPS, *_OF_SHARE_GROUPS), values)
        for name in ("auto_offset_reset", "isolation_level"):
            text = values.get(f"share.{name.replace('_', '.')}")
            if text is not None:
                own[name] = text
        renew = values.get("share.renew.acknowledge.enable")
        if renew is not None:
            own["renew_acknowledge_enable"] = renew.strip().lower() == "true"
        return replace(self, **own) if own else self


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """How streams groups are kept; those of one group where it has its own."""

    group_streams_session_timeout_ms: int = 45_000
    """How long a member may be silent, ms."""
    group_streams_heartbeat_interval_ms: int = 5_000
    """How often a member is asked to speak, ms."""
    group_streams_assignment_interval_ms: int = 1_000
    """The least time between two targets of one group, ms."""
    group_streams_initial_rebalance_delay_ms: int = 3_000
    """How long an empty group waits for more members before its first target, ms."""
    group_streams_num_standby_replicas: int = 0
    """Copies of each task's state."""
    group_streams_max_size: int = _INT_MAX
    """Most members of one group; above: GROUP_MAX_SIZE_REACHED."""
    group_streams_max_standby_replicas: int = 2
    """Most copies that a group may ask for."""
    group_streams_min_session_timeout_ms: int = 45_000
    group_streams_max_session_timeout_ms: int = 60_000
    group_streams_min_heartbeat_interval_ms: int = 5_000
    group_streams_max_heartbeat_interval_ms: int = 15_000
    group_streams_min_assignment_interval_ms: int = 0
    group_streams_max_assignment_interval_ms: int = 15_000

    def of_group(self, values: Mapping[str, str]) -> StreamsConfig:
        """As ConsumerConfig.of_group."""
        own = _own_values(self, "streams", _OF_GROUPS, values)
        delay_ms = values.get("streams.initial.rebalance.delay.ms")
        if delay_ms is not None:
            own["group_streams_initial_rebalance_delay_ms"] = int(delay_ms)
        standbys = values.get("streams.num.standby.replicas")
        if standbys is not None:
            most = self.group_streams_max_standby_replicas
            own["group_streams_num_standby_replicas"] = min(int(standbys), most)
        return replace(self, **own) if own else self


def _own_values(
    config: object, kind: str, names: Sequence[str], values: Mapping[str, str]
) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for name in names:
        text = values.get(f"{kind}.{name.replace('_', '.')}")
        if text is not None:
            low = getattr(config, f"group_{kind}_min_{name}")
            high = getattr(config, f"group_{kind}_max_{name}")
            own[f"group_{kind}_{name}"] = min(max(int(text), low), high)
    return own


_OF_GROUPS = ("session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms")
_OF_SHARE_GROUPS = ("record_lock_duration_ms", "delivery_count_limit", "partition_max_record_locks")


NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1_000
"""How long a member whose first JoinGroup is parked may stay without asking again, ms; fixed in
Kafka (GroupCoordinatorService: classicGroupNewMemberJoinTimeoutMs).
"""
