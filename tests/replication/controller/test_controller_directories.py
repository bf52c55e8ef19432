"""AssignReplicasToDirs: where replicas are, and what a lost directory held."""

from __future__ import annotations

import pytest

from replication.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
)
from tests.replication.controller_support import Cluster, new_topic
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import BrokerRegistrationRequest

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
    assert before.directory(1) == DIRECTORY_UNASSIGNED
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


def test_the_ids_that_are_words_are_apache_kafkas(made: Cluster) -> None:
    """org.apache.kafka.common.DirectoryId: its controllers write them, and read ours."""
    words = (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, DIRECTORY_LOST)
    assert [int.from_bytes(word, "big") for word in words] == [0, 1, 2]
    broker = made.image.brokers[1]
    assert [broker.has_online_directory(word) for word in words] == [True, True, False]


def test_a_lost_directory_is_not_online_of_a_broker_that_has_named_none_either() -> None:
    """metadata.version was just raised: the broker names its directories when it registers again,
    and may say before that where a replica is not.
    """
    cluster = Cluster(features={"metadata.version": 16})
    for broker_id in (1, 2):
        cluster.start_broker(broker_id)
    cluster.create("orders", 1, 2)
    cluster.update_features(("metadata.version", 17, 1))
    led = cluster.partition("orders").leader
    topic_id = cluster.image.topics_by_name["orders"].topic_id
    cluster.assign_directories(led, {DIRECTORY_LOST: [(topic_id, 0)]})
    now = cluster.partition("orders")
    assert now.isr == (now.leader,) != (led,)


def test_before_directories_are_known_no_image_has_one() -> None:
    """Records of an older metadata.version drop them: a controller that decided by them would
    disagree with its own log, and with whoever leads next.
    """
    cluster = Cluster(features={"metadata.version": 16})
    cluster.start_broker(1, log_dirs=[GOOD, BAD])
    cluster.start_broker(2, log_dirs=[], features=_older_release())
    cluster.create("orders", 1, 2)
    assert [broker.directories for broker in cluster.image.brokers.values()] == [(), ()]
    assert cluster.partition("orders").directories == (DIRECTORY_MIGRATING,) * 2
    count = len(cluster.log)
    cluster.heartbeat(1, offline_log_dirs=[BAD])
    assert len(cluster.log) == count, "an older release cannot read of directories"
    cluster.update_features(("metadata.version", 17, 1))
    cluster.register(1, log_dirs=[GOOD, BAD])  # the same incarnation once more
    assert cluster.image.brokers[1].directories == (GOOD, BAD)
    assert cluster.image.is_active(1)
    cluster.heartbeat(1, offline_log_dirs=[BAD])
    assert cluster.image.brokers[1].directories == (GOOD,)


def _older_release() -> list[BrokerRegistrationRequest.Feature]:
    return [
        BrokerRegistrationRequest.Feature(
            name="metadata.version", min_supported_version=1, max_supported_version=17
        )
    ]


def test_an_older_incarnation_and_an_older_metadata_version_are_refused(made: Cluster) -> None:
    with pytest.raises(KafkaError) as refused:
        made.assign_directories(1, {}, broker_epoch=0)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    old = Cluster(features={"metadata.version": 16})
    old.start_broker()
    with pytest.raises(KafkaError) as refused:
        old.assign_directories(1, {})
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_a_partition_without_a_leader_gets_one_when_its_replica_is_where_its_broker_says() -> None:
    """A disk was replaced, and no other broker has the partition: nothing else would elect one."""
    cluster = Cluster()
    cluster.start_broker(1)
    cluster.start_broker(2, log_dirs=[BAD])
    cluster.create_topics(new_topic("orders", assignments={0: [2]}))
    cluster.now_ms += cluster.config.broker_session_timeout_ms
    cluster.start_broker(2, incarnation=2, log_dirs=[GOOD])
    assert cluster.partition("orders").leader == -1, "its replica is in a directory that is gone"
    topic_id = cluster.image.topics_by_name["orders"].topic_id
    cluster.assign_directories(2, {GOOD: [(topic_id, 0)]})
    after = cluster.partition("orders")
    assert (after.directory(2), after.leader, after.isr) == (GOOD, 2, (2,))
