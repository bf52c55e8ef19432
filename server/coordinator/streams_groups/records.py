"""Between a streams group and its records (PURE).

type  what                            tombstone: the member or group is no more
17    the group's epoch               last of all of a group's
19    a member: what it said of itself  last of a member's
20    epoch and time of the target
21    a member's target
22    a member's epoch and tasks
23    the topology
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from server.coordinator.modern_group import MemberRecords, epochs_of
from server.coordinator.records import CoordinatorRecord
from server.coordinator.streams_groups.group import StreamsGroup
from server.coordinator.streams_groups.member import StreamsMember, TaskState
from server.coordinator.streams_groups.tasks import (
    NOTHING_HELD,
    HeldTasks,
    Partitions,
    Tasks,
)
from server.coordinator.streams_groups.topology import Topology
from wire.messages.groups_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
)

_Held = StreamsGroupCurrentMemberAssignmentValue.Task
_Target = StreamsGroupTargetAssignmentMemberValue.Task


# ---- written


def epoch_record(
    group_id: str,
    epoch: int,
    metadata_hash: int,
    validated_epoch: int,
    configs: Mapping[str, str],
) -> CoordinatorRecord:
    """The group's epoch was bumped."""
    value = StreamsGroupMetadataValue
    return CoordinatorRecord(
        StreamsGroupMetadataKey(group_id=group_id),
        value(
            epoch=epoch,
            metadata_hash=metadata_hash,
            validated_topology_epoch=validated_epoch,
            last_assignment_configs=[
                value.AssignmentConfig(key=key, value=text) for key, text in configs.items()
            ],
        ),
    )


def member_record(group_id: str, member: StreamsMember) -> CoordinatorRecord:
    """What the member said of itself."""
    value = StreamsGroupMemberMetadataValue
    endpoint = None
    if member.endpoint is not None:
        endpoint = value.Endpoint(host=member.endpoint[0], port=member.endpoint[1])
    return CoordinatorRecord(
        StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        value(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            user_endpoint=endpoint,
            client_tags=[
                value.ClientTag(key=key, value=text) for key, text in sorted(member.tags.items())
            ],
        ),
    )


def topology_record(group_id: str, topology: Topology) -> CoordinatorRecord:
    """The topology that the group runs."""
    return CoordinatorRecord(StreamsGroupTopologyKey(group_id=group_id), topology.value)


def target_record(group_id: str, member_id: str, target: Tasks) -> CoordinatorRecord:
    """What a member is to have."""

    def tasks(partitions: Partitions) -> list[_Target]:
        return [
            _Target(subtopology_id=id_, partitions=sorted(of))
            for id_, of in sorted(partitions.items())
        ]

    return CoordinatorRecord(
        StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        StreamsGroupTargetAssignmentMemberValue(
            active_tasks=tasks(target.active),
            standby_tasks=tasks(target.standby),
            warmup_tasks=tasks(target.warmup),
        ),
    )


def current_record(group_id: str, member: StreamsMember) -> CoordinatorRecord:
    """What the member has, and what it must give back."""
    assigned, revoking = member.assigned, member.revoking
    return CoordinatorRecord(
        StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            active_tasks=_active(assigned),
            standby_tasks=_copies(assigned.standby),
            warmup_tasks=_copies(assigned.warmup),
            active_tasks_pending_revocation=_active(revoking),
            standby_tasks_pending_revocation=_copies(revoking.standby),
            warmup_tasks_pending_revocation=_copies(revoking.warmup),
        ),
    )


def _active(held: HeldTasks) -> list[_Held]:
    return [
        _Held(
            subtopology_id=id_,
            partitions=sorted(epochs),
            assignment_epochs=[epochs[partition] for partition in sorted(epochs)],
        )
        for id_, epochs in sorted(held.active.items())
    ]


def _copies(partitions: Partitions) -> list[_Held]:
    return [
        _Held(subtopology_id=id_, partitions=sorted(of)) for id_, of in sorted(partitions.items())
    ]


def group_tombstones(group: StreamsGroup) -> list[CoordinatorRecord]:
    """All of a group is no more. It is known until the last of them, where Kafka has the
    topology."""
    return MEMBERS.tombstones_of_all(
        group,
        StreamsGroupTopologyKey(group_id=group.group_id),
        StreamsGroupMetadataKey(group_id=group.group_id),
    )


# ---- read


def _with_metadata(member: StreamsMember, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    """The member as the record says; what it has stays."""
    endpoint = value.user_endpoint
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        tags={tag.key: tag.value for tag in value.client_tags},
    )


def _with_assignment(
    member: StreamsMember, value: StreamsGroupCurrentMemberAssignmentValue | None
) -> StreamsMember:
    """The member with what the record says that it has; a tombstone: nothing, and no epoch."""
    if value is None:
        return replace(
            member, epoch=-1, previous_epoch=-1, assigned=NOTHING_HELD, revoking=NOTHING_HELD
        )
    epoch = value.member_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=TaskState(value.state),
        assigned=_held(epoch, value.active_tasks, value.standby_tasks, value.warmup_tasks),
        revoking=_held(
            epoch,
            value.active_tasks_pending_revocation,
            value.standby_tasks_pending_revocation,
            value.warmup_tasks_pending_revocation,
        ),
    )


def _held(
    epoch: int, active: Iterable[_Held], standby: Iterable[_Held], warmup: Iterable[_Held]
) -> HeldTasks:
    return HeldTasks(
        {
            task.subtopology_id: epochs_of(task.partitions, task.assignment_epochs, epoch)
            for task in active
        },
        {task.subtopology_id: frozenset(task.partitions) for task in standby},
        {task.subtopology_id: frozenset(task.partitions) for task in warmup},
    )


def _target_of(value: StreamsGroupTargetAssignmentMemberValue) -> Tasks:
    """What a member is to have."""
    return Tasks(
        *(
            {task.subtopology_id: frozenset(task.partitions) for task in tasks}
            for tasks in (value.active_tasks, value.standby_tasks, value.warmup_tasks)
        )
    )


MEMBERS = MemberRecords(
    metadata=StreamsGroupMemberMetadataKey,
    current=StreamsGroupCurrentMemberAssignmentKey,
    target=StreamsGroupTargetAssignmentMemberKey,
    target_epoch=StreamsGroupTargetAssignmentMetadataKey,
    target_epoch_value=StreamsGroupTargetAssignmentMetadataValue,
    new_member=StreamsMember,
    with_metadata=_with_metadata,
    with_assignment=_with_assignment,
    target_of=_target_of,
)
member_tombstones = MEMBERS.tombstones_of
