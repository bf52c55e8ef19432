"""One shard of groups whose decisions are replayed at once, its log in a list and its clock in our
hands: what worlds of share and of streams groups have in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from server.coordinator.consumer.protocol import Outside
from server.coordinator.deadlines import Moment
from server.coordinator.group_config import ConsumerConfig, GroupConfig
from server.coordinator.group_shard import GroupShard
from server.coordinator.machine import Decision
from server.coordinator.records import CoordinatorRecord, decode_record, encode_record
from server.coordinator.share_groups.protocol import ShareOutside
from server.coordinator.streams_groups.protocol import StreamsOutside
from tests.server.coordinator.group_support import NO_SHARES, NO_STREAMS, compacted

FIRST_ID = bytes.fromhex("f2cf24ce94164d64abd1211bc17478e0")


def image_of(**counts: int) -> Any:
    """Topics with so many partitions; the first has FIRST_ID."""
    topics = [
        SimpleNamespace(
            name=name,
            topic_id=bytes([i]) * 16 if i else FIRST_ID,
            partitions={index: SimpleNamespace(replicas=[1]) for index in range(count)},
        )
        for i, (name, count) in enumerate(counts.items())
    ]
    return SimpleNamespace(
        topics_by_name={topic.name: topic for topic in topics},
        topics_by_id={topic.topic_id: topic for topic in topics},
        brokers={},
    )


class ModernWorld:
    """See the module. What the groups ask for is of the image that is there then."""

    def __init__(self, image: Any) -> None:
        self.moment = Moment(0, 1_000_000)
        self.image = image
        self.log: list[tuple[bytes, bytes | None]] = []
        self.wrote: list[int] = []
        """Types of the records of the last decision; below zero: a tombstone."""
        self.shard = self._new_shard()

    def _shares(self) -> ShareOutside:
        return NO_SHARES

    def _streams(self) -> StreamsOutside:
        return NO_STREAMS

    def _new_shard(self) -> GroupShard:
        outside = Outside(
            lambda: self.image,
            lambda _: ConsumerConfig(),
            lambda: -1,
            lambda *_: None,
            lambda: "made",
        )
        return GroupShard(GroupConfig(), self.moment, outside, self._shares(), self._streams())

    def reload(self) -> None:
        """Another coordinator takes over, from the log as it is or as the cleaner leaves it."""
        before = self.shard.digest()
        for log in (self.log, compacted(self.log)):
            self.load(log)
            assert self.shard.digest() == before

    def load(self, log: list[tuple[bytes, bytes | None]]) -> None:
        """Another coordinator takes over, whose replica has this log."""
        self.shard = self._new_shard()
        for key, value in log:
            record = decode_record(key, value)
            assert record is not None
            self.shard.replay(record)
        self.shard.on_loaded()

    def play(self, decision: Decision[CoordinatorRecord] | None) -> Any:
        """Write it, and run what follows."""
        assert decision is not None
        self.wrote = []
        for record in decision.records:
            written = encode_record(record)
            self.log.append(written)
            kind = int.from_bytes(written[0][:2], "big")
            self.wrote.append(kind if record.value is not None else -kind)
        if decision.change is not None:
            decision.change()
        for record in decision.records:
            self.shard.replay(record)
        effects = list(self.shard.effects)
        self.shard.effects.clear()
        for effect in effects:
            effect()
        return decision.response

    def later(self, ms: int) -> None:
        """Time goes by."""
        self.moment.now_ms += ms
        self.moment.wall_ms += ms
        while (due := self.shard.deadlines.pop_due(self.moment.now_ms)) is not None:
            decision = due[1]()
            if decision is not None:
                self.play(decision)
