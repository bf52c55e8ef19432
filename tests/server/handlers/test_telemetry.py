"""What clients are asked to measure, and what becomes of what they push (KIP-714)."""

from __future__ import annotations

import random

import pytest

from server.config.client_metrics import INSTANCES_MAX, ClientMetrics
from tests.server.handler_support import Asked, FakeBroker, image_of
from wire.messages.admin import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from wire.primitives import ZERO_UUID

OK, INVALID, UNSUPPORTED, THROTTLED, UNKNOWN, TOO_LARGE = 0, 42, 76, 89, 117, 118
ME = b"client-instance-"
DEFAULT_MS = 300_000


def broker(**subscriptions) -> Asked:
    asked = Asked(FakeBroker(image_of()))
    asked.channel.client_software = ("apache-kafka-java", "4.3.1")
    subscribe(asked, **subscriptions)
    return asked


def subscribe(asked, **subscriptions):
    asked.broker.client_metrics.update({
        name: {key.replace("_", "."): value for key, value in values.items()}
        for name, values in subscriptions.items()
    })  # fmt: skip


def get(asked, instance_id=ME):
    return asked.ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


def push(asked, subscription_id, instance_id=ME, *, size=10, codec=0, terminating=False):
    request = PushTelemetryRequest(
        client_instance_id=instance_id, subscription_id=subscription_id, terminating=terminating,
        compression_type=codec, metrics=bytes(size),
    )  # fmt: skip
    return asked.ask(request, 0).error_code


def later(asked, ms):
    asked.processor.now_ms += ms


def test_nobody_is_asked_for_anything_without_a_subscription():
    asked = broker()
    answer = get(asked, ZERO_UUID)
    assert (answer.error_code, answer.requested_metrics) == (OK, [])
    assert (answer.push_interval_ms, answer.telemetry_max_bytes) == (DEFAULT_MS, 1_000)
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert answer.client_instance_id != ZERO_UUID
    assert get(asked, ZERO_UUID).client_instance_id != answer.client_instance_id


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("", True),
        ("client_id=te.*", True),
        ("client_id=te", False),
        ("client_software_name = apache-kafka-java , client_software_version=4\\.3\\..*", True),
        ("client_software_name=apache-kafka-java,client_id=other", False),
        ("client_source_address=127.0.0.1,client_source_port=50000", True),
        ("client_instance_id=Y2xpZW50LWluc3RhbmNlLQ", True),
    ],
)
def test_all_expressions_of_a_match_must_fit(match, fits):
    asked = broker(one={"metrics": "org.apache.", "match": match})
    assert get(asked).requested_metrics == (["org.apache."] if fits else [])


def test_a_subscription_that_only_java_can_read_spares_the_others():
    asked = broker(java={"metrics": "a", "match": "client_id=\\p{Alpha}+"}, one={"metrics": "b"})
    assert get(asked).requested_metrics == ["b"]


def test_an_expression_of_the_operators_takes_no_longer_for_what_a_client_calls_itself():
    """By Python's own rules this one would take longer than the broker lives."""
    asked = broker(one={"metrics": "a", "match": "client_software_name=(a+)+b"})
    asked.channel.client_software = ("a" * 1_000, "1")
    assert get(asked).requested_metrics == []


def test_subscriptions_that_fit_are_put_together():
    asked = broker(
        one={"metrics": "b,a", "interval_ms": "60000"},
        two={"metrics": "a,c", "interval_ms": "1000"},
        other={"metrics": "*", "match": "client_id=nobody", "interval_ms": "100"},
    )
    answer = get(asked)
    assert (answer.requested_metrics, answer.push_interval_ms) == (["a", "b", "c"], 1_000)
    subscribe(asked, one={"metrics": "a"}, two={"metrics": "*"})
    assert get(asked).requested_metrics == ["*"]


def test_the_number_is_of_what_is_asked_and_the_same_at_every_broker():
    wanted = {"metrics": "a,b", "interval_ms": "1000"}
    number = get(broker(one=wanted)).subscription_id
    assert get(broker(another=wanted)).subscription_id == number
    assert get(broker(one={**wanted, "metrics": "a"})).subscription_id != number
    assert get(broker(one=wanted), b"another-instance").subscription_id != number


def test_a_push_comes_once_an_interval():
    asked = broker(one={"metrics": "*", "interval_ms": "1000"})
    number = get(asked).subscription_id
    assert get(asked).error_code == THROTTLED
    assert [push(asked, number) for _ in range(2)] == [OK, THROTTLED]
    later(asked, 999)
    assert (push(asked, number), get(asked).error_code) == (THROTTLED, THROTTLED)
    later(asked, 1)
    assert push(asked, number) == OK
    assert push(asked, number, terminating=True) == OK, "the last one may come at any time"
    later(asked, 1_000)
    assert push(asked, number) == INVALID, "it had said that it ends"


def test_a_change_is_told_at_once():
    asked = broker(one={"metrics": "a", "interval_ms": "1000"})
    number = get(asked).subscription_id
    subscribe(asked, one={"metrics": "b", "interval_ms": "1000"})
    assert push(asked, number) == UNKNOWN
    again = get(asked)
    assert (again.error_code, again.requested_metrics) == (OK, ["b"])
    later(asked, 1_000)
    assert push(asked, again.subscription_id) == OK


@pytest.mark.parametrize(
    ("pushed", "code"),
    [
        ({"size": 1_000}, OK),
        ({"size": 1_001}, TOO_LARGE),
        ({"codec": 4}, OK),
        ({"codec": 5}, UNSUPPORTED),
        ({"codec": -1}, UNSUPPORTED),
        ({"instance_id": ZERO_UUID}, INVALID),
        ({"instance_id": bytes(15) + b"\1"}, INVALID),
    ],
)
def test_what_is_pushed_is_bounded(pushed, code):
    asked = broker(one={"metrics": "*"})
    assert push(asked, get(asked).subscription_id, **pushed) == code


def test_who_connects_again_may_ask_again():
    asked = broker(one={"metrics": "*"})
    number = get(asked).subscription_id
    asked.channel.connection_id = 2
    answer = get(asked)
    assert (answer.error_code, answer.subscription_id) == (OK, number)


def test_invented_clients_take_a_bounded_memory():
    metrics = ClientMetrics(1_000)
    rng = random.Random(1)
    for _ in range(INSTANCES_MAX + 100):
        metrics.get(rng.randbytes(16), 1, {}, 0)
    assert len(metrics._instances) == INSTANCES_MAX


def test_a_huge_name_is_not_held_against_an_expression():
    metrics = ClientMetrics(1_000)
    metrics.update({"slow": {"metrics": "*", "match": "client_id=(a+)+b"}})
    assert metrics.get(ME, 1, {"client_id": "a" * 30_000}, 0).metrics == []
