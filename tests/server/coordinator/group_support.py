"""A group shard with its log in a list and its clock in our hands, for the tests beside it."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection
from functools import partial
from types import MappingProxyType
from typing import Any

from replication.metadata.image import EMPTY_IMAGE
from server.coordinator.consumer.protocol import Outside
from server.coordinator.deadlines import Moment
from server.coordinator.group_config import ConsumerConfig, GroupConfig, ShareConfig, StreamsConfig
from server.coordinator.group_messages import Client, LeavingMember
from server.coordinator.group_shard import GroupShard
from server.coordinator.machine import Batch, Decision, replay_batch
from server.coordinator.records import CoordinatorRecord, decode_record, encode_record
from server.coordinator.share_groups.protocol import ShareOutside
from server.coordinator.streams_groups.protocol import StreamsOutside
from server.coordinator.transaction_markers import TxnMarker
from testkit.clock import WALL_MS
from wire.errors import KafkaError
from wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from wire.messages.transactions import TxnOffsetCommitRequest

GROUP = "g"
NO_SHARES = ShareOutside(lambda: EMPTY_IMAGE, lambda _: ShareConfig(), lambda *_: None)
"""Of a shard whose share groups are not looked at."""
NO_STREAMS = StreamsOutside(lambda: EMPTY_IMAGE, lambda _: StreamsConfig())
"""As NO_SHARES."""


def compacted(log: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """What the cleaner leaves: of each key the newest record, where that was written."""
    newest: dict[bytes, bytes | None] = {}
    for key, value in log:
        newest.pop(key, None)
        newest[key] = value
    return list(newest.items())


def config(**changes: int) -> GroupConfig:
    """A configuration without the initial delay unless asked for."""
    return GroupConfig(**{"group_initial_rebalance_delay_ms": 0, **changes})


class Answer:
    """What one request was answered; more than once is an error."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def __call__(self, result: object) -> None:
        self.results.append(result)
        assert len(self.results) == 1, "answered twice"

    @property
    def waits(self) -> bool:
        return not self.results

    @property
    def error(self) -> int:
        """The error code, whether it is a KafkaError or in a response."""
        (result,) = self.results
        return int(result.code if isinstance(result, KafkaError) else result.error_code)

    @property
    def response(self) -> Any:
        (result,) = self.results
        assert not isinstance(result, KafkaError), result
        return result


class World:
    """One shard, driven like the runtime does: append, replay, answer, run deadlines."""

    def __init__(self, group_config: GroupConfig | None = None, seed: int = 1) -> None:
        self.config = group_config or config()
        self.log: list[Batch[tuple[bytes, bytes | None]]] = []
        self._random = random.Random(seed)
        self.moment = Moment(1_000, WALL_MS)
        self.image: Any = EMPTY_IMAGE
        self.consumer_config = ConsumerConfig()
        self.new_topics_offset = -1
        self.asked_regexes: list[tuple[str, Collection[str]]] = []
        self.shard = self._new_shard()
        self.shard.on_loaded()
        self.looks_twice = True
        """Compare the whole state before and after each decision."""

    def _new_shard(self) -> GroupShard:
        outside = Outside(
            lambda: self.image,
            lambda _: self.consumer_config,
            lambda: self.new_topics_offset,
            lambda group_id, regexes: self.asked_regexes.append((group_id, regexes)),
            lambda: f"{self._random.getrandbits(64):x}",
        )
        return GroupShard(self.config, self.moment, outside, NO_SHARES, NO_STREAMS)

    @property
    def groups(self) -> Any:
        return self.shard.classic.groups

    def state(self, group_id: str = GROUP) -> str:
        group = self.groups.get(group_id)
        return "none" if group is None else str(group.state.value)

    # -- driving

    def run(self, call: Callable[[], Any], answer: Answer | None = None) -> Answer:
        """One request: `call` gives a Decision, or a response, or raises KafkaError.

        Whatever it gives, it has changed nothing yet.
        """
        answer = answer or Answer()
        try:
            result = self._decide(call)
        except KafkaError as error:
            result = error
        if isinstance(result, Decision):
            self._carry_out(result)
            result = result.response
        if result is not None:
            answer(result)
        self._answer()
        self.advance(0)
        return answer

    def _decide(self, decide: Callable[[], Any]) -> Any:
        if not self.looks_twice:
            return decide()
        before = state_of(self.shard)
        try:
            return decide()
        finally:
            assert state_of(self.shard) == before, "a decision changes nothing"

    def _carry_out(self, decision: Decision[CoordinatorRecord]) -> None:
        batch = decision.batch()
        if decision.is_written:
            encoded = [encode_record(record) for record in decision.records]
            self.log.append(batch._replace(records=encoded))
        if decision.change is not None:
            decision.change()
        replay_batch(self.shard, batch)

    def _answer(self) -> None:
        replies, self.shard.outbox[:] = self.shard.outbox[:], []
        for reply, result in replies:
            reply(result)

    def advance(self, ms: int) -> None:
        """Let time pass, running what is due on the way."""
        end_ms = self.moment.now_ms + ms
        deadlines = self.shard.deadlines
        while True:
            while (due := deadlines.pop_due(self.moment.now_ms)) is not None:
                decision = self._decide(due[1])
                if decision is not None:
                    self._carry_out(decision)
                    self._answer()
            wake_ms = deadlines.next_wake_ms()
            if wake_ms is None or wake_ms > end_ms:
                break
            self._move(wake_ms)
        self._move(end_ms)

    def _move(self, now_ms: int) -> None:
        self.moment.wall_ms += now_ms - self.moment.now_ms
        self.moment.now_ms = now_ms

    def replayed(self) -> GroupShard:
        """A second shard, loaded from the log as it is."""
        shard = self._new_shard()
        for batch in self.log:
            records = [decode_record(key, value) for key, value in batch.records]
            replay_batch(shard, batch._replace(records=records))
        return shard

    def fail_over(self) -> None:
        """The broker is gone; another one loads the log."""
        self.shard = self.replayed()
        self.shard.on_loaded()

    # -- requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        instance_id: str | None = None,
        version: int = 9,
        client_id: str = "c",
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        protocol_type: str = "consumer",
        protocols: list[tuple[str, bytes]] | None = None,
    ) -> Answer:
        answer = Answer()
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.Protocol(name=name, metadata=metadata)
                for name, metadata in (protocols or [("range", subscription("t"))])
            ],
        )
        client = Client(client_id, "/127.0.0.1", version)
        return self.run(lambda: self.shard.join(request, client, answer), answer)

    def join_new(self, **how: Any) -> tuple[str, Answer]:
        """A dynamic member's two JoinGroups (KIP-394); the second one's answer."""
        first = self.join(**how)
        assert first.error == 79
        member_id = first.response.member_id
        return member_id, self.join(member_id, **how)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = None,
    ) -> Answer:
        answer = Answer()
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member, assignment=part)
                for member, part in (assignments or {}).items()
            ],
        )
        return self.run(lambda: self.shard.sync(request, answer), answer)

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None, group: str = GROUP
    ) -> int:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
        )
        return self.run(lambda: self.shard.heartbeat(request)).error

    def leave(self, *members: tuple[str, str | None], group: str = GROUP) -> list[int]:
        leaving = [LeavingMember(*member) for member in members]
        answer = self.run(lambda: self.shard.leave(group, leaving))
        return [member.error_code for member in answer.response.members]

    def commit(
        self,
        offset: int,
        *,
        topic: str = "t",
        partition: int = 0,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        group: str = GROUP,
        metadata: str | None = "",
        retention_ms: int = -1,
        topic_id: bytes = bytes(16),
        version: int = 9,
    ) -> int:
        """Commit one offset; the partition's error code, or the whole request's."""
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequest.Topic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequest.Topic.Partition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        answer = self.run(lambda: self.shard.commit_offsets(request, version))
        result = answer.results[0]
        if isinstance(result, KafkaError):
            return int(result.code)
        return int(result.topics[0].partitions[0].error_code)

    def fetch(
        self,
        topic: str = "t",
        partition: int = 0,
        *,
        group: str = GROUP,
        topic_id: bytes = bytes(16),
        stable: bool = False,
    ) -> int:
        """One committed offset; with `stable` the error code as a negative number, if any."""
        request = OffsetFetchRequest.Group(
            group_id=group,
            topics=[
                OffsetFetchRequest.Group.Topic(
                    name=topic, topic_id=topic_id, partition_indexes=[partition]
                )
            ],
        )
        answer = self.run(lambda: self.shard.fetch_offsets(request, stable))
        found = answer.response.topics[0].partitions[0]
        if found.error_code and stable:
            assert found.committed_offset == -1
            return -int(found.error_code)
        assert found.error_code == 0
        return int(found.committed_offset)

    # -- transactions

    def commit_in(
        self,
        producer_id: int,
        offset: int,
        *,
        topic: str = "t",
        partition: int = 0,
        group: str = GROUP,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        metadata: str | None = "",
    ) -> int:
        """Commit one offset in the producer's transaction; the error code as `commit` has it."""
        request = TxnOffsetCommitRequest(
            transactional_id=f"tx-{producer_id}",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[
                TxnOffsetCommitRequest.Topic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.Topic.Partition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        answer = self.run(lambda: self.shard.commit_transactional_offsets(request, None))
        result = answer.results[0]
        if isinstance(result, KafkaError):
            return int(result.code)
        return int(result.topics[0].partitions[0].error_code)

    def end(self, producer_id: int, is_commit: bool = True) -> None:
        """The producer's marker."""
        marker = TxnMarker(producer_id, 0, is_commit, 0, 2)
        self.run(lambda: Decision(response=0, transaction=marker))

    # -- whole rebalances

    def stable(self, count: int = 1, **how: Any) -> list[str]:
        """A Stable group of `count` dynamic members in its latest generation; the first leads."""
        members: list[str] = []
        joins: list[Answer] = []
        for _ in range(count):
            member_id, answer = self.join_new(**how)
            members.append(member_id)
            joins = [self.join(member, **how) for member in members[:-1]]
            joins.append(answer)
        generation = joins[-1].response.generation_id
        parts = {member: f"part of {member}".encode() for member in members}
        syncs = [self.sync(member, generation) for member in members[1:]]
        syncs.insert(0, self.sync(members[0], generation, parts))
        for member, sync in zip(members, syncs, strict=True):
            assert sync.response.assignment == parts[member]
        assert self.state(how.get("group", GROUP)) == "Stable"
        return members

    def generation(self, group: str = GROUP) -> int:
        return int(self.groups[group].generation_id)


def state_of(value: Any) -> Any:
    """All that can be reached from `value`, as plain data to compare."""
    return _state_of(value, {})


def _state_of(value: Any, seen: dict[int, int]) -> Any:
    if value is None or isinstance(value, (int, str, bytes, enum.Enum, GroupConfig)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, (dict, MappingProxyType)):
        return [(_state_of(k, seen), _state_of(v, seen)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_state_of(item, seen) for item in value]
    if isinstance(value, partial):
        return [value.func.__name__, _state_of(value.args, seen)]
    if callable(value):
        return "callable"
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names += list(getattr(value, "__dict__", ()))
    return [(name, _state_of(getattr(value, name, None), seen)) for name in names]


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription, version 0."""
    body = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"
