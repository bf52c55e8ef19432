from __future__ import annotations

import argparse
import contextlib
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client_commands import doctor
from barnabas.client_commands.doctor import (
    Address,
    Answer,
    Finding,
    is_here,
    is_of_one_machine,
    merge,
    partition_findings,
    quorum_findings,
)

# kafka-python reads its schemas in a way that Python's newest versions advise against.


def test_addresses_that_mean_another_machine_to_everybody() -> None:
    assert [is_of_one_machine(h) for h in ("localhost", "127.0.0.1", "::1")] == [True] * 3
    assert [is_of_one_machine(h) for h in ("kafka", "10.0.0.1", "127.example")] == [False] * 3


def test_this_machine_has_many_names() -> None:
    assert [is_here(host) for host in ("LOCALHOST", "127.0.0.1", "::1")] == [True] * 3
    assert [is_here(host) for host in ("192.0.2.1", "a..b")] == [False] * 2


def test_bootstrap_addresses_of_different_clusters_are_told() -> None:
    findings: list[Finding] = []
    answers = {("a", 1): Answer("one", {1: ("a", 1)}), ("b", 2): Answer("two", {2: ("b", 2)})}
    assert merge(answers, findings) == {1: ("a", 1), 2: ("b", 2)}
    (finding,) = findings
    assert not finding.is_well
    assert finding.text.endswith("different clusters: a:1 of one, b:2 of two")


def test_two_nodes_that_advertise_one_address_are_told() -> None:
    findings: list[Finding] = []
    merge({("a", 1): Answer("one", {1: ("a", 1), 2: ("a", 1)})}, findings)
    (finding,) = findings
    assert not finding.is_well
    assert finding.text.startswith("nodes 1 and 2 both advertise a:1; set advertised.listeners")


@pytest.mark.parametrize(
    ("leader", "isr", "words"),
    [
        (-1, [], "t-0 has no leader: one of its nodes (1, 2) must come back"),
        (1, [1], "t-0 is under-replicated: not in sync 2"),
        (1, [1, 2], "1 partition, each with a leader and in sync"),
        (0, [2, 1], "1 partition, each with a leader and in sync"),
    ],
)
def test_partitions(leader: int, isr: list[int], words: str) -> None:
    partition = {"partition_index": 0, "leader_id": leader, "replica_nodes": [1, 2]}
    topics = [{"name": "t", "partitions": [partition | {"isr_nodes": isr}]}]
    (finding,) = partition_findings(topics)
    assert finding == Finding(len(isr) == 2, words)


def test_each_partition_that_is_not_well_is_told_and_of_the_others_nothing() -> None:
    well = {"leader_id": 0, "replica_nodes": [1], "isr_nodes": [1]}
    bad = well | {"isr_nodes": []}
    partitions = [{"partition_index": n} | one for n, one in enumerate((well, bad, bad))]
    found = partition_findings([{"name": "t", "partitions": partitions}])
    assert [finding.text.split()[0] for finding in found] == ["t-1", "t-2"]
    (found_well,) = partition_findings([{"name": "t", "partitions": partitions[:1]}] * 2)
    assert found_well.text.startswith("2 partitions, each")


class Client:
    """A KafkaAdminClient that answers, or raises an error of this name, when it is asked for the
    quorum."""

    def __init__(self, answer: dict[str, int] | str) -> None:
        self._answer = answer

    def describe_metadata_quorum(self) -> dict[str, Any]:
        from kafka import errors

        if isinstance(self._answer, str):
            raise getattr(errors, self._answer)
        return {"topics": [{"partitions": [self._answer]}]}


@pytest.mark.parametrize(
    ("answer", "is_well", "words"),
    [
        ({"leader_id": 2}, True, "the quorum is led by node 2"),
        ({"leader_id": 0}, True, "the quorum is led by node 0"),
        ({"leader_id": 2, "error_code": 6}, False, "quorum lost: it has no leader"),
        ({"leader_id": -1}, False, "quorum lost: it has no leader"),
        ("ClusterAuthorizationFailedError", False, "that takes describe on the cluster"),
        ("KafkaTimeoutError", False, "its leader does not answer (KafkaTimeoutError)"),
    ],
)
def test_the_quorum(answer: dict[str, int] | str, is_well: bool, words: str) -> None:
    (finding,) = quorum_findings(Client(answer))
    assert finding.is_well == is_well
    assert words in finding.text


@pytest.mark.parametrize("error", ["IncompatibleBrokerVersion", "UnsupportedVersionError"])
def test_a_cluster_without_a_quorum_has_not_lost_it(error: str) -> None:
    assert quorum_findings(Client(error)) == []


class Net:
    """What answers at which address: a broker's answer, another program (None), or the failure of
    a dial; nobody listens elsewhere. And what the whole cluster says of itself."""

    def __init__(self, at: dict[Address, Answer | Exception | None]) -> None:
        self.at = at
        self.dialled: list[tuple[str, int, float]] = []
        self.looks = 0
        self.brokers: list[dict[str, Any]] = [{"broker_id": 0}]
        self.refusal: Exception | None = None

    def dial(self, host: str, port: int, timeout_s: float, _security: object) -> None:
        self.dialled.append((host, port, timeout_s))
        found = self.at.get((host, port), ConnectionRefusedError(111, "Connection refused"))
        if isinstance(found, Exception):
            raise found

    def client(self, bootstrap: str) -> Any:
        from kafka.errors import KafkaTimeoutError

        host, _colon, port = bootstrap.rpartition(":")
        found = self.at[host, int(port)]
        if not isinstance(found, Answer):
            raise KafkaTimeoutError
        brokers = [
            SimpleNamespace(node_id=node, host=address[0], port=address[1])
            for node, address in found.brokers.items()
        ]
        cluster = SimpleNamespace(cluster_id=found.cluster_id, brokers=lambda: brokers)
        return SimpleNamespace(_manager=SimpleNamespace(cluster=cluster), close=lambda: None)

    def describe_cluster(self) -> dict[str, Any]:
        self.looks += 1
        if self.refusal is not None:
            raise self.refusal
        return {"brokers": self.brokers}

    def describe_topics(self) -> list[dict[str, Any]]:
        return []

    def describe_metadata_quorum(self) -> dict[str, Any]:
        return {"topics": [{"partitions": [{"leader_id": 0}]}]}


_QUORUM = Finding(True, "the quorum is led by node 0")
A, B = ("10.0.0.1", 9092), ("10.0.0.2", 9092)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    """Of a cluster of node 0 at A and node 1 at B, all well."""
    answer = Answer("one", {0: A, 1: B})
    played = Net({A: answer, B: answer})
    monkeypatch.setattr(doctor, "dial", played.dial)
    monkeypatch.setattr(doctor, "settings", lambda told: {"bootstrap": told.bootstrap})
    monkeypatch.setattr(doctor, "admin_client", lambda _told: contextlib.nullcontext(played))
    monkeypatch.setattr("kafka.KafkaAdminClient", played.client)
    return played


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["doctor", *flags])
    return int(arguments.run(arguments))


def found_at(capsys: pytest.CaptureFixture[str], bootstrap: str) -> list[Finding]:
    """What is said of it; the exit code must agree."""
    code = run("--bootstrap", bootstrap, "--json")
    findings = [Finding(**one) for one in json.loads(capsys.readouterr().out)]
    assert code == (0 if all(finding.is_well for finding in findings) else 1)
    return findings


def test_a_cluster_that_is_well_has_each_of_its_nodes_dialled(
    net: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--bootstrap", "10.0.0.1:9092", "--timeout", "2.5") == 0
    assert capsys.readouterr().out == (
        "ok     bootstrap address 10.0.0.1:9092 answers: cluster one, 2 brokers alive\n"
        "ok     node 0 is advertised as 10.0.0.1:9092 and answers\n"
        "ok     node 1 is advertised as 10.0.0.2:9092 and answers\n"
        "ok     0 partitions, each with a leader and in sync\n"
        "ok     the quorum is led by node 0\n"
    )
    assert set(net.dialled) == {(*A, 2.5), (*B, 2.5)}


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (socket.gaierror(-2, "?"), "the name does not resolve; is the name right"),
        (TimeoutError(), "no answer in time; is there a firewall"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused; is a broker runn"),
        (OSError("Authentication failed"), "Authentication failed; does the file of --client-con"),
        (OSError("SASL PLAIN is not offered"), "SASL PLAIN is not offered; does the file of --cli"),
        (OSError("the peer closed the connection"), "the peer closed the connection; does the f"),
        (OSError("no TLS there"), "no TLS there; does the file of --client-config fit"),
    ],
)
def test_a_bootstrap_address_that_cannot_be_dialled_is_told_with_what_to_look_at(
    net: Net, capsys: pytest.CaptureFixture[str], failure: OSError, told: str
) -> None:
    net.at[A] = failure
    (finding,) = found_at(capsys, "10.0.0.1:9092")
    assert finding.text.startswith(f"bootstrap address 10.0.0.1:9092: {told}")
    assert run("--bootstrap", "10.0.0.1:9092") == 1
    assert capsys.readouterr().out.startswith("WRONG  bootstrap address 10.0.0.1:9092")
    assert net.looks == 0


def test_another_program_at_a_bootstrap_address_is_no_broker(
    net: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    net.at[A] = None
    (finding,) = found_at(capsys, "10.0.0.1:9092")
    assert "10.0.0.1:9092 takes connections but does not answer as a Kafka broker" in finding.text


def test_a_broker_that_knows_of_none_alive_is_not_well(
    net: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    net.at[A] = Answer("one", {})
    (finding,) = found_at(capsys, "10.0.0.1:9092")
    assert finding.text.endswith("cluster one, 0 brokers alive")
    assert not finding.is_well


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (
            TimeoutError(),
            ", which cannot be dialled from here: no answer in time; is the node down",
        ),
        (None, ", which takes connections but does not answer as a Kafka broker"),
        (Answer("two", {0: B}), ", but there answers a broker of cluster two; set advertised.list"),
    ],
)
def test_a_node_that_clients_will_not_reach_is_told(
    net: Net, capsys: pytest.CaptureFixture[str], at: Any, told: str
) -> None:
    net.at[B] = at
    first, second, third = found_at(capsys, "10.0.0.1:9092")
    assert (first.is_well, second.is_well, third.is_well) == (True, True, False)
    assert third.text.startswith(f"node 1 is advertised as 10.0.0.2:9092{told}")
    assert net.looks == 0, "of a cluster that cannot be reached nothing more is asked"


def test_a_node_that_is_advertised_as_everybodys_own_machine_is_wrong_from_another(
    net: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("127.0.0.1", 9092)
    net.at = {A: Answer("one", {0: here}), here: Answer("one", {0: here})}
    _first, finding = found_at(capsys, "10.0.0.1:9092")
    assert finding.text.startswith("node 0 is advertised as 127.0.0.1:9092, where every client fi")
    assert not finding.is_well
    assert {host for host, *_ in net.dialled} == {"10.0.0.1"}
    assert all(finding.is_well for finding in found_at(capsys, "127.0.0.1:9092"))


def test_a_node_that_is_fenced_is_told(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    fenced = {"broker_id": 1, "is_fenced": True}
    net.brokers = [{"broker_id": 0, "is_fenced": False}, fenced]
    *_, finding, partitions, quorum = found_at(capsys, "10.0.0.1:9092")
    assert finding.text.startswith("node 1 is fenced")
    assert (finding.is_well, partitions.is_well, quorum) == (False, True, _QUORUM)


def test_a_cluster_that_does_not_describe_itself_is_not_well(
    net: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    from kafka.errors import KafkaTimeoutError

    net.refusal = KafkaTimeoutError()
    *_, finding, quorum = found_at(capsys, "10.0.0.1:9092")
    assert finding.text.startswith("the cluster does not describe itself: ")
    assert (finding.is_well, quorum) == (False, _QUORUM)
