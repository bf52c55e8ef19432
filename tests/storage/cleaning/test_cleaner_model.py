"""Compaction against a model: random histories of keys, deletions, transactions, rolls, cleanings,
restarts and truncations; what every kind of reader knows must be what the model says."""

from __future__ import annotations

import tempfile
import warnings
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.cleaning.cleaner import CleanerConfig
from storage.log.partition_log import PartitionLog
from tests.storage.cleaning.cleaner_support import (
    Cleaned,
    Table,
    batches,
    committed,
    compacted,
    records,
    table,
)
from wire.records import ControlRecordType, iterate_headers, read_records

with warnings.catch_warnings():
    # Importing kafka-python warns about its own use of importlib.
    warnings.simplefilter("ignore")
    from kafka.record.memory_records import MemoryRecords

RETENTION_MS = 200
BUMPING = 2
"""The producer of transaction version 2: its markers have an epoch above their transactions'."""
KEYS = [b"a", b"b", b"c", b"a key of more than sixteen bytes", b""]


class Event(NamedTuple):
    """One record that was appended; `producer` -1 for plain ones, `commit` None for data."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    producer: int = -1
    sequence: int = -1
    commit: bool | None = None


pairs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"", b"v", b"w" * 40])),
    min_size=1,
    max_size=5,
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), pairs, st.integers(0, 4)),
        st.tuples(st.just("put"), pairs, st.integers(0, 4)),
        st.tuples(st.just("transactional"), pairs, st.sampled_from([1, 2])),
        st.tuples(st.just("end"), st.booleans(), st.sampled_from([1, 2])),
        st.tuples(st.just("roll"), st.none(), st.none()),
        st.tuples(st.just("replicate"), st.none(), st.none()),
        st.tuples(st.just("clean"), st.none(), st.none()),
        st.tuples(st.just("clean"), st.none(), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 300), st.none()),
        st.tuples(st.just("restart"), st.booleans(), st.none()),
        st.tuples(st.just("truncate"), st.integers(1, 6), st.none()),
        st.tuples(st.just("consume"), st.integers(80, 600), st.none()),
    ),
    max_size=60,
)


class World:
    """The log, what was appended to it, and a consumer that is never slower than the retention."""

    def __init__(self, root: Path, map_entries: int) -> None:
        config = compacted(
            segment_bytes=700, delete_retention_ms=RETENTION_MS, index_interval_bytes=60
        )
        cleaner_config = CleanerConfig(
            log_cleaner_dedupe_buffer_size=map_entries * 200, log_cleaner_io_buffer_load_factor=1.0
        )
        self.one = Cleaned(root, config, cleaner_config)
        self.history: list[Event] = []
        self.consumer: Table = {}
        self.position = 0

    @property
    def log(self) -> PartitionLog:
        return self.one.log

    # -- actions -----------------------------------------------------------------------------------

    def put(self, rows: list[tuple[bytes, bytes | None]], codec: int) -> None:
        first = self.one.append(*rows, codec=codec)
        self._note(first, rows)

    def transactional(self, rows: list[tuple[bytes, bytes | None]], producer: int) -> None:
        known = self.log.producer_state.producer(producer)
        sequence = 0 if known is None else known.last_sequence + 1
        first = self.one.append(
            *rows,
            producer_id=producer,
            producer_epoch=0 if known is None else known.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self._note(first, rows, producer, sequence)

    def _note(
        self,
        first: int,
        rows: list[tuple[bytes, bytes | None]],
        producer: int = -1,
        sequence: int = -1,
    ) -> None:
        now = self.one.clock.wall_ms()
        for index, (key, value) in enumerate(rows):
            number = sequence + index if producer >= 0 else -1
            self.history.append(Event(first + index, key, value, now, producer, number))

    def end(self, commit: bool, producer: int) -> None:
        entry = self.log.producer_state.producer(producer)
        if entry is None or entry.current_txn_first_offset < 0:
            return
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        epoch = entry.producer_epoch + (producer == BUMPING)
        offset = self.one.end_transaction(producer, kind, epoch)
        now = self.one.clock.wall_ms()
        self.history.append(Event(offset, None, None, now, producer, commit=commit))

    def roll(self) -> None:
        self.log.roll()

    def replicate(self) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)

    def clean(self) -> None:
        self.one.cleaner.clean_filthiest()
        assert not self.one.cleaner.uncleanable
        self.check()

    def wait(self, ms: int) -> None:
        while self.position < self.log.last_stable_offset:
            self.consume(10_000)
        self.one.clock.ms += ms

    def restart(self, is_clean: bool) -> None:
        end, high_watermark = self.log.log_end_offset, self.log.high_watermark
        if is_clean:
            self.log.flush()
            self.log.close()
            self.one.open(had_clean_shutdown=True, recovery_point=end)
        else:
            self.one.open(recovery_point=0)
        assert self.log.log_end_offset == end
        self.log.update_high_watermark(high_watermark)

    def truncate(self, count: int) -> None:
        offset = max(self.log.high_watermark, self.log.log_end_offset - count)
        self.log.truncate_to(offset)
        end = self.log.log_end_offset
        self.history = [event for event in self.history if event.offset < end]
        # A batch around the high watermark is cut whole; the replica would fetch it again.
        self.position = min(self.position, end)

    def consume(self, max_bytes: int) -> None:
        """One fetch of a read_committed consumer."""
        stable = self.log.last_stable_offset
        if self.position >= stable:
            return
        result = self.log.read(self.position, max_bytes, True, stable, include_aborted=True)
        if result.records is None:
            self.position = stable
            return
        upcoming = sorted(result.aborted or [], key=lambda txn: txn.first_offset)
        aborted: set[int] = set()
        data = result.records.read()
        for position, header in iterate_headers(data):
            while upcoming and upcoming[0].first_offset <= header.last_offset:
                aborted.add(upcoming.pop(0).producer_id)
            if header.is_control:
                if header.records_count and not self._was_commit(header.base_offset):
                    aborted.discard(header.producer_id)
            elif header.producer_id not in aborted:
                for row in read_records(data, position, header):
                    if row.offset >= self.position:
                        assert row.key is not None
                        _apply(self.consumer, row.key, row.value)
            self.position = header.next_offset

    def _was_commit(self, offset: int) -> bool:
        return next(bool(event.commit) for event in self.history if event.offset == offset)

    # -- truth -------------------------------------------------------------------------------------

    def expected(self) -> Table:
        """What somebody knows who reads all that is committed below the last stable offset."""
        known: Table = {}
        stable = self.log.last_stable_offset
        for index, event in enumerate(self.history):
            if event.offset >= stable or event.commit is not None:
                continue
            if event.producer < 0 or self._is_committed(index):
                assert event.key is not None
                _apply(known, event.key, event.value)
        return known

    def _is_committed(self, index: int) -> bool:
        producer = self.history[index].producer
        later = self.history[index + 1 :]
        return next(
            (
                bool(event.commit)
                for event in later
                if event.producer == producer and event.commit is not None
            ),
            False,
        )

    def check(self) -> None:
        log = self.log
        assert table(committed(log)) == self.expected()
        by_offset = {event.offset: event for event in self.history}
        for row in records(log):
            event = by_offset[row.offset]
            assert (row.key, row.value, row.timestamp) == (event.key, event.value, event.timestamp)
        self.check_producers()
        self.check_files()
        self.check_with_kafka_python()

    def check_producers(self) -> None:
        for producer in (1, 2):
            sent = [e for e in self.history if e.producer == producer and e.commit is None]
            known = self.log.producer_state.producer(producer)
            ended = [e for e in self.history if e.producer == producer and e.commit is not None]
            is_over = bool(ended) and (not sent or ended[-1].offset > sent[-1].offset)
            if is_over and known is not None:
                assert known.current_txn_first_offset < 0, "what ended is open again"
            if sent and not (is_over and producer == BUMPING):
                assert known is not None
                assert known.last_sequence == sent[-1].sequence

    def check_files(self) -> None:
        for segment, following in pairwise(self.log.segments):
            assert segment.read_next_offset() == following.base_offset
        for segment in self.log.segments:
            segment.offset_index.sanity_check()
            segment.time_index.sanity_check()

    def check_with_kafka_python(self) -> None:
        data = b"".join(data for _, data in batches(self.log))
        theirs = []
        reader = MemoryRecords(data)
        while reader.has_next():
            batch = reader.next_batch()
            assert batch.validate_crc()
            if not batch.is_control_batch:
                theirs += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
        assert theirs == [tuple(row)[:4] for row in records(self.log)]


def _apply(known: Table, key: bytes, value: bytes | None) -> None:
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def run(history: list[tuple[str, object, object]], map_entries: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), map_entries)
        for action, first, second in history:
            arguments = [argument for argument in (first, second) if argument is not None]
            getattr(world, action)(*arguments)
        for _ in range(3):
            world.roll()
            world.replicate()
            world.clean()
            world.wait(RETENTION_MS)
        assert world.consumer == world.expected()
        for producer in (1, 2):
            world.end(False, producer)
        world.restart(False)
        world.replicate()
        world.clean()


@given(actions, st.sampled_from([1, 3, 1000]))
@settings(max_examples=60, deadline=None)
def test_readers_know_what_was_written_whatever_is_cleaned(
    history: list[tuple[str, object, object]], map_entries: int
) -> None:
    run(history, map_entries)
