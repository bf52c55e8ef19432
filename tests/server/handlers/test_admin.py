"""Configs and log directories, as a client asks for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from replication.partition.requests import LogDirInfo
from server.config.kafka_config import KafkaConfig
from server.node import config_check
from tests.server.handler_support import NODE, Asked, FakeBroker, image_of, topic_image
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterConfigsRequest,
    AlterReplicaLogDirsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
)

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
INVALID = ErrorCode.INVALID_REQUEST
ME = str(NODE)


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker(image_of(topic_image("t")))
    made.config = KafkaConfig({"num.io.threads": "8"})
    made.config.checks.append(config_check.check)
    return made


@pytest.fixture
def asked(broker: FakeBroker) -> Asked:
    return Asked(broker)


@pytest.fixture
def a_logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("tests.of.levels")
    root = logging.getLogger().level
    yield made
    made.setLevel(logging.NOTSET)
    logging.getLogger().setLevel(root)


def changes(*resources: tuple[int, str, list[tuple[str, int, str | None]]], only: bool = False):
    resource = IncrementalAlterConfigsRequest.Resource
    return IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.Config(name=key, config_operation=operation, value=value)
                    for key, operation, value in entries
                ],
            )
            for kind, name, entries in resources
        ],
        validate_only=only,
    )


def one(kind: int, name: str, *entries: tuple[str, int, str | None]):
    return changes((kind, name, list(entries)))


def codes(answer: Any) -> list[int]:
    return [entry.error_code for entry in answer.responses]


def described(asked: Asked, kind: int, name: str, *keys: str):
    resource = DescribeConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=False
    )
    (result,) = asked.ask(request, 4).results
    return result


def test_made_up_groups_are_described_up_to_a_thousand(asked: Asked) -> None:
    """A name of some bytes has configs of some kilobytes: a megabyte must not become a gigabyte."""
    names = [f"g{number}" for number in range(1_500)]
    resources = [
        DescribeConfigsRequest.Resource(
            resource_type=GROUP, resource_name=name, configuration_keys=None
        )
        for name in names
    ]
    resources += [
        DescribeConfigsRequest.Resource(
            resource_type=BROKER, resource_name=ME, configuration_keys=["node.id"]
        )
    ]
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )
    asked.send(request, 4)
    asked.requests.shutdown(60)  # so many are described by another thread
    results = asked.received(request, 4).results
    assert [one.resource_name for one in results] == [*names, ME]
    assert [one.error_code for one in results] == [0] * 1_000 + [INVALID] * 500 + [0]
    assert not any(one.configs for one in results[1_000:1_500])


def test_what_the_controller_decides_is_passed_on(asked: Asked, broker: FakeBroker) -> None:
    request = CreateTopicsRequest(topics=[], timeout_ms=1, validate_only=True)
    assert asked.ask(request, 7) is None
    sent, on_complete, context = broker.controller.submitted.popleft()
    assert sent.validate_only
    assert context.api_version == 7
    on_complete(CreateTopicsResponse(topics=[]))
    assert asked.received(request, 7).topics == []


# ---- configs are changed


@pytest.mark.parametrize(
    "entry",
    [
        ("num.io.threads", SET, "100"),
        ("num.io.threads", SET, "x"),
        ("node.id", SET, "7"),
        ("log.cleaner.threads", SET, "0"),
        ("metric.reporters", APPEND, "com.example.Nothing"),
        ("num.io.threads", SET, None),
    ],
)
def test_a_brokers_values_are_refused_before_the_controller_hears_of_them(
    asked: Asked, broker: FakeBroker, entry: tuple[str, int, str | None]
) -> None:
    for name in (ME, ""):
        assert codes(asked.ask(one(BROKER, name, entry), 1)) == [INVALID]
    resource = AlterConfigsRequest.Resource
    legacy = resource(
        resource_type=BROKER,
        resource_name=ME,
        configs=[resource.Config(name=entry[0], value=entry[2])],
    )
    answer = asked.ask(AlterConfigsRequest(resources=[legacy], validate_only=False), 2)
    assert codes(answer) == [INVALID]
    assert not broker.controller.submitted


@pytest.mark.parametrize("name", ["2", "-1", "x", " 1"])
def test_another_brokers_values_are_that_brokers_to_judge(asked: Asked, name: str) -> None:
    assert codes(asked.ask(one(BROKER, name, ("num.io.threads", SET, "8")), 1)) == [INVALID]


@pytest.mark.parametrize("is_incremental", [True, False])
@pytest.mark.parametrize(
    ("value", "is_taken"), [("/a", True), ("/b, /a", True), ("", True), ("/a,/c", False)]
)
def test_a_controller_that_is_asked_itself_cordons_nothing_new(
    broker: FakeBroker, is_incremental: bool, value: str, is_taken: bool
) -> None:
    """It knows no broker's paths; what a broker passes on, that broker has looked at."""
    broker.role = "controller"
    key = "cordoned.log.dirs"
    broker.metadata = replace(broker.metadata, configs={(BROKER, "9"): {key: "/a,/b"}})
    asked = Asked(broker)
    if is_incremental:
        answer = asked.ask(one(BROKER, "9", (key, SET, value)), 1)
    else:
        make = AlterConfigsRequest.Resource
        resource = make(
            resource_type=BROKER,
            resource_name="9",
            configs=[make.Config(name=key, value=value)],
        )
        answer = asked.ask(AlterConfigsRequest(resources=[resource], validate_only=False), 2)
    assert len(broker.controller.submitted) == is_taken
    if not is_taken:
        assert [r.error_code for r in answer.responses] == [ErrorCode.INVALID_CONFIG]


@pytest.mark.parametrize(
    ("name", "is_described"),
    [("9" * 5_000, False), (f"0{ME}", True), (f"+{ME}", True), ("-1", False), ("x", False)],
)
def test_another_spelling_of_a_brokers_id_is_described_and_not_changed(
    asked: Asked, broker: FakeBroker, name: str, is_described: bool
) -> None:
    entry = ("log.retention.ms", SET, "1")
    loggers = asked.ask(changes((BROKER, name, [entry]), (LOGGER, ME, [])), 1)
    assert [r.error_code for r in loggers.responses] == [INVALID, 0]
    make = DescribeConfigsRequest.Resource
    resources = [
        make(resource_type=BROKER, resource_name=of, configuration_keys=None) for of in (name, ME)
    ]
    described = asked.ask(DescribeConfigsRequest(resources=resources, include_synonyms=False), 4)
    assert [r.error_code for r in described.results] == [0 if is_described else INVALID, 0]


def test_what_is_judged_here_and_by_the_controller_is_answered_together(
    asked: Asked, broker: FakeBroker, a_logger: logging.Logger
) -> None:
    request = changes(
        (LOGGER, ME, [(a_logger.name, SET, "DEBUG")]),
        (TOPIC, "t", [("retention.ms", SET, "7")]),
        (BROKER, "2", [("num.io.threads", SET, "7")]),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")]),
        (TOPIC, "u", []),
        (TOPIC, "u", []),
        (77, "x", []),
    )
    assert asked.ask(request, 1) is None
    sent, on_complete, _context = broker.controller.submitted.popleft()
    assert [(r.resource_type, r.resource_name) for r in sent.resources] == [
        (TOPIC, "t"), (GROUP, "g"),
    ]  # fmt: skip
    row = IncrementalAlterConfigsResponse.Resource
    on_complete(
        IncrementalAlterConfigsResponse(
            responses=[
                row(error_code=0, error_message=None, resource_type=TOPIC, resource_name="t"),
                row(error_code=40, error_message="no", resource_type=GROUP, resource_name="g"),
            ]
        )
    )
    answer = asked.received(request, 1)
    assert codes(answer) == [0, 0, INVALID, 40, INVALID, INVALID, INVALID]
    assert [r.resource_name for r in answer.responses] == [ME, "t", "2", "g", "u", "u", "x"]
    assert a_logger.level == logging.DEBUG


def test_each_resource_has_its_own_answer_in_whichever_order_they_come(
    asked: Asked, broker: FakeBroker
) -> None:
    """Apache Kafka's controller answers in the order of a hash map."""
    request = changes((TOPIC, "t", []), (GROUP, "g", []), (TOPIC, "u", []))
    assert asked.ask(request, 1) is None
    row = IncrementalAlterConfigsResponse.Resource
    broker.controller.submitted.popleft()[1](
        IncrementalAlterConfigsResponse(
            responses=[
                row(error_code=40, error_message="no", resource_type=GROUP, resource_name="g"),
                row(error_code=0, error_message=None, resource_type=TOPIC, resource_name="t"),
            ]
        )
    )
    assert codes(asked.received(request, 1)) == [0, 40, ErrorCode.UNKNOWN_SERVER_ERROR]


def test_no_controller_is_told_of_all_resources(asked: Asked, broker: FakeBroker) -> None:
    request = changes((TOPIC, "t", []), (BROKER, "2", []))
    assert asked.ask(request, 1) is None
    broker.controller.submitted.popleft()[1](KafkaError(ErrorCode.NOT_CONTROLLER, ""))
    assert codes(asked.received(request, 1)) == [ErrorCode.NOT_CONTROLLER] * 2


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("root", DELETE, None, INVALID),
        ("root", APPEND, "INFO", INVALID),
        ("root", SUBTRACT, "INFO", INVALID),
        ("root", 9, "INFO", INVALID),
        ("root", SET, None, INVALID),
        ("root", SET, "info", ErrorCode.INVALID_CONFIG),
        ("root", SET, "OFF", ErrorCode.INVALID_CONFIG),
        ("no.such.logger", SET, "INFO", ErrorCode.INVALID_CONFIG),
        ("no.such.logger", DELETE, None, ErrorCode.INVALID_CONFIG),
    ],
)
def test_log_levels_that_cannot_be_are_refused(
    asked: Asked, a_logger: logging.Logger, name: str, operation: int, value: str, code: int
) -> None:
    before = logging.getLogger().level
    good = (a_logger.name, SET, "ERROR")
    assert codes(asked.ask(one(LOGGER, ME, good, (name, operation, value)), 1)) == [code]
    assert logging.getLogger().level == before
    assert a_logger.level == logging.NOTSET, "all of a resource or nothing"


def test_a_level_that_is_deleted_is_that_of_the_logger_above(
    asked: Asked, a_logger: logging.Logger
) -> None:
    for entry, level in (("FATAL", 50), ("TRACE", 5)):
        assert codes(asked.ask(one(LOGGER, ME, (a_logger.name, SET, entry)), 1)) == [0]
        assert a_logger.level == level
        shown = described(asked, LOGGER, ME, a_logger.name)
        assert [config.value for config in shown.configs] == [entry]
    only = changes((LOGGER, ME, [(a_logger.name, DELETE, None)]), only=True)
    assert codes(asked.ask(only, 1)) == [0]
    assert a_logger.level == 5
    assert codes(asked.ask(one(LOGGER, ME, (a_logger.name, DELETE, None)), 1)) == [0]
    assert a_logger.level == logging.NOTSET


# ---- configs are described


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "2", INVALID),
        (BROKER, "x", INVALID),
        (LOGGER, "", INVALID),
        (METRICS, "", INVALID),
        (GROUP, "", INVALID),
        (77, "x", INVALID),
    ],
)
def test_what_cannot_be_described_is_named(asked: Asked, kind: int, name: str, code: int) -> None:
    result = described(asked, kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert result.error_message


def test_success_has_an_empty_message_as_kafkas(asked: Asked) -> None:
    for kind, name in ((TOPIC, "t"), (BROKER, ME), (BROKER, ""), (METRICS, "m"), (GROUP, "g")):
        result = described(asked, kind, name)
        assert (result.error_code, result.error_message) == (0, ""), kind


def test_values_are_described_as_they_are_understood(asked: Asked, broker: FakeBroker) -> None:
    broker.config.update_dynamic({"num.io.threads": " 9 ", "log.preallocate": "TRUE"}, {})
    (entry,) = described(asked, BROKER, ME, "num.io.threads").configs
    assert (entry.value, entry.config_source) == ("9", 2)
    assert [(s.value, s.source) for s in entry.synonyms] == [(" 9 ", 2), ("8", 4), ("2", 5)]
    (entry,) = described(asked, TOPIC, "t", "preallocate").configs
    assert (entry.value, entry.config_source) == ("true", 2)


def test_a_topic_has_no_synonym_of_another_key_while_its_own_is_not_set(
    asked: Asked, broker: FakeBroker
) -> None:
    (entry,) = described(asked, TOPIC, "t", "flush.ms").configs
    assert (entry.value, entry.synonyms) == ("9223372036854775807", [])
    broker.config.update_dynamic({"log.flush.interval.ms": "5"}, {})
    (entry,) = described(asked, TOPIC, "t", "flush.ms").configs
    assert [(s.name, s.source) for s in entry.synonyms] == [
        ("log.flush.interval.ms", 2), ("log.flush.scheduler.interval.ms", 5),
    ]  # fmt: skip


def test_keys_that_kafka_does_not_know_are_described_without_their_value(
    asked: Asked, broker: FakeBroker
) -> None:
    broker.config.update_dynamic({"my.key": "secret"}, {"their.key": "secret"})
    for name, keys in ((ME, {"my.key": 2, "their.key": 3}), ("", {"their.key": 3})):
        shown = described(asked, BROKER, name, "my.key", "their.key").configs
        assert {entry.name: entry.config_source for entry in shown} == keys
        for entry in shown:
            assert (entry.value, entry.is_sensitive, entry.read_only) == (None, True, True)
            assert {s.value for s in entry.synonyms} == {None}


def test_resources_are_listed_by_type(asked: Asked, broker: FakeBroker) -> None:
    def listed(version: int, *types: int) -> set[tuple[int, str]]:
        answer = asked.ask(ListConfigResourcesRequest(resource_types=list(types)), version)
        return {(r.resource_type, r.resource_name) for r in answer.config_resources}

    assert listed(1, TOPIC) == {(TOPIC, "t")}
    assert listed(0) == set()
    assert {(TOPIC, "t"), (BROKER, ME), (LOGGER, ME)} <= listed(1)
    configs = {(BROKER, "7"): {"k": "v"}, (METRICS, "m"): {"k": "v"}, (GROUP, "g"): {"k": "v"}}
    broker.metadata = replace(broker.metadata, configs=configs)
    assert listed(1, BROKER, METRICS, GROUP) == {(BROKER, ME), (METRICS, "m"), (GROUP, "g")}
    assert listed(0) == {(METRICS, "m")}
    unknown = asked.ask(ListConfigResourcesRequest(resource_types=[3]), 1)
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION


# ---- log directories


def test_partitions_are_moved_and_fail_alone(asked: Asked, broker: FakeBroker) -> None:
    moved = []

    def alter(tp: tuple[str, int], path: str) -> None:
        if tp[1] != 0:
            raise KafkaError(ErrorCode(tp[1]), "")
        moved.append((tp, path))

    broker.replica_manager.alter_replica_log_dir = alter
    directory = AlterReplicaLogDirsRequest.Directory
    request = AlterReplicaLogDirsRequest(
        dirs=[directory(path="/d", topics=[directory.Topic(name="t", partitions=[0, 3, 9])])]
    )
    (topic,) = asked.ask(request, 2).results
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(0, 0), (3, 3), (9, 9)]
    assert moved == [(("t", 0), "/d")]


def test_only_the_partitions_asked_for_are_described(asked: Asked, broker: FakeBroker) -> None:
    wanted = []

    def describe(is_wanted):
        wanted.append([is_wanted("t", 0), is_wanted("t", 1), is_wanted("u", 0)])
        return []

    broker.replica_manager.describe_log_dirs = describe
    topic = DescribeLogDirsRequest.Topic(topic="t", partitions=[0])
    assert asked.ask(DescribeLogDirsRequest(topics=[topic]), 4).results == []
    assert asked.ask(DescribeLogDirsRequest(topics=None), 4).results == []
    assert wanted == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize(("level", "is_told"), [(29, False), (30, True)])
def test_a_directory_is_told_to_be_cordoned_where_the_cluster_knows_of_that(
    asked: Asked, broker: FakeBroker, level: int, is_told: bool
) -> None:
    broker.metadata = replace(broker.metadata, features={"metadata.version": level})
    info = LogDirInfo("/d", is_cordoned=True)
    broker.replica_manager.describe_log_dirs = lambda _: [info]
    (result,) = asked.ask(DescribeLogDirsRequest(topics=None), 5).results
    assert result.is_cordoned is is_told
