"""Random lives of a group whose members speak one protocol or the other, and change it.

Members join, work, fall silent, leave, and come back with either protocol; coordinators fail over.
What must hold after each step: a partition is in the hands of one client at a time. What must hold
in the end: the group settles, all partitions are somebody's, and it is of the kind that its members
speak.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from replication.metadata.image import EMPTY_IMAGE, TopicImage
from replication.metadata.registrations import PartitionRegistration
from server.coordinator.consumer import embedded
from server.coordinator.consumer.member import ConsumerMember
from server.coordinator.group_config import ConsumerConfig
from server.coordinator.group_messages import Client
from tests.server.coordinator.group_support import GROUP, Answer, World, config, subscription
from wire.errors import ErrorCode as E
from wire.errors import MalformedFrame
from wire.messages.groups import ConsumerGroupHeartbeatRequest

TOPIC_ID = b"t".ljust(16)
PARTITIONS = 4
STEPS = 150
SESSION_MS = 10_000


class Lives:
    """One group, and who is or was in it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed=seed)
        self.world.looks_twice = seed % 5 == 0  # it takes most of the time
        registration = PartitionRegistration((1,), (b"d" * 16,), (1,), 1)
        topic = TopicImage("t", TOPIC_ID, dict.fromkeys(range(PARTITIONS), registration))
        self.world.image = replace(
            EMPTY_IMAGE, offset=1, topics_by_name={"t": topic}, topics_by_id={TOPIC_ID: topic}
        )
        self.clients: list[ClassicClient | ConsumerClient] = []
        for number in range(self.rng.randrange(2, 5)):
            self.clients.append(self.a_client(number))

    def a_client(self, number: int) -> ClassicClient | ConsumerClient:
        kind = self.rng.choice((ClassicClient, ConsumerClient))
        return kind(self.world, f"m{number}-{self.rng.randrange(10**6)}")

    def members(self) -> set[str]:
        """Ids of all members on record."""
        shard = self.world.shard
        kinds: tuple[Any, ...] = (shard.classic, shard.consumer)
        return {id_ for kind in kinds if GROUP in kind.groups for id_ in kind.groups[GROUP].members}

    def check(self) -> None:
        """Who is no member any more is told so before long, and its session has ended."""
        members = self.members()
        owners: dict[int, str] = {}
        for client in self.clients:
            if client.member_id not in members:
                client.owned = set()
            for partition in client.owned:
                assert partition not in owners, (partition, owners[partition], client.member_id)
                owners[partition] = client.member_id


class ClassicClient:
    """A consumer with the eager protocol: it gives everything up whenever it joins."""

    kind = "classic"

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.start()

    def start(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.owned: set[int] = set()
        self._waits: Answer | None = None
        self._is_joining = False

    def turn(self) -> None:
        """What a client library does next."""
        if self._waits is not None:
            if self._waits.waits:
                return
            answer, self._waits = self._waits, None
            (self._joined if self._is_joining else self._synced)(answer)
        elif self.generation < 0:
            self._join()
        else:
            code = self.world.heartbeat(self.member_id, self.generation)
            if code:
                self._failed(code)

    def _join(self) -> None:
        self.owned, self._is_joining = set(), True
        self._waits = self.world.join(self.member_id, session_ms=SESSION_MS, client_id=self.name)

    def _joined(self, answer: Answer) -> None:
        if answer.error == E.MEMBER_ID_REQUIRED:
            self.member_id = answer.response.member_id
            return
        if answer.error:
            self._failed(answer.error)
            return
        told = answer.response
        self.member_id, generation = told.member_id, told.generation_id
        parts = {}
        if told.leader == self.member_id:
            for at, member in enumerate(told.members):
                own = self.share(at, len(told.members))
                parts[member.member_id] = embedded.write_assignment(
                    {TOPIC_ID: own} if own else {}, 0, self.world.image
                )
        self.generation, self._is_joining = generation, False
        self._waits = self.world.sync(
            self.member_id, generation, parts, protocol_name=told.protocol_name
        )

    def share(self, at: int, count: int) -> frozenset[int]:
        """What the leader gives to the member at this place."""
        return frozenset(range(at, PARTITIONS, count))

    def _synced(self, answer: Answer) -> None:
        if answer.error:
            self._failed(answer.error)
            return
        topics = embedded.read_assignment(answer.response.assignment).assigned_partitions
        self.owned = {partition for topic in topics for partition in topic.partitions}

    def _failed(self, code: int) -> None:
        assert code in (
            E.REBALANCE_IN_PROGRESS, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.NOT_COORDINATOR,
        ), E(code)  # fmt: skip
        self.generation, self.owned = -1, set()
        if code == E.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def leave(self) -> None:
        if self.member_id:
            self.world.leave((self.member_id, None))
        self.start()

    def lost(self) -> None:
        """The coordinator is another one: whatever waits is not answered by that."""
        if self._waits is not None and self._waits.waits:
            self._waits, self.generation = None, -1


class ConsumerClient:
    """A consumer with the protocol of KIP-848."""

    kind = "consumer"

    def __init__(self, world: World, name: str) -> None:
        self.world, self.member_id = world, name
        self.start()

    def start(self) -> None:
        self.epoch = 0
        self.owned: set[int] = set()
        self._must_tell = True

    def turn(self) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch
        )
        if self.epoch == 0:
            self.owned = set()
            request.rebalance_timeout_ms = 30_000
            request.subscribed_topic_names = ["t"]
        if self._must_tell or self.epoch == 0:
            topic = ConsumerGroupHeartbeatRequest.Topic
            own = [topic(topic_id=TOPIC_ID, partitions=sorted(self.owned))]
            request.topic_partitions = own if self.owned else []
        answer = self._ask(request)
        if answer.error:
            assert answer.error in (
                E.UNKNOWN_MEMBER_ID, E.FENCED_MEMBER_EPOCH, E.GROUP_ID_NOT_FOUND,
            ), E(answer.error)  # fmt: skip
            self.start()
            return
        told = answer.response
        self.epoch, self._must_tell = told.member_epoch, False
        if told.assignment is not None:
            given = {p for topic in told.assignment.topic_partitions for p in topic.partitions}
            self._must_tell = not given >= self.owned
            self.owned = given

    def _ask(self, request: ConsumerGroupHeartbeatRequest) -> Answer:
        client = Client("c", "/h", 1)
        return self.world.run(lambda: self.world.shard.consumer_heartbeat(request, client))

    def leave(self) -> None:
        if self.epoch:
            self._ask(
                ConsumerGroupHeartbeatRequest(
                    group_id=GROUP, member_id=self.member_id, member_epoch=-1
                )
            )
        self.start()

    def lost(self) -> None:
        """Nothing of it waits."""


@pytest.mark.parametrize("seed", range(80))
def test_a_partition_has_one_owner_whatever_its_members_speak(seed: int) -> None:
    lives = Lives(seed)
    rng, world = lives.rng, lives.world
    for _ in range(STEPS):
        at = rng.randrange(len(lives.clients))
        what = rng.random()
        if what < 0.06:
            lives.clients[at].leave()
            lives.clients[at] = lives.a_client(at)
        elif what < 0.09:
            lives.clients[at] = lives.a_client(at)  # the one before died
        elif what < 0.12:
            world.fail_over()
            for client in lives.clients:
                client.lost()
        else:
            lives.clients[at].turn()
        lives.check()
        world.advance(rng.choice((0, 0, 100, 700, 2_500)))
        lives.check()
    for _ in range(60):
        for client in lives.clients:
            client.turn()
            lives.check()
        world.advance(1_100)
        lives.check()
    owned = sorted(partition for client in lives.clients for partition in client.owned)
    assert owned == list(range(PARTITIONS))
    kinds = {client.kind for client in lives.clients}
    groups = world.shard.consumer.groups if "consumer" in kinds else world.shard.classic.groups
    assert GROUP in groups
    assert world.shard.digest() == world.replayed().digest(), "what is true is what the log says"


@pytest.mark.parametrize("session_ms", [-1, 5_999, 1_800_001])
def test_a_classic_member_of_a_consumer_group_has_a_session_that_may_be(session_ms: int) -> None:
    """Refused before anything else is asked, whatever the group is (GroupCoordinatorService)."""
    lives = Lives(0)
    ConsumerClient(lives.world, "m").turn()
    assert GROUP in lives.world.shard.consumer.groups
    assert lives.world.join(session_ms=session_ms).error == E.INVALID_SESSION_TIMEOUT


def test_a_consumer_may_come_while_the_first_ones_of_a_classic_group_wait_for_others() -> None:
    """They have no protocol yet. Kafka fails (UNKNOWN_SERVER_ERROR), which ends a consumer."""
    lives = Lives(0)
    world = World(config(group_initial_rebalance_delay_ms=3_000))
    world.image = lives.world.image
    first, second = ClassicClient(world, "c"), ConsumerClient(world, "m")
    for _ in range(3):
        first.turn()
    assert world.state() == "PreparingRebalance"
    world.run(lambda: world.shard.consumer_heartbeat(by_regex("r"), Client("c", "/h", 1)))
    assert world.shard.consumer.groups[GROUP].members["r"].epoch > 0, "0 would be to join again"
    for _ in range(6):
        second.turn()
        first.turn()
        world.advance(1_100)
    assert first.owned | second.owned == set(range(PARTITIONS))
    assert first.owned
    assert second.owned
    assert world.shard.digest() == world.replayed().digest()


def by_regex(member_id: str) -> ConsumerGroupHeartbeatRequest:
    """Joins, and what it subscribes to is found out later."""
    return ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_regex="t.*",
        topic_partitions=[],
    )


READABLE = ("range", subscription("t"))


def _lists_what_nobody_can_read(world: World) -> None:
    """A member of a consumer group: it names a protocol that all of the classic protocol speak."""
    joined = world.join_new(protocols=[READABLE, ("bad", b"")])[1]
    assert joined.error == 0


def test_who_leaves_is_gone_also_where_no_classic_group_can_be_made_of_the_others() -> None:
    lives = Lives(0)
    world = lives.world
    last = ConsumerClient(world, "m")
    last.turn()
    _lists_what_nobody_can_read(world)
    assert world.join_new(protocols=[("bad", subscription("t"))])[1].error == 0
    last.leave()
    group = world.shard.consumer.groups[GROUP]
    assert "m" not in group.members
    assert group.classic_count == len(group.members) == 2


def test_who_takes_the_last_ones_place_speaks_so_that_the_others_can_be_assigned() -> None:
    lives = Lives(0)
    world = lives.world
    last = ConsumerClient(world, "m")
    last.turn()
    world.run(
        lambda: world.shard.consumer_heartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="s",
                member_epoch=0,
                instance_id="i",
                rebalance_timeout_ms=30_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            ),
            Client("c", "/h", 1),
        )
    )
    last.leave()
    _lists_what_nobody_can_read(world)
    joined = world.join(instance_id="i", protocols=[("bad", subscription("t"))])
    assert joined.error == E.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(instance_id="i", protocols=[READABLE]).error == 0
    assert GROUP in world.shard.classic.groups


def test_what_the_last_consumer_had_is_given_to_others_also_by_another_coordinator() -> None:
    """The group is a classic one that must rebalance: whoever loads it knows that, too."""
    lives = Lives(0)
    world = lives.world
    classic, consumer = ClassicClient(world, "c"), ConsumerClient(world, "m")
    for _ in range(9):
        classic.turn()
        consumer.turn()
        world.advance(1_100)
    assert len(classic.owned) == len(consumer.owned) == PARTITIONS // 2
    consumer.leave()
    world.fail_over()
    classic.lost()
    for _ in range(9):
        classic.turn()
        world.advance(1_100)
    assert world.state() == "Stable"
    assert classic.owned == set(range(PARTITIONS))


def test_a_group_too_large_to_be_a_classic_one_is_one_when_it_is_not_any_more() -> None:
    world = World(config(group_max_size=2))
    world.image = Lives(0).world.image
    last = ConsumerClient(world, "m")
    last.turn()
    members = [world.join_new()[0] for _ in range(3)]
    last.leave()
    assert world.shard.consumer.groups[GROUP].classic_count == 3
    assert world.leave((members[0], None)) == [0]
    assert GROUP not in world.shard.consumer.groups
    assert set(world.groups[GROUP].members) == set(members[1:])
    assert world.state() == "PreparingRebalance"


def test_members_that_leave_together_are_not_compared_each_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.image = Lives(0).world.image
    world.looks_twice = False
    count = 60
    for number in range(count):
        ConsumerClient(world, f"m{number}").turn()
    compared = []
    monkeypatch.setattr(
        ConsumerMember, "__eq__", lambda one, other: compared.append(other) or one is other
    )
    assert world.leave(*((f"m{number}", None) for number in range(count))) == [0] * count
    assert len(compared) < count


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_who_waits_for_a_generation_gets_something_whatever_the_consumer_that_comes_asks_for(
    state: str,
) -> None:
    """The first of KIP-848, which may subscribe to nothing. In Kafka only what it subscribes to
    makes a target, and those that waited stayed without partitions."""
    world = Lives(0).world
    first, second = ClassicClient(world, "a"), ClassicClient(world, "b")
    for _ in range(5):
        first.turn()
    assert first.owned == set(range(PARTITIONS))
    for _ in range(3):
        second.turn()
    if state == "CompletingRebalance":
        first.turn()
        first.turn()
    assert world.state() == state
    request = by_regex("k")
    request.subscribed_topic_names, request.subscribed_topic_regex = [], None
    answer = world.run(lambda: world.shard.consumer_heartbeat(request, Client("c", "/h", 1)))
    assert answer.error == 0
    for _ in range(9):
        first.turn()
        second.turn()
        world.advance(1_100)
    assert sorted([*first.owned, *second.owned]) == list(range(PARTITIONS))
    assert first.owned
    assert second.owned
    assert world.shard.digest() == world.replayed().digest()


class StaticConsumer(ConsumerClient):
    """Of KIP-848, with an instance id; wants neighbouring partitions."""

    def _ask(self, request: ConsumerGroupHeartbeatRequest) -> Answer:
        request.instance_id, request.server_assignor = "i", "range"
        return super()._ask(request)


class StaticClassicClient(ClassicClient):
    """The same one with the classic protocol."""

    def _join(self) -> None:
        self.owned, self._is_joining = set(), True
        self._waits = self.world.join(
            self.member_id, instance_id="i", session_ms=SESSION_MS, client_id=self.name
        )


def test_who_takes_the_last_ones_place_in_the_middle_of_a_rebalance_has_all_join_again() -> None:
    """The group is a classic one from now on: who waited for a partition would never have been told
    that it is free."""
    world = Lives(0).world
    grown = world.image
    (topic,) = grown.topics_by_name.values()
    small = replace(topic, partitions={p: topic.partitions[p] for p in range(PARTITIONS - 1)})
    world.image = replace(grown, topics_by_name={"t": small}, topics_by_id={TOPIC_ID: small})
    last, back = StaticConsumer(world, "s"), StaticClassicClient(world, "s")
    first, second = ClassicClient(world, "a"), ClassicClient(world, "b")
    for _ in range(9):
        for client in (last, first, second):
            client.turn()
        world.advance(1_100)
    assert [last.owned, first.owned, second.owned] == [{0}, {1}, {2}]
    world.image = grown
    last.turn()
    for _ in range(4):
        first.turn()
    assert not first.owned, "it has given back one, and waits for the next one's"
    back.turn()
    assert GROUP in world.shard.classic.groups
    for _ in range(12):
        for client in (first, second, back):
            client.turn()
        world.advance(1_100)
    assert world.state() == "Stable"
    owned = sorted([*back.owned, *first.owned, *second.owned])
    assert owned == list(range(PARTITIONS))
    assert world.shard.digest() == world.replayed().digest()


def test_members_that_are_left_to_themselves_share_what_the_last_consumer_had() -> None:
    """The group stays a consumer group (group.consumer.migration.policy), in which nobody else
    makes a target. In Kafka nobody does, then."""
    world = Lives(0).world
    world.consumer_config = ConsumerConfig(group_consumer_migration_policy="upgrade")
    first, second = ClassicClient(world, "a"), ClassicClient(world, "b")
    last = ConsumerClient(world, "m")
    for _ in range(9):
        for client in (first, second, last):
            client.turn()
        world.advance(1_100)
    assert [len(client.owned) for client in (first, second, last)].count(0) == 0

    def settle() -> list[int]:
        for _ in range(9):
            first.turn()
            second.turn()
            world.advance(1_100)
        for client in (first, second):
            assert world.heartbeat(client.member_id, client.generation) == 0
        return sorted([*first.owned, *second.owned])

    last.leave()
    assert settle() == list(range(PARTITIONS))
    (topic,) = world.image.topics_by_name.values()
    registration = topic.partitions[0]
    grown = replace(topic, partitions=dict.fromkeys(range(PARTITIONS + 2), registration))
    world.image = replace(
        world.image, offset=2, topics_by_name={"t": grown}, topics_by_id={TOPIC_ID: grown}
    )
    assert settle() == list(range(PARTITIONS + 2))
    assert world.shard.consumer.groups[GROUP].classic_count == 2
    assert world.shard.digest() == world.replayed().digest()


def test_what_members_tell_each_other_is_read_within_bounds() -> None:
    """Each name of nothing is two bytes here, and an object of a hundred once it is read."""
    count = 200_000
    names = b"\0\0" + count.to_bytes(4, "big") + bytes(2 * count) + b"\xff" * 4
    with pytest.raises(MalformedFrame, match="more than are allowed"):
        embedded.read_subscription(names)
    world = Lives(0).world
    ConsumerClient(world, "m").turn()
    _, joined = world.join_new(protocols=[("range", names)])
    assert joined.error == E.INCONSISTENT_GROUP_PROTOCOL


class Lavish(ClassicClient):
    """Gives everything to everybody, and more than there is."""

    def share(self, at: int, count: int) -> frozenset[int]:
        return frozenset(range(-1, 2 * PARTITIONS))


@pytest.mark.parametrize("is_by_regex", [False, True])
def test_what_the_members_leader_said_without_sense_is_not_gone_on_from(is_by_regex: bool) -> None:
    """No target could be made of it: each heartbeat failed, or partitions were nobody's."""
    world = Lives(0).world
    first, second = Lavish(world, "a"), Lavish(world, "b")
    for _ in range(9):
        first.turn()
        second.turn()
        world.advance(1_100)
    assert len(first.owned) == len(second.owned) == 2 * PARTITIONS + 1
    third = ConsumerClient(world, "m")
    if is_by_regex:
        world.run(lambda: world.shard.consumer_heartbeat(by_regex("r"), Client("c", "/h", 1)))
    for _ in range(12):
        for client in (third, first, second):
            client.turn()
        world.advance(1_100)
    owned = sorted([*first.owned, *second.owned, *third.owned])
    assert owned == list(range(PARTITIONS))
    assert world.shard.digest() == world.replayed().digest()


def test_what_a_member_has_not_given_back_is_its_own_though_the_group_changes_there_and_back() -> (
    None
):
    """Kafka's classic group says what each member is to have, and another consumer that comes just
    then is given what somebody consumes."""
    lives = Lives(0)
    world = lives.world
    classic, leaving = ClassicClient(world, "a"), ConsumerClient(world, "m")
    for _ in range(5):
        classic.turn()
    assert classic.owned == set(range(PARTITIONS))
    leaving.turn()
    leaving.leave()
    assert world.state() == "PreparingRebalance"
    coming = ConsumerClient(world, "n")
    lives.clients = [classic, coming]
    for _ in range(9):
        for client in (coming, classic):
            client.turn()
            lives.check()
        world.advance(1_100)
    assert len(classic.owned) == len(coming.owned) == PARTITIONS // 2


def test_what_a_member_keeps_while_it_joins_is_its_own_though_a_generation_was_given_up() -> None:
    """It is told to give it back (KIP-429), in the assignment that does not come."""
    world = Lives(0).world
    first, second, third = (ClassicClient(world, name) for name in "abc")
    for _ in range(5):
        first.turn()
    kept = first.owned
    for _ in range(3):
        second.turn()
    first.turn()
    first.turn()
    assert world.state() == "CompletingRebalance"
    for _ in range(3):
        third.turn()
    assert world.state() == "PreparingRebalance"
    coming = ConsumerClient(world, "m")
    coming.turn()
    assert not coming.owned
    (assigned,) = world.shard.consumer.groups[GROUP].members[first.member_id].assigned.values()
    assert set(assigned) == kept == set(range(PARTITIONS))
    for _ in range(9):
        for client in (coming, first, second, third):
            client.turn()
        world.advance(1_100)
    assert all(len(client.owned) == 1 for client in (coming, first, second, third))
