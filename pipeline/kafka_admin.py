"""What the driver asks of a broker before and after Spark's work: topics, offsets, creation.

Why through the JVM: Spark's connector brings Kafka's own Java client, which knows every security
setting a person may pass; so that `--client-property` means the same here and in Spark's source.
Every call has a deadline: Spark itself would wait minutes for a broker that is not there.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.errors import PipelineError

_CALL_TIMEOUT_MS = 15_000
_CONNECT_TIMEOUT_S = 5.0

Offsets = dict[tuple[str, int], int]


class KafkaAdmin:
    """Kafka's Java admin client. A context manager; raises PipelineError for what is missing."""

    def __init__(self, jvm: Any, bootstrap: str, properties: Mapping[str, str]) -> None:
        check_reachable(bootstrap)
        self._jvm = jvm
        self._bootstrap = bootstrap
        settings = jvm.java.util.Properties()
        settings.setProperty("bootstrap.servers", bootstrap)
        settings.setProperty("default.api.timeout.ms", str(_CALL_TIMEOUT_MS))
        settings.setProperty("request.timeout.ms", str(_CALL_TIMEOUT_MS - 5000))
        for key, value in properties.items():
            settings.setProperty(key, value)
        self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._admin.close(self._jvm.java.time.Duration.ofSeconds(2))

    def topics(self) -> list[str]:
        """Names of all topics that are not internal."""
        return sorted(self._get(self._admin.listTopics().names()))

    def matching(self, pattern: str) -> list[str]:
        """Topics whose whole name matches. Raises PipelineError for none and for a bad pattern."""
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise PipelineError(
                f"--pattern {pattern!r} is no regular expression: {error}"
            ) from None
        found = [topic for topic in self.topics() if compiled.fullmatch(topic)]
        if not found:
            raise PipelineError(
                f"no topic of {self._bootstrap} matches {pattern!r}; there are:"
                f" {_some(self.topics())}"
            )
        return found

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Partitions of each topic; the ones that do not exist are left out."""
        existing = set(self.topics()) & set(topics)
        if not existing:
            return {}
        described = self._get(self._admin.describeTopics(self._list(existing)).allTopicNames())
        return {str(name): described[name].partitions().size() for name in described}

    def require(self, topics: Sequence[str]) -> dict[str, int]:
        """Partition counts; raises PipelineError that names what is missing and what there is."""
        counts = self.partition_counts(topics)
        missing = [topic for topic in topics if topic not in counts]
        if missing:
            raise PipelineError(
                f"no topic {', '.join(missing)} on {self._bootstrap}; there are:"
                f" {_some(self.topics())}"
            )
        return counts

    def earliest(self, counts: Mapping[str, int]) -> Offsets:
        return self._offsets(counts, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def latest(self, counts: Mapping[str, int]) -> Offsets:
        """End offsets: high watermarks, whatever transactions are open."""
        return self._offsets(counts, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest())

    def create(self, counts: Mapping[str, int]) -> None:
        """Create topics with these partition counts and the broker's default replication."""
        empty = self._jvm.java.util.Optional.empty()
        topics = [
            self._jvm.org.apache.kafka.clients.admin.NewTopic(
                name, self._jvm.java.util.Optional.of(count), empty
            )
            for name, count in counts.items()
        ]
        self._get(self._admin.createTopics(self._list(topics)).all())

    def _offsets(self, counts: Mapping[str, int], spec: Any) -> Offsets:
        new_partition = self._jvm.org.apache.kafka.common.TopicPartition
        wanted = self._jvm.java.util.HashMap()
        for topic, count in counts.items():
            for index in range(count):
                wanted.put(new_partition(topic, index), spec)
        if wanted.isEmpty():
            return {}
        found = self._get(self._admin.listOffsets(wanted).all())
        return {(str(key.topic()), int(key.partition())): found[key].offset() for key in found}

    def _list(self, values: Any) -> Any:
        made = self._jvm.java.util.ArrayList()
        for value in values:
            made.add(value)
        return made

    def _get(self, future: Any) -> Any:
        unit = self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        try:
            return future.get(_CALL_TIMEOUT_MS, unit)
        except Exception as error:
            if "TimeoutException" in str(error):
                raise PipelineError(
                    f"the broker at {self._bootstrap} accepts connections but gives no answer;"
                    " check that it is a Kafka listener of the protocol you set"
                    " (--client-property security.protocol=...) and that its advertised address"
                    " can be reached from here"
                ) from error
            raise


def check_reachable(bootstrap: str) -> None:
    """Raise PipelineError unless one of the addresses accepts connections."""
    problems: list[str] = []
    for address in bootstrap.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not colon or not port.isdigit():
            raise PipelineError(f"--bootstrap {address!r}: expected HOST:PORT", 2)
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            problems.append(f"{address.strip()}: {error.strerror or error}")
    raise PipelineError(
        f"no broker answers ({'; '.join(problems)}); start one (`barnabas start`), or check"
        " --bootstrap"
    )


def _some(names: Sequence[str], limit: int = 8) -> str:
    if not names:
        return "none at all"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
