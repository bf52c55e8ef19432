"""Certificates and their authority renewed in a cluster that works, as docs/security.md says.

Three nodes: clients and brokers on SASL_SSL, controllers on TLS, brokers and controllers with
certificates of their own. First everybody trusts both authorities, then each node has a certificate
of the new one, then nobody trusts the old one; a node is killed in each of the steps.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ResourceType

from testkit.brokers.authority import Authority, put
from testkit.brokers.clusters import LISTENERS, BarnabasCluster
from testkit.brokers.secured import Secured
from testkit.clients import raw, secured
from testkit.clients.rdkafka import set_configs
from testkit.wait import eventually
from testkit.workloads.workload import Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TOPIC = "renewed"
AMONG_NODES = ["INTERNAL", "CONTROLLER"]


class Nodes(Secured, BarnabasCluster):
    """Three secured nodes of Barnabas."""


@pytest.fixture
def old() -> Authority:
    return Authority()


@pytest.fixture
def cluster(tmp_path: Path, old: Authority) -> Iterator[Nodes]:
    with Nodes(tmp_path / "cluster", old).shown() as made:
        yield made.start()


def believed(cluster: Nodes, node: int, authority: Authority) -> list[str]:
    """The listeners whose certificate is good for who trusts this authority alone."""
    found = []
    for listener, port in cluster.nodes[node].ports.items():
        try:
            secured.connect(f"127.0.0.1:{port}", 5.0, authority.context()).close()
        except ssl.SSLCertVerificationError:
            continue
        found.append(listener)
    return found


def admitting(cluster: Nodes, node: int, own: Path) -> list[str]:
    """The listeners where nodes speak that answer who shows this certificate."""
    found = []
    context = ssl.create_default_context(cafile=cluster.clients_trust)
    context.load_cert_chain(own)
    for listener in ("INTERNAL", "CONTROLLER"):
        try:
            address = f"127.0.0.1:{cluster.nodes[node].ports[listener]}"
            with secured.connect(address, 5.0, context) as sock:
                sock.sendall(raw.request(raw.API_VERSIONS, 0))
                raw.read_frame(sock)
        except (ssl.SSLError, ConnectionError, EOFError):
            continue
        found.append(listener)
    return found


def all_know(cluster: Nodes, ours: Path, *, not_: Path, not_by: Authority) -> None:
    """Every node has ours, believes it and nothing of the other authority."""
    for node in cluster.nodes:
        assert admitting(cluster, node, ours) == AMONG_NODES
        assert admitting(cluster, node, not_) == []
        assert believed(cluster, node, not_by) == []
        assert set(cluster.view(node).brokers) == set(cluster.nodes)
    assert set(cluster.quorum().voters) == set(cluster.nodes)


def reload(cluster: Nodes, node: int) -> None:
    """What makes a node look at once: kafka-configs, which says again what is so."""
    admin = AdminClient(
        {"bootstrap.servers": cluster.bootstrap_servers} | cluster.login("confluent")
    )
    name, value = "listener.name.client.ssl.keystore.location", cluster.certificate_of(node)
    set_configs(admin, ResourceType.BROKER, str(node), {name: value})


def restart(cluster: Nodes, node: int) -> None:
    cluster.restart(node)
    cluster.await_full_isr(TOPIC)


def kill_and_start(cluster: Nodes, load: Workload, node: int) -> None:
    cluster.kill(node)
    load.await_each_producing()
    cluster.restart(node)
    cluster.await_full_isr(TOPIC)


@pytest.mark.parametrize("take", [reload, restart], ids=["while running", "rolling restart"])
def test_nothing_is_lost_while_certificates_and_their_authority_are_renewed(
    cluster: Nodes, old: Authority, tmp_path: Path, take: Callable[[Nodes, int], None]
) -> None:
    new = Authority()
    of_old, of_new = tmp_path / "old.pem", tmp_path / "new.pem"
    put(of_old, old.issue("insider"))
    put(of_new, new.issue("insider"))
    put(cluster.clients_trust, old.certificate + new.certificate)

    def both_are_trusted(node: int) -> bool:
        put(cluster.trusted_by(node), old.certificate + new.certificate)
        take(cluster, node)
        return eventually(lambda: admitting(cluster, node, of_new) == AMONG_NODES)

    def the_certificate_is_new(node: int) -> bool:
        put(cluster.certificate_of(node), new.issue(f"node-{node}"))
        take(cluster, node)
        return eventually(lambda: believed(cluster, node, new) == [*LISTENERS])

    def the_old_authority_is_gone(node: int) -> bool:
        put(cluster.insider, new.issue("insider"))  # who looks on, from now on
        put(cluster.trusted_by(node), new.certificate)
        take(cluster, node)
        return eventually(lambda: admitting(cluster, node, of_old) == [])

    all_know(cluster, of_old, not_=of_new, not_by=new)
    steps = (both_are_trusted, the_certificate_is_new, the_old_authority_is_gone)
    with Workload(cluster, tmp_path, TOPIC, rate=100) as load:
        load.await_each_producing()
        for to_kill, step in enumerate(steps, start=1):
            for node in cluster.nodes:
                step(node)
                if node == 2:
                    kill_and_start(cluster, load, to_kill)
                load.await_each_producing()
        if take is reload:  # so that no link between two nodes is older than the last step
            for node in (1, 2):
                kill_and_start(cluster, load, node)
        load.prove()
    put(cluster.clients_trust, new.certificate)
    all_know(cluster, of_new, not_=of_old, not_by=old)


def test_who_leaves_out_a_step_is_told_and_nothing_is_lost(
    cluster: Nodes, old: Authority, tmp_path: Path
) -> None:
    """A certificate that no node trusts yet, and authorities that no node's certificate is of: with
    either the node would speak to nobody. What it has stays, until both fit."""
    new = Authority()
    put(cluster.clients_trust, old.certificate + new.certificate)
    with Workload(cluster, tmp_path, TOPIC, rate=100) as load:
        load.await_each_producing()
        put(cluster.certificate_of(2), new.issue("node-2"))
        with pytest.raises(KafkaException, match="would not believe each other"):
            reload(cluster, 2)
        put(cluster.certificate_of(2), old.issue("node-2"))
        put(cluster.trusted_by(2), new.certificate)
        with pytest.raises(KafkaException, match="would not believe each other"):
            reload(cluster, 2)
        assert believed(cluster, 2, old) == [*LISTENERS]
        assert believed(cluster, 2, new) == []
        load.await_each_producing()
        cluster.await_full_isr(TOPIC)
        put(cluster.trusted_by(2), old.certificate + new.certificate)
        reload(cluster, 2)
        load.await_each_producing()
