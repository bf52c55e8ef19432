"""Members of the classic protocol in a consumer group (PURE; CG-34 to CG-37).

They join, sync and beat as in a classic group; but the coordinator assigns, nobody leads, and
nobody waits for the others: a JoinGroup is one step towards the target, and its member epoch is the
generation. A member that must take another step is told so by its next Heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from server.coordinator.consumer import embedded, requests
from server.coordinator.consumer.group import ConsumerGroup
from server.coordinator.consumer.member import (
    ClassicPart,
    ConsumerMember,
    MemberState,
    Partitions,
)
from server.coordinator.consumer.migration import Migration
from server.coordinator.consumer.protocol import (
    ConsumerGroups,
    check_size,
    joining_member,
)
from server.coordinator.consumer.step import Step
from server.coordinator.group import CONSUMER_PROTOCOL_TYPE, UNKNOWN_MEMBER_ID, GroupDecision
from server.coordinator.group_messages import (
    MEMBER_ID_REQUIRED_VERSION,
    Client,
    LeavingMember,
    leave_response,
    member_id_required_response,
    protocols_of,
    rebalance_timeout_of,
)
from server.coordinator.machine import Decision
from wire.errors import ErrorCode, KafkaError, MalformedFrame
from wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class ClassicMembers:
    """Those of one shard's consumer groups, which have members."""

    def __init__(self, consumer: ConsumerGroups, migration: Migration) -> None:
        self._consumer = consumer
        self._migration = migration

    # -- JoinGroup ---------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: Client) -> GroupDecision:
        """One step; answered at once. KafkaError INCONSISTENT_GROUP_PROTOCOL,
        GROUP_MAX_SIZE_REACHED."""
        group_id, instance_id = request.group_id, request.group_instance_id
        group = self._consumer.groups[group_id]
        config = self._consumer.outside.config(group_id)
        names = [protocol.name for protocol in request.protocols]
        if not config.takes_classic_members:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_unknown = request.member_id == UNKNOWN_MEMBER_ID
        member_id = self._consumer.outside.new_uuid() if is_unknown else request.member_id
        check_size(group, member_id, config)
        if not group.supports(request.protocol_type, names):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if is_unknown and instance_id is None and client.api_version >= MEMBER_ID_REQUIRED_VERSION:
            return Decision((), member_id_required_response(member_id))
        step = Step(group, self._consumer.scene(group_id, config))
        if instance_id is not None and not is_unknown:
            before = requests.owner_of_instance(group, instance_id, member_id)
        else:
            before = joining_member(group, member_id, instance_id, step, is_classic=True)
        return self._step(step, before, request, client)

    def _step(
        self, step: Step, before: ConsumerMember, request: JoinGroupRequest, client: Client
    ) -> GroupDecision:
        group = step.group
        image = self._consumer.outside.image()
        protocols = tuple(protocols_of(request))
        try:
            subscription = embedded.read_subscription(protocols[0][1])
        except MalformedFrame as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
        asked = replace(
            before,
            instance_id=request.group_instance_id or before.instance_id,
            rack_id=subscription.rack_id or before.rack_id,
            client_id=client.client_id,
            client_host=client.host,
            rebalance_timeout_ms=rebalance_timeout_of(request),
            subscribed_names=frozenset(subscription.topics),
            subscribed_regex="",
            classic=ClassicPart(request.session_timeout_ms, protocols),
        )
        owned = embedded.by_id(subscription.owned_partitions, image)
        step.update(before, asked)
        replaced = step.replaced
        if replaced is not None and self._migration.may_replace_last(group, replaced):
            return self._last_one_replaced(step, replaced, asked, owned)
        step.find_target(asked)
        after = step.reconcile(asked, owned)
        return Decision(
            step.records,
            _joined(after, protocols),
            partial(self._joined, step, after, asked, client),
        )

    def _joined(
        self, step: Step, after: ConsumerMember, asked: ConsumerMember, client: Client
    ) -> None:
        self._consumer.heard(step, after, client, has_moved=after is not asked)
        self._consumer.timers.joined(step.group.group_id, after, after.rebalance_timeout_ms)

    def _last_one_replaced(
        self,
        step: Step,
        replaced: ConsumerMember,
        asked: ConsumerMember,
        owned: Partitions,
    ) -> GroupDecision:
        """A static member of KIP-848, the last one, came back with the classic protocol: so the
        group is a classic one. Unless each member has what it is to have, all must join it: nobody
        would tell them when it is free, and Kafka tells nobody."""
        group = step.group
        is_stale = group.target_epoch < step.epoch
        after = asked if is_stale else step.reconcile(asked, owned)
        members = [after, *(m for m in group.members.values() if m is not replaced)]
        is_settled = all(member.is_reconciled_to(step.epoch) for member in members)
        converted = self._migration.with_replaced(group, replaced, after, rebalances=not is_settled)
        assert after.classic is not None, "it has just joined by it"
        return Decision(
            [*step.records, *converted.records],
            _joined(after, after.classic.protocols),
            partial(self._forget_all, group, converted.change),
        )

    def _forget_all(self, group: ConsumerGroup, change: object) -> None:
        for member_id in group.members:
            self._consumer.timers.gone(group.group_id, member_id)
        assert callable(change)
        change()

    # -- SyncGroup, Heartbeat, LeaveGroup ----------------------------------------------------

    def sync(self, request: SyncGroupRequest) -> GroupDecision:
        """What the member has; what the request says of assignments counts for nothing."""
        group = self._consumer.groups[request.group_id]
        member, classic = _classic_member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        name = classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
            request.protocol_name not in (None, name)
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        timers = self._consumer.timers
        if group.target_epoch > member.epoch and (
            member.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            return Decision(
                (),
                KafkaError(ErrorCode.REBALANCE_IN_PROGRESS),
                partial(timers.must_join, group.group_id, member),
            )
        version = embedded.version_of(classic.protocols[0][1])
        image = self._consumer.outside.image()
        response = SyncGroupResponse(
            error_code=0,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=embedded.write_assignment(member.assigned, version, image),
        )
        return Decision((), response, partial(timers.synced, group.group_id, member))

    def heartbeat(self, request: HeartbeatRequest) -> GroupDecision:
        """Whether the member must join again: there is another target, it has something to give
        back, what it waits for is free, or its JoinGroup would make the target that is due."""
        group = self._consumer.groups[request.group_id]
        member, _ = _classic_member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        step = self._last_resort(group, member)
        must_join = (
            member.epoch < group.target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting(member))
            or (step is not None and step.is_target_due)
        )
        code = ErrorCode.REBALANCE_IN_PROGRESS if must_join else 0
        return Decision(
            () if step is None else step.records,
            HeartbeatResponse(error_code=code),
            partial(self._beaten, group.group_id, member, must_join, step),
        )

    def _last_resort(self, group: ConsumerGroup, member: ConsumerMember) -> Step | None:
        """Where nobody is left who speaks the other protocol, nobody else's heartbeat tells the
        group of topics, or makes its next target. Kafka's group waits for ever."""
        if group.classic_count < len(group.members):
            return None
        config = self._consumer.outside.config(group.group_id)
        step = Step(group, self._consumer.scene(group.group_id, config))
        step.update(member, member)
        return step

    def _beaten(
        self, group_id: str, member: ConsumerMember, must_join: bool, step: Step | None
    ) -> None:
        timers = self._consumer.timers
        if step is not None:
            self._consumer.know(group_id, step.topics)
        timers.heard(group_id, member, has_moved=False)
        if must_join:
            timers.must_join(group_id, member)

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> GroupDecision:
        """Members of either protocol leave; each fails alone."""
        group = self._consumer.groups[group_id]
        gone: dict[str, ConsumerMember] = {}

        def leave(one: LeavingMember) -> None:
            member = _leaving_member(group, one)
            gone[member.member_id] = member

        response = leave_response(leaving, leave)
        if not gone:
            return Decision((), response)
        return self._consumer.without(group, list(gone.values()), response)


def _joined(member: ConsumerMember, protocols: Sequence[tuple[str, bytes]]) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=0,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocols[0][0],
        leader="",
        member_id=member.member_id,
        members=[],
    )


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicPart]:
    """KafkaError UNKNOWN_MEMBER_ID, also for one that speaks the other protocol;
    FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = requests.owner_of_instance(group, instance_id, member_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member, member.classic


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if generation_id != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _leaving_member(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember:
    member_id, instance_id = leaving
    if instance_id is None:
        return group.member(member_id)
    if member_id == UNKNOWN_MEMBER_ID:
        holder = group.static_member(instance_id)
        if holder is not None:
            return holder
    return requests.owner_of_instance(group, instance_id, member_id)
