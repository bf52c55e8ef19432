"""What heartbeats and time do to the streams groups of one shard (PURE; GroupMetadataManager).

One heartbeat does all that there is to do for its member, and writes it as one batch (`step`). Only
the first target of a group that was empty is made by time: until its delay is over, members are
told to wait (ST-6).

What is in no record, and lost with the shard: the topology against the topics that are there, which
is worked out again; who asked the application to stop; how often endpoints had other tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from server.coordinator.consumer.member import JOIN_EPOCH, LEAVE_EPOCH
from server.coordinator.consumer.timers import MemberTimers
from server.coordinator.consumer.topics import TopicHashes
from server.coordinator.deadlines import Deadlines, Moment, Once
from server.coordinator.group import GroupDecision, group_of_kind, not_of_kind
from server.coordinator.group_config import StreamsConfig
from server.coordinator.group_messages import Client
from server.coordinator.machine import Decision
from server.coordinator.records import Records
from server.coordinator.streams_groups import records as written
from server.coordinator.streams_groups import requests
from server.coordinator.streams_groups.endpoints import by_endpoint
from server.coordinator.streams_groups.group import STREAMS, StreamsGroup
from server.coordinator.streams_groups.member import StreamsMember, TaskState
from server.coordinator.streams_groups.step import (
    Scene,
    Step,
    standbys_of,
    target_records,
    targets,
)
from server.coordinator.streams_groups.topology import (
    SHUTDOWN_APPLICATION,
    ConfiguredTopology,
    InternalTopic,
    Status,
    Topology,
    configured,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups_records import (
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from wire.messages.streams import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from wire.schema import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replication.metadata.image import MetadataImage

_INITIAL_DELAY = "streams initial delay"


class StreamsOutside(NamedTuple):
    """What the streams groups of a shard ask of their broker. None of it waits."""

    image: Callable[[], MetadataImage]
    config: Callable[[str], StreamsConfig]
    """Of a group."""


class Answer(NamedTuple):
    """What a heartbeat is answered, and what is to be made for it."""

    response: StreamsGroupHeartbeatResponse
    missing: Sequence[InternalTopic] = ()


class _Soft:
    """What of a group is in no record."""

    __slots__ = ("configured", "endpoint_epoch", "shutdown_by", "topics")

    def __init__(self) -> None:
        self.topics: object = None
        """The topics (`MetadataImage.topics_by_name`) as the group was last told of them."""
        self.configured: ConfiguredTopology | None = None
        self.endpoint_epoch = 0
        """Another whenever a member with an endpoint has other tasks."""
        self.shutdown_by: str | None = None
        """The member that asked the application to stop."""


class StreamsGroups:
    """The streams groups of one shard. Owner: the shard; takes no lock, owns no clock."""

    name = STREAMS

    def __init__(
        self,
        outside: StreamsOutside,
        deadlines: Deadlines,
        moment: Moment,
        hashes: TopicHashes,
        is_known: Callable[[str], bool],
        empty_classic: Callable[[str], Records | None],
    ) -> None:
        """`is_known`: whether the id is of a group of any kind; `empty_classic`: what ends the
        classic group of this id if there is an empty one."""
        self.groups: dict[str, StreamsGroup] = {}
        self.outside = outside
        self._deadlines = deadlines
        self._moment = moment
        self._hashes = hashes
        self._is_known = is_known
        self._empty_classic = empty_classic
        self._soft: dict[str, _Soft] = {}
        self._timers = MemberTimers(
            deadlines,
            moment,
            lambda group_id: outside.config(group_id).group_streams_session_timeout_ms,
            self._fence,
        )

    # -- heartbeats --------------------------------------------------------------------------

    def heartbeat(self, request: StreamsGroupHeartbeatRequest, client: Client) -> GroupDecision:
        """Join, stay, or leave; see the module. The response is an Answer. KafkaErrors as ST-2 to
        ST-4 list them."""
        requests.validate_heartbeat(request)
        group_id, joins = request.group_id, request.member_epoch == JOIN_EPOCH
        group, before = self._group(group_id, joins=joins)
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(group, request)
        config = self.outside.config(group_id)
        if joins:
            _check_size(group, request.member_id, config)
        owned = requests.owned_tasks(request)
        member = group.members.get(request.member_id) if joins else group.member(request.member_id)
        known = member or StreamsMember(request.member_id)
        requests.validate_epoch(known, request.member_epoch, owned)
        asked = requests.asked(known, request, client)
        step = Step(group, self._scene(group, config), before)
        step.update(asked, requests.topology_of(request))
        step.configure()
        if step.configured.is_ready:
            requests.validate_tasks(step.configured, owned)
        step.find_target(asked)
        after = step.reconcile(asked, owned)
        soft = self._soft.get(group_id) or _Soft()
        shutdown_by = soft.shutdown_by or (
            after.member_id if request.shutdown_application else None
        )
        has_other_tasks = joins or after.assigned != known.assigned
        endpoint_epoch = soft.endpoint_epoch + (has_other_tasks and after.endpoint is not None)
        response = StreamsGroupHeartbeatResponse(
            error_code=0,
            member_id=after.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=config.group_streams_heartbeat_interval_ms,
            acceptable_recovery_lag=0,
            task_offset_interval_ms=0,
            status=_statuses(step, shutdown_by),
            endpoint_information_epoch=endpoint_epoch,
        )
        if has_other_tasks or (owned is not None and owned != after.assigned.without_epochs()):
            # The second: it was told, but the answer may have been lost. Kafka 4.3 says nothing.
            response.active_tasks = requests.told(after.assigned.active)
            response.standby_tasks = requests.told(after.assigned.standby)
            response.warmup_tasks = requests.told(after.assigned.warmup)
        if endpoint_epoch != request.endpoint_information_epoch:
            others = (one for id_, one in group.members.items() if id_ != after.member_id)
            response.partitions_by_user_endpoint = by_endpoint(
                [*others, after], step.configured, step.image
            )
        heard = partial(self._heard, step, asked, after, endpoint_epoch, shutdown_by)
        return Decision(step.records, Answer(response, step.configured.missing), heard)

    def _group(self, group_id: str, *, joins: bool) -> tuple[StreamsGroup, Records]:
        """The group, and what must be written for it to be there."""
        group = self.groups.get(group_id)
        if group is not None:
            return group, []
        records = self._empty_classic(group_id) if joins else None
        if records is None and self._is_known(group_id):
            raise not_of_kind(group_id, self.name)
        if not joins:
            detail = f"Streams group {group_id} not found."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
        return StreamsGroup(group_id), records or []

    def _scene(self, group: StreamsGroup, config: StreamsConfig) -> Scene:
        group_id, image = group.group_id, self.outside.image()
        soft = self._soft.get(group_id)
        begins = group.is_empty and config.group_streams_initial_rebalance_delay_ms > 0
        return Scene(
            image,
            config,
            self._moment.wall_ms,
            self._hashes,
            None if soft is None else soft.configured,
            soft is None or soft.topics is not image.topics_by_name,
            begins or (_INITIAL_DELAY, group_id) in self._deadlines,
        )

    def _heard(
        self,
        step: Step,
        asked: StreamsMember,
        member: StreamsMember,
        endpoint_epoch: int,
        shutdown_by: str | None,
    ) -> None:
        """A member was heard: its session begins anew, and the group knows the topics."""
        group_id, member_id = step.group.group_id, member.member_id
        soft = self._soft.setdefault(group_id, _Soft())
        soft.topics, soft.configured = step.image.topics_by_name, step.configured
        soft.endpoint_epoch, soft.shutdown_by = endpoint_epoch, shutdown_by
        self._timers.spoke(group_id, member_id)
        if member is not asked:
            self._moved(group_id, member)
        key = _INITIAL_DELAY, group_id
        if step.group.is_empty and key not in self._deadlines:
            delay_ms = self.outside.config(group_id).group_streams_initial_rebalance_delay_ms
            if delay_ms > 0:
                first = Once(partial(self._first_target, group_id))
                self._deadlines.set(key, self._moment.now_ms + delay_ms, first)

    def _moved(self, group_id: str, member: StreamsMember) -> None:
        if member.state is TaskState.UNREVOKED_TASKS:
            timeout_ms = member.rebalance_timeout_ms
            self._timers.must_give_back(group_id, member.member_id, timeout_ms, member.epoch)
        else:
            self._timers.gave_back(group_id, member.member_id)

    def _first_target(self, group_id: str) -> GroupDecision | None:
        """The delay of a new group is over: all who have come are given tasks. If no batch can hold
        them, heartbeats try, and tell their members so."""
        group = self.groups.get(group_id)
        if group is None or group.topology is None or group.epoch <= group.target_epoch:
            return None
        if group.is_empty:
            return None
        soft = self._soft.get(group_id)
        topology = None if soft is None else soft.configured
        if topology is None:
            topology = configured(group.topology, self.outside.image())
        found = targets(group, group.members, topology, standbys_of(group))
        return Decision(target_records(group, found, group.epoch, self._moment.wall_ms))

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest) -> GroupDecision:
        member = group.member(request.member_id)
        response = StreamsGroupHeartbeatResponse(
            error_code=0,
            member_id=member.member_id,
            member_epoch=LEAVE_EPOCH,
            heartbeat_interval_ms=0,
            acceptable_recovery_lag=0,
            task_offset_interval_ms=0,
            status=[],
            endpoint_information_epoch=0,
        )
        by = member.member_id if request.shutdown_application else None
        return self._without(group, member, Answer(response), by)

    def _without(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        response: object | None,
        shutdown_by: str | None = None,
    ) -> GroupDecision:
        """The member is gone: the others get what it had, in the next epoch."""
        group_id = group.group_id
        records = [
            *written.member_tombstones(group_id, member.member_id),
            written.epoch_record(
                group_id,
                group.epoch + 1,
                group.metadata_hash,
                group.validated_epoch,
                group.configs,
            ),
        ]
        gone = partial(self._gone, group_id, member.member_id, shutdown_by)
        return Decision(records, response, gone)

    def _gone(self, group_id: str, member_id: str, shutdown_by: str | None) -> None:
        self._timers.gone(group_id, member_id)
        if shutdown_by is not None:
            soft = self._soft.setdefault(group_id, _Soft())
            soft.shutdown_by = soft.shutdown_by or shutdown_by

    def _fence(self, group_id: str, member_id: str, in_epoch: int | None) -> GroupDecision | None:
        """Time is up for a member, unless it has left the epoch that it had to leave."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or in_epoch not in (None, member.epoch):
            return None
        return self._without(group, member, None)

    # -- as any kind of group ----------------------------------------------------------------

    def renewal(self, group_id: str, member_id: str) -> None:
        """A commit is no heartbeat."""

    def tombstones(self, group_id: str) -> Records:
        """See GroupKind."""
        return written.group_tombstones(self.groups[group_id])

    def of_id(self, group_id: str) -> StreamsGroup:
        """KafkaError GROUP_ID_NOT_FOUND, also if it is of another kind."""
        return group_of_kind(self.groups, group_id, self.name, self._is_known)

    def configured_of(self, group_id: str) -> ConfiguredTopology | None:
        """What the group's topology needs, as a heartbeat last found it."""
        soft = self._soft.get(group_id)
        return None if soft is None else soft.configured

    # -- the log -----------------------------------------------------------------------------

    def replay(self, key: Record, value: Record | None) -> str | None:
        """Make one record of a streams group true. Tombstones of what is not known are fine.

        Returns the group's id if there is such a group by this.
        """
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self.groups.get(group_id)
        founded = None
        if group is None:
            if value is None:
                return None
            group = self.groups[group_id] = StreamsGroup(group_id)
            founded = group_id
        if not written.MEMBERS.replay(group, key, value):
            _REPLAY[type(key)](self, group, key, value)
        elif group.is_empty and group_id in self._soft:
            self._soft[group_id].shutdown_by = None
        return founded

    def _replay_epoch(
        self, group: StreamsGroup, _key: Record, value: StreamsGroupMetadataValue | None
    ) -> None:
        if value is None:
            del self.groups[group.group_id]
            self._soft.pop(group.group_id, None)
            self._deadlines.cancel((_INITIAL_DELAY, group.group_id))
            return
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        group.validated_epoch = value.validated_topology_epoch
        group.configs = {one.key: one.value for one in value.last_assignment_configs or ()}

    def _replay_topology(
        self, group: StreamsGroup, _key: Record, value: StreamsGroupTopologyValue | None
    ) -> None:
        group.topology = None if value is None else Topology(value)

    def on_loaded(self) -> None:
        """Whoever is a member has a whole session to be heard from, and who gives something back
        as long as that may take (CG-9)."""
        for group_id, group in self.groups.items():
            for member in group.members.values():
                self._timers.spoke(group_id, member.member_id)
                self._moved(group_id, member)

    def on_unloaded(self, error: KafkaError) -> None:
        """Nobody waits for an answer of a streams group."""
        self.groups.clear()
        self._soft.clear()


_REPLAY: dict[type[Record], Callable[..., None]] = {
    StreamsGroupMetadataKey: StreamsGroups._replay_epoch,
    StreamsGroupTopologyKey: StreamsGroups._replay_topology,
}
STREAMS_KEYS = written.MEMBERS.keys.union(_REPLAY)
"""The keys of records that are about streams groups."""


def _statuses(step: Step, shutdown_by: str | None) -> list[Status]:
    statuses = list(step.statuses)
    if step.configured.problem is not None:
        problem = step.configured.problem
        statuses.append(
            Status(status_code=problem.status_code, status_detail=problem.status_detail)
        )
    if shutdown_by is not None:
        detail = (
            f"Streams group member {shutdown_by} encountered a fatal error and requested a "
            "shutdown for the entire application."
        )
        statuses.append(Status(status_code=SHUTDOWN_APPLICATION, status_detail=detail))
    return statuses


def _check_size(group: StreamsGroup, member_id: str, config: StreamsConfig) -> None:
    most = config.group_streams_max_size
    if len(group.members) >= most and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The streams group has reached its maximum capacity of {most} members.",
        )
