"""A client's request inside an Envelope, on the active controller: who asks, what comes back.

The sender's end is in tests/server/peers/test_controller_channel.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from replication.controller.context import ControllerContext
from server.handlers import CONTROLLER_APIS
from server.peers import envelope
from tests.server.handler_support import (
    CLOSED,
    Asked,
    FakeBroker,
    create_topics,
    created,
    image_of,
)
from tests.server.wire_client import request_bytes
from wire.errors import ErrorCode, KafkaError
from wire.frame import SIZE_BYTES
from wire.messages.admin import ElectLeadersRequest, ElectLeadersResponse
from wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from wire.messages.quorum import BrokerHeartbeatRequest

CLIENT = ControllerContext("User:alice", 5, "client-7", "10.1.2.3")


@pytest.fixture
def controller() -> Asked:
    """A broker's connection to a controller; the connection itself is nobody's in particular."""
    broker = FakeBroker(image_of())
    broker.role = "controller"
    return Asked(broker)


def submitted(controller: Asked) -> Any:
    """(request, on_complete, context) of what reached the controller."""
    return controller.broker.controller.submitted.popleft()


def sealed(frame: bytes, **changes: Any) -> EnvelopeRequest:
    """An honest envelope, but for what is inside and `changes`."""
    honest: dict[str, Any] = {
        "request_data": frame,
        "request_principal": envelope.principal_bytes("User:alice"),
        "client_host_address": bytes((10, 1, 2, 3)),
    }
    return EnvelopeRequest(**(honest | changes))


def frame_of(request: Any, version: int, correlation_id: int = 5) -> bytes:
    """Header and body, without the size before them."""
    return request_bytes(request, version, correlation_id, "client-7")[SIZE_BYTES:]


# ---- what is inside is judged as if the client had come itself


def test_the_principal_address_client_id_and_version_are_those_of_the_client(controller) -> None:
    wrapped = envelope.wrap(create_topics(), CLIENT)
    assert controller.ask(wrapped, 0) is None, "it waits for the controller"
    request, on_complete, context = submitted(controller)
    assert request.topics[0].name == "orders"
    assert context == CLIENT
    assert controller.channel.principal != CLIENT.principal
    assert controller.channel.peer_host != CLIENT.client_host
    on_complete(created(ErrorCode.INVALID_REPLICATION_FACTOR))
    answer = envelope.unwrap(create_topics(), 5, controller.received(wrapped, 0))
    assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("principal", "host"),
    [("User:alice", "10.1.2.3"), ("Group:a:b", "2001:db8::1"), ("User:", "255.255.255.255")],
)
def test_any_client_is_told_from_any_other(controller, principal: str, host: str) -> None:
    client = CLIENT._replace(principal=principal, client_host=host)
    controller.send(envelope.wrap(create_topics(), client), 0)
    _, _, context = submitted(controller)
    assert (context.principal, context.client_host) == (principal, host)


@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_the_answer_inside_is_in_the_version_of_the_request_inside(controller, version) -> None:
    wrapped = envelope.wrap(create_topics(), CLIENT._replace(api_version=version))
    controller.send(wrapped, 0)
    _, on_complete, context = submitted(controller)
    assert context.api_version == version
    on_complete(created())
    answer = envelope.unwrap(create_topics(), version, controller.received(wrapped, 0))
    assert [(t.name, t.error_code) for t in answer.topics] == [("orders", 0)]


def test_the_answer_inside_has_the_correlation_id_of_the_request_inside(controller) -> None:
    wrapped = sealed(frame_of(create_topics(), 5, 4711))
    controller.send(wrapped, 0)
    _, on_complete, _ = submitted(controller)
    on_complete(created())
    assert bytes(controller.received(wrapped, 0).response_data[:4]) == (4711).to_bytes(4, "big")


# ---- errors of the request inside are the client's, not the envelope's


def test_a_refusal_of_the_controller_is_the_clients_answer(controller) -> None:
    request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000)
    wrapped = envelope.wrap(request, CLIENT._replace(api_version=2))
    controller.send(wrapped, 0)
    _, on_complete, _ = submitted(controller)
    on_complete(KafkaError(ErrorCode.POLICY_VIOLATION, "no"))
    answer = envelope.unwrap(request, 2, controller.received(wrapped, 0))
    assert isinstance(answer, ElectLeadersResponse)
    assert answer.error_code == ErrorCode.POLICY_VIOLATION


def test_a_refusal_before_the_controller_is_the_clients_answer_too(controller) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)

    controller.broker.controller.submit = refuses  # type: ignore[method-assign]
    answer = controller.ask(envelope.wrap(create_topics(), CLIENT), 0)
    assert answer.error_code == 0
    inside = envelope.unwrap(create_topics(), 5, answer)
    assert inside.topics[0].error_code == ErrorCode.POLICY_VIOLATION


def test_a_bug_in_the_handler_is_an_error_of_the_request_inside(controller, caplog) -> None:
    controller.broker.controller = None  # type: ignore[assignment]
    answer = controller.ask(envelope.wrap(create_topics(), CLIENT), 0)
    inside = envelope.unwrap(create_topics(), 5, answer)
    assert inside.topics[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "request failed" in caplog.text


def test_a_controller_that_is_not_active_says_so_on_the_envelope(controller) -> None:
    wrapped = envelope.wrap(create_topics(), CLIENT)
    controller.send(wrapped, 0)
    _, on_complete, _ = submitted(controller)
    on_complete(KafkaError(ErrorCode.NOT_CONTROLLER))
    answer = controller.received(wrapped, 0)
    assert (answer.error_code, answer.response_data) == (ErrorCode.NOT_CONTROLLER, None)


# ---- what is wrong with the envelope is the envelope's error


def refused(controller: Asked, wrapped: EnvelopeRequest) -> ErrorCode:
    """The envelope's error; nothing of what is inside happened, and the connection lives on."""
    answer = controller.ask(wrapped, 0)
    assert answer is not CLOSED
    assert isinstance(answer, EnvelopeResponse)
    assert answer.response_data is None
    assert not controller.broker.controller.submitted
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"request_principal": None}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"request_principal": b""}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"request_principal": b"\0\7x"}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"request_principal": b"\0\0\xff"}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"client_host_address": b""}, ErrorCode.INVALID_REQUEST),
        ({"client_host_address": b"12345"}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_who_asks_must_be_readable(controller, change: Mapping[str, Any], code: ErrorCode) -> None:
    assert refused(controller, sealed(frame_of(create_topics(), 5), **change)) == code


@pytest.mark.parametrize(
    "inner",
    [
        b"",
        b"\0\x13",
        frame_of(create_topics(), 5)[:-1],
        b"\0\x13\0\x05\0\0\0\0\xff\xff\0\x7f",  # claims more topics than there are bytes
        b"\0\x13\0\x63\0\0\0\0\xff\xff\0",  # CreateTopics v99
        b"\0\x13\xff\xff\0\0\0\0\xff\xff\0",  # CreateTopics v-1
    ],
)
def test_a_request_that_cannot_be_read_is_refused(controller, inner: bytes) -> None:
    assert refused(controller, sealed(inner)) == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "inner",
    [
        # A node's own requests never come through another one, ...
        frame_of(
            BrokerHeartbeatRequest(
                broker_id=1, broker_epoch=7, current_metadata_offset=3, want_fence=False,
                want_shut_down=False,
            ),
            1,
        ),
        # ... nor an envelope in an envelope, nor what each broker answers itself, ...
        frame_of(sealed(frame_of(create_topics(), 5)), 0),
        b"\0\x12\0\0\0\0\0\0\xff\xff",  # ApiVersions
        b"\0\x01\0\x0c\0\0\0\0\xff\xff\0",  # Fetch
        # ... nor what there is not.
        b"\x7f\xff\0\0\0\0\0\0\xff\xff",
    ],
    ids=["BrokerHeartbeat", "Envelope", "ApiVersions", "Fetch", "unknown"],
)  # fmt: skip
def test_only_what_brokers_pass_on_is_taken(controller, inner: bytes) -> None:
    assert refused(controller, sealed(inner)) == ErrorCode.INVALID_REQUEST


def test_what_brokers_pass_on_is_what_kafkas_do() -> None:
    """ApiKeys.forwardable of Kafka 4.3, as far as it is served."""
    forwardable = {api.name for api in CONTROLLER_APIS.values() if api.is_forwardable}
    assert forwardable == {
        "AddRaftVoter",
        "AllocateProducerIds",
        "AlterClientQuotas",
        "AlterConfigs",
        "AlterPartitionReassignments",
        "AlterUserScramCredentials",
        "CreateAcls",
        "CreateDelegationToken",
        "CreatePartitions",
        "CreateTopics",
        "DeleteAcls",
        "DeleteTopics",
        "DescribeQuorum",
        "ElectLeaders",
        "ExpireDelegationToken",
        "IncrementalAlterConfigs",
        "ListPartitionReassignments",
        "RemoveRaftVoter",
        "RenewDelegationToken",
        "UnregisterBroker",
        "UpdateFeatures",
    }


def test_a_refused_envelope_leaves_the_connection_as_it_was(controller) -> None:
    assert refused(controller, sealed(b"")) == ErrorCode.UNSUPPORTED_VERSION
    controller.send(envelope.wrap(create_topics(), CLIENT), 0)
    assert submitted(controller)[2] == CLIENT
