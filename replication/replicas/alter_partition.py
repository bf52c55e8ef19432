"""Asking the controller for other ISRs: one request in flight, many partitions in it (KIP-497).

What: leaders hand in `IsrChange`s; they go to the controller as AlterPartition, and each gets its
answer (H-7). Kafka: DefaultAlterPartitionManager.

Transitions of a change:

    handed in --another is pending for the partition--> answered OPERATION_NOT_ATTEMPTED
    handed in --> unsent --> sent --answered for this partition--> its `on_answer`, forgotten
                        sent --no answer, or an error of the whole request--> unsent, in 50 ms

A change whose leader epoch is over is sent again and again until the controller answers it: it
says FENCED_LEADER_EPOCH then.

Lock: that of `OneInFlight` guards the map; nothing is called under it. Threads: any; `submit` may
run `on_answer` before it returns only with OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from replication.partition.requests import AlteredIsr, IsrChange
from replication.replicas.one_in_flight import Delay, OneInFlight, Submit
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import AlterPartitionRequest, AlterPartitionResponse

logger = logging.getLogger(__name__)

RETRY_MS = 50
_Topic = AlterPartitionRequest.Topic
_Partition = AlterPartitionRequest.Topic.Partition
_Key = tuple[bytes, int]
"""(topic id, partition index): who is made again under a name waits for no answer about another."""


class AlterPartitionManager:
    """See the module."""

    def __init__(
        self, submit: Submit, broker_epoch: Callable[[], int], node_id: int, timer: Delay
    ) -> None:
        self._broker_epoch = broker_epoch
        self._node_id = node_id
        self._pending: dict[_Key, IsrChange] = {}
        self._controller = OneInFlight(
            submit,
            timer,
            RETRY_MS,
            take=lambda: list(self._pending.values()),
            request=self._request,
            answered=self._answered,
        )

    @property
    def pending(self) -> int:
        """How many partitions wait for the controller's answer."""
        return len(self._pending)

    def submit(self, change: IsrChange) -> None:
        """Ask for a change; `change.on_answer` tells what became of it."""
        with self._controller.lock:
            is_taken = self._pending.setdefault(_key(change), change) is change
        if is_taken:
            self._controller.send()
        else:
            change.on_answer(ErrorCode.OPERATION_NOT_ATTEMPTED)

    def shutdown(self) -> None:
        """Send nothing more; pending changes are never answered."""
        self._controller.stop()
        with self._controller.lock:
            self._pending.clear()

    def _request(self, changes: list[IsrChange]) -> AlterPartitionRequest:
        epoch = self._broker_epoch()
        topics = self._topics(changes, epoch)
        return AlterPartitionRequest(broker_id=self._node_id, broker_epoch=epoch, topics=topics)

    def _topics(self, changes: list[IsrChange], epoch: int) -> list[_Topic]:
        by_id: dict[bytes, list[_Partition]] = {}
        for change in changes:
            by_id.setdefault(change.topic_id, []).append(
                _Partition(
                    partition_index=change.topic_partition[1],
                    leader_epoch=change.leader_epoch,
                    new_isr=[broker_id for broker_id, _ in change.isr],
                    new_isr_with_epochs=[
                        _Partition.BrokerState(
                            broker_id=broker_id,
                            broker_epoch=epoch if broker_id == self._node_id else broker_epoch,
                        )
                        for broker_id, broker_epoch in change.isr
                    ],
                    # There is no recovery but to lead: whoever leads has recovered (KIP-704).
                    leader_recovery_state=0,
                    partition_epoch=change.partition_epoch,
                )
            )
        return [_Topic(topic_id=topic_id, partitions=found) for topic_id, found in by_id.items()]

    def _answered(self, changes: list[IsrChange], answer: object) -> bool:
        answers: list[tuple[IsrChange, AlteredIsr | ErrorCode]] = []
        if isinstance(answer, AlterPartitionResponse) and not answer.error_code:
            by_key = {
                (topic.topic_id, p.partition_index): p
                for topic in answer.topics
                for p in topic.partitions
            }
            for change in changes:
                found = by_key.get(_key(change))
                if found is not None:
                    answers.append((change, _outcome(found)))
        else:
            logger.warning("controller did not answer AlterPartition error=%s", _reason(answer))
        with self._controller.lock:
            for change, _ in answers:
                if self._pending.get(_key(change)) is change:
                    del self._pending[_key(change)]
        is_smooth = len(answers) == len(changes)
        for change, outcome in answers:
            if isinstance(outcome, ErrorCode):
                is_smooth = False
                logger.info(
                    "ISR change was refused partition=%s-%s isr=%s error=%s",
                    *change.topic_partition, [member for member, _ in change.isr], outcome.name,
                )  # fmt: skip
            try:
                change.on_answer(outcome)
            except Exception:
                logger.exception("ISR change failed partition=%s-%s", *change.topic_partition)
        return is_smooth


def _key(change: IsrChange) -> _Key:
    return change.topic_id, change.topic_partition[1]


def _outcome(partition: Any) -> AlteredIsr | ErrorCode:
    if partition.error_code:
        return ErrorCode(partition.error_code)
    return AlteredIsr(partition.leader_epoch, partition.partition_epoch, tuple(partition.isr))


def _reason(answer: object) -> str:
    if isinstance(answer, KafkaError):
        return str(answer)
    code = getattr(answer, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR)
    return ErrorCode(code).name
