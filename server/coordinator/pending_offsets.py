"""Offsets that are part of open transactions: they count once a COMMIT marker says so (PURE).

A consumer that transforms records commits its offsets in the transaction of what it produced. Until
that transaction's marker is in this partition of `__consumer_offsets`, the offset committed before
is the one that is told, or, to who asks for stable offsets only, that there is none yet (TX-41).

What is committed in the end is the newest record of the log, whoever wrote it: a plain commit, or
another transaction's, that came after a pending offset wins over it, also when the pending one's
marker comes last (TX-40; Kafka compares record offsets). So the one that lost is voided when it
loses, and still makes its partition unstable until its marker comes.

Records are replayed in the log's order, and so are the producers of a partition kept.

Budget: without transactions one truth test for each commit; 2 µs to add.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView

from wire.messages.groups_records import OffsetCommitValue

PartitionKey = tuple[str, int]

_NO_PARTITIONS: dict[PartitionKey, object] = {}


class PendingOffsets:
    """All pending offsets of one shard. Owner: the shard; takes no lock."""

    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[PartitionKey, dict[int, OffsetCommitValue | None]]] = {}
        """For each partition its producers, in the order of their last records; None: voided."""
        self._by_producer: dict[int, dict[tuple[str, PartitionKey], None]] = {}
        """Where each producer has something pending: an ordered set."""

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def partitions(self, group_id: str) -> KeysView[PartitionKey]:
        """The group's partitions that some transaction has offsets for."""
        return self._by_group.get(group_id, _NO_PARTITIONS).keys()

    def values(self, group_id: str, key: PartitionKey) -> list[OffsetCommitValue]:
        """What open transactions would commit for one partition, but for what is voided."""
        producers = self._by_group.get(group_id, {}).get(key, {})
        return [value for value in producers.values() if value is not None]

    def group_ids(self) -> KeysView[str]:
        """The groups that some transaction has offsets for."""
        return self._by_group.keys()

    def add(
        self, producer_id: int, group_id: str, key: PartitionKey, value: OffsetCommitValue
    ) -> None:
        """The producer's transaction commits this; the last word of a transaction counts."""
        producers = self._by_group.setdefault(group_id, {}).setdefault(key, {})
        producers.pop(producer_id, None)
        producers[producer_id] = value
        self._by_producer.setdefault(producer_id, {})[group_id, key] = None

    def void(self, group_id: str, key: PartitionKey) -> None:
        """Another offset was committed after all that is pending for the partition."""
        producers = self._by_group.get(group_id, {}).get(key)
        if producers is not None:
            self._by_group[group_id][key] = dict.fromkeys(producers)

    def forget(self, group_id: str, key: PartitionKey) -> None:
        """The partition's offset was deleted, and so is all that is pending for it."""
        for producer_id in list(self._by_group.get(group_id, {}).get(key, ())):
            self._remove(producer_id, group_id, key)

    def end(
        self, producer_id: int, is_commit: bool
    ) -> Iterator[tuple[str, PartitionKey, OffsetCommitValue]]:
        """The producer's transaction is over; what becomes valid of it. To be read to its end."""
        for group_id, key in list(self._by_producer.get(producer_id, ())):
            producers = self._by_group[group_id][key]
            value = producers[producer_id]
            if is_commit and value is not None:
                for other in producers:
                    if other == producer_id:
                        break
                    producers[other] = None
                yield group_id, key, value
            self._remove(producer_id, group_id, key)

    def _remove(self, producer_id: int, group_id: str, key: PartitionKey) -> None:
        """The one way out, which leaves nothing empty behind."""
        partitions = self._by_group[group_id]
        del partitions[key][producer_id]
        if not partitions[key]:
            del partitions[key]
            if not partitions:
                del self._by_group[group_id]
        places = self._by_producer[producer_id]
        del places[group_id, key]
        if not places:
            del self._by_producer[producer_id]

    def digest(self) -> tuple[object, ...]:
        """All of it, to be compared: partitions and their producers in the order of the log."""
        return tuple(
            (group_id, key, tuple((i, None if v is None else v.offset) for i, v in of.items()))
            for group_id, partitions in sorted(self._by_group.items())
            for key, of in sorted(partitions.items())
        )
