"""AlterUserScramCredentials: what is kept of a password, and what is refused."""

from __future__ import annotations

import base64
import hashlib

import pytest

from replication.controller.context import RECORDS_PER_OPERATION_MAX
from replication.controller.scram import MECHANISMS, alter_user_scram_credentials, scram_record
from tests.replication.controller_support import Cluster
from wire.errors import ErrorCode, KafkaError
from wire.messages.security import AlterUserScramCredentialsRequest

Deletion = AlterUserScramCredentialsRequest.Deletion
Upsertion = AlterUserScramCredentialsRequest.Upsertion


@pytest.fixture
def one() -> Cluster:
    made = Cluster()
    made.start_broker()
    return made


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, **given: bytes) -> Upsertion:
    salt, password = given.get("salt", b"salt"), given.get("password", b"salted")
    return Upsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=password
    )


def alter(cluster: Cluster, *changes: Upsertion | Deletion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[one for one in changes if isinstance(one, Deletion)],
        upsertions=[one for one in changes if isinstance(one, Upsertion)],
    )
    answer = cluster.run(alter_user_scram_credentials(cluster.image, request))
    return {row.user: row.error_code for row in answer.results}


def test_keys_are_those_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    kept = scram_record("user", MECHANISMS["SCRAM-SHA-256"], salted, salt, 4096)
    assert base64.b64encode(kept.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(kept.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_a_credential_is_kept_without_the_password_and_deleted(one: Cluster) -> None:
    assert alter(one, upsertion("alice"), upsertion("bob", 2, 16_384)) == {"alice": 0, "bob": 0}
    kept = one.image.scram_credentials["alice", 1]
    assert b"salted" not in (kept.stored_key, kept.server_key)
    assert (len(kept.stored_key), kept.iterations) == (32, 4096)
    assert len(one.image.scram_credentials["bob", 2].stored_key) == 64
    assert alter(one, Deletion(name="alice", mechanism=1)) == {"alice": 0}
    assert list(one.image.scram_credentials) == [("bob", 2)]


def test_more_users_than_an_operation_may_change_are_refused_before_any_is_looked_at(
    one: Cluster,
) -> None:
    """Each costs two HMACs on the thread that everybody waits for."""
    most = [upsertion(f"user-{number}") for number in range(RECORDS_PER_OPERATION_MAX)]
    with pytest.raises(KafkaError) as refused:
        alter(one, *most, Deletion(name="one-more", mechanism=1))
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert set(alter(one, *most).values()) == {0}


def test_users_fail_alone(one: Cluster) -> None:
    outcomes = alter(
        one,
        Deletion(name="nobody", mechanism=1),
        Deletion(name="odd", mechanism=3),
        upsertion(""),
        upsertion("weak", 1, 4095),
        upsertion("slow", 1, 16_385),
        upsertion("strange", 0),
        upsertion("empty", 1, 4096, password=b""),
        upsertion("twice", 1),
        upsertion("twice", 2),
        upsertion("fine", 2),
    )
    assert outcomes == {
        "nobody": 91, "odd": 33, "": 93, "weak": 93, "slow": 93, "strange": 33, "empty": 93,
        "twice": 92, "fine": 0,
    }  # fmt: skip
    assert list(one.image.scram_credentials) == [("fine", 2)]


def test_of_a_users_mistakes_the_first_is_told(one: Cluster) -> None:
    alter(one, upsertion("ada"), upsertion("eve"))
    outcomes = alter(
        one,
        Deletion(name="bob", mechanism=3), upsertion("bob"), upsertion("bob"),
        upsertion("cyd", 1, 4095), upsertion("cyd"),
        Deletion(name="ada", mechanism=1), upsertion("ada"), upsertion("ada", 1, 4095),
        Deletion(name="eve", mechanism=1), Deletion(name="eve", mechanism=1),
    )  # fmt: skip
    assert outcomes == {"bob": 33, "cyd": 93, "ada": 92, "eve": 92}
    assert sorted(one.image.scram_credentials) == [("ada", 1), ("eve", 1)]
