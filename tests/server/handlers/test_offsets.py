"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords at the handler's edge."""

from __future__ import annotations

import pytest

from server.handlers import offsets
from tests.server.handler_support import (
    Asked,
    FakeBroker,
    broker_registration,
    image_of,
    topic_image,
)
from wire.errors import ErrorCode
from wire.messages.data import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)


@pytest.fixture
def asked():
    one = Asked(FakeBroker(image_of(topic_image("t", 3))))
    yield one
    one.requests.shutdown(60)


# ---- ListOffsets


def list_offsets(timestamp, replica=-1, partitions=(0,)):
    return ListOffsetsRequest(
        replica_id=replica,
        isolation_level=1,
        topics=[
            ListOffsetsRequest.Topic(
                name="t",
                partitions=[
                    ListOffsetsRequest.Topic.Partition(
                        partition_index=i, timestamp=timestamp, current_leader_epoch=4
                    )
                    for i in partitions
                ],
            )
        ],
    )


def test_a_search_by_time_is_costly():
    """A batch of 490 KB that holds 600,000 records held up the only network thread for 3 s."""
    for timestamp, is_costly in ((-1, False), (-2, False), (-3, True), (-4, False), (0, True)):
        assert offsets.list_offsets_is_costly(None, list_offsets(timestamp)) is is_costly


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_in_every_version(asked, version):
    for timestamp in (-1, -2, 0, 1234):
        (partition,) = asked.ask(list_offsets(timestamp), version).topics[0].partitions
        assert (partition.error_code, partition.timestamp, partition.offset) == (0, 1000, 55)
        if version >= 4:
            assert partition.leader_epoch == 4
    assert asked.broker.replica_manager.listed[-1] == (
        ("t", 0),
        1234,
        1 if version >= 2 else 0,
        4 if version >= 4 else -1,
        -1,
    )


@pytest.mark.parametrize("version", range(1, 12))
def test_before_the_new_leaders_high_watermark_every_client_is_told_to_ask_again(asked, version):
    asked.broker.replica_manager.list_answer = (ErrorCode.OFFSET_NOT_AVAILABLE, -1, -1, -1)
    (partition,) = asked.ask(list_offsets(-1), version).topics[0].partitions
    known = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    assert (partition.error_code, partition.offset) == (known, -1)


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)])
def test_special_timestamps_are_refused_below_their_version(asked, timestamp, since):
    for version in range(1, 12):
        (partition,) = asked.ask(list_offsets(timestamp), version).topics[0].partitions
        expected = 0 if version >= since else ErrorCode.UNSUPPORTED_VERSION
        assert partition.error_code == expected, version


def test_a_partition_named_twice_in_list_offsets_is_an_invalid_request(asked):
    answer = asked.ask(list_offsets(-1, partitions=(0, 1, 0)), 7)
    codes = [(p.partition_index, p.error_code) for p in answer.topics[0].partitions]
    assert codes == [(0, 42), (1, 0), (0, 42)]


@pytest.mark.parametrize("replica", [0, 5, -2, -3])
def test_list_offsets_asks_nobody_whether_it_is_a_broker(asked, replica):
    """ReplicaManager.fetchOffset looks at -1 and -2 only; kafka-python's consumer says 0."""
    (partition,) = asked.ask(list_offsets(-1, replica=replica), 5).topics[0].partitions
    assert partition.error_code == 0
    assert asked.broker.replica_manager.listed[0][4] == replica


@pytest.mark.parametrize("level", [-1, 2, 127])
def test_an_unknown_isolation_level_is_an_invalid_request(asked, level):
    request = list_offsets(-1)
    request.isolation_level = level
    (partition,) = asked.ask(request, 5).topics[0].partitions
    assert partition.error_code == ErrorCode.INVALID_REQUEST
    assert asked.broker.replica_manager.listed == []


@pytest.fixture
def of_three():
    """Broker 1 of a cluster of three."""
    brokers = [broker_registration(i) for i in (1, 2, 3)]
    return Asked(FakeBroker(image_of(topic_image("t", 3), brokers=brokers)))


def test_followers_ask_for_the_ends_of_the_leaders_log(of_three):
    answer = of_three.ask(list_offsets(-1, replica=3), 7)
    assert answer.topics[0].partitions[0].error_code == 0
    assert of_three.broker.replica_manager.listed[0][4] == 3


# ---- OffsetForLeaderEpoch, DeleteRecords


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch(asked, version):
    asked.broker.replica_manager.end_offsets["t", 0] = (0, 3, 77)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderEpochRequest.Topic(
                topic="t",
                partitions=[
                    OffsetForLeaderEpochRequest.Topic.Partition(
                        partition=i, current_leader_epoch=4, leader_epoch=3
                    )
                    for i in (0, 1)
                ],
            )
        ],
    )
    answer = asked.ask(request, version)
    rows = [
        (p.partition, p.error_code, p.leader_epoch, p.end_offset)
        for p in answer.topics[0].partitions
    ]
    assert rows == [(0, 0, 3, 77), (1, 3, -1, -1)]
    if version >= 3:
        request.replica_id = 2  # no broker of this cluster, which Kafka does not ask
        assert asked.ask(request, version) == answer


@pytest.mark.parametrize("version", range(3))
def test_delete_records(asked, version):
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.Topic(
                name="t",
                partitions=[
                    DeleteRecordsRequest.Topic.Partition(partition_index=i, offset=40 + i)
                    for i in (1, 0)
                ],
            )
        ],
        timeout_ms=1000,
    )
    answer = asked.ask(request, version)
    rows = [(p.partition_index, p.low_watermark, p.error_code) for p in answer.topics[0].partitions]
    assert rows == [(1, 41, 0), (0, 40, 0)]
    assert asked.broker.replica_manager.deleted == {("t", 1): 41, ("t", 0): 40}
