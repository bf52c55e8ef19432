"""Metadata and DescribeTopicPartitions, as clients see them."""

from __future__ import annotations

from itertools import cycle
from types import SimpleNamespace

import pytest

from server.handlers import metadata as handlers
from server.handlers.cluster import ALL_CLUSTER_OPERATIONS
from server.handlers.metadata import ALL_TOPIC_OPERATIONS
from tests.server.handler_support import (
    CLOSED,
    TOPIC_ID,
    UNKNOWN_OPERATIONS,
    Asked,
    FakeBroker,
    broker_registration,
    connected,
    image_of,
    metadata_of_all,
    only_inside,
    topic_image,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import CreateTopicsResponse
from wire.messages.cluster import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)

OTHER_ID = b"o" * 16


# ---- Metadata


def metadata(names=None, **more):
    topics = None if names is None else [MetadataRequest.Topic(name=n) for n in names]
    return MetadataRequest(topics=topics, **more)


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_a_topic_in_every_version(version):
    answer = connected(topic_image("t", 3)).ask(metadata(["t"]), version)
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.9.9.9", 4711), "as dialled"
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "t", False)
    assert [p.partition_index for p in topic.partitions] == [0, 1, 2]
    partition = topic.partitions[0]
    assert (partition.error_code, partition.leader_id) == (0, 1)
    assert (partition.replica_nodes, partition.isr_nodes) == ([1], [1])
    if version >= 1:
        assert answer.controller_id == 1
    if version >= 2:
        assert answer.cluster_id == "cluster-of-tests-01"
    if version >= 7:
        assert partition.leader_epoch == 4
    if version >= 8:
        assert topic.topic_authorized_operations == UNKNOWN_OPERATIONS
    if version >= 10:
        assert topic.topic_id == TOPIC_ID


def test_metadata_of_many_partitions_is_costly():
    """All of 5,000 partitions took 50 ms of the network thread."""
    small, large = topic_image("small", 250), topic_image("large", 257, topic_id=OTHER_ID)

    def is_costly(request, version=12, topics=(small, large)):
        ctx = SimpleNamespace(api_version=version, broker=FakeBroker(image_of(*topics)))
        return handlers.metadata_is_costly(ctx, request)

    assert not is_costly(metadata(None), topics=[small])
    assert is_costly(metadata(None))
    assert is_costly(metadata([]), version=0)
    assert not is_costly(metadata([]))
    assert not is_costly(metadata(["small", "absent"]))
    assert is_costly(metadata(["large"]))
    by_id = [MetadataRequest.Topic(name=None, topic_id=id_) for id_ in (OTHER_ID, b"?" * 16)]
    assert is_costly(MetadataRequest(topics=by_id))
    without_partitions = [
        topic_image(f"t{n}", 0, topic_id=bytes([n // 256, n % 256] * 8)) for n in range(257)
    ]
    assert is_costly(metadata(None), topics=without_partitions)


def test_null_and_empty_topics_mean_all_or_none_by_version():
    asked = connected(topic_image("b"), topic_image("a", topic_id=OTHER_ID))
    for version in range(1, 14):
        assert [t.name for t in asked.ask(metadata(None), version).topics] == ["a", "b"]
        assert asked.ask(metadata([]), version).topics == []
    assert [t.name for t in asked.ask(metadata([]), 0).topics] == ["a", "b"]


def test_authorized_operations_are_all_there_are_when_asked_for():
    request = metadata(
        ["t", "absent", "a/b"],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    answer = connected(topic_image("t")).ask(request, 10)
    assert answer.cluster_authorized_operations == ALL_CLUSTER_OPERATIONS == 8096
    assert {t.topic_authorized_operations for t in answer.topics} == {ALL_TOPIC_OPERATIONS}
    assert ALL_TOPIC_OPERATIONS == 3576


def test_metadata_by_topic_id():
    asked = connected(topic_image("t"))
    request = MetadataRequest(
        topics=[
            MetadataRequest.Topic(topic_id=TOPIC_ID, name=None),
            MetadataRequest.Topic(topic_id=OTHER_ID, name=None),
        ]
    )
    known, unknown = asked.ask(request, 12).topics
    assert (known.name, known.error_code, len(known.partitions)) == ("t", 0, 1)
    assert (unknown.name, unknown.topic_id) == (None, OTHER_ID)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    refused = asked.ask(request, 11)
    assert {t.error_code for t in refused.topics} == {ErrorCode.INVALID_REQUEST}


def test_a_partition_without_leader_is_leader_not_available():
    answer = connected(topic_image("t", leader=-1)).ask(metadata(["t"]), 12)
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def test_fenced_brokers_are_not_shown_and_their_replicas_are_offline():
    topic = topic_image("t")
    topic.partitions[0].replicas = (1, 2)
    topic.partitions[0].directories = (bytes(16),) * 2
    brokers = [broker_registration(1), broker_registration(2, fenced=True)]
    answer = connected(topic, brokers=brokers).ask(metadata(["t"]), 12)
    assert [b.node_id for b in answer.brokers] == [1]
    assert answer.topics[0].partitions[0].offline_replicas == [2]


@pytest.mark.parametrize(
    ("leader", "version", "shown"),
    [
        (1, 0, (ErrorCode.REPLICA_NOT_AVAILABLE, [1], [1])),
        (2, 0, (ErrorCode.LEADER_NOT_AVAILABLE, [1], [1])),
        (1, 1, (ErrorCode.NONE, [1, 2], [1, 2])),
    ],
)
def test_version_0_leaves_out_replicas_on_brokers_that_are_not_named(leader, version, shown):
    topic = topic_image("t", leader=leader)
    partition = topic.partitions[0]
    partition.replicas = partition.isr = (1, 2)
    partition.directories = (bytes(16),) * 2
    brokers = [broker_registration(1), broker_registration(2, fenced=True)]
    (found,) = connected(topic, brokers=brokers).ask(metadata(["t"]), version).topics[0].partitions
    assert (found.error_code, found.replica_nodes, found.isr_nodes) == shown


def test_a_replica_in_a_directory_that_failed_is_offline():
    good, failed = b"\x71" * 16, b"\x72" * 16
    topic = topic_image("t")
    topic.partitions[0].replicas, topic.partitions[0].directories = (1, 2), (good, failed)
    brokers = [broker_registration(1), broker_registration(2)]
    for broker in brokers:
        broker.directories = (good,)
    asked = connected(topic, brokers=brokers)
    assert asked.ask(metadata(["t"]), 12).topics[0].partitions[0].offline_replicas == [2]
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.Topic(name="t")]
    )
    assert asked.ask(request, 0).topics[0].partitions[0].offline_replicas == [2]


def test_other_brokers_are_named_by_what_they_registered():
    brokers = [broker_registration(1), broker_registration(2, rack="r")]
    answer = connected(brokers=brokers).ask(metadata([]), 12)
    assert [(b.node_id, b.host, b.rack) for b in answer.brokers] == [
        (1, "127.9.9.9", None),
        (2, "host-2", "r"),
    ]


class ReplacedMidway(FakeBroker):
    """Its metadata is another at each look."""

    def __init__(self, *images):
        super().__init__(images[0])
        self.images = cycle(images)

    metadata = property(lambda self: next(self.images), lambda self, image: None)


@pytest.mark.parametrize("of_id", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_an_answer_is_of_one_image_though_another_comes_meanwhile(first, of_id):
    """A topic is made again under its name, and a broker with a replica is unregistered."""
    old, new = topic_image("t"), topic_image("t", topic_id=OTHER_ID)
    for topic in (old, new):
        topic.partitions[0].replicas = (1, 2)
        topic.partitions[0].directories = (bytes(16),) * 2
    brokers = [broker_registration(1), broker_registration(2)]
    images = [image_of(old, brokers=brokers), image_of(new, brokers=brokers[:1])]
    asked = Asked(ReplacedMidway(*images[first:], *images[:first]))
    request = metadata(["t"])
    if of_id:
        request.topics = [MetadataRequest.Topic(topic_id=TOPIC_ID, name=None)]
    answer = asked.ask(request, 12)
    (topic,) = answer.topics
    found = (topic.topic_id, [b.node_id for b in answer.brokers])
    if topic.error_code:
        assert (topic.error_code, found) == (ErrorCode.UNKNOWN_TOPIC_ID, (TOPIC_ID, [1]))
        return
    offline = topic.partitions[0].offline_replicas
    assert (found, offline) in [((TOPIC_ID, [1, 2]), []), ((OTHER_ID, [1]), [2])]
    assert not of_id or topic.topic_id == TOPIC_ID


def test_internal_topics_are_marked():
    answer = connected(topic_image("__consumer_offsets")).ask(metadata(["__consumer_offsets"]), 5)
    assert answer.topics[0].is_internal


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "ü", "../x"])
def test_impossible_names_are_invalid_and_never_created(name):
    asked = connected()
    answer = asked.ask(metadata([name]), 12)
    assert [t.error_code for t in answer.topics] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert not asked.broker.controller.submitted


@pytest.mark.parametrize("reason", ["request", "config", "internal"])
def test_a_missing_topic_is_not_created_unless_all_agree(reason):
    asked = connected()
    name = "__transaction_state" if reason == "internal" else "new"
    asked.broker.config["auto.create.topics.enable"] = reason != "config"
    answer = asked.ask(metadata([name], allow_auto_topic_creation=reason != "request"), 12)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not asked.broker.controller.submitted


def test_a_topic_is_created_as_this_broker_was_told_to():
    """num.partitions of a broker's own file counts, not that of the controller's."""
    asked = connected()
    asked.broker.config |= {"num.partitions": "6", "default.replication.factor": "3"}
    assert asked.ask(metadata(["new"]), 12) is None
    created, _, _ = asked.broker.controller.submitted.popleft()
    assert [(t.num_partitions, t.replication_factor) for t in created.topics] == [(6, 3)]


def create_answer(name, code=0):
    return CreateTopicsResponse(
        topics=[CreateTopicsResponse.Topic(name=name, error_code=code, error_message=None)]
    )


@pytest.mark.parametrize("version", [0, 3, 4, 13])
def test_a_missing_topic_is_unknown_until_it_is_asked_for_again(version):
    asked = connected(topic_image("old"))
    request = metadata(["old", "new", "bad name"])
    assert asked.ask(request, version) is None
    created, on_complete, context = asked.broker.controller.submitted.popleft()
    (topic,) = created.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", -1, -1)
    assert context.client_id == "test"
    asked.broker.metadata = image_of(topic_image("old"), topic_image("new", 2, OTHER_ID))
    on_complete(create_answer("new"))
    answer = asked.received(request, version)
    assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [
        ("old", 0, 1),
        ("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]
    again = asked.ask(metadata(["new"]), version)
    assert [(t.error_code, len(t.partitions)) for t in again.topics] == [(0, 2)]


def test_a_topic_that_cannot_be_created_is_unknown():
    for outcome in (
        create_answer("new", ErrorCode.INVALID_REPLICATION_FACTOR),
        KafkaError(ErrorCode.NOT_CONTROLLER),
    ):
        asked = connected()
        asked.ask(metadata(["new"]), 12)
        asked.broker.controller.submitted.popleft()[1](outcome)
        (topic,) = asked.received(metadata(["new"]), 12).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_creation_that_takes_too_long_is_answered_once():
    asked = connected()
    request = metadata(["new"])
    asked.ask(request, 12)
    (expire,) = asked.broker.timer.due
    expire()
    answer = asked.received(request, 12)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked.broker.controller.submitted.popleft()[1](create_answer("new"))
    assert asked.received(request, 12) is None


def test_a_name_that_is_asked_for_twice_is_answered_once():
    assert len(connected(topic_image("t")).ask(metadata(["t", "t"]), 12).topics) == 1


@pytest.mark.parametrize(("version", "code"), [(5, 5), (6, 72), (13, 72)])
def test_a_leader_without_this_listener_is_named_unreachable(version, code):
    asked = connected(topic_image("t", leader=2), brokers=[broker_registration(1), only_inside(2)])
    answer = asked.ask(metadata_of_all(), version)
    assert [b.node_id for b in answer.brokers] == [1]
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (code, -1)


# ---- DescribeTopicPartitions


def described(names=(), limit=2000, cursor=None):
    return DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.Topic(name=n) for n in names],
        response_partition_limit=limit,
        cursor=cursor and DescribeTopicPartitionsRequest.Cursor(
            topic_name=cursor[0], partition_index=cursor[1]
        ),
    )  # fmt: skip


def shape(answer):
    return [
        (t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in answer.topics
    ]


def test_topics_are_described_by_name_in_order_and_unknown_ones_named():
    asked = connected(topic_image("b", 2), topic_image("a", 1, OTHER_ID))
    answer = asked.ask(described(["b", "x", "a", "a"]), 0)
    assert shape(answer) == [("a", 0, [0]), ("b", 0, [0, 1]), ("x", 3, [])]
    assert answer.next_cursor is None
    assert answer.topics[1].topic_id == TOPIC_ID
    assert {t.topic_authorized_operations for t in answer.topics} == {ALL_TOPIC_OPERATIONS}
    assert shape(asked.ask(described(["a/b", ""]), 0)) == [("", 17, []), ("a/b", 17, [])]
    assert shape(asked.ask(described(), 0)) == [("a", 0, [0]), ("b", 0, [0, 1])]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("by", ["client", "broker"])
def test_paging_visits_each_partition_once(limit, by):
    sizes = {"a": 3, "b": 1, "c": 5, "d": 2}
    topics = [topic_image(n, size, n.encode() * 16) for n, size in sizes.items()]
    asked = connected(*topics)
    if by == "broker":
        asked.broker.config["max.request.partition.size.limit"] = limit
    seen, cursor = [], None
    while True:
        answer = asked.ask(described((), limit if by == "client" else 2000, cursor), 0)
        page = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        assert 1 <= len(page) <= limit
        seen += page
        if answer.next_cursor is None:
            break
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert seen == [(n, i) for n, size in sizes.items() for i in range(size)]


def test_a_cursor_at_a_deleted_topic_goes_on_with_the_next():
    asked = connected(topic_image("a"), topic_image("c", topic_id=OTHER_ID))
    assert shape(asked.ask(described(cursor=("b", 7)), 0)) == [("c", 0, [0])]


@pytest.mark.parametrize(("topic", "code"), [("b", None), ("x", 3), ("c", 42)])
def test_a_cursor_is_at_one_of_the_topics_asked_for(topic, code):
    asked = connected(topic_image("a"), topic_image("b", topic_id=OTHER_ID))
    answer = asked.ask(described(["b", "x"], cursor=(topic, 0)), 0)
    assert {t.error_code for t in answer.topics} == ({0, 3} if code is None else {code})


def test_a_negative_cursor_is_refused_and_a_limit_below_one_is_one():
    asked = connected(topic_image("a", 2))
    refused = asked.ask(described(["a"], cursor=("a", -1)), 0)
    assert [t.error_code for t in refused.topics] == [ErrorCode.INVALID_REQUEST]
    assert shape(asked.ask(described(["a"], limit=-5), 0)) == [("a", 0, [0])]
    assert asked.ask(described(["a"]), 0) is not CLOSED
