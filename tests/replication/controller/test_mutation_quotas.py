"""controller_mutation_rate at the active controller (KIP-599; ControllerMutationQuotaManager)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.controller.context import ControllerContext
from replication.controller.mutation_quotas import MutationQuotas
from replication.controller.requests import ActiveState, decide
from replication.metadata.image import MetadataDelta
from tests.replication.controller_support import Cluster, new_topic
from wire.errors import ErrorCode
from wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from wire.messages.metadata_records import ClientQuotaRecord
from wire.primitives import ZERO_UUID

OK, THROTTLED = 0, int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
ALICE = ControllerContext("User:alice", 7, "a")
BURST_S = 11


class Active:
    """An active controller of one broker, whose clients have quotas."""

    def __init__(self, *quotas: tuple[dict[str, str | None], float]) -> None:
        self.cluster = cluster = Cluster()
        cluster.start_broker()
        self.quotas(*quotas)
        sessions = None
        self.state = ActiveState(
            cluster.config, cluster.schema, cluster.new_id, sessions, cluster.image
        )

    def quotas(self, *quotas: tuple[dict[str, str | None], float]) -> None:
        delta = MetadataDelta(self.cluster.image)
        for entity, rate in quotas:
            parts = [
                ClientQuotaRecord.Entity(entity_type=kind, entity_name=name)
                for kind, name in entity.items()
            ]
            delta.replay(
                ClientQuotaRecord(
                    entity=parts, key="controller_mutation_rate", value=rate, remove=False
                )
            )
        self.cluster.image = delta.apply(1, 1, 1)

    def ask(self, request, context=ALICE, at_s=0.0):
        """(error codes, throttle time in ms)."""
        self.state.image = self.cluster.image
        self.state.now_ms = int(at_s * 1_000)
        result = decide(self.state, request, context)
        self.cluster.apply(result.records)
        answer = result.response
        items = getattr(answer, "topics", None) or getattr(answer, "responses", None)
        codes = [item.error_code for item in items or answer.results]
        return codes, answer.throttle_time_ms

    def create(self, *names, partitions=1, context=ALICE, at_s=0.0, validate_only=False):
        wanted = [new_topic(name, partitions, 1) for name in names]
        request = CreateTopicsRequest(topics=wanted, validate_only=validate_only)
        return self.ask(request, context, at_s)


@pytest.fixture
def one_a_second() -> Active:
    return Active(({"user": "alice"}, 1.0))


def test_topics_pass_until_the_bucket_owes_and_the_rest_is_refused(one_a_second) -> None:
    names = [f"t{n}" for n in range(20)]
    codes, throttle_ms = one_a_second.create(*names)
    assert codes == [OK] * (BURST_S + 1) + [THROTTLED] * 8
    assert throttle_ms == 1_000
    assert set(one_a_second.cluster.image.topics_by_name) == set(names[: BURST_S + 1])
    assert one_a_second.create("later", at_s=0.5) == ([THROTTLED], 500)
    assert one_a_second.create("later", at_s=1) == ([OK], 0)


def test_one_topic_may_have_more_partitions_than_the_bucket_holds(one_a_second) -> None:
    assert one_a_second.create("big", partitions=100) == ([OK], 0)
    assert one_a_second.create("next") == ([THROTTLED], 89_000)
    assert one_a_second.create("next", at_s=89) == ([OK], 0)


def test_older_versions_are_done_and_throttled(one_a_second) -> None:
    old = ALICE._replace(api_version=5)
    assert one_a_second.create("big", partitions=20, context=old) == ([OK], 9_000)
    assert one_a_second.create("next", context=old) == ([OK], 10_000)


def test_what_is_owed_for_ever_is_told_as_the_longest_throttle_time() -> None:
    """The topic is there: an answer that cannot be written would deny it."""
    active = Active(({"user": "alice"}, 1e-9))
    old = ALICE._replace(api_version=5)
    assert active.create("big", context=old) == ([OK], 2**31 - 1)


def test_what_fails_anyway_costs_nothing_and_what_only_validates_does(one_a_second) -> None:
    assert one_a_second.create("/", *["x"] * 30)[0].count(THROTTLED) == 0
    codes, _ = one_a_second.create("big", partitions=50, validate_only=True)
    assert codes == [OK]
    assert one_a_second.create("next")[0] == [THROTTLED]


def test_deletions_and_new_partitions_count_too() -> None:
    active = Active()
    active.create("a", "b", "c", partitions=10)
    active.quotas(({"user": None}, 0.5))
    topics = [DeleteTopicsRequest.Topic(name=name, topic_id=ZERO_UUID) for name in ("a", "b")]
    request = DeleteTopicsRequest(topics=topics, timeout_ms=1)
    strict = ALICE._replace(api_version=6)
    assert active.ask(request, strict) == ([OK, THROTTLED], 9_000)
    assert "b" in active.cluster.image.topics_by_name
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.Topic(name="c", count=15, assignments=None)],
        timeout_ms=1, validate_only=False,
    )  # fmt: skip
    assert active.ask(more, ALICE._replace(api_version=3)) == ([THROTTLED], 9_000)
    assert active.ask(more, ALICE._replace(api_version=2)) == ([OK], 19_000)
    assert active.ask(request, ALICE._replace(api_version=4))[0].count(THROTTLED) == 0


@pytest.mark.parametrize(
    "who", [{"user": "bob"}, {"client-id": "b"}, {"user": "alice", "client-id": "b"}]
)
def test_quotas_of_others_are_not_ours(who) -> None:
    assert Active((who, 0.01)).create("a", partitions=50) == ([OK], 0)


def test_the_most_special_quota_counts_and_clients_of_a_user_share() -> None:
    active = Active(({"user": "alice"}, 1.0), ({"client-id": None}, 1000.0))
    active.create("big", partitions=50)
    other = ALICE._replace(client_id="other")
    assert active.create("next", context=other)[0] == [THROTTLED]
    active.quotas(({"user": "alice", "client-id": "other"}, 5.0))
    assert active.create("next", context=other)[0] == [OK]
    bob = ALICE._replace(principal="User:bob")
    assert active.create("bobs", partitions=50, context=bob)[0] == [OK]


def test_another_rate_counts_at_once_and_none_frees(one_a_second) -> None:
    one_a_second.create("big", partitions=1_011)
    assert one_a_second.create("next") == ([THROTTLED], 1_000_000)
    one_a_second.quotas(({"user": "alice"}, 100.0))
    assert one_a_second.create("next") == ([THROTTLED], 10_000)
    one_a_second.cluster.image = replace(one_a_second.cluster.image, client_quotas={})
    assert one_a_second.create("next") == ([OK], 0)


def test_what_brokers_do_for_themselves_is_free() -> None:
    active = Active(({"user": None}, 0.01), ({"client-id": None}, 0.01))
    for name in ("a", "b"):
        assert active.create(name, partitions=50, context=ControllerContext()) == ([OK], 0)


def test_invented_client_ids_take_a_bounded_memory() -> None:
    active = Active(({"client-id": None}, 1.0))
    quotas = MutationQuotas(BURST_S)
    for number in range(30_000):
        who = ALICE._replace(client_id=str(number))
        quotas.of(active.cluster.image, who, 6, 0).charge(20 if number % 2 else 0)
    assert len(quotas._buckets) == 10_000
