"""Configuration by environment, with the variables that users of the apache/kafka image know.

Why: in a container the environment is where configuration comes from, and a Compose file written
for Apache Kafka should mean the same here.

How (KafkaDockerWrapper and the `configure` script of Apache Kafka's docker folder): `KAFKA_` is
cut off, the rest is lower-cased, and then `___` is a dash, `__` an underscore and `_` a dot:
`KAFKA_NUM_PARTITIONS` is `num.partitions`. When only `advertised.listeners` is given, the broker
listens on those ports on every address. CLUSTER_ID formats a fresh directory.

What Apache Kafka's scripts read for the JVM, its logging or JMX is passed over with a note, and so
are the variables that Kubernetes makes up for a service whose name begins with "kafka"
(`KAFKA_PORT=tcp://...`). Any other variable that names no key of Kafka's is refused as it would be
in a file, by its own name.

Different on purpose: KAFKA_KAFKA_METRICS_REPORTERS is `kafka.metrics.reporters` (Apache Kafka's
script removes every "KAFKA_"), and a CLUSTER_ID that is not the directory's is refused.

Gaps: the variables that name files under /etc/kafka/secrets (KAFKA_SSL_KEYSTORE_FILENAME,
KAFKA_SSL_KEYSTORE_CREDENTIALS, ...) are refused as unknown keys: KAFKA_SSL_KEYSTORE_LOCATION and
KAFKA_SSL_KEYSTORE_PASSWORD say where a store is and what opens it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from server.config.kafka_config import ConfigError, catalogue

PREFIX = "KAFKA_"
CLUSTER_ID = "CLUSTER_ID"

_JVM = "there is no JVM here"
_LOGGING = "--log-level is the way to set how much is logged"

# Variables of Apache Kafka's scripts that are no configuration key -> what to tell, "" for nothing.
_OTHERS: Mapping[str, str] = {
    "KAFKA_CLUSTER_ID": "the variable is CLUSTER_ID, as for the apache/kafka image",
    "KAFKA_DEBUG": _JVM,
    "KAFKA_GC_LOG_OPTS": _JVM,
    "KAFKA_HEAP_OPTS": _JVM,
    "KAFKA_HOME": "",
    "KAFKA_JMX_HOSTNAME": _JVM,
    "KAFKA_JMX_OPTS": _JVM,
    "KAFKA_JMX_PORT": _JVM,
    "KAFKA_JVM_PERFORMANCE_OPTS": _JVM,
    "KAFKA_LOG4J_CMD_OPTS": _LOGGING,
    "KAFKA_LOG4J_LOGGERS": _LOGGING,
    "KAFKA_LOG4J_OPTS": _LOGGING,
    "KAFKA_LOG4J_ROOT_LOGLEVEL": _LOGGING,
    "KAFKA_MODE": "",
    "KAFKA_OPTS": _JVM,
    "KAFKA_TOOLS_LOG4J_LOGLEVEL": _LOGGING,
    "KAFKA_VERSION": "",
}

# What Kubernetes sets in every container of a namespace that has a service "kafka" or "kafka-...".
_KUBERNETES = re.compile(
    r"KAFKA_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_LETTERS = {1: ".", 2: "_", 3: "-"}


class Environment(NamedTuple):
    """What the environment says: values by key, the variable each came from, and what to tell."""

    values: Mapping[str, str]
    variables: Mapping[str, str]
    cluster_id: str | None
    notes: tuple[str, ...]

    @contextlib.contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Within, a ConfigError about a key that a variable set names that variable too."""
        try:
            yield
        except ConfigError as error:
            variable = self.variables.get(error.name)
            if variable is None:
                raise
            expected = f"{error.expected} (set by {variable})"
            raise ConfigError(error.name, error.value, expected) from None


def key_of(variable: str) -> str:
    """The configuration key that a `KAFKA_` variable sets."""
    name = variable.removeprefix(PREFIX).lower()
    return re.sub(r"_{1,3}", lambda match: _LETTERS[len(match.group())], name)


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Read the variables that mean something to a broker; the values are not checked here.

    Raises ConfigError for a CLUSTER_ID that cannot be one.
    """
    known = catalogue().broker
    values: dict[str, str] = {}
    variables: dict[str, str] = {}
    notes: list[str] = []
    for variable in sorted(environ):
        key = key_of(variable)
        if not variable.startswith(PREFIX) or not key:
            continue
        reason = _OTHERS.get(variable)
        if reason is None and key not in known and _KUBERNETES.fullmatch(variable):
            reason = "Kubernetes sets it for a service, it configures no broker"
        if reason is None:
            values[key], variables[key] = environ[variable], variable
        elif reason:
            notes.append(f"environment variable {variable} is ignored: {reason}")
    advertised = values.get("advertised.listeners", "")
    if advertised.strip() and not values.get("listeners", "").strip():
        values["listeners"] = _on_every_address(advertised)
        variables["listeners"] = variables["advertised.listeners"]
        notes.append(f"listeners={values['listeners']}, from {variables['listeners']}")
    return Environment(values, variables, _cluster_id(environ), tuple(notes))


def overlay(values: dict[str, str], upper: Mapping[str, str]) -> None:
    """Put `upper` over `values`, in place. `log.dir` above hides `log.dirs` below, which would else
    win over it: the two keys name one thing.
    """
    if "log.dir" in upper and "log.dirs" not in upper:
        values.pop("log.dirs", None)
    values.update(upper)


def _on_every_address(advertised: str) -> str:
    """`advertised.listeners` with every host replaced by 0.0.0.0; what is malformed stays so."""
    items = []
    for item in advertised.split(","):
        name, separator, address = item.strip().partition("://")
        host, colon, port = address.rpartition(":")
        items.append(f"{name}://0.0.0.0:{port}" if separator and colon and host else item.strip())
    return ",".join(items)


def _cluster_id(environ: Mapping[str, str]) -> str | None:
    text = environ.get(CLUSTER_ID, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[A-Za-z0-9_=+/.-]{1,64}", text):
        raise ConfigError(CLUSTER_ID, text, "expected a cluster id, such as 5L6g3nShT-eMCtK--X86sw")
    return text
