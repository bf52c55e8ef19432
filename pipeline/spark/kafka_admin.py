"""What the driver asks of a broker before and after Spark's work: topics, offsets, creation.

Why through the JVM: Spark's connector brings Kafka's own Java client, which knows every security
setting a person may pass; so that `--client-config` means the same here and in Spark's source.
Every call has a deadline: Spark itself would wait minutes for a broker that is not there.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.broker_facts import Bounds, BrokerTopic, Committed, Groups
from pipeline.errors import PipelineError, short
from pipeline.preflight import no_topics

_CALL_TIMEOUT_MS = 15_000
_CONNECT_TIMEOUT_S = 5.0
_AGAIN_S = 0.2
_NO_ID = "A" * 22
"""What brokers before topic ids answer (Kafka: Uuid.ZERO_UUID)."""
_OFFSETS_RETENTION_MS = 7 * 24 * 3_600_000
_OWN_CONFIG = "DYNAMIC_TOPIC_CONFIG"

Offsets = dict[tuple[str, int], int]
Positions = Mapping[tuple[str, int], Committed]
"""Of one group, by topic and partition."""


def _id_of(description: Any) -> str | None:
    """The id of a TopicDescription; None where the broker tells none."""
    topic_id = str(description.topicId().toString())
    return None if topic_id == _NO_ID else topic_id


def _ids(found: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: _id_of(one) for name, one in found.items()}


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
        try:
            self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        except Exception as error:
            raise PipelineError(
                "Kafka's client does not take what --client-config and --client-property say:"
                f" {short(error)}"
            ) from error

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._admin.close(self._jvm.java.time.Duration.ofSeconds(2))

    def topics(self) -> list[str]:
        """Names of all topics that are not internal."""
        return sorted(self._get(self._admin.listTopics().names()))

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Partitions of each topic; the ones that do not exist are left out."""
        return {name: int(one.partitions().size()) for name, one in self._existing(topics).items()}

    def require(self, topics: Sequence[str]) -> dict[str, int]:
        """Partition counts; raises PipelineError that names what is missing and what there is."""
        counts = self.partition_counts(topics)
        missing = [topic for topic in topics if topic not in counts]
        if missing:
            raise no_topics(self._bootstrap, missing, self.topics())
        return counts

    def survey(self, topics: Sequence[str], *, without_groups: str) -> dict[str, BrokerTopic]:
        """What the broker has of these topics; the ones that do not exist are left out, and so are
        groups whose names begin with `without_groups`.

        It takes several questions: who is deleted, or made again, meanwhile is asked for anew, so
        that what is told of a topic is told of one.
        """
        found = self._existing(topics)
        while True:
            asked = found
            try:
                facts = self._facts(asked, without_groups)
            except Exception:
                found = self._existing(topics)
                if _ids(found) == _ids(asked):
                    raise
                continue
            found = self._existing(topics)
            if _ids(found) == _ids(asked):
                return facts

    def _facts(self, found: Mapping[str, Any], without_groups: str) -> dict[str, BrokerTopic]:
        counts = {name: int(one.partitions().size()) for name, one in found.items()}
        if not counts:
            return {}
        earliest, committed = self.earliest(counts), self.committed(counts)
        configs = self.configs(sorted(counts))
        groups = self._groups_by_topic(counts, without_groups)
        return {
            name: BrokerTopic(
                _id_of(found[name]),
                tuple(
                    Bounds(earliest[name, index], committed[name, index]) for index in range(count)
                ),
                configs[name],
                groups.get(name, {}),
            )
            for name, count in counts.items()
        }

    def ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Ids of topics that there are, None where the broker tells none; waits for the ones that
        were created a moment ago, which not every broker knows yet."""
        return _ids(self._described(lambda: topics))

    def _existing(self, topics: Sequence[str]) -> dict[str, Any]:
        """Descriptions of those that there are. Who lists topics hears of one that may be gone when
        it is described, so what there is, is asked again then."""
        return self._described(lambda: set(self.topics()) & set(topics))

    def _described(self, wanted: Callable[[], Collection[str]]) -> dict[str, Any]:
        """Kafka's TopicDescription by name; what is not known is asked for, and waited for."""
        deadline = time.monotonic() + _CALL_TIMEOUT_MS / 1000
        while topics := wanted():
            try:
                found = self._get(self._admin.describeTopics(self._list(topics)).allTopicNames())
                return {str(name): found[name] for name in found}
            except Exception as error:
                if "UnknownTopicOrPartition" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_S)
        return {}

    def group_states(self) -> dict[str, str]:
        """State of each group that may have committed offsets: `Stable`, `Empty`, ..."""
        listed = self._get(self._admin.listConsumerGroups().valid())
        return {
            str(one.groupId()): str(one.state().get()) if one.state().isPresent() else ""
            for one in self._jvm.java.util.ArrayList(listed)
        }

    def positions(self, groups: Sequence[str]) -> dict[str, Positions]:
        """Committed offsets of each group; groups that this user may not see are left out."""
        everything = self._jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec
        asked = self._map({group: everything() for group in groups})
        listed = self._admin.listConsumerGroupOffsets(asked)
        positions: dict[str, Positions] = {}
        for group in groups:
            try:
                found = self._get(listed.partitionsToOffsetAndMetadata(group))
            except Exception as error:
                if "AuthorizationException" not in str(error):
                    raise
                continue
            positions[group] = {
                (str(key.topic()), int(key.partition())): Committed(
                    int(found[key].offset()), str(found[key].metadata())
                )
                for key in found
                if found[key] is not None
            }
        return positions

    def commit(self, group: str, positions: Positions) -> None:
        """Commit offsets of a group that has no members."""
        jvm = self._jvm
        new_partition = jvm.org.apache.kafka.common.TopicPartition
        new_offset = jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
        wanted = jvm.java.util.HashMap()
        for (topic, index), (offset, metadata) in positions.items():
            wanted.put(new_partition(topic, index), new_offset(offset, metadata))
        self._get(self._admin.alterConsumerGroupOffsets(group, wanted).all())

    def _groups_by_topic(self, topics: Mapping[str, int], without: str) -> dict[str, Groups]:
        names = sorted(name for name in self.group_states() if not name.startswith(without))
        found: dict[str, dict[str, dict[int, Committed]]] = {}
        for group, positions in self.positions(names).items():
            for (topic, index), one in positions.items():
                if topic in topics:
                    found.setdefault(topic, {}).setdefault(group, {})[index] = one
        return dict(found)

    def offsets_retention_ms(self) -> int:
        """How long committed offsets live after their group was used last; Kafka's default where
        this user may not know."""
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        kind = getattr(self._jvm.org.apache.kafka.common.config, "ConfigResource$Type").BROKER
        nodes = self._jvm.java.util.ArrayList(self._get(self._admin.describeCluster().nodes()))
        asked = resource(kind, str(nodes[0].id()))
        try:
            found = self._get(self._admin.describeConfigs(self._list([asked])).all())
        except Exception as error:
            if "AuthorizationException" not in str(error):
                raise
            return _OFFSETS_RETENTION_MS
        return int(found[asked].get("offsets.retention.minutes").value()) * 60_000

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """What was set on each topic itself, by anyone: neither defaults nor the broker's."""
        return {
            name: {str(one.name()): str(one.value()) for one in entries
                   if str(one.source().toString()) == _OWN_CONFIG}
            for name, entries in self._configs(topics)
        }  # fmt: skip

    def effective_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """What holds for each topic, defaults and the broker's configs included."""
        return {
            name: {str(one.name()): str(one.value()) for one in entries}
            for name, entries in self._configs(topics)
        }

    def _configs(self, topics: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
        """Each topic's entries that have a value."""
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        kind = getattr(self._jvm.org.apache.kafka.common.config, "ConfigResource$Type").TOPIC
        asked = self._list(resource(kind, name) for name in topics)
        found = self._get(self._admin.describeConfigs(asked).all())
        for key in found:
            entries = self._jvm.java.util.ArrayList(found[key].entries())
            yield str(key.name()), [one for one in entries if one.value() is not None]

    def earliest(self, counts: Mapping[str, int]) -> Offsets:
        return self._offsets(counts, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def latest(self, counts: Mapping[str, int]) -> Offsets:
        """End offsets: high watermarks, whatever transactions are open."""
        return self._offsets(counts, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest())

    def committed(self, counts: Mapping[str, int]) -> Offsets:
        """Last stable offsets: below them every transaction is decided."""
        level = self._jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        admin = self._jvm.org.apache.kafka.clients.admin
        return self._offsets(counts, admin.OffsetSpec.latest(), admin.ListOffsetsOptions(level))

    def create(self, counts: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]) -> None:
        """Create topics with these partition counts and configurations, and the broker's default
        replication."""
        empty = self._jvm.java.util.Optional.empty()
        topics = [
            self._jvm.org.apache.kafka.clients.admin.NewTopic(
                name, self._jvm.java.util.Optional.of(count), empty
            ).configs(self._map(configs.get(name, {})))
            for name, count in counts.items()
        ]
        self._get(self._admin.createTopics(self._list(topics)).all())

    def _offsets(self, counts: Mapping[str, int], spec: Any, *options: Any) -> Offsets:
        new_partition = self._jvm.org.apache.kafka.common.TopicPartition
        wanted = self._jvm.java.util.HashMap()
        for topic, count in counts.items():
            for index in range(count):
                wanted.put(new_partition(topic, index), spec)
        if wanted.isEmpty():
            return {}
        found = self._get(self._admin.listOffsets(wanted, *options).all())
        return {(str(key.topic()), int(key.partition())): found[key].offset() for key in found}

    def _list(self, values: Any) -> Any:
        made = self._jvm.java.util.ArrayList()
        for value in values:
            made.add(value)
        return made

    def _map(self, values: Mapping[str, Any]) -> Any:
        made = self._jvm.java.util.HashMap()
        for key, value in values.items():
            made.put(key, value)
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
                    " (--client-config FILE) and that its advertised address"
                    " can be reached from here"
                ) from error
            raise


def check_reachable(bootstrap: str) -> None:
    """Raise PipelineError unless one of the addresses accepts connections."""
    problems: list[str] = []
    for address in bootstrap.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not (colon and port.isascii() and port.isdigit() and int(port) < 65_536):
            raise PipelineError(f"--bootstrap {address!r}: expected HOST:PORT", 2)
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
            return
        except UnicodeError:  # of a name with an empty part, or one that is too long
            problems.append(f"{address.strip()}: the name does not resolve")
        except OSError as error:
            problems.append(f"{address.strip()}: {error.strerror or error}")
    raise PipelineError(
        f"no broker answers ({'; '.join(problems)}); start one (`barnabas start`), or check"
        " --bootstrap"
    )
