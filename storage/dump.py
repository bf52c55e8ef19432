"""What is in a broker's files, as text: `barnabas dump-log FILE ...`.

Prints what Kafka's DumpLogSegments prints, in our words: the batches and records of a `.log` or a
KRaft snapshot (`.checkpoint`), the entries of `.index`, `.timeindex` and `.txnindex`, the producers
of a `.snapshot`, and the checkpoint and identity files of a log directory. A directory stands for
all such files in it.

Everything is checked on the way: checksums, offsets that ascend, index entries against the log
beside them. A line that starts with `!` is a problem; after the last file DumpError says how many
there were. Nothing is ever changed. Reads one batch at a time, so a segment may be of any size.

Gaps: the broker's own records (`__consumer_offsets`, `__cluster_metadata`) are printed as bytes;
control records of the quorum by their type.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from storage import files
from storage.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    CorruptCheckpoint,
    OffsetCheckpoint,
    read_leader_epochs,
    read_meta_properties,
    read_partition_metadata,
)
from storage.log.producer_snapshot import SNAPSHOT_SUFFIX, CorruptSnapshot, read_snapshot
from storage.segments.index import CorruptIndexError, OffsetIndex, TimeIndex
from storage.segments.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from storage.segments.transaction_index import TransactionIndex
from wire.errors import KafkaError, MalformedFrame
from wire.layout import CODEC_NAMES
from wire.primitives import uuid_to_text
from wire.record_batch import BATCH_OVERHEAD, BatchHeader, check_crc, read_header
from wire.records import (
    ControlRecordType,
    Record,
    control_record_type,
    parse_end_txn_marker,
    read_records,
)

KRAFT_SNAPSHOT_SUFFIX = ".checkpoint"
OFFSET_CHECKPOINT_ENDING = "-offset-checkpoint"

_SHOWN_BYTES_MAX = 1000
_UNLIMITED_INDEX = 1 << 40


class DumpError(Exception):
    """A file cannot be printed, or something in it is wrong; the text is for who asked."""


def dump_files(paths: Iterable[Path], out: TextIO, *, records: bool = True) -> None:
    """Print every file to `out`; `records` False stops at the batches.

    Raises FileNotFoundError and other OSErrors, DumpError for a file of an unknown kind, and, when
    all is printed, DumpError if anything was wrong.
    """
    problems = 0
    for path in paths:
        for file in _expand(Path(path)):
            problems += _Dump(file, out, records).run()
    if problems:
        noun = "problem" if problems == 1 else "problems"
        raise DumpError(f"{problems} {noun} found: see the lines that start with !")


def _expand(path: Path) -> list[Path]:
    """The file itself, or the files of a directory that can be printed."""
    if not path.is_dir():
        if _printer_of(path) is None:
            os.stat(path)  # one that is not there is told as that
            raise DumpError(
                f"{path} is no file of a log: expected .log, .index, .timeindex, .txnindex, "
                ".snapshot, .checkpoint or a checkpoint of a log directory"
            )
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and _printer_of(file))
    if not found:
        raise DumpError(f"{path} has no files of a log in it")
    return found


class _Dump:
    """Prints one file and counts what is wrong with it."""

    def __init__(self, path: Path, out: TextIO, records: bool) -> None:
        self.path = path
        self.records = records
        self._out = out
        self._problems = 0

    def run(self) -> int:
        printer = _printer_of(self.path)
        assert printer is not None
        os.stat(self.path)  # FileNotFoundError with the name, whatever reads it below
        self.line(f"{self.path}:")
        try:
            printer(self)
        except (CorruptIndexError, CorruptSnapshot, CorruptCheckpoint) as error:
            self.problem(str(error))
        return self._problems

    def line(self, text: str) -> None:
        self._out.write(text + "\n")

    def problem(self, text: str) -> None:
        self._problems += 1
        self._out.write(f"! {text}\n")


# --- batches and records -----------------------------------------------------------------------


def _batches(dump: _Dump, path: Path) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """(position, header, bytes) of each whole batch; says what the rest is."""
    fd = files.open_file(path, files.READ_ONLY)
    try:
        size = os.fstat(fd).st_size
        position = 0
        while position < size:
            try:
                header = read_header(files.read_fully(fd, BATCH_OVERHEAD, position))
            except MalformedFrame as error:
                dump.problem(f"position={position} bytes={size - position} no batch: {error}")
                return
            if position + header.size > size:
                dump.problem(
                    f"position={position} bytes={size - position} cut short: "
                    f"the batch has {header.size} bytes"
                )
                return
            yield position, header, files.read_fully(fd, header.size, position)
            position += header.size
    finally:
        files.close(fd)


def _dump_log(dump: _Dump) -> None:
    stem = dump.path.name.partition(".")[0]
    next_offset = int(stem) if stem.isdecimal() else 0
    for position, header, data in _batches(dump, dump.path):
        dump.line(describe_batch(position, header))
        if not check_crc(data, 0, header):
            dump.problem(f"position={position} checksum differs: the batch is damaged")
        if header.base_offset < next_offset:
            dump.problem(f"position={position} offset {header.base_offset} is below {next_offset}")
        next_offset = header.next_offset
        if dump.records:
            _dump_records(dump, header, data)


def describe_batch(position: int, header: BatchHeader) -> str:
    """One line with everything a batch's header says."""
    codec = (
        CODEC_NAMES[header.codec] if header.codec < len(CODEC_NAMES) else f"unknown({header.codec})"
    )
    words = [
        f"batch offset={header.base_offset}..{header.last_offset}",
        f"position={position} size={header.size} records={header.records_count} codec={codec}",
        f"leader_epoch={header.leader_epoch}",
        f"{'log_append' if header.timestamp_type else 'create'}_time={header.max_timestamp}",
        f"crc={header.crc:#010x}",
    ]
    if header.producer_id >= 0:
        words.append(
            f"producer_id={header.producer_id} producer_epoch={header.producer_epoch} "
            f"sequence={header.base_sequence}..{header.last_sequence}"
        )
    if header.is_transactional:
        words.append("transactional")
    if header.is_control:
        words.append("control")
    if header.has_delete_horizon:
        words.append(f"delete_horizon={header.base_timestamp}")
    return " ".join(words)


def _dump_records(dump: _Dump, header: BatchHeader, data: bytes) -> None:
    try:
        for record in read_records(data, 0, header):
            dump.line("  " + describe_record(record, header.is_control))
    except KafkaError as error:
        dump.problem(f"offset={header.base_offset} records cannot be read: {error.detail}")


def describe_record(record: Record, is_control: bool) -> str:
    """One line per record; bytes that are text are shown as text, never raw."""
    words = [f"offset={record.offset} timestamp={record.timestamp}"]
    if is_control:
        words.append(_describe_control(record))
    else:
        words.append(f"key={_show(record.key)} value={_show(record.value)}")
    if record.headers:
        pairs = ", ".join(f"{name!a}: {_show(value)}" for name, value in record.headers)
        words.append(f"headers={{{pairs}}}")
    return " ".join(words)


def _describe_control(record: Record) -> str:
    try:
        kind = control_record_type(record.key)
        if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            marker = parse_end_txn_marker(record)
            return f"marker={kind.name} coordinator_epoch={marker.coordinator_epoch}"
    except KafkaError as error:
        return f"control record cannot be read: {error.detail}"
    return f"control={kind.name} value={_show(record.value)}"


def _show(data: bytes | None) -> str:
    if data is None:
        return "null"
    shown = data[:_SHOWN_BYTES_MAX]
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        words = repr(shown)
    else:
        words = repr(text) if text.isprintable() else ascii(text)
    return words if len(data) <= _SHOWN_BYTES_MAX else f"{words}... ({len(data)} bytes)"


# --- indexes -----------------------------------------------------------------------------------


def _base_offset(dump: _Dump) -> int:
    stem = dump.path.name.partition(".")[0]
    if not stem.isdecimal():
        raise DumpError(f"{dump.path}: the name must start with the segment's base offset")
    return int(stem)


def _last_offsets(dump: _Dump) -> dict[int, tuple[int, int]] | None:
    """Last offset -> (position, max timestamp) of the log beside an index; None without a log."""
    log = dump.path.with_name(dump.path.name.partition(".")[0] + LOG_SUFFIX)
    if not log.exists():
        dump.line(f"  (not compared: {log.name} is not here)")
        return None
    return {
        header.last_offset: (position, header.max_timestamp)
        for position, header, _ in _batches(dump, log)
    }


def _dump_offset_index(dump: _Dump) -> None:
    index = OffsetIndex(dump.path, _base_offset(dump), _UNLIMITED_INDEX)
    batches = _last_offsets(dump)
    for slot in range(index.entries):
        offset, position = index.entry(slot)
        dump.line(f"  offset={offset} position={position}")
        if batches is not None and batches.get(offset, (-1, -1))[0] != position:
            dump.problem(f"no batch with last offset {offset} starts at position {position}")
    index.sanity_check()


def _dump_time_index(dump: _Dump) -> None:
    index = TimeIndex(dump.path, _base_offset(dump), _UNLIMITED_INDEX)
    batches = _last_offsets(dump)
    ends = sorted(batches or ())
    for slot in range(index.entries):
        timestamp, offset = index.entry(slot)
        dump.line(f"  timestamp={timestamp} offset={offset}")
        # Of the last record of a batch, or of any: older Apache Kafka names the one with the time.
        holder = ends[at] if (at := bisect_left(ends, offset)) < len(ends) else None
        if batches is not None and (holder is None or batches[holder][1] != timestamp):
            dump.problem(f"no batch with offset {offset} has the max timestamp {timestamp}")
    index.sanity_check()


def _dump_txn_index(dump: _Dump) -> None:
    index = TransactionIndex(dump.path, _base_offset(dump))
    for txn in index.aborted:
        dump.line(
            f"  aborted producer_id={txn.producer_id} first_offset={txn.first_offset} "
            f"last_offset={txn.last_offset} last_stable_offset={txn.last_stable_offset}"
        )
    index.sanity_check()


# --- small files -------------------------------------------------------------------------------


def _dump_producer_snapshot(dump: _Dump) -> None:
    for entry in read_snapshot(dump.path):
        words = (
            f"  producer_id={entry.producer_id} producer_epoch={entry.producer_epoch} "
            f"coordinator_epoch={entry.coordinator_epoch} last_timestamp={entry.last_timestamp} "
            f"current_txn_first_offset={entry.current_txn_first_offset}"
        )
        for batch in entry.batches:
            words += (
                f" last_batch: sequence={batch.first_sequence}..{batch.last_sequence} "
                f"offset={batch.first_offset}..{batch.last_offset} timestamp={batch.timestamp}"
            )
        dump.line(words)


def _dump_leader_epochs(dump: _Dump) -> None:
    for epoch, start_offset in read_leader_epochs(dump.path):
        dump.line(f"  leader_epoch={epoch} start_offset={start_offset}")


def _dump_offset_checkpoint(dump: _Dump) -> None:
    for (topic, index), offset in OffsetCheckpoint(dump.path).read().items():
        dump.line(f"  partition={topic}-{index} offset={offset}")


def _dump_partition_metadata(dump: _Dump) -> None:
    topic_id = read_partition_metadata(dump.path)
    assert topic_id is not None
    dump.line(f"  topic_id={uuid_to_text(topic_id)}")


def _dump_meta_properties(dump: _Dump) -> None:
    properties = read_meta_properties(dump.path)
    assert properties is not None
    directory_id = properties.directory_id
    dump.line(
        f"  cluster_id={properties.cluster_id} node_id={properties.node_id} "
        f"directory_id={'none' if directory_id is None else uuid_to_text(directory_id)}"
    )


_BY_SUFFIX: dict[str, Callable[[_Dump], None]] = {
    LOG_SUFFIX: _dump_log,
    KRAFT_SNAPSHOT_SUFFIX: _dump_log,
    INDEX_SUFFIX: _dump_offset_index,
    TIME_INDEX_SUFFIX: _dump_time_index,
    TXN_INDEX_SUFFIX: _dump_txn_index,
    SNAPSHOT_SUFFIX: _dump_producer_snapshot,
}
_BY_NAME: dict[str, Callable[[_Dump], None]] = {
    LEADER_EPOCH_CHECKPOINT: _dump_leader_epochs,
    PARTITION_METADATA: _dump_partition_metadata,
    META_PROPERTIES: _dump_meta_properties,
}


def _printer_of(path: Path) -> Callable[[_Dump], None] | None:
    if path.name.endswith(OFFSET_CHECKPOINT_ENDING):
        return _dump_offset_checkpoint
    return _BY_NAME.get(path.name) or _BY_SUFFIX.get(path.suffix)
