"""Faults of thought, put into the product for the time of a run: the simulator must notice each.

Mutants are those of the reliability reference, 5.5, that concern replication and the quorum, one
for each bug that only the simulator found, and some of coordinators and follower reads. Each
replaces one rule by what one might have written instead, names the scenario that can tell, and says
how many seeds it may take. Nothing in the product knows of them.

    python -m tests.sim.mutants              all of them, with their whole budget
    python -m tests.sim.mutants "pending"    those whose name contains it
    python -m tests.sim.mutants "pending" 8  with eight seeds each
    python -m tests.sim.mutants "pending" --story  and how each came to be noticed (docs/stories.md)

Not here: "replies out of order" (no sockets in the simulator; tests/server has it). Three need an
order of events that chance hardly ever finds; `tests.sim.stories` tells those.

Of the rows L and N of the foundation's defects these have none, and why:

    L3, L4 (a checkpoint that fails)   a truncation that meets a full disk or a lack of descriptors
                                       and then an append before its second attempt: too rare by
                                       chance, and no story tells it yet
    L5, L7                             no transactions here; a live dict needs two threads at once
    N2, N3, N8                         sockets, memory and processor time: nothing here takes any
    N6 but for deletions               which thread does what is the node's own composition, and the
                                       simulator has another
    N7 (`Purgatory.shutdown`), N9      nobody waits for a process that ends; what only grows
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from replication.controller import cluster as controller_cluster
from replication.controller.controller import Controller
from replication.following.fetcher_manager import ReplicaFetcherManager
from replication.partition import isr as isr_rules
from replication.partition import log_reads
from replication.partition.isr import IsrState, IsrUpdate, ReplicaState
from replication.partition.leading import Leading
from replication.partition.partition import Partition
from replication.raft.driver import RaftDriver
from replication.raft.events import ElectionState
from replication.raft.leader_state import LeaderState, committed_offset
from replication.raft.log import RaftLog
from replication.replicas import replica_reads
from server.coordinator.held import HeldAnswers
from server.coordinator.shard import Shard
from storage import dir_checkpoints
from storage.checkpoint import HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
from storage.cleaning.offset_map import OffsetMap
from storage.dir_checkpoints import DirCheckpoints
from storage.log import follower_append, log_sync, partition_log
from storage.log.partition_log import PartitionLog
from storage.log.producer_state import ProducerStateManager
from storage.recovery import _Recovery
from tests.sim.cluster import Options
from tests.sim.consumer_mutants import CONSUMER_MUTANTS
from tests.sim.run import SCENARIOS, simulate
from tests.sim.share_mutants import SHARE_MUTANTS
from tests.sim.streams_mutants import STREAMS_MUTANTS
from tests.sim.transaction_mutants import TRANSACTION_MUTANTS
from tests.sim.world import InvariantBroken
from wire.errors import ErrorCode, KafkaError


def files_are_ours(driver: RaftDriver) -> bool:
    """Does the process of this driver still live."""
    transport: Any = driver._transport
    return transport.node.is_up and transport.node.raft is driver


Patch = Callable[[], AbstractContextManager[Any]]


class Mutant(NamedTuple):
    """What is broken, by which patch, where it shows, within how many seeds."""

    name: str
    patch: Patch
    scenario: str
    seeds: int
    overrides: dict[str, Any]


def _truncate_to_high_watermark() -> AbstractContextManager[Any]:
    real = Partition.make_follower

    def make_follower(self: Partition, registration: Any, log: Any) -> bool:
        is_new = real(self, registration, log)
        if is_new:
            log.truncate_to(log.high_watermark)
        return is_new

    return patch.object(Partition, "make_follower", make_follower)


def _ack_early() -> AbstractContextManager[Any]:
    return patch.object(Partition, "must_wait", lambda self, *given: False)


def _wait_for_what_was_before_a_run() -> AbstractContextManager[Any]:
    real = PartitionLog.append_run_as_leader

    def append_run_as_leader(self: PartitionLog, *given: Any) -> Any:
        infos = real(self, *given)
        for info in infos or ():
            info.last_offset = infos[0].first_offset - 1
        return infos

    return patch.object(PartitionLog, "append_run_as_leader", append_run_as_leader)


def _take_any_run() -> AbstractContextManager[Any]:
    return patch.object(ProducerStateManager, "takes_in_a_row", lambda self, *given: True)


def _ignore_current_leader_epoch() -> AbstractContextManager[Any]:
    real = Partition.read_records

    def read_records(self: Partition, fetch: Any, *rest: Any) -> Any:
        if fetch.log_start_offset >= 0:  # a follower's
            fetch = replace(fetch, current_leader_epoch=self.leader_epoch)
        return real(self, fetch, *rest)

    return patch.object(Partition, "read_records", read_records)


def _ignore_last_fetched_epoch() -> AbstractContextManager[Any]:
    return patch.object(log_reads, "diverges", lambda log, fetch, result: False)


def _join_at_high_watermark() -> AbstractContextManager[Any]:
    real = isr_rules.may_join_isr

    def may_join_isr(*given: Any) -> bool:
        return real(*given[:-1], 0)

    return patch.object(isr_rules, "may_join_isr", may_join_isr)


def _shrink_at_once() -> AbstractContextManager[Any]:
    def maximal_isr(self: IsrState) -> frozenset[int]:
        return self.proposed if self.update is IsrUpdate.SHRINK else self.isr | self.proposed

    return patch.object(IsrState, "maximal_isr", property(maximal_isr))


@contextmanager
def _keep_remote_ends() -> Iterator[None]:
    real_reset, real_states = ReplicaState.reset, Leading._first_states

    def reset(self: ReplicaState, *given: Any, **named: Any) -> None:
        end_offset, broker_epoch = self.log_end_offset, self.broker_epoch
        real_reset(self, *given, **named)
        self.log_end_offset, self.broker_epoch = end_offset, broker_epoch

    def first_states(self: Leading, *given: Any) -> Any:
        registration, before, *rest = given
        return real_states(self, registration, before or self.led_before, *rest)

    real_begin = Partition._begin_leader_epoch

    def begin(self: Partition, *given: Any) -> None:
        with patch.object(Leading, "led_before", getattr(self, "led_before", None), create=True):
            real_begin(self, *given)
        self.led_before = self.role  # type: ignore[attr-defined]

    with (
        patch.object(ReplicaState, "reset", reset),
        patch.object(Leading, "_first_states", first_states),
        patch.object(Partition, "_begin_leader_epoch", begin),
    ):
        yield


def _trust_across_skipped_epochs() -> AbstractContextManager[Any]:
    real = Leading._first_states

    def first_states(self: Leading, registration: Any, before: Any, *rest: Any) -> Any:
        if before is not None:
            before.leader_epoch = registration.leader_epoch - 1
        return real(self, registration, before, *rest)

    return patch.object(Leading, "_first_states", first_states)


def _count_a_fetch_in_any_epoch() -> AbstractContextManager[Any]:
    real = Partition.update_follower_fetch_state

    def update(self: Partition, replica_id: int, epoch: int, fetch: Any, *seen: int) -> bool:
        return real(self, replica_id, epoch, fetch, self.leader_epoch, seen[-1])

    return patch.object(Partition, "update_follower_fetch_state", update)


def _any_broker_epoch() -> AbstractContextManager[Any]:
    real = Partition.update_follower_fetch_state

    def update(self: Partition, replica_id: int, replica_epoch: int, *rest: Any) -> bool:
        return real(self, replica_id, -1, *rest)

    return patch.object(Partition, "update_follower_fetch_state", update)


def _unclean_stays() -> AbstractContextManager[Any]:
    return patch.object(controller_cluster, "_new_incarnation", lambda *given: [])


def _forget_votes() -> AbstractContextManager[Any]:
    real = RaftLog.write_election_state

    def write(self: RaftLog, state: ElectionState, voters: Any) -> None:
        if state.voted_id < 0:
            real(self, state, voters)

    return patch.object(RaftLog, "write_election_state", write)


def _commit_by_count() -> AbstractContextManager[Any]:
    def committed(self: LeaderState) -> int:
        self.epoch_start_offset = -1
        return committed_offset([progress.end_offset for progress in self.replicas.values()])

    return patch.object(LeaderState, "committed", committed)


def _count_before_sync() -> AbstractContextManager[Any]:
    real = RaftDriver._write_pending

    def write_pending(self: RaftDriver) -> Any:
        clock: Any = self._clock
        self.log.flush = lambda: clock.world.after(60, _sync_later(self))  # type: ignore[method-assign]
        try:
            return real(self)
        finally:
            del self.log.flush

    def _sync_later(driver: RaftDriver) -> Callable[[], None]:
        def sync() -> None:
            if not driver.log._log.is_closed and files_are_ours(driver):
                driver.log.flush()

        return sync

    return patch.object(RaftDriver, "_write_pending", write_pending)


def _no_sync() -> AbstractContextManager[Any]:
    return patch.object(log_sync, "_sync", lambda *given: None)


def _sync_again() -> AbstractContextManager[Any]:
    real = log_sync._sync

    def sync(*given: Any) -> None:
        try:
            real(*given)
        except OSError:
            real(*given)

    return patch.object(log_sync, "_sync", sync)


def _forget_producers() -> AbstractContextManager[Any]:
    return patch.object(follower_append, "note_batch", lambda *given: None)


def _serve_while_loading() -> AbstractContextManager[Any]:
    real = Shard._load

    def load(self: Any) -> None:
        real(self)
        if self._machine is None:
            self._machine = self._new_machine(self._moment)
            self._held.required_offset = self._held.committed_offset = 0

    return patch.object(Shard, "_load", load)


def _answer_uncommitted() -> AbstractContextManager[Any]:
    real = HeldAnswers.hold

    def hold(self: Any, answers: list[Any], effects: list[Any], now_ms: int) -> Any:
        self.deliveries += answers
        return real(self, [], effects, now_ms)

    return patch.object(HeldAnswers, "hold", hold)


def _reset_on_any_fault() -> AbstractContextManager[Any]:
    real = Shard._refuse

    def refuse(self: Any, on_complete: Any, error: KafkaError) -> bool:
        if error.code == ErrorCode.UNKNOWN_SERVER_ERROR:
            self._close(error)
            self._log.watch(self.high_watermark_moved)
            self._load()
        return real(self, on_complete, error)

    return patch.object(Shard, "_refuse", refuse)


def _followers_serve_to_their_end() -> AbstractContextManager[Any]:
    real = Partition.read_records

    def read_records(
        self: Any, fetch: Any, size: int, one: bool, isolation: Any, leader_only: bool = True
    ) -> Any:
        is_follower = self.leader_log is None and not leader_only
        return real(self, fetch, size, one, None if is_follower else isolation, leader_only)

    return patch.object(Partition, "read_records", read_records)


def _ask_the_isr_before_the_log() -> AbstractContextManager[Any]:
    return patch.object(PartitionLog, "find_duplicate", lambda *_: None)


def _answer_for_the_unknown() -> AbstractContextManager[Any]:
    return patch.object(replica_reads, "_UNKNOWN", frozenset())


def _end_a_fetcher_in_use() -> AbstractContextManager[Any]:
    """As when another thread had found it idle just before the partition came to it."""
    real = ReplicaFetcherManager._look_at

    def look_at(self: ReplicaFetcherManager, partition: Any) -> None:
        real(self, partition)
        slots = [slot for slot, _ in self._fetched_by.values()]
        slot, _ = self._fetched_by.get(partition.topic_partition, (None, None))
        if slot is not None and slots.count(slot) == 1:
            self._running[slot].runner.shutdown()

    return patch.object(ReplicaFetcherManager, "_look_at", look_at)


def _outlives_its_log(kind: str) -> AbstractContextManager[Any]:
    """One of the lines that a directory has of a log is not forgotten with it."""
    real = DirCheckpoints.forget

    def forget(self: DirCheckpoints, key: Any) -> None:
        noted = self.get(kind, key)
        real(self, key)
        if noted is not None:
            self._offsets[kind] = {**self._offsets[kind], key: noted}

    return patch.object(DirCheckpoints, "forget", forget)


def _note_what_was_before_a_cut() -> AbstractContextManager[Any]:
    return patch.object(dir_checkpoints, "_is_as_it_was", lambda *given: True)


def _flush_what_recovery_dropped() -> AbstractContextManager[Any]:
    real = _Recovery._drop

    def drop(self: Any, segments: Any, reason: str) -> None:
        segments = list(segments)
        real(self, segments, reason)
        for segment in segments:
            segment.is_deleted = False
        self._rebuilt += segments

    return patch.object(_Recovery, "_drop", drop)


def _flush_what_is_deleted() -> AbstractContextManager[Any]:
    real = PartitionLog.close

    def close(self: PartitionLog, *given: Any, **named: Any) -> None:
        self.flush()
        real(self, *given, **named)

    return patch.object(PartitionLog, "close", close)


def _clean_the_newest() -> AbstractContextManager[Any]:
    real = OffsetMap.put

    def put(self: OffsetMap, key: bytes, offset: int) -> None:
        real(self, key, offset + 1)

    return patch.object(OffsetMap, "put", put)


def _keep_what_is_superseded() -> AbstractContextManager[Any]:
    return patch.object(OffsetMap, "get", lambda self, key: -1)


def _refuse_the_batch_around_the_start() -> AbstractContextManager[Any]:
    return patch.object(partition_log, "start_of_batch_around", lambda records, offset: offset)


def _controller_dies_in_silence() -> AbstractContextManager[Any]:
    """As when its thread met what nobody expected, and its node went on leading the quorum."""
    real = Controller.turn

    def turn(self: Controller) -> bool:
        clock: Any = self._clock
        return real(self) if clock.world.ms < 3_000 or not self.is_active else False

    return patch.object(Controller, "turn", turn)


_HASTY = {
    "config": {
        "controller.quorum.election.timeout.ms": "120",
        "controller.quorum.election.backoff.max.ms": "100",
        "controller.quorum.fetch.timeout.ms": "300",
        "controller.quorum.request.timeout.ms": "250",
    },
    "voters": 3,
    "brokers": 3,
}

_NOTING = {"config": {"log.flush.offset.checkpoint.interval.ms": "150"}}

MUTANTS = (
    Mutant("truncate follower to HW", _truncate_to_high_watermark, "crashes", 40, {}),
    Mutant("ack before HW covers the batch", _ack_early, "crashes", 5, {}),
    Mutant("a run is acknowledged with what was before it", _wait_for_what_was_before_a_run,
           "crashes", 20, {}),
    Mutant("a run is taken whatever its sequences are", _take_any_run, "crashes", 20, {}),
    Mutant("refuse a retry because the ISR is too small", _ask_the_isr_before_the_log, "network",
           20, {}),
    Mutant("ignore the current leader epoch in Fetch", _ignore_current_leader_epoch, "stories", 20,
           {"story": "late_fetch"}),
    Mutant("ignore the last fetched epoch in Fetch", _ignore_last_fetched_epoch, "crashes", 40, {}),
    Mutant("expand the ISR without the epoch start", _join_at_high_watermark, "stories", 20,
           {"story": "lagging_heir"}),
    Mutant("a pending shrink counts as done", _shrink_at_once, "network", 60, {}),
    Mutant("keep remote LEOs across leaderships", _keep_remote_ends, "stories", 20,
           {"story": "late_fetch"}),
    Mutant("trust offsets from before a skipped epoch", _trust_across_skipped_epochs, "stories", 20,
           {"story": "late_fetch"}),
    Mutant("a fetch counts in another epoch than it was read in", _count_a_fetch_in_any_epoch,
           "stories", 20, {"story": "stuck_fetch"}),
    Mutant("skip the broker epoch on ISR join", _any_broker_epoch, "stories", 20,
           {"story": "amnesia"}),
    Mutant("an unclean restart stays in the ISR", _unclean_stays, "power", 40, {}),
    Mutant("vote not persisted", _forget_votes, "crashes", 400,
           {**_HASTY, "crash_every_ms": 250, "down_ms": 150, "slow": 0.3, "slow_ms": 150}),
    Mutant("commit records of earlier epochs by count", _commit_by_count, "crashes", 200,
           {**_HASTY, "crash_every_ms": 250, "down_ms": 150, "slow": 0.3, "slow_ms": 150}),
    Mutant("leader counts itself before fsync", _count_before_sync, "synced", 100,
           {"power_every_ms": 400, "down_ms": 300}),
    Mutant("recovery point moved before fsync", _no_sync, "synced", 20, {}),
    Mutant("retry fsync after EIO", _sync_again, "failed syncs", 60, {"sync_fails_every_ms": 800}),
    Mutant("producer state lost on failover", _forget_producers, "crashes", 40, {}),
    Mutant("coordinator serves while loading", _serve_while_loading, "crashes", 60, {}),
    Mutant("coordinator answers before its records are committed", _answer_uncommitted, "network",
           60, {}),
    Mutant("a coordinator's shard resets on any fault", _reset_on_any_fault, "hostile",
           20, {}),
    Mutant("a controller dies and its node goes on leading", _controller_dies_in_silence, "crashes",
           5, {}),
    Mutant("a follower serves consumers to its log's end", _followers_serve_to_their_end, "network",
           60, {}),
    Mutant("a log's start outlives it", partial(_outlives_its_log, LOG_START_OFFSET_CHECKPOINT),
           "deletions", 20, {}),
    Mutant("a high watermark outlives its log",
           partial(_outlives_its_log, HIGH_WATERMARK_CHECKPOINT), "deletions", 20, {}),
    Mutant("what was before a truncation is noted after it", _note_what_was_before_a_cut, "synced",
           40, {"stalled_note": 0.8, "cut_every_ms": 1_500, **_NOTING}),
    Mutant("recovery wants segments synced that it deleted", _flush_what_recovery_dropped, "torn",
           40, {"segment_bytes": 700, "config": {"log.flush.interval.messages": "3"}}),
    Mutant("a deleted log is flushed first", _flush_what_is_deleted, "topics", 5, {}),
    Mutant("the cleaner takes the newest of a key", _clean_the_newest, "compaction", 5, {}),
    Mutant("the cleaner keeps what is superseded", _keep_what_is_superseded, "compaction", 5, {}),
    Mutant("followers refuse a batch around the leader's start", _refuse_the_batch_around_the_start,
           "deletions", 20, {}),
    Mutant("a deleted topic answers a fetch of quiet ones", _answer_for_the_unknown, "topics", 5,
           {}),
    Mutant("a partition comes to a fetcher that ends", _end_a_fetcher_in_use, "rolling", 5, {}),
    *(
        Mutant(name, broken, "transactions", 20, overrides)
        for name, (broken, overrides) in TRANSACTION_MUTANTS.items()
    ),
    *(
        Mutant(name, broken, "consumer groups", 40, overrides)
        for name, (broken, overrides) in CONSUMER_MUTANTS.items()
    ),
    *(
        Mutant(name, broken, "share groups", 40, overrides)
        for name, (broken, overrides) in SHARE_MUTANTS.items()
    ),
    *(
        Mutant(name, broken, "streams groups", 40, {})
        for name, broken in STREAMS_MUTANTS.items()
    ),
)  # fmt: skip


class Caught(NamedTuple):
    seed: int
    by: str
    story: str


def hunt(mutant: Mutant, seeds: int | None = None, *, tells_logs: bool = False) -> Caught | None:
    """The first seed that notices, by which invariant, and the end of its story; None within the
    budget."""
    with mutant.patch():
        for seed in range(seeds or mutant.seeds):
            options = Options(**{**SCENARIOS[mutant.scenario], **mutant.overrides})
            try:
                simulate(seed, options, tells_logs=tells_logs)
            except InvariantBroken as error:
                by, _, story = str(error).partition("\n")
                return Caught(seed, by, story.rpartition("\n")[0])
    return None


def main() -> int:
    tells = "--story" in sys.argv
    words = [word for word in sys.argv[1:] if word != "--story"]
    wanted = words[0] if words else ""
    seeds = int(words[1]) if len(words) > 1 else None
    escaped = 0
    for mutant in MUTANTS:
        if wanted in mutant.name:
            caught = hunt(mutant, seeds, tells_logs=tells)
            escaped += caught is None
            verdict = f"ESCAPED {seeds or mutant.seeds} seeds"
            if caught is not None:
                verdict = f"caught by seed {caught.seed}: {caught.by[:150]}"
            print(f"{mutant.name}: {verdict}", flush=True)
            if tells and caught is not None:
                print(caught.story, flush=True)
    return int(escaped > 0)


if __name__ == "__main__":
    from tests.sim.seeds import with_fixed_hashing

    with_fixed_hashing("tests.sim.mutants")
    sys.exit(main())
