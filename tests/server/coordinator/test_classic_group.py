"""The classic rebalance protocol, step by step in virtual time, and under random churn."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from server.coordinator.classic_group import (
    TOPICS_READ_MAX,
    ClassicGroup,
    ClassicMember,
    GroupState,
    select_protocol,
    subscribed_topics,
)
from server.coordinator.group_messages import group_from_record
from tests.server.coordinator.group_support import GROUP, Answer, World, config, subscription
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import SyncGroupRequest
from wire.messages.groups_records import GroupMetadataValue

E = ErrorCode


# ---- joining


def test_a_new_member_is_told_its_id_and_leads_the_first_generation() -> None:
    world = World()
    first = world.join(client_id="app")
    assert first.error == E.MEMBER_ID_REQUIRED
    member_id = first.response.member_id
    assert member_id.startswith("app-")
    assert first.response.generation_id == -1
    answer = world.join(member_id, client_id="app", protocols=[("range", b"meta")])
    response = answer.response
    assert (response.error_code, response.generation_id) == (0, 1)
    assert response.leader == response.member_id == member_id
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert [(m.member_id, m.metadata) for m in response.members] == [(member_id, b"meta")]
    assert world.state() == "CompletingRebalance"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_below_version_4_a_new_member_joins_at_once(version: int) -> None:
    answer = World().join(version=version)
    assert answer.error == 0
    assert answer.response.member_id.startswith("c-")


@pytest.mark.parametrize(
    ("version", "how"),
    [
        (2, {"client_id": "c" * 32_767}),
        (9, {"client_id": "ä" * 16_383}),
        (9, {"instance_id": "i" * 32_767}),
    ],
)
def test_a_name_too_long_to_be_a_members_is_refused_alone(
    version: int, how: dict[str, Any]
) -> None:
    """Its answer could not be written, nor could the group's record: nobody would get further."""
    world = World()
    member_id, joined = world.join_new()
    assert world.join(version=version, **how).error == E.INVALID_REQUEST
    world.sync(member_id, joined.response.generation_id, {member_id: b"all"})
    assert world.state() == "Stable"


def test_version_0_rebalances_within_the_session_timeout() -> None:
    world = World()
    world.join(version=0, rebalance_ms=-1, session_ms=7_000)
    assert world.groups[GROUP].rebalance_timeout_ms() == 7_000


def test_a_static_member_needs_no_second_join_and_is_named_after_its_instance() -> None:
    answer = World().join(instance_id="i1", client_id="app")
    assert answer.error == 0
    assert answer.response.member_id.startswith("i1-")


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, E.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_refused_first_join_leaves_no_group_behind(
    how: dict[str, object], error: ErrorCode
) -> None:
    world = World()
    assert world.join(**how).error == error  # type: ignore[arg-type]
    assert not world.groups
    assert not world.log


def test_a_join_without_protocols_is_refused() -> None:
    world = World()
    answer = world.join(protocols=[("range", b"")])
    assert answer.error == E.MEMBER_ID_REQUIRED
    member_id = answer.response.member_id
    world.join(member_id)
    assert world.join(protocol_type="connect").error == E.INCONSISTENT_GROUP_PROTOCOL
    other = world.join(protocols=[("unheard-of", b"")])
    assert other.error == E.INCONSISTENT_GROUP_PROTOCOL


def test_a_fresh_group_is_in_the_log_before_its_first_member_has_joined() -> None:
    world = World()
    world.join()
    assert len(world.log) == 1
    assert world.replayed().digest() == world.shard.digest()


def test_a_promised_member_that_never_comes_is_forgotten_after_its_session() -> None:
    world = World()
    member_id = world.join(session_ms=6_000).response.member_id
    world.advance(5_999)
    assert member_id in world.groups[GROUP].pending_join
    world.advance(1)
    assert member_id not in world.groups[GROUP].pending_join
    assert world.join(member_id).error == E.UNKNOWN_MEMBER_ID


def test_the_rebalance_waits_for_a_promised_member() -> None:
    world = World()
    (leader,) = world.stable()
    promised = world.join(session_ms=10_000).response.member_id
    waiting = world.join(leader)
    assert waiting.waits, "the leader rejoined, the promised member has not"
    other = world.join(promised)
    assert waiting.response.generation_id == other.response.generation_id == 2


def test_two_members_share_a_generation_and_only_the_leader_gets_the_members() -> None:
    world = World()
    leader, first = world.join_new()
    assert first.response.generation_id == 1
    follower, waiting = world.join_new()
    assert waiting.waits
    assert world.heartbeat(leader, 1) == E.REBALANCE_IN_PROGRESS
    again = world.join(leader)
    assert again.response.generation_id == waiting.response.generation_id == 2
    assert again.response.leader == waiting.response.leader == leader
    assert {m.member_id for m in again.response.members} == {leader, follower}
    assert waiting.response.members == []


def test_the_protocol_with_the_most_votes_among_common_ones_wins() -> None:
    world = World()
    a, _ = world.join_new(protocols=[("only-a", b""), ("roundrobin", b"1"), ("range", b"2")])
    b, _ = world.join_new(protocols=[("range", b"3"), ("roundrobin", b"4")])
    c, answer_c = world.join_new(protocols=[("range", b"5"), ("roundrobin", b"6")])
    world.join(a, protocols=[("only-a", b""), ("roundrobin", b"1"), ("range", b"2")])
    assert answer_c.response.protocol_name == "range"
    members = {m.member_id: m.metadata("range") for m in world.groups[GROUP].members.values()}
    assert members == {a: b"2", b: b"3", c: b"5"}


def test_initial_delay_lets_late_members_into_the_first_generation() -> None:
    world = World(config(group_initial_rebalance_delay_ms=3_000))
    _, first = world.join_new()
    world.advance(2_999)
    assert first.waits
    _, second = world.join_new()
    world.advance(1)
    assert first.waits, "a member came, so the delay starts again"
    world.advance(2_999)
    assert first.waits
    world.advance(1)
    assert first.response.generation_id == second.response.generation_id == 1


def test_initial_delay_is_extended_no_further_than_the_rebalance_timeout() -> None:
    world = World(config(group_initial_rebalance_delay_ms=3_000))
    _, first = world.join_new(rebalance_ms=7_000)
    for _ in range(6):
        world.join_new(rebalance_ms=7_000)
        world.advance(1_000)
    assert first.waits
    world.advance(1_000)
    assert first.response.generation_id == 1
    assert len(first.response.members) == 7


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    world = World()
    leader, lost = world.stable(2, rebalance_ms=8_000, session_ms=100_000)
    newcomer, answer = world.join_new(rebalance_ms=8_000, session_ms=100_000)
    again = world.join(leader, rebalance_ms=8_000, session_ms=100_000)
    world.advance(7_999)
    assert answer.waits
    world.advance(1)
    assert {m.member_id for m in again.response.members} == {leader, newcomer}
    assert world.heartbeat(lost, world.generation()) == E.UNKNOWN_MEMBER_ID


def test_another_member_leads_when_the_leader_does_not_come_back() -> None:
    world = World()
    _, other = world.stable(2, rebalance_ms=8_000, session_ms=100_000)
    newcomer, answer = world.join_new(rebalance_ms=8_000, session_ms=100_000)
    again = world.join(other, rebalance_ms=8_000, session_ms=100_000)
    world.advance(8_000)
    assert again.response.leader == answer.response.leader == other
    assert {m.member_id for m in again.response.members} == {other, newcomer}


def test_a_join_sent_twice_answers_the_first_so_that_its_client_is_not_left_hanging() -> None:
    world = World()
    leader, _ = world.stable(2)
    _, newcomer = world.join_new()
    first = world.join(leader)
    second = world.join(leader)
    assert first.error == E.REBALANCE_IN_PROGRESS
    assert second.waits
    assert newcomer.waits


def test_a_follower_that_asks_again_without_a_change_gets_the_same_generation() -> None:
    world = World()
    _, follower = world.stable(2)
    answer = world.join(follower)
    assert (answer.error, answer.response.generation_id) == (0, world.generation())
    assert answer.response.members == []
    assert world.state() == "Stable"


def test_a_follower_that_changed_its_metadata_starts_a_rebalance() -> None:
    world = World()
    _, follower = world.stable(2)
    assert world.join(follower, protocols=[("range", b"other")]).waits
    assert world.state() == "PreparingRebalance"


def test_the_leader_of_a_stable_group_starts_a_rebalance_by_joining() -> None:
    world = World()
    leader, _ = world.stable(2)
    assert world.join(leader).waits
    assert world.state() == "PreparingRebalance"


def test_while_completing_an_unchanged_join_gets_the_generation_again_with_the_members() -> None:
    world = World()
    leader, first = world.join_new()
    again = world.join(leader)
    assert again.response.generation_id == first.response.generation_id
    assert [m.member_id for m in again.response.members] == [leader]


def test_a_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    world = World(config(group_max_size=2))
    leader, follower = world.stable(2)
    assert world.join().error == E.GROUP_MAX_SIZE_REACHED
    assert world.heartbeat(leader, world.generation()) == 0
    again = world.join(follower, protocols=[("range", b"new")])
    joined = world.join(leader)
    assert again.error == joined.error == 0


def test_a_group_over_the_limit_sheds_the_members_that_rejoin_last() -> None:
    world = World()
    members = world.stable(3)
    world.config = config(group_max_size=2)
    world.fail_over()
    assert world.state() == "PreparingRebalance"
    first, second, third = (world.join(m) for m in members)
    assert third.error == E.GROUP_MAX_SIZE_REACHED
    assert first.error == second.error == 0
    assert len(world.groups[GROUP].members) == 2


# ---- syncing


def test_followers_wait_for_the_leaders_assignment() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, joined = world.join_new()
    world.join(leader)
    waiting = world.sync(follower, 2)
    assert waiting.waits
    led = world.sync(leader, 2, {leader: b"L", follower: b"F"})
    assert (led.response.assignment, waiting.response.assignment) == (b"L", b"F")
    assert (led.response.protocol_type, led.response.protocol_name) == ("consumer", "range")
    assert world.state() == "Stable"
    assert joined.response.generation_id == 2


def test_a_member_the_leader_forgot_gets_an_empty_assignment() -> None:
    world = World()
    leader, _ = world.join_new()
    assert world.sync(leader, 1, {}).response.assignment == b""
    assert world.state() == "Stable"


def test_a_late_follower_of_a_stable_group_gets_its_assignment_at_once() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, _ = world.join_new()
    world.join(leader)
    world.sync(leader, 2, {leader: b"L", follower: b"F"})
    assert world.sync(follower, 2).response.assignment == b"F"


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, E.INVALID_GROUP_ID),
        ({"group": "other"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, E.ILLEGAL_GENERATION),
        ({"generation": 2}, E.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "roundrobin"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_wrong_sync_is_refused(how: dict[str, object], error: ErrorCode) -> None:
    world = World()
    leader, _ = world.join_new()
    asked: dict[str, object] = {"member_id": leader, "generation": 1, **how}
    assert world.sync(**asked).error == error  # type: ignore[arg-type]
    assert world.state() == "CompletingRebalance"


def test_a_sync_during_a_new_rebalance_is_told_to_rejoin() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, _ = world.join_new()
    world.join(leader)
    waiting = world.sync(follower, 2)
    world.join_new()
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    assert world.sync(leader, 2).error == E.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    world = World()
    leader, _ = world.join_new(rebalance_ms=8_000, session_ms=100_000)
    follower, _ = world.join_new(rebalance_ms=8_000, session_ms=100_000)
    world.join(leader, rebalance_ms=8_000, session_ms=100_000)
    waiting = world.sync(follower, 2)
    world.advance(7_999)
    assert waiting.waits
    world.advance(1)
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    again = world.join(follower, rebalance_ms=8_000, session_ms=100_000)
    assert [m.member_id for m in again.response.members] == [follower]
    assert world.heartbeat(leader, world.generation()) == E.UNKNOWN_MEMBER_ID


def test_a_stable_group_removes_a_follower_that_never_syncs() -> None:
    world = World()
    leader, _ = world.join_new(rebalance_ms=8_000, session_ms=100_000)
    follower, _ = world.join_new(rebalance_ms=8_000, session_ms=100_000)
    world.join(leader, rebalance_ms=8_000, session_ms=100_000)
    world.sync(leader, 2, {leader: b"L"})
    world.advance(8_000)
    assert world.state() == "PreparingRebalance"
    assert world.heartbeat(follower, 2) == E.UNKNOWN_MEMBER_ID


def test_the_assignment_is_in_the_log_before_anybody_is_answered() -> None:
    world = World()
    leader, _ = world.join_new()
    before = len(world.log)
    seen: list[int] = []
    answer = Answer()
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=1,
        member_id=leader,
        assignments=[SyncGroupRequest.Assignment(member_id=leader, assignment=b"L")],
    )

    def reply(result: object) -> None:
        seen.append(len(world.log))
        answer(result)

    world.run(lambda: world.shard.sync(request, reply), Answer())
    assert seen == [before + 1]
    assert answer.response.assignment == b"L"


# ---- sessions and heartbeats


def test_a_heartbeat_keeps_a_member_and_silence_ends_it() -> None:
    world = World()
    (member,) = world.stable(session_ms=10_000)
    for _ in range(10):
        world.advance(9_999)
        assert world.heartbeat(member, 1) == 0
    world.advance(10_000)
    assert world.heartbeat(member, 1) == E.UNKNOWN_MEMBER_ID
    assert world.state() == "Empty"
    assert world.generation() == 2


def test_a_member_that_waits_for_us_does_not_time_out() -> None:
    world = World()
    leader, slow = world.stable(2, session_ms=6_000, rebalance_ms=60_000)
    waiting = world.join(leader, session_ms=6_000, rebalance_ms=60_000)
    for _ in range(9):
        world.advance(5_000)
        assert world.heartbeat(slow, 2) == E.REBALANCE_IN_PROGRESS
    assert waiting.waits
    world.join(slow, session_ms=6_000, rebalance_ms=60_000)
    assert waiting.error == 0
    world.advance(5_999)
    assert world.heartbeat(leader, 3) == 0, "its session started again when it was answered"


def test_a_session_that_ended_while_we_kept_the_member_waiting_starts_again() -> None:
    world = World()
    leader, _ = world.join_new(session_ms=6_000)
    follower, _ = world.join_new(session_ms=6_000)
    world.join(leader, session_ms=6_000)
    waiting = world.sync(follower, 2)
    world.advance(5_000)
    world.heartbeat(leader, 2)
    world.advance(2_000)
    world.sync(leader, 2, {follower: b"F"})
    assert waiting.response.assignment == b"F"
    world.advance(4_000)
    world.heartbeat(leader, 2)
    assert world.state() == "Stable"
    world.advance(2_000)
    assert world.heartbeat(follower, 2) == E.UNKNOWN_MEMBER_ID


def test_a_session_that_ended_starts_again_also_when_the_answer_is_to_join_again() -> None:
    """A static member that is dead by then would stay for ever: it does not have to come back."""
    world = World()
    patience = {"session_ms": 6_000, "rebalance_ms": 8_000}
    leader = world.join(instance_id="i1", **patience).response.member_id
    follower = world.join(instance_id="i2", **patience)
    world.join(leader, instance_id="i1", **patience)
    waiting = world.sync(follower.response.member_id, 2, instance_id="i2")
    world.advance(5_000)
    world.heartbeat(leader, 2, "i1")
    world.advance(2_000)
    world.leave((leader, "i1"))
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    world.advance(5_999)
    assert world.state() == "PreparingRebalance"
    world.advance(1)
    assert world.state() == "Empty"


def test_a_first_join_that_waits_too_long_is_given_up() -> None:
    world = World()
    world.stable(2, session_ms=1_000_000, rebalance_ms=1_000_000)
    _, answer = world.join_new(session_ms=1_000_000, rebalance_ms=1_000_000)
    world.advance(5 * 60_000 - 1)
    assert answer.waits
    world.advance(1)
    assert answer.error == E.UNKNOWN_MEMBER_ID


def test_a_crashed_member_is_replaced_by_a_rebalance_of_the_others() -> None:
    world = World()
    leader, crashed = world.stable(2, session_ms=10_000)
    world.advance(5_000)
    assert world.heartbeat(leader, 2) == 0
    world.advance(5_000)
    assert world.heartbeat(leader, 2) == E.REBALANCE_IN_PROGRESS
    again = world.join(leader)
    assert [m.member_id for m in again.response.members] == [leader]
    assert crashed not in world.groups[GROUP].members


@pytest.mark.parametrize(
    ("who", "generation", "instance_id", "error"),
    [
        ("member", 1, None, 0),
        ("member", 0, None, E.ILLEGAL_GENERATION),
        ("stranger", 1, None, E.UNKNOWN_MEMBER_ID),
        ("member", 1, "nobody", E.UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeat_checks_who_and_when(
    who: str, generation: int, instance_id: str | None, error: int
) -> None:
    world = World()
    (member,) = world.stable()
    name = member if who == "member" else who
    assert world.heartbeat(name, generation, instance_id) == error


def test_heartbeats_of_unknown_groups_and_empty_ids_are_refused() -> None:
    world = World()
    assert world.heartbeat("m", 1) == E.UNKNOWN_MEMBER_ID
    assert world.heartbeat("m", 1, group="") == E.INVALID_GROUP_ID


# ---- leaving


def test_leaving_starts_a_rebalance_and_the_last_one_leaves_an_empty_group() -> None:
    world = World()
    leader, follower = world.stable(2)
    assert world.leave((leader, None)) == [0]
    assert world.state() == "PreparingRebalance"
    again = world.join(follower)
    assert again.response.leader == follower
    world.sync(follower, again.response.generation_id, {follower: b"all"})
    assert world.leave((follower, None)) == [0]
    assert world.state() == "Empty"
    assert world.replayed().digest() == world.shard.digest()
    assert world.groups[GROUP].protocol_type == "consumer"


def test_members_leave_in_one_request_and_fail_alone() -> None:
    world = World()
    first = world.join(instance_id="i1")
    leader = first.response.member_id
    second = world.join(instance_id="i2")
    world.join(leader, instance_id="i1")
    other = second.response.member_id
    assert world.leave(
        ("", "i1"), (leader, None), ("", "nobody"), (leader, "i2"), (other, "i2"), ("", None)
    ) == [
        0,
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
        0,
        E.UNKNOWN_MEMBER_ID,
    ]
    assert world.state() == "Empty"


def test_a_promised_member_may_leave_before_it_came() -> None:
    world = World()
    (leader,) = world.stable()
    promised = world.join().response.member_id
    waiting = world.join(leader)
    assert waiting.waits
    assert world.leave((promised, None)) == [0]
    assert waiting.error == 0, "nobody else is awaited"


def test_leaving_answers_what_the_member_has_parked() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, _ = world.join_new()
    world.join(leader)
    waiting = world.sync(follower, 2)
    world.leave((follower, None))
    assert waiting.error == E.UNKNOWN_MEMBER_ID
    newcomer, joining = world.join_new()
    world.leave((newcomer, None))
    assert joining.error == E.UNKNOWN_MEMBER_ID


def test_leaving_a_group_that_does_not_exist_says_so_for_each_member() -> None:
    assert World().leave(("a", None), ("", "i")) == [E.UNKNOWN_MEMBER_ID] * 2


# ---- static members (KIP-345)


def two_static(world: World) -> tuple[str, str]:
    first = world.join(instance_id="i1").response.member_id
    second = world.join(instance_id="i2")
    world.join(first, instance_id="i1")
    other = second.response.member_id
    world.sync(first, 2, {first: b"one", other: b"two"}, instance_id="i1")
    assert world.sync(other, 2, instance_id="i2").response.assignment == b"two"
    return first, other


def test_a_restarted_static_follower_takes_its_place_without_a_rebalance() -> None:
    world = World()
    leader, old = two_static(world)
    records = len(world.log)
    back = world.join(instance_id="i2")
    new = back.response.member_id
    assert new != old
    assert (back.error, back.response.generation_id) == (0, 2)
    assert (back.response.leader, back.response.skip_assignment) == (leader, False)
    assert world.state() == "Stable"
    assert len(world.log) == records + 1, "its new id is in the log"
    assert world.sync(new, 2, instance_id="i2").response.assignment == b"two"
    assert world.heartbeat(old, 2, "i2") == E.FENCED_INSTANCE_ID
    assert world.heartbeat(new, 2, "i2") == 0
    assert world.replayed().digest() == world.shard.digest()


def test_a_restarted_static_leader_is_told_to_skip_the_assignment_from_version_9() -> None:
    world = World()
    old, _ = two_static(world)
    back = world.join(instance_id="i1")
    assert back.response.leader == back.response.member_id != old
    assert back.response.skip_assignment
    assert len(back.response.members) == 2
    assert world.state() == "Stable"


def test_below_version_9_a_restarted_static_leader_is_told_its_old_id_leads() -> None:
    world = World()
    old, _ = two_static(world)
    back = world.join(instance_id="i1", version=8)
    assert back.response.leader == old != back.response.member_id
    assert back.response.members == []
    assert world.groups[GROUP].leader_id == back.response.member_id


def test_a_static_member_with_another_protocol_starts_a_rebalance() -> None:
    world = World()
    both = [("range", b"r"), ("sticky", b"s")]
    first = world.join(instance_id="i1", protocols=both).response.member_id
    world.sync(first, 1, {first: b"x"}, instance_id="i1")
    back = world.join(instance_id="i1", protocols=both[::-1])
    assert back.response.generation_id == 2
    assert back.response.protocol_name == "sticky"


def test_a_static_member_that_joins_while_completing_starts_over() -> None:
    world = World()
    first = world.join(instance_id="i1").response.member_id
    second = world.join(instance_id="i2")
    world.join(first, instance_id="i1")
    waiting = world.sync(second.response.member_id, 2, instance_id="i2")
    back = world.join(instance_id="i2")
    assert waiting.error == E.FENCED_INSTANCE_ID
    assert back.waits
    world.join(first, instance_id="i1")
    assert back.response.generation_id == 3


def test_the_old_instance_is_fenced_while_it_waits() -> None:
    world = World()
    leader, old = two_static(world)
    waiting = world.join(old, instance_id="i2", protocols=[("range", b"changed")])
    assert waiting.waits
    back = world.join(instance_id="i2")
    assert waiting.error == E.FENCED_INSTANCE_ID
    assert back.waits
    assert world.join(old, instance_id="i2").error == E.FENCED_INSTANCE_ID
    world.join(leader, instance_id="i1")
    assert back.response.generation_id == 3


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    world = World()
    first, other = two_static(world)
    world.advance(5_000)
    world.join(first, instance_id="i1")
    world.advance(5_000)
    assert other not in world.groups[GROUP].members, "the session of i2 ended"
    assert world.state() == "CompletingRebalance"


def test_a_static_member_that_is_away_belongs_to_the_next_generation() -> None:
    world = World()
    patience = {"rebalance_ms": 8_000, "session_ms": 100_000}
    first = world.join(instance_id="i1", **patience).response.member_id
    second = world.join(instance_id="i2", **patience)
    world.join(first, instance_id="i1", **patience)
    away = second.response.member_id
    world.sync(first, 2, {first: b"one", away: b"two"}, instance_id="i1")
    world.sync(away, 2, instance_id="i2")
    again = world.join(first, instance_id="i1", **patience)
    world.advance(8_000)
    assert {m.member_id for m in again.response.members} == {first, away}


def test_when_only_absent_static_members_are_left_the_rebalance_waits_on() -> None:
    world = World()
    patience = {"rebalance_ms": 8_000, "session_ms": 100_000}
    first = world.join(instance_id="i1", **patience).response.member_id
    second = world.join(instance_id="i2", **patience)
    world.join(first, instance_id="i1", **patience)
    world.sync(first, 2, {}, instance_id="i1")
    world.sync(second.response.member_id, 2, instance_id="i2")
    world.leave(("", "i2"))
    world.advance(8_000)
    assert world.state() == "PreparingRebalance"
    assert world.join(first, instance_id="i1", **patience).response.generation_id == 3


def test_absent_static_members_do_not_hold_up_the_one_that_came_for_ever() -> None:
    world = World()
    patience = {"rebalance_ms": 8_000, "session_ms": 100_000}
    ids = [f"i{i}" for i in range(3)]
    members = [world.join(instance_id=i, **patience) for i in ids]
    world.join(members[0].response.member_id, instance_id="i0", **patience)
    names = [member.response.member_id for member in members]
    for name, instance_id in zip(names, ids, strict=True):
        world.sync(name, 2, {}, instance_id=instance_id)
    assert world.state() == "Stable"
    world.leave(("", "i2"))
    world.advance(8_000)
    came = world.join(names[1], instance_id="i1", **patience)
    assert came.waits
    world.advance(8_000)
    assert {m.member_id for m in came.response.members} == set(names[:2])


@pytest.mark.timeout(20)
def test_absent_static_members_without_patience_are_not_looked_for_again_at_once() -> None:
    """A rebalance timeout of 0: whoever works off what is due would never come to an end."""
    world = World()
    first = world.join(instance_id="i1").response.member_id
    world.sync(first, 1, {first: b"x"}, instance_id="i1")
    restarted = world.join(instance_id="i1", rebalance_ms=0).response.member_id
    promised = world.join().response.member_id
    assert world.leave((promised, None)) == [0]
    world.advance(5_000)
    assert world.state() == "PreparingRebalance"
    back = world.join(restarted, instance_id="i1")
    assert back.response.generation_id == 2


def test_a_restarted_static_member_that_never_syncs_is_removed_like_any_other() -> None:
    world = World()
    patience = {"rebalance_ms": 8_000, "session_ms": 100_000}
    first = world.join(instance_id="i1", **patience).response.member_id
    world.join(instance_id="i2", **patience)
    world.join(first, instance_id="i1", **patience)
    world.sync(first, 2, {}, instance_id="i1")
    new = world.join(instance_id="i2", **patience).response.member_id
    assert world.state() == "Stable"
    world.advance(8_000)
    assert new not in world.groups[GROUP].members


# ---- the log


def test_a_reloaded_group_goes_on_without_a_rebalance() -> None:
    world = World()
    members = world.stable(3, session_ms=10_000)
    generation = world.generation()
    world.advance(9_000)
    for member in members:
        world.heartbeat(member, generation)
    world.advance(9_000)
    before = world.shard.digest()
    world.fail_over()
    assert world.shard.digest() == before
    world.advance(9_999)
    assert world.state() == "Stable", "each member got a fresh session (G-5)"
    for member in members:
        assert world.heartbeat(member, generation) == 0


def test_members_that_died_with_the_broker_are_found_out_after_the_reload() -> None:
    world = World()
    world.stable(2, session_ms=10_000)
    world.fail_over()
    world.advance(10_000)
    assert world.state() == "Empty"


def test_a_rebalance_that_was_interrupted_starts_over_after_the_reload() -> None:
    world = World()
    leader, follower = world.stable(2)
    world.join_new()
    world.join(leader)
    world.fail_over()
    assert world.state() == "Stable"
    assert world.heartbeat(follower, 2) == 0
    assert world.join(leader).waits
    assert world.join(follower).response.generation_id == 3


def test_unloading_answers_everything_that_waits() -> None:
    world = World()
    leader, _ = world.stable(2)
    _, joining = world.join_new()
    again = world.join(leader)
    world.shard.on_unloaded(KafkaError(E.NOT_COORDINATOR))
    for reply, result in world.shard.outbox:
        reply(result)
    assert joining.error == again.error == E.NOT_COORDINATOR
    assert world.shard.deadlines.next_wake_ms() is None


def test_groups_that_came_and_went_leave_nothing_to_the_cycle_collector() -> None:
    world = World()
    world.looks_twice = False

    def come_and_go() -> None:
        for _ in range(20):
            members = world.stable(2)
            world.leave(*((member, None) for member in members))
            world.run(lambda: world.shard.delete_group(GROUP))

    come_and_go()
    gc.collect()
    gc.disable()
    try:
        come_and_go()
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert not world.groups
    assert len(world.shard.deadlines) == 1, "the sweep's"


# ---- the table of transitions, and the state machine as a whole


@pytest.mark.parametrize("before", list(GroupState))
@pytest.mark.parametrize("after", list(GroupState))
def test_only_kafkas_transitions_are_possible(before: GroupState, after: GroupState) -> None:
    s = GroupState
    possible = {
        (s.PREPARING_REBALANCE, s.EMPTY),
        (s.STABLE, s.PREPARING_REBALANCE),
        (s.COMPLETING_REBALANCE, s.PREPARING_REBALANCE),
        (s.EMPTY, s.PREPARING_REBALANCE),
        (s.PREPARING_REBALANCE, s.COMPLETING_REBALANCE),
        (s.COMPLETING_REBALANCE, s.STABLE),
        *((state, s.DEAD) for state in s),
    }
    group = ClassicGroup("g", None, before)
    if (before, after) in possible:
        group.transition_to(after, 5)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (after, before, 5)
    else:
        with pytest.raises(AssertionError):
            group.transition_to(after, 5)


def prepared(state: str) -> tuple[World, str, str]:
    """A group of two members (the first leads) brought into a state."""
    world = World()
    if state == "CompletingRebalance":
        leader, _ = world.join_new()
        follower, _ = world.join_new()
        world.join(leader)
    else:
        leader, follower = world.stable(2)
    if state == "PreparingRebalance":
        world.join_new()
    if state == "Empty":
        world.leave((leader, None), (follower, None))
    assert world.state() == state
    return world, leader, follower


OUTCOMES = [
    # state, event, error code (None = it waits), state afterwards
    ("Empty", "join", 79, "Empty"),
    ("Empty", "rejoin follower", 25, "Empty"),
    ("Empty", "sync", 25, "Empty"),
    ("Empty", "heartbeat", 25, "Empty"),
    ("Empty", "leave", 25, "Empty"),
    ("Empty", "commit", 25, "Empty"),
    ("Empty", "simple commit", 0, "Empty"),
    ("Empty", "delete", 0, "none"),
    ("Empty", "silence", 0, "Empty"),
    ("PreparingRebalance", "join", 79, "PreparingRebalance"),
    ("PreparingRebalance", "rejoin follower", None, "PreparingRebalance"),
    ("PreparingRebalance", "sync", 27, "PreparingRebalance"),
    ("PreparingRebalance", "heartbeat", 27, "PreparingRebalance"),
    ("PreparingRebalance", "leave", 0, "PreparingRebalance"),
    ("PreparingRebalance", "commit", 0, "PreparingRebalance"),
    ("PreparingRebalance", "simple commit", 25, "PreparingRebalance"),
    ("PreparingRebalance", "delete", 68, "PreparingRebalance"),
    ("PreparingRebalance", "silence", 0, "CompletingRebalance"),
    ("CompletingRebalance", "join", 79, "CompletingRebalance"),
    ("CompletingRebalance", "rejoin follower", 0, "CompletingRebalance"),
    ("CompletingRebalance", "sync", None, "CompletingRebalance"),
    ("CompletingRebalance", "heartbeat", 0, "CompletingRebalance"),
    ("CompletingRebalance", "leave", 0, "PreparingRebalance"),
    ("CompletingRebalance", "commit", 27, "CompletingRebalance"),
    ("CompletingRebalance", "simple commit", 25, "CompletingRebalance"),
    ("CompletingRebalance", "delete", 68, "CompletingRebalance"),
    ("CompletingRebalance", "silence", 0, "Empty"),
    ("Stable", "join", 79, "Stable"),
    ("Stable", "rejoin follower", 0, "Stable"),
    ("Stable", "sync", 0, "Stable"),
    ("Stable", "heartbeat", 0, "Stable"),
    ("Stable", "leave", 0, "PreparingRebalance"),
    ("Stable", "commit", 0, "Stable"),
    ("Stable", "simple commit", 25, "Stable"),
    ("Stable", "delete", 68, "Stable"),
    ("Stable", "silence", 0, "Empty"),
]


@pytest.mark.parametrize(("state", "event", "error", "after"), OUTCOMES)
def test_every_event_in_every_state(state: str, event: str, error: int | None, after: str) -> None:
    world, _, follower = prepared(state)
    generation = world.generation()
    outcome: int | None = 0
    if event in ("join", "rejoin follower", "sync"):
        answer = {
            "join": lambda: world.join(),
            "rejoin follower": lambda: world.join(follower),
            "sync": lambda: world.sync(follower, generation),
        }[event]()
        outcome = None if answer.waits else answer.error
    elif event == "heartbeat":
        outcome = world.heartbeat(follower, generation)
    elif event == "leave":
        (outcome,) = world.leave((follower, None))
    elif event == "commit":
        outcome = world.commit(1, member_id=follower, generation=generation)
    elif event == "simple commit":
        outcome = world.commit(1)
    elif event == "delete":
        outcome = world.run(lambda: world.shard.delete_group(GROUP)).error
    else:
        world.advance(10_000)
    assert (outcome, world.state()) == (error, after)


def test_subscriptions_of_every_version_tell_their_topics() -> None:
    later = subscription("a", "b").replace(b"\x00\x00", b"\x00\x03", 1) + b"what is new in 3"
    assert subscribed_topics(later, 2) == ["a", "b"]
    assert subscribed_topics(later, 1) is None
    assert subscribed_topics(subscription(), 0) == []


@pytest.mark.parametrize("cut", range(len(subscription("topic"))))
def test_a_cut_subscription_is_not_misread(cut: int) -> None:
    found = subscribed_topics(subscription("topic")[:cut], 9)
    assert found is None or found == ["topic"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x00\x7f\xff\xff\xff",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
    ],
)
def test_garbage_is_no_subscription(raw: bytes) -> None:
    assert subscribed_topics(raw, 9) is None


def test_the_topics_of_members_that_say_the_same_are_read_once_and_not_by_the_million() -> None:
    """They were, all of them whenever a generation began: a JoinGroup of a kilobyte held up others
    for as long as that took, where a static member that was away had sent megabytes of names."""
    world = World()
    world.looks_twice = False
    names = [f"t{i}" for i in range(TOPICS_READ_MAX * 2 // 5)]
    world.stable(3, protocols=[("range", subscription(*names))])
    group = world.groups[GROUP]
    assert group.is_subscribed_to("t7")
    assert not group.is_subscribed_to("x")
    many = World()
    many.looks_twice = False
    names = [f"t{i}" for i in range(TOPICS_READ_MAX + 1)]
    many.stable(protocols=[("range", subscription(*names))])
    assert many.groups[GROUP].is_subscribed_to("x"), "it may be"
    assert many.groups[GROUP].expiry() is None


def test_metadata_of_kafka_pythons_own_assignors_is_read() -> None:
    kafka = pytest.importorskip("kafka")
    assert kafka is not None
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    for assignor in (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor):
        instance = assignor() if isinstance(assignor, type) else assignor
        metadata = instance.metadata({"orders", "payments"})
        raw = metadata.encode() if hasattr(metadata, "encode") else bytes(metadata)
        topics = subscribed_topics(raw, 9)
        assert topics is not None
        assert set(topics) == {"orders", "payments"}


def test_a_vote_counts_only_for_protocols_that_all_speak() -> None:
    group = ClassicGroup("g", None)
    for i, names in enumerate((["a", "b"], ["a", "b"], ["b"])):
        group.add(
            ClassicMember(
                f"m{i}", None, "c", "/h", 1, 1, "consumer", [(name, b"") for name in names]
            )
        )
    assert select_protocol(group.members.values()) == "b"


# ---- random churn


class Consumer:
    """A member that does what clients do, and remembers what it was told."""

    def __init__(self, world: World, instance_id: str | None) -> None:
        self.world = world
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.join: Answer | None = None
        self.sync: Answer | None = None
        self.leads: list[str] = []

    def step(self, seen: dict[tuple[int, str], bytes]) -> None:
        """Take the answer that is there, and send what follows from it."""
        if self.join is not None:
            if not self.join.waits:
                self._joined()
        elif self.sync is not None:
            if not self.sync.waits:
                self._synced(seen)
        elif self.generation < 0:
            self.join = self.world.join(self.member_id, instance_id=self.instance_id)
        else:
            error = self.world.heartbeat(self.member_id, self.generation, self.instance_id)
            if error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
                self.member_id = ""
            if error:
                self.generation = -1

    def _joined(self) -> None:
        assert self.join is not None
        answer, self.join = self.join, None
        if answer.error == E.MEMBER_ID_REQUIRED:
            self.member_id = answer.response.member_id
        elif answer.error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.member_id = ""
        elif answer.error == 0:
            response = answer.response
            self.member_id = response.member_id
            self.generation = response.generation_id
            parts = {}
            if response.leader == self.member_id and not response.skip_assignment:
                parts = {
                    m.member_id: f"{self.generation}/{m.member_id}".encode()
                    for m in response.members
                }
            self.sync = self.world.sync(
                self.member_id, self.generation, parts, instance_id=self.instance_id
            )

    def _synced(self, seen: dict[tuple[int, str], bytes]) -> None:
        assert self.sync is not None
        answer, self.sync = self.sync, None
        if answer.error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.member_id = ""
        if answer.error:
            self.generation = -1
            return
        part = answer.response.assignment
        key = (self.generation, self.member_id)
        assert seen.setdefault(key, part) == part, "one generation, two assignments"
        if self.instance_id is None:
            assert part in (b"", f"{self.generation}/{self.member_id}".encode())


class Churn:
    """Consumers that come and go at random, and what must hold after every step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        delay_ms = self.rng.choice([0, 500])
        self.world = World(config(group_initial_rebalance_delay_ms=delay_ms), seed)
        self.world.looks_twice = seed % 5 == 0
        self.consumers: list[Consumer] = []
        self.seen: dict[tuple[int, str], bytes] = {}
        self.committed = -1
        self.generation = 0

    def step(self) -> None:
        actions = [
            (0.08, self.arrive),
            (0.03, self.leave),
            (0.03, self.crash),
            (0.02, self.restart),
            (0.01, self.fail_over),
            (0.13, self.let_time_pass),
            (0.10, self.commit),
        ]
        dice = self.rng.random()
        for share, action in actions:
            dice -= share
            if dice < 0:
                action()
                return
        if self.consumers:
            self.rng.choice(self.consumers).step(self.seen)

    def arrive(self) -> None:
        if len(self.consumers) < 6:
            taken = {consumer.instance_id for consumer in self.consumers}
            instance_id = self.rng.choice([None, None, "i1", "i2"])
            self.consumers.append(
                Consumer(self.world, None if instance_id in taken else instance_id)
            )

    def leave(self) -> None:
        gone = self.crash()
        if gone is not None and gone.member_id:
            self.world.leave((gone.member_id, None))

    def crash(self) -> Consumer | None:
        """Nobody hears of it again."""
        if not self.consumers:
            return None
        return self.consumers.pop(self.rng.randrange(len(self.consumers)))

    def restart(self) -> None:
        """Without having left."""
        gone = self.crash()
        if gone is not None:
            self.consumers.append(Consumer(self.world, gone.instance_id))

    def fail_over(self) -> None:
        """Connections are gone, and requests with them."""
        self.world.fail_over()
        for consumer in self.consumers:
            consumer.join = consumer.sync = None

    def let_time_pass(self) -> None:
        self.world.advance(self.rng.choice([10, 400, 3_000, 11_000]))

    def commit(self) -> None:
        members = [consumer for consumer in self.consumers if consumer.generation >= 0]
        if members:
            member = self.rng.choice(members)
            error = self.world.commit(
                self.committed + 1,
                member_id=member.member_id,
                generation=member.generation,
                instance_id=member.instance_id,
            )
            self.committed += not error

    def check(self) -> None:
        world = self.world
        group = world.groups.get(GROUP)
        if group is not None:
            parked = sum(m.awaiting_join is not None for m in group.members.values())
            assert group.awaiting_join_count == parked
            assert group.leader_id is None or group.leader_id in group.members
            assert set(group.static_members.values()) <= set(group.members)
        assert world.fetch() == self.committed
        if world.state() in ("Stable", "Empty", "none"):
            assert world.replayed().digest() == world.shard.digest()

    def settle(self) -> None:
        """With nobody joining or leaving, all members end up in one Stable generation."""
        for _ in range(120):
            for consumer in self.consumers:
                consumer.step(self.seen)
            self.world.advance(1_000)
        if self.consumers:
            assert self.world.state() == "Stable"
            assert {c.generation for c in self.consumers} == {self.world.generation()}
            members = set(self.world.groups[GROUP].members)
            assert {c.member_id for c in self.consumers} == members
            assert all(c.join is None and c.sync is None for c in self.consumers)
        else:
            assert self.world.state() in ("Empty", "none")


@pytest.mark.parametrize("seed", range(40))
def test_random_churn_keeps_the_promises_of_the_protocol(seed: int) -> None:
    """Members join, leave, crash and restart, brokers fail over. Answers come exactly once, an
    assignment belongs to one generation, committed offsets never go back, a reload changes nothing,
    and a quiet group settles. `seed` replays it.
    """
    churn = Churn(seed)
    for _ in range(300):
        churn.step()
        churn.check()
    churn.settle()


@pytest.mark.parametrize(("written", "loaded"), [("b", "b"), (None, None), ("gone", "a")])
def test_who_leads_a_loaded_group_is_a_member_of_it(written: str, loaded: str | None) -> None:
    members = [
        GroupMetadataValue.Member(
            member_id=id_,
            client_id="c",
            client_host="/h",
            session_timeout=1,
            rebalance_timeout=1,
            subscription=subscription("t"),
            assignment=b"",
        )
        for id_ in "ab"
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader=written, members=members
    )
    assert group_from_record(GROUP, value).leader_id == loaded
