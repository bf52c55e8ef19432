"""Where partitions end, asked of their leaders."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.peers.call import PeerError
from server.peers.end_offsets import EndOffsets
from tests.server.coordinator.group_support import Answer
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import ListOffsetsResponse


class World:
    """Node 1; partition 0 is its own, 1 is node 2's, 2 has no leader."""

    def __init__(self):
        leaders = {("t", 0): 1, ("t", 1): 2, ("t", 2): -1}
        image = SimpleNamespace(
            partition=lambda topic, index: (
                SimpleNamespace(leader=leaders[topic, index]) if (topic, index) in leaders else None
            )
        )
        self.own = (0, -1, 7, 0)
        replicas = SimpleNamespace(list_offset=lambda *_: self.own)
        self.asked = []
        self.ends = EndOffsets(1, lambda: image, replicas, self, 30_000)

    def send(self, broker_id, request, on_complete, *, timeout_ms, channel):
        self.asked.append((broker_id, request, on_complete))

    def ask(self, index):
        answer = Answer()
        self.ends.ask("t", index, answer)
        return answer

    def tell(self, code, offset):
        make = ListOffsetsResponse.Topic
        one = make.Partition(partition_index=1, error_code=code, offset=offset)
        self.asked[-1][2](ListOffsetsResponse(topics=[make(name="t", partitions=[one])]))


@pytest.fixture
def world():
    return World()


def test_the_nodes_own_partitions_are_asked_for_on_the_spot(world):
    assert world.ask(0).response == 7
    world.own = (6, -1, -1, -1)
    assert world.ask(0).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_others_are_asked_for_at_their_leaders(world):
    answer = world.ask(1)
    assert (world.asked[-1][0], answer.waits) == (2, True)
    world.tell(0, 9)
    assert answer.response == 9
    answer = world.ask(1)
    world.tell(6, -1)
    assert answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    answer = world.ask(1)
    world.asked[-1][2](PeerError("gone"))
    assert answer.error == ErrorCode.NETWORK_EXCEPTION


def test_an_answer_about_something_else_is_an_error(world):
    answer = world.ask(1)
    world.asked[-1][2](ListOffsetsResponse(topics=[]))
    assert answer.error == ErrorCode.UNKNOWN_SERVER_ERROR


def test_partitions_that_nobody_leads(world):
    assert world.ask(2).error == ErrorCode.LEADER_NOT_AVAILABLE
    assert isinstance(world.ask(3).results[0], KafkaError)
