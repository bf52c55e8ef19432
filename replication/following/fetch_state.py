"""How the fetching of one partition stands: the state of `replication.following.fetcher`, whose
module tells its transitions. PURE."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from replication.partition.partition import Partition
    from storage.log.partition_log import PartitionLog


class FollowedPartition(NamedTuple):
    """A partition to be fetched, and the leader epoch it is to be fetched under."""

    partition: Partition
    leader_epoch: int


class FetchPhase(Enum):
    """See `replication.following.fetcher`."""

    FETCHING = "fetching"
    LATEST = "asking for the leader's end"
    EARLIEST = "asking for the leader's start"


class PartitionFetchState:
    """Where the fetching of one partition stands, under one leader epoch.

    `sent` is what the leader's session knows of it: an answer counts only if the fetch offset is
    still the one that was sent.
    """

    __slots__ = (
        "delayed_until_ms",
        "fetch_offset",
        "is_changed",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "log",
        "partition",
        "phase",
        "refusals",
        "sent_log_start_offset",
        "sent_offset",
    )

    def __init__(self, partition: Partition, log: PartitionLog, leader_epoch: int) -> None:
        self.partition = partition
        self.log = log
        self.leader_epoch = leader_epoch
        self.phase = FetchPhase.FETCHING
        self.fetch_offset = log.log_end_offset
        self.last_fetched_epoch = log.latest_epoch
        self.sent_offset = -1
        self.sent_log_start_offset = -1
        self.is_changed = True
        self.delayed_until_ms: int | None = None
        self.refusals = 0
        """How often the leader, since it last answered, was not yet leader as far as it knew."""
        self.lag: int | None = None
        """Records between our end and the leader's high watermark; None before the first answer."""

    def read_log_end(self) -> bool:
        """Fetch from where the log ends now; True if that is elsewhere than before.

        An answer without records keeps the last epoch as it is (KAFKA-15510): it is the log's.
        """
        before = self.fetch_offset, self.last_fetched_epoch
        self.fetch_offset = self.log.log_end_offset
        self.last_fetched_epoch = self.log.latest_epoch
        self.is_changed = True
        return before != (self.fetch_offset, self.last_fetched_epoch)
