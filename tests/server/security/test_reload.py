"""New stores of a listener where nodes speak to each other (TLS-22, Kafka's SslEngineValidator)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server.config.kafka_config import KafkaConfig
from server.network.listeners import Listener
from server.security.listener_security import SecuredListener
from testkit.wait import eventually
from tests.server.security.security_support import Authority, chain, nobody, pkcs8


def among_nodes(keys: dict[str, str]) -> SecuredListener:
    listener = Listener("EXT", "127.0.0.1", 0, "SSL")
    return SecuredListener(KafkaConfig(keys), listener, nobody, is_among_nodes=True)


def authority_in(directory: Path) -> Authority:
    directory.mkdir()
    return Authority(directory)


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_what_other_nodes_would_not_believe_is_refused_until_they_would(
    tmp_path: Path, client_auth: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = authority_in(tmp_path / "old"), authority_in(tmp_path / "new")
    first, second = old.key_store("s.pem"), new.key_store("s.pem")
    old_trust, new_trust = old.file.read_bytes(), new.file.read_bytes()
    keys = {**old.tls_keys(first), "ssl.client.auth": client_auth}
    listener = among_nodes(keys)

    def refused(certificate: bytes, trust: bytes) -> bool:
        first.write_bytes(certificate)
        old.file.write_bytes(trust)
        is_refused = not listener.reload()
        assert listener.is_refused is is_refused
        assert ("would not believe each other" in caplog.text) is is_refused
        assert ("old certificate stays" in caplog.text) is is_refused
        caplog.clear()
        return is_refused

    mine, next_one = first.read_bytes(), second.read_bytes()
    assert refused(next_one, old_trust), "nobody trusts it yet"
    assert refused(next_one, new_trust), "nor this node the others"
    assert refused(mine, new_trust)
    assert not refused(mine, old_trust + new_trust)
    assert not refused(next_one, old_trust + new_trust)
    assert not refused(next_one, new_trust)
    assert refused(mine, old_trust), "there is no way back in one step"


def test_nodes_that_never_believed_each_other_are_warned_of_and_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = authority_in(tmp_path / "one"), authority_in(tmp_path / "other")
    path = one.key_store("s.pem")
    listener = among_nodes({**one.tls_keys(path), "ssl.truststore.location": str(other.file)})
    assert "nodes that have the same cannot speak to each other" in caplog.text
    one.key_store("s.pem")
    assert listener.reload()
    other.file.write_bytes(one.file.read_bytes())
    assert listener.reload()
    other.file.write_bytes(authority_in(tmp_path / "third").file.read_bytes())
    assert not listener.reload(), "from when they do, they must"


def test_a_certificate_that_has_expired_can_be_renewed(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "ca")
    path, fresh = tmp_path / "s.pem", authority.key_store("fresh.pem").read_bytes()
    ends = datetime.now(UTC) + timedelta(seconds=1.5)
    cert = authority.ca.issue_cert("localhost", "127.0.0.1", not_after=ends)
    path.write_bytes(pkcs8(cert) + chain(cert))
    listener = among_nodes({**authority.tls_keys(path), "ssl.allow.dn.changes": "true"})
    eventually(lambda: datetime.now(UTC) > ends + timedelta(seconds=1))
    path.write_bytes(fresh)
    assert listener.reload()
