"""Delegation tokens (KIP-48, KIP-900): made, renewed, ended, swept. PURE.

A token is a random id; its secret is the HMAC-SHA-512 of that id by `delegation.token.secret.key`,
which every node has and no record holds (DT-3). Whoever shows a secret renews or ends its token, if
it is the owner or one of the renewers. A token ends at its expiry time, which may be put off until
its max time; what has ended is taken out of the log by `expired`, each
delegation.token.expiry.check.interval.ms. Who may ask at all is the handlers' part (DT-2, DT-5).

Times are wall ms.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from replication.controller.context import ControllerConfig, ControllerContext, ControllerResult
from replication.metadata.image import METADATA_VERSION, MetadataImage
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from wire.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

VERSION_SINCE = 14
"""metadata.version 3.6-IV2, the first whose readers know the records."""
REMOVED_PER_PASS_MAX = 1000
_TIME_MAX = (1 << 63) - 1


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """A token's secret."""
    import hmac  # OpenSSL's, which a cluster without tokens need not load

    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


class Secrets:
    """Which token a secret opens, without making the secrets of all tokens for each that is shown:
    junk must cost whoever sends it more than the controller. One thread.

    What is found is found by its hash, whose seed nobody knows: how long it takes tells nothing.
    """

    def __init__(self, secret_key: str) -> None:
        self._secret_key = secret_key
        self._tokens: Mapping[str, DelegationTokenRecord] = {}
        self._ids: dict[bytes, str] = {}

    def find(
        self, tokens: Mapping[str, DelegationTokenRecord], secret: bytes
    ) -> DelegationTokenRecord | None:
        """`tokens`: those there are now, by id."""
        if tokens is not self._tokens:
            known = self._tokens.keys()
            for token_id in known - tokens.keys():
                del self._ids[token_hmac(self._secret_key, token_id)]
            for token_id in tokens.keys() - known:
                self._ids[token_hmac(self._secret_key, token_id)] = token_id
            self._tokens = tokens
        token_id = self._ids.get(secret, "")
        return tokens.get(token_id)


def has_ended(token: DelegationTokenRecord, wall_ms: int) -> bool:
    """It is good for nothing more, whether it was swept or not."""
    return min(token.max_timestamp, token.expiration_timestamp) < wall_ms


def owner_of(request: CreateDelegationTokenRequest, requester: str) -> str:
    """`Type:name` of whom the token is for: the requester, unless it names somebody."""
    if not request.owner_principal_name:
        return requester
    return f"{request.owner_principal_type or ''}:{request.owner_principal_name}"


def created_nothing(
    owner: str, requester: str, code: int, time_ms: int = -1
) -> CreateDelegationTokenResponse:
    """The answer to who gets no token."""
    (owner_type, _, owner_name), (kind, _, name) = owner.partition(":"), requester.partition(":")
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        token_id="",
        hmac=b"",
    )


def create_delegation_token(
    image: MetadataImage,
    config: ControllerConfig,
    request: CreateDelegationTokenRequest,
    context: ControllerContext,
    new_id: Callable[[], bytes],
    wall_ms: int,
) -> ControllerResult:
    """Serve CreateDelegationToken. Only users own tokens and renew them (INVALID_PRINCIPAL_TYPE;
    Kafka lets others own them)."""
    requester = str(context.principal)
    owner = owner_of(request, requester)
    answer = created_nothing(owner, requester, ErrorCode.NONE, 0)
    kinds = {answer.principal_type, *(one.principal_type for one in request.renewers)}
    answer.error_code = _refusal(image, config)
    if not answer.error_code and kinds != {"User"}:
        answer.error_code = ErrorCode.INVALID_PRINCIPAL_TYPE
    if answer.error_code:
        return ControllerResult([], answer)
    longest_ms = config.delegation_token_max_lifetime_ms
    if request.max_lifetime_ms > 0:
        longest_ms = min(longest_ms, request.max_lifetime_ms)
    answer.issue_timestamp_ms = wall_ms
    answer.max_timestamp_ms = min(wall_ms + longest_ms, _TIME_MAX)
    answer.expiry_timestamp_ms = min(
        answer.max_timestamp_ms, wall_ms + config.delegation_token_expiry_time_ms
    )
    answer.token_id = base64.urlsafe_b64encode(new_id()).rstrip(b"=").decode()
    answer.hmac = token_hmac(config.delegation_token_secret_key or "", answer.token_id)
    token = DelegationTokenRecord(
        owner=owner,
        requester=requester,
        renewers=[f"{one.principal_type}:{one.principal_name}" for one in request.renewers],
        issue_timestamp=wall_ms,
        max_timestamp=answer.max_timestamp_ms,
        expiration_timestamp=answer.expiry_timestamp_ms,
        token_id=answer.token_id,
    )
    return ControllerResult([token], answer)


def renew_delegation_token(
    image: MetadataImage,
    config: ControllerConfig,
    secrets: Secrets,
    request: RenewDelegationTokenRequest,
    context: ControllerContext,
    wall_ms: int,
) -> ControllerResult:
    """Serve RenewDelegationToken: never beyond the max time."""
    try:
        token = _token(image, config, secrets, bytes(request.hmac))
        if has_ended(token, wall_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        _check_renewer(token, context)
    except KafkaError as error:
        code = error.code
        answer = RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=0)
        return ControllerResult([], answer)
    period_ms = config.delegation_token_expiry_time_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    return _until(token, wall_ms + period_ms, RenewDelegationTokenResponse)


def expire_delegation_token(
    image: MetadataImage,
    config: ControllerConfig,
    secrets: Secrets,
    request: ExpireDelegationTokenRequest,
    context: ControllerContext,
    wall_ms: int,
) -> ControllerResult:
    """Serve ExpireDelegationToken: at once if the period is negative, else after it."""
    try:
        token = _token(image, config, secrets, bytes(request.hmac))
        _check_renewer(token, context)
        if request.expiry_time_period_ms >= 0 and has_ended(token, wall_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    except KafkaError as error:
        code = error.code
        refused = ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=0)
        return ControllerResult([], refused)
    if request.expiry_time_period_ms < 0:
        answer = ExpireDelegationTokenResponse(
            error_code=ErrorCode.NONE, expiry_timestamp_ms=wall_ms
        )
        return ControllerResult([RemoveDelegationTokenRecord(token_id=token.token_id)], answer)
    return _until(token, wall_ms + request.expiry_time_period_ms, ExpireDelegationTokenResponse)


def expired(image: MetadataImage, wall_ms: int) -> list[RemoveDelegationTokenRecord]:
    """Removals of tokens that have ended; at most REMOVED_PER_PASS_MAX."""
    ended = (one.token_id for one in image.delegation_tokens.values() if has_ended(one, wall_ms))
    return [
        RemoveDelegationTokenRecord(token_id=token_id)
        for token_id, _ in zip(ended, range(REMOVED_PER_PASS_MAX), strict=False)
    ]


def _refusal(image: MetadataImage, config: ControllerConfig) -> ErrorCode:
    if not config.delegation_token_secret_key:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if image.feature(METADATA_VERSION) < VERSION_SINCE:
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE


def _token(
    image: MetadataImage, config: ControllerConfig, secrets: Secrets, secret: bytes
) -> DelegationTokenRecord:
    """The token of a secret. Raises KafkaError."""
    if refusal := _refusal(image, config):
        raise KafkaError(refusal)
    token = secrets.find(image.delegation_tokens, secret)
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def _check_renewer(token: DelegationTokenRecord, context: ControllerContext) -> None:
    if context.principal not in (token.owner, *token.renewers):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _until(token: DelegationTokenRecord, expiry_ms: int, kind: type[Any]) -> ControllerResult:
    expiry_ms = min(token.max_timestamp, expiry_ms)
    answer = kind(error_code=ErrorCode.NONE, expiry_timestamp_ms=expiry_ms)
    prolonged = DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=expiry_ms,
        token_id=token.token_id,
    )
    return ControllerResult([prolonged], answer)
