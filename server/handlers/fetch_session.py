"""Incremental fetch sessions (KIP-227): the broker remembers what a consumer fetches.

Why: a consumer of a thousand partitions would name all of them in each Fetch, and get an answer for
each; with a session both sides name only what changed.

    request                           meaning
    id 0, epoch -1                    no session: a full answer
    id 0, epoch 0                     open one: a full answer with its id (0: there was no room)
    id N, epoch 0 or -1               close N, then as above
    id N, epoch E >= 1                what changed since epoch E-1; the answer has only partitions
                                      with news

A partition is news when it has records, an error, another high watermark or log start offset than
last told, a diverging epoch or a preferred replica. After an error its cached high watermark is
unknown, so that it is told again once it is well; after a diverging epoch, too, for a follower that
truncates takes no high watermark (Kafka's CachedPartition takes it for told: on a partition that is
quiet from then on, its follower's stays behind).

States of a session: open at epoch 1 -> E -> E+1 ... (2^31-1 -> 1) -> closed by its client, because
it became empty, or evicted. A full cache evicts the session that was used least recently if that is
over two minutes ago; else the least one of those it may, if the new one is more (Kafka's
FetchSessionCacheShard): followers' sessions are more than consumers', then size counts, as of their
last use. Who is used since more than two minutes may be evicted, and a consumer's session by a
follower's at any time; a consumer never evicts a follower that is there. Consumers' sessions
together hold PARTITIONS_MAX at most: the largest go first. Sessions outlive their connection, as in
Kafka: clients go on with them on the next one.

Ids: 13 and later name topics by id, earlier versions by name; a session cannot change between the
two (106). The answer goes to the partitions in the order of the session, in which partitions that
just gave records go last, so that none starves behind another (KIP-74).

Lock: one per session around its epoch and partitions, one for the cache, which may be
taken under a session's and never the other way round.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from replication.partition.isr import UNKNOWN_OFFSET
from replication.partition.requests import FetchPartition, FetchResult
from replication.replicas.delayed import LARGE
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import TOPIC_ID_VERSION
from wire.primitives import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from replication.replicas.follower_session import FollowerSession
    from wire.messages.data import FetchRequest

EVICTION_MS = 120_000
PARTITIONS_MAX = 1_000_000
"""What all sessions of consumers hold together, some 400 MB: partitions need not exist to be
fetched, and sessions outlive their connection."""

SessionKey = tuple[str | bytes, int]
"""(topic id, or name below version 13; partition index)."""


class CachedPartition:
    """One partition of a session: how to fetch it, and what its client was last told."""

    __slots__ = ("high_watermark", "log_start_offset", "request", "told")

    def __init__(self, request: FetchPartition) -> None:
        self.request = request
        self.high_watermark = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.told: FetchResult | None = None
        """The last result if it was nothing but offsets: the very same again is no news."""

    def take_news(self, result: FetchResult) -> bool:
        """Whether the client must be told `result`; remembers what it will have been told."""
        news = (
            result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
            or (result.records is not None and len(result.records) > 0)
            or result.preferred_read_replica >= 0
        )
        self.high_watermark = result.high_watermark
        self.log_start_offset = result.log_start_offset
        self.told = None
        if result.error_code or result.diverging_epoch is not None:
            self.high_watermark = UNKNOWN_OFFSET
            return True
        if result.records is None and result.preferred_read_replica < 0:
            self.told = result
        return news


class FetchSession:
    """What one client fetches; see the module docstring for its states."""

    __slots__ = (
        "created_ms",
        "epoch",
        "follower",
        "is_privileged",
        "last_used_ms",
        "listing",
        "lock",
        "partitions",
        "session_id",
        "size",
        "unresolved",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, uses_topic_ids: bool, is_privileged: bool, size: int, now_ms: int
    ) -> None:
        """`is_privileged`: a follower's. `size` is in partitions."""
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.is_privileged = is_privileged
        self.size = size
        """How many partitions it had when it was last used."""
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch the next request must have."""
        self.partitions: dict[SessionKey, CachedPartition] = {}
        self.listing: tuple[list[CachedPartition], list[FetchPartition]] | None = None
        """The partitions in order, while neither they nor the order change."""
        self.unresolved = False
        """Whether the topic id of some partition was unknown when last looked at."""
        self.follower: FollowerSession | None = None
        """Of a replica's session: knows which partitions must be looked at."""
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.lock = threading.Lock()

    def update(self, added: Iterable[FetchPartition], forgotten: Iterable[SessionKey]) -> None:
        """Add or change partitions, then forget some."""
        for request in added:
            key = self.key_of(request)
            known = self.partitions.get(key)
            if known is None:
                known = self.partitions[key] = CachedPartition(request)
            else:
                known.request = request
            if self.follower is not None:
                self.follower.changed(known)
            self.unresolved |= not request.topic
            self.listing = None
        for key in forgotten:
            gone = self.partitions.pop(key, None)
            if gone is not None and self.follower is not None:
                self.follower.forget(gone)
            self.listing = None

    def in_order(
        self, resolve: Callable[[bytes], str]
    ) -> tuple[list[CachedPartition], list[FetchPartition]]:
        """The partitions and their requests; unknown topic ids are looked up again."""
        if self.listing is not None and not self.unresolved:
            return self.listing
        entries = list(self.partitions.values())
        self.unresolved = False
        for entry in entries:
            if not entry.request.topic:
                entry.request = _resolved(entry.request, resolve)
                self.unresolved |= not entry.request.topic
        self.listing = (entries, [entry.request for entry in entries])
        return self.listing

    def key_of(self, request: FetchPartition) -> SessionKey:
        return _key_of(request, self.uses_topic_ids)

    def move_to_end(self, requests: Sequence[FetchPartition]) -> None:
        """These gave records: let the others go first next time."""
        if len(self.partitions) == 1:
            return
        for request in requests:
            key = self.key_of(request)
            entry = self.partitions.pop(key, None)
            if entry is not None:
                self.partitions[key] = entry
        self.listing = None


class FetchContext:
    """One Fetch: what is to be read, and what of it is to be answered.

    `requests` are the partitions to read, in order; one with an empty topic has an unknown id.
    """

    __slots__ = (
        "_cache",
        "_entries",
        "_epoch",
        "_follow",
        "_new",
        "_session",
        "follower",
        "requests",
        "session_id",
    )

    def __init__(
        self,
        requests: list[FetchPartition],
        *,
        session: FetchSession | None = None,
        entries: list[CachedPartition] | None = None,
        cache: FetchSessionCache | None = None,
        uses_topic_ids: bool = False,
        follow: Callable[[], FollowerSession] | None = None,
        follower: FollowerSession | None = None,
    ) -> None:
        self.requests = requests
        self.follower = follower
        """Of a replica that goes on with its session: it says what is to be read."""
        self.session_id = NO_SESSION if session is None else session.session_id
        self._session = session
        self._entries = entries
        self._epoch = 0 if session is None else session.epoch
        self._cache = cache
        self._follow = follow
        self._new = uses_topic_ids

    def select(
        self, results: Sequence[FetchResult], now_ms: int
    ) -> list[tuple[FetchPartition, FetchResult]]:
        """What to answer, in order, given one result for each of `requests`; once.

        Opens the session if one was asked for (`session_id` is its id, then). Raises KafkaError
        INVALID_FETCH_SESSION_EPOCH if the session was used by another request meanwhile.
        """
        if self._session is not None and self._entries is not None:
            selected = self._news(self._session, self._entries, results)
            with_records = [request for request, result in selected if result.records]
            if with_records:
                with self._session.lock:
                    self._session.move_to_end(with_records)
            return selected
        pairs = list(zip(self.requests, results, strict=True))
        if self._cache is not None:
            session = self._cache.open(
                self._new, self._follow is not None, len(self.requests), now_ms
            )
            if session is not None:
                if self._follow is not None:
                    session.follower = self._follow()
                self._fill(session, pairs)
                self.session_id = session.session_id
        return pairs

    def select_for_follower(
        self, entries: Sequence[CachedPartition], results: Sequence[FetchResult]
    ) -> list[tuple[FetchPartition, FetchResult]]:
        """`select` of the partitions that were looked at; those with more to say are kept so."""
        assert self._session is not None
        assert self.follower is not None
        try:
            return self._news(self._session, entries, results)
        finally:
            self.follower.put_back(entries, results)

    @staticmethod
    def _fill(session: FetchSession, pairs: list[tuple[FetchPartition, FetchResult]]) -> None:
        with session.lock:
            session.update((request for request, _ in pairs), ())
            for request, result in pairs:
                session.partitions[session.key_of(request)].take_news(result)

    def _news(
        self,
        session: FetchSession,
        entries: Sequence[CachedPartition],
        results: Sequence[FetchResult],
    ) -> list[tuple[FetchPartition, FetchResult]]:
        with session.lock:
            if session.epoch != self._epoch:
                raise KafkaError(
                    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                    "the session was used by another request meanwhile",
                )
            return [
                (entry.request, result)
                for entry, result in zip(entries, results, strict=True)
                if result is not entry.told and entry.take_news(result)
            ]


class FetchSessionCache:
    """All sessions of a broker (max.incremental.fetch.session.cache.slots)."""

    def __init__(self, slots: int, eviction_ms: int = EVICTION_MS) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._lock = threading.Lock()
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions held by all sessions."""
        with self._lock:
            return sum(session.size for session in self._sessions.values())

    def is_large(self, session_id: int) -> bool:
        """Whether a fetch in the session looks at much, however little its request says. Of a
        replica's only what was touched is looked at."""
        session = self._sessions.get(session_id)
        return session is not None and session.follower is None and len(session.partitions) > LARGE

    def context(
        self,
        request: FetchRequest,
        version: int,
        now_ms: int,
        resolve: Callable[[bytes], str],
        follow: Callable[[], FollowerSession] | None = None,
    ) -> FetchContext:
        """What `request` asks for. `resolve` gives the name of a topic id, "" if it has none;
        `follow` is given if a replica asks, and makes what its session keeps beside ours.

        Raises KafkaError for the whole request: FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        epoch = request.session_epoch
        session_id = request.session_id
        uses_topic_ids = version >= TOPIC_ID_VERSION
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION:
                self.close(session_id)
            requests = _partitions_of(request, uses_topic_ids, resolve)
            cache = self if epoch == INITIAL_EPOCH else None
            return FetchContext(requests, cache=cache, uses_topic_ids=uses_topic_ids, follow=follow)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no session {session_id}")
        with session.lock:
            return self._continue(session, request, uses_topic_ids, now_ms, resolve)

    def _continue(
        self,
        session: FetchSession,
        request: FetchRequest,
        uses_topic_ids: bool,
        now_ms: int,
        resolve: Callable[[bytes], str],
    ) -> FetchContext:
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"epoch {request.session_epoch} where {session.epoch} was expected",
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "a session cannot change between topic names and ids",
            )
        if request.topics or request.forgotten_topics_data:
            session.update(
                _partitions_of(request, uses_topic_ids, resolve),
                _forgotten(request, uses_topic_ids),
            )
        if not session.partitions:
            self.close(session.session_id)
            return FetchContext([])
        session.epoch = next_epoch(session.epoch)
        if not self._touch(session, now_ms):
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "there is no room for it any more"
            )
        if session.follower is not None and not session.unresolved:
            return FetchContext([], session=session, follower=session.follower)
        entries, requests = session.in_order(resolve)
        return FetchContext(requests, session=session, entries=entries)

    def _touch(self, session: FetchSession, now_ms: int) -> bool:
        """It is used; False if it became too large to stay."""
        session.last_used_ms = now_ms
        grows = len(session.partitions) > session.size
        session.size = len(session.partitions)
        with self._lock:
            if session.session_id in self._sessions:
                self._sessions.move_to_end(session.session_id)
            return not grows or self._stays(session)

    def open(
        self, uses_topic_ids: bool, is_privileged: bool, size: int, now_ms: int
    ) -> FetchSession | None:
        """A new session for `size` partitions, or None if none may be evicted for it."""
        with self._lock:
            if len(self._sessions) >= self._slots and not self._evict(is_privileged, size, now_ms):
                return None
            session = FetchSession(self._new_id(), uses_topic_ids, is_privileged, size, now_ms)
            self._sessions[session.session_id] = session
            return session if self._stays(session) else None

    def _stays(self, session: FetchSession) -> bool:
        """Whether it does, now that it has grown: the largest of consumers go if there are too many
        partitions. The cache's lock is held."""
        consumers = [one for one in self._sessions.values() if not one.is_privileged]
        held = sum(one.size for one in consumers)
        while held > PARTITIONS_MAX:
            largest = max(consumers, key=_worth)
            consumers.remove(largest)
            held -= largest.size
            del self._sessions[largest.session_id]
            self.evictions += 1
        return session.session_id in self._sessions

    def close(self, session_id: int) -> None:
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None and session.follower is not None:
            session.follower.close()

    def _evict(self, is_privileged: bool, size: int, now_ms: int) -> bool:
        """Make room for a session of `size` partitions, if that is fair."""
        if not self._sessions:
            return False
        stale = next(iter(self._sessions.values()))
        if now_ms - stale.last_used_ms <= self._eviction_ms:
            evictable = [
                session
                for session in self._sessions.values()
                if session.last_used_ms - session.created_ms > self._eviction_ms
                or (is_privileged and not session.is_privileged)
            ]
            if not evictable:
                return False
            stale = min(evictable, key=_worth)
            if (is_privileged, size) <= _worth(stale)[:2]:
                return False
        del self._sessions[stale.session_id]
        if stale.follower is not None:
            stale.follower.close()
        self.evictions += 1
        return True

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(os.urandom(4), "big") & EPOCH_MAX
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


def _worth(session: FetchSession) -> tuple[bool, int, int]:
    return session.is_privileged, session.size, session.session_id


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`: 1 after 2^31-1, because 0 means open."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def _key_of(request: FetchPartition, uses_topic_ids: bool) -> SessionKey:
    if uses_topic_ids:
        return request.topic_id or b"", request.partition_index
    return request.topic, request.partition_index


def _resolved(request: FetchPartition, resolve: Callable[[bytes], str]) -> FetchPartition:
    """The same request with its topic's name, now that it may be known."""
    return FetchPartition(
        resolve(request.topic_id or b""),
        request.topic_id,
        request.partition_index,
        request.fetch_offset,
        request.log_start_offset,
        request.max_bytes,
        request.current_leader_epoch,
        request.last_fetched_epoch,
    )


def _partitions_of(
    request: FetchRequest, uses_topic_ids: bool, resolve: Callable[[bytes], str]
) -> list[FetchPartition]:
    """Of a partition that is named twice the last word counts (a LinkedHashMap in Kafka's)."""
    partitions: dict[SessionKey, FetchPartition] = {}
    for topic in request.topics:
        if uses_topic_ids:
            topic_id: bytes | None = topic.topic_id
            name = resolve(topic.topic_id)
        else:
            topic_id = None
            name = topic.topic
        for p in topic.partitions:
            partitions[topic_id or name, p.partition] = FetchPartition(
                name,
                topic_id,
                p.partition,
                p.fetch_offset,
                p.log_start_offset,
                p.partition_max_bytes,
                p.current_leader_epoch,
                p.last_fetched_epoch,
            )
    return list(partitions.values())


def _forgotten(request: FetchRequest, uses_topic_ids: bool) -> list[SessionKey]:
    return [
        (topic.topic_id if uses_topic_ids else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
