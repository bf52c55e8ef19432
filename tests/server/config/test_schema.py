"""Config documentation: given when it is asked for, and for keys that exist."""

from __future__ import annotations

import pytest

from server.config.kafka_config import KafkaConfig, catalogue
from server.config.schema import TOPIC, describe_broker, documentation
from tests.server.handler_support import Asked, FakeBroker, image_of, topic_image
from wire.messages.admin import DescribeConfigsRequest


def described(version, **options):
    broker = FakeBroker(image_of(topic_image("t")))
    broker.config = KafkaConfig({})
    resource = DescribeConfigsRequest.Resource(
        resource_type=TOPIC, resource_name="t", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, **options)
    (result,) = Asked(broker).ask(request, version).results
    assert result.error_code == 0
    return {config.name: config.documentation for config in result.configs}


@pytest.mark.parametrize("version", [3, 4])
def test_every_topic_config_is_documented_when_asked(version):
    texts = described(version, include_documentation=True)
    assert "compact" in texts["cleanup.policy"]
    assert [name for name, text in texts.items() if not text] == []


def test_documentation_is_null_unless_asked_for():
    assert set(described(4, include_documentation=False).values()) == {None}


def test_every_documented_key_exists():
    keys = catalogue()
    known = {*keys.broker, *keys.topic, *keys.group, *keys.client_metrics}
    assert set(documentation()) <= known
    assert all(documentation().values())


def test_a_broker_key_has_the_text_of_its_topic_key_only_in_the_same_unit():
    texts = documentation()
    assert texts["log.retention.bytes"] == texts["retention.bytes"]
    assert "log.retention.hours" not in texts


def test_of_one_listener_a_key_is_told_as_of_all_and_a_secret_never():
    """An operator must see which store a node was told; who reads it may not have its password."""
    config = KafkaConfig({})
    prefix = "listener.name.client."
    config.update_dynamic(
        {
            f"{prefix}ssl.keystore.location": "own.pem",
            f"{prefix}ssl.key.password": "a-secret",
            f"{prefix}plain.sasl.jaas.config": "a-secret",
            "of.a.plugin": "a-secret",
        },
        {},
    )
    entries = {entry.name: entry for entry in describe_broker(config)}
    location = entries[f"{prefix}ssl.keystore.location"]
    assert (location.value, location.is_sensitive) == ("own.pem", False)
    assert [synonym.value for synonym in location.synonyms] == ["own.pem"]
    for name in (f"{prefix}ssl.key.password", f"{prefix}plain.sasl.jaas.config", "of.a.plugin"):
        assert entries[name].is_sensitive
    assert "a-secret" not in str(entries)
