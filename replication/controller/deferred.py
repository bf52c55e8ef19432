"""Answers that wait until what they rest on is published (Kafka: DeferredEventQueue).

What: each answer is given when the loader has published the offset it was decided on, or refused
with NOT_CONTROLLER when what stands at that offset is, or will be, another leader's. Why: "exists
already" may rest on a record that is not committed yet. Threads: the controller's adds and refuses,
the loader's gives, the raft driver's says when an epoch ended; one lock, not held while answering.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

OnComplete = Callable[[Any], None]
"""Called exactly once with the response or a KafkaError."""


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller")


def complete(on_complete: OnComplete, answer: Any) -> None:
    """Give one answer; a fault of who takes it is logged and stays there."""
    try:
        on_complete(answer)
    except Exception:
        logger.exception("a completion of a controller request failed")


class _Waiting(NamedTuple):
    """An answer that waits for `offset` to be published, as it was written in `epoch`."""

    offset: int
    epoch: int
    on_complete: OnComplete
    answer: Any


class DeferredAnswers:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._waiting: deque[_Waiting] = deque()
        self._published_offset = -1
        self._ended = -1, -1
        """The last epoch this node led and lost, and what was committed by then."""

    def give(self, offset: int, epoch: int, on_complete: OnComplete, answer: Any) -> None:
        """Answer when everything up to `offset`, decided in `epoch`, is published."""
        waiting = _Waiting(offset, epoch, on_complete, answer)
        with self._lock:
            if self._published_offset < offset:
                self._waiting.append(waiting)
                return
            answer = self._valid(waiting)
        complete(on_complete, answer)

    def epoch_ended(self, epoch: int, committed_offset: int) -> None:
        """At once, not when the controller's thread comes to it: what another leader commits is
        published from here on, at offsets for which answers of ours may wait.
        """
        with self._lock:
            self._ended = epoch, committed_offset

    def published(self, offset: int) -> None:
        """Give the answers that rest on nothing newer."""
        ready = []
        with self._lock:
            self._published_offset = offset
            while self._waiting and self._waiting[0].offset <= offset:
                waiting = self._waiting.popleft()
                ready.append((waiting.on_complete, self._valid(waiting)))
        for on_complete, answer in ready:
            complete(on_complete, answer)

    def refuse_above(self, committed_offset: int) -> None:
        """What is not committed never will be answered as if it were."""
        with self._lock:
            refused = [waiting for waiting in self._waiting if waiting.offset > committed_offset]
            self._waiting = deque(w for w in self._waiting if w.offset <= committed_offset)
        for waiting in refused:
            complete(waiting.on_complete, not_controller())

    def refuse_unpublished(self) -> None:
        """The controller stops: nobody who asked stays without an answer."""
        self.refuse_above(self._published_offset)

    def _valid(self, waiting: _Waiting) -> Any:
        """The answer, unless it was decided on records that were not committed when this node
        ceased to lead; under the lock.
        """
        epoch, committed_offset = self._ended
        is_void = waiting.epoch < epoch or (
            waiting.epoch == epoch and waiting.offset > committed_offset
        )
        return not_controller() if is_void else waiting.answer
