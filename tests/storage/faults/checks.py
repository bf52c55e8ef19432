"""What must be true of a log and its directory, whatever happened: all of it follows from batches.

Each check raises InvariantBroken with a name. They look at the files through the log and beside it;
no fault is under way meanwhile.
"""

from __future__ import annotations

import os
import re

from storage.checkpoint import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from storage.log.partition_log import PartitionLog
from storage.segments.segment import LogSegment
from tests.sim.world import InvariantBroken
from tests.storage.faults.model import Batch, Content, Txn, producers_of
from wire.records import check_crc, iterate_headers

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")


def content_of(log: PartitionLog) -> Content:
    """All that a reader gets, fetch by fetch; every checksum must be right."""
    start = at = log.log_start_offset
    end = log.log_end_offset
    batches: list[Batch] = []
    while at < end:
        records = log.read(at, 1 << 20, True, end).records
        if records is None:
            break
        data = records.read()
        records.close()
        before = at
        for position, header in iterate_headers(data):
            if not check_crc(data, position, header):
                raise InvariantBroken(f"RightChecksums: {log.topic_partition} {header.base_offset}")
            if header.next_offset <= at or (batches and header.base_offset < at):
                raise InvariantBroken(f"InOrder: {log.topic_partition} {header} after {at}")
            batches.append(Batch.of(data, position))
            at = header.next_offset
        if at == before:
            break
    if (batches and at != end) or (not batches and start != end):
        raise InvariantBroken(f"NoGap: {log.topic_partition} ends at {end}, readers come to {at}")
    return Content(start, tuple(batches), end)


def check_log(
    log: PartitionLog, found: Content, *, is_quiet: bool = True, deleted_to: int = 0
) -> None:
    """All that a log knows beside its batches is what they say; `is_quiet`: nobody has changed it
    since it was opened, so no file is on its way out; `deleted_to`: records were deleted to here,
    whether or not that could be noted."""
    check_producers(log, found)
    check_transactions(log, found)
    check_epochs(log, found, deleted_to)
    for segment in log.segments:
        check_indexes(segment, log.log_end_offset if log._files_behind.is_any else None)
    if is_quiet:
        check_files(log)


def check_producers(log: PartitionLog, found: Content) -> None:
    """ProducersFollow."""
    producers, _ = producers_of(found.batches)
    kept = {offset for batch in found.batches for offset, _, _ in batch.rows}
    may_be_compacted = "compact" in log.config.cleanup_policy
    for producer_id, said in producers.items():
        known = log.producer_state.producer(producer_id)
        if known is None:
            raise _broken("ProducersFollow", log, f"{producer_id} is not known: {said}")
        in_log = known.producer_epoch, known.last_sequence, known.last_data_offset
        is_same = in_log == (said.epoch, said.last_sequence, said.last_offset)
        # Of records that were deleted or compacted since only their marker may be left.
        has_more = known.producer_epoch == said.epoch and said.last_offset < 0
        is_newer = may_be_compacted and known.producer_epoch > said.epoch
        is_gone = (has_more or is_newer) and known.last_data_offset not in kept
        if not is_same and not is_gone:
            raise _broken("ProducersFollow", log, f"{known}, but the batches say {said}")
        first = known.current_txn_first_offset
        if first != said.txn_first_offset and not (0 <= first < found.start):
            raise _broken("ProducersFollow", log, f"{known}, but the batches say {said}")
    for entry in log.producer_state.active_producers():
        newest = max(entry.last_data_offset, entry.current_txn_first_offset)
        if newest >= found.end:
            raise _broken("ProducersFollow", log, f"{entry} in a log that ends at {found.end}")
        is_open = entry.current_txn_first_offset >= found.start
        if is_open and entry.producer_id not in producers:
            raise _broken("ProducersFollow", log, f"nothing is there of the transaction of {entry}")


def check_transactions(log: PartitionLog, found: Content) -> None:
    """AbortedFollow, StableIsDecided."""
    _, txns = producers_of(found.batches)
    listed = log.aborted_transactions(found.start, found.end)
    known = {(txn.producer_id, txn.last_offset): txn.first_offset for txn in listed}
    if len(known) < len(listed):
        raise _broken("AbortedFollow", log, f"one is listed twice: {listed}")
    for txn in txns:
        at = known.pop((txn.producer_id, txn.last_offset), None)
        if txn.is_aborted and (at is None or at > txn.first_offset):
            raise _broken("AbortedFollow", log, f"{txn} is not listed: {listed}")
        if at is not None and not txn.is_aborted:
            raise _broken("AbortedFollow", log, f"{txn} is listed as aborted")
    # What is left lies in the log with its marker only: the rest is deleted, or compacted away.
    markers = {b.header.base_offset for b in found.batches if b.is_abort}
    may_be_compacted = "compact" in log.config.cleanup_policy
    for (producer_id, last_offset), first_offset in known.items():
        is_gone = first_offset < found.start or may_be_compacted
        if last_offset not in markers or not is_gone:
            txn = Txn(producer_id, first_offset, last_offset, True)
            raise _broken("AbortedFollow", log, f"{txn} is listed and not in the log")
    open_ones = [max(txn.first_offset, found.start) for txn in txns if txn.last_offset < 0]
    if open_ones and log.last_stable_offset > min(open_ones):
        raise _broken("StableIsDecided", log, f"{log.last_stable_offset} passes {open_ones}")


def check_epochs(log: PartitionLog, found: Content, deleted_to: int) -> None:
    """EpochsFollow."""
    entries = log.leader_epochs.entries
    for batch in found.batches:
        at = max(batch.header.base_offset, found.start)
        epoch = max((e.epoch for e in entries if e.start_offset <= at), default=-1)
        # Of records that were deleted, and came back with a crash, it may not be known.
        if epoch == -1 and entries and entries[0].start_offset <= batch.header.last_offset:
            epoch = entries[0].epoch
        if epoch == -1 and entries and batch.header.last_offset < deleted_to:
            continue
        if epoch != batch.header.leader_epoch:
            raise _broken("EpochsFollow", log, f"{batch} but {entries}")
    if any(entry.start_offset > found.end for entry in entries):
        raise _broken("EpochsFollow", log, f"the log ends at {found.end}, but {entries}")


def check_indexes(segment: LogSegment, behind_from: int | None = None) -> None:
    """IndexesLead: each entry to the batch it names. While files are behind a truncation, entries
    `behind_from` on are as well: readers find that they name nothing and have them made anew."""
    ends: dict[int, int] = {}
    newest: dict[int, int] = {}
    so_far = -1
    for position, header in segment.batches(0):
        ends[position] = header.last_offset
        so_far = max(so_far, header.max_timestamp)
        newest[header.last_offset] = so_far
    base = segment.base_offset
    entries = segment.offset_index._loaded()
    for relative, position in zip(entries.keys, entries.values, strict=True):
        if _is_behind(base + relative, behind_from):
            continue
        if ends.get(position) != base + relative:
            raise InvariantBroken(f"IndexesLead: {segment} {base + relative} at {position}")
    entries = segment.time_index._loaded()
    for timestamp, relative in zip(entries.keys, entries.values, strict=True):
        if _is_behind(base + relative, behind_from):
            continue
        if newest.get(base + relative) != timestamp:
            raise InvariantBroken(f"IndexesLead: {segment} {timestamp} at {base + relative}")


def _is_behind(offset: int, behind_from: int | None) -> bool:
    return behind_from is not None and offset >= behind_from


def check_files(log: PartitionLog) -> None:
    """NothingIsLeft: each file in a log's directory is of one of its segments."""
    bases = {segment.base_offset for segment in log.segments}
    for name in os.listdir(log.directory):
        # One that a crash left half written is written over by the next.
        if name.removesuffix(".tmp") in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA):
            continue
        found = _SEGMENT_FILE.fullmatch(name)
        if found is None:
            raise _broken("NothingIsLeft", log, name)
        base = int(found[1])
        if base not in bases and not (found[2] == "snapshot" and base <= log.log_end_offset):
            raise _broken("NothingIsLeft", log, f"{name} is of no segment")
    missing = [s.path.name for s in log.segments if not s.path.exists()]
    if missing:
        raise _broken("NothingIsLeft", log, f"{missing} are not there")


def check_segments(log: PartitionLog) -> None:
    """NothingIsLeft: a start would take a file of no segment for a part of the log (S-17)."""
    known = {segment.path.name for segment in (*log.segments, *log._files_behind.segments)}
    there = {name for name in os.listdir(log.directory) if name.endswith(".log")}
    if there - known:
        raise _broken("NothingIsLeft", log, f"{sorted(there - known)} are of no segment")


def _broken(name: str, log: PartitionLog, text: str) -> InvariantBroken:
    return InvariantBroken(f"{name}: {log.topic_partition}: {text}")
