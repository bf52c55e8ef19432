"""Heartbeats of share groups: who is told what, and what is written (SG-1 to SG-6)."""

from __future__ import annotations

import pytest

from server.coordinator.group import Committer
from server.coordinator.share_groups.admin import begin_delete
from server.coordinator.share_groups.records import topics_record
from server.coordinator.share_groups.topics import SharedTopic, StateTopics
from tests.server.coordinator.group_support import compacted
from tests.server.coordinator.share_groups.share_group_support import (
    CLIENT,
    TOPIC_ID,
    ShareWorld,
    assigned,
    image_of,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from wire.messages.share import ShareGroupHeartbeatRequest


@pytest.fixture
def world():
    return ShareWorld()


@pytest.fixture
def settled(world):
    """Member a has both partitions, at epoch 3."""
    world.beat("a", 0, "t")
    world.initialized()
    world.later(1_000)
    answer = world.beat("a", 2)
    assert (answer.member_epoch, assigned(answer)) == (3, [0, 1])
    return world


def refused(call, code):
    with pytest.raises(KafkaError) as raised:
        call()
    assert raised.value.code is code
    return raised.value.detail


class TestMembers:
    def test_state_is_begun_before_anything_is_assigned(self, world):
        answer = world.beat("a", 0, "t")
        assert (answer.member_epoch, assigned(answer)) == (2, [])
        assert world.wrote == [10, 11, 13, 12, 14, 15]
        assert world.asked == [("g", 2, {TOPIC_ID: {0: -1, 1: -1}})]
        assert answer.heartbeat_interval_ms == 5_000

    def test_the_next_target_waits_for_the_interval(self, world):
        world.beat("a", 0, "t")
        world.initialized()
        answer = world.beat("a", 2)
        assert (answer.member_epoch, assigned(answer), world.wrote) == (2, None, [11])
        world.later(1_000)
        answer = world.beat("a", 2)
        assert (answer.member_epoch, assigned(answer)) == (3, [0, 1])
        assert world.wrote == [13, 12, 14]

    def test_a_clock_that_was_ahead_holds_up_nothing(self, world):
        world.beat("a", 0, "t")
        world.moment.wall_ms -= 3_600_000
        world.beat("a", 2)
        assert len(world.asked) == 2, "of what was asked for it is not known for how long"
        world.initialized()
        answer = world.beat("a", 2)
        assert (answer.member_epoch, assigned(answer)) == (3, [0, 1])

    def test_a_heartbeat_that_changes_nothing_writes_nothing(self, settled):
        answer = settled.beat("a", 3)
        assert (answer.member_epoch, assigned(answer), settled.wrote) == (3, None, [])
        settled.beat("a", 3)
        assert settled.wrote == []
        assert len(settled.asked) == 1

    def test_whether_the_next_heartbeat_may_make_a_target_is_known_before(self, settled):
        assert not settled.shard.awaits_target("g")
        assert not settled.shard.awaits_target("another")
        settled.beat("b", 0, "t")
        assert settled.shard.awaits_target("g"), "the last one is too young"
        settled.later(1_000)
        settled.beat("a", 3)
        assert not settled.shard.awaits_target("g")
        settled.image = image_of(t=3)
        assert settled.shard.awaits_target("g")

    def test_members_share_and_take_their_target_at_once(self, settled):
        settled.later(1_000)
        answer = settled.beat("b", 0, "t")
        assert (answer.member_epoch, assigned(answer)) == (4, [0])
        assert assigned(settled.beat("a", 3)) == [1]
        settled.later(1_000)
        answer = settled.beat("c", 0, "t")
        assert (answer.member_epoch, len(assigned(answer))) == (5, 1)
        answer = settled.beat("a", 4)  # two share each partition, so the first of three has both
        assert (answer.member_epoch, assigned(answer)) == (5, [0, 1])

    def test_a_lost_answer_is_told_again(self, settled):
        answer = settled.beat("a", 2, "t")
        assert (answer.member_epoch, assigned(answer)) == (3, [0, 1])

    def test_who_leaves_is_forgotten(self, settled):
        answer = settled.beat("a", -1)
        assert (answer.member_epoch, answer.heartbeat_interval_ms) == (-1, 0)
        assert settled.wrote == [-14, -13, -10, 11]
        assert settled.group.state_name == "Empty"
        refused(lambda: settled.beat("a", 3), ErrorCode.UNKNOWN_MEMBER_ID)

    def test_who_is_silent_for_a_session_is_gone(self, settled):
        settled.later(44_999)
        assert settled.group.state_name == "Stable"
        settled.later(1)
        assert settled.group.members == {}
        assert settled.group.epoch == 4

    def test_another_coordinator_goes_on(self, settled):
        settled.reload()
        assert settled.beat("a", 3).member_epoch == 3
        assert settled.wrote == []
        settled.reload()
        settled.later(45_000)
        assert settled.group.members == {}

    def test_another_coordinator_knows_what_a_member_has_that_told_its_rack_later(self, settled):
        settled.beat("a", 3, rack_id="r")
        assert settled.wrote == [10]
        settled.reload()
        assert settled.beat("a", 3).member_epoch == 3


class TestTopics:
    def test_state_that_could_not_be_begun_is_asked_for_again(self, world):
        world.beat("a", 0, "t")
        topics = {TOPIC_ID: SharedTopic("t", frozenset({0, 1}))}
        world.play(world.shard.share.not_initialized("g", topics))
        world.beat("a", 2)
        assert len(world.asked) == 2

    def test_an_answer_that_never_comes_is_asked_for_again(self, world):
        world.beat("a", 0, "t")
        world.later(29_999)
        world.beat("a", 2)
        assert len(world.asked) == 1
        world.later(1)
        world.beat("a", 2)
        assert len(world.asked) == 2

    def test_partitions_that_were_added_are_begun_and_assigned(self, settled):
        settled.image = image_of(t=3)
        settled.later(1_000)
        answer = settled.beat("a", 3)
        assert answer.member_epoch == 4
        assert settled.asked[-1] == ("g", 4, {TOPIC_ID: {2: -1}})
        settled.initialized("t", 2)
        settled.later(1_000)
        assert assigned(settled.beat("a", 4)) == [0, 1, 2]

    def test_a_topic_that_comes_later_is_noticed(self, world):
        world.image = image_of(other=1)
        world.beat("a", 0, "t")
        assert world.asked == []
        world.image = image_of(t=2)
        world.later(1_000)
        assert world.beat("a", 2).member_epoch == 3
        assert len(world.asked) == 1

    def test_a_topic_that_is_no_more_is_forgotten(self, settled):
        settled.play(settled.shard.on_shared_topics_deleted(frozenset({TOPIC_ID})))
        settled.image = image_of()
        settled.later(1_000)
        assert assigned(settled.beat("a", 3)) == []
        assert not any(settled.group.topics)
        settled.reload()

    def test_whoever_is_told_late_that_its_state_is_kept_does_not_bring_it_back(self, world):
        world.beat("a", 0, "t")
        world.play(world.shard.on_shared_topics_deleted(frozenset({TOPIC_ID})))
        world.initialized()
        assert not any(world.group.topics)
        assert world.wrote == []

    def test_nor_what_is_to_be_deleted(self, world):
        world.beat("a", 0, "t")
        world.beat("a", -1)
        world.play(begin_delete(world.shard.share, "g"))
        world.initialized()
        assert (world.group.topics.initialized, world.group.topics.deleting) == (
            {},
            {TOPIC_ID: "t"},
        )

    def test_it_is_forgotten_in_batches_that_the_log_takes(self, world):
        topic = SharedTopic("t", frozenset(range(300)))
        kept = StateTopics({TOPIC_ID: topic}, {TOPIC_ID: topic, b"left" * 4: topic}, {})
        ids = [f"g{i}" for i in range(500)]
        for group_id in ids:
            world.shard.replay(topics_record(group_id, kept))
        world.play(world.shard.on_shared_topics_deleted(frozenset({TOPIC_ID})))
        assert 0 < len(world.wrote) <= 100
        for _ in ids:
            world.later(50)
        groups = world.shard.share.groups
        assert all(list(groups[group_id].topics.initialized) == [b"left" * 4] for group_id in ids)

    def test_one_that_went_unheard_of_leaves_its_successor_in_peace(self, settled):
        """No coordinator was there when the topic was deleted; it has been made again since."""
        settled.image = image_of(other=1, t=2)
        del settled.image.topics_by_name["other"], settled.image.topics_by_id[TOPIC_ID]
        settled.later(1_000)
        settled.beat("a", 3)
        settled.initialized("t")
        settled.later(1_000)
        answer = settled.beat("a", 4)
        assert (answer.member_epoch, assigned(answer)) == (5, [0, 1])
        settled.later(1_000)
        assert settled.beat("a", 5).member_epoch == 5
        assert settled.wrote == []

    def test_another_subscription_drops_what_is_not_in_it(self, settled):
        settled.image = image_of(t=2, u=1)
        settled.later(1_000)
        answer = settled.beat("a", 3, "u")
        assert (answer.member_epoch, assigned(answer)) == (4, [])
        settled.initialized("u")
        settled.later(1_000)
        answer = settled.beat("a", 4)
        assert [t.topic_id for t in answer.assignment.topic_partitions] == [b"\1" * 16]


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"member_id": ""}, "MemberId can't be empty."),
            ({"group_id": " "}, "GroupId can't be empty."),
            ({"rack_id": ""}, "RackId can't be empty."),
            ({"member_epoch": -2}, "MemberEpoch is invalid."),
            ({}, "SubscribedTopicNames must be set in first request."),
        ],
    )
    def test_what_makes_no_sense(self, world, fields, text):
        detail = refused(lambda: world.beat("a", 0, **fields), ErrorCode.INVALID_REQUEST)
        assert detail == text

    def test_epochs(self, settled):
        refused(lambda: settled.beat("a", 4), ErrorCode.FENCED_MEMBER_EPOCH)
        refused(lambda: settled.beat("a", 1), ErrorCode.FENCED_MEMBER_EPOCH)

    def test_a_group_that_nobody_knows(self, world):
        refused(lambda: world.beat("a", 1), ErrorCode.GROUP_ID_NOT_FOUND)
        refused(lambda: world.beat("a", -1), ErrorCode.GROUP_ID_NOT_FOUND)

    def test_a_group_that_is_full(self, settled):
        settled.config = type(settled.config)(group_share_max_size=1)
        refused(lambda: settled.beat("b", 0, "t"), ErrorCode.GROUP_MAX_SIZE_REACHED)
        assert settled.beat("a", 0, "t").member_epoch == 3

    def test_groups_of_other_kinds(self, settled):
        shard = settled.shard
        as_consumer = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="x", member_epoch=0, rebalance_timeout_ms=1,
            subscribed_topic_names=["t"], topic_partitions=[],
        )  # fmt: skip
        detail = refused(
            lambda: shard.consumer_heartbeat(as_consumer, CLIENT), ErrorCode.GROUP_ID_NOT_FOUND
        )
        assert detail == "Group g is not a consumer group."
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=1, member_id="",
            protocol_type="consumer", protocols=[],
        )  # fmt: skip
        refused(lambda: shard.join(join, CLIENT, print), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        settled.play(
            shard.consumer_heartbeat(
                ConsumerGroupHeartbeatRequest(
                    group_id="h", member_id="x", member_epoch=0, rebalance_timeout_ms=1,
                    subscribed_topic_names=["t"], topic_partitions=[],
                ),
                CLIENT,
            )
        )  # fmt: skip
        as_share = ShareGroupHeartbeatRequest(
            group_id="h", member_id="x", member_epoch=0, subscribed_topic_names=["t"]
        )
        detail = refused(
            lambda: shard.share.heartbeat(as_share, CLIENT), ErrorCode.GROUP_ID_NOT_FOUND
        )
        assert detail == "Group h is not a share group."

    def test_there_are_no_offsets(self, settled):
        group = settled.group
        nobody = Committer("", None, -1, 9, is_transactional=False)
        refused(lambda: group.check_commit(nobody), ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_fetch(None, -1)  # there are none
        refused(group.check_offset_delete, ErrorCode.GROUP_ID_NOT_FOUND)


def test_offsets_that_another_replica_has_cleaned_away_make_no_second_group_of_the_id(world):
    """Nothing but its offsets tells of a group that only ever committed some, and each replica's
    log is cleaned on its own: the one with which the group was made had nothing of them."""
    partition = {"partition_index": 0}
    committed = OffsetCommitRequest.Topic.Partition(
        **partition, committed_offset=1, committed_metadata=None
    )
    topics = [OffsetCommitRequest.Topic(name="t", partitions=[committed])]
    commit = OffsetCommitRequest(group_id="g", member_id="", topics=topics)
    world.play(world.shard.commit_offsets(commit, 8))
    deleted = OffsetDeleteRequest.Topic.Partition(**partition)
    topics = [OffsetDeleteRequest.Topic(name="t", partitions=[deleted])]
    world.play(world.shard.delete_offsets(OffsetDeleteRequest(group_id="g", topics=topics)))
    world.load(compacted(world.log))
    world.beat("a", 0, "t")
    world.load(world.log)
    assert [one.group_type for one in world.shard.list_groups((), ())] == ["share"]
    refused(lambda: world.shard.delete_group("g"), ErrorCode.NON_EMPTY_GROUP)


def test_as_any_kind_of_group(settled):
    (listed,) = settled.shard.list_groups((), ("share",))
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g", "share", "Stable", "share",
    )  # fmt: skip
    assert settled.shard.list_groups((), ("consumer",)) == []
    refused(lambda: settled.shard.delete_group("g"), ErrorCode.NON_EMPTY_GROUP)
    settled.beat("a", -1)
    settled.play(settled.shard.sweep())
    assert settled.wrote == [], "an empty group stays: its state would be left behind"
    refused(lambda: settled.shard.delete_group("g"), ErrorCode.NON_EMPTY_GROUP)
    settled.play(begin_delete(settled.shard.share, "g"))
    settled.play(settled.shard.delete_group("g"))
    assert settled.wrote == [-12, -15, -11]
    assert settled.shard.share.groups == {}
    settled.reload()
