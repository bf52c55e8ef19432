"""What changed between two images of which the newer was loaded as a whole. PURE.

Why: a replica that was left too far behind gets a snapshot instead of the records in between, at
any time. Those who act on changes (partitions, configs, groups) must then be told, deletions
included, as if the records had come one by one. How: tables are compared by identity first, then
entry by entry; registrations are values. Kafka: MetadataDelta.finishSnapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replication.metadata.image import RESOURCE_TOPIC, MetadataDelta, MetadataImage


def delta_between(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """A delta on `old` that says what is different in `new`; its `apply` gives `new`'s content."""
    delta = MetadataDelta(old)
    for table in ("features", "brokers", "controllers", "topics_by_name", "topics_by_id"):
        setattr(delta, table, getattr(new, table))
    delta.configs = new.configs
    delta.preserved = new.preserved
    delta.next_producer_id = new.next_producer_id
    delta.features_changed = dict(old.features) != dict(new.features)
    delta.changed_brokers = _different(old.brokers, new.brokers)
    delta.changed_configs = _different(old.configs, new.configs)
    for topic_id, topic in old.topics_by_id.items():
        if topic_id not in new.topics_by_id:
            delta.deleted_topics[topic.name] = topic_id
            if topic.name not in new.topics_by_name:
                delta.changed_configs.discard((RESOURCE_TOPIC, topic.name))
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        changed = _different(before.partitions if before else {}, topic.partitions)
        if changed:
            delta.changed_partitions[topic_id] = changed
        if changed or before is None:
            delta.changed_topics.add(topic.name)
    return delta


def _different(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> set[Any]:
    """Keys that are in one only, or whose values differ."""
    if old is new:
        return set()
    changed = {key for key, value in new.items() if key not in old or old[key] != value}
    changed.update(key for key in old if key not in new)
    return changed
