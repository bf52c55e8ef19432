"""Asking the controller with one request at a time; what gathers meanwhile goes with the next.

Why one at a time: a broker's death changes a thousand ISRs within a moment, and a directory's
failure moves as many replicas. The second request takes what came while the first was on its way.
Kafka: DefaultAlterPartitionManager, AssignmentsManager.

Transitions: idle --something gathered--> in flight --answered in full--> idle, and again
                                          '--no answer, or not for all--> again, after the pause

Lock: `lock` guards this and what its owner gathers; nothing but `take` is called under it.
Threads: any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any, Generic, Protocol, TypeVar

B = TypeVar("B", bound=Sized)
"""What one request asks for."""

Submit = Callable[[Any, Callable[[Any], None]], object]
"""`Controller.submit` or `ControllerChannel.submit`: the response or a KafkaError comes back."""


class Delay(Protocol):
    """`replication.replicas.timer.Timer`, as far as it is needed here."""

    def add(self, delay_ms: int, fn: Callable[[], None], /) -> object: ...


class OneInFlight(Generic[B]):
    """See the module."""

    def __init__(
        self,
        submit: Submit,
        timer: Delay,
        retry_ms: int,
        *,
        take: Callable[[], B],
        request: Callable[[B], object],
        answered: Callable[[B, object], bool],
    ) -> None:
        """`take`: what is wanted now, empty for nothing. `answered`: a response or a KafkaError
        came; False where something of it must be asked again.
        """
        self.lock = threading.Lock()
        self._submit = submit
        self._timer = timer
        self._retry_ms = retry_ms
        self._take = take
        self._request = request
        self._answered = answered
        self._is_busy = False  # a request is in flight, or will be sent after the pause
        self._is_stopped = False

    def send(self) -> None:
        """Ask for all that is wanted, unless a request is on its way: then after it."""
        with self.lock:
            if self._is_busy or self._is_stopped:
                return
            wanted = self._take()
            self._is_busy = len(wanted) > 0
        if wanted:
            self._submit(self._request(wanted), lambda answer: self._came(wanted, answer))

    def stop(self) -> None:
        """Ask for nothing more."""
        with self.lock:
            self._is_stopped = True

    def _came(self, wanted: B, answer: object) -> None:
        if self._answered(wanted, answer):
            self._send_again()
        else:
            self._timer.add(self._retry_ms, self._send_again)

    def _send_again(self) -> None:
        with self.lock:
            self._is_busy = False
        self.send()
