"""Whatever is asked in whatever order: the log says the same as the controller's memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replication.controller import cluster
from replication.metadata import EMPTY_IMAGE, MetadataImage, image_records
from tests.replication.controller_support import Cluster, new_topic, replayed
from wire.errors import KafkaError
from wire.messages.admin import (
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)

NAMES = ("a", "b.c", "b_c", "orders")


def ask(made: Cluster, choice: tuple[str, int, int]) -> None:
    """One request; `number` and `other` pick its content. Refusals are part of the game."""
    kind, number, other = choice
    name = NAMES[number % len(NAMES)]
    broker_id = number % 3 + 1
    made.now_ms += other * 1_500
    with suppress(KafkaError, KeyError):
        _ASK[kind](made, name, broker_id, other)


def _create(made: Cluster, name: str, broker_id: int, other: int) -> None:
    configs = {"unclean.leader.election.enable": "true"} if other == 1 else {}
    made.create_topics(new_topic(name, other, broker_id, configs))


def _delete(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.delete_topics(DeleteTopicsRequest(topic_names=[name], timeout_ms=1), version=5)


def _extend(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.create_partitions(
        CreatePartitionsRequest.Topic(name=name, count=other + 1, assignments=None)
    )


def _configure(made: Cluster, name: str, broker_id: int, other: int) -> None:
    resource = IncrementalAlterConfigsRequest.Resource
    entry = resource.Config(
        name=("retention.ms", "cleanup.policy")[other % 2], config_operation=other,
        value=None if other == 1 else "3",
    )  # fmt: skip
    made.incremental_alter(resource(resource_type=2, resource_name=name, configs=[entry]))


def _register(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.register(broker_id, incarnation=other + 1, clean=other % 2 == 0)


def _heartbeat(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.heartbeat(broker_id, want_fence=other == 3, want_shut_down=other == 2)


def _expire(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.apply(cluster.fence_stale_broker(made.image, made.sessions, made.config, made.now_ms))


def _unregister(made: Cluster, name: str, broker_id: int, other: int) -> None:
    if other == 0:
        made.apply(cluster.unregister_broker(made.image, made.config, broker_id))
        made.sessions.remove(broker_id)


def _elect(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.elect(other % 2, None)


def _allocate(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.allocate_producer_ids(broker_id, made.image.brokers[broker_id].broker_epoch)


_ASK: dict[str, Any] = {
    "create": _create,
    "delete": _delete,
    "extend": _extend,
    "configure": _configure,
    "register": _register,
    "heartbeat": _heartbeat,
    "expire": _expire,
    "unregister": _unregister,
    "elect": _elect,
    "allocate": _allocate,
}

_choices = st.lists(
    st.tuples(st.sampled_from(sorted(_ASK)), st.integers(0, 11), st.integers(0, 3)), max_size=40
)


def check(image: MetadataImage) -> None:
    """What must hold of every image, whatever was asked (reliability.md, invariants)."""
    for topic in image.topics_by_id.values():
        assert image.topics_by_name[topic.name] is topic
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
        for partition in topic.partitions.values():
            assert partition.leader == -1 or partition.leader in partition.isr, "LeaderInIsr"
            assert partition.leader == -1 or image.is_active(partition.leader)
            assert set(partition.isr) <= set(partition.replicas)
            assert not set(partition.isr) & set(partition.elr)
            assert partition.isr or partition.elr or partition.last_known_elr, "someone may lead"
            assert len(partition.directories) == len(partition.replicas)
    for kind, name in image.configs:
        assert kind != 2 or name in image.topics_by_name, "configs of a deleted topic"
    names = [name.replace(".", "_") for name in image.topics_by_name]
    assert len(set(names)) == len(names)


@settings(max_examples=150)
@given(_choices, st.booleans())
def test_a_reload_gives_the_state_the_controller_had(
    choices: list[tuple[str, int, int]], with_elr: bool
) -> None:
    levels = {"metadata.version": 30, "eligible.leader.replicas.version": int(with_elr)}
    made = Cluster(features=levels, min_insync_replicas=2)
    for broker_id in (1, 2, 3):
        made.start_broker(broker_id, incarnation=1)
    epochs: dict[tuple[bytes, int], tuple[int, int]] = {}
    for choice in choices:
        ask(made, choice)
        check(made.image)
        for topic in made.image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                now = (partition.leader_epoch, partition.partition_epoch)
                before = epochs.get((topic.topic_id, index), now)
                assert now[0] >= before[0], "a leader epoch never falls (E-1)"
                assert now[1] >= before[1], "a partition epoch never falls (E-1)"
                epochs[topic.topic_id, index] = now
    assert replayed(EMPTY_IMAGE, made.log).state_equals(made.image)
    snapshot = [made.serde.encode(record) for record in image_records(made.image)]
    assert replayed(EMPTY_IMAGE, snapshot).state_equals(made.image)
