"""`barnabas doctor`: why can nobody reach this cluster, or work with it?

It goes the way a client goes: resolve and dial the bootstrap addresses, ask them who the brokers
are, resolve, dial and ask each of these. What is wrong is one line each, with what to do about it.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import socket
from typing import Any, NamedTuple

from barnabas.client_commands.connection import (
    BOOTSTRAP,
    admin_client,
    dial,
    dial_error,
    settings,
)
from server.commands.client_config import add_client_config, client_config
from server.commands.health import RightsMissing
from server.commands.main import address_text, addresses, seconds
from server.commands.outcomes import EXIT_FAILURE, EXIT_OK, print_json

_NOT_KAFKA = (
    "takes connections but does not answer as a Kafka broker: a listener with TLS or SASL"
    " (--client-config), a controller's listener, a process that hangs, or another program?"
)
_SET = "set advertised.listeners of node {} to an address that clients reach"

Address = tuple[str, int]


class Finding(NamedTuple):
    """One thing that was looked at."""

    is_well: bool
    text: str


class Answer(NamedTuple):
    """What one address says about its cluster; `brokers` by node id, as they are advertised."""

    cluster_id: str
    brokers: dict[int, Address]


def add_commands(commands: Any) -> None:
    """Add `doctor` to the parser."""
    command = commands.add_parser(
        "doctor",
        help="find out why a cluster cannot be reached or used",
        description="Resolve and dial the bootstrap addresses, ask every node that is advertised,"
        " and say what is wrong, one line each. Exit code 0 if nothing is, else 1.",
    )
    command.add_argument(
        "--bootstrap", "--bootstrap-server", metavar="HOST:PORT[,...]", default=BOOTSTRAP
    )
    command.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=3.0, help="for each answer (3)"
    )
    add_client_config(command)
    command.add_argument("--json", action="store_true", help="print JSON, for programs")
    command.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    dialled = addresses(arguments.bootstrap)
    findings: list[Finding] = []
    answers: dict[Address, Answer] = {}
    for address in dialled:
        _ask_address(address, arguments, findings, answers)
    advertised = merge(answers, findings)
    for node, address in sorted(advertised.items()):
        _look_at_node(node, address, dialled, arguments, findings, answers)
    if all(finding.is_well for finding in findings):
        _look_at_cluster(arguments, findings)
    wrong = [finding for finding in findings if not finding.is_well]
    if arguments.json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            print(f"{'ok   ' if finding.is_well else 'WRONG'}  {finding.text}")
    return EXIT_FAILURE if wrong else EXIT_OK


def _ask_address(
    address: Address,
    arguments: argparse.Namespace,
    findings: list[Finding],
    answers: dict[Address, Answer],
) -> None:
    what = f"bootstrap address {address_text(*address)}"
    failure = _dial(address, arguments)
    if failure is not None:
        findings.append(Finding(False, f"{what}: {failure}; {_remedy(failure)}"))
        return
    answer = _ask(address, arguments)
    if answer is None:
        findings.append(Finding(False, f"{what} {_NOT_KAFKA}"))
        return
    answers[address] = answer
    alive = _counted(len(answer.brokers), "broker")
    text = f"{what} answers: cluster {answer.cluster_id}, {alive} alive"
    findings.append(Finding(bool(answer.brokers), text))


def _dial(address: Address, arguments: argparse.Namespace) -> str | None:
    """Why an address takes no connection, or no login; None when it does."""
    try:
        dial(*address, arguments.timeout, client_config(arguments))
    except (OSError, UnicodeError) as error:
        return dial_error(error)
    return None


def _remedy(failure: str) -> str:
    if "resolve" in failure:
        return "is the name right, and known to this machine (DNS, /etc/hosts)?"
    if any(word in failure for word in ("uthentication", "TLS", "SASL", "closed")):
        return "does the file of --client-config fit that listener?"
    if "in time" in failure:
        return "is there a firewall in between, or another machine behind the address?"
    return "is a broker running there? `barnabas start` starts one"


def _ask(address: Address, arguments: argparse.Namespace) -> Answer | None:
    """What this address says, whether or not what it advertises can be reached."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    here = argparse.Namespace(**{**vars(arguments), "bootstrap": address_text(*address)})
    try:
        with contextlib.closing(KafkaAdminClient(**settings(here))) as client:
            cluster = client._manager.cluster  # of the bootstrap: the client shows it nowhere else
            brokers = {int(b.node_id): (str(b.host), int(b.port)) for b in cluster.brokers()}
            return Answer(str(cluster.cluster_id), brokers)
    except (KafkaError, OSError):
        return None


def merge(answers: dict[Address, Answer], findings: list[Finding]) -> dict[int, Address]:
    """All brokers that the answers name; clusters and addresses must agree."""
    clusters = {answer.cluster_id for answer in answers.values()}
    if len(clusters) > 1:
        of = ", ".join(
            f"{address_text(*a)} of {answer.cluster_id}" for a, answer in answers.items()
        )
        findings.append(Finding(False, f"the bootstrap addresses are of different clusters: {of}"))
    advertised: dict[int, Address] = {}
    for answer in answers.values():
        for node, address in answer.brokers.items():
            advertised.setdefault(node, address)
    owners: dict[Address, int] = {}
    for node, address in sorted(advertised.items()):
        other = owners.setdefault(address, node)
        if other != node:
            both = f"nodes {other} and {node} both advertise {address_text(*address)}"
            findings.append(Finding(False, f"{both}; {_SET.format(node)}"))
    return advertised


def _look_at_node(
    node: int,
    address: Address,
    dialled: list[Address],
    arguments: argparse.Namespace,
    findings: list[Finding],
    answers: dict[Address, Answer],
) -> None:
    what = f"node {node} is advertised as {address_text(*address)}"
    if is_of_one_machine(address[0]) and not any(is_here(host) for host, _port in dialled):
        why = "where every client finds only its own machine"
        findings.append(Finding(False, f"{what}, {why}; {_SET.format(node)}"))
        return
    failure = _dial(address, arguments)
    if failure is not None:
        remedy = f"is the node down? start it; if not, {_SET.format(node)} (docs/deployment.md)"
        text = f"{what}, which cannot be dialled from here: {failure}; {remedy}"
        findings.append(Finding(False, text))
        return
    answer = answers.get(address) or _ask(address, arguments)
    if answer is None:
        findings.append(Finding(False, f"{what}, which {_NOT_KAFKA}"))
    elif answer.cluster_id not in {one.cluster_id for one in answers.values()}:
        text = f"{what}, but there answers a broker of cluster {answer.cluster_id}"
        findings.append(Finding(False, f"{text}; {_SET.format(node)}"))
    else:
        findings.append(Finding(True, f"{what} and answers"))


def is_of_one_machine(host: str) -> bool:
    """Is this an address that means another machine to everybody who dials it?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_here(host: str) -> bool:
    """Does this name mean the machine that we run on, by its loopback address?"""
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return any(is_of_one_machine(str(address[0])) for *_kind, address in found)


def _look_at_cluster(arguments: argparse.Namespace, findings: list[Finding]) -> None:
    """When all nodes can be reached: are they fenced, and is there a leader for everything?"""
    from kafka.errors import KafkaError

    with admin_client(arguments) as client:
        try:
            for broker in client.describe_cluster()["brokers"]:
                if broker.get("is_fenced"):
                    text = f"node {broker['broker_id']} is fenced: it is down, or cannot reach"
                    findings.append(Finding(False, f"{text} the controllers; see its log"))
            findings += partition_findings(client.describe_topics())
        except KafkaError as error:
            findings.append(Finding(False, f"the cluster does not describe itself: {error}"))
        findings += quorum_findings(client)


def quorum_findings(client: Any) -> list[Finding]:
    """One line of the metadata quorum; none of a cluster that has no such thing."""
    from kafka.errors import ClusterAuthorizationFailedError, KafkaError, UnsupportedVersionError

    try:
        quorum = client.describe_metadata_quorum()["topics"][0]["partitions"][0]
    except UnsupportedVersionError:
        return []  # with ZooKeeper, or of another make
    except ClusterAuthorizationFailedError:
        return [Finding(False, str(RightsMissing("describe")))]
    except KafkaError as error:
        name = type(error).__name__
        text = f"quorum lost: its leader does not answer ({name}); start the missing"
        return [Finding(False, f"{text} controllers: `barnabas cluster status`")]
    well = quorum.get("error_code", 0) == 0 and quorum["leader_id"] >= 0
    led = f"the quorum is led by node {quorum['leader_id']}"
    return [Finding(well, led if well else "quorum lost: it has no leader")]


def partition_findings(topics: list[dict[str, Any]]) -> list[Finding]:
    """One line for each partition that has no leader or lacks replicas; one when all are well."""
    findings, count = [], 0
    for topic in topics:
        for partition in topic["partitions"]:
            count += 1
            place = f"{topic['name']}-{partition['partition_index']}"
            missing = sorted(set(partition["replica_nodes"]) - set(partition["isr_nodes"]))
            if partition["leader_id"] < 0:
                replicas = ", ".join(map(str, partition["replica_nodes"]))
                text = f"{place} has no leader: one of its nodes ({replicas}) must come back"
                findings.append(Finding(False, text))
            elif missing:
                nodes = ", ".join(map(str, missing))
                findings.append(Finding(False, f"{place} is under-replicated: not in sync {nodes}"))
    partitions = _counted(count, "partition")
    return findings or [Finding(True, f"{partitions}, each with a leader and in sync")]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
