"""Where partitions end, asked of their leaders, whoever they are (Kafka:
NetworkPartitionMetadataClient). The lag of share groups is told from it.

Threads: none of its own; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from replication.partition.requests import CONSUMER_REPLICA_ID
from server.peers.call import PeerError
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import ListOffsetsRequest

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from replication.replicas.replica_manager import ReplicaManager
    from server.peers.add_partitions_to_txn import Brokers

CHANNEL = "end-offsets"
"""The connection's name, which goes on the wire as client id."""
_LATEST = -1

OnOffset = Callable[["int | KafkaError"], None]


class EndOffsets:
    """One per broker."""

    def __init__(
        self,
        node_id: int,
        metadata: Callable[[], MetadataImage],
        replica_manager: ReplicaManager,
        brokers: Brokers,
        request_timeout_ms: int,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._brokers = brokers
        self._request_timeout_ms = request_timeout_ms

    def ask(self, topic: str, partition: int, on_complete: OnOffset) -> None:
        """The high watermark, or a KafkaError; once."""
        registration = self._metadata().partition(topic, partition)
        if registration is None:
            on_complete(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif registration.leader == self._node_id:
            code, _, offset, _ = self._replica_manager.list_offset((topic, partition), _LATEST, 0)
            on_complete(KafkaError(ErrorCode(code)) if code else offset)
        elif registration.leader < 0:
            on_complete(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE))
        else:
            self._ask(registration.leader, topic, partition, on_complete)

    def _ask(self, leader: int, topic: str, partition: int, on_complete: OnOffset) -> None:
        make = ListOffsetsRequest
        asked = make.Topic.Partition(partition_index=partition, timestamp=_LATEST)
        request = make(
            replica_id=CONSUMER_REPLICA_ID,
            topics=[make.Topic(name=topic, partitions=[asked])],
            timeout_ms=self._request_timeout_ms,
        )

        def answered(response: Any) -> None:
            if isinstance(response, PeerError):
                on_complete(KafkaError(ErrorCode.NETWORK_EXCEPTION))
                return
            found = [one for topic in response.topics for one in topic.partitions]
            if len(found) != 1:
                on_complete(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
                return
            code, offset = found[0].error_code, found[0].offset
            on_complete(KafkaError(ErrorCode(code)) if code else offset)

        self._brokers.send(
            leader, request, answered, timeout_ms=self._request_timeout_ms, channel=CHANNEL
        )
