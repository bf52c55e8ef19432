"""The APIs of share groups: what the group's shard decides, and what follows elsewhere.

Why: the state of share partitions is kept by the share coordinator, on whatever broker. A request
that begins, deletes or reads state asks the shard first, then there, then the shard again.

Every method answers through `on_complete`, once, and never waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from server.coordinator.gather import Gather
from server.coordinator.group_messages import Client
from server.coordinator.machine import Reply, ignore
from server.coordinator.share.shard import Summary
from server.coordinator.share_groups import admin
from server.coordinator.share_groups.admin import Altering, Deleting
from server.coordinator.share_groups.describe import described, not_described
from server.coordinator.share_groups.protocol import Starts
from server.coordinator.share_groups.topics import UNKNOWN_NAME, Topics, named
from server.share.state_batches import UNINITIALIZED, ShareKey
from wire.errors import ErrorCode, KafkaError
from wire.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
)
from wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from server.coordinator.group_shard import GroupShard
    from server.coordinator.records import CoordinatorRecord
    from server.coordinator.runtime import CoordinatorRuntime

logger = logging.getLogger(__name__)

OnCode = Callable[[ErrorCode], None]
_Described = DescribeShareGroupOffsetsResponse.Group
_Partition = _Described.Topic.Partition


class ShareState(Protocol):
    """Where the state of share partitions is begun, deleted and read
    (server.peers.share_persister). Answers come once, from any thread, or at once."""

    def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int, on_complete: OnCode
    ) -> None: ...

    def delete(self, key: ShareKey, on_complete: OnCode) -> None: ...

    def summary(
        self, key: ShareKey, on_complete: Callable[[Summary | KafkaError], None]
    ) -> None: ...


EndOffset = Callable[[str, int, Callable[[int | KafkaError], None]], None]
"""Ask for the end of a topic's partition, wherever it is led."""


class ShareGroupService:
    """One per broker. The group coordinator gives it its shards (`runtime`) when it is made."""

    runtime: CoordinatorRuntime[GroupShard, CoordinatorRecord]

    def __init__(
        self,
        state: ShareState,
        end_offset: EndOffset,
        metadata: Callable[[], MetadataImage],
        wall_ms: Callable[[], int],
    ) -> None:
        self._state = state
        self._end_offset = end_offset
        self._metadata = metadata
        self._wall_ms = wall_ms

    # -- members -----------------------------------------------------------------------------

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: Client, on_complete: Reply
    ) -> None:
        """See ShareGroups.heartbeat. Budget: 15 µs if nothing has changed."""
        self.runtime.write(
            request.group_id, lambda shard: shard.share.heartbeat(request, client), on_complete
        )

    def describe(
        self,
        group_ids: Sequence[str],
        on_complete: Callable[[list[ShareGroupDescribeResponse.Group]], None],
    ) -> None:
        """Each group in the order asked; one that cannot be answered carries its error."""
        gather = Gather(len(group_ids), on_complete)
        for i, group_id in enumerate(group_ids):
            put = partial(gather.put_or, i, partial(not_described, group_id))
            if group_id:
                look = partial(self._describe, group_id)
                self.runtime.read(group_id, look, put)
            else:
                put(KafkaError(ErrorCode.INVALID_GROUP_ID))

    def _describe(self, group_id: str, shard: GroupShard) -> ShareGroupDescribeResponse.Group:
        return described(shard.share.of_id(group_id), self._metadata())

    # -- beginning state ---------------------------------------------------------------------

    def initialize(self, group_id: str, epoch: int, starts: Starts) -> None:
        """See ShareOutside."""
        parts = {id_: frozenset(offsets) for id_, offsets in starts.items()}
        topics = named(parts, self._metadata(), self._wall_ms())

        def done(code: ErrorCode, _codes: Mapping[ShareKey, ErrorCode]) -> None:
            if code:
                logger.warning(
                    "state of share partitions was not begun group=%s error=%s", group_id, code.name
                )
            self._settle(group_id, topics, ignore, is_done=not code)

        self._begin(group_id, epoch, starts, done)

    def _begin(
        self,
        group_id: str,
        epoch: int,
        starts: Starts,
        done: Callable[[ErrorCode, Mapping[ShareKey, ErrorCode]], None],
    ) -> None:
        """`done` is told the first error, and all."""

        def ask(key: ShareKey, reply: OnCode) -> None:
            start_offset = starts[key.topic_id][key.partition]
            self._state.initialize(key, epoch, start_offset, reply)

        def answer(codes: Mapping[ShareKey, ErrorCode]) -> None:
            done(next(filter(None, codes.values()), ErrorCode.NONE), codes)

        self._each(_keys(group_id, starts), ask, answer)

    def _settle(self, group_id: str, topics: Topics, reply: Reply, *, is_done: bool) -> None:
        self.runtime.write(
            group_id,
            lambda shard: (
                shard.share.initialized(group_id, topics)
                if is_done
                else shard.share.not_initialized(group_id, topics)
            ),
            reply,
        )

    def alter_offsets(self, request: AlterShareGroupOffsetsRequest, on_complete: Reply) -> None:
        """An AlterShareGroupOffsetsResponse, or a KafkaError of admin.alter_offsets."""
        if not request.group_id:
            on_complete(KafkaError(ErrorCode.INVALID_GROUP_ID))
            return

        def decided(result: object) -> None:
            if isinstance(result, KafkaError):
                on_complete(result)
                return
            altering = cast("Altering", result)
            self._begin(
                request.group_id,
                altering.epoch,
                altering.starts,
                partial(self._altered, request.group_id, altering, on_complete),
            )

        self.runtime.write(
            request.group_id, lambda shard: admin.alter_offsets(shard.share, request), decided
        )

    def _altered(
        self,
        group_id: str,
        altering: Altering,
        on_complete: Reply,
        code: ErrorCode,
        codes: Mapping[ShareKey, ErrorCode],
    ) -> None:
        response: AlterShareGroupOffsetsResponse = altering.response
        for topic in response.responses:
            for one in topic.partitions:
                told = codes.get(ShareKey(group_id, topic.topic_id, one.partition_index))
                if told:
                    one.error_code, one.error_message = int(told), told.name
        if code or not altering.topics:
            on_complete(response)
            return
        self._settle(group_id, altering.topics, lambda _: on_complete(response), is_done=True)

    # -- deleting state ----------------------------------------------------------------------

    def forget_state(self, group_id: str, on_complete: Callable[[KafkaError | None], None]) -> None:
        """Delete all state of a group that is to be deleted; nothing if it is no share group."""

        def decided(result: object) -> None:
            if isinstance(result, KafkaError):
                on_complete(result)
                return
            keys = _keys(group_id, cast("Deleting", result).partitions)
            self._each(keys, self._state.delete, answer)

        def answer(codes: Mapping[ShareKey, ErrorCode]) -> None:
            code = next(filter(None, codes.values()), None)
            on_complete(None if code is None else KafkaError(code))

        self.runtime.write(
            group_id, lambda shard: admin.begin_delete(shard.share, group_id), decided
        )

    def delete_offsets(self, request: DeleteShareGroupOffsetsRequest, on_complete: Reply) -> None:
        """A DeleteShareGroupOffsetsResponse, or a KafkaError of admin.begin_delete_offsets."""
        group_id = request.group_id
        if not group_id:
            on_complete(KafkaError(ErrorCode.INVALID_GROUP_ID))
            return
        names = [topic.topic_name for topic in request.topics]

        def decided(result: object) -> None:
            if isinstance(result, KafkaError):
                on_complete(result)
                return
            deleting = cast("Deleting", result)
            self._each(
                _keys(group_id, deleting.partitions),
                self._state.delete,
                partial(self._offsets_deleted, group_id, deleting, on_complete),
            )

        self.runtime.write(
            group_id,
            lambda shard: admin.begin_delete_offsets(shard.share, group_id, names),
            decided,
        )

    def _offsets_deleted(
        self,
        group_id: str,
        deleting: Deleting,
        on_complete: Reply,
        codes: Mapping[ShareKey, ErrorCode],
    ) -> None:
        answers = list(deleting.failed)
        gone = set()
        failed: dict[bytes, ErrorCode] = {}
        for key, code in codes.items():
            if code:
                failed.setdefault(key.topic_id, code)
        for topic_id in deleting.partitions:
            known = self._metadata().topics_by_id.get(topic_id)
            name = UNKNOWN_NAME if known is None else known.name
            code = failed.get(topic_id, ErrorCode.NONE)
            answers.append(admin.deleted(topic_id, name, int(code), code.name if code else None))
            if not code:
                gone.add(topic_id)
        response = DeleteShareGroupOffsetsResponse(error_code=0, responses=answers)

        def written(result: object) -> None:
            on_complete(result if isinstance(result, KafkaError) else response)

        self.runtime.write(
            group_id,
            lambda shard: admin.end_delete_offsets(shard.share, group_id, frozenset(gone)),
            written,
        )

    # -- reading state -----------------------------------------------------------------------

    def describe_offsets(
        self,
        asked: DescribeShareGroupOffsetsRequest.Group,
        on_complete: Callable[[_Described], None],
    ) -> None:
        """Where a group is in these partitions, or in all that are initialized."""
        group_id = asked.group_id

        def found(result: object) -> None:
            if isinstance(result, KafkaError):
                on_complete(
                    _Described(
                        group_id=group_id,
                        topics=[],
                        error_code=int(result.code),
                        error_message=result.detail or result.code.name,
                    )
                )
                return
            image = self._metadata()
            parts = cast("Mapping[bytes, frozenset[int]]", result)
            wanted = [
                (image.topics_by_id[id_].name, sorted(of))
                for id_, of in parts.items()
                if id_ in image.topics_by_id
            ]
            self._summaries(group_id, wanted, on_complete)

        if asked.topics is not None:
            wanted = [(topic.topic_name, topic.partitions) for topic in asked.topics]
            self._summaries(group_id, wanted, on_complete)
        else:
            self.runtime.read(group_id, partial(_initialized, group_id), found)

    def _summaries(
        self,
        group_id: str,
        wanted: Sequence[tuple[str, Sequence[int]]],
        on_complete: Callable[[_Described], None],
    ) -> None:
        """What is there is asked about, once however often it is named."""
        topics_by_name = self._metadata().topics_by_name
        told: dict[tuple[str, int], _Partition] = {}
        for name, indexes in wanted:
            for index in indexes:
                told[name, index] = _Partition(
                    partition_index=index, start_offset=UNINITIALIZED, leader_epoch=0, error_code=0
                )
        topics = [
            _Described.Topic(
                topic_name=name,
                topic_id=topics_by_name[name].topic_id if name in topics_by_name else ZERO_UUID,
                partitions=[told[name, index] for index in indexes],
            )
            for name, indexes in wanted
        ]
        known = [
            (name, one)
            for (name, index), one in told.items()
            if name in topics_by_name and index in topics_by_name[name].partitions
        ]

        def answer(_: object) -> None:
            on_complete(_Described(group_id=group_id, topics=topics, error_code=0))

        gather: Gather[bool] = Gather(len(known), answer)
        for i, (name, one) in enumerate(known):
            key = ShareKey(group_id, topics_by_name[name].topic_id, one.partition_index)
            done = partial(gather.put, i, True)
            self._state.summary(key, partial(self._told_summary, name, one, done))

    def _told_summary(
        self,
        topic: str,
        one: _Partition,
        done: Callable[[], None],
        summary: Summary | KafkaError,
    ) -> None:
        """Fill in where the partition is; an error is told as if nothing were known."""
        if isinstance(summary, KafkaError):
            done()
            return
        one.start_offset, one.leader_epoch = summary.start_offset, summary.leader_epoch
        if UNINITIALIZED in (summary.start_offset, summary.complete_count):
            done()
            return

        def ended(end_offset: int | KafkaError) -> None:
            if isinstance(end_offset, KafkaError):
                one.start_offset, one.leader_epoch = 0, 0
                one.error_code = int(end_offset.code)
                one.error_message = end_offset.code.name
            else:
                one.lag = end_offset - summary.start_offset - summary.complete_count
            done()

        self._end_offset(topic, one.partition_index, ended)

    # -- many partitions ---------------------------------------------------------------------

    @staticmethod
    def _each(
        keys: Sequence[ShareKey],
        ask: Callable[[ShareKey, OnCode], None],
        on_complete: Callable[[dict[ShareKey, ErrorCode]], None],
    ) -> None:
        gather: Gather[Any] = Gather(
            len(keys), lambda codes: on_complete(dict(zip(keys, codes, strict=True)))
        )
        for i, key in enumerate(keys):
            ask(key, partial(gather.put, i))


def _keys(group_id: str, partitions: Mapping[bytes, Iterable[int]]) -> list[ShareKey]:
    return [
        ShareKey(group_id, id_, index) for id_, of in partitions.items() for index in sorted(of)
    ]


def _initialized(group_id: str, shard: GroupShard) -> dict[bytes, frozenset[int]]:
    group = shard.share.groups.get(group_id)
    return {} if group is None else dict(group.topics.assignable)
