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
from server.coordinator.group import CONSUMER_PROTOCOL_TYPE, Expiry
from server.coordinator.modern_group import ReconciledGroup

NOTHING: Partitions = {}


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


class ConsumerGroup(ReconciledGroup[ConsumerMember, Partitions]):
    """See the module. Owner: the shard it belongs to; no lock of its own."""

    __slots__ = (
        "_holders",
        "_names",
        "_regexes",
        "classic_count",
        "has_old_topics",
        "regexes",
        "static_members",
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
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
        return self._name_of_progress()

    # -- as any group (server.coordinator.group) -----------------------------------------------

    @property
    def listed_protocol_type(self) -> str:
        """See Group."""
        return CONSUMER_PROTOCOL_TYPE

    def _has_epoch(self, member: ConsumerMember) -> bool:
        return member.classic is None

    def _since(
        self, member: ConsumerMember, _topic: str, topic_id: bytes, partition: int
    ) -> int | None:
        return member.epoch_of(topic_id, partition)

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
        names, resolved = member.subscribed_names, self.regexes.get(member.subscribed_regex)
        if resolved is None:
            return names
        return names | resolved.topics if names else resolved.topics

    # -- the log -----------------------------------------------------------------------------

    def _note(self, member: ConsumerMember) -> None:
        self.classic_count += member.classic is not None
        _count(self._names, self._regexes, member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                holders = self._holders.setdefault(topic_id, {})
                holders.update(dict.fromkeys(partitions, member.member_id))

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
