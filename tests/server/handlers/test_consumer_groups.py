"""Consumer groups of KIP-848 as requests: shapes, errors, fences, what other APIs say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.coordinator.group_config import ConsumerConfig
from server.handlers import BROKER_APIS, consumer_groups, group_offsets, groups
from server.handlers.access.rules import guarded
from server.network.api import Operation, Resource
from tests.server.handlers.access.test_table import Policy
from tests.server.handlers.groups_support import (
    Clientele,
    Context,
    clients_of,
    commit_request,
    join_request,
    joined,
    topic_id,
)
from wire.errors import ErrorCode as E
from wire.messages.consumer_protocol import ConsumerProtocolAssignment
from wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from wire.messages.transactions import TxnOffsetCommitRequest


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clientele]:
    with clients_of(tmp_path) as clients:
        clients.node.finalise("group.version", 1)
        yield clients


def heartbeat(
    clients: Clientele,
    member: str,
    epoch: int,
    *,
    version: int = 1,
    owned: Any = None,
    may: Policy | None = None,
    **how: Any,
) -> Any:
    """`may`: what the member is allowed, where somebody is asked."""
    topic = ConsumerGroupHeartbeatRequest.Topic
    told = None
    if owned is not None:
        told = [topic(topic_id=topic_id(name), partitions=of) for name, of in owned.items()]
    request = ConsumerGroupHeartbeatRequest(
        group_id=how.pop("group", "g"), member_id=member, member_epoch=epoch,
        topic_partitions=told, **how,
    )  # fmt: skip
    handler: Any = consumer_groups.consumer_group_heartbeat
    if may is not None:
        handler = guarded(BROKER_APIS, may)[request.api_key].prepared(handler)
    return clients.ask(handler, request, version)


def join(clients: Clientele, member: str = "A", **how: Any) -> Any:
    given: dict[str, Any] = {
        "owned": {}, "rebalance_timeout_ms": 30_000, "subscribed_topic_names": ["t"],
    }  # fmt: skip
    return heartbeat(clients, member, 0, **(given | how))


def assigned(answer: Any) -> dict[bytes, list[int]]:
    return {t.topic_id: list(t.partitions) for t in answer.assignment.topic_partitions}


def describe(clients: Clientele, *ids: str, version: int = 1) -> list[Any]:
    request = ConsumerGroupDescribeRequest(group_ids=list(ids), include_authorized_operations=True)
    return list(clients.ask(consumer_groups.consumer_group_describe, request, version).groups)


def commit(clients: Clientele, member: str, epoch: int, version: int = 9, **how: Any) -> int:
    request = commit_request(
        ("t", topic_id("t"), [0]), member_id=member, generation_id_or_member_epoch=epoch, **how
    )
    answer = clients.ask(group_offsets.offset_commit, request, version)
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_and_leaves_and_the_group_tells_of_it(
    clients: Clientele, version: int
) -> None:
    answer = join(clients, "" if version == 0 else "A", version=version)
    assert (answer.error_code, answer.member_epoch) == (0, 2)
    assert answer.heartbeat_interval_ms == 5_000
    assert assigned(answer) == {topic_id("t"): [0, 1]}
    (group,) = describe(clients, "g", version=version)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert group.assignor_name == "uniform"
    assert group.authorized_operations > 0
    (member,) = group.members
    assert member.member_id == answer.member_id
    assert (member.client_id, member.client_host) == ("app", "/127.0.0.1")
    assert member.assignment.topic_partitions[0].topic_name == "t"
    assert member.target_assignment == member.assignment
    assert member.member_type == (1 if version else -1)
    left = heartbeat(clients, answer.member_id, -1, version=version)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert describe(clients, "g", version=version)[0].group_state == "Empty"


def test_a_heartbeat_that_may_make_a_target_holds_up_no_network_thread(clients: Clientele) -> None:
    """It took half a second for 100 members with 9,000 topics."""
    beat = ConsumerGroupHeartbeatRequest

    def is_costly(**how: Any) -> bool:
        request = beat(group_id="g", member_id="A", member_epoch=2, **how)
        return consumer_groups.consumer_group_heartbeat_is_costly(context, request)

    context: Any = Context(clients.broker, 1)
    assert is_costly(subscribed_topic_names=["t"])
    assert is_costly(subscribed_topic_regex="t.*")
    assert not is_costly(), "there is no such group"
    join(clients)
    assert not is_costly()
    join(clients, "B")
    heartbeat(clients, "B", -1)
    assert is_costly(), "somebody left"
    clients.node.pass_time(1_000)
    epoch = heartbeat(clients, "A", 2).member_epoch
    assert not is_costly()
    clients.node.create("t", 3)
    assert is_costly(), "topics are others"
    clients.node.pass_time(1_000)
    heartbeat(clients, "A", epoch)
    assert not is_costly()


def test_a_join_of_a_classic_member_that_may_make_a_target_holds_up_no_network_thread(
    clients: Clientele,
) -> None:
    """A consumer group's target takes as long whatever the member speaks that has it made."""
    context: Any = Context(clients.broker, 9)

    def is_costly() -> bool:
        return groups.join_group_is_costly(context, join_request())

    assert not is_costly(), "there is no such group"
    classic_member(clients)
    assert not is_costly(), "a member assigns"
    join(clients)
    assert is_costly()


def test_a_feature_that_is_not_finalised_is_not_served(clients: Clientele) -> None:
    clients.node.finalise("group.version", 0)
    assert join(clients).error_code == E.UNSUPPORTED_VERSION
    assert describe(clients, "g")[0].error_code == E.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": " "}, E.INVALID_REQUEST),
        ({"member": ""}, E.INVALID_REQUEST),
        ({"rack_id": ""}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
        ({"owned": {"t": [0]}}, E.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, E.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, E.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": "(a"},
         E.INVALID_REGULAR_EXPRESSION),
    ],
)  # fmt: skip
def test_a_join_that_is_not_one(clients: Clientele, fields: dict[str, Any], error: E) -> None:
    answer = join(clients, **fields)
    assert answer.error_code == error
    assert answer.error_message


def test_who_is_not_known_is_told_so(clients: Clientele) -> None:
    assert heartbeat(clients, "A", 1).error_code == E.GROUP_ID_NOT_FOUND
    assert [g.error_code for g in describe(clients, "g", "")] == [
        E.GROUP_ID_NOT_FOUND, E.INVALID_GROUP_ID,
    ]  # fmt: skip
    join(clients)
    assert heartbeat(clients, "B", 1).error_code == E.UNKNOWN_MEMBER_ID
    assert heartbeat(clients, "A", 7).error_code == E.FENCED_MEMBER_EPOCH
    assert heartbeat(clients, "A", -2).error_code == E.INVALID_REQUEST


def test_commits_and_fetches_are_fenced_by_the_member_epoch(clients: Clientele) -> None:
    assert commit(clients, "A", 1) == E.GROUP_ID_NOT_FOUND
    assert commit(clients, "A", 1, version=8) == E.ILLEGAL_GENERATION
    join(clients)
    assert commit(clients, "A", 2) == 0
    assert commit(clients, "A", 3) == E.STALE_MEMBER_EPOCH
    assert commit(clients, "A", 1) == E.STALE_MEMBER_EPOCH
    assert commit(clients, "", -1) == E.UNKNOWN_MEMBER_ID
    assert commit(clients, "B", 2) == E.UNKNOWN_MEMBER_ID
    assert commit(clients, "A", 2, version=8) == E.UNSUPPORTED_VERSION
    for member, epoch, error in (
        (None, -1, 0), ("A", 2, 0), ("A", 1, E.STALE_MEMBER_EPOCH), ("B", 2, E.UNKNOWN_MEMBER_ID),
    ):  # fmt: skip
        group = OffsetFetchRequest.Group(
            group_id="g", member_id=member, member_epoch=epoch, topics=None
        )
        answer = clients.ask(
            group_offsets.offset_fetch, OffsetFetchRequest(groups=[group], require_stable=False), 9
        )
        assert answer.groups[0].error_code == error, (member, epoch)
    heartbeat(clients, "A", -1)
    assert commit(clients, "", -1) == 0


def test_an_epoch_ago_is_good_for_what_a_member_has_had_since(clients: Clientele) -> None:
    """KIP-1251: the commit left before the rebalance that its partition was not part of."""
    join(clients)
    join(clients, "B")
    clients.node.pass_time(1_000)
    assert heartbeat(clients, "B", 2).member_epoch == 3
    assert assigned(heartbeat(clients, "A", 2)) == {topic_id("t"): [0]}
    assert heartbeat(clients, "A", 2, owned={"t": [0]}).member_epoch == 3
    assert commit(clients, "A", 2) == 0
    assert assigned(heartbeat(clients, "B", 3)) == {topic_id("t"): [1]}
    assert commit(clients, "B", 2) == E.STALE_MEMBER_EPOCH


def test_a_commit_in_a_transaction_says_illegal_generation(clients: Clientele) -> None:
    join(clients)
    make = TxnOffsetCommitRequest.Topic

    def commit_in(member: str, epoch: int) -> int:
        request = TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=1, producer_epoch=0,
            member_id=member, generation_id=epoch,
            topics=[make(name="t", partitions=[make.Partition(
                partition_index=0, committed_offset=5, committed_metadata="")])],
        )  # fmt: skip
        answer = clients.ask(group_offsets.txn_offset_commit, request, 3)
        return int(answer.topics[0].partitions[0].error_code)

    assert commit_in("A", 3) == E.ILLEGAL_GENERATION
    assert commit_in("A", 1) == E.ILLEGAL_GENERATION
    assert commit_in("B", 2) == E.UNKNOWN_MEMBER_ID
    assert commit_in("A", 2) == 0
    assert commit_in("", -1) == 0


def test_other_apis_tell_of_consumer_groups(clients: Clientele) -> None:
    join(clients)
    commit(clients, "A", 2)

    def listed(**filters: Any) -> list[tuple[str, str, str, str]]:
        answer = clients.ask(groups.list_groups, ListGroupsRequest(**filters), 5)
        return [(g.group_id, g.group_type, g.protocol_type, g.group_state) for g in answer.groups]

    row = ("g", "consumer", "consumer", "Stable")
    assert (
        listed() == [row] == listed(types_filter=["Consumer"]) == listed(states_filter=["stable"])
    )
    assert listed(types_filter=["classic"]) == []
    for version, error in ((5, 0), (6, E.GROUP_ID_NOT_FOUND)):
        answer = clients.ask(groups.describe_groups, DescribeGroupsRequest(groups=["g"]), version)
        assert (answer.groups[0].error_code, answer.groups[0].group_state) == (error, "Dead")
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert clients.ask(groups.delete_groups, delete, 2).results[0].error_code == E.NON_EMPTY_GROUP
    topic = OffsetDeleteRequest.Topic
    of_t = OffsetDeleteRequest(
        group_id="g",
        topics=[topic(name="t", partitions=[topic.Partition(partition_index=0)])],
    )
    refused = clients.ask(group_offsets.offset_delete, of_t, 0)
    assert refused.topics[0].partitions[0].error_code == E.GROUP_SUBSCRIBED_TO_TOPIC
    heartbeat(clients, "A", -1)
    assert clients.ask(groups.delete_groups, delete, 2).results[0].error_code == 0
    assert listed() == []
    clients.node.restart()
    clients.node.find()
    assert listed() == []


def test_a_group_lives_through_a_restart(clients: Clientele) -> None:
    join(clients)
    join(clients, "B", subscribed_topic_names=None, subscribed_topic_regex="u.*")
    clients.node.pass_time(1_000)
    before = describe(clients, "g")
    clients.node.restart()
    clients.node.find()
    assert describe(clients, "g") == before
    assert heartbeat(clients, "A", 2).error_code == 0
    clients.node.pass_time(44_000)
    assert len(describe(clients, "g")[0].members) == 2
    clients.node.pass_time(2_000)
    assert describe(clients, "g")[0].group_state == "Empty"


def test_a_regular_expression_is_resolved_beside_the_heartbeats(clients: Clientele) -> None:
    clients.node.loads_slowly = True
    answer = join(clients, subscribed_topic_names=None, subscribed_topic_regex="[tx]+")
    assert (answer.member_epoch, assigned(answer)) == (1, {})
    clients.node.loads.pop()()
    clients.node.pass_time(0)
    answer = heartbeat(clients, "A", 1)
    assert (answer.member_epoch, assigned(answer)) == (2, {topic_id("t"): [0, 1]})
    clients.node.create("tx", 1)
    heartbeat(clients, "A", 2)
    assert not clients.node.loads, "not within ten seconds of the last look"
    clients.node.pass_time(10_001)
    heartbeat(clients, "A", 2)
    clients.node.loads.pop()()
    clients.node.pass_time(0)
    answer = heartbeat(clients, "A", 2)
    assert assigned(answer) == {topic_id("t"): [0, 1], topic_id("tx"): [0]}
    clients.node.pass_time(11_000)
    heartbeat(clients, "A", 3)
    assert not clients.node.loads, "there is no new topic"


def test_regular_expressions_are_looked_at_again_after_ten_minutes_without_new_topics(
    clients: Clientele,
) -> None:
    """What may be described can change, of which no metadata of topics tells."""
    member = (Operation.READ, Resource.GROUP, "g")
    of_t = Policy([member, (Operation.DESCRIBE, Resource.TOPIC, "t")])
    join(clients, may=of_t, subscribed_topic_names=None, subscribed_topic_regex=".*")
    assert assigned(heartbeat(clients, "A", 1, may=of_t)) == {topic_id("t"): [0, 1]}
    of_tu = Policy([*of_t.allowed, (Operation.DESCRIBE, Resource.TOPIC, "u")])
    for _ in range(20):
        clients.node.pass_time(30_000)
        assert heartbeat(clients, "A", 2, may=of_tu).assignment is None
    assert Resource.TOPIC not in {what for _, what, _ in of_tu.asked}, "nothing was looked at"
    clients.node.pass_time(1)
    heartbeat(clients, "A", 2, may=of_tu)
    answer = heartbeat(clients, "A", 2, may=of_tu)
    assert assigned(answer) == {topic_id("t"): [0, 1], topic_id("u"): [0]}
    clients.node.pass_time(30_000)
    asked = len(of_tu.asked)
    heartbeat(clients, "A", 3, may=of_tu)
    assert len(of_tu.asked) == asked + 1, "the group alone: the next look is ten minutes away"


def test_a_regular_expression_names_what_the_member_may_describe_that_had_it_looked_at(
    clients: Clientele,
) -> None:
    member = (Operation.READ, Resource.GROUP, "g")
    of_t = Policy([member, (Operation.DESCRIBE, Resource.TOPIC, "t")])
    of_all = Policy([member, (Operation.DESCRIBE, Resource.TOPIC, None)])
    by_regex: Any = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
    assert join(clients, may=of_t, **by_regex).error_code == 0
    assert assigned(heartbeat(clients, "A", 1, may=of_t)) == {topic_id("t"): [0, 1]}
    clients.node.pass_time(10_001)
    clients.node.create("v", 1)
    heartbeat(clients, "A", 2, may=of_t)
    answer = heartbeat(clients, "A", 2, may=of_t, owned={"t": [0, 1]})
    assert (answer.member_epoch, answer.assignment) == (2, None), "it hears of no other topic"
    clients.node.pass_time(10_001)
    clients.node.create("w", 1)
    heartbeat(clients, "A", 2, may=of_all)
    named = set(assigned(heartbeat(clients, "A", 2, may=of_all)))
    assert named > {topic_id(name) for name in "tuvw"}


def test_a_member_of_the_classic_protocol_has_only_its_own_topics_looked_at(
    clients: Clientele,
) -> None:
    """Its JoinGroup is a step like any other's, and may be what has the group's expressions looked
    at."""
    by_regex: Any = {"subscribed_topic_names": None, "subscribed_topic_regex": "[a-z]"}
    join(clients, **by_regex)
    assert set(assigned(heartbeat(clients, "A", 1))) == {topic_id("t"), topic_id("u")}
    clients.node.pass_time(10_001)
    clients.node.create("v", 1)
    may = Policy([(Operation.READ, Resource.GROUP, "g"), (Operation.DESCRIBE, Resource.TOPIC, "t")])
    handler: Any = guarded(BROKER_APIS, may)[JoinGroupRequest.api_key].prepared(groups.join_group)
    clients.ask(handler, join_request(member_id="B"), 9)
    clients.node.pass_time(1_000)
    heartbeat(clients, "A", 2)
    (group,) = describe(clients, "g")
    told = {
        topic.topic_name
        for member in group.members
        for topic in member.target_assignment.topic_partitions
    }
    assert told == {"t"}


# ---- from one protocol to the other


def test_an_empty_group_is_of_the_kind_of_its_next_member(clients: Clientele) -> None:
    member = joined(clients)
    assert commit(clients, member, 1) == 0
    clients.ask(groups.leave_group, LeaveGroupRequest(group_id="g", member_id=member), 2)
    assert join(clients).member_epoch == 2
    heartbeat(clients, "A", -1)
    joined(clients)
    assert describe(clients, "g")[0].error_code == E.GROUP_ID_NOT_FOUND
    clients.node.restart()
    clients.node.find()
    listed = clients.ask(groups.list_groups, ListGroupsRequest(), 5).groups
    assert [(g.group_id, g.group_type) for g in listed] == [("g", "classic")]


def given(data: bytes) -> dict[str, list[int]]:
    assignment = ConsumerProtocolAssignment.decode(data, 0, 2)
    return {t.topic: list(t.partitions) for t in assignment.assigned_partitions}


def test_a_group_with_members_changes_its_protocol_and_back(clients: Clientele) -> None:
    ask = clients.ask
    old = classic_member(clients)
    answer = join(clients, "A")
    assert (answer.error_code, answer.member_epoch) == (0, 2)
    assert assigned(answer) == {}
    (group,) = describe(clients, "g")
    assert sorted((m.member_type, m.member_epoch) for m in group.members) == [(0, 1), (1, 2)]

    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=old)
    assert ask(groups.heartbeat, beat, 4).error_code == E.REBALANCE_IN_PROGRESS
    again = ask(groups.join_group, join_request(member_id=old), 9)
    assert (again.error_code, again.leader, again.protocol_name) == (0, "", "range")
    sync = SyncGroupRequest(
        group_id="g", generation_id=again.generation_id, member_id=old,
        protocol_type="consumer", protocol_name="range", assignments=[],
    )  # fmt: skip
    synced = ask(groups.sync_group, sync, 5)
    assert given(synced.assignment) == {"t": [0]}
    assert assigned(heartbeat(clients, "A", 2)) == {topic_id("t"): [1]}
    assert commit(clients, old, again.generation_id) == 0
    assert commit(clients, old, 7) == E.ILLEGAL_GENERATION

    clients.node.restart()
    clients.node.find()
    assert heartbeat(clients, "A", -1).error_code == 0
    listed = ask(groups.list_groups, ListGroupsRequest(), 5).groups
    assert [(g.group_type, g.group_state) for g in listed] == [("classic", "PreparingRebalance")]
    back = ask(groups.join_group, join_request(member_id=old), 9)
    assert (back.error_code, back.leader) == (0, old)
    assert describe(clients, "g")[0].error_code == E.GROUP_ID_NOT_FOUND


def classic_member(clients: Clientele) -> str:
    """A member that has all of t, in generation 1."""
    answer = clients.ask(groups.join_group, join_request(), 9)
    request = join_request(member_id=answer.member_id)
    answer = clients.ask(groups.join_group, request, 9)
    topic = ConsumerProtocolAssignment.Topic
    all_of_t = ConsumerProtocolAssignment(assigned_partitions=[topic(topic="t", partitions=[0, 1])])
    part = SyncGroupRequest.Assignment(
        member_id=answer.member_id, assignment=b"\0\0" + all_of_t.encode_bytes(0)
    )
    sync = SyncGroupRequest(
        group_id="g", generation_id=answer.generation_id, member_id=answer.member_id,
        protocol_type="consumer", protocol_name="range", assignments=[part],
    )  # fmt: skip
    assert clients.ask(groups.sync_group, sync, 5).error_code == 0
    return str(answer.member_id)


def test_a_migration_that_is_disabled(clients: Clientele) -> None:
    config = ConsumerConfig(group_consumer_migration_policy="disabled")
    clients.node.groups.consumer = config
    joined(clients)
    refused = join(clients)
    assert refused.error_code == E.GROUP_ID_NOT_FOUND
    assert "online upgrade is disabled" in refused.error_message
    join(clients, group="other")
    answer = clients.ask(groups.join_group, join_request("other"), 9)
    assert answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_may_have_its_own_times(clients: Clientele) -> None:
    node = clients.node
    own = {"consumer.heartbeat.interval.ms": "9000", "consumer.session.timeout.ms": "999999"}
    node.image = replace(node.image, configs={(32, "g"): own})
    assert join(clients).heartbeat_interval_ms == 9_000
    assert join(clients, group="other").heartbeat_interval_ms == 5_000
    node.pass_time(59_999)
    assert describe(clients, "g")[0].members
    node.pass_time(1)
    assert not describe(clients, "g")[0].members, "at most group.consumer.max.session.timeout.ms"


def test_the_last_member_comes_back_with_the_classic_protocol(clients: Clientele) -> None:
    """A static one: its place is taken without a rebalance, and the group is a classic one."""
    ask = clients.ask
    join(clients, "A", instance_id="i")
    assert commit(clients, "A", 2, group_instance_id="i") == 0
    request = join_request(group_instance_id="i")
    answer = ask(groups.join_group, request, 9)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 2, "")
    (listed,) = ask(groups.list_groups, ListGroupsRequest(), 5).groups
    assert (listed.group_type, listed.group_state) == ("classic", "Stable")
    sync = SyncGroupRequest(
        group_id="g", generation_id=2, member_id=answer.member_id, group_instance_id="i",
        protocol_type="consumer", protocol_name="range", assignments=[],
    )  # fmt: skip
    assert given(ask(groups.sync_group, sync, 5).assignment) == {"t": [0, 1]}
    beat = HeartbeatRequest(
        group_id="g", generation_id=2, member_id=answer.member_id, group_instance_id="i"
    )
    assert ask(groups.heartbeat, beat, 4).error_code == 0
    fenced = heartbeat(clients, "A", 2, instance_id="i")
    assert fenced.error_code == E.GROUP_ID_NOT_FOUND
    clients.node.restart()
    clients.node.find()
    assert ask(groups.heartbeat, beat, 4).error_code == 0
    clients.node.pass_time(10_001)
    (listed,) = ask(groups.list_groups, ListGroupsRequest(), 5).groups
    assert listed.group_state == "Empty", "its session of the classic protocol has ended"


def test_a_classic_member_that_does_not_come_in_time_is_removed(clients: Clientele) -> None:
    old = classic_member(clients)
    join(clients, "A")
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=old)
    for _ in range(4):
        heartbeat(clients, "A", 2)
        assert clients.ask(groups.heartbeat, beat, 4).error_code == E.REBALANCE_IN_PROGRESS
        clients.node.pass_time(4_990)
    assert len(describe(clients, "g")[0].members) == 2
    assert clients.ask(groups.heartbeat, beat, 4).error_code == E.REBALANCE_IN_PROGRESS
    clients.node.pass_time(50)
    assert [m.member_id for m in describe(clients, "g")[0].members] == ["A"]
    assert clients.ask(groups.heartbeat, beat, 4).error_code == E.UNKNOWN_MEMBER_ID


def test_members_of_both_protocols_leave_by_leave_group(clients: Clientele) -> None:
    old = classic_member(clients)
    join(clients, "A", instance_id="i")
    epoch = describe(clients, "g")[0].group_epoch
    identity = LeaveGroupRequest.Member
    answer = clients.ask(
        groups.leave_group,
        LeaveGroupRequest(
            group_id="g",
            members=[
                identity(member_id="nobody"),
                identity(member_id="", group_instance_id="i"),
                identity(member_id=old),
            ],
        ),
        5,
    )
    assert [m.error_code for m in answer.members] == [E.UNKNOWN_MEMBER_ID, 0, 0]
    (group,) = describe(clients, "g")
    assert (group.group_state, group.group_epoch) == ("Empty", epoch + 1)


def test_classic_requests_of_members_of_the_other_protocol(clients: Clientele) -> None:
    join(clients, "A")
    beat = HeartbeatRequest(group_id="g", generation_id=2, member_id="A")
    assert clients.ask(groups.heartbeat, beat, 4).error_code == E.UNKNOWN_MEMBER_ID
    other = join_request(
        protocols=[JoinGroupRequest.Protocol(name="x", metadata=b"nonsense")],
        member_id="B",
    )
    answer = clients.ask(groups.join_group, other, 9)
    assert answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert [m.member_id for m in describe(clients, "g")[0].members] == ["A"]


def test_a_custom_assignor_keeps_its_group(clients: Clientele) -> None:
    """Its assignments say what a server-side assignor would lose."""
    joined(clients, group="odd")  # an assignment that is no assignment of the consumer protocol
    refused = join(clients, group="odd")
    assert refused.error_code == E.GROUP_ID_NOT_FOUND
    assert "malformed" in refused.error_message
    (listed,) = clients.ask(groups.list_groups, ListGroupsRequest(), 5).groups
    assert (listed.group_type, listed.group_state) == ("classic", "Stable")


def test_who_waits_in_a_group_that_changes_its_protocol_is_to_join_again(
    clients: Clientele,
) -> None:
    """Under its own id: it has lost nothing."""
    old = classic_member(clients)
    other = clients.ask(groups.join_group, join_request(), 9).member_id
    waiting = clients.start(groups.join_group, join_request(member_id=other), 9)
    assert not waiting.answers
    assert join(clients, "A").error_code == 0
    (told,) = waiting.answers
    assert (told.error_code, told.member_id) == (E.REBALANCE_IN_PROGRESS, other)
    kinds = {m.member_id: m.member_type for m in describe(clients, "g")[0].members}
    assert kinds == {old: 0, other: 0, "A": 1}
    again = clients.ask(groups.join_group, join_request(member_id=other), 9)
    assert again.error_code == 0
