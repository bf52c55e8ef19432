"""Access rules that a cluster is formatted with."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.snapshots import read_snapshot
from server.config.kafka_config import KafkaConfig
from server.node.first_rules import RuleError, acl_records
from server.node.format import FormatError, FormatOptions, format_node
from wire.messages.metadata_records import AccessControlEntryRecord

RULE = {
    "principal": "User:alice",
    "operation": "READ",
    "resource_type": "TOPIC",
    "resource_name": "orders",
}
ids = itertools.count(1)


def new_id() -> bytes:
    return next(ids).to_bytes(16)


def test_a_rule_becomes_a_record_once() -> None:
    (record,) = acl_records([json.dumps(RULE)] * 2, new_id)
    assert (record.principal, record.host, record.resource_name) == ("User:alice", "*", "orders")
    numbers = record.resource_type, record.pattern_type, record.operation, record.permission_type
    assert numbers == (2, 3, 3, 3)


def test_the_cluster_has_one_name() -> None:
    given = {"principal": "User:a", "operation": "ALL", "resource_type": "CLUSTER"}
    (record,) = acl_records([json.dumps(given)], new_id)
    assert record.resource_name == "kafka-cluster"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"operation": "EAT"}, "operation 'EAT': expected one of ALL, READ"),
        ({"operation": "IDEMPOTENT_WRITE"}, "means nothing on TOPIC: expected READ"),
        ({"principal": "alice"}, "no colon"),
        ({"resource_name": ""}, "expected a text as resource_name"),
        ({"resource_type": "CLUSTER", "operation": "ALTER"}, "only valid name"),
        ({"host": 7}, "expected a text as host"),
        ({"colour": "red"}, "expected an object with some of host, operation"),
    ],
)
def test_what_is_no_rule_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(RuleError, match=why):
        acl_records([json.dumps({**RULE, **change})], new_id)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "x"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(RuleError, match="expected"):
        acl_records([text], new_id)


def test_a_formatted_node_starts_with_the_rules(tmp_path: Path) -> None:
    config = KafkaConfig({"log.dirs": str(tmp_path / "data")})
    bad = FormatOptions("c" * 22, add_acl=["{}"])
    with pytest.raises(FormatError, match="--add-acl: expected a text"):
        format_node(config, bad, new_id, 1)
    assert not (tmp_path / "data").exists()
    format_node(config, bad._replace(add_acl=[json.dumps(RULE)]), new_id, 1)
    checkpoint = tmp_path / "data" / "bootstrap.checkpoint"
    assert checkpoint.stat().st_mode & 0o777 == 0o600
    snapshot = read_snapshot(checkpoint)
    records = [MetadataRecordSerde().decode(value) for value in snapshot.values]
    rules = [one for one in records if isinstance(one, AccessControlEntryRecord)]
    assert [rule.resource_name for rule in rules] == ["orders"]
