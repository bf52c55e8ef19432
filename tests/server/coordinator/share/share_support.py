"""One shard of share partitions without a runtime: requests, records and time by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from server.coordinator.deadlines import Moment
from server.coordinator.machine import Decision
from server.coordinator.share.config import ShareCoordinatorConfig
from server.coordinator.share.records import (
    ShareRecord,
    Snapshot,
    decode_share,
    encode_share,
)
from server.coordinator.share.shard import ShareShard
from server.share.state_batches import ShareKey, StateBatch
from testkit.clock import WALL_MS
from wire.errors import ErrorCode, KafkaError

TOPIC_ID = b"t".ljust(16)
KEY = ShareKey("g", TOPIC_ID, 0)
STATE_EPOCH = 2


class World:
    """A shard, driven as the runtime does it: append, replay, deadlines."""

    def __init__(self, **config: Any) -> None:
        self.config = ShareCoordinatorConfig(**config)
        self.moment = Moment(1_000, WALL_MS)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.topics = {TOPIC_ID: 2}
        self.pruned: list[tuple[int, int]] = []
        """(partition, offset) of what was pruned."""
        self.shard = self._load()

    def _load(self) -> ShareShard:
        shard = ShareShard(
            self.config, self._exists, lambda *asked: self.pruned.append(asked), 7, 0, self.moment
        )
        for offset, (key, value) in enumerate(self.log):
            record = decode_share(key, value)
            assert record is not None
            shard.begin_batch(offset)
            shard.replay(record)
        shard.on_loaded()
        return shard

    def _exists(self, topic_id: bytes, partition: int) -> bool:
        return partition < self.topics.get(topic_id, 0)

    def restart(self) -> None:
        self.shard = self._load()

    def pass_time(self, ms: int) -> list[ShareRecord]:
        """What deadlines have written by then."""
        self.moment.now_ms += ms
        self.moment.wall_ms += ms
        before = len(self.log)
        while (due := self.shard.deadlines.pop_due(self.moment.now_ms)) is not None:
            decision = due[1]()
            if decision is not None:
                self._carry_out(decision)
        return self.written(before)

    def _carry_out(self, decision: Decision[ShareRecord]) -> Any:
        base_offset = len(self.log)
        self.log += [encode_share(record) for record in decision.records]
        if decision.change is not None:
            decision.change()
        self.shard.begin_batch(base_offset)
        for record in decision.records:
            self.shard.replay(record)
        for effect in self.shard.effects:
            effect()
        self.shard.effects.clear()
        return decision.response

    def written(self, since: int = 0) -> list[ShareRecord]:
        """The log's records from this one on."""
        records = [decode_share(key, value) for key, value in self.log[since:]]
        return [record for record in records if record is not None]

    def ask(self, decide: Callable[[], Decision[ShareRecord]]) -> Any:
        """What one request is answered: a code, or the state."""
        try:
            return self._carry_out(decide())
        except KafkaError as error:
            return error.code

    def initialize(
        self, state_epoch: int = STATE_EPOCH, start: int = -1, key: ShareKey = KEY
    ) -> Any:
        return self.ask(lambda: self.shard.initialize(key, state_epoch, start))

    def write(
        self,
        start: int = 0,
        *batches: tuple[int, int, int, int],
        key: ShareKey = KEY,
        state_epoch: int = STATE_EPOCH,
        leader_epoch: int = 0,
        complete: int = 0,
    ) -> ErrorCode:
        told: Sequence[StateBatch] = [StateBatch(*batch) for batch in batches]
        code = self.ask(
            lambda: self.shard.write(key, state_epoch, leader_epoch, start, complete, told)
        )
        assert isinstance(code, ErrorCode)
        return code

    def read(self, leader_epoch: int = 0, key: ShareKey = KEY) -> Any:
        return self.ask(lambda: self.shard.read(key, leader_epoch))

    @property
    def state(self) -> Snapshot:
        """What a reader that fences nobody finds."""
        found = self.read(-1)
        assert isinstance(found, Snapshot)
        return found
