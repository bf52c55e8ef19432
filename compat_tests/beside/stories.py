"""Sequences whose every request says what the answer before it told.

A story is a generator: it yields what to ask next and is sent Apache Kafka's answer in names.
Several are told in turn, on the same few topics and groups, which they delete and make again.
Mostly they say what an honest client would, now and then what it would say late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

from compat_tests.beside.answers import STRANGE, ZERO
from compat_tests.beside.requests import REBALANCE_MS, TOPICS, Batch, subscription
from compat_tests.beside.world import Answer, World

Story = Generator[tuple[str, dict[str, Any]], Answer, None]
AGAIN = ("again-0", "again-1")
"""Topics that come and go."""
_FIRST, _LAST = 0, -1
_MS = 10_000
_RESET = "ys-reset"
"""A share group that fetches nothing: what is reset under those that did, Apache Kafka's leaders
go on with until the next acknowledgement."""


class Teller:
    """What a story draws from."""

    def __init__(self, rng: random.Random, world: World, base_ms: int) -> None:
        self.rng = rng
        self.world = world
        self.base_ms = base_ms

    def any(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def is_late(self) -> bool:
        return self.rng.random() < 0.08

    def stale(self, value: int) -> int:
        """A number as it was told, or beside it."""
        return value + self.any(-1, 1) if self.is_late() else value

    def turns(self) -> range:
        return range(self.rng.randrange(5, 16))

    def topic(self) -> str:
        return self.any(*TOPICS, *AGAIN)

    def id_of(self, name: str) -> str:
        known = self.world.topics.get(name)
        return known.id if known else STRANGE

    def partition(self, name: str) -> int:
        known = self.world.topics.get(name)
        return self.rng.randrange(known.partitions) if known else 0

    def place(self) -> tuple[dict[str, Any], int]:
        """A topic as requests of any version name it, and one of its partitions."""
        name = self.topic()
        return self.named(name), self.partition(name)

    def named(self, name: str) -> dict[str, Any]:
        return {"name": name, "topic": name, "topic_id": self.id_of(name)}

    def offset(self, name: str, partition: int) -> int:
        return self.rng.randrange(self.world.ends[name, partition] + 1)

    def batch(self, producer: tuple[Any, int] = (-1, -1), sequence: int = -1) -> Batch:
        values = tuple((b"k%d" % self.rng.randrange(3), b"v" * 10) for _ in range(self.any(1, 2)))
        when = self.base_ms + 1000 * self.rng.randrange(60)
        return Batch(*producer, sequence, producer[0] != -1, when, values)


def produce(
    said: dict[str, Any], partition: int, batch: Batch, transaction: str | None = None
) -> tuple[str, dict[str, Any]]:
    data = [{**said, "partition_data": [{"index": partition, "records": batch}]}]
    body = {"transactional_id": transaction, "acks": -1, "timeout": _MS, "topic_data": data}
    return "Produce", body


def topics_again(t: Teller) -> Story:
    """A topic is made, grown, configured, emptied, deleted and made again under the same name."""
    name = t.any(*AGAIN)
    for _ in t.turns():
        known = t.world.topics.get(name)
        if known is None:
            configs = t.any([], [{"name": "retention.ms", "value": "1000000000"}],
                            [{"name": "cleanup.policy", "value": "compact"}])  # fmt: skip
            yield "CreateTopics", {"topics": [
                {"name": name, "num_partitions": t.any(1, 2, 3), "replication_factor": 1,
                 "configs": configs}], "timeout": _MS}  # fmt: skip
            continue
        said, index = t.named(name), t.partition(name)
        key, value = t.any(("retention.ms", "2000000000"), ("max.message.bytes", "4000"),
                           ("cleanup.policy", "compact"), ("min.insync.replicas", "1"))  # fmt: skip
        config = {"name": key, "value": value, "config_operation": t.any(0, 0, 1, 2, 3)}
        resource = {"resource_type": 2, "resource_name": name}
        yield t.any(
            produce(said, index, t.batch()),
            produce(said, index, t.batch()),
            ("DeleteTopics", {"topics": [{"name": name, "topic_id": ZERO}], "topic_names": [name],
                              "timeout": _MS}),
            ("DeleteTopics", {"topics": [{"name": None, "topic_id": known.id}],
                              "topic_names": [name], "timeout": _MS}),
            ("CreatePartitions", {"topics": [{"name": name, "assignments": None,
                                              "count": t.stale(known.partitions + 1)}],
                                  "timeout": _MS, "validate_only": t.is_late()}),
            ("IncrementalAlterConfigs", {"resources": [{**resource, "configs": [config]}]}),
            ("AlterConfigs", {"resources": [{**resource, "configs": [config]}]}),
            ("DescribeConfigs", {"resources": [{**resource, "configuration_keys": [key]}],
                                 "include_synonyms": t.any(True, False)}),
            ("DescribeTopicPartitions", {"topics": [{"name": name}], "cursor": None,
                                         "response_partition_limit": t.any(1, 2, 2000)}),
            ("DeleteRecords", {"topics": [{"name": name, "partitions": [
                {"partition_index": index, "offset": t.any(-1, t.offset(name, index))}]}],
                "timeout": _MS}),
            ("AlterPartitionReassignments", {"timeout": _MS, "topics": [
                {"name": name, "partitions": [
                    {"partition_index": index, "replicas": t.any(None, [1], [1], [2], [])}]}]}),
            ("ListPartitionReassignments", {"timeout": _MS, "topics": t.any(
                None, [{"name": name, "partition_indexes": [index]}])}),
            ("ElectLeaders", {"election_type": t.any(0, 1), "timeout": _MS,
                              "topic_partitions": t.any(
                                  None, [{"topic": name, "partitions": [index]}])}),
            ("ListOffsets", {"replica_id": -1, "topics": [{"name": name, "partitions": [
                {"partition_index": index, "timestamp": t.any(-1, -2, -3, t.base_ms + 9000),
                 "current_leader_epoch": t.any(-1, 0)}]}]}),
            ("OffsetForLeaderEpoch", {"replica_id": -1, "topics": [{"topic": name, "partitions": [
                {"partition": index, "current_leader_epoch": t.any(-1, 0),
                 "leader_epoch": t.any(0, 1)}]}]}),
        )  # fmt: skip


def fetching(t: Teller) -> Story:
    """A consumer's fetch session: begun, gone on with the id that was answered, changed, closed."""
    at: dict[tuple[str, int], int] = {}
    session, epoch = 0, _FIRST
    for _ in t.turns():
        wanted = {(name, t.partition(name)) for name in (t.topic(), t.topic())}
        gone = {one for one in at if epoch and t.rng.random() < 0.2} - wanted
        if t.rng.random() < 0.4 and epoch:
            wanted = set()
        for one in wanted:
            at[one] = t.offset(*one)
        for one in gone:
            del at[one]
        answer = yield "Fetch", {
            "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": t.any(1 << 20, 1),
            "isolation_level": t.any(0, 1), "session_id": session, "session_epoch": t.stale(epoch),
            "topics": [
                {**t.named(name), "partitions": [
                    {"partition": index, "current_leader_epoch": t.any(-1, 0),
                     "fetch_offset": at[name, index], "last_fetched_epoch": -1,
                     "log_start_offset": -1,
                     "partition_max_bytes": t.any(1 << 20, 1)}]}
                for name, index in sorted(wanted)
            ],
            "forgotten_topics_data": [
                {**t.named(name), "partitions": [index]} for name, index in sorted(gone)
            ], "rack_id": "",
        }  # fmt: skip
        if answer.get("error_code", 0) or not answer.get("session_id"):
            session, epoch, at = 0, _FIRST, {}
        elif epoch == _LAST:
            return
        else:
            session = answer["session_id"]
            epoch = _LAST if t.rng.random() < 0.1 else epoch + 1
        if t.rng.random() < 0.5:
            said, index = t.place()
            yield produce(said, index, t.batch())


def transactions(t: Teller) -> Story:
    """A producer's life: transactions in a row, each with the epoch that was answered last."""
    id_, group = t.any("ty-0", "ty-1"), t.any("yo-0", "yc-0")
    answer = yield "InitProducerId", {
        "transactional_id": id_, "transaction_timeout": 600_000,
        "producer_id": -1, "producer_epoch": -1,
    }  # fmt: skip
    sequences: dict[tuple[str, int], int] = {}
    if answer["error_code"]:
        return
    who, epoch = answer["producer_id"], answer["producer_epoch"]
    for _ in t.turns():
        said, index = t.place()
        mine = {"transactional_id": id_, "producer_id": who, "producer_epoch": t.stale(epoch)}
        place = said["name"], index
        offsets = [{**said, "partitions": [
            {"partition_index": index, "committed_offset": t.rng.randrange(9),
             "committed_leader_epoch": -1, "committed_metadata": "m"}]}]  # fmt: skip
        batch = t.batch((who, epoch), t.stale(sequences.get(place, 0)) & 0xFFFF)
        added = [{"name": said["name"], "partitions": [index]}]
        asked = t.any(
            ("AddPartitionsToTxn", {
                "transactions": [{**mine, "verify_only": t.is_late(), "topics": added}],
                "v3_and_below_transactional_id": id_, "v3_and_below_producer_id": who,
                "v3_and_below_producer_epoch": mine["producer_epoch"],
                "v3_and_below_topics": added}),
            produce(said, index, batch, id_), produce(said, index, batch, id_),
            produce(said, index, batch, id_),
            ("AddOffsetsToTxn", {**mine, "group_id": group}),
            ("TxnOffsetCommit", {**mine, "group_id": group, "generation_id": -1, "member_id": "",
                                 "group_instance_id": None, "topics": offsets}),
            ("OffsetFetch", offset_fetch(group, said, index, stable=t.any(True, False))),
            ("EndTxn", {**mine, "committed": t.any(True, False)}),
            ("EndTxn", {**mine, "committed": t.any(True, False)}),
            ("InitProducerId", {"transactional_id": id_, "transaction_timeout": 600_000,
                                **t.any({"producer_id": -1, "producer_epoch": -1}, mine)}),
            ("DescribeTransactions", {"transactional_ids": [id_]}),
            ("DescribeProducers", {"topics": [{**said, "partition_indexes": [index]}]}),
            ("ListOffsets", {"replica_id": -1, "isolation_level": 1, "topics": [
                {**said, "partitions": [{"partition_index": index, "current_leader_epoch": -1,
                                         "timestamp": t.any(-1, -3, t.base_ms)}]}]}),
        )  # fmt: skip
        answer = yield asked
        if asked[0] in ("InitProducerId", "EndTxn") and answer.get("producer_epoch", -1) >= 0:
            if (who, epoch) != (answer["producer_id"], answer["producer_epoch"]):
                sequences.clear()
            who, epoch = answer["producer_id"], answer["producer_epoch"]
        elif asked[0] == "Produce":
            told = answer["responses"][0]["partition_responses"][0]
            if not told["error_code"]:
                sequences[place] = batch.sequence + len(batch.values)


def offset_fetch(
    group: str, said: dict[str, Any], index: int, member: str | None = None, epoch: int = -1,
    *, stable: bool = False,
) -> dict[str, Any]:  # fmt: skip
    topics = [{**said, "partition_indexes": [index]}]
    one = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": topics}
    return {"groups": [one], "group_id": group, "topics": topics, "require_stable": stable}


def offset_commit(
    t: Teller, group: str, said: dict[str, Any], index: int, member: str = "", epoch: int = -1
) -> tuple[str, dict[str, Any]]:
    return "OffsetCommit", {
        "group_id": group, "member_id": member, "generation_id_or_member_epoch": epoch,
        "group_instance_id": None, "retention_time": -1, "topics": [
            {**said, "partitions": [
                {"partition_index": index, "committed_offset": t.rng.randrange(9),
                 "committed_leader_epoch": -1, "committed_metadata": t.any("m", None)}]}],
    }  # fmt: skip


def ends_of_group(t: Teller, group: str) -> tuple[str, dict[str, Any]]:
    said, index = t.place()
    return t.any(
        ("DeleteGroups", {"groups_names": [group]}),
        ("OffsetDelete", {"group_id": group, "topics": [
            {"name": said["name"], "partitions": [{"partition_index": index}]}]}),
        ("ListGroups", {"states_filter": [], "types_filter": []}),
        ("DescribeGroups", {"groups": [group]}),
        ("ConsumerGroupDescribe", {"group_ids": [group]}),
        ("OffsetFetch", offset_fetch(group, said, index)),
        offset_commit(t, group, said, index),
    )  # fmt: skip


def consumers(t: Teller) -> Story:
    """Members of a consumer group, one static, with the epochs and partitions they were told."""
    group = t.any("yk-0", "yk-1", "yc-0")
    epochs: dict[str, int] = {}
    owned: dict[str, Any] = {}
    for _ in t.turns():
        member = t.any("ma", "mb", "mc")
        joins = member not in epochs
        if not joins and t.rng.random() < 0.4:
            said, index = t.place()
            yield t.any(
                offset_commit(t, group, said, index, member, t.stale(epochs[member])),
                ("OffsetFetch", offset_fetch(group, said, index, member, t.stale(epochs[member]))),
                ends_of_group(t, group),
            )
            continue
        epoch = 0 if joins else t.stale(epochs[member])
        if not joins and t.rng.random() < 0.12:
            epoch = t.any(-1, -1, -2)
        changes = joins or t.rng.random() < 0.2
        # Of several topics the order of their ids decides, and that is each broker's own.
        names = ["t1"] if group == "yk-1" else sorted({t.topic() for _ in range(2)})
        regex = "again.*" if group != "yk-1" and changes and t.rng.random() < 0.2 else None
        answer = yield "ConsumerGroupHeartbeat", {
            "group_id": group, "member_id": member, "member_epoch": epoch,
            "instance_id": "i-c" if member == "mc" else None, "rack_id": None,
            "rebalance_timeout": 300_000 if joins else -1,
            "subscribed_topic_names": names if changes else None,
            "subscribed_topic_regex": regex,
            "server_assignor": t.any(None, "range") if joins else None,
            "topic_partitions": [] if joins else owned.get(member),
        }  # fmt: skip
        if answer["error_code"] or epoch < 0:
            epochs.pop(member, None)
            owned.pop(member, None)
            continue
        epochs[member] = answer["member_epoch"]
        if answer["assignment"] is not None:
            owned[member] = answer["assignment"]["topic_partitions"]
    for member in epochs if t.any(True, False) else ():
        yield "ConsumerGroupHeartbeat", {
            "group_id": group, "member_id": member, "member_epoch": -1, "rebalance_timeout": -1,
            "instance_id": "i-c" if member == "mc" else None, "rack_id": None,
            "subscribed_topic_names": None, "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": None,
        }  # fmt: skip
        yield ends_of_group(t, group)


def classic(t: Teller) -> Story:
    """One member of a classic group, static or not, with the id and generation that were told."""
    group, instance = t.any("yc-0", "yc-1"), t.any(None, None, "i-0")
    member, generation = "", -1
    for _ in t.turns():
        said, index = t.place()
        mine = {"group_id": group, "member_id": member, "group_instance_id": instance}
        lives = {**mine, "generation_id": t.stale(generation)}
        commit = offset_commit(t, group, said, index, member, t.stale(generation))
        commit[1]["group_instance_id"] = instance
        asked = t.any(
            ("JoinGroup", mine), ("JoinGroup", mine),
            ("Heartbeat", lives), commit, commit,
            ("OffsetFetch", offset_fetch(group, said, index, stable=t.any(True, False))),
            ("LeaveGroup", {**mine, "members": [mine]}),
            ends_of_group(t, group),
        )  # fmt: skip
        if generation < 0:
            asked = "JoinGroup", {**mine, "member_id": t.any(member, "") if instance else member}
        if asked[0] != "JoinGroup":
            answer = yield asked
            if asked[0] == "LeaveGroup" and not answer["error_code"]:
                member, generation = "", -1
            continue
        asked[1].update(
            session_timeout=300_000,
            rebalance_timeout=REBALANCE_MS,
            protocol_type="consumer",
            reason=None,
            protocols=[{"name": "range", "metadata": subscription(t.topic())}],
        )
        answer = yield asked
        if answer["error_code"] == 79:  # MEMBER_ID_REQUIRED
            member = answer["member_id"]
        elif answer["error_code"]:
            member, generation = "", -1
        else:
            member, generation = answer["member_id"], answer["generation_id"]


def sharing(t: Teller) -> Story:
    """A member of a share group: records are acquired, accepted, released, rejected, left."""
    group, member = t.any("ys-0", "ys-0", _RESET), t.any("sa", "sb")
    comes = AGAIN if group == _RESET else ()  # nobody fetches what goes: Kafka did not expect it
    member_epoch, session = 0, _FIRST
    owned: list[Any] = []
    held: dict[tuple[str, int], list[tuple[int, int]]] = {}
    # Somebody stays: where nobody does Apache Kafka forgets the group with its connection only.
    yield "ShareFetch", share_fetch(group, "stays", _FIRST, [])
    for _ in t.turns():
        if group == _RESET or not owned or t.rng.random() < 0.25:
            leaves = member_epoch > 0 and t.rng.random() < 0.15
            answer = yield "ShareGroupHeartbeat", {
                "group_id": group, "member_id": member, "rack_id": None,
                "member_epoch": -1 if leaves else t.stale(member_epoch),
                "subscribed_topic_names": None if member_epoch else [t.any("t0", "t1", *comes)],
            }  # fmt: skip
            if answer["error_code"] or leaves:
                member_epoch, owned = 0, []
                yield share_admin(t, group)
                continue
            member_epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                owned = answer["assignment"]["topic_partitions"]
            continue
        alone = bool(held) and t.rng.random() < 0.5
        # Whether a fetch finds what it released itself is luck: Apache Kafka persists it beside.
        types = (1, 2, 3) if alone else (1, 3)
        acks: dict[str, list[dict[str, Any]]] = {}
        for (id_, index), ranges in sorted(held.items()):
            batches = [
                {"first_offset": first, "last_offset": last, "acknowledge_types": [t.any(*types)]}
                for first, last in ranges
            ]
            acks.setdefault(id_, []).append(
                {"partition_index": index, "acknowledgement_batches": batches}
            )
        acked = [{"topic_id": id_, "partitions": rows} for id_, rows in acks.items()]
        session_epoch = _LAST if session and t.rng.random() < 0.08 else t.stale(session)
        mine = {"group_id": group, "member_id": member, "share_session_epoch": session_epoch}
        if alone:
            answer = yield "ShareAcknowledge", {**mine, "topics": acked}
        else:
            topics = acked if session and t.rng.random() < 0.6 else [
                {"topic_id": one["topic_id"], "partitions": [
                    {"partition_index": index, "acknowledgement_batches": []}
                    for index in one["partitions"]]}
                for one in owned
            ]  # fmt: skip
            answer = yield (
                "ShareFetch",
                {**share_fetch(group, member, session_epoch, topics), "max_records": t.any(500, 1)},
            )
        held = {
            (topic["topic_id"], one["partition_index"]): [
                (row["first_offset"], row["last_offset"]) for row in one["acquired_records"]
            ]
            for topic in answer["responses"] for one in topic["partitions"]
            if one.get("acquired_records")
        }  # fmt: skip
        ended = answer["error_code"] or session_epoch == _LAST
        session = _FIRST if ended else session_epoch + 1
        if t.rng.random() < 0.4:
            name = t.any("t0", "t1")
            yield produce(t.named(name), t.partition(name), t.batch())
    if session:
        mine = {"group_id": group, "member_id": member, "share_session_epoch": _LAST}
        yield "ShareAcknowledge", {**mine, "topics": []}
    yield "ShareGroupHeartbeat", {
        "group_id": group, "member_id": member, "rack_id": None, "member_epoch": -1,
        "subscribed_topic_names": None,
    }  # fmt: skip
    for _ in range(3):
        yield share_admin(t, group)


def share_fetch(group: str, member: str, epoch: int, topics: list[Any]) -> dict[str, Any]:
    return {
        "group_id": group, "member_id": member, "share_session_epoch": epoch, "max_wait": 300,
        "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500,
        "topics": topics, "forgotten_topics_data": [],
    }  # fmt: skip


def share_admin(t: Teller, group: str) -> tuple[str, dict[str, Any]]:
    name = t.any("t0", "t1", *AGAIN)
    index = t.partition(name)
    looks = (
        ("DescribeShareGroupOffsets", {"groups": [{"group_id": group, "topics": t.any(
            None, [{"topic_name": name, "partitions": [index]}])}]}),
        ("ShareGroupDescribe", {"group_ids": [group]}),
        ("ListGroups", {"states_filter": [], "types_filter": ["share"]}),
    )  # fmt: skip
    if group != _RESET:
        return t.any(*looks)
    return t.any(
        *looks,
        ("AlterShareGroupOffsets", {"group_id": group, "topics": [
            {"topic_name": name, "partitions": [
                {"partition_index": index, "start_offset": t.offset(name, index)}]}]}),
        ("DeleteShareGroupOffsets", {"group_id": group, "topics": [{"topic_name": name}]}),
        ("DeleteGroups", {"groups_names": [group]}),
    )  # fmt: skip


STORIES: tuple[Callable[[Teller], Story], ...] = (
    topics_again, fetching, transactions, consumers, classic, sharing,
)  # fmt: skip
