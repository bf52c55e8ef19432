"""A share group whose members fetch, acknowledge, renew, hang and die, while leaders and both
coordinators move.

A member accepts most records, gives some back, rejects some, keeps some longer by renewing its
lock, and stands still past its locks; a few records nobody can process, and always come back. What
they are told is held to `share_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from server.coordinator.group_messages import Client
from server.handlers import share as handlers
from server.share.share_partition import ACCEPT, REJECT, RELEASE, RENEW
from server.share.state_batches import ShareKey
from tests.sim.network import context
from tests.sim.share_rules import DELIVERIES, LOCK_MS, Asked, Offset, Said, ShareRules
from tests.sim.teams import TeamMember, code_of
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
)
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.network import Reply
    from tests.sim.node import SimNode

SESSION_MS = 1_500
CONFIG = {
    "group.share.session.timeout.ms": str(SESSION_MS),
    "group.share.min.session.timeout.ms": str(SESSION_MS),
    "group.share.heartbeat.interval.ms": "300",
    "group.share.min.heartbeat.interval.ms": "300",
    "group.share.assignment.interval.ms": "200",
    "group.share.initialize.retry.interval.ms": "1500",
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
    "group.share.delivery.count.limit": str(DELIVERIES),
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.snapshot.update.records.per.snapshot": "15",
    "share.coordinator.state.topic.prune.interval.ms": "1500",
    "request.timeout.ms": "1000",
}
"""What the brokers of such a run are configured with."""
_HEARTBEAT_MS = 300
_TIMEOUT_MS = 900
_ANSWER_MS = 6_000
"""An acknowledgement is answered when it is persisted, which may take a fail-over."""
_WAIT_MS = 200
_SLOW_WORK = 0.15
_LEFT_TO_LIE = 0.05
"""How often nothing is said of what was given, as KafkaShareConsumer does where a partition was
taken from it meanwhile: only the end of its lock gives it to others."""
_VERSION = 2
_CLIENT = Client("sim", "/sim", 1)
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class Connection:
    """To one broker process, with the share session that lives on it."""

    def __init__(self, cluster: SimCluster, node_id: int) -> None:
        self._cluster = cluster
        self.node_id = node_id
        self.incarnation: int | None = None
        """Of the process that was reached."""
        self.epoch = 0
        self.partitions: set[int] = set()
        self.is_dropped = False
        self.closed = False
        """As the broker knows."""
        self.on_closed: Callable[[object], None] = lambda connection: None
        self.epochs: dict[int, int] = {}
        """The leader epochs that the broker knew of when it was asked last, by partition."""
        self.waiting: Any = None
        """The operation that answers what was asked last."""

    def drop(self) -> None:
        """The client ends it; the broker hears of that soon."""
        if not self.is_dropped:
            self._cluster.world.tell(f"a connection to {self.node_id} is dropped")
            self.is_dropped = True
            node, world = self._cluster.nodes[self.node_id], self._cluster.world
            incarnation = node.incarnation if self.incarnation is None else self.incarnation
            world.after(world.between(1, 50), lambda: node.do(self._close, incarnation))

    def _close(self) -> None:
        self.closed = True
        if self.waiting is not None:
            self.waiting.cancel()
        self.on_closed(self)

    def serve(self, node: SimNode, reply: Reply, handle: Callable[..., None], asked: Any) -> None:
        """Have a handler answer what came over it."""
        if self.incarnation is None:
            self.incarnation = node.incarnation
        if self.closed or self.incarnation != node.incarnation:
            reply(None)
            return
        ctx = context(node, _VERSION, reply)
        ctx.connection = self
        ctx.on_connection_end = lambda callback: setattr(self, "on_closed", callback)
        ctx.park = lambda operation: setattr(self, "waiting", operation)
        ctx.on_stop = ctx.on_disconnect = lambda callback: None
        ctx.respond_error = lambda request, code, message=None: reply(KafkaError(ErrorCode(code)))
        try:
            handle(ctx, asked)
        except KafkaError as error:
            reply(error)


class ShareTeam(ShareRules):
    """Its members."""

    def __init__(self, cluster: SimCluster, name: str, topic: str, members: int) -> None:
        super().__init__(cluster, name, topic)
        self.members = [ShareMember(self, number) for number in range(members)]

    def is_settled(self) -> bool:
        """Everybody is in one epoch, has something to do, and there is nothing left to be done."""
        if not self.members:
            return True
        epochs = {member.epoch for member in self.members}
        assigned = {index for member in self.members for index in member.assigned}
        partitions = range(self.cluster.options.partitions)
        if len(epochs) != 1 or assigned != set(partitions):
            return False
        return all(self._is_done(index) for index in partitions)

    def _is_done(self, index: int) -> bool:
        registration = self.cluster.check.image.partition(self.topic, index)
        if registration is None or registration.leader < 0:
            return False
        node = self.cluster.nodes[registration.leader]
        log = node.log(TopicPartition(self.topic, index))
        if not node.is_serving or log is None:
            return False
        manager = node.shares.manager
        leader = manager._leaders.get(ShareKey(self.name, self.topic_id, index))
        if leader is None or leader._partition.start_offset < log.high_watermark:
            return False
        self.check_end(index, log.high_watermark)
        return True


class ShareMember(TeamMember):
    """One consumer of the group."""

    def __init__(self, team: ShareTeam, number: int) -> None:
        super().__init__(team, number, _TIMEOUT_MS)
        self._shares = team
        self.epoch = 0
        self.assigned: set[int] = set()
        self._says_all = True
        self._connections: dict[int, Connection] = {}
        self._held: dict[Connection, set[Offset]] = {}
        """What it has not said anything final of."""

    # ---- life

    def _begin(self) -> None:
        """A new life, with nothing."""
        if self._team.is_over:
            return
        self._end()
        self.member_id = f"s{self._number}-{self._life}"
        self._find()
        self._later(50, self._work)

    def _end(self, *, leaves_connections: bool = False) -> None:
        self._life += 1
        self.epoch, self.assigned, self._says_all = 0, set(), True
        for connection in self._connections.values():
            if not leaves_connections:
                connection.drop()
        self._connections, self._held = {}, {}

    def _die(self) -> None:
        """Leave, or go without a word; or without even the end of a connection."""
        world, leaves = self._world, self._world.chance(0.4)
        world.tell(f"{self.member_id} {'leaves' if leaves else 'dies'}")
        if leaves and self.epoch and self._coordinator is not None:
            request = ShareGroupHeartbeatRequest(
                group_id=self._team.name, member_id=self.member_id, member_epoch=-1
            )
            self._ask_coordinator(request, lambda answer: None)
        self._end(leaves_connections=not leaves and world.chance(0.5))
        world.after(world.between(100, 3_000), self._begin)

    # ---- heartbeats

    def _ask_coordinator(
        self, request: ShareGroupHeartbeatRequest, answered: Callable[[Any], object]
    ) -> None:
        self._call(
            lambda node, reply: node.shares.groups.heartbeat(request, _CLIENT, reply), answered
        )

    def _heartbeat(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=self._team.name, member_id=self.member_id, member_epoch=self.epoch
        )
        if self._says_all:
            request.subscribed_topic_names = [self._team.topic]
        self._ask_coordinator(request, self._beaten)

    def _beaten(self, answer: Any) -> None:
        code = code_of(answer)
        if code in _FENCED:
            self._world.tell(f"{self.member_id} is fenced")
            self._begin()
        elif code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.GROUP_ID_NOT_FOUND):
            raise InvariantBroken(f"NothingIsForgotten: {self.member_id} was told {code}")
        elif code != 0:
            self._says_all = True
            self._later(self._world.between(20, 150), self._find)
        else:
            self.epoch, self._says_all = answer.member_epoch, False
            if answer.assignment is not None:
                topics = answer.assignment.topic_partitions
                self.assigned = {index for topic in topics for index in topic.partitions}
                self._world.tell(f"{self.member_id} has {sorted(self.assigned)} in {self.epoch}")
            self._later(_HEARTBEAT_MS, self._heartbeat)

    # ---- work

    def _work(self) -> None:
        """Say something of what it has, or fetch more."""
        world = self._world
        if self._cluster.is_faulty and world.chance(0.04):
            self._die()
            return
        connections = [c for c, records in self._held.items() if records]
        if connections:
            connection = world.random.choice(connections)
            self._speak(connection, fetches=world.chance(0.3) and not connection.is_dropped)
            return
        leaders = self._leaders()
        if leaders:
            self._fetch(world.random.choice(sorted(leaders)), leaders, [])
        else:
            self._later(100, self._work)

    def _leaders(self) -> dict[int, set[int]]:
        """By broker: what it leads of what is assigned, as some broker knows."""
        leaders: dict[int, set[int]] = {}
        image = self._cluster.some_image()
        for index in sorted(self.assigned):
            registration = image.partition(self._team.topic, index)
            if registration is not None and registration.leader >= 0:
                leaders.setdefault(registration.leader, set()).add(index)
        return leaders

    def _ask(
        self,
        connection: Connection,
        handle: Callable[..., None],
        request: Any,
        answered: Callable[[Any], object],
    ) -> None:
        life = self._life
        connection.epoch += 1

        def serve(node: SimNode, reply: Reply) -> None:
            came = Asked(self._world.ms, self._shares.leaderships(node))
            topic = node.metadata.topics_by_name[self._team.topic]
            connection.epochs = {i: one.leader_epoch for i, one in topic.partitions.items()}

            def respond(answer: Any) -> None:
                if isinstance(answer, ShareFetchResponse):
                    self._shares.hands_out(node, connection, came, answer)
                reply(answer)

            connection.serve(node, respond, handle, request)

        def heard(answer: Any) -> None:
            if life != self._life:
                return
            if code_of(answer) != 0:
                self._lost(connection)
            answered(answer if code_of(answer) == 0 else None)

        self._cluster.network.call(
            None, connection.node_id, serve, heard, _ANSWER_MS, needs_broker=True
        )

    def _lost(self, connection: Connection) -> None:
        """The session is over, and what came with it is for others."""
        connection.drop()
        self._held.pop(connection, None)
        if self._connections.get(connection.node_id) is connection:
            del self._connections[connection.node_id]

    # ---- fetching

    def _fetch(self, node_id: int, leaders: dict[int, set[int]], said: list[Said]) -> None:
        connection = self._connections.get(node_id)
        if connection is None:
            connection = self._connections[node_id] = Connection(self._cluster, node_id)
        wanted, known = leaders.get(node_id, set()), connection.partitions
        spoken = {index for one in said for index, _ in one.kinds}
        request = ShareFetchRequest(
            group_id=self._team.name,
            member_id=self.member_id,
            share_session_epoch=connection.epoch,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_records=self._world.between(1, 12),
            batch_size=self._world.between(1, 12),
            share_acquire_mode=self._world.between(0, 1),
            topics=self._topics(ShareFetchRequest, (wanted - known) | spoken, said),
            forgotten_topics_data=[
                ShareFetchRequest.ForgottenTopic(
                    topic_id=self._team.topic_id, partitions=sorted(known - wanted - spoken)
                )
            ],
        )
        connection.partitions = wanted | spoken
        self._ask(
            connection,
            handlers.share_fetch,
            request,
            lambda answer: self._fetched(connection, answer, said),
        )

    def _fetched(self, connection: Connection, answer: Any, said: list[Said]) -> None:
        for topic in () if answer is None else answer.responses:
            for told in topic.partitions:
                self._judge(connection, told.partition_index, told.acknowledge_error_code, said)
                records = [
                    (told.partition_index, offset)
                    for batch in told.acquired_records
                    for offset in range(batch.first_offset, batch.last_offset + 1)
                ]
                if records and not self._world.chance(_LEFT_TO_LIE):
                    self._held.setdefault(connection, set()).update(records)
        self._go_on()

    def _go_on(self) -> None:
        """At once, soon, or after a long sleep in the middle of work."""
        world = self._world
        if self._cluster.is_faulty and world.chance(self._cluster.options.member_stops):
            self._later(world.between(1_000, 4_000), self._work)
        elif world.chance(_SLOW_WORK):
            self._later(world.between(200, 900), self._work)
        else:
            self._later(world.between(1, 60), self._work)

    # ---- acknowledging

    def _speak(self, connection: Connection, *, fetches: bool) -> None:
        """Say what became of what came over one connection, or of some of it."""
        said = self._decide(connection)
        if fetches and not any(RENEW in one.kinds.values() for one in said):
            self._fetch(connection.node_id, self._leaders(), said)
            return
        request = ShareAcknowledgeRequest(
            group_id=self._team.name,
            member_id=self.member_id,
            share_session_epoch=connection.epoch,
            is_renew_ack=any(RENEW in one.kinds.values() for one in said),
            topics=self._topics(ShareAcknowledgeRequest, {_index(one) for one in said}, said),
        )
        self._ask(
            connection,
            handlers.share_acknowledge,
            request,
            lambda answer: self._spoken(connection, answer, said),
        )

    def _decide(self, connection: Connection) -> list[Said]:
        kinds: dict[int, dict[Offset, int]] = {}
        records, self._held[connection] = self._held[connection], set()
        for record in sorted(records):
            if self._world.chance(0.2):
                self._held[connection].add(record)
                continue
            kind = kinds.setdefault(record[0], {})[record] = self._kind_of(record)
            if kind in (ACCEPT, REJECT):
                self._shares.ended.add(record)
            if kind == RENEW:
                self._held[connection].add(record)
        said = []
        self._world.tell(f"{self.member_id} says {kinds} to {connection.node_id}")
        for of_partition in kinds.values():
            holds = {record: self._shares.hold(record, connection) for record in of_partition}
            for record, hold in holds.items():
                if hold is not None and of_partition[record] != RENEW:
                    hold.is_spent = True
            said.append(Said(self.member_id, self._world.ms, of_partition, holds))
        return said

    def _kind_of(self, record: Offset) -> int:
        if record[1] % 23 == 7:
            return RELEASE  # nobody can process it
        if not self._cluster.is_faulty:
            return ACCEPT
        (kind,) = self._world.random.choices((ACCEPT, RELEASE, REJECT, RENEW), (75, 10, 4, 11))
        return kind

    def _spoken(self, connection: Connection, answer: Any, said: list[Said]) -> None:
        for topic in () if answer is None else answer.responses:
            for told in topic.partitions:
                self._judge(connection, told.partition_index, told.error_code, said)
        self._go_on()

    def _judge(self, connection: Connection, index: int, code: int, said: Iterable[Said]) -> None:
        """A word on what was said of a partition."""
        for one in said:
            if _index(one) == index:
                told = f"{self.member_id} is told {code} of {one.kinds}"
                self._world.tell(f"{told} in {connection.epochs[index]}")
                held = one.held_until(self._world.ms) and self._is_led_on(one)
                self._shares.acknowledged(one, code, connection.epochs[index], held=held)

    def _is_led_on(self, said: Said) -> bool:
        """By whom the records were handed out."""
        registration = self._cluster.check.image.partition(self._team.topic, _index(said))
        return registration is not None and all(
            hold is not None
            and hold.where is not None
            and hold.where.leader_epoch == registration.leader_epoch
            and hold.where.incarnation == self._cluster.nodes[hold.where.node_id].incarnation
            for hold in said.holds.values()
        )

    def _topics(self, request: Any, indexes: set[int], said: list[Said]) -> list[Any]:
        make = request.Topic.Partition
        partitions = [
            make(
                partition_index=index,
                acknowledgement_batches=[
                    make.AcknowledgementBatch(
                        first_offset=offsets[0],
                        last_offset=offsets[-1],
                        acknowledge_types=[one.kinds[index, offset] for offset in offsets],
                    )
                    for one in said
                    if _index(one) == index
                    for offsets in _in_a_row(offset for _, offset in one.kinds)
                ],
            )
            for index in sorted(indexes)
        ]
        return [request.Topic(topic_id=self._team.topic_id, partitions=partitions)]


def _index(said: Said) -> int:
    return next(iter(said.kinds))[0]


def _in_a_row(offsets: Iterable[int]) -> list[list[int]]:
    """Offsets that follow one another, together."""
    numbered = enumerate(sorted(offsets))
    rows = groupby(numbered, lambda pair: pair[1] - pair[0])
    return [[offset for _, offset in row] for _, row in rows]
