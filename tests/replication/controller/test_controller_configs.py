"""IncrementalAlterConfigs, AlterConfigs and AllocateProducerIds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replication.controller_support import Cluster
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import AlterConfigsRequest, IncrementalAlterConfigsRequest

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


@pytest.fixture
def one() -> Cluster:
    made = Cluster()
    made.start_broker()
    made.create("orders", retention_ms="1000")
    return made


def ops(
    kind: int, name: str, *entries: tuple[str, int, str | None]
) -> IncrementalAlterConfigsRequest.Resource:
    resource = IncrementalAlterConfigsRequest.Resource
    return resource(
        resource_type=kind,
        resource_name=name,
        configs=[
            resource.Config(name=key, config_operation=operation, value=value)
            for key, operation, value in entries
        ],
    )


def values(kind: int, name: str, **configs: str | None) -> AlterConfigsRequest.Resource:
    resource = AlterConfigsRequest.Resource
    return resource(
        resource_type=kind,
        resource_name=name,
        configs=[
            resource.Config(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def codes(response: Any) -> list[int]:
    return [entry.error_code for entry in response.responses]


def test_set_and_delete_change_single_keys(one: Cluster) -> None:
    response = one.incremental_alter(
        ops(TOPIC, "orders", ("cleanup.policy", SET, "compact"), ("retention.ms", DELETE, None))
    )
    assert codes(response) == [0]
    assert one.image.config(TOPIC, "orders") == {"cleanup.policy": "compact"}


def test_append_starts_from_the_default_and_adds_nothing_twice(one: Cluster) -> None:
    one.incremental_alter(ops(TOPIC, "orders", ("cleanup.policy", APPEND, "compact,delete")))
    assert one.image.config(TOPIC, "orders")["cleanup.policy"] == "delete,compact"
    one.incremental_alter(ops(TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete,absent")))
    assert one.image.config(TOPIC, "orders")["cleanup.policy"] == "compact"


def test_lists_are_trimmed_and_hold_nothing_twice(one: Cluster) -> None:
    def policy(operation: int, value: str) -> str:
        one.incremental_alter(ops(TOPIC, "orders", ("cleanup.policy", operation, value)))
        return one.image.config(TOPIC, "orders")["cleanup.policy"]

    assert policy(APPEND, " compact , compact,") == "delete,compact"
    assert policy(APPEND, "compact") == "delete,compact"
    assert policy(SUBTRACT, " delete") == "compact"
    assert policy(SET, "compact, delete,compact") == "compact, delete,compact", "as it was given"
    assert policy(SUBTRACT, "compact") == "delete"


def test_append_ends_where_a_record_would_be_too_long(one: Cluster) -> None:
    grown = ops(TOPIC, "orders", ("cleanup.policy", SET, "x" * 32_767))
    assert codes(one.incremental_alter(grown)) == [0]
    longer = ops(TOPIC, "orders", ("cleanup.policy", APPEND, "y"))
    assert codes(one.incremental_alter(longer)) == [ErrorCode.INVALID_CONFIG]


def test_append_counts_the_bytes_that_a_record_would_need(one: Cluster) -> None:
    """A longer value was written, and no node could read the metadata log again."""
    third = ("cleanup.policy", APPEND, "\u20ac" * 5_461)  # 16,383 bytes
    for value in ("a", "b"):
        added = ops(TOPIC, "orders", (*third[:2], value + third[2]))
        answer = one.incremental_alter(added)
    assert codes(answer) == [ErrorCode.INVALID_CONFIG]
    assert "32776" in answer.responses[0].error_message


def test_a_brokers_name_of_thousands_of_digits_is_refused_alone(one: Cluster) -> None:
    wanted = [ops(BROKER, "9" * 5_000), ops(BROKER, "9" * 19), ops(TOPIC, "orders")]
    invalid = ErrorCode.INVALID_REQUEST
    assert codes(one.incremental_alter(*wanted)) == [invalid, invalid, 0]


def test_illegal_names_and_wrong_values_are_told_before_a_topic_is_looked_for(one: Cluster) -> None:
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert codes(one.incremental_alter(ops(TOPIC, "a/b", ("retention.ms", SET, "1")))) == [invalid]
    assert codes(one.alter(values(TOPIC, "a/b", retention_ms="1"))) == [invalid]
    wrong = ops(TOPIC, "absent", ("retention.ms", SET, "soon"))
    assert codes(one.incremental_alter(wrong)) == [ErrorCode.INVALID_CONFIG]


def test_append_to_what_is_no_list_is_refused(one: Cluster) -> None:
    (entry,) = one.incremental_alter(ops(TOPIC, "orders", ("retention.ms", APPEND, "1"))).responses
    assert entry.error_code == ErrorCode.INVALID_CONFIG
    assert "not LIST" in entry.error_message


def test_a_resource_changes_completely_or_not_at_all(one: Cluster) -> None:
    before = one.image
    response = one.incremental_alter(
        ops(TOPIC, "orders", ("cleanup.policy", SET, "compact"), ("retention.ms", SET, "soon")),
    )
    assert codes(response) == [ErrorCode.INVALID_CONFIG]
    assert one.image is before


def test_resources_fail_alone_and_are_answered_in_order(one: Cluster) -> None:
    response = one.incremental_alter(
        ops(TOPIC, "absent", ("retention.ms", SET, "1")),
        ops(TOPIC, "orders", ("retention.ms", SET, "2")),
        ops(LOGGER, "1", ("kafka", SET, "DEBUG")),
        ops(TOPIC, "", ("retention.ms", SET, "1")),
        ops(GROUP, "", ("retention.ms", SET, "1")),
        ops(BROKER, "x", ("retention.ms", SET, "1")),
        ops(BROKER, "9", ("retention.ms", SET, "1")),
        ops(TOPIC, "orders2", ("retention.ms", SET, "1")),
        ops(TOPIC, "orders2", ("retention.ms", SET, "1")),
    )
    invalid = ErrorCode.INVALID_REQUEST
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(response) == [unknown, 0, invalid, invalid, invalid, invalid, invalid] + (
        [invalid] * 2
    )
    assert one.image.config(TOPIC, "orders") == {"retention.ms": "2"}


@pytest.mark.parametrize(
    "entries",
    [
        [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        [("retention.ms", SET, None)],
        [("retention.ms", 9, "1")],
        [("broker.id", SET, "7")],
    ],
    ids=["key twice", "null", "unknown operation", "read-only"],
)
def test_malformed_changes_are_invalid_requests(
    one: Cluster, entries: list[tuple[str, int, str | None]]
) -> None:
    assert codes(one.incremental_alter(ops(BROKER, "1", *entries))) == [ErrorCode.INVALID_REQUEST]


def test_validate_only_checks_and_changes_nothing(one: Cluster) -> None:
    before = one.image
    good = ops(TOPIC, "orders", ("retention.ms", SET, "5"))
    bad = ops(BROKER, "", ("retention.ms", SET, "soon"))
    assert codes(one.incremental_alter(good, bad, validate_only=True)) == [
        0,
        ErrorCode.INVALID_CONFIG,
    ]
    assert one.image is before


def test_broker_values_are_written_again_even_when_unchanged(one: Cluster) -> None:
    """The record makes the broker load again what the value names (KAFKA-14136)."""
    change = ops(BROKER, "1", ("retention.ms", SET, "5"))
    one.incremental_alter(change)
    count = len(one.log)
    one.incremental_alter(change)
    assert len(one.log) == count + 1
    topic = ops(TOPIC, "orders", ("retention.ms", SET, "1000"))
    one.incremental_alter(topic)
    assert len(one.log) == count + 1


def test_groups_and_client_metrics_have_configs_too(one: Cluster) -> None:
    response = one.incremental_alter(
        ops(GROUP, "g", ("retention.ms", SET, "1")), ops(METRICS, "m", ("retention.ms", SET, "2"))
    )
    assert codes(response) == [0, 0]
    assert one.image.config(GROUP, "g") == {"retention.ms": "1"}
    assert one.image.config(METRICS, "m") == {"retention.ms": "2"}


def test_legacy_alter_replaces_everything(one: Cluster) -> None:
    response = one.alter(values(TOPIC, "orders", cleanup_policy="compact"))
    assert codes(response) == [0]
    assert one.image.config(TOPIC, "orders") == {"cleanup.policy": "compact"}
    assert codes(one.alter(values(TOPIC, "orders"))) == [0]
    assert one.image.config(TOPIC, "orders") == {}
    refused = one.alter(values(TOPIC, "orders", retention_ms=None))
    assert codes(refused) == [ErrorCode.INVALID_REQUEST]


def test_with_elr_the_cluster_keeps_one_value_of_min_insync_replicas(one: Cluster) -> None:
    key = "min.insync.replicas"
    assert one.image.config(BROKER, "")[key] == "1"
    response = one.incremental_alter(
        ops(BROKER, "1", (key, SET, "2")), ops(BROKER, "", (key, DELETE, None))
    )
    assert codes(response) == [ErrorCode.INVALID_CONFIG] * 2
    assert codes(one.incremental_alter(ops(BROKER, "", (key, SET, "2")))) == [0]


# --- min.insync.replicas and who is eligible (KIP-966) ------------------------------------------


def with_elr(**config: Any) -> Cluster:
    """`orders`-0 has ISR {1} and ELR {2}, below min.insync.replicas=2."""
    made = Cluster(min_insync_replicas=2, **config)
    for broker_id in (1, 2, 3):
        made.start_broker(broker_id)
    made.create("orders", 1, 2)
    made.create("other", 1, 2)
    made.heartbeat(2, want_fence=True)
    for name in ("orders", "other"):
        assert made.partition(name).elr in ((2,), ())
    assert (made.partition("orders").isr, made.partition("orders").elr) == ((1,), (2,))
    return made


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "orders"), (BROKER, "")])
def test_another_min_insync_replicas_makes_nobody_eligible_who_may_miss_records(
    kind: int, name: str
) -> None:
    made = with_elr()
    before = made.partition("orders")
    key = "min.insync.replicas"
    assert codes(made.incremental_alter(ops(kind, name, (key, SET, "1")))) == [0]
    now = made.partition("orders")
    assert (now.elr, now.isr, now.leader) == ((), (1,), 1)
    assert now.partition_epoch == before.partition_epoch + 1, "brokers must learn of it"
    made.heartbeat(1, want_fence=True)
    made.heartbeat(2)
    assert made.partition("orders").leader == -1, "2 may miss what 1 committed alone"


def test_a_partition_that_waits_for_an_eligible_replica_goes_on_waiting_for_it() -> None:
    made = with_elr()
    made.heartbeat(1, want_fence=True)
    waiting = made.partition("orders")
    assert (waiting.isr, waiting.elr) == ((), (2, 1))
    made.incremental_alter(ops(TOPIC, "orders", ("min.insync.replicas", SET, "1")))
    assert made.partition("orders").elr == (2, 1)
    made.heartbeat(2)
    assert made.partition("orders").leader == 2


def test_the_same_min_insync_replicas_again_changes_nobodys_eligibility() -> None:
    made = with_elr()
    made.incremental_alter(ops(TOPIC, "orders", ("min.insync.replicas", SET, "2")))
    first = made.partition("orders")
    made.incremental_alter(ops(TOPIC, "orders", ("min.insync.replicas", SET, "2")))
    assert made.partition("orders") == first


# --- producer ids -------------------------------------------------------------------------------


def test_blocks_of_producer_ids_never_overlap(one: Cluster) -> None:
    epoch = one.image.brokers[1].broker_epoch
    blocks = [one.allocate_producer_ids(1, epoch) for _ in range(3)]
    assert [(b.producer_id_start, b.producer_id_len) for b in blocks] == [
        (0, 1000), (1000, 1000), (2000, 1000),
    ]  # fmt: skip


@pytest.mark.parametrize(("broker_id", "epoch"), [(9, 0), (1, 0)])
def test_only_the_registered_incarnation_gets_producer_ids(
    one: Cluster, broker_id: int, epoch: int
) -> None:
    with pytest.raises(KafkaError) as refused:
        one.allocate_producer_ids(broker_id, epoch)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_directories_are_cordoned_from_the_metadata_version_on_that_knows_it() -> None:
    for level, code in ((29, ErrorCode.INVALID_CONFIG), (30, 0)):
        made = Cluster(features={"metadata.version": level})
        made.start_broker()
        made.schema.known |= {"cordoned.log.dirs"}
        for operation, value in ((SET, "/data"), (DELETE, None)):
            answer = made.incremental_alter(
                ops(BROKER, "1", ("cordoned.log.dirs", operation, value))
            )
            assert codes(answer) == [code]
