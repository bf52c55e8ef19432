"""What leaves the shard and comes back: state that is begun, altered, deleted and described."""

from __future__ import annotations

import pytest

from server.coordinator.share.shard import Summary
from server.coordinator.share_groups.admin import Deleting
from server.coordinator.share_groups.service import ShareGroupService
from server.share.state_batches import ShareKey
from tests.server.coordinator.group_support import Answer
from tests.server.coordinator.share_groups.share_group_support import (
    CLIENT,
    TOPIC_ID,
    ShareWorld,
    image_of,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupHeartbeatRequest,
)


class State:
    """Keeps where share partitions begin; `broken` ones answer with a code. What is `held` is done
    in its order, when it is let go."""

    def __init__(self):
        self.starts = {}
        self.broken = {}
        self.asked_about = []
        self.held = None

    def initialize(self, key, state_epoch, start_offset, on_complete):
        begun = (state_epoch, start_offset)
        self._do(key, lambda at: self.starts.update({at: begun}), on_complete)

    def delete(self, key, on_complete):
        self._do(key, lambda at: self.starts.pop(at, None), on_complete)

    def _do(self, key, change, on_complete):
        def do():
            code = self.broken.get(key.partition, ErrorCode.NONE)
            if not code:
                change((key.topic_id, key.partition))
            on_complete(code)

        if self.held is None:
            do()
        else:
            self.held.append(do)

    def let_go(self):
        held, self.held = self.held, None
        for do in held:
            do()

    def summary(self, key, on_complete):
        self.asked_about.append(key.partition)
        code = self.broken.get(key.partition)
        if code:
            on_complete(KafkaError(code))
        else:
            epoch, start = self.starts.get((key.topic_id, key.partition), (0, -1))
            on_complete(Summary(epoch, 3, start, 2 if start >= 0 else -1))


class World(ShareWorld):
    """The shard, its runtime and the service."""

    def __init__(self):
        super().__init__()
        self.state = State()
        self.ends = {0: 10, 1: KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)}
        self.service = ShareGroupService(
            self.state,
            lambda _topic, index, on_complete: on_complete(self.ends[index]),
            lambda: self.image,
            lambda: self.moment.wall_ms,
        )
        self.service.runtime = self

    def write(self, _key, decide, on_complete):
        try:
            response = self.play(decide(self.shard))
        except KafkaError as error:
            on_complete(error)
            return
        while self.asked:
            self.service.initialize(*self.asked.pop())
        if response is not None:
            on_complete(response)

    def read(self, _key, look, on_complete):
        try:
            on_complete(look(self.shard))
        except KafkaError as error:
            on_complete(error)

    def call(self, method, *arguments):
        answer = Answer()
        getattr(self.service, method)(*arguments, answer)
        return answer

    def member(self, epoch=0):
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=epoch,
            subscribed_topic_names=None if epoch else ["t"],
        )  # fmt: skip
        return self.call("heartbeat", request, CLIENT).response

    def alter(self, **offsets):
        make = AlterShareGroupOffsetsRequest
        topics = [
            make.Topic(
                topic_name=name,
                partitions=[
                    make.Topic.Partition(partition_index=i, start_offset=at)
                    for i, at in enumerate(starts)
                ],
            )
            for name, starts in offsets.items()
        ]
        return self.call("alter_offsets", make(group_id="g", topics=topics))

    def delete(self, *names):
        make = DeleteShareGroupOffsetsRequest
        topics = [make.Topic(topic_name=name) for name in names]
        return self.call("delete_offsets", make(group_id="g", topics=topics))

    def where(self, topics=None):
        """(partition, start, lag, code) of topic t."""
        make = DescribeShareGroupOffsetsRequest.Group
        asked = None
        if topics is not None:
            asked = [make.Topic(topic_name=n, partitions=p) for n, p in topics.items()]
        group = self.call("describe_offsets", make(group_id="g", topics=asked)).response
        return [
            (one.partition_index, one.start_offset, one.lag, one.error_code)
            for topic in group.topics
            for one in topic.partitions
        ]


@pytest.fixture
def world():
    return World()


def test_a_member_that_joins_has_state_begun(world):
    world.member()
    assert world.state.starts == {(TOPIC_ID, 0): (2, -1), (TOPIC_ID, 1): (2, -1)}
    topics = world.group.topics
    assert (topics.initialized[TOPIC_ID].partitions, topics.initializing) == ({0, 1}, {})


def test_state_that_was_not_begun_is_asked_for_again(world):
    world.state.broken = {1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    world.member()
    assert not any(world.group.topics)
    world.state.broken = {}
    world.member(2)
    assert world.group.topics.initialized[TOPIC_ID].partitions == {0, 1}


def test_offsets_are_altered_and_described(world):
    answer = world.alter(t=[4, 1]).response
    assert [one.error_code for one in answer.responses[0].partitions] == [0, 0]
    assert world.where() == [(0, 4, 4, 0), (1, 0, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert world.where({"t": [0], "nothing": [5]}) == [(0, 4, 4, 0), (5, -1, -1, 0)]
    world.state.broken = {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert world.where({"t": [0]}) == [(0, -1, -1, 0)]


def test_offsets_that_could_not_be_altered_are_told_one_by_one(world):
    world.state.broken = {1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    answer = world.alter(t=[4, 1]).response
    assert [one.error_code for one in answer.responses[0].partitions] == [0, 15]
    assert world.group.topics.initialized == {}


def test_offsets_are_deleted_topic_by_topic(world):
    world.image = image_of(t=1, u=2)
    world.alter(t=[4], u=[1, 1])
    world.state.broken = {1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    answer = world.delete("t", "u", "v").response
    told = {one.topic_name: one.error_code for one in answer.responses}
    assert told == {"t": 0, "u": 15, "v": 3}
    topics = world.group.topics
    assert (topics.initialized, list(topics.deleting.values())) == ({}, ["u"])
    world.state.broken = {}
    assert world.delete("u").response.responses[0].error_code == 0
    assert world.state.starts == {}
    assert not any(world.group.topics)


def test_state_goes_before_its_group(world):
    world.alter(t=[4, 1])
    world.state.broken = {1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert world.call("forget_state", "g").error == 15
    world.state.broken = {}
    assert world.call("forget_state", "g").results == [None]
    assert world.state.starts == {}
    assert world.call("forget_state", "nothing").results == [None]


def test_offsets_that_are_deleted_while_they_are_altered_are_gone(world):
    """A group that believed in state that nobody keeps could not read the topic any more."""
    world.alter(t=[4, 1])
    world.state.held = []
    altered = world.alter(t=[7, 7])
    deleted = world.delete("t")
    world.state.let_go()
    assert [one.error_code for one in altered.response.responses[0].partitions] == [0, 0]
    assert deleted.response.responses[0].error_code == 0
    assert world.state.starts == {}
    assert not any(world.group.topics)


def join_and_leave(world):
    world.member()
    world.member(-1)


@pytest.mark.parametrize("begin", [lambda world: world.alter(t=[7, 7]), join_and_leave])
def test_a_group_whose_state_is_begun_while_it_is_deleted_is_kept(world, begin):
    """Its state, of a later epoch, would keep out the next group of its name."""
    world.alter(t=[4, 1])
    world.state.held = []
    forgotten = world.call("forget_state", "g")
    begin(world)
    world.state.let_go()
    assert forgotten.results == [None]
    with pytest.raises(KafkaError) as kept:
        world.shard.delete_group("g")
    assert kept.value.code == ErrorCode.NON_EMPTY_GROUP
    assert world.group.topics.initialized[TOPIC_ID].partitions == {0, 1}
    assert world.call("forget_state", "g").results == [None]
    world.play(world.shard.delete_group("g"))
    assert (world.state.starts, world.shard.share.groups) == ({}, {})


def test_groups_without_a_name_are_refused(world):
    (group,) = world.call("describe", [""]).response
    assert group.error_code == ErrorCode.INVALID_GROUP_ID
    make = AlterShareGroupOffsetsRequest
    assert world.call("alter_offsets", make(group_id="", topics=[])).error == 24
    (group,) = world.call("describe", ["h"]).response
    assert (group.error_code, group.error_message) == (69, "Share group h not found.")


def test_offsets_are_asked_for_once_and_only_of_what_is_there(world):
    """One request may name a hundred thousand partitions."""
    world.member()
    unknown = (-1, -1, 0)
    told = world.where({"t": [0, 7, 0, -1, 1]})
    assert told == [(index, *unknown) for index in (0, 7, 0, -1, 1)]
    assert world.state.asked_about == [0, 1]


def test_of_many_topics_whose_offsets_are_deleted_each_answer_is_looked_at_once():
    """All of them for each topic: four thousand topics of three partitions took seconds."""

    class Codes(dict):
        looks = 0

        def items(self):
            for item in super().items():
                self.looks += 1
                yield item

    world = World()
    world.member()
    ids = [bytes([i]) * 16 for i in range(1, 101)]
    codes = Codes({ShareKey("g", id_, 0): ErrorCode.NONE for id_ in ids})
    codes[ShareKey("g", ids[0], 1)] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    answer = Answer()
    deleting = Deleting({id_: frozenset({0}) for id_ in ids})
    world.service._offsets_deleted("g", deleting, answer, codes)
    told = [topic.error_code for topic in answer.response.responses]
    assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE] + 99 * [0]
    assert codes.looks == len(codes)
