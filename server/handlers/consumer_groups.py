"""Consumer groups of KIP-848: heartbeat and describe.

As in `groups`, handlers know versions and error shapes, and what groups do is
`server.coordinator.consumer`'s. None waits, but a heartbeat may make a target, which takes half a
second for 100 members with 9,000 topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from server.coordinator.group_coordinator import consumer_group_failed
from server.coordinator.group_messages import Client, SeesTopic
from server.network.api import Resource
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import GroupsBroker
    from server.network.request_context import RequestContext

NOT_SERVED = KafkaError(ErrorCode.UNSUPPORTED_VERSION)
"""Groups of this kind are not spoken to here."""


def consumer_group_heartbeat(
    ctx: RequestContext[GroupsBroker],
    request: ConsumerGroupHeartbeatRequest,
    sees_topic: SeesTopic | None = None,
) -> None:
    """Join, stay in or leave a group; tells the member what it has.

    Behaviour: see coordinator.consumer.protocol. UNSUPPORTED_VERSION unless `consumer` is one of
               group.coordinator.rebalance.protocols and group.version is at least 1.
               `sees_topic`, an authorizer's word, says what a regular expression may name.
    Versions:  1 regular expressions, and members make their own ids.
    Gaps:      -
    """

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            result = ConsumerGroupHeartbeatResponse(
                error_code=int(result.code),
                error_message=result.detail or None,
                member_epoch=0,
                heartbeat_interval_ms=0,
            )
        ctx.respond(cast("ConsumerGroupHeartbeatResponse", result))

    groups = ctx.broker.group_coordinator
    if not groups.serves("consumer"):
        answer(NOT_SERVED)
        return
    client = Client(ctx.client_id or "", "/" + ctx.peer_host, ctx.api_version, sees_topic)
    groups.consumer_group_heartbeat(request, client, answer)


def consumer_group_heartbeat_is_costly(
    ctx: RequestContext[GroupsBroker], request: ConsumerGroupHeartbeatRequest
) -> bool:
    """Whether it may make a target: it says what to subscribe to, or the group waits for one."""
    return (
        request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or ctx.broker.group_coordinator.awaits_target(request.group_id)
    )


def consumer_group_describe(
    ctx: RequestContext[GroupsBroker], request: ConsumerGroupDescribeRequest
) -> None:
    """Epochs, members and assignments of groups.

    Behaviour: groups fail alone. UNSUPPORTED_VERSION as for the heartbeat.
    Versions:  1 says which members speak the classic protocol.
    Gaps:      -
    """

    answer = described(ctx, request, ConsumerGroupDescribeResponse)
    groups = ctx.broker.group_coordinator
    if groups.serves("consumer"):
        groups.describe_consumer_groups(request.group_ids, answer)
    else:
        answer([consumer_group_failed(group_id, NOT_SERVED) for group_id in request.group_ids])


def described(
    ctx: RequestContext[GroupsBroker], request: Any, response: Callable[..., Any]
) -> Callable[[list[Any]], None]:
    """Answers with what groups of any kind were described as."""

    def answer(groups: list[Any]) -> None:
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = Resource.GROUP.all_operations
        ctx.respond(response(groups=groups))

    return answer
