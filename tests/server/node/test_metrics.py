"""The numbers a running broker shows."""

from __future__ import annotations

import pytest

from server.config.kafka_config import KafkaConfig
from server.node.metrics import snapshot
from server.node.node import Node
from tests.server.wire_client import WireClient
from wire.messages.cluster import MetadataRequest
from wire.messages.data import FetchRequest, ProduceRequest
from wire.records import Record, build_batch


@pytest.fixture
def broker(tmp_path):
    broker = Node(KafkaConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
    try:
        broker.start()
        yield broker
    finally:
        broker.shutdown()


def test_counters_say_what_happened(broker):
    with WireClient(broker.port) as client:
        client.ask(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 9)
        batch = build_batch([Record(value=b"one"), Record(value=b"two")])
        partition = ProduceRequest.Topic.Partition(index=0, records=batch)
        topic = ProduceRequest.Topic(name="t", partition_data=[partition])
        produced = client.ask(ProduceRequest(acks=-1, timeout_ms=100, topic_data=[topic]), 9)
        assert produced.responses[0].partition_responses[0].error_code == 0
        wanted = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=999)
        opened = client.ask(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                isolation_level=0,
                session_epoch=0,
                topics=[FetchRequest.Topic(topic="t", partitions=[wanted])],
            ),
            12,
        )
        assert len(opened.responses[0].partitions[0].records) == len(batch)
        values = snapshot(broker.broker_server)
    assert all(isinstance(value, int) for value in values.values())
    expected = {
        "SocketServer.ConnectionCount": 1,
        "RequestMetrics.Requests": 3,
        "RequestMetrics.FailedRequests": 0,
        "BrokerTopicMetrics.MessagesIn": 2,
        "BrokerTopicMetrics.BytesIn": len(batch),
        "BrokerTopicMetrics.BytesOut": len(batch),
        "FetchSessionCache.NumIncrementalFetchSessions": 1,
        "FetchSessionCache.NumIncrementalFetchPartitionsCached": 1,
        "KafkaController.GlobalTopicCount": 1,
        "KafkaController.ActiveBrokerCount": 1,
        "KafkaController.FencedBrokerCount": 0,
        "KafkaController.ActiveControllerCount": 1,
        "raft-metrics.current-leader": 1,
        "ReplicaManager.LeaderCount": 1,
        "ReplicaManager.UnderReplicatedPartitions": 0,
        "ReplicaManager.PartitionsWithLateTransactionsCount": 0,
    }
    assert {name: values[name] for name in expected} == expected
    offset = values["broker-metadata-metrics.last-applied-record-offset"]
    assert offset == values["raft-metrics.high-watermark"] - 1 > 0
