"""An ordinary Produce is served the short way, and those that wait in line are served together; the
long way, one by one, has the same outcome to the byte.

Two nodes get the same frames, one of them without the short ways. Answers must be equal, and at the
end what is in their logs, their indexes, and what they know of producers.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.config.kafka_config import KafkaConfig
from server.handlers import produce as handlers
from server.node.node import Node
from server.peers.blocking_peer import BlockingPeer
from storage.config import LogConfig
from tests.server.handler_support import CLOSED, FakeChannel, FakeProcessor
from tests.server.wire_client import request_bytes, responses_in
from wire.errors import ErrorCode
from wire.frame import decode_response_header
from wire.messages.admin import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.data import ProduceRequest, ProduceResponse
from wire.plain_produce import read_plain_produce
from wire.records import Record, build_batch

TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "small": {"max.message.bytes": "300"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "quorum": {"min.insync.replicas": "2"},
}
NOW_MS = int(time.time() * 1000)
SEED = 17


class Processor(FakeProcessor):
    """Tells when an answer is there: some are given by handler threads."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = threading.Event()

    def complete(self, channel, request, parts):
        super().complete(channel, request, parts)
        self.answered.set()


class Side:
    """A node whose Produce requests are handed over without a socket."""

    def __init__(self, node: Node) -> None:
        assert node.broker_server is not None
        self.broker = node.broker_server
        self.requests = self.broker.socket_server.request_channel
        self.processor = Processor()
        self.ids: dict[str, bytes] = {}

    def create_topics(self) -> None:
        port = next(iter(self.broker.socket_server.ports.values()))
        peer = BlockingPeer("127.0.0.1", port, "test")
        configs = CreateTopicsRequest.Topic.Config
        topics = [
            CreateTopicsRequest.Topic(
                name=name,
                num_partitions=2,
                replication_factor=1,
                assignments=[],
                configs=[configs(name=key, value=value) for key, value in wanted.items()],
            )
            for name, wanted in TOPICS.items()
        ]
        answer = peer.exchange(
            CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=False),
            7,
            CreateTopicsResponse,
        )
        peer.close()
        assert [topic.error_code for topic in answer.topics] == [0] * len(TOPICS)
        self.ids = {name: self.broker.metadata.topics_by_name[name].topic_id for name in TOPICS}

    def answer(self, frame: bytes) -> Any:
        """Bytes, None if there is none, or CLOSED."""
        channel = FakeChannel(self.processor)
        self.processor.answered.clear()
        assert self.requests.receive(channel, frame)
        if channel.violation is not None:
            return CLOSED
        assert self.processor.answered.wait(30)
        return self.processor.done.pop() or None

    def answers(self, channel: FakeChannel, frames: Iterable[bytes]) -> list[Any]:
        """To frames that came in one read, as a processor has them served; ends with CLOSED."""
        channel.frames = deque(frames)
        told: list[Any] = []
        while channel.frames and CLOSED not in told:
            taken = 0
            self.processor.answered.clear()
            if len(channel.frames) > 1:
                taken = self.requests.receive_together(channel, len(channel.frames))
            if not taken:
                assert self.requests.receive(channel, channel.frames.popleft())
            if channel.violation is not None:
                return [*told, CLOSED]
            assert self.processor.answered.wait(30)
            told.append(self.processor.done.pop())
        return told

    def indexes(self) -> dict[tuple[str, int], list[Any]]:
        """What is known of all segments, and of producers."""
        known: dict[tuple[str, int], list[Any]] = {}
        for key, partition in self.broker.replica_manager.local.partitions.items():
            log = partition.log
            if key[0] not in TOPICS or log is None:
                continue
            known[key] = [log.view[:4]]
            for one in log.segments:
                known[key] += (one.size, one.bytes_since_index, one.max_timestamp)
                known[key] += (one.max_timestamp_offset, one.first_timestamp)
                for index in (one.offset_index, one.time_index):
                    known[key] += (index.entry(slot) for slot in range(index.entries))
            known[key] += (repr(producer) for producer in log.active_producers())
        return known

    def logs(self) -> dict[str, list[bytes]]:
        """The bytes of all segments, by partition."""
        found = {}
        for topic in TOPICS:
            for index in (0, 1):
                partition = self.broker.replica_manager.local.partitions[topic, index]
                assert partition.log is not None
                files = sorted(Path(partition.log.directory).glob("*.log"))
                found[f"{topic}-{index}"] = [file.read_bytes() for file in files]
        return found


@contextmanager
def running(directory: Path) -> Iterator[Side]:
    config = {"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
    node = Node(KafkaConfig(config))
    try:
        node.start()
        side = Side(node)
        side.create_topics()
        yield side
    finally:
        node.shutdown()


def a_batch(rng: random.Random) -> bytes | None:
    """Mostly right ones; what is wrong is wrong in a way of its own."""
    count = rng.choice((1, 1, 1, 2, 16, 17, 40))
    key = rng.choice((None, b"k"))
    at = NOW_MS + rng.choice((0, 0, 0, 2 * 3_600_000))
    records = [Record(-1, at + i, key, bytes(rng.randrange(30))) for i in range(count)]
    producer = rng.choice(({}, {}, {"producer_id": 9, "producer_epoch": 0}))
    if producer:
        producer = {**producer, "base_sequence": rng.randrange(4)}
    batch = bytearray(
        build_batch(
            records,
            codec=rng.choice((0, 0, 0, 0, 1, 4)),
            is_transactional=not rng.randrange(12),
            **producer,
        )
    )
    spoil = rng.randrange(14)
    if spoil == 0:
        batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
    elif spoil == 1:
        del batch[rng.randrange(len(batch)) :]
    elif spoil == 2:
        batch += bytes(batch)
    elif spoil == 3:
        return rng.choice((None, b"", b"\0" * 10))
    return bytes(batch)


def a_request(rng: random.Random, version: int) -> Callable[[Side], bytes]:
    """Makes the frame for a side: topic ids are its own."""
    partition = ProduceRequest.Topic.Partition
    names = [
        rng.choice((*TOPICS, "plain", "plain", "unknown", "__consumer_offsets"))
        for _ in range(rng.choice((1, 1, 1, 2, 3)))
    ]
    parts = [
        [
            partition(index=rng.choice((0, 0, 1, 1, 5, -1)), records=a_batch(rng))
            for _ in range(rng.choice((1, 1, 1, 2, 2, 0)))
        ]
        for _ in names
    ]
    given: dict[str, Any] = {
        "acks": rng.choice((1, 1, -1, 0, 2)),
        "timeout_ms": rng.choice((1_000, 0)),
        "transactional_id": rng.choice((None, None, None, "tx")),
    }
    end = rng.choice((b"", b"", b"", b"\0", b"more"))
    cut = rng.randrange(30) or None

    def frame(side: Side) -> bytes:
        topics = [
            ProduceRequest.Topic(topic_id=side.ids.get(name, bytes(16)), partition_data=of)
            if version >= 13
            else ProduceRequest.Topic(name=name, partition_data=of)
            for name, of in zip(names, parts, strict=True)
        ]
        whole = request_bytes(ProduceRequest(topic_data=topics, **given), version, 77)
        return (whole if cut else whole[: len(whole) // 2]) + end

    return frame


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:
        short = stack.enter_context(running(tmp_path / "short"))
        long = stack.enter_context(running(tmp_path / "long"))
        for side in (short, long):  # the registry is one for all nodes of a process
            produce = copy(side.requests._apis[0])
            produce.load()
            side.requests._apis = {0: produce}
            side.broker.replica_manager.writes._wall_ms = lambda: NOW_MS
        produce.ordinary = produce.together = None
        yield short, long


def test_both_ways_end_alike(sides: tuple[Side, Side]) -> None:
    short, long = sides
    produce = short.requests._apis[0]
    ordinary = produce.ordinary
    assert ordinary is not None
    assert long.requests._apis[0].ordinary is None
    served: list[int] = []

    def noted(ctx: Any, frame: bytes, pos: int) -> bool:
        is_served: bool = ordinary(ctx, frame, pos)
        plain = read_plain_produce(frame, pos, ctx.api_version) if is_served else None
        served.append(0 if plain is None else len(plain.records))
        return is_served

    produce.ordinary = noted
    rng = random.Random(SEED)
    for number in range(3_000):
        version = rng.choice((rng.randrange(3, 14), rng.randrange(9, 14)))
        make = a_request(rng, version)
        answers = [side.answer(make(side)) for side in sides]
        if version >= 13 and isinstance(answers[1], bytes):
            for name, topic_id in long.ids.items():
                answers[1] = answers[1].replace(topic_id, short.ids[name])
        assert answers[0] == answers[1], f"request {number} of seed {SEED}"
    assert served.count(0) > 300
    assert served.count(1) > 200
    assert sum(batches > 1 for batches in served) > 200
    assert short.logs() == long.logs()


def a_burst(rng: random.Random, version: int) -> list[Callable[[Side], bytes]]:
    """What a producer sends that does not wait for answers; some of it is odd."""
    partition = ProduceRequest.Topic.Partition
    acks, timeout_ms = rng.choice((1, 1, -1, 0, 2)), 1_000
    sequences = {index: rng.randrange(3) for index in (0, 1)}
    producer_id = rng.choice((-1, -1, 20, 21))
    transactional_id = "tx" if not rng.randrange(9) else None
    names = [rng.choice((*TOPICS, "plain", "plain", "plain"))]
    if not rng.randrange(3):
        names.append(rng.choice(("plain", "small", "unknown")))

    def a_partition(index: int) -> Any:
        if not rng.randrange(12):
            return partition(index=rng.choice((index, 5)), records=a_batch(rng))
        count = rng.choice((1, 1, 2, 5))
        key = rng.choice((None, b"k"))
        own: dict[str, Any] = {}
        if producer_id >= 0:
            sequence = sequences[index] + (0 if rng.randrange(9) else rng.choice((-1, 1)))
            own = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": max(0, sequence),
            }
            sequences[index] += count
        records = [Record(-1, NOW_MS + i, key, bytes(rng.randrange(60))) for i in range(count)]
        return partition(index=index, records=bytes(build_batch(records, **own)))

    def one(number: int) -> Callable[[Side], bytes]:
        indexes = rng.choice(((0,), (0,), (1,), (0, 1)))
        parts = [[a_partition(index) for index in indexes] for _ in names]
        unlike = not rng.randrange(20)
        end = b"" if rng.randrange(40) else b"more"

        def frame(side: Side) -> bytes:
            topics = [
                ProduceRequest.Topic(topic_id=side.ids.get(name, bytes(16)), partition_data=of)
                if version >= 13
                else ProduceRequest.Topic(name=name, partition_data=of)
                for name, of in zip(names, parts, strict=True)
            ]
            request = ProduceRequest(
                transactional_id=transactional_id,
                acks=acks,
                timeout_ms=timeout_ms + unlike,
                topic_data=topics,
            )
            return request_bytes(request, version - (unlike and version > 3), number) + end

        return frame

    return [one(number) for number in range(rng.choice((2, 2, 3, 5, 16)))]


def test_together_and_one_by_one_end_alike(sides: tuple[Side, Side]) -> None:
    short, long = sides
    produce = short.requests._apis[0]
    together = produce.together
    assert together is not None
    served: list[int] = []

    def noted(ctx: Any, frames: list[bytes], pos: int) -> int:
        served.append(together(ctx, frames, pos))
        return served[-1]

    produce.together = noted
    rng = random.Random(SEED)
    channels = [FakeChannel(side.processor) for side in sides]
    for number in range(1_500):
        version = rng.choice((13, rng.randrange(9, 14), rng.randrange(3, 14)))
        frames = a_burst(rng, version)
        answers = [
            side.answers(channel, [make(side) for make in frames])
            for side, channel in zip(sides, channels, strict=True)
        ]
        whole = [b"".join(bytes(one) for one in told if one != CLOSED) for told in answers]
        for name, topic_id in long.ids.items():
            whole[1] = whole[1].replace(topic_id, short.ids[name])
        assert whole[0] == whole[1], f"burst {number} of seed {SEED}"
        ends = [CLOSED in told for told in answers]
        assert ends[0] == ends[1], f"burst {number} of seed {SEED}"
        if ends[0]:
            channels = [FakeChannel(side.processor) for side in sides]
    assert sum(count > 1 for count in served) > 300
    assert served.count(0) > 100
    assert short.logs() == long.logs()
    assert short.indexes() == long.indexes()


def test_records_for_a_topic_made_again_are_not_lost_in_the_one_before(
    sides: tuple[Side, Side],
) -> None:
    """Metadata is known a moment before it is acted on: the name is the old topic's until then,
    and what is written there is deleted with it."""
    again = b"plain, once more"
    batch = bytes(build_batch([Record(-1, NOW_MS, None, b"v")]))
    partition = ProduceRequest.Topic.Partition(index=0, records=batch)
    topic_data = [ProduceRequest.Topic(topic_id=again, partition_data=[partition])]
    request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topic_data)
    for side in sides:
        loader = side.broker.shared.loader
        before = loader.image
        topic = replace(before.topics_by_name["plain"], topic_id=again)
        loader.image = replace(
            before,
            topics_by_name={**before.topics_by_name, "plain": topic},
            topics_by_id={again: topic},
        )
        answer = side.answer(request_bytes(request, 13, 77))[4:]
        _, pos = decode_response_header(0, 13, answer)
        told = ProduceResponse.decode(answer, 13, pos).responses[0].partition_responses[0]
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert side.logs()["plain-0"] == [b""]


# --- what is served together is served no worse than alone ----------------------------------------

VERSION = 12


def simple(number: int, index: int, *, topic: str = "plain", acks: int = -1) -> bytes:
    batch = bytes(build_batch([Record(-1, NOW_MS, b"k", b"v")]))
    partition = ProduceRequest.Topic.Partition(index=index, records=batch)
    topics = [ProduceRequest.Topic(name=topic, partition_data=[partition])]
    request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=topics)
    return request_bytes(request, VERSION, number)


def codes_in(data: bytes) -> list[tuple[int, int]]:
    """Correlation id and error code of each answer of one partition."""
    found = []
    for number, response in responses_in(data, ProduceRequest.api_key, VERSION):
        (topic,) = response.responses
        (partition,) = topic.partition_responses
        found.append((number, partition.error_code))
    return found


@pytest.fixture(params=["together", "one by one"])
def side(request: pytest.FixtureRequest, sides: tuple[Side, Side]) -> Side:
    """One of both, whose logs of topic plain have a record each: the first is not ordinary."""
    chosen = sides[request.param != "together"]
    for index in (0, 1):
        chosen.answers(FakeChannel(chosen.processor), [simple(9, index)])
    return chosen


def log_of(side: Side, index: int) -> Any:
    return side.broker.replica_manager.local.partitions["plain", index].log


@pytest.mark.parametrize("first", [0, 5])
def test_what_can_be_answered_does_not_wait_for_what_is_behind_it(side: Side, first: int) -> None:
    """The second waits for a disk that hangs; the first is written, or refused."""
    partition = side.broker.replica_manager.local.partitions["plain", 1]
    partition.log.update_config(LogConfig(flush_messages=1))
    flushes: list[Any] = []
    partition._group_commit._flush_async = lambda *args: flushes.append(args)
    channel = FakeChannel(side.processor)
    channel.client_id, channel.client_id_raw = "test", b"test"
    channel.frames = deque([simple(1, first), simple(2, 1)])
    side.processor.done.clear()
    is_together = side.requests._apis[0].together is not None
    while channel.frames and channel.in_flight is None:
        taken = side.requests.receive_together(channel, 16) if len(channel.frames) > 1 else 0
        assert taken == (2 if is_together else 0)
        if not taken:
            assert side.requests.receive(channel, channel.frames.popleft())
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if first else 0
    assert [codes_in(data) for data in side.processor.done] == [[(1, code)]]
    for log, on_flushed in flushes:
        log.flush()
        on_flushed(None)
    assert [codes_in(data) for data in side.processor.done] == [[(1, code)], [(2, 0)]]
    assert channel.in_flight is None


def test_a_fault_of_ours_costs_the_batches_that_met_it(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether those are there; what others wait for is told to them."""

    def fault(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    for name in ("append_as_leader", "append_run_as_leader"):
        monkeypatch.setattr(log_of(side, 1), name, fault)
    heard: list[int] = []
    parked = side.broker.replica_manager.parked
    parked.add_high_watermark_listener(("plain", 0), lambda: heard.append(1))
    frames = [simple(number, number % 2) for number in range(5)]
    told = side.answers(FakeChannel(side.processor), frames)
    lost = ErrorCode.REQUEST_TIMED_OUT
    assert codes_in(b"".join(told)) == [(0, 0), (1, lost), (2, 0), (3, lost), (4, 0)]
    assert log_of(side, 0).log_end_offset == 4
    assert heard


def test_acks_0_in_line_comes_alone(side: Side) -> None:
    frames = [simple(number, 0, acks=0) for number in range(3)]
    assert side.answers(FakeChannel(side.processor), frames) == [b""] * 3
    assert log_of(side, 0).log_end_offset == 4


def test_an_answer_that_cannot_be_written_ends_the_connection(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    side = sides[0]
    channel = FakeChannel(side.processor)
    side.answers(channel, [simple(9, 0)])

    def fault(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(handlers, "answer_plain_produce", fault)
    told = side.answers(channel, [simple(1, 0), simple(2, 0)])
    assert told == [CLOSED]
    assert "answer failed" in caplog.text
