"""What a group's configuration means to leaders of partitions."""

from __future__ import annotations

import pytest

from server.coordinator.group_config import ShareConfig
from server.coordinator.share_groups.settings import settings_of


def settings(**values):
    config = ShareConfig().of_group({key.replace("_", "."): v for key, v in values.items()})
    return settings_of(config, lambda: 100_000_000)


def test_without_values_of_its_own_a_group_has_the_brokers():
    found = settings()
    assert found.limits == (30_000, 5, 2_000, True)
    assert (found.isolation_level, found.reset_timestamp) == (0, -1)


def test_a_group_has_its_own_within_bounds():
    found = settings(
        share_record_lock_duration_ms="1",
        share_delivery_count_limit="7",
        share_partition_max_record_locks="9999",
        share_renew_acknowledge_enable="false",
        share_isolation_level="read_committed",
        share_auto_offset_reset="earliest",
    )
    assert found.limits == (15_000, 7, 4_000, False)
    assert (found.isolation_level, found.reset_timestamp) == (1, -2)


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("by_duration:P1D", 13_600_000),
        ("by_duration:PT1H1M1.5S", 96_338_500),
        ("BY_DURATION:pt1s", 99_999_000),
        ("by_duration:P9999D", 0),
        ("latest", -1),
    ],
)
def test_where_a_group_begins(text, timestamp):
    assert settings(share_auto_offset_reset=text).reset_timestamp == timestamp
