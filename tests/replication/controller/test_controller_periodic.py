"""What the controller does because time passes: pure, with a clock moved by hand."""

from __future__ import annotations

from typing import Any

from replication.controller import cluster as decisions
from replication.controller.context import RECORDS_PER_BATCH_MAX, TRANSACTIONS_SINCE, last_offset
from replication.controller.elections import ELECTIONS_PER_PASS_MAX
from replication.controller.periodic import PeriodicTasks
from replication.controller.requests import ActiveState
from replication.controller.sessions import BrokerSessions
from replication.metadata.image import RECOVERING
from tests.replication.controller_support import Cluster, new_topic
from wire.messages.admin import IncrementalAlterConfigsRequest
from wire.messages.metadata_records import NoOpRecord, PartitionChangeRecord
from wire.messages.quorum import BrokerHeartbeatRequest

UNCLEAN = "unclean.leader.election.enable"
NO_ELR = {"metadata.version": 30}


class Timed(Cluster):
    """A controller's decisions with its periodic tasks."""

    def __init__(self, brokers: int = 3, **config: Any) -> None:
        super().__init__(**config)
        for broker_id in range(1, brokers + 1):
            self.start_broker(broker_id)
        self.state = ActiveState(self.config, self.schema, self.new_id, self.sessions, self.image)
        self.tasks = PeriodicTasks(self.state)
        self.tasks.restart(self.now_ms)
        self.settle()

    def apply(self, records: Any) -> list[Any]:
        written = super().apply(records)
        if hasattr(self, "tasks"):
            self.state.image = self.image
            self.tasks.appended(written, self.now_ms)
        return written

    def settle(self) -> list[str]:
        """Do all that is due now; the names of what wrote something."""
        done = []
        for _ in range(20):
            work = self.tasks.run(self.now_ms)
            if work is None:
                return done
            if work.records:
                self.apply(work.records)
                done.append(work.name.partition(" broker_id=")[0])
        raise AssertionError(f"work without end: {done}")

    def advance(self, ms: int, *alive: int) -> list[str]:
        """Let time pass in steps of 500 ms, `alive` brokers sending heartbeats."""
        done = []
        for _ in range(ms // 500):
            self.now_ms += 500
            for broker_id in alive:
                self.heartbeat(broker_id)
            done += [name for name in self.settle() if name != "no-op"]
        return done

    def set_config(self, kind: int, name: str, key: str, value: str) -> None:
        resource = IncrementalAlterConfigsRequest.Resource
        entry = resource.Config(name=key, config_operation=0, value=value)
        answer = self.incremental_alter(
            resource(resource_type=kind, resource_name=name, configs=[entry])
        )
        assert answer.responses[0].error_code == 0, answer


def test_a_node_alone_does_nothing_by_the_clock() -> None:
    alone = Timed(brokers=1)
    count = len(alone.log)
    assert alone.tasks.next_due_ms() is None
    alone.now_ms += 10_000_000
    assert alone.settle() == []
    assert len(alone.log) == count


def test_an_idle_log_gets_a_no_op_and_only_an_idle_one() -> None:
    made = Timed()
    due = made.tasks.next_due_ms()
    assert due == made.now_ms + 500
    made.now_ms += 499
    assert made.settle() == []
    made.now_ms += 1
    work = made.tasks.run(made.now_ms)
    assert work is not None
    assert [type(record) for record in work.records] == [NoOpRecord]
    made.create("orders")
    assert made.tasks.run(made.now_ms) is None, "it is idle no longer"


def test_the_idle_interval_may_be_switched_off() -> None:
    made = Timed(metadata_max_idle_interval_ms=0)
    assert made.tasks.next_due_ms() == made.now_ms + 1_125, "a look at the clock"
    made.now_ms += 8_999
    assert made.settle() == []
    assert made.tasks.next_due_ms() == made.now_ms + 1, "the first session"


def test_silent_brokers_are_fenced_one_by_one() -> None:
    made = Timed()
    made.create("orders", 3, 3)
    assert made.advance(8_500, 1) == []
    assert made.advance(500, 1) == ["fenced a silent broker"] * 2
    assert [b.fenced for _, b in sorted(made.image.brokers.items())] == [False, True, True]
    for index in range(3):
        assert made.partition("orders", index).isr == (1,)
        assert made.partition("orders", index).leader == 1
    assert made.advance(20_000, 1) == [], "the controller's own broker lives as long as it does"


def test_what_the_controllers_own_broker_was_before_a_crash_does_not_go_on_leading() -> None:
    made = Timed()
    made.create("orders", 1, 3)
    assert made.partition("orders").leader == 1
    again = BrokerSessions(made.config.broker_session_timeout_ms, 1, bytes([2]) * 16)
    made.sessions = made.state.sessions = again
    again.restart(made.image, made.now_ms)
    assert made.tasks.next_due_ms() == made.now_ms, "its logs may take minutes to recover"
    assert made.settle() == ["fenced a silent broker"]
    assert (made.partition("orders").leader, made.partition("orders").isr) == (2, (2, 3))
    made.start_broker(1, incarnation=2)
    assert made.advance(20_000, 2, 3) == [], "now it lives as long as the controller does"


def test_heartbeats_that_wait_to_be_served_count_when_they_arrived() -> None:
    made = Timed()
    made.now_ms = 9_500
    for broker_id in (2, 3):
        made.sessions.heard(made.image, _heartbeat(made, broker_id), 8_000)
    unknown = _heartbeat(made, 2)
    unknown.broker_id = 9
    made.sessions.heard(made.image, unknown, 9_000)
    assert made.sessions.next_expiry_ms(made.image) == 17_000
    assert made.settle() == ["no-op"]
    another = _heartbeat(made, 2)
    another.broker_epoch -= 1
    made.sessions.heard(made.image, another, 16_000)
    made.now_ms = 17_000
    assert "fenced a silent broker" in made.settle(), "another incarnation's heartbeat is not its"


def _heartbeat(made: Timed, broker_id: int) -> BrokerHeartbeatRequest:
    epoch = made.image.brokers[broker_id].broker_epoch
    return BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=made.image.offset,
        want_fence=False, want_shut_down=False,
    )  # fmt: skip


def test_time_the_controller_stood_still_counts_for_nobody() -> None:
    made = Timed()
    made.now_ms += 20_000
    made.sessions.excuse(20_000)
    assert "fenced a silent broker" not in made.settle()
    made.now_ms += 9_000
    assert "fenced a silent broker" in made.settle()


def test_partitions_go_back_to_their_preferred_leaders() -> None:
    made = Timed()
    made.create("orders", 6, 3)
    made.heartbeat(1, want_fence=True)
    made.heartbeat(1)
    for index in range(6):
        leader = made.partition("orders", index).leader
        made.alter_partition("orders", [leader, 5 - leader, 1], index=index)
    moved = [i for i in range(6) if not made.partition("orders", i).has_preferred_leader()]
    assert moved
    assert made.advance(299_000, 1, 2, 3) == []
    assert made.advance(1_500, 1, 2, 3) == ["elected preferred leaders"]
    assert all(made.partition("orders", index).has_preferred_leader() for index in range(6))
    assert made.advance(301_000, 1, 2, 3) == [], "nothing to do, nothing written"


def test_preferred_leaders_are_elected_only_if_they_are_in_sync_and_it_is_wanted() -> None:
    made = Timed(auto_leader_rebalance_enable=False)
    made.create("orders", 1, 3)
    made.heartbeat(1, want_fence=True)
    made.heartbeat(1)
    assert made.balance() == 0, "broker 1 is not in sync"
    made.alter_partition("orders", [2, 3, 1])
    assert made.advance(400_000, 1, 2, 3) == []
    assert made.balance() == 1
    assert made.partition("orders").leader == 1


def test_a_partition_without_a_leader_gets_one_when_leaders_are_balanced() -> None:
    """Apache Kafka's controller wrote where the replica is, and left the election to this."""
    made = Timed()
    made.create_topics(new_topic("orders", assignments={0: [2]}))
    made.heartbeat(2, want_fence=True)
    made.now_ms += made.config.broker_session_timeout_ms
    made.start_broker(2, incarnation=2, log_dirs=[b"\x71" * 16])
    assert made.balance() == 0, "its replica is in a directory that is gone"
    topic_id = made.image.topics_by_name["orders"].topic_id
    found = PartitionChangeRecord(topic_id=topic_id, partition_id=0, directories=[b"\x71" * 16])
    made.apply([found])
    assert made.balance() == 1
    assert made.partition("orders").leader == 2


def test_very_many_elections_are_several_passes() -> None:
    made = Timed()
    made.create("orders", ELECTIONS_PER_PASS_MAX + 5, 2)
    preferred = [made.partition("orders", i).replicas[0] for i in range(ELECTIONS_PER_PASS_MAX)]
    assert set(preferred) == {1, 2, 3}
    for broker_id in (2, 3):
        made.heartbeat(broker_id, want_fence=True)
        made.heartbeat(broker_id)
    for index in range(ELECTIONS_PER_PASS_MAX + 5):
        now = made.partition("orders", index)
        if now.leader != -1 and set(now.isr) != set(now.replicas):
            made.alter_partition("orders", now.replicas, index=index)
    expected = sum(
        not p.has_preferred_leader() and p.replicas[0] in p.isr
        for p in made.image.topics_by_name["orders"].partitions.values()
    )
    total = 0
    while (count := made.balance()) > 0:
        assert count <= ELECTIONS_PER_PASS_MAX
        total += count
    assert total == expected > 0


# --- unclean elections (E-11) -------------------------------------------------------------------


def leaderless(**config: Any) -> Timed:
    """`orders`-0 has only its last in-sync replica, 1, and that one is gone; 2 is back."""
    made = Timed(features=NO_ELR, **config)
    made.create("orders", 1, 2)
    made.heartbeat(2, want_fence=True)
    made.heartbeat(1, want_fence=True)
    made.heartbeat(2)
    made.settle()
    assert made.partition("orders").leader == -1
    return made


def test_an_unclean_election_follows_the_change_of_the_topics_config_at_once() -> None:
    made = leaderless()
    made.set_config(2, "orders", UNCLEAN, "true")
    assert made.settle() == ["elected unclean leaders"]
    now = made.partition("orders")
    assert (now.leader, now.isr, now.leader_recovery_state) == (2, (2,), RECOVERING)


def test_an_unclean_election_follows_the_change_of_the_clusters_config_at_once() -> None:
    made = leaderless()
    made.set_config(4, "", UNCLEAN, "true")
    assert made.tasks.next_due_ms() == 0
    assert made.settle() == ["elected unclean leaders"]
    assert made.partition("orders").leader == 2


def test_what_was_set_for_the_controllers_own_node_comes_before_what_was_set_for_all() -> None:
    made = leaderless()
    made.set_config(4, "2", UNCLEAN, "true")
    assert made.settle() == [], "another node's"
    made.set_config(4, "1", UNCLEAN, "false")
    made.set_config(4, "", UNCLEAN, "true")
    assert made.settle() == []
    made.set_config(4, "1", UNCLEAN, "true")
    assert made.settle() == ["elected unclean leaders"]
    assert made.partition("orders").leader == 2


def test_a_topic_may_refuse_what_the_cluster_allows() -> None:
    made = leaderless()
    made.set_config(2, "orders", UNCLEAN, "false")
    made.set_config(4, "", UNCLEAN, "true")
    assert made.settle() == []
    assert made.partition("orders").leader == -1


def test_a_new_controller_elects_unclean_leaders_the_old_one_left_out() -> None:
    made = leaderless()
    made.set_config(2, "orders", UNCLEAN, "true")
    made.tasks = PeriodicTasks(made.state)  # the old controller died before its turn
    made.tasks.restart(made.now_ms)
    assert made.settle() == ["elected unclean leaders"]


def test_an_unclean_election_empties_the_elr() -> None:
    made = Timed(min_insync_replicas=2, brokers=4)
    made.create("orders", 1, 3)
    for broker_id in (3, 2, 1):
        made.heartbeat(broker_id, want_fence=True)
    assert made.partition("orders").elr == (2, 1)
    made.heartbeat(3)
    made.set_config(2, "orders", UNCLEAN, "true")
    made.settle()
    now = made.partition("orders")
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (3, (3,), (), ())
    assert now.leader_recovery_state == RECOVERING


# --- the death of a broker with very many partitions --------------------------------------------


def test_more_records_than_a_batch_end_behind_the_marks_of_their_transaction() -> None:
    most, since = RECORDS_PER_BATCH_MAX, TRANSACTIONS_SINCE
    assert last_offset(since, 100, 1) == 100
    assert last_offset(since, 100, most) == 100 + most - 1
    assert last_offset(since, 100, most + 1) == 100 + most + 2
    assert last_offset(since - 1, 100, most + 1) == 100 + most


# --- shutdown across controllers and restarts ---------------------------------------------------


def test_a_broker_that_shut_down_may_come_back_at_once() -> None:
    made = Timed()
    made.create("orders", 3, 3)
    for _ in range(3):
        stopped = made.heartbeat(2, want_shut_down=True).should_shut_down
        made.heartbeat(1)
        made.heartbeat(3)
    assert stopped
    made.start_broker(2, incarnation=22, clean=True)
    assert made.image.is_active(2)


def test_a_shutdown_another_controller_began_waits_for_everybody_to_read_it() -> None:
    made = Timed()
    made.create("orders", 3, 3)
    assert not made.heartbeat(2, want_shut_down=True).should_shut_down
    made.sessions.restart(made.image, made.now_ms)
    assert not made.heartbeat(2, want_shut_down=True).should_shut_down, "nobody was heard of yet"
    made.heartbeat(1)
    assert not made.heartbeat(2, want_shut_down=True).should_shut_down
    made.heartbeat(3)
    assert made.heartbeat(2, want_shut_down=True).should_shut_down


def test_a_fenced_broker_of_a_full_cluster_is_no_reason_to_wake_up() -> None:
    made = Timed()
    for broker_id in (2, 3):
        made.heartbeat(broker_id, want_fence=True)
    assert decisions.fence_stale_broker(made.image, made.sessions, made.config, 10**9) == []
    assert made.sessions.next_expiry_ms(made.image) is None
