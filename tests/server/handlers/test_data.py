"""Produce and Fetch at the handler's edge."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from replication.partition.requests import AppendResult, FetchResult
from server.handlers import data
from tests.server.handler_support import (
    CLOSED,
    TOPIC_ID,
    Asked,
    FakeBroker,
    broker_registration,
    image_of,
    topic_image,
)
from wire.errors import ErrorCode
from wire.messages.data import FetchRequest, ProduceRequest
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


# ---- Produce


def produce(topics, acks=-1, **more):
    """`topics`: [(name or id, [(partition, records), ...]), ...]."""

    def named(key):
        return {"topic_id": key} if isinstance(key, bytes) else {"name": key}

    return ProduceRequest(
        acks=acks,
        timeout_ms=1500,
        topic_data=[
            ProduceRequest.Topic(
                **named(key),
                partition_data=[
                    ProduceRequest.Topic.Partition(index=i, records=records)
                    for i, records in partitions
                ],
            )
            for key, partitions in topics
        ],
        **more,
    )


def produced(answer):
    return [
        (t.name or t.topic_id, p.index, p.error_code, p.base_offset)
        for t in answer.responses
        for p in t.partition_responses
    ]


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_in_every_version(asked, version):
    key = TOPIC_ID if version >= 13 else "t"
    answer = asked.ask(produce([(key, [(0, BATCH), (2, BATCH)])]), version)
    assert produced(answer) == [(key, 0, 0, 100), (key, 2, 0, 101)]
    assert asked.broker.replica_manager.appended == [
        (-1, 1500, [(("t", 0), BATCH), (("t", 2), BATCH)], version)
    ]
    partition = answer.responses[0].partition_responses[0]
    assert partition.log_append_time_ms == -1
    if version >= 5:
        assert partition.log_start_offset == 7


def test_partitions_fail_alone_and_in_their_place(asked):
    rm = asked.broker.replica_manager
    rm.append_results["t", 1] = AppendResult(
        ("t", 1), 87, error_message="bad", record_errors=[(3, "no key"), (4, None)],
        log_start_offset=2,
    )  # fmt: skip
    request = produce(
        [("t", [(0, BATCH), (1, BATCH), (2, None)]), ("u", [(0, b"")]), ("u", [(0, BATCH)])]
    )
    answer = asked.ask(request, 9)
    assert produced(answer) == [
        ("t", 0, 0, 100),
        ("t", 1, 87, -1),
        ("t", 2, 87, -1),
        ("u", 0, 87, -1),
        ("u", 0, 0, 102),
    ]
    bad = answer.responses[0].partition_responses[1]
    assert (bad.error_message, bad.log_start_offset) == ("bad", 2)
    assert [(e.batch_index, e.batch_index_error_message) for e in bad.record_errors] == [
        (3, "no key"),
        (4, None),
    ]


def test_a_partition_named_twice_is_appended_to_twice(asked):
    answer = asked.ask(produce([("t", [(0, BATCH), (0, BATCH)])]), 9)
    assert produced(answer) == [("t", 0, 0, 100), ("t", 0, 0, 101)]


def test_unknown_topic_ids_are_told_even_the_zero_id(asked):
    answer = asked.ask(
        produce([(b"?" * 16, [(0, BATCH)]), (TOPIC_ID, [(0, BATCH)]), (bytes(16), [(1, BATCH)])]),
        13,
    )
    assert [row[2] for row in produced(answer)] == [100, 0, 100]


def test_acks_0_is_silent_on_success_and_closes_on_error(asked):
    assert asked.ask(produce([("t", [(0, BATCH)])], acks=0), 9) is None
    assert asked.channel.in_flight is None
    assert asked.ask(produce([("t", [(0, None)])], acks=0), 9) is CLOSED
    asked.broker.replica_manager.append_results["t", 0] = AppendResult(("t", 0), 3)
    assert asked.ask(produce([("t", [(0, BATCH)])], acks=0), 9) is CLOSED


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_a_transactional_batch_without_a_transactional_id_is_refused(asked, acks):
    """TX-51: the whole request."""
    answer = asked.ask(produce([("u", [(0, BATCH)]), ("t", [(0, TRANSACTIONAL)])], acks), 9)
    if acks == 0:
        assert answer is CLOSED
    else:
        assert {row[2] for row in produced(answer)} == {53}
    assert asked.broker.replica_manager.appended == []


@pytest.mark.parametrize(
    ("version", "operation"), [(3, "VERIFY_OLD"), (10, "VERIFY_OLD"), (11, "VERIFY"), (12, "ADD")]
)
def test_transactional_batches_are_appended_once_their_coordinator_agreed(
    asked, version, operation
):
    """TX-52: what is asked follows from the version alone."""
    verified = asked.broker.transaction_verification.verified = []
    request = produce([("t", [(0, BATCH), (1, TRANSACTIONAL)])], transactional_id="x")
    assert {row[2] for row in produced(asked.ask(request, version))} == {0}
    assert verified == [("x", operation)]


def test_a_transactional_id_without_transactional_batches_costs_nobody_a_question(asked):
    asked.broker.transaction_verification = None
    answer = asked.ask(produce([("t", [(0, BATCH)])], transactional_id="x"), 9)
    assert produced(answer)[0][2] == 0


def test_internal_topics_are_written_by_the_admin_client_only():
    asked = Asked(FakeBroker(image_of(topic_image("__consumer_offsets"))))
    request = produce([("__consumer_offsets", [(0, BATCH)])])
    assert produced(asked.ask(request, 9))[0][2] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert produced(asked.ask(request, 9, client_id="__admin_client"))[0][2] == 0


@pytest.mark.parametrize(("version", "hint"), [(9, False), (10, True), (12, True)])
def test_a_produce_to_the_wrong_broker_names_the_leader(version, hint):
    topic = topic_image("t", leader=2)
    brokers = [broker_registration(1), broker_registration(2, rack="r")]
    asked = Asked(FakeBroker(image_of(topic, brokers=brokers)))
    asked.broker.replica_manager.append_results["t", 0] = AppendResult(("t", 0), 6)
    answer = asked.ask(produce([("t", [(0, BATCH)])]), version)
    leader = answer.responses[0].partition_responses[0].current_leader
    if hint:
        assert (leader.leader_id, leader.leader_epoch) == (2, 4)
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (2, "host-2", 9092, "r")
    else:
        assert leader is None


def test_a_parked_produce_keeps_no_records_alive(asked):
    """A thousand waiting requests must not hold a thousand frames."""
    import gc
    import weakref

    rm = asked.broker.replica_manager
    rm.held_appends = []
    kept = []
    plain = rm.append_records

    def append_records(request):
        kept.append(weakref.ref(request.entries[0][1]))  # the memoryview into the frame
        plain(request)

    rm.append_records = append_records
    request = produce([("t", [(0, BATCH)])])
    assert asked.ask(request, 9) is None
    del request
    gc.collect()
    assert kept[0]() is None
    on_complete, results = rm.held_appends.pop()
    on_complete(results)
    assert produced(asked.received(produce([]), 9)) == [("t", 0, 0, 100)]


def test_a_produce_without_topics_is_answered(asked):
    assert asked.ask(produce([]), 9).responses == []


# ---- Fetch


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


# ---- what opening records costs


@pytest.mark.parametrize("version", [9, 13])
def test_a_produce_whose_records_must_be_opened_is_costly(asked, version):
    """N3: such a batch held up the only network thread for 1.25 s."""
    broker = asked.broker
    key = TOPIC_ID if version >= 13 else "t"
    request = produce([(key, [(0, BATCH), (1, None)])])
    ctx = SimpleNamespace(api_version=version, broker=broker, listener_name="PLAINTEXT")
    assert not data.produce_is_costly(ctx, request)
    broker.replica_manager.are_records_opened = True
    broker.opens_compressed_records = frozenset({"PLAINTEXT"})
    assert data.produce_is_costly(ctx, request)
    asked_for = broker.replica_manager.must_open
    assert asked_for == [(("t", 0), BATCH, False), (("t", 0), BATCH, True)]


def test_compressed_records_are_opened_on_the_listeners_that_are_configured(asked):
    for names in (frozenset(), frozenset({"PLAINTEXT"})):
        asked.broker.opens_compressed_records = names
        asked.ask(produce([("t", [(0, BATCH)])]), 9)
    sources = asked.broker.replica_manager.appended_from
    assert [source.opens_compressed for source in sources] == [False, True]


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
        assert data.fetch_is_costly(ctx, goes_on) is is_costly
