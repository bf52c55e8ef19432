"""Fetches of replicas that have all there is, kept until there is more (Kafka: fetchPurgatory).

A fetch is answered when records are appended, when the high watermark passes the one its sender
knows, when leadership ends, or when its time is up, whichever comes first. Records go out as soon
as they are appended, before our own fsync: followers may write while we sync, and the leader counts
itself only afterwards.
Whoever asks, it is told no more at once than we would ask for (controller.quorum.fetch.max.bytes):
what is read is held in memory, and everybody waits for it (Kafka's goes from the file).
Owner: the raft driver's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from replication.raft.answers import fetch_reply, snapshot_reply
from replication.raft.events import Fetch, FetchReply, FetchSnapshot, FetchSnapshotReply
from replication.raft.log import RaftLog
from replication.raft.quorum_state import QuorumState
from wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

OnFetched = Callable[[FetchReply], None]


class _Parked(NamedTuple):
    deadline_ms: int
    request: Fetch
    on_reply: OnFetched


class ParkedFetches:
    """See the module."""

    def __init__(self, core: QuorumState, log: RaftLog) -> None:
        self._core = core
        self._log = log
        self._parked: list[_Parked] = []
        self._read: tuple[int, int, bytes] | None = None

    @property
    def deadline_ms(self) -> int | None:
        return min((fetch.deadline_ms for fetch in self._parked), default=None)

    def serve(self, request: Fetch, on_reply: OnFetched, now_ms: int) -> None:
        """Answer a valid fetch now, or keep it."""
        self._read = None
        reply = self._news(request)
        if reply is None and request.max_wait_ms > 0:
            self._parked.append(_Parked(now_ms + request.max_wait_ms, request, on_reply))
        else:
            on_reply(reply or fetch_reply(self._core))

    def wake(self) -> None:
        """Records were appended, or the high watermark rose: answer whom it concerns."""
        if not self._parked:
            return
        self._read = None
        parked, self._parked = self._parked, []
        for fetch in parked:
            reply = self._news(fetch.request)
            if reply is None:
                self._parked.append(fetch)
            else:
                fetch.on_reply(reply)
        self._read = None

    def expire(self, now_ms: int) -> None:
        """Answer those whose time is up: nothing new."""
        if any(now_ms >= fetch.deadline_ms for fetch in self._parked):
            due = [fetch for fetch in self._parked if now_ms >= fetch.deadline_ms]
            self._parked = [fetch for fetch in self._parked if now_ms < fetch.deadline_ms]
            for fetch in due:
                fetch.on_reply(fetch_reply(self._core))

    def give_up(self) -> None:
        """We lead no longer: all must ask elsewhere."""
        parked, self._parked = self._parked, []
        for fetch in parked:
            fetch.on_reply(fetch_reply(self._core, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _news(self, request: Fetch) -> FetchReply | None:
        try:
            records = self._records(request.offset, _bytes_for(self._core, request))
        except KafkaError as error:
            return fetch_reply(self._core, error.code)
        if records or self._core.told_high_watermark > request.high_watermark:
            return fetch_reply(self._core, records=records)
        return None

    def _records(self, offset: int, max_bytes: int) -> bytes:
        """Followers mostly wait at the same offset: read once for all of them."""
        read = self._read
        if read is not None and read[:2] == (offset, max_bytes):
            return read[2]
        records = self._log.read(offset, max_bytes)
        self._read = (offset, max_bytes, records)
        return records


def _bytes_for(core: QuorumState, request: Fetch | FetchSnapshot) -> int:
    return min(request.max_bytes, core.config.fetch_max_bytes)


def snapshot_piece(core: QuorumState, log: RaftLog, request: FetchSnapshot) -> FetchSnapshotReply:
    """The piece asked for (K-9), or SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE; KAFKA_STORAGE_ERROR
    without a descriptor for it: nobody who asks may end a leader. Raises OSError for a bad disk.
    """
    snapshot_id, position = request.snapshot_id, request.position
    try:
        found = log.read_snapshot_part(snapshot_id, position, _bytes_for(core, request))
    except OSError as error:
        if not log.may_pass(error):
            raise
        logger.warning("snapshot cannot be read now replica=%s error=%s", request.replica, error)
        return snapshot_reply(core, snapshot_id, ErrorCode.KAFKA_STORAGE_ERROR)
    if found is None:
        return snapshot_reply(core, snapshot_id, ErrorCode.SNAPSHOT_NOT_FOUND)
    size, data = found
    if not 0 <= position < size:
        return snapshot_reply(core, snapshot_id, ErrorCode.POSITION_OUT_OF_RANGE)
    return snapshot_reply(core, snapshot_id, size=size, position=position, data=data)
