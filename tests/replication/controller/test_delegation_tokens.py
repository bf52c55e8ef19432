"""Delegation tokens: who is given which, how long they live, and how they end."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from replication.controller import delegation_tokens
from replication.controller.context import ControllerContext
from replication.controller.delegation_tokens import token_hmac
from replication.controller.periodic import PeriodicTasks
from replication.controller.requests import ActiveState, decide
from tests.replication.controller_support import Cluster
from wire.messages.metadata_records import FeatureLevelRecord
from wire.messages.security import (
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

DAY = 86_400_000
NOW = 1_700_000_000_000
Renewer = CreateDelegationTokenRequest.Renewer


class Tokens(Cluster):
    """A controller at a time of the wall clock."""

    def __init__(self, secret: str | None = "key", **config: Any) -> None:
        super().__init__(delegation_token_secret_key=secret, **config)
        self.start_broker()
        self.wall_ms = NOW
        self.state = ActiveState(self.config, self.schema, self._random, self.sessions)
        self._made = 0

    def _random(self) -> bytes:
        self._made += 1
        return bytes([self._made]) * 16

    def ask(self, request: Any, principal: str = "User:alice") -> Any:
        self.state.image, self.state.wall_ms = self.image, self.wall_ms
        return self.run(decide(self.state, request, ControllerContext(principal, 3)))

    def create(
        self, *renewers: str, life_ms: int = -1, by: str = "User:alice", owner: str = ""
    ) -> Any:
        owner_type, _, owner_name = owner.partition(":")
        asked = [one.partition(":") for one in renewers]
        return self.ask(
            CreateDelegationTokenRequest(
                owner_principal_type=owner_type,
                owner_principal_name=owner_name,
                renewers=[Renewer(principal_type=t, principal_name=n) for t, _, n in asked],
                max_lifetime_ms=life_ms,
            ),
            by,
        )

    def renew(self, secret: bytes, period_ms: int = -1, by: str = "User:alice") -> tuple[int, int]:
        answer = self.ask(RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms), by)
        return answer.error_code, answer.expiry_timestamp_ms

    def expire(self, secret: bytes, period_ms: int = -1, by: str = "User:alice") -> tuple[int, int]:
        request = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
        answer = self.ask(request, by)
        return answer.error_code, answer.expiry_timestamp_ms


@pytest.fixture
def made() -> Tokens:
    return Tokens()


def test_a_token_is_kept_without_its_secret(made: Tokens) -> None:
    answer = made.create("User:bob")
    assert answer.error_code == 0
    assert answer.token_id == "AQEBAQEBAQEBAQEBAQEBAQ"
    assert answer.hmac == hmac.digest(b"key", answer.token_id.encode(), hashlib.sha512)
    times = (answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms)
    assert times == (NOW, NOW + DAY, NOW + 7 * DAY)
    kept = made.image.delegation_tokens[answer.token_id]
    assert (kept.owner, kept.requester, kept.renewers) == ("User:alice", "User:alice", ["User:bob"])
    assert not any(answer.hmac in record for record in made.log)
    assert "key" not in repr(made.config)


def test_a_secret_that_is_none_costs_no_more_where_there_are_many_tokens(
    made: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [made.create().hmac for _ in range(20)]
    assert made.renew(secrets[7]) == (0, NOW + DAY)
    digests: list[str] = []

    def counted(secret_key: str, token_id: str) -> bytes:
        digests.append(token_id)
        return token_hmac(secret_key, token_id)

    monkeypatch.setattr(delegation_tokens, "token_hmac", counted)
    for _ in range(5):
        assert made.renew(b"junk")[0] == 62
        assert made.expire(secrets[3] + b"x")[0] == 62
    assert not digests
    assert made.expire(secrets[3])[0] == 0
    assert made.renew(secrets[3])[0] == 62
    assert made.renew(made.create().hmac)[0] == 0
    assert len(digests) <= 4


@pytest.mark.parametrize(
    ("life_ms", "expiry_ms", "max_ms"),
    [(-1, DAY, 7 * DAY), (0, DAY, 7 * DAY), (1000, 1000, 1000), (8 * DAY, DAY, 7 * DAY),
     ((1 << 63) - 1, DAY, 7 * DAY), (2 * DAY, DAY, 2 * DAY)],
)  # fmt: skip
def test_nobody_is_given_more_than_the_longest_life(
    made: Tokens, life_ms: int, expiry_ms: int, max_ms: int
) -> None:
    answer = made.create(life_ms=life_ms)
    assert answer.expiry_timestamp_ms - NOW == expiry_ms
    assert answer.max_timestamp_ms - NOW == max_ms


def test_a_token_for_somebody_else_is_theirs(made: Tokens) -> None:
    answer = made.create(owner="User:carol")
    assert (answer.principal_name, answer.token_requester_principal_name) == ("carol", "alice")
    kept = made.image.delegation_tokens[answer.token_id]
    assert (kept.owner, kept.requester) == ("User:carol", "User:alice")
    assert made.renew(answer.hmac)[0] == 63  # asking for it gives no right to it
    assert made.renew(answer.hmac, by="User:carol")[0] == 0


@pytest.mark.parametrize(("renewers", "owner"), [(["Group:g"], ""), ([], "Group:g")])
def test_only_users_have_tokens(made: Tokens, renewers: list[str], owner: str) -> None:
    assert made.create(*renewers, owner=owner).error_code == 67
    assert not made.image.delegation_tokens


@pytest.mark.parametrize("secret", [None, ""])
def test_without_a_key_there_are_none(secret: str | None) -> None:
    made = Tokens(secret)
    assert made.create().error_code == 61
    assert made.renew(b"x")[0] == made.expire(b"x")[0] == 61


def test_an_old_metadata_version_cannot_keep_them(made: Tokens) -> None:
    made.apply([FeatureLevelRecord(name="metadata.version", feature_level=13)])
    assert made.create().error_code == made.renew(b"x")[0] == 35


def test_renewed_by_its_owner_or_a_renewer_and_never_beyond_its_longest_life(made: Tokens) -> None:
    secret = made.create("User:bob").hmac
    made.wall_ms += DAY // 2
    assert made.renew(secret, by="User:carol") == (63, 0)
    assert made.renew(secret, by="User:bob") == (0, NOW + 3 * DAY // 2)
    assert made.renew(secret, 1000) == (0, made.wall_ms + 1000)
    for _ in range(12):
        code, expiry_ms = made.renew(secret)
        assert code == 0
        made.wall_ms = min(made.wall_ms + DAY, expiry_ms)
    assert made.wall_ms == NOW + 7 * DAY
    made.wall_ms += 1
    assert made.renew(secret) == (66, 0)
    assert made.renew(secret[:-1] + b"?") == (62, 0)
    assert made.renew(b"") == (62, 0)


def test_ended_at_once_or_later_also_when_it_has_ended(made: Tokens) -> None:
    secret = made.create("User:bob").hmac
    assert made.expire(secret, by="User:carol") == (63, 0)
    assert made.expire(secret, 5000, by="User:bob") == (0, NOW + 5000)
    assert made.expire(secret, 1 << 62) == (0, NOW + 7 * DAY)
    made.expire(secret, 0)
    made.wall_ms += 1
    assert made.expire(secret, 0) == (66, 0)
    assert made.image.delegation_tokens
    assert made.expire(secret) == (0, made.wall_ms)
    assert not made.image.delegation_tokens
    assert made.expire(secret) == (62, 0)


def test_what_has_ended_is_swept_by_a_node_alone_too(made: Tokens) -> None:
    tasks = PeriodicTasks(made.state)
    made.state.image = made.image
    tasks.restart(0)
    tasks.run(0)  # the elections of who has just become active
    assert tasks.next_due_ms() is None
    short = made.create(life_ms=1000).token_id
    made.create()
    made.state.image = made.image
    assert tasks.next_due_ms() == 3_600_000
    made.state.wall_ms = NOW + 3_600_000
    assert tasks.run(3_599_999) is None
    work = tasks.run(3_600_000)
    assert work is not None
    assert [record.token_id for record in work.records] == [short]
    assert tasks.next_due_ms() == 7_200_000
