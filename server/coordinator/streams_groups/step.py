"""What one heartbeat writes for its member and the group, gathered in order (PURE).

First the member as it is now (19) and, from the group's first member, the topology (23); then, if
who is in it, the topics that the topology needs, whether it works, or what the assignor is told has
changed, the group's next epoch (17); if the target is of an earlier epoch, and may be computed now,
the next target (21 for each member that it changes, 20); and the member one step further (22).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.consumer.requests import invalid
from server.coordinator.consumer.topics import TopicHashes
from server.coordinator.group_config import StreamsConfig
from server.coordinator.records import CoordinatorRecord
from server.coordinator.streams_groups import assignor
from server.coordinator.streams_groups import records as written
from server.coordinator.streams_groups.group import NOT_VALIDATED, StreamsGroup
from server.coordinator.streams_groups.member import StreamsMember
from server.coordinator.streams_groups.reconcile import reconciled
from server.coordinator.streams_groups.tasks import NO_TASKS, Tasks
from server.coordinator.streams_groups.topology import (
    ASSIGNMENT_DELAYED,
    STALE_TOPOLOGY,
    ConfiguredTopology,
    Status,
    Topology,
    configured,
)
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage

_STANDBYS = "num.standby.replicas"


class Scene(NamedTuple):
    """What a step is made in."""

    image: MetadataImage
    config: StreamsConfig
    wall_ms: int
    hashes: TopicHashes
    configured: ConfiguredTopology | None
    """As the group's topology was last configured; None: not known."""
    is_image_new: bool
    """Whether topics may be others than the group was last told of."""
    is_delayed: bool
    """Whether the group waits for more members before its first target."""


class Step:
    """See the module. `group` is as it was before, also where `records` already replaces it."""

    def __init__(
        self, group: StreamsGroup, scene: Scene, records: Sequence[CoordinatorRecord] = ()
    ) -> None:
        self.records: list[CoordinatorRecord] = list(records)
        self.group = group
        self.statuses: list[Status] = []
        self.image = scene.image
        self.configured: ConfiguredTopology
        """What the group's topology needs, and whether it is there."""
        self._scene = scene
        self._topology: Topology
        self._epoch = group.epoch
        self._target_epoch = group.target_epoch
        self._target = NO_TASKS
        self._bumps = False

    def update(self, member: StreamsMember, brought: Topology | None) -> None:
        """The member is so now, and brings a topology if it joins. KafkaError INVALID_REQUEST."""
        group = self.group
        if member != group.members.get(member.member_id):
            self.records.append(written.member_record(group.group_id, member))
            self._bumps = True
        known = group.topology
        if known is None:
            if brought is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no topology.")
            self._topology = brought
            self.records.append(written.topology_record(group.group_id, brought))
            return
        self._topology = known
        if brought is not None and brought.epoch >= known.epoch and not known.is_same(brought):
            raise invalid("Topology updates are not supported yet.")
        if member.topology_epoch < known.epoch:
            self._tell(
                STALE_TOPOLOGY,
                f"The member's topology epoch {member.topology_epoch} is behind the group's "
                f"topology epoch {known.epoch}.",
            )

    def configure(self) -> None:
        """Hold the topology against the topics that are there, if either may have changed.

        KafkaError STREAMS_INVALID_TOPOLOGY.
        """
        group, scene = self.group, self._scene
        metadata_hash, known = group.metadata_hash, scene.configured
        if known is None or scene.is_image_new or group.topology is None:
            metadata_hash = scene.hashes(self._topology.required, scene.image)
            self._bumps |= metadata_hash != group.metadata_hash
            if known is None or metadata_hash != group.metadata_hash or group.topology is None:
                known = configured(self._topology, scene.image)
        self.configured = known
        validated_epoch = self._topology.epoch if known.is_ready else NOT_VALIDATED
        configs = {_STANDBYS: str(scene.config.group_streams_num_standby_replicas)}
        if self._bumps or validated_epoch != group.validated_epoch or configs != group.configs:
            self._epoch += 1
            self.records.append(
                written.epoch_record(
                    group.group_id, self._epoch, metadata_hash, validated_epoch, configs
                )
            )

    def find_target(self, member: StreamsMember) -> None:
        """Compute the target anew if it is of an earlier epoch, old enough, and nobody is waited
        for (ST-6)."""
        group, scene = self.group, self._scene
        if scene.is_delayed:
            self._delayed("initial rebalance delay")
            return
        self._target = group.target.get(member.member_id, NO_TASKS)
        if group.target_epoch >= self._epoch:
            return
        interval_ms = scene.config.group_streams_assignment_interval_ms
        if group.has_young_target(scene.wall_ms, interval_ms):
            self._delayed("assignment interval")
            return
        members = {**group.members, member.member_id: member}
        standbys = scene.config.group_streams_num_standby_replicas
        found = targets(group, members, self.configured, standbys)
        self.records += target_records(group, found, self._epoch, scene.wall_ms)
        self._target, self._target_epoch = found[member.member_id], self._epoch

    def _delayed(self, why: str) -> None:
        self._tell(ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {why}.")

    def reconcile(self, member: StreamsMember, owned: Tasks | None) -> StreamsMember:
        """The member one step further."""
        if member.is_reconciled_to(self._target_epoch):
            return member
        after = reconciled(member, self._target_epoch, self._target, self.group, owned)
        if after != member:
            self.records.append(written.current_record(self.group.group_id, after))
        return after

    def _tell(self, code: int, detail: str) -> None:
        self.statuses.append(Status(status_code=code, status_detail=detail))


def targets(
    group: StreamsGroup,
    members: Mapping[str, StreamsMember],
    topology: ConfiguredTopology,
    standbys: int,
) -> dict[str, Tasks]:
    """What each of these members is to have; nothing as long as the topology is not ready."""
    if not topology.is_ready:
        return dict.fromkeys(members, NO_TASKS)
    return assignor.assign(
        {
            id_: assignor.TaskMember(member.process_id, group.target.get(id_, NO_TASKS))
            for id_, member in members.items()
        },
        {
            id_: assignor.Subtasks(one.task_count, bool(one.state_changelog_topics))
            for id_, one in topology.subtopologies.items()
        },
        standbys,
    )


def target_records(
    group: StreamsGroup, found: Mapping[str, Tasks], epoch: int, wall_ms: int
) -> list[CoordinatorRecord]:
    """The members whose target is another, and the epoch that it is of."""
    changed = [
        written.target_record(group.group_id, id_, target)
        for id_, target in found.items()
        if target != group.target.get(id_)
    ]
    return [*changed, written.MEMBERS.target_epoch_record(group.group_id, epoch, wall_ms)]


def standbys_of(group: StreamsGroup) -> int:
    """How many copies the assignor was last told to make."""
    return int(group.configs.get(_STANDBYS, "0"))
