"""Group APIs in every version, as bytes: shapes, errors, topic ids, and who is answered when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.handlers import groups
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import subscription
from wire.errors import ErrorCode
from wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from wire.schema import Request

E = ErrorCode
UNKNOWN_ID = b"nobody has this!"


class Context:
    """A request context whose answer goes through its bytes."""

    def __init__(self, broker: Any, api_version: int) -> None:
        self.broker = broker
        self.api_version = api_version
        self.client_id = "app"
        self.peer_host = "127.0.0.1"
        self.answers: list[Any] = []

    def respond(self, response: Any) -> None:
        assert not self.answers, "answered twice"
        data = response.encode_bytes(self.api_version)
        self.answers.append(type(response).decode(data, self.api_version))


class Broker:
    """What handlers use of a broker."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def group_coordinator(self) -> Any:
        return self.node.groups

    @property
    def metadata(self) -> Any:
        return self.node.image

    def endpoint_for(self, ctx: Context, broker: Any) -> tuple[str, int]:
        return "dialled", 9_000 + broker.broker_id


class Clientele:
    """Sends requests as bytes of a version."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.broker = Broker(node)

    def start(self, handler: Any, request: Request, version: int) -> Context:
        context = Context(self.broker, version)
        received = type(request).decode(request.encode_bytes(version), version)
        assert handler(context, received) is None
        self.node.pass_time(0)
        return context

    def ask(self, handler: Any, request: Request, version: int) -> Any:
        context = self.start(handler, request, version)
        (answer,) = context.answers
        return answer


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clientele]:
    node = Node(tmp_path)
    node.create("t", 2)
    node.create("u", 1)
    clients = Clientele(node)
    node.find()
    yield clients
    node.close()


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16)


def join_request(group: str = "g", member_id: str = "", **how: Any) -> JoinGroupRequest:
    fields = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequest.Protocol(name="range", metadata=subscription("t"))],
        **how,
    }
    return JoinGroupRequest(group_id=group, member_id=member_id, **fields)


def joined(clients: Clientele, version: int = 9, group: str = "g") -> str:
    """A member of a Stable group of one."""
    answer = clients.ask(groups.join_group, join_request(group), version)
    if answer.error_code == E.MEMBER_ID_REQUIRED:
        request = join_request(group, answer.member_id)
        answer = clients.ask(groups.join_group, request, version)
    assert answer.error_code == 0
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequest.Assignment(member_id=answer.member_id, assignment=b"all")],
    )
    assert clients.ask(groups.sync_group, sync, 5).assignment == b"all"
    return str(answer.member_id)


# ---- FindCoordinator


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_names_the_dialled_address(clients: Clientele, version: int) -> None:
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
    answer = clients.ask(groups.find_coordinator, request, version)
    found = answer.coordinators if version >= 4 else [answer]
    assert len(found) == (2 if version >= 4 else 1)
    for coordinator in found:
        assert (coordinator.error_code, coordinator.node_id) == (0, 1)
        assert (coordinator.host, coordinator.port) == ("dialled", 9_001)
    if version >= 4:
        assert [coordinator.key for coordinator in found] == ["g", "h"]


@pytest.mark.parametrize(
    ("version", "key_type", "error"),
    [
        (1, 1, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (6, 1, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (5, 2, E.INVALID_REQUEST),
        (6, 2, E.INVALID_REQUEST),
        (2, 9, E.INVALID_REQUEST),
    ],
)
def test_other_coordinators_are_refused_at_once_with_a_text(
    clients: Clientele, version: int, key_type: int, error: ErrorCode
) -> None:
    request = FindCoordinatorRequest(key="k", key_type=key_type, coordinator_keys=["k"])
    answer = clients.ask(groups.find_coordinator, request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (error, -1)
    assert found.error_message


def test_no_keys_no_coordinators(clients: Clientele) -> None:
    request = FindCoordinatorRequest(coordinator_keys=[])
    assert clients.ask(groups.find_coordinator, request, 6).coordinators == []


# ---- members


@pytest.mark.parametrize("version", range(10))
def test_a_member_lives_in_every_version_of_join(clients: Clientele, version: int) -> None:
    answer = clients.ask(groups.join_group, join_request(), version)
    if version >= 4:
        assert answer.error_code == E.MEMBER_ID_REQUIRED
        assert answer.protocol_name == (None if version >= 7 else "")
        request = join_request(member_id=answer.member_id)
        answer = clients.ask(groups.join_group, request, version)
    assert answer.error_code == 0
    assert answer.member_id.startswith("app-")
    assert (answer.leader, answer.protocol_name) == (answer.member_id, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert [member.metadata for member in answer.members] == [subscription("t")]


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_is_well_formed_in_every_version(clients: Clientele, version: int) -> None:
    answer = clients.ask(groups.join_group, join_request(member_id="stranger"), version)
    assert (answer.error_code, answer.member_id) == (E.UNKNOWN_MEMBER_ID, "stranger")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
    assert answer.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", range(6))
def test_sync_in_every_version(clients: Clientele, version: int) -> None:
    first = clients.ask(groups.join_group, join_request(), 3)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=first.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequest.Assignment(member_id=first.member_id, assignment=b"x")],
    )
    answer = clients.ask(groups.sync_group, request, version)
    assert (answer.error_code, answer.assignment) == (0, b"x")
    request.generation_id = 7
    answer = clients.ask(groups.sync_group, request, version)
    assert (answer.error_code, answer.assignment) == (E.ILLEGAL_GENERATION, b"")


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_from_version_5_a_sync_must_name_its_protocol(clients: Clientele, missing: str) -> None:
    member = joined(clients)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    setattr(request, missing, None)
    assert clients.ask(groups.sync_group, request, 5).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert clients.ask(groups.sync_group, request, 4).error_code == 0


def test_the_follower_is_answered_by_the_leaders_sync(clients: Clientele) -> None:
    leader = joined(clients)
    waiting = clients.start(groups.join_group, join_request(), 3)
    assert not waiting.answers
    clients.ask(groups.join_group, join_request(member_id=leader), 3)
    (follower,) = waiting.answers
    sync = SyncGroupRequest(
        group_id="g", generation_id=2, member_id=follower.member_id, assignments=[]
    )
    parked = clients.start(groups.sync_group, sync, 3)
    assert not parked.answers
    sync.member_id = leader
    sync.assignments = [
        SyncGroupRequest.Assignment(member_id=follower.member_id, assignment=b"half")
    ]
    clients.ask(groups.sync_group, sync, 3)
    assert parked.answers[0].assignment == b"half"


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_in_every_version(clients: Clientele, version: int) -> None:
    member = joined(clients)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    assert clients.ask(groups.heartbeat, request, version).error_code == 0
    request.member_id = "stranger"
    assert clients.ask(groups.heartbeat, request, version).error_code == E.UNKNOWN_MEMBER_ID


def test_a_heartbeat_while_the_group_is_loading_is_fine(clients: Clientele) -> None:
    jobs: list[object] = []
    around = clients.node.groups.runtime._services
    for shard in clients.node.groups.runtime.shards():
        shard._services = around._replace(run_on_loader=lambda _, job: jobs.append(job))
        shard._log.is_empty = lambda: False  # type: ignore[method-assign]
        shard.resigned()
        shard.elected(9)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert clients.ask(groups.heartbeat, request, 4).error_code == 0
    join = clients.ask(groups.join_group, join_request(), 9)
    assert join.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    listed = clients.ask(groups.list_groups, ListGroupsRequest(), 5)
    assert listed.error_code == E.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("version", range(6))
def test_leave_in_every_version(clients: Clientele, version: int) -> None:
    member = joined(clients)
    members = [LeaveGroupRequest.Member(member_id=name) for name in (member, "stranger")]
    request = LeaveGroupRequest(group_id="g", member_id=member, members=members)
    answer = clients.ask(groups.leave_group, request, version)
    assert answer.error_code == 0
    if version >= 3:
        errors = [(m.member_id, m.error_code) for m in answer.members]
        assert errors == [(member, 0), ("stranger", E.UNKNOWN_MEMBER_ID)]
    again = clients.ask(groups.leave_group, request, version)
    assert again.error_code == (0 if version >= 3 else E.UNKNOWN_MEMBER_ID)


# ---- offsets


def commit_request(*topics: tuple[str, bytes, list[int]], **how: Any) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=how.pop("group", "g"),
        member_id=how.pop("member_id", ""),
        topics=[
            OffsetCommitRequest.Topic(
                name=name,
                topic_id=id_,
                partitions=[
                    OffsetCommitRequest.Topic.Partition(
                        partition_index=i, committed_offset=100 + i, committed_metadata="m"
                    )
                    for i in indexes
                ],
            )
            for name, id_, indexes in topics
        ],
        **how,
    )


def fetched(clients: Clientele, version: int, *topics: tuple[str, list[int]]) -> dict[Any, Any]:
    """{(topic name or id, partition): (offset, error)} of group g."""
    by_group = OffsetFetchRequest.Group.Topic
    groups_asked = [
        OffsetFetchRequest.Group(
            group_id="g",
            topics=[
                by_group(name=name, topic_id=topic_id(name), partition_indexes=indexes)
                for name, indexes in topics
            ]
            if topics
            else None,
        )
    ]
    plain = [
        OffsetFetchRequest.Topic(name=name, partition_indexes=indexes) for name, indexes in topics
    ]
    request = OffsetFetchRequest(
        group_id="g", topics=plain if topics else None, groups=groups_asked
    )
    answer = clients.ask(groups.offset_fetch, request, version)
    found = answer.groups[0].topics if version >= 8 else answer.topics
    return {
        (topic.topic_id.strip().decode() if version >= 10 else topic.name, p.partition_index): (
            p.committed_offset,
            p.error_code,
        )
        for topic in found
        for p in topic.partitions
    }


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_in_every_version(clients: Clientele, version: int) -> None:
    request = commit_request(
        ("t", topic_id("t"), [0, 1, 2]), ("nobody", UNKNOWN_ID, [0]), ("u", topic_id("u"), [0])
    )
    answer = clients.ask(groups.offset_commit, request, version)
    errors = {
        (topic.topic_id if version >= 10 else topic.name, p.partition_index): p.error_code
        for topic in answer.topics
        for p in topic.partitions
    }
    t, u, nobody = (
        (topic_id("t"), topic_id("u"), UNKNOWN_ID) if version >= 10 else ("t", "u", "nobody")
    )
    assert errors == {
        (t, 0): 0,
        (t, 1): 0,
        (t, 2): E.UNKNOWN_TOPIC_OR_PARTITION,
        (u, 0): 0,
        (nobody, 0): E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert len(answer.topics) == 3, "a topic is named once"
    assert fetched(clients, 9, ("t", [0, 1])) == {("t", 0): (100, 0), ("t", 1): (101, 0)}


@pytest.mark.parametrize("version", range(2, 11))
def test_a_refused_commit_says_so_for_each_partition(clients: Clientele, version: int) -> None:
    joined(clients)
    request = commit_request(("t", topic_id("t"), [0, 7]), member_id="stranger")
    request.generation_id_or_member_epoch = 1
    answer = clients.ask(groups.offset_commit, request, version)
    (topic,) = answer.topics
    assert {p.partition_index: p.error_code for p in topic.partitions} == {
        0: E.UNKNOWN_MEMBER_ID,
        7: E.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_commit_of_unknown_topics_only_is_answered_without_the_coordinator(
    clients: Clientele,
) -> None:
    request = commit_request(("nobody", UNKNOWN_ID, [0]))
    answer = clients.ask(groups.offset_commit, request, 9)
    assert answer.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_in_every_version(clients: Clientele, version: int) -> None:
    clients.ask(groups.offset_commit, commit_request(("t", topic_id("t"), [1])), 9)
    assert fetched(clients, version, ("t", [0, 1]), ("u", [0])) == {
        ("t", 0): (-1, 0),
        ("t", 1): (101, 0),
        ("u", 0): (-1, 0),
    }
    if version >= 2:
        assert fetched(clients, version) == {("t", 1): (101, 0)}


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_when_we_are_not_the_coordinator(clients: Clientele, version: int) -> None:
    clients.node.groups.shutdown()
    request = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequest.Topic(name="t", partition_indexes=[0])],
        groups=[OffsetFetchRequest.Group(group_id="g", topics=[])],
    )
    answer = clients.ask(groups.offset_fetch, request, version)
    if version >= 8:
        assert [group.error_code for group in answer.groups] == [E.NOT_COORDINATOR]
    elif version >= 2:
        assert answer.error_code == E.NOT_COORDINATOR
    else:
        assert answer.topics[0].partitions[0].error_code == E.NOT_COORDINATOR


def test_many_groups_are_fetched_at_once_in_the_order_asked(clients: Clientele) -> None:
    for group in ("a", "b"):
        request = commit_request(("t", topic_id("t"), [0]), group=group)
        clients.ask(groups.offset_commit, request, 9)
    asked = [OffsetFetchRequest.Group(group_id=g, topics=None) for g in ("b", "none", "a")]
    answer = clients.ask(groups.offset_fetch, OffsetFetchRequest(groups=asked), 8)
    assert [(g.group_id, len(g.topics), g.error_code) for g in answer.groups] == [
        ("b", 1, 0), ("none", 0, 0), ("a", 1, 0),
    ]  # fmt: skip


def test_an_unknown_topic_id_is_told_and_the_others_are_served(clients: Clientele) -> None:
    clients.ask(groups.offset_commit, commit_request(("t", topic_id("t"), [0])), 10)
    topic = OffsetFetchRequest.Group.Topic
    group = OffsetFetchRequest.Group(
        group_id="g",
        topics=[
            topic(topic_id=UNKNOWN_ID, partition_indexes=[0]),
            topic(topic_id=topic_id("t"), partition_indexes=[0]),
        ],
    )
    answer = clients.ask(groups.offset_fetch, OffsetFetchRequest(groups=[group]), 10)
    found = {
        t.topic_id: (t.partitions[0].error_code, t.partitions[0].committed_offset)
        for t in answer.groups[0].topics
    }
    assert found == {UNKNOWN_ID: (E.UNKNOWN_TOPIC_ID, -1), topic_id("t"): (0, 100)}


def test_offset_delete(clients: Clientele) -> None:
    member = joined(clients)
    commit = commit_request(("t", topic_id("t"), [0]), ("u", topic_id("u"), [0]), member_id=member)
    commit.generation_id_or_member_epoch = 1
    clients.ask(groups.offset_commit, commit, 9)
    part = OffsetDeleteRequest.Topic.Partition
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequest.Topic(name="t", partitions=[part(partition_index=0)]),
            OffsetDeleteRequest.Topic(
                name="u", partitions=[part(partition_index=0), part(partition_index=5)]
            ),
            OffsetDeleteRequest.Topic(name="nobody", partitions=[part(partition_index=0)]),
        ],
    )
    answer = clients.ask(groups.offset_delete, request, 0)
    assert answer.error_code == 0
    assert {
        (t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions
    } == {
        ("t", 0): E.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): 0,
        ("u", 5): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("nobody", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert fetched(clients, 9) == {("t", 0): (100, 0)}
    request.group_id = ""
    assert clients.ask(groups.offset_delete, request, 0).error_code == E.INVALID_GROUP_ID
    request.group_id = "none"
    assert clients.ask(groups.offset_delete, request, 0).error_code == E.GROUP_ID_NOT_FOUND


# ---- many groups


@pytest.mark.parametrize("version", range(7))
def test_describe_in_every_version(clients: Clientele, version: int) -> None:
    member = joined(clients)
    request = DescribeGroupsRequest(groups=["g", "nobody"], include_authorized_operations=True)
    known, unknown = clients.ask(groups.describe_groups, request, version).groups
    assert (known.group_id, known.group_state, known.protocol_data) == ("g", "Stable", "range")
    assert known.members[0].member_id == member
    assert known.members[0].client_host == "/127.0.0.1"
    assert known.authorized_operations == (3_400 if version >= 3 else -(2**31))
    assert unknown.group_state == "Dead"
    assert unknown.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else 0)


@pytest.mark.parametrize("version", range(6))
def test_list_in_every_version(clients: Clientele, version: int) -> None:
    joined(clients)
    clients.ask(groups.offset_commit, commit_request(("t", topic_id("t"), [0]), group="s"), 9)
    answer = clients.ask(groups.list_groups, ListGroupsRequest(), version)
    assert {(g.group_id, g.protocol_type) for g in answer.groups} == {("g", "consumer"), ("s", "")}
    if version >= 4:
        filtered = ListGroupsRequest(states_filter=["Empty"])
        answer = clients.ask(groups.list_groups, filtered, version)
        assert [(g.group_id, g.group_state) for g in answer.groups] == [("s", "Empty")]


@pytest.mark.parametrize("version", range(3))
def test_delete_in_every_version(clients: Clientele, version: int) -> None:
    joined(clients)
    clients.ask(groups.offset_commit, commit_request(("t", topic_id("t"), [0]), group="s"), 9)
    request = DeleteGroupsRequest(groups_names=["s", "g", "nobody", "s"])
    answer = clients.ask(groups.delete_groups, request, version)
    assert [(r.group_id, r.error_code) for r in answer.results] == [
        ("s", 0), ("g", E.NON_EMPTY_GROUP), ("nobody", E.GROUP_ID_NOT_FOUND),
    ]  # fmt: skip


def test_a_topic_made_again_does_not_inherit_offsets(clients: Clientele) -> None:
    """Even when the tombstones were never written, as after a crash between the two."""
    clients.ask(groups.offset_commit, commit_request(("u", topic_id("u"), [0])), 9)
    image = clients.node.image
    again = image.topics_by_name["u"]
    again = type(again)("u", b"u, second life..", again.partitions)
    clients.node.image = type(image)(
        **{
            **{name: getattr(image, name) for name in image.__slots__},
            "topics_by_name": {**image.topics_by_name, "u": again},
            "topics_by_id": {**image.topics_by_id, again.topic_id: again},
        }
    )
    assert fetched(clients, 9, ("u", [0])) == {("u", 0): (-1, 0)}
