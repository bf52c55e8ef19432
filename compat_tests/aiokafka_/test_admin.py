"""aiokafka's admin client."""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from testkit.clients.aio import administering, consuming, create, producing, read


def test_topics_partitions_and_configs(run: Any, bootstrap: str, topic_name: str) -> None:
    async def test() -> None:
        async with administering(bootstrap) as admin:
            created = await admin.create_topics(
                [NewTopic(topic_name, 2, 1, topic_configs={"retention.ms": "1234"})]
            )
            assert [error[:2] for error in created.topic_errors] == [(topic_name, 0)]
            again = await admin.create_topics([NewTopic(topic_name, 2, 1)])
            assert again.topic_errors[0][1] == 36  # TOPIC_ALREADY_EXISTS
            assert topic_name in await admin.list_topics()
            grown = await admin.create_partitions({topic_name: NewPartitions(total_count=3)})
            assert grown.topic_errors[0][1] == 0
            (described,) = await admin.describe_topics([topic_name])
            assert len(described["partitions"]) == 3
            resource = ConfigResource(ConfigResourceType.TOPIC, topic_name)
            (answer,) = await admin.describe_configs([resource])
            configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert configs["retention.ms"] == "1234"
            changed = ConfigResource(
                ConfigResourceType.TOPIC, topic_name, configs={"segment.ms": "777"}
            )
            (altered,) = await admin.alter_configs([changed])
            assert altered.resources[0][0] == 0
            (answer,) = await admin.describe_configs([resource])
            configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert (configs["segment.ms"], configs["retention.ms"]) == ("777", "604800000")
            deleted = await admin.delete_topics([topic_name])
            assert deleted.topic_error_codes[0][1] == 0

    run(test())


def test_the_cluster_is_described(run: Any, bootstrap: str) -> None:
    async def test() -> None:
        async with administering(bootstrap) as admin:
            cluster = await admin.describe_cluster()
        (node,) = cluster["brokers"]
        assert f"{node['host']}:{node['port']}" == bootstrap
        assert len(cluster["cluster_id"]) == 22
        assert cluster["controller_id"] == node["node_id"]

    run(test())


def test_groups_and_records(run: Any, bootstrap: str, topic_name: str, group_name: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        one = TopicPartition(topic_name, 0)
        async with producing(bootstrap) as producer:
            for i in range(10):
                await producer.send(topic_name, b"%d" % i)
        async with consuming(
            bootstrap, topic_name, group_id=group_name, enable_auto_commit=False
        ) as consumer:
            await read(consumer, 10)
            await consumer.commit()
        async with administering(bootstrap) as admin:
            groups = await admin.list_consumer_groups()
            assert group_name in {group[0] for group in groups}
            (described,) = await admin.describe_consumer_groups([group_name])
            assert described.groups[0][1:4] == (group_name, "Empty", "consumer")
            offsets = await admin.list_consumer_group_offsets(group_name)
            assert offsets[one].offset == 10
            low = await admin.delete_records({one: RecordsToDelete(before_offset=6)})
            assert low[one] == 6

    run(test())
