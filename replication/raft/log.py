"""The bytes of the quorum's log: `__cluster_metadata-0` in Apache Kafka's files.

What: the partition log with its leader epochs, the snapshots beside it, the vote file
(`quorum-state`), `partition.metadata`. Values of records are opaque here.
Why: one owner for everything a voter must find again after a crash, in formats Kafka's tools read.
How: batches go through `storage`'s PartitionLog, which recovers torn tails; `flush` is an fsync,
and nothing counts as this voter's before it. A snapshot is written first and durably, then the log
below it is given up: the log start moves to its end offset, whole segments below are deleted, and
older snapshots go (K-9). If the log ends below the newest snapshot, it restarts at the snapshot's
end.

Layout of `<metadata.log.dir>/__cluster_metadata-0/`:
    00000000000000000000.log .index .timeindex   segments
    00000000000000001234-0000000003.checkpoint   snapshots (see `snapshots`)
    quorum-state leader-epoch-checkpoint partition.metadata

Owner: the raft driver's thread; `write_snapshot` may run on another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from replication.raft.core import ElectionState, LogPosition
from replication.raft.quorum_state import read_quorum_state, write_quorum_state
from replication.raft.snapshots import (
    ControlRecord,
    SnapshotContent,
    SnapshotId,
    list_snapshots,
    read_snapshot,
    remove_leftovers,
    write_snapshot,
)
from storage import files
from storage.config import Clock, LogConfig
from storage.environment import LogEnvironment
from storage.log import AppendOrigin, PartitionLog
from storage.recovery import open_log
from wire.control_records import ControlRecordType, control_record_type
from wire.primitives import METADATA_TOPIC_ID, TopicPartition
from wire.record_batch import BatchHeader, iterate_headers
from wire.records import read_records

logger = logging.getLogger(__name__)

METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
_READ_BYTES = 4 * 1024 * 1024
_VOTER_RECORDS = (ControlRecordType.KRAFT_VERSION, ControlRecordType.KRAFT_VOTERS)


class Voters(NamedTuple):
    """The voter set the log itself names (kraft.version 1, KIP-853); empty with static voters."""

    kraft_version: int = 0
    directory_ids: dict[int, bytes] = {}
    controls: tuple[ControlRecord, ...] = ()
    """The records that said so, to be repeated in each snapshot."""


class LoggedBatch(NamedTuple):
    """One batch as read back: its header and the values of its records (none if control)."""

    header: BatchHeader
    values: list[bytes]


class RaftLog:
    """A voter's log, snapshots and vote. Opened by `open`, closed by `close`."""

    def __init__(self, directory: Path, log: PartitionLog, clock: Clock) -> None:
        self.directory = directory
        self._log = log
        self._clock = clock
        self.snapshots = list_snapshots(directory)
        self.voters = Voters()

    @classmethod
    def open(cls, metadata_dir: Path, clock: Clock, *, segment_bytes: int = 1 << 30) -> RaftLog:
        """Create or recover the log below `metadata_dir`. Raises OSError, CorruptSnapshot,
        CorruptQuorumState, KafkaError KAFKA_STORAGE_ERROR.
        """
        directory = metadata_dir / f"{METADATA_TOPIC}-0"
        if not directory.is_dir():
            directory.mkdir(parents=True)
            files.sync_directory(metadata_dir)
        remove_leftovers(directory)
        # Only the log start, that is the snapshots, may delete segments.
        config = LogConfig(retention_ms=-1, retention_bytes=-1, segment_bytes=segment_bytes)
        environment = LogEnvironment(log_dir=metadata_dir, clock=clock)
        log = open_log(
            directory, METADATA_PARTITION, config, environment, topic_id=METADATA_TOPIC_ID
        )
        raft_log = cls(directory, log, clock)
        raft_log._align_with_snapshot()
        raft_log._find_voters()
        return raft_log

    def _align_with_snapshot(self) -> None:
        latest = self.latest_snapshot
        if latest is None:
            return
        if self._log.log_end_offset < latest.offset:
            logger.warning(
                "log ends below its snapshot and restarts there log_end_offset=%s snapshot=%s",
                self._log.log_end_offset,
                latest.offset,
            )
            self._log.truncate_fully_and_start_at(latest.offset)
            self._log.assign_epoch_start(latest.epoch, latest.offset)
        self._log.update_high_watermark(latest.offset)
        self._log.increment_log_start_offset(latest.offset)

    # --- state ----------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def start_offset(self) -> int:
        """First offset still in the log: the latest snapshot's end, or 0."""
        return self._log.log_start_offset

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed_offset

    @property
    def position(self) -> LogPosition:
        """Epoch of the last record (of the snapshot, if the log holds none) and end offset."""
        epoch = self._log.leader_epochs.latest_epoch
        latest = self.latest_snapshot
        if latest is not None:
            epoch = max(epoch, latest.epoch)
        return LogPosition(max(epoch, 0), self.end_offset)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    def read_election_state(self) -> ElectionState:
        """The stored vote; a fresh one where there is none. Raises CorruptQuorumState."""
        return read_quorum_state(self.directory) or ElectionState()

    def write_election_state(self, state: ElectionState, voters: Sequence[int]) -> None:
        """Durable on return (K-1). Raises OSError."""
        write_quorum_state(self.directory, state, voters, self.voters.kraft_version)

    # --- appending ------------------------------------------------------------------------------

    def append(self, batch: bytes, epoch: int) -> int:
        """Write one batch at the end of the log; returns its last offset. Not durable yet.

        Raises KafkaError KAFKA_STORAGE_ERROR with nothing written.
        """
        info = self._log.append_as_leader(batch, epoch, self._clock.wall_ms(), AppendOrigin.RAFT)
        return info.last_offset

    def flush(self) -> None:
        """fsync all that was appended. Raises KafkaError; a failed sync is final."""
        self._log.flush()

    def truncate_to(self, offset: int) -> None:
        """Forget what was appended from `offset` on and never committed."""
        self._log.truncate_to(offset)

    def update_high_watermark(self, offset: int) -> None:
        self._log.update_high_watermark(offset)

    # --- reading --------------------------------------------------------------------------------

    def batches(self, offset: int, end_offset: int) -> Iterator[LoggedBatch]:
        """Batches from the one that holds `offset` to `end_offset`. Raises KafkaError."""
        for header, data, position in self._raw_batches(offset, end_offset):
            if header.is_control:
                yield LoggedBatch(header, [])
            else:
                records = read_records(data, position, header)
                yield LoggedBatch(header, [record.value or b"" for record in records])

    def _raw_batches(
        self, offset: int, end_offset: int
    ) -> Iterator[tuple[BatchHeader, bytes, int]]:
        while offset < end_offset:
            result = self._log.read(offset, _READ_BYTES, True, end_offset)
            if result.records is None:
                return
            data = result.records.read()
            for position, header in iterate_headers(data):
                if header.last_offset >= offset:
                    yield header, data, position
                    offset = header.next_offset

    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotContent:
        """Raises CorruptSnapshot."""
        return read_snapshot(self.directory / snapshot_id.file_name)

    # --- the voter set --------------------------------------------------------------------------

    def _find_voters(self) -> None:
        """Take the voter set from the snapshot and the control records above it."""
        latest = self.latest_snapshot
        if latest is not None:
            self._note_voters(self.read_snapshot(latest).controls)
        for header, data, position in self._raw_batches(self.start_offset, self.end_offset):
            if header.is_control:
                self._note_voters(
                    ControlRecord(control_record_type(record.key), record.value or b"")
                    for record in read_records(data, position, header)
                )

    def _note_voters(self, controls: Iterable[ControlRecord]) -> None:
        from wire.messages.raft_records import KRaftVersionRecord, VotersRecord

        for control in controls:
            if control.type not in _VOTER_RECORDS:
                continue
            version, directory_ids, known = self.voters
            if control.type is ControlRecordType.KRAFT_VERSION:
                version = KRaftVersionRecord.decode(control.value, 0).kraft_version
            else:
                listed = VotersRecord.decode(control.value, 0).voters
                directory_ids = {voter.voter_id: voter.voter_directory_id for voter in listed}
            kept = [other for other in known if other.type is not control.type]
            self.voters = Voters(version, directory_ids, (*kept, control))

    # --- snapshots ------------------------------------------------------------------------------

    def write_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, values: Iterable[bytes]
    ) -> None:
        """Write a snapshot durably; may run beside appends. Raises OSError."""
        write_snapshot(
            self.directory,
            snapshot_id,
            timestamp,
            self._clock.wall_ms(),
            self.voters.controls,
            values,
        )

    def give_up_below(self, snapshot_id: SnapshotId) -> None:
        """After `write_snapshot`: delete the log below the snapshot and older snapshots."""
        self._log.increment_log_start_offset(snapshot_id.offset)
        self._log.delete_old_segments(self._clock.wall_ms())
        # The next snapshot finds its records in segments of their own and can delete them.
        self._log.roll()
        older = [other for other in list_snapshots(self.directory) if other < snapshot_id]
        for other in older:
            files.unlink(self.directory / other.file_name)
        self.snapshots = list_snapshots(self.directory)

    def close(self) -> None:
        self._log.close()
