"""Everything one partition of `__share_group_state` knows: the state of share partitions (PURE).

This is the state machine the runtime drives (`machine.Machine`). Who leads a partition writes what
became of its records, and reads it when it begins to lead; the group's coordinator initializes and
deletes, and reads the summaries that lag is told from.

A leader that was deposed is fenced by its leader epoch: whoever reads with a newer one has it
written, and older ones write no more. State that was initialized again (offsets were reset) is
fenced by its state epoch. An epoch of -1 asks for no such check.

Of one leader the last write counts, even one that takes the start offset back: a write that failed
as far as the leader knows may be kept here, and who goes on from there has records in hand that a
later start would lose. So a write that comes late may have records delivered again.

    write        update; the whole state as a snapshot after so many updates
    read         an update that holds the newer leader epoch, else nothing
    initialize   snapshot; nothing if it is there, and no offset is told
    delete       tombstone; nothing if there is no such state

Nobody compacts this log: what was before the oldest snapshot that counts is deleted from time to
time, and what is not written for long is written whole, so that the oldest is never very old.

Kafka: ShareCoordinatorShard, ShareCoordinatorOffsetsManager (4.3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from replication.partition.requests import UNKNOWN_EPOCH
from server.coordinator.deadlines import Deadlines, Moment
from server.coordinator.machine import Answer, Decision, Effect, Machine
from server.coordinator.share.config import ShareCoordinatorConfig
from server.coordinator.share.records import ShareRecord, Snapshot, Update
from server.coordinator.sweeps import SWEEP_STEP_MS, one_step
from server.share.state_batches import UNINITIALIZED, ShareKey, StateBatch, combine
from wire.errors import ErrorCode, KafkaError

ShareDecision: TypeAlias = Decision[ShareRecord]

_COLD, _PRUNE, _DELETED = "cold", "prune", "topics deleted"
_NO_LEADER_YET, _NO_GROUP_EPOCH = 0, 0
"""Epochs of state that nobody has told one for (ShareGroupOffset.UNINITIALIZED_EPOCH): the first
leader of a topic, which has 0, has nothing to be written."""
_FIELDS, _STATE_BATCH = 100, 24
"""Bytes of a snapshot without its batches, and of one of them, about."""


class Summary(NamedTuple):
    """Where a share partition is, without its records."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNINITIALIZED
    complete_count: int = UNINITIALIZED


class _Known(NamedTuple):
    """One share partition: what it came to, and what fences others."""

    state: Snapshot
    state_epoch: int
    leader_epoch: int
    """The highest ever told, which outlive being initialized again."""
    update_count: int = 0
    """Since the last snapshot."""


class ShareShard(Machine[ShareRecord]):
    """The share partitions of one partition. Owner: its runtime shard, one call at a time.

    `partition` and `leader_epoch` are what it is made for; `moment` is set before each call.
    """

    def __init__(
        self,
        config: ShareCoordinatorConfig,
        partition_exists: Callable[[bytes, int], bool],
        prune: Callable[[int, int], None],
        partition: int,
        _leader_epoch: int,
        moment: Moment,
    ) -> None:
        """`partition_exists` says whether there is such a topic id and partition; `prune` deletes
        what is before an offset in this one."""
        self._config = config
        self._prune_log = partial(prune, partition)
        self._base_offset = 0
        self._needed_from: dict[ShareKey, int] = {}
        """Where the batch of each share partition's snapshot is in the log."""
        self._pruned_to = 0
        self._partition_exists = partition_exists
        self._known: dict[ShareKey, _Known] = {}
        self.moment = moment
        self.deadlines = Deadlines()
        self.outbox: list[Answer] = []
        self.effects: list[Effect] = []

    # -- requests ----------------------------------------------------------------------------

    def write(
        self,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        complete_count: int,
        batches: Collection[StateBatch],
    ) -> ShareDecision:
        """Keep what became of records. KafkaErrors: those of `_initialized`.

        Leaders move the start over what was persisted before, and so only on. Who tells of one
        before ours is a copy of a request that came late, on a connection its sender had given up:
        were its start taken, what is done with between the two would be forgotten, and handed out
        again by who leads next. (Kafka takes it.)
        """
        known = self._initialized(key, leader_epoch)
        _check_state_epoch(known, state_epoch)
        self._check_exists(key)
        if UNINITIALIZED < start_offset < known.state.start_offset:
            start_offset, complete_count = known.state.start_offset, known.state.complete_count
        update = Update(
            known.state.snapshot_epoch,
            known.state.leader_epoch,
            start_offset,
            tuple(combine(batches, start_offset)),
            complete_count,
        )
        return Decision([self._record_of(key, known, update)], ErrorCode.NONE)

    def read(self, key: ShareKey, leader_epoch: int) -> ShareDecision:
        """The state, for a leader that begins; older ones are fenced from here on. KafkaErrors:
        those of `_initialized`."""
        known = self._initialized(key, leader_epoch)
        self._check_exists(key)
        state = known.state
        if leader_epoch in (UNKNOWN_EPOCH, known.leader_epoch):
            return Decision((), state)
        update = Update(
            state.snapshot_epoch, leader_epoch, state.start_offset, (), state.complete_count
        )
        return Decision([self._record_of(key, known, update)], state)

    def summary(self, key: ShareKey) -> Summary:
        """Where it is, of state that was never initialized too. KafkaErrors: INVALID_REQUEST,
        UNKNOWN_TOPIC_OR_PARTITION."""
        _check(key)
        self._check_exists(key)
        known = self._known.get(key)
        if known is None:
            return Summary()
        state = known.state
        return Summary(
            state.state_epoch, state.leader_epoch, state.start_offset, state.complete_count
        )

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> ShareDecision:
        """Begin at this offset, and forget what was known; or wherever the leader finds, unless it
        has begun. A group asks for that again until it is told, and the question that comes last
        may come when records were accepted. KafkaErrors: INVALID_REQUEST,
        FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION."""
        _check(key)
        known = self._known.get(key)
        if known is not None:
            _check_state_epoch(known, state_epoch)
        self._check_exists(key)
        if known is not None and start_offset == UNINITIALIZED:
            return Decision((), ErrorCode.NONE)
        now_ms = self.moment.wall_ms
        state = Snapshot(
            snapshot_epoch=0 if known is None else known.state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=_NO_LEADER_YET,
            start_offset=start_offset,
            create_ms=now_ms,
            write_ms=now_ms,
            batches=(),
            complete_count=UNINITIALIZED if start_offset == UNINITIALIZED else 0,
        )
        return Decision([ShareRecord(key, state)], ErrorCode.NONE)

    def delete(self, key: ShareKey) -> ShareDecision:
        """Forget it. KafkaErrors: INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION."""
        _check(key)
        self._check_exists(key)
        records = [ShareRecord(key, None)] if key in self._known else []
        return Decision(records, ErrorCode.NONE)

    def topics_deleted(self, topic_ids: Collection[bytes]) -> ShareDecision:
        """Forget all that is about these topics; a long list goes in several steps."""
        gone = frozenset(topic_ids)
        tombstones = (ShareRecord(key, None) for key in self._known if key.topic_id in gone)
        records, is_whole = one_step(tombstones, _characters)
        if is_whole:
            return Decision(records)
        return Decision(records, change=lambda: self._forget_later(gone))

    def _forget_later(self, topic_ids: frozenset[bytes]) -> None:
        again = partial(self.topics_deleted, topic_ids)
        self.deadlines.set((_DELETED, topic_ids), self.moment.now_ms + SWEEP_STEP_MS, again)

    # -- what requests share -----------------------------------------------------------------

    def _initialized(self, key: ShareKey, leader_epoch: int) -> _Known:
        """KafkaErrors: INVALID_REQUEST for what was never initialized, FENCED_LEADER_EPOCH, and
        where it was deleted since UNKNOWN_TOPIC_OR_PARTITION."""
        _check(key)
        known = self._known.get(key)
        if known is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the share partition is not initialized")
        if leader_epoch != UNKNOWN_EPOCH and leader_epoch < known.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        return known

    def _check_exists(self, key: ShareKey) -> None:
        if not self._partition_exists(key.topic_id, key.partition):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _record_of(self, key: ShareKey, known: _Known, update: Update) -> ShareRecord:
        """The update itself, or when there were many, what it makes of the state."""
        limit = self._config.share_coordinator_snapshot_update_records_per_snapshot
        if known.update_count < limit:
            return ShareRecord(key, update)
        now_ms = self.moment.wall_ms
        merged = _merged(known.state, update)
        return ShareRecord(
            key,
            merged._replace(
                snapshot_epoch=merged.snapshot_epoch + 1, create_ms=now_ms, write_ms=now_ms
            ),
        )

    # -- the log -----------------------------------------------------------------------------

    needs_offsets: bool = True

    def begin_batch(self, base_offset: int, /) -> None:
        """See Machine."""
        self._base_offset = base_offset

    def replay(self, record: ShareRecord) -> None:
        """Make a record true."""
        key, value = record
        known = self._known.get(key)
        if isinstance(value, Snapshot) or known is None:
            self._needed_from[key] = self._base_offset
        if value is None:
            self._known.pop(key, None)
            del self._needed_from[key]
        elif isinstance(value, Snapshot):
            self._known[key] = _known(known, value)
        elif known is None:  # its snapshot is gone from the log: as far as is told
            self._known[key] = _known(None, _from(value), 1)
        else:
            merged = _merged(known.state, value)
            self._known[key] = _known(known, merged, known.update_count + 1)

    def on_loaded(self) -> None:
        """Begin to look for what has grown cold, and for what nobody needs."""
        self._prune_later()
        self._look_again(self._config.share_coordinator_cold_partition_snapshot_interval_ms)

    def on_unloaded(self, _error: KafkaError, /) -> None:
        """Nobody waits here."""

    # -- what has grown cold -----------------------------------------------------------------

    def _look_again(self, delay_ms: int) -> None:
        self.deadlines.set(_COLD, self.moment.now_ms + delay_ms, self._snapshot_cold)

    def _snapshot_cold(self) -> ShareDecision:
        """Write what has no fresh snapshot once more, so that older records of the log, which hold
        others back, can be deleted. Where everything was written so and nothing since: nothing."""
        interval_ms = self._config.share_coordinator_cold_partition_snapshot_interval_ms
        records, is_whole = one_step(self._cold(interval_ms), _characters)
        delay_ms = interval_ms if is_whole else SWEEP_STEP_MS
        return Decision(records, change=lambda: self._look_again(delay_ms))

    def _cold(self, interval_ms: int) -> Iterator[ShareRecord]:
        """What is of a deleted topic is forgotten instead: whoever led here when it was deleted
        heard of it once (`topics_deleted`), and may have been loading, or not able to write."""
        now_ms = self.moment.wall_ms
        states = [(key, known.state) for key, known in self._known.items()]
        is_needed = any(state.create_ms == state.write_ms for _, state in states)
        for key, state in states:
            if now_ms - state.write_ms < interval_ms:
                continue
            if not self._partition_exists(key.topic_id, key.partition):
                yield ShareRecord(key, None)
            elif is_needed:
                epoch = state.snapshot_epoch + 1
                yield ShareRecord(key, state._replace(snapshot_epoch=epoch, write_ms=now_ms))

    # -- what nobody needs -------------------------------------------------------------------

    def _prune_later(self) -> None:
        interval_ms = self._config.share_coordinator_state_topic_prune_interval_ms
        self.deadlines.set(_PRUNE, self.moment.now_ms + interval_ms, self._prune)

    def _prune(self) -> ShareDecision:
        """Delete what is before the oldest snapshot that counts, once that is committed."""
        return Decision(change=self._pruned)

    def _pruned(self) -> None:
        self._prune_later()
        offset = min(self._needed_from.values(), default=self._base_offset)
        if offset > self._pruned_to:
            self._pruned_to = offset
            self.effects.append(partial(self._prune_log, offset))


def _characters(record: ShareRecord) -> int:
    """How long it is in the log, about."""
    batches = 0 if record.value is None else len(record.value.batches)
    return len(record.key.group_id) + _FIELDS + _STATE_BATCH * batches


def _check(key: ShareKey) -> None:
    if not any(key.topic_id) or key.partition < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no such topic id or partition")


def _check_state_epoch(known: _Known, state_epoch: int) -> None:
    if state_epoch != UNKNOWN_EPOCH and state_epoch < known.state_epoch:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)


def _known(before: _Known | None, state: Snapshot, update_count: int = 0) -> _Known:
    state_epoch, leader_epoch = state.state_epoch, state.leader_epoch
    if before is not None:
        state_epoch = max(state_epoch, before.state_epoch)
        leader_epoch = max(leader_epoch, before.leader_epoch)
    return _Known(state, state_epoch, leader_epoch, update_count)


def _merged(state: Snapshot, update: Update) -> Snapshot:
    start_offset = update.start_offset
    if start_offset == UNINITIALIZED:
        start_offset = state.start_offset
    leader_epoch = update.leader_epoch
    return state._replace(
        leader_epoch=state.leader_epoch if leader_epoch == UNKNOWN_EPOCH else leader_epoch,
        start_offset=start_offset,
        batches=tuple(combine((*state.batches, *update.batches), start_offset)),
        complete_count=update.complete_count,
    )


def _from(update: Update) -> Snapshot:
    snapshot_epoch, leader_epoch, start_offset, batches, complete_count = update
    return Snapshot(
        snapshot_epoch, _NO_GROUP_EPOCH, leader_epoch, start_offset, 0, 0, batches, complete_count
    )
