"""One client's request costs nobody else anything: all groups here share one partition (N1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.coordinator.group_messages import Client
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import Answer, subscription
from wire.errors import ErrorCode
from wire.messages.groups import JoinGroupRequest, SyncGroupRequest

E = ErrorCode
DELAY_MS = 3_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=DELAY_MS)
    node.find()
    yield node
    node.close()


def join(
    node: Node,
    group: str,
    member_id: str = "",
    *,
    instance_id: str | None = None,
    version: int = 3,
    protocols: tuple[str, ...] = ("range",),
) -> Answer:
    answer = Answer()
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.Protocol(name=name, metadata=subscription("t")) for name in protocols
        ],
    )
    node.groups.join_group(request, Client("c", "/h", version), answer)
    return answer


def sync(node: Node, group: str, member_id: str, assignment: bytes) -> Answer:
    answer = Answer()
    request = SyncGroupRequest(
        group_id=group,
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment)],
    )
    node.groups.sync_group(request, answer)
    return answer


def list_a_protocol_twice(node: Node) -> int:
    """One protocol is one protocol."""
    answer = join(node, "hostile", protocols=("range", "range"))
    node.pass_time(DELAY_MS)
    assert answer.response.protocol_name == "range"
    member_id = answer.response.member_id
    return sync(node, "hostile", member_id, b"all").error


def return_with_anothers_instance_id(node: Node) -> int:
    join(node, "hostile", instance_id="i", version=9)
    promised = join(node, "hostile", version=9)
    assert promised.error == E.MEMBER_ID_REQUIRED
    member_id = promised.response.member_id
    return join(node, "hostile", member_id, instance_id="i", version=9).error


def commit_under_a_name_no_record_can_hold(node: Node) -> int:
    return node.commit("g" * 40_000, 1).error


def assign_more_than_a_batch_may_hold(node: Node) -> int:
    """A group's record obeys max.message.bytes, like everybody's."""
    answer = join(node, "hostile")
    node.pass_time(DELAY_MS)
    return sync(node, "hostile", answer.response.member_id, bytes(2_000_000)).error


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (list_a_protocol_twice, 0),
        (return_with_anothers_instance_id, E.UNKNOWN_SERVER_ERROR),
        (commit_under_a_name_no_record_can_hold, E.UNKNOWN_SERVER_ERROR),
        (assign_more_than_a_batch_may_hold, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_another_groups_parked_join_does_not_notice(
    node: Node, harm: Callable[[Node], int], told: int
) -> None:
    first = join(node, "settled")
    node.pass_time(DELAY_MS)
    settled = first.response.member_id
    assert sync(node, "settled", settled, b"mine").response.assignment == b"mine"
    machine = next(iter(node.groups.runtime.shards())).inspect()

    parked = join(node, "settled")  # it waits for the first member to come again
    assert harm(node) == told
    assert parked.waits
    assert next(iter(node.groups.runtime.shards())).inspect() is machine
    assert join(node, "settled", settled).response.generation_id == 2
    assert parked.response.generation_id == 2
    assert node.commit("beside", 7).response.topics[0].partitions[0].error_code == 0
    node.restart()
    assert node.fetch("beside") == 7, "nothing of it is in the log that cannot be read"


def test_who_waited_with_the_one_that_failed_goes_on_waiting(node: Node) -> None:
    """An assignment that cannot be written costs the leader's SyncGroup; it may send another."""
    first, second = join(node, "g"), join(node, "g")
    node.pass_time(DELAY_MS)
    node.pass_time(DELAY_MS)
    leader = first.response.member_id
    waiting = sync(node, "g", second.response.member_id, b"")
    assert sync(node, "g", leader, bytes(2_000_000)).error == E.UNKNOWN_SERVER_ERROR
    assert waiting.waits
    assert sync(node, "g", leader, b"less").response.assignment == b"less"
    assert waiting.error == 0
