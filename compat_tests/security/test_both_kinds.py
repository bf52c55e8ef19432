"""Two nodes of Barnabas and one of Apache Kafka 4.3.1 in one secured cluster.

SASL_SSL with SCRAM and certificates between brokers, SASL_SSL with PLAIN and certificates to
controllers. What one kind writes of users, rules and tokens the other must obey, whichever leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from compat_tests.java.test_mixed_cluster import APACHE, MixedCluster
from compat_tests.security.test_delegation_tokens import Client, by_token, made
from testkit.brokers.authority import Authority
from testkit.brokers.secured import ADMIN, Secured, password
from testkit.clients.java_tools import JavaTools
from testkit.faults.rounds import LONG_FORM
from testkit.wait import eventually
from testkit.workloads.workload import create_topic

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

# Each of them takes a minute; what is alike in both forms is in the short one once.
long_form = pytest.mark.skipif(not LONG_FORM, reason="a part of the long form: CHAOS_ROUNDS")
either_leads = pytest.mark.parametrize(
    "apache",
    [
        pytest.param(False, id="barnabas-leads", marks=long_form),
        pytest.param(True, id="kafka-leads"),
    ],
)
REFUSED = KafkaError.TOPIC_AUTHORIZATION_FAILED
BARNABAS = 1


class SecuredMixedCluster(Secured, MixedCluster):
    """Node 3 is Apache Kafka."""

    voting = "SASL_SSL"

    def remove_voter(self, node: int, directory_id: str, tools: JavaTools) -> None:
        file = str(self.client_file(ADMIN))
        self._change_voters(
            node, False, tools, "--command-config", file, "remove-controller",
            "--controller-id", str(node), "--controller-directory-id", directory_id,
        )  # fmt: skip

    def add_voter(self, node: int, tools: JavaTools) -> None:
        """The command wants the node's own properties, and logs in by what stands beside them."""
        both = self.nodes[node].directory / "add.properties"
        files = (self.nodes[node].config_file, self.client_file(ADMIN))
        both.write_text("".join(file.read_text() for file in files))
        self._change_voters(node, True, tools, "--command-config", str(both), "add-controller")

    def told(self, user: str, node: int | None = None, mechanism: str = "PLAIN") -> dict[str, str]:
        """What librdkafka is told, to be this user, asking one node first or any."""
        return self.login("confluent") | {
            "bootstrap.servers": self.address(node) if node else self.bootstrap_servers,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password(user),
            "log_level": 0,
        }


@pytest.fixture(scope="module")
def cluster(
    java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredMixedCluster]:
    with SecuredMixedCluster(tmp_path_factory.mktemp("mixed"), Authority()).shown() as made:
        yield made.start()


@pytest.fixture
def as_admin(
    cluster: SecuredMixedCluster, java_tools: JavaTools, tmp_path: Path
) -> dict[int, Client]:
    """Kafka's commands, by the node that they ask."""
    told = dict(line.split("=", 1) for line in cluster.client_file(ADMIN).read_text().splitlines())
    return {
        node: Client(java_tools, cluster.address(node), tmp_path / f"admin-{node}", told)
        for node in cluster.nodes
    }


def test_either_kind_leads_and_follows_while_each_node_dies(
    cluster: SecuredMixedCluster, tmp_path: Path
) -> None:
    cluster.prove_while_each_node_dies(tmp_path)


def written(cluster: SecuredMixedCluster, topic: str, user: str) -> dict[int, int | None]:
    """The error that each node answers, as leader of one of the partitions."""
    told: dict[int, int | None] = {}
    producers = []
    for partition in range(len(cluster.nodes)):
        leader = cluster.leader(topic, partition)
        producer = Producer(cluster.told(user))  # one that was refused takes no more
        producer.produce(
            topic, b"x", partition=partition,
            on_delivery=lambda error, _m, at=leader: told.update({at: error and error.code()}),
        )  # fmt: skip
        producers.append(producer)
    for producer in producers:
        assert producer.flush(30) == 0
    return told


@either_leads
def test_rules_that_one_kind_is_given_hold_at_both(
    cluster: SecuredMixedCluster,
    java_tools: JavaTools,
    as_admin: dict[int, Client],
    topic_name: str,
    apache: bool,
) -> None:
    cluster.let_lead(apache, java_tools)
    create_topic(
        cluster.bootstrap_servers, topic_name, len(cluster.nodes), login=cluster.login("confluent")
    )
    cluster.await_full_isr(topic_name)
    cluster.elect_preferred_leaders(topic_name)
    nobody, everybody = dict.fromkeys(cluster.nodes, REFUSED), dict.fromkeys(cluster.nodes)

    def rule(node: int, *words: str) -> None:
        as_admin[node].run("AclCommand", *words, "--topic", topic_name).ok()

    def becomes(alice: dict[int, int | None]) -> None:
        def seen() -> bool:
            found = [written(cluster, topic_name, user) for user in ("alice", "bob")]
            assert found == [alice, nobody]
            return True

        eventually(seen, timeout_s=60)

    may_write = ("--allow-principal", "User:alice", "--operation", "Write")
    may_not = ("--deny-principal", "User:alice", "--operation", "Write")
    rule(BARNABAS, "--add", "--allow-principal", "User:*", "--operation", "Describe")
    for given, other in ((BARNABAS, APACHE), (APACHE, BARNABAS)):
        rule(given, "--add", *may_write)
        becomes(everybody)
        rule(other, "--add", *may_not)
        becomes(nobody)
        rule(given, "--remove", "--force", *may_not)
        becomes(everybody)
        rule(other, "--remove", "--force", *may_write)
        becomes(nobody)


def logs_in(cluster: SecuredMixedCluster, user: str) -> list[int]:
    """The nodes that let this user of SCRAM in."""
    found = []
    for node in cluster.nodes:
        try:
            AdminClient(cluster.told(user, node, "SCRAM-SHA-256")).list_topics(timeout=4)
        except KafkaException:
            continue
        found.append(node)
    return found


@long_form
@either_leads
def test_a_user_of_scram_that_one_kind_makes_logs_in_at_both(
    cluster: SecuredMixedCluster, java_tools: JavaTools, as_admin: dict[int, Client], apache: bool
) -> None:
    cluster.let_lead(apache, java_tools)
    for asked in (BARNABAS, APACHE):
        user = f"carol-{apache:d}{asked}"
        who = ("--entity-type", "users", "--entity-name", user)
        added = f"SCRAM-SHA-256=[password={password(user)}]"
        as_admin[asked].run("ConfigCommand", "--alter", *who, "--add-config", added).ok()
        seen = partial(logs_in, cluster, user)
        eventually(lambda by=seen: by() == [*cluster.nodes], timeout_s=90)
        ended = ("--delete-config", "SCRAM-SHA-256")
        as_admin[asked].run("ConfigCommand", "--alter", *who, *ended).ok()
        eventually(lambda by=seen: by() == [], timeout_s=90)


@long_form
@either_leads
def test_a_token_that_one_kind_makes_opens_both(
    cluster: SecuredMixedCluster,
    java_tools: JavaTools,
    as_admin: dict[int, Client],
    tmp_path: Path,
    apache: bool,
) -> None:
    cluster.let_lead(apache, java_tools)
    tls = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(cluster.clients_trust),
        # A client that is refused asks again until its time is over.
        "default.api.timeout.ms": "10000",
        "request.timeout.ms": "5000",
    }
    for asked, ends in ((BARNABAS, APACHE), (APACHE, BARNABAS)):
        token_id, secret = made(as_admin[asked])
        shown = {
            node: Client(
                java_tools, cluster.address(node), tmp_path / f"token-{asked}-{node}",
                {**by_token(token_id, secret, "SASL_SSL"), **tls},
            )
            for node in cluster.nodes
        }  # fmt: skip
        for client in shown.values():
            eventually(lambda at=client: at.run("TopicCommand", "--list").code == 0, timeout_s=60)
            again = client.tokens("--create", "--max-life-time-period", "-1")
            assert "not allowed" in again.text
        expire = ("--expire", "--expiry-time-period", "-1", "--hmac", secret)
        as_admin[ends].tokens(*expire).ok()
        for client in shown.values():
            eventually(lambda at=client: at.run("TopicCommand", "--list").code == 1, timeout_s=60)
