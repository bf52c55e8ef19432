"""One life of a transactional client of librdkafka: consume, produce, send positions, commit.

`python -m testkit.workloads.transactional_client BOOTSTRAP TOPIC PARTITIONS WHO ISOLATION
HISTORY`; TransactionalClient.java is the same with Apache Kafka's own client. `WHO` is NAME/LIFE:
the name is transactional id and group, so the next life ends what this one left open and begins
where the last committed transaction stood.

Each transaction polls, sends a few records to random partitions, polls again, and takes the
positions along; one in five is aborted on purpose, and then the consumer goes back. Every step is
in the history before the next call, because this process may be killed at any time. Each call is
said on standard output when it begins: who listens can tell which one never came back. It ends with
its standard input, or by itself when its client has become useless (fenced, for example).
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition

from testkit.checking.checker import reader_of
from testkit.checking.history import (
    FAIL,
    INFO,
    OK,
    Assigned,
    Begin,
    ClientError,
    Ended,
    Event,
    HistoryWriter,
    Polled,
    Positions,
    Send,
    Sent,
    now,
    value_of,
)

PAUSE_S = 0.02
ABORTED_SHARE = 0.2
RECORDS_MAX = 4
_CALL_S = 10
_TIMEOUT_MS = 8000
_QUICK = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500, "log_level": 0}


class Client:
    """The producer, the consumer, and what they did."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: str, who: str, isolation: str, path: str
    ) -> None:
        self.topic, self.who, self.partitions = topic, who, int(partitions)
        self._positions: dict[int, int] = {}
        self._chance = random.Random(who)
        self._history = HistoryWriter(Path(path))
        self._lock = threading.Lock()
        self._sent = self._transactions = 0
        name = reader_of(who)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0,
                "transaction.timeout.ms": _TIMEOUT_MS, **_QUICK,
            }
        )  # fmt: skip
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": name, "isolation.level": isolation,
                "enable.auto.commit": False, "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100, **_QUICK,
            }
        )  # fmt: skip

    def add(self, event: Event) -> None:
        with self._lock:
            self._history.add(event)

    def flush(self) -> None:
        with self._lock:
            self._history.flush()

    def start(self) -> None:
        self._call("init_transactions", self._producer.init_transactions)
        places = [TopicPartition(self.topic, index) for index in range(self.partitions)]
        stored = self._call("committed", partial(self._consumer.committed, places))
        self._go_to(
            {at.partition: 0 if at.offset == OFFSET_INVALID else at.offset for at in stored}
        )

    def transact(self) -> None:
        """One transaction; raises what makes this client useless."""
        self._transactions += 1
        self.add(Begin(now(), self.who, self._transactions))
        stood = dict(self._positions)
        outcome, error = INFO, ""
        try:
            outcome, error = self._end(self._fill())
            if outcome == FAIL:
                self._go_to(stood)
        except KafkaException as failed:
            error = str(failed)
            raise
        finally:
            self.add(Ended(now(), self.who, self._transactions, outcome, error))
            self.flush()

    def _fill(self) -> KafkaException | None:
        """Everything before the end; what then obliges to abort."""
        self._producer.begin_transaction()
        try:
            self._poll()
            for _ in range(self._chance.randint(1, RECORDS_MAX)):
                self._send()
            self._poll()
            self._send_positions()
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            return failed
        return None

    def _end(self, failed: KafkaException | None) -> tuple[str, str]:
        if failed is None and self._chance.random() >= ABORTED_SHARE:
            try:
                self._call("commit_transaction", self._producer.commit_transaction)
                return OK, ""
            except KafkaException as refused:
                if not refused.args[0].txn_requires_abort():
                    raise
                failed = refused
        self._call("abort_transaction", self._producer.abort_transaction)
        return FAIL, str(failed or "")

    def _poll(self) -> None:
        records = []
        for message in self._consumer.consume(100, 0.02):
            error = message.error()
            if error is None:
                value = message.value().decode()
                records.append((message.partition(), message.offset(), value))
            elif error.name() == "_AUTO_OFFSET_RESET":  # a step back or a skip, had it been allowed
                self.add(ClientError(now(), self.who, str(error)))
        if records:
            self.add(Polled(now(), self.who, records))
        self._positions.update({partition: offset + 1 for partition, offset, _ in records})

    def _send(self) -> None:
        number, partition = self._sent, self._chance.randrange(self.partitions)
        self._sent += 1
        self.add(Send(now(), self.who, number, partition))
        value, done = value_of(self.who, number), partial(self._done, number)
        self._producer.produce(self.topic, value, partition=partition, on_delivery=done)

    def _done(self, number: int, error: Any, message: Any) -> None:
        outcome, offset = (OK, message.offset()) if error is None else (INFO, None)
        self.add(Sent(now(), self.who, number, outcome, offset, str(error or "")))

    def _send_positions(self) -> None:
        group = self._consumer.consumer_group_metadata()
        send = partial(self._producer.send_offsets_to_transaction, self._places(), group)
        self._call("send_offsets_to_transaction", send)
        self.add(Positions(now(), self.who, sorted(self._positions.items())))

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, index, at) for index, at in self._positions.items()]

    def _go_to(self, positions: dict[int, int]) -> None:
        self._positions = positions
        self._consumer.assign(self._places())
        self.add(Assigned(now(), self.who, sorted(positions)))

    def _call(self, name: str, call: Callable[..., Any]) -> Any:
        """Repeat what may be repeated, as librdkafka's users are told to."""
        self.flush()
        print(name, flush=True)
        while True:
            try:
                return call(timeout=_CALL_S) if name == "committed" else call(_CALL_S)
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise
                time.sleep(0.05)


def main() -> None:
    client = Client(*sys.argv[1:])
    ending = threading.Event()

    def await_end_of_input() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=await_end_of_input, name="stdin", daemon=True).start()
    code = 0
    try:
        client.start()
        while not ending.wait(PAUSE_S):
            client.transact()
            print("ended", flush=True)
    except KafkaException as useless:
        print(useless, file=sys.stderr, flush=True)
        code = 1
    client.flush()
    os._exit(code)  # no destructor of a client may wait now


if __name__ == "__main__":
    main()
