"""`barnabas demo`: a broker, a producer and a consumer at work, for somebody who sees one first.

Starts a broker in a temporary directory, then speaks to it over a socket as any client would, with
the same message classes the broker decodes with. Each line says what just happened.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from server.config.kafka_config import KafkaConfig
from server.node.node import Node
from server.peers.blocking_peer import BlockingPeer
from storage.dump import dump_files
from wire.errors import ErrorCode
from wire.messages.admin import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.data import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from wire.primitives import uuid_to_text
from wire.records import Record, build_batch, iterate_headers, read_records

_TOPIC = "hello"
_CLIENT_ID = "barnabas-demo"

# A line is seen when it happens, also through a pipe.
_say = partial(print, flush=True)


def run_demo(count: int) -> int:
    """Show `count` records on their way; returns the exit code."""
    with tempfile.TemporaryDirectory(
        prefix="barnabas-demo-", ignore_cleanup_errors=True
    ) as directory:
        _run_in(Path(directory), count)
    print("\nNext: `barnabas start`, and point any Kafka client at 127.0.0.1:9092.")
    return 0


def _run_in(directory: Path, count: int) -> None:
    config = KafkaConfig({"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"})
    broker = Node(config)
    try:
        began = time.monotonic()
        broker.start()
        took_ms = (time.monotonic() - began) * 1000
        _say(f"broker    listens on {broker.host}:{broker.port}, ready in {took_ms:.0f} ms")
        connection = BlockingPeer(broker.host, broker.port, _CLIENT_ID)
        try:
            topic_id = _create_topic(connection)
            for number in range(1, count + 1):
                _produce(connection, topic_id, number)
                _consume(connection, topic_id, number - 1)
                time.sleep(0.3)  # so that a person can watch
        finally:
            connection.close()
        _show_log(directory / f"{_TOPIC}-0" / "00000000000000000000.log")
    finally:
        broker.shutdown()


def _check(code: int) -> None:
    if code != ErrorCode.NONE:
        raise RuntimeError(f"the broker answered {ErrorCode(code).name}")


def _create_topic(connection: BlockingPeer) -> bytes:
    topic = CreateTopicsRequest.Topic(
        name=_TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
    (created,) = connection.exchange(request, 7, CreateTopicsResponse).topics
    _check(created.error_code)
    _say(f"topic     {_TOPIC!r} created, id {uuid_to_text(created.topic_id)}")
    return created.topic_id


def _produce(connection: BlockingPeer, topic_id: bytes, number: int) -> None:
    record = Record(
        offset=0,
        timestamp=int(time.time() * 1000),
        key=b"demo",
        value=f"hello number {number}".encode(),
        headers=[],
    )
    partition = ProduceRequest.Topic.Partition(index=0, records=memoryview(build_batch([record])))
    topic = ProduceRequest.Topic(topic_id=topic_id, partition_data=[partition])
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    began = time.perf_counter()
    answer = connection.exchange(request, 13, ProduceResponse).responses[0].partition_responses[0]
    took_us = (time.perf_counter() - began) * 1e6
    _check(answer.error_code)
    _say(f"produced  {record.value!r} at offset {answer.base_offset} ({took_us:.0f} µs)")


def _consume(connection: BlockingPeer, topic_id: bytes, offset: int) -> None:
    partition = FetchRequest.Topic.Partition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    topic = FetchRequest.Topic(topic_id=topic_id, partitions=[partition])
    request = FetchRequest(max_wait_ms=1000, min_bytes=1, isolation_level=0, topics=[topic])
    answer = connection.exchange(request, 17, FetchResponse)
    _check(answer.error_code)
    fetched = answer.responses[0].partitions[0]
    _check(fetched.error_code)
    assert isinstance(fetched.records, memoryview)
    data = bytes(fetched.records)
    for position, header in iterate_headers(data):
        for record in read_records(data, position, header):
            _say(f"consumed  {record.value!r} from offset {record.offset}")


def _show_log(path: Path) -> None:
    print(f"\nOn disk, as `barnabas dump-log {path.parent.name}/{path.name}` prints it:")
    dump_files([path], sys.stdout)
