"""ACLs: there is no authorizer, and these APIs say so, as Apache Kafka without one does.

Why served at all: an admin client that is not offered the API reports a broker that is too old.
SECURITY_DISABLED is what tools and test suites expect of a broker
without one.

Gaps: no authorizer can be configured, so no ACL is ever stored; SCRAM users and delegation tokens
are not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.errors import ErrorCode, KafkaError
from wire.messages.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

if TYPE_CHECKING:
    from server.request_channel import RequestContext


def describe_acls(ctx: RequestContext, request: DescribeAclsRequest) -> None:
    """List the ACLs that match a filter.

    Behaviour: SECURITY_DISABLED.
    Versions:  all alike.
    Gaps:      no authorizer.
    """
    raise _no_authorizer()


def create_acls(ctx: RequestContext, request: CreateAclsRequest) -> None:
    """Add ACLs.

    Behaviour: SECURITY_DISABLED for each.
    Versions:  all alike.
    Gaps:      no authorizer.
    """
    raise _no_authorizer()


def delete_acls(ctx: RequestContext, request: DeleteAclsRequest) -> None:
    """Remove the ACLs that match filters.

    Behaviour: SECURITY_DISABLED for each filter.
    Versions:  all alike.
    Gaps:      no authorizer.
    """
    raise _no_authorizer()


def _no_authorizer() -> KafkaError:
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
