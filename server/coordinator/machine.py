"""What a shard asks of a replicated state machine, and what the machine decides (PURE).

A request or a deadline is a function from the machine to a `Decision`, and changes nothing itself:
what is wrong with it is found out before anything was written, and costs nobody else anything. The
shard appends the decision's records; then `change` is made, then each record is replayed. So the
machine's state moves in two places only:

    replay(record)   what the log tells, live and at load alike
    change()         what is in no record (who waits for an answer, when a session ends); a failover
                     loses it

Both run after the records are in the log, and must not fail.

Answers wait until the high watermark covers the records, and so do effects: what a record makes
others do (a transaction coordinator's markers). An answer is told an error if leadership is lost
before; an effect is dropped then, and whoever loads the log next makes it anew in `on_loaded`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from server.coordinator.deadlines import Deadlines, Moment
from wire.errors import KafkaError

R = TypeVar("R")
"""The machine's own type of record; only the machine and its codec look into one."""

R_contra = TypeVar("R_contra", contravariant=True)

Reply = Callable[[object], None]
"""Takes a response or a KafkaError, once."""

Answer = tuple[Reply, object]

Effect = Callable[[], None]
"""Done once what led to it is committed; must not raise and must not wait."""


class Decision(NamedTuple, Generic[R]):
    """What one request or deadline leads to."""

    records: Sequence[R] = ()
    """Appended as one batch: all of them are in the log, or none."""
    response: object | None = None
    """A response or a KafkaError; None if `change` parks the request, or nobody asked."""
    change: Callable[[], object] | None = None


class Machine(Protocol[R_contra]):
    """A coordinator's pure state over one partition.

    `moment` is set before every call. `outbox` collects answers to requests that were parked,
    `effects` what is to be done, both from `change`, `replay` and `on_loaded`. Callbacks in
    `deadlines` return a Decision, or None for nothing.
    """

    moment: Moment
    deadlines: Deadlines
    outbox: list[Answer]
    effects: list[Effect]

    def replay(self, record: R_contra, /) -> None: ...

    def on_loaded(self) -> None: ...

    def on_unloaded(self, error: KafkaError, /) -> None: ...


M = TypeVar("M", bound=Machine[Any])
