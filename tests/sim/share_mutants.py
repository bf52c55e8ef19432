"""Faults of thought about share groups; `tests.sim.mutants` names them.

Each is one rule of the group reference replaced by what one might have written instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from replication.partition.requests import UNKNOWN_EPOCH
from server.coordinator.share import shard as share_shard
from server.coordinator.share.records import Snapshot, Update
from server.coordinator.share.shard import ShareShard
from server.share import share_partition
from server.share.in_flight import ACQUIRED, InFlight, Run
from server.share.leading import ShareLeader
from server.share.share_partition import Limits, SharePartition, StateChange
from server.share.state_batches import UNINITIALIZED, StateBatch
from wire.errors import ErrorCode, KafkaError

Broken = AbstractContextManager[Any]


def told_before_it_is_persisted() -> Broken:
    """An acknowledgement is answered when it is decided."""
    real = ShareLeader._change

    def change(self: ShareLeader, decide: Any, on_complete: Any) -> None:
        is_told = False

        def decided(partition: SharePartition) -> Any:
            nonlocal is_told
            found = decide(partition)
            is_told = found is not None
            return found

        real(self, decided, lambda code: None if is_told else on_complete(code))
        if is_told:
            on_complete(ErrorCode.NONE)

    return patch.object(ShareLeader, "_change", change)


def lost_writes_are_told_as_done() -> Broken:
    """What could not be persisted counts all the same."""
    real = ShareLeader._written

    def written(self: ShareLeader, waiting: Any, _code: ErrorCode) -> None:
        real(self, waiting, ErrorCode.NONE)

    return patch.object(ShareLeader, "_written", written)


def deposed_leaders_write_on() -> Broken:
    """A read with a newer leader epoch fences nobody."""
    real = ShareShard._initialized

    def initialized(self: ShareShard, key: Any, _leader_epoch: int) -> Any:
        return real(self, key, UNKNOWN_EPOCH)

    return patch.object(ShareShard, "_initialized", initialized)


def state_begins_again() -> Broken:
    """A group that asks again that state begins has it forgotten."""
    real = ShareShard.initialize

    def initialize(self: ShareShard, key: Any, state_epoch: int, start_offset: int) -> Any:
        known = self._known.pop(key, None)
        try:
            return real(self, key, state_epoch, start_offset)
        finally:
            if known is not None:
                self._known[key] = known

    return patch.object(ShareShard, "initialize", initialize)


def the_newest_write_is_the_state() -> Broken:
    """A snapshot has what the last update told, and not what was told before."""
    real = share_shard._merged

    def merged(state: Snapshot, update: Update) -> Snapshot:
        return real(state._replace(batches=()), update)

    return patch.object(share_shard, "_merged", merged)


def late_writes_take_the_start_back() -> Broken:
    """Whatever a leader tells last is where its share partition begins."""
    real = ShareShard.write

    def write(self: ShareShard, key: Any, *given: Any) -> Any:
        known = self._known.get(key)
        if known is not None:
            forgetful = known.state._replace(start_offset=UNINITIALIZED)
            self._known[key] = known._replace(state=forgetful)
        try:
            return real(self, key, *given)
        finally:
            if known is not None:
                self._known[key] = known

    return patch.object(ShareShard, "write", write)


def locks_never_run_out() -> Broken:
    """What a member that is gone had stays its own."""
    return patch.object(ShareLeader, "_set_alarm", lambda self: None)


def holes_are_passed_over() -> Broken:
    """A new leader thinks that between the records that it is told of is none."""
    real = InFlight.load

    def load(self: InFlight, runs: Any) -> None:
        real(self, runs)
        self.gap_start = None
        self.advance()

    return patch.object(InFlight, "load", load)


def deliveries_are_not_kept() -> Broken:
    """A record that is given back has its count persisted as it was before."""

    def batch(first: int, last: int, state: int, count: int) -> StateBatch:
        return StateBatch(first, last, state, max(count - 1, 0))

    return patch.object(share_partition, "StateBatch", batch)


def no_limit_of_deliveries() -> Broken:
    """A record that nobody can process comes back for ever."""
    real = SharePartition._begin

    def begin(self: SharePartition, run: Run, state: Any, limits: Any) -> None:
        real(self, run, state, limits._replace(delivery_count_limit=1 << 30))

    return patch.object(SharePartition, "_begin", begin)


def anybody_acknowledges() -> Broken:
    """Who kept a record too long speaks for who has it now."""

    def check(run: Run, _member_id: str) -> None:
        if run.state is not ACQUIRED:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)

    return patch.object(share_partition, "_check_owner", check)


def refusals_come_halfway() -> Broken:
    """What a request says before its mistake is taken, and nobody persists it."""
    real = SharePartition.acknowledge

    def acknowledge(
        self: SharePartition, member_id: str, acks: Any, limits: Limits, now_ms: int
    ) -> StateChange | None:
        changes = [real(self, member_id, [ack], limits, now_ms) for ack in acks]
        made = [change for change in changes if change is not None]
        if not made:
            return None
        return made[-1]._replace(
            batches=[batch for change in made for batch in change.batches],
            pending=[run for change in made for run in change.pending],
        )

    return patch.object(SharePartition, "acknowledge", acknowledge)


def renewals_change_nothing() -> Broken:
    """A lock that was renewed runs out when it did before."""
    return patch.object(SharePartition, "_renew", lambda *given: None)


_PAUSES = {"share_members": 8, "pause_every_ms": 900, "crash_every_ms": 6_000, "cut_every_ms": 0}
"""Leaders stand still until others lead, and then go on."""
_MORE_PAUSES = {**_PAUSES, "pause_every_ms": 600, "crash_every_ms": 20_000}

SHARE_MUTANTS: dict[str, tuple[Callable[[], Broken], dict[str, Any]]] = {
    "an acknowledgement is told before it is persisted": (told_before_it_is_persisted, {}),
    "what was not persisted is told as done": (lost_writes_are_told_as_done, _PAUSES),
    "a deposed leader of share partitions writes on": (deposed_leaders_write_on, _MORE_PAUSES),
    "the state of a share partition begins again": (state_begins_again, {}),
    "the newest write is a share partition's state": (the_newest_write_is_the_state, {}),
    "a late write takes a share partition's start back": (late_writes_take_the_start_back, _PAUSES),
    "locks of records never run out": (locks_never_run_out, {}),
    "a new leader passes over holes": (holes_are_passed_over, {}),
    "deliveries are not counted across leaders": (deliveries_are_not_kept, {}),
    "a record is delivered without limit": (no_limit_of_deliveries, {}),
    "anybody acknowledges a record": (anybody_acknowledges, {}),
    "a refused request has taken half of what it said": (refusals_come_halfway, _MORE_PAUSES),
    "a renewal changes nothing": (renewals_change_nothing, {}),
}
