"""A cluster of any kind in which everything is encrypted and everybody is known.

What: `Secured` goes before a cluster's class. Clients speak SASL_SSL (PLAIN and SCRAM-SHA-256),
brokers SASL_SSL by SCRAM-SHA-256, with certificates of their own beside, controllers what `voting`
says: TLS by certificates, or SASL_SSL by PLAIN. Rules are kept to (StandardAuthorizer), delegation
tokens are on. Each node has its files, `own.pem` and `trusted.pem`, in its own directory; clients
trust what is in `clients_trust`, and who looks on among nodes shows `insider`.
How: nodes are the user `node`, `admin` may do everything, and `USERS` what rules say.
"""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Any

from barnabas.secured import java_properties
from testkit.brokers.authority import Authority, put
from testkit.brokers.clusters import ClusterOfNodes
from testkit.brokers.node_processes import Node
from testkit.clients import secured
from testkit.clients.secured import Connect

_MODULES = "org.apache.kafka.common.security"
PLAIN = f"{_MODULES}.plain.PlainLoginModule"
SCRAM = f"{_MODULES}.scram.ScramLoginModule"
ADMIN, NODE = "admin", "node"
USERS = ("alice", "bob")


def password(user: str) -> str:
    return f"{user}-secret"


def login(module: str, user: str, *known: str) -> str:
    """A JAAS entry: who this is, and whom a server knows."""
    words = [f'username="{user}"', f'password="{password(user)}"']
    words += [f'user_{name}="{password(name)}"' for name in known]
    return f"{module} required {' '.join(words)};"


class Secured(ClusterOfNodes):
    """See the module."""

    voting = "SSL"
    """Between controllers: SSL or SASL_SSL."""

    def __init__(self, directory: Path, authority: Authority, *args: Any, **kwargs: Any) -> None:
        self.clients_trust = Path(directory) / "clients.pem"
        self.insider = Path(directory) / "insider.pem"
        super().__init__(directory, *args, **kwargs)
        put(self.clients_trust, authority.certificate)
        put(self.insider, authority.issue("insider"))
        for node in self.nodes.values():
            put(self.trusted_by(node.id), authority.certificate)
            put(self.certificate_of(node.id), authority.issue(f"node-{node.id}"))

    def trusted_by(self, node: int) -> Path:
        """PEM of the authorities that a node trusts."""
        return self.nodes[node].directory / "trusted.pem"

    def certificate_of(self, node: int) -> Path:
        """PEM of a node's key and certificate."""
        return self.nodes[node].directory / "own.pem"

    def _properties_of(self, node: Node) -> dict[str, str]:
        names = ("insider", *(f"node-{id_}" for id_ in self.nodes))
        subjects = (f"User:CN={name},OU=nodes,O=tests" for name in names)
        protocols = {"CLIENT": "SASL_SSL", "INTERNAL": "SASL_SSL", "CONTROLLER": self.voting}
        return {
            **super()._properties_of(node),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(node.directory / "own.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(node.directory / "trusted.pem"),
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.internal.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": login(PLAIN, NODE, ADMIN, *USERS),
            "listener.name.client.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
            "listener.name.internal.scram-sha-256.sasl.jaas.config": login(SCRAM, NODE),
            "listener.name.controller.plain.sasl.jaas.config": login(PLAIN, NODE, NODE),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join((f"User:{NODE}", f"User:{ADMIN}", *subjects)),
            "delegation.token.secret.key": "one key of all nodes",
        }

    def format_command(self, node: Node, *arguments: str) -> list[str]:
        user = f"SCRAM-SHA-256=[name={NODE},password={password(NODE)}]"
        return super().format_command(node, *arguments, "--add-scram", user)

    # ---- how to get in

    def connect(self, listener: str) -> Connect:
        """As somebody who may do everything, of the nodes' own kind where only nodes speak."""
        context = ssl.create_default_context(cafile=self.clients_trust)
        user = ADMIN if listener == "CLIENT" else NODE
        if listener != "CLIENT":
            context.load_cert_chain(self.insider)
        by_password = listener == "CLIENT" or self.voting == "SASL_SSL"
        given = (user, password(user)) if by_password else None
        return partial(secured.connect, context=context, login=given)

    def login(self, library: str) -> dict[str, Any]:
        told = ("SASL_SSL", "PLAIN", ADMIN, password(ADMIN), str(self.clients_trust))
        names = {
            "confluent": (
                "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password",
                "ssl.ca.location",
            ),
            "kafka-python": (
                "security_protocol", "sasl_mechanism", "sasl_plain_username",
                "sasl_plain_password", "ssl_cafile",
            ),
        }  # fmt: skip
        return dict(zip(names[library], told, strict=True))

    def client_file(self, user: str, mechanism: str = "PLAIN", secret: str = "") -> Path:
        """Properties of the Java client, for its tools and our commands."""
        path = self.data_dir / f"{user}-{mechanism}.properties"
        told = java_properties(user, secret or password(user), str(self.clients_trust), mechanism)
        put(path, "".join(f"{name}={value}\n" for name, value in told.items()).encode())
        return path
