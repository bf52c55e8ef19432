"""Fetch at the handler's edge."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from replication.metadata.image import Endpoint
from replication.partition.requests import FetchResult
from server.handlers import fetch as handlers
from tests.server.handler_support import (
    TOPIC_ID,
    Asked,
    FakeBroker,
    broker_registration,
    image_of,
    topic_image,
)
from wire.errors import ErrorCode
from wire.messages.data import FetchRequest
from wire.records import Record, build_batch

OTHER_ID = b"o" * 16
BATCH = bytes(build_batch([Record(value=b"v")]))
TRANSACTIONAL = bytes(
    build_batch(
        [Record(value=b"v")],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
)


@pytest.fixture
def asked():
    return Asked(FakeBroker(image_of(topic_image("t", 3), topic_image("u", 1, OTHER_ID))))


def fetch(topics, session=(0, -1), replica=-1, state=None, wait=0, isolation=0, forgotten=()):
    def named(key):
        return {"topic_id": key} if isinstance(key, bytes) else {"topic": key}

    return FetchRequest(
        replica_id=replica,
        replica_state=state,
        max_wait_ms=wait,
        min_bytes=1,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        rack_id="rack",
        topics=[
            FetchRequest.Topic(
                **named(key),
                partitions=[
                    FetchRequest.Topic.Partition(
                        partition=i, fetch_offset=10 + i, partition_max_bytes=99,
                        current_leader_epoch=4, last_fetched_epoch=3, log_start_offset=-1,
                    )
                    for i in indexes
                ],
            )
            for key, indexes in topics
        ],
    )  # fmt: skip


def fetched(answer):
    return [
        (t.topic or t.topic_id, p.partition_index, p.error_code, bytes(p.records))
        for t in answer.responses
        for p in t.partitions
    ]


def ok(records=b"", **more):
    return FetchResult(
        0, high_watermark=20, last_stable_offset=19, log_start_offset=2, records=records, **more
    )


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_in_every_version(asked, version):
    rm = asked.broker.replica_manager
    rm.fetch_results["t", 0] = ok(b"batch0")
    rm.fetch_results["t", 2] = ok()
    key = TOPIC_ID if version >= 13 else "t"
    answer = asked.ask(fetch([(key, [0, 2, 1])]), version)
    assert fetched(answer) == [(key, 0, 0, b"batch0"), (key, 2, 0, b""), (key, 1, 3, b"")]
    partition = answer.responses[0].partitions[0]
    assert (partition.high_watermark, partition.last_stable_offset) == (20, 19)
    assert partition.aborted_transactions is None
    ((replica, _wait, _isolation, requests),) = rm.fetched
    assert replica == -1
    one = requests[0]
    assert (one.topic, one.partition_index, one.fetch_offset, one.max_bytes) == ("t", 0, 10, 99)
    assert one.current_leader_epoch == (4 if version >= 9 else -1)
    assert one.last_fetched_epoch == (3 if version >= 12 else -1)
    assert one.topic_id == (TOPIC_ID if version >= 13 else None)


def test_read_committed_lists_aborted_transactions(asked):
    aborted = [SimpleNamespace(producer_id=5, first_offset=11)]
    asked.broker.replica_manager.fetch_results["t", 0] = ok(b"b", aborted=aborted)
    asked.broker.replica_manager.fetch_results["t", 1] = ok(b"b", aborted=[])
    answer = asked.ask(fetch([("t", [0, 1])], isolation=1), 11)
    first, second = answer.responses[0].partitions
    assert [(a.producer_id, a.first_offset) for a in first.aborted_transactions] == [(5, 11)]
    assert second.aborted_transactions == []
    assert asked.broker.replica_manager.fetched[0][2] == 1


def test_unknown_topic_ids_are_told_with_the_rest_and_hurry_nothing(asked):
    asked.broker.replica_manager.fetch_results["t", 0] = ok()
    answer = asked.ask(fetch([(b"?" * 16, [0]), (TOPIC_ID, [0])], wait=500), 16)
    assert [row[2] for row in fetched(answer)] == [100, 0]
    assert asked.broker.replica_manager.fetched[0][1] == 500
    answer = asked.ask(fetch([(b"?" * 16, [0])], wait=500), 16)
    assert [row[2] for row in fetched(answer)] == [100]


def test_a_client_that_poses_as_a_replica_is_refused(asked):
    """Z-4: it would move the high watermark."""
    for version in (4, 7, 11, 12, 14):
        key = TOPIC_ID if version >= 13 else "t"
        answer = asked.ask(fetch([(key, [0])], replica=1), version)
        assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED in {row[2] for row in fetched(answer)}
    state = FetchRequest.ReplicaState(replica_id=1, replica_epoch=0)
    answer = asked.ask(fetch([(TOPIC_ID, [0])], state=state), 17)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert asked.broker.replica_manager.fetched == []


def test_old_fetches_do_not_get_codes_they_do_not_know(asked):
    asked.broker.replica_manager.fetch_results["u", 0] = FetchResult(56)
    assert fetched(asked.ask(fetch([("u", [0])]), 5))[0][2] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched(asked.ask(fetch([("u", [0])]), 6))[0][2] == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_diverging_log_and_a_moved_leader_are_told():
    topic = topic_image("t", 2, leader=2)
    brokers = [broker_registration(1), broker_registration(2)]
    asked = Asked(FakeBroker(image_of(topic, brokers=brokers)))
    rm = asked.broker.replica_manager
    rm.fetch_results["t", 0] = ok(diverging_epoch=(3, 8))
    rm.fetch_results["t", 1] = FetchResult(74)
    answer = asked.ask(fetch([(TOPIC_ID, [0, 1])]), 16)
    diverging, moved = answer.responses[0].partitions
    assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (3, 8)
    assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (2, 4)
    assert [(n.node_id, n.host) for n in answer.node_endpoints] == [(2, "host-2")]


@pytest.mark.parametrize(
    "leader",
    [
        replace(broker_registration(2), endpoints={"INSIDE": Endpoint("host-2", 9, 0)}),
        broker_registration(2, fenced=True),
    ],
)
def test_a_moved_leader_that_cannot_be_reached_is_told_without_an_address(leader):
    brokers = [broker_registration(1), leader]
    asked = Asked(FakeBroker(image_of(topic_image("t", leader=2), brokers=brokers)))
    asked.broker.replica_manager.fetch_results["t", 0] = FetchResult(6)
    answer = asked.ask(fetch([(TOPIC_ID, [0])]), 16)
    assert answer.responses[0].partitions[0].current_leader.leader_id == 2
    assert answer.node_endpoints == []


def test_a_session_is_opened_continued_and_refused_over_the_wire(asked):
    rm = asked.broker.replica_manager
    rm.fetch_results["t", 0] = rm.fetch_results["t", 1] = ok()
    opened = asked.ask(fetch([("t", [0, 1])], session=(0, 0)), 12)
    assert opened.session_id > 0
    assert len(fetched(opened)) == 2
    rm.fetch_results["t", 1] = ok(b"new")
    answer = asked.ask(fetch([], session=(opened.session_id, 1)), 12)
    assert (answer.error_code, answer.session_id) == (0, opened.session_id)
    assert fetched(answer) == [("t", 1, 0, b"new")]
    for session, version, code in (
        ((opened.session_id, 1), 12, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((opened.session_id + 1, 2), 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((opened.session_id, 2), 13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ):
        answer = asked.ask(fetch([], session=session), version)
        assert (answer.error_code, answer.responses) == (code, [])


def test_a_fetch_of_nothing_is_answered_at_once(asked):
    answer = asked.ask(fetch([], wait=10_000), 12)
    assert (answer.error_code, answer.responses) == (0, [])


@pytest.fixture
def of_three():
    """Broker 1 of a cluster of three."""
    brokers = [broker_registration(i) for i in (1, 2, 3)]
    return Asked(FakeBroker(image_of(topic_image("t", 3), brokers=brokers)))


@pytest.mark.parametrize("version", [7, 11, 14, 15, 17, 18])
def test_a_follower_fetches_as_the_replica_it_is(of_three, version):
    rm = of_three.broker.replica_manager
    rm.fetch_results["t", 0] = ok()
    state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=17)
    key = TOPIC_ID if version >= 13 else "t"
    asks = {"state": state} if version >= 15 else {"replica": 2}
    assert [row[2] for row in fetched(of_three.ask(fetch([(key, [0])], **asks), version))] == [0]
    assert rm.fetched[0][0] == 2
    assert rm.fetched_as[0] == (17 if version >= 15 else -1), "KIP-903"


@pytest.mark.parametrize(("version", "rack"), [(10, None), (11, "rack"), (17, "rack")])
def test_consumers_read_from_followers_since_version_11(of_three, version, rack):
    key = TOPIC_ID if version >= 13 else "t"
    of_three.ask(fetch([(key, [0])]), version)
    assert of_three.broker.replica_manager.fetched_as == (-1, rack)


def test_topics_of_the_answer_are_grouped(asked):
    rm = asked.broker.replica_manager
    for key in (("t", 0), ("t", 1), ("u", 0)):
        rm.fetch_results[key] = ok()
    answer = asked.ask(fetch([("t", [0, 1]), ("u", [0])]), 12)
    assert [(t.topic, len(t.partitions)) for t in answer.responses] == [("t", 2), ("u", 1)]


@pytest.mark.parametrize("level", [-1, 2, 127])
def test_an_unknown_isolation_level_is_an_invalid_request(asked, level):
    answer = asked.ask(fetch([("t", [0])], isolation=level), 12)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert asked.broker.replica_manager.fetched == []


def test_a_fetch_in_a_large_session_is_costly(asked):
    """A request of 60 bytes in a session of 400,000 partitions held up the only network thread for
    two seconds, again and again."""
    topic, partition = FetchRequest.Topic, FetchRequest.Topic.Partition
    for count, is_costly in ((256, False), (257, True)):
        names = [
            partition(partition=i, fetch_offset=0, partition_max_bytes=1) for i in range(count)
        ]
        opens = FetchRequest(
            max_wait_ms=0, min_bytes=0, isolation_level=0, session_id=0, session_epoch=0,
            topics=[topic(topic="t", partitions=names)], forgotten_topics_data=[],
        )  # fmt: skip
        cache = asked.broker.fetch_sessions
        context = cache.context(opens, 12, 0, lambda topic_id: "")
        context.select([FetchResult() for _ in range(count)], 0)
        goes_on = FetchRequest(
            max_wait_ms=0, min_bytes=0, isolation_level=0, session_id=context.session_id,
            session_epoch=1, topics=[], forgotten_topics_data=[],
        )  # fmt: skip
        ctx = SimpleNamespace(api_version=12, broker=asked.broker)
        assert handlers.fetch_is_costly(ctx, goes_on) is is_costly
