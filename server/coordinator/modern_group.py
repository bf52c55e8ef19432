"""What groups have in common whose members have epochs of their own: consumer, share and streams
groups (PURE; Kafka: ModernGroup).

The coordinator alone knows where such a group is: its epoch is bumped when anything changes that an
assignment depends on, and a target is computed for an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from server.coordinator.group import MEMBER_EPOCH_VERSION, Committer, PartitionCheck
from server.coordinator.records import CoordinatorRecord
from wire.errors import ErrorCode, KafkaError
from wire.schema import Record

FIRST_EPOCH = 1
"""Of a group that nobody has joined yet (CG-3)."""
_NO_TARGET = -1


class _Member(Protocol):
    @property
    def member_id(self) -> str: ...


class _ReconciledMember(_Member, Protocol):
    @property
    def epoch(self) -> int: ...

    def is_reconciled_to(self, target_epoch: int, /) -> bool: ...

    def stale_code(self, *, is_transactional: bool) -> ErrorCode: ...


M = TypeVar("M", bound=_Member)
R = TypeVar("R", bound=_ReconciledMember)
T = TypeVar("T")


class ModernGroup(Generic[M, T]):
    """Of members `M`, each of which has a target `T`. Owner: the shard it belongs to."""

    __slots__ = (
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "target",
        "target_epoch",
        "target_ms",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """Of the topics that the group needs, when the epoch was last bumped."""
        self.target_epoch = FIRST_EPOCH
        self.target_ms = 0
        """Wall clock of the last target; 0: not known."""
        self.target: dict[str, T] = {}
        """By member id."""
        self.members: dict[str, M] = {}

    @property
    def is_empty(self) -> bool:
        """See Group."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """See Group."""
        return not self.members

    def member(self, member_id: str) -> M:
        """KafkaError UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    @property
    def awaits_target(self) -> bool:
        """Whether the target is of an earlier epoch."""
        return self.epoch > self.target_epoch

    def has_young_target(self, wall_ms: int, interval_ms: int) -> bool:
        """Whether the last target is too young for another one (CG-15)."""
        return self.target_ms != 0 and is_within(interval_ms, self.target_ms, wall_ms)

    # -- the log -----------------------------------------------------------------------------

    def put_member(self, member: M) -> None:
        """A member is so now, or is new."""
        before = self.members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self.members[member.member_id] = member
        self._note(member)

    def remove_member(self, member_id: str) -> None:
        """A member is gone, with what it held. Unknown ones are fine."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._forget(member)

    def _note(self, member: M) -> None:
        """Count what a kind of group looks up by more than the member's id."""
        raise NotImplementedError

    def _forget(self, member: M) -> None:
        """Take back what was noted of the member."""
        raise NotImplementedError

    def put_target_epoch(self, value: Any) -> None:
        """A ...TargetAssignmentMetadataValue, or None: there is no target."""
        if value is None:
            self.target_epoch, self.target_ms = _NO_TARGET, 0
        else:
            self.target_epoch = value.assignment_epoch
            self.target_ms = value.assignment_timestamp

    def put_target(self, member_id: str, target: T | None) -> None:
        """A member's target is this now, or gone."""
        if target is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = target


class ReconciledGroup(ModernGroup[R, T]):
    """Of members that go towards their target on their own, and commit offsets on the way: consumer
    and streams groups."""

    __slots__ = ()

    @property
    def listed_protocol_type(self) -> str:
        """See Group."""
        raise NotImplementedError

    def _name_of_progress(self) -> str:
        """Kafka's name of the state, once nothing else stands in the way (CG-4)."""
        if self.awaits_target:
            return "Assigning"
        settled = all(
            member.is_reconciled_to(self.target_epoch) for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    def check_commit(self, committer: Committer) -> PartitionCheck | None:
        """A member of an earlier epoch may commit what it has had since then or longer: the commit
        left the client before a rebalance that left these partitions alone (CG-50, CG-51, ST-22).

        KafkaError STALE_MEMBER_EPOCH, ILLEGAL_GENERATION in a transaction and for members of the
        classic protocol, UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION.
        """
        if committer.epoch < 0 and not self.members:
            return None
        if committer.is_transactional and committer.is_nobody and committer.epoch == -1:
            return None
        member = self.member(committer.member_id)
        is_old_api = committer.api_version < MEMBER_EPOCH_VERSION
        if is_old_api and not committer.is_transactional and self._has_epoch(member):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the"
                f" {self.listed_protocol_type} group protocol",
            )
        if committer.epoch == member.epoch:
            return None
        code = member.stale_code(is_transactional=committer.is_transactional)
        if committer.epoch > member.epoch:
            raise KafkaError(code, f"{committer.epoch} is newer than the member's {member.epoch}.")

        def check(topic: str, topic_id: bytes, partition: int) -> None:
            since = self._since(member, topic, topic_id, partition)
            if since is None or committer.epoch < since:
                raise KafkaError(code, f"{topic}-{partition} is not the member's in this epoch.")

        return check

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION (CG-53)."""
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.epoch:
            code = member.stale_code(is_transactional=False)
            raise KafkaError(code, f"{epoch} is not the member's {member.epoch}.")

    def check_offset_delete(self) -> None:
        """Any offset may be deleted, topic by topic."""

    def _has_epoch(self, _member: R) -> bool:
        """Whether it is one of those whose commits must tell a member epoch."""
        return True

    def _since(self, member: R, topic: str, topic_id: bytes, partition: int) -> int | None:
        """The member epoch in which it got what reads the partition; None: it has not got it."""
        raise NotImplementedError


def is_within(ms: int, since_ms: int, wall_ms: int) -> bool:
    """Whether less time than this has passed since then. What has not come yet by our clock was
    written by one that was ahead, another broker's or ours before it was set back, and is long ago:
    Kafka waits until it has come, and no group rebalances meanwhile."""
    return 0 <= wall_ms - since_ms < ms


def epochs_of(
    partitions: Sequence[int], epochs: Sequence[int] | None, member_epoch: int
) -> dict[int, int]:
    """Since when each is held; without epochs of their own, as records once were, since the
    member's."""
    if epochs is None or len(epochs) != len(partitions):
        return dict.fromkeys(partitions, member_epoch)
    return dict(zip(partitions, epochs, strict=True))


class MemberRecords(Generic[M, T]):
    """The records in which the log has the members of one kind of group: how they are read, how
    they end, and what is alike in all kinds of how they are written. `with_...` give a member as
    such a record says; a tombstone takes what it has."""

    def __init__(
        self,
        *,
        metadata: type[Record],
        current: type[Record],
        target: type[Record],
        target_epoch: type[Record],
        target_epoch_value: type[Record],
        new_member: Callable[[str], M],
        with_metadata: Callable[[M, Any], M],
        with_assignment: Callable[[M, Any], M],
        target_of: Callable[[Any], T],
    ) -> None:
        self._metadata, self._current = metadata, current
        self._target, self._target_epoch = target, target_epoch
        self._target_epoch_value = target_epoch_value
        self._new_member = new_member
        self._with_metadata = with_metadata
        self._with_assignment = with_assignment
        self._target_of = target_of
        self._replay: dict[type[Record], Callable[[ModernGroup[M, T], Any, Any], None]] = {
            metadata: self._replay_metadata,
            current: self._replay_current,
            target: self._replay_target,
            target_epoch: lambda group, _key, value: group.put_target_epoch(value),
        }
        self.keys = frozenset(self._replay)
        """Their types."""

    def replay(self, group: ModernGroup[M, T], key: Record, value: Record | None) -> bool:
        """Make the record true; False if it is not about members."""
        replay = self._replay.get(type(key))
        if replay is None:
            return False
        replay(group, key, value)
        return True

    def _replay_metadata(self, group: ModernGroup[M, T], key: Any, value: Any) -> None:
        if value is None:
            group.remove_member(key.member_id)
        else:
            member = group.members.get(key.member_id) or self._new_member(key.member_id)
            group.put_member(self._with_metadata(member, value))

    def _replay_target(self, group: ModernGroup[M, T], key: Any, value: Any) -> None:
        group.put_target(key.member_id, None if value is None else self._target_of(value))

    def _replay_current(self, group: ModernGroup[M, T], key: Any, value: Any) -> None:
        member = group.members.get(key.member_id)
        if member is None and value is not None:
            member = self._new_member(key.member_id)  # compaction keeps what it asked for behind it
        if member is not None:
            group.put_member(self._with_assignment(member, value))

    def target_epoch_record(self, group_id: str, epoch: int, wall_ms: int) -> CoordinatorRecord:
        """A target was computed for this epoch."""
        key: Any = self._target_epoch
        value: Any = self._target_epoch_value
        return CoordinatorRecord(
            key(group_id=group_id), value(assignment_epoch=epoch, assignment_timestamp=wall_ms)
        )

    def tombstones_of(self, group_id: str, member_id: str) -> list[CoordinatorRecord]:
        """All of a member is no more."""
        own = {"group_id": group_id, "member_id": member_id}
        keys = (self._current(**own), self._target(**own), self._metadata(**own))
        return [CoordinatorRecord(key, None) for key in keys]

    def tombstones_of_all(self, group: ModernGroup[M, T], *last: Record) -> list[CoordinatorRecord]:
        """All of a group is no more; in this order, for a member goes last after what it had.
        `last`: the keys of what only this kind of group has."""
        own: dict[str, Any] = {"group_id": group.group_id}
        members = [{**own, "member_id": member_id} for member_id in group.members]
        keys = [
            *(self._current(**member) for member in members),
            *(self._target(**member) for member in members),
            self._target_epoch(**own),
            *(self._metadata(**member) for member in members),
            *last,
        ]
        return [CoordinatorRecord(key, None) for key in keys]
