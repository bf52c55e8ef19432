"""Group APIs in every version, as bytes: shapes, errors, and who is answered when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.handlers import group_offsets, groups
from tests.server.coordinator.group_support import subscription
from tests.server.handlers.groups_support import (
    Clientele,
    clients_of,
    commit_request,
    join_request,
    joined,
    topic_id,
)
from wire.errors import ErrorCode as E
from wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clientele]:
    with clients_of(tmp_path) as clients:
        yield clients


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
        (5, 2, E.INVALID_REQUEST),
        (6, 3, E.INVALID_REQUEST),
        (2, 9, E.INVALID_REQUEST),
    ],
)
def test_other_coordinators_are_refused_at_once_with_a_text(
    clients: Clientele, version: int, key_type: int, error: E
) -> None:
    request = FindCoordinatorRequest(key="k", key_type=key_type, coordinator_keys=["k"])
    answer = clients.ask(groups.find_coordinator, request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (error, -1)
    assert found.error_message


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_without_the_clients_listener_is_not_available(
    clients: Clientele, version: int
) -> None:
    clients.broker.address = None
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g"])
    answer = clients.ask(groups.find_coordinator, request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (E.COORDINATOR_NOT_AVAILABLE, -1)
    assert (found.host, found.port) == ("", -1)


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
    clients.ask(
        group_offsets.offset_commit, commit_request(("t", topic_id("t"), [0]), group="s"), 9
    )
    answer = clients.ask(groups.list_groups, ListGroupsRequest(), version)
    assert {(g.group_id, g.protocol_type) for g in answer.groups} == {("g", "consumer"), ("s", "")}
    if version >= 4:
        filtered = ListGroupsRequest(states_filter=["Empty"])
        answer = clients.ask(groups.list_groups, filtered, version)
        assert [(g.group_id, g.group_state) for g in answer.groups] == [("s", "Empty")]


@pytest.mark.parametrize("version", range(3))
def test_delete_in_every_version(clients: Clientele, version: int) -> None:
    joined(clients)
    clients.ask(
        group_offsets.offset_commit, commit_request(("t", topic_id("t"), [0]), group="s"), 9
    )
    request = DeleteGroupsRequest(groups_names=["s", "g", "nobody", "s"])
    answer = clients.ask(groups.delete_groups, request, version)
    assert [(r.group_id, r.error_code) for r in answer.results] == [
        ("s", 0), ("g", E.NON_EMPTY_GROUP), ("nobody", E.GROUP_ID_NOT_FOUND),
    ]  # fmt: skip
