"""What the broker counts, read from plain attributes, by Kafka's metric names.

Why like this: a hot path that only adds to an int of its own costs nothing and knows no metrics
library; whoever wants numbers reads them here, at the cost of the reader. Names are those of
Kafka's MBeans, type and name joined by a dot (kafka.network:type=SocketServer and its kin).

Gaps: there is no exporter yet, and no rates or histograms: counters and gauges only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.network.socket_server import SocketServer


def snapshot(broker: Any) -> dict[str, int]:
    """All counters and gauges of a running broker, now."""
    values = network(broker.socket_server)
    values |= replication(broker.replica_manager)
    sessions = broker.fetch_sessions
    values["FetchSessionCache.NumIncrementalFetchSessions"] = len(sessions)
    values["FetchSessionCache.NumIncrementalFetchPartitionsCached"] = sessions.partition_count
    values["FetchSessionCache.IncrementalFetchSessionEvictions"] = sessions.evictions
    values |= quorum(broker)
    image = broker.metadata
    values["KafkaController.GlobalTopicCount"] = len(image.topics_by_name)
    alive = len(image.alive_brokers())
    values["KafkaController.ActiveBrokerCount"] = alive
    values["KafkaController.FencedBrokerCount"] = len(image.brokers) - alive
    return values


def quorum(node: Any) -> dict[str, int]:
    """The metadata quorum as this node sees it (raft-metrics), and how far its image has come."""
    raft, controller = node.raft, node.local_controller
    return {
        "raft-metrics.current-leader": raft.leader_id,
        "raft-metrics.current-epoch": raft.leader_epoch,
        "raft-metrics.high-watermark": raft.high_watermark,
        "raft-metrics.log-end-offset": raft.log.end_offset,
        "broker-metadata-metrics.last-applied-record-offset": node.metadata.offset,
        "KafkaController.ActiveControllerCount": int(
            controller is not None and controller.is_active
        ),
    }


def network(server: SocketServer) -> dict[str, int]:
    """Connections, requests and bytes."""
    processors = server.processors
    channel = server.request_channel
    return {
        "SocketServer.ConnectionCount": server.quotas.count,
        "SocketServer.ConnectionsAccepted": server.quotas.accepted,
        "SocketServer.ConnectionsRejected": server.quotas.rejected,
        "SocketServer.ExpiredConnectionsKilledCount": sum(
            p.connections_expired for p in processors
        ),
        "SocketServer.MemoryPoolAvailable": server.memory.available,
        "RequestMetrics.Requests": sum(p.requests for p in processors),
        "RequestMetrics.RequestBytes": sum(p.bytes_in for p in processors),
        "RequestMetrics.ResponseBytes": sum(p.bytes_out for p in processors),
        "RequestChannel.RequestQueueSize": channel.queue_size,
        "RequestChannel.HandedOver": channel.handed_over,
        "RequestMetrics.MalformedRequests": channel.malformed,
        "RequestMetrics.FailedRequests": channel.failed,
    }


def replication(manager: Any) -> dict[str, int]:
    """Partitions, their records, and what waits on them."""
    return {
        "BrokerTopicMetrics.MessagesIn": manager.messages_in,
        "BrokerTopicMetrics.BytesIn": manager.bytes_in,
        "BrokerTopicMetrics.BytesOut": manager.bytes_out,
        "BrokerTopicMetrics.TotalProduceRequests": manager.writes.produce_requests,
        "BrokerTopicMetrics.TotalFetchRequests": manager.reads.fetch_requests,
        "BrokerTopicMetrics.FailedProduceRequests": manager.writes.failed_produce_requests,
        "BrokerTopicMetrics.FailedFetchRequests": manager.reads.failed_fetch_requests,
        "DelayedOperationPurgatory.Produce.NumDelayedOperations": manager.parked.produce.delayed,
        "DelayedOperationPurgatory.Fetch.NumDelayedOperations": manager.parked.fetch.delayed,
        "ReplicaManager.PartitionCount": len(manager.partitions()),
        "ReplicaManager.LeaderCount": manager.leader_count,
        "ReplicaManager.UnderReplicatedPartitions": manager.under_replicated_partitions,
        "ReplicaManager.UnderMinIsrPartitionCount": manager.under_min_isr_partitions,
        "ReplicaManager.PartitionsWithLateTransactionsCount": manager.late_transactions,
        "ReplicaManager.OfflineReplicaCount": manager.offline_replicas,
        **manager.replication_counters(),
    }
