"""What a partition knows of its idempotent and transactional producers (KIP-98, -360, -890).

Why: a producer that got no answer sends its batch again. The leader must know that it has it, and
where; it must refuse what is out of order or from a fenced producer; and read_committed readers
must stop before the first transaction whose end is unknown. Followers build the same state from
the batches they replicate, so all this survives a change of leader. Kafka: ProducerStateManager,
ProducerAppendInfo, ProducerStateEntry.

Per producer id: its epoch, the last five batches, the epoch of its transaction coordinator, the
first offset of its open transaction. Transactions: `ongoing` ones have no marker yet;
`unreplicated` ones have one, but not below the high watermark. The oldest of both is the first
unstable offset (V-2). A snapshot, whose format is Kafka's, does not tell where markers are: after a
start those below it count as replicated, and a truncation that cuts them off takes the last stable
offset back. What readers saw meanwhile stays right: the coordinator decided, and tells it again.

Duties of the caller (the log, under its lock; nothing here is locked):
1. Call only for batches with a producer id: `header.producer_id >= 0` is all that others cost.
2. `check` before the append, `update` after it succeeded, never if it failed (P-7).
3. `update` of a marker may return a CompletedTxn. If it was aborted, append it to the transaction
   index with `last_stable_offset_after`; then `complete_txn`. If the index fails, do not.
4. Set `map_end_offset` after each append; `take_snapshot` at roll and clean shutdown; `flush`
   before the recovery point passes a snapshot.
5. After loading, `truncate_and_reload`, then replay the batches from `map_end_offset` on.

One difference: Kafka expires a producer by its records' timestamps, so that a slow clock loses its
state at once; here idleness is the time since the last append, which a snapshot does not hold:
after a start every producer counts as just seen (P-6).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from storage import files
from storage.config import ProducerStateConfig
from storage.log.append_source import AppendOrigin, AppendSource, Verification
from storage.log.producer_snapshot import (
    NONE,
    SNAPSHOT_SUFFIX,
    BatchMetadata,
    CorruptSnapshot,
    ProducerStateEntry,
    list_snapshots,
    read_snapshot,
    write_snapshot,
)
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.record_batch import SEQUENCE_MAX, BatchHeader

logger = logging.getLogger(__name__)

__all__ = [
    "BatchMetadata",
    "CompletedTxn",
    "ProducerStateEntry",
    "ProducerStateManager",
]

_EPOCH_FOR_EACH_TRANSACTION = 2
"""The transaction.version in which each transaction has an epoch of its own (KIP-890)."""
_EPOCH_MAX = (1 << 15) - 1


class CompletedTxn(NamedTuple):
    """A transaction that a marker ended; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerStateManager:
    """The producers of one partition and its snapshots."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        config: ProducerStateConfig | None = None,
    ) -> None:
        """Lists the snapshots in `directory` and loads none. Raises OSError."""
        self.topic_partition = topic_partition
        self.directory = directory
        self.config = config or ProducerStateConfig()
        self.map_end_offset = 0
        """The state includes every batch below this offset."""
        self.last_snapshot_offset = 0
        self._producers: dict[int, ProducerStateEntry] = {}
        self._verifications: dict[int, Verification] = {}
        # First offset to producer id. Offsets are added in ascending order, so the first key of the
        # dict is the smallest.
        self._ongoing: dict[int, int] = {}
        # First offset to the offset of the marker.
        self._unreplicated: dict[int, int] = {}
        self._unsynced: list[Path] = []
        self._snapshots: list[int] = list_snapshots(directory)

    # --- appends -------------------------------------------------------------------------------

    def check(
        self,
        header: BatchHeader,
        source: AppendSource,
        marker: EndTxnMarker | None = None,
    ) -> BatchMetadata | None:
        """What a repeated batch was stored as, or None when this batch may be appended.

        In Kafka's order (protocol.md 7.3): duplicate; open or verified transaction
        (INVALID_TXN_STATE); epoch (INVALID_PRODUCER_EPOCH); sequence
        (OUT_OF_ORDER_SEQUENCE_NUMBER); a plain batch inside a transaction (INVALID_TXN_STATE). A
        control batch comes with its `marker` and the transaction's version: epoch, then
        TRANSACTION_COORDINATOR_FENCED.
        Coordinators send no sequences; replicated batches were checked by their leader. Changes
        nothing. Budget: 1.5 µs (benchmarks/micro/records.py).
        """
        origin = source.origin
        if origin is AppendOrigin.REPLICATION:
            return None
        entry = self._producers.get(header.producer_id)
        if marker is not None:
            self._check_marker(entry, header, marker, source.transaction_version)
            return None
        if entry is not None and origin is AppendOrigin.CLIENT:
            duplicate = entry.find_duplicate(header)
            if duplicate is not None:
                return duplicate
        known_epoch = NONE if entry is None else entry.producer_epoch
        if header.producer_epoch < known_epoch:
            raise self._stale_epoch(known_epoch, header.producer_id, header.producer_epoch)
        in_transaction = entry is not None and entry.current_txn_first_offset >= 0
        # A transaction that is open here in an older epoch proves nothing of this one.
        is_open = in_transaction and header.producer_epoch == known_epoch
        if header.is_transactional and not is_open and self.config.requires_verification:
            self._check_verified(header, source.verification)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(entry, header)
        if in_transaction and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction on {self.topic_partition} "
                "and sent a batch outside of it",
            )
        return None

    def takes_in_a_row(self, headers: Iterable[BatchHeader], source: AppendSource) -> bool:
        """Whether these may all be appended, one after the other: what `check` says of the first of
        each producer, and that each next one follows it. False if only `check` can tell."""
        last: dict[int, BatchHeader] = {}
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            before = last.get(producer_id)
            last[producer_id] = header
            if before is not None:
                if (
                    header.producer_epoch != before.producer_epoch
                    or header.base_sequence != before.next_sequence
                ):
                    return False
                continue
            try:
                if producer_id in self._verifications or self.check(header, source) is not None:
                    return False
            except KafkaError:
                return False
        return True

    def find_duplicate(self, header: BatchHeader, source: AppendSource) -> BatchMetadata | None:
        """What a client's batch was stored as, if it is one of its producer's last five. Those of a
        coordinator have its producer's id and no sequences: they are never the same."""
        entry = self._producers.get(header.producer_id)
        if entry is None or source.origin is not AppendOrigin.CLIENT:
            return None
        return entry.find_duplicate(header)

    def leaves_a_gap(self, header: BatchHeader) -> bool:
        """Whether a client's batch comes behind others of its epoch that are not here, as far as is
        known; it is not here then, either."""
        entry = self._producers.get(header.producer_id)
        if entry is None or header.producer_epoch > entry.producer_epoch:
            return True
        if header.producer_epoch < entry.producer_epoch:
            return False
        ahead = (header.base_sequence - entry.next_sequence) & SEQUENCE_MAX
        return 0 < ahead <= SEQUENCE_MAX >> 1

    def _check_verified(self, header: BatchHeader, verification: Verification | None) -> None:
        if verification is None or self._verifications.get(header.producer_id) is not verification:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"batch of producer {header.producer_id} is not part of a transaction that the "
                f"coordinator knows on {self.topic_partition}",
            )

    def _check_marker(
        self,
        entry: ProducerStateEntry | None,
        header: BatchHeader,
        marker: EndTxnMarker,
        transaction_version: int,
    ) -> None:
        """A transaction of version 2 ends with an epoch above that of its records, so a marker that
        comes late cannot end the next one. The same epoch is that marker once more, unless a
        transaction is open; 32767, which leaves no room above it, is let through (TX-60).
        """
        if entry is None:
            return
        epoch, known = header.producer_epoch, entry.producer_epoch
        ends_a_later_one = (
            transaction_version >= _EPOCH_FOR_EACH_TRANSACTION
            and epoch == known
            and entry.current_txn_first_offset >= 0
            and epoch != _EPOCH_MAX
        )
        if epoch < known or ends_a_later_one:
            raise self._stale_epoch(known, header.producer_id, epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {marker.coordinator_epoch} for producer "
                f"{header.producer_id} on {self.topic_partition}, known is "
                f"{entry.coordinator_epoch}",
            )

    def _check_sequence(self, entry: ProducerStateEntry | None, header: BatchHeader) -> None:
        sequence = header.base_sequence
        verification = self._verifications.get(header.producer_id)
        if verification is not None:
            if sequence > verification.lowest_sequence:
                raise self._out_of_order(header, f"{verification.lowest_sequence} comes first")
            if entry is None and sequence and verification.supports_epoch_bump:
                raise self._out_of_order(header, "the first of a producer is 0")
        if entry is None or entry.producer_epoch == NONE:
            # All its records were deleted, or it is new here: any sequence will do (KIP-360).
            return
        is_new_epoch = header.producer_epoch != entry.producer_epoch
        expected = 0 if is_new_epoch else entry.next_sequence
        if sequence != expected:
            raise self._out_of_order(header, f"expected {expected}")

    def _stale_epoch(self, known_epoch: int, producer_id: int, producer_epoch: int) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"epoch {producer_epoch} of producer {producer_id} on "
            f"{self.topic_partition}, known is {known_epoch}",
        )

    def _out_of_order(self, header: BatchHeader, why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"sequence {header.base_sequence} of producer {header.producer_id}, epoch "
            f"{header.producer_epoch}, on {self.topic_partition}: {why}",
        )

    def update(
        self,
        header: BatchHeader,
        first_offset: int,
        last_offset: int,
        wall_ms: int,
        marker: EndTxnMarker | None = None,
    ) -> CompletedTxn | None:
        """Note a batch that is in the log now, at these offsets, appended at `wall_ms`.

        A control batch brings its `marker`; one that compaction emptied has none and changes
        nothing.
        """
        if header.is_control:
            return None if marker is None else self._end_txn(header, last_offset, wall_ms, marker)
        entry = self._entry(header.producer_id)
        entry.set_epoch(header.producer_epoch)
        entry.add_batch(
            BatchMetadata(
                header.last_sequence, last_offset, last_offset - first_offset, header.max_timestamp
            )
        )
        entry.last_timestamp = header.max_timestamp
        entry.last_append_ms = wall_ms
        if header.is_transactional:
            self._verifications.pop(header.producer_id, None)
            if entry.current_txn_first_offset < 0:
                entry.current_txn_first_offset = first_offset
                self._ongoing[first_offset] = header.producer_id
        return None

    def _end_txn(
        self, header: BatchHeader, offset: int, wall_ms: int, marker: EndTxnMarker
    ) -> CompletedTxn | None:
        entry = self._entry(header.producer_id)
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.last_append_ms = wall_ms
        first_offset = entry.current_txn_first_offset
        entry.current_txn_first_offset = NONE
        asked = self._verifications.get(header.producer_id)
        if asked is not None and not asked.is_for_the_next_after(header):
            del self._verifications[header.producer_id]
        if first_offset < 0:
            # A marker of a transaction that wrote nothing here holds no reader back.
            return None
        is_aborted = marker.type == ControlRecordType.ABORT
        return CompletedTxn(header.producer_id, first_offset, offset, is_aborted)

    def _entry(self, producer_id: int) -> ProducerStateEntry:
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerStateEntry(producer_id)
        return entry

    # --- transactions --------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or whose marker is not yet below the
        high watermark; None when there is none. read_committed readers stop there (V-2)."""
        if self._ongoing:
            first = next(iter(self._ongoing))
            return min(first, min(self._unreplicated)) if self._unreplicated else first
        return min(self._unreplicated) if self._unreplicated else None

    def last_stable_offset_after(self, completed: CompletedTxn) -> int:
        """The last stable offset once `completed` is complete and replicated: the other open
        transactions decide. This is what its entry in the transaction index says."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete_txn(self, completed: CompletedTxn) -> None:
        """Let the last stable offset pass this transaction as soon as its marker is replicated."""
        del self._ongoing[completed.first_offset]
        self._unreplicated[completed.first_offset] = completed.last_offset

    def on_high_watermark_updated(self, high_watermark: int) -> int | None:
        """Transactions whose markers are below it are decided for good; the first unstable offset
        after that."""
        if self._unreplicated:
            self._forget_replicated(high_watermark)
        return self.first_unstable_offset if self._ongoing or self._unreplicated else None

    def _forget_replicated(self, offset: int) -> None:
        self._unreplicated = {
            first: last for first, last in self._unreplicated.items() if last >= offset
        }

    def start_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        supports_epoch_bump: bool,
        wall_ms: int,
    ) -> Verification | None:
        """The guard to bring to `check` once the coordinator agreed; None when none is needed: the
        transaction is open here. Raises INVALID_PRODUCER_EPOCH if a newer producer is known."""
        entry = self._producers.get(producer_id)
        if entry is not None:
            if producer_epoch < entry.producer_epoch:
                raise self._stale_epoch(entry.producer_epoch, producer_id, producer_epoch)
            if entry.current_txn_first_offset >= 0 and producer_epoch == entry.producer_epoch:
                return None
        known = self._verifications.get(producer_id)
        if known is None:
            known = self._verifications[producer_id] = Verification(
                base_sequence, producer_epoch, wall_ms, supports_epoch_bump
            )
        else:
            known.note(base_sequence, producer_epoch)
        return known

    # --- producers -----------------------------------------------------------------------------

    def active_producers(self) -> list[ProducerStateEntry]:
        """All producers that are remembered (DescribeProducers, and the cleaner's live ones)."""
        return list(self._producers.values())

    def producer(self, producer_id: int) -> ProducerStateEntry | None:
        """One producer, if it is remembered."""
        return self._producers.get(producer_id)

    def remove_expired(self, wall_ms: int) -> int:
        """Forget producers idle for `config.expiration_ms` with no open transaction; how many."""
        oldest = wall_ms - self.config.expiration_ms
        expired = [
            entry.producer_id
            for entry in self._producers.values()
            if entry.last_append_ms <= oldest and entry.current_txn_first_offset < 0
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        self._verifications = {
            key: value for key, value in self._verifications.items() if value.started_ms > oldest
        }
        return len(expired)

    # --- truncation ----------------------------------------------------------------------------

    def without_producers(self) -> ProducerStateManager:
        """Another one over the same snapshots that knows no producer: to be filled, and put in this
        one's place when that worked. Raises OSError."""
        state = ProducerStateManager(self.topic_partition, self.directory, self.config)
        state._unsynced = self._unsynced
        return state

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, wall_ms: int) -> None:
        """Make the state that of a log from `log_start_offset` to at most `log_end_offset` (P-5).

        Snapshots outside are deleted. Unless the state ends exactly there already, it becomes
        that of the newest readable snapshot: the caller replays the log from `map_end_offset`.
        Corrupt ones are deleted on the way (P-4). Raises OSError.
        """
        self.delete_snapshots_outside(log_start_offset, log_end_offset)
        if self.map_end_offset == log_end_offset:
            self.on_log_start_moved(log_start_offset)
            return
        self._producers.clear()
        self._verifications.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.load_newest_snapshot(log_start_offset, log_end_offset, wall_ms)

    def delete_snapshots_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove snapshots of a state that no log between these offsets has. Raises OSError."""
        for offset in list(self._snapshots):
            if offset > log_end_offset or offset <= log_start_offset:
                self.delete_snapshot(offset)

    def on_log_start_moved(self, log_start_offset: int) -> None:
        """Records at the start were deleted. Producers stay known: they may still write (P-5)."""
        if self._unreplicated:
            self._forget_replicated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self.last_snapshot_offset = self._snapshots[-1] if self._snapshots else log_start_offset

    # --- snapshots -----------------------------------------------------------------------------

    def take_snapshot(self) -> Path | None:
        """Write the state at `map_end_offset` unless that was done; not synced. Raises OSError.

        A crash may tear it: the CRC says so, and the next older one is used.
        """
        offset = self.map_end_offset
        if offset <= self.last_snapshot_offset:
            return None
        path = self.snapshot_path(offset)
        write_snapshot(path, self._producers.values())
        if offset not in self._snapshots:
            self._snapshots.append(offset)
            self._snapshots.sort()
        self._unsynced.append(path)
        self.last_snapshot_offset = offset
        return path

    @property
    def has_unsynced(self) -> bool:
        """Are there snapshots that were taken since the last `flush`."""
        return bool(self._unsynced)

    def flush(self) -> None:
        """fsync the snapshots taken since the last time; the directory is the caller's. OSError."""
        for path in tuple(self._unsynced):
            with suppress(FileNotFoundError):
                files.sync_file(path)
            with suppress(ValueError):  # another flush was faster
                self._unsynced.remove(path)

    def snapshot_path(self, offset: int) -> Path:
        """Where the snapshot of that offset is, or would be."""
        return self.directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"

    def delete_snapshot(self, offset: int) -> None:
        """Remove one snapshot, if it exists. Raises OSError."""
        if offset in self._snapshots:
            self._snapshots.remove(offset)
            with suppress(FileNotFoundError):
                files.unlink(self.snapshot_path(offset))

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int]) -> None:
        """Remove snapshots that belong to no segment, but the newest one if it is above them all:
        it was taken at shutdown. Raises OSError."""
        bases = set(segment_base_offsets)
        strays = [offset for offset in self._snapshots if offset not in bases]
        if strays and (not bases or strays[-1] > max(bases)):
            del strays[-1]
        for offset in strays:
            self.delete_snapshot(offset)

    def load_newest_snapshot(
        self, log_start_offset: int, log_end_offset: int, wall_ms: int
    ) -> None:
        """Know what the newest readable snapshot between these offsets says; the rest is to be
        replayed from `map_end_offset` on. Corrupt ones are deleted (P-4). Raises OSError."""
        usable = [at for at in self._snapshots if log_start_offset < at <= log_end_offset]
        for offset in reversed(usable):
            path = self.snapshot_path(offset)
            try:
                entries = read_snapshot(path)
            except (CorruptSnapshot, FileNotFoundError) as error:
                logger.warning("deleted corrupt producer snapshot path=%s reason=%s", path, error)
                self.delete_snapshot(offset)
                continue
            self._adopt(entries, wall_ms)
            self.map_end_offset = self.last_snapshot_offset = offset
            return
        self.map_end_offset = self.last_snapshot_offset = log_start_offset

    def _adopt(self, entries: list[ProducerStateEntry], wall_ms: int) -> None:
        for entry in entries:
            entry.last_append_ms = wall_ms
            self._producers[entry.producer_id] = entry
        open_txns = [entry for entry in entries if entry.current_txn_first_offset >= 0]
        open_txns.sort(key=_txn_first_offset)
        self._ongoing = {entry.current_txn_first_offset: entry.producer_id for entry in open_txns}


def _txn_first_offset(entry: ProducerStateEntry) -> int:
    return entry.current_txn_first_offset
