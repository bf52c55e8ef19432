"""Group members that do no more than they must, over bare sockets: hundreds cost next to nothing.

Each is the one member of a classic group and gives itself nothing to read; what it asks afterwards
(heartbeats, commits, fetches) are frames made once.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.loads import frames
from benchmarks.loads.base import LoadFailed
from wire.messages.data import FetchRequest
from wire.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

_FIND, _JOIN, _SYNC, _HEARTBEAT, _COMMIT, _FETCH = 3, 3, 3, 3, 7, 11
_SESSION_MS = 45_000
_COORDINATOR_S = 30.0
NOT_YET = (14, 15, 16)  # COORDINATOR_LOAD_IN_PROGRESS, _NOT_AVAILABLE, NOT_COORDINATOR
_NO_SUBSCRIPTION = bytes(2 + 4 + 4)


class Member:
    """The member of one group, known to the broker when this returns."""

    def __init__(self, sock: frames.Socket, group: str) -> None:
        self.group = group
        protocol = JoinGroupRequest.Protocol(name="range", metadata=_NO_SUBSCRIPTION)
        join = JoinGroupRequest(
            group_id=group, session_timeout_ms=_SESSION_MS, rebalance_timeout_ms=_SESSION_MS,
            member_id="", protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        joined = _accepted(sock, join, _JOIN)
        self.member_id: str = joined.member_id
        self.generation: int = joined.generation_id
        own = SyncGroupRequest.Assignment(member_id=self.member_id, assignment=_NO_SUBSCRIPTION)
        sync = SyncGroupRequest(
            group_id=group, generation_id=self.generation, member_id=self.member_id,
            assignments=[own],
        )  # fmt: skip
        _accepted(sock, sync, _SYNC)

    def heartbeat(self) -> bytes:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        return frames.frame(request, _HEARTBEAT)

    def commit(self, topic: str, partition: int) -> bytes:
        """OffsetCommit of one partition."""
        position = OffsetCommitRequest.Topic.Partition(
            partition_index=partition, committed_offset=0, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group, generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[OffsetCommitRequest.Topic(name=topic, partitions=[position])],
        )  # fmt: skip
        return frames.frame(request, _COMMIT)


def await_coordinator(sock: frames.Socket) -> None:
    """Until there is one: who asks first has the topic of offsets made."""
    request = FindCoordinatorRequest(key="first", key_type=0)
    _accepted(sock, request, _FIND)


def fetch_frame(topic: str, partition: int, wait_ms: int) -> bytes:
    """Fetch of one partition from its start, with no session."""
    position = FetchRequest.Topic.Partition(
        partition=partition, fetch_offset=0, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        topics=[FetchRequest.Topic(topic=topic, partitions=[position])],
    )  # fmt: skip
    return frames.frame(request, _FETCH)


def _accepted(sock: frames.Socket, request: Any, version: int) -> Any:
    """The answer without an error; the coordinator may need a moment before its first group."""
    deadline = time.monotonic() + _COORDINATOR_S
    while True:
        answer: Any = frames.ask(sock, request, version)
        if not answer.error_code:
            return answer
        if answer.error_code not in NOT_YET or time.monotonic() > deadline:
            raise LoadFailed(f"{type(request).__name__}: error {answer.error_code}")
        time.sleep(0.1)
