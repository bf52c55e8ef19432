"""One consumer group: what the log says of it, and what follows from that (PURE).

The coordinator alone knows where the group is: its *epoch* is bumped whenever who is in it, what
they subscribe to, or these topics change; a *target* assignment is computed for an epoch; and each
member goes towards the target on its own. All three are in the log, so a coordinator that takes
over goes on where the one before was.

    state         when (CG-4)
    Empty         there is no member
    Assigning     the target is of an earlier epoch
    Reconciling   some member has not all that the target gives it
    Stable        all have

Invariants: a partition has at most one holder, who has it or is giving it back; a static member's
instance id is one member's; subscriptions are counted as members say them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from server.coordinator.consumer.member import ConsumerMember, MemberState, Partitions
from server.coordinator.group import (
    CONSUMER_PROTOCOL_TYPE,
    Committer,
    Expiry,
    PartitionCheck,
)
from wire.errors import ErrorCode, KafkaError

FIRST_EPOCH = 1
"""Of a group that nobody has joined yet (CG-3)."""
NOTHING: Partitions = {}
_MEMBER_EPOCH_VERSION = 9
"""From here on OffsetCommit knows of member epochs."""


class ResolvedRegex(NamedTuple):
    """Topics that a regular expression named when it was last looked at."""

    topics: frozenset[str]
    metadata_version: int
    """Offset of the metadata that it was looked at in."""
    resolved_ms: int
    """Wall clock."""


class Subscriptions(NamedTuple):
    """What the members of a group ask for, together."""

    names: Counter[str]
    """How many members name a topic."""
    regexes: Counter[str]
    members: int

    def topics(self, resolved: Mapping[str, ResolvedRegex]) -> frozenset[str]:
        """The names of all topics that anybody subscribes to."""
        found = (resolved[regex].topics for regex in self.regexes if regex in resolved)
        return frozenset(self.names).union(*found)

    def is_homogeneous(self, resolved: Mapping[str, ResolvedRegex]) -> bool:
        """Whether all subscribe alike: to the same names, or by one regular expression alone."""
        if not self.regexes:
            return all(count == self.members for count in self.names.values())
        return len(self.regexes) == 1 and not self.names and self.regexes.total() == self.members


class ConsumerGroup:
    """See the module. Owner: the shard it belongs to; no lock of its own."""

    __slots__ = (
        "_holders",
        "_names",
        "_regexes",
        "classic_count",
        "epoch",
        "group_id",
        "has_old_topics",
        "members",
        "metadata_hash",
        "regexes",
        "static_members",
        "target",
        "target_epoch",
        "target_ms",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """Of the topics subscribed to, when the epoch was last bumped."""
        self.target_epoch = FIRST_EPOCH
        self.target_ms = 0
        """Wall clock of the last target; 0: not known."""
        self.target: dict[str, Partitions] = {}
        """By member id."""
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.regexes: dict[str, ResolvedRegex] = {}
        self.classic_count = 0
        """How many members speak the classic protocol."""
        self.has_old_topics = False
        """The log has a record of topics that Apache Kafka before 4.1 wrote."""
        self._holders: dict[bytes, dict[int, str]] = {}
        self._names: Counter[str] = Counter()
        self._regexes: Counter[str] = Counter()

    # -- what follows ------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """Kafka's name of the state; see the module."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(
            member.is_reconciled_to(self.target_epoch) for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    # -- as any group (server.coordinator.group) -----------------------------------------------

    @property
    def listed_protocol_type(self) -> str:
        """See Group."""
        return CONSUMER_PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        """See Group."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """See Group."""
        return not self.members

    def check_commit(self, committer: Committer) -> PartitionCheck | None:
        """A member of an earlier epoch may commit what it has had since then or longer: the commit
        left the client before a rebalance that left these partitions alone (CG-50, CG-51).

        KafkaError STALE_MEMBER_EPOCH, ILLEGAL_GENERATION for members of the classic protocol,
        UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION.
        """
        if committer.epoch < 0 and not self.members:
            return None
        if committer.is_transactional and committer.is_nobody:
            return None
        member = self.member(committer.member_id)
        is_old_api = committer.api_version < _MEMBER_EPOCH_VERSION
        if is_old_api and not committer.is_transactional and member.classic is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group "
                "protocol",
            )
        if committer.epoch == member.epoch:
            return None
        code = member.stale_code(is_transactional=committer.is_transactional)
        if committer.epoch > member.epoch:
            raise KafkaError(code, f"{committer.epoch} is newer than the member's {member.epoch}.")

        def check(topic_id: bytes, partition: int) -> None:
            since = member.epoch_of(topic_id, partition)
            if since is None or committer.epoch < since:
                raise KafkaError(code, f"Partition {partition} is not the member's in this epoch.")

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

    def is_subscribed_to(self, topic: str) -> bool:
        """See Group."""
        return topic in self._names or any(
            topic in self.regexes[regex].topics for regex in self._regexes if regex in self.regexes
        )

    def expiry(self) -> Expiry | None:
        """After the commit, whatever the state (CG-56)."""
        return Expiry(None)

    def digest(self) -> tuple[object, ...] | None:
        """See Group."""
        return (
            self.group_id,
            (self.epoch, self.metadata_hash, self.target_epoch, self.target_ms),
            sorted(self.target.items()),
            sorted(self.regexes.items()),
            [repr(member) for _, member in sorted(self.members.items())],
        )

    # -- who is in it --------------------------------------------------------------------------

    def member(self, member_id: str) -> ConsumerMember:
        """KafkaError UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Who has this instance id."""
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    @property
    def has_regexes(self) -> bool:
        """Whether anybody subscribes by a regular expression."""
        return bool(self._regexes)

    def regex_count(self, regex: str) -> int:
        """How many members subscribe by it."""
        return self._regexes[regex]

    def is_waiting(self, member: ConsumerMember) -> bool:
        """Whether something that the target gives the member is in other hands."""
        return member.state is MemberState.UNRELEASED_PARTITIONS and any(
            partition not in member.assigned.get(topic_id, ()) and self.is_held(topic_id, partition)
            for topic_id, partitions in self.target.get(member.member_id, NOTHING).items()
            for partition in partitions
        )

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member of the classic protocol with these could join those that are here."""
        if protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        spoken = Counter(
            name
            for member in self.members.values()
            if member.classic is not None
            for name in {name for name, _ in member.classic.protocols}
        )
        return any(spoken[name] == self.classic_count for name in names)

    def is_held(self, topic_id: bytes, partition: int) -> bool:
        """Whether somebody has the partition, or is giving it back."""
        return partition in self._holders.get(topic_id, ())

    def subscriptions(
        self, without: Iterable[ConsumerMember] = (), and_with: ConsumerMember | None = None
    ) -> Subscriptions:
        """What members ask for, if some were gone and one were there."""
        names, regexes, count = self._names.copy(), self._regexes.copy(), len(self.members)
        for member in without:
            if self.members.get(member.member_id) is member:
                _count(names, regexes, member, -1)
                count -= 1
        if and_with is not None:
            _count(names, regexes, and_with, 1)
            count += 1
        return Subscriptions(+names, +regexes, count)

    def subscribed(self, member: ConsumerMember) -> frozenset[str]:
        """The names of the topics that a member subscribes to, as far as they are known."""
        resolved = self.regexes.get(member.subscribed_regex)
        return (
            member.subscribed_names
            if resolved is None
            else (member.subscribed_names | resolved.topics)
        )

    # -- the log -----------------------------------------------------------------------------

    def put_member(self, member: ConsumerMember) -> None:
        """A member is so now, or is new."""
        before = self.members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self.members[member.member_id] = member
        self.classic_count += member.classic is not None
        _count(self._names, self._regexes, member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                holders = self._holders.setdefault(topic_id, {})
                holders.update(dict.fromkeys(partitions, member.member_id))

    def remove_member(self, member_id: str) -> None:
        """A member is gone, with what it held. Unknown ones are fine."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._forget(member)

    def _forget(self, member: ConsumerMember) -> None:
        self.classic_count -= member.classic is not None
        _count(self._names, self._regexes, member, -1)
        if self.static_members.get(member.instance_id or "") == member.member_id:
            del self.static_members[member.instance_id or ""]
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                holders = self._holders.get(topic_id, {})
                for partition in partitions:
                    if holders.get(partition) == member.member_id:
                        del holders[partition]
                if not holders:
                    self._holders.pop(topic_id, None)


def _count(names: Counter[str], regexes: Counter[str], member: ConsumerMember, change: int) -> None:
    for name in member.subscribed_names:
        names[name] += change
        if not names[name]:
            del names[name]
    regex = member.subscribed_regex
    if regex:
        regexes[regex] += change
        if not regexes[regex]:
            del regexes[regex]
