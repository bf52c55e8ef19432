"""Asking the controller for another ISR: one at a time, answered by H-7, and who is where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replication.partition.requests import AlteredIsr, IsrChange
from replication.replicas.alter_partition import RETRY_MS, AlterPartitionManager
from replication.replicas.assignments import RETRY_MS as ASSIGNMENT_RETRY_MS
from replication.replicas.assignments import AssignmentsManager
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import (
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from wire.primitives import TopicPartition

TOPIC_ID, NODE, EPOCH = b"orders-topic-id!", 1, 71


class Channel:
    """The way to the controller, answered by the test; and the timer."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.waiting: list[Callable[[Any], None]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []

    def submit(self, request: Any, on_complete: Callable[[Any], None]) -> None:
        version = type(request).versions[1]
        self.requests.append(type(request).decode(request.encode_bytes(version), version))
        self.waiting.append(on_complete)

    def add(self, delay_ms: int, fn: Callable[[], None]) -> None:
        self.timers.append((delay_ms, fn))

    def answer(self, answer: Any) -> None:
        self.waiting.pop(0)(answer)

    def ring(self) -> int:
        delay_ms, fn = self.timers.pop(0)
        fn()
        return delay_ms


class Leader:
    """Collects what a change was answered with."""

    def __init__(
        self,
        index: int = 0,
        isr: tuple[tuple[int, int], ...] = ((1, -1), (2, 72)),
        topic_id: bytes = TOPIC_ID,
    ) -> None:
        self.told: list[AlteredIsr | ErrorCode] = []
        self.change = IsrChange(
            TopicPartition("orders", index), topic_id, 4, 9, isr, self.told.append
        )


def altered(
    *partitions: tuple[int, int], isr: tuple[int, ...] = (1, 2), topic_id: bytes = TOPIC_ID
) -> AlterPartitionResponse:
    """(index, error code) each."""
    partition = AlterPartitionResponse.Topic.Partition
    return AlterPartitionResponse(
        error_code=0,
        topics=[
            AlterPartitionResponse.Topic(
                topic_id=topic_id,
                partitions=[
                    partition(
                        partition_index=index, error_code=code, leader_id=1, leader_epoch=4,
                        isr=list(isr), leader_recovery_state=0, partition_epoch=10,
                    )
                    for index, code in partitions
                ],
            )
        ],
    )  # fmt: skip


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def manager(channel: Channel) -> AlterPartitionManager:
    return AlterPartitionManager(channel.submit, lambda: EPOCH, NODE, channel)


def test_a_change_goes_out_with_both_epochs_and_comes_back_committed(
    channel: Channel, manager: AlterPartitionManager
) -> None:
    leader = Leader()
    manager.submit(leader.change)
    (request,) = channel.requests
    assert (request.broker_id, request.broker_epoch) == (NODE, EPOCH)
    (partition,) = request.topics[0].partitions
    assert (partition.leader_epoch, partition.partition_epoch) == (4, 9)
    members = {m.broker_id: m.broker_epoch for m in partition.new_isr_with_epochs}
    assert members == {1: EPOCH, 2: 72}
    assert partition.leader_recovery_state == 0
    channel.answer(altered((0, 0)))
    assert leader.told == [AlteredIsr(4, 10, (1, 2))]
    assert manager.pending == 0


def test_changes_that_gather_while_one_is_under_way_go_together(
    channel: Channel, manager: AlterPartitionManager
) -> None:
    leaders = [Leader(index) for index in range(5)]
    for leader in leaders:
        manager.submit(leader.change)
    assert len(channel.requests) == 1
    channel.answer(altered((0, 0)))
    assert len(channel.requests) == 2
    assert len(channel.requests[1].topics[0].partitions) == 4
    channel.answer(altered(*[(index, 0) for index in range(1, 5)]))
    assert all(len(leader.told) == 1 for leader in leaders)


def test_a_second_change_of_a_partition_is_not_attempted(
    channel: Channel, manager: AlterPartitionManager
) -> None:
    first, second = Leader(), Leader()
    manager.submit(first.change)
    manager.submit(second.change)
    assert second.told == [ErrorCode.OPERATION_NOT_ATTEMPTED]
    channel.answer(altered((0, 0)))
    assert len(first.told) == 1


def test_a_topic_that_was_made_again_does_not_wait_for_what_was_asked_of_the_one_before(
    channel: Channel, manager: AlterPartitionManager
) -> None:
    before, again = Leader(), Leader(topic_id=b"orders-topic-id2")
    manager.submit(before.change)
    manager.submit(again.change)
    assert again.told == []
    channel.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    channel.ring()
    assert [topic.topic_id for topic in channel.requests[1].topics] == [
        before.change.topic_id,
        again.change.topic_id,
    ]
    channel.answer(altered((0, 0), topic_id=again.change.topic_id))
    assert again.told == [AlteredIsr(4, 10, (1, 2))]
    assert (before.told, manager.pending) == ([], 1)


@pytest.mark.parametrize(
    "nothing",
    [
        KafkaError(ErrorCode.REQUEST_TIMED_OUT),
        AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, topics=[]),
        AlterPartitionResponse(error_code=0, topics=[]),
    ],
)
def test_what_was_not_answered_is_sent_again(
    channel: Channel, manager: AlterPartitionManager, nothing: object
) -> None:
    leader = Leader()
    manager.submit(leader.change)
    channel.answer(nothing)
    assert leader.told == []
    assert channel.ring() == RETRY_MS
    assert len(channel.requests) == 2
    channel.answer(altered((0, 0)))
    assert len(leader.told) == 1


def test_a_refusal_is_told_and_the_next_request_waits_a_little(
    channel: Channel, manager: AlterPartitionManager
) -> None:
    leader = Leader()
    manager.submit(leader.change)
    channel.answer(altered((0, ErrorCode.INELIGIBLE_REPLICA)))
    assert leader.told == [ErrorCode.INELIGIBLE_REPLICA]
    again = Leader()
    manager.submit(again.change)
    assert len(channel.requests) == 1
    channel.ring()
    assert len(channel.requests) == 2


def test_after_the_shutdown_nothing_is_sent(
    channel: Channel, manager: AlterPartitionManager
) -> None:
    manager.submit(Leader().change)
    manager.shutdown()
    channel.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    channel.ring()
    assert len(channel.requests) == 1


# ---- directories


def known(request: AssignReplicasToDirsRequest, code: int = 0) -> AssignReplicasToDirsResponse:
    directory = AssignReplicasToDirsResponse.Directory
    return AssignReplicasToDirsResponse(
        error_code=0,
        directories=[
            directory(
                id=d.id,
                topics=[
                    directory.Topic(
                        topic_id=t.topic_id,
                        partitions=[
                            directory.Topic.Partition(
                                partition_index=p.partition_index, error_code=code
                            )
                            for p in t.partitions
                        ],
                    )
                    for t in d.topics
                ],
            )
            for d in request.directories
        ],
    )


ONE, OTHER = b"directory no. 1!", b"directory no. 2!"


def test_replicas_are_reported_by_directory_until_the_controller_knows(channel: Channel) -> None:
    manager = AssignmentsManager(channel.submit, lambda: EPOCH, NODE, channel)
    manager.report(TOPIC_ID, 0, ONE)
    manager.report(TOPIC_ID, 1, ONE)
    manager.report(TOPIC_ID, 2, OTHER)
    channel.answer(known(channel.requests[0]))
    sent = {
        d.id: [p.partition_index for t in d.topics for p in t.partitions]
        for d in channel.requests[1].directories
    }
    assert sent == {ONE: [1], OTHER: [2]}
    channel.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert manager.pending == 2
    assert channel.ring() == ASSIGNMENT_RETRY_MS
    channel.answer(known(channel.requests[2]))
    assert manager.pending == 0


@pytest.mark.parametrize(
    "gone",
    [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # a reassignment was cancelled meanwhile
    ],
)
def test_of_a_replica_that_is_not_here_any_more_nothing_is_reported(
    channel: Channel, gone: ErrorCode
) -> None:
    manager = AssignmentsManager(channel.submit, lambda: EPOCH, NODE, channel)
    manager.report(TOPIC_ID, 0, ONE)
    channel.answer(known(channel.requests[0], gone))
    assert manager.pending == 0


def test_a_replica_that_moved_again_is_reported_again(channel: Channel) -> None:
    manager = AssignmentsManager(channel.submit, lambda: EPOCH, NODE, channel)
    manager.report(TOPIC_ID, 0, ONE)
    manager.report(TOPIC_ID, 0, OTHER)
    channel.answer(known(channel.requests[0]))
    assert manager.pending == 1
    assert channel.requests[-1].directories[0].id == OTHER


def test_who_waits_hears_when_the_controller_knows_and_not_when_it_was_replaced(
    channel: Channel,
) -> None:
    manager = AssignmentsManager(channel.submit, lambda: EPOCH, NODE, channel)
    heard: list[str] = []
    manager.report(TOPIC_ID, 0, ONE, lambda: heard.append("one"))
    manager.report(TOPIC_ID, 0, OTHER, lambda: heard.append("other"))
    channel.answer(known(channel.requests[0]))
    assert heard == []
    channel.answer(known(channel.requests[1]))
    assert heard == ["other"]
    manager.report(TOPIC_ID, 0, OTHER, lambda: heard.append("again"))
    channel.answer(known(channel.requests[2]))
    assert heard == ["other", "again"]


def test_what_the_controller_knows_is_not_kept(channel: Channel) -> None:
    """Topics come and go, each with ids of its own."""
    manager = AssignmentsManager(channel.submit, lambda: EPOCH, NODE, channel)
    for number in range(100):
        manager.report(number.to_bytes(16, "big"), 0, ONE, lambda: None)
        channel.answer(known(channel.requests[-1]))
    assert [value for value in vars(manager).values() if isinstance(value, dict) and value] == []


def test_a_report_that_is_taken_back_while_it_is_under_way_is_taken_back(channel: Channel) -> None:
    manager = AssignmentsManager(channel.submit, lambda: EPOCH, NODE, channel)
    manager.report(TOPIC_ID, 0, ONE)
    channel.answer(known(channel.requests[0]))
    manager.report(TOPIC_ID, 0, OTHER)
    manager.report(TOPIC_ID, 0, ONE)  # the last thing that was known, but not any more
    channel.answer(known(channel.requests[1]))
    assert channel.requests[-1].directories[0].id == ONE
