"""Share groups: heartbeat, describe, and where they are.

As in `groups`, handlers know versions and error shapes, and what groups do is
`server.coordinator.share_groups`'s. None waits, but a heartbeat may make a target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from server.coordinator.gather import Gather
from server.coordinator.group_messages import Client
from server.coordinator.share_groups.describe import not_described
from server.coordinator.share_groups.group import SHARE
from server.handlers.consumer_groups import NOT_SERVED, described
from server.handlers.share import MEMBER_ID_MAX
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import GroupsBroker
    from server.network.request_context import RequestContext
    from wire.schema import Response

    Context = RequestContext[GroupsBroker]


def share_group_heartbeat(ctx: Context, request: ShareGroupHeartbeatRequest) -> None:
    """Join, stay in or leave a group; tells the member what it has.

    Behaviour: see coordinator.share_groups.protocol. UNSUPPORTED_VERSION unless share.version is at
               least 1.
    Versions:  all alike.
    Gaps:      -
    """

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            result = ShareGroupHeartbeatResponse(
                error_code=int(result.code),
                error_message=result.detail or None,
                member_epoch=0,
                heartbeat_interval_ms=0,
            )
        ctx.respond(cast("ShareGroupHeartbeatResponse", result))

    groups = ctx.broker.group_coordinator
    if not groups.serves(SHARE):
        answer(NOT_SERVED)
    elif not 0 < len(request.member_id) <= MEMBER_ID_MAX:
        detail = "Invalid member id in the request."
        answer(KafkaError(ErrorCode.INVALID_REQUEST, detail))
    else:
        client = Client(ctx.client_id or "", "/" + ctx.peer_host, ctx.api_version)
        groups.share.heartbeat(request, client, answer)


def share_group_heartbeat_is_costly(ctx: Context, request: ShareGroupHeartbeatRequest) -> bool:
    """As of a consumer group."""
    return request.subscribed_topic_names is not None or ctx.broker.group_coordinator.awaits_target(
        request.group_id
    )


def share_group_describe(ctx: Context, request: ShareGroupDescribeRequest) -> None:
    """Epochs, members and assignments of groups.

    Behaviour: groups fail alone. UNSUPPORTED_VERSION as for the heartbeat.
    Versions:  all alike.
    Gaps:      -
    """

    answer = described(ctx, request, ShareGroupDescribeResponse)
    groups = ctx.broker.group_coordinator
    if groups.serves(SHARE):
        groups.share.describe(request.group_ids, answer)
    else:
        answer([not_described(group_id, NOT_SERVED) for group_id in request.group_ids])


# ---- offsets


def describe_share_group_offsets(ctx: Context, request: DescribeShareGroupOffsetsRequest) -> None:
    """Where groups are, and how much is before them.

    Behaviour: what is not known is -1, and no error. Without topics: all that are initialized.
    Versions:  1 tells the lag.
    Gaps:      -
    """
    make = DescribeShareGroupOffsetsResponse

    def answer(groups: list[Any]) -> None:
        ctx.respond(make(groups=groups))

    groups = ctx.broker.group_coordinator
    if not groups.serves(SHARE):
        code = int(NOT_SERVED.code)
        answer(
            [
                make.Group(group_id=asked.group_id, topics=[], error_code=code)
                for asked in request.groups
            ]
        )
        return
    gather: Gather[Any] = Gather(len(request.groups), answer)
    for i, asked in enumerate(request.groups):

        def put(group: Any, i: int = i) -> None:
            gather.put(i, group)

        groups.share.describe_offsets(asked, put)


def alter_share_group_offsets(ctx: Context, request: AlterShareGroupOffsetsRequest) -> None:
    """Let an empty group begin somewhere else; makes the group if there is none.

    Behaviour: partitions fail alone; NON_EMPTY_GROUP if it has members.
    Versions:  all alike.
    Gaps:      -
    """

    answer = _changed(ctx, AlterShareGroupOffsetsResponse)
    groups = ctx.broker.group_coordinator
    if groups.serves(SHARE):
        groups.share.alter_offsets(request, answer)
    else:
        answer(NOT_SERVED)


def delete_share_group_offsets(ctx: Context, request: DeleteShareGroupOffsetsRequest) -> None:
    """Forget where an empty group is in some topics.

    Behaviour: topics fail alone; NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
    Versions:  all alike.
    Gaps:      -
    """

    answer = _changed(ctx, DeleteShareGroupOffsetsResponse)
    groups = ctx.broker.group_coordinator
    if groups.serves(SHARE):
        groups.share.delete_offsets(request, answer)
    else:
        answer(NOT_SERVED)


def _changed(ctx: Context, response: Callable[..., Any]) -> Callable[[object], None]:
    """Answers with what came of a change of offsets."""

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            result = response(
                error_code=int(result.code), error_message=result.detail or None, responses=[]
            )
        ctx.respond(cast("Response", result))

    return answer
