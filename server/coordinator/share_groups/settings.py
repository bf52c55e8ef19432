"""What a group's configuration means to the leaders of its partitions."""

from __future__ import annotations

from collections.abc import Callable

from server.coordinator.group_config import ShareConfig
from server.share.durations import by_duration_ms
from server.share.leading import Settings
from server.share.share_partition import Limits

_LATEST, _EARLIEST = -1, -2


def settings_of(config: ShareConfig, wall_ms: Callable[[], int]) -> Settings:
    """`wall_ms` tells the time, for who begins so long ago."""
    limits = Limits(
        config.group_share_record_lock_duration_ms,
        config.group_share_delivery_count_limit,
        config.group_share_partition_max_record_locks,
        config.renew_acknowledge_enable,
    )
    is_committed = config.isolation_level.strip().lower() == "read_committed"
    return Settings(limits, int(is_committed), _reset(config.auto_offset_reset, wall_ms))


def _reset(text: str, wall_ms: Callable[[], int]) -> int:
    name = text.strip().lower()
    if name in ("latest", "earliest"):
        return _LATEST if name == "latest" else _EARLIEST
    ago_ms = by_duration_ms(name)
    assert ago_ms is not None, "checked when it was set"
    return max(0, wall_ms() - ago_ms)
