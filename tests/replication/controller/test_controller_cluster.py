"""Brokers come and go; partitions keep a leader when one may lead."""

from __future__ import annotations

import pytest

from replication.controller import cluster
from replication.metadata.image import RECOVERED, RECOVERING
from tests.replication.controller_support import Cluster
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import BeginTransactionRecord
from wire.messages.quorum import BrokerRegistrationRequest

UNCLEAN = {"unclean_leader_election_enable": "true"}


@pytest.fixture
def one() -> Cluster:
    made = Cluster()
    made.start_broker()
    made.create("orders")
    return made


def three(min_isr: int = 1, **config: object) -> Cluster:
    made = Cluster(min_insync_replicas=min_isr, **config)
    for broker_id in (1, 2, 3):
        made.start_broker(broker_id, broker_id)
    made.create("orders", 1, 3)
    return made


def no_elr(**config: object) -> Cluster:
    made = Cluster(features={"metadata.version": 30}, **config)
    for broker_id in (1, 2):
        made.start_broker(broker_id, broker_id)
    return made


# --- bootstrap ----------------------------------------------------------------------------------


def test_an_empty_log_gets_the_levels_of_kafka_4_3_in_one_transaction() -> None:
    made = Cluster()
    kinds = [type(made.serde.decode(value)).__name__ for value in made.log]
    assert kinds == [
        "BeginTransactionRecord", *["FeatureLevelRecord"] * 6, "ConfigRecord",
        "EndTransactionRecord",
    ]  # fmt: skip
    assert made.image.features == {
        "metadata.version": 30, "eligible.leader.replicas.version": 1, "group.version": 1,
        "transaction.version": 2, "share.version": 1, "streams.version": 1,
    }  # fmt: skip
    assert made.image.config(4, "") == {"min.insync.replicas": "1"}


# --- registration -------------------------------------------------------------------------------


def test_a_registration_starts_fenced_and_its_epoch_is_an_offset_of_the_log() -> None:
    made = Cluster()
    expected = made.next_offset
    assert made.register() == expected
    broker = made.image.brokers[1]
    assert broker.fenced
    assert broker.endpoints["PLAINTEXT"].port == 9092


def test_the_same_incarnation_keeps_its_epoch() -> None:
    made = Cluster()
    epoch = made.register(1, 1)
    made.heartbeat()
    assert made.register(1, 1) == epoch
    assert not made.image.brokers[1].fenced


def test_two_live_brokers_may_not_share_an_id() -> None:
    made = three()
    with pytest.raises(KafkaError) as refused:
        made.register(2, incarnation=99)
    assert refused.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    made.now_ms += 9_000
    assert made.register(2, incarnation=99) > 0


def test_the_controllers_own_broker_comes_back_without_waiting_for_its_session() -> None:
    made = three()
    made.start_broker(1, incarnation=99)
    assert made.image.is_active(1)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [bytes(16)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [b"\x09" * 16] * 2}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [bytes([200, 1]) * 8]}, ErrorCode.INVALID_REGISTRATION),
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ],
    ids=["cluster", "no dirs", "reserved dir", "dir twice", "other's dir", "features", "zk"],
)
def test_registrations_that_cannot_be(changes: dict[str, object], code: ErrorCode) -> None:
    made = Cluster()
    made.start_broker(1)
    with pytest.raises(KafkaError) as refused:
        made.register(2, **changes)
    assert refused.value.code == code
    assert 2 not in made.image.brokers


def test_the_first_records_are_no_transaction_where_nobody_could_read_one() -> None:
    for level in (13, 14):
        made = Cluster(features={"metadata.version": level})
        kinds = {type(made.serde.decode(value)) for value in made.log}
        assert (BeginTransactionRecord in kinds) == (level >= 14)
        assert made.image.features == {"metadata.version": level}


def test_a_broker_that_lacks_a_finalised_feature_is_told_which() -> None:
    made = Cluster()
    feature = BrokerRegistrationRequest.Feature(
        name="metadata.version", min_supported_version=7, max_supported_version=27
    )
    with pytest.raises(KafkaError, match=r"version 30 of metadata\.version"):
        made.register(features=[feature])


@pytest.mark.parametrize("name", ["group.version", "a.later.version"])
def test_a_broker_that_cannot_do_without_a_feature_that_is_off_is_told_which(name: str) -> None:
    made = Cluster(features={"metadata.version": 30})
    made.register(1)
    levels = {"metadata.version": (7, 30), name: (1, 2)}
    features = [
        BrokerRegistrationRequest.Feature(
            name=feature, min_supported_version=low, max_supported_version=high
        )
        for feature, (low, high) in levels.items()
    ]
    with pytest.raises(KafkaError, match=f"version 0 of {name}") as refused:
        made.register(2, features=features)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


# --- heartbeats ---------------------------------------------------------------------------------


def test_another_machine_with_the_id_of_the_controllers_own_broker_is_a_duplicate() -> None:
    made = three()
    made.now_ms += 100_000
    with pytest.raises(KafkaError) as refused:
        made.register(1, incarnation=99, in_process=False, log_dirs=[b"\x44" * 16])
    assert refused.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    made.register(1, incarnation=98)
    assert made.image.brokers[1].incarnation_id == bytes([98]) * 16


def test_a_broker_is_unfenced_only_when_it_has_read_its_registration() -> None:
    made = Cluster()
    epoch = made.register()
    behind = made.heartbeat(current_metadata_offset=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    ready = made.heartbeat(current_metadata_offset=epoch)
    assert (ready.is_caught_up, ready.is_fenced) == (True, False)
    assert made.image.is_active(1)


def test_a_heartbeat_that_changes_nothing_writes_nothing(one: Cluster) -> None:
    count = len(one.log)
    for _ in range(5):
        one.heartbeat()
    assert len(one.log) == count


def test_a_heartbeat_of_an_older_incarnation_is_stale(one: Cluster) -> None:
    with pytest.raises(KafkaError) as refused:
        one.heartbeat(broker_epoch=1)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_may_ask_to_be_fenced(one: Cluster) -> None:
    assert one.heartbeat(want_fence=True).is_fenced
    assert one.partition("orders").leader == -1
    assert not one.heartbeat().is_fenced
    assert one.partition("orders").leader == 1


def test_silent_brokers_are_fenced_one_at_a_time_longest_silent_first() -> None:
    made = three()
    made.now_ms = 5_000
    made.heartbeat(2)
    made.now_ms = 9_000
    fence = cluster.fence_stale_broker
    records = fence(made.image, made.sessions, made.config, made.now_ms)
    assert records[-1].broker_id == 3
    made.apply(records)
    assert fence(made.image, made.sessions, made.config, made.now_ms) == []
    made.now_ms = 14_000
    records = fence(made.image, made.sessions, made.config, made.now_ms)
    assert records[-1].broker_id == 2
    made.apply(records)
    made.now_ms = 1_000_000
    assert fence(made.image, made.sessions, made.config, made.now_ms) == [], "its own broker lives"


def test_a_new_controller_gives_everybody_a_fresh_session() -> None:
    made = three()
    made.now_ms = 100_000
    made.sessions.restart(made.image, made.now_ms)
    assert made.sessions.stale_broker(made.image, made.now_ms + 8_999) is None
    assert made.sessions.stale_broker(made.image, made.now_ms + 9_000) in (2, 3)


def test_a_broker_that_stopped_cleanly_may_come_back_at_once_to_a_new_controller() -> None:
    made = three()
    made.heartbeat(2, want_fence=True)
    made.sessions.restart(made.image, made.now_ms)
    assert not made.sessions.is_valid(2, made.now_ms, in_process=False)
    assert made.sessions.is_valid(3, made.now_ms, in_process=False)


def test_fencing_moves_leaderships_to_a_replica_in_sync() -> None:
    made = three()
    epoch = made.partition("orders").leader_epoch
    made.heartbeat(1, want_fence=True)
    moved = made.partition("orders")
    assert (moved.leader, moved.isr, moved.leader_epoch) == (2, (2, 3), epoch + 1)


# --- shutdown and restart -----------------------------------------------------------------------


def test_a_controlled_shutdown_moves_leaders_first_and_fences_last() -> None:
    made = three()
    first = made.heartbeat(1, want_shut_down=True)
    assert not first.should_shut_down
    assert made.partition("orders").leader == 2
    assert made.image.brokers[1].in_controlled_shutdown
    # Broker 2 has not read yet that it leads; broker 1 must wait for it.
    waiting = made.heartbeat(1, want_shut_down=True)
    assert not waiting.should_shut_down
    made.heartbeat(2)
    made.heartbeat(3)
    assert made.heartbeat(1, want_shut_down=True).should_shut_down
    assert made.image.brokers[1].fenced


def test_a_broker_on_its_way_out_is_not_let_in_again_but_its_next_incarnation_is() -> None:
    made = three()
    made.heartbeat(1, want_shut_down=True)
    made.heartbeat(1, want_fence=True)
    assert made.heartbeat(1).is_fenced
    assert made.partition("orders").leader == 2
    made.start_broker(1, incarnation=11)
    assert made.image.is_active(1)


def test_a_directory_that_fails_while_the_broker_is_unfenced_elects_nobody_in_it() -> None:
    made = Cluster(features={"metadata.version": 30})
    good, bad = b"\x71" * 16, b"\x72" * 16
    made.register(1, log_dirs=[good, bad])
    made.heartbeat(1)
    made.create("orders")
    topic_id = made.image.topics_by_name["orders"].topic_id
    made.assign_directories(1, {bad: [(topic_id, 0)]})
    made.heartbeat(1, want_fence=True)
    made.update_features(("eligible.leader.replicas.version", 1, 1))
    made.heartbeat(1, offline_log_dirs=[bad])
    after = made.partition("orders")
    assert (after.leader, after.isr, after.elr) == (-1, (), (1,))


def test_a_single_node_stops_and_comes_back_writable(one: Cluster) -> None:
    one.stop_broker()
    stopped = one.partition("orders")
    assert (stopped.leader, stopped.isr, stopped.elr) == (-1, (), (1,))
    one.start_broker(1, incarnation=2, clean=True)
    back = one.partition("orders")
    assert (back.leader, back.isr, back.elr, back.last_known_elr) == (1, (1,), (), ())
    assert back.leader_recovery_state == RECOVERED
    assert back.leader_epoch == 2, "one for losing the leader, one for getting it back"


def test_a_single_node_that_crashed_comes_back_writable(one: Cluster) -> None:
    for round_ in range(1, 4):
        one.start_broker(1, incarnation=10 + round_)
        back = one.partition("orders")
        assert (back.leader, back.isr) == (1, (1,))
        assert back.leader_recovery_state == RECOVERING
        assert back.leader_epoch == 2 * round_


def test_a_single_node_that_crashed_between_registration_and_unfencing_comes_back(
    one: Cluster,
) -> None:
    for incarnation in range(20, 25):
        one.register(1, incarnation)
        assert one.partition("orders").leader == -1
    one.heartbeat()
    assert one.partition("orders").leader == 1


def test_a_single_node_without_elr_comes_back_too() -> None:
    made = Cluster(features={"metadata.version": 30})
    made.start_broker()
    made.create("orders")
    made.start_broker(1, incarnation=2)
    made.stop_broker()
    made.start_broker(1, incarnation=3, clean=True)
    back = made.partition("orders")
    assert (back.leader, back.isr, back.leader_epoch) == (1, (1,), 4)


def test_a_leaderless_isr_of_one_is_remembered_when_elr_is_enabled_later() -> None:
    """A directory Apache Kafka wrote before ELR: fenced without leaving its ISR of one."""
    made = no_elr()
    made.create("orders")
    made.heartbeat(1, want_fence=True)
    assert (made.partition("orders").leader, made.partition("orders").isr) == (-1, (1,))
    from wire.messages.metadata_records import FeatureLevelRecord

    made.apply([FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)])
    made.start_broker(1, incarnation=9)
    assert made.partition("orders").leader == 1


# --- ELR (KIP-966, E-12) and without it (E-13) --------------------------------------------------


def test_a_replica_that_leaves_below_min_isr_waits_in_the_elr() -> None:
    made = three(min_isr=2)
    made.heartbeat(3, want_fence=True)
    assert made.partition("orders").elr == ()
    made.heartbeat(2, want_fence=True)
    assert (made.partition("orders").isr, made.partition("orders").elr) == ((1,), (2,))
    made.heartbeat(1, want_fence=True)
    gone = made.partition("orders")
    assert (gone.leader, gone.isr, gone.elr, gone.last_known_elr) == (-1, (), (2, 1), (1,))
    made.heartbeat(3)
    assert made.partition("orders").leader == -1, "3 may miss committed records"
    made.heartbeat(2)
    back = made.partition("orders")
    assert (back.leader, back.isr, back.elr) == (2, (2,), (1,))
    assert back.leader_recovery_state == RECOVERED


def test_an_unclean_shutdown_takes_a_broker_out_of_the_elr() -> None:
    made = three(min_isr=3)
    made.heartbeat(3, want_fence=True)
    made.heartbeat(2, want_fence=True)
    made.heartbeat(1, want_fence=True)
    assert set(made.partition("orders").elr) == {1, 2, 3}
    made.now_ms += 10_000
    made.register(2, incarnation=22)
    assert 2 not in made.partition("orders").elr
    made.heartbeat(2)
    assert made.partition("orders").leader == -1


def test_a_clean_shutdown_keeps_a_broker_in_the_elr() -> None:
    made = three(min_isr=3)
    for broker_id in (3, 2, 1):
        made.heartbeat(broker_id, want_fence=True)
    made.now_ms += 10_000
    made.start_broker(2, incarnation=22, clean=True)
    assert made.partition("orders").leader == 2


def test_without_elr_the_last_isr_member_is_never_removed() -> None:
    made = no_elr()
    made.create("orders", 1, 2)
    made.heartbeat(2, want_fence=True)
    made.heartbeat(1, want_fence=True)
    assert (made.partition("orders").leader, made.partition("orders").isr) == (-1, (1,))
    made.heartbeat(2)
    assert made.partition("orders").leader == -1
    made.heartbeat(1)
    assert made.partition("orders").leader == 1


def test_an_unclean_election_happens_only_where_it_is_enabled() -> None:
    made = no_elr()
    made.create("safe", 1, 2)
    made.create("risky", 1, 2, **UNCLEAN)
    made.heartbeat(2, want_fence=True)
    made.heartbeat(1, want_fence=True)
    made.heartbeat(2)
    assert made.partition("safe").leader == -1
    risky = made.partition("risky")
    assert (risky.leader, risky.isr, risky.leader_recovery_state) == (2, (2,), RECOVERING)


def test_who_is_eligible_when_elr_is_turned_off_still_leads_when_it_comes_back() -> None:
    """Nobody else has what was committed; Apache Kafka forgets who it is at the next change."""
    made = three(min_isr=2)
    for broker_id in (3, 2, 1):
        made.heartbeat(broker_id, want_fence=True)
    assert (made.partition("orders").isr, made.partition("orders").elr) == ((), (2, 1))
    made.update_features(("eligible.leader.replicas.version", 0, 2))
    made.heartbeat(3)
    assert (made.partition("orders").leader, made.partition("orders").elr) == (-1, (2, 1))
    made.heartbeat(1)
    back = made.partition("orders")
    assert (back.leader, back.isr, back.elr, back.last_known_elr) == (1, (1,), (), ())
    assert back.leader_recovery_state == RECOVERED


def test_the_last_leader_leads_again_when_elr_is_turned_off_meanwhile() -> None:
    made = Cluster()
    made.start_broker()
    made.create("orders")
    made.register(1, incarnation=2)
    crashed = made.partition("orders")
    assert (crashed.isr, crashed.elr, crashed.last_known_elr) == ((), (), (1,))
    made.update_features(("eligible.leader.replicas.version", 0, 2))
    made.heartbeat()
    back = made.partition("orders")
    assert (back.leader, back.isr, back.last_known_elr) == (1, (1,), ())


# --- directories, unregistering -----------------------------------------------------------------


def test_a_failed_directory_moves_the_leaders_that_stood_there() -> None:
    made = Cluster()
    good, bad = b"\x71" * 16, b"\x72" * 16
    made.register(1, log_dirs=[good, bad])
    made.heartbeat(1)
    made.start_broker(2)
    made.create("orders", 1, 2)
    from wire.messages.metadata_records import PartitionChangeRecord

    orders = made.image.topics_by_name["orders"]
    other = made.image.brokers[2].directories[0]
    made.apply(
        [PartitionChangeRecord(partition_id=0, topic_id=orders.topic_id, directories=[bad, other])]
    )
    assert made.partition("orders").leader == 1
    made.heartbeat(1, offline_log_dirs=[bad])
    assert made.partition("orders").leader == 2
    assert made.image.brokers[1].directories == (good,)


def test_cordoned_directories_are_written_once() -> None:
    made = Cluster()
    made.start_broker()
    count = len(made.log)
    made.heartbeat(cordoned_log_dirs=[])
    made.heartbeat(cordoned_log_dirs=[])
    assert len(made.log) == count + 1
    assert made.image.brokers[1].cordoned_directories == ()


def test_an_unregistered_broker_is_gone_from_every_isr() -> None:
    made = three()
    made.apply(cluster.unregister_broker(made.image, made.config, 3))
    assert 3 not in made.image.brokers
    assert made.partition("orders").isr == (1, 2)
    with pytest.raises(KafkaError) as refused:
        cluster.unregister_broker(made.image, made.config, 3)
    assert refused.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_broker_that_was_unregistered_comes_back_as_one_that_may_have_lost_everything() -> None:
    made = three(min_isr=3)
    for broker_id in (3, 2, 1):
        made.heartbeat(broker_id, want_fence=True)
    assert set(made.partition("orders").elr) == {1, 2, 3}
    made.apply(cluster.unregister_broker(made.image, made.config, 2))
    made.sessions.remove(2)
    made.start_broker(2, incarnation=22)  # with an empty disk, say
    assert made.partition("orders").leader == -1
    assert 2 not in made.partition("orders").elr
    made.heartbeat(3)
    assert made.partition("orders").leader == 3


# --- ElectLeaders -------------------------------------------------------------------------------


def elected(response: object) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, entry.partition_id): entry.error_code
        for topic in response.replica_election_results  # type: ignore[attr-defined]
        for entry in topic.partition_result
    }


PREFERRED, UNCLEAN_ELECTION = 0, 1


def test_one_node_needs_no_election(one: Cluster) -> None:
    assert elected(one.elect(PREFERRED, {"orders": [0, 7], "absent": [0]})) == {
        ("orders", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert elected(one.elect(UNCLEAN_ELECTION, {"orders": [0]})) == {
        ("orders", 0): ErrorCode.ELECTION_NOT_NEEDED
    }
    assert elected(one.elect(PREFERRED, None)) == {}


def test_the_preferred_leader_gets_its_partition_back() -> None:
    made = three()
    made.heartbeat(1, want_fence=True)
    made.heartbeat(1)
    assert made.partition("orders").leader == 2
    assert elected(made.elect(PREFERRED, None)) == {
        ("orders", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    from wire.messages.metadata_records import PartitionChangeRecord

    topic_id = made.image.topics_by_name["orders"].topic_id
    made.apply([PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[1, 2, 3])])
    assert elected(made.elect(PREFERRED, None)) == {("orders", 0): 0}
    assert made.partition("orders").leader == 1


def test_an_unclean_election_by_hand_brings_any_living_replica() -> None:
    made = no_elr()
    made.create("orders", 1, 2)
    made.heartbeat(2, want_fence=True)
    made.heartbeat(1, want_fence=True)
    assert elected(made.elect(UNCLEAN_ELECTION, {"orders": [0]})) == {
        ("orders", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    }
    made.heartbeat(2)
    assert elected(made.elect(UNCLEAN_ELECTION, {"orders": [0]})) == {("orders", 0): 0}
    assert made.partition("orders").leader == 2


def test_an_unknown_election_type_is_an_invalid_request(one: Cluster) -> None:
    with pytest.raises(KafkaError) as refused:
        one.elect(7, None)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
