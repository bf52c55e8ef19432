"""Tells the state machines what is committed: in order, once, nothing else (K-10).

What: each listener gets the newest snapshot first, then every committed batch behind it; when the
log began anew at a snapshot that was downloaded, that snapshot, and what follows.
How: a leader's own batches are kept in memory from their append to their commit, so that they need
not be read back; all others come from the log, in pieces. Their records are read and decoded by who
looks at them, on its own thread: 10,000 take a third of a second, and fetches and votes wait for
the driver's (Kafka: RecordsBatchReader).
Owner: the raft driver's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from replication.raft.batches import CommittedBatch, PendingBatch
from replication.raft.log import RaftLog
from replication.raft.own_events import SnapshotId

_PIECE_BYTES = 8 * 1024 * 1024


class RecordSerde(Protocol):
    """Turns the state machine's records into values and back."""

    def encode(self, record: Any) -> bytes: ...

    def decode(self, value: bytes) -> Any: ...


class LoggedRecords(Sequence[Any]):
    """Records as they stand in the log, read and decoded each time that they are looked at. Raises
    then what `values` and `decode` do.
    """

    def __init__(
        self, count: int, values: Callable[[], Iterable[bytes]], decode: Callable[[bytes], Any]
    ) -> None:
        self._count = count
        self._values = values
        self._decode = decode

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return map(self._decode, self._values())

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class RaftListener(Protocol):
    """A state machine on top of the log. Called on the driver's thread: take note and return, look
    at the records elsewhere."""

    def handle_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Sequence[Any]
    ) -> None:
        """Forget all, this is the state up to `snapshot_id`; at any time while another leads."""

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """These are committed, in order."""

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        """`leader_id` leads `epoch`; NO_LEADER when nobody is known to. When it is this node, all
        that earlier epochs committed was delivered before."""


class Delivery:
    """See the module."""

    def __init__(self, log: RaftLog, serde: RecordSerde) -> None:
        self.listeners: list[RaftListener] = []
        self.next_offset = -1
        """First offset that was not delivered; -1 before the first delivery."""
        self._log = log
        self._serde = serde
        self._in_memory: deque[PendingBatch] = deque()

    def appended(self, batch: PendingBatch) -> None:
        """The leader wrote a batch of its own."""
        self._in_memory.append(batch)

    def forget_appended(self) -> None:
        """Leadership is lost: whatever of it is committed later comes from the log."""
        self._in_memory.clear()

    def advance(self, high_watermark: int) -> None:
        """Deliver all below `high_watermark`. Raises KafkaError, CorruptSnapshot."""
        self._log.update_high_watermark(high_watermark)
        if self.next_offset < self._log.start_offset or self.next_offset < 0:
            self._deliver_snapshot()
        memory = self._in_memory
        on_disk = min(high_watermark, memory[0].committed.base_offset if memory else high_watermark)
        if self.next_offset < on_disk:
            self._deliver_from_log(on_disk)
        batches: list[CommittedBatch] = []
        while memory and memory[0].committed.last_offset < high_watermark:
            batches.append(memory.popleft().committed)
        self._commit(batches)

    def _deliver_snapshot(self) -> None:
        latest = self._log.latest_snapshot
        if latest is None or latest.offset == 0:
            # The format's own checkpoint is no state: see RaftLog.bootstrap_values.
            self.next_offset = 0
            return
        content = self._log.read_snapshot(latest)
        values = content.values
        records = LoggedRecords(len(values), lambda: values, self._serde.decode)
        for listener in self.listeners:
            listener.handle_snapshot(latest, content.timestamp, records)
        self.next_offset = latest.offset

    def _deliver_from_log(self, end_offset: int) -> None:
        piece: list[CommittedBatch] = []
        size = 0
        for batch in self._log.batches(self.next_offset, end_offset):
            header = batch.header
            piece.append(
                CommittedBatch(
                    header.base_offset,
                    header.last_offset,
                    header.leader_epoch,
                    header.max_timestamp,
                    header.size,
                    LoggedRecords(batch.values_count, batch.values, self._serde.decode),
                )
            )
            size += header.size
            if size >= _PIECE_BYTES:
                self._commit(piece)
                piece, size = [], 0
        self._commit(piece)

    def _commit(self, batches: Sequence[CommittedBatch]) -> None:
        if batches:
            self.next_offset = batches[-1].last_offset + 1
            for listener in self.listeners:
                listener.handle_commit(batches)

    def tell_leader(self, leader_id: int, epoch: int) -> None:
        for listener in self.listeners:
            listener.handle_leader_change(leader_id, epoch)
