"""aiokafka's producer and consumer: the old, non-flexible versions of the protocol."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import (
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.structs import OffsetAndMetadata

from testkit.clients.aio import CODECS, consuming, create, eventually, producing, read

BASE_MS = int(time.time() * 1000) - 3_600_000
FAST = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000, "metadata_max_age_ms": 500}


def test_send_and_wait_and_batches(run: Any, bootstrap: str, topic_name: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        async with producing(bootstrap, linger_ms=5) as producer:
            first = await producer.send_and_wait(topic_name, b"0")
            assert (first.partition, first.offset) == (0, 0)
            futures = [await producer.send(topic_name, b"%d" % i) for i in range(1, 500)]
            assert [(await future).offset for future in futures] == list(range(1, 500))
            batch = producer.create_batch()
            for i in range(500, 510):
                batch.append(key=None, value=b"%d" % i, timestamp=None)
            batch.close()
            await (await producer.send_batch(batch, topic_name, partition=0))
        async with consuming(bootstrap, topic_name) as consumer:
            values = [record.value for record in await read(consumer, 510)]
        assert values == [b"%d" % i for i in range(510)]

    run(test())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_every_codec_round_trips(
    codec: str | None, idempotent: bool, run: Any, bootstrap: str, topic_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        values = [b"%04d " % i + b"squeeze me " * 50 for i in range(300)]
        async with producing(
            bootstrap, compression_type=codec, enable_idempotence=idempotent, linger_ms=20
        ) as producer:
            for value in values:
                await producer.send(topic_name, value, key=value[:4], headers=[("n", value[:4])])
        async with consuming(bootstrap, topic_name) as consumer:
            records = await read(consumer, 300)
        assert [record.value for record in records] == values
        assert [record.headers for record in records] == [(("n", value[:4]),) for value in values]

    run(test())


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_setting_delivers(
    acks: int | str, run: Any, bootstrap: str, topic_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        async with producing(bootstrap, acks=acks) as producer:
            for i in range(50):
                await producer.send(topic_name, b"%d" % i)
        async with consuming(bootstrap, topic_name) as consumer:
            values = [record.value for record in await read(consumer, 50)]
        assert values == [b"%d" % i for i in range(50)]

    run(test())


def test_nulls_timestamps_and_keys(run: Any, bootstrap: str, topic_name: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name, 4)
        async with producing(bootstrap) as producer:
            await producer.send_and_wait(topic_name, None, key=b"k", partition=0)
            await producer.send_and_wait(topic_name, b"v", partition=0, timestamp_ms=BASE_MS)
            await producer.send_and_wait(topic_name, b"", key=b"", partition=0)
            places = {
                (await producer.send_and_wait(topic_name, b"x", key=b"same")).partition
                for _ in range(4)
            }
            assert len(places) == 1
            assert await producer.partitions_for(topic_name) == {0, 1, 2, 3}
        async with consuming(bootstrap) as consumer:
            consumer.assign([TopicPartition(topic_name, 0)])
            records = (await read(consumer, 3))[:3]
        assert [(r.key, r.value) for r in records] == [(b"k", None), (None, b"v"), (b"", b"")]
        assert records[1].timestamp == BASE_MS

    run(test())


def test_auto_creation_and_refusal(run: Any, bootstrap: str, topic_name: str) -> None:
    async def test() -> None:
        async with producing(bootstrap) as producer:
            assert (await producer.send_and_wait(topic_name, b"first")).offset == 0
        small = topic_name + "-small"
        await create(bootstrap, small, 1, **{"max.message.bytes": "1000"})
        async with producing(bootstrap) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(small, b"x" * 5000)

    run(test())


def test_positions_times_and_flow(run: Any, bootstrap: str, topic_name: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name, 2)
        one, two = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
        async with producing(bootstrap) as producer:
            for i in range(100):
                for p in (0, 1):
                    await producer.send(
                        topic_name, b"%d-%d" % (p, i), partition=p, timestamp_ms=BASE_MS + i * 1000
                    )
        async with consuming(bootstrap) as consumer:
            consumer.assign([one, two])
            assert await consumer.beginning_offsets([one, two]) == {one: 0, two: 0}
            assert await consumer.end_offsets([one, two]) == {one: 100, two: 100}
            found = await consumer.offsets_for_times({one: BASE_MS + 10_001, two: BASE_MS + 10**9})
            assert (found[one].offset, found[one].timestamp) == (11, BASE_MS + 11_000)
            assert found[two] is None
            consumer.pause(one)
            assert {record.partition for record in await read(consumer, 100)} == {1}
            consumer.resume(one)
            assert {record.partition for record in await read(consumer, 100)} == {0}
            consumer.seek(one, 42)
            assert (await consumer.getone(one)).offset == 42
            await consumer.seek_to_end(one)
            assert await consumer.position(one) == 100
            await consumer.seek_to_beginning(one)
            assert (await consumer.getone(one)).offset == 0
            assert consumer.highwater(one) == 100

    run(test())


def test_offsets_out_of_range(run: Any, bootstrap: str, topic_name: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        one = TopicPartition(topic_name, 0)
        async with producing(bootstrap) as producer:
            await producer.send_and_wait(topic_name, b"x")
        async with consuming(bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([one])
            consumer.seek(one, 500)
            with pytest.raises((OffsetOutOfRangeError, NoOffsetForPartitionError)):
                await consumer.getone()
        async with consuming(bootstrap) as consumer:
            consumer.assign([one])
            consumer.seek(one, 500)
            assert (await consumer.getone()).offset == 0

    run(test())


def test_commits_by_hand_and_by_themselves(
    run: Any, bootstrap: str, topic_name: str, group_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name)
        one = TopicPartition(topic_name, 0)
        async with producing(bootstrap) as producer:
            for i in range(10):
                await producer.send(topic_name, b"%d" % i)
        by_hand = {"group_id": group_name, "enable_auto_commit": False}
        async with consuming(bootstrap, topic_name, **by_hand) as consumer:
            await read(consumer, 10)
            assert await consumer.committed(one) is None
            await consumer.commit({one: OffsetAndMetadata(4, "note")})
            assert await consumer.committed(one) == 4
        async with consuming(
            bootstrap, topic_name, group_id=group_name, auto_commit_interval_ms=100
        ) as consumer:
            assert [r.offset for r in await read(consumer, 6)] == list(range(4, 10))
        async with consuming(bootstrap, topic_name, **by_hand) as consumer:
            assert await consumer.committed(one) == 10

    run(test())


@pytest.mark.parametrize(
    "assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]
)
def test_three_members_share_and_take_over(
    assignor: Any, run: Any, bootstrap: str, topic_name: str, group_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name, 6)
        config = {"group_id": group_name, "partition_assignment_strategy": (assignor,), **FAST}
        members: list[Any] = []

        def shares() -> list[int]:
            return sorted(len(member.assignment()) for member in members)

        async with AsyncExitStack() as stack:
            for expected in ([6], [3, 3], [2, 2, 2]):
                members.append(
                    await stack.enter_async_context(consuming(bootstrap, topic_name, **config))
                )
                await eventually(lambda wanted=expected: shares() == wanted, 30, str(expected))
            leaver = members.pop(0)
            await leaver.stop()
            await eventually(lambda: shares() == [3, 3], 30, "two members share")
            async with producing(bootstrap) as producer:
                for i in range(30):
                    await producer.send(topic_name, b"%d" % i, partition=i % 6)
            seen: list[tuple[int, int]] = []
            deadline = time.monotonic() + 20
            while len(seen) < 30 and time.monotonic() < deadline:
                polls = [member.getmany(timeout_ms=200) for member in members]
                for answer in await asyncio.gather(*polls):
                    for batch in answer.values():
                        seen.extend((r.partition, r.offset) for r in batch)
            assert sorted(seen) == [(p, o) for p in range(6) for o in range(5)]

    run(test())


def test_a_static_member_keeps_its_share(
    run: Any, bootstrap: str, topic_name: str, group_name: str
) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name, 4)
        config = {"group_id": group_name, **FAST, "session_timeout_ms": 20000}

        def member(name: str) -> Any:
            return consuming(bootstrap, topic_name, group_instance_id=name, **config)

        async with member("one") as one:
            async with member("two") as two:
                await eventually(
                    lambda: len(one.assignment()) == len(two.assignment()) == 2, 30, "2 and 2"
                )
                kept, other = two.assignment(), one.assignment()
            async with member("two") as again:
                await eventually(lambda: len(again.assignment()) == 2, 30, "back again")
                assert again.assignment() == kept
                assert one.assignment() == other

    run(test())


def test_a_pattern_subscription(run: Any, bootstrap: str, topic_name: str, group_name: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic_name + "-a")
        async with consuming(bootstrap, group_id=group_name, **FAST) as consumer:
            consumer.subscribe(pattern=f"^{topic_name}-.*")
            await eventually(lambda: len(consumer.assignment()) == 1, 30, "one topic")
            await create(bootstrap, topic_name + "-b")
            await eventually(lambda: len(consumer.assignment()) == 2, 30, "two topics")

    run(test())
