"""Internal topics are asked for once at a time, and not again while it is known why not (ST-11)."""

from __future__ import annotations

import pytest

from server.coordinator.streams_groups.internal_topics import InternalTopics, creation_of
from server.coordinator.streams_groups.topology import InternalTopic
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import CreateTopicsResponse

LOG = InternalTopic("log", 3, 0, (("cleanup.policy", "compact"),))
OTHER = InternalTopic("other", 1, 2, ())


def made(**codes: ErrorCode) -> CreateTopicsResponse:
    topic = CreateTopicsResponse.Topic.blank
    answers = []
    for name, code in codes.items():
        one = topic()
        one.name, one.error_code, one.error_message = name, int(code), None
        answers.append(one)
    return CreateTopicsResponse(topics=answers)


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def topics(clock: Clock) -> InternalTopics:
    return InternalTopics(clock)


def test_who_comes_meanwhile_does_not_ask_again(topics: InternalTopics) -> None:
    assert topics.take([LOG]) == [LOG]
    assert topics.take([LOG, OTHER]) == [OTHER]
    topics.answered([LOG], made(log=ErrorCode.NONE), 10_000)
    assert topics.take([LOG, OTHER]) == [LOG]


def test_a_failure_is_told_for_a_while(topics: InternalTopics, clock: Clock) -> None:
    topics.take([LOG, OTHER])
    answer = made(log=ErrorCode.INVALID_REPLICATION_FACTOR, other=ErrorCode.NONE)
    topics.answered([LOG, OTHER], answer, 10_000)
    assert topics.failures([LOG, OTHER]) == {"log": "INVALID_REPLICATION_FACTOR"}
    assert topics.take([LOG]) == []
    clock.now = 10_000
    assert topics.failures([LOG]) == {}
    assert topics.take([LOG]) == [LOG]


def test_no_answer_is_a_failure_of_all(topics: InternalTopics) -> None:
    topics.take([LOG, OTHER])
    topics.answered([LOG, OTHER], KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too late"), 10_000)
    assert topics.failures([LOG, OTHER]) == {"log": "too late", "other": "too late"}


def test_failures_are_bounded(topics: InternalTopics) -> None:
    many = [LOG._replace(name=str(number)) for number in range(1_500)]
    topics.answered(many, KafkaError(ErrorCode.REQUEST_TIMED_OUT), 10_000)
    assert len(topics.failures(many)) == 1_000


def test_they_are_made_as_the_topology_says() -> None:
    first, second = creation_of([LOG, OTHER], 7).topics
    assert (first.name, first.num_partitions, first.replication_factor) == ("log", 3, -1)
    assert [(one.name, one.value) for one in first.configs] == [("cleanup.policy", "compact")]
    assert second.replication_factor == 2
