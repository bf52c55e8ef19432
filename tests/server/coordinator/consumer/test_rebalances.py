"""Random lives of a group: members join, answer, fall silent, lose answers and leave.

What must hold after each heartbeat: a partition is in the hands of one client at a time (what a
client believes, not what the coordinator says), and of one member on record. What must hold in the
end: once all are heard again, the group is Stable and every partition is somebody's.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from server.coordinator.records import decode_record, encode_record
from tests.server.coordinator.consumer.test_protocol import Shard
from tests.server.coordinator.group_support import compacted
from wire.errors import ErrorCode, KafkaError

PARTITIONS = range(4)
STEPS = 400
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class Client:
    """A consumer as a client library has it."""

    def __init__(self, shard: Shard, name: str) -> None:
        self.shard, self.name = shard, name
        self.epoch = 0
        self.owned: set[int] = set()
        self.must_tell = True
        """What it owns is not what it said last."""
        self.was_lost = False
        """It waits for an answer that does not come, and then says everything again."""

    def heartbeat(self, *, is_answered: bool = True) -> None:
        told: dict[str, Any] = {}
        if self.epoch == 0:
            self.owned = set()
        if self.epoch == 0 or self.must_tell or self.was_lost:
            told["owned"] = sorted(self.owned)
        if self.epoch == 0 or self.was_lost:
            told |= {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["cg"]}
        try:
            epoch, given = self.shard.heartbeat(self.name, self.epoch, **told)
        except KafkaError as error:
            if error.code not in FENCED:
                raise
            self.stop()
            return
        self.was_lost = not is_answered
        if not is_answered:
            return
        self.epoch, self.must_tell = epoch, False
        if given is not None:
            self.must_tell = not set(given) >= self.owned
            self.owned = set(given)

    def stop(self) -> None:
        self.epoch, self.owned, self.must_tell, self.was_lost = 0, set(), True, False

    def is_silent_too_long(self) -> bool:
        return self.name not in self.shard.groups["g"].members


def _is_the_same_from_the_cleaned_log(shard: Shard) -> bool:
    another = Shard()
    for key, value in compacted([encode_record(record) for record in shard.log]):
        record = decode_record(key, value)
        assert record is not None
        another.shard.replay(record)
    return another.shard.digest() == shard.shard.digest()


@pytest.mark.parametrize("seed", range(60))
def test_a_partition_has_one_owner_and_all_settle(seed: int) -> None:
    rng = random.Random(seed)
    shard = Shard()
    clients = [Client(shard, f"m{number}") for number in range(rng.randrange(2, 7))]
    clients[0].heartbeat()
    for _ in range(STEPS):
        client = rng.choice(clients)
        what = rng.random()
        if what < 0.03 and client.epoch > 0:
            shard.heartbeat(client.name, -1)
            client.stop()
        elif what < 0.10:
            client.heartbeat(is_answered=False)
        else:
            client.heartbeat()
        shard.later(rng.choice((0, 0, 100, 700, 1_500)))
        _fenced_clients_stop(clients)
        _check(shard, clients)
    for _ in range(12):
        for client in clients:
            client.heartbeat()
            _check(shard, clients)
        shard.later(1_100)
    group = shard.groups["g"]
    assert group.state_name == "Stable"
    assert sorted(p for client in clients for p in client.owned) == list(PARTITIONS)
    sizes = [len(client.owned) for client in clients]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(60))
def test_whoever_takes_over_knows_the_same_when_the_cleaner_has_been_there(seed: int) -> None:
    """It leaves of each key the newest record, so what a group is made of comes in any order."""
    rng = random.Random(seed)
    shard = Shard()
    clients = [Client(shard, f"m{number}") for number in range(3)]
    for _ in range(60):
        client = rng.choice(clients)
        if rng.random() < 0.1 and client.epoch > 0:
            shard.heartbeat(client.name, -1)
            client.stop()
        else:
            client.heartbeat()
        shard.later(rng.choice((0, 100, 1_500)))
        _fenced_clients_stop(clients)
        assert _is_the_same_from_the_cleaned_log(shard)


def _fenced_clients_stop(clients: list[Client]) -> None:
    """A client that was silent for its session knows that, and stops by itself."""
    for client in clients:
        if client.epoch > 0 and client.is_silent_too_long():
            client.stop()


def _check(shard: Shard, clients: list[Client]) -> None:
    owners: dict[int, str] = {}
    for client in clients:
        for partition in client.owned:
            assert partition not in owners, f"{partition} is of {owners} and {client.name}"
            owners[partition] = client.name
    holders: dict[int, str] = {}
    for member in shard.groups["g"].members.values():
        for held in (member.assigned, member.revoking):
            for partition in {p for epochs in held.values() for p in epochs}:
                assert partition not in holders
                holders[partition] = member.member_id


# As Apache Kafka's HashMap of members tells them (TargetAssignmentBuilder): whoever takes over the
# group, from whichever log, would find the same.
def test_what_no_rule_decides_goes_by_the_ids_of_members_not_by_who_came_first() -> None:
    shard = Shard()
    for name in ("mb", "ma", "mc"):
        shard.later(2_000)
        shard.join(name)
    target = shard.groups["g"].target
    counts = {name: sum(map(len, target[name].values())) for name in sorted(target)}
    assert counts == {"ma": 2, "mb": 1, "mc": 1}
