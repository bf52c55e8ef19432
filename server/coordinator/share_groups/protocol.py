"""What heartbeats and time do to the share groups of one shard (PURE; GroupMetadataManager).

One heartbeat does all that there is to do for its member, and writes it as one batch: the member as
it is now (10); if what is subscribed to has changed, or these topics have, or there are partitions
that nobody has, the next epoch (11); if the target is of an earlier epoch, and the last one is not
too young, the next target (13, 12); the member with what the target gives it (14); and partitions
whose state must be begun (15), which is asked for once all that is committed (SG-2 to SG-5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.consumer.group import NOTHING
from server.coordinator.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, Partitions
from server.coordinator.consumer.requests import check_not_empty, invalid
from server.coordinator.consumer.topics import TopicHashes, ids_of
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.group import GroupDecision, not_of_kind
from server.coordinator.group_config import ShareConfig
from server.coordinator.group_messages import Client
from server.coordinator.machine import Decision, Effect
from server.coordinator.records import CoordinatorRecord, Records
from server.coordinator.share_groups import assignor
from server.coordinator.share_groups import records as written
from server.coordinator.share_groups.group import SHARE, ShareGroup
from server.coordinator.share_groups.member import ShareMember
from server.coordinator.share_groups.topics import Topics
from server.share.state_batches import UNINITIALIZED
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups_records import (
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
)
from wire.messages.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from wire.schema import Record

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

_SESSION = "share member"

Starts = Mapping[bytes, Mapping[int, int]]
"""Topic id to partition to the offset it is to begin at; UNINITIALIZED: where its leader finds."""


class ShareOutside(NamedTuple):
    """What the share groups of a shard ask of their broker. None of it waits."""

    image: Callable[[], MetadataImage]
    config: Callable[[str], ShareConfig]
    """Of a group."""
    initialize: Callable[[str, int, Starts], None]
    """Begin the state of a group's partitions, at this epoch of it, and tell
    `ShareGroups.initialized` or `ShareGroups.not_initialized`."""


class ShareGroups:
    """The share groups of one shard. Owner: the shard; takes no lock, owns no clock."""

    name = SHARE

    def __init__(
        self,
        outside: ShareOutside,
        deadlines: Deadlines,
        moment: Moment,
        hashes: TopicHashes,
        effects: list[Effect],
        is_of_another_kind: Callable[[str], bool],
    ) -> None:
        self.groups: dict[str, ShareGroup] = {}
        self.outside = outside
        self.moment = moment
        self._deadlines = deadlines
        self._hashes = hashes
        self._effects = effects
        self._is_of_another_kind = is_of_another_kind
        self._told: dict[str, object] = {}
        """The topics (`MetadataImage.topics_by_name`) as each group was last told of them."""

    # -- heartbeats --------------------------------------------------------------------------

    def heartbeat(self, request: ShareGroupHeartbeatRequest, client: Client) -> GroupDecision:
        """Join, stay, or leave; see the module. KafkaErrors as SG-1 lists them."""
        _validate(request)
        group_id, joins = request.group_id, request.member_epoch == JOIN_EPOCH
        group = self.of_id(group_id, may_be_new=joins)
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(group, request)
        config = self.outside.config(group_id)
        _check_size(group, request.member_id, config)
        member = group.members.get(request.member_id) if joins else group.member(request.member_id)
        known = member or ShareMember(request.member_id)
        _validate_epoch(known, request.member_epoch)
        image = self.outside.image()
        step = _Step(group, member, _asked(known, request, client), self.moment.wall_ms, config)
        is_image_new = self._told.get(group_id) is not image.topics_by_name
        step.update(known, image, self._hashes, is_image_new=is_image_new)
        step.find_target(image)
        after = step.reconcile(image)
        begun = step.initialize(image)
        response = ShareGroupHeartbeatResponse(
            error_code=0,
            member_id=after.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=config.group_share_heartbeat_interval_ms,
            assignment=_assignment(after.assigned)
            if joins
            or request.subscribed_topic_names is not None
            or after.assigned != known.assigned
            else None,
        )
        heard = partial(self._heard, group, step, image.topics_by_name, begun)
        return Decision(step.records, response, heard)

    def awaits_target(self, group_id: str) -> bool:
        """Whether the next heartbeat makes a target, or may: topics are others. From any thread."""
        group, topics = self.groups.get(group_id), self._told.get(group_id)
        return group is not None and (
            group.awaits_target or topics is not self.outside.image().topics_by_name
        )

    def _heard(self, group: ShareGroup, step: _Step, topics: object, begun: Topics) -> None:
        """A member was heard: its session begins anew, and the group knows the topics."""
        group_id = group.group_id
        self._told[group_id] = topics
        if not step.records and not group.topics.initializing:
            group.settled_in = topics
        self._renew(group_id, step.member.member_id)
        if begun:
            starts = {
                id_: dict.fromkeys(sorted(topic.partitions), UNINITIALIZED)
                for id_, topic in begun.items()
            }
            initialize = partial(self.outside.initialize, group_id, step.epoch, starts)
            self._effects.append(initialize)

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> GroupDecision:
        member = group.member(request.member_id)
        response = ShareGroupHeartbeatResponse(
            error_code=0, member_id=member.member_id, member_epoch=LEAVE_EPOCH,
            heartbeat_interval_ms=0,
        )  # fmt: skip
        return self._without(group, member, response)

    def _without(
        self, group: ShareGroup, member: ShareMember, response: object | None
    ) -> GroupDecision:
        """The member is gone: the others share what it had, in the next epoch (SG-3)."""
        now = self._hashes(group.names(without=member), self.outside.image())
        records = [
            *written.member_tombstones(group.group_id, member.member_id),
            written.epoch_record(group.group_id, group.epoch + 1, now),
        ]
        return Decision(records, response, partial(self._forget, group.group_id, member.member_id))

    def _forget(self, group_id: str, member_id: str) -> None:
        self._deadlines.cancel((_SESSION, group_id, member_id))

    def _renew(self, group_id: str, member_id: str) -> None:
        timeout_ms = self.outside.config(group_id).group_share_session_timeout_ms
        self._deadlines.set(
            (_SESSION, group_id, member_id),
            self.moment.now_ms + timeout_ms,
            partial(self._fence, group_id, member_id),
        )

    def _fence(self, group_id: str, member_id: str) -> GroupDecision | None:
        """Time is up for a member."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return None
        return self._without(group, member, None)

    # -- state of partitions -----------------------------------------------------------------

    def initialized(self, group_id: str, topics: Topics) -> GroupDecision:
        """The state of these partitions is kept now: the next heartbeat assigns them."""
        group = self.groups.get(group_id)
        if group is None:
            return Decision(response=ErrorCode.NONE)
        after = group.topics.done(topics)
        records = [written.topics_record(group_id, after)] if after != group.topics else []
        return Decision(records, ErrorCode.NONE)

    def not_initialized(self, group_id: str, topics: Topics) -> GroupDecision:
        """It is not: the next heartbeat asks again."""
        group = self.groups.get(group_id)
        if group is None or not group.topics.initializing:
            return Decision(response=ErrorCode.NONE)
        record = written.topics_record(group_id, group.topics.failed(topics))
        return Decision([record], ErrorCode.NONE)

    def with_topics(self, topic_ids: frozenset[bytes]) -> list[str]:
        """The groups that keep state of any of these topics, or are about to."""
        return [id_ for id_, group in self.groups.items() if group.topics.has_any(topic_ids)]

    def without(self, topic_ids: frozenset[bytes], group_id: str) -> CoordinatorRecord | None:
        """The group's record without these topics, which are no more; None if it names none."""
        group = self.groups.get(group_id)
        if group is None or not group.topics.has_any(topic_ids):
            return None
        return written.topics_record(group_id, group.topics.without(topic_ids))

    # -- as any kind of group ----------------------------------------------------------------

    def renewal(self, group_id: str, member_id: str) -> None:
        """Nobody commits."""

    def tombstones(self, group_id: str) -> Records:
        """See GroupKind. KafkaError NON_EMPTY_GROUP if state was begun since all of it was deleted:
        it would be left behind, for the next group of this name."""
        group = self.groups[group_id]
        if group.topics.initializing or group.topics.initialized:
            detail = "State of the group was begun while it was deleted."
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, detail)
        return written.group_tombstones(group)

    def of_id(self, group_id: str, *, may_be_new: bool = False) -> ShareGroup:
        """KafkaError GROUP_ID_NOT_FOUND, also if it is of another kind."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        if self._is_of_another_kind(group_id):
            raise not_of_kind(group_id, self.name)
        if may_be_new:
            return ShareGroup(group_id)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")

    # -- the log -----------------------------------------------------------------------------

    def replay(self, key: Record, value: Record | None) -> str | None:
        """Make one record of a share group true. Tombstones of what is not known are fine.

        Returns the group's id if there is such a group by this.
        """
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self.groups.get(group_id)
        founded = None
        if group is None:
            if value is None:
                return None
            group = self.groups[group_id] = ShareGroup(group_id)
            founded = group_id
        group.settled_in = None
        if not written.MEMBERS.replay(group, key, value):
            _REPLAY[type(key)](self, group, key, value)
        return founded

    def _replay_epoch(
        self, group: ShareGroup, _key: Record, value: ShareGroupMetadataValue | None
    ) -> None:
        if value is None:
            del self.groups[group.group_id]
            self._told.pop(group.group_id, None)
        else:
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash

    def _replay_topics(
        self, group: ShareGroup, _key: Record, value: ShareGroupStatePartitionMetadataValue | None
    ) -> None:
        if value is not None:
            group.topics = written.topics_of(value, self.moment.wall_ms)

    def on_loaded(self) -> None:
        """Whoever is a member has a whole session to be heard from (CG-9)."""
        for group in self.groups.values():
            for member_id in group.members:
                self._renew(group.group_id, member_id)

    def on_unloaded(self, error: KafkaError) -> None:
        """Nobody waits for an answer of a share group."""
        self.groups.clear()


_REPLAY: dict[type[Record], Callable[..., None]] = {
    ShareGroupMetadataKey: ShareGroups._replay_epoch,
    ShareGroupStatePartitionMetadataKey: ShareGroups._replay_topics,
}
SHARE_KEYS = written.MEMBERS.keys.union(_REPLAY)
"""The keys of records that are about share groups."""


class _Step:
    """What one heartbeat writes, gathered in order. `group` is as it was before."""

    def __init__(
        self,
        group: ShareGroup,
        before: ShareMember | None,
        member: ShareMember,
        wall_ms: int,
        config: ShareConfig,
    ) -> None:
        self.records: list[CoordinatorRecord] = []
        self.group = group
        self.member = member
        self.epoch = group.epoch
        self._before = before
        self._wall_ms = wall_ms
        self._config = config
        self._names: Mapping[str, int] = group.names()
        self._target = group.target.get(member.member_id, NOTHING)
        self._target_epoch = group.target_epoch
        self._bumps = False

    def update(
        self, before: ShareMember, image: MetadataImage, hashes: TopicHashes, *, is_image_new: bool
    ) -> None:
        """The member is so now, and the group's epoch if that changes it."""
        group, member = self.group, self.member
        if member is not before and member != before:
            self.records.append(written.member_record(group.group_id, member))
            self._names = group.names(self._before, member)
        bumps = member.subscribed_names != before.subscribed_names
        if not bumps and group.settled_in is image.topics_by_name:
            return
        if group.target_epoch >= group.epoch:
            bumps |= group.has_unassigned(image.topics_by_id)
        if not (bumps or is_image_new):
            return
        now = hashes(self._names, image)
        if bumps or now != group.metadata_hash:
            self._bumps = True
            self.epoch += 1
            self.records.append(written.epoch_record(group.group_id, self.epoch, now))

    def find_target(self, image: MetadataImage) -> None:
        """Compute the target anew if it is of an earlier epoch and old enough (CG-15)."""
        group, member = self.group, self.member
        if group.target_epoch >= self.epoch:
            return
        interval_ms = self._config.group_share_assignment_interval_ms
        if group.has_young_target(self._wall_ms, interval_ms):
            return
        members = {**group.members, member.member_id: member}
        specs = {
            id_: assignor.ShareMemberSpec(
                ids_of(one.subscribed_names, image), group.target.get(id_, NOTHING)
            )
            for id_, one in members.items()
        }
        is_homogeneous = all(count == len(members) for count in self._names.values())
        found = assignor.assign(
            specs, _existing(group.topics.assignable, image), is_homogeneous=is_homogeneous
        )
        for id_ in members:
            target = found.get(id_, NOTHING)
            if target != group.target.get(id_):
                self.records.append(written.target_record(group.group_id, id_, target))
        self.records.append(
            written.MEMBERS.target_epoch_record(group.group_id, self.epoch, self._wall_ms)
        )
        self._target, self._target_epoch = found.get(member.member_id, NOTHING), self.epoch

    def reconcile(self, image: MetadataImage) -> ShareMember:
        """The member with what the target gives it."""
        before = self.member
        if before.epoch == self._target_epoch and not self._bumps:
            return before
        subscribed = ids_of(before.subscribed_names, image)
        assigned = {id_: of for id_, of in self._target.items() if id_ in subscribed}
        after = replace(before, assigned=assigned)
        if before.epoch != self._target_epoch:
            after = replace(after, epoch=self._target_epoch, previous_epoch=before.epoch)
        if after != before:
            self.records.append(written.current_record(self.group.group_id, after))
        self.member = after
        return after

    def initialize(self, image: MetadataImage) -> Topics:
        """Partitions whose state must be begun."""
        group = self.group
        if group.settled_in is image.topics_by_name and not self.records:
            return {}
        retry_ms = self._config.group_share_initialize_retry_interval_ms
        found = group.topics.to_initialize(self._names, image, self._wall_ms, retry_ms)
        if found:
            topics = group.topics.begun(found)
            self.records.append(written.topics_record(group.group_id, topics))
        return found


def _existing(assignable: Partitions, image: MetadataImage) -> Partitions:
    """Those of topics that are there."""
    return {id_: of for id_, of in assignable.items() if id_ in image.topics_by_id}


def _validate(request: ShareGroupHeartbeatRequest) -> None:
    check_not_empty(MemberId=request.member_id, GroupId=request.group_id, RackId=request.rack_id)
    if request.member_epoch == JOIN_EPOCH:
        if not request.subscribed_topic_names:
            raise invalid("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise invalid("MemberEpoch is invalid.")


def _check_size(group: ShareGroup, member_id: str, config: ShareConfig) -> None:
    most = config.group_share_max_size
    if len(group.members) >= most and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum capacity of {most} members.",
        )


def _validate_epoch(member: ShareMember, epoch: int) -> None:
    """The answer that told the epoch may have been lost: then the one before is right."""
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    if epoch == member.previous_epoch and epoch < member.epoch:
        return
    order = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {order} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.epoch}). The member must abandon all its partitions and "
        "rejoin.",
    )


def _asked(member: ShareMember, request: ShareGroupHeartbeatRequest, client: Client) -> ShareMember:
    """The member with what the request says anew; what it does not say stays."""
    names, rack_id = request.subscribed_topic_names, request.rack_id
    knows_it = member.client_id == client.client_id and member.client_host == client.host
    if names is None and rack_id is None and knows_it:
        return member  # nearly every heartbeat
    return replace(
        member,
        rack_id=member.rack_id if rack_id is None else rack_id,
        client_id=client.client_id,
        client_host=client.host,
        subscribed_names=member.subscribed_names if names is None else frozenset(names),
    )


def _assignment(partitions: Partitions) -> ShareGroupHeartbeatResponse.Assignment:
    topic = ShareGroupHeartbeatResponse.Assignment.Topic
    return ShareGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            topic(topic_id=id_, partitions=sorted(of)) for id_, of in partitions.items()
        ]
    )
