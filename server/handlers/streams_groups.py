"""Streams groups: heartbeat and describe.

As in `groups`, handlers know versions and error shapes, and what groups do is
`server.coordinator.streams_groups`'s. None waits, but a heartbeat, however small, may give tens of
thousands of tasks anew. The internal topics that a topology lacks are made here, as a request of
the client's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from replication.controller.context import ControllerContext
from server.coordinator.group_messages import Client
from server.coordinator.streams_groups.describe import not_described
from server.coordinator.streams_groups.group import STREAMS
from server.coordinator.streams_groups.internal_topics import creation_of
from server.coordinator.streams_groups.topology import (
    MISSING_INTERNAL_TOPICS,
    InternalTopic,
    Status,
)
from server.handlers.access.streams import topology_topics, wrong_names
from server.handlers.consumer_groups import NOT_SERVED, described
from wire.errors import KafkaError
from wire.messages.admin import CreateTopicsRequest
from wire.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from server.coordinator.streams_groups.protocol import Answer
    from server.handlers.edges import GroupsBroker
    from server.network.request_context import RequestContext
    from wire.messages.admin import CreateTopicsResponse

    Context = RequestContext[GroupsBroker]

Uncreatable = Callable[[Sequence[str]], list[str]]
"""Which of these topics the client may not create."""

_FAILURES_SHOWN = 3


def streams_group_heartbeat(
    ctx: Context, request: StreamsGroupHeartbeatRequest, uncreatable: Uncreatable | None = None
) -> None:
    """Join, stay in or leave a group; tells the member its tasks.

    Behaviour: see coordinator.streams_groups.protocol. UNSUPPORTED_VERSION unless the group
               coordinator is configured for it and streams.version is at least 1. Internal topics
               that are missing are asked for, and the answer does not wait for them; it says which
               are missing, and why some could not be made.
    Versions:  one.
    Gaps:      -
    """

    def answer(result: object) -> None:
        if isinstance(result, KafkaError):
            ctx.respond(_refused(result))
            return
        response, missing = cast("Answer", result)
        if missing:
            denied = [] if uncreatable is None else uncreatable([one.name for one in missing])
            if denied:
                _add(response, f"Unauthorized to CREATE on topics {', '.join(denied)}.")
            else:
                _make_topics(ctx, request.group_id, missing, response)
        ctx.respond(response)

    groups = ctx.broker.group_coordinator
    if not groups.serves(STREAMS):
        answer(NOT_SERVED)
        return
    error = wrong_names(topology_topics(request.topology))
    if error is not None:
        answer(error)
        return
    client = Client(ctx.client_id or "", "/" + ctx.peer_host, ctx.api_version)
    groups.streams_group_heartbeat(request, client, answer)


def _refused(error: KafkaError) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(
        error_code=int(error.code),
        error_message=error.detail or None,
        member_id="",
        member_epoch=0,
        heartbeat_interval_ms=0,
        acceptable_recovery_lag=0,
        task_offset_interval_ms=0,
        status=None,
        endpoint_information_epoch=0,
    )


def _make_topics(
    ctx: Context,
    group_id: str,
    missing: Sequence[InternalTopic],
    response: StreamsGroupHeartbeatResponse,
) -> None:
    """Have the controller make those that nobody asks for now; say why others could not be."""
    broker = ctx.broker
    topics = broker.group_coordinator.internal_topics
    keep_ms = 2 * response.heartbeat_interval_ms
    taken = topics.take(missing)
    if taken:

        def answered(created: CreateTopicsResponse | KafkaError) -> None:
            topics.answered(taken, created, keep_ms)

        version = CreateTopicsRequest.versions[1]
        broker.controller.submit(
            creation_of(taken, broker.config.get_int("request.timeout.ms")),
            answered,
            context=ControllerContext(ctx.principal, version, ctx.client_id, ctx.peer_host),
        )
    failures = topics.failures(missing)
    if failures:
        shown = [f"{name} ({why})" for name, why in failures.items()][:_FAILURES_SHOWN]
        more = len(failures) - len(shown)
        _add(
            response,
            f"Creation failed: {', '.join(shown)}" + (f" and {more} more." if more else "."),
        )


def _add(response: StreamsGroupHeartbeatResponse, detail: str) -> None:
    """Say more about the topics that are missing."""
    for status in response.status or ():
        if status.status_code == MISSING_INTERNAL_TOPICS:
            status.status_detail += f"; {detail}"
            return
    status = Status(status_code=MISSING_INTERNAL_TOPICS, status_detail=detail)
    response.status = [*(response.status or ()), status]


def streams_group_describe(ctx: Context, request: StreamsGroupDescribeRequest) -> None:
    """Epochs, topology, members and tasks of groups.

    Behaviour: groups fail alone. UNSUPPORTED_VERSION as for the heartbeat.
    Versions:  one.
    Gaps:      -
    """

    answer = described(ctx, request, StreamsGroupDescribeResponse)
    groups = ctx.broker.group_coordinator
    if groups.serves(STREAMS):
        groups.describe_streams_groups(request.group_ids, answer)
    else:
        answer([not_described(group_id, NOT_SERVED) for group_id in request.group_ids])
