from __future__ import annotations

from barnabas.client_commands import topics


def test_a_topic_id_is_written_as_kafka_writes_it() -> None:
    """It is looked for in logs, in `partition.metadata` and by Kafka's tools."""
    topic = {
        "name": "t",
        "topic_id": "13b36307-4476-4f98-bb8a-2ae69eb514d6",
        "is_internal": False,
        "partitions": [],
    }
    assert topics._topic(topic, {})["id"] == "E7NjB0R2T5i7iirmnrUU1g"
