"""Streams groups behind the authorizer: whose topics they are, and who may have them made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.coordinator.streams_groups.internal_topics import InternalTopics
from server.coordinator.streams_groups.protocol import Answer
from server.coordinator.streams_groups.topology import InternalTopic
from server.network.api import Operation as Op
from server.network.api import Resource as Re
from tests.server.coordinator.streams_groups.streams_support import subtopology, topology
from tests.server.handlers.access.test_rules import alice, broker_with
from wire.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

T, G, C = Re.TOPIC, Re.GROUP, Re.CLUSTER
READ = (Op.READ, G, "g")
BOTH = [(Op.DESCRIBE, T, "in"), (Op.DESCRIBE, T, "log")]
_Topology = StreamsGroupDescribeResponse.Group.Topology


class Groups:
    """One group whose changelog is missing."""

    def __init__(self):
        self.internal_topics = InternalTopics(lambda: 0)

    def serves(self, kind):
        return kind == "streams"

    def streams_group_heartbeat(self, _request, _client, answer):
        response = StreamsGroupHeartbeatResponse.blank()
        response.status = []
        answer(Answer(response, [InternalTopic("log", 2, 0, ())]))

    def describe_streams_groups(self, group_ids, answer):
        make = StreamsGroupDescribeResponse.Group
        log = _Topology.Subtopology.TopicInfo(
            name="log", partitions=2, replication_factor=0, topic_configs=[]
        )
        part = _Topology.Subtopology(
            subtopology_id="0",
            source_topics=["in"],
            repartition_sink_topics=[],
            state_changelog_topics=[log],
            repartition_source_topics=[],
        )
        groups = []
        for group_id in group_ids:
            group = make.blank()
            group.group_id, group.group_state = group_id, "Stable"
            group.topology = _Topology(epoch=0, subtopologies=[part])
            groups.append(group)
        answer(groups)


def asked_by_alice(*allowed):
    broker = broker_with("in")
    broker.config["request.timeout.ms"] = 30_000
    broker.group_coordinator = Groups()
    made = []
    broker.controller = SimpleNamespace(submit=lambda request, *_, **__: made.append(request))
    return alice(broker, *allowed), made


def heartbeat(*allowed, reads="in"):
    asked, made = asked_by_alice(*allowed)
    request = StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        endpoint_information_epoch=0,
        topology=topology(subtopology(reads=(reads,), changelogs=("log",))),
        shutdown_application=False,
    )
    return asked.ask(request, 0), made


@pytest.mark.parametrize(("allowed", "code"), [([], 30), ([READ], 29), ([READ, BOTH[0]], 29)])
def test_a_member_reads_its_group_and_sees_all_topics_of_its_topology(allowed, code):
    answer, made = heartbeat(*allowed)
    assert (answer.error_code, made) == (code, [])


@pytest.mark.parametrize(
    ("name", "text"), [("__consumer_offsets", "prohibited"), ("a b", "not valid")]
)
def test_names_that_no_topology_may_use_are_told_to_who_may_not_see_such_topics(name, text):
    answer, made = heartbeat(READ, reads=name)
    assert (answer.error_code, made) == (130, [])
    assert text in answer.error_message
    assert heartbeat(reads=name)[0].error_code == 30


def test_topics_are_not_made_for_who_may_not_make_them():
    answer, made = heartbeat(READ, *BOTH)
    (status,) = answer.status
    assert (status.status_code, status.status_detail) == (
        3, "Unauthorized to CREATE on topics log.",
    )  # fmt: skip
    assert not made


@pytest.mark.parametrize("right", [(Op.CREATE, T, "log"), (Op.CREATE, C, "kafka-cluster")])
def test_topics_are_made_for_who_may(right):
    answer, made = heartbeat(READ, *BOTH, right)
    assert (answer.error_code, answer.status) == (0, [])
    assert [topic.name for topic in made[0].topics] == ["log"]


def test_a_group_with_a_topic_that_may_not_be_seen_is_not_shown():
    describe = StreamsGroupDescribeRequest(group_ids=["g"], include_authorized_operations=True)
    may = (Op.DESCRIBE, G, "g")
    asked, _ = asked_by_alice(may, BOTH[0])
    (group,) = asked.ask(describe, 0).groups
    assert (group.group_id, group.error_code, group.topology) == ("g", 29, None)
    asked, _ = asked_by_alice(may, *BOTH)
    (group,) = asked.ask(describe, 0).groups
    assert (group.error_code, group.authorized_operations) == (0, 1 << Op.DESCRIBE.value)
