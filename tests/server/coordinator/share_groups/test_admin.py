"""Deleting and altering state: what the group's record says before and after (SG-7, SG-50)."""

from __future__ import annotations

import pytest

from server.coordinator.share_groups import admin
from tests.server.coordinator.share_groups.share_group_support import (
    TOPIC_ID,
    ShareWorld,
    image_of,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import AlterShareGroupOffsetsRequest

BOTH = {TOPIC_ID: frozenset({0, 1})}


@pytest.fixture
def world():
    """A group that is empty, its state initialized."""
    world = ShareWorld()
    world.beat("a", 0, "t")
    world.initialized()
    world.beat("a", -1)
    return world


def alter(world, *topics):
    make = AlterShareGroupOffsetsRequest
    return world.play(
        admin.alter_offsets(
            world.shard.share,
            make(
                group_id="g",
                topics=[
                    make.Topic(
                        topic_name=name,
                        partitions=[
                            make.Topic.Partition(partition_index=index, start_offset=offset)
                            for index, offset in offsets.items()
                        ],
                    )
                    for name, offsets in topics
                ],
            ),
        )
    )


def test_all_state_goes_before_the_group(world):
    deleting = world.play(admin.begin_delete(world.shard.share, "g"))
    assert (deleting.partitions, world.wrote) == (BOTH, [15])
    assert (world.group.topics.initialized, world.group.topics.deleting) == ({}, {TOPIC_ID: "t"})
    again = world.play(admin.begin_delete(world.shard.share, "g"))
    assert again.partitions == BOTH, "an attempt that failed is made again"
    world.play(world.shard.delete_group("g"))
    assert world.shard.share.groups == {}


def test_a_topic_that_is_no_more_keeps_no_group(world):
    """Nobody was told, for the group had no coordinator when the topic was deleted: whoever keeps
    the state knows of no such topic and would refuse."""
    world.image = image_of()
    assert world.play(admin.begin_delete(world.shard.share, "g")).partitions == {}
    world.play(world.shard.delete_group("g"))
    assert world.shard.share.groups == {}


def test_other_groups_have_no_state(world):
    assert world.play(admin.begin_delete(world.shard.share, "h")).partitions == {}
    assert world.wrote == []


def test_nothing_is_done_to_a_group_with_members(world):
    world.beat("a", 0, "t")
    for call in (
        lambda: admin.begin_delete(world.shard.share, "g"),
        lambda: admin.begin_delete_offsets(world.shard.share, "g", ["t"]),
        lambda: alter(world, ("t", {0: 1})),
    ):
        with pytest.raises(KafkaError) as raised:
            call()
        assert raised.value.code is ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_topics_are_deleted(world):
    world.image = image_of(t=2, u=1)
    deleting = world.play(admin.begin_delete_offsets(world.shard.share, "g", ["t", "u", "v"]))
    assert deleting.partitions == BOTH
    assert [(one.topic_name, one.error_code) for one in deleting.failed] == [("u", 3), ("v", 3)]
    assert world.group.topics.deleting == {TOPIC_ID: "t"}
    world.play(admin.end_delete_offsets(world.shard.share, "g", frozenset({TOPIC_ID})))
    assert not any(world.group.topics)
    with pytest.raises(KafkaError) as raised:
        admin.begin_delete_offsets(world.shard.share, "h", ["t"])
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_are_altered_partition_by_partition(world):
    altering = alter(world, ("t", {0: 5, 7: 1}), ("v", {0: 1}))
    assert altering.starts == {TOPIC_ID: {0: 5}}
    assert altering.epoch == world.group.epoch
    told = [
        (topic.topic_name, one.partition_index, one.error_code)
        for topic in altering.response.responses
        for one in topic.partitions
    ]
    assert told == [("t", 0, 0), ("t", 7, 3), ("v", 0, 3)]
    assert world.group.topics.initializing[TOPIC_ID].partitions == {0}


def test_a_topic_may_be_named_twice(world):
    altering = alter(world, ("t", {0: 5}), ("t", {1: 6}))
    assert altering.starts == {TOPIC_ID: {0: 5, 1: 6}}
    assert world.group.topics.initializing[TOPIC_ID].partitions == {0, 1}


def test_altering_makes_the_group():
    world = ShareWorld()
    altering = alter(world, ("t", {0: 5}))
    assert (altering.epoch, world.wrote, world.group.state_name) == (1, [15], "Empty")
    world.initialized("t", 0)
    world.reload()
    answer = world.beat("a", 0, "t")
    assert [list(topic.partitions) for topic in answer.assignment.topic_partitions] == [[0]]
