"""What a person gives for Kafka's Java client, said to librdkafka."""

from __future__ import annotations

import pytest

from pipeline.sink.clients import from_java, settings_of
from pipeline.sink.registers import SinkError

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
    with pytest.raises(SinkError, match=r"sasl.jaas.config has no username; only PLAIN and SCRAM"):
        from_java({"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"})
