"""Heartbeats of streams groups: who is told what, and what is written (ST-1 to ST-24)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from server.coordinator import sweeps
from server.coordinator.deadlines import Once
from server.coordinator.group import Committer
from server.coordinator.streams_groups.requests import ID_MAX
from tests.server.coordinator.group_support import compacted
from tests.server.coordinator.streams_groups.streams_support import (
    CLIENT,
    StreamsWorld,
    image_of,
    refused,
    standbys,
    statuses,
    subtopology,
    tasks,
    topology,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
)
from wire.messages.streams import StreamsGroupHeartbeatRequest

STALE, NO_SOURCE, WRONG_COUNT, NO_INTERNAL, SHUTDOWN, DELAYED = range(6)
ENDPOINT = StreamsGroupHeartbeatRequest.Endpoint


@pytest.fixture
def world():
    return StreamsWorld()


@pytest.fixture
def settled(world):
    """Member a runs both tasks, at epoch 2."""
    world.join("a")
    world.later(3_000)
    answer = world.beat("a", 1)
    assert (answer.member_epoch, tasks(answer)) == (2, {"0": [0, 1]})
    return world


class TestRebalance:
    def test_it_goes_as_apache_kafka_does_it(self, world):
        """Reference, D.3, which was seen on a 4.3.1 node."""
        changelog = subtopology(changelogs=("log",))
        answer = world.join("a", changelog)
        assert (answer.member_epoch, tasks(answer)) == (1, {})
        assert statuses(answer) == [DELAYED, NO_INTERNAL]
        assert world.wrote == [19, 23, 17, 22]
        assert world.missing == ["log"]
        world.image = image_of(**{"in": 2, "log": 2})
        answer = world.beat("a", 1)
        assert (statuses(answer), world.wrote, world.missing) == ([DELAYED], [17], [])
        world.later(3_000)
        assert world.wrote == [21, 20]
        answer = world.beat("a", 1)
        assert (answer.member_epoch, tasks(answer), statuses(answer)) == (3, {"0": [0, 1]}, [])
        assert world.wrote == [22]
        world.later(1_000)
        answer = world.join("b", changelog)
        assert (answer.member_epoch, tasks(answer)) == (4, {})
        assert world.wrote == [19, 17, 21, 21, 20, 22]
        answer = world.beat("a", 3)
        assert (answer.member_epoch, tasks(answer)) == (3, {"0": [0]})
        assert tasks(world.beat("b", 4)) is None
        answer = world.beat("a", 3, {"0": [0]})
        assert (answer.member_epoch, tasks(answer)) == (4, None)
        answer = world.beat("b", 4)
        assert (answer.member_epoch, tasks(answer)) == (4, {"0": [1]})
        assert world.group.state_name == "Stable"

    def test_who_comes_while_a_new_group_waits_is_given_tasks_with_the_others(self, world):
        for member in "abc":
            answer = world.join(member)
            assert (answer.member_epoch, tasks(answer), statuses(answer)) == (1, {}, [DELAYED])
            world.later(500)
        world.later(1_500)
        assert world.wrote == [21, 21, 21, 20]
        given = [tasks(world.beat(member, 1)) for member in "abc"]
        assert sorted(map(str, given)) == ["None", "{'0': [0]}", "{'0': [1]}"]

    def test_without_a_delay_the_first_has_tasks_at_once(self, world):
        world.config = replace(world.config, group_streams_initial_rebalance_delay_ms=0)
        answer = world.join("a")
        assert (answer.member_epoch, tasks(answer)) == (2, {"0": [0, 1]})
        assert world.wrote == [19, 23, 17, 21, 20, 22]

    def test_the_next_target_waits_for_the_interval(self, settled):
        answer = settled.join("b")
        assert (answer.member_epoch, statuses(answer)) == (2, [DELAYED])
        settled.later(1_000)
        answer = settled.beat("b", 2)
        assert (answer.member_epoch, statuses(answer)) == (3, [])

    def test_a_clock_that_was_ahead_holds_up_no_assignment(self, settled):
        settled.moment.wall_ms -= 3_600_000
        answer = settled.join("b")
        assert (answer.member_epoch, statuses(answer)) == (3, [])

    def test_a_heartbeat_that_changes_nothing_writes_nothing(self, settled):
        answer = settled.beat("a", 2)
        assert (answer.member_epoch, tasks(answer), settled.wrote) == (2, None, [])

    def test_a_lost_answer_is_told_again(self, settled):
        answer = settled.beat("a", 1, {"0": [0]})
        assert (answer.member_epoch, tasks(answer)) == (2, {"0": [0, 1]})
        assert tasks(settled.beat("a", 2, {"0": [0]})) == {"0": [0, 1]}
        assert tasks(settled.beat("a", 2, {"0": [0, 1]})) is None
        refused(lambda: settled.beat("a", 1), ErrorCode.FENCED_MEMBER_EPOCH)
        refused(lambda: settled.beat("a", 1, {"1": [0]}), ErrorCode.FENCED_MEMBER_EPOCH)
        refused(lambda: settled.beat("a", 3), ErrorCode.FENCED_MEMBER_EPOCH)

    def test_who_joins_again_is_told_its_tasks(self, settled):
        answer = settled.join("a")
        assert (answer.member_epoch, tasks(answer), settled.wrote) == (2, {"0": [0, 1]}, [])

    def test_who_leaves_is_forgotten(self, settled):
        answer = settled.beat("a", -1)
        assert (answer.member_epoch, answer.status) == (-1, [])
        assert settled.wrote == [-22, -21, -19, 17]
        assert settled.group.state_name == "Empty"
        refused(lambda: settled.beat("a", 2), ErrorCode.UNKNOWN_MEMBER_ID)

    def test_who_is_silent_for_a_session_is_gone(self, settled):
        settled.later(44_999)
        assert "a" in settled.group.members
        settled.later(1)
        assert settled.group.members == {}

    def test_who_does_not_give_back_in_time_is_fenced(self, world):
        world.join("a", rebalance_timeout_ms=10_000)
        world.later(3_000)
        world.beat("a", 1)
        world.later(1_000)
        world.join("b")
        assert tasks(world.beat("a", 2)) == {"0": [0]}
        world.later(9_999)
        assert tasks(world.beat("a", 2, {"0": [0, 1]})) == {"0": [0]}
        world.later(1)
        assert set(world.group.members) == {"b"}

    def test_an_epoch_is_bumped_when_the_topology_that_is_served_grows(self, settled):
        settled.later(1_000)
        settled.image = image_of(**{"in": 3})
        answer = settled.beat("a", 2)
        assert (answer.member_epoch, tasks(answer)) == (3, {"0": [0, 1, 2]})
        assert settled.wrote == [17, 21, 20, 22]

    def test_another_number_of_copies_rebalances(self, world):
        stateful = subtopology(changelogs=("log",))
        world.image = image_of(**{"in": 2, "log": 2})
        for member in "ab":
            world.join(member, stateful)
        world.later(3_000)
        for member in "ab":
            world.beat(member, 1)
        assert not standbys(world.join("a", stateful))
        world.later(1_000)
        world.config = replace(world.config, group_streams_num_standby_replicas=1)
        answers = [world.beat(member, 3) for member in "ab"]
        assert [answer.member_epoch for answer in answers] == [4, 4]
        for answer in answers:
            (copied,) = standbys(answer)["0"]
            assert copied not in tasks(answer)["0"]

    def test_two_threads_of_a_process_hand_over_only_what_was_given_back(self, settled):
        settled.later(1_000)
        settled.join("b", process_id="p-a")
        assert tasks(settled.beat("b", 3)) is None
        settled.beat("a", 2)
        settled.beat("a", 2, {"0": [0]})
        assert tasks(settled.beat("b", 3)) == {"0": [1]}


class TestTopologies:
    def test_source_topics_must_be_there(self, world):
        world.image = image_of()
        answer = world.join("a")
        assert statuses(answer) == [DELAYED, NO_SOURCE]
        assert answer.status[1].status_detail == "Source topics in are missing."
        assert world.group.state_name == "NotReady"
        world.later(3_000)
        world.image = image_of(**{"in": 1})
        world.later(1_000)
        answer = world.beat("a", 1)
        assert (statuses(answer), tasks(answer)) == ([], {"0": [0]})
        assert world.group.state_name == "Stable"

    def test_a_first_target_that_could_not_be_written_is_made_by_heartbeats(self, world):
        """A timer that tried again and again would have members wait for what never comes."""
        world.join("a")
        world.moment.now_ms += 3_000
        _, first = world.shard.deadlines.pop_due(world.moment.now_ms)
        assert isinstance(first, Once)
        assert [type(key).type_id for key, _ in first().records] == [21, 20]
        answer = world.beat("a", 1)
        assert (statuses(answer), tasks(answer)) == ([], {"0": [0, 1]})
        assert world.wrote == [21, 20, 22]

    def test_another_topology_is_refused_and_an_older_one_is_told_so(self, world):
        new = topology(subtopology(), epoch=2)
        world.join("a", topology=new)
        other = topology(subtopology(reads=("in", "in2")), epoch=2)
        detail = refused(lambda: world.join("b", topology=other), ErrorCode.INVALID_REQUEST)
        assert detail == "Topology updates are not supported yet."
        newer = topology(subtopology(), epoch=3)
        refused(lambda: world.join("b", topology=newer), ErrorCode.INVALID_REQUEST)
        older = topology(subtopology(reads=("old",)), epoch=1)
        assert statuses(world.join("b", topology=older)) == [STALE, DELAYED]
        assert statuses(world.beat("b", 1)) == [STALE, DELAYED]
        assert "b" in world.group.members

    def test_tasks_that_do_not_exist_are_refused(self, settled):
        refused(lambda: settled.beat("a", 2, {"1": [0]}), ErrorCode.INVALID_REQUEST)
        refused(lambda: settled.beat("a", 2, {"0": [2]}), ErrorCode.INVALID_REQUEST)

    def test_a_shutdown_is_told_to_all_until_nobody_is_left(self, settled):
        settled.later(1_000)
        settled.join("b")
        assert statuses(settled.beat("b", 3, shutdown_application=True)) == [SHUTDOWN]
        assert statuses(settled.beat("a", 2)) == [SHUTDOWN]
        settled.beat("b", -1)
        assert SHUTDOWN in statuses(settled.beat("a", 2))
        settled.beat("a", -1)
        assert statuses(settled.join("c")) == [DELAYED]

    def test_who_leaves_may_ask_for_it(self, settled):
        settled.join("b")
        settled.beat("b", -1, shutdown_application=True)
        assert SHUTDOWN in statuses(settled.beat("a", 2))

    def test_members_tell_where_their_state_is_asked_for(self, settled):
        settled.later(1_000)
        answer = settled.join("b", user_endpoint=ENDPOINT(host="b", port=7))
        assert answer.endpoint_information_epoch == 1
        (told,) = answer.partitions_by_user_endpoint
        assert (told.user_endpoint.host, told.user_endpoint.port) == ("b", 7)
        assert told.active_partitions == []
        settled.beat("a", 2)
        settled.beat("a", 2, {"0": [0]})
        answer = settled.beat("b", 3, endpoint_information_epoch=1)
        assert answer.endpoint_information_epoch == 2
        (told,) = answer.partitions_by_user_endpoint
        assert [(one.topic, one.partitions) for one in told.active_partitions] == [("in", [1])]
        answer = settled.beat("b", 3, endpoint_information_epoch=2)
        assert answer.partitions_by_user_endpoint is None
        assert settled.beat("a", 3, endpoint_information_epoch=1).partitions_by_user_endpoint


class TestOffsets:
    def commit(self, world, epoch, topic="in", partition=1, **fields):
        given = {"instance_id": None, "api_version": 9, "is_transactional": False, **fields}
        check = world.group.check_commit(Committer("a", epoch=epoch, **given))
        if check is not None:
            check(topic, b"", partition)

    @pytest.fixture
    def moved(self, settled):
        """a keeps task 0_0 since epoch 2 and is in epoch 3."""
        settled.later(1_000)
        settled.join("b")
        settled.beat("a", 2)
        settled.beat("a", 2, {"0": [0]})
        return settled

    def test_a_commit_of_an_earlier_epoch_is_good_for_what_stayed(self, moved):
        self.commit(moved, 3)
        self.commit(moved, 2, partition=0)
        refused(lambda: self.commit(moved, 2), ErrorCode.STALE_MEMBER_EPOCH)
        refused(lambda: self.commit(moved, 1, partition=0), ErrorCode.STALE_MEMBER_EPOCH)
        refused(lambda: self.commit(moved, 2, "other", 0), ErrorCode.STALE_MEMBER_EPOCH)
        refused(lambda: self.commit(moved, 4), ErrorCode.STALE_MEMBER_EPOCH)
        refused(lambda: self.commit(moved, 4, is_transactional=True), ErrorCode.ILLEGAL_GENERATION)
        refused(lambda: self.commit(moved, 3, api_version=8), ErrorCode.UNSUPPORTED_VERSION)

    def test_offsets_are_read_in_the_epoch_or_by_an_administrator(self, moved):
        moved.group.check_fetch(None, -1)
        moved.group.check_fetch("a", 3)
        refused(lambda: moved.group.check_fetch("a", 2), ErrorCode.STALE_MEMBER_EPOCH)
        refused(lambda: moved.group.check_fetch("x", 2), ErrorCode.UNKNOWN_MEMBER_ID)

    def test_topics_that_are_read_keep_their_offsets(self, moved):
        assert moved.group.is_subscribed_to("in")
        assert not moved.group.is_subscribed_to("other")
        moved.beat("a", -1)
        moved.beat("b", -1)
        assert not moved.group.is_subscribed_to("in")


class TestFailover:
    def test_another_coordinator_goes_on(self, settled):
        settled.reload()
        assert settled.beat("a", 2).member_epoch == 2
        assert settled.wrote == []
        settled.later(44_999)
        assert "a" in settled.group.members
        settled.later(1)
        assert settled.group.members == {}

    def test_it_knows_what_a_member_has_that_told_its_rack_later(self, settled):
        settled.beat("a", 2, rack_id="r")
        assert settled.wrote == [19, 17]
        settled.reload()
        assert settled.beat("a", 2).member_epoch == 2

    def test_one_that_comes_while_tasks_move(self, settled):
        settled.later(1_000)
        settled.join("b")
        settled.beat("a", 2)
        settled.reload()
        assert tasks(settled.beat("b", 3)) is None
        settled.reload()
        assert settled.beat("a", 2, {"0": [0]}).member_epoch == 3
        settled.reload()
        assert tasks(settled.beat("b", 3)) == {"0": [1]}
        settled.reload()
        assert settled.group.state_name == "Stable"

    def test_one_that_comes_before_the_first_target_does_not_wait(self, world):
        world.join("a")
        world.reload()
        answer = world.beat("a", 1)
        assert (answer.member_epoch, tasks(answer)) == (2, {"0": [0, 1]})


class TestOtherKinds:
    def classic_join(self, world, member_id="", group_id="g"):
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )
        return world.shard.join(request, CLIENT._replace(api_version=3), lambda _: None)

    def test_a_group_is_of_one_kind(self, settled):
        with pytest.raises(KafkaError) as raised:
            self.classic_join(settled)
        assert raised.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            topic_partitions=[],
            subscribed_topic_names=["in"],
        )
        refused(
            lambda: settled.shard.consumer_heartbeat(request, CLIENT), ErrorCode.GROUP_ID_NOT_FOUND
        )
        (listed,) = settled.shard.list_groups([], [])
        assert (listed.group_type, listed.protocol_type, listed.group_state) == (
            "streams", "streams", "Stable",
        )  # fmt: skip

    def test_a_group_without_members_may_become_another(self, settled):
        settled.beat("a", -1)
        settled.play(self.classic_join(settled))
        assert settled.wrote[:3] == [-20, -23, -17]
        assert not settled.shard.streams.groups
        assert "g" in settled.shard.classic.groups
        detail = refused(lambda: settled.beat("a", 2), ErrorCode.GROUP_ID_NOT_FOUND)
        assert detail == "Group g is not a streams group."

    def test_offsets_alone_are_no_hindrance(self, world):
        world.shard._note_group("g")
        world.join("a")
        assert world.wrote == [-2, 19, 23, 17, 22]
        assert "g" not in world.shard.classic.groups
        world.reload()

    def test_a_group_is_deleted_when_nobody_is_in_it(self, settled):
        refused(lambda: settled.shard.delete_group("g"), ErrorCode.NON_EMPTY_GROUP)
        settled.beat("a", -1)
        settled.play(settled.shard.delete_group("g"))
        assert settled.wrote == [-20, -23, -17]
        assert not settled.shard.streams.groups
        refused(lambda: settled.beat("a", 2), ErrorCode.GROUP_ID_NOT_FOUND)

    def test_a_group_that_expires_in_steps_leaves_nothing_in_the_log(self, settled, monkeypatch):
        """Its last record ends it: what was not written by then, nobody would write."""
        partition = OffsetCommitRequest.Topic.Partition(
            partition_index=0, committed_offset=1, committed_metadata=None
        )
        topics = [OffsetCommitRequest.Topic(name="in", partitions=[partition])]
        commit = OffsetCommitRequest(
            group_id="g", member_id="a", generation_id_or_member_epoch=2, topics=topics
        )
        settled.play(settled.shard.commit_offsets(commit, 9))
        settled.beat("a", -1)
        settled.later(8 * 24 * 3_600_000)
        monkeypatch.setattr(sweeps, "SWEEP_RECORDS_MAX", 3)
        for _ in range(2):
            settled.play(settled.shard.sweep())
        assert not settled.shard.streams.groups
        assert [key for key, value in compacted(settled.log) if value is not None] == []

    def test_who_joins_a_group_that_is_about_to_expire_joins_one_that_is_whole(
        self, settled, monkeypatch
    ):
        """Half of it swept away, a member was told that it had left (epoch -1)."""
        settled.beat("a", -1)
        settled.later(8 * 24 * 3_600_000)
        monkeypatch.setattr(sweeps, "SWEEP_RECORDS_MAX", 1)
        settled.play(settled.shard.sweep())
        assert settled.join("b").member_epoch > 0
        settled.later(3_000)
        answer = settled.beat("b", settled.group.members["b"].epoch)
        assert tasks(answer) == {"0": [0, 1]}
        settled.reload()


INFO = StreamsGroupHeartbeatRequest.Topology.Subtopology.TopicInfo


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"instance_id": "i"}, ErrorCode.INVALID_REQUEST),
        ({"task_offsets": []}, ErrorCode.INVALID_REQUEST),
        ({"task_end_offsets": []}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topology": None}, ErrorCode.INVALID_REQUEST),
        ({"active_tasks": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 1}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2, "topology": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3, "topology": None}, ErrorCode.INVALID_REQUEST),
        ({"topology": topology(subtopology(), subtopology())}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": topology(subtopology(reads=()))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": topology(epoch=-1)}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(world, fields, code):
    refused(lambda: world.join("a", **fields), code)
    assert not world.log


def test_ids_are_no_longer_than_every_target_can_read_them(world):
    """The order of a Java HashMap is that of all characters of the ids in it."""
    longest, longer = "i" * ID_MAX, "i" * (ID_MAX + 1)
    for fields in ({"process_id": longer}, {"member_id": longer}):
        refused(partial(world.join, "a", **fields), ErrorCode.INVALID_REQUEST)
    unknown = partial(world.join, "a", subtopology(longer))
    refused(unknown, ErrorCode.STREAMS_INVALID_TOPOLOGY)
    assert not world.log
    world.join(longest, subtopology(longest), process_id=longest)
    assert world.group.members[longest].process_id == longest


def test_a_changelog_has_as_many_partitions_as_there_are_tasks(world):
    asked = subtopology(changelogs=("log",))
    asked.state_changelog_topics[0].partitions = 2
    refused(lambda: world.join("a", asked), ErrorCode.STREAMS_INVALID_TOPOLOGY)


def test_a_group_has_a_largest_size(settled):
    settled.config = replace(settled.config, group_streams_max_size=1)
    refused(lambda: settled.join("b"), ErrorCode.GROUP_MAX_SIZE_REACHED)
    settled.join("a")


def test_a_member_of_no_group_is_told_so(world):
    detail = refused(lambda: world.beat("a", 1), ErrorCode.GROUP_ID_NOT_FOUND)
    assert detail == "Streams group g not found."


def test_what_is_described(settled):
    settled.later(1_000)
    settled.join("b", user_endpoint=ENDPOINT(host="h", port=1), rack_id="r")
    told = settled.shard.describe_streams_group("g")
    assert (told.group_state, told.group_epoch, told.assignment_epoch) == ("Reconciling", 3, 3)
    (part,) = told.topology.subtopologies
    assert (part.subtopology_id, part.source_topics) == ("0", ["in"])
    a, b = told.members
    assert [one.partitions for one in a.assignment.active_tasks] == [[0, 1]]
    assert [one.partitions for one in a.target_assignment.active_tasks] == [[0]]
    assert (b.process_id, b.rack_id, b.user_endpoint.host, b.topology_epoch) == ("p-b", "r", "h", 0)
    detail = refused(
        lambda: settled.shard.describe_streams_group("x"), ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert detail == "Group x not found."
