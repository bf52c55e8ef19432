"""What a broker refuses and takes of dynamic configs, names and cursors: the same rows on both.

Requests are kafka-python's own protocol classes, because its admin client hides the codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.protocol.admin import (
    AlterReplicaLogDirsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
)

from testkit.brokers.nodes import RunningBroker
from testkit.wait import eventually

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC = 17, 40, 42, 3
ME = "1"


@pytest.fixture
def ask(admin: KafkaAdminClient) -> Any:
    return lambda request: admin._manager.run(lambda: admin._manager.send(request))


@pytest.fixture
def alter(ask: Any) -> Any:
    """(type, name, (key, operation, value)...) -> error code; nothing is changed without `keep`."""

    def alter(
        kind: int, name: str, *entries: tuple[str, int, str | None], keep: bool = False
    ) -> int:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        request = IncrementalAlterConfigsRequest(
            resources=[
                resource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        resource.AlterableConfig(name=key, config_operation=operation, value=value)
                        for key, operation, value in entries
                    ],
                )
            ],
            validate_only=not keep,
        )
        return int(ask(request).responses[0].error_code)

    return alter


@pytest.fixture
def describe(ask: Any) -> Any:
    def describe(kind: int, name: str, *keys: str) -> Any:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=False
        )
        return ask(request).results[0]

    return describe


@pytest.fixture
def custom(alter: Any) -> Iterator[None]:
    yield
    alter(BROKER, ME, ("my.own.key", DELETE, None), ("log.preallocate", DELETE, None), keep=True)


# -- brokers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.io.threads", "1000"),
        ("num.io.threads", "abc"),
        ("num.network.threads", "100"),
        ("num.replica.fetchers", "3"),
        ("background.threads", "100"),
        ("log.cleaner.threads", "0"),
        ("log.cleaner.threads", "3"),
        ("log.cleaner.dedupe.buffer.size", "100"),
        ("log.cleanup.policy", "burn"),
        ("log.cleanup.policy", "delete,,compact"),
        ("log.retention.ms", "0"),
        ("log.retention.hours", "5"),
        ("log.local.retention.ms", "-1"),
        ("log.segment.bytes", "1"),
        ("max.connections.per.ip", "0"),
        ("max.connections.per.ip.overrides", "127.0.0.1:x"),
        ("metric.reporters", "com.example.Nothing"),
        ("node.id", "7"),
        ("ssl.keystore.location", "/tmp/x"),
        ("group.consumer.assignment.interval.ms", "100000"),
        ("principal.builder.class", "com.example.Nothing"),
        ("leader.replication.throttled.rate", "-1"),
    ],
)
def test_a_broker_refuses_what_it_could_not_start_with(alter: Any, name: str, value: str) -> None:
    for resource in (ME, ""):
        assert alter(BROKER, resource, (name, SET, value)) == INVALID_REQUEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listeners", "nonsense"),
        ("listeners", "EXTRA://127.0.0.1:12345"),
        ("listener.security.protocol.map", "nonsense"),
        ("cordoned.log.dirs", "/nowhere"),
    ],
)
def test_listeners_and_directories_of_one_broker_are_checked(
    alter: Any, name: str, value: str
) -> None:
    assert alter(BROKER, ME, (name, SET, value)) == INVALID_REQUEST
    assert alter(BROKER, "", (name, SET, value)) == INVALID_REQUEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.cleaner.threads", "2"),
        ("max.connections.per.ip.overrides", "127.0.0.1:5"),
        ("metric.reporters", ""),
        ("log.cleanup.policy", "compact,compact"),
        ("my.own.key", "x"),
        ("listener.name.plaintext.max.connections", "5"),
    ],
)
def test_a_broker_takes_what_it_could_start_with(alter: Any, name: str, value: str) -> None:
    for resource in (ME, ""):
        assert alter(BROKER, resource, (name, SET, value)) == 0


@pytest.mark.parametrize("name", ["2", "-1", "x"])
def test_a_broker_judges_no_other(alter: Any, name: str) -> None:
    assert alter(BROKER, name, ("log.cleaner.backoff.ms", SET, "15000")) == INVALID_REQUEST


def test_unknown_keys_of_a_broker_are_taken_and_described_without_their_value(
    alter: Any, describe: Any, custom: None
) -> None:
    assert (
        alter(BROKER, ME, ("my.own.key", SET, "s"), ("log.preallocate", SET, "FALSE"), keep=True)
        == 0
    )
    eventually(
        lambda: len(describe(BROKER, ME, "my.own.key").configs) == 1, what="the key is applied"
    )
    (entry,) = describe(BROKER, ME, "my.own.key").configs
    assert (entry.value, entry.read_only, entry.is_sensitive) == (None, True, True)
    (parsed,) = describe(BROKER, ME, "log.preallocate").configs
    assert (parsed.value, parsed.synonyms[0].value) == ("false", "FALSE")


# -- groups, client metrics, loggers --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("consumer.session.timeout.ms", "1", INVALID_CONFIG),
        ("consumer.session.timeout.ms", "60001", INVALID_CONFIG),
        ("consumer.session.timeout.ms", "45000", 0),
        ("consumer.heartbeat.interval.ms", "1", INVALID_CONFIG),
        ("consumer.assignment.interval.ms", "15001", INVALID_CONFIG),
        ("share.record.lock.duration.ms", "14999", INVALID_CONFIG),
        ("share.delivery.count.limit", "11", INVALID_CONFIG),
        ("share.partition.max.record.locks", "10001", INVALID_CONFIG),
        ("share.auto.offset.reset", "by_duration:PT1H", 0),
        ("share.auto.offset.reset", "by_duration:-PT1H", INVALID_CONFIG),
        ("share.auto.offset.reset", "none", INVALID_CONFIG),
        ("streams.num.standby.replicas", "3", INVALID_CONFIG),
        ("no.such.key", "1", INVALID_CONFIG),
    ],
)
def test_groups_keep_the_brokers_bounds(alter: Any, name: str, value: str, code: int) -> None:
    assert alter(GROUP, "g", (name, SET, value)) == code


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("interval.ms", "99", INVALID_REQUEST),
        ("interval.ms", "3600001", INVALID_REQUEST),
        ("interval.ms", "x", INVALID_CONFIG),
        ("interval.ms", "100", 0),
        ("match", "client_id=[", INVALID_CONFIG),
        ("match", "client_id", INVALID_CONFIG),
        ("match", "foo=bar", INVALID_CONFIG),
        ("match", "client_id=a=b", INVALID_CONFIG),
        ("match", " client_id = a.* , client_source_port=1", 0),
        ("metrics", "a,,b", INVALID_CONFIG),
        ("metrics", "*", 0),
        ("no.such.key", "x", INVALID_REQUEST),
    ],
)
def test_client_metrics_are_checked(alter: Any, name: str, value: str, code: int) -> None:
    assert alter(METRICS, "m", (name, SET, value)) == code
    assert alter(METRICS, "", (name, SET, value)) == INVALID_REQUEST


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (("root", DELETE, None), INVALID_REQUEST),
        (("root", APPEND, "INFO"), INVALID_REQUEST),
        (("root", SET, "info"), INVALID_CONFIG),
        (("root", SET, "INFO"), 0),
        (("no.such.logger", SET, "INFO"), INVALID_CONFIG),
    ],
)
def test_log_levels_are_checked(alter: Any, entry: Any, code: int) -> None:
    assert alter(LOGGER, ME, entry) == code


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "a/b", INVALID_TOPIC),
        (TOPIC, "", INVALID_TOPIC),
        (TOPIC, "absent", UNKNOWN_TOPIC),
        (BROKER, "2", INVALID_REQUEST),
        (METRICS, "", INVALID_REQUEST),
        (GROUP, "", INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described(describe: Any, kind: int, name: str, code: int) -> None:
    result = describe(kind, name)
    assert (result.error_code, list(result.configs)) == (code, [])


# -- topics ---------------------------------------------------------------------------------------


def test_a_topics_lists_are_trimmed_and_without_doubles(
    alter: Any, describe: Any, make_topic: Any
) -> None:
    topic = make_topic()

    def shown() -> str:
        return str(describe(TOPIC, topic, "cleanup.policy").configs[0].value)

    for operation, value, policy in (
        (APPEND, " compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SET, "compact,delete,compact", "compact,delete"),
        (SET, "", ""),
    ):
        assert alter(TOPIC, topic, ("cleanup.policy", operation, value), keep=True) == 0
        eventually(lambda: shown() == policy, what=policy)  # noqa: B023
    for value in ("delete,,compact", "delete,", ","):
        assert alter(TOPIC, topic, ("cleanup.policy", SET, value)) == INVALID_CONFIG


def test_a_topics_values_are_described_as_understood(
    alter: Any, describe: Any, make_topic: Any
) -> None:
    topic = make_topic()
    given = {
        "retention.ms": (" 5000 ", "5000"),
        "preallocate": ("TRUE", "true"),
        "min.cleanable.dirty.ratio": ("0.50", "0.5"),
        "compression.type": (" gzip ", "gzip"),
    }
    entries = [(name, SET, value) for name, (value, _) in given.items()]
    assert alter(TOPIC, topic, *entries, keep=True) == 0

    def shown() -> dict[str, str]:
        result = describe(TOPIC, topic, *given)
        assert (result.error_code, result.error_message) == (0, "")
        return {config.name: config.value for config in result.configs}

    wanted = {name: value for name, (_, value) in given.items()}
    eventually(lambda: shown() == wanted, what=str(wanted))
    (flush,) = describe(TOPIC, topic, "flush.ms").configs
    assert list(flush.synonyms) == []


@pytest.mark.parametrize(
    ("name", "entry", "code"),
    [
        ("a/b", ("retention.ms", SET, "5"), INVALID_TOPIC),
        ("", ("retention.ms", SET, "5"), INVALID_REQUEST),
        ("absent", ("retention.ms", SET, "5"), UNKNOWN_TOPIC),
        ("absent", ("retention.ms", SET, "x"), INVALID_CONFIG),
    ],
)
def test_topics_that_cannot_be_altered(alter: Any, name: str, entry: Any, code: int) -> None:
    assert alter(TOPIC, name, entry) == code


def test_a_topic_that_is_named_twice_is_not_deleted(
    ask: Any, admin: KafkaAdminClient, make_topic: Any
) -> None:
    topic = make_topic()
    (described,) = admin.describe_topics([topic])
    none = "00000000-0000-0000-0000-000000000000"
    by_name, by_id = (topic, none), (None, described["topic_id"])
    for rows in ([by_name, by_name], [by_id, by_id], [by_name, by_id], [by_id, by_name]):
        state = DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(
            topics=[state(name=name, topic_id=topic_id) for name, topic_id in rows],
            timeout_ms=10_000,
            min_version=6,
        )
        assert [r.error_code for r in ask(request).responses] == [INVALID_REQUEST], rows
    assert topic in admin.list_topics()


def test_topics_of_one_request_may_differ_in_dot_and_underscore(
    admin: KafkaAdminClient, topic_name: str
) -> None:
    """Only existing topics are compared (see test_admin for those)."""
    both = [f"{topic_name}.x", f"{topic_name}_x"]
    admin.create_topics(both)
    assert set(both) <= set(admin.list_topics())


def test_partitions_are_described_by_names_that_can_be_and_cursors_among_them(
    ask: Any, make_topic: Any
) -> None:
    topic = make_topic()

    def described(*names: str, cursor: str | None = None) -> dict[str, tuple[int, int]]:
        make = DescribeTopicPartitionsRequest
        request = make(
            topics=[make.TopicRequest(name=name) for name in names],
            response_partition_limit=10,
            cursor=None if cursor is None else make.Cursor(topic_name=cursor, partition_index=0),
        )
        rows = ask(request).topics
        return {row.name: (row.error_code, row.topic_authorized_operations) for row in rows}

    everything = 3576
    assert described(topic, "a/b", "..", "absent") == {
        topic: (0, everything), "a/b": (INVALID_TOPIC, everything),
        "..": (INVALID_TOPIC, everything), "absent": (UNKNOWN_TOPIC, everything),
    }  # fmt: skip
    assert described(topic, cursor="zzz") == {topic: (INVALID_REQUEST, -2147483648)}
    assert described(topic, "zzz", cursor="zzz") == {"zzz": (UNKNOWN_TOPIC, everything)}


def test_producers_of_names_that_cannot_be(ask: Any, make_topic: Any) -> None:
    topic = make_topic()
    make = DescribeProducersRequest
    rows = [(topic, 0), (topic, 7), ("absent", 0), ("a/b", 0), ("", 0)]
    request = make(topics=[make.TopicRequest(name=n, partition_indexes=[i]) for n, i in rows])
    codes = [t.partitions[0].error_code for t in ask(request).topics]
    assert codes == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_TOPIC]


def test_a_partition_that_does_not_exist_is_in_no_directory(
    ask: Any, broker: RunningBroker, make_topic: Any
) -> None:
    topic = make_topic()
    make = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    request = AlterReplicaLogDirsRequest(
        dirs=[
            make(
                path=str(broker.data_dir.absolute()),
                topics=[
                    make.AlterReplicaLogDirTopic(name=name, partitions=[partition])
                    for name, partition in ((topic, 0), (topic + "-absent", 0))
                ],
            )
        ]
    )
    found = {t.topic_name: t.partitions[0].error_code for t in ask(request).results}
    assert found == {topic: 0, topic + "-absent": UNKNOWN_TOPIC}
