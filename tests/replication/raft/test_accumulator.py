"""What waits to be written: offsets, epochs, the end of a leadership and of the node."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from replication.raft import batches
from replication.raft.accumulator import BatchAccumulator
from replication.raft.own_events import LeaderChange
from wire.errors import ErrorCode, KafkaError


def led(epoch: int = 3, log_end_offset: int = 10) -> BatchAccumulator:
    made = BatchAccumulator()
    made.append_control(LeaderChange(1, epoch, (), ()), log_end_offset, 0)
    made.open(epoch)
    return made


def refused(made: BatchAccumulator, epoch: int) -> None:
    with pytest.raises(KafkaError) as error:
        made.append(epoch, ["x"], [b"x"], 0)
    assert error.value.code == ErrorCode.NOT_CONTROLLER


def test_batches_get_the_offsets_behind_the_leader_change_and_leave_in_order() -> None:
    made = led()
    assert made.next_offset(3) == 11
    assert made.append(3, ["a", "b"], [b"a", b"b"], 0) == 12
    assert made.append(3, ["c"], [b"c"], 0) == 13
    waiting = made.drain()
    assert [batch.committed.base_offset for batch in waiting] == [10, 11, 13]
    assert not made
    assert made.next_offset(3) == 14


def test_only_the_epoch_that_is_led_is_taken() -> None:
    refused(BatchAccumulator(), 3)
    made = led()
    refused(made, 2)
    refused(made, 4)
    made.close()
    refused(made, 3)
    assert not made, "what was not written never will be"


def test_a_node_that_stops_takes_nothing_more_and_still_writes_what_waits() -> None:
    made = led()
    made.append(3, ["a"], [b"a"], 0)
    made.stop()
    refused(made, 3)
    assert len(made.drain()) == 2


def test_a_batch_that_is_too_large_takes_no_offset() -> None:
    made = led()
    with pytest.raises(KafkaError) as error:
        made.append(3, ["x"], [bytes(9 << 20)], 0)
    assert error.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert made.next_offset(3) == 11


def test_the_drivers_thread_does_not_wait_while_a_batch_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, drained = led(), []
    build = batches.build_batch

    def build_while_another_drains(*records: Any, **fields: Any) -> bytes:
        other = threading.Thread(target=lambda: drained.append(len(made.drain())))
        other.start()
        other.join(10)
        return build(*records, **fields)

    monkeypatch.setattr(batches, "build_batch", build_while_another_drains)
    assert made.append(3, ["a"], [b"a"], 0) == 11
    assert drained == [1], "the leader change, at once"
    assert [batch.committed.base_offset for batch in made.drain()] == [11]
