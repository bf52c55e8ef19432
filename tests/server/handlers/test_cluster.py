"""ApiVersions and DescribeCluster, as clients see them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.metadata.image import ControllerRegistration, Endpoint
from server.config.client_metrics import TELEMETRY_APIS
from server.handlers import BROKER_APIS, CONTROLLER_APIS
from server.handlers.cluster import ALL_CLUSTER_OPERATIONS
from tests.server.handler_support import (
    CLOSED,
    UNKNOWN_OPERATIONS,
    Asked,
    FakeBroker,
    broker_registration,
    connected,
    image_of,
    metadata_of_all,
    only_inside,
)
from wire.errors import ErrorCode
from wire.messages.cluster import (
    ApiVersionsRequest,
    DescribeClusterRequest,
)


def on_controller_listener(leader_id=3000, level=30):
    """Asks a node whose controllers 3000 and 3001 have said where they listen."""
    controllers = {
        n: ControllerRegistration(
            n, bytes(16), {"PLAINTEXT": Endpoint(f"controller-{n}", 9093, 0)}, {}
        )
        for n in (3000, 3001)
    }
    image = replace(image_of(), controllers=controllers, features={"metadata.version": level})
    broker = FakeBroker(image)
    broker.role = "controller"
    broker.raft.leader_id = leader_id
    return Asked(broker)


def controllers_please():
    return DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)


# ---- ApiVersions


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_served(version):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    answer = connected().ask(request, version)
    assert answer.error_code == 0
    keys = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
    assert len(keys) == len(answer.api_keys)
    assert keys.keys() == BROKER_APIS.keys() - TELEMETRY_APIS
    assert (keys[0], keys[1], keys[18]) == ((0, 13), (4, 18), (0, 4))
    assert keys[22] == (0, 5), "the unstable version of InitProducerId is hidden"


def test_telemetry_is_listed_while_metrics_are_asked_for():
    asked = connected()
    asked.broker.unlisted_apis = frozenset()
    keys = {one.api_key for one in asked.ask(ApiVersionsRequest(), 0).api_keys}
    assert keys == BROKER_APIS.keys()


def test_a_controller_listener_lists_its_own_apis():
    asked = on_controller_listener()
    answer = asked.ask(ApiVersionsRequest(), 0)
    assert {k.api_key for k in answer.api_keys} == set(CONTROLLER_APIS)
    asked.send(metadata_of_all(), 12)
    assert asked.received(metadata_of_all(), 12) == CLOSED, "Metadata is for clients"


def test_features_are_those_served_and_minimum_0_is_hidden_from_old_clients():
    asked = connected()
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    for version, names in (
        (3, ["metadata.version"]),
        (
            4,
            [
                "eligible.leader.replicas.version",
                "group.version",
                "kraft.version",
                "metadata.version",
                "share.version",
                "streams.version",
                "transaction.version",
            ],
        ),
    ):
        answer = asked.ask(request, version)
        assert [f.name for f in answer.supported_features] == names
        assert answer.finalized_features_epoch == 42
        assert {f.name: f.max_version_level for f in answer.finalized_features} == {
            "eligible.leader.replicas.version": 1,
            "metadata.version": 30,
        }
        assert answer.zk_migration_ready is False


def test_the_level_of_the_quorum_is_shown_once_it_has_one():
    asked = connected()
    asked.broker.raft.voters.kraft_version = 1
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    levels = {f.name: f.max_version_level for f in asked.ask(request, 4).finalized_features}
    assert levels["kraft.version"] == 1


@pytest.mark.parametrize(
    ("name", "version"),
    [("", "1"), ("a", ""), ("-a", "1"), ("a-", "1"), ("a b", "1"), ("a", "1\n"), ("a" * 300, "1")],
)
def test_an_odd_software_name_is_an_invalid_request(name, version):
    asked = connected()
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    answer = asked.ask(request, 3)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, [])
    assert asked.channel.client_software == ("unknown", "unknown")


@pytest.mark.parametrize("name", ["a", "librdkafka", "apache-kafka-java", "a.b-c.9"])
def test_usual_software_names_are_taken(name):
    asked = connected()
    request = ApiVersionsRequest(client_software_name=name, client_software_version="4.3.1")
    assert asked.ask(request, 4).error_code == 0
    assert asked.channel.client_software == (name, "4.3.1")


# ---- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(version):
    brokers = [broker_registration(1), broker_registration(2, fenced=True)]
    asked = connected(brokers=brokers)
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    answer = asked.ask(request, version)
    assert (answer.error_code, answer.cluster_id) == (0, "cluster-of-tests-01")
    assert (answer.controller_id, answer.endpoint_type) == (1, 1)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(1, "127.9.9.9", 4711)]
    assert answer.cluster_authorized_operations == UNKNOWN_OPERATIONS


def test_describe_cluster_leaves_out_brokers_without_this_listener():
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=False, include_fenced_brokers=True
    )
    answer = connected(brokers=[broker_registration(1), only_inside(2)]).ask(request, 2)
    assert [(b.broker_id, b.port) for b in answer.brokers] == [(1, 4711)]


def test_describe_cluster_shows_fenced_brokers_and_operations_when_asked():
    brokers = [broker_registration(1), broker_registration(2, fenced=True)]
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=True, include_fenced_brokers=True
    )
    answer = connected(brokers=brokers).ask(request, 2)
    assert [(b.broker_id, b.is_fenced) for b in answer.brokers] == [(1, False), (2, True)]
    assert answer.cluster_authorized_operations == ALL_CLUSTER_OPERATIONS


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE), (9, 115)],
)
def test_describe_cluster_refuses_other_endpoints(kind, code):
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=kind
    )
    answer = connected().ask(request, 1)
    assert (answer.error_code, answer.brokers) == (code, [])
    assert answer.error_message
    assert (answer.endpoint_type, answer.cluster_id) == (1, ""), "nothing but the error, as Kafka"


def test_describe_cluster_on_a_controller_listener_names_the_controllers():
    answer = on_controller_listener(leader_id=3001).ask(controllers_please(), 1)
    assert (answer.error_code, answer.endpoint_type, answer.controller_id) == (0, 2, 3001)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [
        (3000, "controller-3000", 9093),
        (3001, "controller-3001", 9093),
    ]


def test_a_controller_speaks_to_nobody_below_the_version_at_which_they_register():
    answer = on_controller_listener(level=14).ask(controllers_please(), 2)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert on_controller_listener(level=15).ask(controllers_please(), 2).error_code == 0


def test_an_active_controller_nobody_can_name_is_not_named():
    answer = on_controller_listener(leader_id=3002).ask(controllers_please(), 2)
    assert answer.controller_id == -1


def test_a_controller_listener_knows_no_brokers():
    asked = on_controller_listener()
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    assert asked.ask(request, 2).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert asked.ask(request, 0).error_code == ErrorCode.INVALID_REQUEST
