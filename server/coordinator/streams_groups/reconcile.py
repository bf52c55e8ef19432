"""The next step of one member towards the target assignment (PURE; CurrentAssignmentBuilder,
ST-21).

As for consumers, a member gives back first, says that it has, and what is free is told to whoever
is to have it in its own heartbeat. What is free is a matter of processes, for tasks of one process
share a state directory: an active task must run nowhere, and this process must keep no copy of it;
a copy must not meet the task or another copy in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from server.coordinator.streams_groups.member import StreamsMember, TaskState
from server.coordinator.streams_groups.tasks import (
    NOTHING_HELD,
    HeldTasks,
    Partitions,
    Tasks,
)
from wire.errors import ErrorCode, KafkaError


class Holders(Protocol):
    """Which processes have a task, or are giving it back."""

    def running(self, subtopology: str, partition: int) -> str | None:
        """The one that has it active."""

    def keeps_copy(self, subtopology: str, partition: int, process_id: str) -> bool:
        """Whether this one has it as a standby or warm-up."""


def reconciled(
    member: StreamsMember,
    target_epoch: int,
    target: Tasks,
    holders: Holders,
    owned: Tasks | None,
) -> StreamsMember:
    """The member one step further; the same object if nothing is to be done.

    `owned`: what it says that it has, None if it says nothing. Raises FENCED_MEMBER_EPOCH if its
    state is of a later version and it does not come with empty hands.
    """
    epoch = member.epoch
    if member.state is TaskState.STABLE:
        if epoch == target_epoch:
            return member
    elif member.state is TaskState.UNREVOKED_TASKS:
        if owned is None or owned.has_any(member.revoking):
            return member
        epoch += 1
    elif member.state is TaskState.UNKNOWN:
        if owned is None or owned:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. "
                "The member must abandon all its tasks and rejoin.",
            )
        epoch = target_epoch
    return _towards(member, epoch, target_epoch, target, holders, owned)


def _towards(
    member: StreamsMember,
    epoch: int,
    target_epoch: int,
    target: Tasks,
    holders: Holders,
    owned: Tasks | None,
) -> StreamsMember:
    """Keep what the target has too, give back the rest, take what is free."""
    process_id, held = member.process_id, member.assigned

    def runs_or_copied(subtopology: str, partition: int) -> bool:
        return holders.running(subtopology, partition) is not None or holders.keeps_copy(
            subtopology, partition, process_id
        )

    def is_here(subtopology: str, partition: int) -> bool:
        return holders.running(subtopology, partition) == process_id or holders.keeps_copy(
            subtopology, partition, process_id
        )

    active = _Difference(_without_epochs(held.active), target.active, runs_or_copied)
    standby = _Difference(held.standby, target.standby, is_here)
    warmup = _Difference(held.warmup, target.warmup, is_here)
    revoking = HeldTasks(_with_epochs(active.revoked, held.active), standby.revoked, warmup.revoked)
    if revoking and (owned is None or owned.has_any(revoking)):
        kept = HeldTasks(_with_epochs(active.kept, held.active), standby.kept, warmup.kept)
        return member.moved(epoch, TaskState.UNREVOKED_TASKS, kept, revoking)
    assigned = HeldTasks(
        _with_epochs(active.taken, held.active, target_epoch), standby.taken, warmup.taken
    )
    waits = active.waits or standby.waits or warmup.waits
    state = TaskState.UNRELEASED_TASKS if waits else TaskState.STABLE
    return member.moved(target_epoch, state, assigned, NOTHING_HELD)


class _Difference:
    """Of one sort of tasks: what stays, what goes, what comes."""

    def __init__(
        self, held: Partitions, wanted: Partitions, is_taken: Callable[[str, int], bool]
    ) -> None:
        self.kept: dict[str, frozenset[int]] = {}
        self.revoked: dict[str, frozenset[int]] = {}
        self.taken: dict[str, frozenset[int]] = {}
        """What stays and what comes."""
        self.waits = False
        """Something that is to come is not free."""
        for subtopology in dict.fromkeys((*wanted, *held)):
            has = held.get(subtopology, frozenset())
            wants = wanted.get(subtopology, frozenset())
            free = frozenset(p for p in wants - has if not is_taken(subtopology, p))
            self.waits |= len(free) < len(wants - has)
            for into, partitions in (
                (self.kept, has & wants),
                (self.revoked, has - wants),
                (self.taken, (has & wants) | free),
            ):
                if partitions:
                    into[subtopology] = partitions


def _without_epochs(held: Mapping[str, Mapping[int, int]]) -> dict[str, frozenset[int]]:
    return {subtopology: frozenset(of) for subtopology, of in held.items()}


def _with_epochs(
    partitions: Partitions, held: Mapping[str, Mapping[int, int]], new_epoch: int = 0
) -> dict[str, dict[int, int]]:
    """With the epoch since which they are held; of those that come, the new one."""
    nothing: Mapping[int, int] = {}
    return {
        subtopology: {p: held.get(subtopology, nothing).get(p, new_epoch) for p in sorted(of)}
        for subtopology, of in partitions.items()
    }
