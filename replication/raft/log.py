"""The bytes of the quorum's log: `__cluster_metadata-0` in Apache Kafka's files.

What: the partition log with its leader epochs, the snapshots beside it, the vote file
(`quorum-state`), `partition.metadata`. Values of records are opaque here.
Why: one owner for everything a voter must find again after a crash, in formats Kafka's tools read.
How: batches go through `storage`'s PartitionLog, which recovers torn tails; `flush` is an fsync,
and nothing counts as this voter's before it. A snapshot is written first and durably, then the log
below it is given up: the log start moves to its end offset, whole segments below are deleted, and
older snapshots go (K-9). A follower that is too far behind downloads a snapshot piece by piece
into an unfinished file; complete and durable it gets its name, and the log restarts at its end. A
crash between the two is found at the next start: the log ends below the newest snapshot, or in an
older epoch.
The voter set, where the log itself names it (kraft.version 1), is kept by offset as records come
and go (`voter_history`).

Layout of `<metadata.log.dir>/__cluster_metadata-0/`:
    00000000000000000000.log .index .timeindex   segments
    00000000000000001234-0000000003.checkpoint   snapshots (see `snapshots`)
    ...-0000000003.fetched.checkpoint.part       one that is being downloaded
    quorum-state leader-epoch-checkpoint partition.metadata

Owner: the raft driver's thread; `write_snapshot` may run on another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from replication.raft.own_events import ElectionState, LogPosition, SnapshotId
from replication.raft.quorum_state_store import read_quorum_state, write_quorum_state
from replication.raft.snapshots import (
    PART_SUFFIX,
    SUFFIX,
    CorruptSnapshot,
    SnapshotContent,
    discard,
    list_snapshots,
    read_snapshot,
    remove_leftovers,
    write_snapshot,
)
from replication.raft.voter_records import voter_controls, voters_after, voters_in_batch
from replication.raft.voter_set import VoterHistory, VoterSet
from storage import files
from storage.config import Clock, LogConfig
from storage.environment import LogEnvironment
from storage.log.append_source import FROM_RAFT
from storage.log.partition_log import PartitionLog
from storage.recovery import open_log
from wire.errors import KafkaError
from wire.primitives import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from wire.record_batch import BatchHeader, iterate_headers
from wire.records import read_records

logger = logging.getLogger(__name__)

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
"""The log's, in the directory that is named for it."""
_READ_BYTES = 4 * 1024 * 1024


class LoggedBatch(NamedTuple):
    """One batch as read back."""

    header: BatchHeader
    data: bytes

    @property
    def values_count(self) -> int:
        return 0 if self.header.is_control else self.header.records_count

    def values(self) -> list[bytes]:
        """Those of its records, none if control. Raises KafkaError, MalformedFrame."""
        if self.header.is_control:
            return []
        return [record.value or b"" for record in read_records(self.data, 0, self.header)]


class RaftLog:
    """A voter's log, snapshots and vote. Opened by `open`, closed by `close`."""

    def __init__(self, directory: Path, log: PartitionLog, clock: Clock) -> None:
        self.directory = directory
        self._log = log
        self._clock = clock
        self.snapshots = list_snapshots(directory)
        self.voter_history = VoterHistory(VoterSet())

    @classmethod
    def open(cls, metadata_dir: Path, clock: Clock, *, segment_bytes: int = 1 << 30) -> RaftLog:
        """Create or recover the log below `metadata_dir`. Raises OSError, CorruptSnapshot,
        CorruptQuorumState, KafkaError KAFKA_STORAGE_ERROR.
        """
        directory = metadata_dir / METADATA_DIRECTORY
        if not directory.is_dir():
            files.make_directories(metadata_dir)
            directory.mkdir(mode=0o700)  # it holds users' credentials, and brokers' passwords
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
        # A crash may have left older snapshots of a log that begins at the latest, which was read.
        if raft_log.latest_snapshot is not None:
            raft_log._remove_snapshots_below(raft_log.latest_snapshot)
        # Who wrote what is found here may have died before its sync; the vote and the log's end are
        # told to others from here on.
        log.flush()
        return raft_log

    def _align_with_snapshot(self) -> None:
        latest = self.latest_snapshot
        start = self._log.log_start_offset
        if start > (0 if latest is None else latest.offset):
            where = self._log.directory
            raise CorruptSnapshot(f"{where}: the log starts at {start}, no snapshot holds the rest")
        if latest is None:
            return
        is_older = latest.offset > 0 and self._log.leader_epochs.latest_epoch < latest.epoch
        if self._log.log_end_offset < latest.offset or is_older:
            logger.warning(
                "log ends below its snapshot and restarts there log_end_offset=%s snapshot=%s",
                self._log.log_end_offset,
                latest.offset,
            )
            self._restart_at(latest)
        self._log.update_high_watermark(latest.offset)
        self._log.increment_log_start_offset(latest.offset)

    def _restart_at(self, snapshot_id: SnapshotId) -> None:
        """Begin anew at the snapshot's end. Raises KafkaError with the log as it was.

        Files that could not be brought to that yet are before the next append; after a crash the
        next start finds them below the snapshot.
        """
        try:
            self._log.truncate_fully_and_start_at(snapshot_id.offset)
            self._log.assign_epoch_start(snapshot_id.epoch, snapshot_id.offset)
        except KafkaError as error:
            if self._log.is_offline or self.start_offset != snapshot_id.offset:
                raise
            logger.warning("files of the old log stay for now error=%s", error)

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
    def voters(self) -> VoterSet:
        """The voter set that counts now."""
        return self.voter_history.latest

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[0] if self.snapshots else None

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        """The largest epoch of ours not above `epoch`, and where it ends (E-4).

        Below all epochs of the log it is the snapshot's, where the log begins.
        """
        found, end_offset = self._log.leader_epochs.end_offset_for(epoch, self.end_offset)
        if found < 0:
            return self.position
        earliest = self.earliest_snapshot
        if earliest is not None and found == epoch and end_offset == earliest.offset > 0:
            return LogPosition(earliest.epoch, earliest.offset)
        return LogPosition(found, end_offset)

    def read_election_state(self) -> ElectionState:
        """The stored vote; a fresh one where there is none. Raises CorruptQuorumState."""
        return read_quorum_state(self.directory) or ElectionState()

    def write_election_state(self, state: ElectionState, voters: Sequence[int]) -> None:
        """Durable on return (K-1). Raises OSError."""
        kraft_version = self.voter_history.latest.kraft_version
        write_quorum_state(self.directory, state, voters, kraft_version)

    # --- appending ------------------------------------------------------------------------------

    def append(self, batch: bytes, epoch: int) -> int:
        """Write one batch at the end of the log; returns its last offset. Not durable yet.

        Raises KafkaError KAFKA_STORAGE_ERROR with nothing written.
        """
        last_epoch = self.position.epoch
        assert epoch >= last_epoch, f"a batch of epoch {epoch} behind one of {last_epoch}"
        info = self._log.append_as_leader(batch, epoch, self._clock.wall_ms(), FROM_RAFT)
        return info.last_offset

    def flush(self) -> None:
        """fsync all that was appended. Raises KafkaError; a failed sync is final."""
        self._log.flush()

    def append_as_follower(self, records: bytes, epoch: int) -> list[tuple[int, VoterSet]]:
        """Write the batches a leader of `epoch` sent; returns the voter sets among them (E-9).

        Checked: checksums, offsets from our end on, epochs not above the leader's. The valid
        prefix is kept, possibly nothing: an error is logged, and the leader must be asked again.
        Not durable yet.
        """
        before = self.end_offset
        try:
            self._log.append_as_follower(records, epoch)
        except KafkaError as error:
            logger.error("cannot append what the leader sent error=%s", error)
        sets: list[tuple[int, VoterSet]] = []
        if self.end_offset == before:
            return sets
        voters = self.voter_history.latest
        for position, header in iterate_headers(records):
            if header.is_control:
                sets += voters_in_batch(header, records, position, voters)
                voters = sets[-1][1] if sets else voters
            if header.next_offset >= self.end_offset:
                break
        return sets

    def truncate_to_common(self, leader_ends: LogPosition) -> None:
        """Cut back to where our log and the leader's are the same for sure (K-8, E-6).

        `leader_ends`: an epoch of the leader's and where it ends there.
        """
        found, end_offset = self._log.leader_epochs.end_offset_for(
            leader_ends.epoch, self.end_offset
        )
        if found in (leader_ends.epoch, -1):
            end_offset = min(end_offset if found >= 0 else self.end_offset, leader_ends.end_offset)
        end_offset = max(end_offset, self.start_offset)
        committed = self._log.high_watermark
        assert end_offset >= committed, f"truncation to {end_offset}, below committed {committed}"
        logger.info("truncating the metadata log from=%s to=%s", self.end_offset, end_offset)
        self._log.truncate_to(end_offset)

    def update_high_watermark(self, offset: int) -> None:
        self._log.update_high_watermark(offset)

    # --- reading --------------------------------------------------------------------------------

    def batches(self, offset: int, end_offset: int) -> Iterator[LoggedBatch]:
        """Batches from the one that holds `offset` to `end_offset`. Raises KafkaError."""
        for header, data, position in self._raw_batches(offset, end_offset):
            yield LoggedBatch(header, data[position : position + header.size])

    def _raw_batches(
        self, offset: int, end_offset: int
    ) -> Iterator[tuple[BatchHeader, bytes, int]]:
        while offset < end_offset:
            data = self._log.read_bytes(offset, _READ_BYTES, end_offset)
            if not data:
                return
            for position, header in iterate_headers(data):
                if header.last_offset >= offset:
                    yield header, data, position
                    offset = header.next_offset

    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotContent:
        """Raises CorruptSnapshot."""
        return read_snapshot(self.directory / snapshot_id.file_name)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Batches from `offset` on, the first whole, cut anywhere behind it; b"" at the end.

        Raises KafkaError.
        """
        return self._log.read_bytes(offset, max_bytes, self.end_offset)

    def bootstrap_values(self) -> list[bytes]:
        """Values of the records in the format-time checkpoint (offset 0), for the first active
        controller to write into the log; none when there is no such file. Raises CorruptSnapshot.
        """
        path = self.directory / SnapshotId(0, 0).file_name
        return read_snapshot(path).values if path.exists() else []

    # --- the voter set --------------------------------------------------------------------------

    def _find_voters(self) -> None:
        """Take the voter set from the snapshot and the control records above it."""
        history = self.voter_history
        latest = self.latest_snapshot
        if latest is not None:
            history.restart(latest.offset, self.voters_in_snapshot(latest))
        for header, data, position in self._raw_batches(self.start_offset, self.end_offset):
            if header.is_control:
                for offset, voters in voters_in_batch(header, data, position, history.latest):
                    history.add(offset, voters)

    def voters_in_snapshot(self, snapshot_id: SnapshotId) -> VoterSet | None:
        """The voter set a snapshot names; None when voters are static. Raises CorruptSnapshot."""
        controls = self.read_snapshot(snapshot_id).controls
        return voters_after(controls, VoterSet()) if controls else None

    # --- snapshots ------------------------------------------------------------------------------

    def write_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, values: Iterable[bytes]
    ) -> None:
        """Write a snapshot of committed records durably; may run beside appends. Raises OSError."""
        committed = self._log.high_watermark
        assert snapshot_id.offset <= committed, f"{snapshot_id} is above committed {committed}"
        write_snapshot(
            self.directory,
            snapshot_id,
            timestamp,
            self._clock.wall_ms(),
            voter_controls(self.voter_history.at(snapshot_id.offset - 1)),
            values,
        )

    def give_up_below(self, snapshot_id: SnapshotId) -> None:
        """After `write_snapshot`: delete the log below the snapshot and older snapshots.

        Or below a newer one, which was downloaded meanwhile.
        """
        snapshot_id = max(snapshot_id, *list_snapshots(self.directory))
        self._log.increment_log_start_offset(snapshot_id.offset)
        # Whatever of the rest fails: no other one fits a log that begins here.
        self.snapshots = [snapshot_id]
        self._log.delete_old_segments(self._clock.wall_ms())
        # The next snapshot finds its records in segments of their own and can delete them.
        self._log.roll()
        self._remove_snapshots_below(snapshot_id)

    def _remove_snapshots_below(self, snapshot_id: SnapshotId) -> None:
        """The log begins at this one: older ones do not count, whether their files go or not."""
        found = list_snapshots(self.directory)
        self.snapshots = [one for one in found if one >= snapshot_id]
        self.voter_history.forget_below(snapshot_id.offset)
        for one in found:
            if one < snapshot_id:
                files.unlink(self.directory / one.file_name)

    def read_snapshot_part(
        self, snapshot_id: SnapshotId, position: int, max_bytes: int
    ) -> tuple[int, bytes] | None:
        """The file's size and its bytes from `position` on, none outside of it.

        None when we have no such snapshot, or it is the one of the format, which each node has for
        itself. Raises OSError.
        """
        if snapshot_id not in self.snapshots or snapshot_id.offset == 0:
            return None
        fd = files.open_or_relieve(self.directory / snapshot_id.file_name, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            count = min(max_bytes, size - position) if 0 <= position < size else 0
            return size, files.read_fully(fd, count, position) if count > 0 else b""
        finally:
            files.close(fd)

    def _part_path(self, snapshot_id: SnapshotId) -> Path:
        stem = snapshot_id.file_name.removesuffix(SUFFIX)
        return self.directory / f"{stem}.fetched{PART_SUFFIX}"

    def may_pass(self, error: OSError | KafkaError) -> bool:
        """May what failed so succeed later: is nothing wrong with the disk itself."""
        return files.may_pass(error) if isinstance(error, OSError) else not self._log.is_offline

    def give_up_download(self) -> None:
        """What was downloaded of a snapshot so far is not wanted, or cannot go on."""
        for path in self.directory.glob(f"*.fetched{PART_SUFFIX}"):
            discard(path)

    def append_to_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> int:
        """Write a piece of a download; returns the unfinished file's size. Raises OSError."""
        flags = files.CREATE if position == 0 else files.READ_WRITE
        fd = files.open_or_relieve(self._part_path(snapshot_id), flags)
        try:
            files.write_fully(fd, [data], len(data), position)
        finally:
            files.close(fd)
        return position + len(data)

    def finish_snapshot(self, snapshot_id: SnapshotId) -> VoterSet | None:
        """The download is complete: check it, make it durable, restart the log at its end (K-9).

        Returns the voter set it names. Raises CorruptSnapshot, with the file deleted; OSError, or
        KafkaError with the log as it was.
        """
        part = self._part_path(snapshot_id)
        try:
            controls = read_snapshot(part).controls
        except CorruptSnapshot:
            files.unlink(part)
            raise
        files.sync_file(part)
        files.replace(part, self.directory / snapshot_id.file_name)
        files.sync_directory(self.directory)
        self._restart_at(snapshot_id)
        self._log.update_high_watermark(snapshot_id.offset)
        self._remove_snapshots_below(snapshot_id)
        return voters_after(controls, VoterSet()) if controls else None

    def close(self) -> None:
        self._log.close()
