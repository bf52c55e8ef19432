"""SASL, SCRAM credentials, access rules and delegation tokens."""

from __future__ import annotations

from wire.schema import (
    Array,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Record,
    Request,
    Response,
    String,
    Struct,
)


class SaslHandshakeRequest(Request, key=17, versions=(0, 1)):
    """Choose a SASL mechanism."""

    mechanism: str = String()


class SaslHandshakeResponse(Response, to=SaslHandshakeRequest):
    """The mechanisms the broker offers."""

    error_code: int = Int16()
    mechanisms: list[str] = Array(String)


class SaslAuthenticateRequest(Request, key=36, versions=(0, 2), flexible=2):
    """Carry one step of the SASL exchange."""

    auth_bytes: bytes = Bytes()


class SaslAuthenticateResponse(Response, to=SaslAuthenticateRequest):
    """The broker's next SASL token, or why it refused."""

    error_code: int = Int16()
    error_message: str | None = String(nullable=0)
    auth_bytes: bytes = Bytes()
    session_lifetime_ms: int = Int64(since=1, default=0)


class DescribeUserScramCredentialsRequest(Request, key=50, versions=(0, 0), flexible=0):
    """List users' SCRAM mechanisms."""

    class User(Struct):
        name: str = String()

    users: list[User] | None = Array(User, nullable=0)


class DescribeUserScramCredentialsResponse(Response, to=DescribeUserScramCredentialsRequest):
    """Mechanisms and iterations by user; never a secret."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=0)

    class User(Struct):
        user: str = String()
        error_code: int = Int16()
        error_message: str | None = String(nullable=0)

        class CredentialInfo(Struct):
            mechanism: int = Int8()
            iterations: int = Int32()

        credential_infos: list[CredentialInfo] = Array(CredentialInfo)

    results: list[User] = Array(User)


class AlterUserScramCredentialsRequest(Request, key=51, versions=(0, 0), flexible=0):
    """Set or delete users' SCRAM credentials."""

    class Deletion(Struct):
        name: str = String()
        mechanism: int = Int8()

    deletions: list[Deletion] = Array(Deletion)

    class Upsertion(Struct):
        name: str = String()
        mechanism: int = Int8()
        iterations: int = Int32()
        salt: bytes = Bytes()
        salted_password: bytes = Bytes()

    upsertions: list[Upsertion] = Array(Upsertion)


class AlterUserScramCredentialsResponse(Response, to=AlterUserScramCredentialsRequest):
    """Whether each user was changed."""

    throttle_time_ms: int = Int32(default=0)

    class User(Struct):
        user: str = String()
        error_code: int = Int16()
        error_message: str | None = String(nullable=0)

    results: list[User] = Array(User)


class DescribeAclsRequest(Request, key=29, versions=(1, 3), flexible=2):
    """List the access rules that match a filter."""

    resource_type_filter: int = Int8()
    resource_name_filter: str | None = String(nullable=1)
    pattern_type_filter: int = Int8(default=3)
    principal_filter: str | None = String(nullable=1)
    host_filter: str | None = String(nullable=1)
    operation: int = Int8()
    permission_type: int = Int8()


class DescribeAclsResponse(Response, to=DescribeAclsRequest):
    """Access rules by resource."""

    throttle_time_ms: int = Int32(default=0)
    error_code: int = Int16()
    error_message: str | None = String(nullable=1)

    class Resource(Struct):
        resource_type: int = Int8()
        resource_name: str = String()
        pattern_type: int = Int8(default=3)

        class Acl(Struct):
            principal: str = String()
            host: str = String()
            operation: int = Int8()
            permission_type: int = Int8()

        acls: list[Acl] = Array(Acl)

    resources: list[Resource] = Array(Resource)


class CreateAclsRequest(Request, key=30, versions=(1, 3), flexible=2):
    """Add access rules."""

    class Creation(Struct):
        resource_type: int = Int8()
        resource_name: str = String()
        resource_pattern_type: int = Int8(default=3)
        principal: str = String()
        host: str = String()
        operation: int = Int8()
        permission_type: int = Int8()

    creations: list[Creation] = Array(Creation)


class CreateAclsResponse(Response, to=CreateAclsRequest):
    """Whether each rule was added."""

    throttle_time_ms: int = Int32(default=0)

    class Result(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=1)

    results: list[Result] = Array(Result)


class DeleteAclsRequest(Request, key=31, versions=(1, 3), flexible=2):
    """Delete the access rules that match filters."""

    class Filter(Struct):
        resource_type_filter: int = Int8()
        resource_name_filter: str | None = String(nullable=1)
        pattern_type_filter: int = Int8(default=3)
        principal_filter: str | None = String(nullable=1)
        host_filter: str | None = String(nullable=1)
        operation: int = Int8()
        permission_type: int = Int8()

    filters: list[Filter] = Array(Filter)


class DeleteAclsResponse(Response, to=DeleteAclsRequest):
    """The rules each filter deleted."""

    throttle_time_ms: int = Int32(default=0)

    class FilterResult(Struct):
        error_code: int = Int16()
        error_message: str | None = String(nullable=1)

        class MatchingAcl(Struct):
            error_code: int = Int16()
            error_message: str | None = String(nullable=1)
            resource_type: int = Int8()
            resource_name: str = String()
            pattern_type: int = Int8(default=3)
            principal: str = String()
            host: str = String()
            operation: int = Int8()
            permission_type: int = Int8()

        matching_acls: list[MatchingAcl] = Array(MatchingAcl)

    filter_results: list[FilterResult] = Array(FilterResult)


class CreateDelegationTokenRequest(Request, key=38, versions=(1, 3), flexible=2):
    """Issue a delegation token."""

    owner_principal_type: str | None = String(since=3, nullable=3, default="")
    owner_principal_name: str | None = String(since=3, nullable=3, default="")

    class Renewer(Struct):
        principal_type: str = String()
        principal_name: str = String()

    renewers: list[Renewer] = Array(Renewer)
    max_lifetime_ms: int = Int64()


class CreateDelegationTokenResponse(Response, to=CreateDelegationTokenRequest):
    """The token with its secret and times."""

    error_code: int = Int16()
    principal_type: str = String()
    principal_name: str = String()
    token_requester_principal_type: str = String(since=3, default="")
    token_requester_principal_name: str = String(since=3, default="")
    issue_timestamp_ms: int = Int64()
    expiry_timestamp_ms: int = Int64()
    max_timestamp_ms: int = Int64()
    token_id: str = String()
    hmac: bytes = Bytes()
    throttle_time_ms: int = Int32(default=0)


class RenewDelegationTokenRequest(Request, key=39, versions=(1, 2), flexible=2):
    """Prolong a delegation token."""

    hmac: bytes = Bytes()
    renew_period_ms: int = Int64()


class RenewDelegationTokenResponse(Response, to=RenewDelegationTokenRequest):
    """The new expiry time."""

    error_code: int = Int16()
    expiry_timestamp_ms: int = Int64()
    throttle_time_ms: int = Int32(default=0)


class ExpireDelegationTokenRequest(Request, key=40, versions=(1, 2), flexible=2):
    """End a delegation token's life."""

    hmac: bytes = Bytes()
    expiry_time_period_ms: int = Int64()


class ExpireDelegationTokenResponse(Response, to=ExpireDelegationTokenRequest):
    """The new expiry time."""

    error_code: int = Int16()
    expiry_timestamp_ms: int = Int64()
    throttle_time_ms: int = Int32(default=0)


class DescribeDelegationTokenRequest(Request, key=41, versions=(1, 3), flexible=2):
    """List delegation tokens by owner."""

    class Owner(Struct):
        principal_type: str = String()
        principal_name: str = String()

    owners: list[Owner] | None = Array(Owner, nullable=1)


class DescribeDelegationTokenResponse(Response, to=DescribeDelegationTokenRequest):
    """The tokens the caller may see."""

    error_code: int = Int16()

    class Token(Struct):
        principal_type: str = String()
        principal_name: str = String()
        token_requester_principal_type: str = String(since=3, default="")
        token_requester_principal_name: str = String(since=3, default="")
        issue_timestamp: int = Int64()
        expiry_timestamp: int = Int64()
        max_timestamp: int = Int64()
        token_id: str = String()
        hmac: bytes = Bytes()

        class Renewer(Struct):
            principal_type: str = String()
            principal_name: str = String()

        renewers: list[Renewer] = Array(Renewer)

    tokens: list[Token] = Array(Token)
    throttle_time_ms: int = Int32(default=0)


class DefaultPrincipalData(Record, versions=(0, 0), flexible=0):
    """A principal as it travels inside an Envelope."""

    type: str = String()
    name: str = String()
    token_authenticated: bool = Bool()
