"""What somebody without rights is told: Barnabas and Apache Kafka side by side, every API.

Both brokers have the StandardAuthorizer, and rules under which User:ANONYMOUS may do everything
from 127.0.0.1. The stranger is the same principal at 127.0.0.2. Every API that is served is asked
in every version; answers are compared field by field.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.handlers import BROKER_APIS
from testkit import jars
from testkit.brokers.nodes import ApacheKafka, Barnabas, RunningBroker
from testkit.require import require
from testkit.wait import eventually
from tests.server.handlers.access.test_table import request_of
from tests.server.wire_client import WireClient
from wire.errors import ErrorCode
from wire.frame import FrameReader
from wire.messages.admin import CreateTopicsRequest
from wire.messages.cluster import MetadataRequest
from wire.messages.groups import FindCoordinatorRequest, OffsetFetchRequest
from wire.messages.security import CreateAclsRequest, DeleteAclsRequest

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
_LOADING = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
FRIEND, STRANGER, HALF = "127.0.0.1", "127.0.0.2", "127.0.0.3"
EVERYTHING = ((2, "*"), (3, "*"), (4, "kafka-cluster"), (5, "*"), (6, "*"))

# Where two clusters differ whoever asks.
OF_THE_BROKER = {
    "throttle_time_ms", "cluster_id", "controller_id", "brokers", "host", "port", "node_id",
    "api_keys", "supported_features", "finalized_features", "finalized_features_epoch",
    "topic_id", "subscription_id",
}  # fmt: skip


class From(WireClient):
    """A client at an address of its own."""

    def __init__(self, bootstrap: str, host: str, timeout: float = 10.0) -> None:
        name, _, port = bootstrap.rpartition(":")
        self.sock = socket.create_connection(
            (name, int(port)), timeout=timeout, source_address=(host, 0)
        )
        self._reader = FrameReader(1 << 30)
        self._next_id = 100


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka: {missing}")
    where: Path = tmp_path_factory.mktemp("authorization")
    with ApacheKafka(where / "kafka", CONFIG) as kafka, Barnabas(where / "own", CONFIG) as own:
        both: list[RunningBroker] = [kafka, own]
        for broker in both:
            prepare(broker.bootstrap_servers)
        yield both


def prepare(bootstrap: str) -> None:
    topic = CreateTopicsRequest.Topic(
        name="t-0", num_partitions=3, replication_factor=1, assignments=[], configs=[]
    )
    with From(bootstrap, FRIEND, 30) as friend:
        created = friend.ask(
            CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False), 5
        )
        assert not created.topics[0].error_code
        rules = [
            CreateAclsRequest.Creation(
                resource_type=kind, resource_name=name, resource_pattern_type=3,
                principal="User:ANONYMOUS", host=FRIEND, operation=2, permission_type=3,
            )
            for kind, name in EVERYTHING
        ]  # fmt: skip
        rules += [
            CreateAclsRequest.Creation(
                resource_type=kind, resource_name="t-0", resource_pattern_type=3,
                principal="User:ANONYMOUS", host=HALF, operation=2, permission_type=3,
            )
            for kind in (2, 3, 5)
        ]  # fmt: skip
        answer = friend.ask(CreateAclsRequest(creations=rules), 3)
        assert [result.error_code for result in answer.results] == [0] * len(rules)
    asked = MetadataRequest(
        topics=[MetadataRequest.Topic(name="t-0")],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    with From(bootstrap, STRANGER) as stranger:
        eventually(lambda: stranger.ask(asked, 9).topics[0].error_code == 29)
    with From(bootstrap, FRIEND) as friend:
        eventually(lambda: is_coordinated(friend, "t-0"))


def is_coordinated(client: From, group: str) -> bool:
    """Does a coordinator answer for it: while one is made, two brokers say different things."""
    client.ask(FindCoordinatorRequest(key=group), 3)
    return client.ask(OffsetFetchRequest(group_id=group, topics=None), 7).error_code == 0


def shown(value: Any, version: int, name: str) -> dict[str, Any]:
    """What a caller sees, without the order of items (Kafka shuffles some) and the texts (Kafka's
    hold the request, LK-1)."""
    seen: dict[str, Any] = {}
    for field in type(value).schema:
        if not field.present(version) or field.name in OF_THE_BROKER:
            continue
        item = getattr(value, field.name)
        if field.kind == "[]struct" and item is not None:
            item = sorted((shown(one, version, name) for one in item), key=str)
        elif field.kind == "struct" and item is not None:
            item = shown(item, version, name)
        elif field.name == "error_message":
            item = bool(item)
        seen[field.name] = item
    if name == "DescribeTransactions":
        seen.pop("producer_epoch", None)  # of a transaction that is not shown: -1, Kafka says 0
    if name == "DescribeUserScramCredentials":
        seen.pop("results", None)  # Kafka has one for each user, without the name
        seen.pop("error_message", None)
    if name == "ListPartitionReassignments":
        seen.pop("topics", None)  # Kafka repeats what was asked, without replicas
    return seen


def asked_from(host: str, bootstrap: str, api: Any, version: int) -> Any:
    """What it is told; by a coordinator that loads what an earlier request had it make, once it has
    loaded that."""

    def answer() -> list[Any]:
        told = _asked_from(host, bootstrap, api, version)
        is_loading = isinstance(told, dict) and told.get("error_code") == _LOADING
        return [] if is_loading else [told]

    return eventually(answer, what=f"{api.name} of a coordinator that has loaded")[0]


def _asked_from(host: str, bootstrap: str, api: Any, version: int) -> Any:
    request = request_of(api, version)
    if hasattr(request, "timeout_ms"):
        request.timeout_ms = 10_000
    if api.name == "DescribeShareGroupOffsets":
        # Kafka's persister asks for half a minute for the state of a partition that is not there.
        for topic in (topic for group in request.groups for topic in group.topics):
            topic.partitions = [0]
    if api.name == "AlterShareGroupOffsets":
        # Of a topic that is there, but no partition that is named, Kafka makes an empty group.
        for topic in request.topics:
            topic.partitions[0].partition_index = 0
    try:
        with From(bootstrap, host) as stranger:
            return shown(stranger.ask(request, version), version, api.name)
    except EOFError:
        return "closed"


@pytest.mark.parametrize("api", list(BROKER_APIS.values()), ids=lambda api: api.name)
def test_a_stranger_is_told_the_same(brokers: list[Any], api: Any) -> None:
    for version in range(api.min_version, api.max_version + 1):
        kafka, own = (
            asked_from(STRANGER, broker.bootstrap_servers, api, version) for broker in brokers
        )
        if (api.name, version) == ("Produce", 13):
            continue  # ids that nobody has: a text of ours
        assert own == kafka, f"version {version}"


def refusals(seen: Any) -> Any:
    """What an answer says of t-1 and of the cluster; the rest is what the broker has."""
    if not isinstance(seen, dict):
        return seen
    kept: dict[str, Any] = {}
    for name, item in seen.items():
        if isinstance(item, list) and item and isinstance(item[0], dict):
            if told := [refusals(one) for one in item if "t-1" in str(one)]:
                kept[name] = told
        elif name == "error_code":
            kept[name] = item if item in (29, 30, 31, 53) else 0
        elif name in ("name", "topic", "topic_name", "group_id", "transactional_id", "key"):
            kept[name] = item
    return kept


@pytest.mark.parametrize("api", list(BROKER_APIS.values()), ids=lambda api: api.name)
def test_who_may_do_half_of_it_is_refused_the_same_half(brokers: list[Any], api: Any) -> None:
    for version in range(api.min_version, api.max_version + 1):
        kafka, own = (
            refusals(asked_from(HALF, broker.bootstrap_servers, api, version)) for broker in brokers
        )
        assert own == kafka, f"version {version}"


@pytest.mark.parametrize(
    "creation",
    [
        pytest.param((2, "t", 3, "User:a", "*", 3, 3), id="fine"),
        pytest.param((4, "t", 3, "User:a", "*", 3, 3), id="a cluster of another name"),
        pytest.param((2, "", 3, "User:a", "*", 3, 3), id="no name"),
        pytest.param((2, "t", 4, "alice", "*", 3, 3), id="no principal"),
        pytest.param((4, "kafka-cluster", 3, "User:a", "nowhere", 3, 2), id="reads clusters"),
        pytest.param((3, "*", 4, "User:*", "*", 2, 2), id="prefixed star"),
    ],
)
def test_rules_are_taken_and_refused_alike(brokers: list[Any], creation: Any) -> None:
    kind, name, pattern, principal, host, operation, permission = creation
    one = CreateAclsRequest.Creation(
        resource_type=kind, resource_name=name, resource_pattern_type=pattern,
        principal=principal, host=host, operation=operation, permission_type=permission,
    )  # fmt: skip
    matching = DeleteAclsRequest.Filter(
        resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern,
        principal_filter=principal, host_filter=host, operation=1, permission_type=1,
    )  # fmt: skip
    seen = []
    for broker in brokers:
        with From(broker.bootstrap_servers, FRIEND) as friend:
            created = friend.ask(CreateAclsRequest(creations=[one, one]), 3)
            deleted = friend.ask(DeleteAclsRequest(filters=[matching, matching]), 3)
        seen.append((shown(created, 3, ""), shown(deleted, 3, "")))
    assert seen[0] == seen[1]
