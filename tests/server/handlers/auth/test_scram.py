"""Users' SCRAM credentials: who answers what."""

from __future__ import annotations

import dataclasses

import pytest

from replication.controller.scram import MECHANISMS, scram_record
from tests.server.handler_support import Asked, FakeBroker, image_of
from wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
)


@pytest.fixture
def broker() -> FakeBroker:
    kept = {
        (name, mechanism.type): scram_record(name, mechanism, b"salted", b"salt", 4096 + number)
        for name in ("alice", "bob")
        for number, mechanism in enumerate(MECHANISMS.values())
    }
    return FakeBroker(dataclasses.replace(image_of(), scram_credentials=kept))


def test_all_users_are_described_without_their_keys(broker: FakeBroker) -> None:
    for users in (None, []):
        answer = Asked(broker).ask(DescribeUserScramCredentialsRequest(users=users), 0)
        assert answer.error_code == 0
        assert [row.user for row in answer.results] == ["alice", "bob"]
        infos = answer.results[0].credential_infos
        assert [(info.mechanism, info.iterations) for info in infos] == [(1, 4096), (2, 4097)]


def test_users_fail_alone(broker: FakeBroker) -> None:
    user = DescribeUserScramCredentialsRequest.User
    names = ("bob", "nobody", "alice", "bob")
    request = DescribeUserScramCredentialsRequest(users=[user(name=name) for name in names])
    answer = Asked(broker).ask(request, 0)
    told = {row.user: (row.error_code, len(row.credential_infos)) for row in answer.results}
    assert told == {"bob": (92, 0), "nobody": (91, 0), "alice": (0, 2)}


def test_the_controller_is_asked_for_changes(broker: FakeBroker) -> None:
    upsertion = AlterUserScramCredentialsRequest.Upsertion(
        name="carol", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
    )
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
    done = AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.User(user="carol", error_code=0, error_message=None)
        ]
    )
    asked = Asked(broker)
    asked.send(request, 0)
    submitted, on_complete, _context = broker.controller.submitted.popleft()
    assert submitted.upsertions[0].name == "carol"
    on_complete(done)
    assert asked.received(request, 0).results[0].error_code == 0
