"""What the table of APIs does not show: real handlers behind the authorizer."""

from __future__ import annotations

import logging
from collections import deque
from types import SimpleNamespace

import pytest

from replication.partition.requests import FetchResult
from server.handlers import group_offsets
from server.handlers.access import groups, share
from server.handlers.access import topics as access_topics
from server.handlers.access.guard import Access, GuardedApi, With
from server.network.api import Operation as Op
from server.network.api import Resource as Re
from server.peers.envelope import principal_bytes
from tests.server.handler_support import (
    CLOSED,
    Asked,
    FakeBroker,
    apis_of,
    image_of,
    topic_image,
)
from tests.server.handlers.access.test_table import Policy
from tests.server.wire_client import request_bytes
from wire.frame import decode_response_header
from wire.messages.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
)
from wire.messages.cluster import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from wire.messages.data import FetchRequest, ProduceRequest
from wire.messages.envelope import EnvelopeRequest
from wire.messages.groups import OffsetCommitRequest, OffsetFetchRequest
from wire.messages.share import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from wire.primitives import ZERO_UUID

T, C, X, G = Re.TOPIC, Re.CLUSTER, Re.TRANSACTIONAL_ID, Re.GROUP
A, B = b"a" * 16, b"b" * 16
BATCH = bytes(61)  # what stands where its attributes are says: not transactional
IN_TRANSACTION = bytes(22) + b"\x10" + bytes(38)


def broker_with(*names, role="broker"):
    ids = {"a": A, "b": B}
    broker = FakeBroker(image_of(*(topic_image(n, 2, ids.get(n, n.encode() * 16)) for n in names)))
    broker.role = role
    return broker


def alice(broker, *allowed):
    asked = Asked(broker, Policy(allowed))
    asked.channel.principal = "User:alice"
    return asked


def metadata(*topics, auto=False, operations=False):
    return MetadataRequest(
        topics=None if topics == (None,) else [
            MetadataRequest.Topic(name=None, topic_id=t) if isinstance(t, bytes)
            else MetadataRequest.Topic(name=t, topic_id=ZERO_UUID) for t in topics
        ],
        allow_auto_topic_creation=auto,
        include_cluster_authorized_operations=operations,
        include_topic_authorized_operations=operations,
    )  # fmt: skip


def shown(response):
    return [(t.error_code, t.name, t.topic_id, len(t.partitions)) for t in response.topics]


# ---- Metadata


def test_all_topics_are_those_that_may_be_described():
    asked = alice(broker_with("a", "b"), (Op.DESCRIBE, T, "a"))
    assert shown(asked.ask(metadata(None), 12)) == [(0, "a", A, 2)]
    assert shown(asked.ask(metadata(), 0)) == [(0, "a", ZERO_UUID, 2)]
    assert shown(alice(broker_with("a")).ask(metadata(None), 12)) == []


def test_a_topic_that_is_not_there_looks_like_one_that_may_not_be_seen():
    asked = alice(broker_with("a", "b"), (Op.DESCRIBE, T, "a"))
    assert shown(asked.ask(metadata("b", "no"), 12)) == [
        (29, "b", ZERO_UUID, 0),
        (29, "no", ZERO_UUID, 0),
    ]
    assert shown(asked.ask(metadata("b", "no"), 0)) == [
        (29, "b", ZERO_UUID, 0),
        (29, "no", ZERO_UUID, 0),
    ]


def test_ids_are_no_secret_but_names_are():
    asked = alice(broker_with("a", "b"), (Op.DESCRIBE, T, "a"))
    answer = shown(asked.ask(metadata(A, B, b"c" * 16), 12))
    assert sorted(answer) == [(0, "a", A, 2), (29, None, B, 0), (100, None, b"c" * 16, 0)]


@pytest.mark.parametrize("right", [(Op.CREATE, C, "kafka-cluster"), (Op.CREATE, T, "new"), None])
def test_a_topic_is_made_for_who_may_make_it(right):
    rights = [(Op.DESCRIBE, T, None), *([right] if right else [])]
    asked = alice(broker_with("a"), *rights)
    asked.send(metadata("new", auto=True), 12)
    assert len(asked.broker.controller.submitted) == (right is not None)
    if right is None:
        assert shown(asked.received(metadata("new"), 12)) == [(29, "new", ZERO_UUID, 0)]


class GoneMeanwhile(Policy):
    """Topic a is deleted while a request is looked at."""

    def authorize(self, *asked):
        if asked[-1] == "b":
            self.broker.metadata = broker_with("b").metadata
        return super().authorize(*asked)


@pytest.mark.parametrize("right", [(Op.CREATE, T, "a"), None])
def test_a_topic_that_is_deleted_a_moment_later_comes_back_for_who_may_make_it(right):
    policy = GoneMeanwhile([(Op.DESCRIBE, T, None), *([right] if right else [])])
    asked = Asked(broker_with("a", "b"), policy)
    policy.broker, asked.channel.principal = asked.broker, "User:alice"
    asked.send(metadata("a", "b", auto=True), 12)
    assert len(asked.broker.controller.submitted) == (right is not None)
    if right is None:
        answer = shown(asked.received(metadata("a", "b"), 12))
        assert answer == [(3, "a", ZERO_UUID, 0), (0, "b", B, 2)]


def test_operations_are_those_that_are_allowed():
    asked = alice(broker_with("a", "b"), (Op.DESCRIBE, T, None), (Op.READ, T, "a"))
    answer = asked.ask(metadata("a", "b", operations=True), 8)
    assert [t.topic_authorized_operations for t in answer.topics] == [1 << 8 | 1 << 3, 1 << 8]
    assert answer.cluster_authorized_operations == 0
    rights = (Op.DESCRIBE, C, None), (Op.ALTER, C, None)
    cluster = DescribeClusterRequest(
        include_cluster_authorized_operations=True, endpoint_type=1, include_fenced_brokers=False
    )
    broker = broker_with("a")
    broker.raft.leader_id = 1
    answer = alice(broker, *rights).ask(cluster, 1)
    assert answer.cluster_authorized_operations == 1 << 8 | 1 << 7
    assert alice(broker_with("a")).ask(cluster, 1).cluster_authorized_operations == 0


def test_a_page_never_ends_at_a_topic_that_may_not_be_seen():
    asked = alice(broker_with("a", "b", "c"), (Op.DESCRIBE, T, "a"), (Op.DESCRIBE, T, "c"))

    def page(cursor=None, limit=2, names=()):
        make = DescribeTopicPartitionsRequest
        return asked.ask(
            make(
                topics=[make.Topic(name=name) for name in names],
                response_partition_limit=limit,
                cursor=cursor and make.Cursor(topic_name=cursor, partition_index=0),
            ),
            0,
        )

    first = page()
    assert [t.name for t in first.topics] == ["a"]
    assert first.next_cursor.topic_name == "c"
    assert [t.name for t in page("c").topics] == ["c"]
    assert [t.name for t in page("b").topics] == ["c"], "a cursor somebody made up"
    named = page(names=("a", "b", "no"), limit=100)
    assert [(t.name, t.error_code) for t in named.topics] == [("a", 0), ("b", 29), ("no", 29)]


# ---- records


def produce(*names, acks=-1, records=BATCH, transactional_id=None):
    make = ProduceRequest.Topic
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000,
        topic_data=[
            make(name=n, topic_id={"a": A, "b": B}.get(n, b"c" * 16),
                 partition_data=[make.Partition(index=0, records=records)])
            for n in names
        ],
    )  # fmt: skip


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_records_of_a_topic_that_may_not_be_written_are_not_appended(version):
    asked = alice(broker_with("a", "b"), (Op.WRITE, T, "a"))
    answer = asked.ask(produce("b", "a"), version)
    codes = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert codes == [29, 0]
    [(_, _, appended, _)] = asked.broker.replica_manager.appended
    assert [key for key, _ in appended] == [("a", 0)]


class MadeMeanwhile(Policy):
    """Topic b is published while a request is looked at."""

    def authorize(self, *asked):
        self.broker.metadata = broker_with("a", "b").metadata
        return super().authorize(*asked)


def made_meanwhile(*allowed):
    asked = Asked(broker_with("a"), policy := MadeMeanwhile(allowed))
    policy.broker = asked.broker
    asked.channel.principal = "User:alice"
    return asked


@pytest.mark.parametrize(("right", "code"), [((Op.WRITE, T, "b"), 0), ((Op.READ, T, "b"), 100)])
def test_a_topic_that_is_known_a_moment_later_is_asked_about(right, code):
    asked = made_meanwhile((Op.WRITE, T, "a"), right)
    answer = asked.ask(produce("b", "a"), 13)
    assert [t.partition_responses[0].error_code for t in answer.responses] == [code, 0]
    [(_, _, appended, _)] = asked.broker.replica_manager.appended
    assert [key for key, _ in appended] == ([("b", 0)] if not code else []) + [("a", 0)]


@pytest.mark.parametrize(("right", "committed"), [(Op.READ, "ba"), (Op.DESCRIBE, "a")])
def test_offsets_of_a_topic_that_is_known_a_moment_later_are_asked_about(right, committed):
    make, commits = OffsetCommitRequest.Topic, []
    partition = make.Partition(partition_index=0, committed_offset=1, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="g",
        member_id="",
        topics=[make(topic_id=t, partitions=[partition]) for t in (B, A)],
    )
    broker = broker_with("a")
    broker.group_coordinator = SimpleNamespace(
        commit_offsets=lambda request, *_: commits.append([t.name for t in request.topics])
    )
    ctx = SimpleNamespace(
        principal="User:alice", peer_host="127.0.0.1", api_version=10, broker=broker,
        api=SimpleNamespace(name="OffsetCommit"),
    )  # fmt: skip
    rights = Policy([(Op.READ, G, "g"), (Op.READ, T, "a"), (right, T, "b")])
    verdict = groups.offset_commit(Access(rights, ctx), request)
    broker.metadata = broker_with("a", "b").metadata
    group_offsets.offset_commit(ctx, request, verdict.argument)
    assert commits == [list(committed)]


def test_a_topic_that_is_known_a_moment_later_is_not_described_to_who_may_not():
    asked = made_meanwhile((Op.DESCRIBE, T, "a"))
    assert shown(asked.ask(metadata(B, A), 12)) == [(0, "a", A, 2)]


@pytest.mark.parametrize("names", [("b",), ("a", "b"), ("b", "a")])
def test_without_acks_only_a_close_can_say_no(names):
    asked = alice(broker_with("a", "b"), (Op.WRITE, T, "a"))
    assert asked.ask(produce(*names, acks=0), 9) is CLOSED
    assert len(asked.broker.replica_manager.appended) == ("a" in names)


@pytest.mark.parametrize("acks", [0, -1])
def test_a_fault_in_what_is_left_of_a_request_is_answered_as_in_all_of_it(acks):
    asked = alice(broker_with("a", "b"), (Op.WRITE, T, "a"))
    asked.broker.replica_manager.append_records = None  # cannot be called
    answer = asked.ask(produce("a", "b", acks=acks), 9)
    if acks == 0:
        assert answer is CLOSED
    else:
        codes = [topic.partition_responses[0].error_code for topic in answer.responses]
        assert codes == [7, 29], "retriable: nobody knows whether it was appended"


def test_what_is_allowed_goes_the_short_way():
    asked = alice(broker_with("a"), (Op.WRITE, T, "a"))
    assert asked.ask(produce("a"), 9).responses[0].partition_responses[0].error_code == 0
    assert asked.requests._apis[0].ordinary is not None
    assert alice(broker_with("a"), (Op.WRITE, T, "a")).ask(produce("a", acks=0), 9) is None


@pytest.mark.parametrize(("names", "taken"), [("aaa", 3), ("aba", 0), ("aab", 2), ("baa", 0)])
def test_of_requests_in_line_those_before_the_first_that_is_denied_are_served(names, taken):
    asked = alice(broker_with("a", "b"), (Op.WRITE, T, "a"))
    asked.ask(produce("a"), 9)
    asked.channel.frames = deque(request_bytes(produce(name), 9, 77) for name in names)
    assert asked.requests.receive_together(asked.channel, 16) == taken
    assert len(asked.broker.replica_manager.appended) == (2 if taken else 1)


@pytest.mark.parametrize(
    ("transactional_id", "allowed", "code"), [("x", "x", 0), ("x", "y", 53), (None, "x", 53)]
)
def test_transactional_records_need_the_transactional_id(transactional_id, allowed, code):
    asked = alice(broker_with("a"), (Op.WRITE, T, "a"), (Op.WRITE, X, allowed))
    request = produce("a", records=IN_TRANSACTION, transactional_id=transactional_id)
    answer = asked.ask(request, 9)
    assert answer.responses[0].partition_responses[0].error_code == code
    assert bool(asked.broker.replica_manager.appended) is (code == 0)


def fetch(*names, replica_id=-1, session=(0, -1)):
    make = FetchRequest.Topic
    return FetchRequest(
        cluster_id=None, replica_id=replica_id, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20,
        isolation_level=0, session_id=session[0], session_epoch=session[1], rack_id="",
        forgotten_topics_data=[],
        topics=[
            make(topic=n, topic_id={"a": A, "b": B}.get(n, b"c" * 16), partitions=[
                make.Partition(partition=0, current_leader_epoch=-1, fetch_offset=0,
                               last_fetched_epoch=-1, log_start_offset=-1,
                               partition_max_bytes=1000)])
            for n in names
        ],
    )  # fmt: skip


def codes_of(answer):
    return {t.topic or t.topic_id: t.partitions[0].error_code for t in answer.responses}


@pytest.mark.parametrize("version", [4, 12, 13])
def test_a_consumer_reads_what_it_may(version):
    asked = alice(broker_with("a", "b"), (Op.READ, T, "a"))
    asked.broker.replica_manager.fetch_results = {
        ("a", 0): FetchResult(0), ("b", 0): FetchResult(0),
    }  # fmt: skip
    answer = codes_of(asked.ask(fetch("b", "a"), version))
    assert answer == ({B: 29, A: 0} if version >= 13 else {"b": 29, "a": 0})
    [(_, _, _, partitions)] = asked.broker.replica_manager.fetched
    assert [one.topic for one in partitions] == ["a"]
    assert codes_of(asked.ask(fetch("b"), version)) in ({"b": 29}, {B: 29})
    assert len(asked.broker.replica_manager.fetched) == 1


def test_a_session_is_asked_about_at_each_fetch():
    asked = alice(broker_with("a", "b"), (Op.READ, T, "a"))
    policy = asked.requests._apis[1]._authorizer
    asked.broker.replica_manager.fetch_results = {
        ("a", 0): FetchResult(0), ("b", 0): FetchResult(0),
    }  # fmt: skip
    first = asked.ask(fetch("a", "b", session=(0, 0)), 12)
    assert codes_of(first) == {"a": 0, "b": 29}
    policy.allowed = {(Op.READ, T, "b")}
    second = asked.ask(fetch(session=(first.session_id, 1)), 12)
    assert codes_of(second)["a"] == 29
    assert [one.topic for one in asked.broker.replica_manager.fetched[-1][3]] == ["b"]


def test_a_replica_needs_cluster_action():
    asked = alice(broker_with("a"), (Op.READ, T, "a"))
    assert codes_of(asked.ask(fetch("a", replica_id=2), 12)) == {"a": 29}
    assert not asked.broker.replica_manager.fetched


# ---- topics


# ---- offsets of groups


def by_rule(rule, request, version, *allowed):
    """The verdict on alice."""
    api = SimpleNamespace(name="an API")
    ctx = SimpleNamespace(
        principal="User:alice", peer_host="127.0.0.1", api_version=version, api=api,
        broker=broker_with("a", "b"),
    )  # fmt: skip
    return rule(Access(Policy(allowed), ctx), request)


@pytest.mark.parametrize("again", [[], ["b"]])
def test_a_group_asked_for_twice_shows_no_more_than_asked_for_once(again):
    make, told = DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse.Group
    topics = [make.Group.Topic(topic_name=name, partitions=[0]) for name in again]
    groups = [make.Group(group_id="g", topics=None), make.Group(group_id="g", topics=topics)]
    request = make(groups=groups)
    rights = (Op.DESCRIBE, G, "g"), (Op.DESCRIBE, T, "a")
    finish = by_rule(share.describe_share_group_offsets, request, 1, *rights)
    found = [told.Topic(topic_name=n, topic_id=ZERO_UUID, partitions=[]) for n in "ab"]
    answer = finish(
        DescribeShareGroupOffsetsResponse(
            groups=[
                told(group_id="g", topics=found, error_code=0),
                told(group_id="g", topics=[], error_code=0),
            ]
        )
    )
    for group in answer.groups:
        shown = [topic.topic_name for topic in group.topics if topic.partitions == []]
        assert "b" not in shown


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    ("rule", "make", "version"),
    [
        (share.describe_share_group_offsets, DescribeShareGroupOffsetsRequest, 1),
        (groups.offset_fetch, OffsetFetchRequest, 8),
    ],
)
def test_many_groups_cost_no_more_each_than_few(rule, make, version):
    names = [Counted(f"g{i}") for i in range(500)]
    request = make(groups=[make.Group(group_id=name, topics=[]) for name in names])
    finish = by_rule(rule, request, version, (Op.DESCRIBE, G, None))
    answer = SimpleNamespace(
        groups=[SimpleNamespace(group_id=name, topics=[], error_code=0) for name in names]
    )
    Counted.compared = 0
    assert [group.group_id for group in finish(answer).groups] == names
    assert Counted.compared < 10 * len(names)


def test_many_topics_that_may_not_be_seen_cost_no_more_each_than_few():
    compared = 0

    class Topic(SimpleNamespace):
        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = None

    request = DescribeTopicPartitionsRequest(
        topics=[Topic(name=f"t{i}") for i in range(500)], response_partition_limit=1, cursor=None
    )
    answer = by_rule(access_topics.describe_topic_partitions, request, 0)
    assert len(answer.topics) == 500
    assert compared < 5_000


def create(*names):
    make = CreateTopicsRequest.Topic
    return CreateTopicsRequest(
        topics=[
            make(name=n, num_partitions=1, replication_factor=1, assignments=[], configs=[])
            for n in names
        ],
        timeout_ms=1000,
        validate_only=False,
    )


def made(name):
    make = CreateTopicsResponse.Topic
    config = make.Config(name="k", value="v", read_only=False, config_source=5, is_sensitive=False)
    return make(
        name=name, error_code=0, error_message=None, num_partitions=1, replication_factor=1,
        configs=[config],
    )  # fmt: skip


def test_configs_of_a_new_topic_are_for_who_may_describe_them():
    asked = alice(
        broker_with(), (Op.CREATE, T, "x"), (Op.CREATE, T, "y"), (Op.DESCRIBE_CONFIGS, T, "x")
    )
    asked.send(create("x", "y", "z"), 7)
    request, answer, _ = asked.broker.controller.submitted.popleft()
    assert [topic.name for topic in request.topics] == ["x", "y"]
    answer(CreateTopicsResponse(topics=[made("x"), made("y")]))
    x, y, z = asked.received(create(), 7).topics
    assert (x.num_partitions, len(x.configs), x.topic_config_error_code) == (1, 1, 0)
    assert (y.num_partitions, y.configs, y.topic_config_error_code) == (-1, None, 29)
    assert (z.name, z.error_code, z.error_message) == ("z", 29, "Authorization failed.")


def test_who_is_told_of_a_topic_that_is_not_deleted():
    asked = alice(
        broker_with("a", "b", "c"), (Op.DESCRIBE, T, "b"), (Op.DELETE, T, "c"),
        (Op.DESCRIBE, T, "c"), (Op.DESCRIBE, T, "no"),
    )  # fmt: skip
    make = DeleteTopicsRequest.Topic
    request = DeleteTopicsRequest(
        topics=[
            make(name=None, topic_id=A), make(name=None, topic_id=B),
            make(name=None, topic_id=b"?" * 16), make(name=None, topic_id=b"c" * 16),
            make(name="a", topic_id=ZERO_UUID), make(name="hidden", topic_id=ZERO_UUID),
            make(name="b", topic_id=ZERO_UUID), make(name="no", topic_id=ZERO_UUID),
        ],
        timeout_ms=1000,
    )  # fmt: skip
    asked.send(request, 6)
    passed_on, answer, context = asked.broker.controller.submitted.popleft()
    assert [topic.name or topic.topic_id for topic in passed_on.topics] == [
        b"?" * 16, b"c" * 16, "no",
    ]  # fmt: skip
    # The controller may know "no", and what has the id: made a moment ago, or not committed yet.
    assert [context.may_delete(name) for name in ("c", "no", "new")] == [True, False, False]
    answer(DeleteTopicsResponse(responses=[]))
    refused = asked.received(request, 6).responses
    assert {one.error_code for one in refused} == {29}
    assert sorted((one.name or "", one.topic_id) for one in refused) == sorted([
        ("", A), ("b", B), ("a", ZERO_UUID), ("hidden", ZERO_UUID), ("b", ZERO_UUID),
    ])  # fmt: skip


@pytest.mark.parametrize("name", ["no", None])
def test_what_this_node_does_not_know_yet_is_deleted_for_who_may_only(name):
    asked = alice(broker_with("a"), (Op.DESCRIBE, T, "no"))
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.Topic(name=name, topic_id=ZERO_UUID if name else B)],
        timeout_ms=1000,
    )
    asked.send(request, 6)
    [(_, _, context)] = asked.broker.controller.submitted
    assert not context.may_delete("no")


def test_configs_of_a_broker_are_refused_before_they_are_looked_at():
    """LK-3: Kafka answers 42 for the bad value, whoever asks."""
    make = IncrementalAlterConfigsRequest.Resource
    bad = make.Config(name="log.cleaner.threads", config_operation=0, value="many")
    request = IncrementalAlterConfigsRequest(
        resources=[make(resource_type=4, resource_name="1", configs=[bad])], validate_only=False
    )
    answer = alice(broker_with()).ask(request, 1)
    assert [one.error_code for one in answer.responses] == [31]


# ---- inside an envelope


def enveloped(inner, version, principal="User:alice"):
    return EnvelopeRequest(
        request_data=request_bytes(inner, version, 5)[4:],
        request_principal=principal_bytes(principal),
        client_host_address=bytes([127, 0, 0, 1]),
    )


def test_an_envelope_needs_cluster_action_and_its_sender_the_right():
    broker = broker_with(role="controller")
    asked = alice(broker, (Op.CREATE, T, "x"))
    answer = asked.ask(enveloped(create("x"), 7), 0)
    assert (answer.error_code, answer.response_data) == (31, None)
    assert not broker.controller.submitted
    asked = alice(broker, (Op.CREATE, T, "x"), (Op.CLUSTER_ACTION, C, None))
    asked.send(enveloped(create("x", "y"), 7), 0)
    request, complete, _ = broker.controller.submitted.popleft()
    assert [topic.name for topic in request.topics] == ["x"]
    complete(CreateTopicsResponse(topics=[made("x")]))
    answer = asked.received(enveloped(create(), 7), 0)
    assert answer.error_code == 0
    _, pos = decode_response_header(19, 7, answer.response_data)
    inner = CreateTopicsResponse.decode(answer.response_data, 7, pos)
    assert [(t.name, t.error_code) for t in inner.topics] == [("x", 0), ("y", 29)]


class OnlyBroker(Policy):
    """Everything for the broker that sends envelopes, nothing for who is inside."""

    def authorize(self, principal, host, operation, resource_type, name):
        self.asked.append((principal, host))
        return principal == "User:broker"


def test_who_is_inside_is_asked_about_not_who_sent_it():
    policy = OnlyBroker()
    asked = Asked(broker_with(role="controller"), policy)
    asked.channel.principal = "User:broker"
    request = EnvelopeRequest(
        request_data=request_bytes(create("x"), 7, 5)[4:],
        request_principal=principal_bytes("User:mallory"),
        client_host_address=bytes([10, 1, 2, 3]),
    )
    answer = asked.ask(request, 0)
    _, pos = decode_response_header(19, 7, answer.response_data)
    inner = CreateTopicsResponse.decode(answer.response_data, 7, pos)
    assert [t.error_code for t in inner.topics] == [29]
    assert ("User:mallory", "10.1.2.3") in policy.asked


# ---- the audit log


def test_a_refusal_is_a_short_line_however_long_a_name_is(caplog):
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    alice(broker_with("a")).ask(metadata("x" * 30_000), 9)
    [line] = [r.getMessage() for r in caplog.records if r.name == "kafka.authorizer.logger"]
    assert len(line) < 500


def test_a_refusal_is_a_line_whatever_things_are_called(caplog):
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    asked = alice(broker_with("a"))
    asked.ask(metadata("bad\nname"), 9)
    asked.ask(metadata(None), 9)
    [line] = [r.getMessage() for r in caplog.records if r.name == "kafka.authorizer.logger"]
    assert line == (
        "Principal = User:alice is Denied operation = DESCRIBE from host = 127.0.0.1"
        " on resource = TOPIC:LITERAL:bad\\nname for request = Metadata"
    )


def test_what_one_request_writes_is_bounded_and_the_rest_counted(caplog):
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    metadata_api = apis_of("broker")[3]
    api = GuardedApi(metadata_api, lambda access, _request: With(access.may), Policy(()))
    context = SimpleNamespace(principal="User:alice", peer_host="127.0.0.1", api=api)

    def handle(_ctx, _request, may):
        return [may(Op.READ, T, f"t{n}") for n in range(103)]

    assert not any(api.prepared(handle)(context, None))
    lines = [r.getMessage() for r in caplog.records if r.name == "kafka.authorizer.logger"]
    assert len(lines) == 101
    assert lines[-1] == (
        "Principal = User:alice is Denied 3 times more from host = 127.0.0.1 for request = Metadata"
    )
