"""Many answers as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from wire.errors import KafkaError

T = TypeVar("T")


class Gather(Generic[T]):
    """Joins a known number of answers from any threads into one list, in the order asked."""

    def __init__(self, count: int, on_complete: Callable[[list[T]], None]) -> None:
        self._lock = threading.Lock()
        self._parts: list[T | None] = [None] * count
        self._missing = count
        self._on_complete = on_complete
        if not count:
            on_complete([])

    def put(self, i: int, part: T) -> None:
        """The answer number `i`."""
        if isinstance(part, KafkaError):
            part.__traceback__ = None  # its frames hold this object: a cycle for each answer
        with self._lock:
            assert self._parts[i] is None, "answered twice"
            self._parts[i] = part
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self._on_complete([part for part in self._parts if part is not None])

    def put_or(self, i: int, failed: Callable[[KafkaError], T], reply: object) -> None:
        """The answer number `i` from a coordinator's reply: what `failed` makes of an error."""
        self.put(i, failed(reply) if isinstance(reply, KafkaError) else cast("T", reply))
