"""What there is, is asked in several questions; between two of them it may have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from unittest.mock import MagicMock

import pytest

from pipeline.broker_facts import Bounds, Groups
from pipeline.errors import PipelineError
from pipeline.spark import kafka_admin
from pipeline.spark.kafka_admin import KafkaAdmin, Offsets, check_reachable

_Kind = TypeVar("_Kind", bound=KafkaAdmin)


class Client:
    """Kafka's client of a broker with `topics`; each one of `leaving` is deleted once listed."""

    def __init__(self, topics: dict[str, int], leaving: set[str]) -> None:
        self._topics, self._leaving = topics, leaving
        self.ids = {name: f"id of {name}" for name in topics}

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
        one.topicId().toString.return_value = self.ids[name]
        return one


def admin_of(client: Client, monkeypatch: pytest.MonkeyPatch, kind: type[_Kind]) -> _Kind:
    monkeypatch.setattr(kafka_admin, "check_reachable", lambda _bootstrap: None)
    monkeypatch.setattr(kafka_admin, "_AGAIN_S", 0)
    monkeypatch.setattr(KafkaAdmin, "_list", lambda _self, values: list(values))
    jvm = MagicMock()
    jvm.org.apache.kafka.clients.admin.AdminClient.create.return_value = client
    return kind(jvm, "localhost:1", {})


def test_a_topic_that_is_deleted_between_two_questions_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client({"stays": 3, "goes": 1}, {"goes"})
    admin = admin_of(client, monkeypatch, KafkaAdmin)
    assert admin.partition_counts(["stays", "goes"]) == {"stays": 3}
    client._topics["goes"] = 1
    assert admin.partition_counts(["goes"]) == {}


class Surveyed(KafkaAdmin):
    """What a survey asks besides; `meanwhile` happens once, while offsets are asked for."""

    client: Client
    meanwhile: Callable[[], object] | None = None
    end = 5

    def committed(self, counts: Mapping[str, int]) -> Offsets:
        what, self.meanwhile = self.meanwhile, None
        if what is not None:
            what()
        if not set(counts) <= set(self.client._topics):
            raise RuntimeError("java.UnknownTopicOrPartitionException: gone")
        return {(name, index): self.end for name, count in counts.items() for index in range(count)}

    def earliest(self, counts: Mapping[str, int]) -> Offsets:
        return {(name, index): 0 for name, count in counts.items() for index in range(count)}

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        return {name: {} for name in topics}

    def _groups_by_topic(self, _topics: Mapping[str, int], _without: str) -> dict[str, Groups]:
        return {}


def surveyed(client: Client, monkeypatch: pytest.MonkeyPatch) -> Surveyed:
    admin = admin_of(client, monkeypatch, Surveyed)
    admin.client = client
    return admin


def test_a_topic_that_is_deleted_during_a_survey_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An archive that is kept up (`--every`) would end."""
    client = Client({"stays": 1, "goes": 1}, set())
    admin = surveyed(client, monkeypatch)
    admin.meanwhile = lambda: client._topics.pop("goes")
    assert list(admin.survey(["stays", "goes"], without_groups="-")) == ["stays"]


def test_offsets_of_a_topic_that_is_made_again_are_not_told_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client({"again": 1}, set())
    admin = surveyed(client, monkeypatch)

    def made_again() -> None:
        client.ids["again"], admin.end = "another id", 2

    admin.meanwhile = made_again
    (told,) = admin.survey(["again"], without_groups="-").values()
    assert (told.id, told.partitions) == ("another id", (Bounds(0, 2),))


def test_a_survey_that_fails_though_all_topics_are_there_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise RuntimeError("java.TopicAuthorizationException: no")

    admin = surveyed(Client({"stays": 1}, set()), monkeypatch)
    admin.meanwhile = refused
    with pytest.raises(RuntimeError, match="TopicAuthorizationException"):
        admin.survey(["stays"], without_groups="-")


@pytest.mark.parametrize(
    ("bootstrap", "code", "words"),
    [
        ("broker", 2, "expected HOST:PORT"),
        ("broker:99999", 2, "expected HOST:PORT"),
        ("broker:²", 2, "expected HOST:PORT"),
        ("broker..example:9092", 1, r"broker\.\.example:9092: the name does not resolve"),
        (f"{'x' * 64}.example:9092", 1, "the name does not resolve"),
        ("127.0.0.1:1", 1, "127.0.0.1:1: Connection refused"),
    ],
)
def test_an_address_that_is_none_is_one_line(bootstrap: str, code: int, words: str) -> None:
    with pytest.raises(PipelineError, match=words) as told:
        check_reachable(bootstrap)
    assert told.value.exit_code == code
