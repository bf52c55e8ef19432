"""What waits for a partition hears of what happens to it, whoever comes and goes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replication.partition.requests import AppendResult
from replication.replicas import parked_requests
from replication.replicas.delayed import (
    DelayedDeleteRecords,
    DelayedProduce,
    DeleteStatus,
    ProduceStatus,
)
from replication.replicas.parked_requests import ParkedRequests
from replication.replicas.purgatory import DelayedOperation
from replication.replicas.timer import Timer
from testkit.clock import ManualClock
from tests.replication.interleaving import interleavings

KEY = ("orders", 0)


def test_a_listener_misses_nothing_while_another_leaves() -> None:
    """A coordinator that lost its partition and is given it again: the one before takes its leave
    on a thread of its own, as late as it may be."""
    parked = ParkedRequests(Timer(ManualClock()))
    heard: list[int] = []

    def stays() -> None:
        heard.append(1)

    def leaves() -> None:
        pass

    def race() -> tuple[Callable[[], object], Callable[[], object]]:
        heard.clear()
        for listener in (leaves, stays):
            parked.remove_high_watermark_listener(KEY, listener)
            parked.add_high_watermark_listener(KEY, listener)
        return (
            lambda: parked.remove_high_watermark_listener(KEY, leaves),
            lambda: parked.appended([(KEY, True)]),
        )

    for number in interleavings(parked_requests, race):
        assert heard == [1], f"before line {number}"
    parked.remove_high_watermark_listener(KEY, stays)
    parked.remove_high_watermark_listener(KEY, leaves)
    assert parked._high_watermark_listeners == {}


class Looked:
    """As much of a partition as a parked request looks at; its followers come `is_reached`."""

    looks = 0
    is_reached = False

    def __init__(self, index: int) -> None:
        self.topic_partition = ("orders", index)
        self.role: Any = self
        self.has_enough_in_sync = True

    def must_wait(self, next_offset: int, acks: int, leader_epoch: int) -> bool:
        self.looks += 1
        return not self.is_reached

    def leads_since(self, leader_epoch: int) -> bool:
        return True

    def low_watermark(self) -> int:
        self.looks += 1
        return int(self.is_reached)


def looks_until_answered(
    partitions: list[Any], park: Callable[[ParkedRequests], DelayedOperation]
) -> list[int]:
    """How often each is looked at, where the followers come for one after the other."""
    parked = ParkedRequests(Timer(ManualClock()))
    operation = park(parked)
    for partition in partitions:
        assert not operation.is_completed
        partition.is_reached = True
        parked.partition_changed(partition)
    assert operation.is_completed
    return [partition.looks for partition in partitions]


def test_a_produce_to_many_partitions_looks_at_the_one_that_changed() -> None:
    """All others at each event of one: a request for 10,000 took 20 s of the network thread."""
    partitions: list[Any] = [Looked(index) for index in range(20)]
    told: list[list[AppendResult]] = []

    def park(parked: ParkedRequests) -> DelayedOperation:
        results = [AppendResult(one.topic_partition) for one in partitions]
        pending = [
            ProduceStatus(result, one, 1, 0, -1, position)
            for position, (result, one) in enumerate(zip(results, partitions, strict=True))
        ]
        produce = DelayedProduce(1_000, results, pending, told.append)
        parked.produce.try_complete_else_watch(produce, [one.topic_partition for one in partitions])
        return produce

    assert looks_until_answered(partitions, park) == [2] * 20
    ((*results,),) = told
    assert [result.error_code for result in results] == [0] * 20


def test_delete_records_of_many_partitions_looks_at_the_one_that_changed() -> None:
    partitions: list[Any] = [Looked(index) for index in range(20)]
    told: list[Any] = []

    def park(parked: ParkedRequests) -> DelayedOperation:
        pending = {one.topic_partition: DeleteStatus(one, 1) for one in partitions}
        delete = DelayedDeleteRecords(1_000, {}, pending, told.append)
        parked.delete_records.try_complete_else_watch(delete, list(pending))
        return delete

    assert looks_until_answered(partitions, park) == [2] * 20
    assert told == [{("orders", index): (0, 1) for index in range(20)}]
