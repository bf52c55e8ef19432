"""AlterClientQuotas at the controller (ClientQuotaControlManager)."""

from __future__ import annotations

import pytest

from replication.controller.quotas import alter_client_quotas
from replication.metadata.image import EMPTY_IMAGE, MetadataDelta, image_records, replayed
from wire.messages.admin import AlterClientQuotasRequest

Entry = AlterClientQuotasRequest.Entry
RATE = "producer_byte_rate"


def entry(entity, *ops):
    return Entry(
        entity=[Entry.Entity(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[Entry.Op(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def altered(image, *entries, validate_only=False):
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    result = alter_client_quotas(image, request)
    codes = [one.error_code for one in result.response.entries]
    return replayed(image, result.records), codes, len(result.records)


def values(image):
    return sorted(record.value for record in image.client_quotas.values())


def test_quotas_are_set_changed_and_removed():
    alice, default = [("user", "alice")], [("user", None), ("client-id", "c")]
    image, codes, written = altered(
        EMPTY_IMAGE, entry(alice, (RATE, 10.0), ("request_percentage", 0.5)),
        entry(default, (RATE, 20.0)),
    )  # fmt: skip
    assert (codes, written, values(image)) == ([0, 0], 3, [0.5, 10.0, 20.0])
    same, codes, written = altered(image, entry(alice, (RATE, 10.0)), entry(default))
    assert (codes, written, values(same)) == ([0, 0], 0, values(image))
    _, _, written = altered(image, entry(alice, (RATE, 99.0)), validate_only=True)
    assert written == 0
    image, codes, written = altered(
        image,
        entry(alice, (RATE, None), ("consumer_byte_rate", None)),
        entry(default, (RATE, 21.0)),
    )
    assert (codes, written, values(image)) == ([0, 0], 2, [0.5, 21.0])
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(image_records(image))
    assert delta.apply(1, 1, 1).client_quotas == image.client_quotas


@pytest.mark.parametrize(
    "bad",
    [
        entry([], (RATE, 1.0)),
        entry([("user", "")], (RATE, 1.0)),
        entry([("team", "x")], (RATE, 1.0)),
        entry([("user", "x"), ("user", "y")], (RATE, 1.0)),
        entry([("ip", "10.0.0.1"), ("user", "x")], (RATE, 1.0)),
        entry([("ip", "localhost")], ("connection_creation_rate", 1.0)),
        entry([("ip", "10.0.0.1")], (RATE, 1.0)),
        entry([("ip", "10.0.0.1")], ("connection_creation_rate", 0.5)),
        entry([("ip", "10.0.0.1")], ("connection_creation_rate", 2.0**31)),
        entry([("user", "x")], ("connection_creation_rate", 1.0)),
        entry([("ip", None)], ("controller_mutation_rate", 1.0)),
        entry([("user", "x")], ("word", 1.0)),
        entry([("user", "x")], (RATE, -1.0)),
        entry([("user", "x")], (RATE, 1.5)),
        entry([("user", "x")], (RATE, float("nan"))),
        entry([("user", "x")], (RATE, float("inf"))),
        entry([("user", "x")], (RATE, 1e30)),
        entry([("user", "x")], (RATE, 1.0), (RATE, 2.0)),
    ],
)
def test_what_cannot_be_fails_alone(bad):
    image, codes, _ = altered(EMPTY_IMAGE, bad, entry([("user", "y")], (RATE, 1.0)))
    assert codes == [42, 0]
    assert values(image) == [1.0]


def test_each_kind_of_entity_has_its_quotas():
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    image, codes, written = altered(
        EMPTY_IMAGE,
        entry([("user", "x")], *((key, 7.0) for key in keys), ("controller_mutation_rate", 0.5)),
        entry([("ip", "10.0.0.1")], ("connection_creation_rate", 1.0)),
        entry([("ip", None)], ("connection_creation_rate", 2.0)),
    )
    assert (codes, written) == ([0, 0, 0], 6)
    assert values(image) == [0.5, 1.0, 2.0, 7.0, 7.0, 7.0]


def test_an_entity_twice_is_refused_twice():
    one = entry([("user", "x")], (RATE, 1.0))
    assert altered(EMPTY_IMAGE, one, one)[1:] == ([42, 42], 0)


def test_an_answer_names_the_parts_sorted_whatever_the_request_said_first():
    """As Kafka's map of two parts does; @platformatic/kafka's tests compare the answer."""
    request = AlterClientQuotasRequest(
        entries=[entry([("user", None), ("client-id", "c")], (RATE, 1.0))], validate_only=True
    )
    (answer,) = alter_client_quotas(EMPTY_IMAGE, request).response.entries
    parts = [(part.entity_type, part.entity_name) for part in answer.entity]
    assert parts == [("client-id", "c"), ("user", None)]
