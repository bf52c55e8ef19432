from __future__ import annotations

import argparse
import contextlib
import logging
import socket
import ssl
import threading
from typing import Any

import pytest
from kafka import errors

from barnabas.authority import Certificates, certificates
from barnabas.client_commands.connection import (
    _secured,
    admin_client,
    count,
    dial_error,
    finish,
    key_values,
    listening,
    plain,
    refuse,
    settings,
    told,
    utf8,
)
from barnabas.secured import java_properties
from server.commands.main import addresses
from server.commands.outcomes import UserError
from server.security.peer_security import client_security
from tests.server.peers.played_peer import PATIENCE_S, PlayedConnection
from wire.messages.cluster import ApiVersionsResponse

TLS = {"security.protocol": "SSL", "ssl.truststore.type": "PEM"}
TOKEN = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' unsecuredLoginStringClaim_sub="alice";'
)


def test_the_addresses_of_a_bootstrap_list() -> None:
    assert addresses("a:1, [::1]:2,") == [("a", 1), ("::1", 2)]
    for wrong in ("", "a", "a:b", "a:99999"):
        with pytest.raises(UserError, match="--bootstrap"):
            addresses(wrong)


def test_the_first_address_that_listens_is_found_and_none_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening(f"127.0.0.1:1,127.0.0.1:{port}", 1.0) == [f"127.0.0.1:{port}"]
    with pytest.raises(UserError, match=r"127.0.0.1:1: Connection refused; .*`barnabas start`"):
        listening("127.0.0.1:1", 1.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("made"))


class TlsBroker:
    """Takes one connection: answers a request on it over TLS, or hangs up at once."""

    def __init__(self, made: Certificates, is_refusing: bool) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(made.broker)
        self._is_refusing = is_refusing
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen: list[object] = []
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        with self._listener, self._listener.accept()[0] as sock:
            sock.settimeout(PATIENCE_S)
            if self._is_refusing:
                return
            connection = PlayedConnection(self._context.wrap_socket(sock, server_side=True))
            with contextlib.closing(connection):
                header, _frame = connection.request()
                self.seen.append((header.client_id, header.api_version))
                connection.answer(header, ApiVersionsResponse(error_code=0, api_keys=[]))
                self.seen.append(connection.is_closed_by_the_client())

    def ended(self) -> list[object]:
        self._thread.join()
        return self.seen


def test_an_address_listens_once_it_has_answered_as_the_client_config_says(
    made: Certificates,
) -> None:
    security = client_security(TLS | {"ssl.truststore.location": str(made.authority)})
    broker = TlsBroker(made, is_refusing=False)
    wanted = [broker.address, "[::1]:1"]
    assert listening(",".join(wanted), PATIENCE_S, security) == wanted
    assert broker.ended() == [("barnabas-cli", 0), True]
    broker = TlsBroker(made, is_refusing=True)
    with pytest.raises(UserError, match=r"no broker at .*; does the file of --client-config fit"):
        listening(f"{broker.address},127.0.0.1:1", PATIENCE_S, security)
    assert broker.ended() == []


def test_where_nobody_listens_the_client_config_is_not_asked_about(made: Certificates) -> None:
    security = client_security(TLS | {"ssl.truststore.location": str(made.authority)})
    with pytest.raises(UserError, match=r"127.0.0.1:1: Connection refused; is a broker running"):
        listening("127.0.0.1:1", 1.0, security)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (socket.gaierror(-2, "Name or service not known"), "the name does not resolve"),
        (UnicodeError("label too long"), "the name does not resolve"),
        (TimeoutError(110, "Connection timed out"), "no answer in time"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (ConnectionError("the peer closed the connection"), "the peer closed the connection"),
    ],
)
def test_why_an_address_could_not_be_dialled(error: Exception, line: str) -> None:
    assert dial_error(error) == line


def parsed(*words: str) -> argparse.Namespace:
    command = argparse.ArgumentParser()
    finish(command, "what it runs")
    return command.parse_args(words)


def test_a_client_begins_where_somebody_listens_and_waits_as_long_as_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logging.root.manager.loggerDict", {})  # nobody has spoken to it before
    assert (parsed().bootstrap, parsed().timeout) == ("127.0.0.1:9092", 10.0)
    assert parsed("--json").json
    assert parsed().run == "what it runs"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = settings(parsed("--bootstrap", f"127.0.0.1:1,{address}", "--timeout", "2.5"))
    assert found.pop("reconnect_backoff_max_ms") <= 1000, "it sleeps while a broker comes back"
    assert found == {
        "bootstrap_servers": [address],
        "client_id": "barnabas-cli",
        "bootstrap_timeout_ms": 2500,
    }
    assert not logging.getLogger("kafka.client").isEnabledFor(logging.ERROR), "two lines for one"


def test_a_name_that_is_no_utf_8_is_refused_before_anybody_is_asked() -> None:
    """kafka-python would wait for ever for the answer to what it cannot write."""
    bytes_of_records = {"key": "\udcff", "filter": "\udcff", "header": ["a=\udcff"]}
    nobody = {"bootstrap": "127.0.0.1:1", "timeout": 1.0, "client_config": None}
    for name in ({"topic": "\udcff"}, {"topics": ["t", "\udcff"]}, {"group": "\udcff"}):
        with pytest.raises(UserError, match=r"'\\udcff': expected a name in UTF-8") as error:
            settings(argparse.Namespace(**nobody, **bytes_of_records, **name))
        assert error.value.exit_code == 2
    with pytest.raises(UserError, match=r"no broker at 127\.0\.0\.1:1"):
        settings(argparse.Namespace(**nobody, **bytes_of_records, topic="t"))
    assert utf8("\u00e9") == "\u00e9"


def test_a_node_that_refuses_is_not_told_as_one_that_was_waited_for() -> None:
    """Of a node that died, and that the others still name; kafka-python tries any of them."""
    arguments = argparse.Namespace(bootstrap="a:1", timeout=6.0)
    reached = r"a node of .* cannot be reached \(.*REFUSED\); .*doctor"
    with pytest.raises(UserError, match=reached), told(arguments):
        raise errors.KafkaConnectionError("111 ECONNREFUSED")
    waited = "no answer from the cluster at a:1 within 6 s"
    with pytest.raises(UserError, match=waited), told(arguments):
        raise errors.KafkaTimeoutError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.PolicyViolationError(), "POLICY_VIOLATION: Request parameters do not satisfy the"),
        (errors.UnsupportedCodecError("no lz4.\n"), "the cluster at a:1 cannot be used: .*no lz4$"),
    ],
)
def test_what_the_client_library_raises_is_one_line(error: Exception, line: str) -> None:
    with pytest.raises(UserError, match=line), told(parsed("--bootstrap", "a:1")):
        raise error


def test_an_admin_client_waits_as_long_as_was_said_and_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients: list[Any] = []

    class Client:
        def __init__(self, **config: object) -> None:
            self.config, self.is_closed = config, False
            clients.append(self)

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr("kafka.KafkaAdminClient", Client)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        arguments = parsed("--bootstrap", address, "--timeout", "2.5")
        with admin_client(arguments) as client:
            assert client is clients[0]
            assert client.config["request_timeout_ms"] == 2500
            assert client.config["bootstrap_servers"] == [address]
            assert not client.is_closed
        with pytest.raises(UserError, match="no answer from"), admin_client(arguments):
            raise errors.KafkaTimeoutError
    assert [client.is_closed for client in clients] == [True, True]


def test_the_client_library_is_told_what_the_file_says(made: Certificates) -> None:
    authority = {"ssl.truststore.location": str(made.authority)}
    assert _secured(None) == {}

    tls = client_security(TLS | authority)
    assert tls is not None
    assert _secured(tls) == {
        "security_protocol": "SSL",
        "ssl_context": tls.ssl_context,
        "ssl_check_hostname": True,
    }
    any_host = TLS | authority | {"ssl.endpoint.identification.algorithm": ""}
    assert _secured(client_security(any_host))["ssl_check_hostname"] is False

    login = java_properties("alice", "alice-secret", str(made.authority), "SCRAM-SHA-512")
    login["security.protocol"] = "SASL_PLAINTEXT"
    assert _secured(client_security(login)) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "alice-secret",
    }

    login |= {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": TOKEN}
    found = _secured(client_security(login))
    assert found.pop("sasl_oauth_token_provider").token().count(".") == 2, "no token"
    assert found == {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


def test_an_error_code_is_told_by_its_name_and_reason_and_the_next_step() -> None:
    refuse(0, "all is well", "topic 't'")
    exists = "Topic with this name already exists"
    for detail, said in ((None, exists), ("", exists), ("it is\n there.", "it is there")):
        for next_step, end in (("", ""), ("take another", "; take another")):
            with pytest.raises(UserError) as error:
                refuse(36, detail, "topic 't'", next_step)
            assert str(error.value) == f"topic 't': TOPIC_ALREADY_EXISTS: {said}{end}"
    assert plain(None) == ""


def test_pairs() -> None:
    pairs = {"a": "1", "b": "x=y", "c": "", "d": " e"}
    assert key_values(["a=1", "b=x=y", "c=", " d = e"], "--config") == pairs
    for wrong in ("a", "=b", " =b"):
        with pytest.raises(UserError, match=f"--config '{wrong}': expected KEY=VALUE") as error:
            key_values([wrong], "--config")
        assert error.value.exit_code == 2


def test_what_is_counted_is_a_whole_number_that_the_protocol_can_hold() -> None:
    assert [count("1"), count(str(2**31 - 1))] == [1, 2**31 - 1]
    for wrong in ("0", "-1", str(2**31), "1.5", "\u0663", "\u00b2", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number, at least 1"):
            count(wrong)
