"""Producer ids that nobody ever had (Kafka: RPCProducerIdManager).

They come from the controller in blocks of 1,000 (AllocateProducerIds), whose ends are in the
metadata log, so none is given twice, not even after a crash: what is left of a block is forgotten.
The next block is asked for before it is needed.

Threads: any; `_lock` is held while nothing is called.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from replication.controller.context import ControllerContext
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import AllocateProducerIdsRequest

if TYPE_CHECKING:
    from server.coordinator.runtime import Surroundings

_PREFETCH_LEFT = 100
"""The next block is asked for when so many ids are left (Kafka: 10% of a block)."""


class NoProducerId(KafkaError):
    """None is left, the controller is being asked: COORDINATOR_LOAD_IN_PROGRESS, which every
    client retries.
    """

    def __init__(self) -> None:
        super().__init__(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class ProducerIds:
    """See the module. One per broker."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._lock = threading.Lock()
        self._next = 0
        self._left = 0
        self._blocks: deque[tuple[int, int]] = deque()
        self._is_asking = False
        self._waiting: deque[Callable[[int | KafkaError], None]] = deque()

    def next(self) -> int:
        """A fresh id at once, or NoProducerId."""
        producer_id = self._take(None)
        if producer_id is None:
            raise NoProducerId
        return producer_id

    def take(self, answer: Callable[[int | KafkaError], None]) -> None:
        """Call `answer` with a fresh id: now, or when the controller gave a block. A failed
        allocation answers NoProducerId.
        """
        producer_id = self._take(answer)
        if producer_id is not None:
            answer(producer_id)

    def put_back(self, producer_id: int) -> None:
        """Nobody was told this id: it is dealt out again."""
        with self._lock:
            if producer_id == self._next - 1:
                self._next, self._left = producer_id, self._left + 1
            else:
                self._blocks.append((producer_id, 1))

    def _take(self, waiting: Callable[[int | KafkaError], None] | None) -> int | None:
        """An id if there is one, else `waiting` waits for the next block."""
        with self._lock:
            producer_id = self._take_one()
            if producer_id is None and waiting is not None:
                self._waiting.append(waiting)
            ask = not self._is_asking and self._left <= _PREFETCH_LEFT and not self._blocks
            self._is_asking |= ask
        if ask:
            self._ask()
        return producer_id

    def _take_one(self) -> int | None:
        if not self._left:
            if not self._blocks:
                return None
            self._next, self._left = self._blocks.popleft()
        producer_id = self._next
        self._next += 1
        self._left -= 1
        return producer_id

    def _ask(self) -> None:
        around = self._around
        registration = around.metadata().brokers.get(around.node_id)
        around.controller.submit(
            AllocateProducerIdsRequest(
                broker_id=around.node_id,
                broker_epoch=-1 if registration is None else registration.broker_epoch,
            ),
            self._given,
            context=ControllerContext(),
        )

    def _given(self, response: Any) -> None:
        """The controller answered: serve who waits, or tell them to try again."""
        answers: list[tuple[Callable[[int | KafkaError], None], int | KafkaError]] = []
        with self._lock:
            self._is_asking = False
            failed = isinstance(response, KafkaError) or response.error_code
            if not failed:
                self._blocks.append((response.producer_id_start, response.producer_id_len))
            while self._waiting:
                producer_id = self._take_one()
                if producer_id is None and not failed:
                    break
                waiting = self._waiting.popleft()
                answers.append((waiting, NoProducerId() if producer_id is None else producer_id))
            ask_again = bool(self._waiting)
            self._is_asking |= ask_again
        for answer, value in answers:
            answer(value)
        if ask_again:
            self._ask()
