"""What heartbeats and time do to the consumer groups of one shard (PURE; GroupMetadataManager).

One heartbeat does all that there is to do for its member, and writes it as one batch (`step`). So a
group moves only when its members speak, and each of them only in its own heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.consumer import records as written
from server.coordinator.consumer import requests
from server.coordinator.consumer.group import ConsumerGroup, ResolvedRegex
from server.coordinator.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    Partitions,
)
from server.coordinator.consumer.regexes import REFRESH_MIN_MS
from server.coordinator.consumer.step import Scene, Step
from server.coordinator.consumer.timers import MemberTimers
from server.coordinator.consumer.topics import TopicHashes
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group import GroupDecision, group_of_kind, not_of_kind
from server.coordinator.group_config import ConsumerConfig
from server.coordinator.group_messages import Client, SeesTopic
from server.coordinator.machine import Decision, Effect
from server.coordinator.records import CoordinatorRecord, Records
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from wire.messages.groups_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from wire.schema import Record

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage


class Outside(NamedTuple):
    """What the groups of a shard ask of their broker. None of it waits."""

    image: Callable[[], MetadataImage]
    config: Callable[[str], ConsumerConfig]
    """Of a group."""
    new_topics_offset: Callable[[], int]
    """Offset of the metadata with which topics were last created."""
    resolve: Callable[[str, Collection[str], SeesTopic | None], None]
    """Look at a group's regular expressions in the background, for somebody who may see these
    topics (None: all), and tell `ConsumerGroups.regexes_resolved`."""
    new_uuid: Callable[[], str]


class _Soft:
    """What of a group is in no record."""

    __slots__ = ("asked_ms", "topics")

    def __init__(self) -> None:
        self.topics: object = None
        """The topics (`MetadataImage.topics_by_name`) as the group was last told of them."""
        self.asked_ms: int | None = None
        """When its regular expressions were last given to be looked at."""


_UNHEARD = _Soft()


class OtherKinds(NamedTuple):
    """What becomes of a group that is of another kind."""

    is_known: Callable[[str], bool]
    """Whether the id is of a group of another kind."""
    convert: Callable[[str], Conversion]
    """It becomes a consumer group, for such a member comes. KafkaError GROUP_ID_NOT_FOUND."""
    without: Callable[[ConsumerGroup, Collection[ConsumerMember]], Conversion | None]
    """It becomes a classic group, for only such members are left without these; None: it stays."""


class Conversion(NamedTuple):
    """How a group becomes one of another kind."""

    records: Sequence[CoordinatorRecord]
    group: ConsumerGroup
    change: Callable[[], object]


class ConsumerGroups:
    """The consumer groups of one shard. Owner: the shard; takes no lock, owns no clock."""

    name = "consumer"

    def __init__(
        self, outside: Outside, deadlines: Deadlines, moment: Moment, others: OtherKinds
    ) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.effects: list[Effect] = []
        self.outside = outside
        self.hashes = TopicHashes()
        self.timers = MemberTimers(
            deadlines,
            moment,
            lambda group_id: outside.config(group_id).group_consumer_session_timeout_ms,
            self._fence,
        )
        self._others = others
        self._moment = moment
        self._soft: dict[str, _Soft] = {}

    # -- heartbeats --------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: Client) -> GroupDecision:
        """Join, stay, or leave; see the module. KafkaErrors as CG-11 and CG-12 list them."""
        group_id = request.group_id
        config = self.outside.config(group_id)
        requests.validate_heartbeat(request, client.api_version, config.group_consumer_assignors)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request)
        joins = request.member_epoch == JOIN_EPOCH
        group, before, converted = self._group(group_id, joins=joins)
        member_id = request.member_id or self.outside.new_uuid()
        check_size(group, member_id, config)
        owned = requests.partitions(request.topic_partitions)
        step = Step(group, self.scene(group_id, config), before)
        member = _known_member(group, request, member_id, owned, step)
        asked = requests.asked(member, request, client)
        step.update(member, asked)
        step.find_target(asked)
        after = step.reconcile(asked, owned)
        assignment = None
        if (
            joins
            or requests.is_full(request)
            or (
                after is not member
                and requests.partitions_of(after.assigned)
                != requests.partitions_of(member.assigned)
            )
        ):
            assignment = requests.assignment(after.assigned)
        response = ConsumerGroupHeartbeatResponse(
            error_code=0,
            member_id=member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            assignment=assignment,
        )
        heard = partial(self.heard, step, after, client, has_moved=after is not asked)
        return Decision(step.records, response, _both(converted, heard))

    def _group(
        self, group_id: str, *, joins: bool
    ) -> tuple[ConsumerGroup, Sequence[CoordinatorRecord], Callable[[], object] | None]:
        """The group, and what must be written and done for it to be there."""
        group = self.groups.get(group_id)
        if group is not None:
            return group, (), None
        if self._others.is_known(group_id):
            if not joins:
                raise not_of_kind(group_id, self.name)
            records, group, change = self._others.convert(group_id)
            return group, records, _both(change, partial(self._adopt, group))
        if joins:
            return ConsumerGroup(group_id), (), None
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")

    def _adopt(self, group: ConsumerGroup) -> None:
        for member in group.members.values():
            self.timers.heard(group.group_id, member, has_moved=True)

    def scene(self, group_id: str, config: ConsumerConfig) -> Scene:
        """What a step of the group is made in."""
        image, soft = self.outside.image(), self._soft.get(group_id, _UNHEARD)
        asked_ms = soft.asked_ms
        return Scene(
            image,
            config,
            self._moment.wall_ms,
            self.hashes,
            soft.topics is not image.topics_by_name,
            asked_ms is not None and self._moment.now_ms < asked_ms + REFRESH_MIN_MS,
            self.outside.new_topics_offset(),
        )

    def awaits_target(self, group_id: str) -> bool:
        """Whether the next heartbeat makes a target, or may: topics are others. From any thread."""
        group, soft = self.groups.get(group_id), self._soft.get(group_id, _UNHEARD)
        return group is not None and (
            group.awaits_target or soft.topics is not self.outside.image().topics_by_name
        )

    def know(self, group_id: str, topics: object) -> _Soft:
        """The group was told of these topics."""
        soft = self._soft.setdefault(group_id, _Soft())
        soft.topics = topics
        return soft

    def heard(self, step: Step, member: ConsumerMember, client: Client, *, has_moved: bool) -> None:
        """A member was heard: its session begins anew, and the group knows the topics."""
        group_id = step.group.group_id
        soft = self.know(group_id, step.topics)
        if step.to_resolve:
            soft.asked_ms = self._moment.now_ms
            look = partial(self.outside.resolve, group_id, step.to_resolve, client.sees_topic)
            self.effects.append(look)
        if step.replaced is not None:
            self.timers.gone(group_id, step.replaced.member_id)
        self.timers.heard(group_id, member, has_moved=has_moved)

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> GroupDecision:
        group, _, _ = self._group(request.group_id, joins=False)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = requests.owner_of_instance(group, request.instance_id, request.member_id)
        response = ConsumerGroupHeartbeatResponse(
            error_code=0, member_id=member.member_id, member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
        )  # fmt: skip
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            waiting = replace(
                member,
                epoch=LEAVE_STATIC_EPOCH,
                assigned={id_: dict.fromkeys(held, 0) for id_, held in member.assigned.items()},
                revoking={},
            )
            return Decision([written.current_record(group.group_id, waiting)], response)
        return self.without(group, [member], response)

    def without(
        self, group: ConsumerGroup, members: Sequence[ConsumerMember], response: object | None
    ) -> GroupDecision:
        """These members are gone: the others share what they had, in the next epoch (CG-20)."""
        converted = self._others.without(group, members)
        if converted is not None:
            all_gone = partial(self._gone, group.group_id, list(group.members))
            return Decision(converted.records, response, _both(all_gone, converted.change))
        ids = [member.member_id for member in members]
        records: Records = []
        for member_id in ids:
            records += written.member_tombstones(group.group_id, member_id)
        left = group.subscriptions(without=members)
        unused = [regex for regex in group.regexes if regex not in left.regexes]
        records += [written.regex_tombstone(group.group_id, regex) for regex in unused]
        now = self.hashes(left.topics(group.regexes), self.outside.image())
        records.append(written.epoch_record(group.group_id, group.epoch + 1, now))
        return Decision(records, response, partial(self._gone, group.group_id, ids))

    def _gone(self, group_id: str, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            self.timers.gone(group_id, member_id)

    def _fence(self, group_id: str, member_id: str, in_epoch: int | None) -> GroupDecision | None:
        """Time is up for a member, unless it has left the epoch that it had to leave."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or in_epoch not in (None, member.epoch):
            return None
        return self.without(group, [member], None)

    # -- regular expressions -----------------------------------------------------------------

    def regexes_resolved(self, group_id: str, found: Mapping[str, ResolvedRegex]) -> GroupDecision:
        """What was found for a group's expressions: another epoch if it is something new."""
        group = self.groups.get(group_id)
        if group is None:
            return Decision()
        wanted = {regex: seen for regex, seen in found.items() if group.regex_count(regex)}
        records = [written.regex_record(group_id, regex, seen) for regex, seen in wanted.items()]
        known = {**group.regexes, **wanted}
        now = self.hashes(group.subscriptions().topics(known), self.outside.image())
        is_new = now != group.metadata_hash or any(
            seen.topics != (group.regexes[regex].topics if regex in group.regexes else frozenset())
            for regex, seen in wanted.items()
        )
        if is_new:
            records.append(written.epoch_record(group_id, group.epoch + 1, now))
        return Decision(records)

    # -- as any kind of group ----------------------------------------------------------------

    def renewal(self, group_id: str, member_id: str) -> None:
        """A commit is no heartbeat."""

    def tombstones(self, group_id: str) -> Records:
        """See GroupKind."""
        return written.group_tombstones(self.groups[group_id])

    def of_id(self, group_id: str) -> ConsumerGroup:
        """KafkaError GROUP_ID_NOT_FOUND, also if it is of another kind."""
        return group_of_kind(self.groups, group_id, self.name, self._others.is_known)

    # -- the log -----------------------------------------------------------------------------

    def replay(self, key: Record, value: Record | None) -> str | None:
        """Make one record of a consumer group true. Tombstones of what is not known are fine.

        Returns the group's id if there is such a group by this: whatever the record says of it, for
        the cleaner may have left any of them as the first.
        """
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self.groups.get(group_id)
        founded = None
        if group is None:
            if value is None:
                return None
            group = self.groups[group_id] = ConsumerGroup(group_id)
            founded = group_id
        if not written.MEMBERS.replay(group, key, value):
            _REPLAY[type(key)](self, group, key, value)
        return founded

    def _replay_epoch(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupMetadataKey,
        value: ConsumerGroupMetadataValue | None,
    ) -> None:
        if value is None:
            del self.groups[group.group_id]
            self._soft.pop(group.group_id, None)
        else:
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash

    def _replay_old_topics(self, group: ConsumerGroup, _key: Record, value: Record | None) -> None:
        group.has_old_topics = value is not None

    def _replay_regex(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupRegularExpressionKey,
        value: ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is None:
            group.regexes.pop(key.regular_expression, None)
        else:
            group.regexes[key.regular_expression] = ResolvedRegex(
                frozenset(value.topics), value.version, value.timestamp
            )

    def on_loaded(self) -> None:
        """Whoever is a member has a whole session to be heard from, and who gives something back
        as long as that may take (CG-9)."""
        for group in self.groups.values():
            for member in group.members.values():
                self.timers.heard(group.group_id, member, has_moved=True)

    def on_unloaded(self, error: KafkaError) -> None:
        """Nobody waits for an answer of a consumer group."""
        self.groups.clear()


_REPLAY: dict[type[Record], Callable[..., None]] = {
    ConsumerGroupMetadataKey: ConsumerGroups._replay_epoch,
    ConsumerGroupPartitionMetadataKey: ConsumerGroups._replay_old_topics,
    ConsumerGroupRegularExpressionKey: ConsumerGroups._replay_regex,
}


def check_size(group: ConsumerGroup, member_id: str, config: ConsumerConfig) -> None:
    """KafkaError GROUP_MAX_SIZE_REACHED."""
    most = config.group_consumer_max_size
    if len(group.members) >= most and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {most} members.",
        )


def _both(first: Callable[[], object] | None, second: Callable[[], object]) -> Callable[[], object]:
    if first is None:
        return second

    def change() -> None:
        first()
        second()

    return change


def _known_member(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    owned: Partitions | None,
    step: Step,
) -> ConsumerMember:
    """The member as it was before this heartbeat; a fresh one if it joins (CG-12)."""
    joins, instance_id = request.member_epoch == JOIN_EPOCH, request.instance_id
    if joins:
        return joining_member(group, member_id, instance_id, step, is_classic=False)
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = requests.owner_of_instance(group, instance_id, member_id)
    requests.validate_epoch(member, request.member_epoch, owned)
    return member


def joining_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, step: Step, *, is_classic: bool
) -> ConsumerMember:
    """The member that joins, as it was before: fresh, or with what its instance id had.

    KafkaError UNRELEASED_INSTANCE_ID.
    """
    holder = None if instance_id is None else group.static_member(instance_id)
    if holder is None:
        return group.members.get(member_id) or ConsumerMember(member_id)
    is_away = holder.epoch == LEAVE_STATIC_EPOCH
    if not (is_away or is_classic or holder.classic is not None):
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group "
            f"because the instance id is owned by {holder.member_id} member.",
        )
    returned = replace(holder, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    step.replace(holder, returned)
    return returned
