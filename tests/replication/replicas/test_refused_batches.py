"""What a producer has in flight behind a refused batch is refused, too, and not for its
sequence: librdkafka would begin an epoch and send again what is in the log."""

from __future__ import annotations

import random
from collections import Counter, deque
from itertools import count
from typing import Any

import pytest

from replication.partition.requests import AppendResult
from storage.config import LogConfig
from tests.replication.replicas.test_replica_manager import (
    ORDERS,
    ORDERS_0,
    Answer,
    Broker,
    batch,
    broker,
    codes,
    led,
    offsets,
    topic,
)
from tests.sim.batches import headers_of
from wire.errors import ErrorCode
from wire.primitives import TopicPartition
from wire.record_batch import SEQUENCE_MAX

__all__ = ["broker"]  # the fixture

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
NOT_ENOUGH = ErrorCode.NOT_ENOUGH_REPLICAS
AFTER_APPEND = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
BOTH: dict[str, Any] = {"replicas": (1, 2)}


def of(
    sequence: int, *, epoch: int = 0, many: int = 1, producer: int = 5, **more: int
) -> tuple[TopicPartition, bytes]:
    values = [b"v"] * many
    ids = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return ORDERS_0, batch(*values, **ids, **more)


@pytest.fixture
def follower(broker: Broker) -> Broker:
    """Has sequence 0 of producer 5, and follows; `leads` makes it the leader again."""
    broker.publish(topic("orders", ORDERS, led(0, **BOTH)))
    assert codes(broker.produce(of(0), acks=1)) == [0]
    broker.publish(topic("orders", ORDERS, led(1, leader=2, **BOTH)))
    return broker


def leads(broker: Broker) -> None:
    broker.publish(topic("orders", ORDERS, led(2, **BOTH)))


def test_what_follows_is_refused_alike_however_much_there_is(follower: Broker) -> None:
    assert codes(follower.produce(of(1, many=3), acks=1)) == [NOT_LEADER]
    leads(follower)
    assert codes(follower.produce(of(4), acks=1)) == [NOT_ENOUGH]
    assert codes(follower.produce_burst(of(5), of(6), acks=1)) == [NOT_ENOUGH] * 2
    # All is sent again, in its order.
    again = follower.produce_burst(of(1, many=3), of(4), of(5), of(6), acks=1)
    assert offsets(again) == [1, 4, 5, 6]


def test_so_it_is_when_replicas_are_missing(broker: Broker) -> None:
    broker.configs["orders"] = LogConfig(min_insync_replicas=2)
    broker.publish(topic("orders", ORDERS, led(**BOTH)))
    broker.produce(of(0), acks=1)
    assert codes(broker.produce(of(1))) == [NOT_ENOUGH]
    broker.publish(topic("orders", ORDERS, led(isr=(1, 2), version=1, **BOTH)))
    assert codes(broker.produce(of(2))) == [NOT_ENOUGH]
    assert broker.produce(of(1)).is_pending
    assert broker.produce(of(2)).is_pending


def test_so_it_is_where_nothing_of_the_producer_is_known(broker: Broker) -> None:
    """Any sequence would do for the first one; the one before it would never be taken then."""
    broker.configs["orders"] = LogConfig(min_insync_replicas=2)
    broker.publish(topic("orders", ORDERS, led(**BOTH)))
    assert codes(broker.produce(of(0))) == [NOT_ENOUGH]
    broker.publish(topic("orders", ORDERS, led(isr=(1, 2), version=1, **BOTH)))
    assert codes(broker.produce(of(1))) == [NOT_ENOUGH]
    again = broker.produce_burst(of(0), of(1))
    broker.follower_fetches(0)
    broker.follower_fetches(2)
    assert offsets(again) == [0, 1]


@pytest.mark.parametrize("heard_of", [False, True])
def test_so_it_is_before_the_partition_is_here(broker: Broker, heard_of: bool) -> None:
    """A new topic's leader may hear of it, or act on it, after its producers do."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if heard_of:
        broker.publish(topic("orders", ORDERS, led(leader=2, replicas=(2, 3))))
        code = NOT_LEADER
    assert codes(broker.produce(of(0), acks=1)) == [code]
    broker.publish(topic("orders", ORDERS, led(1, **BOTH)))
    assert codes(broker.produce(of(1), acks=1)) == [NOT_ENOUGH]
    assert offsets(broker.produce_burst(of(0), of(1), acks=1)) == [0, 1]


@pytest.mark.parametrize("heard_of", [False, True])
def test_so_it_is_where_topics_are_named_by_their_ids(broker: Broker, heard_of: bool) -> None:
    """Metadata is known before it is acted on, and the name may be an older topic's here."""
    if heard_of:
        broker.publish(topic("orders", b"the one before..", led(**BOTH)))
    by_id: dict[str, Any] = {"topic_ids": {"orders": ORDERS}, "acks": 1}
    code = ErrorCode.UNKNOWN_TOPIC_ID if heard_of else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(broker.produce_burst(of(0), **by_id)) == [code]
    if heard_of:
        broker.publish()
    broker.publish(topic("orders", ORDERS, led(1, **BOTH)))
    assert codes(broker.produce_burst(of(1), of(2), **by_id)) == [NOT_ENOUGH] * 2
    assert offsets(broker.produce_burst(of(0), of(1), of(2), **by_id)) == [0, 1, 2]


def test_names_that_no_topic_has_are_not_kept(broker: Broker) -> None:
    _, records = of(0)
    longest = "n" * 249
    assert len(codes(broker.produce((TopicPartition(longest + "n", 0), records), acks=1))) == 1
    assert not broker.manager.writes.refused
    broker.produce((TopicPartition(longest, 0), records), acks=1)
    assert len(broker.manager.writes.refused) == 1


def test_what_is_here_by_another_leader_is_not_refused(follower: Broker) -> None:
    """It was appended there, behind what was refused here; "not written" would be a lie."""
    follower.produce(of(1), acks=1)
    partition = follower.manager.partition(ORDERS_0)
    for sequence in (1, 2):
        of_another = of(sequence, base_offset=sequence, leader_epoch=1)
        partition.open_log().append_as_follower(of_another[1], 1)
    leads(follower)
    assert offsets(follower.produce(of(2), acks=1)) == [2]


@pytest.mark.parametrize(
    "other", [of(3), of(2, epoch=1), of(2, producer=6)], ids=["gap", "epoch", "producer"]
)
def test_what_does_not_follow_it_is_out_of_order(follower: Broker, other: Any) -> None:
    follower.produce(of(1), acks=1)
    leads(follower)
    follower.produce(of(0, producer=6), acks=1)
    assert codes(follower.produce(other, acks=1)) == [OUT_OF_ORDER]


def test_so_it_is_of_several_that_are_served_together(follower: Broker) -> None:
    assert codes(follower.produce(of(0, producer=6), acks=1)) == [NOT_LEADER]
    leads(follower)
    burst = follower.produce_burst(of(1, producer=6), of(2, producer=6), acks=1)
    assert codes(burst) == [NOT_ENOUGH] * 2


def test_what_is_taken_again_is_no_more_in_the_way(follower: Broker) -> None:
    follower.produce(of(1), acks=1)
    leads(follower)
    assert offsets(follower.produce(of(1), acks=1)) == [1]
    assert offsets(follower.produce(of(2), acks=1)) == [2]


def test_it_is_told_once(follower: Broker) -> None:
    """Who sends it again without what was before has lost that."""
    follower.produce(of(1), acks=1)
    leads(follower)
    assert codes(follower.produce(of(2), acks=1)) == [NOT_ENOUGH]
    assert codes(follower.produce(of(2), acks=1)) == [OUT_OF_ORDER]


def test_another_topic_of_the_name_is_in_the_way_once_at_most(follower: Broker) -> None:
    follower.produce(of(1), acks=1)
    follower.publish()
    follower.publish(topic("orders", b"another orders..", led(**BOTH)))
    follower.produce(of(0), acks=1)
    assert codes(follower.produce(of(2), acks=1)) == [NOT_ENOUGH]
    assert codes(follower.produce(of(2), acks=1)) == [OUT_OF_ORDER]


def test_sequences_go_round(broker: Broker) -> None:
    broker.publish(topic("orders", ORDERS, led(0, **BOTH)))
    broker.produce(of(SEQUENCE_MAX - 2), acks=1)
    broker.publish(topic("orders", ORDERS, led(1, leader=2, **BOTH)))
    assert codes(broker.produce(of(SEQUENCE_MAX - 1, many=2), acks=1)) == [NOT_LEADER]
    leads(broker)
    assert codes(broker.produce(of(0), acks=1)) == [NOT_ENOUGH]
    assert offsets(broker.produce(of(SEQUENCE_MAX - 1, many=2), acks=1)) == [1]
    assert offsets(broker.produce(of(0), acks=1)) == [3]


@pytest.mark.parametrize(("others", "code"), [(999, NOT_ENOUGH), (1_000, OUT_OF_ORDER)])
def test_not_more_is_remembered_than_a_thousand(
    follower: Broker, others: int, code: ErrorCode
) -> None:
    follower.produce(of(1), acks=1)
    for producer in range(100, 100 + others):
        follower.produce(of(1, producer=producer), acks=1)
    leads(follower)
    assert codes(follower.produce(of(2), acks=1)) == [code]


def test_who_is_refused_again_is_remembered_from_then_on(follower: Broker) -> None:
    for producer in (5, *range(100, 1_099), 5, 5_000):
        follower.produce(of(1, producer=producer), acks=1)
    leads(follower)
    assert codes(follower.produce(of(2), acks=1)) == [NOT_ENOUGH]


@pytest.mark.parametrize(("ms", "code"), [(30_000, NOT_ENOUGH), (30_001, OUT_OF_ORDER)])
def test_it_is_forgotten_when_nothing_of_that_time_is_in_flight(
    follower: Broker, ms: int, code: ErrorCode
) -> None:
    follower.produce(of(1), acks=1)
    leads(follower)
    follower.pass_time(ms)
    assert codes(follower.produce(of(2), acks=1)) == [code]


def test_a_follower_remembers_no_more(follower: Broker) -> None:
    """Producer ids cost who makes them up nothing, and a broker may lead nothing for days."""
    for producer in range(100, 1_110):
        follower.produce(of(1, producer=producer), acks=1)
    assert len(follower.manager.writes.refused) == 1_000
    follower.pass_time(120_001)
    follower.produce(of(1), acks=1)
    assert len(follower.manager.writes.refused) == 1


def test_records_without_sequences_end_it_too(follower: Broker) -> None:
    """While anything is remembered each batch is asked about."""
    follower.produce(of(1), acks=1)
    leads(follower)
    follower.pass_time(120_001)
    assert codes(follower.produce((ORDERS_0, batch(b"v")), acks=1)) == [0]
    assert not follower.manager.writes.refused


def test_records_without_sequences_are_what_they_were(follower: Broker) -> None:
    plain = ORDERS_0, batch(b"v")
    assert codes(follower.produce(plain, (ORDERS_0, b"no batch"), acks=1)) == [NOT_LEADER] * 2
    leads(follower)
    assert codes(follower.produce(plain, acks=1)) == [0]


class Client:
    """One that sends as librdkafka does: five in flight on one connection; after a refusal it waits
    for the answers to all, and sends again from the first that has no acknowledgement."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._in_flight: deque[tuple[int, Answer[list[AppendResult]]]] = deque()
        self._next = self._version = self._epoch = 0
        self.acked: set[int] = set()
        self._is_draining = False
        self._leads, self._is_whole = True, True
        self.told: Counter[int] = Counter()
        self._publish()

    def _publish(self) -> None:
        self._version += 1
        leader = 1 if self._leads else 2
        isr = (1, 2) if self._is_whole or not self._leads else (1,)
        registered = led(self._epoch, leader=leader, isr=isr, version=self._version, **BOTH)
        self._broker.publish(topic("orders", ORDERS, registered))

    def send(self) -> None:
        if self._is_draining or len(self._in_flight) == 5:
            return
        self._in_flight.append((self._next, self._broker.produce(of(self._next))))
        self._next = self._first_without_answer(self._next + 1)
        if self._leads and self._is_whole:
            end = self._broker.manager.partition(ORDERS_0).open_log().log_end_offset
            self._broker.follower_fetches(end)

    def hear(self) -> None:
        if not self._in_flight:
            return
        sequence, answer = self._in_flight.popleft()
        (code,) = codes(answer)
        self.told[code] += 1
        if code == 0:
            self.acked.add(sequence)
        else:
            self._is_draining = True
        if not self._in_flight:
            self._begin_again()

    def lose_the_connection(self) -> None:
        self._in_flight.clear()
        self._begin_again()

    def _begin_again(self) -> None:
        self._is_draining, self._next = False, self._first_without_answer(0)

    def _first_without_answer(self, start: int) -> int:
        return next(sequence for sequence in count(start) if sequence not in self.acked)

    def change_leader(self) -> None:
        self._leads = not self._leads
        self._epoch += 1
        self._publish()

    def change_isr(self) -> None:
        self._is_whole = not self._is_whole
        self._publish()

    def end(self) -> None:
        if not self._leads:
            self.change_leader()
        if not self._is_whole:
            self.change_isr()
        for _ in range(10):
            self.send()
            self.hear()
        while self._in_flight:
            self.hear()


@pytest.mark.parametrize("seed", range(12))
def test_nothing_in_flight_is_ever_out_of_order(broker: Broker, seed: int) -> None:
    broker.configs["orders"] = LogConfig(min_insync_replicas=2)
    chance = random.Random(seed)
    client = Client(broker)
    often = [client.send] * 6 + [client.hear] * 5
    seldom = [client.change_leader, client.change_isr, client.lose_the_connection]
    for _ in range(400):
        chance.choice(often + seldom)()
    client.end()
    assert not set(client.told) - {0, NOT_LEADER, NOT_ENOUGH, AFTER_APPEND}
    assert client.told[NOT_LEADER] > 0
    assert client.told[NOT_ENOUGH] > 0
    assert len(client.acked) > 20
    log = broker.manager.partition(ORDERS_0).open_log()
    sequences = [header.base_sequence for _, _, header in headers_of(log, 0, log.log_end_offset)]
    assert sequences == list(range(len(sequences))), "each once, in the order of sending"
    assert client.acked == set(sequences)
