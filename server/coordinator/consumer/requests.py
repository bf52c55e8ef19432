"""ConsumerGroupHeartbeat: what a request must be, and what it says of its member (PURE; CG-11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from server.coordinator.consumer.group import ConsumerGroup
from server.coordinator.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOT_SET,
    ConsumerMember,
    Held,
    Partitions,
)
from server.coordinator.group_messages import Client
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

_OWN_MEMBER_ID_VERSION = 1
"""From here on members make their own ids."""


def validate_heartbeat(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Iterable[str]
) -> None:
    """CG-11. KafkaError INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if not request.member_id and (
        api_version >= _OWN_MEMBER_ID_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    ):
        raise invalid("MemberId can't be empty.")
    check_not_empty(
        GroupId=request.group_id, InstanceId=request.instance_id, RackId=request.rack_id
    )
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _validate_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NOT_SET:
        raise invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def check_not_empty(**texts: str | None) -> None:
    """Of no heartbeat, of whatever kind of group; None is not said. KafkaError INVALID_REQUEST."""
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise invalid(f"{name} can't be empty.")


def invalid(detail: str) -> KafkaError:
    """What is told of a heartbeat that makes no sense."""
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)


def owner_of_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """The static member of this instance id. KafkaError UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
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


def validate_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """The answer that told the epoch may have been lost: then the one before is right, if the
    member owns nothing but what it was given. KafkaError FENCED_MEMBER_EPOCH."""
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


def asked(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    """The member with what the request says anew; what it does not say stays (CG-13). It speaks
    the protocol of KIP-848 from now on."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    says_nothing = (
        names is None
        and regex is None
        and timeout_ms == NOT_SET
        and request.server_assignor is None
        and request.rack_id is None
    )
    knows_it = member.client_id == client.client_id and member.client_host == client.host
    if says_nothing and knows_it and member.classic is None:
        return member  # nearly every heartbeat
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
        classic=None,
    )


def partitions(
    topics: list[ConsumerGroupHeartbeatRequest.Topic] | None,
) -> Partitions | None:
    """What a member says that it owns; None if it does not say."""
    if topics is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}


def partitions_of(held: Held) -> Mapping[bytes, frozenset[int]]:
    """Without the epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}


def assignment(held: Held) -> ConsumerGroupHeartbeatResponse.Assignment:
    """As a member is told it."""
    topic = ConsumerGroupHeartbeatResponse.Assignment.Topic
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            topic(topic_id=topic_id, partitions=sorted(epochs)) for topic_id, epochs in held.items()
        ]
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether it says all that there is to say, as after an answer that was lost."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return (
        request.rebalance_timeout_ms != NOT_SET
        and not (names is None and regex is None)
        and request.topic_partitions is not None
    )
