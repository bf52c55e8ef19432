"""From what should hold for a partition to the record that makes it so: elections, ISR, ELR. PURE.

What: `PartitionChange` takes a registration and targets (ISR, replicas, reassignment, recovery
state), elects a leader, keeps the eligible leader replicas (KIP-966) and answers one
PartitionChangeRecord, or None when nothing changes. Why: every place that touches leader or ISR
must follow the same rules (Kafka: PartitionChangeBuilder).

Election order: the current leader if it may stay, else the first replica in assignment order that
is in the ISR (in the ELR when the ISR is empty) and may lead, else the last known leader (only
when ISR and ELR are empty: it is the last replica standing), else, in an unclean election, any
replica that may lead. PREFERRED looks at the first replica before the current leader. An unclean
choice sets the ISR to the leader alone and marks the partition RECOVERING (E-11). Without ELR the
last ISR member is never removed (E-13); with it the ISR may become empty and the member waits in
the ELR unless its shutdown was unclean. Who waits there when ELR is turned off goes on waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from replication.metadata.image import (
    DIRECTORY_UNASSIGNED,
    NO_LEADER_CHANGE,
    RECOVERING,
    PartitionRegistration,
)
from replication.raft.own_events import NO_LEADER
from wire.messages.metadata_records import PartitionChangeRecord


class Election(Enum):
    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


class _Elected(NamedTuple):
    leader: int
    unclean: bool


class PartitionChange:
    """Collects what should change of one partition; `build` gives the record. Used once."""

    __slots__ = (
        "_may_lead",
        "adding",
        "directories",
        "election",
        "elr",
        "elr_enabled",
        "isr",
        "knows_directories",
        "leader_recovery_state",
        "min_isr",
        "partition",
        "removing",
        "replicas",
        "unclean_shutdown_replica",
    )

    def __init__(
        self,
        partition: PartitionRegistration,
        may_lead: Callable[[int], bool],
        *,
        min_isr: int,
        elr_enabled: bool,
        knows_directories: bool,
        election: Election = Election.ONLINE,
    ) -> None:
        """`may_lead(broker_id)`: is this broker active and its replica's directory online."""
        self.partition = partition
        self._may_lead = may_lead
        self.min_isr = min(min_isr, len(partition.replicas))
        self.elr_enabled = elr_enabled
        self.knows_directories = knows_directories
        self.election = election
        self.isr: Sequence[int] = partition.isr
        self.replicas: Sequence[int] = partition.replicas
        self.removing: Sequence[int] = partition.removing_replicas
        self.adding: Sequence[int] = partition.adding_replicas
        self.elr: Sequence[int] = partition.elr
        self.leader_recovery_state = partition.leader_recovery_state
        self.unclean_shutdown_replica = NO_LEADER
        self.directories = dict(zip(partition.replicas, partition.directories, strict=True))

    def build(self, topic_id: bytes, partition_index: int) -> PartitionChangeRecord | None:
        """The record, or None when the partition stays as it is."""
        record = PartitionChangeRecord(topic_id=topic_id, partition_id=partition_index)
        self._complete_reassignment()
        self._target_elr()
        self._elect(record)
        self._bump_leader_epoch_when_replicas_leave(record)
        self._set_elr(record)
        # Without ELR the last member stays in the ISR: it alone may lead again (E-13).
        may_be_set = record.isr is None and (self.isr or self.elr_enabled)
        if may_be_set and tuple(self.isr) != self.partition.isr:
            record.isr = list(self.isr)
        self._set_last_known_leader(record)
        self._set_assignment(record)
        if self.leader_recovery_state != self.partition.leader_recovery_state:
            record.leader_recovery_state = self.leader_recovery_state
        return None if _changes_nothing(record) else record

    # --- election -------------------------------------------------------------------------------

    def _elect(self, record: PartitionChangeRecord) -> None:
        elected = self._choose_leader()
        if elected.leader == self.partition.leader:
            return
        record.leader = elected.leader
        if elected.leader in self.elr:
            self.isr = (elected.leader,)
            self.elr = tuple(replica for replica in self.elr if replica != elected.leader)
        if elected.unclean:
            record.isr = [elected.leader]
            if self.partition.leader_recovery_state != RECOVERING:
                self.leader_recovery_state = RECOVERING

    def _choose_leader(self) -> _Elected:
        if self.election is Election.PREFERRED and self._is_valid(self.replicas[0]):
            return _Elected(self.replicas[0], False)
        if self._is_valid(self.partition.leader):
            return _Elected(self.partition.leader, False)
        for replica in self.replicas:
            if self._is_valid(replica):
                return _Elected(replica, False)
        if self._may_elect_last_known_leader():
            return _Elected(self.partition.last_known_elr[0], True)
        if self.election is Election.UNCLEAN:
            for replica in self.replicas:
                if self._may_lead(replica):
                    return _Elected(replica, True)
        return _Elected(NO_LEADER, False)

    def _is_valid(self, replica: int) -> bool:
        eligible = replica in self.isr or (not self.isr and replica in self.elr)
        return eligible and self._may_lead(replica)

    def _may_elect_last_known_leader(self) -> bool:
        last_known = self.partition.last_known_elr
        if self.isr or self.elr or len(last_known) != 1:
            return False
        return last_known[0] in self.replicas and self._may_lead(last_known[0])

    def _bump_leader_epoch_when_replicas_leave(self, record: PartitionChangeRecord) -> None:
        """A replica removed by reassignment must be fenced off by a new leader epoch (E-1)."""
        if record.leader == NO_LEADER_CHANGE and not set(self.partition.replicas) <= set(
            self.replicas
        ):
            record.leader = self.partition.leader

    # --- eligible leader replicas (KIP-966) -----------------------------------------------------

    def _target_elr(self) -> None:
        if not self.elr_enabled:
            return
        if len(self.isr) >= self.min_isr:
            self.elr = ()
            return
        stay = dict.fromkeys((*self.elr, *self.partition.isr))
        self.elr = tuple(
            replica
            for replica in stay
            if replica not in self.isr
            and replica != self.unclean_shutdown_replica
            and replica in self.replicas
        )

    def _set_elr(self, record: PartitionChangeRecord) -> None:
        """After an unclean election nobody is eligible, nor while the feature is off. But where it
        was turned off while nobody was in sync, the eligible are all that is left (Kafka forgets
        them, and the partition has no leader any more).
        """
        nobody_in_sync = not self.isr and not self.partition.isr
        if record.isr is not None or not (self.elr_enabled or nobody_in_sync):
            self.elr = ()
        if tuple(self.elr) != self.partition.elr:
            record.eligible_leader_replicas = list(self.elr)

    def _set_last_known_leader(self, record: PartitionChangeRecord) -> None:
        """Remember the leader when the partition loses its last one; forget it when it has one."""
        partition = self.partition
        if record.isr == []:
            last = self._last_in_sync()
            if last != NO_LEADER and partition.last_known_elr != (last,):
                record.last_known_elr = [last]
            return
        leader = partition.leader if record.leader == NO_LEADER_CHANGE else record.leader
        if leader != NO_LEADER and partition.last_known_elr:
            record.last_known_elr = []

    def _last_in_sync(self) -> int:
        """The leader, or where there is none the only member of the ISR."""
        partition = self.partition
        if partition.has_leader() or len(partition.isr) != 1:
            return partition.leader
        return partition.isr[0]

    # --- reassignment ---------------------------------------------------------------------------

    def _complete_reassignment(self) -> None:
        """All adding replicas are in the ISR: the removing ones leave (B-6).

        When more leave than come, every replica that stays must be in the ISR: the copy that goes
        may be the only complete one beside the leader's (Kafka: PartitionReassignmentReplicas).
        """
        if not self.removing and not self.adding:
            return
        target = [r for r in self.replicas if r not in self.removing]
        isr = [r for r in self.isr if r not in self.removing]
        if not target or not isr or not set(self.adding) <= set(isr):
            return
        if len(self.adding) < len(self.removing) and not set(target) <= set(isr):
            return
        self.replicas, self.isr, self.removing, self.adding = target, isr, (), ()

    def _set_assignment(self, record: PartitionChangeRecord) -> None:
        partition = self.partition
        directories = tuple(self.directories.get(r, DIRECTORY_UNASSIGNED) for r in self.replicas)
        if self.knows_directories and directories != partition.directories:
            record.directories = list(directories)
        if tuple(self.replicas) != partition.replicas:
            record.replicas = list(self.replicas)
        if tuple(self.removing) != partition.removing_replicas:
            record.removing_replicas = list(self.removing)
        if tuple(self.adding) != partition.adding_replicas:
            record.adding_replicas = list(self.adding)


def _changes_nothing(record: PartitionChangeRecord) -> bool:
    return (
        record.leader == NO_LEADER_CHANGE
        and record.leader_recovery_state == -1
        and record.isr is None
        and record.replicas is None
        and record.removing_replicas is None
        and record.adding_replicas is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
        and record.directories is None
    )
