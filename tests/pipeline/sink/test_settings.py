"""What a person gives for Kafka's Java client, said to librdkafka."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from pipeline.sink.registers import SinkError
from pipeline.sink.settings import from_java, in_python, settings_of

SCRAM = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required\n"
    ' username="al\\"ice" password = "s=e;c";'
)


def test_security_of_the_java_client_is_translated_and_what_is_no_producer_s_is_left_out() -> None:
    found = from_java(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": SCRAM,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "pem",
            "ssl.keystore.location": "/me.pem",
            "ssl.key.password": "k",
            "ssl.endpoint.identification.algorithm": "",
            "compression.type": "zstd",
            "default.api.timeout.ms": "5",
            "max.poll.records": "1",
        }
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": 'al"ice',
        "sasl.password": "s=e;c",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.pem",
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "none",
        "compression.type": "zstd",
    }
    assert settings_of({**found, "bootstrap.servers": "b:1"}, "auto").timeout_ms == 300_000
    timed = from_java({"transaction.timeout.ms": "7"}) | {"bootstrap.servers": "b:1"}
    assert settings_of(timed, "auto").timeout_ms == 7
    assert from_java({}) == {}


@pytest.mark.parametrize(
    ("said", "there"),
    [
        ({"security.protocol": "sasl_ssl"}, {"security_protocol": "SASL_SSL"}),
        ({"sasl.password": "1234"}, {"sasl_plain_password": "1234"}),
        ({"sasl.username": "007"}, {"sasl_plain_username": "007"}),
        ({"ssl.key.password": "99", "client.id": "7"}, {"ssl_password": "99", "client_id": "7"}),
        ({"request.timeout.ms": "500"}, {"request_timeout_ms": 500}),
        ({"compression.type": "none"}, {"compression_type": None}),
        ({"compression.codec": "zstd"}, {"compression_type": "zstd"}),
    ],
)
def test_kafka_python_is_told_the_same_in_its_own_words(
    said: dict[str, str], there: dict[str, str | int | None]
) -> None:
    """It takes a protocol that it does not know for PLAINTEXT, and no number for a password."""
    made = settings_of({**said, "bootstrap.servers": "b:1"}, "kafka-python")
    assert in_python(made.properties) == there


def test_a_protocol_that_nobody_knows_is_no_plaintext() -> None:
    with pytest.raises(SinkError, match="is TLS; expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_"):
        settings_of({"security.protocol": "tls", "bootstrap.servers": "b:1"}, "auto")


@pytest.mark.parametrize(
    ("asked", "limit", "batches"),
    [
        ({}, 1_048_588, {}),
        ({}, 20_000, {"batch.size": "20000"}),
        ({"batch.size": "16384"}, 20_000, {"batch.size": "16384"}),
        ({"batch.size": "30000"}, 20_000, {"batch.size": "20000"}),
        ({}, 0, {"batch.size": "1"}),
        ({"batch.size": "large"}, 1, {"batch.size": "large"}),
    ],
)
def test_batches_are_no_larger_than_a_topic_takes(
    asked: dict[str, str], limit: int, batches: dict[str, str]
) -> None:
    made = settings_of({**asked, "bootstrap.servers": "b:1"}, "auto")
    assert made.for_topic(limit).properties == batches


def test_the_sink_takes_both_clients_names() -> None:
    java = {"sasl.jaas.config": SCRAM, "ssl.truststore.type": "PEM", "ssl.truststore.location": "c"}
    own = {"sasl.username": 'al"ice', "sasl.password": "s=e;c", "ssl.ca.location": "c"}
    bootstrap = {"bootstrap.servers": "b:1"}
    assert settings_of({**java, **bootstrap}, "auto") == settings_of({**own, **bootstrap}, "auto")
    store = {"ssl.keystore.location": "me.p12", "ssl.keystore.password": "p"}
    assert settings_of({**store, **bootstrap}, "auto").properties == store
    assert from_java({**store, "ssl.keystore.type": "PKCS12"}) == store


def test_what_cannot_be_said_is_told() -> None:
    with pytest.raises(SinkError, match=r"reads no JKS files; give ssl.truststore.location a PEM"):
        from_java({"ssl.truststore.location": "/ca.jks", "ssl.truststore.password": "x"})
    store = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}
    assert from_java({**store, "ssl.truststore.password": "x"}) == {"ssl.ca.location": "/ca.pem"}
    for timeout in ("0", "soon", "-1"):
        with pytest.raises(SinkError, match=r"transaction.timeout.ms is .*; expected milliseconds"):
            settings_of({"bootstrap.servers": "b:1", "transaction.timeout.ms": timeout}, "auto")
    with pytest.raises(SinkError, match=r"sasl.jaas.config has no username; only PLAIN, SCRAM and"):
        from_java({"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"})


OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
BEARER = {"sasl.mechanism": "OAUTHBEARER", "bootstrap.servers": "b:1"}
URL = "sasl.oauthbearer.token.endpoint.url"


def test_a_token_of_the_java_client_is_read_from_its_file_anew(tmp_path: Path) -> None:
    file = tmp_path / "my token.jwt"
    java = {
        **BEARER,
        "sasl.jaas.config": OAUTH + ";",
        "sasl.login.callback.handler.class": "org.apache.kafka.OAuthBearerLoginCallbackHandler",
        URL: file.as_uri(),
    }
    settings = settings_of(from_java(java) | {"bootstrap.servers": "b:1"}, "auto")
    assert settings == settings_of(java, "auto")
    assert settings.properties == {"sasl.mechanism": "OAUTHBEARER"}
    assert settings.token is not None
    with pytest.raises(SinkError, match=r"no token in .*my token\.jwt"):
        settings.token()
    for text in ("a.eyJleHAiOjE3fQ.b", "a.eyJleHAiOjE4fQ.b"):
        file.write_text(text + "\n")
        assert settings.token() == text
    assert settings.token.with_expiry() == (text, 18.0)
    for text in ("secret", "a.e30.b", "a.!!!.b", "a.bnVsbA.b"):
        file.write_text(text)
        with pytest.raises(SinkError, match="is none, or never ends") as told:
            settings.token.with_expiry()
        assert "secret" not in str(told.value)


def test_an_unsecured_token_says_what_the_jaas_entry_claims() -> None:
    options = ' unsecuredLoginStringClaim_sub="ca\\"rol" unsecuredLoginLifetimeSeconds=60;'
    token = settings_of({**BEARER, "sasl.jaas.config": OAUTH + options}, "auto").token
    assert token is not None
    text, ends = token.with_expiry()
    header, claims, signature = text.split(".")
    assert not signature
    assert base64.b64decode(header + "==") == b'{"alg": "none"}'
    said = json.loads(base64.b64decode(claims + "=="))
    assert (said["sub"], said["exp"] - said["iat"]) == ('ca"rol', 60)
    assert ends == said["exp"]
    assert abs(ends - 60 - time.time()) < 5


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"sasl.jaas.config": OAUTH + ";"}, "expected sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.jaas.config": OAUTH, URL: "https://id.example/t"}, r"expected file:///\.\.\."),
    ],
)
def test_tokens_that_nobody_here_can_get_are_told(more: dict[str, str], told: str) -> None:
    with pytest.raises(SinkError, match=told):
        settings_of({**BEARER, **more}, "auto")


def test_librdkafkas_own_words_for_tokens_are_its_own() -> None:
    own = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc", URL: "https://i/t"}
    settings = settings_of({**own, "bootstrap.servers": "b:1"}, "confluent")
    assert (settings.properties, settings.token) == (own, None)
