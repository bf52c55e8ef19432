"""Delegation tokens (KIP-48): made, renewed and ended by the controller, described by any broker.

Who may ask at all is decided where the client is connected (DT-2): nobody on PLAINTEXT, nobody
without a name, and nobody who logged in by a token, which alone is asked again on the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replication.controller.delegation_tokens import created_nothing, owner_of, token_hmac
from server.handlers.controller import pass_on
from server.network.channel import ANONYMOUS, TokenPrincipal
from server.network.listeners import PLAINTEXT
from wire.errors import ErrorCode
from wire.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import AnyNode
    from server.network.request_context import RequestContext
    from wire.messages.metadata_records import DelegationTokenRecord

_NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def may_ask_for_tokens(ctx: RequestContext[Any]) -> bool:
    """Is the client one whom tokens may be made for (KafkaApis.allowTokenRequests)."""
    if isinstance(ctx.principal, TokenPrincipal):
        return False
    if ctx.is_forwarded:
        return True
    protocol = ctx.connection.security_protocol
    return protocol != PLAINTEXT and (protocol != "SSL" or ctx.principal != ANONYMOUS)


def create_delegation_token(
    ctx: RequestContext[AnyNode], request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | None:
    """Issue a token for whom asks, or (KIP-373) for somebody it may act for.

    Behaviour: lives delegation.token.expiry.time.ms, renewed delegation.token.max.lifetime.ms at
               most, and no longer than asked.
    Versions:  3 names the owner.
    Gaps:      owners and renewers are users; Kafka lets an owner be of any type.
    """
    if not may_ask_for_tokens(ctx):
        return created_nothing(owner_of(request, ctx.principal), ctx.principal, _NOT_ALLOWED)
    pass_on(ctx, request)
    return None


def renew_delegation_token(
    ctx: RequestContext[AnyNode], request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse | None:
    """Put off the end of a token, by its secret.

    Behaviour: for its owner and its renewers; never beyond the max time.
    Versions:  all alike.
    Gaps:      -
    """
    if not may_ask_for_tokens(ctx):
        return RenewDelegationTokenResponse(error_code=_NOT_ALLOWED, expiry_timestamp_ms=-1)
    pass_on(ctx, request)
    return None


def expire_delegation_token(
    ctx: RequestContext[AnyNode], request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse | None:
    """End a token, at once or after a time, by its secret.

    Behaviour: for its owner and its renewers. Sessions that it opened stay until it would have
               ended when they began.
    Versions:  all alike.
    Gaps:      -
    """
    if not may_ask_for_tokens(ctx):
        return ExpireDelegationTokenResponse(error_code=_NOT_ALLOWED, expiry_timestamp_ms=-1)
    pass_on(ctx, request)
    return None


def describe_delegation_token(
    ctx: RequestContext[AnyNode], request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """The tokens of some owners, or of all, with their secrets.

    Behaviour: of renewers and requesters, too (TokenInformation.ownerOrRenewer); those that have
               ended until they are swept. Who may see which is `server.handlers.access.rules`'.
    Versions:  3 names the requester.
    Gaps:      -
    """
    secret_key = ctx.broker.config.get("delegation.token.secret.key")
    answer = DescribeDelegationTokenResponse(error_code=ErrorCode.NONE, tokens=[])
    if not may_ask_for_tokens(ctx):
        answer.error_code = _NOT_ALLOWED
    elif not secret_key:
        answer.error_code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if answer.error_code:
        return answer
    asked = None
    if request.owners is not None:
        asked = {f"{one.principal_type}:{one.principal_name}" for one in request.owners}
    for token in ctx.broker.metadata.delegation_tokens.values():
        if asked is None or not asked.isdisjoint((token.owner, token.requester, *token.renewers)):
            answer.tokens.append(_described(token, str(secret_key)))
    return answer


def _described(
    token: DelegationTokenRecord, secret_key: str
) -> DescribeDelegationTokenResponse.Token:
    row = DescribeDelegationTokenResponse.Token
    (owner_type, _, owner), (kind, _, requester) = (
        token.owner.partition(":"),
        token.requester.partition(":"),
    )
    renewers = [one.partition(":") for one in token.renewers]
    return row(
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=kind,
        token_requester_principal_name=requester,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=token_hmac(secret_key, token.token_id),
        renewers=[
            row.Renewer(principal_type=type_, principal_name=name) for type_, _, name in renewers
        ],
    )
