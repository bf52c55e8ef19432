"""Which replicas are in sync, and how far the partition is committed (PURE).

The rules of KIP-497 (AlterPartition), KIP-966 (ELR) and Kafka's Partition.scala and Replica.scala
as functions of plain values: no clock, no lock, no log. `replication.partition.partition` holds the
state, calls these under its lock, and does what they say.

Words:
    committed ISR   what the controller wrote in the last partition record
    maximal ISR     committed ISR plus a replica whose joining was asked for and not yet confirmed;
                    replicas whose removal was asked for stay in it until that is confirmed (H-3)
    caught up       has the leader's log end offset, or had it within replica.lag.time.max.ms (H-4)
    eligible        may join the ISR: not fenced, not in controlled shutdown, and its Fetch carries
                    the broker epoch it registered with (KIP-903)

Transitions of `IsrState` (one AlterPartition in flight, H-7):

    committed      --expand(replica)--> pending expand  --commit(isr)--> committed
    committed      --shrink(replicas)--> pending shrink --commit(isr)--> committed
    pending ...    --roll_back()--> committed            (controller: not attempted, or ineligible)

All times are monotonic milliseconds. "Never" is `NEVER_MS`, not 0: a monotonic clock may be near 0
when a machine has just booted, and a replica that never fetched must not look caught up then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)


class IsrUpdate(Enum):
    """What was asked of the controller and not yet answered."""

    NONE = "committed"
    EXPAND = "pending expand"
    SHRINK = "pending shrink"


@dataclass(frozen=True, slots=True)
class IsrState:
    """The committed ISR and at most one change in flight."""

    isr: frozenset[int]
    update: IsrUpdate = IsrUpdate.NONE
    proposed: frozenset[int] = frozenset()
    """The ISR that was asked for; empty when nothing is in flight."""

    @property
    def is_inflight(self) -> bool:
        return self.update is not IsrUpdate.NONE

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that counts as in sync for anybody: acknowledged data is on all of them."""
        return self.isr | self.proposed

    def expand(self, replica_id: int) -> IsrState:
        """Ask for `replica_id` to join; it counts in the maximal ISR at once."""
        assert not self.is_inflight
        assert replica_id not in self.isr
        return IsrState(self.isr, IsrUpdate.EXPAND, self.isr | {replica_id})

    def shrink(self, replica_ids: Iterable[int]) -> IsrState:
        """Ask for `replica_ids` to leave; they count until the controller confirms."""
        assert not self.is_inflight
        return IsrState(self.isr, IsrUpdate.SHRINK, self.isr.difference(replica_ids))

    def commit(self, isr: Collection[int]) -> IsrState:
        """The controller's word, whatever was asked."""
        return IsrState(frozenset(isr))

    def roll_back(self) -> IsrState:
        """The controller did not do it (OPERATION_NOT_ATTEMPTED, INELIGIBLE_REPLICA)."""
        return IsrState(self.isr)


@dataclass(slots=True)
class ReplicaState:
    """What a leader knows about one follower from its fetches.

    Invariant: `log_end_offset` is UNKNOWN_OFFSET until the first fetch in this leadership (H-2).
    """

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_fetch_leader_end_offset: int = 0
    last_fetch_ms: int = NEVER_MS
    last_caught_up_ms: int = NEVER_MS
    broker_epoch: int | None = None
    quiet_request: object = None
    """The last fetch, if it was valid and from our log's end: the very same again (a session
    repeats the object) asks nothing new until something is appended."""
    quiet_answer: object = None

    def reset(
        self, now_ms: int, leader_end_offset: int, *, is_new_leader: bool, is_in_isr: bool
    ) -> None:
        """A leader epoch begins: forget everything if the leader is new, else only the fetch times.

        An ISR member counts as caught up now, so that it has a whole lag time to prove it.
        """
        self.last_caught_up_ms = now_ms if is_in_isr else NEVER_MS
        self.quiet_request = None
        if is_new_leader:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
            self.last_fetch_ms = NEVER_MS
            self.broker_epoch = None
        else:
            self.last_fetch_leader_end_offset = leader_end_offset
            self.last_fetch_ms = now_ms if is_in_isr else NEVER_MS

    def update_fetch_state(
        self,
        fetch_offset: int,
        log_start_offset: int,
        now_ms: int,
        leader_end_offset: int,
        broker_epoch: int,
    ) -> None:
        """A fetch from `fetch_offset` arrived when the leader's log ended at `leader_end_offset`.

        The leader's end must be read *before* the fetch is served. Reaching the end the leader had
        at the *previous* fetch counts too (as of that fetch): under steady small writes a follower
        never equals the current end, and yet it is in sync (H-4).
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_start_offset = log_start_offset
        self.log_end_offset = fetch_offset
        self.last_fetch_leader_end_offset = max(
            leader_end_offset, self.last_fetch_leader_end_offset
        )
        self.last_fetch_ms = now_ms
        self.broker_epoch = broker_epoch

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        return (
            self.log_end_offset == leader_end_offset
            or now_ms - self.last_caught_up_ms <= lag_ms_max
        )


def effective_min_isr(min_insync_replicas: int, replica_count: int) -> int:
    """min.insync.replicas, but never more than there are replicas (KIP-966)."""
    return min(min_insync_replicas, replica_count)


def high_watermark(
    current: int,
    leader_end_offset: int,
    state: IsrState,
    replicas: Mapping[int, ReplicaState],
    eligible: Collection[int],
    min_isr: int,
    now_ms: int,
    lag_ms_max: int,
) -> int:
    """The high watermark after an append, a fetch, an ISR change or an election (H-1).

    The smallest end offset over the leader, the maximal ISR, and every eligible replica that is
    caught up by time (waiting for it lets it join; else it would chase a moving target for ever).
    It never goes back, never passes the leader's own end, and does not move while the committed
    ISR is smaller than `min_isr`.

    `replicas` are the followers; `leader_end_offset` is what the leader may count for itself.
    """
    if len(state.isr) < min_isr:
        return current
    maximal_isr = state.maximal_isr
    committed = leader_end_offset
    for replica_id, replica in replicas.items():
        if replica.log_end_offset < committed and (
            replica_id in maximal_isr
            or (
                replica_id in eligible
                and replica.is_caught_up(leader_end_offset, now_ms, lag_ms_max)
            )
        ):
            committed = replica.log_end_offset
    return max(current, committed)


def out_of_sync_replicas(
    leader_id: int,
    leader_end_offset: int,
    state: IsrState,
    replicas: Mapping[int, ReplicaState],
    now_ms: int,
    lag_ms_max: int,
) -> frozenset[int]:
    """ISR members to ask the controller to remove (H-5); none while a change is in flight.

    A member the leader knows nothing about is out of sync.
    """
    if state.is_inflight:
        return frozenset()
    return frozenset(
        replica_id
        for replica_id in state.isr
        if replica_id != leader_id
        and (
            (replica := replicas.get(replica_id)) is None
            or not replica.is_caught_up(leader_end_offset, now_ms, lag_ms_max)
        )
    )


def is_isr_eligible(
    replica: ReplicaState, *, is_active: bool, registered_epoch: int | None
) -> bool:
    """May this follower be in the ISR as far as its broker is concerned (H-6, KIP-903)?

    `is_active`: registered, not fenced, not in controlled shutdown. A fetch with broker epoch -1
    comes from a version that has none and skips the comparison; no fetch yet means no.
    """
    return (
        is_active
        and registered_epoch is not None
        and replica.broker_epoch is not None
        and replica.broker_epoch in (-1, registered_epoch)
    )


def may_join_isr(
    replica_id: int,
    replica: ReplicaState,
    state: IsrState,
    eligible: Collection[int],
    high_watermark: int,
    leader_epoch_start_offset: int,
) -> bool:
    """Should the leader ask the controller to add this follower (H-6)?

    Reaching the high watermark is not enough: between it and the start of this leader epoch there
    may be records that are committed although this leader's high watermark does not say so yet.
    """
    return (
        not state.is_inflight
        and replica_id not in state.isr
        and replica_id in eligible
        and replica.log_end_offset >= high_watermark
        and replica.log_end_offset >= leader_epoch_start_offset
    )


def low_watermark(
    leader_start_offset: int, replicas: Mapping[int, ReplicaState], alive: Collection[int]
) -> int:
    """The smallest log start offset over the leader and its living followers (DeleteRecords)."""
    low = leader_start_offset
    for replica_id, replica in replicas.items():
        if replica.log_start_offset < low and replica_id in alive:
            low = replica.log_start_offset
    return low
