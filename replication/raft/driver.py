"""Runs one replica of the quorum: owns the raft core and its log in one thread, makes appends
durable in groups, and talks to the others.

What: `append` takes records from the active controller, `RaftListener`s get what is committed, in
order and once. `handle` takes the requests of other nodes; ours leave through a `RaftTransport`.
`describe_quorum` tells the state of the quorum.
Why: the core decides and the log stores; somebody must do the waiting, and do it for many at once.
How: `append` encodes a batch on the caller's thread, gives it its offsets and returns. The driver's
thread takes all waiting batches, writes them, answers the fetches that waited for them, syncs once
(group commit), steps `Flushed`, and hands everything below the new high watermark to the listeners.
One append waiting alone costs one fsync. A follower appends what a fetch brought, syncs, and only
then fetches again (K-4).
Recovery, the first election of a single voter and the delivery of what the log holds happen in
`start`, on the caller's thread: a start needs no hand-over between threads. With more voters a
replica delivers nothing before a leader told it the high watermark.

Threads: `append`, `handle`, `resign`, `describe_quorum`, `write_snapshot` and the properties may be
called from any; everything else belongs to the driver's thread. Listeners are called on it and must
only take note. The thread does nothing but wait and call `turn`; a simulator calls `begin` instead
of `start`, then `turn` when `has_work` or when the time is `deadline_ms`.

When a write fails: what came before it is committed; it and what waited behind it fail, because
their offsets cannot be kept. The driver resigns, which tells the listeners to throw their
uncommitted state away, and stands for election in a new epoch after the election timeout. A
follower that cannot write asks its leader again. A failed fsync, or a vote that cannot be stored
for another reason than a full disk, is final, as is every error that nobody expected: the process
ends (`faults`; better stopped than wrong). So does a lack of descriptors for either of them, once
idle ones were given up and that was not enough. Kafka's ends there without looking for any, and on
a full disk as well.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from replication.raft.accumulator import BatchAccumulator
from replication.raft.batches import CommittedBatch
from replication.raft.core import RaftCore
from replication.raft.delivery import Delivery, RaftListener, RecordSerde
from replication.raft.faults import FaultHandler
from replication.raft.log import RaftLog
from replication.raft.own_events import (
    NO_LEADER,
    AppendVoters,
    ElectionState,
    Flushed,
    LeaderChange,
    Peer,
    RaftConfig,
    Ready,
    Resign,
    Send,
    Shutdown,
    SnapshotId,
    Start,
    Tick,
    VotersAppended,
)
from replication.raft.roles import Resigned, Role
from replication.raft.voter_set import Endpoint, ReplicaKey, VoterSet
from storage import files
from storage.config import Clock
from wire.errors import ErrorCode, KafkaError
from wire.primitives import METADATA_TOPIC

if TYPE_CHECKING:
    from replication.raft.events import Event, RaftTransport, Reply, Request
    from replication.raft.follower import Follower
    from replication.raft.parked import ParkedFetches
    from replication.raft.quorum_info import QuorumInfo as QuorumInfo
    from replication.raft.quorum_info import ReplicaState as ReplicaState

logger = logging.getLogger(__name__)

_RETRY_MS = 1000
SHUTDOWN_TIMEOUT_MS = 5000
"""How long a leader that stops waits for its successor (Kafka: RaftManager's shutdown)."""

OnReply = Callable[[Any], None]


class RaftDriver:
    """One replica of the metadata quorum. See the module for threads and failures."""

    fatal_error: BaseException | None = None
    on_wake: Callable[[], None] | None = None
    """Called on any thread when there is work (for a simulator)."""
    # Made when they are needed first; a single voter needs but the thread:
    _parked: ParkedFetches | None = None
    _follower: Follower | None = None
    _thread: threading.Thread | None = None

    def __init__(
        self,
        node_id: int,
        log: RaftLog,
        clock: Clock,
        serde: RecordSerde,
        *,
        voters: VoterSet | None = None,
        directory_id: bytes = bytes(16),
        cluster_id: str | None = None,
        config: RaftConfig | None = None,
        transport: RaftTransport | None = None,
        endpoints: tuple[Endpoint, ...] = (),
        listener_name: str = "CONTROLLER",
        bootstrap_servers: Sequence[tuple[str, int]] = (),
        can_vote: bool = True,
        random: Random | None = None,
        faults: FaultHandler | None = None,
    ) -> None:
        """`voters`: the static voter set, this node alone by default; a log with voters of its own
        goes before it. `endpoints`: our own controller listeners, as others reach them.
        `listener_name`: which endpoint of other voters is dialled. `can_vote`: False without the
        controller role.
        """
        if voters is None:
            alone = can_vote and transport is None
            voters = VoterSet.of_ids(node_id) if alone else VoterSet()
        log.voter_history.begin_with(voters)
        self.node_id = node_id
        self.log = log
        self.core = RaftCore(
            ReplicaKey(node_id, directory_id),
            log.voter_history,
            random or Random(),
            log,
            config=config,
            cluster_id=cluster_id,
            endpoints=endpoints,
            listener_name=listener_name,
            bootstrap=bootstrap_servers,
            can_vote=can_vote,
        )
        self._clock = clock
        self._serde = serde
        self._faults = faults or FaultHandler()
        self._transport = transport
        self._delivery = Delivery(log, serde)
        self._accumulator = BatchAccumulator()
        self._core_lock = threading.Lock()
        self._caught_up = threading.Event()
        self._wake = threading.Condition()
        # Guarded by _wake: what callers hand over.
        self._inbox: deque[tuple[Event, OnReply | None]] = deque()
        self._written_snapshots: list[SnapshotId] = []
        self._stopping = False
        self._stopped = False
        self._stop_deadline_ms: int | None = None
        # The driver's thread only:
        self._on_change_reply: OnReply | None = None

    # --- for callers ----------------------------------------------------------------------------

    @property
    def leader_id(self) -> int:
        """Who leads, as far as this node knows; NO_LEADER when nobody, or we did and resigned."""
        return NO_LEADER if self.core.role is Role.RESIGNED else self.core.leader_id

    @property
    def leader_epoch(self) -> int:
        return self.core.epoch

    @property
    def is_leader(self) -> bool:
        return self._accumulator.epoch >= 0

    @property
    def is_voter(self) -> bool:
        return self.core.is_voter

    @property
    def is_only_voter(self) -> bool:
        return self.core.is_only_voter

    @property
    def high_watermark(self) -> int:
        return self.core.high_watermark

    @property
    def voters(self) -> VoterSet:
        return self.core.voters

    def leader_endpoint(self) -> Peer | None:
        """Where the leader is reached, when it is another node and known."""
        return self.core.leader_peer()

    def add_listener(self, listener: RaftListener) -> None:
        """Before `start` only."""
        assert self._thread is None, "listeners are added before the start"
        self._delivery.listeners.append(listener)

    def begin(self) -> None:
        """Load the log and, as a single voter, elect ourselves and deliver what is committed.

        Raises OSError, KafkaError, CorruptSnapshot, CorruptQuorumState when the disk does not let
        us.
        """
        self._step(Start(self.log.read_election_state(), self.log.position))
        failure = self._write_pending()
        if failure is not None:
            raise failure

    def start(self) -> None:
        """`begin`, then start the thread. The transport must be ready."""
        self.begin()
        self._thread = self._faults.thread("raft-driver", self._run)
        self._thread.start()

    def shutdown(self, timeout_ms: int | None = None) -> None:
        """Write what waits, resign and wait for a successor if others vote, stop. Idempotent.

        A successor is there after one election, if anybody is left to elect it: two election
        timeouts are waited, at most SHUTDOWN_TIMEOUT_MS, unless `timeout_ms` says otherwise.
        """
        if timeout_ms is None:
            timeout_ms = min(SHUTDOWN_TIMEOUT_MS, 2 * self.core.config.election_timeout_ms)
        with self._wake:
            if not self._stopping:
                self._stopping = True
                self._accumulator.stop()
                self._stop_deadline_ms = self._clock.now_ms() + timeout_ms
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._wake:
            self._stopped = True
            refused, self._inbox = self._inbox, deque()
        self._refuse(refused)
        self._give_up_parked()
        try:
            self.log.close()
        except (OSError, KafkaError) as error:
            # All that counts was synced before; the next start rebuilds the indexes.
            logger.error("closing the metadata log failed error=%s", error)

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Take a request of another node; `on_reply` gets the answer, exactly once.

        On the driver's thread, or at once when the driver is down: then BROKER_NOT_AVAILABLE.
        """
        self._post(request, on_reply)

    def resign(self, epoch: int) -> None:
        """Give up leadership of `epoch`, if we have it (the controller cannot go on)."""
        if self.core.epoch == epoch:
            self._post(Resign(), None)

    def _post(self, event: Event, on_reply: OnReply | None) -> None:
        with self._wake:
            is_down = self._stopped or self.fatal_error is not None
            if not is_down:
                self._inbox.append((event, on_reply))
                self._wake.notify()
        if is_down:
            self._refuse([(event, on_reply)])
        elif self.on_wake is not None:
            self.on_wake()

    def _refuse(self, refused: Iterable[tuple[Event, OnReply | None]]) -> None:
        from replication.raft.answers import refusal

        waiting, self._on_change_reply = self._on_change_reply, None
        for event, on_reply in (*refused, (None, waiting)):
            if on_reply is not None:
                on_reply(refusal(event, self.core.epoch))

    def wait_until_caught_up(self, timeout_s: float | None = None) -> bool:
        """Wait until all that a leader had committed when it first answered is delivered."""
        return self._caught_up.wait(timeout_s)

    def next_offset(self, epoch: int) -> int:
        """The offset the next append of `epoch`'s leader gets. Raises KafkaError NOT_CONTROLLER."""
        return self._accumulator.next_offset(epoch)

    def append(self, epoch: int, records: Sequence[Any]) -> int:
        """Take records for the log; returns the last one's offset at once, before it is written.

        Listeners hear of them once committed, or of a change of leader if they never will be. Only
        one thread may append: the active controller's. All or nothing up to 10,000 records.
        Raises KafkaError NOT_CONTROLLER if this node does not lead `epoch` (any more),
        RECORD_LIST_TOO_LARGE.
        """
        values = [self._serde.encode(record) for record in records]
        last_offset = self._accumulator.append(epoch, records, values, self._clock.wall_ms())
        with self._wake:
            self._wake.notify()
        if self.on_wake is not None:
            self.on_wake()
        return last_offset

    def upgrade_kraft_version(self, epoch: int, level: int, validate_only: bool) -> None:
        """As leader of `epoch`, raise kraft.version; whatever is appended next lies behind it.

        Raises KafkaError NOT_CONTROLLER, INVALID_UPDATE_VERSION.
        """
        with self._core_lock:
            self._accumulator.next_offset(epoch)
            if self.core.leader is None:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "leadership was lost")
            change = self.core.changes.upgrade(level, validate_only)
            if change is not None:
                self._append_control(change)

    def write_snapshot(
        self,
        snapshot_id: SnapshotId,
        timestamp: int,
        records: Iterable[Any],
        *,
        serde: RecordSerde | None = None,
    ) -> None:
        """Write a snapshot on the caller's thread; the log below it goes soon after.

        `serde` encodes the records if not as those that are appended. Raises OSError, with no
        snapshot there.
        """
        encode = (serde or self._serde).encode
        self.log.write_snapshot(snapshot_id, timestamp, (encode(record) for record in records))
        with self._wake:
            self._written_snapshots.append(snapshot_id)
            self._wake.notify()

    def describe_quorum(self) -> QuorumInfo:
        """The quorum as this node sees it; a leader counts itself as fetching all the time."""
        from replication.raft.quorum_info import describe

        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        with self._core_lock:
            return describe(self.core, self.log.end_offset, now_ms, wall_ms)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self.turn()
        except BaseException as error:
            self._fail(error)

    def _wait_for_work(self) -> bool:
        """True when there is something to do, False when the driver should end."""
        with self._wake:
            while not self.has_work():
                if self._stopping and self._may_stop():
                    return False
                deadline_ms = self.deadline_ms
                if deadline_ms is None:
                    self._wake.wait()
                    continue
                wait_ms = deadline_ms - self._clock.now_ms()
                if wait_ms <= 0:
                    return True
                self._wake.wait(wait_ms / 1000)
        return True

    def has_work(self) -> bool:
        """Is there anything to do at once."""
        return bool(
            self._inbox
            or self._accumulator
            or self._written_snapshots
            or (self._stopping and not self.core.is_stopping)
        )

    @property
    def deadline_ms(self) -> int | None:
        """When `turn` has something to do even if nothing happens."""
        parked_ms = self._parked.deadline_ms if self._parked is not None else None
        deadlines = (self.core.deadline_ms, parked_ms, self._stop_deadline_ms)
        return min((ms for ms in deadlines if ms is not None), default=None)

    def _may_stop(self) -> bool:
        """Alone, an observer or a follower stops at once; who led waits for the next leader."""
        core = self.core
        if not core.is_stopping:
            return False
        waits = core.role in (Role.RESIGNED, Role.UNATTACHED) and core.led_until_stop
        if waits and isinstance(core.current, Resigned) and core.current.farewell.nobody_hears:
            return True  # all nodes stop at once
        return not waits or self._clock.now_ms() >= (self._stop_deadline_ms or 0)

    def turn(self) -> None:
        """One bounded piece of work: what waits now, and what is due."""
        with self._wake:
            inbox, self._inbox = self._inbox, deque()
            stopping = self._stopping
        for event, on_reply in inbox:
            self._step(event, on_reply)
        now_ms = self._clock.now_ms()
        if self._parked is not None:
            self._parked.expire(now_ms)
        deadline_ms = self.core.deadline_ms
        if deadline_ms is not None and now_ms >= deadline_ms:
            self._step(Tick())
        self._write_pending()
        if stopping and not self.core.is_stopping:
            self._step(Shutdown())
        with self._wake:
            written, self._written_snapshots = self._written_snapshots, []
        if written:
            self._give_up_below(max(written))

    def _give_up_below(self, snapshot_id: SnapshotId) -> None:
        try:
            self.log.give_up_below(snapshot_id)
        except (OSError, KafkaError) as error:
            # The snapshot is safe; what should have been deleted only costs space.
            logger.warning("log below the snapshot stays snapshot=%s error=%s", snapshot_id, error)

    # --- one step, and its effects --------------------------------------------------------------

    def _step(self, event: Event, on_reply: OnReply | None = None) -> None:
        core = self.core
        led, before = core.is_leader, (core.epoch, core.leader_id)
        with self._core_lock:
            ready = core.step(event, self._clock.now_ms())
        self._perform(ready, on_reply)
        if led and not core.is_leader:
            self._lose_leadership()
        elif (core.epoch, core.leader_id) != before and not core.is_leader:
            logger.info("%s epoch=%s leader=%s", core.role.value, core.epoch, core.leader_id)
            self._delivery.tell_leader(self.leader_id, core.epoch)
        if ready.truncate or ready.accept or ready.accept_snapshot:
            self._take(ready)
        if core.is_caught_up and not self._caught_up.is_set():
            self._caught_up.set()

    def _perform(self, ready: Ready, on_reply: OnReply | None) -> None:
        """The effects of one step, in the order the core demands."""
        if ready.persist is not None:
            self._persist(ready.persist)
        for change in ready.append:
            self._append_control(change)
        if ready.begin_snapshot is not None:
            logger.info("downloading snapshot=%s", ready.begin_snapshot.file_name)
            self.log.give_up_download()
        for send in ready.send:
            self._send(send)
        if on_reply is not None:
            self._reply(ready, on_reply)
        if ready.change_reply is not None and self._on_change_reply is not None:
            waiting, self._on_change_reply = self._on_change_reply, None
            waiting(ready.change_reply)
        if ready.high_watermark is not None:
            self._deliver(ready.high_watermark)

    def _reply(self, ready: Ready, on_reply: OnReply) -> None:
        if ready.reply is not None:
            on_reply(ready.reply)
        elif ready.serve is not None:
            if self._parked is None:
                from replication.raft.parked import ParkedFetches

                self._parked = ParkedFetches(self.core, self.log)
            self._parked.serve(ready.serve, on_reply, self._clock.now_ms())
        elif ready.serve_snapshot is not None:
            from replication.raft.parked import snapshot_piece

            on_reply(snapshot_piece(self.core, self.log, ready.serve_snapshot))
        else:
            self._on_change_reply = on_reply

    def _send(self, send: Send) -> None:
        to, request = send

        from replication.raft.events import Answered

        def answered(reply: Reply | None) -> None:
            self._post(Answered(to, request, reply), None)

        if self._transport is None:  # a node alone, which anybody may ask to add a voter
            answered(None)
        else:
            self._transport.send(to, request, answered, self.core.config.request_timeout_ms)

    def _persist(self, state: ElectionState) -> None:
        """Store the vote; on a full disk wait for room, since nothing may be done without it."""
        while True:
            try:
                self.log.write_election_state(state, self.core.voters.ids)
                return
            except OSError as error:
                if self._thread is None or not files.is_disk_full(error):
                    raise
                logger.error(
                    "vote cannot be stored, trying again epoch=%s error=%s", state.epoch, error
                )
            with self._wake:
                if self._stopping:
                    raise KafkaError(
                        ErrorCode.KAFKA_STORAGE_ERROR, "stopped while the disk was full"
                    )
                self._wake.wait(_RETRY_MS / 1000)

    # --- as leader ------------------------------------------------------------------------------

    def _append_control(self, change: LeaderChange | AppendVoters) -> None:
        """First records of our epoch, or a voter set; behind what waits already."""
        self._accumulator.append_control(change, self.log.end_offset, self._clock.wall_ms())
        with self._wake:
            self._wake.notify()

    def _write_pending(self) -> KafkaError | None:
        """Write all waiting batches, sync once, count ourselves; returns what stopped it."""
        waiting = self._accumulator.drain()
        if not waiting:
            return None
        failure: KafkaError | None = None
        for pending in waiting:
            try:
                self.log.append(pending.data, pending.committed.epoch)
            except KafkaError as error:
                failure = error
                break
            self._delivery.appended(pending)
            if pending.voters is not None:
                self._step(VotersAppended(pending.committed.last_offset, pending.voters))
        if self._parked is not None:
            self._parked.wake()
        self.log.flush()
        self._step(Flushed(self.log.position))
        if failure is not None:
            logger.error("append to the metadata log failed error=%s", failure)
            self._step(Resign())
        return failure

    def _lose_leadership(self) -> None:
        """Nothing more is taken in this epoch; what waits unwritten is forgotten."""
        self._accumulator.close()
        self._delivery.forget_appended()
        self._give_up_parked()
        logger.info("leadership lost epoch=%s role=%s", self.core.epoch, self.core.role.value)
        self._delivery.tell_leader(self.leader_id, self.core.epoch)

    def _give_up_parked(self) -> None:
        if self._parked is not None:
            self._parked.give_up()

    def _take(self, ready: Ready) -> None:
        """What the leader gave us goes to disk before anything else happens."""
        if self._follower is None:
            from replication.raft.follower import Follower

            self._follower = Follower(self.log, self._step, self.core.can_vote)
        self._follower.take(ready)

    # --- telling the listeners ------------------------------------------------------------------

    def _deliver(self, high_watermark: int) -> None:
        self._delivery.advance(high_watermark)
        if not self.core.is_leader:
            return
        if self._parked is not None:
            self._parked.wake()
        if self._accumulator.epoch != self.core.epoch:
            self._accumulator.open(self.core.epoch)
            logger.info("became leader epoch=%s high_watermark=%s", self.core.epoch, high_watermark)
            self._delivery.tell_leader(self.node_id, self.core.epoch)

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self.fatal_error = error
            self._accumulator.close()
            refused, self._inbox = self._inbox, deque()
        # First of all: what is told below may be what failed.
        self._faults.fatal("raft-driver", error)
        self._refuse(refused)
        self._give_up_parked()
        self._delivery.tell_leader(NO_LEADER, self.core.epoch)


__all__ = [
    "METADATA_TOPIC",
    "CommittedBatch",
    "RaftDriver",
    "RaftListener",
]
