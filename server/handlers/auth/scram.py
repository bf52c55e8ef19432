"""Users' SCRAM credentials (KIP-554): changed by the controller, described by any node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.controller import scram
from server.handlers.controller import pass_on
from wire.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import AnyNode
    from server.network.request_context import RequestContext


def describe_user_scram_credentials(
    ctx: RequestContext[AnyNode], request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Which mechanisms users have, with how many iterations.

    Behaviour: users fail alone; without names, all users. Never a salt or a key.
    Versions:  one.
    Gaps:      -
    """
    return scram.describe_user_scram_credentials(ctx.broker.metadata, request)


def alter_user_scram_credentials(
    ctx: RequestContext[AnyNode], request: AlterUserScramCredentialsRequest
) -> None:
    """Set or delete users' credentials.

    Behaviour: users fail alone; more than 10,000 at once all do (POLICY_VIOLATION). Who logs in
               after the answer does so by the new ones, here; other nodes follow. Sessions that are
               open stay.
    Versions:  one.
    Gaps:      -
    """
    pass_on(ctx, request)
