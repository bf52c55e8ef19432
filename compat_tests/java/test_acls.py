"""kafka-acls against a broker with the StandardAuthorizer; what real clients are told.

Everybody is User:ANONYMOUS here, and the tools come from 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.brokers.nodes import RunningBroker
from testkit.clients.java_tools import Finished, JavaTools
from testkit.wait import eventually

EVERYBODY = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture
def secured(
    java_tools: JavaTools, fresh_broker: Callable[..., RunningBroker]
) -> Callable[..., Finished]:
    broker = fresh_broker(config=EVERYBODY)

    def run(name: str, *args: str, stdin: str = "") -> Finished:
        return java_tools.run(
            name, "--bootstrap-server", broker.bootstrap_servers, *args, stdin=stdin, timeout_s=45
        )

    run.broker = broker  # type: ignore[attr-defined]
    return run


def rules_of(tool: Callable[..., Finished], *args: str) -> list[str]:
    listed = tool("AclCommand", "--list", *args).ok()
    return sorted(line.strip() for line in listed.splitlines() if line.strip())


def test_rules_are_added_listed_and_removed(secured: Callable[..., Finished]) -> None:
    keep = ("--add", "--allow-principal", "User:*", "--operation", "All")
    secured("AclCommand", *keep, "--cluster").ok()
    secured(
        "AclCommand", "--add", "--allow-principal", "User:alice", "--producer", "--topic", "ord",
        "--resource-pattern-type", "prefixed",
    ).ok()  # fmt: skip
    secured(
        "AclCommand", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1",
        "--operation", "Read", "--group", "*",
    ).ok()  # fmt: skip
    lines = eventually(lambda: "User:bob" in "".join(rules_of(secured)) and rules_of(secured))
    text = "\n".join(lines)
    for expected in (
        "name=ord, patternType=PREFIXED",
        "(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)",
        "(principal=User:alice, host=*, operation=CREATE, permissionType=ALLOW)",
        "(principal=User:bob, host=10.0.0.1, operation=READ, permissionType=DENY)",
    ):
        assert expected in text
    matching = rules_of(secured, "--topic", "orders", "--resource-pattern-type", "match")
    assert "operation=DESCRIBE" in "".join(matching)
    assert "bob" not in "".join(matching)
    secured(
        "AclCommand", "--remove", "--force", "--topic", "ord", "--resource-pattern-type",
        "prefixed",
    ).ok()  # fmt: skip
    eventually(lambda: "alice" not in "".join(rules_of(secured)))
    secured.broker.restart()  # type: ignore[attr-defined]
    assert "User:bob" in eventually(lambda: "".join(rules_of(secured)))


def test_a_rule_is_obeyed_as_soon_as_it_is_made(secured: Callable[..., Finished]) -> None:
    secured("TopicCommand", "--create", "--topic", "orders").ok()
    secured("ConsoleProducer", "--topic", "orders", stdin="one\n").ok()
    deny = ("--deny-principal", "User:ANONYMOUS", "--operation", "Write", "--topic", "orders")
    secured("AclCommand", "--add", *deny).ok()

    def refused() -> bool:
        sent = secured("ConsoleProducer", "--topic", "orders", stdin="two\n")
        return "TopicAuthorizationException" in sent.text or "Not authorized" in sent.text

    eventually(refused)
    secured("AclCommand", "--remove", "--force", *deny).ok()
    eventually(lambda: not refused())


def test_a_consumer_needs_its_group(secured: Callable[..., Finished]) -> None:
    secured("TopicCommand", "--create", "--topic", "orders").ok()
    secured("ConsoleProducer", "--topic", "orders", stdin="one\n").ok()
    allow = ("--allow-principal", "User:ANONYMOUS", "--operation", "All")
    secured("AclCommand", "--add", *allow, "--cluster", "--topic", "*").ok()
    secured(
        "AclCommand", "--add", "--allow-principal", "User:somebody", "--operation", "Read",
        "--group", "team",
    ).ok()  # fmt: skip
    read = ("--topic", "orders", "--from-beginning", "--max-messages", "1", "--timeout-ms", "9000")

    def refused() -> bool:
        asked = secured("ConsoleConsumer", *read, "--group", "team")
        return "GroupAuthorizationException" in asked.text

    eventually(refused)
    assert "one" in secured("ConsoleConsumer", *read, "--group", "other").ok()


def test_without_an_authorizer_there_are_no_rules(java_tools: JavaTools, bootstrap: str) -> None:
    listed = java_tools.run("AclCommand", "--bootstrap-server", bootstrap, "--list")
    assert "SecurityDisabledException" in listed.text


def test_every_node_of_a_cluster_goes_by_the_rules(
    java_tools: JavaTools, make_cluster: Callable[..., ClusterOfNodes]
) -> None:
    """Nodes are super users: they must pass before they have read any rule."""
    cluster = make_cluster({
        "authorizer.class.name": EVERYBODY["authorizer.class.name"],
        "super.users": "User:ANONYMOUS",
    })  # fmt: skip
    for node in (1, 2, 3):
        where = ("--bootstrap-server", cluster.address(node))
        rule = ("--allow-principal", f"User:of-{node}", "--operation", "Read", "--topic", "t")
        java_tools.run("AclCommand", *where, "--add", *rule, timeout_s=60).ok()
    cluster.kill(cluster.controller())
    expected = [f"User:of-{node}" for node in (1, 2, 3)]
    for node in cluster.running():
        where = ("--bootstrap-server", cluster.address(node))

        def listed(where: tuple[str, str] = where) -> bool:
            text = java_tools.run("AclCommand", *where, "--list", timeout_s=60).ok()
            return all(user in text for user in expected)

        eventually(listed)
