"""Produce at the handler's edge."""

from __future__ import annotations

from collections import deque
from itertools import cycle
from types import SimpleNamespace

import pytest

from replication.partition.requests import AppendResult
from server.handlers import produce as handlers
from server.network.request_channel import INLINE_FRAME_BYTES
from server.network.request_context import RequestContext
from tests.replication.replicas.test_replica_manager import Broker as Replicas
from tests.replication.replicas.test_replica_manager import led
from tests.replication.replicas.test_replica_manager import topic as replicated_topic
from tests.server.handler_support import (
    CLOSED,
    TOPIC_ID,
    Asked,
    FakeBroker,
    broker_registration,
    image_of,
    topic_image,
)
from tests.server.wire_client import request_bytes, responses_in
from wire.errors import ErrorCode
from wire.messages.data import ProduceRequest
from wire.messages.groups import HeartbeatRequest
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


@pytest.mark.parametrize("version", [9, 13])
def test_a_produce_whose_records_must_be_opened_is_costly(asked, version):
    """N3: such a batch held up the only network thread for 1.25 s."""
    broker = asked.broker
    key = TOPIC_ID if version >= 13 else "t"
    request = produce([(key, [(0, BATCH), (1, None)])])
    ctx = SimpleNamespace(api_version=version, broker=broker, listener_name="PLAINTEXT")
    assert not handlers.produce_is_costly(ctx, request)
    broker.replica_manager.are_records_opened = True
    broker.opens_compressed_records = frozenset({"PLAINTEXT"})
    assert handlers.produce_is_costly(ctx, request)
    asked_for = broker.replica_manager.must_open
    assert asked_for == [(("t", 0), BATCH, False), (("t", 0), BATCH, True)]


def test_compressed_records_are_opened_on_the_listeners_that_are_configured(asked):
    for names in (frozenset(), frozenset({"PLAINTEXT"})):
        asked.broker.opens_compressed_records = names
        asked.ask(produce([("t", [(0, BATCH)])]), 9)
    sources = asked.broker.replica_manager.appended_from
    assert [source.opens_compressed for source in sources] == [False, True]


# ---- together


def in_line(asked, *requests, version=9, client_ids=("test",), most=16):
    """Have requests that wait served together; how many were. The first is from nobody: clients
    say who they are once."""
    if not asked.channel.client_id:
        asked.ask(produce([("t", [(0, BATCH)])]), 9)
        asked.broker.replica_manager.appended.clear()
    frames = [
        request if isinstance(request, bytes) else request_bytes(request, version, 100 + at, client)
        for at, (request, client) in enumerate(zip(requests, cycle(client_ids), strict=False))
    ]
    asked.channel.frames = deque(frames)
    taken = asked.requests.receive_together(asked.channel, most)
    if asked.channel.violation is None:
        assert len(asked.channel.frames) == len(frames) - taken
    return taken


def answered(asked, version=9):
    """(correlation id, what it says) of each answer that was sent, in order."""
    sent = b"".join(asked.processor.done)
    asked.processor.done.clear()
    answers = responses_in(sent, ProduceRequest.api_key, version)
    return [(correlation_id, produced(response)) for correlation_id, response in answers]


@pytest.mark.parametrize("version", [9, 12, 13])
def test_requests_in_line_are_appended_together_and_answered_each(asked, version):
    t, u = (TOPIC_ID, OTHER_ID) if version >= 13 else ("t", "u")
    sent = [
        produce([(t, [(0, BATCH)])]),
        produce([(t, [(0, BATCH), (1, BATCH)]), (u, [(0, BATCH)])]),
        produce([(u, [(0, BATCH)])]),
    ]
    assert in_line(asked, *sent, version=version) == 3
    ((acks, timeout_ms, entries, _),) = asked.broker.replica_manager.appended
    keys = [("t", 0), ("t", 0), ("t", 1), ("u", 0), ("u", 0)]
    assert (acks, timeout_ms, entries) == (-1, 1500, [(key, BATCH) for key in keys])
    assert answered(asked, version) == [
        (100, [(t, 0, 0, 100)]),
        (101, [(t, 0, 0, 101), (t, 1, 0, 102), (u, 0, 0, 103)]),
        (102, [(u, 0, 0, 104)]),
    ]
    assert asked.channel.in_flight is None


PLAIN = produce([("t", [(0, BATCH)])])
HEARTBEAT = request_bytes(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4, 1)


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ([PLAIN, produce([("t", [(0, BATCH)])], acks=1)], 0),
        ([PLAIN, PLAIN, produce([("t", [(0, BATCH)])], acks=1)], 2),
        ([produce([("t", [(0, BATCH)])], acks=0)] * 3, 0),
        ([PLAIN, PLAIN, produce([("t", [(0, BATCH)])], transactional_id="tx"), PLAIN], 4),
        ([PLAIN, PLAIN, produce([("t", [(0, TRANSACTIONAL)])], transactional_id="tx")], 2),
        ([PLAIN, PLAIN, produce([("t", [(0, TRANSACTIONAL)])])], 2),
        ([PLAIN, PLAIN, produce([("__consumer_offsets", [(0, BATCH)])])], 2),
        ([PLAIN, PLAIN, produce([("t", [(0, None)])]), PLAIN], 2),
        ([PLAIN, PLAIN, produce([])], 2),
        ([PLAIN, PLAIN, request_bytes(PLAIN, 9, 1)[:-5]], 2),
        ([PLAIN, PLAIN, request_bytes(PLAIN, 10, 1)], 2),
        ([PLAIN, PLAIN, HEARTBEAT], 2),
        ([HEARTBEAT, PLAIN, PLAIN], 0),
        ([request_bytes(PLAIN, 9, 1)[:18]] * 2, 0),
        ([request_bytes(PLAIN, 9, 1)[:19]] * 2, 0),
        ([request_bytes(PLAIN, 9, 1)[:18] + b"\1" + request_bytes(PLAIN, 9, 1)[18:]] * 2, 0),
        ([PLAIN] * 3, 3),
        ([PLAIN] * 40, 16),
        ([PLAIN], 0),
    ],
)
def test_what_is_unlike_those_before_it_waits_for_its_turn(asked, others, taken):
    assert in_line(asked, *others) == taken
    assert len(answered(asked)) == taken
    assert sum(len(one[2]) for one in asked.broker.replica_manager.appended) == taken


@pytest.mark.parametrize("version", [3, 8])
def test_old_versions_come_one_by_one(asked, version):
    assert in_line(asked, PLAIN, PLAIN, version=version) == 0


def test_another_client_id_and_none_come_one_by_one(asked):
    assert in_line(asked, PLAIN, PLAIN, client_ids=("other",)) == 0
    assert in_line(asked, PLAIN, PLAIN, PLAIN, client_ids=("test", "test", "other")) == 2
    assert in_line(asked, PLAIN, PLAIN, client_ids=(None,)) == 2


def test_together_they_are_no_larger_than_one_that_runs_on_a_network_thread(asked):
    large = produce([("t", [(0, BATCH + bytes(INLINE_FRAME_BYTES // 3))])])
    assert in_line(asked, *[large] * 5) == 2


def test_who_is_measured_comes_alone(asked):
    asked.requests.measure(lambda *given: RequestContext(*given[:-1]))
    assert in_line(asked, PLAIN, PLAIN) == 0


def test_one_that_fails_is_told_so_beside_the_others(asked):
    failed = AppendResult(("u", 0), int(ErrorCode.CORRUPT_MESSAGE), error_message="spoilt")
    asked.broker.replica_manager.append_results[("u", 0)] = failed
    assert in_line(asked, PLAIN, produce([("u", [(0, BATCH)]), ("t", [(1, BATCH)])]), PLAIN) == 3
    assert answered(asked) == [
        (100, [("t", 0, 0, 100)]),
        (101, [("u", 0, int(ErrorCode.CORRUPT_MESSAGE), -1), ("t", 1, 0, 102)]),
        (102, [("t", 0, 0, 103)]),
    ]


def test_those_that_wait_for_replicas_are_one_request_in_flight(asked):
    rm = asked.broker.replica_manager
    in_line(asked, PLAIN, PLAIN)
    asked.processor.done.clear()
    rm.held_appends = []
    assert in_line(asked, PLAIN, PLAIN, PLAIN) == 3
    assert asked.channel.in_flight is not None
    assert not asked.channel.may_start(0)
    assert not asked.processor.done
    on_complete, results = rm.held_appends.pop()
    on_complete(results)
    assert [correlation_id for correlation_id, _ in answered(asked)] == [100, 101, 102]
    assert asked.channel.in_flight is None


def test_a_fault_of_ours_ends_the_connection_of_requests_in_line(asked, caplog):
    def fail(request):
        raise RuntimeError("a fault")

    in_line(asked, PLAIN, PLAIN)
    asked.processor.done.clear()
    asked.broker.replica_manager.append_records = fail
    assert in_line(asked, PLAIN, PLAIN, PLAIN) == 3
    assert asked.processor.done.pop() == CLOSED
    assert asked.requests.failed == 1
    assert "requests failed together" in caplog.text


def test_what_follows_a_batch_of_an_id_nobody_knew_is_refused_too(tmp_path):
    """A new topic's leader may hear of it after its producers do, who send on meanwhile. What came
    second would be taken as the first of its producer, and what came first never."""
    replicas = Replicas(tmp_path)
    node = FakeBroker(replicas.image)
    node.replica_manager = replicas.manager
    asked = Asked(node)

    def told(sequence):
        node.metadata = replicas.image
        records = bytes(
            build_batch(
                [Record(value=b"v")], producer_id=5, producer_epoch=0, base_sequence=sequence
            )
        )
        (row,) = produced(asked.ask(produce([(OTHER_ID, [(0, records)])]), 13))
        return row[2:]

    nothing = produce([(OTHER_ID, [(0, None)])])
    assert [row[2] for row in produced(asked.ask(nothing, 13))] == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert told(0) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
    replicas.publish(replicated_topic("u", OTHER_ID, led()))
    assert told(1) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert [told(0), told(1)] == [(0, 0), (0, 1)]
