"""What every group is, of whatever protocol (PURE; Kafka: Group).

A classic group and one of KIP-848 have little in common but this: they have an id, somebody may
commit offsets for them or not, and they are described, listed, deleted and expired. An id is of one
kind at a time; `GroupKind` is all groups of one, and what its records say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from server.coordinator.machine import Decision
from server.coordinator.records import CoordinatorRecord, Records
from wire.errors import ErrorCode, KafkaError

GroupDecision = Decision[CoordinatorRecord]

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of consumers; its subscriptions can be read (ConsumerProtocol)."""
MEMBER_EPOCH_VERSION = 9
"""From here on OffsetCommit knows of member epochs."""
UNKNOWN_MEMBER_ID = ""
"""What a member that has no id yet sends."""


class Committer(NamedTuple):
    """Who commits offsets, as the request says."""

    member_id: str
    instance_id: str | None
    epoch: int
    """Generation or member epoch; negative: none."""
    api_version: int
    is_transactional: bool

    @property
    def is_nobody(self) -> bool:
        """Says nothing of itself."""
        return self.epoch < 0 and self.member_id == UNKNOWN_MEMBER_ID and self.instance_id is None


PartitionCheck = Callable[[str, bytes, int], None]
"""Takes a topic's name and id and a partition; KafkaError if the committer may not commit
for it."""


class Expiry(NamedTuple):
    """Offsets expire so long after `since_ms` as they are kept; None: after each one's commit."""

    since_ms: int | None


class Group(Protocol):
    """One group. Owner: the shard it belongs to; no lock of its own."""

    group_id: str

    @property
    def state_name(self) -> str:
        """Kafka's name of its state."""

    @property
    def listed_protocol_type(self) -> str:
        """What ListGroups calls its protocol type; "" for one that never had members."""

    @property
    def is_empty(self) -> bool:
        """Nobody is in it."""

    @property
    def is_unused(self) -> bool:
        """Nobody is in it or about to come."""

    def check_commit(self, committer: Committer) -> PartitionCheck | None:
        """KafkaError if the committer may commit nothing; else what each partition must pass."""

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """KafkaError if it may not read offsets; None and -1: an administrator."""

    def check_offset_delete(self) -> None:
        """KafkaError if no offset may be deleted."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member consumes this topic."""

    def expiry(self) -> Expiry | None:
        """When offsets of topics that nobody subscribes to expire; None: never."""

    def digest(self) -> tuple[object, ...] | None:
        """What a reload must bring back, to be compared; None while that is not settled."""


G = TypeVar("G", bound=Group)


def not_of_kind(group_id: str, kind: str) -> KafkaError:
    """What is told of a group of another kind."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {kind} group.")


def group_of_kind(
    groups: Mapping[str, G], group_id: str, kind: str, is_known: Callable[[str], bool]
) -> G:
    """KafkaError GROUP_ID_NOT_FOUND, also if it is of another kind: `is_known` then."""
    group = groups.get(group_id)
    if group is None:
        if is_known(group_id):
            raise not_of_kind(group_id, kind)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    return group


class GroupKind(Protocol):
    """The groups of one kind in a shard."""

    @property
    def name(self) -> str:
        """What ListGroups calls it."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """By id."""

    def renewal(self, group_id: str, member_id: str) -> Callable[[], object] | None:
        """What is to be done when a member has committed: its session may begin anew."""

    def tombstones(self, group_id: str) -> Records:
        """All of a group is no more, its offsets apart."""

    def on_loaded(self) -> None:
        """The whole log was replayed."""

    def on_unloaded(self, error: KafkaError) -> None:
        """The shard is not ours any more."""
