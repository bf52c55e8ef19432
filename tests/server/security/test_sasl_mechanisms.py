"""PLAIN and SCRAM, both sides: the RFCs' examples, and what an attacker would try."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Callable

import pytest

from replication.controller.scram import MECHANISMS, scram_record
from server.security.sasl.mechanisms import AuthenticationFailed, PlainServer, SaslServer
from server.security.sasl.oauthbearer import OAuthBearerServer
from server.security.sasl.scram import (
    FIRST_MAX,
    PlainClient,
    ScramClient,
    ScramCredential,
    ScramServer,
    salted_password,
)

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
USERS = {"alice": "alice-secret", "ünï": "pä"}


def plain() -> PlainServer:
    return PlainServer(USERS, "a random text")


@pytest.mark.parametrize(
    ("token", "user"),
    [
        ("\0alice\0alice-secret", "alice"),
        ("alice\0alice\0alice-secret", "alice"),
        ("\0ünï\0pä", "ünï"),
    ],
)
def test_plain_knows_a_user_by_the_password(token: str, user: str) -> None:
    server = plain()
    assert server.evaluate(token.encode()) == b""
    assert (server.is_complete, server.principal) == (True, user)


WRONG = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (b"\0alice\0wrong", WRONG),
        (b"\0nobody\0alice-secret", WRONG),
        (b"\0nobody\0a random text", WRONG),
        (b"bob\0alice\0wrong", WRONG),
        (b"bob\0alice\0alice-secret", "different from username"),
        (b"\0\0x", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"alice", "expected 3 tokens"),
        (b"\0alice\0a\0b", "expected 3 tokens"),
        (b"", "expected 3 tokens"),
        (b"\0\xff\0x", "not UTF-8"),
    ],
)
def test_plain_refuses(token: bytes, said: str) -> None:
    server = plain()
    with pytest.raises(AuthenticationFailed, match=said):
        server.evaluate(token)
    assert not server.is_complete


def credential(mechanism: str, password: str, salt: bytes = b"salt" * 4) -> ScramCredential:
    salted = salted_password(mechanism, password, salt, 4096)
    record = scram_record("alice", MECHANISMS[mechanism], salted, salt, 4096)
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)


def scram(mechanism: str = SHA_256, nonce: str = "ours") -> ScramServer:
    known = {"alice": credential(mechanism, "alice-secret")}
    return ScramServer(mechanism, known.get, b"secret of the node", nonce)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    kept = credential(SHA_256, "pencil", salt)
    server = ScramServer(SHA_256, {"user": kept}.get, b"", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = server.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (server.is_complete, server.principal) == (True, "user")


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_our_client_and_our_server_know_each_other(mechanism: str) -> None:
    server = scram(mechanism)
    client = ScramClient(mechanism, "alice", "alice-secret", "theirs")
    token = client.evaluate(None)
    while token is not None:
        token = client.evaluate(server.evaluate(token))
    assert server.is_complete


def finish(change: Callable[[str], str], server: ScramServer | None = None) -> ScramServer:
    """Log in rightly, but for `change` of the final message."""
    server = server or scram()
    client = ScramClient(SHA_256, "alice", "alice-secret", "theirs")
    first = client.evaluate(None)
    assert first is not None
    final = client.evaluate(server.evaluate(first))
    assert final is not None
    server.evaluate(change(final.decode()).encode())
    return server


def test_an_unchanged_final_message_is_taken() -> None:
    assert finish(lambda text: text).is_complete


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("r=theirsours", "r=theirs"),  # CVE-2024-56128
        lambda text: text.replace("r=theirsours", "r=theirsoursX"),
        lambda text: text.replace("r=theirsours", "r=ours"),
        lambda text: text.replace("c=biws", "c=eSws"),  # y,, : a downgrade
        lambda text: text.replace("c=biws", "c="),
        lambda text: text.partition(",p=")[0] + ",p=",
        lambda text: text.partition(",p=")[0] + ",p=AAAA",
        lambda text: text.partition(",p=")[0],
        lambda text: text + ",x=y",
        lambda text: "",
    ],
)
def test_a_changed_final_message_is_refused_without_a_reason(change: Callable[[str], str]) -> None:
    server = scram()
    with pytest.raises(AuthenticationFailed) as failed:
        finish(change, server)
    assert str(failed.value) == ""
    assert not server.is_complete


def test_a_recorded_login_cannot_be_replayed() -> None:
    spoken: list[str] = []
    finish(lambda text: spoken.append(text) or text)  # type: ignore[func-returns-value]
    other = scram(nonce="another")
    other.evaluate(b"n,,n=alice,r=theirs")
    with pytest.raises(AuthenticationFailed):
        other.evaluate(spoken[0].encode())


@pytest.mark.parametrize(
    "first",
    [
        b"y,,n=alice,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=bob,n=alice,r=x",
        b"n,,m=must,n=alice,r=x",
        b"n,,n=,r=x",
        b"n,,n=alice,r=",
        b"n,,n=al=20ice,r=x",
        b"n,,n=alice,r=a b",
        b"n,,n=al\x00ice,r=x",
        "n,,n=älice,r=x".encode(),
        b"\xff\xfe",
        b"",
        b"n" * 500_000,
    ],
)
def test_what_is_no_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        scram().evaluate(first)


@pytest.mark.parametrize(
    "first",
    [
        b"n,,n=" + b"x" * 524_000,
        b"n,a=" + b"x" * 524_000,
        b"n,a=" + b"=2C" * 174_000,
        b"n,,n=u,r=x" + b",a=b" * 131_000 + b",",
    ],
    ids=["name", "authzid", "escapes", "extensions"],
)
@pytest.mark.parametrize(
    "new_server", [scram, lambda: OAuthBearerServer(lambda _token: pytest.fail("a token"), print)]
)
def test_half_a_megabyte_of_a_stranger_is_refused_without_more(
    new_server: Callable[[], SaslServer], first: bytes
) -> None:
    server = new_server()
    tracemalloc.start()
    try:
        with pytest.raises(AuthenticationFailed):
            server.evaluate(first)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(first)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "filled", [b"n,,n=alice,r=%s", b"n,,n=%s,r=x", b"n,,n=alice,r=x,a=%s", b"n,a=%s,n=alice,r=x"]
)
def test_a_first_message_is_short_for_it_is_kept_until_the_next(filled: bytes) -> None:
    """A nonce of half a megabyte was kept thrice, of each stranger, while he said no more."""
    if b",a=" not in filled[:4]:
        room = FIRST_MAX - len(filled % b"")
        assert scram().evaluate(filled % (b"x" * room)).startswith(b"r=x")
    with pytest.raises(AuthenticationFailed):
        scram().evaluate(filled % (b"x" * (FIRST_MAX + 1)))


def test_an_authzid_that_is_the_user_and_extensions_are_taken() -> None:
    assert scram().evaluate(b"n,a=alice,n=alice,r=x,a=1,b=2").startswith(b"r=xours,")


def test_a_user_that_nobody_knows_fails_where_a_wrong_password_does() -> None:
    one, two = (scram().evaluate(b"n,,n=nobody,r=x") for _ in range(2))
    assert one == two  # the same salt each time, as a user that is there has
    assert b",i=4096" in one
    assert scram().evaluate(b"n,,n=another,r=x") != one
    for user in ("nobody", "alice"):
        server = scram()
        client = ScramClient(SHA_256, user, "wrong", "theirs")
        first = client.evaluate(None)
        assert first is not None
        final = client.evaluate(server.evaluate(first))
        assert final is not None
        with pytest.raises(AuthenticationFailed) as failed:
            server.evaluate(final)
        assert str(failed.value) == ""


def test_the_salt_of_nobody_looks_like_those_that_kafkas_tools_make() -> None:
    """130 random bits in base 36: 25 or 26 of these characters, seldom fewer."""
    lengths = set()
    for number in range(300):
        answer = scram().evaluate(b"n,,n=nobody%d,r=x" % number).decode()
        salt = base64.b64decode(answer.partition(",s=")[2].partition(",i=")[0])
        assert salt.isalnum()
        assert salt == salt.lower()
        lengths.add(len(salt))
    assert {25, 26} <= lengths <= {22, 23, 24, 25, 26}


def test_a_client_does_not_believe_a_server_that_does_not_know_the_password() -> None:
    for lie in (b"v=AAAA", b"e=other-error", b""):
        client, server = ScramClient(SHA_256, "alice", "alice-secret", "theirs"), scram()
        first = client.evaluate(None)
        assert first is not None
        client.evaluate(server.evaluate(first))
        with pytest.raises(AuthenticationFailed):
            client.evaluate(lie)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=theirs,s=c2FsdA==,i=4096",
        b"r=otherXours,s=c2FsdA==,i=4096",
        b"r=theirsours,s=c2FsdA==,i=1",
        b"r=theirsours,s=c2FsdA==,i=4000000",
        b"e=x",
    ],
)
def test_a_client_refuses_weak_or_foreign_challenges(challenge: bytes) -> None:
    client = ScramClient(SHA_256, "alice", "alice-secret", "theirs")
    client.evaluate(None)
    with pytest.raises(AuthenticationFailed):
        client.evaluate(challenge)


def test_plains_client_says_it_once() -> None:
    client = PlainClient("a", "b")
    assert client.evaluate(None) == b"\0a\0b"
    assert client.evaluate(b"") is None


def test_credentials_are_not_shown() -> None:
    kept = credential(SHA_256, "x")
    assert repr(kept) == "ScramCredential(iterations=4096)"
