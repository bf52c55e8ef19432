"""Moving replicas: what clients ask, what the metadata says then, and what is refused."""

from __future__ import annotations

import pytest

from replication.controller import reassignments
from tests.replication.controller_support import Cluster, new_topic
from wire.errors import ErrorCode
from wire.messages.admin import AlterPartitionReassignmentsRequest

ORDERS = ("orders", 0)


def on_brokers(count: int, factor: int, **config: object) -> Cluster:
    made = Cluster(**config)
    for broker_id in range(1, count + 1):
        made.start_broker(broker_id)
    made.create("orders", 1, factor)
    return made


def test_on_one_node_the_replica_that_is_there_is_accepted_and_nothing_changes() -> None:
    one = on_brokers(1, 1)
    before = one.image.offset
    assert one.reassign({ORDERS: [1]}) == {ORDERS: (0, None)}
    assert one.image.offset == before
    assert one.reassigning() == {}
    assert one.reassigning({"orders": [0, 7], "absent": [0]}) == {}


@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (("absent", 0), [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("orders", 7), [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ORDERS, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (ORDERS, [9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (ORDERS, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (ORDERS, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_a_wrong_reassignment_is_refused_alone(
    partition: tuple[str, int], replicas: list[int] | None, code: ErrorCode
) -> None:
    one = on_brokers(1, 1)
    one.create("other")
    answers = one.reassign({partition: replicas, ("other", 0): [1]})
    assert answers[partition][0] == code
    assert answers["other", 0] == (0, None)
    assert one.partition("orders").replicas == (1,)


def test_a_move_keeps_the_old_replica_until_the_new_one_is_in_sync() -> None:
    three = on_brokers(3, 1)
    (old,) = three.partition("orders").replicas
    new = old % 3 + 1
    assert three.reassign({ORDERS: [new]}) == {ORDERS: (0, None)}
    moving = three.partition("orders")
    assert moving.replicas == (new, old)
    assert (moving.adding_replicas, moving.removing_replicas) == ((new,), (old,))
    assert (moving.leader, moving.isr) == (old, (old,))
    assert moving.directory(new) == three.image.brokers[new].directories[0]
    assert three.reassigning() == {ORDERS: ([new, old], [new], [old])}
    assert three.reassigning({"orders": [0]}) == three.reassigning()


def test_a_cancelled_move_leaves_the_partition_as_it_was() -> None:
    three = on_brokers(3, 2)
    before = three.partition("orders")
    (new,) = {1, 2, 3} - set(before.replicas)
    three.reassign({ORDERS: [before.replicas[0], new]})
    assert three.reassigning() != {}
    assert three.reassign({ORDERS: None}) == {ORDERS: (0, None)}
    after = three.partition("orders")
    assert set(after.replicas) == set(before.replicas)
    assert (after.adding_replicas, after.removing_replicas) == ((), ())
    assert (after.leader, set(after.isr)) == (before.leader, set(before.isr))
    assert three.reassigning() == {}


def test_removing_a_replica_is_done_at_once_and_fences_it_off_with_a_new_leader_epoch() -> None:
    three = on_brokers(3, 3)
    before = three.partition("orders")
    keep = [replica for replica in before.replicas if replica != 3]
    assert three.reassign({ORDERS: keep}) == {ORDERS: (0, None)}
    after = three.partition("orders")
    assert after.replicas == tuple(keep)
    assert 3 not in after.isr
    assert after.leader_epoch == before.leader_epoch + 1
    assert three.reassigning() == {}


def test_a_leader_that_is_removed_hands_over_to_one_that_stays() -> None:
    three = on_brokers(3, 3)
    leader = three.partition("orders").leader
    keep = [replica for replica in (1, 2, 3) if replica != leader]
    three.reassign({ORDERS: keep})
    after = three.partition("orders")
    assert after.leader in keep
    assert after.leader in after.isr


def test_another_order_of_the_same_replicas_changes_only_the_preferred_leader() -> None:
    three = on_brokers(3, 3)
    before = three.partition("orders")
    turned = tuple(reversed(before.replicas))
    three.reassign({ORDERS: list(turned)})
    after = three.partition("orders")
    assert after.replicas == turned
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)


def test_the_replication_factor_may_be_protected() -> None:
    three = on_brokers(3, 2)
    code, message = three.reassign({ORDERS: [1]}, keep_factor=True)[ORDERS]
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert message == "The replication factor is changed from 2 to 1"
    assert three.reassign({ORDERS: [2, 3]}, keep_factor=True)[ORDERS] == (0, None)
    # What is leaving does not count: still two.
    assert three.reassign({ORDERS: [3, 1]}, keep_factor=True)[ORDERS] == (0, None)


def test_cancelling_never_costs_acknowledged_records_unless_the_topic_allows_it() -> None:
    two = on_brokers(2, 1)
    (old,) = two.partition("orders").replicas
    new = 3 - old
    two.reassign({ORDERS: [old, new]})
    moving = two.partition("orders")
    moving.isr = (new,)  # the only replica from before fell out of sync meanwhile
    code, _message = two.reassign({ORDERS: None})[ORDERS]
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert two.reassigning() == {ORDERS: ([old, new], [new], [])}


def test_a_move_cancelled_uncleanly_is_led_by_who_has_all_that_is_committed() -> None:
    """Of the old replicas one is eligible, and the first is not."""
    four = Cluster(min_insync_replicas=2)
    for broker_id in (1, 2, 3, 4):
        four.start_broker(broker_id)
    unclean: dict[str, str | None] = {"unclean.leader.election.enable": "true"}
    four.create_topics(new_topic("orders", configs=unclean, assignments={0: [1, 2]}))
    four.reassign({ORDERS: [3, 4]})
    four.heartbeat(1, want_fence=True)
    four.alter_partition("orders", [2, 3])
    four.heartbeat(2, want_fence=True)
    four.heartbeat(1)
    four.heartbeat(2)
    before = four.partition("orders")
    assert (before.isr, before.elr) == ((3,), (2,))
    assert four.reassign({ORDERS: None}) == {ORDERS: (0, None)}
    after = four.partition("orders")
    assert (after.replicas, after.leader, after.isr) == ((1, 2), 2, (2,))


@pytest.mark.parametrize("levels", [{"metadata.version": 30}, None])
def test_a_move_cancelled_while_the_old_replicas_are_down_leaves_the_partition_to_them(
    levels: dict[str, int] | None,
) -> None:
    """Whoever was added is no replica any more: it must not stay the only one in sync, with or
    without eligible leader replicas."""
    three = Cluster() if levels is None else Cluster(features=levels)
    for broker_id in (1, 2, 3):
        three.start_broker(broker_id)
    unclean: dict[str, str | None] = {"unclean.leader.election.enable": "true"}
    three.create_topics(new_topic("orders", configs=unclean, assignments={0: [1]}))
    three.reassign({ORDERS: [2, 3]})
    three.alter_partition("orders", [1, 2])
    three.heartbeat(1, want_fence=True)
    assert three.partition("orders").isr == (2,)
    assert three.reassign({ORDERS: None}) == {ORDERS: (0, None)}
    after = three.partition("orders")
    assert (after.replicas, after.leader) == ((1,), -1)
    assert set(after.isr) <= {1}
    three.heartbeat(1)
    assert three.partition("orders").leader == 1


def test_a_partition_named_twice_is_moved_from_where_the_first_move_puts_it() -> None:
    made = on_brokers(4, 3)
    replicas = made.partition("orders").replicas
    stay, newcomer = list(replicas[1:]), ({1, 2, 3, 4} - set(replicas)).pop()
    topic = AlterPartitionReassignmentsRequest.Topic
    request = AlterPartitionReassignmentsRequest(
        topics=[
            topic(
                name="orders",
                partitions=[
                    topic.Partition(partition_index=0, replicas=wanted)
                    for wanted in ([*stay, newcomer], stay)
                ],
            )
        ],
    )
    made.run(reassignments.alter_partition_reassignments(made.image, made.config, request))
    moved = made.partition("orders")
    assert (moved.adding_replicas, moved.removing_replicas) == ((), ())
    assert moved.replicas == moved.isr == tuple(stay)
