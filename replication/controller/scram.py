"""Users' SCRAM credentials: set, deleted, described (KIP-554). PURE.

What a client sends is a salted password; what is kept are the two keys derived from it (RFC 5802),
at once, so that the password's equivalent is neither logged nor written (SC-6). Users fail alone;
a user that a request names twice fails whatever was asked, also with two mechanisms (SC-7).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from typing import Any, NamedTuple

from replication.controller.context import RECORDS_PER_OPERATION_MAX, ControllerResult
from replication.metadata.image import METADATA_VERSION, MetadataImage
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
VERSION_SINCE = 11
"""metadata.version 3.5-IV2, the first whose readers know the records."""


class ScramMechanism(NamedTuple):
    """A mechanism's number in records and requests, and its hash."""

    type: int
    hash: str


MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism(1, "sha256"),
    "SCRAM-SHA-512": ScramMechanism(2, "sha512"),
}
_BY_TYPE = {mechanism.type: mechanism for mechanism in MECHANISMS.values()}


def scram_record(
    name: str, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> UserScramCredentialRecord:
    """What is kept of a user's salted password."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism.type,
        salt=salt,
        stored_key=hashlib.new(mechanism.hash, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", mechanism.hash),
        iterations=iterations,
    )


def alter_user_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> ControllerResult:
    """Serve AlterUserScramCredentials: all of it in one batch.

    Raises KafkaError POLICY_VIOLATION for more than that takes.
    """
    changes: list[Any] = [*request.deletions, *request.upsertions]
    if len(changes) > RECORDS_PER_OPERATION_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Cannot alter more than {RECORDS_PER_OPERATION_MAX} user credentials at once.",
        )
    records: dict[str, Any] = {}
    failed: dict[str, KafkaError] = {}
    supported = image.feature(METADATA_VERSION) >= VERSION_SINCE
    for one in changes:
        if one.name in failed:  # of a user's mistakes the first is told
            continue
        try:
            if records.pop(one.name, None) is not None:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            if not supported:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "The current metadata.version does not support SCRAM",
                )
            if isinstance(one, AlterUserScramCredentialsRequest.Deletion):
                records[one.name] = _deletion(image, one)
            else:
                records[one.name] = _upsertion(one)
        except KafkaError as error:
            failed[one.name] = error
    row = AlterUserScramCredentialsResponse.User
    results = [row(user=name, error_code=ErrorCode.NONE, error_message=None) for name in records]
    results += [
        row(user=name, error_code=error.code, error_message=error.detail or None)
        for name, error in failed.items()
    ]
    answer = AlterUserScramCredentialsResponse(results=results)
    return ControllerResult(list(records.values()), answer)


def _mechanism(name: str, type_: int) -> ScramMechanism:
    if not name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = _BY_TYPE.get(type_)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return mechanism


def _deletion(
    image: MetadataImage, deletion: AlterUserScramCredentialsRequest.Deletion
) -> RemoveUserScramCredentialRecord:
    mechanism = _mechanism(deletion.name, deletion.mechanism)
    if (deletion.name, mechanism.type) not in image.scram_credentials:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        )
    return RemoveUserScramCredentialRecord(name=deletion.name, mechanism=mechanism.type)


def _upsertion(
    upsertion: AlterUserScramCredentialsRequest.Upsertion,
) -> UserScramCredentialRecord:
    mechanism = _mechanism(upsertion.name, upsertion.mechanism)
    if upsertion.iterations < ITERATIONS_MIN:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.iterations > ITERATIONS_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    salted, salt = bytes(upsertion.salted_password), bytes(upsertion.salt)
    if not salted or not salt:
        # Kafka takes both; whoever knows that a password is empty would log in.
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and password must not be empty")
    return scram_record(upsertion.name, mechanism, salted, salt, upsertion.iterations)


def describe_user_scram_credentials(
    image: MetadataImage, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations of the users asked for, or of all; never a key."""
    by_user: dict[str, list[UserScramCredentialRecord]] = {}
    for (name, _type), credential in sorted(image.scram_credentials.items()):
        by_user.setdefault(name, []).append(credential)
    asked = Counter(user.name for user in request.users or ()) or Counter(by_user.keys())
    row = DescribeUserScramCredentialsResponse.User
    results = []
    for name, count in asked.items():
        error, text = ErrorCode.NONE, None
        if count > 1:
            error = ErrorCode.DUPLICATE_RESOURCE
            text = f"Cannot describe the SCRAM credentials of a user twice in one request: {name}"
        elif name not in by_user:
            error = ErrorCode.RESOURCE_NOT_FOUND
            text = f"Attempt to describe a user credential that does not exist: {name}"
        known = [] if error else by_user[name]
        results.append(
            row(
                user=name,
                error_code=error,
                error_message=text,
                credential_infos=[
                    row.CredentialInfo(mechanism=one.mechanism, iterations=one.iterations)
                    for one in known
                ],
            )
        )
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE, error_message=None, results=results
    )
