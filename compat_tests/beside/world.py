"""What is there while two brokers are asked the same: what Apache Kafka's answers told.

Requests are chosen by it, so that most are plausible. Answers are normal ones: ids are names that
both brokers know.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from typing import Any, NamedTuple

from compat_tests.beside.answers import Name, error_codes

Answer = dict[str, Any]
NO_PARTITIONS = struct.pack(">hii", 0, 0, -1)
"""What a member of a classic group is assigned (ConsumerProtocolAssignment v0)."""


class Topic(NamedTuple):
    id: str
    partitions: int


class World:
    """Learns from each request and its answer."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.ends: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.members: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        """Of each group: its members and the generation or epoch that each was told."""
        self.by_chance: set[str] = set()
        """Groups that had a member whose id a broker made: by their order partitions are given."""
        self.assigned: dict[tuple[str, str], Any] = {}
        self.producers: dict[str | None, list[tuple[str, int]]] = {}
        """Ids and epochs that were given to a transactional id (None: to none), newest last."""
        self.sequences: defaultdict[tuple[str, int, str, int], int] = defaultdict(int)
        self.to_sync: dict[str, Any] | None = None
        """The SyncGroup of the leader of a generation that has just begun."""
        self.fetch_sessions: list[tuple[str, int]] = []
        self.share_epochs: dict[tuple[str, str], int] = {}
        self.acquired: dict[tuple[str, str, str, int], list[tuple[int, int]]] = {}
        self.refused: set[str] = set()
        """Groups of which a member or an offset was refused, perhaps all that they would have."""
        self.subscribed: defaultdict[str, set[str]] = defaultdict(set)
        """What members of consumer groups ever subscribed to: names and expressions."""
        self.parted: set[str] = set()
        """Groups that luck made differ."""
        self.kafka_hung = False
        """It waits for itself and reads no more from that connection: it never sees it close."""

    def topic_named(self, id_: str) -> str:
        return next((name for name, topic in self.topics.items() if topic.id == id_), "")

    def saw_topics(self, metadata: Answer, latest: Answer) -> None:
        """Metadata (v12) and ListOffsets of everything."""
        self.topics = {
            topic["name"]: Topic(topic["topic_id"], len(topic["partitions"]))
            for topic in metadata["topics"]
        }
        for topic in latest["topics"]:
            for one in topic["partitions"]:
                self.ends[topic["name"], one["partition_index"]] = max(0, one["offset"])

    def learn(self, api: str, asked: dict[str, Any], answer: Answer) -> None:
        if answer.get("error_code") == 25:  # UNKNOWN_MEMBER_ID
            self.members[asked["group_id"]].pop(asked.get("member_id", ""), None)
        if isinstance(answer.get("member_id"), Name):
            self.by_chance.add(asked["group_id"])
        told = getattr(self, "_" + re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower(), None)
        if told is not None:
            told(asked, answer)

    def lost_connection(self, kafka_hangs: bool) -> None:
        """Sessions may have ended with it."""
        self.kafka_hung = self.kafka_hung or kafka_hangs
        self.fetch_sessions.clear()
        self.share_epochs.clear()
        self.acquired.clear()

    # ---- what one API tells

    def _join_group(self, asked: dict[str, Any], answer: Answer) -> None:
        member, group = answer["member_id"], asked["group_id"]
        if answer["error_code"] == 23:  # INCONSISTENT_GROUP_PROTOCOL
            self.refused.add(group)
        if answer["error_code"] == 0:
            self.members[group] = dict.fromkeys(
                {*self.members[group], member}, answer["generation_id"]
            )
            if answer["members"]:
                assigned = [
                    {"member_id": one["member_id"], "assignment": NO_PARTITIONS}
                    for one in answer["members"]
                ]
                self.to_sync = {
                    "group_id": group, "generation_id": answer["generation_id"],
                    "member_id": member, "group_instance_id": asked.get("group_instance_id"),
                    "assignments": assigned,
                }  # fmt: skip
        elif answer["error_code"] == 79 and member:  # MEMBER_ID_REQUIRED
            self.members[group].setdefault(member, 0)

    def _leave_group(self, asked: dict[str, Any], answer: Answer) -> None:
        if answer["error_code"] == 0:
            for one in asked.get("members", [asked]):
                self.members[asked["group_id"]].pop(one["member_id"], None)

    def _offset_commit(self, asked: dict[str, Any], answer: Answer) -> None:
        if 12 in error_codes(answer):  # OFFSET_METADATA_TOO_LARGE
            self.refused.add(asked["group_id"])

    def _consumer_group_heartbeat(self, asked: dict[str, Any], answer: Answer) -> None:
        said = asked.get("subscribed_topic_names") or [], asked.get("subscribed_topic_regex")
        self.subscribed[asked["group_id"]].update((*said[0], said[1] or ""))
        group, member = asked["group_id"], answer["member_id"] or asked["member_id"]
        if answer["error_code"] or answer["member_epoch"] < 0:
            self.members[group].pop(member, None)
            return
        self.members[group][member] = answer["member_epoch"]
        if answer.get("assignment") is not None:
            self.assigned[group, member] = answer["assignment"].get("topic_partitions")

    _share_group_heartbeat = _consumer_group_heartbeat

    def _streams_group_heartbeat(self, asked: dict[str, Any], answer: Answer) -> None:
        self._consumer_group_heartbeat(asked, answer)
        if answer["active_tasks"] is not None:
            key = asked["group_id"], asked["member_id"]
            self.assigned[key] = answer["active_tasks"], answer["standby_tasks"]

    def _init_producer_id(self, asked: dict[str, Any], answer: Answer) -> None:
        if answer["error_code"] == 0:
            given = self.producers.setdefault(asked["transactional_id"], [])
            given.append((answer["producer_id"], answer["producer_epoch"]))

    def _end_txn(self, asked: dict[str, Any], answer: Answer) -> None:
        if answer["error_code"] == 0 and answer.get("producer_epoch", -1) >= 0:
            given = self.producers.setdefault(asked["transactional_id"], [])
            given.append((answer["producer_id"], answer["producer_epoch"]))

    def _produce(self, asked: dict[str, Any], answer: Answer) -> None:
        sent = {
            (self._topic_of(topic), one["index"]): one["records"]
            for topic in asked["topic_data"]
            for one in topic["partition_data"]
        }
        for topic in answer["responses"]:
            for one in topic["partition_responses"]:
                place = self._topic_of(topic), one["index"]
                batch = sent.get(place)
                if one["error_code"] or batch is None:
                    continue
                self.ends[place] = one["base_offset"] + len(batch.values)
                key = (batch.producer_id, batch.epoch, *place)
                self.sequences[key] = batch.sequence + len(batch.values)

    def _topic_of(self, said: dict[str, Any]) -> str:
        return said["name"] if "name" in said else self.topic_named(said["topic_id"])

    def _fetch(self, asked: dict[str, Any], answer: Answer) -> None:
        session = answer.get("session_id", 0)
        if session and answer["error_code"] == 0:
            epoch = asked["session_epoch"] + 1
            kept = [one for one in self.fetch_sessions if one[0] != session]
            self.fetch_sessions = [*kept[-3:], (session, epoch)]

    def _share_fetch(self, asked: dict[str, Any], answer: Answer) -> None:
        self._share_acknowledge(asked, answer)
        for topic in answer["responses"]:
            for one in topic["partitions"]:
                place = (asked["group_id"], asked["member_id"], topic["topic_id"])
                ranges = [(r["first_offset"], r["last_offset"]) for r in one["acquired_records"]]
                if ranges:
                    self.acquired[*place, one["partition_index"]] = ranges

    def _share_acknowledge(self, asked: dict[str, Any], answer: Answer) -> None:
        key, epoch = (asked["group_id"], asked["member_id"]), asked["share_session_epoch"]
        if answer["error_code"] or epoch < 0:
            self.share_epochs.pop(key, None)
        else:
            self.share_epochs[key] = epoch + 1
