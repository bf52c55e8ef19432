"""AlterPartition (H-8): who may change an ISR to what, and what the leader is told."""

from __future__ import annotations

from typing import Any

import pytest

from replication.metadata.image import RECOVERED, RECOVERING
from tests.replication.controller_support import Cluster
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import AlterPartitionRequest


def three(**config: Any) -> Cluster:
    """`orders`-0 on brokers 1, 2, 3; 4 is registered but fenced."""
    made = Cluster(**config)
    for broker_id in (1, 2, 3):
        made.start_broker(broker_id)
    made.create("orders", 1, 3)
    made.register(4)
    return made


def _fence(broker_id: int) -> Any:
    return lambda made: made.heartbeat(broker_id, want_fence=True)


def _shut_down(broker_id: int) -> Any:
    def begin(made: Cluster) -> None:
        made.create("other", 1, 3)
        made.heartbeat(broker_id, want_shut_down=True)

    return begin


def _move_to_four(made: Cluster) -> None:
    made.reassign({("orders", 0): [1, 2, 3, 4]})


def _nothing(made: Cluster) -> None:
    pass


@pytest.mark.parametrize(
    ("before", "isr", "changes", "code"),
    [
        # The request's epochs are ahead: a newer controller gave them (KAFKA-14154).
        (_nothing, [1, 2], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        (_nothing, [1, 2], {"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        (_nothing, [1, 2], {"leader_epoch": -1, "partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        (_nothing, [1, 2], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        (_nothing, [1, 2], {"leader_epoch": -1, "sender": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        (_nothing, [1, 2], {"sender": 2}, ErrorCode.INVALID_REQUEST),
        (_nothing, [1, 2], {"sender": 2, "partition_epoch": -1}, ErrorCode.INVALID_REQUEST),
        (_nothing, [1, 2], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        (_nothing, [2, 3], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        (_nothing, [], {}, ErrorCode.INVALID_REQUEST),
        (_nothing, [1, 1, 2], {}, ErrorCode.INVALID_REQUEST),
        (_nothing, [1, 4], {}, ErrorCode.INVALID_REQUEST),
        (_nothing, [2, 3], {}, ErrorCode.INVALID_REQUEST),
        (_nothing, [1], {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        (_nothing, [1, 2], {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        (_nothing, [1], {"leader_recovery_state": 9}, ErrorCode.INVALID_REQUEST),
        (_fence(3), [1, 2, 3], {}, ErrorCode.INELIGIBLE_REPLICA),
        (_shut_down(3), [1, 2, 3], {}, ErrorCode.INELIGIBLE_REPLICA),
        (_move_to_four, [1, 2, 3, 4], {}, ErrorCode.INELIGIBLE_REPLICA),
        (_nothing, [1, 2, 3], {"epochs": {3: 1}}, ErrorCode.INELIGIBLE_REPLICA),
        (_nothing, [1, 2, 3], {"epochs": {3: -1}}, ErrorCode.NONE),
        (_nothing, [1, 2], {}, ErrorCode.NONE),
        (_nothing, [1], {}, ErrorCode.NONE),
    ],
)
def test_each_check_has_its_code_and_the_first_that_fails_decides(
    before: Any, isr: list[int], changes: dict[str, Any], code: ErrorCode
) -> None:
    made = three()
    before(made)
    count = len(made.log)
    answer = made.alter_partition("orders", isr, **changes)
    assert answer.error_code == code
    if code != ErrorCode.NONE:
        assert len(made.log) == count, "a refusal writes nothing"


def test_a_shrunk_isr_is_answered_with_the_state_that_holds_now() -> None:
    made = three()
    answer = made.alter_partition("orders", [1, 3])
    now = made.partition("orders")
    assert now.isr == (1, 3)
    assert (answer.isr, answer.leader_id, answer.leader_epoch) == ([1, 3], 1, now.leader_epoch)
    assert (answer.partition_epoch, answer.leader_recovery_state) == (1, RECOVERED)
    assert now.leader_epoch == 0, "an ISR change needs no new leader epoch"


def test_the_same_isr_again_writes_nothing_and_succeeds() -> None:
    made = three()
    count = len(made.log)
    answer = made.alter_partition("orders", [1, 2, 3])
    assert (answer.error_code, answer.partition_epoch) == (0, 0)
    assert len(made.log) == count


def test_the_epoch_of_the_answer_is_the_one_to_ask_with_next() -> None:
    made = three()
    answer = made.alter_partition("orders", [1])
    again = made.alter_partition("orders", [1, 2], partition_epoch=answer.partition_epoch)
    assert again.error_code == 0
    assert made.partition("orders").isr == (1, 2)


def test_another_incarnation_of_the_sender_is_stale() -> None:
    made = three()
    request = AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=[])
    with pytest.raises(KafkaError) as refused:
        made.ask_alter_partition(request)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_unknown_topics_and_partitions_are_named_alone() -> None:
    made = three()
    topic, known = AlterPartitionRequest.Topic, made.image.topics_by_name["orders"].topic_id
    wanted = topic.Partition
    members = [wanted.BrokerState(broker_id=1, broker_epoch=-1)]

    def asked(index: int) -> AlterPartitionRequest.Topic.Partition:
        return wanted(
            partition_index=index, leader_epoch=0, partition_epoch=0, leader_recovery_state=0,
            new_isr_with_epochs=members,
        )  # fmt: skip

    answer = made.ask_alter_partition(
        AlterPartitionRequest(
            broker_id=1,
            broker_epoch=made.image.brokers[1].broker_epoch,
            topics=[
                topic(topic_id=b"\x99" * 16, partitions=[asked(0)]),
                topic(topic_id=known, partitions=[asked(7), asked(0), asked(0)]),
            ],
        )
    )
    codes = [p.error_code for t in answer.topics for p in t.partitions]
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_UPDATE_VERSION,  # asked twice: its epoch moved on with the first
    ]
    assert made.partition("orders").partition_epoch == 1


def test_version_2_names_members_without_epochs() -> None:
    made = three()
    answer = made.alter_partition("orders", [], new_isr_with_epochs=[], new_isr=[1, 2])
    assert answer.error_code == 0
    assert made.partition("orders").isr == (1, 2)


def test_members_that_leave_below_min_isr_wait_in_the_elr_and_leave_it_when_they_return() -> None:
    made = three(min_insync_replicas=2)
    made.alter_partition("orders", [1, 2])
    assert made.partition("orders").elr == ()
    made.alter_partition("orders", [1])
    assert made.partition("orders").elr == (2,)
    made.alter_partition("orders", [1, 3])
    assert (made.partition("orders").isr, made.partition("orders").elr) == ((1, 3), ())


def test_a_leader_reports_that_its_recovery_is_over() -> None:
    made = Cluster(features={"metadata.version": 30}, unclean_leader_election_enable=True)
    for broker_id in (1, 2):
        made.start_broker(broker_id)
    made.create("orders", 1, 2)
    made.heartbeat(2, want_fence=True)
    made.heartbeat(1, want_fence=True)
    made.heartbeat(2)
    assert made.partition("orders").leader_recovery_state == RECOVERING
    made.heartbeat(1)
    grown = made.alter_partition("orders", [2, 1])
    assert grown.error_code == ErrorCode.INVALID_REQUEST, "alone until it has recovered"
    done = made.alter_partition("orders", [2], leader_recovery_state=RECOVERED)
    assert (done.error_code, done.leader_recovery_state) == (0, RECOVERED)
    assert made.alter_partition("orders", [2, 1]).error_code == 0
    assert made.partition("orders").isr == (2, 1)
    back = made.alter_partition("orders", [2], leader_recovery_state=RECOVERING)
    assert back.error_code == ErrorCode.INVALID_REQUEST


# --- reassignments end here (B-6) ---------------------------------------------------------------


def test_a_move_ends_when_the_last_added_replica_is_in_sync() -> None:
    made = three()
    made.heartbeat(4)
    made.start_broker(5)
    made.reassign({("orders", 0): [1, 4, 5]})
    assert made.alter_partition("orders", [1, 2, 3, 4]).error_code == 0
    moving = made.partition("orders")
    assert (moving.replicas, moving.adding_replicas) == ((1, 4, 5, 2, 3), (4, 5))
    epoch = moving.leader_epoch
    answer = made.alter_partition("orders", [1, 2, 3, 4, 5])
    done = made.partition("orders")
    assert (done.replicas, done.isr) == ((1, 4, 5), (1, 4, 5))
    assert (done.adding_replicas, done.removing_replicas) == ((), ())
    assert done.leader_epoch == epoch + 1, "the removed replicas are fenced off"
    assert (answer.error_code, answer.isr) == (0, [1, 4, 5])
    assert made.reassigning() == {}


def test_a_leader_that_is_moved_away_learns_it_from_the_metadata() -> None:
    made = three()
    made.heartbeat(4)
    made.reassign({("orders", 0): [2, 3, 4]})
    answer = made.alter_partition("orders", [1, 2, 3, 4])
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    done = made.partition("orders")
    assert (done.leader, done.replicas, done.isr) == (2, (2, 3, 4), (2, 3, 4))


def test_fewer_replicas_only_when_all_that_stay_are_in_sync() -> None:
    made = three()
    made.alter_partition("orders", [1, 2])
    made.reassign({("orders", 0): [1, 3]})
    waiting = made.partition("orders")
    assert (waiting.replicas, waiting.removing_replicas) == ((1, 3, 2), (2,))
    made.alter_partition("orders", [1, 2, 3])
    assert made.partition("orders").replicas == (1, 3)


def test_a_replaced_move_goes_on_adding_what_both_want() -> None:
    made = three()
    made.heartbeat(4)
    made.start_broker(5)
    made.reassign({("orders", 0): [1, 2, 4]})
    made.reassign({("orders", 0): [1, 4, 5]})
    moving = made.partition("orders")
    assert (moving.replicas, moving.adding_replicas) == ((1, 4, 5, 2, 3), (4, 5))
    made.reassign({("orders", 0): [1, 2, 3]})
    back = made.partition("orders")
    assert (back.replicas, back.adding_replicas, back.removing_replicas) == ((1, 2, 3), (), ())
    assert made.reassigning() == {}


def test_a_move_goes_on_under_another_controller() -> None:
    from replication.metadata.image import EMPTY_IMAGE
    from tests.replication.controller_support import replayed

    made = three()
    made.heartbeat(4)
    made.reassign({("orders", 0): [1, 2, 4]})
    made.image = replayed(EMPTY_IMAGE, made.log)
    assert made.reassigning() == {("orders", 0): ([1, 2, 4, 3], [4], [3])}
    made.alter_partition("orders", [1, 2, 3, 4])
    assert made.partition("orders").replicas == (1, 2, 4)
