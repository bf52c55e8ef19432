"""A secured broker or cluster for tests: users, access rules, and how each library connects.

    users = {"alice": "alice-secret"}
    acls = [barnabas.Acl("alice", "read", topic="orders"), barnabas.Acl("alice", "read", group="*")]
    with barnabas.Broker(security="sasl_ssl", users=users, acls=acls) as broker:
        Consumer(broker.client_config("alice", library="confluent-kafka") | {"group.id": "g"})

What: TLS by a throw-away authority; each user logs in by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. In
a cluster brokers and controllers speak TLS too, and log in as a user of their own, whose password
nobody is told. With `acls`, even an empty list, Kafka's StandardAuthorizer decides; without, every
user may do everything. Rules and SCRAM's keys are written when the data directory is formatted: no
client ever finds them missing.

Passwords stand in files for their owner alone and in no command line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.authority import Certificates, certificates
from barnabas.process import SAYS_IT_ALL, BrokerError, write_private

__tracebackhide__ = SAYS_IT_ALL

PROTOCOL = "SASL_SSL"
LIBRARIES = ("confluent-kafka", "kafka-python", "aiokafka", "java", "spark")
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *_HASHES)
_NODE = "barnabas-node"
"""Who nodes are to each other."""
_SECURITY = "org.apache.kafka.common.security"
_PLAIN_MODULE = f"{_SECURITY}.plain.PlainLoginModule"
_SCRAM_MODULE = f"{_SECURITY}.scram.ScramLoginModule"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_SUPER_USERS, _CLASS_NAME = "super.users", "authorizer.class.name"
_ITERATIONS = 4096
_SALT_DIGITS = string.digits + string.ascii_lowercase
"""Of a salt as Kafka's tools make it."""
_READING = ("READ", "DESCRIBE", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
OPERATIONS = {
    "TOPIC": (*_READING, "WRITE", "CREATE", "ALTER"),
    "GROUP": _READING,
    "TRANSACTIONAL_ID": ("DESCRIBE", "WRITE", "TWO_PHASE_COMMIT"),
    "CLUSTER": (
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ),
}  # fmt: skip
"""What may be done to a resource, besides ALL."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_OURS = re.compile(
    r"listeners|listener\.security\.protocol\.map|inter\.broker\.listener\.name"
    r"|security\.inter\.broker\.protocol|authorizer\.class\.name|(listener\.name\.[^.]+\.)?"
    r"(ssl\.(key|trust)store\..*|sasl\.enabled\.mechanisms|([^.]+\.)?sasl\.jaas\.config)"
)
"""Keys that `security` says; a second opinion about them might open what is to be closed."""


@dataclass(frozen=True)
class Acl:
    """One access rule. Of the resources exactly one is given; "*" is all of its kind.

    principal          a user's name, or "User:NAME"; "*" is everybody
    operation          "read", "write", "describe", "alter_configs", ...; "all"
    topic, group, transactional_id, cluster=True   on what
    prefixed           the name is how names begin
    allow              False: a rule that denies, which wins over those that allow
    host               the client's address; "*" is any
    """

    principal: str
    operation: str
    topic: str | None = None
    group: str | None = None
    transactional_id: str | None = None
    cluster: bool = False
    prefixed: bool = False
    allow: bool = True
    host: str = "*"

    def __post_init__(self) -> None:
        if len(self._named()) != 1:
            raise ValueError(
                f"{self}: expected exactly one of topic, group, transactional_id, cluster"
            )
        ((kind, name),) = self._named().items()
        if not self.principal or not name:
            raise ValueError(f"{self}: expected a principal and a name; '*' is all")
        known = ("ALL", *OPERATIONS[kind])
        if str(self.operation).upper() not in known:
            raise ValueError(
                f"operation {self.operation!r}: on a {kind.lower()} expected one of"
                f" {', '.join(known).lower()}"
            )

    def _named(self) -> dict[str, str]:
        named = {"TOPIC": self.topic, "GROUP": self.group}
        named["TRANSACTIONAL_ID"] = self.transactional_id
        named["CLUSTER"] = "kafka-cluster" if self.cluster else None
        return {kind: name for kind, name in named.items() if name is not None}

    def json(self) -> str:
        """As `barnabas format --add-acl` takes it."""
        ((kind, name),) = self._named().items()
        principal = self.principal if ":" in self.principal else f"User:{self.principal}"
        return json.dumps(
            {
                "principal": principal,
                "host": self.host,
                "operation": self.operation.upper(),
                "permission_type": "ALLOW" if self.allow else "DENY",
                "resource_type": kind,
                "resource_name": name,
                "pattern_type": "PREFIXED" if self.prefixed else "LITERAL",
            }
        )


class Security:
    """What `security`, `users` and `acls` of a Broker or Cluster mean. `prepare` comes first."""

    def __init__(self, users: Mapping[str, str], acls: Iterable[Acl] | None) -> None:
        """Raises ValueError."""
        self._users = dict(users)
        self._acls = None if acls is None else [acl.json() for acl in acls]
        self._node_password = secrets.token_urlsafe(24)
        self._made: Certificates | None = None
        for name, password in self._users.items():
            if not _NAME.fullmatch(name) or name == _NODE:
                raise ValueError(f"users {name!r}: expected a name of letters, digits and ._-")
            if not isinstance(password, str) or not password or "\0" in password:
                raise ValueError(f"users {name!r}: expected a password")

    def __repr__(self) -> str:
        return f"Security({', '.join(self._users)})"

    @classmethod
    def of(
        cls,
        security: str | None,
        users: Mapping[str, str] | None,
        acls: Iterable[Acl] | None,
        config: Mapping[str, str],
    ) -> Security:
        """What a Broker or Cluster was told. Raises ValueError, also for a
        config that says what `security` says already."""
        if security is None:
            raise ValueError("users and acls mean nothing without security='sasl_ssl'")
        if str(security).upper() != PROTOCOL:
            raise ValueError(f"security {security!r}: expected 'sasl_ssl'")
        if not users or not isinstance(users, Mapping):
            raise ValueError("security needs users, such as {'alice': 'alice-secret'}")
        acls = acls if acls is None or isinstance(acls, Acl) else list(acls)
        if isinstance(acls, Acl) or not all(isinstance(acl, Acl) for acl in acls or ()):
            raise ValueError(f"acls {acls!r}: expected a list of barnabas.Acl")
        for key in config:
            if _OURS.fullmatch(key):
                raise ValueError(f"config {key}: security= says this already; leave one out")
        return cls(users, acls)

    def prepare(self, directory: Path, hosts: Iterable[str] = ()) -> None:
        """Make the certificates, if they are not there. Raises BrokerError."""
        self._made = certificates(directory, hosts)

    def same_as_in(self, path: Path) -> None:
        """Remember in a file who the users are; nobody else may be later, for what was formatted
        stays. Raises BrokerError."""
        said = {"users": self._users, "acls": self._acls}
        if path.exists():
            known = json.loads(path.read_text("ascii"))
            self._node_password = known.pop("node")
            if known != said:
                raise BrokerError(
                    f"{path.parent} was made with other users or acls: give the same, or use"
                    " another directory"
                )
            return
        write_private(path, json.dumps({**said, "node": self._node_password}))

    # ---- what nodes are told

    @property
    def _files(self) -> Certificates:
        if self._made is None:
            raise BrokerError("there are no certificates before the start: call start()")
        return self._made

    def properties(
        self, clients: str, nodes: Sequence[str] = (), config: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Of the listener `clients` and those that only nodes use; `config` is the user's."""
        made = self._files
        told = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(made.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(made.authority),
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
        }
        own = {_NODE: self._node_password}
        for name in (clients, *nodes):
            prefix = f"listener.name.{name.lower()}"
            users = {**self._users, **own} if name == clients else own
            entry = _jaas(_PLAIN_MODULE, _NODE, self._node_password, users)
            told[f"{prefix}.plain.sasl.jaas.config"] = entry
            told[f"{prefix}.sasl.enabled.mechanisms"] = "PLAIN"
        prefix = f"listener.name.{clients.lower()}"
        told[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
        for mechanism in _HASHES:
            told[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = f"{_SCRAM_MODULE} required;"
        if self._acls is not None:
            given = (config or {}).get(_SUPER_USERS, "")
            told[_CLASS_NAME] = _AUTHORIZER
            told[_SUPER_USERS] = ";".join(filter(None, (f"User:{_NODE}", given)))
        return told

    def format(self) -> tuple[list[str], str]:
        """Flags of `barnabas format`, no secret among them, and what it reads: SCRAM's users."""
        rules = (word for acl in self._acls or () for word in ("--add-acl", acl))
        return ["--add-scram", "-", *rules], "".join(f"{line}\n" for line in self._scram())

    def _scram(self) -> Iterator[str]:
        for name, password in self._users.items():
            for mechanism, hash_name in _HASHES.items():
                salt = "".join(secrets.choice(_SALT_DIGITS) for _ in range(25)).encode()
                salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, _ITERATIONS)
                salt_text, salted_text = (base64.b64encode(b).decode() for b in (salt, salted))
                yield (
                    f"{mechanism}=[name={name},iterations={_ITERATIONS},salt={salt_text},"
                    f"saltedpassword={salted_text}]"
                )

    # ---- what clients are told

    def client_config(
        self, bootstrap: str, user: str, library: str, mechanism: str
    ) -> dict[str, Any]:
        """How a user connects. Raises ValueError."""
        password = self._users.get(user)
        if password is None:
            raise ValueError(f"there is no user {user!r}: expected one of {sorted(self._users)}")
        if mechanism not in MECHANISMS:
            raise ValueError(f"mechanism {mechanism!r}: expected one of {', '.join(MECHANISMS)}")
        authority = str(self._files.authority)
        if library == "confluent-kafka":
            return {
                "bootstrap.servers": bootstrap,
                "security.protocol": PROTOCOL,
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password,
                "ssl.ca.location": authority,
            }
        if library in ("kafka-python", "aiokafka"):
            return {
                "bootstrap_servers": bootstrap,
                "security_protocol": PROTOCOL,
                "sasl_mechanism": mechanism,
                "sasl_plain_username": user,
                "sasl_plain_password": password,
                **_python_tls(library, authority),
            }
        if library not in LIBRARIES:
            raise ValueError(f"library {library!r}: expected one of {', '.join(LIBRARIES)}")
        java = java_properties(user, password, authority, mechanism)
        java = {"bootstrap.servers": bootstrap, **java}
        return (
            {f"kafka.{key}": value for key, value in java.items()} if library == "spark" else java
        )


def java_properties(
    user: str, password: str, authority: str, mechanism: str = "PLAIN"
) -> dict[str, str]:
    """Of Kafka's Java client, and of every command of ours (`--client-config`)."""
    module = _PLAIN_MODULE if mechanism == "PLAIN" else _SCRAM_MODULE
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": _jaas(module, user, password),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
    }


def _python_tls(library: str, authority: str) -> dict[str, Any]:
    if library == "kafka-python":
        return {"ssl_cafile": authority}
    import ssl

    return {"ssl_context": ssl.create_default_context(cafile=authority)}


def _jaas(module: str, user: str, password: str, users: Mapping[str, str] | None = None) -> str:
    """One login module; `users` are those of a server."""
    options = {"username": user, "password": password}
    options |= {f"user_{name}": secret for name, secret in (users or {}).items()}
    text = " ".join(f"{key}={_quoted(value)}" for key, value in options.items())
    return f"{module} required {text};"


_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(char, char) for char in text) + '"'
