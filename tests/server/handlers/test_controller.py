"""What is handed to the controller, on both kinds of listener, and how its answer comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from server.handlers import CONTROLLER_APIS
from tests.server.handler_support import Asked, FakeBroker, image_of, topic_image
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    CreateTopicsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from wire.messages.quorum import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


def connected(role: str) -> Asked:
    broker = FakeBroker(image_of(topic_image("t")))
    broker.role = role
    return Asked(broker)


PARTITION = AlterPartitionRequest.Topic.Partition
MEMBER = PARTITION.BrokerState
ALTER_PARTITION = AlterPartitionRequest(
    broker_id=1,
    broker_epoch=17,
    topics=[
        AlterPartitionRequest.Topic(
            topic_id=b"\x05" * 16,
            partitions=[
                PARTITION(
                    partition_index=3, leader_epoch=4, leader_recovery_state=0, partition_epoch=9,
                    new_isr_with_epochs=[MEMBER(broker_id=1, broker_epoch=17)],
                )
            ],
        )
    ],
)  # fmt: skip

OF_BROKERS: list[tuple[Any, int, Any]] = [
    (
        BrokerRegistrationRequest(
            broker_id=2, cluster_id="c", incarnation_id=b"\x02" * 16, listeners=[], features=[],
            rack="r", log_dirs=[b"\x07" * 16], previous_broker_epoch=12,
        ),
        4,
        BrokerRegistrationResponse(error_code=0, broker_epoch=44),
    ),
    (
        BrokerHeartbeatRequest(
            broker_id=2, broker_epoch=44, current_metadata_offset=45, want_fence=False,
            want_shut_down=True, offline_log_dirs=[b"\x07" * 16],
        ),
        2,
        BrokerHeartbeatResponse(
            error_code=0, is_caught_up=True, is_fenced=False, should_shut_down=True
        ),
    ),
    (ALTER_PARTITION, 3, AlterPartitionResponse(error_code=0, topics=[])),
    (
        AllocateProducerIdsRequest(broker_id=2, broker_epoch=44),
        0,
        AllocateProducerIdsResponse(error_code=0, producer_id_start=3000, producer_id_len=1000),
    ),
    (
        ControllerRegistrationRequest(
            controller_id=3, incarnation_id=b"\x03" * 16, zk_migration_ready=False,
            listeners=[], features=[],
        ),
        0,
        ControllerRegistrationResponse(error_code=0, error_message=None),
    ),
    (
        AssignReplicasToDirsRequest(broker_id=2, broker_epoch=44, directories=[]),
        0,
        AssignReplicasToDirsResponse(error_code=0, directories=[]),
    ),
]  # fmt: skip
OF_CLIENTS: list[tuple[Any, int, Any]] = [
    (
        AlterPartitionReassignmentsRequest(topics=[]),
        1,
        AlterPartitionReassignmentsResponse(error_code=0, error_message=None, responses=[]),
    ),
    (
        ListPartitionReassignmentsRequest(topics=None),
        0,
        ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[]),
    ),
    (
        UnregisterBrokerRequest(broker_id=2),
        0,
        UnregisterBrokerResponse(error_code=0, error_message=None),
    ),
    (
        UpdateFeaturesRequest(feature_updates=[]),
        2,
        UpdateFeaturesResponse(error_code=0, error_message=None),
    ),
]
EVERY = [("controller", *row) for row in (*OF_BROKERS, *OF_CLIENTS)]
EVERY += [("broker", *row) for row in OF_CLIENTS]


@pytest.mark.parametrize(("role", "request_", "version", "response"), EVERY)
def test_the_controller_gets_the_request_and_its_answer_is_the_answer(
    role: str, request_: Any, version: int, response: Any
) -> None:
    asked = connected(role)
    asked.send(request_, version)
    assert asked.received(request_, version) is None, "it waits for the controller"
    submitted, on_complete, context = asked.broker.controller.submitted.popleft()
    assert submitted == request_
    assert context.api_version == version
    on_complete(response)
    assert asked.received(request_, version) == response


@pytest.mark.parametrize(("role", "request_", "version", "response"), EVERY)
def test_a_node_that_is_not_the_active_controller_says_so(
    role: str, request_: Any, version: int, response: Any
) -> None:
    asked = connected(role)
    asked.send(request_, version)
    _, on_complete, _ = asked.broker.controller.submitted.popleft()
    on_complete(KafkaError(ErrorCode.NOT_CONTROLLER, "not me"))
    assert asked.received(request_, version).error_code == ErrorCode.NOT_CONTROLLER


def test_topics_may_be_created_on_the_controllers_own_listener() -> None:
    asked = connected("controller")
    asked.send(CreateTopicsRequest(topics=[], validate_only=False), 7)
    assert len(asked.broker.controller.submitted) == 1


@pytest.mark.parametrize("key", [62, 63, 56, 67, 70, 73])
def test_what_brokers_ask_never_waits_behind_slow_requests(key: int) -> None:
    assert CONTROLLER_APIS[key].inline


# --- AlterReplicaLogDirs ------------------------------------------------------------------------


def test_each_replica_is_moved_or_refused_alone() -> None:
    asked = connected("broker")
    codes = {
        "/b": ErrorCode.REPLICA_NOT_AVAILABLE,
        "/broken": ErrorCode.KAFKA_STORAGE_ERROR,
        "/nowhere": ErrorCode.LOG_DIR_NOT_FOUND,
    }
    moved: list[tuple[tuple[str, int], str]] = []

    def alter(key: tuple[str, int], path: str) -> None:
        if path in codes:
            raise KafkaError(codes[path])
        moved.append((key, path))

    asked.broker.replica_manager = SimpleNamespace(alter_replica_log_dir=alter)
    directory = AlterReplicaLogDirsRequest.Directory

    def move(path: str, *indexes: int) -> AlterReplicaLogDirsRequest.Directory:
        return directory(path=path, topics=[directory.Topic(name="t", partitions=list(indexes))])

    request = AlterReplicaLogDirsRequest(
        dirs=[move("/a", 0, 1), move("/b", 7), move("/broken", 8), move("/nowhere", 9)]
    )
    for version in (1, 2):
        moved.clear()
        (topic,) = asked.ask(request, version).results
        assert topic.topic_name == "t"
        assert {p.partition_index: p.error_code for p in topic.partitions} == {
            0: ErrorCode.NONE,
            1: ErrorCode.NONE,
            7: ErrorCode.REPLICA_NOT_AVAILABLE,
            8: ErrorCode.KAFKA_STORAGE_ERROR,
            9: ErrorCode.LOG_DIR_NOT_FOUND,
        }
        assert moved == [(("t", 0), "/a"), (("t", 1), "/a")]
