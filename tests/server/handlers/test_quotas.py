"""DescribeClientQuotas from the image; AlterClientQuotas on its way to the controller."""

from __future__ import annotations

import pytest

from replication.controller.context import ControllerContext
from replication.metadata.image import MetadataDelta
from server.peers import envelope
from tests.server.handler_support import Asked, FakeBroker, create_topics, created, image_of
from wire.errors import ErrorCode
from wire.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
)
from wire.messages.metadata_records import ClientQuotaRecord

EXACT, DEFAULT, ANY = 0, 1, 2
KEY = "consumer_byte_rate"


def asked_of(*entities):
    delta = MetadataDelta(image_of())
    for number, entity in enumerate(entities):
        parts = [
            ClientQuotaRecord.Entity(entity_type=kind, entity_name=name)
            for kind, name in entity.items()
        ]
        delta.replay(ClientQuotaRecord(entity=parts, key=KEY, value=float(number), remove=False))
    return Asked(FakeBroker(delta.apply(1, 1, 1)))


ALL = ({"user": "a"}, {"user": None}, {"user": "a", "client-id": "c"}, {"ip": "10.0.0.1"})


def described(*components, strict=False, version=1):
    make = DescribeClientQuotasRequest
    request = make(
        components=[
            make.Component(entity_type=kind, match_type=how, match=name)
            for kind, how, name in components
        ],
        strict=strict,
    )
    answer = asked_of(*ALL).ask(request, version)
    if answer.error_code:
        assert answer.entries is None
        return answer.error_code
    return sorted(value.value for one in answer.entries for value in one.values)


@pytest.mark.parametrize("version", [0, 1])
def test_which_entities_a_filter_means(version):
    ask = [described(*c, strict=s, version=version) for c, s in (
        ((), False), ((("user", EXACT, "a"),), False), ((("user", EXACT, "a"),), True),
        ((("user", DEFAULT, None),), False), ((("user", ANY, None),), False),
        ((("user", ANY, None), ("client-id", EXACT, "c")), True), ((("ip", ANY, None),), True),
    )]  # fmt: skip
    assert ask == [
        [0.0, 1.0, 2.0, 3.0], [0.0, 2.0], [0.0], [1.0], [0.0, 1.0, 2.0], [2.0], [3.0],
    ]  # fmt: skip


def test_values_are_told_in_the_order_of_kafkas_map():
    delta = MetadataDelta(image_of())
    entity = [ClientQuotaRecord.Entity(entity_type="user", entity_name="a")]
    for key in ("producer_byte_rate", "consumer_byte_rate", "request_percentage"):
        delta.replay(ClientQuotaRecord(entity=entity, key=key, value=1.0, remove=False))
    request = DescribeClientQuotasRequest(components=[], strict=False)
    (one,) = Asked(FakeBroker(delta.apply(1, 1, 1))).ask(request, 1).entries
    assert [value.key for value in one.values] == [
        "consumer_byte_rate", "request_percentage", "producer_byte_rate",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("team", EXACT, "x")], 35),
        ([("", EXACT, "x")], 42),
        ([("user", EXACT, "x"), ("user", ANY, None)], 42),
        ([("user", EXACT, None)], 42),
        ([("user", DEFAULT, "x")], 42),
        ([("user", 3, "x")], 42),
        ([("ip", ANY, None), ("user", ANY, None)], 42),
    ],
)
def test_what_is_no_filter(components, code):
    assert described(*components) == code


def test_changes_are_the_controllers():
    make = AlterClientQuotasRequest.Entry
    entry = make(
        entity=[make.Entity(entity_type="user", entity_name=None)],
        ops=[make.Op(key=KEY, value=1.0, remove=False)],
    )
    asked = asked_of()
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    asked.send(request, 1)
    passed_on, answer, _ = asked.broker.controller.submitted.popleft()
    assert passed_on.entries[0].ops[0].value == 1.0
    answer(AlterClientQuotasResponse(entries=[]))
    assert asked.received(request, 1).entries == []


def test_the_controllers_throttle_time_mutes_the_client_here_and_not_at_the_controller():
    """KIP-599: whoever the client is connected to keeps it waiting."""
    asked = asked_of()
    asked.send(create_topics(), 6)
    _, answer, _ = asked.broker.controller.submitted.popleft()
    answer(created(ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_time_ms=1_234))
    assert asked.processor.throttled_ms == [1_234]
    assert asked.received(create_topics(), 6).throttle_time_ms == 1_234
    active = asked_of()
    active.broker.role = "controller"
    active = Asked(active.broker)
    wrapped = envelope.wrap(create_topics(), ControllerContext("User:alice", 6, "c", "10.1.2.3"))
    active.send(wrapped, 0)
    _, answer, _ = active.broker.controller.submitted.popleft()
    answer(created(ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_time_ms=1_234))
    assert active.processor.throttled_ms == [0]
    inside = envelope.unwrap(create_topics(), 6, active.received(wrapped, 0))
    assert inside.throttle_time_ms == 1_234
