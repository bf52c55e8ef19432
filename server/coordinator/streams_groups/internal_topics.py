"""Topics of streams groups that are being made on their clients' behalf, or could not be (ST-11).

Why: every member of a group is told of the same missing topics, and comes again with each
heartbeat. A topic is asked for once at a time, and one that could not be made is left alone for a
while, in which members are told why.

Kafka: AutoTopicCreationManager. One per broker; any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from server.coordinator.streams_groups.topology import InternalTopic
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import CreateTopicsRequest, CreateTopicsResponse

_FAILURES_MAX = 1_000
_FROM_BROKER = -1
"""A replication factor that the broker's configuration says."""


class _Failure(NamedTuple):
    until_ms: int
    why: str


class InternalTopics:
    """See the module. `now_ms` tells monotonic time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._asked: set[str] = set()  # guarded by _lock
        self._failures: dict[str, _Failure] = {}  # guarded by _lock

    def take(self, topics: Iterable[InternalTopic]) -> list[InternalTopic]:
        """Those that the caller is to ask for; `answered` must follow."""
        now_ms = self._now_ms()
        with self._lock:
            taken = [
                topic
                for topic in topics
                if topic.name not in self._asked and not self._has_failed(topic.name, now_ms)
            ]
            self._asked.update(topic.name for topic in taken)
        return taken

    def answered(
        self,
        topics: Iterable[InternalTopic],
        answer: CreateTopicsResponse | KafkaError,
        keep_ms: int,
    ) -> None:
        """What became of them; failures are remembered for `keep_ms`."""
        names = [topic.name for topic in topics]
        if isinstance(answer, KafkaError):
            failed = dict.fromkeys(names, answer.detail or answer.code.name)
        else:
            failed = {
                topic.name: topic.error_message or ErrorCode(topic.error_code).name
                for topic in answer.topics
                if topic.error_code
            }
        until_ms = self._now_ms() + keep_ms
        with self._lock:
            self._asked.difference_update(names)
            for name, why in failed.items():
                self._failures.pop(name, None)
                self._failures[name] = _Failure(until_ms, why)
            while len(self._failures) > _FAILURES_MAX:
                del self._failures[next(iter(self._failures))]

    def failures(self, topics: Iterable[InternalTopic]) -> dict[str, str]:
        """Why those of these that failed lately did."""
        now_ms = self._now_ms()
        with self._lock:
            return {
                topic.name: self._failures[topic.name].why
                for topic in topics
                if self._has_failed(topic.name, now_ms)
            }

    def _has_failed(self, name: str, now_ms: int) -> bool:
        failure = self._failures.get(name)
        if failure is not None and failure.until_ms <= now_ms:
            del self._failures[name]
            return False
        return failure is not None


def creation_of(topics: Iterable[InternalTopic], timeout_ms: int) -> CreateTopicsRequest:
    """What makes them."""
    make = CreateTopicsRequest.Topic
    return CreateTopicsRequest(
        topics=[
            make(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor or _FROM_BROKER,
                assignments=[],
                configs=[make.Config(name=name, value=value) for name, value in topic.configs],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=False,
    )
