"""librdkafka's admin client."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from testkit.clients.rdkafka import read, send_all
from testkit.wait import eventually


def error_of(future: Any) -> int:
    with pytest.raises(KafkaException) as refused:
        future.result(10)
    return int(refused.value.args[0].code())


def test_topics_are_created_described_grown_and_deleted(
    admin: Any, make_topic: Any, bootstrap: str
) -> None:
    topic = make_topic(2)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(10)
    assert len(described.partitions) == 2
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    leader = described.partitions[0].leader
    assert f"{leader.host}:{leader.port}" == bootstrap
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(10)
    eventually(lambda: len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == 4)
    admin.delete_topics([topic])[topic].result(10)
    eventually(lambda: topic not in admin.list_topics(timeout=5).topics)


def test_refusals_carry_their_error(admin: Any, make_topic: Any) -> None:
    topic = make_topic()
    assert (
        error_of(admin.create_topics([NewTopic(topic)])[topic]) == KafkaError.TOPIC_ALREADY_EXISTS
    )
    wide = NewTopic(topic + "-wide", num_partitions=1, replication_factor=3)
    assert (
        error_of(admin.create_topics([wide])[topic + "-wide"])
        == KafkaError.INVALID_REPLICATION_FACTOR
    )
    assert (
        error_of(admin.delete_topics(["no-such-topic"])["no-such-topic"])
        == KafkaError.UNKNOWN_TOPIC_OR_PART
    )
    assert (
        error_of(admin.create_partitions([NewPartitions(topic, 1)])[topic])
        == KafkaError.INVALID_PARTITIONS
    )


def test_configs_are_described_and_changed(admin: Any, make_topic: Any) -> None:
    topic = make_topic()
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def described() -> dict[str, Any]:
        return dict(admin.describe_configs([resource])[resource].result(10))

    assert described()["retention.ms"].value == "604800000"
    operations = [
        ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
    ]
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=operations)
    admin.incremental_alter_configs([change])[change].result(10)
    configs = described()
    assert configs["retention.ms"].value == "1000"
    assert configs["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert configs["cleanup.policy"].value == "delete,compact"
    old_style = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.ms": "5000"})
    with pytest.deprecated_call():  # AlterConfigs, the older request: replaces all
        admin.alter_configs([old_style])[old_style].result(10)
    configs = described()
    assert configs["segment.ms"].value == "5000"
    assert configs["retention.ms"].value == "604800000"


def test_the_cluster_is_described(admin: Any, bootstrap: str) -> None:
    cluster = admin.describe_cluster().result(10)
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert len(cluster.cluster_id) == 22
    metadata = admin.list_topics(timeout=10)
    assert metadata.cluster_id == cluster.cluster_id
    assert list(metadata.brokers) == [node.id]


def test_offsets_records_and_elections(admin: Any, make_topic: Any, new_producer: Any) -> None:
    topic = make_topic()
    send_all(new_producer(), topic, [b"%d" % i for i in range(10)])
    one = TopicPartition(topic, 0)

    def at(spec: Any) -> int:
        return int(admin.list_offsets({one: spec})[one].result(10).offset)

    assert (at(OffsetSpec.earliest()), at(OffsetSpec.latest())) == (0, 10)
    assert at(OffsetSpec.max_timestamp()) >= 0
    assert at(OffsetSpec.for_timestamp(1000)) == 0
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(deleted.values())).result(10).low_watermark == 4
    assert at(OffsetSpec.earliest()) == 4
    elected = admin.elect_leaders(ElectionType.PREFERRED, [one]).result(10)
    assert elected[one] is None or elected[one].code() == KafkaError.ELECTION_NOT_NEEDED


def test_groups_and_their_offsets(
    admin: Any, make_topic: Any, new_producer: Any, new_consumer: Any, group_name: str
) -> None:
    topic = make_topic()
    send_all(new_producer(), topic, [b"%d" % i for i in range(10)])
    consumer = new_consumer(topic)
    read(consumer, 10)
    consumer.commit(asynchronous=False)
    consumer.close()
    listed = admin.list_consumer_groups(
        states={ConsumerGroupState.EMPTY}, types={ConsumerGroupType.CLASSIC}
    ).result(10)
    assert group_name in {group.group_id for group in listed.valid}
    ask = [ConsumerGroupTopicPartitions(group_name)]

    def committed() -> list[int]:
        answer = admin.list_consumer_group_offsets(ask)[group_name].result(10)
        return [tp.offset for tp in answer.topic_partitions]

    assert committed() == [10]
    change = [ConsumerGroupTopicPartitions(group_name, [TopicPartition(topic, 0, 3)])]
    admin.alter_consumer_group_offsets(change)[group_name].result(10)
    assert committed() == [3]
    admin.delete_consumer_groups([group_name])[group_name].result(10)
    assert (
        error_of(admin.delete_consumer_groups([group_name])[group_name])
        == KafkaError.GROUP_ID_NOT_FOUND
    )
