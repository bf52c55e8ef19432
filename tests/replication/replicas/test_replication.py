"""Three brokers replicate a partition: what is acknowledged is where it must be, whatever fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.partition.partition import Partition
from replication.replicas.replica_manager import (
    AppendRequest,
    FetchPartition,
    ReplicaManagerConfig,
)
from replication.replicas.replica_reads import RACK_AWARE_SELECTOR
from storage.config import LONG_MAX
from tests.replication.cluster_support import ORDERS_0, SimCluster, encoded, records
from wire.errors import ErrorCode
from wire.messages.data import FetchRequest, FetchResponse
from wire.primitives import TopicPartition


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimCluster]:
    cluster = SimCluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def orders(cluster: SimCluster) -> SimCluster:
    """Topic orders, one partition on all three, led by 1, everyone in sync and fetching."""
    cluster.create("orders", [1, 2, 3], min_insync_replicas="2")
    cluster.run(50)
    return cluster


def leo(cluster: SimCluster, *nodes: int) -> list[int]:
    return [cluster.nodes[i].log().log_end_offset for i in nodes]


def hw(cluster: SimCluster, *nodes: int) -> list[int]:
    return [cluster.nodes[i].partition().high_watermark for i in nodes]


def test_acks_all_is_answered_once_every_replica_in_sync_has_the_record(orders: SimCluster) -> None:
    told = orders.produce(1, b"a", b"b")
    assert told == []
    assert orders.values(1) == []
    orders.run_until(lambda: bool(told), 20)
    assert (told[0].error_code, told[0].base_offset) == (0, 0)
    assert leo(orders, 1, 2, 3) == [2, 2, 2]
    assert orders.values(1) == [b"a", b"b"]
    assert orders.log_bytes(2) == orders.log_bytes(1) == orders.log_bytes(3)


def test_followers_learn_the_high_watermark_one_round_later_and_never_beyond_their_end(
    orders: SimCluster,
) -> None:
    """H-9."""
    told = orders.produce(1, b"a")
    orders.run_until(lambda: bool(told))
    assert hw(orders, 1, 2, 3) == [1, 0, 0]
    orders.produce(1, b"b")
    orders.run(20)
    assert hw(orders, 1) == [2]
    assert all(1 <= offset <= 2 for offset in hw(orders, 2, 3))
    orders.run(600)  # a fetch that waits for data ends after half a second
    assert hw(orders, 1, 2, 3) == [2, 2, 2]


def test_a_frozen_follower_leaves_the_isr_within_one_and_a_half_lag_times(
    orders: SimCluster,
) -> None:
    """H-5. What is acknowledged meanwhile waits for it."""
    orders.cut(1, 3)
    told = orders.produce(1, b"a")
    took_ms = orders.run_until(lambda: orders.registration().isr == (1, 2), 50_000)
    assert 30_000 <= took_ms <= 45_100
    orders.run_until(lambda: bool(told), 100)
    assert told[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    late = orders.produce(1, b"b")
    orders.run_until(lambda: bool(late), 50)
    assert late[0].error_code == 0
    assert leo(orders, 2, 3) == [2, 0]


def test_steady_small_writes_keep_a_follower_in_sync_that_never_equals_the_end(
    orders: SimCluster,
) -> None:
    """H-4: reaching the end of the fetch before counts."""
    for _ in range(3000):
        orders.produce(1, b"x", acks=1)
        orders.produce(1, b"y", acks=1)
        orders.run(20)
    assert orders.registration().isr == (1, 2, 3)
    assert orders.alterations == []


def test_a_pending_shrink_does_not_count_before_the_controller_confirms_it(
    orders: SimCluster,
) -> None:
    """H-3: the follower that is to leave still holds the high watermark back."""
    orders.is_controller_deaf = True
    orders.cut(1, 3)
    orders.produce(1, b"lags behind", acks=1)
    orders.run(46_000)
    partition = orders.nodes[1].partition()
    assert partition.role.isr_state.proposed == {1, 2}
    told = orders.produce(1, b"a")
    orders.run(2_000)
    assert told == []
    assert hw(orders, 1) == [0]
    orders.is_controller_deaf = False
    orders.run_until(lambda: bool(told), 200)
    assert told[0].error_code == 0
    assert partition.isr == {1, 2}


def test_a_pending_expand_counts_at_once(orders: SimCluster) -> None:
    """H-3: from the moment it was asked for, the joining replica must have what is acknowledged."""
    orders.cut(1, 3)
    orders.produce(1, b"lags behind", acks=1)
    orders.run_until(lambda: orders.registration().isr == (1, 2))
    orders.run(100)
    orders.is_controller_deaf = True
    orders.heal()
    partition = orders.nodes[1].partition()
    orders.run_until(lambda: partition.role.isr_state.maximal_isr == {1, 2, 3}, 10_000)
    orders.cut(1, 3)
    told = orders.produce(1, b"a")
    orders.run(2_000)
    assert told == []
    assert partition.isr == {1, 2}


def test_a_follower_that_caught_up_joins_the_isr_again(orders: SimCluster) -> None:
    orders.cut(1, 3)
    orders.produce(1, b"lags behind", acks=1)
    orders.run_until(lambda: orders.registration().isr == (1, 2))
    orders.produce(1, *[b"%d" % i for i in range(100)])
    orders.run(200)
    orders.heal()
    orders.run_until(lambda: set(orders.registration().isr) == {1, 2, 3}, 10_000)
    assert leo(orders, 3) == [101]
    changed = orders.alterations[-1].topics[0].partitions[0]
    assert {m.broker_id: m.broker_epoch for m in changed.new_isr_with_epochs} == orders.epochs


def test_the_controllers_answer_waits_for_no_partition_on_the_thread_that_brings_it(
    orders: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats and the quorum's requests are on that thread, too; an append that the disk holds
    up has the partition's lock."""
    aside: list[Callable[[], None]] = []
    monkeypatch.setattr(orders.nodes[1].replica_manager, "run_aside", aside.append)
    monkeypatch.setattr(orders.nodes[1], "publish", lambda: None)  # metadata would tell as well
    orders.cut(1, 3)
    orders.produce(1, b"lags behind", acks=1)
    orders.run_until(lambda: bool(aside))
    state = orders.nodes[1].partition().role.isr_state
    assert (state.isr, state.proposed) == ({1, 2, 3}, {1, 2})
    (told,) = aside
    told()
    assert orders.nodes[1].partition().isr == {1, 2}


def test_a_fenced_follower_does_not_join_the_isr(orders: SimCluster) -> None:
    orders.cut(1, 3)
    orders.produce(1, b"lags behind", acks=1)
    orders.run_until(lambda: orders.registration().isr == (1, 2))
    orders.fence(3)
    orders.heal()
    orders.run(10_000)
    assert leo(orders, 3) == leo(orders, 1)
    assert orders.registration().isr == (1, 2)
    orders.unfence(3)
    orders.run_until(lambda: set(orders.registration().isr) == {1, 2, 3}, 5_000)


@pytest.mark.parametrize("fate", ["falls silent", "is fenced"])
def test_who_might_join_the_isr_and_is_gone_holds_up_nobody_for_longer_than_the_lag_time(
    orders: SimCluster, fate: str
) -> None:
    """H-1 waits for a replica that has caught up, so that it may join. No fetch tells that it is
    gone, and who waits for its acknowledgement writes nothing that would."""
    orders.cut(1, 3)
    orders.produce(1, b"lags behind", acks=1)
    orders.run_until(lambda: orders.registration().isr == (1, 2))
    orders.fence(3)
    orders.heal()
    orders.run(10_000)
    orders.cut(1, 3)
    orders.unfence(3)
    orders.run(10)
    told = orders.produce(1, b"a", timeout_ms=100_000)
    orders.run(1_000)
    assert told == []
    if fate == "is fenced":
        orders.fence(3)
    orders.run_until(lambda: bool(told), 45_100 if fate == "falls silent" else 15_100)
    assert told[0].error_code == 0
    assert orders.registration().isr == (1, 2)


def test_what_was_acknowledged_survives_the_leader_and_becomes_visible_again(
    orders: SimCluster,
) -> None:
    """H-9, H-10: the new leader's high watermark is older than the acknowledgement."""
    told = orders.produce(1, b"a", b"b")
    orders.run_until(lambda: bool(told))
    assert hw(orders, 2) == [0]
    orders.kill(1, loses_checkpoints=True)
    orders.run(20)
    leader = orders.registration().leader
    assert leader == 2
    orders.run_until(lambda: orders.values(2) == [b"a", b"b"], 3_000)
    assert orders.produce(2, b"c", acks=1)[0].base_offset == 2


def test_what_only_a_dead_leader_had_is_cut_off_when_it_returns(orders: SimCluster) -> None:
    """E-6: it comes back with records of its epoch that nobody else has."""
    told = orders.produce(1, b"a")
    orders.run_until(lambda: bool(told))
    orders.cut(1, 2)
    orders.cut(1, 3)
    lost = orders.produce(1, b"only here", b"and this", acks=1)
    assert lost[0].error_code == 0
    orders.kill(1)
    orders.run(20)
    late = orders.produce(2, b"b")
    orders.run_until(lambda: bool(late), 2_000)
    orders.heal()
    orders.restart(1)
    orders.run_until(lambda: set(orders.registration().isr) == {1, 2, 3}, 10_000)
    orders.run(1_000)
    assert orders.values(1) == orders.values(2) == [b"a", b"b"]
    assert orders.log_bytes(1) == orders.log_bytes(2) == orders.log_bytes(3)


def test_who_lost_its_only_disk_leads_again(orders: SimCluster) -> None:
    """The controller elects nobody whose directory its broker does not have (KIP-858)."""
    orders.produce(1, b"kept")
    orders.run(100)
    orders.kill(1)
    orders.nodes[1].wipe()
    orders.restart(1, clean=False)
    orders.run_until(lambda: set(orders.registration().isr) == {1, 2, 3})
    orders.controller.balance()
    orders.publish()
    assert orders.registration().leader == 1
    assert orders.values(1) == [b"kept"]


def test_histories_interleaved_by_fast_failovers_end_up_byte_equal(cluster: SimCluster) -> None:
    """KIP-279: epochs on different replicas that the others never saw."""
    cluster.create("orders", [1, 2, 3], unclean_leader_election_enable="true")
    cluster.run(50)
    cluster.produce(1, b"common")
    cluster.run(50)
    for pair in ((1, 2), (1, 3), (2, 3)):
        cluster.cut(*pair)
    cluster.produce(1, b"of 1", acks=1)
    for survivor in (2, 3):
        for other in {1, 2, 3} - {survivor}:
            if cluster.nodes[other].is_up:
                cluster.kill(other)
        if not cluster.nodes[survivor].is_up:
            cluster.restart(survivor, clean=False)
        cluster.controller.elect_unclean()
        cluster.publish()
        cluster.run(20)
        assert cluster.registration().leader == survivor
        cluster.produce(survivor, b"of %d" % survivor, acks=1)
        cluster.produce(survivor, b"more of %d" % survivor, acks=1)
    cluster.heal()
    cluster.restart(1)
    cluster.restart(2)
    cluster.run_until(lambda: set(cluster.registration().isr) == {1, 2, 3}, 20_000)
    cluster.run(2_000)
    assert cluster.log_bytes(1) == cluster.log_bytes(2) == cluster.log_bytes(3)
    assert cluster.values(3) == [b"common", b"of 3", b"more of 3"]


def test_elections_without_writes_leave_no_follower_behind(orders: SimCluster) -> None:
    """E-3: every epoch has a start, so a follower of an old epoch gets a usable answer."""
    told = orders.produce(1, b"a")
    orders.run_until(lambda: bool(told))
    orders.kill(3)
    for _ in range(3):
        orders.fence(orders.registration().leader)
        orders.run(3)
        for node in (1, 2):
            orders.unfence(node)
        orders.run(3)
    orders.restart(3)
    orders.run_until(lambda: set(orders.registration().isr) == {1, 2, 3}, 20_000)
    assert leo(orders, 1, 2, 3) == [1, 1, 1]


def test_a_follower_left_behind_starts_over_at_the_leaders_log_start(orders: SimCluster) -> None:
    """E-10: records were deleted while it was down."""
    orders.produce(1, b"a")
    orders.run(50)
    orders.kill(3)
    orders.run(10)
    for i in range(5):
        orders.produce(1, b"%d" % i)
        orders.run(20)
    orders.nodes[1].replica_manager.delete_records({ORDERS_0: 4}, 1000, lambda done: None)
    orders.restart(3)
    orders.run_until(lambda: set(orders.registration().isr) == {1, 2, 3}, 20_000)
    log = orders.nodes[3].log()
    assert (log.log_start_offset, log.log_end_offset) == (4, 6)
    orders.run(1_000)
    assert orders.values(3, 4) == [b"3", b"4"]


def test_deleted_records_go_on_the_followers_too_before_the_request_is_answered(
    orders: SimCluster,
) -> None:
    for i in range(4):
        orders.produce(1, b"%d" % i)
        orders.run(20)
    orders.run(1_200)  # nothing has happened for a while
    told: list[dict[object, tuple[int, int]]] = []
    orders.nodes[1].replica_manager.delete_records({ORDERS_0: 3}, 30_000, told.append)
    assert told == []
    orders.run_until(lambda: bool(told), 2_000)
    assert told == [{ORDERS_0: (0, 3)}]
    assert [orders.nodes[i].log().log_start_offset for i in (1, 2, 3)] == [3, 3, 3]


def test_an_unclean_election_cuts_below_the_high_watermark_and_says_so(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """E-8, E-11."""
    cluster.create("orders", [1, 2], unclean_leader_election_enable="true", min_insync_replicas="1")
    cluster.run(50)
    cluster.produce(1, b"a")
    cluster.run(50)
    cluster.kill(2)
    cluster.run(20)
    cluster.produce(1, b"b", b"c")
    cluster.run(20)
    assert hw(cluster, 1) == [3]
    cluster.kill(1)
    cluster.restart(2, clean=False)
    cluster.controller.elect_unclean()
    cluster.publish()
    cluster.run(20)
    cluster.produce(2, b"d", acks=1)
    cluster.restart(1)
    cluster.run_until(lambda: set(cluster.registration().isr) == {1, 2}, 20_000)
    cluster.run(1_000)
    assert cluster.values(1) == cluster.values(2) == [b"a", b"d"]
    assert "truncating below the high watermark" in caplog.text
    assert cluster.registration().leader_recovery_state == 0


def test_a_retried_batch_gets_its_first_offset_from_the_new_leader(orders: SimCluster) -> None:
    """P-3: producer state survives the failover, because followers build it from what they copy."""
    batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    orders.produce(1, b"before")
    told = orders.produce(1, b"a", b"b", **batch)
    orders.run_until(lambda: bool(told))
    orders.kill(1)
    orders.run(1_000)
    again = orders.produce(2, b"a", b"b", **batch)
    orders.run_until(lambda: bool(again), 2_000)
    assert (again[0].error_code, again[0].base_offset) == (0, told[0].base_offset)
    assert leo(orders, 2) == [3]


def test_nothing_is_committed_while_the_isr_is_too_small(orders: SimCluster) -> None:
    """H-1, H-11: what was appended before stays and waits, what comes later is refused."""
    told = orders.produce(1, b"a", timeout_ms=60_000)
    orders.cut(1, 2)
    orders.cut(1, 3)
    orders.run_until(lambda: bool(told), 70_000)
    assert told[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert orders.registration().isr == (1,)
    assert (leo(orders, 1), hw(orders, 1)) == ([1], [0])
    refused = orders.produce(1, b"b")
    assert refused[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leo(orders, 1) == [1]
    orders.heal()
    orders.run_until(lambda: hw(orders, 1) == [1], 5_000)


def test_a_retry_of_what_is_in_the_log_is_told_so_while_the_isr_is_too_small(
    orders: SimCluster,
) -> None:
    batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    told = orders.produce(1, b"a", **batch)
    orders.cut(1, 2)
    orders.cut(1, 3)
    orders.run_until(lambda: bool(told), 70_000)
    assert told[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    orders.run_until(lambda: orders.registration().isr == (1,), 70_000)
    orders.run(200)  # the leader hears of it
    again = orders.produce(1, b"a", timeout_ms=60_000, **batch)
    orders.run(20)  # at once: other requests of its connection wait behind it
    assert again[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    orders.heal()
    orders.run_until(lambda: hw(orders, 1) == [1], 5_000)
    again = orders.produce(1, b"a", timeout_ms=60_000, **batch)
    orders.run_until(lambda: bool(again), 5_000)
    assert (again[0].error_code, again[0].base_offset) == (0, 0)
    assert leo(orders, 1) == [1]


def test_a_leader_that_loses_its_role_answers_what_waits(orders: SimCluster) -> None:
    orders.cut(1, 2)
    orders.cut(1, 3)
    told = orders.produce(1, b"a")
    orders.fence(1)
    orders.run(20)
    assert told[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_replica_copies_the_log_and_a_removed_one_deletes_its_own(
    cluster: SimCluster,
) -> None:
    """B-6: a reassignment."""
    cluster.create("orders", [1, 2])
    cluster.run(50)
    cluster.produce(1, b"a", b"b")
    cluster.run(50)
    cluster.controller.reassign({ORDERS_0: [1, 3]})
    cluster.publish()
    cluster.run_until(lambda: cluster.registration().replicas == (1, 3), 20_000)
    cluster.run(1_000)
    assert set(cluster.registration().isr) == {1, 3}
    assert cluster.log_bytes(3) == cluster.log_bytes(1)
    assert cluster.nodes[2].replica_manager.get_partition_or_none(ORDERS_0) is None
    assert not (cluster.nodes[2].root / "orders-0").exists()


def test_consumers_read_committed_records_from_followers(orders: SimCluster) -> None:
    """V-5: up to the follower's own high watermark; what it does not have yet is waited for."""
    orders.produce(1, b"a")
    orders.run(1_000)
    assert orders.values(2) == [b"a"]
    orders.produce(1, b"b")
    orders.run(4)
    assert orders.values(2, 1) == []
    beyond = orders.consume(2, 2)
    assert (beyond.error_code, beyond.records) == (0, None)
    epoch = orders.registration().leader_epoch
    assert orders.consume(2, 9, epoch=epoch).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert orders.consume(2, 9).error_code == 0
    assert orders.consume(2, 0, epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    old = orders.consume(2, 0, rack=None)
    assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_consumers_are_sent_to_a_replica_in_their_rack(tmp_path: Path) -> None:
    """KIP-392, RackAwareReplicaSelector."""
    config = ReplicaManagerConfig(replica_selector_class=RACK_AWARE_SELECTOR)
    cluster = SimCluster(tmp_path, config=config, racks=["a", "b", "b"])
    cluster.create("orders", [1, 2, 3])
    cluster.run(50)
    cluster.produce(1, b"a")
    cluster.run(1_000)

    def preferred(offset: int, rack: str) -> int:
        result = cluster.consume(1, offset, rack=rack)
        if result.records is not None:
            result.records.close()
        return result.preferred_read_replica

    assert preferred(0, "b") in (2, 3)
    assert (preferred(0, "a"), preferred(0, "c"), preferred(0, "")) == (-1, -1, -1)
    cluster.cut(1, 3)
    cluster.produce(1, b"b", acks=1)
    cluster.run(100)
    assert preferred(0, "b") == 2, "the one that is further ahead"
    assert preferred(2, "b") == 2
    cluster.cut(1, 2)
    cluster.produce(1, b"c", acks=1)
    assert preferred(3, "b") == -1, "nobody there has that offset yet"
    cluster.close()


def test_without_a_selector_the_leader_serves_every_rack(tmp_path: Path) -> None:
    cluster = SimCluster(tmp_path, racks=["a", "b", "b"])
    cluster.create("orders", [1, 2, 3])
    cluster.run(50)
    assert cluster.consume(1, 0, rack="b").preferred_read_replica == -1
    cluster.close()


def test_a_leader_holds_throttled_replicas_that_are_behind_to_their_rate(tmp_path: Path) -> None:
    """KIP-73: the copy of a moved replica takes its time, replicas in sync do not wait."""
    cluster = SimCluster(tmp_path, config=ReplicaManagerConfig(replica_fetch_max_bytes=1_000))
    cluster.create("orders", [1, 2], leader_replication_throttled_replicas="*")
    cluster.run(50)
    for node in cluster.nodes.values():
        node.replica_manager.set_throttled_rates(2_000, LONG_MAX)
    value = bytes(900)
    for _ in range(40):
        told = cluster.produce(1, value)
        cluster.run_until(lambda told=told: bool(told), 1_000)  # type: ignore[misc]
    cluster.controller.reassign({ORDERS_0: [1, 2, 3]})
    cluster.publish()
    took_ms = cluster.run_until(lambda: 3 in cluster.registration().isr, 120_000)
    size = cluster.nodes[1].log().size
    assert took_ms == pytest.approx(size / 2_000 * 1_000, rel=0.2)
    assert cluster.log_bytes(3) == cluster.log_bytes(1)
    cluster.close()


def test_throttled_replicas_take_no_room_from_those_in_sync(tmp_path: Path) -> None:
    """KIP-73: what is held back is not in the answer, and does not make it full or due."""
    config = ReplicaManagerConfig(
        replica_fetch_max_bytes=1_000, replica_fetch_response_max_bytes=1_000
    )
    cluster = SimCluster(tmp_path, config=config)
    cluster.create("orders", [1, 2], leader_replication_throttled_replicas="*")
    cluster.create("live", [1, 3])
    cluster.run(50)
    leader = cluster.nodes[1].replica_manager
    leader.set_throttled_rates(1, LONG_MAX)
    for _ in range(20):
        cluster.produce(1, bytes(900), acks=1)
    cluster.controller.reassign({ORDERS_0: [1, 2, 3]})
    cluster.publish()
    cluster.run(3_000)  # the quota is used up
    assert 0 < leo(cluster, 3)[0] < 20
    told = cluster.produce(1, b"in sync", key=TopicPartition("live", 0))
    assert cluster.run_until(lambda: bool(told), 100)
    assert told[0].error_code == 0
    answers: list[object] = []
    behind = FetchPartition("orders", None, 0, 1, current_leader_epoch=-1)
    leader.fetch(3, 500, 1, 1_000, 0, [behind], answers.append, replica_epoch=cluster.epochs[3])
    assert answers == []
    cluster.produce(1, b"more of it", acks=1)
    assert answers == []
    cluster.close()


def test_a_follower_knows_open_transactions_too(orders: SimCluster) -> None:
    orders.produce(1, b"plain")
    orders.nodes[1].log_manager.producers.requires_verification = False  # nobody to ask here
    orders.produce(
        1, b"open", producer_id=3, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    orders.run(1_000)
    assert hw(orders, 2) == [2]
    result = orders.consume(2, 0, isolation=1)
    assert result.last_stable_offset == 1
    assert result.records is not None
    result.records.close()


def test_a_partition_is_in_the_request_only_when_something_about_it_changed(
    cluster: SimCluster,
) -> None:
    """KIP-227, as its client."""
    cluster.create("orders", *[[1, 2]] * 20)
    cluster.run(600)
    fetchers = cluster.nodes[2].replica_manager.cluster()
    assert fetchers is not None
    (fetcher,) = fetchers.fetchers.fetchers
    asked: list[int] = []
    build = fetcher._session.build

    def counted() -> object:
        request = build()
        asked.append(sum(len(topic.partitions) for topic in request.topics))
        return request

    fetcher._session.build = counted  # type: ignore[method-assign,assignment]
    cluster.produce(1, b"a")
    cluster.run(600)
    assert asked[:1] == [1]
    assert set(asked[1:]) <= {0}


def test_a_leader_on_another_address_is_found_again(orders: SimCluster) -> None:
    orders.kill(2)
    orders.run(50)
    orders.restart(2)
    orders.run_until(lambda: set(orders.registration().isr) == {1, 2, 3}, 20_000)
    orders.fence(1)
    orders.run(10)
    orders.unfence(1)
    told = orders.produce(orders.registration().leader, b"a")
    orders.run_until(lambda: bool(told), 5_000)
    assert told[0].error_code == 0


def test_listeners_hear_of_a_moved_high_watermark(orders: SimCluster) -> None:
    heard: list[int] = []
    manager = orders.nodes[1].replica_manager

    def listen() -> None:
        heard.append(orders.nodes[1].partition().high_watermark)

    manager.add_high_watermark_listener(ORDERS_0, listen)
    orders.produce(1, b"a")
    assert heard == []
    orders.run(20)
    assert heard[-1] == 1
    manager.remove_high_watermark_listener(ORDERS_0, listen)
    count = len(heard)
    orders.produce(1, b"b")
    orders.run(20)
    assert len(heard) == count


def test_an_append_for_another_leader_epoch_is_refused(orders: SimCluster) -> None:
    epoch = orders.registration().leader_epoch
    told: list[object] = []
    for wrong in (epoch - 1, epoch + 1):
        orders.nodes[1].replica_manager.append_records(
            AppendRequest(-1, 100, [(ORDERS_0, records(b"a"))], told.extend, leader_epoch=wrong)
        )
    assert [r.error_code for r in told] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2  # type: ignore[attr-defined]
    assert leo(orders, 1) == [0]


def test_who_was_cut_off_leaves_the_isr_and_comes_back_with_everything(
    orders: SimCluster,
) -> None:
    orders.produce(1, b"a")
    orders.run(50)
    orders.cut(1, 3)
    orders.produce(1, b"b", acks=1)
    orders.run_until(lambda: orders.registration().isr == (1, 2))
    orders.heal()
    orders.run_until(lambda: 3 in orders.registration().isr, 10_000)
    orders.run(50)
    assert orders.nodes[3].log().size == orders.nodes[1].log().size
    assert orders.nodes[3].log().high_watermark == orders.nodes[1].log().log_end_offset == 2


def test_what_a_fetch_looks_at_does_not_grow_with_the_partitions_in_which_nothing_happens(
    orders: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.create("idle", *[[1, 2, 3]] * 50)
    orders.run(2_000)
    looks: list[str] = []
    look = Partition.quiet_answer

    def counted(self: Partition, *arguments: Any) -> Any:
        looks.append(self.topic_partition[0])
        return look(self, *arguments)

    monkeypatch.setattr(Partition, "quiet_answer", counted)
    for number in range(100):
        told = orders.produce(1, b"%d" % number)
        orders.run_until(lambda told=told: bool(told))
    assert looks.count("orders") < 1_000
    assert looks.count("idle") <= 2 * 50, "everything is looked at, but seldom"
    orders.run(2_000)
    assert hw(orders, 1, 2, 3) == [100, 100, 100]


@pytest.mark.parametrize(("as_replica", "min_bytes"), [(None, 1), (2, 1), (2, 1000)])
@pytest.mark.parametrize("deleted_first", [True, False])
def test_a_deleted_topic_among_quiet_ones_makes_nobody_spin(
    cluster: SimCluster, as_replica: int | None, min_bytes: int, deleted_first: bool
) -> None:
    """In a session the error is told in each answer, but no answer comes for it alone."""
    for name in ("orders", "doomed"):
        cluster.create(name, [1, 2])
    cluster.run(100)
    cluster.kill(2)  # whoever asks as it is the test
    cluster.run(100)
    asker = Asker(cluster, as_replica, min_bytes)
    ids = {name: topic.topic_id for name, topic in cluster.controller.image.topics_by_name.items()}
    if deleted_first:
        cluster.delete("doomed")
    asker.ask(ids.values())
    cluster.run(1_000)
    if not deleted_first:
        before = len(asker.answers)
        cluster.delete("doomed")
        assert cluster.run_until(lambda: len(asker.answers) > before) < 20, "told when it happens"
    before = len(asker.answers)
    cluster.run(10_000)
    answers = asker.answers[before:]
    assert 15 <= len(answers) <= 25
    known = ErrorCode.UNKNOWN_TOPIC_ID if deleted_first else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {codes[ids["doomed"]] for codes in answers} == {known}
    told = cluster.produce(1, b"a" * 2000, acks=1)
    assert told[0].error_code == 0
    before = len(asker.answers)
    assert cluster.run_until(lambda: len(asker.answers) > before) < 20


class Asker:
    """Fetches from broker 1 in a session, again as soon as it is answered, without moving on."""

    def __init__(self, cluster: SimCluster, as_replica: int | None, min_bytes: int) -> None:
        self.cluster = cluster
        self.min_bytes = min_bytes
        self.replica_state: Any = None
        if as_replica is not None:
            self.replica_state = FetchRequest.ReplicaState(
                replica_id=as_replica, replica_epoch=cluster.epochs[as_replica]
            )
        self.session_id, self.epoch = 0, 0
        self.answers: list[dict[bytes, int]] = []
        """Topic id -> error code."""

    def ask(self, topic_ids: Iterable[bytes] = ()) -> None:
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=self.min_bytes,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[
                FetchRequest.Topic(
                    topic_id=topic_id,
                    partitions=[
                        FetchRequest.Topic.Partition(
                            partition=0, fetch_offset=0, partition_max_bytes=1 << 20
                        )
                    ],
                )
                for topic_id in topic_ids
            ],
        )
        request.replica_state = self.replica_state or FetchRequest.ReplicaState()
        data = encoded(request, 17)
        self.cluster.nodes[1].serve(FetchRequest, data, 17, self._answered)

    def _answered(self, data: bytes) -> None:
        answer = FetchResponse.decode(data, 17)
        assert answer.error_code == 0
        self.session_id = answer.session_id
        self.epoch += 1
        self.answers.append(
            {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses}
        )
        self.cluster.events.add(2, self.ask)


def test_small_answers_leave_no_partition_behind(tmp_path: Path) -> None:
    """KIP-74: each answer has room for one batch; the others are not forgotten."""
    cluster = SimCluster(tmp_path, config=ReplicaManagerConfig(replica_fetch_response_max_bytes=10))
    cluster.create("orders", *[[1, 2]] * 5)
    cluster.run(2_000)
    told = [
        cluster.produce(1, b"%d" % number, key=TopicPartition("orders", number % 5))
        for number in range(50)
    ]
    assert cluster.run_until(lambda: all(told)) < 400
    cluster.close()
