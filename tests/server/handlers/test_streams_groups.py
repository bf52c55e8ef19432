"""Streams groups as requests: shapes, errors, and topics that are made on the client's behalf."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.coordinator.streams_groups.describe import not_described
from server.coordinator.streams_groups.internal_topics import InternalTopics
from server.coordinator.streams_groups.protocol import Answer
from server.coordinator.streams_groups.topology import InternalTopic, Status
from server.handlers import BROKER_APIS, streams_groups
from tests.server.coordinator.streams_groups.streams_support import subtopology, topology
from tests.server.handlers.groups_support import Context
from wire.errors import ErrorCode as E
from wire.errors import KafkaError
from wire.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

LOG, OTHER = InternalTopic("log", 2, 0, ()), InternalTopic("other", 2, 0, ())
MISSING = 3


class World:
    """A broker whose group coordinator answers as it is told."""

    def __init__(self, *, is_served=True):
        self.result = KafkaError(E.NOT_COORDINATOR, "not here")
        self.asked = []
        """CreateTopicsRequests, and what takes their answers."""
        self.internal_topics = InternalTopics(lambda: 0)
        groups = SimpleNamespace(
            serves=lambda kind: is_served and kind == "streams",
            internal_topics=self.internal_topics,
            streams_group_heartbeat=lambda _request, _client, answer: answer(self.result),
            describe_streams_groups=lambda ids, answer: answer(
                [not_described(group_id, self.result) for group_id in ids]
            ),
        )
        self.broker = SimpleNamespace(
            group_coordinator=groups,
            controller=SimpleNamespace(submit=self._submit),
            config=SimpleNamespace(get_int={"request.timeout.ms": 30_000}.__getitem__),
        )

    def _submit(self, request, answer, *, context):
        self.asked.append((request, answer, context))

    def misses(self, *topics):
        status = Status(status_code=MISSING, status_detail="Internal topics are missing: x")
        response = StreamsGroupHeartbeatResponse(
            error_code=0,
            member_id="m",
            member_epoch=1,
            heartbeat_interval_ms=5_000,
            acceptable_recovery_lag=0,
            task_offset_interval_ms=0,
            status=[status],
            endpoint_information_epoch=0,
        )
        self.result = Answer(response, topics)

    def beat(self, *arguments, **fields):
        given = {"member_epoch": 0, "endpoint_information_epoch": 0, "shutdown_application": False}
        request = StreamsGroupHeartbeatRequest(
            **{"group_id": "g", "member_id": "m", **given, **fields}
        )
        return self.ask(streams_groups.streams_group_heartbeat, request, *arguments)

    def ask(self, handler, request, *arguments):
        ctx = Context(self.broker, 0)
        ctx.principal = "User:alice"
        handler(ctx, request, *arguments)
        (answer,) = ctx.answers
        return answer


@pytest.mark.parametrize(
    ("is_served", "code"), [(False, E.UNSUPPORTED_VERSION), (True, E.NOT_COORDINATOR)]
)
def test_errors_are_told_in_the_apis_own_shape(is_served, code):
    world = World(is_served=is_served)
    assert world.beat().error_code == code
    describe = StreamsGroupDescribeRequest(group_ids=["g"], include_authorized_operations=True)
    (group,) = world.ask(streams_groups.streams_group_describe, describe).groups
    assert (group.error_code, group.topology, group.members) == (code, None, [])


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("__consumer_offsets", "Use of Kafka internal topics __consumer_offsets in a Kafka "),
        ("no topic", "Topic names no topic are not valid topic names."),
    ],
)
@pytest.mark.parametrize("where", ["reads", "changelogs", "sinks"])
def test_names_that_no_topology_may_have_are_refused(name, detail, where):
    answer = World().beat(topology=topology(subtopology(**{where: (name,)})))
    assert answer.error_code == E.STREAMS_INVALID_TOPOLOGY
    assert answer.error_message.startswith(detail)


def test_topics_that_are_missing_are_made_as_the_client():
    world = World()
    world.misses(LOG, OTHER)
    (status,) = world.beat().status
    assert status.status_detail == "Internal topics are missing: x"
    ((request, _, context),) = world.asked
    assert [topic.name for topic in request.topics] == ["log", "other"]
    assert (context.principal, context.client_id) == ("User:alice", "app")
    world.beat()
    assert len(world.asked) == 1, "nobody asks again meanwhile"


def test_why_some_could_not_be_made_is_told():
    world = World()
    world.misses(LOG)
    world.beat()
    ((_, answered, _),) = world.asked
    answered(KafkaError(E.POLICY_VIOLATION, "no such topics here"))
    (status,) = world.beat().status
    assert status.status_detail == (
        "Internal topics are missing: x; Creation failed: log (no such topics here)."
    )
    assert len(world.asked) == 1


def test_nothing_is_made_for_who_may_not_make_all():
    world = World()
    world.misses(LOG, OTHER)
    (status,) = world.beat(lambda names: names[1:]).status
    assert status.status_detail.endswith("; Unauthorized to CREATE on topics other.")
    assert not world.asked
    world.beat(lambda _: [])
    assert world.asked


def test_a_heartbeat_holds_up_no_network_thread():
    """The first after a member has left gives all tasks anew: a second for 80,000 of them, which
    took nothing but a topology that reads one topic of 100 partitions 800 times."""
    assert not BROKER_APIS[StreamsGroupHeartbeatRequest.api_key].inline
