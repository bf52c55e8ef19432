"""Topic configs as the log obeys them."""

from __future__ import annotations

from storage.config import LONG_MAX, LogConfig, SystemClock

# Kafka 4.3's defaults (kafka-4.3/configs.json, "topic"), as a broker would report them.
DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_without_values_every_config_has_kafkas_default() -> None:
    assert LogConfig.from_values({}) == LogConfig.from_values(DEFAULTS) == LogConfig()


def test_values_are_read_by_their_kafka_names_and_types() -> None:
    config = LogConfig.from_values(
        {
            "cleanup.policy": "compact, delete",
            "retention.ms": "-1",
            "min.cleanable.dirty.ratio": "0.25",
            "unclean.leader.election.enable": "TRUE",
            "follower.replication.throttled.replicas": "0:1,1:2",
            "no.such.key": "ignored",
        }
    )
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.is_compacted
    assert config.deletes_by_retention
    assert config.retention_ms == -1
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.unclean_leader_election_enable is True
    assert config.follower_replication_throttled_replicas == frozenset(("0:1", "1:2"))
    assert config.flush_messages == LONG_MAX


def test_an_empty_policy_neither_deletes_nor_compacts() -> None:
    config = LogConfig.from_values({"cleanup.policy": ""})
    assert not config.is_compacted
    assert not config.deletes_by_retention


def test_the_internal_segment_size_goes_first() -> None:
    config = LogConfig.from_values({"segment.bytes": "1048576", "internal.segment.bytes": "99"})
    assert config.segment_bytes == 99


def test_only_plain_configs_let_batches_pass_unopened() -> None:
    assert LogConfig().takes_batches_as_sent
    for values in (
        {"cleanup.policy": "compact"},
        {"compression.type": "lz4"},
        {"message.timestamp.type": "LogAppendTime"},
        {"message.timestamp.before.max.ms": "1000"},
    ):
        assert not LogConfig.from_values(values).takes_batches_as_sent


def test_the_machines_clocks_tell_milliseconds() -> None:
    clock = SystemClock()
    assert clock.now_ms() <= clock.now_ms()
    assert 1_600_000_000_000 < clock.wall_ms() < 4_000_000_000_000
