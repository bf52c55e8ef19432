"""A coordinator over one internal topic: a shard per partition that this broker leads.

Why: groups and transactions differ in their machine and their records; finding the shard of
a key, following leadership, and making the topic on first use are the same for all. How a shard
works is told in `shard`.

Which partition: `wire.primitives.partition_for`, as Kafka's (G-1), so that a cluster may change
hands between Kafka and us. The number of partitions is fixed when the topic is first seen: growing
it later would orphan every key.

The topic is created through the controller when somebody first asks for a coordinator. Kafka
answers COORDINATOR_NOT_AVAILABLE then and lets the client come back; here the question waits, at
most `TOPIC_WAIT_MS`, so that the first consumer of a fresh broker loses no time.

Threads: any thread may call anything. `_lock` guards the shards' dict and who waits for the topic;
elections and resignations are noted in their shard under it, so that each shard hears them in one
order, and worked off after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, cast

from replication.controller.context import ControllerContext
from server.coordinator.deadlines import Moment
from server.coordinator.gather import Gather, T
from server.coordinator.machine import Decision, M, R, Reply, ignore
from server.coordinator.shard import Alarm, Services, Shard
from server.coordinator.shard_log import RecordSerde, ReplicatedShardLog, ShardLogConfig
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import CreateTopicsRequest, CreateTopicsResponse
from wire.primitives import partition_for

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration, MetadataImage
    from replication.replicas.replica_manager import ReplicaManager
    from wire.schema import Request

logger = logging.getLogger(__name__)

TOPIC_WAIT_MS = 3_000
"""How long the first question for a coordinator waits for the topic, ms."""

_RETRIED_CREATION = (0, int(ErrorCode.TOPIC_ALREADY_EXISTS))


class InternalTopic(NamedTuple):
    """The coordinator's topic, as it is created."""

    name: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]


class Controller(Protocol):
    """Whom the topic is created by (replication.controller)."""

    def submit(
        self,
        request: Request,
        on_complete: Callable[[object], None],
        *,
        context: ControllerContext,
    ) -> object: ...


class Clock(Protocol):
    """Monotonic and wall time in ms."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class Timer(Protocol):
    """Runs small callbacks after a delay in ms (replication.replicas.timer.Timer)."""

    def add(self, delay_ms: int, fn: Callable[[], None], /) -> Alarm: ...


class Surroundings(NamedTuple):
    """The parts of the broker a coordinator stands on."""

    node_id: int
    metadata: Callable[[], MetadataImage]
    replica_manager: ReplicaManager
    controller: Controller
    timer: Timer
    clock: Clock
    run_on_loader: Callable[[str, Callable[[], None]], object]
    """Run a job (name, job) on the thread that loads coordinators and does nothing else."""


class _TopicWait:
    """Questions that wait for the topic, together, until one alarm."""

    __slots__ = ("alarm", "answers")

    def __init__(self) -> None:
        self.answers: list[Callable[[], None]] = []
        self.alarm: Alarm | None = None


class CoordinatorRuntime(Generic[M, R]):
    """See the module. Registers itself for leadership changes when made."""

    def __init__(
        self,
        topic: InternalTopic,
        around: Surroundings,
        serde: RecordSerde[R],
        log_config: ShardLogConfig,
        new_machine: Callable[[int, int, Moment], M],
    ) -> None:
        """`new_machine` is told the partition and the leader epoch that the machine is for."""
        self.topic = topic
        self._around = around
        self._serde = serde
        self._log_config = log_config
        self._new_machine = new_machine
        self._services = Services(
            around.clock.now_ms,
            around.clock.wall_ms,
            around.timer.add,
            around.run_on_loader,
            log_config.append_timeout_ms,
        )
        self._shards: dict[int, Shard[M, R]] = {}
        self._lock = threading.Lock()
        self._wait: _TopicWait | None = None
        self._placement = (b"", topic.partition_count)
        """Topic id and number of partitions, replaced together."""
        self.is_running = True
        around.replica_manager.on_partition_leadership.append(self.on_leadership)

    # -- requests ----------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The partition whose shard owns the key."""
        topic = self._around.metadata().topics_by_name.get(self.topic.name)
        topic_id, count = self._placement
        if topic is not None and topic.topic_id != topic_id:
            count = len(topic.partitions)
            self._placement = topic.topic_id, count
        return _partition_for(key, count)

    def write(self, key: str, decide: Callable[[M], Decision[R]], on_complete: Reply) -> None:
        """Shard.write on the key's shard; KafkaError NOT_COORDINATOR if another broker has it."""
        self.write_to(self.partition_for(key), decide, on_complete)

    def write_to(
        self, partition: int, decide: Callable[[M], Decision[R]], on_complete: Reply
    ) -> None:
        """As `write`, on the shard of this partition."""
        shard = self._shards.get(partition)
        if shard is None:
            on_complete(self._refusal())
        else:
            shard.write(decide, on_complete)

    def read(self, key: str, look: Callable[[M], object], on_complete: Reply) -> None:
        """Shard.read on the key's shard; KafkaError NOT_COORDINATOR if another broker has it."""
        shard = self._shards.get(self.partition_for(key))
        if shard is None:
            on_complete(self._refusal())
        else:
            shard.read(look, on_complete)

    def look_at(self, key: str) -> M | None:
        """The machine that owns the key, as `Shard.inspect`; None if another broker has it."""
        shard = self._shards.get(self.partition_for(key))
        return None if shard is None else shard.inspect()

    def write_to_all(self, decide: Callable[[M], Decision[R]]) -> None:
        """Shard.write on every partition this broker leads; nobody waits for the answers."""
        for shard in self.shards():
            shard.write(decide, ignore)

    def read_all(
        self, look: Callable[[M], list[T]], on_complete: Callable[[list[T] | KafkaError], None]
    ) -> None:
        """Shard.read on every partition this broker leads, joined to one list. A shard that is not
        loaded yet makes it KafkaError COORDINATOR_LOAD_IN_PROGRESS, since a partial list would look
        like a whole one; COORDINATOR_NOT_AVAILABLE after the shutdown.
        """
        if not self.is_running:
            on_complete(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        shards = self.shards()

        def joined(parts: list[list[T] | KafkaError]) -> None:
            found: list[T] = []
            for part in parts:
                if not isinstance(part, KafkaError):
                    found += part
                elif part.code is not ErrorCode.NOT_COORDINATOR:
                    on_complete(part)
                    return
            on_complete(found)

        gather: Gather[list[T] | KafkaError] = Gather(len(shards), joined)
        for i, shard in enumerate(shards):
            shard.read(look, cast("Reply", partial(gather.put, i)))

    def shards(self) -> list[Shard[M, R]]:
        """The shards of the partitions this broker leads."""
        with self._lock:
            return list(self._shards.values())

    def _refusal(self) -> KafkaError:
        if self.is_running:
            return KafkaError(ErrorCode.NOT_COORDINATOR)
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- leadership --------------------------------------------------------------------------

    def on_leadership(self, topic_partition: tuple[str, int], leader_epoch: int | None) -> None:
        """The replica manager's hook: we lead a partition (its epoch), or do not any more (None).

        A new leadership after a loss gets a new shard, so a topic that was deleted and made again
        starts over at epoch 0.
        """
        name, index = topic_partition
        if name != self.topic.name:
            return
        with self._lock:
            if leader_epoch is None:
                shard = self._shards.pop(index, None)
                if shard is not None:
                    shard.note_resigned()
            else:
                shard = self._shards.get(index)
                if shard is None and self.is_running:
                    shard = self._shards[index] = self._new_shard(index)
                if shard is not None:
                    shard.note_elected(leader_epoch)
        if shard is not None:
            shard.work()

    def _new_shard(self, index: int) -> Shard[M, R]:
        log = ReplicatedShardLog(
            self._around.replica_manager, (self.topic.name, index), self._serde, self._log_config
        )
        new_machine = partial(self._new_machine, index)
        return Shard(f"{self.topic.name}-{index}", log, new_machine, self._services)

    def shutdown(self) -> None:
        """Answer everything that waits with NOT_COORDINATOR, so that clients look elsewhere."""
        with self._lock:
            self.is_running = False
            shards = list(self._shards.values())
            self._shards.clear()
            wait = self._wait
        for shard in shards:
            shard.resigned()
        if wait is not None:
            self._wake(wait)

    # -- finding -----------------------------------------------------------------------------

    def find(
        self, key: str, on_complete: Callable[[BrokerRegistration | KafkaError], None]
    ) -> None:
        """Say which broker coordinates the key; creates the topic if there is none yet."""
        found = self._leader_of(key)
        if found is not None or not self.is_running:
            on_complete(found or KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return

        def answer() -> None:
            on_complete(self._leader_of(key) or KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

        with self._lock:
            wait = self._wait
            is_first = wait is None
            if wait is None:
                wait = self._wait = _TopicWait()
            wait.answers.append(answer)
        if is_first:
            wait.alarm = self._around.timer.add(TOPIC_WAIT_MS, partial(self._wake, wait))
            self._create_topic(wait)

    def _leader_of(self, key: str) -> BrokerRegistration | KafkaError | None:
        """The key's broker; None while there is no topic, an error while there is no leader."""
        image = self._around.metadata()
        if self.topic.name not in image.topics_by_name:
            return None
        partition = image.partition(self.topic.name, self.partition_for(key))
        broker = None if partition is None else image.brokers.get(partition.leader)
        if broker is None or broker.fenced:
            return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return broker

    def _create_topic(self, wait: _TopicWait) -> None:
        name, partition_count, replication_factor, configs = self.topic
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.Topic(
                    name=name,
                    num_partitions=partition_count,
                    replication_factor=replication_factor,
                    assignments=[],
                    configs=[
                        CreateTopicsRequest.Topic.Config(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            validate_only=False,
        )
        self._around.controller.submit(
            request, partial(self._topic_created, wait), context=ControllerContext()
        )

    def _topic_created(self, wait: _TopicWait, response: object) -> None:
        if isinstance(response, CreateTopicsResponse):
            for topic in response.topics:
                if topic.error_code not in _RETRIED_CREATION:
                    logger.warning(
                        "internal topic could not be created topic=%s error=%s message=%s",
                        topic.name, ErrorCode(topic.error_code).name, topic.error_message,
                    )  # fmt: skip
        else:
            logger.warning(
                "internal topic could not be created topic=%s error=%s", self.topic.name, response
            )
        self._wake(wait)

    def _wake(self, wait: _TopicWait) -> None:
        """Answer who waits; what an earlier wait left behind does not cut this one short."""
        with self._lock:
            if self._wait is not wait:
                return
            self._wait = None
        if wait.alarm is not None:
            wait.alarm.cancel()
        for answer in wait.answers:
            answer()


_partition_for = lru_cache(maxsize=1_024)(partition_for)
