"""What a leader gave us goes to disk, then the core hears of it (K-4, K-8, K-9).

Records are appended and synced before the next fetch leaves, a log that parted from the leader's is
cut back, the pieces of a snapshot are put together. A disk without room or a damaged piece is not
final: the leader is asked again. Owner: the raft driver's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from replication.raft.events import (
    Event,
    Fetched,
    FetchReply,
    FetchSnapshotReply,
    Ready,
    SnapshotLoaded,
    SnapshotPart,
    Truncated,
    VotersAppended,
)
from replication.raft.log import RaftLog
from replication.raft.snapshots import CorruptSnapshot
from storage import files

logger = logging.getLogger(__name__)


class Follower:
    """`step` gives an event to the core. `must_sync`: False for who can never vote."""

    def __init__(self, log: RaftLog, step: Callable[[Event], None], must_sync: bool) -> None:
        self._log = log
        self._step = step
        self._must_sync = must_sync

    def take(self, ready: Ready) -> None:
        """Do `ready.truncate`, `accept` or `accept_snapshot`. Raises KafkaError, OSError."""
        if ready.truncate is not None:
            self._log.truncate_to_common(ready.truncate)
            self._step(Truncated(self._log.position))
        elif ready.accept is not None:
            self._accept(ready.accept)
        elif ready.accept_snapshot is not None:
            self._accept_part(ready.accept_snapshot)

    def _accept(self, reply: FetchReply) -> None:
        sets = self._log.append_as_follower(reply.records, reply.epoch)
        if self._must_sync:
            self._log.flush()
        for offset, voters in sets:
            self._step(VotersAppended(offset, voters))
        self._step(Fetched(self._log.position, reply.high_watermark))

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
        except OSError as error:
            if not files.is_disk_full(error):
                raise
            logger.error("no room for a snapshot error=%s", error)
            self._begin_anew()
        else:
            logger.info("restarting the log at snapshot=%s", snapshot_id.file_name)
            self._step(SnapshotLoaded(self._log.position, voters))

    def _begin_anew(self) -> None:
        """Not with what is there: on a full disk it only takes the room of others."""
        self._log.give_up_download()
        self._step(SnapshotPart(None))
