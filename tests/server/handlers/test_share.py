"""ShareFetch and ShareAcknowledge over real logs: what members of a share group are told."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replication.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from server.handlers.share import (
    share_acknowledge_is_costly,
    share_fetch,
    share_fetch_is_costly,
)
from server.network.api import Operation, Resource
from server.network.request_context import RequestContext
from server.peers.share_persister import ATTEMPTS
from server.share.acquisition import AcquireMode
from server.share.fetching import DelayedShareFetch, ShareFetchParams
from server.share.leading import ShareLeader
from server.share.sessions import Member, SharedPartition
from server.share.share_partition import Acknowledgement
from server.share.state_batches import ShareKey
from storage.open_files import FileSlice
from tests.server.handlers.access.test_table import Policy
from tests.server.handlers.share_support import T0, ShareNode, acquired, codes, fetch_request
from wire.errors import ErrorCode
from wire.messages.share import ReadShareGroupStateSummaryRequest, ShareAcknowledgeRequest

E = ErrorCode
ACCEPT, RELEASE, REJECT, RENEW = [1], [2], [3], [4]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ShareNode]:
    node = ShareNode(tmp_path)
    yield node
    node.close()


def start_offset(node: ShareNode) -> tuple[int, int]:
    """Of partition 0, as it is persisted, with how many more are complete."""
    request = ReadShareGroupStateSummaryRequest
    asked = request.Topic.Partition(partition=0, leader_epoch=-1)
    topic = request.Topic(topic_id=b"t".ljust(16), partitions=[asked])
    answer = node.client().ask(request(group_id="g", topics=[topic]), 1)
    found = answer.results[0].partitions[0]
    return found.start_offset, found.delivery_complete_count


def replace_limits(node: ShareNode, **changes: Any) -> Any:
    return node.settings._replace(limits=node.settings.limits._replace(**changes))


@pytest.mark.parametrize("version", [1, 2])
def test_records_are_handed_out_once(node: ShareNode, version: int) -> None:
    node.append(3)
    node.append(4)
    client = node.client()
    answer = client.fetch(0, version=version)
    assert (answer.error_code, answer.acquisition_lock_timeout_ms) == (0, 30_000)
    assert acquired(answer) == [(0, 6, 1)]
    assert len(answer.responses[0].partitions[0].records) > 0
    assert acquired(client.fetch(0, version=version)) == []
    assert start_offset(node) == (-1, -1)
    assert codes(client.acknowledge(0, (0, 4, ACCEPT), version=version)) == [0]
    assert start_offset(node) == (0, 5)
    assert codes(client.acknowledge(0, (5, 6, [1, 3]), version=version)) == [0]
    assert start_offset(node) == (5, 2)


def test_only_batches_with_something_acquired_are_sent(node: ShareNode) -> None:
    for _ in range(3):
        node.append(2)
    client = node.client()
    whole = client.fetch(0).responses[0].partitions[0].records
    client.acknowledge(0, (2, 3, RELEASE))
    again = client.fetch()
    assert acquired(again) == [(2, 3, 2)]
    assert bytes(again.responses[0].partitions[0].records) in bytes(whole)
    assert len(again.responses[0].partitions[0].records) * 3 == len(whole)


@pytest.mark.parametrize(
    ("max_records", "taken"), [(500, [(0, 999, 1)]), (2**31 - 1, [(0, 999, 1), (1_000, 1_999, 1)])]
)
def test_no_more_is_read_than_is_handed_out(
    node: ShareNode,
    monkeypatch: pytest.MonkeyPatch,
    max_records: int,
    taken: list[tuple[int, int, int]],
) -> None:
    """However much the log has, and the member would take."""
    for _ in range(300):
        node.append(1_000)
    read: list[int] = []
    whole = FileSlice.read

    def counted(records: FileSlice, *where: int) -> bytes:
        data = whole(records, *where)
        read.append(len(data))
        return data

    monkeypatch.setattr(FileSlice, "read", counted)
    client = node.client()
    how = {"max_records": max_records, "max_bytes": 50 << 20}
    assert acquired(client.fetch(0, **how)) == taken
    client.acknowledge(0, (0, taken[-1][1], ACCEPT))
    last = taken[-1][1] + 1
    assert acquired(client.fetch(0, **how))[0] == (last, last + 999, 1)
    assert 0 < sum(read) < 1_000_000


@pytest.mark.parametrize("is_more", [False, True])
def test_a_record_that_came_back_is_not_read_with_all_that_is_under_way_behind_it(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch, is_more: bool
) -> None:
    node.settings = replace_limits(node, max_record_locks=10_000)
    for _ in range(9):
        node.append(1_000)
    client = node.client()
    assert acquired(client.fetch(0, max_records=9_000))[-1][1] == 8_999
    client.acknowledge(0, (0, 0, RELEASE))
    if is_more:
        node.append(1)
    read: list[int] = []
    whole = FileSlice.read

    def counted(records: FileSlice, *where: int) -> bytes:
        data = whole(records, *where)
        if where:  # not to be sent, which a socket does without reading
            read.append(len(data))
        return data

    monkeypatch.setattr(FileSlice, "read", counted)
    answer = client.fetch()
    assert acquired(answer) == [(0, 0, 2), *([(9_000, 9_000, 1)] if is_more else [])]
    assert sum(read) <= (10 if is_more else 1) * 4096


@pytest.mark.parametrize("batch_size", [0, -5])
def test_a_batch_size_that_is_none_stops_nobody(node: ShareNode, batch_size: int) -> None:
    """Whoever asks for it gets whole record batches, and others go on."""
    for _ in range(3):
        node.append(2)
    client, other = node.client(), node.client()
    assert acquired(client.fetch(0, max_records=1)) == [(0, 1, 1)]
    assert acquired(client.fetch(batch_size=batch_size)) == [(2, 3, 1), (4, 5, 1)]
    assert codes(client.acknowledge(0, (0, 5, [1, 1, 1, 2, 1, 1]))) == [0]
    node.append(1)
    assert acquired(other.fetch(0, member="m2")) == [(3, 3, 2), (6, 6, 1)]


def test_a_share_fetch_reads_no_more_than_the_quota_gives(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Fetch: the rest of the log is for later."""
    for _ in range(4):
        node.append(1)
    client = node.client()
    batch = client.fetch(0, max_records=1).responses[0].partitions[0].records
    monkeypatch.setattr(RequestContext, "fetch_bytes_max", 2 * len(batch))
    assert acquired(client.fetch()) == [(1, 2, 1)]
    assert acquired(client.fetch()) == [(3, 3, 1)]


def test_a_fetch_waits_for_records(node: ShareNode) -> None:
    client = node.client()
    assert client.fetch(0, 1, max_wait_ms=500) is None
    node.append(2, 1)
    assert acquired(client.answer, 1) == [(0, 1, 1)]
    assert client.fetch(max_wait_ms=500) is None
    node.node.pass_time(500)
    assert client.answer.responses == []


def test_a_fetch_waits_for_the_log_to_come_to_where_the_group_begins(node: ShareNode) -> None:
    """Its offsets were altered to one that is not there yet; who is told nothing asks again."""
    node.append(3)
    node.initialize(state_epoch=2, start_offset=9)
    client = node.client()
    assert client.fetch(0, max_wait_ms=60_000) is None
    node.append(3)
    assert client.answer is None
    node.append(6)
    assert acquired(client.answer) == [(9, 11, 1)]


@pytest.mark.parametrize("min_bytes", [1, 1_000])
def test_what_happens_to_one_partition_is_no_reason_to_read_the_others(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    """A member may have hundreds."""
    client = node.client()
    assert client.fetch(0, 1, 2, max_wait_ms=60_000, min_bytes=min_bytes) is None
    looks: list[list[int]] = []
    whole = node.node.replica_manager.fetch

    def fetch(*how: Any) -> Any:
        looks.append([one.key[1] for one in how[5]])
        return whole(*how)

    monkeypatch.setattr(node.node.replica_manager, "fetch", fetch)
    node.node.replica_manager.parked.fetch.check_and_complete(("t", 1))
    assert looks == [[1]]
    node.append(200, index=1)
    assert acquired(client.answer, 1) == [(0, 199, 1)]


def test_partitions_may_have_enough_together(node: ShareNode) -> None:
    client = node.client()
    assert client.fetch(0, 1, 2, max_wait_ms=60_000, min_bytes=100) is None
    node.append(1, index=0)
    assert client.answer is None
    node.append(1, index=2)
    answer = client.answer
    assert [acquired(answer, index) for index in range(3)] == [[(0, 0, 1)], [], [(0, 0, 1)]]


def test_many_partitions_are_not_read_by_who_lets_a_fetch_go_on(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at an append nor at the deadline."""
    aside: list[Any] = []
    monkeypatch.setattr("server.share.fetching.LARGE", 2)
    monkeypatch.setattr(node.node.replica_manager, "run_aside", aside.append)
    client = node.client()
    assert client.fetch(0, 1, 2, max_wait_ms=60_000) is None
    node.append(2, index=1)
    assert client.answer is None
    aside.pop()()
    assert acquired(client.answer, 1) == [(0, 1, 1)]
    assert client.fetch(max_wait_ms=1_000) is None
    node.node.pass_time(1_000)
    assert client.answer is None
    aside.pop()()
    assert (acquired(client.answer, 1), aside) == ([], [])


def test_a_fetch_waits_for_records_of_others(node: ShareNode) -> None:
    node.append(2)
    first, second = node.client(), node.client()
    first.fetch(0)
    assert second.fetch(0, member="m2", max_wait_ms=60_000) is None
    node.node.pass_time(10_000)
    first.acknowledge(0, (1, 1, RELEASE))
    assert acquired(second.answer) == [(1, 1, 2)]
    assert second.fetch(member="m2", max_wait_ms=60_000) is None
    node.node.pass_time(20_000)
    assert acquired(second.answer) == [(0, 0, 2)]


def test_acknowledgements_ride_with_a_fetch(node: ShareNode) -> None:
    node.append(2)
    client = node.client()
    client.fetch(0)
    node.append(2)
    answer = client.fetch(acks={0: [(0, 1, ACCEPT)]})
    (partition,) = answer.responses[0].partitions
    assert (partition.error_code, partition.acknowledge_error_code) == (0, 0)
    assert acquired(answer) == [(2, 3, 1)]
    answer = client.fetch(acks={0: [(4, 4, ACCEPT)], 2: [(0, 0, ACCEPT)]})
    told = {p.partition_index: p.acknowledge_error_code for p in answer.responses[0].partitions}
    assert told == {0: E.INVALID_REQUEST, 2: E.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_acknowledgement_is_told_when_it_is_persisted(node: ShareNode) -> None:
    node.append(2)
    client = node.client()
    client.fetch(0)
    node.held_writes = []
    assert client.acknowledge(0, (0, 0, ACCEPT)) is None
    other = node.client()
    assert codes(other.acknowledge(0, (0, 0, ACCEPT), epoch=2)) == [E.INVALID_RECORD_STATE]
    node.let_write()
    assert codes(client.received(client.asked, 2)) == [0]
    assert start_offset(node) == (0, 1)


def test_what_cannot_be_persisted_is_the_members_again(node: ShareNode) -> None:
    node.append(2)
    node.settings = replace_limits(node, lock_duration_ms=60_000)
    client = node.client()
    client.fetch(0)
    for index in range(3):
        node.shares.runtime.on_leadership((SHARE_GROUP_STATE_TOPIC, index), None)
    assert client.acknowledge(0, (0, 1, ACCEPT)) is None
    for attempt in range(ATTEMPTS):
        node.node.pass_time(1_000 << attempt)
    assert codes(client.received(client.asked, 2)) == [E.COORDINATOR_NOT_AVAILABLE]
    for index in range(3):
        node.shares.runtime.on_leadership((SHARE_GROUP_STATE_TOPIC, index), 0)
    assert codes(client.acknowledge(0, (0, 1, ACCEPT))) == [0]


@pytest.mark.parametrize(
    ("acks", "version", "is_renewal", "code"),
    [
        ([(1, 0, ACCEPT)], 2, False, E.INVALID_REQUEST),
        ([(0, 1, ACCEPT), (0, 0, ACCEPT)], 2, False, E.INVALID_REQUEST),
        ([(0, 1, [])], 2, False, E.INVALID_REQUEST),
        ([(0, 2, [1, 1])], 2, False, E.INVALID_REQUEST),
        ([(0, 0, [5])], 2, True, E.INVALID_REQUEST),
        ([(0, 0, [-1])], 2, False, E.INVALID_REQUEST),
        ([(0, 0, RENEW)], 2, False, E.INVALID_REQUEST),
        ([(0, 0, RENEW)], 1, False, E.INVALID_REQUEST),
        ([(0, 0, RENEW)], 2, True, E.NONE),
        ([], 2, False, E.NONE),
        ([(0, 9, ACCEPT)], 2, False, E.INVALID_REQUEST),
    ],
)
def test_acknowledgements_that_make_no_sense(
    node: ShareNode, acks: Any, version: int, is_renewal: bool, code: E
) -> None:
    node.append(3)
    client = node.client()
    client.fetch(0)
    answer = client.acknowledge(0, *acks, version=version, is_renewal=is_renewal)
    assert codes(answer) == [code]


def test_renewing_keeps_the_records(node: ShareNode) -> None:
    node.append(2)
    client, other = node.client(), node.client()
    client.fetch(0)
    node.node.pass_time(20_000)
    request = fetch_request(
        (), {0: [(0, 0, RENEW)]}, 1, is_renew_ack=True, min_bytes=0, max_bytes=0, max_records=0
    )
    (partition,) = client.ask(request, 2).responses[0].partitions
    assert partition.acknowledge_error_code == 0
    node.node.pass_time(10_000)
    assert acquired(other.fetch(0, member="m2")) == [(1, 1, 2)]
    assert codes(client.acknowledge(0, (0, 0, ACCEPT), epoch=2)) == [0]
    assert client.fetch(is_renew_ack=True, epoch=3).error_code == E.INVALID_REQUEST


# ---- sessions


def test_sessions(node: ShareNode) -> None:
    client = node.client()
    assert client.fetch(0, epoch=3).error_code == E.SHARE_SESSION_NOT_FOUND
    assert client.fetch(0, epoch=-1).error_code == E.SHARE_SESSION_NOT_FOUND
    assert client.acknowledge(0, epoch=1).error_code == E.SHARE_SESSION_NOT_FOUND
    assert client.acknowledge(0, epoch=0).error_code == E.INVALID_SHARE_SESSION_EPOCH
    with_acks = client.fetch(acks={0: [(0, 0, ACCEPT)]}, epoch=0)
    assert with_acks.error_code == E.INVALID_REQUEST
    assert client.fetch(0, epoch=0).error_code == 0
    assert client.fetch(0, epoch=2).error_code == E.INVALID_SHARE_SESSION_EPOCH
    assert client.acknowledge(0, epoch=2).error_code == E.INVALID_SHARE_SESSION_EPOCH
    assert client.fetch(epoch=1).error_code == 0
    assert client.acknowledge(0, epoch=2).error_code == 0
    assert client.fetch(epoch=-1).error_code == 0
    assert client.fetch(epoch=3).error_code == E.SHARE_SESSION_NOT_FOUND


@pytest.mark.parametrize("how", ["fetch", "acknowledge", "disconnect"])
def test_the_end_of_a_session_releases_its_records(node: ShareNode, how: str) -> None:
    node.append(3)
    client, other = node.client(), node.client()
    client.fetch(0)
    assert other.fetch(0, member="m2", max_wait_ms=500) is None
    if how == "fetch":
        client.fetch(acks={0: [(0, 0, ACCEPT)]}, epoch=-1)
    elif how == "acknowledge":
        client.acknowledge(0, (0, 0, ACCEPT), epoch=-1)
    else:
        client.acknowledge(0, (0, 0, ACCEPT))
        client.disconnect()
    assert acquired(other.answer) == [(1, 2, 2)]


def test_many_partitions_are_not_released_by_the_thread_of_the_connections(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a write. Who is back before that keeps what it has."""
    aside: list[Any] = []
    monkeypatch.setattr("server.share.manager.LARGE", 2)
    monkeypatch.setattr(node.node.replica_manager, "run_aside", aside.append)
    node.append(2)
    client, other = node.client(), node.client()
    assert acquired(client.fetch(0, 1, 2)) == [(0, 1, 1)]
    assert other.fetch(0, member="m2", max_wait_ms=60_000) is None
    client.disconnect()
    assert other.answer is None
    again = node.client()
    assert acquired(again.fetch(0, 1, 2)) == []
    aside.pop()()
    assert other.answer is None
    assert codes(again.acknowledge(0, (0, 0, ACCEPT))) == [0]
    again.disconnect()
    aside.pop()()
    assert acquired(other.answer) == [(1, 1, 2)]


def test_what_a_member_is_given_that_leaves_meanwhile_is_for_others_at_once(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = node.client(), node.client()
    assert client.fetch(0, max_wait_ms=60_000) is None
    other.fetch(member="m2")  # the group goes on
    whole = FileSlice.read

    def leave_and_read(records: FileSlice, *where: int) -> bytes:
        client.disconnect()
        return whole(records, *where)

    with monkeypatch.context() as leaving:
        leaving.setattr(FileSlice, "read", leave_and_read)
        node.append(2)
    assert acquired(other.fetch(0, member="m2")) == [(0, 1, 2)]


@pytest.mark.parametrize("how", ["fetch", "acknowledge"])
def test_the_late_end_of_a_session_does_not_end_the_one_opened_in_its_place(
    node: ShareNode, how: str
) -> None:
    """A member that came back by another connection, while its last word was being written."""
    node.append(3)
    client, again = node.client(), node.client()
    client.fetch(0, max_records=1, share_acquire_mode=1)
    node.held_writes = []
    if how == "fetch":
        assert client.fetch(acks={0: [(0, 0, ACCEPT)]}, epoch=-1) is None
    else:
        assert client.acknowledge(0, (0, 0, ACCEPT), epoch=-1) is None
    assert acquired(again.fetch(0)) == [(1, 2, 1)]
    node.let_write()
    assert again.acknowledge(0, (1, 2, ACCEPT)).responses[0].partitions[0].error_code == 0
    assert again.fetch(0).error_code == 0


def test_a_session_without_room_is_told_so_after_its_wait(tmp_path: Path) -> None:
    node = ShareNode(tmp_path, max_sessions=1)
    node.client().fetch(0)
    client = node.client()
    assert client.fetch(0, member="m2", max_wait_ms=500) is None
    node.node.pass_time(500)
    assert client.answer.error_code == E.SHARE_SESSION_LIMIT_REACHED
    assert node.client().fetch(0, epoch=0).error_code == 0  # in place of its own
    node.close()


@pytest.mark.parametrize(
    "who", [{"group": None}, {"member": None}, {"member": ""}, {"member": "m" * 37}]
)
def test_who_cannot_be_a_member_is_refused(node: ShareNode, who: dict[str, Any]) -> None:
    assert node.client().ask(fetch_request([0], {}, 0, **who), 2).error_code == E.INVALID_REQUEST


def test_a_new_groups_first_answer_is_of_the_partition_that_is_loaded_first(
    node: ShareNode,
) -> None:
    """As in Kafka, which loads them one after the other; librdkafka's test 0179 asks for it."""
    node.append(2, 0)
    node.append(3, 1)
    client = node.client()
    first = client.fetch(0, 1, max_wait_ms=500)
    assert (acquired(first, 0), acquired(first, 1)) == ([(0, 1, 1)], [])
    assert acquired(client.fetch(), 1) == [(0, 2, 1)]


def test_partitions_that_are_not_there_are_told_alone(node: ShareNode) -> None:
    node.append(1)
    answer = node.client().fetch(0, 7)
    assert acquired(answer) == [(0, 0, 1)]
    told = {p.partition_index: p.error_code for p in answer.responses[0].partitions}
    assert told == {0: 0, 7: E.UNKNOWN_TOPIC_OR_PARTITION}
    answer = node.client().ask(fetch_request([0], {}, 0, topic_id=b"x" * 16), 2)
    assert codes(answer) == [E.UNKNOWN_TOPIC_ID]


def test_what_looks_at_a_large_session_is_not_for_a_network_thread(node: ShareNode) -> None:
    """However small the request is."""
    ctx: Any = SimpleNamespace(broker=SimpleNamespace(share_manager=node.manager))
    ends = ShareAcknowledgeRequest(group_id="g", member_id="m1", share_session_epoch=-1, topics=[])
    goes_on = ShareAcknowledgeRequest(
        group_id="g", member_id="m1", share_session_epoch=1, topics=[]
    )
    for count, is_costly in ((256, False), (257, True)):
        named = [T0._replace(partition=index) for index in range(count)]
        node.manager.sessions.fetch(Member("g", "m1"), 0, named, [], None, acknowledges=False)
        assert share_fetch_is_costly(ctx, fetch_request([], {}, 1)) is is_costly
        assert share_acknowledge_is_costly(ctx, ends) is is_costly
        assert not share_acknowledge_is_costly(ctx, goes_on)
    assert not share_fetch_is_costly(ctx, fetch_request([], {}, 1, member=None))


@pytest.mark.parametrize("count", [256, 257])
def test_an_acknowledgement_of_many_runs_is_not_for_a_network_thread(
    node: ShareNode, count: int
) -> None:
    """One range may be ten thousand records, each acquired alone."""
    node.append(count)
    client = node.client()
    client.fetch(0, max_records=count)
    leader = node.manager._leaders[ShareKey("g", *T0)]
    renewed = [Acknowledgement(at, at, RENEW) for at in range(0, count, 2)]
    leader.acknowledge("m1", renewed, lambda code: None)
    ctx: Any = SimpleNamespace(broker=SimpleNamespace(share_manager=node.manager))
    fetch = fetch_request([0], {0: [(0, count - 1, ACCEPT)]}, 1)
    assert share_fetch_is_costly(ctx, fetch) is (count > 256)
    acknowledge = ShareAcknowledgeRequest(
        group_id="g", member_id="m1", share_session_epoch=1, topics=fetch.topics
    )
    assert share_acknowledge_is_costly(ctx, acknowledge) is (count > 256)


def test_much_that_is_wrong_is_told_at_once_and_not_by_who_lets_others_go_on(
    node: ShareNode,
) -> None:
    node.append(1)
    node.manager.sessions.fetch(Member("g", "m1"), 0, [], [], None, acknowledges=False)
    told: list[int] = []

    def fetch(count: int) -> DelayedShareFetch | None:
        named = [T0._replace(partition=index) for index in range(count)]
        params = ShareFetchParams(
            "m1", 60_000, 1 << 19, 1 << 20, 500, 500, AcquireMode.BATCH_OPTIMIZED
        )
        return node.manager.fetch(
            "g", named, params, lambda deliveries, errors: told.append(len(errors))
        )

    waits = fetch(3 + 256)
    assert (waits is None, told) == (False, [])
    assert fetch(3 + 257) is None
    assert told == [257]
    assert waits is not None
    waits.cancel()


def test_a_session_goes_on_beside_topics_that_may_not_be_read(node: ShareNode) -> None:
    node.append(4)
    policy = Policy({(Operation.READ, Resource.GROUP, "g"), (Operation.READ, Resource.TOPIC, "t")})
    client = node.client(policy)
    assert acquired(client.fetch(0)) == [(0, 3, 1)]
    policy.allowed.discard((Operation.READ, Resource.TOPIC, "t"))
    denied = [E.TOPIC_AUTHORIZATION_FAILED]
    assert codes(client.acknowledge(0, (0, 1, ACCEPT))) == denied
    assert codes(client.fetch()) == denied  # in the epoch that the client counts
    assert codes(client.acknowledge(0, (0, 1, ACCEPT), epoch=-1)) == denied
    assert acquired(node.client().fetch(0, member="m2")) == [(0, 3, 2)], "of who may not read it"


def test_what_is_acknowledged_with_a_fetch_of_what_may_not_be_read_is_refused(
    node: ShareNode,
) -> None:
    """A client that is told nothing of it takes it for done."""
    node.append(4)
    policy = Policy({(Operation.READ, Resource.GROUP, "g"), (Operation.READ, Resource.TOPIC, "t")})
    client = node.client(policy)
    assert acquired(client.fetch(0)) == [(0, 3, 1)]
    policy.allowed.discard((Operation.READ, Resource.TOPIC, "t"))
    [topic] = client.fetch(acks={0: [(0, 1, ACCEPT)]}).responses
    [told] = topic.partitions
    assert told.error_code == told.acknowledge_error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert acquired(node.client().fetch(0, member="m2")) == []


def test_a_topic_that_is_known_a_moment_later_is_not_read_unasked() -> None:
    """The image is published while the request is looked at."""
    known, new = SharedPartition(b"t" * 16, 0), SharedPartition(b"n" * 16, 0)
    topics = {known.topic_id: SimpleNamespace(name="t")}
    read: list[SharedPartition] = []

    def may_read(name: str) -> bool:
        topics[new.topic_id] = SimpleNamespace(name="n")
        return name == "t"

    sessions = SimpleNamespace(fetch=lambda *_a, **_k: [new, known])
    broker = SimpleNamespace(
        group_coordinator=SimpleNamespace(serves=lambda _kind: True),
        share_manager=SimpleNamespace(
            sessions=sessions, fetch=lambda _group, partitions, *_rest: read.extend(partitions)
        ),
        metadata=SimpleNamespace(topics_by_id=topics),
    )
    ctx: Any = SimpleNamespace(
        broker=broker, connection=None, park=lambda _wait: None, fetch_bytes_max=1
    )
    share_fetch(ctx, fetch_request([0], {}, 1), may_read)
    assert read == [known]


class _Index(int):
    """Counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Index.compared += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def test_many_partitions_that_may_not_be_read_cost_no_more_each_than_few() -> None:
    topic_id = b"t" * 16
    asked = [SharedPartition(topic_id, _Index(i)) for i in range(500)]
    read = []

    def fetch(_group: str, partitions: list[SharedPartition], *_rest: object) -> None:
        read.append(partitions)

    manager = SimpleNamespace(sessions=SimpleNamespace(fetch=lambda *_a, **_k: asked), fetch=fetch)
    broker = SimpleNamespace(
        group_coordinator=SimpleNamespace(serves=lambda _kind: True),
        share_manager=manager,
        metadata=SimpleNamespace(topics_by_id={topic_id: SimpleNamespace(name="t")}),
    )
    ctx: Any = SimpleNamespace(
        broker=broker, connection=None, park=lambda _wait: None, fetch_bytes_max=1
    )
    share_fetch(ctx, fetch_request([], {}, 1), lambda _name: False)
    assert read == [[]]
    assert _Index.compared < 10 * len(asked)


# ---- leaders


def test_a_group_that_nobody_initialized_has_no_records(node: ShareNode) -> None:
    answer = node.client().ask(fetch_request([0], {}, 0, group="other", max_wait_ms=500), 2)
    assert codes(answer) == [E.UNKNOWN_SERVER_ERROR]


def test_a_lost_leadership_ends_the_wait_and_names_the_leader(node: ShareNode) -> None:
    node.append(2)
    client, waiting = node.client(), node.client()
    client.fetch(0)
    assert waiting.fetch(0, member="m2", max_wait_ms=60_000) is None
    node.node.create("t", 3, leader=2, leader_epoch=1)
    assert codes(waiting.answer) == [E.NOT_LEADER_OR_FOLLOWER]
    client.broker.metadata = node.node.image
    answer = client.acknowledge(0, (0, 1, ACCEPT))
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == E.NOT_LEADER_OR_FOLLOWER
    leader = partition.current_leader
    assert (leader.leader_id, leader.leader_epoch) == (2, 1)


class _Looked(ShareLeader):
    """Counts how often somebody looks which share partition it is."""

    count = 0

    def __getattribute__(self, name: str) -> Any:
        _Looked.count += name == "key"
        return super().__getattribute__(name)


def test_who_leads_another_partition_is_not_asked_of_each_share_partition(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that goes away tells of thousands, and has as many for each group."""
    monkeypatch.setattr("server.share.manager.ShareLeader", _Looked)
    node.client().fetch(0, 1, 2)
    assert _Looked.count
    _Looked.count = 0
    for hook in node.node.replica_manager.on_partition_leadership:
        hook(("other", 0), None)
    assert not _Looked.count


def test_the_end_of_a_session_is_not_asked_of_each_share_partition_of_other_groups(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of members may go at once."""
    monkeypatch.setattr("server.share.manager.ShareLeader", _Looked)
    node.client().fetch(0, 1, 2)
    gone, closed = node.client(), node.client()
    gone.fetch(0, group="other")
    closed.fetch(0, group="other", member="m2")
    _Looked.count = 0
    gone.disconnect()
    closed.fetch(group="other", member="m2", epoch=-1)
    assert not _Looked.count


def test_a_new_leader_goes_on_with_what_was_persisted(node: ShareNode) -> None:
    node.append(5)
    client = node.client()
    client.fetch(0)
    client.acknowledge(0, (1, 2, [1, 2]))
    node.node.create("t", 3, leader=2, leader_epoch=1)
    node.node.create("t", 3, leader_epoch=2)
    again = node.client().fetch(0, epoch=0)
    assert acquired(again) == [(0, 0, 1), (2, 2, 2), (3, 4, 1)]


def test_a_group_without_sessions_is_not_kept_in_memory(node: ShareNode) -> None:
    """While there is one, and while its last word is written, it is."""
    node.append(4)
    first, second = node.client(), node.client()
    assert acquired(first.fetch(0)) == [(0, 3, 1)]
    second.fetch(0, member="m2")
    node.reads = 0
    first.disconnect()
    assert acquired(second.fetch(0, member="m2")) == [(0, 3, 2)]
    node.held_writes = []
    second.disconnect()
    third = node.client()
    assert third.fetch(0, max_wait_ms=60_000) is None
    node.let_write()
    assert acquired(third.answer) == [(0, 3, 3)]
    assert node.reads == 0
    third.disconnect()
    assert acquired(node.client().fetch(0)) == [(0, 1, 4)]
    assert node.reads == 1


def test_a_group_whose_last_word_outlives_its_connection_is_forgotten_after_it(
    node: ShareNode,
) -> None:
    """Else its offsets could be reset, and who comes next would not notice."""
    node.append(2)
    client = node.client()
    client.fetch(0)
    node.held_writes = []
    client.fetch(epoch=-1)
    client.disconnect()
    node.let_write()
    node.reads = 0
    assert acquired(node.client().fetch(0)) == [(0, 1, 2)]
    assert node.reads == 1


@pytest.mark.parametrize("how", ["fetch", "acknowledge"])
def test_a_group_whose_last_session_is_closed_begins_again_where_it_was_reset_to(
    node: ShareNode, how: str
) -> None:
    """Also while the connection lives on, with which its client may do other things."""
    node.append(4)
    client = node.client()
    client.fetch(0)
    if how == "fetch":
        client.fetch(acks={0: [(0, 3, ACCEPT)]}, epoch=-1)
    else:
        client.acknowledge(0, (0, 3, ACCEPT), epoch=-1)
    node.initialize(state_epoch=2, start_offset=0)
    assert acquired(node.client().fetch(0)) == [(0, 3, 1)]


def test_a_group_that_is_used_again_just_then_is_not_forgotten_with_what_it_gave(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes next would be given the same records, as if they had never been handed out."""
    node.append(2)
    first, second = node.client(), node.client()
    first.fetch(0)
    answers: list[Any] = []
    comes = threading.Thread(target=lambda: answers.append(second.fetch(0, member="m2")))
    real = node.manager.sessions.is_used

    def is_used(group_id: str) -> bool:
        used = real(group_id)
        if comes.ident is None:
            comes.start()
            comes.join(0.2)  # it is held up until who forgets is done
        return used

    monkeypatch.setattr(node.manager.sessions, "is_used", is_used)
    first.disconnect()
    comes.join()
    assert acquired(answers[0]) == [(0, 1, 2)]
    assert acquired(node.client().fetch(0, member="m3")) == []


def test_a_fetch_that_is_still_begun_when_its_connection_has_ended_leaves_nothing_in_memory(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes next would begin where that one was, not where the group was reset to."""
    node.append(4)
    client = node.client()
    client.fetch(0)
    whole = node.manager.sessions.fetch

    def fetch_and_leave(*how: Any, **more: Any) -> Any:
        found = whole(*how, **more)
        client.disconnect()
        return found

    with monkeypatch.context() as leaving:
        leaving.setattr(node.manager.sessions, "fetch", fetch_and_leave)
        client.fetch()
    node.initialize(state_epoch=2, start_offset=3)
    assert acquired(node.client().fetch(0)) == [(3, 3, 1)]


def test_a_fetch_between_metadata_and_leadership_keeps_nobody_out(node: ShareNode) -> None:
    """It was decided on the metadata of before, when the new leadership had been told already."""
    node.append(1)
    before = node.node.image
    node.node.create("t", 3, leader_epoch=1)
    now, node.node.image = node.node.image, before
    assert codes(node.client().fetch(0)) == [E.NOT_LEADER_OR_FOLLOWER]
    node.node.image = now
    assert acquired(node.client().fetch(0)) == [(0, 0, 1)]


def test_a_read_that_fails_keeps_nobody_out(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.append(1)

    def fail(*_: object) -> None:
        raise OSError

    client = node.client()
    with monkeypatch.context() as broken:
        broken.setattr(node.node.replica_manager, "fetch", fail)
        client.fetch(0)
    assert acquired(client.fetch(0, epoch=0)) == [(0, 0, 1)]


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (OSError(errno.EIO, "the disk is ill"), E.KAFKA_STORAGE_ERROR),
        (bytes(100), E.CORRUPT_MESSAGE),
    ],
)
def test_who_waited_for_records_that_cannot_be_read_is_told(
    node: ShareNode, monkeypatch: pytest.MonkeyPatch, read: bytes | OSError, code: E
) -> None:
    client = node.client()
    assert client.fetch(0, max_wait_ms=60_000) is None

    def read_badly(*_: object) -> bytes:
        if isinstance(read, OSError):
            raise read
        return read

    with monkeypatch.context() as broken:
        broken.setattr(FileSlice, "read", read_badly)
        node.append(1)
    assert codes(client.answer) == [code]
    assert acquired(client.fetch(0)) == [(0, 0, 1)]


def test_records_deleted_from_the_log_are_skipped(node: ShareNode) -> None:
    for _ in range(4):
        node.append(1)
    client = node.client()
    client.fetch(0, max_records=1)
    client.acknowledge(0, (0, 0, RELEASE))
    node.node.replica_manager.delete_records({("t", 0): 2}, 1_000, lambda _: None)
    assert acquired(client.fetch()) == []
    assert acquired(client.fetch()) == [(2, 3, 1)]


@pytest.mark.parametrize(
    ("isolation_level", "is_commit", "expected"),
    [
        (0, False, [(0, 0, 1), (1, 2, 1), (3, 3, 1), (4, 4, 1)]),
        (1, False, [(0, 0, 1), (3, 3, 1), (4, 4, 1)]),
        (1, True, [(0, 0, 1), (1, 2, 1), (3, 3, 1), (4, 4, 1)]),
    ],
)
def test_committed_readers_get_no_aborted_records(
    node: ShareNode, isolation_level: int, is_commit: bool, expected: list[Any]
) -> None:
    """The marker itself is handed out: its member says that there is nothing."""
    node.settings = node.settings._replace(isolation_level=isolation_level)
    node.append(1)
    node.append(2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    client = node.client()
    if isolation_level:
        assert acquired(client.fetch(0, batch_size=1)) == [(0, 0, 1)]
        client.acknowledge(0, (0, 0, RELEASE))
        expected = [(0, 0, 2), *expected[1:]]
    else:
        client.fetch(0, max_records=0)
    node.end_transaction(7, is_commit)
    node.append(1)
    assert acquired(client.fetch(batch_size=1)) == expected


def test_limits_of_a_group_hold_from_the_next_fetch_on(node: ShareNode) -> None:
    node.append(2)
    node.append(2)
    node.settings = replace_limits(node, lock_duration_ms=1_000, max_record_locks=2)
    client = node.client()
    answer = client.fetch(0)
    assert (answer.acquisition_lock_timeout_ms, acquired(answer)) == (1_000, [(0, 1, 1)])
    assert acquired(client.fetch()) == []
    node.settings = replace_limits(node, max_record_locks=4)
    assert acquired(client.fetch()) == [(2, 3, 1)]
    node.node.pass_time(1_000)
    assert acquired(client.fetch()) == [(0, 1, 2), (2, 3, 2)]
