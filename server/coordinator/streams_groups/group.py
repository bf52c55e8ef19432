"""One streams group: what the log says of it, and what follows from that (PURE).

As of a consumer group, the coordinator alone knows where the group is: its epoch, the target of an
epoch, and how far each member is. Besides, the group has one topology for all, which its first
member brought; tasks run only once that was validated against the topics that are there.

    state         when (CG-4)
    Empty         there is no member
    NotReady      the topology was not validated
    Assigning     the target is of an earlier epoch
    Reconciling   some member has not all that the target gives it
    Stable        all have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from server.coordinator.group import Expiry
from server.coordinator.modern_group import ReconciledGroup
from server.coordinator.streams_groups.member import StreamsMember
from server.coordinator.streams_groups.tasks import NOTHING_HELD, HeldTasks, Tasks, pairs
from server.coordinator.streams_groups.topology import Topology

STREAMS = "streams"
NOT_VALIDATED = -1
_Task = tuple[str, int]


class StreamsGroup(ReconciledGroup[StreamsMember, Tasks]):
    """See the module. Owner: the shard it belongs to; no lock of its own."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.validated_epoch = NOT_VALIDATED
        """The topology's epoch if it was found to work, when the epoch was last bumped."""
        self.configs: Mapping[str, str] = {}
        """What the assignor was told, when the epoch was last bumped."""
        self.topology: Topology | None = None
        self._running: dict[_Task, str] = {}
        self._copies: dict[_Task, set[tuple[str, str]]] = {}
        """Process and member that keep one."""

    # -- as any group (server.coordinator.group) -----------------------------------------------

    @property
    def state_name(self) -> str:
        """Kafka's name of the state; see the module."""
        if not self.members:
            return "Empty"
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return "NotReady"
        return self._name_of_progress()

    @property
    def listed_protocol_type(self) -> str:
        """See Group."""
        return STREAMS

    def _since(
        self, member: StreamsMember, topic: str, _topic_id: bytes, partition: int
    ) -> int | None:
        """Of the task that reads the topic (ST-22)."""
        reader = None if self.topology is None else self.topology.reader_of.get(topic)
        return None if reader is None else member.epoch_of(reader, partition)

    def is_subscribed_to(self, topic: str) -> bool:
        """See Group."""
        return bool(self.members) and self.topology is not None and topic in self.topology.reader_of

    def expiry(self) -> Expiry | None:
        """After the commit, whatever the state."""
        return Expiry(None)

    def digest(self) -> tuple[object, ...]:
        """See Group."""
        members = [
            (
                repr(replace(member, assigned=NOTHING_HELD, revoking=NOTHING_HELD)),
                _held_digest(member.assigned),
                _held_digest(member.revoking),
            )
            for _, member in sorted(self.members.items())
        ]
        return (
            self.group_id,
            (self.epoch, self.metadata_hash, self.validated_epoch, self.target_epoch),
            (self.target_ms, sorted(self.configs.items())),
            repr(None if self.topology is None else self.topology.value),
            [
                (id_, [sorted(pairs(part)) for part in of])
                for id_, of in sorted(self.target.items())
            ],
            members,
        )

    # -- who is in it --------------------------------------------------------------------------

    def running(self, subtopology: str, partition: int) -> str | None:
        """The process that has a task active, or is giving it back."""
        return self._running.get((subtopology, partition))

    def keeps_copy(self, subtopology: str, partition: int, process_id: str) -> bool:
        """Whether this process has it as a standby or warm-up, or is giving it back."""
        holders = self._copies.get((subtopology, partition), ())
        return any(process == process_id for process, _ in holders)

    # -- the log -----------------------------------------------------------------------------

    def _note(self, member: StreamsMember) -> None:
        who = member.process_id, member.member_id
        for held in (member.assigned, member.revoking):
            self._running.update(dict.fromkeys(pairs(held.active), member.process_id))
            for task in (*pairs(held.standby), *pairs(held.warmup)):
                self._copies.setdefault(task, set()).add(who)

    def _forget(self, member: StreamsMember) -> None:
        who = member.process_id, member.member_id
        for held in (member.assigned, member.revoking):
            for task in pairs(held.active):
                if self._running.get(task) == member.process_id:
                    del self._running[task]
            for task in (*pairs(held.standby), *pairs(held.warmup)):
                holders = self._copies.get(task, set())
                holders.discard(who)
                if not holders:
                    self._copies.pop(task, None)


def _held_digest(held: HeldTasks) -> list[object]:
    active = sorted((id_, sorted(of.items())) for id_, of in held.active.items())
    return [active, sorted(pairs(held.standby)), sorted(pairs(held.warmup))]
