"""The group coordinator: group APIs on top of `__consumer_offsets`.

Why: handlers know the wire's versions, `GroupShard` knows groups; this module sends each request to
the shard that owns its group, and joins the answers of requests that concern many.

Every method answers through `on_complete`, once: with the response, or with a KafkaError whose code
the API's error response carries. JoinGroup and SyncGroup may be answered much later, by another
thread. Nothing here waits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from replication.metadata.topic_names import GROUP_METADATA_TOPIC
from replication.replicas.transaction_verification import (
    TransactionalProducer,
    TransactionOperation,
)
from server.coordinator.consumer.group import ResolvedRegex
from server.coordinator.consumer.protocol import Outside
from server.coordinator.consumer.regexes import resolved
from server.coordinator.gather import Gather
from server.coordinator.group_config import ConsumerConfig, GroupConfig, ShareConfig, StreamsConfig
from server.coordinator.group_messages import Client, LeavingMember, SeesTopic
from server.coordinator.group_shard import GroupShard
from server.coordinator.held import coordinator_error
from server.coordinator.machine import Decision, Reply, ignore
from server.coordinator.records import CoordinatorRecord, decode_record, encode_record
from server.coordinator.runtime import CoordinatorRuntime, InternalTopic, Surroundings
from server.coordinator.shard_log import RecordSerde, ShardLogConfig
from server.coordinator.share_groups.group import SHARE
from server.coordinator.share_groups.protocol import ShareOutside, Starts
from server.coordinator.streams_groups.describe import not_described as streams_group_failed
from server.coordinator.streams_groups.group import STREAMS
from server.coordinator.streams_groups.internal_topics import InternalTopics
from server.coordinator.streams_groups.protocol import StreamsOutside
from wire.errors import ErrorCode, KafkaError
from wire.messages.groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from wire.primitives import NO_SEQUENCE

if TYPE_CHECKING:
    from replication.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
    from replication.replicas.transaction_verification import TransactionVerification, Verdict
    from server.coordinator.deadlines import Moment
    from server.coordinator.share_groups.service import ShareGroupService
    from server.coordinator.transaction_markers import TxnMarker
    from wire.messages.streams import StreamsGroupDescribeResponse, StreamsGroupHeartbeatRequest
    from wire.messages.transactions import TxnOffsetCommitRequest


GROUP_RESOURCE = 32
"""ConfigResource.Type: where groups have values of their own."""
_DEFAULTS = ConsumerConfig()
_SHARE_DEFAULTS = ShareConfig()
_STREAMS_DEFAULTS = StreamsConfig()
_FEATURES = {"consumer": "group.version", SHARE: "share.version", STREAMS: "streams.version"}
"""What must be finalised for groups of a kind to be served."""
G = TypeVar("G")


class _Look(NamedTuple):
    """A look at a group's regular expressions, under way."""

    wanted: int
    """How many there are."""
    looks: Iterator[tuple[str, ResolvedRegex] | None]
    """At one after the other; None: there is more to look at."""
    found: dict[str, ResolvedRegex]


class GroupCoordinator:
    """One per broker. `new_uuid` makes member ids unique (a random UUID's text)."""

    def __init__(
        self,
        config: GroupConfig,
        around: Surroundings,
        new_uuid: Callable[[], str],
        consumer: ConsumerConfig = _DEFAULTS,
        share: ShareGroupService | None = None,
        share_config: ShareConfig = _SHARE_DEFAULTS,
        streams: StreamsConfig = _STREAMS_DEFAULTS,
    ) -> None:
        """`share` is None where no share groups are served."""
        self.config = config
        self.share_config = share_config
        """As `consumer`."""
        self.streams = streams
        """As `consumer`."""
        self.internal_topics = InternalTopics(around.clock.now_ms)
        """Of streams groups, being made."""
        self.consumer = consumer
        """Of all consumer groups that have no values of their own; may be replaced."""
        self._around = around
        self._new_topics_offset = -1
        self._looks_lock = threading.Lock()
        self._looks: OrderedDict[str, _Look] = OrderedDict()
        """By group, in turn; at the first one the loader's thread is. Guarded by `_looks_lock`."""
        self._outside = Outside(
            around.metadata,
            self._consumer_config,
            self._topics_offset,
            self._resolve,
            new_uuid,
        )
        self._share = share
        self._share_outside = ShareOutside(
            around.metadata, self.share_config_of, self._initialize_share_state
        )
        self._streams_outside = StreamsOutside(around.metadata, self._streams_config)
        topic = InternalTopic(
            GROUP_METADATA_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
        log_config = ShardLogConfig(
            config.offsets_commit_timeout_ms,
            config.offsets_load_buffer_size,
            config.offsets_topic_compression_codec,
        )
        serde = RecordSerde(encode_record, decode_record)
        self.runtime: CoordinatorRuntime[GroupShard, CoordinatorRecord] = CoordinatorRuntime(
            topic, around, serde, log_config, self._new_shard
        )
        if share is not None:
            share.runtime = self.runtime

    def _new_shard(self, _partition: int, _leader_epoch: int, moment: Moment) -> GroupShard:
        return GroupShard(
            self.config, moment, self._outside, self._share_outside, self._streams_outside
        )

    # -- what shards ask ---------------------------------------------------------------------

    def _consumer_config(self, group_id: str) -> ConsumerConfig:
        values = self._around.metadata().config(GROUP_RESOURCE, group_id)
        return self.consumer.of_group(values) if values else self.consumer

    def share_config_of(self, group_id: str) -> ShareConfig:
        """What holds for a share group."""
        values = self._around.metadata().config(GROUP_RESOURCE, group_id)
        return self.share_config.of_group(values) if values else self.share_config

    def _streams_config(self, group_id: str) -> StreamsConfig:
        values = self._around.metadata().config(GROUP_RESOURCE, group_id)
        return self.streams.of_group(values) if values else self.streams

    def _initialize_share_state(self, group_id: str, epoch: int, starts: Starts) -> None:
        self.share.initialize(group_id, epoch, starts)

    @property
    def share(self) -> ShareGroupService:
        """The APIs of share groups; only where they are served."""
        assert self._share is not None, "no share groups are served here"
        return self._share

    def _topics_offset(self) -> int:
        if self._new_topics_offset < 0:
            self._new_topics_offset = self._around.metadata().offset
        return self._new_topics_offset

    def _resolve(self, group_id: str, regexes: Collection[str], sees: SeesTopic | None) -> None:
        """On the loader's thread, for it takes time in proportion to topics and expressions; one
        expression of one group at a time, for others wait there to be loaded. Of a group that is
        looked at already nothing is done (CG-30): it asks again."""
        with self._looks_lock:
            if group_id in self._looks:
                return
            self._looks[group_id] = _Look(len(regexes), self._found(regexes, sees), {})
            is_first = len(self._looks) == 1
        if is_first:
            self._go_on()

    def _found(
        self, regexes: Collection[str], sees: SeesTopic | None
    ) -> Iterator[tuple[str, ResolvedRegex] | None]:
        image, wall_ms = self._around.metadata(), self._around.clock.wall_ms()
        for one in resolved(regexes, image.topics_by_name, sees):
            yield None if one is None else (one[0], ResolvedRegex(one[1], image.offset, wall_ms))

    def _go_on(self) -> None:
        self._around.run_on_loader("regex", self._look_at_next)

    def _look_at_next(self) -> None:
        """Of the first group, at an expression or a part of the names; it is the last group once it
        is through with one."""
        with self._looks_lock:
            group_id, (wanted, looks, found) = next(iter(self._looks.items()))
        one, is_over = None, True
        try:
            one = next(looks)
            if one is not None:
                found[one[0]] = one[1]
            is_over = len(found) == wanted
        finally:
            with self._looks_lock:
                if one is not None:
                    self._looks.move_to_end(group_id)
                if is_over:
                    del self._looks[group_id]
                is_any_left = bool(self._looks)
            if is_any_left:
                self._go_on()
        if is_over:
            self.runtime.write(
                group_id, lambda shard: shard.consumer.regexes_resolved(group_id, found), ignore
            )

    def awaits_target(self, group_id: str) -> bool:
        """Whether the next heartbeat of a consumer or share group may make a target, which takes as
        long as the group is large. A guess, from any thread."""
        shard = self.runtime.look_at(group_id)
        return shard is not None and shard.awaits_target(group_id)

    def is_assigned_here(self, group_id: str) -> bool:
        """Whether it is a consumer group, so that a JoinGroup may make a target, too. As
        `awaits_target`."""
        shard = self.runtime.look_at(group_id)
        return shard is not None and group_id in shard.consumer.groups

    def serves(self, kind: str) -> bool:
        """Whether groups of this kind may be spoken to: its feature is finalised, and consumer
        and streams groups are configured (CG-1)."""
        if kind == SHARE:
            is_configured = self._share is not None
        else:
            is_configured = kind in self.config.group_coordinator_rebalance_protocols
        return is_configured and self._around.metadata().feature(_FEATURES[kind]) > 0

    # -- where groups are --------------------------------------------------------------------

    def partition_for(self, group_id: str) -> int:
        """The partition of __consumer_offsets that keeps the group."""
        return self.runtime.partition_for(group_id)

    def find(
        self, group_id: str, on_complete: Callable[[BrokerRegistration | KafkaError], None]
    ) -> None:
        """The broker that coordinates the group; makes the topic on first use."""
        self.runtime.find(group_id, on_complete)

    def shutdown(self) -> None:
        """Give everything up; parked requests are answered NOT_COORDINATOR."""
        self.runtime.shutdown()

    # -- one group ---------------------------------------------------------------------------

    def join_group(self, request: JoinGroupRequest, client: Client, on_complete: Reply) -> None:
        """Answered when the generation starts; see ClassicGroups.join."""
        self.runtime.write(
            request.group_id,
            lambda shard: shard.join(request, client, on_complete),
            on_complete,
        )

    def sync_group(self, request: SyncGroupRequest, on_complete: Reply) -> None:
        """Answered when the leader's assignment is committed; see ClassicGroups.sync."""
        self.runtime.write(
            request.group_id, lambda shard: shard.sync(request, on_complete), on_complete
        )

    def heartbeat(self, request: HeartbeatRequest, on_complete: Reply) -> None:
        """Budget: 15 µs from here to the answer."""
        self.runtime.write(request.group_id, lambda shard: shard.heartbeat(request), on_complete)

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, on_complete: Reply
    ) -> None:
        """See ConsumerGroups.heartbeat. Budget: 15 µs if nothing has changed."""
        self.runtime.write(
            request.group_id,
            lambda shard: shard.consumer_heartbeat(request, client),
            on_complete,
        )

    def streams_group_heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client: Client, on_complete: Reply
    ) -> None:
        """See StreamsGroups.heartbeat. Budget: 15 µs if nothing has changed."""
        self.runtime.write(
            request.group_id,
            lambda shard: shard.streams.heartbeat(request, client),
            on_complete,
        )

    def leave_group(self, group_id: str, members: list[LeavingMember], on_complete: Reply) -> None:
        """See ClassicGroups.leave."""
        self.runtime.write(group_id, lambda shard: shard.leave(group_id, members), on_complete)

    def commit_offsets(
        self, request: OffsetCommitRequest, api_version: int, on_complete: Reply
    ) -> None:
        """Topics must exist and carry their names; see GroupShard.commit_offsets.

        Budget: 60 µs from here to the answer, of which the log takes half.
        """
        self.runtime.write(
            request.group_id,
            lambda shard: shard.commit_offsets(request, api_version),
            on_complete,
        )

    def commit_transactional_offsets(
        self,
        request: TxnOffsetCommitRequest,
        api_version: int,
        verification: TransactionVerification,
        on_complete: Reply,
    ) -> None:
        """As `commit_offsets`, in a transaction: valid once a COMMIT marker says so.

        The transaction's coordinator is asked first whether it knows of this group, or told of it
        (from version 5 on): TX-37.
        """
        group_id = request.group_id
        partition = self.partition_for(group_id)
        key = GROUP_METADATA_TOPIC, partition

        def verified(verdict: Verdict) -> None:
            code = verdict.errors.get(key)
            if code is not None:
                on_complete(coordinator_error(code))
                return
            guard = verdict.guards.get(key)
            self.runtime.write_to(
                partition,
                lambda shard: shard.commit_transactional_offsets(request, guard),
                on_complete,
            )

        verification.start(
            TransactionalProducer(
                request.transactional_id, request.producer_id, request.producer_epoch
            ),
            {key: NO_SEQUENCE},
            TransactionOperation.of_txn_offset_commit(api_version),
            verified,
        )

    def complete_transaction(self, partition: int, marker: TxnMarker, on_complete: Reply) -> None:
        """Write a marker into a partition of __consumer_offsets and make the offsets of that
        transaction valid or void, in the order of all that is written there (TX-46).

        Answered with ErrorCode.NONE once it is committed; a marker may come again. KafkaError as
        the coordinator says it, for the caller to translate (COORDINATOR_LOAD_IN_PROGRESS,
        NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE: it is to come again), or as the log refuses it
        (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED).
        """
        self.runtime.write_to(
            partition,
            lambda _: Decision(response=ErrorCode.NONE, transaction=marker),
            on_complete,
        )

    def fetch_offsets(
        self, request: OffsetFetchRequest.Group, require_stable: bool, on_complete: Reply
    ) -> None:
        """Topics must carry their names; see Offsets.fetch."""
        self.runtime.read(
            request.group_id,
            lambda shard: shard.fetch_offsets(request, require_stable),
            on_complete,
        )

    def delete_offsets(self, request: OffsetDeleteRequest, on_complete: Reply) -> None:
        """See GroupShard.delete_offsets."""
        self.runtime.write(
            request.group_id,
            lambda shard: shard.delete_offsets(request),
            on_complete,
        )

    # -- many groups -------------------------------------------------------------------------

    def describe_groups(
        self,
        group_ids: Sequence[str],
        api_version: int,
        on_complete: Callable[[list[DescribeGroupsResponse.Group]], None],
    ) -> None:
        """Each group in the order asked; one that cannot be answered carries its error."""
        gather = Gather(len(group_ids), on_complete)
        for i, group_id in enumerate(group_ids):
            self.runtime.read(
                group_id,
                partial(GroupShard.describe_group, group_id=group_id, api_version=api_version),
                partial(gather.put_or, i, partial(_describe_failed, group_id)),
            )

    def describe_consumer_groups(
        self,
        group_ids: Sequence[str],
        on_complete: Callable[[list[ConsumerGroupDescribeResponse.Group]], None],
    ) -> None:
        """Each group in the order asked; one that cannot be answered carries its error."""
        self._describe(
            group_ids, GroupShard.describe_consumer_group, consumer_group_failed, on_complete
        )

    def describe_streams_groups(
        self,
        group_ids: Sequence[str],
        on_complete: Callable[[list[StreamsGroupDescribeResponse.Group]], None],
    ) -> None:
        """As `describe_consumer_groups`."""
        self._describe(
            group_ids, GroupShard.describe_streams_group, streams_group_failed, on_complete
        )

    def _describe(
        self,
        group_ids: Sequence[str],
        look: Callable[[GroupShard, str], G],
        failed: Callable[[str, KafkaError], G],
        on_complete: Callable[[list[G]], None],
    ) -> None:
        gather = Gather(len(group_ids), on_complete)
        for i, group_id in enumerate(group_ids):
            put = partial(gather.put_or, i, partial(failed, group_id))
            if group_id:
                self.runtime.read(group_id, partial(_look, look, group_id), put)
            else:
                put(KafkaError(ErrorCode.INVALID_GROUP_ID))

    def delete_groups(
        self,
        group_ids: Sequence[str],
        on_complete: Callable[[list[DeleteGroupsResponse.Group]], None],
    ) -> None:
        """Each group in the order asked. The state of a share group is deleted first."""
        gather = Gather(len(group_ids), on_complete)
        for i, group_id in enumerate(group_ids):
            put = partial(gather.put_or, i, partial(_delete_failed, group_id))
            delete = partial(
                self.runtime.write, group_id, partial(GroupShard.delete_group, group_id=group_id)
            )
            if self._share is None:
                delete(put)
            else:
                self._share.forget_state(group_id, partial(_then, delete, put))

    def list_groups(
        self, states: Collection[str], types: Collection[str], on_complete: Reply
    ) -> None:
        """The groups of all partitions we lead, as a list; KafkaErrors of
        CoordinatorRuntime.read_all."""
        self.runtime.read_all(lambda machine: machine.list_groups(states, types), on_complete)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The cluster's metadata was published: every group's offsets in deleted topics go, and
        regular expressions may name topics that were created."""
        topics, before = image.topics_by_name, delta.image.topics_by_id
        if any(topics[name].topic_id not in before for name in delta.changed_topics):
            self._new_topics_offset = image.offset
        if delta.deleted_topics:
            deleted = dict(delta.deleted_topics)
            self.runtime.write_to_all(partial(GroupShard.on_topics_deleted, deleted=deleted))
            ids = frozenset(deleted.values())
            self.runtime.write_to_all(partial(GroupShard.on_shared_topics_deleted, topic_ids=ids))


def consumer_group_failed(group_id: str, error: KafkaError) -> ConsumerGroupDescribeResponse.Group:
    """A group that cannot be described."""
    return ConsumerGroupDescribeResponse.Group(
        error_code=error.code,
        error_message=error.detail or None,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _look(look: Callable[[GroupShard, str], G], group_id: str, shard: GroupShard) -> G:
    return look(shard, group_id)


def _then(delete: Callable[[Reply], None], put: Reply, error: KafkaError | None) -> None:
    if error is None:
        delete(put)
    else:
        put(error)


def _describe_failed(group_id: str, error: KafkaError) -> DescribeGroupsResponse.Group:
    return DescribeGroupsResponse.Group(
        error_code=error.code,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _delete_failed(group_id: str, error: KafkaError) -> DeleteGroupsResponse.Group:
    return DeleteGroupsResponse.Group(group_id=group_id, error_code=error.code)
