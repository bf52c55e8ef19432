"""One leader epoch of one replica: who follows it, who is in sync, what is committed (PURE).

What: a `Leading` is made when a leader epoch begins and is given up when that ends; it is never
taken into another one. It knows no log, no lock and no clock: it is given offsets and times, and
says what follows from them. `replication.partition.partition` does that, under its lock.

Why the leader epoch comes with each call: what a fetch, an append or an answer of the controller
says was true under the epoch it was looked at in, and between that look and this call an election
may have passed. What followers had then they may have cut off since (H-2). So whoever calls says
which epoch it means, and another one is refused: FENCED_LEADER_EPOCH if it is over,
UNKNOWN_LEADER_EPOCH if it has not begun (E-2). The exception, `quiet_answer`, is given the very
request that was accepted under this epoch.

The rules themselves are functions in `replication.partition.isr`. Offsets are those of the log,
times monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from replication.partition import isr as isr_rules
from replication.partition.isr import IsrState, ReplicaState
from replication.partition.requests import UNKNOWN_EPOCH, AlteredIsr, FetchPartition, QuietAnswer
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration, PartitionRegistration
    from storage.log.results import LogView

_NOT_DONE = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA)
"""The controller did not change the ISR, and will not: back to the committed one."""
_METADATA_WILL_TELL = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
"""It knows more than we do: the change stays pending until the record arrives."""


class IsrOutcome(Enum):
    """What came of a proposed ISR (H-7)."""

    IGNORED = "metadata was faster"
    COMMITTED = "as the controller answered"
    ROLLED_BACK = "the controller did not do it"
    PENDING = "metadata will tell"
    RETRY = "ask for the same again"


class Leading:
    """See the module.

    Invariants: `node_id` is no follower of itself; at most one change of the ISR is in flight;
    `partition_epoch` never goes back. `min_isr`, `has_min_isr`, `waits_for_followers` (some
    follower is in the maximal ISR) and `all_in_sync` (every follower is) follow from the rest.
    """

    __slots__ = (
        "all_in_sync",
        "epoch_start_offset",
        "followers",
        "has_min_isr",
        "isr_state",
        "lag_ms_max",
        "leader_epoch",
        "leader_id",
        "min_isr",
        "min_isr_wanted",
        "partition_epoch",
        "since_epoch",
        "waits_for_followers",
    )

    not_serving: ClassVar[ErrorCode] = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __init__(
        self,
        node_id: int,
        registration: PartitionRegistration,
        start_offset: int,
        min_insync_replicas: int,
        now_ms: int,
        lag_ms_max: int,
        before: Leading | None = None,
    ) -> None:
        """The leader epoch of `registration` begins, with the log's end at `start_offset`.

        `before` is the leader epoch that ended with this, if this node led it too.
        """
        epoch = registration.leader_epoch
        assert registration.leader == node_id, "metadata names another leader"
        assert node_id in registration.replicas, "a leader is one of the replicas"
        assert epoch >= 0, "leaders have an epoch"
        assert start_offset >= 0, "the log has an end"
        assert before is None or before.leader_epoch < epoch, "E-1: epochs only go up"
        self.leader_id = node_id
        self.leader_epoch: int = epoch
        self.epoch_start_offset = start_offset
        self.since_epoch: int = epoch if before is None else before.since_epoch
        """First leader epoch of this unbroken leadership: offsets appended under an older one may
        have been truncated since."""
        self.lag_ms_max = lag_ms_max
        self.partition_epoch = registration.partition_epoch
        self.isr_state = IsrState(frozenset(registration.isr))
        self.followers = self._first_states(registration, before, start_offset, now_ms)
        self.min_isr_wanted = min_insync_replicas
        self._refresh()

    def _first_states(
        self,
        registration: PartitionRegistration,
        before: Leading | None,
        start_offset: int,
        now_ms: int,
    ) -> dict[int, ReplicaState]:
        """Several elections may come with one image, and another replica may have led between
        them: what followers had in our epoch they may have cut off in that one (H-2)."""
        is_unbroken = before is not None and before.leader_epoch + 1 == self.leader_epoch
        known = {} if before is None else before.followers
        states = {}
        for replica_id in registration.replicas:
            if replica_id != self.leader_id:
                # A copy: whoever still looks at the epoch before must not write into this one.
                follower = replace(known[replica_id]) if replica_id in known else ReplicaState()
                follower.reset(
                    now_ms,
                    start_offset,
                    is_new_leader=not is_unbroken,
                    is_in_isr=replica_id in self.isr_state.isr,
                )
                states[replica_id] = follower
        return states

    def _refresh(self) -> None:
        """Work out what appends and fetches ask about the ISR each time."""
        maximal_isr = self.isr_state.maximal_isr
        self.min_isr = isr_rules.effective_min_isr(self.min_isr_wanted, len(self.followers) + 1)
        self.has_min_isr = len(self.isr_state.isr) >= self.min_isr
        self.waits_for_followers = not maximal_isr.isdisjoint(self.followers)
        self.all_in_sync = maximal_isr.issuperset(self.followers)

    def leads_since(self, leader_epoch: int) -> bool:
        """Has this node led without a break since that epoch, which it led?"""
        return self.since_epoch <= leader_epoch

    @property
    def has_enough_in_sync(self) -> bool:
        """Does the maximal ISR satisfy min.insync.replicas (checked when acks=all completes)?"""
        return len(self.isr_state.maximal_isr) >= self.min_isr

    # ------------------------------------------------------------------ what metadata says

    def update(self, leader_epoch: int, registration: PartitionRegistration) -> None:
        """More metadata of this leader epoch: replicas came or went, another ISR is committed."""
        if leader_epoch != self.leader_epoch:
            raise epoch_refusal(leader_epoch, self.leader_epoch)
        assert registration.leader_epoch == self.leader_epoch, "another epoch is another Leading"
        assert registration.partition_epoch >= self.partition_epoch, "metadata only goes forward"
        if registration.partition_epoch > self.partition_epoch:
            # The same epoch again must not undo what is pending: its members count already (H-3).
            self.isr_state = self.isr_state.commit(registration.isr)
            self.partition_epoch = registration.partition_epoch
        known = self.followers
        # A new dict: fetches look into the old one without the lock.
        self.followers = {
            replica_id: known.get(replica_id) or ReplicaState()
            for replica_id in registration.replicas
            if replica_id != self.leader_id
        }
        self._refresh()

    def change_min_isr(self, leader_epoch: int, min_insync_replicas: int) -> None:
        """The topic's min.insync.replicas is another one."""
        if leader_epoch != self.leader_epoch:
            raise epoch_refusal(leader_epoch, self.leader_epoch)
        self.min_isr_wanted = min_insync_replicas
        self._refresh()

    # ------------------------------------------------------------------ append and high watermark

    def check_epoch(self, leader_epoch: int) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER if the caller of an append counts on another leader epoch:
        what it knows is of that leadership."""
        if leader_epoch != self.leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another leader epoch began")

    def not_enough_replicas(self, code: ErrorCode) -> KafkaError:
        """The ISR is too small for an append with acks=all (H-11)."""
        return KafkaError(
            code,
            f"the ISR {sorted(self.isr_state.isr)} is smaller than min.insync.replicas"
            f" {self.min_isr}",
        )

    def high_watermark(
        self,
        leader_epoch: int,
        current: int,
        counted_end_offset: int,
        now_ms: int,
        brokers: Mapping[int, BrokerRegistration],
    ) -> int:
        """H-1: what is committed now; `counted_end_offset` is what the leader counts for itself."""
        if leader_epoch != self.leader_epoch:
            raise epoch_refusal(leader_epoch, self.leader_epoch)
        committed = isr_rules.high_watermark(
            current,
            counted_end_offset,
            self.isr_state,
            self.followers,
            () if self.all_in_sync else self._eligible(brokers),
            self.min_isr,
            now_ms,
            self.lag_ms_max,
        )
        assert committed >= current, "H-1: it never goes back"
        return committed

    def _eligible(self, brokers: Mapping[int, BrokerRegistration]) -> set[int]:
        return {
            replica_id
            for replica_id, follower in self.followers.items()
            if _is_eligible(follower, brokers.get(replica_id))
        }

    # ------------------------------------------------------------------ followers' fetches

    def follower(self, leader_epoch: int, replica_id: int, sent_epoch: int) -> ReplicaState:
        """What is known of a follower. An unassigned replica is told to retry (75), or 6 if it sent
        no epoch (E-2)."""
        if leader_epoch != self.leader_epoch:
            raise epoch_refusal(leader_epoch, self.leader_epoch)
        found = self.followers.get(replica_id)
        if found is None:
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if sent_epoch == UNKNOWN_EPOCH
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            raise KafkaError(code, f"broker {replica_id} is no replica")
        return found

    def update_follower_fetch_state(
        self,
        leader_epoch: int,
        replica_id: int,
        replica_epoch: int,
        fetch: FetchPartition,
        leader_end_offset: int,
        now_ms: int,
    ) -> tuple[bool, bool]:
        """A follower fetched, at `leader_epoch`, before which our log ended at `leader_end_offset`;
        returns whether its log start moved, and whether its end did.

        Raises as `follower`.
        """
        follower = self.followers.get(replica_id)
        if follower is None or leader_epoch != self.leader_epoch:
            follower = self.follower(leader_epoch, replica_id, fetch.current_leader_epoch)
        fetch_offset = fetch.fetch_offset
        is_start_moved = follower.log_start_offset != fetch.log_start_offset
        is_end_moved = follower.log_end_offset != fetch_offset
        follower.quiet_request = fetch if fetch_offset == leader_end_offset else None
        follower.update_fetch_state(
            fetch_offset, fetch.log_start_offset, now_ms, leader_end_offset, replica_epoch
        )
        return is_start_moved, is_end_moved

    def low_watermark(
        self, leader_epoch: int, log_start_offset: int, brokers: Mapping[int, BrokerRegistration]
    ) -> int:
        """The smallest log start offset of all living replicas; the leader's is given."""
        if leader_epoch != self.leader_epoch:
            raise epoch_refusal(leader_epoch, self.leader_epoch)
        if not self.followers:
            return log_start_offset
        alive = {broker_id for broker_id, broker in brokers.items() if not broker.fenced}
        return isr_rules.low_watermark(log_start_offset, self.followers, alive)

    def quiet_answer(
        self,
        replica_id: int,
        replica_epoch: int,
        request: FetchPartition,
        now_ms: int | None,
        view: LogView,
    ) -> QuietAnswer | None:
        """The answer to a follower in sync that asks from our end what it asked there before.

        None: look at what it tells. In a session most partitions are of this kind at any time, and
        all that such a fetch says is that the follower is still there: at `now_ms`, or nothing if
        that is None (a parked fetch is answered). `view` is what our log shows. No lock is held:
        what is written is only when the follower was caught up.
        """
        follower = self.followers.get(replica_id)
        if (
            follower is None
            or follower.quiet_request is not request
            or follower.broker_epoch != replica_epoch
            or view.end_offset != request.fetch_offset
            or replica_id not in self.isr_state.isr
        ):
            return None
        if now_ms is not None:
            follower.last_fetch_ms = follower.last_caught_up_ms = now_ms
        answer = follower.quiet_answer
        high_watermark = view.high_watermark
        if (
            type(answer) is not QuietAnswer
            or answer.high_watermark != high_watermark
            or answer.log_start_offset != view.log_start_offset
        ):
            answer = QuietAnswer(0, high_watermark, high_watermark, view.log_start_offset)
            follower.quiet_answer = answer
        return answer

    # ------------------------------------------------------------------ changes of the ISR

    def expand_isr(
        self,
        leader_epoch: int,
        replica_id: int,
        brokers: Mapping[int, BrokerRegistration],
        high_watermark: int,
    ) -> IsrState | None:
        """H-6: if the replica may join, it is in the maximal ISR now; what to ask for."""
        follower = self.follower(leader_epoch, replica_id, leader_epoch)
        state = self.isr_state
        if (
            state.is_inflight
            or replica_id in state.isr
            or not _is_eligible(follower, brokers.get(replica_id))
            or not isr_rules.may_join_isr(
                replica_id, follower, state, (replica_id,), high_watermark, self.epoch_start_offset
            )
        ):
            return None
        return self._propose(state.expand(replica_id))

    def shrink_isr(self, leader_epoch: int, log_end_offset: int, now_ms: int) -> IsrState | None:
        """H-5: without those that were not caught up for `lag_ms_max`; what to ask for."""
        if leader_epoch != self.leader_epoch:
            raise epoch_refusal(leader_epoch, self.leader_epoch)
        if len(self.isr_state.isr) <= 1:
            return None
        gone = isr_rules.out_of_sync_replicas(
            self.leader_id, log_end_offset, self.isr_state, self.followers, now_ms, self.lag_ms_max
        )
        return self._propose(self.isr_state.shrink(gone)) if gone else None

    def _propose(self, state: IsrState) -> IsrState:
        assert self.leader_id in state.proposed, "a leader never asks to leave its own ISR"
        self.isr_state = state
        self._refresh()
        return state

    def members(self, state: IsrState) -> tuple[tuple[int, int], ...]:
        """The proposed ISR with the broker epochs we know, -1 where we know none (KIP-903)."""
        members = []
        for replica_id in sorted(state.proposed):
            follower = self.followers.get(replica_id)
            epoch = None if follower is None else follower.broker_epoch
            members.append((replica_id, -1 if epoch is None else epoch))
        return tuple(members)

    def isr_answered(
        self, leader_epoch: int, proposed: IsrState, answer: AlteredIsr | ErrorCode
    ) -> IsrOutcome:
        """H-7: what the controller said about the change that is pending, if it still is."""
        if leader_epoch != self.leader_epoch or self.isr_state is not proposed:
            return IsrOutcome.IGNORED
        if isinstance(answer, AlteredIsr):
            is_late = answer.partition_epoch < self.partition_epoch
            if is_late or answer.leader_epoch != self.leader_epoch:
                return IsrOutcome.IGNORED
            self.isr_state = proposed.commit(answer.isr)
            self.partition_epoch = answer.partition_epoch
            outcome = IsrOutcome.COMMITTED
        elif answer in _NOT_DONE:
            self.isr_state = proposed.roll_back()
            outcome = IsrOutcome.ROLLED_BACK
        else:
            return IsrOutcome.PENDING if answer in _METADATA_WILL_TELL else IsrOutcome.RETRY
        self._refresh()
        return outcome


def epoch_refusal(leader_epoch: int, current: int) -> KafkaError:
    """Why a call for another leader epoch than the current one is refused (E-2)."""
    code = (
        ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    )
    return KafkaError(code, f"leader epoch {leader_epoch} is not the current {current}")


def _is_eligible(follower: ReplicaState, broker: BrokerRegistration | None) -> bool:
    return broker is not None and isr_rules.is_isr_eligible(
        follower, is_active=broker.active, registered_epoch=broker.broker_epoch
    )
