"""What groups know of topics: ids, partition counts, and one number for all of it (PURE).

A group must notice that a topic it subscribes to was made, deleted or has grown. It keeps a hash of
what it knew when its epoch was last bumped; another hash bumps it again (CG-7, CG-8). The hash is
in the log: it must be the same on every node, of whatever kind.

xxhash is imported with the first hash: a broker without such groups starts without it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage, TopicImage

_MAGIC = b"\0"
_TOPIC_ID = struct.Struct("<qq")
_LONG = struct.Struct("<q")
_INT = struct.Struct("<i")
_GONE_MAX = 1_000
"""Topics that are no more, whose hashes may be kept."""


def ids_of(names: Iterable[str], image: MetadataImage) -> frozenset[bytes]:
    """Ids of those topics that exist; the others are not assigned to anybody (CG-28)."""
    topics = image.topics_by_name
    return frozenset(topics[name].topic_id for name in names if name in topics)


def ids_of_each(
    named: Collection[tuple[str, frozenset[str]]], image: MetadataImage
) -> dict[str, frozenset[bytes]]:
    """As `ids_of`, for each member; members name the same topics, as a rule: those once."""
    found = {names: ids_of(names, image) for names in {names for _, names in named}}
    return {member_id: found[names] for member_id, names in named}


def counts_of(topic_ids: Iterable[bytes], image: MetadataImage) -> dict[bytes, int]:
    """How many partitions each of these topics, which exist, has."""
    return {topic_id: len(image.topics_by_id[topic_id].partitions) for topic_id in topic_ids}


class TopicHashes:
    """Hashes of topics, kept as long as the topic is what it was. Racks that change alone change
    no hash, as in Kafka."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TopicImage, int]] = {}

    def __call__(self, names: Iterable[str], image: MetadataImage) -> int:
        """The hash of all these topics as a signed number; unknown ones are left out, 0 if none is
        known (Utils.computeGroupHash)."""
        topics = image.topics_by_name
        known = [topics[name] for name in sorted(names) if name in topics]
        if len(self._known) > len(topics) + _GONE_MAX:
            self._known = {name: one for name, one in self._known.items() if name in topics}
        return _xxh3(_LONG.pack(self._of(topic, image)) for topic in known) if known else 0

    def _of(self, topic: TopicImage, image: MetadataImage) -> int:
        before = self._known.get(topic.name)
        if before is not None and before[0] is topic:
            return before[1]
        found = topic_hash(topic, image)
        self._known[topic.name] = topic, found
        return found


def topic_hash(topic: TopicImage, image: MetadataImage) -> int:
    """Of its id, name, partitions and the racks that they are on (Utils.computeTopicHash)."""
    racks = {id_: broker.rack for id_, broker in image.brokers.items() if broker.rack}
    high, low = struct.unpack(">qq", topic.topic_id)
    parts = [_MAGIC, _TOPIC_ID.pack(high, low), _text(topic.name)]
    parts.append(_INT.pack(len(topic.partitions)))
    for index in range(len(topic.partitions)):
        parts.append(_INT.pack(index))
        for rack in sorted(racks[id_] for id_ in topic.partitions[index].replicas if id_ in racks):
            parts += [_INT.pack(len(rack)), _text(rack)]
    return _xxh3(parts)


def _text(text: str) -> bytes:
    """As hash4j's putString: the UTF-16 code units, then how many they are."""
    units = text.encode("utf-16-le", "surrogatepass")
    return units + _INT.pack(len(units) // 2)


def _xxh3(parts: Iterable[bytes]) -> int:
    import xxhash

    digest: int = xxhash.xxh3_64_intdigest(b"".join(parts))
    return digest - (1 << 64) if digest >> 63 else digest
