"""aiokafka's transactions: the first versions of all five APIs, which Apache Kafka still serves."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from testkit.clients.aio import consuming, create, eventually, producing, read


def new_id() -> str:
    return f"tx-{uuid.uuid4().hex}"


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def test_committed_records_are_read_and_aborted_ones_are_not(
    run: Any, bootstrap: str, topic_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name, partitions=3)
        async with producing(bootstrap, transactional_id=new_id()) as producer:
            for number in range(6):
                await producer.begin_transaction()
                for i in range(30):
                    await producer.send(topic_name, b"%d-%d" % (number, i), partition=i % 3)
                if number % 2:
                    await producer.flush()
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        kept = [b"%d-%d" % (number, i) for number in (0, 2, 4) for i in range(30)]
        async with consuming(bootstrap, topic_name, isolation_level="read_committed") as consumer:
            assert sorted(values(await read(consumer, len(kept)))) == sorted(kept)
        async with consuming(bootstrap, topic_name) as consumer:
            assert len(await read(consumer, 180)) == 180

    run(test())


def test_an_exception_aborts(run: Any, bootstrap: str, topic_name: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        async with producing(bootstrap, transactional_id=new_id()) as producer:

            async def fail() -> None:
                async with producer.transaction():
                    await producer.send_and_wait(topic_name, b"never")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            async with producer.transaction():
                await producer.send_and_wait(topic_name, b"kept")
        async with consuming(bootstrap, topic_name, isolation_level="read_committed") as consumer:
            assert values(await read(consumer, 1)) == [b"kept"]

    run(test())


def test_an_open_transaction_holds_back_who_reads_committed(
    run: Any, bootstrap: str, topic_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        partition = TopicPartition(topic_name, 0)
        async with (
            producing(bootstrap) as plain,
            producing(bootstrap, transactional_id=new_id()) as producer,
            consuming(bootstrap, topic_name, isolation_level="read_committed") as consumer,
        ):
            await plain.send_and_wait(topic_name, b"before")
            await producer.begin_transaction()
            await producer.send_and_wait(topic_name, b"in it")
            await plain.send_and_wait(topic_name, b"behind it")
            assert values(await read(consumer, 1)) == [b"before"]
            assert await consumer.end_offsets([partition]) == {partition: 1}
            assert not await consumer.getmany(timeout_ms=500)
            await producer.commit_transaction()
            assert values(await read(consumer, 2)) == [b"in it", b"behind it"]
            await eventually(lambda: consumer.last_stable_offset(partition) == 4)

    run(test())


def test_a_newer_instance_fences_the_older_and_ends_its_transaction(
    run: Any, bootstrap: str, topic_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        transactional_id = new_id()
        async with producing(bootstrap, transactional_id=transactional_id) as zombie:
            await zombie.begin_transaction()
            await zombie.send_and_wait(topic_name, b"zombie")
            async with producing(bootstrap, transactional_id=transactional_id) as successor:
                async with successor.transaction():
                    await successor.send_and_wait(topic_name, b"successor")
                with pytest.raises(ProducerFenced):
                    await zombie.send_and_wait(topic_name, b"zombie")
                with pytest.raises(KafkaError):
                    await zombie.commit_transaction()
        async with consuming(bootstrap, topic_name, isolation_level="read_committed") as consumer:
            assert values(await read(consumer, 1)) == [b"successor"]

    run(test())


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    run: Any, bootstrap: str, topic_name: str, group_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name, partitions=2)
        one, two = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
        async with (
            producing(bootstrap, transactional_id=new_id()) as producer,
            consuming(bootstrap, group_id=group_name, enable_auto_commit=False) as consumer,
        ):
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({one: 5, two: (6, "note")}, group_name)
            assert await consumer.committed(one) is None
            await producer.commit_transaction()
            await _committed(consumer, one, 5)
            await _committed(consumer, two, 6)
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({one: 50}, group_name)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_offsets_to_transaction({two: 60}, group_name)
            await _committed(consumer, two, 60)
            assert await consumer.committed(one) == 5

    run(test())


async def _committed(consumer: Any, partition: TopicPartition, offset: int) -> None:
    """EndTxn is answered before the marker is written: wait for that."""
    found = None
    for _ in range(200):
        found = await consumer.committed(partition)
        if found == offset:
            return
    assert found == offset


def test_consume_transform_produce_is_exactly_once(
    run: Any, bootstrap: str, topic_name: str, group_name: str
) -> None:
    async def life(transactional_id: str, wanted: int) -> int:
        """One good transaction and one that is left open; how many records went through."""
        done = 0
        async with (
            producing(bootstrap, transactional_id=transactional_id) as producer,
            consuming(
                bootstrap, topic_name, group_id=group_name, enable_auto_commit=False,
                isolation_level="read_committed", max_poll_records=40,
            ) as consumer,
        ):  # fmt: skip
            for is_last in (False, True):
                if done == wanted:
                    break
                records = await read(consumer, 1)
                await producer.begin_transaction()
                for record in records:
                    await producer.send(topic_name + "-out", record.value, partition=0)
                ends = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
                await producer.send_offsets_to_transaction(ends, group_name)
                await producer.flush()
                if is_last:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    done += len(records)
        return done

    async def test() -> None:
        count = 200
        await create(bootstrap, topic_name, partitions=2)
        await create(bootstrap, topic_name + "-out")
        async with producing(bootstrap) as plain:
            for i in range(count):
                await plain.send(topic_name, b"%d" % i, partition=i % 2)
            await plain.flush()
        transactional_id, done = new_id(), 0
        while done < count:
            done += await life(transactional_id, count - done)
        async with consuming(
            bootstrap, topic_name + "-out", isolation_level="read_committed"
        ) as consumer:
            found = values(await read(consumer, count))
        assert sorted(found, key=int) == [b"%d" % i for i in range(count)]

    run(test())
