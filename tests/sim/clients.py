"""Simulated clients: idempotent producers, consumers, a group that commits, an administrator.

They behave as the real ones: learn who leads from any broker's metadata, retry what failed with the
same sequence number, and remember what was acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from server.handlers import offsets as offset_handlers
from testkit.clock import WALL_MS
from tests.sim.network import Reply, context, serve_data, serve_produce
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)
from wire.messages.data import (
    DeleteRecordsRequest,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
)
from wire.messages.groups import OffsetCommitRequest, OffsetFetchRequest
from wire.primitives import TopicPartition
from wire.records import Record, build_batch, iterate_headers, read_header

if TYPE_CHECKING:
    from server.coordinator.group_coordinator import GroupCoordinator
    from server.coordinator.transactions.coordinator import TransactionCoordinator
    from tests.sim.cluster import SimCluster
    from tests.sim.node import SimNode

_TIMEOUT_MS = 1_500
_IN_FLIGHT = 5
_LINGER_MS = 40
_REFUSALS = 40
_MAX_WAIT_MS = 200
_DELETED = b"a deleted topic!"
_NONE, _DUPLICATE = 0, int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class Sent:
    """One batch on its way: until it is acknowledged, always the same bytes."""

    __slots__ = ("count", "data", "number", "refusals", "sequence", "values")

    def __init__(
        self, producer_id: int, number: int, sequence: int, values: list[bytes], keys: list[bytes]
    ) -> None:
        self.number = number
        self.refusals = 0
        self.sequence = sequence
        self.values = values
        self.count = len(values)
        self.data = build_batch(
            [Record(-1, WALL_MS, key, value) for key, value in zip_longest(keys, values)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )


class Producer:
    """acks=all, idempotent, at most five batches in flight for a partition, values unique. With
    `keys` its records have one of that many."""

    def __init__(
        self,
        cluster: SimCluster,
        producer_id: int,
        topic: str,
        period_ms: int,
        *,
        keys: int = 0,
    ) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.producer_id = producer_id
        self.topic = topic
        self.topic_id = b""
        self._period_ms = period_ms
        self._keys = [b"key-%d" % number for number in range(keys)]
        self._next: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self.pending: dict[int, deque[Sent]] = {}
        self._line: list[tuple[int, Sent]] = []
        self.acked: dict[int, list[tuple[bytes, int]]] = {}
        """By partition, in order of acknowledgement: value and offset (-1: it was not told)."""
        self.sent: dict[int, list[bytes]] = {}
        self.given_up: dict[int, list[bytes]] = {}
        self.errors: dict[str, int] = {}
        self.is_over = False
        self._tick()

    def _tick(self) -> None:
        world = self._world
        if self.is_over:
            return
        world.after(world.between(1, 2 * self._period_ms), self._tick)
        topic = self._image_topic()
        if topic is None or not self._cluster.is_loaded:
            return
        index = world.random.choice(sorted(topic.partitions))
        pending = self.pending.setdefault(index, deque())
        number = self._numbers.get(index, 0)
        # A broker knows the last five batches of a producer again: no more may follow the oldest
        # that is not acknowledged.
        # And of one it has never heard of it takes any sequence for the first (KAFKA-14359).
        in_flight = _IN_FLIGHT if index in self.acked else 1
        if pending and number - pending[0].number >= in_flight:
            return
        self._numbers[index] = number + 1
        sequence = self._next.get(index, 0)
        count = world.between(1, 3)
        values = [b"%d-%d-%d" % (self.producer_id, index, sequence + n) for n in range(count)]
        self._next[index] = sequence + count
        self.sent.setdefault(index, []).extend(values)
        keys = [world.random.choice(self._keys) for _ in values] if self._keys else []
        sent = Sent(self.producer_id, number, sequence, values, keys)
        pending.append(sent)
        self._send(index, sent)

    def _image_topic(self) -> Any:
        """As some broker has it; the producer is for one topic id, whatever its name is later."""
        image = self._cluster.some_image()
        topic = image.topics_by_name.get(self.topic)
        if topic is None:
            return None
        if not self.topic_id:
            self.topic_id = topic.topic_id
        return topic if topic.topic_id == self.topic_id else None

    def _send(self, index: int, sent: Sent) -> None:
        """Soon, behind what else goes to that broker: requests that wait in line are served
        together."""
        self._line.append((index, sent))
        if len(self._line) == 1:
            self._world.after(self._world.between(0, _LINGER_MS), self._send_line)

    def _send_line(self) -> None:
        line, self._line = self._line, []
        topic = self._image_topic()
        by_leader: dict[int, list[tuple[int, Sent]]] = {}
        for index, sent in line:
            registration = None if topic is None else topic.partitions.get(index)
            if registration is None or registration.leader < 0:
                self._again(index, sent)
            else:
                by_leader.setdefault(registration.leader, []).append((index, sent))
        for leader, together in by_leader.items():
            self._send_to(leader, together)

    def _request(self, index: int, sent: Sent) -> ProduceRequest:
        partition = ProduceRequest.Topic.Partition(index=index, records=memoryview(sent.data))
        topic = ProduceRequest.Topic(topic_id=self.topic_id, partition_data=[partition])
        return ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS - 300, topic_data=[topic])

    def _send_to(self, leader: int, together: list[tuple[int, Sent]]) -> None:
        requests = [self._request(index, sent) for index, sent in together]
        is_awaited = True

        def serve(node: SimNode, reply: Reply) -> None:
            answers: list[Any] = []

            def respond(response: Any) -> None:
                index, sent = together[len(answers)]
                key = TopicPartition(self.topic, index)
                self._acknowledges(node, key, response, sent, is_awaited)
                answers.append(response)
                if len(answers) == len(together):
                    reply(answers)

            serve_produce(node, requests, 13, respond)

        def answered(answers: list[Any] | None) -> None:
            nonlocal is_awaited
            is_awaited = False
            for at, (index, sent) in enumerate(together):
                self._answered(index, sent, None if answers is None else answers[at])

        self._cluster.network.call(None, leader, serve, answered, _TIMEOUT_MS, needs_broker=True)

    def _acknowledges(
        self, node: SimNode, key: TopicPartition, response: Any, sent: Sent, is_awaited: bool
    ) -> None:
        """At the broker: what it acknowledges must be on the whole ISR by now, and what it says is
        not written must not be there; unless that comes, behind others of its line, when the
        producer has given up and sent it again."""
        answer = response.responses[0].partition_responses[0]
        log = node.log(key)
        if answer.error_code == _NONE and log is not None and log.topic_id == self.topic_id:
            self._cluster.check.expose(key, log, answer.base_offset + sent.count)
        elif is_awaited and answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS and log is not None:
            self._cluster.check.refuse(key, log, read_header(sent.data))

    def _answered(self, index: int, sent: Sent, response: Any) -> None:
        pending = self.pending.get(index, deque())
        if sent not in pending:
            return
        answer = None if response is None else response.responses[0].partition_responses[0]
        code = -2 if answer is None else answer.error_code
        if code in (_NONE, _DUPLICATE):
            pending.remove(sent)
            first = answer.base_offset if code == _NONE else -1
            self.acked.setdefault(index, []).extend(
                (value, first + n if first >= 0 else -1) for n, value in enumerate(sent.values)
            )
            return
        name = "no answer" if answer is None else ErrorCode(code).name
        self.errors[name] = self.errors.get(name, 0) + 1
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and pending[0] is sent:
            sent.refusals += 1
            if sent.refusals >= _REFUSALS:
                self._give_up(index, sent)
                return
        self._again(index, sent)

    def _give_up(self, index: int, sent: Sent) -> None:
        """Its sequence number is known, but not to be one of the last few: after a restart a broker
        knows the newest batch only (P-4). Then it is there; the checks at the end say whether."""
        self._world.tell(f"{self.producer_id}: {self.topic}-{index} refuses {sent.values}")
        self.pending[index].remove(sent)
        self.given_up.setdefault(index, []).extend(sent.values)

    def _again(self, index: int, sent: Sent) -> None:
        if not (self.is_over and self._image_topic() is None):
            self._world.after(self._world.between(10, 80), lambda: self._send(index, sent))

    def __repr__(self) -> str:
        return (
            f"Producer({self.producer_id}, {self.topic}, next={self._next}, errors={self.errors}, "
            f"pending={ {i: [s.sequence for s in p] for i, p in self.pending.items()} })"
        )

    @property
    def is_done(self) -> bool:
        """Nothing is on its way, but to a topic that is gone."""
        is_gone = self.topic_id not in self._cluster.check.image.topics_by_id
        return (bool(self.topic_id) and is_gone) or not any(self.pending.values())


class Consumer:
    """Reads one partition from its start, and again; nothing it has read may change.

    It reads from followers too, as one with a rack does (KIP-392); one that ends before its
    position sends it back to the leader. Its fetches name a deleted topic besides, of which it
    never hears: it must not be answered sooner for that, or it would spin.
    """

    def __init__(self, cluster: SimCluster, key: TopicPartition) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._key = key
        self._position = 0
        self._epoch = -1
        self._topic_id = b""
        self._asked = self._leader = -1
        self.is_over = False
        self._poll()

    def _poll(self) -> None:
        if self.is_over:
            return
        image = self._cluster.some_image()
        topic = image.topics_by_name.get(self._key.topic)
        registration = image.partition(*self._key)
        if topic is None or registration is None or registration.leader < 0:
            self._world.after(100, self._poll)
            return
        if topic.topic_id != self._topic_id:
            self._topic_id, self._position, self._epoch = topic.topic_id, 0, -1
        if registration.leader_epoch < self._epoch:  # of a broker that is behind (KIP-320)
            self._world.after(20, self._poll)
            return
        self._epoch = registration.leader_epoch
        self._asked = self._leader = registration.leader
        if self._world.chance(0.3):
            self._asked = self._world.random.choice(registration.isr)
        request = FetchRequest(
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 16,
            isolation_level=self._world.between(0, 1),
            topics=[
                FetchRequest.Topic(
                    topic_id=topic_id,
                    partitions=[
                        FetchRequest.Topic.Partition(
                            partition=self._key[1],
                            current_leader_epoch=registration.leader_epoch,
                            fetch_offset=self._position,
                            partition_max_bytes=1 << 16,
                        )
                    ],
                )
                for topic_id in (self._topic_id, _DELETED)
            ],
        )
        data = b"".join(request.encode(13))

        def serve(node: SimNode, reply: Reply) -> None:
            came_ms = node.clock.now_ms()

            def respond(out: bytes | None) -> None:
                reply((out, node.clock.now_ms() - came_ms))

            serve_data(node, FetchRequest, data, 13, respond)

        self._cluster.network.call(
            None,
            self._asked,
            serve,
            self._answered,
            _TIMEOUT_MS,
            needs_broker=True,
        )

    def _answered(self, told: tuple[bytes, int] | None) -> None:
        """What came, and how long that fetch was at the broker by that one's clock: a request may
        arrive twice."""
        self._world.after(self._world.between(20, 200), self._poll)
        if told is None or told[0] is None:
            return
        out, waited_ms = told
        response = FetchResponse.decode(out, 13)
        if response.error_code or not response.responses:
            return
        answer = response.responses[0].partitions[0]
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and self._asked == self._leader:
            start = self._cluster.check.start_asked_for(self._topic_id, self._key[1])
            if self._position < start:  # as auto.offset.reset=earliest, or a little later
                self._position = start
                return
            raise InvariantBroken(
                f"NoConsumerBeyondTheLog: {self._key} at {self._position} is out of range"
            )
        if not answer.error_code and not answer.records and waited_ms < _MAX_WAIT_MS:
            raise InvariantBroken(f"NothingHurries: {self._key} after {waited_ms} ms")
        if answer.error_code or not answer.records:
            return
        exposed = self._cluster.check.exposed.get((self._topic_id, self._key[1]))
        assert exposed is not None, "ReadBelowHW: nothing was committed"
        for _, header in iterate_headers(answer.records):
            known = exposed.batches.get(header.base_offset)
            if known is None or known.crc != header.crc:
                raise InvariantBroken(
                    f"ReadBelowHW: {self._key} gave {header}, shown was {known} of {exposed.end}"
                )
            self._position = max(self._position, header.next_offset)
        if self._world.chance(0.1):
            self._position = self._world.between(0, self._position)


def coordinator_of(
    cluster: SimCluster, key: str, kind: Literal["groups", "transactions"] = "groups"
) -> int | None:
    """FindCoordinator at any broker."""
    node = cluster.some_node()
    if node is None:
        return None
    coordinator: GroupCoordinator | TransactionCoordinator = node.group_coordinator
    topic = "__consumer_offsets"
    if kind == "transactions":
        coordinator, topic = node.transaction_coordinator, "__transaction_state"
    if node.metadata.topics_by_name.get(topic) is None:
        found: list[Any] = []
        node.do(lambda: coordinator.find(key, found.append), node.incarnation)
        return None
    registration = node.metadata.partition(topic, coordinator.partition_for(key))
    return None if registration is None or registration.leader < 0 else registration.leader


def coordinates(cluster: SimCluster, node: SimNode, group: str) -> bool:
    """One that does not know that it was replaced may tell old state, as in Kafka."""
    partition = node.group_coordinator.partition_for(group)
    registration = cluster.check.image.partition("__consumer_offsets", partition)
    return registration is not None and registration.leader == node.node_id


class Committer:
    """Commits ever greater offsets for one group, one at a time, and reads them back."""

    def __init__(self, cluster: SimCluster, group: str, key: TopicPartition) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._group = group
        self._key = key
        self._last = 0
        self.floor = -1
        """The greatest offset that was acknowledged."""
        self.answers = 0
        self.is_over = False
        self._world.after(1_000, self._next)

    def _next(self) -> None:
        if self.is_over:
            return
        node = coordinator_of(self._cluster, self._group)
        if node is None:
            self._world.after(200, self._next)
        elif self._world.chance(0.6):
            self._commit(node)
        else:
            self.read(node)

    def _commit(self, node_id: int) -> None:
        self._last += 1
        offset = self._last
        partition = OffsetCommitRequest.Topic.Partition(
            partition_index=self._key[1], committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            member_id="",
            group_id=self._group,
            topics=[OffsetCommitRequest.Topic(name=self._key.topic, partitions=[partition])],
        )

        def answered(answer: Any) -> None:
            self._world.after(self._world.between(20, 150), self._next)
            if answer is None or isinstance(answer, KafkaError):
                return
            if answer.topics[0].partitions[0].error_code == 0:
                self.answers += 1
                self.floor = max(self.floor, offset)

        self._cluster.network.call(
            None,
            node_id,
            lambda node, reply: node.group_coordinator.commit_offsets(request, 9, reply),
            answered,
            _TIMEOUT_MS,
            needs_broker=True,
        )

    def read(self, node_id: int, then: Callable[[], None] | None = None) -> None:
        floor = self.floor
        request = OffsetFetchRequest.Group(
            group_id=self._group,
            topics=[
                OffsetFetchRequest.Group.Topic(
                    name=self._key.topic, partition_indexes=[self._key[1]]
                )
            ],
        )

        def serve(node: SimNode, reply: Reply) -> None:
            def respond(answer: Any) -> None:
                reply((answer, coordinates(self._cluster, node, self._group)))

            node.group_coordinator.fetch_offsets(request, require_stable=False, on_complete=respond)

        def answered(answer: Any) -> None:
            self._world.after(self._world.between(20, 150), self._next)
            if answer is None or isinstance(answer[0], KafkaError) or not answer[1]:
                return
            if answer[0].error_code:
                return
            found = answer[0].topics[0].partitions[0].committed_offset
            self.answers += 1
            if found < floor or found > self._last:
                raise InvariantBroken(
                    f"OffsetNeverGoesBack: group {self._group} has {found} on {node_id}, committed "
                    f"was {floor}, last asked for {self._last}"
                )
            if then is not None:
                then()

        self._cluster.network.call(None, node_id, serve, answered, _TIMEOUT_MS, needs_broker=True)


class Administrator:
    """Asks the controller through any node."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world

    def ask(self, request: Any, then: Callable[[Any], None] = lambda answer: None) -> None:
        node = self._cluster.some_node()
        if node is None:
            self._world.after(200, lambda: self.ask(request, then))
            return

        def submit() -> None:
            node.channel.submit(request, then, timeout_ms=5_000)

        node.do(submit, node.incarnation)

    def create(
        self, name: str, partitions: int, replicas: int, configs: Mapping[str, str] | None = None
    ) -> None:
        """Asked again until the topic is there."""
        if self._cluster.check.image.topics_by_name.get(name) is not None:
            return
        topic = CreateTopicsRequest.Topic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=[],
            configs=[
                CreateTopicsRequest.Topic.Config(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        self.ask(CreateTopicsRequest(topics=[topic], validate_only=False))
        self._world.after(500, lambda: self.create(name, partitions, replicas, configs))

    def delete(self, name: str) -> None:
        topic = DeleteTopicsRequest.Topic(name=name, topic_id=bytes(16))
        self._world.tell(f"topic {name} is to be deleted")
        self.ask(DeleteTopicsRequest(topics=[topic], timeout_ms=5_000))

    def delete_records(self, key: TopicPartition, before: int) -> None:
        """At whoever leads, of the topic that he knows by this name; not asked again."""
        registration = self._cluster.check.image.partition(*key)
        if registration is None or registration.leader < 0:
            return
        self._world.tell(f"{key.topic}-{key[1]}: records below {before} are to be deleted")
        partition = DeleteRecordsRequest.Topic.Partition(partition_index=key[1], offset=before)
        topic = DeleteRecordsRequest.Topic(name=key.topic, partitions=[partition])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS - 300)

        def serve(node: SimNode, reply: Reply) -> None:
            log = node.log(key)
            if log is not None:
                self._cluster.check.deletion_asked_for(key, log, before)
            offset_handlers.delete_records(context(node, 2, reply), request)

        self._cluster.network.call(
            None, registration.leader, serve, lambda answer: None, _TIMEOUT_MS, needs_broker=True
        )

    def move(self, key: TopicPartition, replicas: list[int] | None) -> None:
        """Reassign; None cancels."""
        self._world.tell(f"{key.topic}-{key[1]} is to move to {replicas}")
        partition = AlterPartitionReassignmentsRequest.Topic.Partition(
            partition_index=key[1], replicas=replicas
        )
        topic = AlterPartitionReassignmentsRequest.Topic(name=key.topic, partitions=[partition])
        self.ask(AlterPartitionReassignmentsRequest(topics=[topic]))

    def elect_preferred(self) -> None:
        self._world.tell("preferred leaders are to be elected")
        self.ask(ElectLeadersRequest(election_type=0, topic_partitions=None))
