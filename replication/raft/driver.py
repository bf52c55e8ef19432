"""Runs one voter: owns the raft core and its log in one thread, and makes appends durable in
groups.

What: `append` takes records from the active controller, `RaftListener`s get what is committed, in
order and once. `describe_quorum` tells the state of the quorum.
Why: the core decides and the log stores; somebody must do the waiting, and do it for many at once.
How: `append` encodes a batch on the caller's thread, gives it its offsets and returns. The driver's
thread takes all waiting batches, writes them, syncs once (group commit), steps `Flushed`, and hands
everything below the new high watermark to the listeners. One append waiting alone costs one fsync.
Recovery, the first election of a single voter and the delivery of what the log holds happen in
`start`, on the caller's thread: a start needs no hand-over between threads.

Threads: `append`, `describe_quorum` and `snapshot_written` may be called from any; everything else
belongs to the driver's thread. Listeners are called on it and must only take note.

When a write fails: what came before it is committed; it and what waited behind it fail, because
their offsets cannot be kept. The driver resigns, which tells the listeners to throw their
uncommitted state away, and stands for election in a new epoch after the election timeout. A failed
fsync, or a vote that cannot be stored for another reason than a full disk, is final: `on_fatal` is
called and the broker must stop (better stopped than wrong).

Gaps: requests of other voters (Vote, BeginQuorumEpoch, Fetch, FetchSnapshot) are events of the core
without a transport yet; the quorum has one voter until the issue that adds it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

from replication.raft.core import (
    NO_LEADER,
    ElectionState,
    Event,
    Flushed,
    LeaderChange,
    RaftCore,
    Ready,
    Resign,
    Start,
    Tick,
)
from replication.raft.log import METADATA_TOPIC, RaftLog
from replication.raft.snapshots import SnapshotId
from storage import files
from storage.config import Clock
from wire.control_records import ControlRecordType
from wire.errors import ErrorCode, KafkaError
from wire.record_body import Record
from wire.records import build_batch, build_control_batch

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Largest batch (Kafka: KafkaRaftClient.MAX_BATCH_SIZE_BYTES)."""
BATCH_RECORDS_MAX = 10_000
"""More records than this in one append are split; up to it an append is all or nothing."""
_RETRY_MS = 1000


class RecordSerde(Protocol):
    """Turns the state machine's records into values and back."""

    def encode(self, record: Any) -> bytes: ...

    def decode(self, value: bytes) -> Any: ...


class CommittedBatch(NamedTuple):
    """Committed records with consecutive offsets; a control batch has none."""

    base_offset: int
    last_offset: int
    epoch: int
    timestamp: int
    size: int
    records: Sequence[Any]


class RaftListener(Protocol):
    """A state machine on top of the log. Called on the driver's thread: take note and return."""

    def handle_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Sequence[Any]
    ) -> None:
        """Forget all, this is the state up to `snapshot_id` (only before the first commit)."""

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """These are committed, in order."""

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        """`leader_id` leads `epoch`; NO_LEADER when nobody is known to. When it is this node, all
        that earlier epochs committed was delivered before."""


@dataclass(slots=True)
class _Pending:
    """A batch that has its offsets and waits to be written or committed."""

    committed: CommittedBatch
    data: bytes


class ReplicaState(NamedTuple):
    """One row of DescribeQuorum. Timestamps are wall ms, -1 when unknown."""

    replica_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


class QuorumInfo(NamedTuple):
    """What DescribeQuorum reports."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[ReplicaState]
    observers: list[ReplicaState]


class RaftDriver:
    """One voter of the metadata quorum. See the module for threads and failures."""

    def __init__(
        self,
        node_id: int,
        log: RaftLog,
        clock: Clock,
        serde: RecordSerde,
        *,
        voters: tuple[int, ...] = (),
        directory_id: bytes = bytes(16),
        random: Random | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`voters`: the static voter set; a log with voters of its own goes before it."""
        named = tuple(sorted(log.voters.directory_ids))
        self.node_id = node_id
        self.log = log
        self.core = RaftCore(node_id, named or voters or (node_id,), random or Random())
        self.fatal_error: BaseException | None = None
        self._clock = clock
        self._serde = serde
        self._directory_id = directory_id
        self._on_fatal = on_fatal
        self._listeners: list[RaftListener] = []
        self._wake = threading.Condition()
        # Guarded by _wake: what callers hand over.
        self._accumulator: deque[_Pending] = deque()
        self._next_offset = -1
        self._append_epoch = -1
        self._written_snapshots: list[SnapshotId] = []
        self._stopping = False
        # The driver's thread only:
        self._uncommitted: deque[_Pending] = deque()
        self._delivered_from_disk = False
        self._thread: threading.Thread | None = None

    # --- for callers ----------------------------------------------------------------------------

    @property
    def leader_id(self) -> int:
        return self.core.leader_id

    @property
    def leader_epoch(self) -> int:
        return self.core.epoch

    @property
    def is_leader(self) -> bool:
        return self._append_epoch >= 0

    @property
    def high_watermark(self) -> int:
        return self.core.high_watermark

    def add_listener(self, listener: RaftListener) -> None:
        """Before `start` only."""
        assert self._thread is None, "listeners are added before the start"
        self._listeners.append(listener)

    def start(self) -> None:
        """Load the log, elect, deliver what is committed, start the thread.

        Raises OSError, KafkaError, CorruptSnapshot, CorruptQuorumState when the disk does not let
        us.
        """
        start = Start(self.log.read_election_state(), self.log.position)
        self._step(start)
        failure = self._write_pending()
        if failure is not None:
            raise failure
        self._thread = threading.Thread(target=self._run, name="raft-driver", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Write and commit what waits, then stop. Idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        try:
            self.log.close()
        except (OSError, KafkaError) as error:
            # All that counts was synced before; the next start rebuilds the indexes.
            logger.error("closing the metadata log failed error=%s", error)

    def next_offset(self, epoch: int) -> int:
        """The offset the next append of `epoch`'s leader gets. Raises KafkaError NOT_CONTROLLER."""
        with self._wake:
            self._check_leader(epoch)
            return self._next_offset

    def append(self, epoch: int, records: Sequence[Any]) -> int:
        """Take records for the log; returns the last one's offset at once, before it is written.

        Listeners hear of them once committed, or of a change of leader if they never will be. Only
        one thread may append: the active controller's. All or nothing up to 10,000 records.
        Raises KafkaError NOT_CONTROLLER if this node does not lead `epoch` (any more),
        RECORD_LIST_TOO_LARGE.
        """
        values = [self._serde.encode(record) for record in records]
        wall_ms = self._clock.wall_ms()
        with self._wake:
            self._check_leader(epoch)
            offset = self._next_offset
            batches = []
            for first in range(0, len(values), BATCH_RECORDS_MAX):
                chunk = values[first : first + BATCH_RECORDS_MAX]
                data = build_batch(
                    [Record(-1, wall_ms, None, value, ()) for value in chunk],
                    base_offset=offset,
                    leader_epoch=epoch,
                )
                if len(data) > BATCH_BYTES_MAX:
                    raise KafkaError(
                        ErrorCode.RECORD_LIST_TOO_LARGE,
                        f"{len(chunk)} metadata records take {len(data)} bytes",
                    )
                last = offset + len(chunk) - 1
                batches.append(
                    _Pending(
                        CommittedBatch(
                            offset,
                            last,
                            epoch,
                            wall_ms,
                            len(data),
                            records[first : first + BATCH_RECORDS_MAX],
                        ),
                        data,
                    )
                )
                offset = last + 1
            self._accumulator.extend(batches)
            self._next_offset = offset
            self._wake.notify()
        return offset - 1

    def _check_leader(self, epoch: int) -> None:
        if self._append_epoch != epoch or self._stopping:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller")

    def write_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Iterable[Any]
    ) -> None:
        """Write a snapshot on the caller's thread; the log below it goes soon after.

        Raises OSError, with no snapshot there.
        """
        encode = self._serde.encode
        self.log.write_snapshot(snapshot_id, timestamp, (encode(record) for record in records))
        with self._wake:
            self._written_snapshots.append(snapshot_id)
            self._wake.notify()

    def describe_quorum(self) -> QuorumInfo:
        """The quorum as this voter sees it; a leader counts itself as fetching all the time."""
        wall_ms = self._clock.wall_ms()
        core = self.core
        leading = core.is_leader
        states = []
        for voter in core.voters:
            me = voter == self.node_id
            states.append(
                ReplicaState(
                    voter,
                    self.log.voters.directory_ids.get(
                        voter, self._directory_id if me else bytes(16)
                    ),
                    self.log.end_offset if me else core.voter_end_offsets.get(voter, -1),
                    wall_ms if me and leading else -1,
                    wall_ms if me and leading else -1,
                )
            )
        return QuorumInfo(core.leader_id, core.epoch, core.high_watermark, states, [])

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._turn()
        except Exception as error:
            self._fail(error)

    def _wait_for_work(self) -> bool:
        """True when there is something to do, False when the driver should end."""
        with self._wake:
            while not self._accumulator and not self._written_snapshots:
                if self._stopping:
                    return False
                deadline_ms = self.core.deadline_ms
                if deadline_ms is None:
                    self._wake.wait()
                    continue
                wait_ms = deadline_ms - self._clock.now_ms()
                if wait_ms <= 0:
                    return True
                self._wake.wait(wait_ms / 1000)
        return True

    def _turn(self) -> None:
        deadline_ms = self.core.deadline_ms
        if deadline_ms is not None and self._clock.now_ms() >= deadline_ms:
            self._step(Tick())
        self._write_pending()
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

    def _step(self, event: Event) -> None:
        was_leader, epoch, leader = self.core.is_leader, self.core.epoch, self.core.leader_id
        ready = self.core.step(event, self._clock.now_ms())
        self._perform(ready)
        if was_leader and not self.core.is_leader:
            self._lose_leadership()
        elif (self.core.epoch, self.core.leader_id) != (epoch, leader) and not self.core.is_leader:
            self._tell_leader(self.core.leader_id)

    def _perform(self, ready: Ready) -> None:
        """The effects of one step, in the order the core demands."""
        if ready.persist is not None:
            self._persist(ready.persist)
        for change in ready.append:
            self._append_leader_change(change)
        assert not ready.send, "one voter has nobody to talk to"
        if ready.high_watermark is not None:
            self._deliver(ready.high_watermark)

    def _persist(self, state: ElectionState) -> None:
        """Store the vote; on a full disk wait for room, since nothing may be done without it."""
        while True:
            try:
                self.log.write_election_state(state, self.core.voters)
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

    def _append_leader_change(self, change: LeaderChange) -> None:
        """First record of our epoch; appends of the controller are taken from here on."""
        from wire.messages.raft_records import LeaderChangeMessage

        version = 1 if self.log.voters.kraft_version else 0
        ids = self.log.voters.directory_ids
        voter = LeaderChangeMessage.Voter
        message = LeaderChangeMessage(
            version=version,
            leader_id=change.leader_id,
            voters=[
                voter(voter_id=v, voter_directory_id=ids.get(v, bytes(16))) for v in change.voters
            ],
            granting_voters=[
                voter(voter_id=v, voter_directory_id=ids.get(v, bytes(16)))
                for v in change.granting_voters
            ],
        )
        offset, wall_ms = self.log.end_offset, self._clock.wall_ms()
        data = build_control_batch(
            [(ControlRecordType.LEADER_CHANGE, message.encode_bytes(version))],
            timestamp=wall_ms,
            base_offset=offset,
            leader_epoch=change.epoch,
        )
        committed = CommittedBatch(offset, offset, change.epoch, wall_ms, len(data), ())
        with self._wake:
            self._accumulator.append(_Pending(committed, data))
            self._next_offset = offset + 1

    def _write_pending(self) -> KafkaError | None:
        """Write all waiting batches, sync once, count ourselves; returns what stopped it."""
        with self._wake:
            waiting, self._accumulator = self._accumulator, deque()
        if not waiting:
            return None
        failure: KafkaError | None = None
        for pending in waiting:
            try:
                self.log.append(pending.data, pending.committed.epoch)
            except KafkaError as error:
                failure = error
                break
            self._uncommitted.append(pending)
        self.log.flush()
        self._step(Flushed(self.log.position))
        if failure is not None:
            logger.error("append to the metadata log failed error=%s", failure)
            self._step(Resign())
        return failure

    def _lose_leadership(self) -> None:
        """Nothing more is taken in this epoch; what waits unwritten is forgotten."""
        with self._wake:
            self._append_epoch = -1
            self._accumulator.clear()
        self._tell_leader(NO_LEADER)

    # --- telling the listeners ------------------------------------------------------------------

    def _deliver(self, high_watermark: int) -> None:
        self.log.update_high_watermark(high_watermark)
        if not self._delivered_from_disk:
            self._deliver_from_disk()
        batches: list[CommittedBatch] = []
        while self._uncommitted and self._uncommitted[0].committed.last_offset < high_watermark:
            batches.append(self._uncommitted.popleft().committed)
        for listener in self._listeners:
            listener.handle_commit(batches)
        if self.core.is_leader and self._append_epoch != self.core.epoch:
            with self._wake:
                self._append_epoch = self.core.epoch
            logger.info("became leader epoch=%s high_watermark=%s", self.core.epoch, high_watermark)
            self._tell_leader(self.node_id)

    def _deliver_from_disk(self) -> None:
        """Once: the snapshot, then what the log held before this run."""
        self._delivered_from_disk = True
        decode = self._serde.decode
        offset = 0
        latest = self.log.latest_snapshot
        if latest is not None:
            content = self.log.read_snapshot(latest)
            records = [decode(value) for value in content.values]
            for listener in self._listeners:
                listener.handle_snapshot(latest, content.timestamp, records)
            offset = latest.offset
        upto = (
            self._uncommitted[0].committed.base_offset if self._uncommitted else self.log.end_offset
        )
        batches = [
            CommittedBatch(
                header.base_offset,
                header.last_offset,
                header.leader_epoch,
                header.max_timestamp,
                header.size,
                [decode(value) for value in values],
            )
            for header, values in self.log.batches(offset, upto)
        ]
        for listener in self._listeners:
            listener.handle_commit(batches)

    def _tell_leader(self, leader_id: int) -> None:
        for listener in self._listeners:
            listener.handle_leader_change(leader_id, self.core.epoch)

    def _fail(self, error: BaseException) -> None:
        logger.critical("the metadata quorum cannot go on error=%s", error, exc_info=True)
        self.fatal_error = error
        with self._wake:
            self._append_epoch = -1
            self._accumulator.clear()
        self._tell_leader(NO_LEADER)
        if self._on_fatal is not None:
            self._on_fatal(error)


__all__ = ["METADATA_TOPIC", "CommittedBatch", "QuorumInfo", "RaftDriver", "RaftListener"]
