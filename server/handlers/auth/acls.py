"""DescribeAcls, CreateAcls, DeleteAcls: the rules that the StandardAuthorizer goes by.

A broker describes the rules of its own image; they are changed by the controller. Where no
authorizer goes by such rules there are none to speak of: SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replication.metadata.acl_filter import AclFilter
from server.handlers.controller import pass_on
from wire.errors import ErrorCode, KafkaError
from wire.messages.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import AnyNode
    from server.network.request_context import RequestContext

_Resource = DescribeAclsResponse.Resource


def describe_acls(
    ctx: RequestContext[AnyNode], request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """List the rules that a filter means, by what they are about.

    Behaviour: those of this node's image, which may be some milliseconds old.
    Versions:  all alike.
    Gaps:      -
    """
    try:
        _check_keeps_acls(ctx)
        wanted = AclFilter.of(request)
        if wanted.is_unknown:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The AclBindingFilter has unknown parts")
    except KafkaError as error:
        return DescribeAclsResponse(
            error_code=int(error.code), error_message=error.detail, resources=[]
        )
    resources: dict[tuple[int, int, str], _Resource] = {}
    for record in ctx.broker.metadata.acls.values():
        if wanted.matches(record):
            key = record.resource_type, record.pattern_type, record.resource_name
            if key not in resources:
                kind, pattern, name = key
                resources[key] = _Resource(
                    resource_type=kind, resource_name=name, pattern_type=pattern, acls=[]
                )
            resources[key].acls.append(
                _Resource.Acl(
                    principal=record.principal,
                    host=record.host,
                    operation=record.operation,
                    permission_type=record.permission_type,
                )
            )
    return DescribeAclsResponse(
        error_code=0, error_message=None, resources=list(resources.values())
    )


def create_acls(ctx: RequestContext[AnyNode], request: CreateAclsRequest) -> None:
    """Add rules.

    Behaviour: creations fail alone; answered when they are committed, and this node goes by them.
    Versions:  all alike.
    Gaps:      -
    """
    _check_keeps_acls(ctx)
    pass_on(ctx, request)


def delete_acls(ctx: RequestContext[AnyNode], request: DeleteAclsRequest) -> None:
    """Delete the rules that filters mean.

    Behaviour: filters fail alone; each tells all that it means, deleted by another or not.
    Versions:  all alike.
    Gaps:      -
    """
    _check_keeps_acls(ctx)
    pass_on(ctx, request)


def _check_keeps_acls(ctx: RequestContext[AnyNode]) -> None:
    authorizer: Any = ctx.broker.authorizer
    if authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    if not authorizer.keeps_acls:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "The authorizer keeps no ACLs.")
