from __future__ import annotations

import pytest

from barnabas.client_commands.doctor import (
    Answer,
    Finding,
    is_here,
    is_of_one_machine,
    merge,
    partition_findings,
)


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
