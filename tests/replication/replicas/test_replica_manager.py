"""The replica manager: requests answered once, with the right code, and never too early."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from replication.metadata.image import (
    DIRECTORY_UNASSIGNED,
    EMPTY_IMAGE,
    RESOURCE_TOPIC,
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from replication.partition.partition import Partition
from replication.replicas.delayed import LARGE, DelayedFetch, ProduceStatus
from replication.replicas.purgatory import DelayedOperation
from replication.replicas.replica_manager import (
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchResult,
    ReplicaManager,
    ReplicaManagerConfig,
)
from replication.replicas.timer import BackgroundScheduler, Timer
from storage import files
from storage.config import LogConfig
from storage.directories.copies import Copies
from storage.directories.future_logs import FutureLogs
from storage.directories.log_manager import LogManager
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from testkit.clock import WALL_MS, ManualClock
from wire.errors import ErrorCode, KafkaError
from wire.primitives import ZERO_UUID, TopicPartition
from wire.records import (
    Record,
    build_batch,
    read_records,
)

T = TypeVar("T")

NODE = 1
ORDERS, OTHER_ID, PAYMENTS = b"orders-topic-id!", b"orders, 2nd life", b"payments-topicid"
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Answer(Generic[T]):
    """A callback that remembers what it was told, and that it was told only once."""

    operation: DelayedOperation | None = None

    def __init__(self) -> None:
        self.told: list[T] = []

    def __call__(self, value: T) -> None:
        self.told.append(value)

    @property
    def is_pending(self) -> bool:
        return not self.told

    @property
    def value(self) -> T:
        assert len(self.told) == 1
        return self.told[0]


class Logs:
    """The log manager as the replica manager sees it: real logs, fsync when the test says so."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        self.log_dirs = [root]
        self.offline_dirs: set[Path] = set()
        self.cordoned_dirs: frozenset[Path] = frozenset()
        self.refusal: KafkaError | None = None
        self.strays: list[TopicPartition] = []
        self.deleted: list[TopicPartition] = []
        self.waiting: list[tuple[PartitionLog, Callable[..., object]]] = []
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._environment = LogEnvironment(root, clock=clock)
        manager: Any = self
        self.future_logs = FutureLogs(manager)
        self.copies = Copies()
        self._root = root
        self._lives = 0

    def open(self, key: TopicPartition, topic_id: bytes | None, config: LogConfig) -> PartitionLog:
        self._lives += 1
        directory = self._root / f"{key}.{self._lives}"
        return open_log(directory, key, config, self._environment, topic_id=topic_id)

    def get(self, key: TopicPartition) -> PartitionLog | None:
        return self.logs.get(key)

    def get_or_create(
        self, key: TopicPartition, topic_id: bytes, config: LogConfig, directory: Path | None = None
    ) -> PartitionLog:
        if key not in self.logs:
            if self.refusal is not None:
                raise self.refusal
            self.logs[key] = self.open(key, topic_id, config)
        return self.logs[key]

    def all_logs(self) -> list[PartitionLog]:
        return list(self.logs.values())

    def directory_by_id(self, directory_id: bytes) -> Path | None:
        return None

    def dir_space(self, directory: Path) -> tuple[int, int]:
        return 1000, 400

    def mark_stray(self, key: TopicPartition) -> None:
        self.strays.append(key)
        self.logs.pop(key).close()

    def delete(self, key: TopicPartition) -> None:
        self.deleted.append(key)
        self.logs.pop(key).close()

    def update_topic_config(self, topic: str, config: LogConfig) -> None:
        for key, log in self.logs.items():
            if key.topic == topic:
                log.update_config(config)

    def flush_async(self, log: PartitionLog, callback: Callable[..., object]) -> None:
        self.waiting.append((log, callback))

    def run_flushes(self) -> None:
        while self.waiting:
            log, callback = self.waiting.pop(0)
            log.flush()
            callback(None)


class Broker:
    """A replica manager on node 1 of a cluster of three, driven by metadata."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock(100)
        self.timer = Timer(self.clock)
        self.logs = Logs(root, self.clock)
        self.configs: dict[str, LogConfig] = {}
        brokers = {i: BrokerRegistration(i, 70 + i, bytes(16), {}, fenced=False) for i in (1, 2, 3)}
        self.image: MetadataImage = replace(EMPTY_IMAGE, offset=0, brokers=brokers)
        self.leadership: list[tuple[TopicPartition, int | None]] = []
        self.aside: list[Callable[[], None]] = []
        self.manager = ReplicaManager(
            ReplicaManagerConfig(),
            self.logs,  # type: ignore[arg-type]
            lambda: self.image,
            self.timer,
            self.clock,
            NODE,
            topic_config=lambda topic: self.configs.get(topic, LogConfig()),
            run_aside=self.aside.append,
        )
        self.manager.on_partition_leadership.append(
            lambda key, epoch: self.leadership.append((key, epoch))
        )

    def publish(self, *topics: TopicImage, deleted: dict[str, bytes] | None = None) -> None:
        """Commit metadata in which these are all the topics."""
        delta = MetadataDelta(self.image)
        delta.deleted_topics.update(deleted or {})
        delta.changed_topics.update(topic.name for topic in topics)
        self.image = replace(
            self.image,
            offset=self.image.offset + 1,
            topics_by_name={topic.name: topic for topic in topics},
            topics_by_id={topic.topic_id: topic for topic in topics},
        )
        self.manager.apply_delta(delta, self.image)

    def change_config(self, topic: str, config: LogConfig) -> None:
        self.configs[topic] = config
        delta = MetadataDelta(self.image)
        delta.changed_configs.add((RESOURCE_TOPIC, topic))
        self.manager.apply_delta(delta, self.image)

    def produce(
        self, *batches: tuple[TopicPartition, bytes], acks: int = -1, timeout_ms: int = 1000
    ) -> Answer[list[AppendResult]]:
        answer: Answer[list[AppendResult]] = Answer()
        answer.operation = self.manager.append_records(
            AppendRequest(acks, timeout_ms, list(batches), answer)
        )
        return answer

    def produce_burst(
        self, *batches: tuple[TopicPartition, bytes], acks: int = -1, **more: Any
    ) -> Answer[list[AppendResult]]:
        """Several requests of a client at once."""
        answer: Answer[list[AppendResult]] = Answer()
        more = {"on_settled": lambda *_: None, **more}
        answer.operation = self.manager.append_records(
            AppendRequest(acks, 1000, list(batches), answer, **more)
        )
        return answer

    def fetch(
        self,
        *partitions: FetchPartition,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 30,
        replica: int = -1,
        isolation: int = 0,
    ) -> Answer[list[FetchResult]]:
        answer: Answer[list[FetchResult]] = Answer()
        answer.operation = self.manager.fetch(
            replica, max_wait_ms, min_bytes, max_bytes, isolation, partitions, answer
        )
        return answer

    def follower_fetches(self, offset: int, replica: int = 2) -> None:
        self.fetch(read_from(offset, start=0), max_wait_ms=0, replica=replica)

    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms
        self.timer.run_due()


def topic(
    name: str,
    topic_id: bytes,
    *partitions: PartitionRegistration,
) -> TopicImage:
    return TopicImage(name, topic_id, dict(enumerate(partitions)))


def led(
    epoch: int = 0,
    *,
    leader: int = NODE,
    isr: tuple[int, ...] = (NODE,),
    replicas: tuple[int, ...] = (NODE,),
    version: int = -1,
) -> PartitionRegistration:
    version = epoch if version < 0 else version
    return PartitionRegistration(
        replicas, (ZERO_UUID,) * len(replicas), isr, leader, epoch, version
    )


def batch(*values: bytes, **fields: int) -> bytes:
    return build_batch([Record(-1, WALL_MS, b"k", value) for value in values], **fields)  # type: ignore[arg-type]


def read_from(
    offset: int, index: int = 0, *, name: str = "orders", start: int = -1, **more: int
) -> FetchPartition:
    request = FetchPartition(name, None, index, offset, start)
    for field, value in more.items():
        setattr(request, field, value)
    return request


def values_of(result: FetchResult) -> list[bytes | None]:
    assert result.error_code == 0
    data = b"" if result.records is None else result.records.read()
    values, position = [], 0
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if end > len(data):
            break  # max_bytes may cut the last batch; clients ignore what is incomplete
        values += [record.value for record in read_records(data, position)]
        position = end
    return values


def codes(answer: Answer[list[AppendResult]]) -> list[int]:
    return [result.error_code for result in answer.value]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.manager.shutdown()
    for log in broker.logs.all_logs():
        log.close()


@pytest.fixture
def single(broker: Broker) -> Broker:
    """A cluster of one: topic orders with two partitions."""
    broker.publish(topic("orders", ORDERS, led(), led()))
    return broker


@pytest.fixture
def replicated(broker: Broker) -> Broker:
    """Topic orders, one partition on nodes 1 and 2, led here."""
    broker.publish(topic("orders", ORDERS, led(isr=(1, 2), replicas=(1, 2))))
    return broker


# ---------------------------------------------------------------------- produce


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_a_cluster_of_one_answers_every_produce_inline(single: Broker, acks: int) -> None:
    answer = single.produce((ORDERS_0, batch(b"a", b"b")), (ORDERS_1, batch(b"c")), acks=acks)
    assert answer.operation is None
    first, second = answer.value
    assert (first.topic_partition, first.base_offset, first.last_offset) == (ORDERS_0, 0, 1)
    assert (second.topic_partition, second.base_offset) == (ORDERS_1, 0)
    assert first.log_append_time_ms == -1
    assert first.log_start_offset == 0
    assert codes(answer) == [0, 0]


def test_partitions_of_a_produce_fail_alone_and_keep_their_order(single: Broker) -> None:
    torn = bytearray(batch(b"torn"))
    torn[-1] ^= 1
    answer = single.produce(
        (TopicPartition("orders", 7), batch(b"a")),
        (ORDERS_0, bytes(torn)),
        (ORDERS_1, batch(b"c")),
        (TopicPartition("nowhere", 0), batch(b"d")),
    )
    assert codes(answer) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [result.base_offset for result in answer.value] == [-1, -1, 0, -1]
    assert answer.value[1].log_start_offset == -1


def test_other_acks_are_refused_and_nothing_is_written(single: Broker) -> None:
    answer = single.produce((ORDERS_0, batch(b"a")), acks=2)
    assert codes(answer) == [ErrorCode.INVALID_REQUIRED_ACKS]
    assert single.manager.partition(ORDERS_0).log.log_end_offset == 0  # type: ignore[union-attr]


def test_only_one_small_compressed_batch_is_opened_on_the_network_thread(single: Broker) -> None:
    """A frame of 64 KB has room for 58 of 1.1 KB, each 1 MiB of zeros behind gzip: 0.13 s."""
    plain, packed = build_batch([Record(value=b"v")]), build_batch([Record(value=b"v")], codec=1)
    for batches, opens_compressed, is_costly in (
        ([packed, plain], True, False),
        ([packed, plain, packed], True, True),
        ([packed, packed], False, False),
    ):
        entries = [(TopicPartition("orders", at), batch) for at, batch in enumerate(batches)]
        assert single.manager.must_open_records(entries, opens_compressed) is is_costly


def test_a_partition_led_elsewhere_is_not_leader_here(broker: Broker) -> None:
    broker.publish(
        topic("orders", ORDERS, led(leader=2, replicas=(2, 1)), led(leader=2, replicas=(2, 3)))
    )
    answer = broker.produce((ORDERS_0, batch(b"a")), (ORDERS_1, batch(b"a")))
    assert codes(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_acks_all_waits_until_the_followers_have_it(replicated: Broker) -> None:
    answer = replicated.produce((ORDERS_0, batch(b"a", b"b")))
    assert answer.is_pending
    replicated.follower_fetches(1)
    assert answer.is_pending
    replicated.follower_fetches(2)
    assert codes(answer) == [0]
    assert answer.value[0].base_offset == 0
    assert replicated.manager.parked.produce.watched == 0


def test_acks_one_does_not_wait_for_followers(replicated: Broker) -> None:
    assert codes(replicated.produce((ORDERS_0, batch(b"a")), acks=1)) == [0]


def test_acks_all_times_out_and_keeps_the_records(replicated: Broker) -> None:
    answer = replicated.produce((ORDERS_0, batch(b"a")), timeout_ms=300)
    replicated.pass_time(299)
    assert answer.is_pending
    replicated.pass_time(20)
    assert codes(answer) == [ErrorCode.REQUEST_TIMED_OUT]
    replicated.follower_fetches(1)
    assert len(answer.told) == 1
    assert values_of(replicated.fetch(read_from(0)).value[0]) == [b"a"]


def test_only_the_partitions_that_are_not_replicated_time_out(broker: Broker) -> None:
    broker.publish(topic("orders", ORDERS, led(isr=(1, 2), replicas=(1, 2)), led()))
    answer = broker.produce((ORDERS_0, batch(b"a")), (ORDERS_1, batch(b"b")))
    broker.pass_time(2000)
    assert codes(answer) == [ErrorCode.REQUEST_TIMED_OUT, 0]


def test_an_isr_that_shrinks_after_the_append_is_reported(broker: Broker) -> None:
    """H-11: the record stays, but fewer replicas have it than min.insync.replicas promises."""
    broker.configs["orders"] = LogConfig(min_insync_replicas=2)
    broker.publish(topic("orders", ORDERS, led(isr=(1, 2), replicas=(1, 2))))
    answer = broker.produce((ORDERS_0, batch(b"a")))
    broker.publish(topic("orders", ORDERS, led(isr=(1,), replicas=(1, 2), version=1)))
    assert answer.is_pending
    broker.change_config("orders", LogConfig(min_insync_replicas=1))
    assert codes(answer) == [0]

    broker.change_config("orders", LogConfig(min_insync_replicas=2))
    refused = broker.produce((ORDERS_0, batch(b"b")))
    assert codes(refused) == [ErrorCode.NOT_ENOUGH_REPLICAS]


def test_not_enough_replicas_after_append(broker: Broker) -> None:
    broker.configs["orders"] = LogConfig(min_insync_replicas=2)
    broker.publish(topic("orders", ORDERS, led(isr=(1, 2), replicas=(1, 2))))
    answer = broker.produce((ORDERS_0, batch(b"a")))
    partition = broker.manager.partition(ORDERS_0)
    partition.log.update_high_watermark(1)  # type: ignore[union-attr]  # replicated, and then
    broker.publish(topic("orders", ORDERS, led(isr=(1,), replicas=(1, 2), version=1)))
    assert codes(answer) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_losing_leadership_answers_what_waits(replicated: Broker) -> None:
    produce = replicated.produce((ORDERS_0, batch(b"a")))
    fetch = replicated.fetch(read_from(0))
    replicated.publish(topic("orders", ORDERS, led(1, leader=2, isr=(1, 2), replicas=(1, 2))))
    assert codes(produce) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert fetch.value[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leadership_in_between_does_not_make_an_old_append_look_replicated(
    replicated: Broker,
) -> None:
    """Another leader may have put other records at the same offsets meanwhile."""
    replicated.produce((ORDERS_0, batch(b"a")))
    partition = replicated.manager.partition(ORDERS_0)
    late = ProduceStatus(AppendResult(ORDERS_0), partition, 1, leader_epoch=0, acks=-1, position=0)
    for epoch, leader in ((1, 2), (2, NODE)):
        registration = led(epoch, leader=leader, isr=(1, 2), replicas=(1, 2))
        replicated.publish(topic("orders", ORDERS, registration))
    replicated.follower_fetches(1)
    assert partition.high_watermark == 1
    assert late.try_settle()
    assert late.result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deleting_the_topic_answers_what_waits(replicated: Broker) -> None:
    produce = replicated.produce((ORDERS_0, batch(b"a")))
    fetch = replicated.fetch(read_from(0))
    replicated.publish(deleted={"orders": ORDERS})
    assert codes(produce) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetch.value[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replicated.logs.deleted == [ORDERS_0]
    after = replicated.produce((ORDERS_0, batch(b"a")))
    assert codes(after) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_failed_directory_answers_what_waits_and_all_that_comes(replicated: Broker) -> None:
    produce = replicated.produce((ORDERS_0, batch(b"a")))
    fetch = replicated.fetch(read_from(0))
    [directory] = replicated.logs.log_dirs
    replicated.logs.offline_dirs.add(directory)
    replicated.manager.log_dir_failed(directory, OSError(5, "EIO"))
    storage_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert codes(produce) == [storage_error]
    assert fetch.value[0].error_code == storage_error
    assert codes(replicated.produce((ORDERS_0, batch(b"a")))) == [storage_error]
    assert replicated.fetch(read_from(0)).value[0].error_code == storage_error
    assert replicated.manager.list_offset(ORDERS_0, -1, 0)[0] == storage_error
    assert replicated.manager.offline_replicas == 1
    assert replicated.leadership == [(ORDERS_0, 0), (ORDERS_0, None)]
    # A later change of the partition does not bring an empty replica into being (B-7).
    replicated.publish(topic("orders", ORDERS, led(1, isr=(1, 2), replicas=(1, 2))))
    assert codes(replicated.produce((ORDERS_0, batch(b"a")))) == [storage_error]


def test_a_retried_batch_waits_for_the_original_to_be_replicated(replicated: Broker) -> None:
    data = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    first = replicated.produce((ORDERS_0, data))
    retry = replicated.produce((ORDERS_0, data))
    assert first.is_pending
    assert retry.is_pending
    replicated.follower_fetches(1)
    assert codes(first) == codes(retry) == [0]
    assert first.value[0].base_offset == retry.value[0].base_offset == 0
    assert replicated.manager.partition(ORDERS_0).log.log_end_offset == 1  # type: ignore[union-attr]


def test_a_produce_cancelled_by_its_connection_is_never_answered(replicated: Broker) -> None:
    answer = replicated.produce((ORDERS_0, batch(b"a")))
    assert answer.operation is not None
    answer.operation.cancel()
    replicated.follower_fetches(1)
    replicated.pass_time(5000)
    assert answer.is_pending
    assert replicated.manager.parked.produce.watched == len(replicated.timer) == 0


# ---------------------------------------------------------------------- bursts


def offsets(answer: Answer[list[AppendResult]]) -> list[int]:
    return [result.base_offset for result in answer.value]


def test_a_burst_is_written_by_partition_and_answered_in_its_order(single: Broker) -> None:
    for key in (ORDERS_0, ORDERS_1):
        single.produce((key, batch(b"first")))
    fetch = single.fetch(read_from(1))
    sent = [(ORDERS_0, batch(b"a")), (ORDERS_1, batch(b"b", b"c")), (ORDERS_0, batch(b"d"))]
    answer = single.produce_burst(*sent, (ORDERS_1, batch(b"e")))
    assert codes(answer) == [0] * 4
    assert [result.topic_partition for result in answer.value] == [
        ORDERS_0, ORDERS_1, ORDERS_0, ORDERS_1,
    ]  # fmt: skip
    assert offsets(answer) == [1, 1, 2, 3]
    assert [result.last_offset for result in answer.value] == [1, 2, 2, 3]
    assert values_of(fetch.value[0]) == [b"a", b"d"], "those who wait see all of it"
    assert single.manager.partition(ORDERS_1).high_watermark == 4


def test_a_burst_waits_until_the_followers_have_the_last_of_it(replicated: Broker) -> None:
    replicated.produce((ORDERS_0, batch(b"first")), acks=1)
    answer = replicated.produce_burst(*[(ORDERS_0, batch(b"%d" % i)) for i in range(3)])
    replicated.follower_fetches(3)
    assert answer.is_pending
    replicated.follower_fetches(4)
    assert (codes(answer), offsets(answer)) == ([0] * 3, [1, 2, 3])
    assert replicated.manager.parked.produce.watched == 0
    late = replicated.produce_burst(*[(ORDERS_0, batch(b"%d" % i)) for i in range(3)])
    replicated.follower_fetches(6)
    replicated.pass_time(1020)
    assert codes(late) == [0, 0, ErrorCode.REQUEST_TIMED_OUT], "what is replicated is told so"


def test_of_a_burst_that_waits_it_is_told_how_many_of_the_first_are_known(broker: Broker) -> None:
    """Nobody waits for another's followers."""
    alone, with_follower = led(replicas=(1, 2), isr=(1,)), led(replicas=(1, 2), isr=(1, 2))
    broker.publish(topic("orders", ORDERS, alone, with_follower))
    for key in (ORDERS_0, ORDERS_1):
        broker.produce((key, batch(b"first")), acks=1)
    told: list[list[int]] = []
    answer = broker.produce_burst(
        (ORDERS_0, batch(b"a")),
        (("orders", 7), batch(b"x")),
        (ORDERS_1, batch(b"b")),
        (ORDERS_0, batch(b"c")),
        on_settled=lambda results, known: told.append([one.error_code for one in results[:known]]),
    )
    assert told[-1] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert answer.is_pending
    broker.pass_time(1020)
    lost = ErrorCode.REQUEST_TIMED_OUT
    assert codes(answer) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lost, 0]


def test_an_unforeseen_error_is_an_answer_to_clients_and_not_to_coordinators(
    single: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator takes an answer without an offset for: nothing was written."""

    def fault(*_: Any) -> Any:
        raise RuntimeError("after it was written")

    monkeypatch.setattr(single.manager.partition(ORDERS_0), "append_records_to_leader", fault)
    assert codes(single.produce((ORDERS_0, batch(b"a")))) == [ErrorCode.REQUEST_TIMED_OUT]
    request = AppendRequest(-1, 1000, [(ORDERS_0, batch(b"a"))], Answer(), FROM_COORDINATOR)
    with pytest.raises(RuntimeError):
        single.manager.append_records(request)


@pytest.mark.parametrize("spoilt", [0, 1, 2])
def test_of_a_burst_only_what_is_wrong_fails(single: Broker, spoilt: int) -> None:
    single.produce((ORDERS_0, batch(b"first")))
    sent = [batch(b"%d" % i) for i in range(3)]
    sent[spoilt] = sent[spoilt][:-1] + b"x"
    answer = single.produce_burst(*[(ORDERS_0, one) for one in sent])
    expected = [0, 0, 0]
    expected[spoilt] = ErrorCode.CORRUPT_MESSAGE
    assert codes(answer) == expected
    assert len(values_of(single.fetch(read_from(0)).value[0])) == 3


def test_a_burst_of_sequences_is_checked_as_one_by_one(single: Broker) -> None:
    def of(sequence: int) -> tuple[TopicPartition, bytes]:
        return ORDERS_0, batch(b"v", producer_id=5, producer_epoch=0, base_sequence=sequence)

    single.produce(of(0))
    assert offsets(single.produce_burst(of(1), of(2), of(3))) == [1, 2, 3]
    answer = single.produce_burst(of(2), of(3), of(4), of(6))
    assert offsets(answer) == [2, 3, 4, -1], "two are there already"
    assert codes(answer) == [0, 0, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert [result.log_start_offset for result in answer.value] == [0, 0, 0, 0]


def test_no_burst_is_written_where_one_batch_would_not_be(broker: Broker) -> None:
    sent = [(ORDERS_0, batch(b"%d" % i)) for i in range(3)]
    assert codes(broker.produce_burst(*sent)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    broker.configs["orders"] = LogConfig(min_insync_replicas=2)
    broker.publish(topic("orders", ORDERS, led(replicas=(1, 2))))
    broker.produce((ORDERS_0, batch(b"first")), acks=1)
    assert codes(broker.produce_burst(*sent)) == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    other = broker.produce_burst(*sent, acks=1, topic_ids={"orders": b"another orders.."})
    assert codes(other) == [ErrorCode.UNKNOWN_TOPIC_ID] * 3
    assert broker.manager.partition(ORDERS_0).open_log().log_end_offset == 1
    broker.publish(topic("orders", ORDERS, led(1, leader=2, replicas=(1, 2))))
    assert codes(broker.produce_burst(*sent)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_burst_waits_for_one_fsync(broker: Broker, acks: int) -> None:
    broker.configs["orders"] = LogConfig(flush_messages=1)
    broker.publish(topic("orders", ORDERS, led()))
    broker.produce((ORDERS_0, batch(b"first")), acks=0)
    broker.logs.run_flushes()
    answer = broker.produce_burst(*[(ORDERS_0, batch(b"%d" % i)) for i in range(3)], acks=acks)
    assert answer.is_pending
    assert len(broker.logs.waiting) == 1
    broker.logs.run_flushes()
    assert (codes(answer), offsets(answer)) == ([0] * 3, [1, 2, 3])


# ---------------------------------------------------------------------- group commit


@pytest.mark.parametrize("acks", [-1, 1])
def test_with_flush_messages_acknowledgements_wait_for_one_shared_fsync(
    broker: Broker, acks: int
) -> None:
    broker.configs["orders"] = LogConfig(flush_messages=1)
    broker.publish(topic("orders", ORDERS, led()))
    answers = [broker.produce((ORDERS_0, batch(b"%d" % i)), acks=acks) for i in range(10)]
    fetch = broker.fetch(read_from(0))
    assert all(answer.is_pending for answer in answers)
    assert fetch.is_pending
    assert len(broker.logs.waiting) == 1
    broker.logs.run_flushes()
    assert [answer.value[0].base_offset for answer in answers] == list(range(10))
    assert all(codes(answer) == [0] for answer in answers)
    assert len(values_of(fetch.value[0])) == 10


def test_acks_zero_does_not_wait_for_the_disk_but_is_flushed(broker: Broker) -> None:
    broker.configs["orders"] = LogConfig(flush_messages=1)
    broker.publish(topic("orders", ORDERS, led()))
    assert codes(broker.produce((ORDERS_0, batch(b"a")), acks=0)) == [0]
    broker.logs.run_flushes()
    assert values_of(broker.fetch(read_from(0)).value[0]) == [b"a"]


def test_a_retry_before_the_fsync_waits_for_the_disk_too(broker: Broker) -> None:
    broker.configs["orders"] = LogConfig(flush_messages=1)
    broker.publish(topic("orders", ORDERS, led()))
    data = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    broker.produce((ORDERS_0, data), acks=1)
    retry = broker.produce((ORDERS_0, data), acks=1)
    assert retry.is_pending
    broker.logs.run_flushes()
    assert (codes(retry), retry.value[0].base_offset) == ([0], 0)


# ---------------------------------------------------------------------- fetch


def test_a_fetch_with_data_is_answered_inline(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a")))
    answer = single.fetch(read_from(0), read_from(0, 1))
    assert answer.operation is None
    first, second = answer.value
    assert values_of(first) == [b"a"]
    assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (1, 1, 0)
    assert (second.records, second.high_watermark) == (None, 0)


def test_a_parked_fetch_is_answered_by_the_next_append(single: Broker) -> None:
    answer = single.fetch(read_from(0), read_from(0, 1))
    assert answer.is_pending
    single.produce((ORDERS_1, batch(b"b")))
    assert [values_of(result) for result in answer.value] == [[], [b"b"]]
    assert single.manager.parked.fetch.watched == len(single.timer) == 0


def test_a_fetch_waits_for_min_bytes(single: Broker) -> None:
    size = len(batch(b"x" * 100))
    answer = single.fetch(read_from(0), min_bytes=3 * size)
    for count in range(3):
        assert answer.is_pending, count
        single.produce((ORDERS_0, batch(b"x" * 100)))
    assert len(values_of(answer.value[0])) == 3


def test_min_bytes_counts_all_partitions_and_what_was_there_before(single: Broker) -> None:
    size = len(batch(b"x" * 100))
    single.produce((ORDERS_0, batch(b"x" * 100)))
    answer = single.fetch(read_from(0), read_from(0, 1), min_bytes=2 * size)
    assert answer.is_pending
    single.produce((ORDERS_1, batch(b"y" * 100)))
    assert [len(values_of(result)) for result in answer.value] == [1, 1]


def test_an_append_makes_a_parked_fetch_look_at_one_partition(
    single: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch of 100,000 partitions that waits for two bytes looked at all of them on the thread
    of each producer to one of them."""
    looked_at: list[int] = []
    available = DelayedFetch._available_bytes

    def count(fetch: DelayedFetch, partition: Partition, request: FetchPartition) -> int:
        looked_at.append(request.partition_index)
        return available(fetch, partition, request)

    monkeypatch.setattr(DelayedFetch, "_available_bytes", count)
    size = len(batch(b"x" * 100))
    answer = single.fetch(read_from(0), read_from(0, 1), min_bytes=3 * size)
    looked_at.clear()
    for key in (ORDERS_0, ORDERS_0, ORDERS_1):
        assert answer.is_pending
        single.produce((key, batch(b"x" * 100)))
    assert looked_at == [0, 0, 1]
    assert [len(values_of(result)) for result in answer.value] == [2, 1]


def test_who_lets_a_large_fetch_go_on_does_not_read_it(single: Broker) -> None:
    single.publish(topic("wide", b"w" * 16, *[led() for _ in range(LARGE + 1)]))
    for offset, count, is_aside in ((0, LARGE, False), (1, LARGE + 1, True)):
        later = [read_from(0, i, name="wide") for i in range(1, count)]
        answer = single.fetch(read_from(offset, name="wide"), *later)
        single.produce((("wide", 0), batch(b"x")))
        assert answer.is_pending is is_aside
        for job in single.aside:
            job()
        assert values_of(answer.value[0]) == [b"x"]
    assert len(single.aside) == 1


def test_a_fetch_gives_up_after_max_wait_with_what_there_is(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a")))
    answer = single.fetch(read_from(0), min_bytes=10_000, max_wait_ms=500)
    single.pass_time(499)
    assert answer.is_pending
    single.pass_time(10)
    assert values_of(answer.value[0]) == [b"a"]


@pytest.mark.parametrize(("max_wait_ms", "partitions"), [(0, 1), (500, 0)])
def test_a_fetch_that_cannot_wait_is_answered_at_once(
    single: Broker, max_wait_ms: int, partitions: int
) -> None:
    answer = single.fetch(*[read_from(0)] * partitions, max_wait_ms=max_wait_ms)
    assert [result.error_code for result in answer.value] == [0] * partitions


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (read_from(1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (read_from(-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (read_from(0, current_leader_epoch=5), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_an_error_in_one_partition_answers_the_whole_fetch_at_once(
    single: Broker, request_: FetchPartition, code: ErrorCode
) -> None:
    answer = single.fetch(read_from(0), request_)
    assert [result.error_code for result in answer.value] == [0, code]


UNKNOWN_REQUESTS = [
    (read_from(0, 9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (read_from(0, name="deleted"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (FetchPartition("", OTHER_ID, 0, 0), ErrorCode.UNKNOWN_TOPIC_ID),
    (FetchPartition("", None, 0, 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # by name
]


@pytest.mark.parametrize("replica", [-1, 2])
@pytest.mark.parametrize(("unknown", "code"), UNKNOWN_REQUESTS)
def test_what_does_not_exist_waits_with_the_quiet_ones(
    replicated: Broker, unknown: FetchPartition, code: ErrorCode, replica: int
) -> None:
    """Answered at once it would be asked again at once, until the client hears of the deletion."""
    answer = replicated.fetch(unknown, read_from(0), replica=replica)
    assert answer.is_pending
    replicated.pass_time(510)
    assert [result.error_code for result in answer.value] == [code, 0]
    assert answer.value[0].aborted == (), "as Kafka's error shape has it"


@pytest.mark.parametrize(("unknown", "code"), UNKNOWN_REQUESTS)
def test_records_beside_what_does_not_exist_are_answered_at_once(
    single: Broker, unknown: FetchPartition, code: ErrorCode
) -> None:
    waiting = single.fetch(unknown, read_from(0))
    single.produce((ORDERS_0, batch(b"a")))
    for answer in (waiting, single.fetch(read_from(0), unknown)):
        assert sorted(result.error_code for result in answer.value) == [0, code]
        assert [values_of(one) for one in answer.value if not one.error_code] == [[b"a"]]


def test_a_fetch_of_nothing_that_exists_is_answered_at_once(single: Broker) -> None:
    answer = single.fetch(*[request for request, _ in UNKNOWN_REQUESTS])
    assert [result.error_code for result in answer.value] == [code for _, code in UNKNOWN_REQUESTS]


def test_a_topic_that_is_deleted_answers_those_who_wait_for_it(single: Broker) -> None:
    answer = single.fetch(read_from(0), read_from(0, 1))
    single.publish(deleted={"orders": ORDERS})
    assert {result.error_code for result in answer.value} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_topic_id_of_another_life_is_refused(single: Broker) -> None:
    wrong = FetchPartition("orders", OTHER_ID, 0, 0)
    assert single.fetch(wrong).value[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    for topic_id in (ORDERS, ZERO_UUID, None):
        answer = single.fetch(FetchPartition("orders", topic_id, 0, 0), max_wait_ms=0)
        assert answer.value[0].error_code == 0


def test_a_fetch_between_high_watermark_and_log_end_waits(replicated: Broker) -> None:
    """It must neither be told to reset (V-1) nor poll in a tight loop."""
    replicated.produce((ORDERS_0, batch(b"a", b"b")), acks=1)
    answer = replicated.fetch(read_from(1))
    assert answer.is_pending
    replicated.follower_fetches(2)
    assert values_of(answer.value[0]) == [b"a", b"b"]  # the batch that holds offset 1


def test_the_first_partition_with_data_gives_a_batch_whatever_the_limits(single: Broker) -> None:
    """KIP-74."""
    for key in (ORDERS_0, ORDERS_1):
        single.produce((key, batch(b"x" * 1000)))
    tight = single.fetch(
        read_from(1, 0), read_from(0, 1), read_from(0, 0), min_bytes=0, max_bytes=10
    )
    assert [len(values_of(result)) for result in tight.value] == [0, 1, 0]
    per_partition = single.fetch(read_from(0, 0, max_bytes=10), read_from(0, 1, max_bytes=10))
    assert [len(values_of(result)) for result in per_partition.value] == [1, 0]


def test_all_partitions_together_stay_below_max_bytes(single: Broker) -> None:
    for key in (ORDERS_0, ORDERS_1):
        for _ in range(10):
            single.produce((key, batch(b"x" * 100)))
    size = len(batch(b"x" * 100))
    answer = single.fetch(read_from(0, 0, max_bytes=5 * size), read_from(0, 1), max_bytes=8 * size)
    sizes = [result.records.size for result in answer.value if result.records]
    assert sizes == [5 * size, 3 * size]


def test_the_brokers_fetch_max_bytes_caps_the_request(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.manager.reads.config = ReplicaManagerConfig(fetch_max_bytes=300)
    broker.publish(topic("orders", ORDERS, led()))
    for _ in range(10):
        broker.produce((ORDERS_0, batch(b"x" * 20)))
    [result] = broker.fetch(read_from(0), min_bytes=1 << 20).value
    assert result.records is not None
    assert result.records.size == 300


def test_a_new_leader_epoch_answers_fetches_of_the_old_one(single: Broker) -> None:
    fenced = single.fetch(read_from(0, current_leader_epoch=0))
    any_epoch = single.fetch(read_from(0))
    single.publish(topic("orders", ORDERS, led(1), led(1)))
    assert fenced.value[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert any_epoch.is_pending


def test_fetches_dropped_by_their_connections_leave_nothing(single: Broker) -> None:
    answers = [single.fetch(read_from(0), read_from(0, 1)) for _ in range(1000)]
    assert single.manager.parked.fetch.delayed == 1000
    for answer in answers:
        assert answer.operation is not None
        answer.operation.cancel()
    assert single.manager.parked.fetch.watched == len(single.timer) == 0
    single.produce((ORDERS_0, batch(b"a")))
    assert all(answer.is_pending for answer in answers)


def test_a_completed_fetch_may_fetch_and_produce_again_from_its_callback(single: Broker) -> None:
    """No lock is held while a callback runs."""
    seen: list[list[bytes | None]] = []

    def again(results: list[FetchResult]) -> None:
        seen.append(values_of(results[0]))
        if len(seen) < 3:
            partitions = [read_from(len(seen))]
            single.manager.fetch(-1, 500, 1, 1 << 20, 0, partitions, again)
            single.produce((ORDERS_0, batch(b"more")))

    single.manager.fetch(-1, 500, 1, 1 << 20, 0, [read_from(0)], again)
    single.produce((ORDERS_0, batch(b"first")))
    assert seen == [[b"first"], [b"more"], [b"more"]]


def test_a_follower_reads_past_the_high_watermark_and_an_unknown_one_nothing(
    replicated: Broker,
) -> None:
    replicated.produce((ORDERS_0, batch(b"a")), acks=1)
    known = replicated.fetch(read_from(0, start=0), replica=2)
    assert values_of(known.value[0]) == [b"a"]
    unknown = replicated.fetch(read_from(0, start=0), replica=9)
    assert unknown.value[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with_epoch = replicated.fetch(read_from(0, start=0, current_leader_epoch=0), replica=9)
    assert with_epoch.value[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert replicated.manager.partition(ORDERS_0).high_watermark == 0


# ---------------------------------------------------------------------- offsets


def test_list_offset_answers_with_codes(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a", b"b")))
    assert single.manager.list_offset(ORDERS_0, -1, 0) == (0, -1, 2, 0)
    assert single.manager.list_offset(ORDERS_0, -1, 1) == (0, -1, 2, 0)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert single.manager.list_offset(("orders", 5), -1, 0) == (unknown, -1, -1, -1)
    fenced = ErrorCode.UNKNOWN_LEADER_EPOCH
    assert single.manager.list_offset(ORDERS_0, -1, 0, 3) == (fenced, -1, -1, -1)


def test_a_debugging_consumer_may_ask_a_follower(broker: Broker) -> None:
    broker.publish(topic("orders", ORDERS, led(leader=2, replicas=(2, 1))))
    not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.manager.list_offset(ORDERS_0, -1, 0)[0] == not_leader
    assert broker.manager.list_offset(ORDERS_0, -1, 0, -1, -2) == (0, -1, 0, 0)


def test_offset_for_leader_epoch_answers_with_codes(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a")))
    assert single.manager.offset_for_leader_epoch(ORDERS_0, -1, 0) == (0, 0, 1)
    assert single.manager.offset_for_leader_epoch(ORDERS_0, 0, 9) == (0, -1, -1)
    fenced = int(ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert single.manager.offset_for_leader_epoch(ORDERS_0, 3, 0) == (fenced, -1, -1)


def test_delete_records_answers_each_partition(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a", b"b")), (ORDERS_1, batch(b"c")))
    answer: Answer[dict[tuple[str, int], tuple[int, int]]] = Answer()
    wanted = {ORDERS_0: 1, ORDERS_1: 5, ("orders", 9): 0, ("__consumer_offsets", 0): 0}
    single.manager.delete_records(wanted, 1000, answer)
    assert answer.value == {
        ORDERS_0: (0, 1),
        ORDERS_1: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        ("orders", 9): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("__consumer_offsets", 0): (ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
    }


@pytest.mark.parametrize("ends", ["followed", "timeout", "deleted"])
def test_delete_records_waits_for_followers(replicated: Broker, ends: str) -> None:
    replicated.produce((ORDERS_0, batch(b"a")), acks=1)
    replicated.follower_fetches(1)
    answer: Answer[dict[tuple[str, int], tuple[int, int]]] = Answer()
    replicated.manager.delete_records({ORDERS_0: -1}, 1000, answer)
    assert answer.is_pending
    if ends == "followed":
        replicated.fetch(read_from(1, start=1), max_wait_ms=0, replica=2)
        assert answer.value == {ORDERS_0: (0, 1)}
    elif ends == "timeout":
        replicated.pass_time(2000)
        assert answer.value == {ORDERS_0: (ErrorCode.REQUEST_TIMED_OUT, 0)}
    else:
        replicated.publish(deleted={"orders": ORDERS})
        assert answer.value == {ORDERS_0: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)}


# ---------------------------------------------------------------------- metadata


def test_applying_the_same_metadata_again_changes_nothing(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a")))
    partition = single.manager.partition(ORDERS_0)
    fetch = single.fetch(read_from(1))
    single.publish(topic("orders", ORDERS, led(), led()))
    assert single.manager.partition(ORDERS_0) is partition
    assert single.leadership == [(ORDERS_0, 0), (ORDERS_1, 0)]
    assert fetch.is_pending
    assert single.logs.deleted == single.logs.strays == []


def test_an_older_image_is_ignored(single: Broker) -> None:
    older, older_delta = single.image, MetadataDelta(single.image)
    older_delta.changed_topics.add("orders")
    single.publish(topic("orders", OTHER_ID, led()), deleted={"orders": ORDERS})
    single.manager.apply_delta(older_delta, older)
    assert single.manager.partition(ORDERS_0).topic_id == OTHER_ID


def test_leadership_is_told_to_the_coordinators(broker: Broker) -> None:
    broker.publish(topic("orders", ORDERS, led(0, replicas=(1, 2), isr=(1, 2))))
    broker.publish(topic("orders", ORDERS, led(1, leader=2, replicas=(1, 2), isr=(1, 2))))
    broker.publish(topic("orders", ORDERS, led(2, replicas=(1, 2), isr=(1, 2))))
    broker.publish(topic("orders", ORDERS, led(2, replicas=(1, 2), isr=(1,), version=3)))
    broker.publish(deleted={"orders": ORDERS})
    assert [epoch for _, epoch in broker.leadership] == [0, None, 2, None]


def test_a_failing_hook_does_not_keep_metadata_from_being_applied(broker: Broker) -> None:
    broker.manager.on_partition_leadership.insert(0, lambda key, epoch: 1 // 0)
    broker.publish(topic("orders", ORDERS, led()))
    assert broker.leadership == [(ORDERS_0, 0)]


def test_a_recreated_topic_starts_empty(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"old")))
    fetch = single.fetch(read_from(1))
    single.publish(topic("orders", OTHER_ID, led()), deleted={"orders": ORDERS})
    assert fetch.value[0].error_code != 0
    assert single.logs.deleted == [ORDERS_0, ORDERS_1]
    assert codes(single.produce((ORDERS_0, batch(b"new")))) == [0]
    assert values_of(single.fetch(read_from(0)).value[0]) == [b"new"]


def test_a_replica_assigned_elsewhere_is_removed(broker: Broker) -> None:
    broker.publish(topic("orders", ORDERS, led(replicas=(1, 2))))
    broker.publish(topic("orders", ORDERS, led(1, leader=2, replicas=(2, 3), isr=(2, 3))))
    assert broker.logs.deleted == [ORDERS_0]
    answer = broker.produce((ORDERS_0, batch(b"a")))
    assert codes(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_logs_the_cluster_does_not_know_are_set_aside_never_deleted(broker: Broker) -> None:
    """B-8, against the first whole image only."""
    config = LogConfig()
    kept, gone, unnamed = ORDERS_0, TopicPartition("gone", 0), TopicPartition("payments", 0)
    other_life, moved = ORDERS_1, TopicPartition("payments", 1)
    for key, topic_id in (
        (kept, ORDERS),
        (gone, b"a topic long ago"),
        (unnamed, None),
        (other_life, OTHER_ID),
        (moved, PAYMENTS),
    ):
        broker.logs.logs[key] = broker.logs.open(key, topic_id, config)
    broker.publish(
        topic("orders", ORDERS, led(), led()),
        topic("payments", PAYMENTS, led(), led(leader=2, replicas=(2, 3))),
    )
    assert sorted(broker.logs.strays) == sorted([gone, unnamed, other_life, moved])
    assert broker.logs.deleted == []
    assert codes(broker.produce((other_life, batch(b"a")))) == [0]
    assert broker.logs.logs[other_life].topic_id == ORDERS


def test_an_empty_image_sets_nothing_aside(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.logs.logs[ORDERS_0] = broker.logs.open(ORDERS_0, ORDERS, LogConfig())
    broker.manager.apply_delta(MetadataDelta(EMPTY_IMAGE), EMPTY_IMAGE)
    assert broker.logs.strays == []
    broker.publish(topic("orders", ORDERS, led()))
    assert broker.logs.strays == []


def test_the_high_watermark_starts_at_its_checkpoint_and_nothing_is_cut(broker: Broker) -> None:
    """H-10: the checkpoint is a hint for visibility, never a truncation point."""
    log = broker.logs.open(ORDERS_0, ORDERS, LogConfig())
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(batch(value), 0, WALL_MS)
    broker.logs.logs[ORDERS_0] = log
    log.update_high_watermark(2)  # as the log manager does when it opens a log
    broker.publish(topic("orders", ORDERS, led(1, isr=(1, 2), replicas=(1, 2))))
    assert values_of(broker.fetch(read_from(0)).value[0]) == [b"a", b"b"]
    assert log.log_end_offset == 3


def test_a_changed_topic_config_reaches_the_log(single: Broker) -> None:
    single.change_config("orders", LogConfig(max_message_bytes=100))
    answer = single.produce((ORDERS_0, batch(b"x" * 200)))
    assert codes(answer) == [ErrorCode.MESSAGE_TOO_LARGE]


def test_a_partition_that_found_the_disk_full_is_tried_again_with_the_next_metadata(
    broker: Broker,
) -> None:
    """S-16: it resumes without hand work."""
    full = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")
    broker.logs.refusal = full
    broker.publish(topic("orders", ORDERS, led()))
    assert codes(broker.produce((ORDERS_0, batch(b"a")))) == [ErrorCode.KAFKA_STORAGE_ERROR]
    broker.logs.refusal = None
    broker.change_config("payments", LogConfig())
    assert codes(broker.produce((ORDERS_0, batch(b"a")))) == [0]
    assert broker.manager.offline_replicas == 0


def test_a_full_disk_is_tried_again_though_another_directory_has_failed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was served before and found no room for an epoch was taken for lost with that one."""
    broker.publish(topic("orders", ORDERS, led()))
    broker.logs.offline_dirs.add(Path("another"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as disk:
        disk.setattr(files, "open_file", full)
        broker.publish(topic("orders", ORDERS, led(1)))
    assert codes(broker.produce((ORDERS_0, batch(b"a")))) == [ErrorCode.KAFKA_STORAGE_ERROR]
    broker.change_config("payments", LogConfig())
    assert codes(broker.produce((ORDERS_0, batch(b"a")))) == [0]


@pytest.mark.parametrize(
    ("directory_id", "error"),
    [(DIRECTORY_UNASSIGNED, 0), (b"a disk's own id.", ErrorCode.KAFKA_STORAGE_ERROR)],
)
def test_beside_an_offline_directory_only_a_replica_that_was_in_none_is_made(
    broker: Broker, directory_id: bytes, error: int
) -> None:
    """B-7, and Kafka's Partition.createLogInAssignedDirectoryId."""
    broker.logs.offline_dirs.add(Path("another"))
    broker.publish(topic("orders", ORDERS, replace(led(), directories=(directory_id,))))
    assert codes(broker.produce((ORDERS_0, batch(b"a")))) == [error]


def test_log_directories_are_described_with_sizes(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a")))
    [info] = single.manager.describe_log_dirs(lambda name, index: index == 0)
    assert (info.error_code, info.total_bytes, info.usable_bytes) == (0, 1000, 400)
    [partition] = info.partitions
    assert (partition.topic, partition.partition_index) == ("orders", 0)
    assert (partition.size, partition.offset_lag) == (len(batch(b"a")), 0)
    single.logs.offline_dirs.add(single.logs.log_dirs[0])
    [offline] = single.manager.describe_log_dirs(lambda name, index: True)
    assert (offline.error_code, list(offline.partitions)) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


def test_active_producers_are_described(single: Broker) -> None:
    single.produce((ORDERS_0, batch(b"a", producer_id=5, producer_epoch=1, base_sequence=0)))
    [producer] = single.manager.active_producers(ORDERS_0)
    assert (producer.producer_id, producer.producer_epoch) == (5, 1)
    with pytest.raises(KafkaError):
        single.manager.active_producers(("orders", 9))


# ---------------------------------------------------------------------- the real log manager


class Restartable:
    """A broker's storage and replica manager over real directories; `stop` and start again."""

    def __init__(self, directory: Path, config: LogConfig | None = None) -> None:
        self.clock = ManualClock(100)
        self.scheduler = BackgroundScheduler(self.clock)
        self.timer = Timer(self.clock)
        registration = led(replicas=(1, 2), isr=(1, 2))
        orders = topic("orders", ORDERS, registration)
        self.image = replace(
            EMPTY_IMAGE,
            offset=1,
            brokers={2: BrokerRegistration(2, 72, bytes(16), {}, fenced=False)},
            topics_by_name={"orders": orders},
            topics_by_id={ORDERS: orders},
        )
        self.logs = LogManager(
            {directory: b"a directory's id"},
            config or LogConfig(),
            self.clock,
            self.scheduler,
            lambda path, error: self.manager.log_dir_failed(path, error),
        )
        self.logs.startup(lambda name: config or LogConfig())
        self.manager = ReplicaManager(
            ReplicaManagerConfig(),
            self.logs,
            lambda: self.image,
            self.timer,
            self.clock,
            NODE,
            topic_config=lambda name: config or LogConfig(),
        )
        self.manager.apply_delta(MetadataDelta(EMPTY_IMAGE), self.image)

    def produce(self, *values: bytes, acks: int = 1) -> Answer[list[AppendResult]]:
        answer: Answer[list[AppendResult]] = Answer()
        self.manager.append_records(AppendRequest(acks, 1000, [(ORDERS_0, batch(*values))], answer))
        return answer

    def read(self, offset: int, replica: int = -1) -> list[bytes | None]:
        answer: Answer[list[FetchResult]] = Answer()
        requests = [read_from(offset, start=0)]
        self.manager.fetch(replica, 0, 1, 1 << 20, 0, requests, answer)
        return values_of(answer.value[0])

    def stop(self) -> None:
        self.manager.shutdown()
        self.logs.shutdown()


def test_a_restart_keeps_records_and_high_watermark(tmp_path: Path) -> None:
    first = Restartable(tmp_path)
    first.produce(b"a", b"b")
    first.produce(b"c")
    first.read(2, replica=2)
    assert first.read(0) == [b"a", b"b"]
    first.stop()

    second = Restartable(tmp_path)
    assert second.read(0) == [b"a", b"b"]
    assert second.read(2, replica=2) == [b"c"]
    second.read(3, replica=2)
    assert second.read(0) == [b"a", b"b", b"c"]
    second.stop()


def test_a_disk_error_takes_the_partition_offline_and_answers_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Restartable(tmp_path)
    waiting = broker.produce(b"a", acks=-1)
    fetch: Answer[list[FetchResult]] = Answer()
    broker.manager.fetch(-1, 500, 1, 1 << 20, 0, [read_from(0)], fetch)

    def fails(*args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "pwritev", fails)
    assert codes(broker.produce(b"b")) == [ErrorCode.KAFKA_STORAGE_ERROR]
    broker.scheduler.run_due()
    assert codes(waiting) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert fetch.value[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    [info] = broker.manager.describe_log_dirs(lambda name, index: True)
    assert info.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.stop()


def test_the_flusher_thread_acknowledges_what_it_has_synced(tmp_path: Path) -> None:
    broker = Restartable(tmp_path, LogConfig(flush_messages=1))
    answered = threading.Semaphore(0)
    offsets: list[int] = []

    def on_complete(results: list[AppendResult]) -> None:
        assert results[0].error_code == 0
        assert broker.manager.partition(ORDERS_0).log.flushed_offset > results[0].last_offset  # type: ignore[union-attr]
        offsets.append(results[0].base_offset)
        answered.release()

    def produce() -> None:
        for _ in range(20):
            broker.manager.append_records(
                AppendRequest(1, 30_000, [(ORDERS_0, batch(b"a"))], on_complete)
            )

    producers = [threading.Thread(target=produce) for _ in range(3)]
    for producer in producers:
        producer.start()
    for _ in range(60):
        assert answered.acquire(timeout=60)
    for producer in producers:
        producer.join()
    assert sorted(offsets) == list(range(60))
    broker.stop()


# ---------------------------------------------------------------------- threads


def test_concurrent_producers_and_long_polling_consumers_lose_and_repeat_nothing(
    single: Broker,
) -> None:
    """Four producers, three consumers that always park at the end: each sees every record once."""
    producers, per_producer = 4, 100
    total = producers * per_producer
    acked: list[int] = []
    consumed: list[list[bytes | None]] = [[] for _ in range(3)]
    all_read = [threading.Event() for _ in consumed]

    def produce(name: int) -> None:
        for i in range(per_producer):
            answer = single.produce((ORDERS_0, batch(b"%d-%d" % (name, i))))
            acked.append(answer.value[0].base_offset)

    def poll(index: int) -> None:
        def on_complete(results: list[FetchResult]) -> None:
            consumed[index] += values_of(results[0])
            if len(consumed[index]) < total:
                poll(index)
            else:
                all_read[index].set()

        partitions = [read_from(len(consumed[index]), max_bytes=2000)]
        single.manager.fetch(-1, 1 << 30, 1, 1 << 20, 0, partitions, on_complete)

    for index in range(len(consumed)):
        poll(index)
    threads = [threading.Thread(target=produce, args=(name,)) for name in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(acked) == list(range(total))
    for index, event in enumerate(all_read):
        assert event.wait(60)
        assert consumed[index] == consumed[0]
        assert len(set(consumed[index])) == len(consumed[index]) == total
    assert single.manager.parked.fetch.watched == 0
