"""What brokers and controllers ask the active controller, on the controller listeners.

All of them are decisions of the controller: the request is handed to it and answered when it has
decided and the decision is committed. A node that is not the active controller answers
NOT_CONTROLLER, and whoever asked looks for the one that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.controller.context import ControllerContext
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.handlers.edges import AnyNode
    from server.network.request_context import RequestContext
    from wire.messages.quorum import (
        AllocateProducerIdsRequest,
        AlterPartitionRequest,
        AssignReplicasToDirsRequest,
        BrokerHeartbeatRequest,
        BrokerRegistrationRequest,
        ControllerRegistrationRequest,
    )
    from wire.schema import Request, Response


def pass_on(
    ctx: RequestContext[AnyNode],
    request: Request,
    came_home: Callable[[], None] | None = None,
    may_delete: Callable[[str], bool] | None = None,
) -> None:
    """Give the request to the controller; its answer is ours. `may_delete`: see ControllerContext.

    `came_home` serves what the raft driver answers, not the controller, when this node leads the
    quorum by the time the request finds its leader.
    """

    def answer(response: Response | KafkaError) -> None:
        if not isinstance(response, KafkaError):
            ctx.mute_for(getattr(response, "throttle_time_ms", 0))
            ctx.respond(response)
        elif came_home is not None and response.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            came_home()
        else:
            ctx.respond_error(request, response.code, response.detail)

    context = controller_context(ctx)._replace(may_delete=may_delete)
    ctx.broker.controller.submit(request, answer, context=context)


def controller_context(ctx: RequestContext[AnyNode]) -> ControllerContext:
    """Who asks, for the controller."""
    return ControllerContext(
        principal=ctx.principal,
        api_version=ctx.api_version,
        client_id=ctx.client_id,
        client_host=ctx.peer_host,
    )


def broker_registration(ctx: RequestContext[AnyNode], request: BrokerRegistrationRequest) -> None:
    """A broker makes itself known and is given its broker epoch.

    Behaviour: it is fenced until a heartbeat shows that it has read its registration.
    Versions:  2 names log directories. 3 the epoch of the last clean shutdown.
    Gaps:      -
    """
    pass_on(ctx, request)


def broker_heartbeat(ctx: RequestContext[AnyNode], request: BrokerHeartbeatRequest) -> None:
    """A broker lives, and may want to be unfenced, fenced or to shut down.

    Behaviour: a silent broker is fenced after broker.session.timeout.ms.
    Versions:  1 names failed log directories. 2 cordoned ones.
    Gaps:      -
    """
    pass_on(ctx, request)


def alter_partition(ctx: RequestContext[AnyNode], request: AlterPartitionRequest) -> None:
    """A partition's leader asks for another ISR.

    Behaviour: partitions fail alone; a compare-and-set on leader epoch and partition epoch.
    Versions:  3 brings the broker epochs of the new ISR's members (KIP-903).
    Gaps:      -
    """
    pass_on(ctx, request)


def allocate_producer_ids(
    ctx: RequestContext[AnyNode], request: AllocateProducerIdsRequest
) -> None:
    """A broker takes a block of producer ids to hand out.

    Behaviour: 1,000 ids that nobody else is ever given.
    Versions:  one.
    Gaps:      -
    """
    pass_on(ctx, request)


def controller_registration(
    ctx: RequestContext[AnyNode], request: ControllerRegistrationRequest
) -> None:
    """A controller says where it is reached and what it supports (KIP-919).

    Behaviour: replaces its earlier registration.
    Versions:  one.
    Gaps:      -
    """
    pass_on(ctx, request)


def assign_replicas_to_dirs(
    ctx: RequestContext[AnyNode], request: AssignReplicasToDirsRequest
) -> None:
    """A broker says which of its log directories holds which replica (KIP-858).

    Behaviour: partitions fail alone; a replica in a directory that failed leaves its ISR.
    Versions:  one.
    Gaps:      -
    """
    pass_on(ctx, request)
