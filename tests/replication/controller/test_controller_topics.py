"""CreateTopics, DeleteTopics, CreatePartitions, as clients see them."""

from __future__ import annotations

from typing import Any

import pytest

from replication.controller import placement
from replication.metadata.topic_names import check_topic_name
from tests.replication.controller_support import Cluster, errors_of, new_topic
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import CreatePartitionsRequest, DeleteTopicsRequest
from wire.primitives import ZERO_UUID


@pytest.fixture
def one() -> Cluster:
    made = Cluster()
    made.start_broker()
    return made


@pytest.fixture
def three() -> Cluster:
    made = Cluster()
    for broker_id in (1, 2, 3):
        made.start_broker(broker_id)
    return made


def deletion(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.Topic(name=name, topic_id=ZERO_UUID) for name in names],
        timeout_ms=1000,
    )


def by_id(*ids: bytes) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.Topic(name=None, topic_id=i) for i in ids], timeout_ms=1000
    )


# --- create -------------------------------------------------------------------------------------


def test_a_topic_gets_an_id_a_leader_and_epochs_from_zero(one: Cluster) -> None:
    response = one.create_topics(new_topic("orders", 2, 1, {"retention.ms": "1000"}))
    (result,) = response.topics
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)
    topic = one.image.topics_by_name["orders"]
    assert topic.topic_id == result.topic_id != ZERO_UUID
    partition = one.partition("orders", 1)
    assert (partition.leader, partition.isr, partition.replicas) == (1, (1,), (1,))
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert partition.directories == one.image.brokers[1].directories
    assert one.image.config(2, "orders") == {"retention.ms": "1000"}


def test_the_answer_lists_configs_from_version_five_on(one: Cluster) -> None:
    request = new_topic("a", 1, 1, {"retention.ms": "7"})
    (config,) = one.create_topics(request, version=5).topics[0].configs
    assert (config.name, config.value, config.config_source) == ("retention.ms", "7", 1)
    assert one.create_topics(new_topic("b", 1, 1), version=4).topics[0].configs == []


def test_configs_are_worked_out_once_for_all_topics_that_have_the_same(
    one: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []
    found = one.schema.topic_configs

    def counted(overrides: dict[str, str], *layers: Any) -> Any:
        asked.append(overrides)
        return found(overrides, *layers)

    monkeypatch.setattr(one.schema, "topic_configs", counted)
    long, short = {"retention.ms": "9"}, {"retention.ms": "1"}
    wanted = [long, short, long, {}, {}, short]
    topics = one.create_topics(
        *(new_topic(f"topic-{number}", 1, 1, values) for number, values in enumerate(wanted))
    ).topics
    values = [(config.value, config.config_source) for t in topics for config in t.configs]
    assert values == [("9", 1), ("1", 1), ("9", 1), ("604800000", 5), ("604800000", 5), ("1", 1)]
    assert asked == [long, short, {}]


def test_minus_one_takes_the_brokers_defaults() -> None:
    made = Cluster(num_partitions=3, default_replication_factor=2)
    made.start_broker(1)
    made.start_broker(2)
    made.create("orders", -1, -1)
    assert len(made.image.topics_by_name["orders"].partitions) == 3
    assert len(made.partition("orders").replicas) == 2


def test_replicas_are_spread_by_partition_number(three: Cluster) -> None:
    three.create("orders", 4, 3)
    found = [three.partition("orders", index).replicas for index in range(4)]
    assert found == [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3)]
    three.create_partitions(CreatePartitionsRequest.Topic(name="orders", count=5, assignments=None))
    assert three.partition("orders", 4).replicas == (2, 3, 1)


def test_racks_of_different_sizes_each_hold_a_replica() -> None:
    made = Cluster()
    racks = {1: "a", 2: "a", 3: "b", 4: "a", 5: "c"}
    for broker_id, rack in racks.items():
        made.start_broker(broker_id, rack=rack)
    for number in range(6):
        made.create(f"t{number}", 10, 3)
        for index in range(10):
            replicas = made.partition(f"t{number}", index).replicas
            assert {racks[r] for r in replicas} == {"a", "b", "c"}
    made.create("wide", 5, 5)
    assert all(set(made.partition("wide", index).replicas) == set(racks) for index in range(5))


def test_fenced_brokers_are_taken_from_racks_that_have_no_replica_yet() -> None:
    made = Cluster()
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    for broker_id, rack in racks.items():
        made.start_broker(broker_id, rack=rack)
    for broker_id in (2, 4, 5, 6):
        made.heartbeat(broker_id, want_fence=True)
    for factor, most_in_a_rack in ((3, 1), (4, 2), (5, 2)):
        made.create(f"of-{factor}", 12, factor)
        for index in range(12):
            replicas = made.partition(f"of-{factor}", index).replicas
            assert set(replicas[:2]) == {1, 3}, "those that are active come first"
            found = [racks[replica] for replica in replicas]
            assert max(found.count(rack) for rack in "abc") == most_in_a_rack


def test_leaders_are_spread_over_the_brokers_also_of_topics_with_one_partition() -> None:
    made = Cluster()
    for broker_id in (1, 2, 3, 4, 5):
        made.start_broker(broker_id)
    for number in range(40):
        made.create(f"t{number}", 1, 3)
    leaders = [made.partition(f"t{number}").leader for number in range(40)]
    assert all(leaders.count(broker_id) == 8 for broker_id in range(1, 6))
    made.heartbeat(2, want_fence=True)
    heirs = {made.partition(f"t{n}").leader for n in range(40) if leaders[n] == 2}
    assert heirs == {1, 3, 4, 5}, "what a dead broker led goes to all others"


def test_racks_take_turns() -> None:
    made = Cluster()
    for broker_id, rack in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        made.start_broker(broker_id, rack=rack)
    made.create("orders", 2, 2)
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    for index in (0, 1):
        assert {racks[r] for r in made.partition("orders", index).replicas} == {"a", "b"}


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_impossible_counts_are_refused(
    one: Cluster, partitions: int, factor: int, code: ErrorCode
) -> None:
    assert errors_of(one.create_topics(new_topic("t", partitions, factor))) == [("t", code)]
    assert one.image.topics_by_name == {}


def test_a_broker_whose_directories_are_all_cordoned_gets_no_new_replica(three: Cluster) -> None:
    """An Apache Kafka broker says so in its heartbeats (KIP-1066)."""
    own = list(three.image.brokers[2].directories)
    three.heartbeat(2, cordoned_log_dirs=own)
    three.create("orders", 6, 2)
    partitions = three.image.topics_by_name["orders"].partitions.values()
    assert {broker_id for one in partitions for broker_id in one.replicas} == {1, 3}
    answer = three.create_topics(new_topic("payments", 1, 3))
    assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    three.heartbeat(2, cordoned_log_dirs=[])
    three.create("payments", 1, 3)


def test_without_an_active_broker_nothing_can_be_placed() -> None:
    made = Cluster()
    made.register()
    (result,) = made.create_topics(new_topic("t", 1, 1)).topics
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "fenced" in result.error_message


def test_a_broker_that_was_shut_down_takes_replicas_and_one_on_its_way_out_does_not() -> None:
    """It will be back, as after a crash: topics can be created while brokers restart in turn."""
    made = Cluster()
    for broker_id in (1, 2):
        made.start_broker(broker_id)
    made.create_topics(new_topic("led", assignments={0: [1, 2]}))
    assert not made.heartbeat(1, want_shut_down=True).should_shut_down
    (refused,) = made.create_topics(new_topic("soon", 1, 2)).topics
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    made.heartbeat(2)
    assert made.heartbeat(1, want_shut_down=True).should_shut_down
    (created,) = made.create_topics(new_topic("now", 1, 2)).topics
    assert created.error_code == ErrorCode.NONE
    assert (made.partition("now").replicas, made.partition("now").isr) == ((2, 1), (2,))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250, "a\u0000", "new\nline"]
)
def test_illegal_names_are_refused(one: Cluster, name: str) -> None:
    response = one.create_topics(new_topic(name, 1, 1))
    assert errors_of(response) == [(name, ErrorCode.INVALID_TOPIC_EXCEPTION)]


def test_a_name_of_249_characters_is_legal() -> None:
    check_topic_name("x" * 249)
    with pytest.raises(KafkaError):
        check_topic_name("x" * 250)


def test_names_that_differ_in_dot_and_underscore_collide(one: Cluster) -> None:
    one.create("my.topic")
    response = one.create_topics(new_topic("my_topic", 1, 1), new_topic("my.topic", 1, 1))
    assert errors_of(response) == [
        ("my_topic", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("my.topic", ErrorCode.TOPIC_ALREADY_EXISTS),
    ]
    both = one.create_topics(new_topic("x.y", 1, 1), new_topic("x_y", 1, 1))
    assert errors_of(both) == [("x.y", 0), ("x_y", 0)], "Kafka looks at existing topics only"


def test_topics_of_one_request_fail_alone(one: Cluster) -> None:
    response = one.create_topics(
        new_topic("good", 1, 1), new_topic("bad", 0, 1), new_topic("twice", 1, 1),
        new_topic("also", 1, 1), new_topic("twice", 2, 1), new_topic("__cluster_metadata", 1, 1),
    )  # fmt: skip
    assert errors_of(response) == [
        ("good", 0), ("bad", ErrorCode.INVALID_PARTITIONS), ("also", 0),
        ("__cluster_metadata", ErrorCode.INVALID_REQUEST),
        ("twice", ErrorCode.INVALID_REQUEST),
    ]  # fmt: skip
    assert sorted(one.image.topics_by_name) == ["also", "good"]


def test_validate_only_answers_as_if_and_changes_nothing(one: Cluster) -> None:
    response = one.create_topics(new_topic("a", 2, 1), validate_only=True)
    assert response.topics[0].num_partitions == 2
    assert one.image.topics_by_name == {}


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ({"no.such.key": "1"}, ErrorCode.INVALID_CONFIG),
        ({"retention.ms": None}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_bad_configs_refuse_the_topic(
    one: Cluster, values: dict[str, str | None], code: ErrorCode
) -> None:
    response = one.create_topics(new_topic("t", 1, 1, values))
    assert errors_of(response) == [("t", code)]
    assert one.image.topics_by_name == {}


def test_a_manual_assignment_is_obeyed(three: Cluster) -> None:
    response = three.create_topics(new_topic("t", assignments={1: [3, 1], 0: [2, 3]}))
    assert (response.topics[0].num_partitions, response.topics[0].replication_factor) == (2, 2)
    assert three.partition("t", 0).replicas == (2, 3)
    assert three.partition("t", 1).leader == 3


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        ({0: []}, "empty replica list"),
        ({0: [1, 9]}, "no such broker"),
        ({0: [1, 1]}, "more than once"),
        ({0: [1], 1: [1, 2]}, "not consistent"),
        ({1: [1]}, "consecutive"),
        ({0: [4]}, "fenced"),
    ],
)
def test_bad_assignments_are_refused(
    three: Cluster, assignments: dict[int, list[int]], text: str
) -> None:
    three.register(4)
    (result,) = three.create_topics(new_topic("t", assignments=assignments)).topics
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert text in result.error_message


def test_counts_beside_an_assignment_are_refused(three: Cluster) -> None:
    for partitions, factor in ((1, -1), (-1, 1)):
        request = new_topic("t", partitions, factor, assignments={0: [1]})
        assert errors_of(three.create_topics(request)) == [("t", ErrorCode.INVALID_REQUEST)]


def test_a_request_asks_for_at_most_ten_thousand_partitions(one: Cluster) -> None:
    for topics in (
        [new_topic("huge", 20_000, 1)],
        [new_topic("small", 1, 1), new_topic("big", 10_000, 1)],
        [new_topic("small", 1, 1), new_topic("impossible", 10_000, 2)],
    ):
        with pytest.raises(KafkaError) as refused:
            one.create_topics(*topics)
        assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert not one.image.topics_by_name
    twice = [new_topic("twice", 10_000, 1)] * 2
    assert errors_of(one.create_topics(new_topic("big", 9_999, 1), *twice)) == [
        ("big", 0), ("twice", ErrorCode.INVALID_REQUEST)
    ]  # fmt: skip


def test_a_request_writes_at_most_ten_thousand_records(one: Cluster) -> None:
    response = one.create_topics(new_topic("big", 9_998, 1), new_topic("small", 1, 1))
    assert errors_of(response) == [("big", 0), ("small", ErrorCode.POLICY_VIOLATION)]


def test_what_is_refused_is_not_placed_first(one: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placing partitions takes time in which nobody else is served: a request for billions of them,
    refused topic by topic, must not be worked through."""
    names = [f"topic-{number}" for number in range(20)]
    one.create_topics(*(new_topic(name, 1, 1) for name in names))
    placed: list[int] = []
    place = placement.place

    def counted(image: Any, first: int, count: int, *rest: Any) -> Any:
        placed.append(count)
        return place(image, first, count, *rest)

    monkeypatch.setattr(placement, "place", counted)
    response = one.create_partitions(*(more(name, 9_000) for name in names))
    assert [topic.error_code for topic in response.results] == [0] + [
        ErrorCode.POLICY_VIOLATION
    ] * 19
    with pytest.raises(KafkaError):
        one.create_topics(*(new_topic(f"new-{name}", 9_000, 1) for name in names))
    assert sum(placed) <= 10_000


# --- delete -------------------------------------------------------------------------------------


def test_topics_are_deleted_by_name_and_by_id(one: Cluster) -> None:
    one.create("a")
    one.create("b")
    b = one.image.topics_by_name["b"].topic_id
    (gone,) = one.delete_topics(deletion("a")).responses
    assert (gone.name, gone.error_code) == ("a", 0)
    (gone,) = one.delete_topics(by_id(b)).responses
    assert (gone.name, gone.topic_id, gone.error_code) == ("b", b, 0)
    assert one.image.topics_by_name == {}


def test_older_versions_name_topics_in_another_field(one: Cluster) -> None:
    one.create("a")
    request = DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1000)
    assert errors_of(one.delete_topics(request, version=3)) == [
        ("a", 0),
        ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("by_name_first", [True, False])
def test_a_topic_named_by_both_name_and_id_is_answered_once_and_stays(
    one: Cluster, by_name_first: bool
) -> None:
    one.create("a")
    a = one.image.topics_by_name["a"].topic_id
    both = [("a", ZERO_UUID), (None, a)]
    request = DeleteTopicsRequest(
        topics=[
            DeleteTopicsRequest.Topic(name=name, topic_id=topic_id)
            for name, topic_id in (both if by_name_first else both[::-1])
        ],
        timeout_ms=1000,
    )
    assert errors_of(one.delete_topics(request)) == [("a", ErrorCode.INVALID_REQUEST)]
    assert "a" in one.image.topics_by_name


def test_deletions_that_cannot_be_are_named_one_by_one(one: Cluster) -> None:
    one.create("a")
    one.create("b")
    a = one.image.topics_by_name["a"].topic_id
    request = DeleteTopicsRequest(
        topics=[
            DeleteTopicsRequest.Topic(name=name, topic_id=topic_id)
            for name, topic_id in (
                ("nope", ZERO_UUID), (None, b"\x77" * 16), (None, ZERO_UUID), ("b", a),
                ("a", ZERO_UUID), (None, a), ("b", ZERO_UUID), ("b", ZERO_UUID),
            )
        ],
        timeout_ms=1000,
    )  # fmt: skip
    assert errors_of(one.delete_topics(request)) == [
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (None, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, ErrorCode.INVALID_REQUEST), ("b", ErrorCode.INVALID_REQUEST),
        ("a", ErrorCode.INVALID_REQUEST), ("b", ErrorCode.INVALID_REQUEST),
    ]  # fmt: skip
    assert list(one.image.topics_by_name) == ["a", "b"]


def test_a_topic_is_deleted_for_who_may_though_the_node_that_asked_did_not_know_it(
    one: Cluster,
) -> None:
    for name in ("mine", "theirs", "others"):
        one.create(name)
    others = one.image.topics_by_name["others"].topic_id
    wanted = [("mine", ZERO_UUID), ("theirs", ZERO_UUID), (None, others), ("no", ZERO_UUID)]
    make = DeleteTopicsRequest.Topic
    request = DeleteTopicsRequest(
        topics=[make(name=name, topic_id=topic_id) for name, topic_id in wanted], timeout_ms=1000
    )
    answer = one.delete_topics(request, may_delete=lambda name: name == "mine")
    assert errors_of(answer) == [
        ("mine", 0),
        ("theirs", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert list(one.image.topics_by_name) == ["theirs", "others"]


def test_deletion_may_be_switched_off() -> None:
    made = Cluster(delete_topic_enable=False)
    for version, code in ((2, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)):
        with pytest.raises(KafkaError) as refused:
            made.delete_topics(deletion("a"), version)
        assert refused.value.code == code


def test_a_topic_made_again_has_another_id_and_no_old_configs(one: Cluster) -> None:
    one.create("a", retention_ms="5")
    first = one.image.topics_by_name["a"].topic_id
    one.delete_topics(deletion("a"))
    one.create("a")
    assert one.image.topics_by_name["a"].topic_id != first
    assert one.image.config(2, "a") == {}


# --- create partitions --------------------------------------------------------------------------


def more(name: str, count: int, *assignments: list[int]) -> CreatePartitionsRequest.Topic:
    listed = [CreatePartitionsRequest.Topic.Assignment(broker_ids=ids) for ids in assignments]
    return CreatePartitionsRequest.Topic(name=name, count=count, assignments=listed or None)


def test_every_topic_is_answered_and_each_fails_alone(three: Cluster) -> None:
    three.create("a", 2, 2)
    three.create("b", 1, 1)
    response = three.create_partitions(
        more("a", 4), more("b", 1), more("b2", 3), more("b", 3, [2], [3])
    )
    assert errors_of(response) == [
        ("a", 0), ("b", ErrorCode.INVALID_REQUEST), ("b2", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]  # fmt: skip
    assert len(three.image.topics_by_name["a"].partitions) == 4
    assert len(three.partition("a", 3).replicas) == 2


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (more("a", 2), ErrorCode.INVALID_PARTITIONS),
        (more("a", 1), ErrorCode.INVALID_PARTITIONS),
        (more("a", -1), ErrorCode.INVALID_PARTITIONS),
        (more("a", 4, [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("a", 3, [1, 2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("a", 3, [9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("a", 20_000), ErrorCode.POLICY_VIOLATION),
    ],
)
def test_extensions_that_cannot_be(
    three: Cluster, wanted: CreatePartitionsRequest.Topic, code: ErrorCode
) -> None:
    three.create("a", 2, 1)
    assert errors_of(three.create_partitions(wanted)) == [("a", code)]
    assert len(three.image.topics_by_name["a"].partitions) == 2


def test_validate_only_extends_nothing(three: Cluster) -> None:
    three.create("a", 1, 1)
    assert errors_of(three.create_partitions(more("a", 3), validate_only=True)) == [("a", 0)]
    assert len(three.image.topics_by_name["a"].partitions) == 1


def test_new_partitions_take_a_chosen_assignment(three: Cluster) -> None:
    three.create("a", 1, 2)
    three.create_partitions(more("a", 2, [3, 2]))
    assert three.partition("a", 1).replicas == (3, 2)
