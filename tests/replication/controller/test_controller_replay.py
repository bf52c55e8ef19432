"""Whatever is asked in whatever order: the log says the same as the controller's memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replication.controller import cluster
from replication.controller.elections import min_insync_replicas
from replication.metadata.image import (
    EMPTY_IMAGE,
    RECOVERED,
    MetadataImage,
    PartitionRegistration,
    image_records,
)
from tests.replication.controller_support import Cluster, new_topic, replayed
from wire.errors import KafkaError
from wire.messages.admin import (
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)

NAMES = ("a", "b.c", "b_c", "orders")


LOST: list[int] = []
"""Brokers that came back after a power cut in this step."""


def dirs_of(broker_id: int) -> list[bytes]:
    """Two log directories; the first may fail."""
    return [bytes([number, broker_id]) * 8 for number in (200, 201)]


def ask(made: Cluster, choice: tuple[str, int, int]) -> None:
    """One request; `number` and `other` pick its content. Refusals are part of the game."""
    kind, number, other = choice
    name = NAMES[number % len(NAMES)]
    broker_id = number % 4 + 1
    made.now_ms += other * 400
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
    before, clean = made.image.brokers.get(broker_id), other % 2 == 0
    made.register(broker_id, other + 1, clean=clean, log_dirs=dirs_of(broker_id))
    now = made.image.brokers[broker_id]
    if before is None or (before.incarnation_id != now.incarnation_id and not clean):
        LOST.append(broker_id)


def _everybody_lives(made: Cluster, name: str, broker_id: int, other: int) -> None:
    for registered in list(made.image.brokers):
        made.heartbeat(registered)


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


def _alter_isr(made: Cluster, name: str, broker_id: int, other: int) -> None:
    """The leader drops one member, or takes one (which may not be eligible) in."""
    for index in made.image.topics_by_name[name].partitions:
        now = made.partition(name, index)
        if now.leader == -1:
            continue
        changed = [r for r in now.isr if r != broker_id] or list(now.isr)
        if other % 2:
            changed = [*changed, broker_id]
        recovery = 0 if other == 2 else now.leader_recovery_state
        made.alter_partition(name, changed, index=index, leader_recovery_state=recovery)


def _reassign(made: Cluster, name: str, broker_id: int, other: int) -> None:
    """Move to the one, two or three brokers that follow; 0 cancels."""
    target = [(broker_id + step) % 4 + 1 for step in range(other)] or None
    for index in made.image.topics_by_name[name].partitions:
        made.reassign({(name, index): target}, keep_factor=broker_id == 1)


def _balance(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.balance()


def _elect_unclean(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.elect_unclean()


def _set_min_isr(made: Cluster, name: str, broker_id: int, other: int) -> None:
    resource = IncrementalAlterConfigsRequest.Resource
    kind, key = ((2, name), (4, ""))[broker_id % 2], "min.insync.replicas"
    entry = resource.Config(name=key, config_operation=0, value=str(other + 1))
    made.incremental_alter(resource(resource_type=kind[0], resource_name=kind[1], configs=[entry]))


def _set_unclean(made: Cluster, name: str, broker_id: int, other: int) -> None:
    resource = IncrementalAlterConfigsRequest.Resource
    entry = resource.Config(
        name="unclean.leader.election.enable", config_operation=other % 2, value="true"
    )
    made.incremental_alter(resource(resource_type=2, resource_name=name, configs=[entry]))


def _lose_directory(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.heartbeat(broker_id, offline_log_dirs=dirs_of(broker_id)[: other % 2])


def _assign(made: Cluster, name: str, broker_id: int, other: int) -> None:
    topic_id = made.image.topics_by_name[name].topic_id
    directory = (dirs_of(broker_id) + dirs_of(9))[other % 3]
    made.assign_directories(broker_id, {directory: [(topic_id, other % 3)]})


def _toggle_elr(made: Cluster, name: str, broker_id: int, other: int) -> None:
    level, kind = (0, 2) if other == 0 else (1, 1)
    made.update_features(("eligible.leader.replicas.version", level, kind))


def _allocate(made: Cluster, name: str, broker_id: int, other: int) -> None:
    made.allocate_producer_ids(broker_id, made.image.brokers[broker_id].broker_epoch)


_ASK: dict[str, Any] = {
    "create": _create,
    "delete": _delete,
    "extend": _extend,
    "configure": _configure,
    "register": _register,
    "heartbeat": _heartbeat,
    "everybody_lives": _everybody_lives,
    "everybody_lives_again": _everybody_lives,
    "expire": _expire,
    "unregister": _unregister,
    "elect": _elect,
    "allocate": _allocate,
    "alter_isr": _alter_isr,
    "alter_isr_again": _alter_isr,
    "reassign": _reassign,
    "reassign_again": _reassign,
    "balance": _balance,
    "elect_unclean": _elect_unclean,
    "set_min_isr": _set_min_isr,
    "set_unclean": _set_unclean,
    "lose_directory": _lose_directory,
    "assign": _assign,
    "toggle_elr": _toggle_elr,
}

_choices = st.lists(
    st.tuples(st.sampled_from(sorted(_ASK)), st.integers(0, 11), st.integers(0, 3)), max_size=40
)


def check(made: Cluster) -> None:
    """What must hold of every image, whatever was asked (reliability.md, invariants)."""
    image = made.image
    elr_enabled = image.feature("eligible.leader.replicas.version") > 0
    for topic in image.topics_by_id.values():
        assert image.topics_by_name[topic.name] is topic
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
        min_isr = min_insync_replicas(image, made.config, topic.name)
        for partition in topic.partitions.values():
            _check_partition(image, partition)
            if elr_enabled and len(partition.isr) >= min(min_isr, len(partition.replicas)):
                # Another factor or min.insync.replicas tells at the partition's next change.
                assert not partition.elr or partition.leader != -1
    for kind, name in image.configs:
        assert kind != 2 or name in image.topics_by_name, "configs of a deleted topic"
    names = [name.replace(".", "_") for name in image.topics_by_name]
    assert len(set(names)) == len(names)


def _check_partition(image: MetadataImage, partition: PartitionRegistration) -> None:
    leader, replicas, isr = partition.leader, partition.replicas, partition.isr
    assert len(set(replicas)) == len(replicas) == len(partition.directories) > 0
    assert set(isr) <= set(replicas)
    assert len(set(isr)) == len(isr)
    assert set(partition.elr) <= set(replicas)
    assert not set(isr) & set(partition.elr)
    assert set(partition.adding_replicas) <= set(replicas)
    assert set(partition.removing_replicas) <= set(replicas)
    assert not set(partition.adding_replicas) & set(partition.removing_replicas)
    assert isr or partition.elr or partition.last_known_elr, "someone may lead"
    if leader != -1:
        assert leader in isr, "LeaderInIsr"
        assert image.is_active(leader)
        assert partition.leader_recovery_state == RECOVERED or isr == (leader,)
    # Only the last member of a partition without ELR may stay in its ISR when it is gone (E-13).
    assert all(image.is_active(r) for r in isr) or (leader == -1 and len(isr) == 1)


class History:
    """What partitions were before: epochs rise, one leader an epoch, clean leaders only."""

    def __init__(self) -> None:
        self._before: dict[tuple[bytes, int], PartitionRegistration] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}

    def check(self, image: MetadataImage) -> None:
        for topic in image.topics_by_id.values():
            for index, now in topic.partitions.items():
                key = (topic.topic_id, index)
                before = self._before.get(key, now)
                self._before[key] = now
                if before != now:
                    assert now.partition_epoch > before.partition_epoch, "each change has an epoch"
                assert now.leader_epoch >= before.leader_epoch, "a leader epoch never falls (E-1)"
                if now.leader != before.leader or not set(before.replicas) <= set(now.replicas):
                    assert now.leader_epoch > before.leader_epoch
                led = self._leaders.setdefault((*key, now.leader_epoch), now.leader)
                assert led == now.leader, "one leader an epoch"
                if now.leader not in (-1, before.leader) and now.leader_recovery_state == RECOVERED:
                    assert now.leader in (*before.isr, *before.elr), "an unclean leader is marked"


class Durability:
    """Who holds every committed record of a partition (KIP-966), and that only such lead cleanly.

    Records are committed when the ISR reaches min.insync.replicas; from then on who is not in it
    may miss some. A power cut may take any record a broker alone has.
    """

    def __init__(self) -> None:
        self._complete: dict[tuple[bytes, int], set[int]] = {}
        self._leaders: dict[tuple[bytes, int], int] = {}

    def check(self, made: Cluster, lost: list[int]) -> None:
        for topic in made.image.topics_by_id.values():
            min_isr = min_insync_replicas(made.image, made.config, topic.name)
            for index, now in topic.partitions.items():
                key = (topic.topic_id, index)
                complete = self._complete.setdefault(key, set(now.isr)).difference(lost)
                if now.leader not in (-1, self._leaders.get(key, now.leader)):
                    if now.leader_recovery_state == RECOVERED:
                        assert now.leader in complete, "the leader misses committed records"
                    else:
                        complete = set(now.isr)  # records were given up
                if now.leader != -1 and len(now.isr) >= min(min_isr, len(now.replicas)):
                    complete = set(now.isr)
                self._complete[key] = complete | set(now.isr)
                self._leaders[key] = now.leader


@settings(max_examples=200, deadline=None)
@given(_choices)
def test_with_elr_no_power_cut_makes_a_leader_that_misses_committed_records(
    choices: list[tuple[str, int, int]],
) -> None:
    made = Cluster(min_insync_replicas=2)
    for broker_id in (1, 2, 3, 4):
        made.start_broker(broker_id, log_dirs=dirs_of(broker_id))
    made.create("orders", 3, 3)
    durability = Durability()
    durability.check(made, [])
    for choice in choices:
        if choice[0] != "toggle_elr":
            LOST.clear()
            ask(made, choice)
            durability.check(made, LOST)


@settings(max_examples=200, deadline=None)
@given(_choices, st.booleans(), st.sampled_from((7, 14, 16, 17, 22, 23, 30)))
def test_a_reload_gives_the_state_the_controller_had(
    choices: list[tuple[str, int, int]], with_elr: bool, metadata_version: int
) -> None:
    """Under every metadata.version: what older records cannot say must not be in the state."""
    elr_level = int(with_elr and metadata_version >= 23)
    levels = {"metadata.version": metadata_version, "eligible.leader.replicas.version": elr_level}
    made = Cluster(features=levels, min_insync_replicas=2)
    for broker_id in (1, 2, 3, 4):
        made.start_broker(broker_id, log_dirs=dirs_of(broker_id))
    made.create("orders", 3, 3)
    history = History()
    for choice in choices:
        ask(made, choice)
        check(made)
        history.check(made.image)
    assert replayed(EMPTY_IMAGE, made.log).state_equals(made.image)
    snapshot = [made.serde.encode(record) for record in image_records(made.image)]
    assert replayed(EMPTY_IMAGE, snapshot).state_equals(made.image)
