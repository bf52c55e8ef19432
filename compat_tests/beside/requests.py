"""Requests that a client might send: of every API and version, with what is there in them.

A request is made from kio's declaration of it: `CHOICES` says for a field (of one API, or of any)
how its value is chosen. What belongs together is chosen once for a request: a group, its member and
the member's generation; a topic and its partitions; a transactional id, its producer and epoch.
Request number N of a seed is the same wherever the world is the same.

Left out, because it would rightly make the brokers differ or stop them: acks=0 (no answer), quotas
for everybody, features changed, the only broker unregistered, codecs (their bytes are each one's
own), loggers (their names are).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from kafka.record.default_records import DefaultRecordBatchBuilder

from compat_tests.beside.answers import STRANGE, ZERO
from compat_tests.beside.messages import name_of, request_plan
from compat_tests.beside.world import World
from compat_tests.fuzz.requests import Field, Plan

TOPICS = ("t0", "t1", "compact")
_NEW_TOPICS = ("n0", "n1", "n2", "n3")
_MISSING = "missing"
_TRANSACTIONS = ("tx-0", "tx-1", "tx-2")
_TIMEOUT_MS = 10_000
REBALANCE_MS = 800
"""Who has not synced by then is out, so a machine must not be slower than that."""
OFTEN = {
    "Produce": 6, "Fetch": 5, "ListOffsets": 2, "OffsetCommit": 4, "OffsetFetch": 4, "JoinGroup": 5,
    "SyncGroup": 5, "Heartbeat": 2, "InitProducerId": 5, "AddPartitionsToTxn": 4,
    "AddOffsetsToTxn": 3, "TxnOffsetCommit": 4, "EndTxn": 5, "ConsumerGroupHeartbeat": 6,
    "ShareGroupHeartbeat": 4, "ShareFetch": 5, "ShareAcknowledge": 4, "StreamsGroupHeartbeat": 4,
    "CreateTopics": 3, "IncrementalAlterConfigs": 2, "DescribeConfigs": 2,
}  # fmt: skip
_CONFIGS: dict[int, dict[str, tuple[str, ...]]] = {
    2: {
        "retention.ms": ("3600000", "-1", "-2", "x", ""), "max.message.bytes": ("300", "1048588"),
        "cleanup.policy": ("compact", "delete", "compact,delete", "bogus", ""),
        "min.insync.replicas": ("1", "2", "0"), "compression.type": ("producer", "bogus"),
        "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime"),
        "segment.bytes": ("1048576", "1"), "unknown.key": ("1",), "flush.messages": ("1", "0"),
        "leader.replication.throttled.replicas": ("*", "0:1", "bogus", ""),
        "message.timestamp.before.max.ms": ("1000", "9223372036854775807"),
        "delete.retention.ms": ("1000",), "remote.storage.enable": ("false", "true"),
    },
    4: {
        "message.max.bytes": ("2000000", "x"), "log.retention.ms": ("3600000", "-1"),
        "background.threads": ("10", "0"), "log.cleaner.threads": ("1", "2"),
        "min.insync.replicas": ("1", "2"), "unknown.key": ("1",), "log.cleanup.policy": ("delete",),
        "log.segment.bytes": ("1073741824",), "node.id": ("1", "2"), "num.partitions": ("2",),
    },
    16: {
        "interval.ms": ("1000", "50", "x"), "metrics": ("org.apache.kafka.", ""),
        "match": ("client_id=none", "client_id", "bogus=1"), "unknown": ("1",),
    },
    32: {
        "consumer.session.timeout.ms": ("45000", "50000", "1", "x"),
        "consumer.heartbeat.interval.ms": ("5000", "6000", "1"),
        "share.auto.offset.reset": ("earliest", "latest", "bogus", "by_duration:PT1H"),
        "share.record.lock.duration.ms": ("30000", "1"), "unknown.key": ("1",),
        "share.isolation.level": ("read_committed", "read_uncommitted", "bogus"),
        "streams.num.standby.replicas": ("0", "1", "-1"), "share.delivery.count.limit": ("5",),
        "streams.heartbeat.interval.ms": ("5000", "1"),
    },
}  # fmt: skip


class Batch(NamedTuple):
    """Records of a Produce request."""

    producer_id: Any
    epoch: int
    sequence: int
    is_transactional: bool
    timestamp_ms: int
    values: tuple[tuple[bytes | None, bytes | None], ...]

    def own(self, word: Callable[[Any], Any]) -> bytes:
        """As bytes, in one broker's words."""
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=self.is_transactional,
            producer_id=word(self.producer_id), producer_epoch=self.epoch,
            base_sequence=self.sequence, batch_size=1 << 30,
        )  # fmt: skip
        for offset, (key, value) in enumerate(self.values):
            builder.append(offset, self.timestamp_ms, key, value, [])
        return bytes(builder.build())


def subscription(*topics: str) -> bytes:
    """What a consumer of the classic protocol says of itself (ConsumerProtocolSubscription v0)."""
    names = b"".join(struct.pack(">h", len(one)) + one.encode() for one in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


class Request(NamedTuple):
    key: int
    version: int
    body: dict[str, Any]

    @property
    def api(self) -> str:
        return name_of(self.key)


class Maker:
    """Makes one request."""

    def __init__(self, rng: random.Random, world: World, base_ms: int) -> None:
        self.rng = rng
        self.world = world
        self.base_ms = base_ms
        self.said: dict[str, Any] = {}
        self._api = ""

    def request(self, key: int, version: int) -> Request:
        self._api = name_of(key)
        return Request(key, version, self.struct(request_plan(key, version), ""))

    def struct(self, plan: Plan, parent: str) -> dict[str, Any]:
        out = {
            field.name: self._field(field, parent)
            for field in plan.fields
            if field.tag is None or self.rng.random() < 0.3
        }
        if {"name", "topic_id"} <= out.keys() and self.rng.random() < 0.97:  # one of the two
            if self.rng.random() < 0.5:
                out["topic_id"] = ZERO
            else:
                out["name"] = None
        return out

    def _field(self, field: Field, parent: str) -> Any:
        name = field.name.removeprefix("v3_and_below_")
        keys = f"{parent}.{name}", f"{self._api}.{name}", name
        choice = next((CHOICES[key] for key in keys if key in CHOICES), None)
        if field.is_array and choice is None:
            if field.nullable and self.rng.random() < 0.15:
                return None
            count = self.some(1, 2, 3, odds=0.75)
            return self._distinct(
                [
                    self._one(field._replace(nullable=False), self._of_elements(field))
                    for _ in range(count)
                ]
            )
        return self._one(field, choice)

    def _of_elements(self, field: Field) -> Callable[[Maker], Any] | None:
        if field.nested is not None:
            return None
        name = field.name.removeprefix("v3_and_below_")
        return CHOICES.get(f"{self._api}.{name}[]") or CHOICES.get(f"{name}[]")

    @staticmethod
    def _distinct(found: list[Any]) -> list[Any]:
        """What is named twice is of another kind of test."""
        return list({
            str(next(iter(one.values())) if isinstance(one, dict) else one): one for one in found
        }.values())  # fmt: skip

    def _one(self, field: Field, choice: Callable[[Maker], Any] | None) -> Any:
        if choice is not None:
            return choice(self)
        if field.nested is not None:
            return None if field.nullable else self.struct(field.nested, field.name)
        if field.nullable and self.rng.random() < 0.5:
            return None
        return {"string": "x", "bytes": b"", "bool": self.rng.random() < 0.3, "uuid": ZERO}.get(
            field.kind, 0
        )

    # ---- how values are chosen

    def some(self, usual: Any, *others: Any, odds: float = 0.9) -> Any:
        return usual if not others or self.rng.random() < odds else self.rng.choice(others)

    def any(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def topic(self) -> str:
        known = sorted(name for name in self.world.topics if not name.startswith("__"))
        name = self.some(self.any(*known, *TOPICS), _MISSING, "bad/name", "", odds=0.92)
        self.said["topic"] = name
        return name

    def new_topic(self) -> str:
        return self.some(self.any(*_NEW_TOPICS), "t0", "bad/name", ".", "", "x" * 250, "__own")

    def topic_to_go(self) -> str:
        return self.some(self.any(*_NEW_TOPICS), _MISSING, "bad/name", "never", odds=0.8)

    def id_of(self, name: str) -> str:
        known = self.world.topics.get(name)
        return known.id if known else self.any(STRANGE, ZERO)

    def _count(self) -> int:
        known = self.world.topics.get(self.said.get("topic", ""))
        return known.partitions if known else 1

    def partition(self) -> int:
        count = self._count()
        self.said["partition"] = self.some(self.rng.randrange(count), count, -1, odds=0.93)
        return self.said["partition"]

    def offset(self) -> int:
        end = self.world.ends[self.said.get("topic", ""), self.said.get("partition", 0)]
        return self.some(self.rng.randrange(end + 1), end, end + 1, -1, 1 << 40, odds=0.7)

    def epoch(self) -> int:
        return self.some(-1, 0, 0, 1, 5, odds=0.7)

    def group(self) -> str:
        own = _GROUPS.get(self._api, ("c0", "c1", "k0", "k1", "s0", "s1", "a0"))
        name = self.some(self.any(*own), "c0", "k0", "s0", "a0", "nobody", "", odds=0.93)
        self.said["group"] = name
        self.said.pop("member", None)
        return name

    def _member(self) -> tuple[str, int]:
        """Of the group that was said, with what it was told; chosen once."""
        if "member" not in self.said:
            self.said["member"] = self._choose_member()
        return self.said["member"]

    def _choose_member(self) -> tuple[str, int]:
        members = self.world.members[self.said.get("group", "")]
        if self._api in _CHOSEN_BY_CLIENTS and self.rng.random() < 0.5:
            member = self.any("m-0", "m-1", "m-2")
            return member, members.get(member, 0)
        known = sorted(members.items())
        new: tuple[str, int] = ("", -1)
        if self._api in _CHOSEN_BY_CLIENTS:
            new = self.some(("m-0", 0), ("", 0))
        elif self._api.startswith("Share"):
            new = ("m-0", 0)
        odds = 0.5 if self._api == "JoinGroup" or self._api in _SIMPLE else 0.88
        member, epoch = self.some(self.any(*known) if known else new, new, odds=odds)
        return self.some((member, epoch), ("stranger", epoch), odds=0.97)

    def member(self) -> str:
        return self._member()[0]

    def generation(self) -> int:
        epoch = self._member()[1]
        return self.some(epoch, epoch - 1, epoch + 1, -1, 0, -2, odds=0.93)

    def member_epoch(self) -> int:
        """Of a heartbeat: to join, to stay, to leave."""
        epoch = self._member()[1]
        self.said["joins"] = self.some(epoch, 0, -1, -1, epoch + 1, -2, odds=0.8)
        return self.said["joins"]

    def joining(self, said: Any, else_: Any = None) -> Any:
        return said if self.said.get("joins") == 0 or self.rng.random() < 0.05 else else_

    def transaction(self) -> str | None:
        one = self.some(self.any(*_TRANSACTIONS), "tx-never", "", odds=0.95)
        if self._api in ("Produce", "InitProducerId") and self.rng.random() < 0.5:
            one = None
        self.said["transaction"] = one
        self.said.pop("producer", None)
        return one

    def _producer(self) -> tuple[Any, int]:
        """Of the transactional id that was said; chosen once."""
        if "producer" not in self.said:
            given = self.world.producers.get(self.said.get("transaction"), [])
            usual = given[-1] if given else (-1, -1)
            self.said["producer"] = self.some(usual, (-1, -1), (987_654, 0), *given, odds=0.9)
        return self.said["producer"]

    def producer_epoch(self) -> int:
        epoch = self._producer()[1]
        return max(-1, self.some(epoch, epoch + 1, epoch - 1, odds=0.95))

    def bumped(self) -> tuple[Any, int]:
        """InitProducerId: mostly says nothing of before."""
        if self._api == "InitProducerId" and self.rng.random() < 0.75:
            self.said["producer"] = (-1, -1)
        return self._producer()

    def batch(self) -> Batch:
        transaction = self.said.get("transaction")
        is_idempotent = transaction is not None or self.rng.random() < 0.3
        id_, epoch = self._producer() if is_idempotent else (-1, -1)
        place = self.said.get("topic", ""), self.said.get("partition", 0)
        sequence = self.world.sequences[id_, epoch, *place] if id_ != -1 else -1
        if id_ != -1:
            sequence = max(0, self.some(sequence, sequence + 1, sequence - 1, odds=0.9))
        values = tuple(
            (self.some(b"k%d" % self.rng.randrange(3), None, odds=0.8),
             self.some(b"v" * self.rng.choice((0, 1, 10, 100)), None))
            for _ in range(self.any(1, 1, 2, 5))
        )  # fmt: skip
        when = self.base_ms + 1000 * self.some(self.rng.randrange(60), -3000, 80_000, odds=0.95)
        transactional = self.some(transaction is not None, transaction is None, odds=0.97)
        return Batch(id_, epoch, sequence, transactional, when, values)

    def resource(self) -> int:
        self.said["resource"] = self.some(2, 4, 16, 32, 32, odds=0.5)
        return self.said["resource"]

    def resource_name(self) -> str:
        names: dict[int, Callable[[], str]] = {
            2: self.topic, 4: lambda: self.any("1", "1", "", "2", "x"),
            16: lambda: self.any("cm0", "cm1", ""), 32: self.group,
        }  # fmt: skip
        return names.get(self.said["resource"], self.topic)()

    def config(self) -> str:
        known = _CONFIGS.get(self.said.get("resource", 2), {"x": ("1",)})
        self.said["config"] = self.any(*known)
        return self.said["config"]

    def config_value(self) -> str | None:
        known = _CONFIGS.get(self.said.get("resource", 2), {})
        return self.some(self.any(*known.get(self.said.get("config", ""), ("1",))), None, odds=0.95)

    def session(self) -> tuple[Any, int]:
        if "session" not in self.said:
            none = (0, self.some(-1, 0, 1, odds=0.5))
            known = self.world.fetch_sessions
            self.said["session"] = self.some(none, *known, (987_654, 1), odds=0.5)
        return self.said["session"]

    def forgotten(self) -> dict[str, Any]:
        name = self.topic()
        return {"topic": name, "topic_id": self.id_of(name), "partitions": [self.partition()]}

    def share_epoch(self) -> int:
        key = self.said.get("group", ""), self._member()[0]
        return self.some(self.world.share_epochs.get(key, 0), 0, -1, 5, odds=0.85)

    def acknowledgements(self, types: tuple[int, ...]) -> list[dict[str, Any]]:
        key = (self.said.get("group", ""), self._member()[0],
               self.id_of(self.said.get("topic", "")), self.said.get("partition", 0))  # fmt: skip
        ranges = self.world.acquired.get(key, [])
        if not ranges or self.rng.random() < 0.4:
            return []
        first, last = self.any(*ranges)
        last = self.some(last, first, last + 1, odds=0.7)
        said = [self.some(*types, odds=0.6)]
        return [{"first_offset": first, "last_offset": last, "acknowledge_types": said}]

    def topology(self) -> dict[str, Any]:
        changelog = {"name": "a0-store-changelog", "partitions": 0, "replication_factor": 0}
        changelogs = self.some([], [{**changelog, "topic_configs": []}], odds=0.7)
        source = self.some("t1", "t0", _MISSING, odds=0.8)
        return {"epoch": 0, "subtopologies": [
            {"subtopology_id": "0", "source_topics": [source], "state_changelog_topics": changelogs}
        ]}  # fmt: skip

    def tasks(self, kind: int) -> Any:
        given = self._assigned()
        owned = given[kind] if isinstance(given, tuple) else []
        return self.joining([], self.some(None, owned, odds=0.6))

    def _assigned(self) -> Any:
        """What the member that was said was given last."""
        return self.world.assigned.get((self.said.get("group", ""), self._member()[0]))

    def owned(self) -> list[Any] | None:
        given = self._assigned()
        return given if isinstance(given, list) else None

    def share_topics(self, types: tuple[int, ...]) -> list[dict[str, Any]]:
        """Of what the member was given, with what it has to say of records."""
        topics = []
        for one in self.owned() or ():
            self.said["topic"] = self.world.topic_named(one["topic_id"])
            partitions = []
            for index in one["partitions"]:
                self.said["partition"] = index
                batches = self.acknowledgements(types)
                partitions.append({"partition_index": index, "acknowledgement_batches": batches})
            topics.append({"topic_id": one["topic_id"], "partitions": partitions})
        return topics

    def entity(self) -> str:
        self.said["entity"] = self.some(self.any("user", "client-id", "ip"), "bogus", odds=0.95)
        return self.said["entity"]

    def entity_name(self) -> str:
        return self.some({"ip": "10.0.0.1"}.get(self.said.get("entity", ""), "u1"), "", "u 2/é")


def _assignments(m: Maker) -> list[dict[str, Any]]:
    assignment = struct.pack(">hiii", 0, 0, -1, 0)[:10]
    members = sorted(m.world.members[m.said.get("group", "")])
    return m.some([{"member_id": one, "assignment": assignment} for one in members], [], odds=0.8)


_CHOSEN_BY_CLIENTS = ("ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat")
_SIMPLE = ("OffsetCommit", "OffsetFetch", "TxnOffsetCommit")
_CLASSIC, _CONSUMER, _SHARE, _STREAMS = ("c0", "c1"), ("k0", "k1"), ("s0", "s1"), ("a0",)
_GROUPS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"), _CLASSIC),
    **dict.fromkeys(("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"), _CONSUMER),
    **dict.fromkeys(("StreamsGroupHeartbeat", "StreamsGroupDescribe"), _STREAMS),
    **dict.fromkeys(
        ("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge",
         "DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"), _SHARE
    ),
    **dict.fromkeys(
        ("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState",
         "DeleteShareGroupState", "ReadShareGroupStateSummary"), ("x0",)
    ),
}  # fmt: skip

CHOICES: dict[str, Callable[[Maker], Any]] = {
    # topics and partitions
    "name": Maker.topic, "topic": Maker.topic, "topic_name": Maker.topic,
    "topic_names[]": Maker.topic, "topic_id": lambda m: m.id_of(m.topic()),
    "partition": Maker.partition, "partition_index": Maker.partition, "index": Maker.partition,
    "partitions[]": Maker.partition, "partition_indexes[]": Maker.partition,
    "CreateTopics.partition_index": lambda m: m.any(0, 0, 1),
    "broker_ids[]": lambda m: m.some(1, 2),
    "CreateTopics.name": Maker.new_topic, "DeleteTopics.name": Maker.topic_to_go,
    "DeleteTopics.topic_names[]": Maker.topic_to_go,
    "DeleteTopics.topic_id": lambda m: m.id_of(m.topic_to_go()),
    "CreateTopics.num_partitions": lambda m: m.some(m.any(1, 2, 3, -1), 0, -2),
    "CreateTopics.replication_factor": lambda m: m.some(m.any(1, -1), 0, 2),
    "CreateTopics.assignments": lambda m: m.some(
        [], [{"partition_index": 0, "broker_ids": [1]}], [{"partition_index": 1, "broker_ids": [1]}]
    ),
    "count": lambda m: m.some(m._count() + m.any(0, 1, 1), 0, -1, m._count() - 1),
    "CreatePartitions.assignments": lambda m: m.some(None, [], [{"broker_ids": [1]}]),
    "replicas[]": lambda m: m.some(1, 2), "validate_only": lambda m: m.rng.random() < 0.2,
    "allow_auto_topic_creation": lambda m: m.rng.random() < 0.1,
    # records
    "acks": lambda m: m.any(-1, 1), "records": Maker.batch,
    "fetch_offset": Maker.offset, "offset": Maker.offset, "committed_offset": Maker.offset,
    "start_offset": Maker.offset, "current_leader_epoch": Maker.epoch,
    "last_fetched_epoch": Maker.epoch, "committed_leader_epoch": Maker.epoch,
    "leader_epoch": lambda m: m.some(0, 1, -1, 5), "log_start_offset": lambda m: -1,
    "committed_metadata": lambda m: m.some("", "note", None, "x" * 5000),
    "retention_time": lambda m: -1,
    "ListOffsets.replica_id": lambda m: m.some(-1, -2, 0, odds=0.97),
    "OffsetForLeaderEpoch.replica_id": lambda m: m.some(-1, -2),
    "timestamp": lambda m: m.some(
        m.any(-1, -2, -3, -4, -5), 0, m.base_ms + 10_000, m.base_ms + 10**9, -6, odds=0.7
    ),
    "Fetch.replica_id": lambda m: -1, "Fetch.max_wait": lambda m: m.any(0, 0, 5),
    "min_bytes": lambda m: m.some(0, 1), "max_bytes": lambda m: m.some(1 << 20, 1, 0),
    "partition_max_bytes": lambda m: m.some(1 << 20, 1, 0, 200),
    "isolation_level": lambda m: m.any(0, 1),
    "session_id": lambda m: m.session()[0], "session_epoch": lambda m: m.session()[1],
    "replica_state": lambda m: {"replica_id": -1, "replica_epoch": -1},
    "replica_directory_id": lambda m: ZERO, "high_watermark": lambda m: (1 << 63) - 1,
    "cluster_id": lambda m: None, "rack_id": lambda m: m.some(None, "r1", ""),
    "Fetch.rack_id": lambda m: m.some("", "r1"),
    "forgotten_topics_data": lambda m: m.some([], [m.forgotten()]),
    # groups
    "group_id": Maker.group, "group_ids[]": Maker.group, "groups_names[]": Maker.group,
    "DescribeGroups.groups[]": Maker.group, "member_id": Maker.member,
    "generation_id": Maker.generation, "generation_id_or_member_epoch": Maker.generation,
    "member_epoch": Maker.member_epoch,
    "OffsetFetch.member_epoch": lambda m: m.some(-1, m._member()[1], odds=0.6),
    "OffsetFetch.member_id": lambda m: m.some(None, m._member()[0], odds=0.6),
    "LeaveGroup.member_id": lambda m: m._choose_member()[0],
    "group_instance_id": lambda m: m.some(None, "static-1", odds=0.95),
    "instance_id": lambda m: m.some(None, "static-1", odds=0.93),
    "session_timeout": lambda m: m.some(300_000, 1, 1_800_001, odds=0.97),
    "rebalance_timeout": lambda m: m.joining(5000, -1),
    "JoinGroup.rebalance_timeout": lambda m: REBALANCE_MS,
    "protocol_type": lambda m: m.some("consumer", "connect", "", odds=0.96),
    "protocol_name": lambda m: m.some("range", "roundrobin", None, odds=0.92),
    "JoinGroup.name": lambda m: m.any("range", "range", "roundrobin"),
    "metadata": lambda m: subscription(m.any(*TOPICS)), "SyncGroup.assignments": _assignments,
    "reason": lambda m: None,
    "subscribed_topic_names": lambda m: m.joining(
        [m.any(*TOPICS)], m.some(None, ["t1", "t0"])
    ),
    "subscribed_topic_regex": lambda m: m.some(None, "t.*", "(", "", odds=0.93),
    "server_assignor": lambda m: m.some(
        None, "uniform" if m.said.get("group") == "k1" else "range", "bogus"
    ),
    "topic_partitions": lambda m: m.joining([], m.some(None, m.owned(), odds=0.6)),
    "ElectLeaders.topic_partitions": lambda m: [
        {"topic": m.topic(), "partitions": [m.partition()]}
    ],
    "topology": lambda m: m.joining(m.topology()), "active_tasks": lambda m: m.tasks(0),
    "standby_tasks": lambda m: m.tasks(1), "warmup_tasks": lambda m: m.joining([]),
    "process_id": lambda m: m.joining("p-1"), "client_tags": lambda m: m.joining([]),
    "task_offsets": lambda m: None, "task_end_offsets": lambda m: None,
    "shutdown_application": lambda m: False,
    "states_filter[]": lambda m: m.any("Stable", "empty", "Empty", "bogus", "Dead", ""),
    "types_filter[]": lambda m: m.any("consumer", "classic", "Share", "streams", "bogus"),
    "key": lambda m: m.some(m.any("c0", "k0", "tx-0"), ""),
    "coordinator_keys[]": lambda m: m.some(m.any("c0", "k0", "tx-0"), "", "s0:x:0", "s0"),
    "key_type": lambda m: m.some(m.any(0, 1), 2, 3),
    # share groups
    "share_session_epoch": Maker.share_epoch,
    "ShareFetch.topics": lambda m: m.share_topics((1, 3, 0, 4, 5)),
    "ShareAcknowledge.topics": lambda m: m.share_topics((1, 2, 3, 0, 4, 5)),
    "ShareFetch.forgotten_topics_data": lambda m: [],
    "ShareFetch.max_wait": lambda m: 200, "ShareFetch.min_bytes": lambda m: 1,
    "max_records": lambda m: m.some(500, 1), "batch_size": lambda m: m.some(500, 1),
    "share_acquire_mode": lambda m: m.some(0, 1), "is_renew_ack": lambda m: m.some(False, True),
    "ShareFetch.group_id": Maker.group, "state_epoch": lambda m: m.some(0, 1, -1),
    "delivery_state": lambda m: m.any(0, 2, 4), "delivery_count": lambda m: 1,
    "delivery_complete_count": lambda m: m.any(0, -1),
    # transactions
    "transactional_id": Maker.transaction, "transactional_ids[]": Maker.transaction,
    "producer_id": lambda m: m.bumped()[0], "producer_epoch": Maker.producer_epoch,
    "transaction_timeout": lambda m: m.some(600_000, 0, -1, 10**9, odds=0.95),
    "committed": lambda m: m.rng.random() < 0.6, "verify_only": lambda m: m.rng.random() < 0.1,
    "state_filters[]": lambda m: m.any("Ongoing", "Empty", "CompleteCommit", "Bogus", "Dead"),
    "producer_id_filters[]": lambda m: m._producer()[0],
    "duration_filter": lambda m: m.some(-1, 0, 10**9),
    "transactional_id_pattern": lambda m: m.some(None, "tx-.*", "(", "", odds=0.6),
    "coordinator_epoch": lambda m: m.some(0, 1, -1),
    "transaction_version": lambda m: m.any(0, 1, 2),
    # configs, rules, quotas
    "resource_type": Maker.resource, "resource_name": Maker.resource_name,
    "configuration_keys": lambda m: (
        m.some(None, [m.config()], [], odds=0.5) if m.said.get("resource") != 4 else [m.config()]
    ),
    "configs.name": Maker.config, "configs.value": Maker.config_value,
    "config_operation": lambda m: m.some(0, 1, 2, 3, 4, odds=0.6),
    "resource_types[]": lambda m: m.any(2, 4, 16, 32, 99),
    "CreateAcls.resource_type": lambda m: m.any(2, 3, 4, 5),
    "CreateAcls.resource_name": lambda m: m.some(m.any("t0", "kafka-cluster", "*"), ""),
    "resource_pattern_type": lambda m: m.any(3, 4),
    "principal": lambda m: m.some(m.any("User:a", "User:*"), "bad", ""),
    "CreateAcls.host": lambda m: m.some("*", "10.0.0.1", ""),
    "operation": lambda m: m.any(2, 3, 4, 8),
    "permission_type": lambda m: m.any(2, 3),
    "resource_type_filter": lambda m: m.some(m.any(1, 2, 3), 4),
    "resource_name_filter": lambda m: m.some(None, "t0", "*", odds=0.6),
    "pattern_type_filter": lambda m: m.any(1, 2, 3, 4),
    "principal_filter": lambda m: m.some(None, "User:a", "bad", odds=0.6),
    "host_filter": lambda m: m.some(None, "*", odds=0.7),
    "DescribeAcls.operation": lambda m: m.some(1, 2, 3, odds=0.6),
    "DescribeAcls.permission_type": lambda m: m.some(1, 2, 3, odds=0.6),
    "DeleteAcls.operation": lambda m: m.some(1, 2, 3, odds=0.6),
    "DeleteAcls.permission_type": lambda m: m.some(1, 2, 3, odds=0.6),
    "entity_type": Maker.entity, "entity_name": Maker.entity_name,
    "AlterClientQuotas.key": lambda m: m.any(
        "producer_byte_rate", "consumer_byte_rate", "request_percentage", "bogus",
        "controller_mutation_rate", "connection_creation_rate",
    ),
    "AlterClientQuotas.value": lambda m: m.some(m.any(1e9, 2e9), 1.5, 0.0, -1.0),
    "match_type": lambda m: m.some(m.any(0, 1, 2), 3), "match": lambda m: m.some("u1", None),
    "AlterUserScramCredentials.name": lambda m: m.some(m.any("a", "b"), ""),
    "DescribeUserScramCredentials.name": lambda m: m.some(m.any("a", "b"), ""),
    "mechanism": lambda m: m.some(m.any(1, 2), 0, 3), "salt": lambda m: b"salt" * 4,
    "SaslHandshake.mechanism": lambda m: "PLAIN",
    "iterations": lambda m: m.some(8192, 4096, 100, 16385),
    "salted_password": lambda m: b"secret" * 6,
    # the cluster
    "AlterReplicaLogDirs.path": lambda m: m.some("DATA", "/nowhere", "relative", odds=0.6),
    "broker_id": lambda m: 7, "voter_id": lambda m: 7, "election_type": lambda m: m.some(0, 1, 2),
    "DescribeQuorum.topic_name": lambda m: m.some("__cluster_metadata", "t0"),
    "DescribeQuorum.partition_index": lambda m: m.some(0, 1),
    "endpoint_type": lambda m: m.some(1, 2, 3),
    "feature": lambda m: m.some("bogus", "share.version", ""),
    "upgrade_type": lambda m: m.any(1, 2, 0),
    "max_version_level": lambda m: 77, "UpdateFeatures.validate_only": lambda m: True,
    "client_software_name": lambda m: m.some("beside", "-bad-", "", odds=0.6),
    "client_software_version": lambda m: m.some("1.0", " ", odds=0.8),
    "response_partition_limit": lambda m: m.some(2000, 1, 2, 0, -1, odds=0.5),
    "cursor": lambda m: m.some(
        None, {"topic_name": m.topic(), "partition_index": m.partition()}, odds=0.7
    ),
    "timeout": lambda m: _TIMEOUT_MS, "host": lambda m: "127.0.0.1", "port": lambda m: 9999,
    "client_instance_id": lambda m: m.some(ZERO, STRANGE),
}  # fmt: skip
