"""Delegation tokens: who may ask for them, and who sees which."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from typing import Any

import pytest

from server.network.api import Operation as Op
from server.network.api import Resource
from server.network.channel import TokenPrincipal
from server.peers.envelope import principal_bytes, read_principal
from tests.server.handler_support import Asked, FakeBroker, image_of
from tests.server.handlers.access.test_table import Policy
from wire.messages.metadata_records import DelegationTokenRecord
from wire.messages.security import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

Owner = DescribeDelegationTokenRequest.Owner


def token(token_id: str, owner: str, *renewers: str) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=owner, requester="User:admin", renewers=list(renewers), issue_timestamp=1,
        max_timestamp=3, expiration_timestamp=2, token_id=token_id,
    )  # fmt: skip


KEPT = [
    token("a", "User:alice"),
    token("b", "User:bob", "User:alice"),
    token("c", "User:carol"),
    token("d", "User:carol"),
]


@pytest.fixture
def broker() -> FakeBroker:
    kept = {one.token_id: one for one in KEPT}
    made = FakeBroker(dataclasses.replace(image_of(), delegation_tokens=kept))
    made.config["delegation.token.secret.key"] = "key"
    return made


def asked(
    broker: FakeBroker, principal: str = "User:alice", protocol: str = "SASL_SSL",
    authorizer: Any = None,
) -> Asked:  # fmt: skip
    made = Asked(broker, authorizer)
    made.channel.principal, made.channel.security_protocol = principal, protocol
    return made


CHANGES = [
    (CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3),
    (RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1), 2),
    (ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1), 2),
]


@pytest.mark.parametrize(("request_", "version"), CHANGES)
@pytest.mark.parametrize(
    ("principal", "protocol"),
    [
        ("User:ANONYMOUS", "PLAINTEXT"),
        ("User:ANONYMOUS", "SSL"),
        (TokenPrincipal("User:alice"), "SASL_SSL"),
    ],
)
def test_nobody_without_a_name_of_their_own_has_tokens(
    broker: FakeBroker, request_: Any, version: int, principal: str, protocol: str
) -> None:
    for which, at in ((request_, version), (DescribeDelegationTokenRequest(owners=None), 3)):
        assert asked(broker, principal, protocol).ask(which, at).error_code == 64
    assert not broker.controller.submitted


@pytest.mark.parametrize(("request_", "version"), CHANGES)
@pytest.mark.parametrize(
    ("principal", "protocol"),
    [("User:alice", "SASL_PLAINTEXT"), ("User:CN=alice", "SSL"), ("User:ANONYMOUS", "SASL_SSL")],
)
def test_the_controller_decides_for_the_others(
    broker: FakeBroker, request_: Any, version: int, principal: str, protocol: str
) -> None:
    asked(broker, principal, protocol).send(request_, version)
    _request, _answer, context = broker.controller.submitted.popleft()
    assert context.principal == principal


def test_a_token_shows_inside_an_envelope() -> None:
    for principal in ("User:alice", TokenPrincipal("User:alice")):
        read = read_principal(principal_bytes(principal))
        assert read == "User:alice"
        assert type(read) is type(principal)


def seen(answer: Any) -> list[str]:
    assert answer.error_code == 0
    return [one.token_id for one in answer.tokens]


def test_described_by_owner_or_renewer(broker: FakeBroker) -> None:
    def describe(*owners: str) -> list[str]:
        names = [Owner(principal_type="User", principal_name=name) for name in owners]
        return seen(asked(broker).ask(DescribeDelegationTokenRequest(owners=names), 3))

    assert describe() == []
    assert describe("alice") == ["a", "b"]
    assert describe("bob", "carol", "dave") == ["b", "c", "d"]
    everything = asked(broker).ask(DescribeDelegationTokenRequest(owners=None), 3)
    assert seen(everything) == ["a", "b", "c", "d"]
    one = everything.tokens[1]
    assert (one.principal_name, one.token_requester_principal_name) == ("bob", "admin")
    assert [renewer.principal_name for renewer in one.renewers] == ["alice"]
    assert (one.issue_timestamp, one.expiry_timestamp, one.max_timestamp) == (1, 2, 3)
    assert one.hmac == hmac.digest(b"key", b"b", hashlib.sha512)


def test_with_rules_one_sees_ones_own_and_what_one_may(broker: FakeBroker) -> None:
    request = DescribeDelegationTokenRequest(owners=None)
    for allowed, expected in (
        ([], ["a", "b"]),
        ([(Op.DESCRIBE, Resource.DELEGATION_TOKEN, "d")], ["a", "b", "d"]),
        ([(Op.DESCRIBE_TOKENS, Resource.USER, "User:carol")], ["a", "b", "c", "d"]),
        ([(Op.DESCRIBE_TOKENS, Resource.USER, "carol")], ["a", "b"]),
    ):
        assert seen(asked(broker, authorizer=Policy(allowed)).ask(request, 3)) == expected


def test_who_had_a_token_made_for_another_sees_it(broker: FakeBroker) -> None:
    mine = DescribeDelegationTokenRequest(
        owners=[Owner(principal_type="User", principal_name="admin")]
    )
    for request in (mine, DescribeDelegationTokenRequest(owners=None)):
        for authorizer in (None, Policy()):
            shown = asked(broker, "User:admin", authorizer=authorizer).ask(request, 3)
            assert seen(shown) == ["a", "b", "c", "d"]


def test_with_rules_a_token_for_others_needs_a_right_on_them(broker: FakeBroker) -> None:
    request = CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name="bob", renewers=[], max_lifetime_ms=-1
    )
    refused = asked(broker, authorizer=Policy()).ask(request, 3)
    assert (refused.error_code, refused.principal_name, refused.hmac) == (65, "bob", b"")
    assert refused.token_requester_principal_name == "alice"
    assert not broker.controller.submitted
    may = Policy([(Op.CREATE_TOKENS, Resource.USER, "User:bob")])
    asked(broker, authorizer=may).send(request, 3)
    assert broker.controller.submitted.popleft()[0].owner_principal_name == "bob"
    on_plaintext = asked(broker, protocol="PLAINTEXT", authorizer=Policy()).ask(request, 3)
    assert on_plaintext.error_code == 64  # whatever rights there are


def test_without_a_key_there_are_none(broker: FakeBroker) -> None:
    broker.config["delegation.token.secret.key"] = None
    answer = asked(broker).ask(DescribeDelegationTokenRequest(owners=None), 3)
    assert (answer.error_code, answer.tokens) == (61, [])
