"""What there is, is asked in several questions; between two of them it may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline.spark import kafka_admin
from pipeline.spark.kafka_admin import KafkaAdmin


class Client:
    """Kafka's client of a broker with `topics`; each one of `leaving` is deleted once listed."""

    def __init__(self, topics: dict[str, int], leaving: set[str]) -> None:
        self._topics, self._leaving = topics, leaving

    def listTopics(self) -> Any:  # noqa: N802
        listed = MagicMock()
        listed.names().get.return_value = set(self._topics)
        for name in self._leaving & set(self._topics):
            del self._topics[name]
        return listed

    def describeTopics(self, names: Sequence[str]) -> Any:  # noqa: N802
        described = MagicMock()
        future = described.allTopicNames()
        if set(names) <= set(self._topics):
            future.get.return_value = {name: self._description(name) for name in names}
        else:
            future.get.side_effect = RuntimeError("java.UnknownTopicOrPartitionException: gone")
        return described

    def _description(self, name: str) -> Any:
        one = MagicMock()
        one.partitions().size.return_value = self._topics[name]
        return one


def test_a_topic_that_is_deleted_between_two_questions_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_admin, "check_reachable", lambda _bootstrap: None)
    monkeypatch.setattr(kafka_admin, "_AGAIN_S", 0)
    jvm = MagicMock()
    monkeypatch.setattr(KafkaAdmin, "_list", lambda _self, values: list(values))
    client = Client({"stays": 3, "goes": 1}, {"goes"})
    jvm.org.apache.kafka.clients.admin.AdminClient.create.return_value = client
    admin = KafkaAdmin(jvm, "localhost:1", {})
    assert admin.partition_counts(["stays", "goes"]) == {"stays": 3}
    client._topics["goes"] = 1
    assert admin.partition_counts(["goes"]) == {}
