"""Telling the controller in which directory each replica is (AssignReplicasToDirs, KIP-858).

Why: when a directory fails, the broker names only the directory, and the controller must know which
replicas went with it; a directory that is missing at the next start must not be taken for a new,
empty one. The controller puts the replicas of a broker with one directory there by itself. What the
log manager chose is reported when metadata says otherwise: "unassigned", or the directory the
replica was in before, on a disk that was replaced. Kafka: AssignmentsManager.

Transitions of a report: wanted --> sent --NONE--> forgotten: metadata says it from now on
                          '<-- in 500 ms --another error, or no answer--'
A newer wish for the same replica replaces an older one. What is reported once more before metadata
says it does no harm.

Lock: that of `OneInFlight` guards the maps; nothing is called under it. At most `ASSIGNMENTS_MAX`
replicas go in one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from replication.replicas.one_in_flight import Delay, OneInFlight, Submit
from wire.errors import ErrorCode
from wire.messages.quorum import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

logger = logging.getLogger(__name__)

RETRY_MS = 500
ASSIGNMENTS_MAX = 2250
"""Kafka's MAX_ASSIGNMENTS_PER_REQUEST: what fits into its request size."""

_Directory = AssignReplicasToDirsRequest.Directory
Replica = tuple[bytes, int]
"""(topic id, partition index)."""


class AssignmentsManager:
    """See the module."""

    def __init__(
        self, submit: Submit, broker_epoch: Callable[[], int], node_id: int, timer: Delay
    ) -> None:
        self._broker_epoch = broker_epoch
        self._node_id = node_id
        self._wanted: dict[Replica, bytes] = {}
        self._on_known: dict[Replica, Callable[[], object]] = {}
        self._controller = OneInFlight(
            submit,
            timer,
            RETRY_MS,
            take=lambda: dict(islice(self._wanted.items(), ASSIGNMENTS_MAX)),
            request=self._request,
            answered=self._answered,
        )

    @property
    def pending(self) -> int:
        """How many replicas' directories the controller does not know yet."""
        return len(self._wanted)

    def report(
        self,
        topic_id: bytes,
        partition_index: int,
        directory_id: bytes,
        on_known: Callable[[], object] | None = None,
    ) -> None:
        """The replica is in this directory, or about to be; the controller thinks otherwise.

        `on_known` is called, with no lock held, once the controller knows; never, if a newer
        report of the replica replaces this one.
        """
        replica = (topic_id, partition_index)
        with self._controller.lock:
            self._wanted[replica] = directory_id
            self._on_known.pop(replica, None)
            if on_known is not None:
                self._on_known[replica] = on_known
        self._controller.send()

    def shutdown(self) -> None:
        """Report nothing more."""
        self._controller.stop()
        with self._controller.lock:
            self._wanted.clear()
            self._on_known.clear()

    def _request(self, sent: Mapping[Replica, bytes]) -> AssignReplicasToDirsRequest:
        return AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            directories=_directories(sent),
        )

    def _answered(self, sent: Mapping[Replica, bytes], answer: object) -> bool:
        done: dict[Replica, bytes] = {}
        if isinstance(answer, AssignReplicasToDirsResponse) and not answer.error_code:
            done = {
                (topic.topic_id, p.partition_index): directory.id
                for directory in answer.directories
                for topic in directory.topics
                for p in topic.partitions
                if p.error_code in _SETTLED
            }
        callbacks = []
        with self._controller.lock:
            for replica, directory_id in done.items():
                if self._wanted.get(replica) == directory_id:
                    del self._wanted[replica]
                    if replica in self._on_known:
                        callbacks.append(self._on_known.pop(replica))
        for callback in callbacks:
            callback()
        if len(done) == len(sent):
            return True
        logger.warning(
            "directories are not known to the controller yet replicas=%s answer=%s",
            len(sent) - len(done),
            answer if not hasattr(answer, "error_code") else ErrorCode(answer.error_code).name,
        )
        return False


_SETTLED = (
    0,
    int(ErrorCode.UNKNOWN_TOPIC_ID),
    int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
)
"""Known, or the replica is gone, or assigned to others by now, and nobody needs to know."""


def _directories(sent: Mapping[Replica, bytes]) -> list[_Directory]:
    by_directory: dict[bytes, dict[bytes, list[Any]]] = {}
    for (topic_id, index), directory_id in sent.items():
        partition = _Directory.Topic.Partition(partition_index=index)
        by_directory.setdefault(directory_id, {}).setdefault(topic_id, []).append(partition)
    return [
        _Directory(
            id=directory_id,
            topics=[
                _Directory.Topic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )
        for directory_id, topics in by_directory.items()
    ]
