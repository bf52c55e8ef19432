"""One member of a streams group, as the log keeps it (PURE).

A member is one thread of Kafka Streams; those of one process share its state directory. As with
consumers, a heartbeat makes the next value, and what differs is what is written.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from server.coordinator.consumer.member import JOIN_EPOCH, NOT_SET
from server.coordinator.streams_groups.tasks import NOTHING_HELD, HeldTasks
from wire.errors import ErrorCode


class TaskState(enum.IntEnum):
    """How far a member is; the value is what the log says."""

    STABLE = 1
    """It has all of the target that it gets in this epoch."""
    UNREVOKED_TASKS = 2
    """It was told to give tasks back, and has not said that it did."""
    UNRELEASED_TASKS = 3
    """Some of what the target gives it others have not given back."""
    UNKNOWN = 127
    """A later version of the coordinator wrote it."""

    @classmethod
    def _missing_(cls, value: object) -> TaskState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """See the module."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = NOT_SET
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    """Host and port where the process answers queries of its state."""
    tags: Mapping[str, str] = field(default_factory=dict)
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: TaskState = TaskState.STABLE
    assigned: HeldTasks = NOTHING_HELD
    revoking: HeldTasks = NOTHING_HELD
    """What it must give back before its epoch moves on."""

    def moved(
        self, epoch: int, state: TaskState, assigned: HeldTasks, revoking: HeldTasks
    ) -> StreamsMember:
        """The member with other tasks; what its epoch was is its previous one now, also if that
        is the same."""
        return replace(
            self,
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether it has all that the target of this epoch gives it."""
        return self.state is TaskState.STABLE and self.epoch == target_epoch

    def stale_code(self, *, is_transactional: bool) -> ErrorCode:
        """What is told of a wrong epoch."""
        return ErrorCode.ILLEGAL_GENERATION if is_transactional else ErrorCode.STALE_MEMBER_EPOCH

    def epoch_of(self, subtopology: str, partition: int) -> int | None:
        """Since when it runs the task, or is giving it back; None if neither."""
        for held in (self.assigned, self.revoking):
            epoch = held.active.get(subtopology, {}).get(partition)
            if epoch is not None:
                return epoch
        return None
