"""The asking side of an incremental fetch session (KIP-227). PURE.

What: a follower of a thousand partitions names in each Fetch only those that changed since the last
one; the leader answers only those with news. `server.handlers.fetch_session` is the answering side
and tells the protocol's table. Kafka: FetchSessionHandler.

States, by what the next request says:

    full        session id 0 or the one to close, epoch 0: every partition, "open a session"
    incremental session id N, epoch E: what was put or removed since epoch E-1

    full --answered with session id N--> incremental, epoch 1 --answered--> epoch + 1 ...
    incremental --FETCH_SESSION_ID_NOT_FOUND--> full, id 0
    incremental --another error, or no answer--> full, which closes N: nobody knows its epoch

Duties of the caller: one request at a time; `handle` or `failed` after each `build`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wire.errors import ErrorCode
from wire.messages.data import FetchRequest
from wire.primitives import EPOCH_MAX, INITIAL_EPOCH, NO_SESSION

_Topic = FetchRequest.Topic
_Partition = FetchRequest.Topic.Partition
_ForgottenTopic = FetchRequest.ForgottenTopic

Key = tuple[bytes, int]
"""(topic id, partition index)."""


class PartitionData(NamedTuple):
    """How one partition is fetched, as the leader's session remembers it."""

    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int


class FetchSessionHandler:
    """One session with one leader; see the module. `partitions` is what we want fetched."""

    def __init__(self, partition_max_bytes: int) -> None:
        self.partitions: dict[Key, PartitionData] = {}
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._partition_max_bytes = partition_max_bytes
        self._changed: dict[Key, PartitionData] = {}
        self._forgotten: dict[Key, None] = {}

    def put(self, key: Key, data: PartitionData) -> None:
        """Fetch this partition so from the next request on."""
        self.partitions[key] = data
        self._changed[key] = data
        self._forgotten.pop(key, None)

    def remove(self, key: Key) -> None:
        """Do not fetch it any more; unknown ones are ignored."""
        if self.partitions.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    @property
    def is_idle(self) -> bool:
        """Is there nothing to ask? An empty session is asked once more, so that it is closed."""
        return not self.partitions and (self.epoch == INITIAL_EPOCH or not self._forgotten)

    def build(self) -> FetchRequest:
        """The next request's session, topics and forgotten topics; the caller sets the rest."""
        if self.epoch == INITIAL_EPOCH:
            topics = _topics(self.partitions.items(), self._partition_max_bytes)
            forgotten: list[_ForgottenTopic] = []
        else:
            topics = _topics(self._changed.items(), self._partition_max_bytes)
            forgotten = _forgotten_topics(self._forgotten)
        self._changed = {}
        self._forgotten = {}
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=0,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )

    def handle(self, error_code: int, session_id: int) -> bool:
        """Take the answer's session; False if it was refused, and nothing in it is about data."""
        if error_code:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = NO_SESSION
            self.epoch = INITIAL_EPOCH
            return False
        if session_id == NO_SESSION:  # no room for one, or ours became empty
            self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        elif self.epoch == INITIAL_EPOCH:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1
        return True

    def failed(self) -> None:
        """No answer came: begin anew, and close what the leader may still have."""
        self.epoch = INITIAL_EPOCH


def _topics(items: Iterable[tuple[Key, PartitionData]], max_bytes: int) -> list[_Topic]:
    by_id: dict[bytes, list[_Partition]] = {}
    for (topic_id, index), (offset, start, leader_epoch, last_epoch) in items:
        partitions = by_id.get(topic_id)
        if partitions is None:
            partitions = by_id[topic_id] = []
        partitions.append(
            _Partition(
                partition=index,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                log_start_offset=start,
                partition_max_bytes=max_bytes,
            )
        )
    return [_Topic(topic_id=topic_id, partitions=found) for topic_id, found in by_id.items()]


def _forgotten_topics(keys: Iterable[Key]) -> list[_ForgottenTopic]:
    by_id: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        by_id.setdefault(topic_id, []).append(index)
    return [
        _ForgottenTopic(topic_id=topic_id, partitions=found) for topic_id, found in by_id.items()
    ]
