"""A secured broker in one line: certificates that clients accept, users, and what each is told."""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

import barnabas
from barnabas import authority
from barnabas.authority import Certificates, certificates
from barnabas.process import BrokerError, write_private
from barnabas.secured import LIBRARIES, OPERATIONS, Acl, Security
from server.config.kafka_config import KafkaConfig
from server.network.api import Resource
from server.network.listeners import Listener
from server.security.jaas import parse_jaas
from server.security.listener_security import secured_listeners
from server.security.login import plain_users
from server.security.peer_security import client_security

ENCRYPTED = (
    ec.generate_private_key(ec.SECP256R1())
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"theirs"))
    .decode()
)
"""A key that only its owner can use, or be asked for the password of."""
PASSWORD = 'al"i\\ce, s=é'
USERS = {"alice": PASSWORD, "bob": "b"}


def shake_hands(made: Certificates, host: str) -> None:
    """TLS 1.3 in memory; raises what a client would."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.broker)
    client = ssl.create_default_context(cafile=made.authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _round in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() == "TLSv1.3"


@pytest.mark.parametrize("tool", ["cryptography", "openssl"])
def test_clients_accept_the_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    if tool == "openssl":
        monkeypatch.setitem(sys.modules, "cryptography", None)
    directory = tmp_path / "is" / "made"
    made = certificates(directory, ["broker.example", "10.0.0.7", "0.0.0.0"])
    for host in ("localhost", "127.0.0.1", "::1", "broker.example", "10.0.0.7"):
        shake_hands(made, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, "elsewhere.example")
    assert made.broker.stat().st_mode & 0o777 == 0o600
    assert made.authority.stat().st_mode & 0o777 == 0o644
    assert directory.stat().st_mode & 0o777 == 0o700
    assert "PRIVATE" not in made.authority.read_text()
    before = made.broker.read_text()
    assert certificates(directory) == made
    assert made.broker.read_text() == before, "those that are there stay"


@pytest.mark.parametrize("tool", ["cryptography", "openssl"])
def test_an_authority_signs_certificates_for_a_year_and_a_broker_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """Of a client whose clock is behind, it is good too."""
    with monkeypatch.context() as patch:
        if tool == "openssl":
            patch.setitem(sys.modules, "cryptography", None)
        made = certificates(tmp_path)
    root, own = (x509.load_pem_x509_certificate(path.read_bytes()) for path in made)
    ends = [one.extensions.get_extension_for_class(x509.BasicConstraints) for one in (root, own)]
    assert [end.critical for end in ends] == [True, True]
    assert ends[0].value == x509.BasicConstraints(ca=True, path_length=0)
    assert ends[1].value == x509.BasicConstraints(ca=False, path_length=None)
    others = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
              "key_agreement", "encipher_only", "decipher_only")  # fmt: skip
    uses = root.extensions.get_extension_for_class(x509.KeyUsage)
    signs = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **dict.fromkeys(others, False))
    assert (uses.critical, uses.value) == (True, signs)
    behind = datetime.timedelta(hours=1 if tool == "cryptography" else 0)
    year = datetime.timedelta(days=365)
    now = datetime.datetime.now(datetime.UTC)
    for one in (root, own):
        assert one.not_valid_after_utc - one.not_valid_before_utc == year + behind
        assert one.not_valid_before_utc + behind <= now


@pytest.mark.parametrize("tool", ["cryptography", "openssl"])
def test_a_certificate_is_made_again_for_a_host_that_it_is_not_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """And stays what it was for; what somebody else is named is no reason."""
    if tool == "openssl":
        monkeypatch.setitem(sys.modules, "cryptography", None)
    made = certificates(tmp_path, ["Old.example", "fd00::1"], ["this-machine"])
    first = made.broker.read_text()
    certificates(tmp_path, ["old.EXAMPLE", "fd00:0::1", "0.0.0.0"], ["other-machine"])
    assert made.broker.read_text() == first
    assert certificates(tmp_path, ["10.0.0.7", "new.example"]) == made
    for host in ("localhost", "::1", "old.example", "fd00::1", "this-machine", "10.0.0.7",
                 "new.example"):  # fmt: skip
        shake_hands(made, host)
    second = made.broker.read_text()
    certificates(tmp_path, ["old.example"])
    assert made.broker.read_text() == second


def test_a_certificate_for_just_these_hosts_is_not_made_again(tmp_path: Path) -> None:
    made = certificates(tmp_path)
    first = made.broker.read_text()
    certificates(tmp_path, ["localhost", "127.0.0.1", "::1"])
    assert made.broker.read_text() == first


def test_a_certificate_that_is_used_up_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For whom it was, also where nobody says for whom: no client takes it any more."""
    with monkeypatch.context() as patch:
        patch.setattr(authority, "_DAYS", 0)
        made = certificates(tmp_path, ["old.example"])
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(made, "old.example")
    certificates(tmp_path)
    shake_hands(made, "old.example")
    shake_hands(made, "localhost")


def test_certificates_that_somebody_else_made_are_not_touched(tmp_path: Path) -> None:
    theirs = trustme.CA()
    own = theirs.issue_cert("old.example")
    (tmp_path / "ca.pem").write_bytes(theirs.cert_pem.bytes())
    (tmp_path / "broker.pem").write_bytes(own.private_key_and_cert_chain_pem.bytes())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    certificates(tmp_path, ["new.example"])
    for text in ("what is this", ENCRYPTED):
        (tmp_path / "broker.pem").write_text(text)
        before[tmp_path / "broker.pem"] = text.encode()
        certificates(tmp_path, ["new.example"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_that_could_not_be_written_whole_is_as_it_was(tmp_path: Path) -> None:
    """Half of a broker's properties would be taken for the whole at the next start."""
    path = tmp_path / "client.properties"
    write_private(path, "whole")
    with pytest.raises(UnicodeEncodeError):  # as a full disk: amid the writing
        write_private(path, "half \xe9")
    assert path.read_text() == "whole"


def test_certificates_that_could_not_be_written_whole_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first time, and where those of before are for another host: what of them is left would
    be taken for somebody else's."""
    for host in ("127.0.0.1", "new.example"):
        with monkeypatch.context() as patch:
            patch.setattr(authority, "_by_cryptography", lambda _names: ("half \xe9", "broker"))
            with pytest.raises(UnicodeEncodeError):
                certificates(tmp_path, [host])
        shake_hands(certificates(tmp_path, [host]), host)


@pytest.mark.parametrize(
    ("says", "why"),
    [("echo no room >&2; echo disk full >&2", "disk full"), (":", "it said nothing")],
)
def test_of_a_tool_that_fails_its_last_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, why: str
) -> None:
    program = tmp_path / "openssl"
    program.write_text(f"#!/bin/sh\n{says}; exit 1\n")
    program.chmod(0o700)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerError, match=f"^openssl req failed: {why}$"):
        certificates(tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


def test_without_either_tool_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BrokerError, match=r"barnabas\[tls\].*openssl: neither is there"):
        certificates(tmp_path)


def test_a_listener_takes_the_properties_and_its_users(tmp_path: Path) -> None:
    security = Security(USERS, None)
    security.prepare(tmp_path)
    told = security.properties("SASL_SSL", ["CONTROLLER"])
    secured_listeners(
        KafkaConfig(told),
        [Listener(name, "", 1, "SASL_SSL") for name in ("SASL_SSL", "CONTROLLER")],
        lambda _mechanism, _user: None,
        lambda _mechanism, _token_id: None,
    )
    users = {
        name: plain_users(parse_jaas(told[f"listener.name.{name}.plain.sasl.jaas.config"]))
        for name in ("sasl_ssl", "controller")
    }
    assert users["sasl_ssl"].items() >= USERS.items()
    assert users["sasl_ssl"].keys() - USERS == users["controller"].keys(), "none but the nodes' own"
    assert "authorizer.class.name" not in told


def test_rules_bring_the_authorizer_and_super_users_stay() -> None:
    broker = barnabas.Broker(
        security="sasl_ssl", users=USERS, acls=[], config={"super.users": "User:bob"}
    )
    assert PASSWORD not in repr(broker)
    security = Security(USERS, [])
    assert PASSWORD not in repr(security)
    security._made = Certificates(Path("ca.pem"), Path("broker.pem"))
    told = security.properties("SASL_SSL", config={"super.users": "User:bob"})
    assert told["authorizer.class.name"].endswith(".StandardAuthorizer")
    assert told["super.users"] == "User:barnabas-node;User:bob"


def test_no_secret_is_among_the_flags_and_no_password_among_the_lines() -> None:
    security = Security(USERS, [Acl("alice", "read", topic="t")])
    words, text = security.format()
    assert words[:3] == ["--add-scram", "-", "--add-acl"]
    assert not any(PASSWORD in word for word in words)
    lines = text.splitlines()
    assert len(lines) == 4
    assert not any(PASSWORD in line for line in lines)
    salts = [base64.b64decode(line.partition(",salt=")[2].partition(",")[0]) for line in lines]
    assert all(salt.isalnum() for salt in salts)  # as of a user who is not there


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_is_told_in_its_own_words(
    tmp_path: Path, library: str, mechanism: str
) -> None:
    security = Security(USERS, None)
    security.prepare(tmp_path)
    given = security.client_config("127.0.0.1:9", "alice", library, mechanism)
    if library in ("java", "spark"):
        prefix = "kafka." if library == "spark" else ""
        assert all(key.startswith(prefix) for key in given)
        told = client_security({key.removeprefix(prefix): given[key] for key in given})
        assert told is not None
        assert (told.mechanism, told.login) == (mechanism, ("alice", PASSWORD))
        assert told.ssl_context is not None
        assert len(told.ssl_context.get_ca_certs()) == 1
    else:
        if library == "aiokafka":  # which takes no file
            assert len(given["ssl_context"].get_ca_certs()) == 1
        else:
            name = "ssl.ca.location" if library == "confluent-kafka" else "ssl_cafile"
            assert given[name] == str(tmp_path / "ca.pem")
        assert PASSWORD in given.values()
        assert mechanism in given.values()
    assert "127.0.0.1:9" in given.values()


def test_mistakes_are_told_without_the_passwords(tmp_path: Path) -> None:
    security = Security(USERS, None)
    with pytest.raises(BrokerError, match="before the start"):
        security.client_config("b", "alice", "java", "PLAIN")
    security.prepare(tmp_path)
    for wrong in (
        ("eve", "java", "PLAIN"),
        ("alice", "rust", "PLAIN"),
        ("alice", "java", "GSSAPI"),
    ):
        with pytest.raises(ValueError, match="expected one of") as caught:
            security.client_config("b", *wrong)
        assert PASSWORD not in str(caught.value)
    for users in ({"a,b": "x"}, {"barnabas-node": "x"}, {"a": ""}, {"a": "x\0y"}):
        with pytest.raises(ValueError, match="expected a "):
            barnabas.Broker(security="sasl_ssl", users=users)


@pytest.mark.parametrize("kind", [barnabas.Broker, barnabas.Cluster])
def test_half_a_security_is_refused(kind: type[barnabas.Broker]) -> None:
    with pytest.raises(ValueError, match="mean nothing without security"):
        kind(users=USERS)
    with pytest.raises(ValueError, match="mean nothing without security"):
        kind(acls=[])
    with pytest.raises(ValueError, match="expected 'sasl_ssl'"):
        kind(security="none", users=USERS)
    with pytest.raises(ValueError, match="needs users"):
        kind(security="sasl_ssl")
    for key in ("authorizer.class.name", "listener.name.sasl_ssl.plain.sasl.jaas.config"):
        with pytest.raises(ValueError, match="says this already"):
            kind(security="sasl_ssl", users=USERS, config={key: ""})
    with pytest.raises(ValueError, match="is not secured"):
        kind().client_config("alice", library="java")


def test_a_secured_broker_has_one_directory() -> None:
    with pytest.raises(ValueError, match="one directory, data_dir"):
        barnabas.Broker(security="sasl_ssl", users=USERS, config={"log.dirs": "a,b"})


def test_a_rule_is_about_one_resource() -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        Acl("alice", "read")
    with pytest.raises(ValueError, match="exactly one of"):
        Acl("alice", "read", topic="a", group="b")
    rule = json.loads(Acl("alice", "read", group="g", prefixed=True, allow=False).json())
    assert rule == {
        "principal": "User:alice", "host": "*", "operation": "READ", "permission_type": "DENY",
        "resource_type": "GROUP", "resource_name": "g", "pattern_type": "PREFIXED",
    }  # fmt: skip


def test_users_and_rules_of_another_kind_are_told_at_once() -> None:
    wrong: Any
    for wrong in (["alice"], "alice"):
        with pytest.raises(ValueError, match="security needs users, such as"):
            barnabas.Broker(security="sasl_ssl", users=wrong)
    for wrong in (["alice"], Acl("alice", "read", topic="t")):
        with pytest.raises(ValueError, match=r"expected a list of barnabas\.Acl"):
            barnabas.Broker(security="sasl_ssl", users=USERS, acls=wrong)
    wrong = True
    with pytest.raises(ValueError, match="security True: expected 'sasl_ssl'"):
        barnabas.Broker(security=wrong, users=USERS)
    for principal, topic in (("", "t"), ("alice", "")):
        with pytest.raises(ValueError, match="expected a principal and a name"):
            Acl(principal, "read", topic=topic)


def test_a_rule_that_means_nothing_is_told_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="operation 'reed': on a topic expected one of all, read,"):
        Acl("alice", "reed", topic="t")
    with pytest.raises(ValueError, match="operation 'write': on a group expected"):
        Acl("alice", "write", group="g")
    Acl("alice", "All", cluster=True)
    for kind, operations in OPERATIONS.items():
        assert set(operations) == {one.name for one in Resource[kind].operations}


def test_a_directory_is_of_the_users_it_was_made_with(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    Security(USERS, []).same_as_in(path)
    assert path.stat().st_mode & 0o777 == 0o600
    Security(USERS, []).same_as_in(path)
    for other in (Security({"alice": "other"}, []), Security(USERS, None)):
        with pytest.raises(BrokerError, match="other users or acls"):
            other.same_as_in(path)
