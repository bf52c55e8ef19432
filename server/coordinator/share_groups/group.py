"""One share group: what the log says of it, and what follows from that (PURE).

    state     when (CG-4)
    Empty     there is no member
    Stable    there is one

A share group commits no offsets: where it is, is the state of its share partitions, which the share
coordinator keeps. It does not expire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import NoReturn

from server.coordinator.consumer.member import Partitions
from server.coordinator.group import CONSUMER_PROTOCOL_TYPE, Committer, not_of_kind
from server.coordinator.modern_group import ModernGroup
from server.coordinator.share_groups.assignor import union
from server.coordinator.share_groups.member import ShareMember
from server.coordinator.share_groups.topics import NO_TOPICS, StateTopics

SHARE = "share"


class ShareGroup(ModernGroup[ShareMember, Partitions]):
    """See the module. Owner: the shard it belongs to; no lock of its own."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.topics: StateTopics = NO_TOPICS
        self.settled_in: object = None
        """The topics (`MetadataImage.topics_by_name`) in which nothing was left to be done, unless
        a record came since: then None."""
        self._names: Counter[str] = Counter()

    # -- as any group (server.coordinator.group) -----------------------------------------------

    @property
    def state_name(self) -> str:
        """Kafka's name of the state; see the module."""
        return "Stable" if self.members else "Empty"

    @property
    def listed_protocol_type(self) -> str:
        """See Group."""
        return SHARE

    @property
    def is_unused(self) -> bool:
        """Never: the state of its partitions is somewhere else, and would be left behind."""
        return False

    def check_commit(self, _committer: Committer) -> NoReturn:
        """There are no offsets."""
        self._refuse()

    def check_fetch(self, _member_id: str | None, _epoch: int) -> None:
        """Whoever asks is told that there are no offsets (OffsetMetadataManager.fetchOffsets)."""

    def check_offset_delete(self) -> NoReturn:
        """There are no offsets."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise not_of_kind(self.group_id, CONSUMER_PROTOCOL_TYPE)

    def is_subscribed_to(self, topic: str) -> bool:
        """See Group."""
        return topic in self._names

    def expiry(self) -> None:
        """There are no offsets."""

    def digest(self) -> tuple[object, ...]:
        """See Group."""
        topics = [
            sorted((id_, topic.name, sorted(topic.partitions)) for id_, topic in part.items())
            for part in self.topics[:2]
        ]
        return (
            self.group_id,
            (self.epoch, self.metadata_hash, self.target_epoch, self.target_ms),
            sorted(self.target.items()),
            [*topics, sorted(self.topics.deleting)],
            [repr(member) for _, member in sorted(self.members.items())],
        )

    # -- who is in it --------------------------------------------------------------------------

    def names(
        self, without: ShareMember | None = None, and_with: ShareMember | None = None
    ) -> Mapping[str, int]:
        """How many members subscribe to a topic, if one were gone and one were there."""
        if without is None and and_with is None:
            return self._names
        names = self._names.copy()
        if without is not None:
            names.subtract(without.subscribed_names)
        if and_with is not None:
            names.update(and_with.subscribed_names)
        return +names

    def has_unassigned(self, existing: Container[bytes]) -> bool:
        """Whether of a topic subscribed to something else is initialized than is assigned; only of
        `existing` ids can be assigned."""
        if not self.members:
            return False
        assigned = union(self.target.values())
        return any(
            topic.name in self._names
            and id_ in existing
            and assigned.get(id_, set()) != topic.partitions
            for id_, topic in self.topics.initialized.items()
        )

    # -- the log -----------------------------------------------------------------------------

    def _note(self, member: ShareMember) -> None:
        self._names.update(member.subscribed_names)

    def _forget(self, member: ShareMember) -> None:
        self._names.subtract(member.subscribed_names)
        self._names = +self._names
