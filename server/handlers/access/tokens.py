"""Who may have delegation tokens made for others, and see whose (security.md 4.3; KIP-48, KIP-373).

Renewing and ending ask for a token's secret, and the controller for its owner or a renewer: no rule
here. The resources are `User:NAME` as User, and a token's id as DelegationToken.
"""

from __future__ import annotations

from typing import Any

from replication.controller.delegation_tokens import created_nothing, owner_of
from server.handlers.access.guard import Access, Verdict
from server.handlers.auth.tokens import may_ask_for_tokens
from server.network.api import Operation, Resource
from wire.errors import ErrorCode


def create_delegation_token(access: Access, request: Any) -> Verdict:
    """For oneself without a right; for others with CreateTokens on them."""
    requester = access.ctx.principal
    owner = owner_of(request, requester)
    if owner == requester or not may_ask_for_tokens(access.ctx):
        return None
    if access.may(Operation.CREATE_TOKENS, Resource.USER, owner):
        return None
    code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    return created_nothing(owner, requester, code)


def describe_delegation_token(access: Access, _request: Any) -> Verdict:
    """A token is seen by its owner, its renewers, who had it made, who has Describe on it, or
    DescribeTokens on the owner (DelegationTokenManager.filterToken)."""
    asks = str(access.ctx.principal)

    def sees(token: Any) -> bool:
        owner = f"{token.principal_type}:{token.principal_name}"
        requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
        renewers = [f"{one.principal_type}:{one.principal_name}" for one in token.renewers]
        return (
            asks in (owner, requester, *renewers)
            or access.sees(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id)
            or access.sees(Operation.DESCRIBE_TOKENS, Resource.USER, owner)
        )

    def finish(response: Any) -> Any:
        response.tokens = [token for token in response.tokens if sees(token)]
        return response

    return finish
