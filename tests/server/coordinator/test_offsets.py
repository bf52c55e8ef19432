"""Committed offsets: who may commit, what fetch answers, what expires, and the records' bytes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.coordinator import sweeps
from server.coordinator.classic_group import ClassicGroup
from server.coordinator.group_messages import emptied_group_record
from server.coordinator.machine import Batch
from server.coordinator.offsets import Offsets
from server.coordinator.records import CoordinatorRecord, decode_record, encode_record
from testkit.clock import WALL_MS
from tests.server.coordinator.group_support import (
    GROUP,
    World,
    config,
    subscription,
)
from wire.errors import ErrorCode, MalformedFrame
from wire.messages.groups import OffsetDeleteRequest, OffsetFetchRequest
from wire.messages.groups_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

E = ErrorCode
WEEK_MS = 7 * 24 * 3_600_000
ID_1, ID_2 = b"1" * 16, b"2" * 16


# ---- committing


def test_a_committed_offset_is_fetched_and_survives_a_reload() -> None:
    world = World()
    (member,) = world.stable()
    assert world.commit(42, member_id=member, generation=1, metadata="note") == 0
    assert world.fetch() == 42
    world.fail_over()
    assert world.fetch() == 42
    value = world.shard.offsets.of_group(GROUP)["t", 0]
    assert (value.metadata, value.leader_epoch, value.commit_timestamp) == ("note", 3, WALL_MS)


def test_a_consumer_without_group_management_commits_into_an_empty_or_new_group() -> None:
    world = World()
    assert world.commit(5) == 0
    assert (world.state(), world.fetch()) == ("Empty", 5)
    assert world.groups[GROUP].protocol_type is None
    assert world.commit(6) == 0


def test_the_empty_group_id_may_keep_offsets_too() -> None:
    world = World()
    assert world.commit(5, group="") == 0
    assert world.fetch(group="") == 5


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"generation": 1, "member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
        ({"generation": 0, "member_id": "member"}, E.ILLEGAL_GENERATION),
        ({"generation": 2, "member_id": "member"}, E.ILLEGAL_GENERATION),
        ({"generation": -1, "member_id": "member"}, E.ILLEGAL_GENERATION),
        ({"generation": -1, "member_id": ""}, E.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "member_id": "member", "instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_members_of_the_generation_commit_into_a_group_with_members(
    how: dict[str, object], error: ErrorCode
) -> None:
    world = World()
    (member,) = world.stable()
    asked = {**how, "member_id": member if how["member_id"] == "member" else how["member_id"]}
    assert world.commit(1, **asked) == error  # type: ignore[arg-type]
    assert world.fetch() == -1


def test_a_zombie_cannot_commit_after_a_rebalance() -> None:
    world = World()
    leader, zombie = world.stable(2, session_ms=10_000)
    world.advance(5_000)
    world.heartbeat(leader, 2)
    world.advance(5_000)
    joined = world.join(leader)
    world.sync(leader, joined.response.generation_id, {leader: b""})
    assert world.commit(9, member_id=zombie, generation=2) == E.UNKNOWN_MEMBER_ID
    assert world.commit(9, member_id=leader, generation=2) == E.ILLEGAL_GENERATION
    assert world.commit(9, member_id=leader, generation=3) == 0


def test_a_replaced_static_member_is_fenced() -> None:
    world = World()
    old = world.join(instance_id="i").response.member_id
    world.sync(old, 1, {old: b""}, instance_id="i")
    new = world.join(instance_id="i").response.member_id
    assert world.commit(1, member_id=old, generation=1, instance_id="i") == E.FENCED_INSTANCE_ID
    assert world.commit(1, member_id=new, generation=1, instance_id="i") == 0


@pytest.mark.parametrize(("version", "error"), [(8, 22), (9, 69), (10, 69)])
def test_a_generation_of_an_unknown_group_is_refused(version: int, error: int) -> None:
    world = World()
    assert world.commit(1, member_id="m", generation=1, version=version) == error
    assert not world.groups


def test_commits_keep_the_session_alive() -> None:
    world = World()
    (member,) = world.stable(session_ms=10_000)
    for offset in range(5):
        world.advance(9_000)
        assert world.commit(offset, member_id=member, generation=1) == 0
    assert world.state() == "Stable"


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (None, 0),
        ("x" * 4_096, 0),
        ("x" * 4_097, E.OFFSET_METADATA_TOO_LARGE),
        ("\N{GRINNING FACE}" * 2_048, 0),
        ("\N{GRINNING FACE}" * 2_049, E.OFFSET_METADATA_TOO_LARGE),
        ("é" * 4_096, 0),
    ],
)
def test_metadata_is_limited_in_javas_characters(metadata: str | None, error: int) -> None:
    world = World()
    assert world.commit(1, metadata=metadata) == error
    assert world.fetch() == (-1 if error else 1)


# ---- fetching


def test_what_was_never_committed_is_minus_one_without_an_error() -> None:
    world = World()
    assert world.fetch() == -1
    world.commit(1)
    assert world.fetch(partition=1) == -1
    assert world.fetch(topic="other") == -1
    assert world.fetch(group="other") == -1


def test_null_topics_fetch_all_of_a_group() -> None:
    world = World()
    world.commit(1, topic="a", partition=0)
    world.commit(2, topic="b", partition=3)
    world.commit(3, topic="a", partition=1)
    request = OffsetFetchRequest.Group(group_id=GROUP, topics=None)
    found = world.run(lambda: world.shard.fetch_offsets(request, False)).response
    assert {
        (t.name, p.partition_index, p.committed_offset) for t in found.topics for p in t.partitions
    } == {("a", 0, 1), ("a", 1, 3), ("b", 3, 2)}
    assert sorted(t.name for t in found.topics) == ["a", "b"]
    nothing = OffsetFetchRequest.Group(group_id="other", topics=None)
    assert world.run(lambda: world.shard.fetch_offsets(nothing, False)).response.topics == []


def test_an_offset_of_a_deleted_topic_of_the_same_name_is_not_served() -> None:
    world = World()
    world.commit(77, topic_id=ID_1)
    assert world.fetch(topic_id=ID_1) == 77
    assert world.fetch() == 77, "who does not know the id is not asked for it"
    assert world.fetch(topic_id=ID_2) == -1
    world.fail_over()
    assert world.fetch(topic_id=ID_2) == -1


# ---- deleting


def delete_offsets(world: World, topic: str, partition: int = 0) -> int:
    part = OffsetDeleteRequest.Topic.Partition(partition_index=partition)
    request = OffsetDeleteRequest(
        group_id=GROUP, topics=[OffsetDeleteRequest.Topic(name=topic, partitions=[part])]
    )
    answer = world.run(lambda: world.shard.delete_offsets(request))
    if not hasattr(answer.results[0], "topics"):
        return answer.error
    return int(answer.response.topics[0].partitions[0].error_code)


def test_offsets_of_a_topic_somebody_consumes_cannot_be_deleted() -> None:
    world = World()
    (member,) = world.stable(protocols=[("range", subscription("used"))])
    world.commit(1, topic="used", member_id=member, generation=1)
    world.commit(1, topic="left", member_id=member, generation=1)
    assert delete_offsets(world, "used") == E.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offsets(world, "left") == 0
    assert (world.fetch("used"), world.fetch("left")) == (1, -1)
    world.leave((member, None))
    assert delete_offsets(world, "used") == 0
    assert world.fetch("used") == -1
    assert world.replayed().digest() == world.shard.digest()


def test_offsets_of_other_kinds_of_groups_are_deleted_only_when_they_are_empty() -> None:
    world = World()
    assert delete_offsets(world, "t") == E.GROUP_ID_NOT_FOUND
    answer = world.join(version=0, protocol_type="connect", protocols=[("p", b"")])
    assert answer.error == 0
    assert delete_offsets(world, "t") == E.NON_EMPTY_GROUP


def test_unreadable_subscriptions_count_as_subscribed_to_everything() -> None:
    world = World()
    (member,) = world.stable(protocols=[("range", b"garbage")])
    world.commit(1, member_id=member, generation=1)
    assert delete_offsets(world, "t") == E.GROUP_SUBSCRIBED_TO_TOPIC


def test_an_empty_group_is_deleted_with_its_offsets_for_good() -> None:
    world = World()
    (member,) = world.stable()
    world.commit(1, member_id=member, generation=1)
    world.commit(2, group="simple")

    def delete(group: str) -> int:
        return world.run(lambda: world.shard.delete_group(group)).error

    assert delete(GROUP) == E.NON_EMPTY_GROUP
    assert delete("nobody") == E.GROUP_ID_NOT_FOUND
    assert delete("simple") == 0
    world.leave((member, None))
    assert delete(GROUP) == 0
    assert (world.fetch(), world.fetch(group="simple")) == (-1, -1)
    assert not world.groups
    assert world.replayed().digest() == ((), (), ())


def test_a_deleted_topic_takes_its_offsets_along_in_every_group() -> None:
    world = World()
    (member,) = world.stable()
    world.commit(1, member_id=member, generation=1)
    world.commit(1, group="simple")
    world.commit(1, topic="kept", group="simple")
    world.run(lambda: world.shard.on_topics_deleted({"t": ID_1, "unknown": ID_2}))
    assert (world.fetch(), world.fetch(group="simple")) == (-1, -1)
    assert world.fetch("kept", group="simple") == 1
    assert world.replayed().digest() == world.shard.digest()


def test_a_topic_with_very_many_offsets_is_dropped_in_steps() -> None:
    world = World()
    world.looks_twice = False
    for partition in range(sweeps.SWEEP_RECORDS_MAX + 5):
        world.commit(1, partition=partition)
    world.run(lambda: world.shard.on_topics_deleted({"t": ID_1}))
    assert len(world.shard.offsets.of_group(GROUP)) == 5
    world.advance(sweeps.SWEEP_STEP_MS)
    assert not world.shard.offsets.of_group(GROUP)


def test_what_was_committed_for_a_topic_made_again_stays() -> None:
    """While the offsets of the old one go, in steps, consumers of the new one commit."""
    world = World()
    world.looks_twice = False
    for partition in range(sweeps.SWEEP_RECORDS_MAX + 2):
        world.commit(100, partition=partition, topic_id=ID_1)
    world.commit(1, partition=0, topic_id=ID_2)
    world.run(lambda: world.shard.on_topics_deleted({"t": ID_1}))
    last = sweeps.SWEEP_RECORDS_MAX + 1
    world.commit(2, partition=last, topic_id=ID_2)
    world.run(lambda: world.shard.on_topics_deleted({"t": b"3" * 16}))
    world.advance(sweeps.SWEEP_STEP_MS)
    assert {key[1]: value.offset for key, value in world.shard.offsets.of_group(GROUP).items()} == {
        0: 1,
        last: 2,
    }


# ---- expiring (KIP-211)


def test_offsets_of_a_simple_group_expire_a_week_after_their_commit() -> None:
    world = World()
    world.commit(1, partition=0)
    world.advance(WEEK_MS - 600_000)
    world.commit(2, partition=1)
    world.advance(600_000)
    assert (world.fetch(), world.fetch(partition=1)) == (-1, 2)
    world.advance(WEEK_MS)
    assert world.state() == "none", "nothing is left of it"
    assert world.replayed().digest() == ((), (), ())


def test_offsets_of_a_living_group_never_expire() -> None:
    world = World()
    (member,) = world.stable(session_ms=1_800_000)
    world.commit(1, member_id=member, generation=1)
    for _ in range(8 * 24 * 2 + 1):
        world.advance(1_799_000)
        assert world.heartbeat(member, 1) == 0
    assert world.fetch() == 1


def test_offsets_of_an_emptied_group_expire_a_week_after_it_became_empty() -> None:
    world = World()
    (member,) = world.stable(session_ms=1_800_000)
    world.commit(1, member_id=member, generation=1)
    for _ in range(24 * 2 * 6):
        world.advance(1_799_000)
        world.heartbeat(member, 1)
    world.leave((member, None))
    world.fail_over()
    world.advance(WEEK_MS - 1_200_000)
    assert world.fetch() == 1
    world.advance(1_800_000)
    assert world.fetch() == -1
    assert world.state() == "none"


def test_offsets_of_topics_nobody_subscribes_to_any_more_expire_in_a_stable_group() -> None:
    world = World(config(offsets_retention_minutes=10))
    (member,) = world.stable(protocols=[("range", subscription("t"))], session_ms=1_800_000)
    world.commit(1, topic="t", member_id=member, generation=1)
    world.commit(1, topic="old", member_id=member, generation=1)
    world.advance(1_200_000)
    assert (world.fetch("t"), world.fetch("old")) == (1, -1)
    assert world.state() == "Stable"


def test_nothing_expires_during_a_rebalance_or_for_members_whose_topics_are_unknown() -> None:
    retention = config(offsets_retention_minutes=10)
    rebalancing = World(retention)
    (member,) = rebalancing.stable(session_ms=1_800_000, rebalance_ms=1_800_000)
    rebalancing.commit(1, topic="old", member_id=member, generation=1)
    rebalancing.join(session_ms=1_800_000)
    rebalancing.join(member, session_ms=1_800_000, rebalance_ms=1_800_000)
    assert rebalancing.state() == "PreparingRebalance"
    rebalancing.advance(1_200_000)
    assert rebalancing.fetch("old") == 1
    unknown = World(retention)
    (member,) = unknown.stable(session_ms=1_800_000, protocols=[("range", b"?")])
    unknown.commit(1, topic="old", member_id=member, generation=1)
    unknown.advance(1_200_000)
    assert unknown.fetch("old") == 1


def test_a_commit_with_its_own_retention_expires_by_it_and_is_written_as_version_1() -> None:
    world = World()
    world.commit(1, retention_ms=1_000_000, version=4)
    ((key, value),) = world.log[-1].records
    assert value is not None
    assert value[:2] == b"\x00\x01"
    assert key[:2] == b"\x00\x01"
    world.fail_over()
    world.advance(600_000)
    assert world.fetch() == 1
    world.advance(600_000)
    assert world.fetch() == -1


def test_a_commit_that_is_never_to_expire_does_not() -> None:
    """A client's word for never; in Kafka the sum wraps, and it expires at once."""
    world = World()
    world.looks_twice = False
    assert world.commit(1, retention_ms=2**63 - 1, version=4) == 0
    world.fail_over()
    world.advance(2 * 10_080 * 60_000)
    assert world.fetch() == 1


def test_an_empty_group_that_somebody_is_about_to_join_is_not_swept_away() -> None:
    world = World(config(offsets_retention_check_interval_ms=5_000))
    member_id = world.join(session_ms=10_000).response.member_id
    world.advance(5_000)
    assert world.join(member_id).error == 0


def test_the_sweep_of_very_many_offsets_goes_in_steps() -> None:
    world = World()
    world.looks_twice = False
    for partition in range(sweeps.SWEEP_RECORDS_MAX + 5):
        world.commit(1, partition=partition)
    world.moment.wall_ms += WEEK_MS
    world.run(world.shard.sweep)
    assert len(world.shard.offsets.of_group(GROUP)) == 5
    world.advance(sweeps.SWEEP_STEP_MS)
    assert world.state() == "none"


@pytest.mark.parametrize("why", ["topic deleted", "expired"])
def test_many_steps_look_at_each_offset_about_once(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each began at the beginning: the offsets of 200,000 partitions of a deleted topic held up
    their coordinator for half a minute."""
    monkeypatch.setattr(sweeps, "SWEEP_RECORDS_MAX", 10)
    world = World()
    world.looks_twice = False
    for partition in range(200):
        world.commit(1, partition=partition)
    world.moment.wall_ms += WEEK_MS
    world.commit(2, topic="kept")
    looked_at: list[object] = []
    looks = "_values" if why == "topic deleted" else "is_subscribed_to"
    of = Offsets if why == "topic deleted" else ClassicGroup
    look = getattr(of, looks)
    monkeypatch.setattr(of, looks, lambda *of: looked_at.append(of) or look(*of))
    if why == "expired":
        world.run(world.shard.sweep)
    else:
        world.run(lambda: world.shard.on_topics_deleted({"t": ID_1}))
    world.advance(30 * sweeps.SWEEP_STEP_MS)

    assert list(world.shard.offsets.of_group(GROUP)) == [("kept", 0)]
    assert len(looked_at) < 2 * 200 + 30


def test_the_sweep_looks_at_some_groups_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing goes, too: a million offsets held up the timer for more than half a second."""
    monkeypatch.setattr(sweeps, "SWEEP_RECORDS_MAX", 10)
    world = World()
    world.looks_twice = False
    groups = [f"g{i}" for i in range(20)]
    for group in groups:
        for partition in range(30):
            world.commit(1, group=group, partition=partition)
    seen: list[str] = []
    look = Offsets.expired

    def expired(offsets: Offsets, group_id: str, *how: Any) -> Any:
        seen.append(group_id)
        return look(offsets, group_id, *how)

    monkeypatch.setattr(Offsets, "expired", expired)
    world.run(world.shard.sweep)
    assert 0 < len(seen) < 10
    world.advance(20 * sweeps.SWEEP_STEP_MS)
    assert sorted(seen) == sorted(groups), "each once"


def test_the_sweep_of_groups_with_long_names_goes_in_steps_that_the_log_takes() -> None:
    """Else nothing of the partition would expire any more, whoever made them."""
    world = World()
    groups = [f"{number:02}".ljust(30_000, "g") for number in range(60)]
    for group in groups:
        member_id, _ = world.join_new(group=group)
        world.leave((member_id, None), group=group)
    begin = len(world.log)

    world.run(world.shard.sweep)
    world.advance(60 * sweeps.SWEEP_STEP_MS)

    assert not world.shard.classic.groups
    steps = [sum(len(key) for key, _ in batch.records) for batch in world.log[begin:]]
    assert sum(steps) > 2**20 > 2 * max(steps)


@pytest.mark.parametrize("had_members", [False, True])
def test_a_group_that_only_keeps_an_offset_costs_less_than_a_kilobyte(had_members: bool) -> None:
    """Offsets of dead groups stay for a week."""
    raw = []
    for number in range(1_000):
        group = f"group-{number}"
        value = OffsetCommitValue(
            offset=1_000 + number,
            metadata="",
            commit_timestamp=WALL_MS + number,
            topic_id=number.to_bytes(16, "big"),
        )
        key = OffsetCommitKey(group=group, topic="orders", partition=0)
        raw.append(encode_record(CoordinatorRecord(key, value)))
        if had_members:
            left = ClassicGroup(group, WALL_MS, generation_id=number, protocol_type="consumer")
            raw.append(encode_record(emptied_group_record(left, WALL_MS + number)))
    shard = World()._new_shard()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for key_bytes, value_bytes in raw:
            record = decode_record(key_bytes, value_bytes)
            assert record is not None
            shard.replay(record)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(shard.classic.groups) == 1_000
    assert (after - before) / 1_000 < 1_000


def test_a_group_whose_members_left_is_as_cheap_as_one_that_never_had_any() -> None:
    world = World()
    (member,) = world.stable()
    world.leave((member, None))
    world.commit(1, group="simple")
    left, simple = world.groups[GROUP], world.groups["simple"]
    for name in ("members", "static_members", "pending_join", "pending_sync"):
        assert getattr(left, name) is getattr(simple, name), "one that all share"
    assert len(world.shard.deadlines) == 1, "the sweep's"


# ---- describing and listing


def test_groups_are_described_as_kafka_does() -> None:
    world = World()
    (member,) = world.stable(client_id="app")
    world.commit(1, group="simple")

    def describe(group: str, version: int = 6) -> object:
        return world.run(lambda: world.shard.describe_group(group, version)).response

    stable = describe(GROUP)
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == (  # type: ignore[attr-defined]
        "Stable", "consumer", "range",
    )  # fmt: skip
    (told,) = stable.members  # type: ignore[attr-defined]
    assert (told.member_id, told.client_id, told.client_host) == (member, "app", "/127.0.0.1")
    assert told.member_metadata == subscription("t")
    assert told.member_assignment == f"part of {member}".encode()
    simple = describe("simple")
    assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])  # type: ignore[attr-defined]
    unknown = describe("nobody")
    assert (unknown.error_code, unknown.group_state) == (E.GROUP_ID_NOT_FOUND, "Dead")  # type: ignore[attr-defined]
    assert unknown.error_message == "Group nobody not found."  # type: ignore[attr-defined]
    old = describe("nobody", 5)
    assert (old.error_code, old.group_state) == (0, "Dead")  # type: ignore[attr-defined]
    world.join_new()
    preparing = describe(GROUP)
    assert (preparing.group_state, preparing.protocol_data) == ("PreparingRebalance", "")  # type: ignore[attr-defined]
    told = preparing.members[0]  # type: ignore[attr-defined]
    assert (told.member_metadata, told.member_assignment) == (b"", f"part of {member}".encode())


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        ([], [], {GROUP, "simple"}),
        (["stable"], [], {GROUP}),
        ([" EMPTY ", "Stable"], [], {GROUP, "simple"}),
        (["nonsense"], [], set()),
        ([], ["Classic"], {GROUP, "simple"}),
        ([], ["consumer", "share"], set()),
        (["Empty"], ["classic", "consumer"], {"simple"}),
    ],
)
def test_groups_are_listed_by_state_and_type(
    states: list[str], types: list[str], expected: set[str]
) -> None:
    world = World()
    world.stable()
    world.commit(1, group="simple")
    listed = world.run(lambda: world.shard.list_groups(states, types)).response
    assert {group.group_id for group in listed} == expected
    assert all(group.group_type == "classic" for group in listed)


# ---- records


def test_records_have_the_bytes_kafka_writes() -> None:
    """Framing and fields by hand, from the schemas of records.json (4.3)."""
    key, value = encode_record(
        CoordinatorRecord(
            OffsetCommitKey(group="grp", topic="tp", partition=1),
            OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9),
        )
    )
    assert key == b"\x00\x01\x00\x03grp\x00\x02tp\x00\x00\x00\x01"
    assert value == (
        b"\x00\x04" + (7).to_bytes(8, "big") + b"\x00\x00\x00\x02\x02m"
        + (9).to_bytes(8, "big") + b"\x00"
    )  # fmt: skip
    key, value = encode_record(
        CoordinatorRecord(
            GroupMetadataKey(group="grp"),
            GroupMetadataValue(
                protocol_type="",
                generation=0,
                protocol=None,
                leader=None,
                current_state_timestamp=5,
                members=[],
            ),
        )
    )
    assert key == b"\x00\x02\x00\x03grp"
    assert value == (
        b"\x00\x03\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"
        + (5).to_bytes(8, "big") + b"\x00\x00\x00\x00"
    )  # fmt: skip


# What an Apache Kafka 4.3.1 broker wrote for one consumer and one static consumer (client id app,
# topic orders with one partition): group made, assigned, offsets committed, left.
KAFKA_WROTE = [
    ("00020003677270", "0003000000000000ffffffff000001a1fdd65d5e00000000"),
    (
        "00020003677270",
        "00030008636f6e73756d657200000001000572616e676500286170702d38303961303139322d366166652d3437"
        "37392d386536652d393866346231313666323265000001a1fdd65d6f0000000100286170702d38303961303139"
        "322d366166652d343737392d386536652d393866346231313666323265ffff0003617070000a2f3132372e302e"
        "302e31000493e00000afc80000001200000000000100066f7264657273000000000000001a0000000000010006"
        "6f7264657273000000010000000000000000",
    ),
    (
        "0001000367727000066f726465727300000000",
        "0004000000000000000300000000056e6f7465000001a1fdd65db20100109e6401597ad14d7dbe468ae235c337"
        "97",
    ),
    (
        "0001000367727000066f726465727300000000",
        "000400000000000000050000000001000001a1fdd65dba0100109e6401597ad14d7dbe468ae235c33797",
    ),
    ("00020003677270", "00030008636f6e73756d657200000002ffffffff000001a1fdd65dbf00000000"),
    (
        "00020009677270696e73742d31",
        "00030008636f6e73756d657200000002000572616e6765002b696e73742d312d37656362613963342d64633139"
        "2d343136352d616137392d393234323361323834656531000001a1fdd65e3700000001002b696e73742d312d37"
        "656362613963342d646331392d343136352d616137392d3932343233613238346565310006696e73742d310003"
        "617070000a2f3132372e302e302e31000493e00000afc80000001200000000000100066f726465727300000000"
        "0000001a00000000000100066f7264657273000000010000000000000000",
    ),
]


def test_what_kafka_wrote_is_understood_and_written_back_byte_for_byte() -> None:
    world = World()
    for key, value in KAFKA_WROTE:
        record = decode_record(bytes.fromhex(key), bytes.fromhex(value))
        assert record is not None
        assert encode_record(record) == (bytes.fromhex(key), bytes.fromhex(value))
        world.log.append(Batch([(bytes.fromhex(key), bytes.fromhex(value))]))
    world.fail_over()
    assert world.fetch("orders", group="grp") == 5
    assert (world.state("grp"), world.generation("grp")) == ("Empty", 2)
    assert (world.state("grpinst-1"), world.generation("grpinst-1")) == ("Stable", 2)
    group = world.groups["grpinst-1"]
    member_id = group.static_members["inst-1"]
    assert world.heartbeat(member_id, 2, "inst-1", "grpinst-1") == 0
    assert group.members[member_id].session_timeout_ms == 45_000
    assert group.is_subscribed_to("orders")
    assert not group.is_subscribed_to("payments")


@given(
    offset=st.integers(0, 2**63 - 1),
    epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=20),
    topic_id=st.binary(min_size=16, max_size=16),
)
def test_a_commit_record_reads_back(
    offset: int, epoch: int, metadata: str, topic_id: bytes
) -> None:
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=epoch,
        metadata=metadata,
        commit_timestamp=1,
        topic_id=topic_id,
    )
    record = CoordinatorRecord(OffsetCommitKey(group="g", topic="t", partition=0), value)
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize("type_id", [18, 24, 1_000])
def test_records_of_kinds_that_are_not_known_are_skipped(type_id: int) -> None:
    assert decode_record(type_id.to_bytes(2, "big") + b"anything", b"anything") is None


def test_a_commit_of_kafka_0_8_is_read() -> None:
    record = CoordinatorRecord(
        OffsetCommitKey(group="g", topic="t", partition=0),
        OffsetCommitValue(offset=3, metadata="", commit_timestamp=8),
    )
    key, _ = encode_record(record)
    value = b"\x00\x00" + (3).to_bytes(8, "big") + b"\x00\x00" + (8).to_bytes(8, "big")
    found = decode_record(b"\x00\x00" + key[2:], value)
    assert found is not None
    assert found.value is not None
    assert found.value.offset == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", b""), (b"\x00", b""), (b"\x00\x01\x00\x03gr", None), (b"\x00\x02\x00\x01g", b"\x00\x09"),
     (b"\x00\x02\x00\x01g", b"\x00"), (b"\x00\x02\x00\x01g", b"")],
)  # fmt: skip
def test_damaged_records_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedFrame):
        decode_record(key, value)


def test_a_tombstone_of_something_unknown_changes_nothing() -> None:
    offsets = Offsets(10, 10)
    offsets.replay(OffsetCommitKey(group="g", topic="t", partition=0), None)
    assert not offsets.group_ids()
