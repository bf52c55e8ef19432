from __future__ import annotations

from typing import Any

import pytest

from barnabas.client_commands.doctor import (
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
    assert finding.text.endswith("different clusters: a:1 of one, b:2 of two")


def test_two_nodes_that_advertise_one_address_are_told() -> None:
    findings: list[Finding] = []
    merge({("a", 1): Answer("one", {1: ("a", 1), 2: ("a", 1)})}, findings)
    (finding,) = findings
    assert finding.text.startswith("nodes 1 and 2 both advertise a:1; set advertised.listeners")


@pytest.mark.parametrize(
    ("leader", "isr", "words"),
    [
        (-1, [], "t-0 has no leader: one of its nodes (1, 2) must come back"),
        (1, [1], "t-0 is under-replicated: not in sync 2"),
        (1, [1, 2], "1 partition, each with a leader and in sync"),
    ],
)
def test_partitions(leader: int, isr: list[int], words: str) -> None:
    partition = {"partition_index": 0, "leader_id": leader, "replica_nodes": [1, 2]}
    topics = [{"name": "t", "partitions": [partition | {"isr_nodes": isr}]}]
    (finding,) = partition_findings(topics)
    assert finding == Finding(len(isr) == 2, words)


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
