"""What the sink's client libraries are told, from options that begin with `kafka.`.

Settings have librdkafka's names for both, which are Kafka's for most; kafka-python's differ and are
translated. Security may have the names of Kafka's Java client, as Spark's own source wants them.
What the sink needs cannot be set: transactional.id, acks, idempotence.

Travels to executors by value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .registers import SinkError
from .tokens import JAAS, OAUTHBEARER, Token, take_token

TIMEOUT_MS = "transaction.timeout.ms"
_PROTOCOL, _PROTOCOLS = "security.protocol", ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_BATCH_SIZE, _BATCH_BYTES = "batch.size", "1000000"
"""And librdkafka's default. One row that is larger is a batch of its own."""
_OURS = (
    "transactional.id", "enable.idempotence", "acks", "group.id", "isolation.level",
    "enable.auto.commit", "partitioner",
)  # fmt: skip
_PYTHON_NAMES = {
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.mechanisms": "sasl_mechanism",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "compression.type": "compression_type",
    "compression.codec": "compression_type",
}
_JAVA_KEPT = (
    "security.protocol", "sasl.", "ssl.", "compression.", "client.id", "linger.ms", "batch.size",
    TIMEOUT_MS,
)  # fmt: skip
_JAVA_STORES: Mapping[str, tuple[str, ...]] = {
    "truststore": ("ssl.ca.location",),
    "keystore": ("ssl.certificate.location", "ssl.key.location"),
}


class Settings(NamedTuple):
    """What both clients are made of; travels to each task."""

    bootstrap: str
    properties: dict[str, str]
    """librdkafka's names, without `kafka.`."""
    timeout_ms: int
    client: str
    """`auto`, `confluent` or `kafka-python`."""
    token: Token | None = None
    """Of OAUTHBEARER, by Kafka's Java client's words."""

    def for_topic(self, max_message_bytes: int) -> Settings:
        """With batches that a topic with this max.message.bytes takes: librdkafka's are of a
        megabyte, and it splits none that is refused, as Kafka's Java client does (KIP-126)."""
        asked = self.properties.get(_BATCH_SIZE, _BATCH_BYTES)
        if not asked.isdecimal() or int(asked) <= max_message_bytes:
            return self
        fitting = {_BATCH_SIZE: str(max(1, max_message_bytes))}
        return self._replace(properties=self.properties | fitting)


def settings_of(properties: Mapping[str, str], client: str) -> Settings:
    """From the options that begin with `kafka.`, without that; security may have librdkafka's names
    or those of Kafka's Java client, as Spark's own source wants them. Raises SinkError.
    """
    given = dict(properties)
    bootstrap = given.pop("bootstrap.servers", "")
    if not bootstrap:
        raise SinkError('format barnabas needs the option "kafka.bootstrap.servers"')
    for key in _OURS:
        if key in given:
            raise SinkError(f"the sink sets {key} itself; leave the option kafka.{key} out")
    given = _translated(given)
    token = take_token(given)
    if client not in ("auto", "confluent", "kafka-python"):
        raise SinkError(f"option client is {client!r}; expected confluent or kafka-python")
    timeout = given.pop(TIMEOUT_MS, "300000")
    if not timeout.isdecimal() or not int(timeout):
        raise SinkError(f"option kafka.{TIMEOUT_MS} is {timeout!r}; expected milliseconds")
    return Settings(bootstrap, given, int(timeout), client, token)


def from_java(properties: Mapping[str, str]) -> dict[str, str]:
    """What librdkafka calls the properties of Kafka's Java client that are for a producer; those
    that are not are left out. Raises SinkError for what cannot be said to librdkafka."""
    kept = {key: value for key, value in properties.items() if key.startswith(_JAVA_KEPT)}
    return _translated({**{f"ssl.{store}.type": "JKS" for store in _JAVA_STORES}, **kept})


def _translated(properties: Mapping[str, str]) -> dict[str, str]:
    """With Java's names of who one is and whom one trusts in librdkafka's words."""
    given = dict(properties)
    jaas = given.get(JAAS)
    if jaas is not None and given.get("sasl.mechanism", "").upper() != OAUTHBEARER:
        del given[JAAS]
        for name in ("username", "password"):
            found = re.search(rf'\b{name}\s*=\s*"((?:[^"\\]|\\.)*)"', jaas)
            if found is None:
                raise SinkError(
                    f"{JAAS} has no {name}; only PLAIN, SCRAM and OAUTHBEARER are known"
                )
            given[f"sasl.{name}"] = re.sub(r"\\(.)", r"\1", found[1])
    for store, names in _JAVA_STORES.items():
        kind = given.pop(f"ssl.{store}.type", "PKCS12").upper()
        if (store, kind) == ("keystore", "PKCS12"):
            continue  # librdkafka calls it the same
        given.pop(f"ssl.{store}.password", None)
        path = given.pop(f"ssl.{store}.location", None)
        if path is not None and kind != "PEM":
            raise SinkError(
                f"the executors' client reads no {kind} files; give ssl.{store}.location a PEM file"
                f" and ssl.{store}.type=PEM"
            )
        given |= {name: path for name in names if path is not None}
    if _PROTOCOL in given:  # kafka-python would take "ssl", which librdkafka knows, for PLAINTEXT
        given[_PROTOCOL] = given[_PROTOCOL].upper()
        if given[_PROTOCOL] not in _PROTOCOLS:
            raise SinkError(f"{_PROTOCOL} is {given[_PROTOCOL]}; expected {', '.join(_PROTOCOLS)}")
    if given.get("ssl.endpoint.identification.algorithm") == "":
        given["ssl.endpoint.identification.algorithm"] = "none"
    return given


def in_python(properties: Mapping[str, str]) -> dict[str, str | int | None]:
    """librdkafka's properties as kafka-python has them. Numbers are numbers, but no password is."""
    given: dict[str, str | int | None] = {}
    for key, value in properties.items():
        name = _PYTHON_NAMES.get(key, key.replace(".", "_"))
        is_text = name.startswith(("sasl_", "ssl_", "client_id")) or not value.isdecimal()
        given[name] = value if is_text else int(value)
    if given.get("compression_type") == "none":
        given["compression_type"] = None
    return given
