"""What a leader gave us goes to disk, then the core hears of it (K-4, K-8, K-9).

Records are appended and synced before the next fetch leaves, a log that parted from the leader's is
cut back, the pieces of a snapshot are put together. A disk without room, a process without
descriptors and a damaged piece are not final: the leader is asked again. Owner: the raft driver's
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from replication.raft.events import (
    Event,
    Fetched,
    FetchReply,
    FetchSnapshotReply,
    LogPosition,
    Ready,
    SnapshotLoaded,
    SnapshotPart,
    Truncated,
)
from replication.raft.log import RaftLog
from replication.raft.snapshots import CorruptSnapshot
from wire.errors import KafkaError

logger = logging.getLogger(__name__)


class Follower:
    """`step` gives an event to the core. `must_sync`: False for who can never vote."""

    def __init__(self, log: RaftLog, step: Callable[[Event], None], must_sync: bool) -> None:
        self._log = log
        self._step = step
        self._must_sync = must_sync

    def take(self, ready: Ready) -> None:
        """Do `ready.truncate`, `accept` or `accept_snapshot`. KafkaError and OSError are final."""
        if ready.truncate is not None:
            self._truncate(ready.truncate)
        elif ready.accept is not None:
            self._accept(ready.accept)
        elif ready.accept_snapshot is not None:
            self._accept_part(ready.accept_snapshot)

    def _truncate(self, leader_ends: LogPosition) -> None:
        try:
            self._log.truncate_to_common(leader_ends)
        except KafkaError as error:
            if not self._log.may_pass(error):
                raise
            logger.error("the metadata log cannot be truncated now error=%s", error)
        self._step(Truncated(self._log.position))

    def _accept(self, reply: FetchReply) -> None:
        sets = self._log.append_as_follower(reply.records, reply.epoch)
        if self._must_sync:
            self._log.flush()
        self._step(Fetched(self._log.position, reply.high_watermark, sets))

    def _accept_part(self, reply: FetchSnapshotReply) -> None:
        snapshot_id = reply.snapshot_id
        try:
            size = self._log.append_to_snapshot(snapshot_id, reply.position, reply.data)
            if size < reply.size and reply.data:
                self._step(SnapshotPart(size))
                return
            voters = self._log.finish_snapshot(snapshot_id)
        except CorruptSnapshot as error:
            logger.error("downloaded snapshot is not usable error=%s", error)
            self._begin_anew()
        except (OSError, KafkaError) as error:
            if not self._log.may_pass(error):
                raise
            logger.error("a snapshot cannot be stored now error=%s", error)
            self._begin_anew()
        else:
            logger.info("restarting the log at snapshot=%s", snapshot_id.file_name)
            self._step(SnapshotLoaded(self._log.position, voters))

    def _begin_anew(self) -> None:
        """Not with what is there: on a full disk it only takes the room of others."""
        self._log.give_up_download()
        self._step(SnapshotPart(None))
