"""The whole cluster in one thread: nodes, network, disks, clients, faults, and what must hold.

A run (`simulate`): start 3 to 5 nodes, create topics, let clients work while things go wrong
(`Faults`), then heal everything and wait: every batch must be acknowledged, every ISR complete,
every replica equal byte for byte, every acknowledged record there once and in order, every
committed offset kept. After every event `invariants` are checked.

Power losses in page-cache mode take what was not synced, which Kafka's promise survives one machine
at a time; `power_loss_is_fair` keeps to that. Where topics are synced before they are acknowledged
(`flush.messages=1`), power fails anywhere, everywhere, at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from replication.metadata.image import EMPTY_IMAGE, MetadataImage
from tests.sim.clients import Administrator, Committer, Consumer, Producer
from tests.sim.committed_reads import LedgerReader, OffsetReader, check_atomicity
from tests.sim.consumer_members import ConsumerTeam
from tests.sim.disks import Disks
from tests.sim.faults import Faults
from tests.sim.invariants import Invariants
from tests.sim.members import Group, Vandal
from tests.sim.network import Network
from tests.sim.node import SimNode
from tests.sim.share_members import ShareTeam
from tests.sim.streams_members import StreamsTeam
from tests.sim.transactors import LEDGER, LEDGER_PARTITIONS, TransactionalId
from tests.sim.world import Alarms, InvariantBroken, World
from wire.primitives import TopicPartition
from wire.records import iterate_headers, read_records

COMPARE_EVERY = 400
_CONFIG = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "200",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.request.timeout.ms": "500",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1500",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "300",
    "replica.fetch.backoff.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "700",
    "log.flush.offset.checkpoint.interval.ms": "1500",
    "log.flush.start.offset.checkpoint.interval.ms": "700",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "200",
    "metadata.max.idle.interval.ms": "1000",
    "leader.imbalance.check.interval.seconds": "5",
    "initial.broker.registration.timeout.ms": "120000",
    "log.initial.task.delay.ms": "500",
}


@dataclass(slots=True)
class Options:
    """What happens in a run; times in virtual ms, probabilities per message or event."""

    voters: int = 3
    brokers: int = 3
    work_ms: int = 10_000
    heal_ms: int = 40_000
    loss: float = 0.01
    repeat: float = 0.02
    slow: float = 0.05
    slow_ms: int = 400
    lag: float = 0.1
    lag_ms: int = 20
    slow_sync: float = 0.05
    cut_every_ms: int = 4_000
    pause_every_ms: int = 6_000
    crash_every_ms: int = 4_000
    power_every_ms: int = 0
    tear_every_ms: int = 0
    sync_fails_every_ms: int = 0
    stop_every_ms: int = 0
    move_every_ms: int = 0
    topic_every_ms: int = 0
    records_every_ms: int = 0
    """Between two DeleteRecords."""
    directories: int = 1
    """Log directories of a node; the first also has the metadata log, and nothing happens to it."""
    full_every_ms: int = 0
    hang_every_ms: int = 0
    """Between two times that syncs of a directory hang for seconds."""
    shortage_every_ms: int = 0
    """Between two shortages of file descriptors."""
    rot_every_ms: int = 0
    """Between two times that a killed process leaves broken transaction indexes."""
    late_every_ms: int = 0
    """Between two times that brokers' requests about transactions are held on their way."""
    echoes: float = 0.0
    """How many of brokers' WriteTxnMarkers come once more, in the producer's next transaction, and
    of what they write of share groups' state, when its sender may have gone on."""
    stuck_threads: float = 0.0
    """How often the thread that goes on with a verified append stands still before."""
    clean_every_ms: int = 0
    """How often a node's cleaner looks for work; 0: nothing is compacted."""
    stalled_note: float = 0.02
    """How often a thread stands still between a look at the logs and the note of what they said."""
    clocks_disagree: bool = False
    step_every_ms: int = 0
    """Between two steps of a wall clock."""
    story_every_ms: int = 0
    """Between two stories of `tests.sim.stories`; 0: none is told."""
    story: str = ""
    """Only this one."""
    down_ms: int = 1_200
    flushes: bool = False
    """flush.messages=1: synced before acknowledged."""
    producers: int = 2
    period_ms: int = 40
    partitions: int = 2
    groups: int = 2
    members: int = 2
    consumer_members: int = 0
    """Of a group of KIP-848."""
    share_members: int = 0
    streams_members: int = 0
    member_stops: float = 0.05
    """How often one of them stands still between a heartbeat and a commit."""
    vandal_every_ms: int = 0
    """Between two requests of somebody who means harm to the coordinators; 0: there is none."""
    transactors: int = 0
    """Transactional ids, those with an even number of the old generation."""
    first_epoch: int = 0
    """Theirs."""
    fetch_timeout_ms: int = 700
    snapshot_bytes: int = 6_000
    metadata_segment_bytes: int = 1 << 20
    segment_bytes: int = 12_000
    config: dict[str, str] = field(default_factory=dict)


class SimCluster:
    """See the module. `root` is an empty directory; better one in memory."""

    def __init__(
        self, seed: int, options: Options, root: Path, *, tells_logs: bool = False
    ) -> None:
        self.options = options
        options.config = {**_CONFIG, **options.config}
        if options.flushes:
            options.config["log.flush.interval.messages"] = "1"
        self.world = World(seed)
        self.alarms = Alarms(self.world, is_told=tells_logs)
        self.disks = Disks(self.world)
        self.network = Network(self.world)
        self.check = Invariants(self)
        self.nodes: dict[int, SimNode] = {}
        self.is_loaded = True
        """Do the producers send."""
        self.is_faulty = True
        for node_id in range(1, options.brokers + 1):
            self.nodes[node_id] = SimNode(self, node_id, root / f"node-{node_id}")
        self.network.nodes = self.nodes
        self.world.after_event = self._after_event
        self.admin = Administrator(self)
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.committers: list[Committer] = []
        self.transactors: list[TransactionalId] = []
        self.ledger_readers: list[LedgerReader] = []
        self.offset_readers: list[OffsetReader] = []

    # ---- what clients see

    def some_node(self) -> SimNode | None:
        """Any broker that serves."""
        serving = [n for n in self.nodes.values() if n.is_up and n.is_serving]
        return self.world.random.choice(serving) if serving else None

    def some_image(self) -> MetadataImage:
        node = self.some_node()
        return EMPTY_IMAGE if node is None else node.metadata

    # ---- after every event

    def _after_event(self) -> None:
        self.check.check()
        if self.alarms.raised:
            raise InvariantBroken(self.alarms.raised[0])
        if self.world.events % COMPARE_EVERY == 0:
            self.check.compare()

    def node_died(self, node: SimNode) -> None:
        """It comes back after a while."""
        incarnation = node.incarnation

        def again() -> None:
            if not node.is_up and node.incarnation == incarnation:
                node.start()

        delay_ms = self.world.between(10, self.options.down_ms if self.is_faulty else 100)
        self.world.after(delay_ms, again)

    def is_compacted(self, topic: str) -> bool:
        """Are its replicas cleaned, each on its own."""
        return bool(self.options.clean_every_ms) and topic in ("table", "__consumer_offsets")

    # ---- power

    def power_loss_is_fair(self, node: SimNode) -> bool:
        """May this machine lose its page cache now, with nothing acknowledged lost?

        With every record synced before it is acknowledged, always. Else only if no other one did so
        lately or may have to be counted out as unclean, and each partition has a replica elsewhere
        that has all that was shown and that will lead.
        """
        if self.options.flushes:
            return True
        others = [n for n in self.nodes.values() if n is not node]
        if any(not n.is_serving or self.check.is_tainted(n.node_id) for n in others):
            return False
        if any(self.world.ms < n.paused_until_ms for n in others) or self.network.cut:
            return False
        for topic in self.check.image.topics_by_name.values():
            for index, registration in topic.partitions.items():
                counted = [
                    b
                    for b in self.check.in_sync(registration)
                    if b != node.node_id and b in registration.isr
                ]
                exposed = self.check.exposed.get((topic.topic_id, index))
                if exposed is not None and exposed.end and len(counted) < 1:
                    return False
        return True

    def is_recovering(self) -> bool:
        """Is one without its page cache still counted: then no other process may die uncleanly."""
        return not self.options.flushes and any(
            self.check.is_tainted(n.node_id) for n in self.nodes.values()
        )

    # ---- a run

    def run_until(self, condition: Callable[[], bool], limit_ms: int, what: str) -> None:
        end_ms = self.world.ms + limit_ms
        while not condition():
            if self.world.ms >= end_ms:
                self.world.tell(f"in vain: {self.producers}")
                for topic in self.check.image.topics_by_name.values():
                    for index, registration in topic.partitions.items():
                        self.world.tell(f"{topic.name}-{index} {registration}")
                raise InvariantBroken(f"Liveness: {what} within {limit_ms} ms")
            self.world.run_until(self.world.ms + 50)

    def start(self) -> None:
        """All nodes, topics, clients."""
        options = self.options
        for node in self.nodes.values():
            node.start()
        self.run_until(lambda: all(n.is_serving for n in self.nodes.values()), 20_000, "all serve")
        self.admin.create("orders", options.partitions, 3)
        self.admin.create("events", 1, 3)
        self.run_until(
            lambda: {"orders", "events"} <= self.check.image.topics_by_name.keys(),
            20_000,
            "topics are there",
        )
        if options.clean_every_ms:
            self.admin.create("table", 1, 3, {"cleanup.policy": "compact"})
            self.producers.append(Producer(self, 3_000, "table", options.period_ms, keys=5))
        for number in range(options.producers):
            topic = "events" if number % 3 == 2 else "orders"
            self.producers.append(Producer(self, 1_000 + number, topic, options.period_ms))
        for index in range(options.partitions):
            self.consumers.append(Consumer(self, TopicPartition("orders", index)))
        for number in range(options.groups):
            key = TopicPartition("orders", 0)
            self.committers.append(Committer(self, f"group-{number}", key))
        self._start_transactors()
        self.team = Group(self, "team", "orders", options.members)
        self.share_team = ShareTeam(self, "sharers", "orders", options.share_members)
        self.teams = (
            self.team,
            ConsumerTeam(self, "others", "orders", options.consumer_members),
            self.share_team,
            StreamsTeam(self, "streamers", "orders", options.streams_members),
        )
        if options.vandal_every_ms:
            Vandal(self, options.vandal_every_ms)

    def _start_transactors(self) -> None:
        if not self.options.transactors:
            return
        self.admin.create(LEDGER, LEDGER_PARTITIONS, 3)
        self.ledger_readers = [LedgerReader(self, i) for i in range(LEDGER_PARTITIONS)]
        for number in range(self.options.transactors):
            owner = TransactionalId(self, f"tx-{number}", 1 if number % 2 == 0 else 2)
            self.transactors.append(owner)
            self.offset_readers.append(OffsetReader(self, owner))

    def run(self) -> None:
        """Work under faults, heal, and look at what is left."""
        self.start()
        faults = Faults(self)
        self.world.run_until(self.world.ms + self.options.work_ms)
        faults.end()
        self.heal()
        self.check_end()

    def heal(self) -> None:
        world = self.world
        world.tell("everything is well again")
        self.is_faulty = False
        self.is_loaded = False
        for node in self.nodes.values():
            self.disks.spare(node.node_id)
            self.disks.spare_directories(node.directories)
        limit_ms = self.options.heal_ms
        self.run_until(
            lambda: all(n.is_serving for n in self.nodes.values()), limit_ms, "all nodes serve"
        )
        self.run_until(
            lambda: all(p.is_done for p in self.producers), limit_ms, "every batch acknowledged"
        )
        answers = [committer.answers for committer in self.committers]
        self.run_until(
            lambda: all(
                c.answers > before + 2 for c, before in zip(self.committers, answers, strict=True)
            ),
            limit_ms,
            "groups answer",
        )
        for team in self.teams:
            self.run_until(team.is_settled, limit_ms, "the group's members work")
        self._end_transactions()
        for client in (*self.committers, *self.consumers, *self.ledger_readers,
                       *self.offset_readers, *self.teams):  # fmt: skip
            client.is_over = True
        self.run_until(self._is_replicated, limit_ms, "every ISR complete and equal")

    def _end_transactions(self) -> None:
        """Every one ends, by its producer or by its timeout; then all of it is read again."""
        limit_ms, rules = self.options.heal_ms, self.check.transactions
        self.run_until(
            lambda: all(owner.is_done for owner in self.transactors), limit_ms, "producers end"
        )
        try:
            self.run_until(
                lambda: not rules.open_transactions(), limit_ms, "every transaction ends"
            )
        except InvariantBroken as error:
            raise InvariantBroken(f"{error}: {rules.open_transactions()}") from error
        for reader in self.ledger_readers:
            reader.from_the_start()
        for offsets in self.offset_readers:
            offsets.last = None
        self.run_until(
            lambda: (
                all(reader.rounds > 1 for reader in self.ledger_readers)
                and all(offsets.last is not None for offsets in self.offset_readers)
            ),
            limit_ms,
            "what transactions wrote is read",
        )

    def _is_replicated(self) -> bool:
        for topic in self.check.image.topics_by_name.values():
            for index, registration in topic.partitions.items():
                if registration.adding_replicas or registration.removing_replicas:
                    return False
                if set(registration.isr) != set(registration.replicas) or registration.leader < 0:
                    return False
                logs = [
                    self.nodes[b].log(TopicPartition(topic.name, index))
                    for b in registration.replicas
                ]
                ends = {
                    None if log is None else (log.log_end_offset, log.high_watermark)
                    for log in logs
                }
                if len(ends) != 1 or None in ends:
                    return False
                end, watermark = ends.pop() or (0, 1)
                if end != watermark:
                    return False
        return True

    # ---- the end

    def check_end(self) -> None:
        """AckedIsThere, OnceAndInOrder, ReplicasEqual; what is compacted was compared by keys."""
        self.check.compare()
        for owner, offsets in zip(self.transactors, self.offset_readers, strict=True):
            check_atomicity(self, owner, offsets.last)
        for topic in self.check.image.topics_by_name.values():
            if self.is_compacted(topic.name):
                continue
            for index, registration in topic.partitions.items():
                key = TopicPartition(topic.name, index)
                start = self._first_common(registration.replicas, key)
                contents = {self._bytes(broker, key, start) for broker in registration.replicas}
                if len(contents) != 1:
                    raise InvariantBroken(f"ReplicasEqual: {topic.name}-{index}")
                self._check_values(key, dict(_values(contents.pop())), start)

    def _first_common(self, replicas: Sequence[int], key: TopicPartition) -> int:
        """Where the log begins that begins last: deleting records is noted later than answered."""
        logs = (self.nodes[broker].log(key) for broker in replicas)
        return max(0 if log is None else log.log_start_offset for log in logs)

    def _bytes(self, broker_id: int, key: TopicPartition, start: int) -> bytes:
        log = self.nodes[broker_id].log(key)
        assert log is not None
        read = log.read(start, 1 << 30, True, log.log_end_offset)
        data = b"" if read.records is None else read.records.read()
        while data and start < log.log_end_offset:  # a read ends with its segment
            last = max(header.next_offset for _, header in iterate_headers(data))
            if last >= log.log_end_offset:
                break
            start = last
            more = log.read(start, 1 << 30, True, log.log_end_offset)
            assert more.records is not None
            data += more.records.read()
        return data

    def _check_values(self, key: TopicPartition, found: dict[int, bytes], start: int) -> None:
        for producer in self.producers:
            if producer.topic_id == self.check.image.topics_by_name[key.topic].topic_id:
                prefix = b"%d-" % producer.producer_id
                mine = [value for _, value in sorted(found.items()) if value.startswith(prefix)]
                self._check_producer(key, producer, found, mine)
                self._check_acked(key, producer, found, start)

    def _check_producer(
        self, key: TopicPartition, producer: Producer, found: dict[int, bytes], mine: list[bytes]
    ) -> None:
        if mine != sorted(mine, key=lambda value: int(value.rpartition(b"-")[2])):
            raise InvariantBroken(f"InOrder: {key} of producer {producer.producer_id}")
        there = set(mine)
        if len(there) != len(mine):
            raise InvariantBroken(f"Once: {key} of producer {producer.producer_id}")
        if there - set(producer.sent.get(key[1], ())):
            raise InvariantBroken(f"NothingMadeUp: {key}")

    def _check_acked(
        self, key: TopicPartition, producer: Producer, found: dict[int, bytes], start: int
    ) -> None:
        """Of what lies below `start` nothing is known, nor of what was never told its offset."""
        there = set(found.values())
        for value, offset in producer.acked.get(key[1], ()):
            if value not in there and (offset >= start or not start):
                raise InvariantBroken(f"AckedIsThere: {value!r} in {key}")
            if offset >= start and found.get(offset) != value:
                raise InvariantBroken(
                    f"AckedWhereItWasSaid: {value!r} in {key} at {offset}: {found.get(offset)!r}"
                )
        for value in producer.given_up.get(key[1], ()):
            if value not in there and not start:
                raise InvariantBroken(f"RefusedOnlyIfThere: {value!r} in {key}")


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    for position, header in iterate_headers(data):
        for record in read_records(data, position, header):
            yield record.offset, record.value or b""


@contextmanager
def logs_of(cluster: SimCluster) -> Iterator[None]:
    """The product's log goes to the run's alarms, and nowhere else."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers = [cluster.alarms]
    root.setLevel(cluster.alarms.level)
    try:
        yield
    finally:
        root.handlers = before
        root.setLevel(level)
