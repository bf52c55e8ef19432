"""Idempotence and transactions at one partition (protocol.md 7.3, P-1 to P-7, V-2)."""

from __future__ import annotations

import errno
import itertools
import random
import struct
from pathlib import Path

import pytest

from storage import files
from storage.config import ProducerStateConfig
from storage.log.append_source import AppendOrigin, AppendSource, Verification
from storage.log.producer_snapshot import (
    CorruptSnapshot,
    list_snapshots,
    read_snapshot,
    write_snapshot,
)
from storage.log.producer_state import (
    BatchMetadata,
    CompletedTxn,
    ProducerStateManager,
)
from testkit.clock import WALL_MS
from wire.crc import crc32c
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition
from wire.records import (
    SEQUENCE_MAX,
    BatchHeader,
    ControlRecordType,
    EndTxnMarker,
    Record,
    build_batch,
    end_txn_marker_batch,
    read_header,
)

CLIENT, COORDINATOR, REPLICATION = (
    AppendSource(AppendOrigin.CLIENT),
    AppendSource(AppendOrigin.COORDINATOR),
    AppendSource(AppendOrigin.REPLICATION),
)
DAY_MS = 24 * 3600 * 1000
ABORT = EndTxnMarker(ControlRecordType.ABORT, 0)
COMMIT = EndTxnMarker(ControlRecordType.COMMIT, 0)


class Log:
    """The part of a log that keeps producer state: offsets and the caller's duties."""

    def __init__(self, directory: Path, config: ProducerStateConfig | None = None) -> None:
        self.state = ProducerStateManager(TopicPartition("t", 0), directory, config)
        self.end = 0
        self.wall_ms = WALL_MS
        self.history: list[tuple[BatchHeader, int, EndTxnMarker | None]] = []

    def append(
        self,
        sequence: int,
        count: int = 1,
        *,
        pid: int = 1,
        epoch: int = 0,
        txn: bool = False,
        origin: AppendSource = CLIENT,
        timestamp: int = WALL_MS,
    ) -> int | str:
        """First offset of the batch; "duplicate at N" when it was there already."""
        header = batch(sequence, count, pid=pid, epoch=epoch, txn=txn, timestamp=timestamp)
        duplicate = self.state.check(header, origin)
        if duplicate is not None:
            return f"duplicate at {duplicate.first_offset}"
        first = self.end
        self._update(header, first, None)
        return first

    def end_txn(
        self,
        marker: EndTxnMarker,
        *,
        pid: int = 1,
        epoch: int = 0,
        origin: AppendSource = CLIENT,
        version: int = 0,
    ) -> CompletedTxn | None:
        header = marker_header(marker, pid, epoch)
        source = origin._replace(transaction_version=version)
        assert self.state.check(header, source, marker) is None
        return self._update(header, self.end, marker)

    def is_in_transaction(self, pid: int) -> bool:
        entry = self.state.producer(pid)
        return entry is not None and entry.current_txn_first_offset >= 0

    def _update(
        self, header: BatchHeader, first: int, marker: EndTxnMarker | None
    ) -> CompletedTxn | None:
        last = first + header.last_offset_delta
        completed = self.state.update(header, first, last, self.wall_ms, marker)
        if completed is not None:
            self.state.complete_txn(completed)
        self.end = self.state.map_end_offset = last + 1
        self.history.append((header, first, marker))
        return completed

    def replay(self) -> None:
        """What recovery does after `truncate_and_reload`."""
        history, self.history = self.history, []
        for header, first, marker in history:
            if first < self.state.map_end_offset:
                self.history.append((header, first, marker))
            else:
                self._update(header, first, marker)


def batch(
    sequence: int,
    count: int = 1,
    *,
    pid: int = 1,
    epoch: int = 0,
    txn: bool = False,
    timestamp: int = WALL_MS,
) -> BatchHeader:
    return read_header(
        build_batch(
            [Record(-1, timestamp, None, b"v", [])] * count,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=txn,
        )
    )


def marker_header(marker: EndTxnMarker, pid: int, epoch: int) -> BatchHeader:
    return read_header(
        end_txn_marker_batch(marker, producer_id=pid, producer_epoch=epoch, timestamp=WALL_MS)
    )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def refused(code: ErrorCode, function: object, *args: object, **options: object) -> None:
    with pytest.raises(KafkaError) as error:
        function(*args, **options)  # type: ignore[operator]
    assert error.value.code == code


# --- sequences ---------------------------------------------------------------------------------


def test_batches_in_sequence_are_accepted(log: Log) -> None:
    assert [log.append(0, 3), log.append(3, 2), log.append(5)] == [0, 3, 5]


def test_a_repeated_batch_gets_its_first_offset_and_changes_nothing(log: Log) -> None:
    log.append(0, 3)
    log.append(3, 2)
    assert log.append(0, 3) == "duplicate at 0"
    assert log.append(3, 2) == "duplicate at 3"
    assert log.end == 5
    assert log.append(5) == 5


def test_the_last_five_batches_are_remembered_and_no_more(log: Log) -> None:
    for sequence in range(6):
        log.append(sequence)
    assert [log.append(sequence) for sequence in range(1, 6)] == [
        f"duplicate at {sequence}" for sequence in range(1, 6)
    ]
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, 0)


def test_a_batch_that_overlaps_a_known_one_is_no_duplicate(log: Log) -> None:
    log.append(0, 3)
    for sequence, count in ((0, 2), (1, 2), (0, 4), (2, 1)):
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, sequence, count)


def test_a_gap_is_out_of_order(log: Log) -> None:
    log.append(0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, 2)
    assert log.append(1) == 1


def test_an_unknown_producer_may_start_anywhere(log: Log) -> None:
    """Its records may have been deleted by retention (KIP-360)."""
    assert log.append(1000) == 0
    assert log.append(1001) == 1


def test_sequences_wrap_to_zero(log: Log) -> None:
    log.append(SEQUENCE_MAX - 1, 2)
    assert log.append(0) == 2
    assert log.append(1, 2) == 3
    assert log.append(SEQUENCE_MAX - 1, 2) == "duplicate at 0"


def test_a_batch_across_the_wrap_is_recognised(log: Log) -> None:
    log.append(SEQUENCE_MAX - 1, 5)
    assert log.append(SEQUENCE_MAX - 1, 5) == "duplicate at 0"
    assert log.append(3) == 5


@pytest.mark.parametrize(
    ("sequence", "epoch", "pid", "is_behind_a_gap"),
    [
        (3, 5, 1, False),
        (4, 5, 1, True),
        (2, 5, 1, False),
        (0, 5, 1, False),
        (3 + SEQUENCE_MAX // 2, 5, 1, True),
        (4 + SEQUENCE_MAX // 2, 5, 1, False),
        (3, 6, 1, True),
        (4, 4, 1, False),
        (3, 5, 2, True),
    ],
)
def test_a_batch_behind_others_that_are_not_here_leaves_a_gap(
    log: Log, sequence: int, epoch: int, pid: int, is_behind_a_gap: bool
) -> None:
    """Half of all sequences lie ahead, as in TCP; what is known of no producer is not here."""
    log.append(0, 3, epoch=5)
    header = batch(sequence, epoch=epoch, pid=pid)
    assert log.state.leaves_a_gap(header) is is_behind_a_gap


def test_sequences_leave_no_gap_where_they_wrap(log: Log) -> None:
    log.append(SEQUENCE_MAX - 1, 2)
    found = [log.state.leaves_a_gap(batch(sequence)) for sequence in (SEQUENCE_MAX, 0, 1)]
    assert found == [False, False, True]


def test_producers_do_not_disturb_each_other(log: Log) -> None:
    assert [log.append(0, pid=1), log.append(0, pid=2), log.append(1, pid=1)] == [0, 1, 2]
    assert log.append(0, pid=2) == "duplicate at 1"


def test_a_repeated_batch_is_found_before_anything_else_is_looked_at(log: Log) -> None:
    """A coordinator's batches have its producer's id and no sequences: they are never the same."""
    assert log.state.find_duplicate(batch(0, 3), CLIENT) is None
    log.append(0, 3)
    found = log.state.find_duplicate(batch(0, 3), CLIENT)
    assert found is not None
    assert found.first_offset == 0
    assert log.state.find_duplicate(batch(3), CLIENT) is None
    assert log.state.find_duplicate(batch(0, 3), COORDINATOR) is None


# --- epochs ------------------------------------------------------------------------------------


def test_an_older_epoch_is_fenced(log: Log) -> None:
    log.append(0, epoch=2)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.append, 1, epoch=1)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.append, 0, epoch=1)


def test_a_new_epoch_starts_at_zero_and_forgets_the_old_batches(log: Log) -> None:
    log.append(0, epoch=0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, 1, epoch=1)
    assert log.append(0, epoch=1) == 1
    assert log.append(0, epoch=1) == "duplicate at 1"


def test_a_coordinators_batches_are_checked_for_the_epoch_only(log: Log) -> None:
    log.append(-1, epoch=3, txn=True, origin=COORDINATOR)
    log.append(-1, epoch=3, txn=True, origin=COORDINATOR)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.append, -1, epoch=2, txn=True, origin=COORDINATOR)


def test_replicated_batches_are_applied_unchecked(log: Log) -> None:
    log.append(7, origin=REPLICATION)
    log.append(3, 2, origin=REPLICATION)
    assert log.append(3, 2) == "duplicate at 1"
    assert log.append(5) == 3


def test_the_order_of_checks_is_kafkas(log: Log) -> None:
    """A duplicate beats everything; a stale epoch beats a wrong sequence."""
    log.append(0, txn=True, epoch=1)
    assert log.append(0, txn=False, epoch=1) == "duplicate at 0"
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.append, 9, txn=False, epoch=0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, 9, txn=False, epoch=1)
    refused(ErrorCode.INVALID_TXN_STATE, log.append, 1, txn=False, epoch=1)
    assert log.append(1, txn=True, epoch=1) == 1


def test_every_short_history_agrees_with_a_model(tmp_path: Path) -> None:
    """All runs of four batches with sequences 0 to 3 and epochs 0 and 1 (P-1)."""
    steps = list(itertools.product((0, 1), (0, 1, 2, 3)))
    log = Log(tmp_path)
    for run in itertools.product(steps, repeat=4):
        log_again(log)
        known: tuple[int, int] | None = None  # epoch, last sequence
        stored: dict[tuple[int, int], int] = {}
        for epoch, sequence in run:
            try:
                result: int | str | ErrorCode = log.append(sequence, epoch=epoch)
            except KafkaError as error:
                result = error.code
            expected: int | str | ErrorCode
            if known is not None and epoch == known[0] and (epoch, sequence) in stored:
                expected = f"duplicate at {stored[epoch, sequence]}"
            elif known is not None and epoch < known[0]:
                expected = ErrorCode.INVALID_PRODUCER_EPOCH
            elif known is None or sequence == (known[1] + 1 if epoch == known[0] else 0):
                expected = len(stored)
                stored[epoch, sequence] = len(stored)
                known = (epoch, sequence)
            else:
                expected = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert result == expected, run


def snapshots(state: ProducerStateManager) -> list[int]:
    return list_snapshots(state.directory)


def log_again(log: Log) -> None:
    """Empty it."""
    log.state = log.state.without_producers()
    log.end = 0
    log.history = []


def test_a_check_alone_changes_nothing(log: Log) -> None:
    log.append(0)
    header = batch(1, epoch=5)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.state.check, header, CLIENT)
    assert log.state.check(batch(1), CLIENT) is None
    assert log.append(1) == 1


# --- transactions ------------------------------------------------------------------------------


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction(log: Log) -> None:
    assert log.state.first_unstable_offset is None
    log.append(0, pid=9)
    log.append(0, pid=1, txn=True)
    log.append(0, pid=2, txn=True)
    log.append(1, pid=1, txn=True)
    assert log.state.first_unstable_offset == 1
    completed = log.end_txn(COMMIT, pid=1)
    assert completed == CompletedTxn(1, 1, 4, False)


def test_a_decided_transaction_holds_readers_until_its_marker_is_replicated(log: Log) -> None:
    log.append(0, txn=True)
    log.append(1, txn=True)
    log.end_txn(ABORT)
    assert log.state.first_unstable_offset == 0
    assert log.state.on_high_watermark_updated(2) == 0  # the marker is at 2, not below it
    assert log.state.first_unstable_offset == 0
    assert log.state.on_high_watermark_updated(3) is None
    assert log.state.first_unstable_offset is None


def test_an_old_unreplicated_transaction_counts_beside_a_newer_open_one(log: Log) -> None:
    log.append(0, pid=1, txn=True)
    log.append(0, pid=2, txn=True)
    log.end_txn(COMMIT, pid=1)
    assert log.state.first_unstable_offset == 0
    log.end_txn(COMMIT, pid=2)
    log.append(0, pid=3, txn=True)
    assert log.state.first_unstable_offset == 0
    assert log.state.on_high_watermark_updated(3) == 1  # past the first marker
    assert log.state.first_unstable_offset == 1
    assert log.state.on_high_watermark_updated(5) == 4
    assert log.state.first_unstable_offset == 4


def test_a_transaction_is_complete_only_when_its_owner_says_so(log: Log) -> None:
    """The transaction index comes first: if it fails, readers must not pass (P-7)."""
    log.append(0, txn=True)
    header = marker_header(ABORT, 1, 0)
    completed = log.state.update(header, 1, 1, WALL_MS, ABORT)
    log.state.on_high_watermark_updated(99)
    assert completed == CompletedTxn(1, 0, 1, True)
    assert log.state.first_unstable_offset == 0
    log.state.complete_txn(completed)
    log.state.on_high_watermark_updated(99)
    assert log.state.first_unstable_offset is None


def test_the_stable_offset_in_the_transaction_index_looks_at_the_others(log: Log) -> None:
    log.append(0, pid=1, txn=True)
    log.append(0, pid=2, txn=True)
    first = log.state.update(marker_header(ABORT, 1, 0), 2, 2, WALL_MS, ABORT)
    assert first is not None
    assert log.state.last_stable_offset_after(first) == 1
    log.state.complete_txn(first)
    second = log.state.update(marker_header(ABORT, 2, 0), 3, 3, WALL_MS, ABORT)
    assert second is not None
    assert log.state.last_stable_offset_after(second) == 4


def test_a_marker_without_a_transaction_completes_nothing_but_may_bump_the_epoch(
    log: Log,
) -> None:
    assert log.end_txn(COMMIT, epoch=5) is None
    assert log.state.first_unstable_offset is None
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.append, 0, epoch=4)
    assert log.append(0, epoch=5) == 1


def test_a_marker_with_a_bumped_epoch_starts_sequences_anew(log: Log) -> None:
    log.append(0, txn=True)
    log.append(1, txn=True)
    log.end_txn(COMMIT, epoch=1)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, 2, epoch=1, txn=True)
    assert log.append(0, epoch=1, txn=True) == 3


def test_a_marker_of_the_same_epoch_keeps_sequences_and_batches(log: Log) -> None:
    log.append(0, 2, txn=True)
    log.end_txn(COMMIT)
    assert log.append(0, 2, txn=True) == "duplicate at 0"
    assert log.append(2, txn=True) == 3


def test_markers_of_old_epochs_and_old_coordinators_are_refused(log: Log) -> None:
    log.append(0, txn=True, epoch=2)
    log.end_txn(EndTxnMarker(ControlRecordType.COMMIT, 7), epoch=2)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.end_txn, COMMIT, epoch=1)
    old = EndTxnMarker(ControlRecordType.COMMIT, 6)
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, log.end_txn, old, epoch=2)
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, log.end_txn, old, epoch=2, origin=COORDINATOR)
    log.end_txn(old, epoch=2, origin=REPLICATION)


# Version of the transaction, epoch of the marker, is a transaction open (in epoch 3) -> refused.
MARKER_EPOCHS = [
    (version, epoch, is_open, epoch < 3 or (version == 2 and is_open and epoch == 3))
    for version in (0, 1, 2)
    for epoch in (2, 3, 4)
    for is_open in (False, True)
]


@pytest.mark.parametrize(("version", "epoch", "is_open", "is_refused"), MARKER_EPOCHS)
def test_a_late_marker_of_version_2_cannot_end_the_next_transaction(
    log: Log, version: int, epoch: int, is_open: bool, is_refused: bool
) -> None:
    """TX-60: with an epoch for each transaction, a marker is of one above the records'."""
    log.append(0, txn=True, epoch=2)
    log.end_txn(COMMIT, epoch=3, version=version)
    if is_open:
        log.append(0, txn=True, epoch=3)
    if is_refused:
        refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.end_txn, ABORT, epoch=epoch, version=version)
        assert log.is_in_transaction(1) is is_open
    else:
        completed = log.end_txn(ABORT, epoch=epoch, version=version)
        assert (completed is not None) is is_open
    last = log.state.producer(1)
    assert last is not None
    assert last.producer_epoch == max(3, epoch)


def test_the_highest_epoch_of_all_ends_its_own_transaction(log: Log) -> None:
    """Nothing is above 32767, so a transaction that was begun with it may be ended with it."""
    log.append(0, txn=True, epoch=32767)
    assert log.end_txn(ABORT, epoch=32767, version=2) is not None


def test_a_refused_marker_leaves_the_transaction_open(log: Log) -> None:
    log.append(0, txn=True, epoch=3)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.end_txn, COMMIT, epoch=3, version=2)
    assert log.state.first_unstable_offset == 0
    assert log.end_txn(COMMIT, epoch=4, version=2) is not None


def test_a_control_batch_emptied_by_compaction_changes_nothing(log: Log) -> None:
    log.append(0, txn=True)
    header = marker_header(COMMIT, 1, 0)
    assert log.state.update(header, 1, 1, WALL_MS, None) is None
    assert log.is_in_transaction(1)


# --- verification (KIP-890) --------------------------------------------------------------------


@pytest.fixture
def strict(tmp_path: Path) -> Log:
    return Log(tmp_path, ProducerStateConfig(requires_verification=True))


def ask(
    state: ProducerStateManager, header: BatchHeader, is_add: bool = False
) -> Verification | None:
    return state.start_verification(
        header.producer_id, header.producer_epoch, header.base_sequence, is_add, WALL_MS
    )


def verified(guard: Verification | None) -> AppendSource:
    return AppendSource(verification=guard)


def test_a_transaction_needs_verification_once(strict: Log) -> None:
    state, header = strict.state, batch(0, txn=True)
    refused(ErrorCode.INVALID_TXN_STATE, state.check, header, CLIENT)
    guard = ask(state, header)
    assert guard is not None
    assert ask(state, header) is guard
    refused(ErrorCode.INVALID_TXN_STATE, state.check, header, CLIENT)
    assert state.check(header, verified(guard)) is None
    state.update(header, 0, 0, WALL_MS)
    assert ask(state, batch(1, txn=True)) is None
    assert state.check(batch(1, txn=True), CLIENT) is None


def test_a_guard_from_before_an_abort_proves_nothing(strict: Log) -> None:
    state, header = strict.state, batch(0, txn=True)
    stale = ask(state, header)
    state.update(marker_header(ABORT, 1, 0), 0, 0, WALL_MS, ABORT)
    refused(ErrorCode.INVALID_TXN_STATE, state.check, header, verified(stale))
    fresh = ask(state, header)
    assert fresh is not stale
    assert state.check(header, verified(fresh)) is None


def test_a_guard_for_the_next_transaction_outlives_the_marker_of_this_one(strict: Log) -> None:
    """TX-58: the producer knows its next epoch before this partition has the marker."""
    state, header = strict.state, batch(0, epoch=4, txn=True)
    state.update(batch(0, epoch=3, txn=True), 0, 0, WALL_MS)
    state.update(marker_header(ABORT, 1, 3), 1, 1, WALL_MS, ABORT)
    guard = ask(state, header, True)
    state.update(marker_header(COMMIT, 1, 4), 1, 1, WALL_MS, COMMIT)
    assert state.check(header, verified(guard)) is None


@pytest.mark.parametrize(("epoch", "bump"), [(5, True), (4, False)])
def test_other_markers_use_a_guard_up(strict: Log, epoch: int, bump: bool) -> None:
    state, header = strict.state, batch(0, epoch=4, txn=True)
    guard = ask(state, header, bump)
    state.update(marker_header(ABORT, 1, epoch), 0, 0, WALL_MS, ABORT)
    later = batch(0, epoch=5, txn=True)
    refused(ErrorCode.INVALID_TXN_STATE, state.check, later, verified(guard))


def test_a_later_batch_may_not_overtake_one_under_verification(strict: Log) -> None:
    """KAFKA-14359: batch 0 failed retriably, batch 1 must not be the first in the log."""
    state = strict.state
    guard = ask(state, batch(0, 2, txn=True))
    assert ask(state, batch(2, txn=True)) is guard
    refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        state.check,
        batch(2, txn=True),
        verified(guard),
    )
    assert state.check(batch(0, 2, txn=True), verified(guard)) is None


def test_the_first_of_two_batches_goes_first_though_it_was_asked_about_last(strict: Log) -> None:
    state = strict.state
    guard = ask(state, batch(2, txn=True))
    assert ask(state, batch(0, 2, txn=True)) is guard
    source = verified(guard)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, state.check, batch(2, txn=True), source)
    assert state.check(batch(0, 2, txn=True), source) is None


def test_a_guard_from_before_a_truncation_proves_nothing(strict: Log) -> None:
    """Another led meanwhile: the marker of that very transaction may be what was cut off."""
    strict.append(0, pid=2)
    guard = ask(strict.state, batch(0, txn=True))
    strict.state.truncate_and_reload(0, 0, WALL_MS)
    refused(ErrorCode.INVALID_TXN_STATE, strict.state.check, batch(0, txn=True), verified(guard))


def test_a_question_of_an_older_epoch_says_nothing_of_the_sequences_of_a_newer_one(
    strict: Log,
) -> None:
    state = strict.state
    guard = ask(state, batch(3, epoch=5, txn=True))
    assert ask(state, batch(0, epoch=4, txn=True)) is guard
    assert state.check(batch(3, epoch=5, txn=True), verified(guard)) is None


def test_with_epoch_bumps_an_unknown_producers_first_sequence_is_zero(strict: Log) -> None:
    state = strict.state
    guard = ask(state, batch(5, txn=True), True)
    refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        state.check,
        batch(5, txn=True),
        verified(guard),
    )


def test_markers_need_no_verification(strict: Log) -> None:
    assert strict.state.check(marker_header(COMMIT, 1, 0), COORDINATOR, COMMIT) is None


# --- expiry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-10 * 365 * DAY_MS, 0, 10 * 365 * DAY_MS])
def test_idle_time_is_counted_from_the_append_whatever_the_records_say(log: Log, skew: int) -> None:
    log.append(0, timestamp=WALL_MS + skew)
    assert log.state.remove_expired(WALL_MS + DAY_MS - 1) == 0
    assert log.append(0) == "duplicate at 0"
    assert log.state.remove_expired(WALL_MS + DAY_MS) == 1
    assert log.state.active_producers() == []


def test_an_open_transaction_never_expires(log: Log) -> None:
    log.append(0, txn=True)
    assert log.state.remove_expired(WALL_MS + 99 * DAY_MS) == 0
    log.wall_ms += 99 * DAY_MS
    log.end_txn(COMMIT)
    assert log.state.remove_expired(WALL_MS + 99 * DAY_MS + 1) == 0
    assert log.state.remove_expired(WALL_MS + 100 * DAY_MS) == 1


def test_abandoned_verifications_expire(strict: Log) -> None:
    guard = ask(strict.state, batch(0, txn=True))
    strict.state.remove_expired(WALL_MS + DAY_MS)
    assert ask(strict.state, batch(0, txn=True)) is not guard


# --- snapshots ---------------------------------------------------------------------------------


def test_a_snapshot_is_kafkas_bytes(log: Log) -> None:
    log.append(10, 3, pid=7, epoch=2, txn=True, timestamp=123)
    path = log.state.take_snapshot()
    assert path is not None
    assert path.name == "00000000000000000003.snapshot"
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 2, 12, 2, 2, 123, -1, 0)
    assert path.read_bytes() == struct.pack(">hI", 1, crc32c(body)) + body
    log.state.flush()
    (entry,) = read_snapshot(path)
    assert entry.batches == [BatchMetadata(12, 2, 2, 123)]
    assert (entry.producer_id, entry.producer_epoch, entry.current_txn_first_offset) == (7, 2, 0)


def test_a_producer_known_only_by_its_marker_is_in_the_snapshot(log: Log) -> None:
    log.end_txn(EndTxnMarker(ControlRecordType.COMMIT, 4), pid=7, epoch=2)
    path = log.state.take_snapshot()
    assert path is not None
    fields = struct.unpack(">qhiqiqiq", path.read_bytes()[10:])
    assert fields == (7, 2, -1, -1, 0, WALL_MS, 4, -1)
    (entry,) = read_snapshot(path)
    assert entry.batches == []
    assert entry.coordinator_epoch == 4


def test_no_second_snapshot_at_the_same_offset(log: Log) -> None:
    assert log.state.take_snapshot() is None
    log.append(0)
    assert log.state.take_snapshot() is not None
    assert log.state.take_snapshot() is None
    assert snapshots(log.state) == [1]


def test_what_is_at_offset_0_is_known_after_a_restart_too(log: Log) -> None:
    log.append(0)
    log.state.take_snapshot()
    assert restarted(log).append(0) == "duplicate at 0"


def test_a_batch_without_sequences_has_no_first_one(log: Log) -> None:
    assert BatchMetadata(-1, 5, 2, WALL_MS).first_sequence == -1
    assert BatchMetadata(0, 5, 2, WALL_MS).first_sequence == SEQUENCE_MAX - 1


@pytest.mark.parametrize("is_full", [False, True])
def test_a_snapshot_is_closed_and_there_only_when_it_could_be_written(
    log: Log, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    closed: list[int] = []
    close = files.close

    def noted(fd: int) -> None:
        closed.append(fd)
        close(fd)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(files, "close", noted)
    log.append(0)
    if is_full:
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_fully", full)
            with pytest.raises(OSError, match="no space left"):
                log.state.take_snapshot()
        assert snapshots(log.state) == []
    assert log.state.take_snapshot() is not None
    assert snapshots(log.state) == [1]
    assert len(closed) == 1 + is_full


def test_a_snapshot_is_synced_once_and_only_when_the_log_is(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_file", synced.append)
    log.append(0)
    first = log.state.take_snapshot()
    log.append(1)
    second = log.state.take_snapshot()
    assert synced == []
    assert log.state.has_unsynced
    log.state.flush()
    assert not log.state.has_unsynced
    assert synced == [first, second]
    log.state.flush()
    assert synced == [first, second]


def test_a_snapshot_that_was_deleted_is_taken_anew(log: Log) -> None:
    log.append(0)
    log.state.take_snapshot()
    log.append(1)
    log.state.take_snapshot()
    log.state.on_log_start_moved(0)
    assert log.state.take_snapshot() is None
    log.state.delete_snapshot(2)
    log.state.on_log_start_moved(0)
    assert log.state.take_snapshot() == log.state.snapshot_path(2)
    assert snapshots(log.state) == [1, 2]


def restarted(log: Log) -> Log:
    """A new process: state from the newest snapshot, then the log replayed."""
    again = Log(log.state.directory)
    again.history = list(log.history)
    again.wall_ms = log.wall_ms
    again.state.truncate_and_reload(0, log.end, log.wall_ms)
    again.end = again.state.map_end_offset
    again.replay()
    assert again.end == log.end
    return again


def test_a_restart_brings_duplicates_sequences_and_transactions_back(log: Log) -> None:
    log.append(0, 2)
    log.append(0, pid=2, txn=True)
    log.state.take_snapshot()
    log.append(2)
    log.append(3)
    again = restarted(log)
    assert again.append(3) == "duplicate at 4"
    assert again.append(2) == "duplicate at 3"
    assert again.append(0, 2) == "duplicate at 0"  # the last batch before the snapshot
    assert again.append(4) == 5
    assert again.state.first_unstable_offset == 2
    assert again.end_txn(ABORT, pid=2) == CompletedTxn(2, 2, 6, True)


def test_random_histories_survive_restarts(tmp_path: Path) -> None:
    rng = random.Random(2)
    for round in range(40):
        directory = tmp_path / str(round)
        directory.mkdir()
        log = Log(directory)
        next_sequence = dict.fromkeys(range(4), 0)
        for _ in range(60):
            pid = rng.randrange(4)
            in_txn = log.is_in_transaction(pid)
            if in_txn and rng.random() < 0.3:
                log.end_txn(rng.choice((ABORT, COMMIT)), pid=pid)
            else:
                count = rng.randrange(1, 4)
                log.append(next_sequence[pid], count, pid=pid, txn=in_txn or rng.random() < 0.4)
                next_sequence[pid] += count
            if rng.random() < 0.15:
                log.state.take_snapshot()
            if rng.random() < 0.1:
                log.state.on_high_watermark_updated(log.end)
                open_txns = log.state.first_unstable_offset
                log = restarted(log)
                log.state.on_high_watermark_updated(log.end)
                assert log.state.first_unstable_offset == open_txns
        for pid, sequence in next_sequence.items():
            if sequence:
                is_open = log.is_in_transaction(pid)
                refused(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    log.append,
                    sequence + 1,
                    pid=pid,
                    txn=is_open,
                )
                log.append(sequence, pid=pid, txn=is_open)


def test_open_transactions_of_a_snapshot_are_in_offset_order(log: Log) -> None:
    log.append(0, pid=5, txn=True)
    log.end_txn(COMMIT, pid=5)
    log.append(0, pid=1, txn=True)
    log.append(1, pid=5, txn=True)
    log.state.take_snapshot()
    log.state.on_high_watermark_updated(log.end)
    again = restarted(log)
    assert again.state.first_unstable_offset == 2
    again.end_txn(COMMIT, pid=1)
    again.state.on_high_watermark_updated(again.end)
    assert again.state.first_unstable_offset == 3


def test_every_flipped_bit_of_a_snapshot_is_noticed(log: Log) -> None:
    log.append(0)
    log.append(0, pid=2)
    path = log.state.take_snapshot()
    assert path is not None
    good = path.read_bytes()
    for position in range(len(good)):
        for bit in range(8):
            data = bytearray(good)
            data[position] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(CorruptSnapshot):
                read_snapshot(path)
    for cut in range(len(good)):
        path.write_bytes(good[:cut])
        with pytest.raises(CorruptSnapshot):
            read_snapshot(path)


def test_a_corrupt_snapshot_is_deleted_and_the_older_one_used(log: Log) -> None:
    log.append(0)
    log.state.take_snapshot()
    log.append(1)
    newest = log.state.take_snapshot()
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:-1])
    log.append(2)
    again = restarted(log)
    assert not newest.exists()
    assert snapshots(again.state) == [1]
    assert again.append(2) == "duplicate at 2"


def test_without_any_snapshot_the_state_starts_at_the_logs_start(log: Log) -> None:
    log.state.truncate_and_reload(5, 9, WALL_MS)
    assert log.state.map_end_offset == 5
    assert log.state.active_producers() == []


def test_a_producer_loaded_from_a_snapshot_counts_as_just_seen(log: Log) -> None:
    log.append(0, timestamp=5)
    log.state.take_snapshot()
    log.wall_ms += 10 * DAY_MS
    again = restarted(log)
    assert again.state.remove_expired(again.wall_ms + DAY_MS - 1) == 0
    assert again.state.remove_expired(again.wall_ms + DAY_MS) == 1


def test_an_empty_snapshot_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000009.snapshot"
    write_snapshot(path, [])
    assert read_snapshot(path) == []
    assert snapshots(ProducerStateManager(TopicPartition("t", 0), tmp_path)) == [9]


# --- truncation and retention ------------------------------------------------------------------


def truncated(log: Log, offset: int) -> Log:
    """What the log does: cut, reload, replay what is left."""
    log.history = [row for row in log.history if row[1] + row[0].last_offset_delta < offset]
    log.state.truncate_and_reload(0, offset, log.wall_ms)
    log.end = log.state.map_end_offset
    log.replay()
    log.end = log.state.map_end_offset = offset
    return log


def test_truncation_forgets_what_was_cut_and_accepts_it_again(log: Log) -> None:
    for sequence in range(6):
        log.append(sequence)
        if sequence in (1, 4):
            log.state.take_snapshot()
    truncated(log, 3)
    assert snapshots(log.state) == [2]
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, 4)
    assert log.append(2) == "duplicate at 2"
    assert log.append(3) == 3


def test_truncation_within_a_transaction_leaves_it_open_at_the_same_offset(log: Log) -> None:
    log.append(0)
    log.append(1, txn=True)
    log.append(2, txn=True)
    log.end_txn(COMMIT)
    truncated(log, 2)
    assert log.state.first_unstable_offset == 1
    assert log.append(2, txn=True) == 2
    truncated(log, 1)
    assert log.state.first_unstable_offset is None
    assert log.append(1, txn=True) == 1


def test_truncating_to_the_end_keeps_everything(log: Log) -> None:
    log.append(0, txn=True)
    log.state.truncate_and_reload(0, 1, WALL_MS)
    assert log.state.first_unstable_offset == 0
    assert log.append(0, txn=True) == "duplicate at 0"


def test_what_was_deleted_at_the_start_holds_no_reader_back(log: Log) -> None:
    log.append(0, txn=True)
    log.end_txn(ABORT)
    log.append(1)
    log.state.truncate_and_reload(1, 3, WALL_MS)
    assert log.state.first_unstable_offset == 0, "its marker is at 1, which is there"
    log.state.truncate_and_reload(2, 3, WALL_MS)
    assert log.state.first_unstable_offset is None


def test_a_snapshot_at_the_start_of_the_log_says_nothing_of_it(log: Log) -> None:
    """It is of the records below, which are gone; Kafka deletes it, too."""
    log.append(0, 2)
    path = log.state.take_snapshot()
    assert path is not None
    log.append(0, 2, pid=2)
    looked = log.state.without_producers()
    looked.load_newest_snapshot(2, 4, WALL_MS)
    assert looked.active_producers() == []
    assert path.exists(), "to look deletes nothing"
    log.state.truncate_and_reload(2, 4, WALL_MS)
    assert not path.exists()


def test_starting_over_forgets_everything_on_disk_too(log: Log) -> None:
    log.append(0, txn=True)
    log.state.take_snapshot()
    anew = log.state.without_producers()
    assert anew.first_unstable_offset is None
    assert anew.active_producers() == []
    anew.delete_snapshots_outside(50, 50)
    assert list(anew.directory.iterdir()) == []


def test_a_moved_log_start_keeps_live_producers(log: Log) -> None:
    log.append(0, 3)
    log.state.on_log_start_moved(3)
    assert log.append(0, 3) == "duplicate at 0"
    assert log.append(3) == 3
    log.state.on_log_start_moved(10)
    assert log.state.map_end_offset == 10


def test_snapshots_without_segments_are_removed_but_not_the_one_of_the_shutdown(
    tmp_path: Path,
) -> None:
    for offset in (1, 2, 3, 5, 8, 13):
        write_snapshot(tmp_path / f"{offset:020d}.snapshot", [])
    (tmp_path / "x.snapshot").touch()
    state = ProducerStateManager(TopicPartition("t", 0), tmp_path)
    state.remove_stray_snapshots([0, 2, 5])
    assert snapshots(state) == [2, 5, 13]
    state.remove_stray_snapshots([0, 2, 5, 20])
    assert snapshots(state) == [2, 5]
    state.delete_snapshot(2)
    assert snapshots(state) == [5]
    state.delete_snapshot(5)
    state.delete_snapshot(5)
    assert [path.name for path in tmp_path.iterdir()] == ["x.snapshot"]


def test_a_snapshot_deleted_by_someone_else_is_skipped(log: Log) -> None:
    log.append(0)
    path = log.state.take_snapshot()
    assert path is not None
    path.unlink()
    log.state.flush()
    log.state.map_end_offset = 99  # so that reloading looks for it
    log.state.truncate_and_reload(0, 1, WALL_MS)
    assert log.state.map_end_offset == 0
