"""Groups that change their protocol while they have members (PURE; CG-33, CG-38).

A classic group becomes a consumer group when the first member of KIP-848 comes, a consumer group a
classic one when the last of them is gone. Members change over one by one; until all have, those of
the classic protocol live in a consumer group (`classic_members`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

from server.coordinator.classic_group import (
    ClassicGroup,
    ClassicMember,
    GroupState,
    select_protocol,
)
from server.coordinator.classic_protocol import ClassicGroups
from server.coordinator.consumer import embedded
from server.coordinator.consumer import records as written
from server.coordinator.consumer.group import ConsumerGroup
from server.coordinator.consumer.member import ClassicPart, ConsumerMember, Partitions
from server.coordinator.consumer.protocol import Conversion, Outside
from server.coordinator.consumer.topics import TopicHashes
from server.coordinator.group import CONSUMER_PROTOCOL_TYPE, not_of_kind
from server.coordinator.group_messages import group_record
from server.coordinator.machine import nothing
from server.coordinator.modern_group import FIRST_EPOCH
from server.coordinator.records import CoordinatorRecord
from wire.errors import ErrorCode, KafkaError, MalformedFrame

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage


class Migration:
    """Between the classic and the consumer groups of one shard."""

    def __init__(self, classic: ClassicGroups, outside: Outside, hashes: TopicHashes) -> None:
        self._classic = classic
        self._outside = outside
        self._hashes = hashes

    # -- to the consumer protocol ------------------------------------------------------------

    def upgrade(self, group_id: str) -> Conversion:
        """The classic group becomes a consumer group, empty or with all its members.

        KafkaError GROUP_ID_NOT_FOUND: it must not, or cannot.
        """
        classic = self._classic.groups.get(group_id)
        if classic is None:
            raise not_of_kind(group_id, CONSUMER_PROTOCOL_TYPE)
        tombstones = self._classic.tombstones(group_id)
        if classic.is_empty:
            return Conversion(tombstones, ConsumerGroup(group_id), nothing)
        self._check_upgrade(classic)
        try:
            group = _upgraded(classic, self._outside.image())
        except MalformedFrame:
            raise _no_upgrade(group_id, "the embedded consumer protocol is malformed") from None
        topics = group.subscriptions().topics(group.regexes)
        group.metadata_hash = self._hashes(topics, self._outside.image())
        told = partial(self._classic.tell_to_join_again, classic)
        return Conversion([*tombstones, *written.group_records(group)], group, told)

    def _check_upgrade(self, group: ClassicGroup) -> None:
        config = self._outside.config(group.group_id)
        if not config.may_upgrade:
            raise _no_upgrade(group.group_id, "online upgrade is disabled")
        if not group.uses_consumer_protocol:
            raise _no_upgrade(
                group.group_id, "the group does not use the consumer embedded protocol"
            )
        if len(group.members) > config.group_consumer_max_size:
            raise _no_upgrade(
                group.group_id, "the group size exceeds the consumer group maximum size"
            )

    # -- to the classic protocol -------------------------------------------------------------

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerMember]
    ) -> Conversion | None:
        """The consumer group becomes a classic one if only such members are left without these,
        and asks them to join again. It stays one if they speak a protocol that nobody can read,
        for who is gone must not stay for that."""
        gone = {member.member_id for member in leaving}
        left = [member for id_, member in group.members.items() if id_ not in gone]
        config = self._outside.config(group.group_id)
        if (
            not left
            or any(member.classic is None for member in left)
            or not config.may_downgrade
            or len(left) > self._classic.config.group_max_size
        ):
            return None
        try:
            record = self.classic_record(group, left, rebalances=True)
        except MalformedFrame:
            return None
        told = partial(self._classic.expect_converted, group.group_id)
        return Conversion([*written.group_tombstones(group), record], group, told)

    def may_replace_last(self, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
        """Whether a member of the classic protocol that takes this one's place makes a classic
        group of it."""
        return (
            replaced.classic is None
            and group.classic_count == len(group.members) - 1
            and self._outside.config(group.group_id).may_downgrade
            and len(group.members) <= self._classic.config.group_max_size
        )

    def with_replaced(
        self, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, *, rebalances: bool
    ) -> Conversion:
        """As `downgrade`, after the records that put `new` in the place of `old`.

        KafkaError INCONSISTENT_GROUP_PROTOCOL: they speak a protocol that nobody can read.
        """
        after = ConsumerGroup(group.group_id)
        after.epoch, after.regexes = group.epoch, group.regexes
        for member in group.members.values():
            if member is not old:
                after.put_member(member)
        after.put_member(new)
        told = partial(self._classic.expect_converted, group.group_id)
        try:
            record = self.classic_record(after, after.members.values(), rebalances=rebalances)
        except MalformedFrame as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
        return Conversion([*written.group_tombstones(after), record], after, told)

    def classic_record(
        self, group: ConsumerGroup, members: Iterable[ConsumerMember], *, rebalances: bool
    ) -> CoordinatorRecord:
        """The group as a classic one: each member has what it has, or is giving back. If that is
        not what it is to have, nobody leads it: so whoever loads it has it rebalance, too. Kafka
        names a leader and forgets the rebalance with its memory; and it gives each member its
        target, which another one may have still when the group is a consumer group again.

        Raises MalformedFrame: of a member's protocols only the first was read when it joined, and
        another one is chosen."""
        image = self._outside.image()
        classic = ClassicGroup(group.group_id, None, generation_id=group.epoch)
        classic.protocol_type = CONSUMER_PROTOCOL_TYPE
        held, told = [], []
        for member in members:
            assert member.classic is not None, "those of KIP-848 have left"
            told.append(_classic_member(member, member.classic))
            held.append(member.held)
        classic.protocol_name = name = select_protocol(told)
        assignments = {
            one.member_id: embedded.write_assignment(
                partitions, embedded.version_of(one.metadata(name)), image
            )
            for one, partitions in zip(told, held, strict=True)
        }
        classic.state_timestamp_ms = self._classic.wall_ms
        leader_id = None if rebalances else told[0].member_id
        return group_record(classic, told, leader_id, assignments)


def _no_upgrade(group_id: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group_id} to consumer group because {why}.",
    )


def _upgraded(classic: ClassicGroup, image: MetadataImage) -> ConsumerGroup:
    """All members have what they were last assigned. Raises MalformedFrame, KafkaError.

    While the group rebalances some have nothing, and nobody leads it any more: it awaits a target,
    as it does if there is something wrong with the last assignment. In Kafka only what the new
    member subscribes to makes one. A group whose first members still wait for others has neither
    generation nor protocol yet; Kafka fails there, and who came dies of it.
    """
    group = ConsumerGroup(classic.group_id)
    epoch = group.target_epoch = max(classic.generation_id, FIRST_EPOCH)
    is_settled = classic.state is GroupState.STABLE
    given: dict[bytes, set[int]] = {}
    members = classic.members.values()
    name = select_protocol(members) if members else ""  # all may have left again
    for member in members:
        assigned = {}
        if member.assignment:
            assignment = embedded.read_assignment(member.assignment)
            if assignment.user_data:
                raise _no_upgrade(
                    classic.group_id,
                    "an unsupported custom assignor is in use. Please refer to the documentation "
                    "or switch to a default assignor before re-attempting the upgrade",
                )
            assigned = dict(embedded.by_id(assignment.assigned_partitions, image))
        subscription = embedded.read_subscription(member.metadata(name))
        target = group.target[member.member_id] = _own_of(assigned, given, image)
        is_settled &= target == assigned
        group.put_member(
            ConsumerMember(
                member.member_id,
                member.group_instance_id,
                subscription.rack_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                frozenset(subscription.topics),
                epoch=epoch,
                previous_epoch=epoch,
                assigned={id_: dict.fromkeys(p, epoch) for id_, p in assigned.items()},
                classic=ClassicPart(member.session_timeout_ms, tuple(member.protocols)),
            )
        )
    group.epoch = epoch if is_settled else epoch + 1
    return group


def _own_of(assigned: Partitions, given: dict[bytes, set[int]], image: MetadataImage) -> Partitions:
    """What of it there is, and is nobody else's: the members' leader may have said anything, but an
    assignor goes on from a target as it makes them itself. Kafka's fails, then."""
    own = {}
    for topic_id, partitions in assigned.items():
        others = given.setdefault(topic_id, set())
        left = partitions.intersection(image.topics_by_id[topic_id].partitions) - others
        others |= left
        if left:
            own[topic_id] = left
    return own


def _classic_member(member: ConsumerMember, classic: ClassicPart) -> ClassicMember:
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        classic.session_timeout_ms,
        CONSUMER_PROTOCOL_TYPE,
        classic.protocols,
    )
