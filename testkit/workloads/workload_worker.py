"""The process in which clients of a workload run: each a thread, all writing one history.

`python -m testkit.workloads.workload_worker TASK` (JSON: bootstrap, topic, partitions, history,
clients); started and stopped by `workload.Workload`. Commands come as lines on standard input:

  "stop"                producers send no more, wait for what is under way, and end
  ["drain", {p: end}]   consumers end when they have read every partition to its end

Every tenth of a second a line of JSON on standard output says how far each client is.

Clients are what users have: settings are the library's own but for those that a history needs (a
record that was given up would only be "unknown"), and a quick reconnect.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from testkit.checking.checker import reader_of
from testkit.checking.history import (
    INFO,
    OK,
    Assigned,
    ClientError,
    Event,
    HistoryWriter,
    Polled,
    Send,
    Sent,
    now,
    value_of,
)

_TICK_S = 0.01
_OUTSTANDING_MAX = 4000
_FLUSH_S = 240
_FLUSH_SLICE_S = 5
_DRAIN_S = 60
_RDKAFKA = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500, "log_level": 0}
_KAFKA_PYTHON = {"reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 500}


class Worker:
    """What the clients share: the history, the task, and the two commands."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.bootstrap: str = task["bootstrap"]
        self.topic: str = task["topic"]
        self.partitions: int = task["partitions"]
        self.stopping = threading.Event()
        self.ends: dict[int, int] | None = None  # what to read to; None until "drain"
        self.progress: dict[str, dict[str, int]] = {}
        self.highest: dict[str, dict[int, int]] = {}  # of each reader, by partition
        self._history = HistoryWriter(Path(task["history"]))
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        with self._lock:
            self._history.add(event)

    def say(self) -> None:
        with self._lock:
            self._history.flush()
        print(json.dumps(self.progress), flush=True)

    def has_drained(self, reader: str) -> bool:
        if self.ends is None:
            return False
        highest = self.highest[reader]
        return all(highest.get(p, -1) >= end - 1 for p, end in self.ends.items())


class _Producing(threading.Thread):
    """Sends `rate` records a second, in turn to all partitions, until told to stop.

    After an outage it does not catch up: the rate is the rate. It waits while too many records are
    under way.
    """

    def __init__(self, worker: Worker, who: str, rate: float, size: int, config: Any) -> None:
        super().__init__(name=who, daemon=True)
        self.worker, self.who, self.rate, self.size = worker, who, rate, size
        self.count = worker.progress.setdefault(who, {"sent": 0, "acked": 0, "unknown": 0})
        self.open(config)

    def run(self) -> None:
        due = 0.0
        while not self.worker.stopping.is_set():
            due += self.rate * _TICK_S
            while due >= 1:
                due -= 1
                count = self.count
                if count["sent"] - count["acked"] - count["unknown"] < _OUTSTANDING_MAX:
                    self._send_one()
            self.breathe(_TICK_S)
        self.finish()

    def _send_one(self) -> None:
        number = self.count["sent"]
        self.count["sent"] += 1
        partition = number % self.worker.partitions
        self.worker.add(Send(now(), self.who, number, partition))
        self.send(number, partition, value_of(self.who, number).ljust(self.size, ".").encode())

    def acked(self, number: int, offset: int | None) -> None:
        self.worker.add(Sent(now(), self.who, number, OK, offset))
        self.count["acked"] += 1

    def given_up(self, number: int, error: object) -> None:
        # No error of a client proves that an earlier attempt of its own was not written.
        self.worker.add(Sent(now(), self.who, number, INFO, None, str(error)))
        self.count["unknown"] += 1

    def open(self, config: Any) -> None:
        raise NotImplementedError

    def send(self, number: int, partition: int, value: bytes) -> None:
        raise NotImplementedError

    def breathe(self, seconds: float) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


class ConfluentProducer(_Producing):
    def open(self, config: Any) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": self.worker.bootstrap, "acks": "all",
                "enable.idempotence": True, "linger.ms": 5, **_RDKAFKA,
                "error_cb": self._on_error, **config,
            }
        )  # fmt: skip

    def _on_error(self, error: Any) -> None:
        if error.fatal():  # others say what librdkafka goes on trying to mend
            self.worker.add(ClientError(now(), self.who, str(error)))

    def send(self, number: int, partition: int, value: bytes) -> None:
        done = partial(self._done, number)
        try:
            self._producer.produce(self.worker.topic, value, partition=partition, on_delivery=done)
        except BufferError as full:
            self.given_up(number, full)

    def _done(self, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self.given_up(number, error)
        else:
            offset = message.offset()
            self.acked(number, None if offset is None or offset < 0 else offset)

    def breathe(self, seconds: float) -> None:
        time.sleep(seconds)  # poll(seconds) would return, and cost, once for each batch
        self._producer.poll(0)

    def finish(self) -> None:
        self._producer.flush(_FLUSH_S)


_METADATA_AGE_MS = 5000


class _Refreshing:
    """Whether a client of kafka-python, opened now, still asks for metadata.

    kafka-python 3.0.12 may stop asking for good: its loop ends with the error of another refresh
    that it waits for (cluster.py, _refresh_loop), and then it turns to whoever led once. One whose
    metadata is three times as old as it may be is made anew.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._opened_ms = time.monotonic() * 1000

    def has_ended(self) -> bool:
        asked_ms = max(self._opened_ms, self._cluster._last_successful_refresh_ms)
        return bool(time.monotonic() * 1000 - asked_ms > 3 * _METADATA_AGE_MS)


class KafkaPythonProducer(_Producing):
    """What it had under way when it is made anew, nobody knows."""

    def open(self, config: Any) -> None:
        from kafka import KafkaProducer

        self._config = config
        self._producer = KafkaProducer(
            bootstrap_servers=self.worker.bootstrap.split(","), acks="all",
            enable_idempotence=True, linger_ms=5, max_block_ms=_FLUSH_S * 1000,
            metadata_max_age_ms=_METADATA_AGE_MS, **_KAFKA_PYTHON, **config,
        )  # fmt: skip
        self._refreshing = _Refreshing(self._producer._metadata)

    def send(self, number: int, partition: int, value: bytes) -> None:
        try:
            future = self._producer.send(self.worker.topic, value, partition=partition)
        except Exception as error:
            self.given_up(number, repr(error))
            return
        future.add_callback(lambda done: self.acked(number, done.offset))
        future.add_errback(lambda error: self.given_up(number, repr(error)))

    def breathe(self, seconds: float) -> None:
        time.sleep(seconds)
        if self._refreshing.has_ended():
            self._end()
            self.open(self._config)

    def _end(self) -> None:
        """Not by `close`: it flushes first, and where that fails it raises and ends nothing."""
        self._producer._unregister_cleanup()
        self._producer._sender.force_close()

    def finish(self) -> None:
        from kafka.errors import KafkaTimeoutError

        deadline = time.monotonic() + _FLUSH_S
        while not self._refreshing.has_ended():
            try:
                self._producer.flush(timeout=_FLUSH_SLICE_S)
            except KafkaTimeoutError as error:
                if time.monotonic() < deadline:
                    continue
                self.worker.add(ClientError(now(), self.who, repr(error)))
            self._producer.close(timeout=10)
            return
        self._end()


class _Consuming(threading.Thread):
    """Polls until drained. `who` is READER or, in a group, READER/MEMBER."""

    def __init__(self, worker: Worker, who: str, group: str, config: Any) -> None:
        super().__init__(name=who, daemon=True)
        self.worker, self.who, self.group = worker, who, group
        self.reader = reader_of(who)
        self.count = worker.progress.setdefault(who, {"read": 0, "partitions": 0})
        self.highest = worker.highest.setdefault(self.reader, {})
        self.open(config)

    def run(self) -> None:
        deadline: float | None = None
        while not self.worker.has_drained(self.reader):
            if self.worker.ends is not None:
                deadline = deadline or time.monotonic() + _DRAIN_S
                if time.monotonic() > deadline:
                    break
            records = self.poll()
            if records:
                self.worker.add(Polled(now(), self.who, records))
                self.count["read"] += len(records)
                for partition, offset, _ in records:
                    self.highest[partition] = max(offset, self.highest.get(partition, -1))
        self.close()

    def assigned(self, partitions: list[int]) -> None:
        self.count["partitions"] = len(partitions)
        self.worker.add(Assigned(now(), self.who, sorted(partitions)))

    def failed(self, error: object) -> None:
        self.worker.add(ClientError(now(), self.who, str(error)))

    def open(self, config: Any) -> None:
        raise NotImplementedError

    def poll(self) -> list[tuple[int, int, str]]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").rstrip(".")


class ConfluentConsumer(_Consuming):
    """With a group it subscribes; without, it is assigned every partition from the start."""

    def open(self, config: Any) -> None:
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        # What librdkafka tells and goes on trying to mend.
        self._transport = {
            KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE,
        }  # fmt: skip
        own = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000}
        if not self.group:
            # Whoever reads from where it stood needs no reset: one would be a skip or a step back.
            own = {"auto.offset.reset": "error", "enable.auto.commit": False}
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.worker.bootstrap, "group.id": self.group or "none",
                "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 5000,
                **_RDKAFKA, **own, **config,
            }
        )  # fmt: skip
        if self.group:
            self._consumer.subscribe(
                [self.worker.topic],
                on_assign=lambda _, given: self.assigned([place.partition for place in given]),
            )
        else:
            partitions = list(range(self.worker.partitions))
            self._consumer.assign([TopicPartition(self.worker.topic, p, 0) for p in partitions])
            self.assigned(partitions)

    def poll(self) -> list[tuple[int, int, str]]:
        records = []
        for message in self._consumer.consume(500, 0.1):
            error = message.error()
            if error is not None:
                if not error.retriable() and error.code() not in self._transport:
                    self.failed(error)
            else:
                records.append((message.partition(), message.offset(), _text(message.value())))
        return records

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonConsumer(_Consuming):
    """A member of a group."""

    def open(self, config: Any) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer

        outer = self
        self._config = config

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            def on_partitions_assigned(self, assigned: Any) -> None:
                outer.assigned([place.partition for place in assigned])

        self._consumer = KafkaConsumer(
            bootstrap_servers=self.worker.bootstrap.split(","), group_id=self.group,
            auto_offset_reset="earliest", auto_commit_interval_ms=1000, session_timeout_ms=6000,
            heartbeat_interval_ms=500, fetch_max_wait_ms=200, metadata_max_age_ms=_METADATA_AGE_MS,
            **_KAFKA_PYTHON, **config,
        )  # fmt: skip
        self._refreshing = _Refreshing(self._consumer._cluster)
        self._consumer.subscribe([self.worker.topic], listener=Listener())

    def poll(self) -> list[tuple[int, int, str]]:
        if self._refreshing.has_ended():
            self._consumer.close()
            self.open(self._config)
        try:
            # Longer than a SyncGroup takes: what is assigned after the poll has ended is lost.
            found = self._consumer.poll(timeout_ms=1000, max_records=500)
        except Exception as error:
            if not getattr(error, "retriable", False):  # a refused connection, for example
                self.failed(repr(error))
            time.sleep(0.1)
            return []
        return [
            (place.partition, record.offset, _text(record.value))
            for place, records in found.items()
            for record in records
        ]

    def close(self) -> None:
        self._consumer.close()


CLIENTS = {
    "confluent-producer": ConfluentProducer,
    "kafka-python-producer": KafkaPythonProducer,
    "confluent-consumer": ConfluentConsumer,
    "kafka-python-consumer": KafkaPythonConsumer,
}


def _obey(worker: Worker) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if command == "stop":
            worker.stopping.set()
        else:
            worker.ends = {int(p): end for p, end in command[1].items()}
    os._exit(1)  # the test is gone


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    task = json.loads(sys.argv[1])
    worker = Worker(task)
    clients = [CLIENTS[each.pop("kind")](worker, **each) for each in task["clients"]]
    for client in clients:
        client.start()
    threading.Thread(target=_obey, args=(worker,), daemon=True).start()
    while any(client.is_alive() for client in clients):
        worker.say()
        time.sleep(0.1)
    worker.say()
    os._exit(0)  # no destructor of a client may wait now


if __name__ == "__main__":
    main()
