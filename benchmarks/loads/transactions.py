"""W10: transactions. Producers, copies, aborts, many ids at once, and a coordinator that dies.

A transaction holds a number of records, not of milliseconds, so that both brokers do the same work:
"10 ms of records" are those of 10 ms at `RATE` a second. A commit is timed once every record of it
is acknowledged: EndTxn alone, not what the producer still had to send. Tens of transactions have
no p99; there it is the slowest.

Java speaks transactions of version 2 (KIP-890), librdkafka those of version 1.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.loads import cluster, rdkafka
from benchmarks.loads.base import (
    Figures,
    LoadFailed,
    Place,
    commands,
    create_topic,
    delete_topic,
    end_offsets,
    run_command,
)
from testkit import jars
from testkit.brokers.clusters import ClusterOfNodes
from testkit.clients.rdkafka import until_done
from testkit.workloads.transactions import coordinator_of

RATE = 50_000
"""Records a second that a "millisecond of records" is of."""
PARTITIONS = 6
_MARKERS_S = 30
_CALL_S = 5
_SHORT = {
    "linger.ms": 0,
    "reconnect.backoff.max.ms": 500,
    "transaction.timeout.ms": 10_000,
    "message.timeout.ms": 10_000,
}


def produce(
    place: Place, client: str, size: int, ms: int, transactions: int, aborted: int = 0
) -> Figures:
    """Transactions of `ms` of records over six partitions, `aborted` of ten aborted on purpose."""
    create_topic(place.bootstrap, place.topic, PARTITIONS)
    records = RATE * ms // 1000
    warm_up = max(transactions // 10, 1)
    load = _java_produce if client == "java" else _rdkafka_produce
    figures = load(place, size, transactions, records, aborted, warm_up)
    _expect(place, place.topic, (transactions + warm_up) * (records + PARTITIONS))
    if aborted:
        committed = [n for n in range(-warm_up, transactions) if n % 10 >= aborted]
        figures["read_s"] = _read_committed(place, len(committed) * records)
    return figures


def _expect(place: Place, topic: str, count: int, partitions: int = PARTITIONS) -> None:
    """Records and markers: a commit is answered before its markers are written."""
    deadline = time.monotonic() + _MARKERS_S
    while True:
        held = sum(end_offsets(place.bootstrap, topic, range(partitions)).values())
        if held == count:
            return
        if held > count or time.monotonic() > deadline:
            raise LoadFailed(f"{count} records and markers are due, the broker holds {held}")
        time.sleep(0.01)


def _java(mode: str, place: Place, **options: Any) -> Figures:
    libs, program = str(jars.libs()), str(Path(__file__).with_name("Transactions.java"))
    command = [
        jars.java(), "-Xmx1G", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp", f"{libs}/*", program, mode, f"bootstrap={place.bootstrap}", f"topic={place.topic}",
        *(f"{name}={value}" for name, value in options.items()),
    ]  # fmt: skip
    hide = ((libs, "KAFKA/libs"), (jars.java(), "java"), (program, "Transactions.java"))
    figures: Figures = json.loads(run_command(command, hide=hide).splitlines()[-1])
    return figures


def _java_produce(
    place: Place, size: int, transactions: int, records: int, aborted: int, warm_up: int
) -> Figures:
    return _java(
        "produce", place, partitions=PARTITIONS, size=size, transactions=transactions,
        records=records, aborted=aborted, warm_up=warm_up,
    )  # fmt: skip


def _rdkafka_produce(
    place: Place, size: int, transactions: int, records: int, aborted: int, warm_up: int
) -> Figures:
    producer = _transactional(place, place.topic)
    batch = [{"value": os.urandom(size)}] * -(-records // PARTITIONS)
    timing = _Timing()
    for number in range(-warm_up, transactions):
        if number == 0:
            timing = _Timing()
        producer.begin_transaction()
        left = records
        for partition in range(PARTITIONS):
            some = batch[: -(-left // (PARTITIONS - partition))]
            left -= len(some)
            if producer.produce_batch(place.topic, some, partition=partition) != len(some):
                raise LoadFailed("librdkafka's queue is too small for a transaction")
        timing.end(producer, is_commit=number % 10 >= aborted)
    return timing.figures(transactions, transactions * records)


def _transactional(place: Place, transactional_id: str, **settings: Any) -> Producer:
    producer = rdkafka.producer_of(
        place.bootstrap, **{"transactional.id": transactional_id, **settings}
    )
    producer.init_transactions(30)
    return producer


class _Timing:
    """How long transactions took, and each of their ends."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        self._ends: list[float] = []

    def end(self, producer: Producer, *, is_commit: bool = True) -> None:
        """Commit or abort; what is timed is the call, once everything is acknowledged."""
        if producer.flush(60):
            raise LoadFailed("records were not acknowledged")
        asked = time.perf_counter()
        if is_commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        self._ends.append(time.perf_counter() - asked)

    def figures(self, transactions: int, records: int) -> Figures:
        seconds = time.perf_counter() - self._began
        ends = sorted(self._ends)
        last = len(ends) - 1
        return {
            "seconds": seconds,
            "client_cpu_s": time.process_time() - self._cpu,
            "records_s": records / seconds,
            "transactions_s": transactions / seconds,
            "commit_p50_ms": ends[round(last * 0.5)] * 1e3,
            "commit_p99_ms": ends[round(last * 0.99)] * 1e3,
            "commit_max_ms": ends[-1] * 1e3,
        }


def _read_committed(place: Place, count: int) -> float:
    """Seconds to read what was committed, and nothing else, from first to last."""
    consumer = _reader(place, f"read-{place.topic}")
    consumer.assign([TopicPartition(place.topic, index, 0) for index in range(PARTITIONS)])
    began, found = time.perf_counter(), 0
    while found < count:
        messages = consumer.consume(min(1_000, count - found), 10)
        if not messages:
            raise LoadFailed(f"{found} of {count} committed records were read")
        found += len(messages)
    seconds = time.perf_counter() - began
    if found > count or consumer.consume(1, 0.5):
        raise LoadFailed("more was read than was committed")
    consumer.close()
    return seconds


def _reader(place: Place, group: str) -> Consumer:
    settings = {
        "group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }  # fmt: skip
    commands.append(f"confluent_kafka.Consumer({settings})")
    return Consumer({"bootstrap.servers": place.bootstrap, "log_level": 2, **settings})


def copy(place: Place, client: str, size: int, count: int, records: int) -> Figures:
    """Consume, transform, produce and commit with the offsets, `records` in a transaction; Java's
    may have more, for what a poll brings goes into one."""
    del size
    name = f"copy-{uuid.uuid4().hex[:8]}"
    create_topic(place.bootstrap, name)
    try:
        if client == "java":
            figures = _java("copy", place, target=name, group=name, records=records, count=count)
        else:
            figures = _rdkafka_copy(place, name, count, records)
        copied, transactions = (
            round(figures[name] * figures["seconds"]) for name in ("records_s", "transactions_s")
        )
        if copied < count:
            raise LoadFailed(f"{copied} of {count} records were copied")
        _expect(place, name, copied + transactions, partitions=1)
    finally:
        delete_topic(place.bootstrap, name)
    return figures


def _rdkafka_copy(place: Place, target: str, count: int, records: int) -> Figures:
    consumer = _reader(place, target)
    consumer.subscribe([place.topic])
    producer = _transactional(place, target)
    waiting = consumer.consume(1, 30)  # the group is stable, not timed
    timing, copied, transactions = _Timing(), 0, 0
    while copied < count:
        producer.begin_transaction()
        wanted = min(records, count - copied)
        while len(waiting) < wanted:
            waiting += consumer.consume(wanted - len(waiting), 10)
        values = [{"value": message.value()[::-1]} for message in waiting]
        if producer.produce_batch(target, values, partition=0) != len(values):
            raise LoadFailed("librdkafka's queue is too small for a transaction")
        offsets = [TopicPartition(place.topic, 0, waiting[-1].offset() + 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        timing.end(producer)
        copied, transactions, waiting = copied + wanted, transactions + 1, []
    consumer.close()
    return timing.figures(transactions, copied)


def many_ids(place: Place, ids: int, rounds: int) -> Figures:
    """All ids have a transaction open, with a record in each of six partitions, before the first
    commits; the ids of one process, committed by eight threads."""
    create_topic(place.bootstrap, place.topic, PARTITIONS)
    figures = _java("many", place, partitions=PARTITIONS, ids=ids, rounds=rounds)
    _expect(place, place.topic, ids * (rounds + 1) * 2 * PARTITIONS)
    return figures


def coordinator_failover(place: Place, kills: int) -> Figures:
    """kill -9 of the coordinator, which leads no partition written to: how long no commit goes
    through. Three nodes, and a new transactional id for each kill: a leader does not come back."""

    def load(nodes: ClusterOfNodes, there: Place) -> Figures:
        create_topic(there.bootstrap, there.topic)
        _transactional(there, "first", **_SHORT)  # makes __transaction_state
        away = []
        for _ in range(kills):
            transactional_id = _id_led_elsewhere(nodes, there.topic)
            producer = _transactional(there, transactional_id, **_SHORT)
            for _ in range(5):
                _transaction(producer, there.topic)
            coordinator = coordinator_of(nodes, transactional_id)
            killed = time.perf_counter()
            nodes.kill(coordinator)
            _transaction(producer, there.topic)
            away.append(time.perf_counter() - killed)
            nodes.restart(coordinator)
            nodes.await_full_isr(there.topic)
            nodes.await_full_isr("__transaction_state")
        away.sort()
        return {"unavailable_s": away[len(away) // 2], "unavailable_max_s": away[-1]}

    return cluster.measured(place, load)


def _id_led_elsewhere(nodes: ClusterOfNodes, topic: str) -> str:
    leader = nodes.leader(topic)
    while True:
        transactional_id = f"failover-{uuid.uuid4().hex[:8]}"
        if coordinator_of(nodes, transactional_id) != leader:
            return transactional_id


def _transaction(producer: Producer, topic: str) -> None:
    """One record, committed; repeated as librdkafka's users are told to, for a minute."""
    deadline = time.monotonic() + 60
    while True:
        producer.begin_transaction()
        producer.produce(topic, b"probe", partition=0)
        try:
            until_done(lambda: producer.commit_transaction(_CALL_S), deadline)
            return
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
        until_done(lambda: producer.abort_transaction(_CALL_S), deadline)
