"""kafka-python's admin client: every call that one node must serve."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    MemberToRemove,
    OffsetSpec,
    OffsetTimestamp,
)
from kafka.errors import (
    GroupIdNotFoundError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from testkit.clients.kpy import read
from testkit.clients.members import poll_all_until
from testkit.wait import eventually

BASE_MS = int(time.time() * 1000) - 3_600_000


def fill(producer: Any, topic: str, count: int, partition: int = 0) -> None:
    for i in range(count):
        producer.send(topic, b"%d" % i, partition=partition, timestamp_ms=BASE_MS + i * 1000)
    producer.flush(timeout=20)


# -- topics -----------------------------------------------------------------------------------


def test_a_topic_is_created_listed_described_and_deleted(
    admin: KafkaAdminClient, topic_name: str
) -> None:
    answer = admin.create_topics(
        {
            topic_name: {
                "num_partitions": 3,
                "replication_factor": 1,
                "configs": {"retention.ms": "123456", "cleanup.policy": "compact,delete"},
            }
        },
        wait_for_metadata=True,
    )["topics"][0]
    assert (answer["num_partitions"], answer["replication_factor"]) == (3, 1)
    assert answer["configs"]["retention.ms"]["value"] == "123456"
    assert answer["configs"]["segment.bytes"]["value"] == "1073741824"
    assert topic_name in admin.list_topics()
    (described,) = admin.describe_topics([topic_name])
    assert described["topic_id"] == answer["topic_id"]
    assert sorted(p["partition_index"] for p in described["partitions"]) == [0, 1, 2]
    for partition in described["partitions"]:
        assert partition["replica_nodes"] == partition["isr_nodes"] == [partition["leader_id"]]
        assert partition["offline_replicas"] == []
    (by_id,) = admin.describe_topics([UUID(str(described["topic_id"]))])
    assert by_id["name"] == topic_name
    admin.delete_topics([topic_name])
    eventually(lambda: topic_name not in admin.list_topics(), what="the topic is gone")


def test_defaults_fill_in_partitions_and_replication(
    admin: KafkaAdminClient, topic_name: str
) -> None:
    answer = admin.create_topics([topic_name])["topics"][0]
    assert (answer["num_partitions"], answer["replication_factor"]) == (1, 1)


def test_validate_only_creates_nothing(admin: KafkaAdminClient, topic_name: str) -> None:
    admin.create_topics({topic_name: {"num_partitions": 2}}, validate_only=True)
    assert topic_name not in admin.list_topics()


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"num_partitions": 0}, InvalidPartitionsError),
        ({"num_partitions": 1, "replication_factor": 3}, InvalidReplicationFactorError),
        ({"configs": {"no.such.config": "1"}}, InvalidConfigurationError),
        ({"configs": {"retention.ms": "soon"}}, InvalidConfigurationError),
        ({"configs": {"cleanup.policy": "burn"}}, InvalidConfigurationError),
    ],
    ids=["no partitions", "too many replicas", "unknown config", "ill-typed", "not in the list"],
)
def test_a_wrong_topic_is_refused_with_its_own_error(
    spec: dict[str, Any], error: type[Exception], admin: KafkaAdminClient, topic_name: str
) -> None:
    with pytest.raises(error):
        admin.create_topics({topic_name: spec})
    assert topic_name not in admin.list_topics()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "sp ace", "x" * 250, "\u00fcber"])
def test_illegal_topic_names_are_refused(name: str, admin: KafkaAdminClient) -> None:
    with pytest.raises((InvalidTopicError, InvalidRequestError)):
        admin.create_topics({name: {"num_partitions": 1}})


def test_names_that_collide_in_metrics_are_refused(
    admin: KafkaAdminClient, topic_name: str
) -> None:
    admin.create_topics([topic_name + ".a"])
    with pytest.raises(InvalidTopicError):
        admin.create_topics([topic_name + "_a"])


def test_a_topic_cannot_be_created_twice_nor_deleted_twice(
    admin: KafkaAdminClient, topic_name: str
) -> None:
    admin.create_topics([topic_name], wait_for_metadata=True)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([topic_name])
    admin.delete_topics([topic_name])
    eventually(lambda: topic_name not in admin.list_topics(), what="the topic is gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic_name])


def test_partitions_are_added_and_never_taken(admin: KafkaAdminClient, make_topic: Any) -> None:
    topic = make_topic(2)
    admin.create_partitions({topic: 5}, validate_only=True)
    assert len(admin.describe_topics([topic])[0]["partitions"]) == 2
    admin.create_partitions({topic: 5})
    eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 5)
    for count in (5, 3):
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({topic: count})


def test_described_partitions_come_in_pages(admin: KafkaAdminClient, make_topic: Any) -> None:
    topic = make_topic(5)
    first = admin.describe_topic_partitions([topic], response_partition_limit=2)
    assert [p["partition_index"] for p in first["topics"][0]["partitions"]] == [0, 1]
    cursor = first["next_cursor"]
    assert (cursor["topic_name"], cursor["partition_index"]) == (topic, 2)
    rest = admin.describe_topic_partitions([topic], cursor=cursor)
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [2, 3, 4]
    assert rest["next_cursor"] is None


# -- configs ----------------------------------------------------------------------------------


def test_topic_configs_are_set_appended_subtracted_and_deleted(
    admin: KafkaAdminClient, make_topic: Any
) -> None:
    topic = make_topic()

    def value(name: str) -> Any:
        resource = ConfigResource("TOPIC", topic, [name])
        return admin.describe_configs([resource], config_filter="all")["topic"][topic][name]

    def change(**configs: Any) -> None:
        answer = admin.alter_configs(
            [ConfigResource("TOPIC", topic, {k.replace("_", "."): v for k, v in configs.items()})]
        )
        assert answer == {"topic": {topic: "OK"}}

    assert value("retention.ms")["value"] == "604800000"
    assert value("retention.ms")["config_source"] == "DEFAULT_CONFIG"
    change(retention_ms="1000", cleanup_policy=(AlterConfigOp.APPEND, "compact"))
    assert value("retention.ms")["value"] == "1000"
    assert value("retention.ms")["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    assert value("cleanup.policy")["value"] == "delete,compact"
    change(cleanup_policy=(AlterConfigOp.SUBTRACT, "delete"))
    assert value("cleanup.policy")["value"] == "compact"
    change(retention_ms=(AlterConfigOp.DELETE, None))
    assert value("retention.ms")["value"] == "604800000"
    admin.reset_configs([ConfigResource("TOPIC", topic, ["cleanup.policy"])])
    assert value("cleanup.policy")["value"] == "delete"


def test_the_older_alter_configs_replaces_all(admin: KafkaAdminClient, make_topic: Any) -> None:
    topic = make_topic(**{"retention.ms": "1000", "segment.ms": "5000"})
    admin.alter_configs(
        [ConfigResource("TOPIC", topic, {"retention.ms": "2000"})], incremental=False
    )
    modified = admin.describe_configs([ConfigResource("TOPIC", topic)])["topic"][topic]
    assert modified["retention.ms"]["value"] == "2000"
    assert modified["segment.ms"]["value"] == "5000"  # the client reads and repeats what is there


def test_a_wrong_config_changes_nothing(admin: KafkaAdminClient, make_topic: Any) -> None:
    topic = make_topic()
    for configs in ({"retention.ms": "soon"}, {"no.such": "1"}, {"segment.bytes": "1"}):
        answer = admin.alter_configs(
            [ConfigResource("TOPIC", topic, configs)], raise_on_unknown=False
        )
        assert answer["topic"][topic] != "OK"
    admin.alter_configs(
        [ConfigResource("TOPIC", topic, {"retention.ms": "77"})], validate_only=True
    )
    assert admin.describe_configs([ConfigResource("TOPIC", topic)])["topic"][topic] == {}


def test_topic_configs_name_their_type_synonyms_and_documentation(
    admin: KafkaAdminClient, make_topic: Any
) -> None:
    topic = make_topic(**{"retention.ms": "1000"})
    configs = admin.describe_configs(
        [ConfigResource("TOPIC", topic)], include_synonyms=True, config_filter="all"
    )["topic"][topic]
    assert len(configs) >= 30
    retention = configs["retention.ms"]
    assert (retention["config_type"], retention["read_only"]) == ("LONG", False)
    assert [(s["name"], s["value"], s["source"]) for s in retention["synonyms"]] == [
        ("retention.ms", "1000", "DYNAMIC_TOPIC_CONFIG")
    ]
    segment = configs["segment.bytes"]
    assert [(s["name"], s["value"], s["source"]) for s in segment["synonyms"]] == [
        ("log.segment.bytes", "1073741824", "DEFAULT_CONFIG")
    ]
    assert configs["cleanup.policy"]["config_type"] == "LIST"
    assert configs["preallocate"]["config_type"] == "BOOLEAN"


def test_broker_configs_are_described_and_changed_at_run_time(
    admin: KafkaAdminClient, topic_name: str
) -> None:
    node = str(admin.describe_cluster()["brokers"][0]["broker_id"])
    broker = ConfigResource("BROKER", node)
    configs = admin.describe_configs([broker], config_filter="all")["broker"][node]
    assert len(configs) > 150
    assert configs["log.dirs"]["config_source"] == "STATIC_BROKER_CONFIG"
    assert configs["node.id"]["read_only"]
    assert configs["log.retention.ms"]["config_type"] == "LONG"
    answer = admin.alter_configs([ConfigResource("BROKER", node, {"log.retention.ms": "98765"})])
    assert answer == {"broker": {node: "OK"}}
    try:
        name = topic_name
        admin.create_topics([name], wait_for_metadata=True)

        def inherited() -> bool:
            described = admin.describe_configs(
                [ConfigResource("TOPIC", name, ["retention.ms"])], config_filter="all"
            )
            return bool(described["topic"][name]["retention.ms"]["value"] == "98765")

        eventually(inherited, what="a new topic inherits the broker's dynamic default")
    finally:
        admin.alter_configs(
            [ConfigResource("BROKER", node, {"log.retention.ms": (AlterConfigOp.DELETE, None)})]
        )


def test_config_resources_are_listed(admin: KafkaAdminClient, make_topic: Any) -> None:
    topic = make_topic(**{"retention.ms": "1000"})
    listed = admin.list_config_resources(["topic", "broker"])
    assert topic in listed["topic"]
    node = str(admin.describe_cluster()["brokers"][0]["broker_id"])
    assert node in listed["broker"]


# -- groups -----------------------------------------------------------------------------------


@pytest.fixture
def consumed(
    make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str
) -> tuple[str, str]:
    """(topic, group): ten records in partition 0, five committed; the group is empty."""
    topic = make_topic(2)
    fill(new_producer(), topic, 10)
    consumer = new_consumer(topic, group_id=group_name, enable_auto_commit=False)
    read(consumer, 10)
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(5, "half", -1)})
    consumer.close()
    return topic, group_name


def test_groups_are_listed_by_state_and_type(
    admin: KafkaAdminClient, consumed: tuple[str, str]
) -> None:
    _, group = consumed
    for listed in (
        admin.list_groups(),
        admin.list_groups(states_filter=["Empty"]),
        admin.list_groups(types_filter=["classic"]),
    ):
        (entry,) = [entry for entry in listed if entry["group_id"] == group]
        assert entry["protocol_type"] == "consumer"
        assert entry["group_state"] == "Empty"
        assert entry["group_type"] == "classic"
    stable = admin.list_groups(states_filter=["Stable"])
    assert group not in {entry["group_id"] for entry in stable}


def test_committed_offsets_are_listed_altered_and_deleted(
    admin: KafkaAdminClient, consumed: tuple[str, str]
) -> None:
    topic, group = consumed
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    offsets = admin.list_group_offsets(group)[group]
    assert (offsets[one].offset, offsets[one].metadata) == (5, "half")
    asked = admin.list_group_offsets({group: [one, two]})[group]
    assert (asked[one].offset, asked[two].offset) == (5, -1)
    altered = admin.alter_group_offsets(group, {two: OffsetAndMetadata(0, "", -1)})
    assert [error.errno for error in altered.values()] == [0]
    assert admin.list_group_offsets(group)[group][two].offset == 0
    deleted = admin.delete_group_offsets(group, [two])
    assert [error.errno for error in deleted.values()] == [0]
    assert two not in admin.list_group_offsets(group)[group]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 10),
        (OffsetSpec.MAX_TIMESTAMP, 9),
        (OffsetTimestamp(BASE_MS + 6500), 7),
        (3, 3),
        (500, 10),
    ],
)
def test_group_offsets_are_reset(
    spec: Any, expected: int, admin: KafkaAdminClient, consumed: tuple[str, str]
) -> None:
    topic, group = consumed
    one = TopicPartition(topic, 0)
    answer = admin.reset_group_offsets(group, {one: spec})
    assert (answer[one]["error"].errno, answer[one]["offset"]) == (0, expected)
    assert admin.list_group_offsets(group)[group][one].offset == expected


def test_an_empty_group_is_deleted_with_its_offsets(
    admin: KafkaAdminClient, consumed: tuple[str, str]
) -> None:
    _, group = consumed
    assert admin.delete_groups([group]) == {group: "OK"}
    assert group not in {entry["group_id"] for entry in admin.list_groups()}
    assert admin.delete_groups([group]) == {group: "GroupIdNotFoundError"}
    assert admin.list_group_offsets(group)[group] == {}
    described = admin.describe_groups([group])[group]
    assert described["group_state"] == "Dead"
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_group_offsets(group, [TopicPartition("x", 0)])


def test_a_group_with_members_is_protected(
    admin: KafkaAdminClient, consumed: tuple[str, str], new_consumer: Any
) -> None:
    topic, group = consumed
    one = TopicPartition(topic, 0)
    consumer = new_consumer(topic, group_id=group, group_instance_id="me", enable_auto_commit=False)
    poll_all_until([consumer], lambda: len(consumer.assignment()) == 2)
    assert admin.delete_groups([group]) == {group: NonEmptyGroupError.__name__}
    refused = admin.delete_group_offsets(group, [one])
    assert refused[one].__name__ == "GroupSubscribedToTopicError"
    altered = admin.alter_group_offsets(group, {one: OffsetAndMetadata(0, "", -1)})
    assert altered[one].__name__ == "UnknownMemberIdError"
    removed = admin.remove_group_members(group, [MemberToRemove(group_instance_id="me")])
    assert [error.errno for error in removed.values()] == [0]
    eventually(lambda: admin.describe_groups([group])[group]["group_state"] == "Empty")


# -- partitions, records, cluster ---------------------------------------------------------------


def test_partition_offsets_by_every_spec(
    admin: KafkaAdminClient, make_topic: Any, new_producer: Any
) -> None:
    topic = make_topic()
    one = TopicPartition(topic, 0)

    def ask(spec: Any) -> tuple[int, int]:
        found = admin.list_partition_offsets({one: spec})[one]
        return found.offset, found.timestamp

    assert ask(OffsetSpec.EARLIEST) == (0, -1)
    assert ask(OffsetSpec.LATEST) == (0, -1)
    assert ask(OffsetSpec.MAX_TIMESTAMP) == (-1, -1)
    fill(new_producer(), topic, 10)
    assert ask(OffsetSpec.LATEST) == (10, -1)
    assert ask(OffsetSpec.MAX_TIMESTAMP) == (9, BASE_MS + 9000)
    assert ask(OffsetSpec.EARLIEST_LOCAL) == (0, -1)
    assert ask(OffsetSpec.LATEST_TIERED) == (-1, -1)
    assert ask(OffsetTimestamp(BASE_MS + 2500)) == (3, BASE_MS + 3000)
    assert ask(OffsetTimestamp(BASE_MS + 10**9)) == (-1, -1)
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_partition_offsets({TopicPartition("no-such-topic", 0): OffsetSpec.LATEST})


def test_records_are_deleted_up_to_an_offset(
    admin: KafkaAdminClient, make_topic: Any, new_producer: Any
) -> None:
    topic = make_topic()
    one = TopicPartition(topic, 0)
    fill(new_producer(), topic, 10)
    assert admin.delete_records({one: 4})[one]["low_watermark"] == 4
    assert admin.delete_records({one: 2})[one]["low_watermark"] == 4
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({one: 11})
    assert admin.delete_records({one: -1})[one]["low_watermark"] == 10
    assert admin.list_partition_offsets({one: OffsetSpec.EARLIEST})[one].offset == 10


def test_the_cluster_describes_itself(admin: KafkaAdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster()
    (node,) = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == bootstrap
    assert len(cluster["cluster_id"]) == 22
    assert node["rack"] is None
    assert not node.get("is_fenced", False)


def test_the_quorum_is_one_voter_that_leads(admin: KafkaAdminClient) -> None:
    quorum = admin.describe_metadata_quorum()
    assert quorum["topics"][0]["topic_name"] == "__cluster_metadata" if "topics" in quorum else True
    partition = quorum["topics"][0]["partitions"][0] if "topics" in quorum else quorum
    assert partition["leader_epoch"] >= 0
    assert partition["high_watermark"] > 0
    (voter,) = partition["current_voters"]
    assert voter["replica_id"] == partition["leader_id"]
    assert voter["log_end_offset"] >= partition["high_watermark"] - 1


def test_log_dirs_tell_sizes(admin: KafkaAdminClient, make_topic: Any, new_producer: Any) -> None:
    topic = make_topic(2)
    producer = new_producer()
    producer.send(topic, b"x" * 10_000, partition=1).get(timeout=10)
    (answer,) = admin.describe_log_dirs({topic: [0, 1]})
    (log_dir,) = answer["log_dirs"]
    assert log_dir["error_code"] == 0
    assert log_dir["total_bytes"] > log_dir["usable_bytes"] > 0
    (described,) = [t for t in log_dir["topics"] if t["name"] == topic]
    sizes = {p["partition_index"]: p["partition_size"] for p in described["partitions"]}
    assert sizes[0] == 0
    assert 10_000 < sizes[1] < 11_000
    everything = admin.describe_log_dirs()[0]["log_dirs"][0]
    assert topic in {t["name"] for t in everything["topics"]}


def test_api_versions_and_features(admin: KafkaAdminClient) -> None:
    versions = admin.api_versions()
    assert admin.get_broker_version_data(admin.describe_cluster()["brokers"][0]["broker_id"])
    names = {str(name) for name in versions}
    assert any("Produce" in name for name in names) or 0 in versions
    features = admin.describe_features()
    assert "metadata.version" in str(features)


def test_leader_election_has_nothing_to_do(admin: KafkaAdminClient, make_topic: Any) -> None:
    topic = make_topic(2)
    answer = admin.elect_leaders(0, {topic: [0, 1]}, raise_errors=False)
    text = str(answer)
    assert topic in text
    assert "84" in text or "ElectionNotNeeded" in text


def test_producers_of_a_partition_are_described(
    admin: KafkaAdminClient, make_topic: Any, new_producer: Any
) -> None:
    topic = make_topic()
    one = TopicPartition(topic, 0)
    assert admin.describe_producers([one])[one].active_producers == []
    fill(new_producer(enable_idempotence=True), topic, 3)
    (state,) = admin.describe_producers([one])[one].active_producers
    assert state.producer_id >= 0
    assert state.producer_epoch == 0
    assert state.last_sequence == 2
    assert state.current_transaction_start_offset == -1
