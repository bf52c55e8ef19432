"""A follower's fetching from one leader: a state machine without a thread.

What: `ReplicaFetcher` copies the partitions of one leader broker into the logs here. It makes a
request (`next_request`), takes the answer (`handle_response`) or its absence (`handle_failure`),
and says when to look again (`wake_ms`). Who owns it, a thread (`fetcher_manager.FetcherThread`) or
a simulator, carries requests and answers. Kafka: AbstractFetcherThread, ReplicaFetcherThread.

States of a partition, per leader epoch (a new epoch starts over, E-7):

    FETCHING      in the session, from our log's end with the epoch of our last batch (E-5)
    LATEST        the leader said OFFSET_OUT_OF_RANGE: ask where its log ends ...
    EARLIEST      ... and, if not below ours, where it starts
    delayed       any of these, left out until `delayed_until_ms` (replica.fetch.backoff.ms)

    FETCHING --records--> FETCHING        appended as they are (E-9); HW = min(leader's, our end)
    FETCHING --diverging epoch--> FETCHING   truncated, asked again until histories agree (E-6)
    FETCHING --out of range--> LATEST --at or above our end--> EARLIEST --> FETCHING
                                 |        (E-10: everything goes if the leader starts above our end)
                                 '--below our end: truncated--> FETCHING
    any --FENCED_LEADER_EPOCH, new role, dead disk--> dropped until metadata gives it back
    any --UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER--> delayed by 10 ms, 20, ... up to the above
    any --other error--> delayed

The high watermark is never a truncation point (H-10). Truncating below it happens only after an
unclean election; it is logged as an error and counted (E-8).

Fencing: every change of a log goes through the `Partition` with the leader epoch it belongs to and
is refused under another one, so metadata threads never wait for a fetcher.

Durability: where `flush.messages` asks for it, a log is fsynced before the next fetch leaves, for
that fetch tells the leader that we have the records.

Threads: one owner calls everything but `add_partitions`, `remove_partitions` and `partition_count`,
which any thread may call; they go through an inbox that is worked off by `next_request`.

Budget: 10 us per partition with records, besides the log's append; idle ones are looked at once in
five seconds (retention may have moved their start), at 0.2 us each.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from replication.following.fetch_session_handler import FetchSessionHandler, Key, PartitionData
from replication.following.fetch_state import FetchPhase, FollowedPartition, PartitionFetchState
from replication.following.replication_quota import ReplicationQuota, is_throttled
from replication.partition.follower_writes import (
    append_records_to_follower,
    truncate_follower_fully,
    truncate_follower_to,
)
from replication.raft.events import NO_EPOCH
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from wire.primitives import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from storage.config import Clock

logger = logging.getLogger(__name__)

_OFFSET_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_FENCED_LEADER_EPOCH = int(ErrorCode.FENCED_LEADER_EPOCH)
_METADATA_RACE = frozenset(
    (int(ErrorCode.UNKNOWN_LEADER_EPOCH), int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
)
"""We heard of the election before the leader did: it will know in milliseconds, and until then
nothing can be committed. (Kafka waits for replica.fetch.backoff.ms.)"""
_RACE_MS = 10
_LOOK_MS = 5000
_SESSION_ERRORS = frozenset(
    (
        int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        int(ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        int(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    )
)
"""Answered with a new session at once; anything else about the whole request is waited out."""


class LeaderEndpoint(Protocol):
    """One leader, as a thread that may block sees it."""

    def exchange(
        self, request: FetchRequest | ListOffsetsRequest
    ) -> FetchResponse | ListOffsetsResponse:
        """Send it and wait for the answer. Raises OSError, also when closed meanwhile.

        Records in the answer are valid until the next exchange.
        """

    def close(self) -> None:
        """End a wait at once; from any thread."""


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """Broker configs of fetching, with Kafka's names behind `replica.fetch.`; ms and bytes."""

    max_bytes: int = 1 << 20
    """Most bytes of one partition in a response (its first batch comes whole)."""
    response_max_bytes: int = 10 << 20
    min_bytes: int = 1
    wait_max_ms: int = 500
    backoff_ms: int = 1000


class ReplicaFetcher:
    """See the module. `leader_id` is the broker fetched from; counters are plain integers."""

    def __init__(
        self,
        config: FetcherConfig,
        leader_id: int,
        node_id: int,
        broker_epoch: Callable[[], int],
        clock: Clock,
        *,
        quota: ReplicationQuota,
        on_progress: Callable[[Partition], object],
        number: int = 0,
    ) -> None:
        """`number` tells fetchers of the same leader apart. `on_progress` is called with no
        lock held after a partition's high watermark moved."""
        self.leader_id = leader_id
        self.number = number
        self.wake_ms: int | None = None
        """When `next_request` may have something to ask again; None: when something is added."""
        self._config = config
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._quota = quota
        self._on_progress = on_progress
        self._states: dict[Key, PartitionFetchState] = {}
        self._session = FetchSessionHandler(config.max_bytes)
        self._inbox: deque[tuple[Key, FollowedPartition | None]] = deque()
        self._asked_timestamp: int | None = None
        self._not_before_ms: int | None = None
        self._is_failing = False
        self._unflushed: list[PartitionFetchState] = []
        self._changed: dict[Key, None] = {}
        """What the next request must look at; it looks at everything once in `_LOOK_MS`."""
        self._look_due_ms = 0

    # ------------------------------------------------------------------ from any thread

    def add_partitions(self, followed: Iterable[FollowedPartition]) -> None:
        """Fetch these from the next request on; the same leader epoch again changes nothing."""
        for one in followed:
            partition = one.partition
            key = (partition.topic_id, partition.topic_partition[1])
            self._inbox.append((key, one))

    def remove_partitions(self, keys: Iterable[Key]) -> None:
        """Fetch these no more. An answer on its way is not applied once they are fenced."""
        for key in keys:
            self._inbox.append((key, None))

    @property
    def partition_count(self) -> int:
        return len(self._states)

    def state(self, key: Key) -> PartitionFetchState | None:
        """For tests and diagnosis."""
        return self._states.get(key)

    # ------------------------------------------------------------------ the owner: asking

    def turn(self, endpoint: LeaderEndpoint) -> bool:
        """Ask once and take the answer; False if there is nothing to ask before `wake_ms`."""
        request = self.next_request()
        if request is None:
            return False
        try:
            response = endpoint.exchange(request)
        except OSError as error:
            self.handle_failure(error)
        else:
            self.handle_response(response)
        return True

    def next_request(self) -> FetchRequest | ListOffsetsRequest | None:
        """What to send to the leader now; None if nothing (`wake_ms` says until when).

        `handle_response` or `handle_failure` must follow before the next call.
        """
        if self._inbox:
            self._work_off_inbox()
        now_ms = self._clock.now_ms()
        self.wake_ms = None
        if self._unflushed:
            self._flush(now_ms)
        if self._not_before_ms is not None:
            if now_ms < self._not_before_ms:
                self.wake_ms = self._not_before_ms
                return None
            self._not_before_ms = None
        asking = self._update_session(now_ms)
        if asking:
            return self._list_offsets(asking)
        if self._session.is_idle:
            return None
        return self._fetch(now_ms)

    def _work_off_inbox(self) -> None:
        inbox = self._inbox
        while inbox:
            key, followed = inbox.popleft()
            state = self._states.get(key)
            if followed is None:
                self._drop(key)
                continue
            partition, leader_epoch = followed
            log = partition.log
            if state is not None and state.leader_epoch == leader_epoch and state.log is log:
                continue
            if log is None:
                self._drop(key)
                continue
            state = self._states[key] = PartitionFetchState(partition, log, leader_epoch)
            self._changed[key] = None
            if log.log_end_offset - log.flushed_offset >= log.config.flush_messages:
                self._unflushed.append(state)

    def _drop(self, key: Key) -> None:
        self._states.pop(key, None)
        self._session.remove(key)

    def _update_session(self, now_ms: int) -> list[PartitionFetchState]:
        """Tell the session what changed; returns the partitions whose leader's ends are unknown."""
        asking: list[PartitionFetchState] = []
        is_exceeded = self._quota.is_set and self._quota.is_exceeded()
        looked, self._changed = self._changed, {}
        if now_ms >= self._look_due_ms or is_exceeded:
            self._look_due_ms = now_ms + _LOOK_MS
            looked = dict.fromkeys(self._states)
        for key in looked:
            state = self._states.get(key)
            if state is None:
                continue
            delayed_until_ms = state.delayed_until_ms
            if delayed_until_ms is not None:
                if now_ms < delayed_until_ms:
                    self._changed[key] = None
                    self._wake_by(delayed_until_ms)
                    continue
                state.delayed_until_ms = None
                state.is_changed = True
            if state.phase is not FetchPhase.FETCHING:
                self._changed[key] = None
                asking.append(state)
            elif is_exceeded and state.lag != 0 and self._is_throttled(state):
                self._leave_session(key, state)
                self._wake_by(now_ms + self._config.backoff_ms)
            elif state.is_changed or state.log.log_start_offset != state.sent_log_start_offset:
                log_start_offset = state.log.log_start_offset
                self._session.put(
                    key,
                    PartitionData(
                        state.fetch_offset,
                        log_start_offset,
                        state.leader_epoch,
                        state.last_fetched_epoch,
                    ),
                )
                state.is_changed = False
                state.sent_offset = state.fetch_offset
                state.sent_log_start_offset = log_start_offset
        return asking

    def _wake_by(self, at_ms: int) -> None:
        if self.wake_ms is None or at_ms < self.wake_ms:
            self.wake_ms = at_ms

    def _leave_session(self, key: Key, state: PartitionFetchState) -> None:
        self._session.remove(key)
        self._changed[key] = None
        state.is_changed = True

    def _is_throttled(self, state: PartitionFetchState) -> bool:
        return is_throttled(
            state.log.config.follower_replication_throttled_replicas,
            state.partition.topic_partition[1],
            self._node_id,
        )

    def _fetch(self, now_ms: int) -> FetchRequest:
        config = self._config
        request = self._session.build()
        request.max_wait_ms = config.wait_max_ms
        if self.wake_ms is not None and self.wake_ms - now_ms < config.wait_max_ms:
            request.max_wait_ms = self.wake_ms - now_ms  # then a delayed partition may come back
        request.min_bytes = config.min_bytes
        request.max_bytes = config.response_max_bytes
        request.replica_state = FetchRequest.ReplicaState(
            replica_id=self._node_id, replica_epoch=self._broker_epoch()
        )
        self._asked_timestamp = None
        return request

    def _list_offsets(self, asking: list[PartitionFetchState]) -> ListOffsetsRequest:
        """Ask for one end of the logs of those that need it; a partition may be named once only."""
        phase = asking[0].phase
        self._asked_timestamp = (
            LATEST_TIMESTAMP if phase is FetchPhase.LATEST else EARLIEST_TIMESTAMP
        )
        topics: dict[str, list[Any]] = {}
        for state in asking:
            if state.phase is phase:
                topic, index = state.partition.topic_partition
                topics.setdefault(topic, []).append(
                    ListOffsetsRequest.Topic.Partition(
                        partition_index=index,
                        current_leader_epoch=state.leader_epoch,
                        timestamp=self._asked_timestamp,
                    )
                )
        return ListOffsetsRequest(
            replica_id=self._node_id,
            isolation_level=0,
            topics=[
                ListOffsetsRequest.Topic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

    # ------------------------------------------------------------------ the owner: answers

    def handle_failure(self, error: BaseException) -> None:
        """No answer: wait `backoff_ms`, then begin a new session."""
        self._session.failed()
        self._not_before_ms = self._clock.now_ms() + self._config.backoff_ms
        if not self._is_failing:
            self._is_failing = True
            logger.warning("leader does not answer leader=%s error=%s", self.leader_id, error)

    def handle_interruption(self) -> None:
        """We did not wait for the answer: ask anew, in another session, at once."""
        self._session.failed()

    def handle_response(self, response: FetchResponse | ListOffsetsResponse) -> None:
        """Bring the logs forward by what the leader said. Never raises for a partition's fault."""
        if self._is_failing:
            self._is_failing = False
            logger.info("leader answers again leader=%s", self.leader_id)
        if isinstance(response, ListOffsetsResponse):
            self._handle_list_offsets(response)
            return
        if not self._session.handle(response.error_code, response.session_id):
            if response.error_code not in _SESSION_ERRORS:
                self._not_before_ms = self._clock.now_ms() + self._config.backoff_ms
                logger.warning(
                    "fetch was refused leader=%s error=%s",
                    self.leader_id, ErrorCode(response.error_code).name,
                )  # fmt: skip
            return
        states = self._states
        for topic in response.responses:
            topic_id = topic.topic_id
            for answer in topic.partitions:
                key = (topic_id, answer.partition_index)
                state = states.get(key)
                if (
                    state is not None
                    and state.sent_offset == state.fetch_offset
                    and not state.is_changed
                    and state.phase is FetchPhase.FETCHING
                ):
                    self._handle_partition(key, state, answer)

    def _handle_partition(self, key: Key, state: PartitionFetchState, answer: Any) -> None:
        self._changed[key] = None
        try:
            if answer.error_code:
                self._handle_error(key, state, answer.error_code)
            elif answer.diverging_epoch is not None:
                epoch_end = answer.diverging_epoch
                self._truncate_diverged(key, state, epoch_end.epoch, epoch_end.end_offset)
            else:
                self._append(key, state, answer)
        except KafkaError as error:
            self._refused_here(key, state, error)
        except Exception:
            logger.exception("following failed partition=%r", state.partition)
            self._fail(key)

    def _append(self, key: Key, state: PartitionFetchState, answer: Any) -> None:
        partition = state.partition
        records = answer.records
        info, is_advanced = append_records_to_follower(
            partition, records, state.leader_epoch, answer.high_watermark, answer.log_start_offset
        )
        state.refusals = 0
        state.lag = max(answer.high_watermark - state.log.log_end_offset, 0)
        if info is not None:
            state.read_log_end()
            if self._quota.is_set and self._is_throttled(state):
                self._quota.record(info.size)
            if info.must_flush:
                self._unflushed.append(state)
            if not info.size:  # not even one whole batch: asking again at once would spin
                self._delay(key, state)
        if is_advanced:
            self._on_progress(partition)

    def _truncate_diverged(
        self, key: Key, state: PartitionFetchState, leader_epoch: int, leader_end: int
    ) -> None:
        """E-6: go back to the end of the newest epoch both know, one step at a time."""
        log = state.log
        epoch, end_offset = log.end_offset_for_epoch(leader_epoch)
        if epoch == NO_EPOCH:
            offset = leader_end
        elif epoch != leader_epoch:
            offset = end_offset  # we never had that epoch: back to before it, and ask again
        else:
            offset = min(end_offset, leader_end)
        self._truncate(state, min(offset, log.log_end_offset))
        if not state.read_log_end():
            self._delay(key, state)

    def _truncate(self, state: PartitionFetchState, offset: int) -> None:
        partition = state.partition
        high_watermark = partition.high_watermark
        if offset < high_watermark:
            logger.error(
                "truncating below the high watermark partition=%s-%s offset=%s high_watermark=%s"
                " leader=%s leader_epoch=%s",
                *partition.topic_partition, offset, high_watermark, self.leader_id,
                state.leader_epoch,
            )  # fmt: skip
        elif offset < state.log.log_end_offset:
            logger.info(
                "truncating partition=%s-%s offset=%s log_end_offset=%s leader_epoch=%s",
                *partition.topic_partition, offset, state.log.log_end_offset, state.leader_epoch,
            )  # fmt: skip
        truncate_follower_to(partition, offset, state.leader_epoch)

    def _handle_list_offsets(self, response: ListOffsetsResponse) -> None:
        by_name = {
            tuple(state.partition.topic_partition): (key, state)
            for key, state in self._states.items()
            if state.phase is not FetchPhase.FETCHING
        }
        for topic in response.topics:
            for answer in topic.partitions:
                key, state = by_name.get((topic.name, answer.partition_index), (None, None))
                if key is None or state is None or not self._was_asked(state):
                    continue
                try:
                    if answer.error_code:
                        self._handle_error(key, state, answer.error_code)
                    else:
                        self._handle_end(key, state, answer.offset)
                except KafkaError as error:
                    self._refused_here(key, state, error)
                except Exception:
                    logger.exception("following failed partition=%r", state.partition)
                    self._fail(key)

    def _was_asked(self, state: PartitionFetchState) -> bool:
        asks_latest = self._asked_timestamp == LATEST_TIMESTAMP
        return state.phase is (FetchPhase.LATEST if asks_latest else FetchPhase.EARLIEST)

    def _handle_end(self, key: Key, state: PartitionFetchState, offset: int) -> None:
        """The leader's log ends, or starts, at `offset` (fetchOffsetAndTruncate)."""
        log_end_offset = state.log.log_end_offset
        if state.phase is FetchPhase.LATEST:
            if offset >= log_end_offset:
                state.phase = FetchPhase.EARLIEST
                return
            self._truncate(state, offset)
        elif offset > log_end_offset:
            logger.warning(
                "starting over at the leader's log start partition=%s-%s offset=%s"
                " log_end_offset=%s",
                *state.partition.topic_partition, offset, log_end_offset,
            )  # fmt: skip
            truncate_follower_fully(state.partition, offset, state.leader_epoch)
        state.phase = FetchPhase.FETCHING
        if not state.read_log_end():
            self._delay(key, state)

    # ------------------------------------------------------------------ the owner: trouble

    def _handle_error(self, key: Key, state: PartitionFetchState, code: int) -> None:
        """The leader refused a partition."""
        if code == _OFFSET_OUT_OF_RANGE and state.phase is FetchPhase.FETCHING:
            self._leave_session(key, state)
            state.phase = FetchPhase.LATEST
        elif code == _FENCED_LEADER_EPOCH:
            logger.info(
                "leader epoch is old, waiting for metadata partition=%s-%s leader_epoch=%s",
                *state.partition.topic_partition, state.leader_epoch,
            )  # fmt: skip
            self._drop(key)
        else:
            logger.info(
                "leader refused partition=%s-%s leader=%s error=%s",
                *state.partition.topic_partition, self.leader_id, ErrorCode(code).name,
            )  # fmt: skip
            pause_ms = self._config.backoff_ms
            if code in _METADATA_RACE:
                pause_ms = min(_RACE_MS << min(state.refusals, 16), pause_ms)
                state.refusals += 1
            self._delay(key, state, pause_ms)

    def _refused_here(self, key: Key, state: PartitionFetchState, error: KafkaError) -> None:
        """Our own partition refused: it has another role by now, its disk failed, or the leader
        sent what must not be stored."""
        partition = state.partition
        if partition.log is not state.log or partition.leader_epoch != state.leader_epoch:
            self._drop(key)
        elif state.log.is_closed or state.log.is_offline:
            self._fail(key)
        else:
            logger.warning(
                "following is delayed partition=%s-%s error=%s",
                *partition.topic_partition, error,
            )  # fmt: skip
            state.read_log_end()
            self._delay(key, state)

    def _fail(self, key: Key) -> None:
        self._drop(key)

    def _delay(self, key: Key, state: PartitionFetchState, pause_ms: int | None = None) -> None:
        """Leave it out for a while: an error in a session would be answered again at once."""
        self._leave_session(key, state)
        if pause_ms is None:
            pause_ms = self._config.backoff_ms
        state.delayed_until_ms = self._clock.now_ms() + pause_ms

    def _flush(self, now_ms: int) -> None:
        """fsync what must be on disk before the leader hears that we have it (S-6, S-4); what could
        not be is left out of the fetches, and tried again before it comes back."""
        waiting, self._unflushed = self._unflushed, []
        for state in waiting:
            key = (state.partition.topic_id, state.partition.topic_partition[1])
            if self._states.get(key) is not state:
                continue
            if state.delayed_until_ms is not None and now_ms < state.delayed_until_ms:
                self._unflushed.append(state)
                continue
            try:
                state.log.flush()
            except KafkaError as error:
                self._unflushed.append(state)
                self._refused_here(key, state, error)
