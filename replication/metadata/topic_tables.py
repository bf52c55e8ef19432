"""Topics with their partitions, and dynamic configs, as tables of the image. PURE.

One module, because a topic takes its configs along.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replication.metadata.registrations import PartitionRegistration
from replication.metadata.tables import (
    NO_CONFIGS,
    RESOURCE_TOPIC,
    Changes,
    ConfigKey,
    MetadataImage,
    Table,
    TopicImage,
    different,
)
from wire.messages import metadata_records as m

# --- topics -------------------------------------------------------------------------------------


def _own_topic(changes: Changes, topic_id: bytes, record: Any) -> TopicImage:
    """The next image's own copy of a topic."""
    topic = changes.next.topics_by_id.get(topic_id)
    if topic is None:
        raise ValueError(f"{type(record).__name__} for unknown topic id {topic_id.hex()}")
    if not changes.owns(topic_id):
        topic = TopicImage(topic.name, topic_id, dict(topic.partitions))
        _put_topic(changes, topic)
    return topic


def _put_topic(changes: Changes, topic: TopicImage) -> None:
    changes.own("topics_by_id")[topic.topic_id] = topic
    changes.own("topics_by_name")[topic.name] = topic
    changes.changed_topics.add(topic.name)


def _topic_record(changes: Changes, record: m.TopicRecord) -> None:
    if record.name in changes.next.topics_by_name:
        raise ValueError(f"topic {record.name} exists already")
    changes.owns(record.topic_id)
    _put_topic(changes, TopicImage(record.name, record.topic_id))


def _remove_topic(changes: Changes, record: m.RemoveTopicRecord) -> None:
    topic = changes.own("topics_by_id").pop(record.topic_id, None)
    if topic is None:
        raise ValueError(f"RemoveTopicRecord for unknown topic id {record.topic_id.hex()}")
    del changes.own("topics_by_name")[topic.name]
    changes.changed_topics.discard(topic.name)
    changes.changed_partitions.pop(record.topic_id, None)
    if record.topic_id in changes.image.topics_by_id:
        changes.deleted_topics[topic.name] = record.topic_id
    _forget_configs(changes, (RESOURCE_TOPIC, topic.name))


def _partition(changes: Changes, record: m.PartitionRecord) -> None:
    topic = _own_topic(changes, record.topic_id, record)
    topic.partitions[record.partition_id] = PartitionRegistration.from_record(record)
    changes.changed_partitions.setdefault(record.topic_id, set()).add(record.partition_id)


def _partition_change(changes: Changes, record: m.PartitionChangeRecord) -> None:
    topic = _own_topic(changes, record.topic_id, record)
    current = topic.partitions.get(record.partition_id)
    if current is None:
        raise ValueError(f"change of unknown partition {topic.name}-{record.partition_id}")
    topic.partitions[record.partition_id] = current.merge(record)
    changes.changed_partitions.setdefault(record.topic_id, set()).add(record.partition_id)


def _clear_elr(changes: Changes, record: m.ClearElrRecord) -> None:
    """Forget the eligible leader replicas of one topic, or of all (""). Where there are some it
    is a change of the partition like any other: its epoch rises, as on Apache Kafka.
    """
    image = changes.next
    named = image.topics_by_name.get(record.topic_name)
    topics = list(image.topics_by_id.values()) if not record.topic_name else [named]
    for topic in topics:
        if topic is None:
            raise ValueError(f"ClearElrRecord for unknown topic {record.topic_name}")
        for index, partition in topic.partitions.items():
            if partition.elr or partition.last_known_elr:
                _partition_change(
                    changes,
                    m.PartitionChangeRecord(
                        topic_id=topic.topic_id,
                        partition_id=index,
                        eligible_leader_replicas=[],
                        last_known_elr=[],
                    ),
                )


def _write_topics(image: MetadataImage) -> Iterator[Any]:
    for topic in image.topics_by_id.values():
        yield m.TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for index, partition in sorted(topic.partitions.items()):
            yield partition.to_record(topic.topic_id, index)


def _compare_topics(changes: Changes, new: MetadataImage) -> None:
    old = changes.image
    for topic_id, topic in old.topics_by_id.items():
        if topic_id not in new.topics_by_id:
            changes.deleted_topics[topic.name] = topic_id
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is topic:
            continue
        partitions = different(before.partitions if before else {}, topic.partitions)
        if partitions:
            changes.changed_partitions[topic_id] = partitions
        if partitions or before is None:
            changes.changed_topics.add(topic.name)


# --- configs ------------------------------------------------------------------------------------


def _config(changes: Changes, record: m.ConfigRecord) -> None:
    key = (record.resource_type, record.resource_name)
    table = changes.own("configs")
    changes.changed["configs"].add(key)
    if not changes.owns(key):
        table[key] = dict(table.get(key, NO_CONFIGS))
    if record.value is None:
        table[key].pop(record.name, None)
    else:
        table[key][record.name] = record.value
    if not table[key]:
        del table[key]
        changes.disown(key)


def _forget_configs(changes: Changes, key: ConfigKey) -> None:
    """Kafka deletes a topic's configs with it and writes no record for that."""
    if key in changes.next.configs:
        del changes.own("configs")[key]
    changes.disown(key)
    changes.changed["configs"].discard(key)


def _write_configs(image: MetadataImage) -> Iterator[Any]:
    for (resource_type, resource_name), values in image.configs.items():
        for name, value in sorted(values.items()):
            yield m.ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=name, value=value
            )


def _compare_configs(changes: Changes, new: MetadataImage) -> None:
    gone = {
        (RESOURCE_TOPIC, name) for name in changes.deleted_topics if name not in new.topics_by_name
    }
    changes.changed["configs"] |= different(changes.image.configs, new.configs) - gone


TOPICS = Table(
    "topics_by_id",
    {
        m.TopicRecord: _topic_record,
        m.RemoveTopicRecord: _remove_topic,
        m.PartitionRecord: _partition,
        m.PartitionChangeRecord: _partition_change,
        m.ClearElrRecord: _clear_elr,
    },
    _write_topics,
    _compare_topics,
)
CONFIGS = Table("configs", {m.ConfigRecord: _config}, _write_configs, _compare_configs)
