"""All share partitions that this broker leads: made when first fetched, forgotten when led
elsewhere (Kafka: SharePartitionManager, SharePartitionCache).

Lock: `_lock` guards the table. Under it share partitions and sessions are asked what they know;
nobody else is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from replication.replicas.delayed import LARGE
from server.share.acquisition import Span
from server.share.fetching import DelayedShareFetch, Delivery, ShareFetchParams
from server.share.leading import (
    Alarm,
    Around,
    OnCode,
    Persister,
    Settings,
    ShareLeader,
)
from server.share.sessions import Member, SharedPartition, ShareSessions
from server.share.share_partition import Acknowledgement
from server.share.state_batches import ShareKey
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from replication.replicas.replica_manager import ReplicaManager


K = TypeVar("K", bound=Hashable)


class ShareBroker(NamedTuple):
    """The parts of the broker that share groups stand on."""

    node_id: int
    metadata: Callable[[], MetadataImage]
    replica_manager: ReplicaManager
    persister: Persister
    settings: Callable[[str], Settings]
    now_ms: Callable[[], int]
    add_timer: Callable[[int, Callable[[], None]], Alarm]


class ShareManager:
    """One per broker. Registers itself for leadership changes when made."""

    def __init__(self, broker: ShareBroker, max_sessions: int) -> None:
        self.sessions = ShareSessions(max_sessions)
        self.settings = broker.settings
        self._broker = broker
        self._purgatory = broker.replica_manager.parked.fetch
        self._around = Around(
            broker.persister,
            broker.settings,
            self._find_offset,
            broker.now_ms,
            broker.add_timer,
            self._purgatory.check_and_complete,
            self._forget,
        )
        self._leaders: dict[ShareKey, ShareLeader] = {}
        self._at: dict[tuple[str, int], set[ShareLeader]] = {}
        """The same, by the partition that each is about."""
        self._of: dict[str, set[ShareLeader]] = {}
        """The same, by their groups."""
        self._lock = threading.Lock()
        broker.replica_manager.on_partition_leadership.append(self._on_leadership)

    # -- requests ----------------------------------------------------------------------------

    def fetch(
        self,
        group_id: str,
        partitions: Sequence[SharedPartition],
        params: ShareFetchParams,
        on_complete: Callable[[list[Delivery], dict[SharedPartition, ErrorCode]], None],
    ) -> DelayedShareFetch | None:
        """Read for a member; the operation that waits, if it must. `on_complete` gets what there
        is, and what is wrong with others, once, unless the operation is cancelled. Much that is
        wrong is told at once: not on the thread of who lets others go on, or of the timer."""
        errors: dict[SharedPartition, ErrorCode] = {}
        led = self._led(Member(group_id, params.member_id), partitions, errors)

        def load() -> None:
            for leader, partition in led:
                leader.load(partial(errors.__setitem__, partition))

        def answer(deliveries: list[Delivery]) -> None:
            for leader, partition in led:
                if leader.is_over:
                    errors.setdefault(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            on_complete(deliveries, errors)
            self._release_if_gone(Member(group_id, params.member_id), deliveries)

        if not led or not params.max_records or not params.max_bytes:
            load()
            on_complete([], errors)
            return None
        leaders = [leader for leader, _ in led]
        operation = DelayedShareFetch(params, leaders, self._broker.replica_manager, answer)
        if params.max_wait_ms > 0 and len(errors) <= LARGE:
            self._purgatory.try_complete_else_watch(operation, operation.keys())
            # Then: who is loaded first is answered alone, as by Kafka. librdkafka's tests want it.
            load()
        else:
            load()
            operation.force_complete()
        return None if operation.is_completed else operation

    def acknowledge(
        self,
        member: Member,
        partition: SharedPartition,
        acks: Sequence[Acknowledgement],
        on_complete: OnCode,
    ) -> None:
        """Take what a member says of records; UNKNOWN_TOPIC_OR_PARTITION if nobody fetched."""
        leader = self._leaders.get(ShareKey(member.group_id, *partition))
        if leader is None:
            on_complete(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            leader.acknowledge(member.member_id, acks, on_complete)

    def is_much(self, group_id: str, acknowledged: Iterable[tuple[SharedPartition, Span]]) -> bool:
        """Whether many runs are in what is acknowledged."""
        count = 0
        for partition, span in acknowledged:
            leader = self._leaders.get(ShareKey(group_id, *partition))
            count += 0 if leader is None else leader.run_count(span)
            if count > LARGE:
                return True
        return False

    def check_leads(self, partition: SharedPartition) -> tuple[str, int]:
        """The partition's topic and leader epoch. KafkaErrors: UNKNOWN_TOPIC_ID,
        UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER."""
        image = self._broker.metadata()
        topic = image.topics_by_id.get(partition.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        registration = topic.partitions.get(partition.partition)
        if registration is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if registration.leader != self._broker.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return topic.name, registration.leader_epoch

    # -- ends --------------------------------------------------------------------------------

    def close_session(self, member: Member) -> None:
        """A member has gone, or closes its session: its records are for others."""
        self._release(member, self.sessions.close(member))
        self._forget_unused([member.group_id])

    def connection_closed(self, connection: object) -> None:
        """The sessions of a connection end with it. What is released is written: much is not by
        the thread of this connection, which others wait for."""
        ended = self.sessions.connection_closed(connection)
        if sum(len(partitions) for _, partitions in ended) > LARGE:
            self._broker.replica_manager.run_aside(partial(self._release_gone, ended))
        else:
            self._release_gone(ended)

    def clear(self) -> None:
        """Share groups are not served any more: nothing of them is kept in memory (Kafka:
        onShareVersionToggle)."""
        self.sessions.clear()
        self._fence(lambda: list(self._leaders.values()))

    def _release(self, member: Member, partitions: Sequence[SharedPartition]) -> None:
        for partition in partitions:
            leader = self._leaders.get(ShareKey(member.group_id, *partition))
            if leader is not None:
                leader.release(member.member_id, _told_nobody)

    def _release_gone(self, ended: Sequence[tuple[Member, list[SharedPartition]]]) -> None:
        """Who has come back keeps what it has: it may have acquired more."""
        for member, partitions in ended:
            if member not in self.sessions:
                self._release(member, partitions)
        self._forget_unused({member.group_id for member, _ in ended})

    def _release_if_gone(self, member: Member, deliveries: Sequence[Delivery]) -> None:
        """Of a member that left while this was read, what it had was released before."""
        if member not in self.sessions:
            for delivery in deliveries:
                if delivery.acquired:
                    delivery.leader.release(member.member_id, _told_nobody)

    def _forget_unused(self, group_ids: Collection[str]) -> None:
        """Keep nothing in memory of those groups that have no session: their offsets may be reset,
        their state deleted and begun anew, and nobody here is told (Kafka:
        ShareGroupListener.onGroupEmpty; there only the end of a connection does it). What is being
        written stays until it is: whoever comes before must find it."""

        def over() -> list[ShareLeader]:
            return [
                leader
                for group_id in group_ids
                if not self.sessions.is_used(group_id)
                for leader in self._of.get(group_id, ())
                if not leader.when_written(partial(self._forget_unused, [group_id]))
            ]

        self._fence(over)

    # -- share partitions --------------------------------------------------------------------

    def _led(
        self,
        member: Member,
        partitions: Sequence[SharedPartition],
        errors: dict[SharedPartition, ErrorCode],
    ) -> list[tuple[ShareLeader, SharedPartition]]:
        """Those that are led here; what is wrong with the others goes to `errors`. Of a member that
        left meanwhile nothing is kept: when its session ended these were not there yet."""
        led = []
        for partition in partitions:
            try:
                led.append((self._leader(ShareKey(member.group_id, *partition)), partition))
            except KafkaError as error:
                errors[partition] = error.code
        if member not in self.sessions:
            self._forget_unused([member.group_id])
        return led

    def _leader(self, key: ShareKey) -> ShareLeader:
        """The share partition. KafkaErrors: those of `check_leads`."""
        topic, leader_epoch = self.check_leads(SharedPartition(key.topic_id, key.partition))
        with self._lock:  # whoever forgets it has looked who has a session, or has not yet
            leader = self._leaders.get(key)
        if leader is not None and leader.leader_epoch < leader_epoch:
            self._forget(leader)  # it was made after the hook had told, of metadata of before
            leader = None
        if leader is None:
            with self._lock:
                new = ShareLeader(key, topic, leader_epoch, self._around)
                leader = self._leaders.setdefault(key, new)
                self._at.setdefault(leader.topic_partition, set()).add(leader)
                self._of.setdefault(key.group_id, set()).add(leader)
        return leader

    def _forget(self, leader: ShareLeader) -> None:
        self._fence(lambda: [leader])

    def _on_leadership(self, topic_partition: tuple[str, int], leader_epoch: int | None) -> None:
        """The replica manager's hook: share partitions live as long as one leadership does."""
        topic = self._broker.metadata().topics_by_name.get(topic_partition[0])
        leads = None if topic is None else topic.topic_id, leader_epoch
        self._fence(
            lambda: [
                leader
                for leader in self._at.get(topic_partition, ())
                if (leader.key.topic_id, leader.leader_epoch) != leads
            ]
        )

    def _fence(self, choose: Callable[[], list[ShareLeader]]) -> None:
        """Forget those that are chosen, with the lock held."""
        with self._lock:
            over = choose()
            for leader in over:
                if self._leaders.get(leader.key) is leader:
                    del self._leaders[leader.key]
                    _take_out(self._at, leader.topic_partition, leader)
                    _take_out(self._of, leader.key.group_id, leader)
        for leader in over:
            leader.fence()

    def _find_offset(self, key: ShareKey, timestamp: int) -> int:
        topic, _ = self.check_leads(SharedPartition(key.topic_id, key.partition))
        code, _, offset, _ = self._broker.replica_manager.list_offset(
            (topic, key.partition), timestamp, 0
        )
        if code:
            raise KafkaError(ErrorCode(code))
        if offset < 0:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "no record is newer")
        return offset


def _take_out(index: dict[K, set[ShareLeader]], key: K, leader: ShareLeader) -> None:
    index[key].discard(leader)
    if not index[key]:
        del index[key]


def _told_nobody(_code: ErrorCode) -> None:
    """Who is gone waits for nothing."""
