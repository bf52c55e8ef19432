"""Microseconds for each message: our codec beside kafka-python's and kio's, in one run.

    python -m benchmarks.micro.codec

Both are test dependencies; a peer that is not installed is left out. Digits vary with the machine,
the columns of one run can be compared. The budgets in wire.codec and wire.frame come from here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from time import thread_time
from timeit import repeat
from typing import Any

from wire.frame import FrameReader, RequestHeader, encode_response
from wire.messages.cluster import MetadataResponse
from wire.messages.data import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from wire.schema import Message

RECORDS = bytes(1000)
FRAME_SIZES = (100, 1 << 20)


def microseconds(action: Callable[[], object]) -> float:
    """Processor time of one call: the best of five rounds of about 30 ms each."""
    action()
    once = min(repeat(action, timer=thread_time, number=1, repeat=5))
    number = max(1, min(20_000, int(0.03 / max(once, 1e-7))))
    return min(repeat(action, timer=thread_time, number=number, repeat=5)) / number * 1e6


def produce_request(partitions: int) -> ProduceRequest:
    topic = ProduceRequest.Topic
    data = [
        topic.Partition(index=index, records=memoryview(RECORDS)) for index in range(partitions)
    ]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[topic(name="orders", partition_data=data)]
    )


def produce_response(partitions: int) -> ProduceResponse:
    topic = ProduceResponse.Topic
    answers = [
        topic.Partition(index=index, error_code=0, base_offset=100, log_start_offset=0)
        for index in range(partitions)
    ]
    return ProduceResponse(responses=[topic(name="orders", partition_responses=answers)])


def fetch_request(partitions: int) -> FetchRequest:
    topic = FetchRequest.Topic
    wanted = [
        topic.Partition(partition=index, fetch_offset=5, partition_max_bytes=1 << 20)
        for index in range(partitions)
    ]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        isolation_level=0,
        topics=[topic(topic="orders", partitions=wanted)],
        forgotten_topics_data=[],
    )


def fetch_response(partitions: int) -> FetchResponse:
    topic = FetchResponse.Topic
    answers = [
        topic.Partition(
            partition_index=index,
            error_code=0,
            high_watermark=1000,
            last_stable_offset=1000,
            log_start_offset=0,
            aborted_transactions=None,
            records=RECORDS,
        )
        for index in range(partitions)
    ]
    return FetchResponse(responses=[topic(topic="orders", partitions=answers)])


def metadata_response() -> MetadataResponse:
    made = MetadataResponse.blank()
    made.brokers = [MetadataResponse.Broker(node_id=n, host="broker", port=9092) for n in range(3)]
    for number in range(100):
        topic = MetadataResponse.Topic.blank()
        topic.name = f"topic-{number}"
        for index in range(3):
            partition = MetadataResponse.Topic.Partition.blank()
            partition.partition_index = index
            partition.replica_nodes = [1, 2, 3]
            partition.isr_nodes = [1, 2, 3]
            topic.partitions.append(partition)
        made.topics.append(topic)
    return made


def kafka_python(cls: type[Message]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.protocol import consumer, metadata, producer
    for area in (producer, consumer, metadata):
        if hasattr(area, cls.__name__):
            return getattr(area, cls.__name__)
    raise ImportError(cls.__name__)


def kio(cls: type[Message], version: int) -> Any:
    from importlib import import_module

    api = cls.__name__.removesuffix("Request").removesuffix("Response").lower()
    return getattr(import_module(f"kio.schema.{api}.v{version}.{cls.kind}"), cls.__name__)


def decode_row(message: Message, version: int) -> list[float | None]:
    cls = type(message)
    data = message.encode_bytes(version)
    row: list[float | None] = [microseconds(lambda: cls.decode(data, version))]
    try:
        peer = kafka_python(cls)
        row.append(microseconds(lambda: peer.decode(data, version=version)))
    except ImportError:
        row.append(None)
    try:
        from kio.serial import entity_reader

        read = entity_reader(kio(cls, version))
        row.append(microseconds(lambda: read(data, 0)))
    except ImportError:
        row.append(None)
    return row


def encode_row(message: Message, version: int) -> list[float | None]:
    cls = type(message)
    data = message.encode_bytes(version)
    row: list[float | None] = [microseconds(lambda: message.encode(version))]
    try:
        theirs = kafka_python(cls).decode(data, version=version)
        theirs._header = None
        row.append(microseconds(lambda: theirs.encode(version=version)))
    except ImportError:
        row.append(None)
    try:
        from kio.serial import entity_reader, entity_writer

        peer = kio(cls, version)
        entity, _ = entity_reader(peer)(data, 0)
        write = entity_writer(peer)
        row.append(microseconds(lambda: write(BytesIO(), entity)))
    except ImportError:
        row.append(None)
    return row


def framing_rows() -> dict[str, list[float | None]]:
    """Receiving is stood for by a copy into the buffer, whose own cost is the second column."""
    rows: dict[str, list[float | None]] = {}
    scratch = memoryview(bytearray(65_536))
    for size in FRAME_SIZES:
        stream = memoryview(size.to_bytes(4, "big") + bytes(size))
        reader = FrameReader(1 << 24)

        def read(stream: bytes = bytes(stream), reader: FrameReader = reader) -> None:
            at = 0
            while at < len(stream):
                piece = stream[at : at + 65_536]
                reader.feed(piece)
                at += len(piece)
            reader.frames.clear()

        def receive(stream: memoryview = stream) -> None:
            for at in range(0, len(stream), 65_536):
                piece = stream[at : at + 65_536]
                scratch[: len(piece)] = piece

        rows[f"read a frame of {size} bytes"] = [microseconds(read), microseconds(receive)]
    header = b"\0\0\0\x09\0\0\0\1\0\7rdkafka\0"
    rows["decode a request header"] = [microseconds(lambda: RequestHeader.decode(header))]
    response = produce_response(1)
    rows["Produce v9 response as a frame"] = [
        microseconds(lambda: encode_response(1, 9, 1, response))
    ]
    return rows


def show(name: str, row: list[float | None]) -> None:
    cells = ["-" if value is None else f"{value:.2f}" for value in row]
    print(f"{name:36}" + "".join(f"{cell:>14}" for cell in cells))


def main() -> None:
    print(f"{'us a message':36}{'barnabas':>14}{'kafka-python':>14}{'kio':>14}")
    for partitions in (1, 100):
        show(f"decode Produce v9 x{partitions}", decode_row(produce_request(partitions), 9))
        show(f"decode Fetch v12 x{partitions}", decode_row(fetch_request(partitions), 12))
        show(f"encode Produce v9 answer x{partitions}", encode_row(produce_response(partitions), 9))
        show(f"encode Fetch v12 answer x{partitions}", encode_row(fetch_response(partitions), 12))
    show("encode Metadata v12 100 topics x3", encode_row(metadata_response(), 12))
    print(f"\n{'us':36}{'barnabas':>14}{'copying alone':>14}")
    for name, row in framing_rows().items():
        show(name, row)


if __name__ == "__main__":
    main()
