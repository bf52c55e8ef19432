"""What one heartbeat writes for its member and the group, gathered in order (PURE).

First the member as it is now (5); then, if what is subscribed to has changed, or these topics have,
the group's next epoch (3); if the target is of an earlier epoch, and the last one is not too young,
the next target (7 for each member that it changes, 6); and the member one step further (8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.consumer import records as written
from server.coordinator.consumer.assignors import ASSIGNORS, GroupSpec, MemberSpec
from server.coordinator.consumer.group import NOTHING, ConsumerGroup, Subscriptions
from server.coordinator.consumer.member import ConsumerMember, Partitions
from server.coordinator.consumer.reconcile import reconciled
from server.coordinator.consumer.regexes import REFRESH_MIN_MS, compiled
from server.coordinator.consumer.topics import TopicHashes, counts_of, ids_of, ids_of_each
from server.coordinator.group_config import ConsumerConfig
from server.coordinator.java_order import hash_map_order
from server.coordinator.modern_group import is_within
from server.coordinator.records import CoordinatorRecord

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage


class Scene(NamedTuple):
    """What a step is made in."""

    image: MetadataImage
    config: ConsumerConfig
    wall_ms: int
    hashes: TopicHashes
    is_image_new: bool
    """Whether topics may be others than the group was last told of."""
    is_refreshing: bool
    """Whether the group's regular expressions were given to be looked at a moment ago."""
    new_topics_offset: int
    """Offset of the metadata with which topics were last created."""


class Step:
    """See the module. `group` is as it was before, also where `records` already replaces it."""

    def __init__(
        self, group: ConsumerGroup, scene: Scene, records: Sequence[CoordinatorRecord] = ()
    ) -> None:
        self.records: list[CoordinatorRecord] = list(records)
        self.group = group
        self.replaced: ConsumerMember | None = None
        """The static member whose place is taken."""
        self.to_resolve: frozenset[str] = frozenset()
        """All regular expressions of the group, if they are to be looked at now."""
        self.epoch = group.epoch
        self.has_new_subscription = False
        self.topics: object = scene.image.topics_by_name
        """What the group was told of topics."""
        self._scene = scene
        self._target: Partitions = NOTHING
        self._target_epoch = group.target_epoch

    def replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """A static member came back under another id (CG-32)."""
        group_id = self.group.group_id
        self.replaced = old
        target = self.group.target.get(old.member_id, NOTHING)
        self.records += [
            *written.member_tombstones(group_id, old.member_id),
            written.member_record(group_id, new),
            written.target_record(group_id, new.member_id, target),
            written.current_record(group_id, new),
        ]

    # -- the group ---------------------------------------------------------------------------

    def update(self, before: ConsumerMember, member: ConsumerMember) -> None:
        """The member is so now, and the group's epoch if that changes it.

        KafkaError INVALID_REGULAR_EXPRESSION.
        """
        group = self.group
        is_new = member.member_id not in group.members and self.replaced is None
        if is_new or (member is not before and member != before):
            self.records.append(written.member_record(group.group_id, member))
        has_new_names = member.subscribed_names != before.subscribed_names
        has_new_regex = member.subscribed_regex != before.subscribed_regex
        self.has_new_subscription = has_new_names or has_new_regex
        if not (self.has_new_subscription or self._scene.is_image_new or group.has_regexes):
            self._keep_target(member)
            return
        asked = self._asked(member)
        bumps = has_new_names
        if has_new_regex:
            bumps |= self._take_regex(before.subscribed_regex, member.subscribed_regex)
        self._maybe_refresh(asked, is_new=has_new_regex and self._is_first_of(member))
        if bumps or self._scene.is_image_new:
            self._bump(asked, must=bumps)
        self._keep_target(member)

    def _asked(self, member: ConsumerMember) -> Subscriptions:
        known = (self.group.members.get(member.member_id), self.replaced)
        before = {m.member_id: m for m in known if m is not None}  # it may be under its own id
        return self.group.subscriptions(before.values(), member)

    def _bump(self, asked: Subscriptions, *, must: bool) -> None:
        group, scene = self.group, self._scene
        now = scene.hashes(asked.topics(group.regexes), scene.image)
        if must or now != group.metadata_hash:
            self.epoch += 1
            self.records.append(written.epoch_record(group.group_id, self.epoch, now))
        if group.has_old_topics:
            self.records.append(written.topics_tombstone(group.group_id))

    # -- regular expressions -----------------------------------------------------------------

    def _take_regex(self, old: str, new: str) -> bool:
        """The member subscribes by another expression; whether that bumps the epoch at once, as
        it does if all is known that it changes (CG-31)."""
        group = self.group
        if old and group.regex_count(old) == 1:
            self.records.append(written.regex_tombstone(group.group_id, old))
        if new and group.regex_count(new) == 0:
            compiled(new)
            return False
        return new in group.regexes if new else bool(old)

    def _is_first_of(self, member: ConsumerMember) -> bool:
        regex = member.subscribed_regex
        return bool(regex) and self.group.regex_count(regex) == 0

    def _maybe_refresh(self, asked: Subscriptions, *, is_new: bool) -> None:
        """Have all expressions looked at if they must be (CG-30)."""
        scene, known = self._scene, self.group.regexes
        if not asked.regexes or scene.is_refreshing:
            return
        last_ms = max((regex.resolved_ms for regex in known.values()), default=None)
        if last_ms is not None and is_within(REFRESH_MIN_MS + 1, last_ms, scene.wall_ms):
            return
        seen = min((regex.metadata_version for regex in known.values()), default=-1)
        interval_ms = scene.config.group_consumer_regex_refresh_interval_ms
        if (
            is_new
            or len(asked.regexes) != len(known)
            or seen < scene.new_topics_offset
            or (last_ms is not None and not is_within(interval_ms + 1, last_ms, scene.wall_ms))
        ):
            self.to_resolve = frozenset(asked.regexes)

    # -- the target --------------------------------------------------------------------------

    def _keep_target(self, member: ConsumerMember) -> None:
        group = self.group
        old = group.target.get(member.member_id)
        if old is None and self.replaced is not None:
            old = group.target.get(self.replaced.member_id)
        self._target = old or NOTHING

    @property
    def is_target_due(self) -> bool:
        """Whether it is of an earlier epoch, and old enough for another one (CG-15)."""
        group, scene = self.group, self._scene
        interval_ms = scene.config.group_consumer_assignment_interval_ms
        return group.target_epoch < self.epoch and not group.has_young_target(
            scene.wall_ms, interval_ms
        )

    def find_target(self, member: ConsumerMember) -> None:
        """Compute the target anew if it is due."""
        if not self.is_target_due:
            return
        group, scene = self.group, self._scene
        members = {id_: known for id_, known in group.members.items() if known != self.replaced}
        members[member.member_id] = member
        targets = {id_: group.target.get(id_, NOTHING) for id_ in members}
        targets[member.member_id] = self._target
        named = [(id_, group.subscribed(known)) for id_, known in members.items()]
        subscribed = ids_of_each(named, scene.image)
        spec = GroupSpec(
            {
                id_: MemberSpec(members[id_].instance_id, subscribed[id_], targets[id_])
                for id_ in hash_map_order(members)
            },
            counts_of(frozenset().union(*set(subscribed.values())), scene.image),
            self._asked(member).is_homogeneous(group.regexes),
        )
        assignors = scene.config.group_consumer_assignors
        found = ASSIGNORS[chosen_assignor(members.values(), assignors)](spec)
        for id_ in members:
            target = found.get(id_, NOTHING)
            if target != group.target.get(id_):
                self.records.append(written.target_record(group.group_id, id_, target))
        self.records.append(
            written.MEMBERS.target_epoch_record(group.group_id, self.epoch, scene.wall_ms)
        )
        self._target, self._target_epoch = found.get(member.member_id, NOTHING), self.epoch

    # -- the member --------------------------------------------------------------------------

    def reconcile(self, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
        """The member one step further."""
        if not self.has_new_subscription and member.is_reconciled_to(self._target_epoch):
            return member
        after = reconciled(
            member,
            self._target_epoch,
            self._target,
            ids_of(self.group.subscribed(member), self._scene.image),
            self._is_held,
            owned,
            has_subscription_changed=self.has_new_subscription,
        )
        if after != member:
            self.records.append(written.current_record(self.group.group_id, after))
        return after

    def _is_held(self, topic_id: bytes, partition: int) -> bool:
        if self.replaced is not None and partition in self.replaced.assigned.get(topic_id, ()):
            return False
        return self.group.is_held(topic_id, partition)


def chosen_assignor(members: Iterable[ConsumerMember], assignors: Sequence[str]) -> str:
    """What most members prefer (CG-16) of what there is: the log may tell of others, which another
    configuration had, or a class that Apache Kafka had loaded. Of two with as many votes the first
    of ASSIGNORS, as Kafka's table tells them: who is told first of the members is another one
    after each load."""
    votes = Counter(m.server_assignor for m in members)
    wanted = [name for name in ASSIGNORS if name in assignors and votes[name]]
    return max(wanted, key=votes.__getitem__, default=assignors[0])
