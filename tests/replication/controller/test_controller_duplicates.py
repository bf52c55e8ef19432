"""What a request names twice is found in work that grows with the request, not with its square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.replication.controller_support import Cluster, new_topic
from wire.errors import ErrorCode
from wire.messages.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from wire.primitives import ZERO_UUID


class Counted(str):
    """A name that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def create(cluster: Cluster, names: list[str]) -> Any:
    return cluster.create_topics(*[new_topic(name, 0, 1) for name in names]).topics


def delete(cluster: Cluster, names: list[str]) -> Any:
    topics = [DeleteTopicsRequest.Topic(name=name, topic_id=ZERO_UUID) for name in names]
    return cluster.delete_topics(DeleteTopicsRequest(topics=topics, timeout_ms=1)).responses


def extend(cluster: Cluster, names: list[str]) -> Any:
    topic = CreatePartitionsRequest.Topic
    return cluster.create_partitions(
        *[topic(name=name, count=2, assignments=None) for name in names]
    ).results


def alter(cluster: Cluster, names: list[str]) -> Any:
    resource = AlterConfigsRequest.Resource
    return cluster.alter(
        *[resource(resource_type=2, resource_name=name, configs=[]) for name in names]
    ).responses


def incremental_alter(cluster: Cluster, names: list[str]) -> Any:
    resource = IncrementalAlterConfigsRequest.Resource
    return cluster.incremental_alter(
        *[resource(resource_type=2, resource_name=name, configs=[]) for name in names]
    ).responses


@pytest.mark.parametrize("serve", [create, delete, extend, alter, incremental_alter])
def test_8000_names_and_one_of_them_twice_are_compared_a_few_times_each(
    serve: Callable[[Cluster, list[str]], Any],
) -> None:
    cluster = Cluster()
    cluster.start_broker()
    names: list[str] = [Counted(f"t{number}") for number in range(8000)]
    names.append(Counted("t17"))  # without one, the old check of CreateTopics took a shorter way
    Counted.compared = 0
    answers = serve(cluster, names)
    assert Counted.compared < 20 * len(names)
    refused = [answer for answer in answers if answer.error_code == ErrorCode.INVALID_REQUEST]
    assert refused
