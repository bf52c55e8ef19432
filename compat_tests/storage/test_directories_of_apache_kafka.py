"""A data directory goes from Apache Kafka to us and back: after a clean stop and after kill -9.

Kafka writes with real producers (all codecs, idempotent, transactions that commit and abort), is
stopped or killed, and our LogManager opens its directory: the records must be those Kafka's own
consumer saw. Then we append, shut down, and Kafka starts on what we left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from storage.config import LogConfig, SystemClock
from storage.directories.log_dirs import FormattedDirs, prepare_log_dirs
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from testkit import jars
from testkit.brokers.nodes import ApacheKafka
from testkit.clock import WALL_MS
from testkit.require import require
from wire.primitives import TopicPartition
from wire.records import Record, build_batch, check_crc, iterate_headers, read_records

pytestmark = pytest.mark.java

TOPIC = "travels-1"
PARTITIONS = 2
SEGMENT_BYTES = 1 << 20
Seen = dict[int, list[tuple[int, int, bytes | None, bytes | None]]]


@pytest.fixture(scope="module")
def written_by_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    try:
        jars.libs()
    except jars.JarsUnavailable as reason:
        require(False, str(reason))
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("kafka"),
        {"log.segment.bytes": SEGMENT_BYTES, "log.index.interval.bytes": 1024},
    )
    with kafka:
        yield kafka


def produce(kafka: ApacheKafka, marker: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        error = future.exception()
        if error is not None and error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise error
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "compression.type": codec,
                "enable.idempotence": codec != "gzip",
                "linger.ms": 20,
            }
        )
        for number in range(400):
            value = None if number % 50 == 0 else marker + os.urandom(1500)
            producer.produce(
                TOPIC, value, key=b"%d" % number, partition=number % PARTITIONS, headers={"h": b"1"}
            )
        assert producer.flush(30) == 0
    for number in range(4):
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"t{number}"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"in transaction %d" % number, partition=partition)
        assert producer.flush(30) == 0  # or an abort drops what was not sent
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def consume(kafka: ApacheKafka, isolation: str = "read_uncommitted") -> Seen:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
        }
    )
    from confluent_kafka import TopicPartition as Assigned

    consumer.assign([Assigned(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    seen: Seen = {partition: [] for partition in range(PARTITIONS)}
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "the consumer got nothing"
        partition = message.partition()
        error = message.error()
        if error is None:
            at_end.discard(partition)
            seen[partition].append(
                (message.offset(), message.timestamp()[1], message.key(), message.value())
            )
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            at_end.add(partition)
    consumer.close()
    return seen


def read_log(log: PartitionLog, isolation: str = "read_uncommitted") -> list[object]:
    """All records of a log, as a consumer of that isolation level keeps them."""
    aborted = log.aborted_transactions(0, log.log_end_offset)
    found: list[object] = []
    at = log.log_start_offset
    while at < log.log_end_offset:
        result = log.read(at, 1 << 20, True, log.log_end_offset)
        assert result.records is not None
        data = result.records.read()
        for position, header in iterate_headers(data):
            assert check_crc(data, position, header)
            at = header.next_offset
            is_aborted = header.is_transactional and any(
                txn.producer_id == header.producer_id
                and txn.first_offset <= header.base_offset <= txn.last_offset
                for txn in aborted
            )
            if header.is_control or (is_aborted and isolation == "read_committed"):
                continue
            found += [
                (record.offset, record.timestamp, record.key, record.value)
                for record in read_records(data, position, header)
            ]
    return found


def open_directory(path: Path) -> tuple[FormattedDirs, LogManager]:
    formatted = prepare_log_dirs([path], 1, None, lambda: os.urandom(16))

    def failed(directory: Path, error: OSError) -> None:
        raise AssertionError(f"{directory} went offline: {error}")

    manager = LogManager(formatted.directory_ids, LogConfig(), SystemClock(), None, failed)
    manager.startup(lambda topic: LogConfig(segment_bytes=SEGMENT_BYTES))
    return formatted, manager


def stopped(kafka: ApacheKafka) -> None:
    kafka.stop()


def killed(kafka: ApacheKafka) -> None:
    kafka.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [stopped, killed])
def test_what_kafka_wrote_is_read_and_continued_and_kafka_reads_that(
    written_by_kafka: ApacheKafka, end: Callable[[ApacheKafka], None]
) -> None:
    kafka = written_by_kafka
    produce(kafka, end.__name__.encode())
    seen = consume(kafka)
    committed = consume(kafka, "read_committed")
    assert sum(map(len, seen.values())) - sum(map(len, committed.values())) >= 2 * PARTITIONS
    end(kafka)

    formatted, manager = open_directory(kafka.data_dir)
    try:
        for partition in range(PARTITIONS):
            log = manager.get(TopicPartition(TOPIC, partition))
            assert log is not None
            assert len(log.segments) > 1
            assert read_log(log) == seen[partition]
            assert read_log(log, "read_committed") == committed[partition]
            assert log.high_watermark >= 0
            rows = [Record(-1, WALL_MS + n, b"ours", b"%d" % n) for n in range(500)]
            for start in range(0, 500, 7):
                group = rows[start : start + 7]
                log.append_as_leader(
                    build_batch(group, codec=start % 5), log.latest_epoch, SystemClock().wall_ms()
                )
            log.update_high_watermark(log.log_end_offset)
        names = {log.topic_partition.topic for log in manager.all_logs()}
        assert {"__transaction_state", TOPIC, "__consumer_offsets"} >= names
    finally:
        manager.shutdown(manager.previous_broker_epoch)
        formatted.release()

    kafka.start()
    for partition, records in consume(kafka).items():
        assert records[: len(seen[partition])] == seen[partition]
        ours = records[len(seen[partition]) :]
        assert [value for _, _, key, value in ours if key == b"ours"] == [
            b"%d" % number for number in range(500)
        ]
