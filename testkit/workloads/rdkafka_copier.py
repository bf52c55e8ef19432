"""A copier made of librdkafka: consume, produce, and commit both in one transaction.

`python -m testkit.workloads.rdkafka_copier BOOTSTRAP SOURCE TARGET TRANSACTIONAL_ID GROUP`
copies each partition to that of the same number until SIGTERM; some transactions it aborts on
purpose.

A failure costs a life: the process begins anew with `exec`, where the group's offsets say, as a
user's would whose supervisor starts it again. So does a call that does not return: librdkafka 2.16
waits for ever for a group's coordinator that Metadata left out for a while (its issues 5511 and
5456), and for the end of a producer that is destroyed meanwhile. So nothing is closed here, and by
static membership the next life has the partitions of the one before at once. A static member that
heard nothing from its coordinator for a session asks with an empty member id, and is fenced for it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from testkit.clients.rdkafka import until_done

TRANSACTION_SIZE = 200
_CALL_S = 10
_RETRY_S = 90
_HANGS_S = 30
_ABORTED = 0.1


class Life:
    """Ends the process on SIGTERM, and begins it anew when its work has stood still for too long.

    SIGTERM is waited for on a thread: a handler would never run while the main thread hangs.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._moved_at = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=self._watch, daemon=True).start()

    def moves(self) -> None:
        self._moved_at = time.monotonic()

    def end(self, why: str) -> None:
        """Exit if that was asked for, else the next life. Never returns."""
        print(why, flush=True)
        if self.is_over:
            os._exit(0)
        os.execv(sys.executable, sys.orig_argv)

    def _watch(self) -> None:
        while True:
            if signal.sigtimedwait({signal.SIGTERM}, 1.0) is not None:
                self.is_over = True
            if time.monotonic() - self._moved_at > _HANGS_S:
                self.end(f"no call returned for {_HANGS_S} s")


class Copier:
    def __init__(
        self, life: Life, bootstrap: str, source: str, target: str, name: str, group: str
    ) -> None:
        self._life, self._source, self._target = life, source, target
        self._chance = random.Random(f"{name} {time.time()}")
        shared = {"bootstrap.servers": bootstrap, "log_level": 2}
        self._producer = Producer(
            {**shared, "transactional.id": name, "transaction.timeout.ms": 10_000}
        )
        self._consumer = Consumer(
            {
                **shared,
                "group.id": group,
                "group.instance.id": name,
                "session.timeout.ms": 6_000,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )

    def run(self) -> None:
        """Until the end is asked for. Raises KafkaException when only another life helps."""
        self._until_done(lambda: self._producer.init_transactions(_CALL_S))
        self._consumer.subscribe([self._source])
        while not self._life.is_over:
            messages = self._consumer.consume(TRANSACTION_SIZE, timeout=0.2)
            self._life.moves()
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._FATAL:
                    raise KafkaException(error)
            messages = [message for message in messages if message.error() is None]
            if messages and not self._copied(messages):
                self._rewind(messages)

    def _copied(self, messages: list[Message]) -> bool:
        """One transaction; False if it was aborted."""
        ends = {message.partition(): message.offset() + 1 for message in messages}
        positions = [TopicPartition(self._source, at, end) for at, end in ends.items()]
        producer, group = self._producer, self._consumer.consumer_group_metadata()
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce(self._target, message.value(), partition=message.partition())
            self._until_done(
                lambda: producer.send_offsets_to_transaction(positions, group, _CALL_S)
            )
            if self._chance.random() >= _ABORTED:
                self._until_done(lambda: producer.commit_transaction(_CALL_S))
                return True
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
        self._until_done(lambda: producer.abort_transaction(_CALL_S))
        return False

    def _rewind(self, messages: list[Message]) -> None:
        firsts: dict[int, int] = {}
        for message in messages:
            firsts.setdefault(message.partition(), message.offset())
        for partition, offset in firsts.items():
            self._consumer.seek(TopicPartition(self._source, partition, offset))

    def _until_done(self, call: Callable[[], object]) -> None:
        def once() -> None:
            try:
                call()
            finally:
                self._life.moves()

        until_done(once, time.monotonic() + _RETRY_S)


def main(bootstrap: str, source: str, target: str, name: str, group: str) -> None:
    life = Life()
    why = "asked to end"
    copier = Copier(life, bootstrap, source, target, name, group)
    try:
        copier.run()
    except KafkaException as failed:
        why = str(failed)
    life.end(why)


if __name__ == "__main__":
    main(*sys.argv[1:])
