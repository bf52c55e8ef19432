"""AssignReplicasToDirs: where replicas are, and what a lost directory held."""

from __future__ import annotations

import pytest

from tests.replication.controller_support import Cluster
from wire.errors import ErrorCode, KafkaError

GOOD, BAD, GONE = b"\x71" * 16, b"\x72" * 16, b"\x73" * 16


@pytest.fixture
def made() -> Cluster:
    """Broker 1 has two directories, so the controller does not know which it took."""
    cluster = Cluster()
    cluster.register(1, log_dirs=[GOOD, BAD])
    cluster.heartbeat(1)
    cluster.start_broker(2)
    cluster.create("orders", 2, 2)
    return cluster


def test_the_controller_remembers_where_a_replica_is(made: Cluster) -> None:
    topic_id = made.image.topics_by_name["orders"].topic_id
    before = made.partition("orders", 1)
    assert before.directory(1) == bytes(16)
    outcome = made.assign_directories(1, {BAD: [(topic_id, 1)], GOOD: [(topic_id, 0)]})
    assert outcome == [(BAD, 1, 0), (GOOD, 0, 0)]
    after = made.partition("orders", 1)
    assert after.directory(1) == BAD
    assert after.directory(2) == before.directory(2)
    assert (after.leader, after.isr) == (before.leader, before.isr)
    count = len(made.log)
    made.assign_directories(1, {BAD: [(topic_id, 1)]})
    assert len(made.log) == count, "it was known"


def test_a_replica_in_a_directory_that_is_gone_leaves_its_isr(made: Cluster) -> None:
    topic_id = made.image.topics_by_name["orders"].topic_id
    led = next(i for i in (0, 1) if made.partition("orders", i).leader == 1)
    made.assign_directories(1, {GONE: [(topic_id, led)]})
    after = made.partition("orders", led)
    assert (after.directory(1), after.leader, after.isr) == (GONE, 2, (2,))


def test_each_partition_has_its_own_code(made: Cluster) -> None:
    topic_id = made.image.topics_by_name["orders"].topic_id
    made.start_broker(3)
    outcome = made.assign_directories(1, {GOOD: [(b"\x99" * 16, 0), (topic_id, 7), (topic_id, 0)]})
    assert [code for _, _, code in outcome] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    stranger = made.assign_directories(3, {made.image.brokers[3].directories[0]: [(topic_id, 0)]})
    assert stranger[0][2] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_older_incarnation_and_an_older_metadata_version_are_refused(made: Cluster) -> None:
    with pytest.raises(KafkaError) as refused:
        made.assign_directories(1, {}, broker_epoch=0)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    old = Cluster(features={"metadata.version": 16})
    old.start_broker()
    with pytest.raises(KafkaError) as refused:
        old.assign_directories(1, {})
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
