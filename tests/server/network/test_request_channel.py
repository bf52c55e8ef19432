"""Dispatch: headers, versions, error shapes, the table."""

from __future__ import annotations

import struct
import threading
from copy import copy
from importlib import import_module

import pytest

from server.handlers import APIS, BROKER_APIS, CONTROLLER_APIS
from server.network.error_responses import error_response
from server.network.once import name_once
from server.network.request_channel import (
    INLINE_ELEMENTS,
    INLINE_FRAME_BYTES,
    RequestChannel,
    elements_max,
)
from testkit.wait import HANGS_S
from tests.server import kafka_apis
from tests.server.handler_support import CLOSED, TOPIC_ID, Asked, FakeBroker, image_of, topic_image
from tests.server.wire_client import request_bytes
from wire.errors import ErrorCode, KafkaError
from wire.messages import admin, data, groups, request_class
from wire.messages.cluster import MetadataRequest, MetadataResponse
from wire.messages.groups import HeartbeatRequest, HeartbeatResponse, OffsetFetchRequest
from wire.messages.transactions import DescribeProducersRequest
from wire.schema import RESPONSES

TABLES = {"broker": BROKER_APIS, "controller": CONTROLLER_APIS}
EVERY_API = [(role, key) for role, table in TABLES.items() for key in sorted(table)]


@pytest.mark.parametrize(
    ("table", "kafka"), [(BROKER_APIS, kafka_apis.BROKER), (CONTROLLER_APIS, kafka_apis.CONTROLLER)]
)
def test_what_is_served_has_kafkas_names_and_ranges_and_is_on_kafkas_listeners(table, kafka):
    served = {key: (api.name, api.advertised_from, api.max_version) for key, api in table.items()}
    assert served == {key: kafka.get(key) for key in served}


def named(struct, times):
    """A request, or a part of one, with `times` the same item in each of its arrays."""
    made = struct.blank()
    for field in struct.schema:
        if field.kind == "[]struct":
            setattr(made, field.name, [named(field.struct, times) for _ in range(times)])
        elif field.kind.startswith("[]"):
            item = "x" if field.kind == "[]string" else 5
            setattr(made, field.name, [item] * times)
    return made


@pytest.mark.parametrize(
    "name",
    ["ConsumerGroupDescribe", "DescribeConfigs", "DescribeGroups", "DescribeProducers",
     "DescribeShareGroupOffsets", "DescribeTransactions", "ElectLeaders", "OffsetFetch",
     "ShareGroupDescribe", "StreamsGroupDescribe"],
)  # fmt: skip
def test_what_is_named_twice_is_looked_at_once(name, monkeypatch):
    """A megabyte that names one thing a hundred thousand times must not become gigabytes."""
    api = next(api for api in BROKER_APIS.values() if api.name == name)
    given = []
    asked = Asked(FakeBroker(image_of()))
    monkeypatch.setattr(
        import_module(api.area), api.function_name, lambda _ctx, request: given.append(request)
    )
    for version in range(api.min_version, api.max_version + 1):
        asked.channel.in_flight = None
        asked.send(named(request_class(api.api_key), 3), version)
        asked.channel.in_flight = None
        asked.send(named(request_class(api.api_key), 1), version)
        assert given[-2] == given[-1], version


def test_half_an_answer_is_not_given_to_who_names_a_thing_in_two_ways():
    groups = [OffsetFetchRequest.Group(group_id="g", topics=topics) for topics in (None, [])]
    asked = Asked(FakeBroker(image_of()))
    answer = asked.ask(OffsetFetchRequest(groups=groups), 8)
    asked.requests.shutdown(10)
    assert {group.error_code for group in answer.groups} == {ErrorCode.INVALID_REQUEST}


def test_other_partitions_of_a_topic_are_named_for_the_first_time():
    make = DescribeProducersRequest
    rows = [("a", [0, 1]), ("b", [0]), ("a", [1, 2, 2]), ("a", [2, 0])]
    request = make(topics=[make.Topic(name=n, partition_indexes=of) for n, of in rows])
    name_once(request)
    kept = [(topic.name, topic.partition_indexes) for topic in request.topics]
    assert kept == [("a", [0, 1]), ("b", [0]), ("a", [2])]


def test_so_are_other_partitions_to_elect_a_leader_of():
    make = admin.ElectLeadersRequest
    rows = [("a", [0, 0, 1]), ("b", [0]), ("a", [1, 2])]
    request = make(topic_partitions=[make.Topic(topic=name, partitions=of) for name, of in rows])
    name_once(request)
    kept = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    assert kept == [("a", [0, 1]), ("b", [0]), ("a", [2])]


def test_other_topics_of_a_group_are_too_but_no_other_member_of_it():
    make = OffsetFetchRequest.Group

    def groups(*epochs):
        topics = [make.Topic(name=name, partition_indexes=[0]) for name in ("a", "b")]
        return OffsetFetchRequest(
            groups=[
                make(group_id="g", member_id="m", member_epoch=epoch, topics=[topic])
                for epoch, topic in zip(epochs, topics, strict=True)
            ]
        )

    same = groups(1, 1)
    name_once(same)
    assert [group.topics[0].name for group in same.groups] == ["a", "b"]
    with pytest.raises(KafkaError, match="twice"):
        name_once(groups(1, 2))


def test_a_topic_is_described_once_however_often_its_id_is_given():
    asked = Asked(FakeBroker(image_of(topic_image("t"))))
    topics = [MetadataRequest.Topic(topic_id=TOPIC_ID, name=name) for name in (None, "a", "b")]
    assert [topic.name for topic in asked.ask(MetadataRequest(topics=topics), 12).topics] == ["t"]


def test_only_controllers_serve_what_changes_the_cluster_behind_the_brokers_backs():
    """N-3: Vote, AlterPartition and their like are off on client listeners."""
    assert not set(BROKER_APIS) & {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}


@pytest.mark.parametrize(("role", "key"), EVERY_API)
def test_every_listed_api_is_declared_and_served_in_its_whole_range(role, key):
    api = TABLES[role][key]
    request = request_class(key)
    assert request.__name__ == f"{api.name}Request"
    lowest, highest = request.versions
    assert lowest <= api.min_version
    assert api.max_version <= highest
    assert callable(api.load())
    assert api.request_class is request
    assert api.handle.__name__ == api.function_name
    assert "Gaps:" in api.handle.__doc__
    for version in range(api.min_version, api.max_version + 1):
        assert (version >= api.request_flexible) == request.is_flexible(version)
        answer_flexible = request.is_flexible(version) and key != 18
        assert (version >= api.response_flexible) == answer_flexible


def test_what_a_broker_passes_on_is_served_by_controllers_and_only_that():
    """ApiKeys.forwardable, of what is served."""
    passed_on = {api.api_key for api in CONTROLLER_APIS.values() if api.is_forwardable}
    assert passed_on == {
        19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 67, 80, 81
    }  # fmt: skip


def test_every_api_says_what_its_sender_must_be_allowed():
    for api in APIS:
        is_free = api.name in (
            "ApiVersions", "SaslHandshake", "SaslAuthenticate",
            "RenewDelegationToken", "ExpireDelegationToken",  # by the token's secret
            "GetTelemetrySubscriptions", "PushTelemetry",
        )  # fmt: skip
        assert (api.operation is None) is is_free, api
        assert api.resource is None or api.operation in api.resource.operations, api


def filled(struct, version):
    """An object of `struct` with two elements in each array and a distinct value in each field."""
    values = {}
    for number, field in enumerate(struct.schema):
        if field.kind == "[]struct":
            values[field.name] = [filled(field.struct, version) for _ in range(2)]
        elif field.kind.startswith("[]"):
            elements = {"[]string": ["a", "b"], "[]uuid": [bytes(range(16)), bytes(16)]}
            values[field.name] = elements.get(field.kind, [3, 4])
        elif field.kind == "struct":
            values[field.name] = filled(field.struct, version)
        elif field.kind == "string":
            values[field.name] = field.name
        else:
            values[field.name] = {
                "uuid": bytes(range(16)), "bytes": b"x", "records": b"y", "bool": True,
            }.get(field.kind, number + 1)  # fmt: skip
    return struct(**values)


def codes_in(value):
    """All error codes in a response, and how many arrays with error codes are empty."""
    found = []
    for field in type(value).schema:
        item = getattr(value, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.append(item)
        elif field.kind == "[]struct":
            for element in item or ():
                found += codes_in(element)
    return found


@pytest.mark.parametrize("key", sorted({**BROKER_APIS, **CONTROLLER_APIS}))
def test_every_api_can_say_an_error_in_every_version(key):
    api = {**CONTROLLER_APIS, **BROKER_APIS}[key]
    api.load()
    for version in range(api.min_version, api.max_version + 1):
        request = api.request_class.decode(
            b"".join(bytes(p) for p in filled(api.request_class, version).encode(version)), version
        )
        answer = error_response(request, version, ErrorCode.POLICY_VIOLATION, "because")
        wire = b"".join(bytes(p) for p in answer.encode(version))
        codes = codes_in(RESPONSES[key].decode(wire, version))
        if (key, version) == (35, 1) or (key, version) == (35, 2):
            continue  # DescribeLogDirs has no place for it before version 3
        assert ErrorCode.POLICY_VIOLATION in codes
        assert set(codes) <= {0, ErrorCode.POLICY_VIOLATION}


ECHOED = {
    "name", "topic", "topic_name", "topic_id", "partition_index", "partition", "index",
    "partition_id", "resource_name", "resource_type", "group_id", "key", "id", "session_id",
    "transactional_id", "user", "entity_type", "entity_name",
}  # fmt: skip
"""What Kafka's getErrorResponse repeats: names and ids of what failed."""


def marked(struct, marks):
    """An object of `struct` whose every value occurs nowhere else."""
    values = {}
    for field in struct.schema:
        kind = field.kind.removeprefix("[]")
        if kind == "struct":
            value = marked(field.struct, marks)
        elif kind in ("bool", "records"):
            value = kind == "bool" or b"y"
        else:
            number = len(marks)
            value = {
                "string": f"mark {number}", "bytes": b"mark %d" % number, "int8": 20 + number,
                "uuid": b"mark" + number.to_bytes(12, "big"), "int64": 2**63 - 1 - number,
                "float64": 1.5 + number, "int32": 2**31 - 1 - number,
            }.get(kind, 2**15 - 1 - number)  # fmt: skip
            marks[value] = field.name
        values[field.name] = [value] if field.kind.startswith("[]") else value
    return struct(**values)


def echoes(answer, marks, path=""):
    """Fields of an answer that hold a value of the request: (path, its name there)."""
    for field in type(answer).schema:
        items = getattr(answer, field.name)
        for item in items if isinstance(items, list) else [items]:
            if field.struct is not None and item is not None:
                yield from echoes(item, marks, f"{path}.{field.name}")
            elif item not in (True, False, None) and item in marks:
                yield f"{path}.{field.name}", marks[item]


@pytest.mark.parametrize("key", sorted({**BROKER_APIS, **CONTROLLER_APIS}))
def test_an_error_repeats_nothing_of_the_request_but_names_and_ids(key):
    """A Fetch answered the high watermark that a follower claimed to know, 2^63 - 1."""
    api = {**CONTROLLER_APIS, **BROKER_APIS}[key]
    api.load()
    marks = {}
    request = marked(api.request_class, marks)
    for version in range(api.min_version, api.max_version + 1):
        answer = error_response(request, version, ErrorCode.POLICY_VIOLATION, "because")
        answer.encode(version)
        for path, name in echoes(answer, marks):
            if path in (
                ".members.member_id",
                ".members.group_instance_id",
                ".markers.producer_id",
            ):
                continue  # LeaveGroup: who did not leave; WriteTxnMarkers: whose
            assert path.rpartition(".")[2] in ECHOED, (path, name)


def test_an_error_names_every_partition_that_was_asked_for():
    request = filled(data.ProduceRequest, 9)
    request.topic_data[1].name = "other"
    answer = error_response(request, 9, ErrorCode.REQUEST_TIMED_OUT)
    assert [t.name for t in answer.responses] == ["name", "other"]
    partitions = answer.responses[1].partition_responses
    assert [(p.index, p.error_code, p.base_offset) for p in partitions] == [(1, 7, -1)] * 2

    by_id = error_response(filled(data.ProduceRequest, 13), 13, 7)
    assert by_id.responses[0].topic_id == bytes(range(16))

    deleted = error_response(filled(admin.DeleteTopicsRequest, 3), 3, 7)
    assert len(deleted.responses) == 2
    described = error_response(groups.DescribeGroupsRequest(groups=["x", "y"]), 5, 7)
    assert [(g.group_id, g.error_code) for g in described.groups] == [("x", 7), ("y", 7)]
    found = error_response(groups.FindCoordinatorRequest(coordinator_keys=["k"]), 4, 7, "why")
    assert [(c.key, c.node_id, c.error_message) for c in found.coordinators] == [("k", -1, "why")]


def heartbeat_frame(version, client_id, tags=b"\0"):
    head = struct.pack(">hhi", 12, version, 5)
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id
    body = HeartbeatRequest(group_id="g", generation_id=1, member_id="m").encode_bytes(version)
    frame = head + name + (tags if version >= 4 else b"") + body
    return struct.pack(">i", len(frame)) + frame


@pytest.fixture
def asked(monkeypatch):
    seen = []
    connection = Asked(FakeBroker(image_of(topic_image("t"))))

    def heartbeat(ctx, request):
        seen.append((ctx.client_id, request.group_id))
        return HeartbeatResponse(error_code=0)

    api = connection.requests._apis[12]
    api.load()
    api.handle = heartbeat
    connection.seen = seen
    return connection


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.parametrize(
    ("client_id", "name"), [(None, ""), (b"", ""), (b"one", "one"), ("größe".encode(), "größe")]
)
def test_client_ids_of_all_kinds_are_read(asked, version, client_id, name):
    for _ in range(2):
        asked.requests.receive(asked.channel, heartbeat_frame(version, client_id))
    assert asked.seen == [(name, "g")] * 2


def test_tagged_fields_in_the_header_are_skipped(asked):
    asked.requests.receive(asked.channel, heartbeat_frame(4, b"c", b"\x02\x00\x01a\x05\x02bc"))
    assert asked.seen == [("c", "g")]


@pytest.mark.parametrize(
    "tags", [b"\x01\x00\x7f", b"\x02\x05\x01a\x05\x01b", b"\xff\xff\xff\xff\xff\xff", b"\x7f"]
)
def test_broken_tagged_fields_in_the_header_close(asked, tags):
    asked.requests.receive(asked.channel, heartbeat_frame(4, b"c", tags))
    assert asked.processor.done == type(asked.processor.done)([CLOSED])
    assert asked.seen == []


def test_a_broken_client_id_closes(asked):
    for frame in (
        heartbeat_frame(4, b"\xff\xfe"),
        heartbeat_frame(4, b"abc")[:12] + struct.pack(">h", 30_000) + b"abc",
    ):
        asked.channel.violation = None
        asked.requests.receive(asked.channel, frame)
        assert asked.channel.violation
    assert asked.seen == []


def test_every_truncation_of_a_request_closes_and_nothing_else(asked):
    whole = heartbeat_frame(4, b"client")
    for end in range(14, len(whole)):
        asked.channel.violation = None
        asked.processor.done.clear()
        asked.requests.receive(asked.channel, whole[:end])
        assert asked.channel.violation or list(asked.processor.done) == [CLOSED], end
    assert asked.seen == []
    assert asked.requests.failed == 0


def test_a_second_answer_to_a_request_is_dropped(asked):
    contexts = []

    def twice(ctx, request):
        contexts.append(ctx)
        ctx.respond(HeartbeatResponse(error_code=1))
        ctx.respond(HeartbeatResponse(error_code=2))

    asked.requests._apis[12].handle = twice
    asked.requests.receive(asked.channel, heartbeat_frame(0, b"c"))
    assert len(asked.processor.done) == 1


def test_threads_that_the_system_does_not_give_are_missed_by_nobody(monkeypatch):
    """The one there is does the work of all; without one the request fails, and nothing is left."""
    channel = RequestChannel({}, None, 2, 10)
    done, go = threading.Semaphore(0), threading.Event()
    start = threading.Thread.start

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    def job():
        go.wait(HANGS_S)
        done.release()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        channel.resume(job)
    monkeypatch.setattr(threading.Thread, "start", start)
    channel.resume(job)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    channel.resume(job)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert len(channel._threads) == 1
    go.set()
    assert done.acquire(timeout=60)
    assert done.acquire(timeout=60)
    channel.shutdown(10)


def test_handler_threads_start_when_needed_and_end_with_the_channel():
    started = threading.Event()
    go = threading.Event()

    def slow(ctx, request):
        started.set()
        go.wait(HANGS_S)
        return HeartbeatResponse(error_code=0)

    connection = Asked(FakeBroker(image_of()))
    api = connection.requests._apis[12]
    api.load()
    api.handle, api.inline = slow, False
    channel = RequestChannel({12: api}, None, 2, 10)
    assert not channel._threads
    frame = request_bytes(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4, 1)
    for _ in range(5):
        connection.channel.in_flight = None
        assert channel.receive(connection.channel, frame)
    assert started.wait(60)
    assert len(channel._threads) == 2
    go.set()
    channel.shutdown(10)
    assert not any(thread.is_alive() for thread in channel._threads)
    assert channel.queue_size == 0


# -- inline by cost


def metadata_frame(names):
    topics = [MetadataRequest.Topic(name=name) for name in names]
    return request_bytes(MetadataRequest(topics=topics), 9, 1)


@pytest.fixture
def by_cost():
    """One connection whose Metadata requests tell on which thread, and of how many topics."""
    ran = Ran()
    connection = Asked(FakeBroker(image_of()))
    api = connection.requests._apis[3]
    api.load()
    api.handle = ran
    connection.ran = ran
    yield connection
    connection.requests.shutdown(10)


class Ran:
    def __init__(self):
        self.done = threading.Event()
        self.thread = None
        self.topics = -1

    def __call__(self, ctx, request):
        self.thread, self.topics = threading.current_thread(), len(request.topics)
        self.done.set()
        return MetadataResponse(brokers=[], topics=[])


def test_a_small_request_runs_on_the_network_thread(by_cost):
    by_cost.requests.receive(by_cost.channel, metadata_frame(["t"] * INLINE_ELEMENTS))
    assert by_cost.ran.thread is threading.current_thread()
    assert by_cost.ran.topics == INLINE_ELEMENTS


@pytest.mark.parametrize(
    "names",
    [["t"] * (INLINE_ELEMENTS + 1), ["x" * 30_000] * (INLINE_FRAME_BYTES // 30_000 + 1)],
    ids=["many", "big"],
)
def test_a_request_that_costs_more_runs_on_a_handler_thread(by_cost, names):
    """N3: 16 MB of topic names took 2.45 s of the only network thread."""
    by_cost.requests.receive(by_cost.channel, metadata_frame(names))
    assert by_cost.ran.done.wait(60)
    assert by_cost.ran.thread is not threading.current_thread()
    assert by_cost.ran.topics == len(names)
    assert by_cost.requests.malformed == 0


def test_a_costly_request_waits_while_the_queue_is_full_and_is_not_lost(by_cost):
    requests, frame = by_cost.requests, metadata_frame(["t"] * (INLINE_ELEMENTS + 1))
    requests._queue_max = 0
    assert not requests.receive(by_cost.channel, frame)
    assert by_cost.channel.in_flight is None
    requests._queue_max = 1
    assert requests.receive(by_cost.channel, frame)
    assert by_cost.ran.done.wait(60)


def test_an_area_may_say_that_a_request_is_costly(by_cost):
    """A Produce whose batches must be opened is handed over before anything of it is done."""
    asked_for = []

    def is_costly(ctx, request):
        asked_for.append([topic.name for topic in request.topics])
        return True

    by_cost.requests._apis[3].is_costly = is_costly
    by_cost.requests.receive(by_cost.channel, metadata_frame(["t"]))
    assert by_cost.ran.done.wait(60)
    assert by_cost.ran.thread is not threading.current_thread()
    assert asked_for == [["t"]], "asked on the network thread, and only there"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.POLICY_VIOLATION), ErrorCode.POLICY_VIOLATION),
        (ValueError("a fault of ours"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_goes_wrong_on_the_short_way_is_answered_as_on_the_long_one(by_cost, error, code):
    def fail(*_):
        raise error

    answers = []
    for name in ("ordinary", "handle"):
        api = copy(by_cost.requests._apis[3])
        api.load()
        setattr(api, name, fail)
        by_cost.requests._apis = {3: api}
        by_cost.requests.receive(by_cost.channel, metadata_frame(["t"]))
        answers.append(by_cost.processor.done.pop())
    assert answers[0] == answers[1]
    assert code.to_bytes(2, "big", signed=True) in answers[0]


def test_a_frame_of_tiny_elements_is_refused_and_the_log_says_why(by_cost, caplog):
    """N3: 26 to 485 MiB for 16 MB. As many elements as the bytes could be are never made."""
    caplog.set_level("INFO")
    body = b"\x80\x80\x80\x04" + b"\x01\x00" * (1 << 22)  # 8 Mi topics without a name
    head = struct.pack(">hhih", 3, 9, 5, -1) + b"\0"
    closed = threading.Event()
    finish = by_cost.processor.complete

    def complete(*args):
        finish(*args)
        closed.set()

    by_cost.processor.complete = complete
    frame = head + body
    by_cost.requests.receive(by_cost.channel, struct.pack(">i", len(frame)) + frame)
    assert closed.wait(60)
    assert list(by_cost.processor.done) == [CLOSED]
    assert by_cost.requests.malformed == 1
    assert not by_cost.ran.done.is_set()
    (said,) = [r.getMessage() for r in caplog.records if "malformed" in r.getMessage()]
    assert "elements more than are allowed" in said


def test_the_bound_of_elements_grows_with_what_arrived():
    assert elements_max(0) == 100_000, "the largest honest requests have tens of thousands"
    assert elements_max(32_000_000) == 1_100_000
