"""What a leader asks of the controller about its ISR, and what becomes of the answers (H-7).

`Leading` decides what to ask for and what an answer means. This carries the question out, the
answer back to the leadership that asked, and counts: the asking half of Kafka's Partition, and its
AlterPartitionListener.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from replication.partition.isr import IsrState
from replication.partition.leading import IsrOutcome, Leading
from replication.partition.requests import AlteredIsr, IsrChange
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from threading import Lock

    from replication.partition.roles import Role
    from storage.log.partition_log import PartitionLog
    from wire.primitives import TopicPartition

logger = logging.getLogger(__name__)


class Shell(Protocol):
    """What is needed of the partition; it is held only while a question is under way."""

    topic_partition: TopicPartition
    topic_id: bytes
    role: Role
    log: PartitionLog | None

    @property
    def lock(self) -> Lock: ...

    def advance_high_watermark(self, role: Leading, log: PartitionLog) -> bool: ...

    def made_progress(self) -> None: ...


_PATIENCE_S = 0.1
"""Longer than any append holds the lock."""


class IsrChanges:
    """See the module."""

    __slots__ = ("_alter_isr",)

    def __init__(self, alter_isr: Callable[[IsrChange], object] | None) -> None:
        """`alter_isr` hands a change to the controller; None on a node alone, which never asks."""
        self._alter_isr = alter_isr

    @property
    def may_ask(self) -> bool:
        return self._alter_isr is not None

    def ask(self, change: IsrChange) -> None:
        """Call it with no lock held."""
        assert self._alter_isr is not None, "only a partition of a cluster asks for another ISR"
        self._alter_isr(change)

    def change_to(self, shell: Shell, role: Leading, proposed: IsrState) -> IsrChange:
        """What to `ask`, when the lock is not held any more: may the ISR be as `role` proposed?"""
        return IsrChange(
            shell.topic_partition,
            shell.topic_id,
            role.leader_epoch,
            role.partition_epoch,
            role.members(proposed),
            partial(self._answered, shell, role.leader_epoch, proposed),
        )

    def maybe_shrink(self, shell: Shell, now_ms: int) -> None:
        """H-5: propose to remove who lags; and H-1: wait no longer for who might have joined, had
        it not fallen silent. Who is gone tells nobody, and where all wait nothing else is done that
        would have the high watermark looked at.

        A partition whose disk hangs holds its lock: it must not keep this from all others, so it is
        looked at in the next round.
        """
        if not shell.lock.acquire(timeout=_PATIENCE_S):
            return
        try:
            role, log = shell.role, shell.log
            if type(role) is not Leading or log is None or not self.may_ask:
                return
            is_advanced = not role.all_in_sync and shell.advance_high_watermark(role, log)
            state = role.shrink_isr(role.leader_epoch, log.log_end_offset, now_ms)
            change = None if state is None else self.change_to(shell, role, state)
        finally:
            shell.lock.release()
        if state is not None and change is not None:
            logger.info(
                "shrinking the ISR partition=%s-%s isr=%s out_of_sync=%s",
                *shell.topic_partition, sorted(state.isr), sorted(state.isr - state.proposed),
            )  # fmt: skip
            self.ask(change)
        if is_advanced:
            shell.made_progress()

    def _answered(
        self, shell: Shell, leader_epoch: int, proposed: IsrState, answer: AlteredIsr | ErrorCode
    ) -> None:
        """The controller answered a change that was asked for under `leader_epoch`."""
        retry = None
        with shell.lock:
            role, log = shell.role, shell.log
            if type(role) is not Leading or log is None:
                return
            outcome = role.isr_answered(leader_epoch, proposed, answer)
            if outcome in (IsrOutcome.IGNORED, IsrOutcome.PENDING):
                return
            if outcome is IsrOutcome.RETRY:
                retry = self.change_to(shell, role, proposed)
            shell.advance_high_watermark(role, log)
        logger.info(
            "ISR partition=%s-%s isr=%s partition_epoch=%s answer=%s",
            *shell.topic_partition, sorted(role.isr_state.isr), role.partition_epoch,
            answer.name if isinstance(answer, ErrorCode) else "NONE",
        )  # fmt: skip
        if retry is not None:
            self.ask(retry)
        shell.made_progress()
