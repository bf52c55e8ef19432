"""What heartbeats and time do to the consumer groups of one shard (PURE; GroupMetadataManager).

One heartbeat does all that there is to do for its member, in this order, and writes it as one
batch: the member as it is now (5); if what is subscribed to has changed, or these topics have, the
group's next epoch (3); if the target is of an earlier epoch, and the last one is not too young, the
next target (7 for each member that it changes, 6); and the member one step further towards it (8).
So a group moves only when its members speak, and each of them only in its own heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.consumer import records as written
from server.coordinator.consumer.assignors import ASSIGNORS, GroupSpec, MemberSpec
from server.coordinator.consumer.group import NOTHING, ConsumerGroup, ResolvedRegex
from server.coordinator.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOT_SET,
    ConsumerMember,
    Held,
    MemberState,
    Partitions,
)
from server.coordinator.consumer.reconcile import reconciled
from server.coordinator.consumer.topics import counts_of, ids_of, metadata_hash
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group_messages import Client
from server.coordinator.machine import Decision
from server.coordinator.records import CoordinatorRecord
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from wire.messages.groups_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from wire.schema import Record

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

GroupDecision = Decision[CoordinatorRecord]
_MEMBER_ID_REQUIRED_VERSION = 1
"""From here on members make their own ids."""


class ConsumerConfig(NamedTuple):
    """`group.consumer.*`: times in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    assignment_interval_ms: int = 1_000


class ConsumerGroups:
    """The consumer groups of one shard. Owner: the shard; takes no lock, owns no clock.

    `groups` are those of every kind. `image` tells the cluster's metadata as it is now.
    """

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        config: ConsumerConfig,
        deadlines: Deadlines,
        moment: Moment,
        image: Callable[[], MetadataImage],
        new_uuid: Callable[[], str],
    ) -> None:
        self._groups = groups
        self._config = config
        self._deadlines = deadlines
        self._moment = moment
        self._image = image
        self._new_uuid = new_uuid

    # -- heartbeats --------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: Client) -> GroupDecision:
        """Join, stay, or leave; see the module. KafkaErrors as CG-11 and CG-12 list them."""
        validate_heartbeat(request, client.api_version, self._config.assignors)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request)
        joins = request.member_epoch == JOIN_EPOCH
        group = self._group(request.group_id, may_be_new=joins)
        member_id = request.member_id or self._new_uuid()
        if len(group.members) >= self._config.max_size and member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The consumer group has reached its maximum capacity of "
                f"{self._config.max_size} members.",
            )
        owned = _partitions(request.topic_partitions)
        step = _Step(group, self._image(), self._config, self._moment.wall_ms)
        member = _known_member(group, request, member_id, owned, step)
        asked = _asked(member, request, client)
        step.update(member, asked)
        after = step.reconcile(asked, owned)
        assignment = None
        is_full = (
            request.rebalance_timeout_ms != NOT_SET
            and owned is not None
            and not (
                request.subscribed_topic_names is None and request.subscribed_topic_regex is None
            )
        )
        if joins or is_full or _partitions_of(after.assigned) != _partitions_of(member.assigned):
            assignment = _assignment(after.assigned)
        response = ConsumerGroupHeartbeatResponse(
            error_code=0,
            member_id=member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._config.heartbeat_interval_ms,
            assignment=assignment,
        )
        return Decision(step.records, response, partial(self._heard, group.group_id, after))

    def _group(self, group_id: str, *, may_be_new: bool) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if group is None:
            if may_be_new:
                return ConsumerGroup(group_id)
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        return group

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> GroupDecision:
        group = self._group(request.group_id, may_be_new=False)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = _owner_of_instance(group, request.instance_id, request.member_id)
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
        return self._without(group, [member], response)

    def _without(
        self,
        group: ConsumerGroup,
        members: list[ConsumerMember],
        response: ConsumerGroupHeartbeatResponse | None,
    ) -> GroupDecision:
        """These members are gone: the others share what they had, in the next epoch (CG-20)."""
        records = []
        for member in members:
            records += written.member_tombstones(group.group_id, member.member_id)
        left = group.subscriptions(without=members)
        unused = [regex for regex in group.regexes if regex not in left.regexes]
        records += [written.regex_tombstone(group.group_id, regex) for regex in unused]
        topics = left.topics(group.regexes)
        records.append(
            written.epoch_record(
                group.group_id, group.epoch + 1, metadata_hash(topics, self._image())
            )
        )
        gone = partial(self._gone, group.group_id, [member.member_id for member in members])
        return Decision(records, response, gone)

    # -- time --------------------------------------------------------------------------------

    def _heard(self, group_id: str, member: ConsumerMember) -> None:
        """A member was heard: its session begins anew, and the time it has to give back."""
        now_ms, id_ = self._moment.now_ms, member.member_id
        fence = partial(self._fence, group_id, id_, None)
        self._deadlines.set(
            ("session", group_id, id_), now_ms + self._config.session_timeout_ms, fence
        )
        key = ("rebalance", group_id, id_)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._deadlines.cancel(key)
        elif key not in self._deadlines:
            late = partial(self._fence, group_id, id_, member.epoch)
            self._deadlines.set(key, now_ms + member.rebalance_timeout_ms, late)

    def _fence(self, group_id: str, member_id: str, in_epoch: int | None) -> GroupDecision | None:
        """Time is up for a member, unless it has left the epoch that it had to leave."""
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or in_epoch not in (None, member.epoch):
            return None
        return self._without(group, [member], None)

    def _gone(self, group_id: str, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            self._deadlines.cancel(("session", group_id, member_id))
            self._deadlines.cancel(("rebalance", group_id, member_id))

    # -- the log -----------------------------------------------------------------------------

    def replay(self, key: Record, value: Record | None) -> None:
        """Make one record of a consumer group true. Tombstones of what is not known are fine."""
        group = self._groups.get(key.group_id)  # type: ignore[attr-defined]
        if group is None and isinstance(value, _FOUNDING):
            group = ConsumerGroup(key.group_id)  # type: ignore[attr-defined]
            self._groups[group.group_id] = group
        if group is not None:
            _REPLAY[type(key)](self, group, key, value)

    def _replay_epoch(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupMetadataKey,
        value: ConsumerGroupMetadataValue | None,
    ) -> None:
        if value is None:
            del self._groups[group.group_id]
        else:
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash

    def _replay_member(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupMemberMetadataKey,
        value: ConsumerGroupMemberMetadataValue | None,
    ) -> None:
        if value is None:
            group.remove_member(key.member_id)
        else:
            member = group.members.get(key.member_id) or ConsumerMember(key.member_id)
            group.put_member(written.with_subscription(member, value))

    def _replay_target_epoch(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is not None:
            group.target_epoch, group.target_ms = value.assignment_epoch, value.assignment_timestamp

    def _replay_target(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            group.target.pop(key.member_id, None)
        else:
            group.target[key.member_id] = written.target_of(value)

    def _replay_current(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        member = group.members.get(key.member_id)
        if member is not None:
            group.put_member(written.with_assignment(member, value))

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
        """Whoever is a member has a whole session to be heard from (CG-9)."""
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    self._heard(group.group_id, member)


_FOUNDING = (ConsumerGroupMetadataValue, ConsumerGroupMemberMetadataValue)
"""What there is a group by, if there was none."""
_REPLAY: dict[type[Record], Callable[..., None]] = {
    ConsumerGroupMetadataKey: ConsumerGroups._replay_epoch,
    ConsumerGroupPartitionMetadataKey: lambda *_: None,  # what 4.0 and before knew of topics
    ConsumerGroupMemberMetadataKey: ConsumerGroups._replay_member,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroups._replay_target_epoch,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroups._replay_target,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroups._replay_current,
    ConsumerGroupRegularExpressionKey: ConsumerGroups._replay_regex,
}


class _Step:
    """What one heartbeat writes, gathered in order."""

    def __init__(
        self, group: ConsumerGroup, image: MetadataImage, config: ConsumerConfig, wall_ms: int
    ) -> None:
        self.records: list[CoordinatorRecord] = []
        self.group = group
        self._image = image
        self._config = config
        self._wall_ms = wall_ms
        self.replaced: ConsumerMember | None = None
        """The static member whose place is taken."""
        self._has_new_subscription = False

    def replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """A static member came back under another id (CG-32)."""
        group_id = self.group.group_id
        self.replaced = old
        self.records += written.member_tombstones(group_id, old.member_id)
        target = self.group.target.get(old.member_id, NOTHING)
        self.records += [
            written.member_record(group_id, new),
            written.target_record(group_id, new.member_id, target),
            written.current_record(group_id, new),
        ]

    def update(self, before: ConsumerMember, member: ConsumerMember) -> None:
        """The member is so now; the group's epoch and target, if they must change."""
        group = self.group
        is_new = member.member_id not in group.members and self.replaced is None
        if member != before or is_new:
            self.records.append(written.member_record(group.group_id, member))
        self._has_new_subscription = member.subscribed_names != before.subscribed_names
        gone = [known for known in (group.members.get(member.member_id), self.replaced) if known]
        asked = group.subscriptions(without=gone, and_with=member)
        now = metadata_hash(asked.topics(group.regexes), self._image)
        self._epoch = group.epoch
        if self._has_new_subscription or now != group.metadata_hash:
            self._epoch += 1
            self.records.append(written.epoch_record(group.group_id, self._epoch, now))
        self._find_target(member, asked.is_homogeneous(group.regexes))

    def _find_target(self, member: ConsumerMember, is_homogeneous: bool) -> None:
        group = self.group
        old = group.target.get(member.member_id)
        if old is None and self.replaced is not None:
            old = group.target.get(self.replaced.member_id)
        self._target, self._target_epoch = old or NOTHING, group.target_epoch
        is_too_young = (
            group.target_ms != 0
            and self._wall_ms < group.target_ms + self._config.assignment_interval_ms
        )
        if group.target_epoch >= self._epoch or is_too_young:
            return
        members = {id_: known for id_, known in group.members.items() if known != self.replaced}
        members[member.member_id] = member
        targets = {id_: group.target.get(id_, NOTHING) for id_ in members}
        targets[member.member_id] = self._target
        subscribed = {id_: ids_of(group.subscribed(m), self._image) for id_, m in members.items()}
        spec = GroupSpec(
            {
                id_: MemberSpec(known.instance_id, subscribed[id_], targets[id_])
                for id_, known in members.items()
            },
            counts_of(frozenset().union(*subscribed.values()), self._image),
            is_homogeneous,
        )
        found = ASSIGNORS[_chosen_assignor(members.values(), self._config.assignors)](spec)
        for id_ in members:
            target = found.get(id_, NOTHING)
            if target != group.target.get(id_):
                self.records.append(written.target_record(group.group_id, id_, target))
        self.records.append(written.target_epoch_record(group.group_id, self._epoch, self._wall_ms))
        self._target, self._target_epoch = found.get(member.member_id, NOTHING), self._epoch

    def reconcile(self, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
        """The member one step further."""
        if not self._has_new_subscription and member.is_reconciled_to(self._target_epoch):
            return member
        after = reconciled(
            member,
            self._target_epoch,
            self._target,
            ids_of(self.group.subscribed(member), self._image),
            self._is_held,
            owned,
            has_subscription_changed=self._has_new_subscription,
        )
        if after != member:
            self.records.append(written.current_record(self.group.group_id, after))
        return after

    def _is_held(self, topic_id: bytes, partition: int) -> bool:
        if self.replaced is not None and partition in self.replaced.assigned.get(topic_id, ()):
            return False
        return self.group.is_held(topic_id, partition)


# ---- requests


def validate_heartbeat(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Iterable[str]
) -> None:
    """CG-11. KafkaError INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if not request.member_id and (
        api_version >= _MEMBER_ID_REQUIRED_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    ):
        raise _invalid("MemberId can't be empty.")
    for name, text in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _validate_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NOT_SET:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)


def _known_member(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    owned: Partitions | None,
    step: _Step,
) -> ConsumerMember:
    """The member as it was before this heartbeat; a fresh one if it joins (CG-12)."""
    joins, instance_id = request.member_epoch == JOIN_EPOCH, request.instance_id
    if instance_id is None or (joins and group.static_member(instance_id) is None):
        member = group.members.get(member_id)
        if member is None:
            if joins:
                return ConsumerMember(member_id)
            member = group.member(member_id)
    elif joins:
        holder = group.static_member(instance_id)
        assert holder is not None, "looked up above"
        if holder.epoch != LEAVE_STATIC_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {holder.member_id} member.",
            )
        returned = replace(holder, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        step.replace(holder, returned)
        return returned
    else:
        member = _owner_of_instance(group, instance_id, member_id)
    if not joins:
        _validate_epoch(member, request.member_epoch, owned)
    return member


def _owner_of_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    holder = group.static_member(instance_id)
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{holder.member_id}.",
        )
    return holder


def _validate_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """The answer that told the epoch may have been lost: then the one before is right, if the
    member owns nothing but what it was given."""
    if epoch == member.epoch:
        return
    is_lost_answer = (
        epoch == member.previous_epoch
        and epoch < member.epoch
        and owned is not None
        and all(of <= set(member.assigned.get(id_, ())) for id_, of in owned.items())
    )
    if not is_lost_answer:
        order = "greater" if epoch > member.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {order} member epoch ({epoch}) than the one known "
            f"by the group coordinator ({member.epoch}). The member must abandon all its "
            "partitions and rejoin.",
        )


def _asked(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    """The member with what the request says anew; what it does not say stays (CG-13)."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == NOT_SET else timeout_ms,
        subscribed_names=member.subscribed_names if names is None else frozenset(names),
        subscribed_regex=member.subscribed_regex if regex is None else regex,
        server_assignor=request.server_assignor or member.server_assignor,
    )


def _chosen_assignor(members: Iterable[ConsumerMember], assignors: tuple[str, ...]) -> str:
    """What most members prefer (CG-16)."""
    votes = Counter(m.server_assignor for m in members if m.server_assignor is not None)
    return votes.most_common(1)[0][0] if votes else assignors[0]


def _partitions(
    topics: list[ConsumerGroupHeartbeatRequest.Topic] | None,
) -> Partitions | None:
    if topics is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}


def _partitions_of(held: Held) -> Mapping[bytes, frozenset[int]]:
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}


def _assignment(held: Held) -> ConsumerGroupHeartbeatResponse.Assignment:
    topic = ConsumerGroupHeartbeatResponse.Assignment.Topic
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            topic(topic_id=topic_id, partitions=sorted(epochs)) for topic_id, epochs in held.items()
        ]
    )
