"""kafka-topics, kafka-configs, kafka-get-offsets, kafka-delete-records, kafka-log-dirs and kin."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from testkit.wait import eventually

pytestmark = pytest.mark.java


def test_a_topic_is_created_described_altered_and_deleted(tool: Any, topic_name: str) -> None:
    out = tool("TopicCommand", "--create", "--topic", topic_name, "--partitions", "2",
               "--replication-factor", "1", "--config", "retention.ms=1234567").ok()  # fmt: skip
    assert f"Created topic {topic_name}." in out
    assert topic_name in tool("TopicCommand", "--list").ok().splitlines()
    described = tool("TopicCommand", "--describe", "--topic", topic_name).ok()
    assert "PartitionCount: 2" in described
    assert "retention.ms=1234567" in described
    assert re.search(r"TopicId: [A-Za-z0-9_-]{22}\t", described)
    assert len(re.findall(r"Leader: (\d+)\tReplicas: \1\tIsr: \1\t", described)) == 2
    tool("TopicCommand", "--alter", "--topic", topic_name, "--partitions", "5").ok()
    eventually(
        lambda: (
            "PartitionCount: 5" in tool("TopicCommand", "--describe", "--topic", topic_name).ok()
        )
    )
    tool("TopicCommand", "--delete", "--topic", topic_name).ok()
    eventually(lambda: topic_name not in tool("TopicCommand", "--list").ok().splitlines())


def test_topics_that_are_ill_are_listed_and_there_are_none(tool: Any, topic_name: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name).ok()
    for flag in ("--under-replicated-partitions", "--unavailable-partitions",
                 "--under-min-isr-partitions", "--at-min-isr-partitions"):  # fmt: skip
        described = tool("TopicCommand", "--describe", flag).ok()
        assert ("Partition: 0" in described) == (flag == "--at-min-isr-partitions")


def test_topics_refuse_what_cannot_be(tool: Any, topic_name: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name, "--if-not-exists").ok()
    again = tool("TopicCommand", "--create", "--topic", topic_name)
    assert again.code == 1
    assert "already exists" in again.text
    tool("TopicCommand", "--create", "--topic", topic_name, "--if-not-exists").ok()
    wide = tool("TopicCommand", "--create", "--topic", f"{topic_name}-2",
                "--replication-factor", "3")  # fmt: skip
    assert wide.code == 1
    assert "replication" in wide.text.lower()
    missing = tool("TopicCommand", "--describe", "--topic", "no-such-topic-here")
    assert missing.code == 1
    assert "does not exist" in missing.text


def test_topic_configs_are_changed_and_described(tool: Any, topic_name: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name).ok()

    def described(*more: str) -> str:
        return str(tool("ConfigCommand", "--describe", "--topic", topic_name, *more).ok())

    tool("ConfigCommand", "--alter", "--topic", topic_name,
         "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]").ok()  # fmt: skip
    text = described()
    assert "retention.ms=1000 sensitive=false" in text
    assert "synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000}" in text
    assert (
        "cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:"
        "cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}" in text
    )
    assert "max.message.bytes=1048588" in described("--all")
    tool("ConfigCommand", "--alter", "--topic", topic_name, "--delete-config", "retention.ms").ok()
    assert "retention.ms" not in described()
    wrong = tool("ConfigCommand", "--alter", "--topic", topic_name, "--add-config", "no.such=1")
    assert wrong.code == 1


def test_every_topic_config_has_kafkas_default(tool: Any, topic_name: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic_name).ok()
    text = tool("ConfigCommand", "--describe", "--topic", topic_name, "--all").ok()
    configs = dict(
        line.strip().split(" sensitive=")[0].split("=", 1) for line in text.splitlines()[1:]
    )
    assert len(configs) == 33
    expected = {
        "cleanup.policy": "delete", "compression.type": "producer", "segment.bytes": "1073741824",
        "index.interval.bytes": "4096", "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5", "retention.bytes": "-1", "segment.ms": "604800000",
        "unclean.leader.election.enable": "false", "file.delete.delay.ms": "60000",
        "min.insync.replicas": "1", "flush.messages": "9223372036854775807",
    }  # fmt: skip
    assert {name: configs[name] for name in expected} == expected


def test_broker_configs_are_changed_for_one_broker_and_for_all(tool: Any) -> None:
    node = _node_id(tool)
    for where in (("--broker", node), ("--broker-defaults",)):
        tool("ConfigCommand", "--alter", *where, "--add-config", "log.retention.ms=5000000").ok()
        try:
            text = tool("ConfigCommand", "--describe", *where).ok()
            assert "log.retention.ms=5000000 sensitive=false" in text
        finally:
            tool("ConfigCommand", "--alter", *where, "--delete-config", "log.retention.ms").ok()
    everything = tool("ConfigCommand", "--describe", "--broker", node, "--all").ok()
    assert re.search(r"\n  log\.dirs=", everything)
    assert len(everything.splitlines()) > 150
    static = tool("ConfigCommand", "--alter", "--broker", node, "--add-config", "node.id=77")
    assert static.code == 1


def _node_id(tool: Any) -> str:
    match = re.search(r"id: (\d+) rack", tool("BrokerApiVersionsCommand").ok())
    assert match
    return match.group(1)


@pytest.fixture
def three_records(tool: Any, produce: Any, topic_name: str) -> str:
    """Two partitions; three records, all in partition 0 (they share a key)."""
    tool("TopicCommand", "--create", "--topic", topic_name, "--partitions", "2").ok()
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    produce(topic_name, "k:a", "k:b", "k:c", args=keyed)
    return topic_name


def test_offsets_at_every_special_time(tool: Any, three_records: str) -> None:
    topic = three_records

    def at(when: str) -> set[str]:
        out = tool("GetOffsetShell", "--topic", topic, "--time", when).ok()
        return {line.removeprefix(topic + ":") for line in out.splitlines()}

    (full,) = {place[0] for place in at("latest") if place.endswith(":3")}
    empty = "1" if full == "0" else "0"
    for latest in ("latest", "-1"):
        assert at(latest) == {f"{full}:3", f"{empty}:0"}
    for earliest in ("earliest", "-2", "earliest-local", "-4"):
        assert at(earliest) == {f"{full}:0", f"{empty}:0"}
    for newest in ("max-timestamp", "-3"):
        (place,) = at(newest)
        assert place.split(":")[0] == full
    for tiered in ("latest-tiered", "-5", "earliest-pending-upload", "-6"):
        assert at(tiered) == set()
    assert at("1000") == {f"{full}:0"}
    assert at(str(int(time.time() * 1000) + 3_600_000)) == set()


def test_records_are_deleted_by_a_file(tool: Any, three_records: str, tmp_path: Path) -> None:
    topic = three_records
    places = tool("GetOffsetShell", "--topic", topic).ok().splitlines()
    (full,) = [line.split(":")[1] for line in places if line.endswith(":3")]
    plan = tmp_path / "delete.json"
    wanted = [{"topic": topic, "partition": int(full), "offset": 2}]
    plan.write_text(json.dumps({"partitions": wanted, "version": 1}))
    out = tool("DeleteRecordsCommand", "--offset-json-file", str(plan)).ok()
    assert f"partition: {topic}-{full}\tlow_watermark: 2" in out
    earliest = tool("GetOffsetShell", "--topic", topic, "--time", "earliest").ok()
    assert f"{topic}:{full}:2" in earliest


def test_log_dirs_tell_the_size_of_each_partition(
    tool: Any, three_records: str, broker: Any
) -> None:
    out = tool("LogDirsCommand", "--describe", "--topic-list", three_records).ok()
    answer = json.loads(out.splitlines()[-1])
    (log_dir,) = answer["brokers"][0]["logDirs"]
    assert log_dir["error"] is None
    assert Path(log_dir["logDir"]).resolve() == Path(broker.data_dir).resolve()
    sizes = sorted(p["size"] for p in log_dir["partitions"])
    assert sizes[0] == 0
    on_disk = sum(
        f.stat().st_size for f in Path(log_dir["logDir"]).glob(f"{three_records}-*/*.log")
    )
    assert sizes[1] == on_disk > 0
    assert {p["offsetLag"] for p in log_dir["partitions"]} == {0}


def test_a_preferred_leader_is_already_there(tool: Any, three_records: str) -> None:
    out = tool("LeaderElectionCommand", "--election-type", "preferred",
               "--topic", three_records, "--partition", "0").ok()  # fmt: skip
    assert f"Valid replica already elected for partitions {three_records}-0" in out
