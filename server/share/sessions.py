"""Share sessions: which partitions each member of a share group fetches from this broker (KIP-932).

    epoch                ShareFetch                                   ShareAcknowledge
    0                    open, in place of one there is; may not      INVALID_SHARE_SESSION_EPOCH
                         acknowledge
    the expected one     what changed; the next is expected           the next is expected
    -1                   close, after its acknowledgements            the same
    another              INVALID_SHARE_SESSION_EPOCH                  the same
    without a session    SHARE_SESSION_NOT_FOUND                      the same

The next after 2^31 - 1 is 1. A session ends with its connection: the member is gone, and its
records are for others at once. Unlike a fetch session it is never evicted: there is room or not,
for one more and for its partitions. These need not exist, so all sessions together hold
SHARED_PARTITIONS_MAX of them.

Lock: `_lock` guards all changes; who has a session is asked without it. Nothing is called under it.

Kafka: ShareSessionCache, SharePartitionManager.newContext.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from replication.replicas.delayed import LARGE
from wire.errors import ErrorCode, KafkaError
from wire.primitives import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH

SHARED_PARTITIONS_MAX = 1_000_000
"""As in fetch sessions (`server.handlers.fetch_session`)."""


class SharedPartition(NamedTuple):
    """A partition by its topic's id."""

    topic_id: bytes
    partition: int


class Member(NamedTuple):
    """Who has a session."""

    group_id: str
    member_id: str


class _Session:
    __slots__ = ("connection", "epoch", "partitions")

    def __init__(self, connection: object) -> None:
        self.partitions: dict[SharedPartition, None] = {}
        self.epoch = 1
        self.connection = connection

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


class ShareSessions:
    """See the module; `limit` is group.share.max.share.sessions."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[Member, _Session] = {}
        self._counts: Counter[str] = Counter()
        """How many sessions each group has that has one."""
        self._partition_count = 0
        """Of all sessions."""
        self._lock = threading.Lock()

    def __contains__(self, member: Member) -> bool:
        return member in self._sessions

    def is_large(self, member: Member) -> bool:
        """Whether a request in its session looks at much, however little it says."""
        session = self._sessions.get(member)
        return session is not None and len(session.partitions) > LARGE

    def fetch(
        self,
        member: Member,
        epoch: int,
        added: Collection[SharedPartition],
        forgotten: Collection[SharedPartition],
        connection: object,
        *,
        acknowledges: bool,
    ) -> list[SharedPartition]:
        """What a ShareFetch is to read, another partition first each time; nothing if it closes,
        for which `close` is to be called. KafkaErrors: see the module, and
        SHARE_SESSION_LIMIT_REACHED, with which a session that there is stays as it was."""
        with self._lock:
            if epoch == INITIAL_EPOCH:
                if acknowledges:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "nothing was acquired yet")
                session = self._open(member, added, connection)
            else:
                session = self._expect(member, epoch)
                if epoch == FINAL_EPOCH:
                    session.epoch = FINAL_EPOCH
                    return []
                self._add(session, added)
                session.next_epoch()
                self._partition_count -= len(session.partitions)
                for partition in forgotten:
                    session.partitions.pop(partition, None)
                self._partition_count += len(session.partitions)
            partitions = list(session.partitions)
        shift = epoch % len(partitions) if partitions else 0
        return partitions[shift:] + partitions[:shift]

    def acknowledge(self, member: Member, epoch: int) -> None:
        """A ShareAcknowledge. KafkaErrors: see the module."""
        with self._lock:
            if epoch == INITIAL_EPOCH:
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            session = self._expect(member, epoch)
            if epoch == FINAL_EPOCH:
                session.epoch = FINAL_EPOCH
            else:
                session.next_epoch()

    def close(self, member: Member) -> list[SharedPartition]:
        """End a session that closes, as its last request said; whose records are to be released.
        One that was opened in its place meanwhile goes on."""
        with self._lock:
            session = self._sessions.get(member)
            is_closing = session is not None and session.epoch == FINAL_EPOCH
            return self._end(member) if is_closing else []

    def connection_closed(self, connection: object) -> list[tuple[Member, list[SharedPartition]]]:
        """End the sessions of a connection; whose records are to be released."""
        with self._lock:
            ended = [m for m, one in self._sessions.items() if one.connection is connection]
            return [(member, self._end(member)) for member in ended]

    def clear(self) -> None:
        """End all of them."""
        with self._lock:
            self._sessions.clear()
            self._counts.clear()
            self._partition_count = 0

    def is_used(self, group_id: str) -> bool:
        """Whether a member of the group has a session."""
        return group_id in self._counts

    def _open(
        self, member: Member, partitions: Collection[SharedPartition], connection: object
    ) -> _Session:
        replaced = self._sessions.get(member)
        if replaced is None and len(self._sessions) >= self._limit:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = _Session(connection)
        freed = 0 if replaced is None else len(replaced.partitions)
        self._add(session, partitions, freed)
        self._partition_count -= freed
        self._sessions[member] = session  # in one step: nobody is to find the member gone
        if replaced is None:
            self._counts[member.group_id] += 1
        return session

    def _add(
        self, session: _Session, partitions: Collection[SharedPartition], freed: int = 0
    ) -> None:
        """`freed`: how many there will be less, of a session in whose place this one is."""
        new = dict.fromkeys(one for one in partitions if one not in session.partitions)
        if new and self._partition_count - freed + len(new) > SHARED_PARTITIONS_MAX:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, "there are too many partitions")
        session.partitions.update(new)
        self._partition_count += len(new)

    def _end(self, member: Member) -> list[SharedPartition]:
        session = self._sessions.pop(member, None)
        if session is None:
            return []
        self._partition_count -= len(session.partitions)
        self._counts[member.group_id] -= 1
        if not self._counts[member.group_id]:
            del self._counts[member.group_id]
        return list(session.partitions)

    def _expect(self, member: Member, epoch: int) -> _Session:
        session = self._sessions.get(member)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch not in (FINAL_EPOCH, session.epoch):
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return session
