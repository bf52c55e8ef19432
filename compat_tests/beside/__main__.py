"""The same requests to a fresh Barnabas and a fresh Apache Kafka, and where their answers differ.

    python -m compat_tests.beside --requests 2000 --seed 1      (make beside REQUESTS=... SEED=...)

One connection each. Some requests are of a story (`stories.py`), which goes on from what it was
answered, some are made alone (`requests.py`); most are plausible, of every API and version that
both advertise. The answers are compared field by field; what a client cannot rely on (ids, times,
words of errors, the order of sets) is left out. Each difference is printed with the request and
both answers, unless it is in the table of those that are known, with their reasons (`known.py`).
Fails if there is one.

Where the brokers may take their time (a topic that is made, a coordinator that moves, a transaction
that ends) both are asked until they have come to rest.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compat_tests.beside.answers import (
    Difference,
    Names,
    differences,
    error_codes,
    shown,
    tidy_fetch,
)
from compat_tests.beside.known import groups_of, known
from compat_tests.beside.messages import (
    API_VERSIONS,
    decode_response,
    encode_request,
    request_plan,
    response_plan,
)
from compat_tests.beside.requests import OFTEN, REBALANCE_MS, TOPICS, Maker, Request
from compat_tests.beside.stories import STORIES, Story, Teller
from compat_tests.beside.world import World
from testkit.brokers.nodes import ApacheKafka, Barnabas, RunningBroker
from testkit.clients import raw

LIST_OFFSETS, METADATA, FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP = 2, 3, 10, 11, 14
CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_TRANSACTIONS = 19, 44, 65
SHARE_OFFSETS = 90  # DescribeShareGroupOffsets
_DESCRIBES = {"ConsumerGroupHeartbeat": 69, "ShareGroupHeartbeat": 77}
ANSWER_S = 15.0
PATIENCE_S = 4.0
PAUSE_S = 0.05
REBALANCE_S = REBALANCE_MS / 1000 + 0.1
WAITS_FOR = frozenset((14, 15, 51))
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS: ask again."""
_READS = ("Describe", "List", "Metadata", "FindCoordinator", "OffsetFetch", "ApiVersions")
_READS_TOO = ("OffsetForLeaderEpoch", "ConsumerGroupDescribe", "ShareGroupDescribe")
_CHANGES = frozenset((
    "CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "IncrementalAlterConfigs",
    "AlterConfigs", "StreamsGroupHeartbeat", "CreateAcls", "DeleteAcls", "AlterClientQuotas",
    "AlterUserScramCredentials", "AlterPartitionReassignments", "ElectLeaders", "UpdateFeatures",
))  # fmt: skip
OF_STORIES = 0.6
"""How many of the requests are of one; the others are made alone."""
TOLD_AT_ONCE = 3
"""Stories that are in hand, so that one changes what another is about."""
_ENDS = frozenset(("EndTxn", "InitProducerId", "WriteTxnMarkers"))
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.consumer.assignment.interval.ms": 0,
    "group.share.assignment.interval.ms": 0,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 0,
}


class Side:
    """One of the two brokers, one connection to it, and its own words."""

    def __init__(self, broker: RunningBroker, base_ms: int) -> None:
        self.broker = broker
        self.names = Names(base_ms, str(broker.data_dir))
        self._correlation = 0
        self._sock = raw.connect(broker.bootstrap_servers, ANSWER_S)

    def send(self, request: Request) -> None:
        self._correlation += 1
        own = self.names.own(request.body)
        frame = encode_request(request.key, request.version, self._correlation, own)
        with contextlib.suppress(OSError):  # what is closed is noticed by who reads
            self._sock.sendall(frame)

    def receive(self, request: Request) -> dict[str, Any]:
        """The answer in names; or that the connection was closed, or that none came."""
        try:
            frame = raw.read_frame(self._sock)
        except TimeoutError:
            return {"connection": "no answer"}
        except (OSError, EOFError):
            return {"connection": "closed"}
        answer = decode_response(request.key, request.version, frame)
        if request.api in ("Fetch", "ShareFetch"):
            tidy_fetch(answer, is_share=request.api == "ShareFetch")
        return self.names.normal(response_plan(request.key, request.version), answer)

    def ask(self, request: Request) -> dict[str, Any]:
        self.send(request)
        return self.receive(request)

    def connect_again(self) -> None:
        self._sock.close()
        self._sock = raw.connect(self.broker.bootstrap_servers, ANSWER_S)


class Beside:
    """Asks both the same. `kafka` is the one that is believed."""

    def __init__(self, kafka: RunningBroker, barnabas: RunningBroker, seed: str) -> None:
        self._seed = seed
        self._base_ms = int(time.time()) * 1000
        self._sides = Side(kafka, self._base_ms), Side(barnabas, self._base_ms)
        self._world = World()
        self._versions: dict[int, list[int]] = {}
        self._keys: dict[str, int] = {}
        self._stories: list[tuple[Story, tuple[str, dict[str, Any]]]] = []
        self._answer: dict[str, Any] = {}
        """Apache Kafka's last."""

    def prepare(self) -> None:
        """Topics, coordinators, and the versions that both advertise."""
        made = [{"name": name, "num_partitions": 1 + 2 * (name == "t1"), "replication_factor": 1,
                 "configs": [{"name": "cleanup.policy", "value": "compact"}] * (name == "compact")}
                for name in TOPICS]  # fmt: skip
        body: dict[str, Any] = {"topics": made, "timeout": 10_000}
        self.answers(Request(CREATE_TOPICS, 7, body), "prepare")
        earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        group = {"resource_type": 32, "resource_name": "s0", "configs": [earliest]}
        self.answers(Request(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [group]}), "prepare")
        for kind, key in ((0, "c0"), (1, "tx-0")):
            body = {"key_type": kind, "coordinator_keys": [key]}
            self.answers(Request(FIND_COORDINATOR, 6, body), "prepare")
        self._rest()
        served = [
            {row["api_key"]: row for row in side.ask(Request(API_VERSIONS, 0, {}))["api_keys"]}
            for side in self._sides
        ]
        for key in served[0].keys() & served[1].keys():
            low = max(side[key]["min_version"] for side in served)
            high = min(side[key]["max_version"] for side in served)
            for version in range(low, high + 1):
                try:
                    request_plan(key, version), response_plan(key, version)
                except Exception:  # Produce is advertised below what is served
                    continue
                self._versions.setdefault(key, []).append(version)
        self._versions[JOIN_GROUP].remove(0)  # its rebalances take as long as its sessions
        self._keys = {Request(key, 0, {}).api: key for key in self._versions}

    def requests(self, count: int) -> Iterator[tuple[int, Request]]:
        """The next is made when what the last one did is known."""
        keys = sorted(self._versions)
        for number in range(count):
            rng = random.Random(f"{self._seed}:{number}")
            if rng.random() < OF_STORIES:
                yield from self._of_a_story(rng, number)
            else:
                weights = [OFTEN.get(Request(key, 0, {}).api, 1) for key in keys]
                (key,) = rng.choices(keys, weights)
                maker = Maker(rng, self._world, self._base_ms)
                yield number, maker.request(key, rng.choice(self._versions[key]))
            if self._world.to_sync is not None:
                yield number, Request(SYNC_GROUP, 3, self._world.to_sync)
                self._world.to_sync = None

    def _of_a_story(self, rng: random.Random, number: int) -> Iterator[tuple[int, Request]]:
        """The next request of one that is told, in any version."""
        if len(self._stories) < TOLD_AT_ONCE:
            new = rng.choice(STORIES)(Teller(rng, self._world, self._base_ms))
            self._stories.append((new, next(new)))
        chosen = rng.randrange(len(self._stories))
        story, (api, body) = self._stories.pop(chosen)
        key = self._keys[api]
        yield number, Request(key, rng.choice(self._versions[key]), body)
        if "connection" in self._answer:
            return
        with contextlib.suppress(StopIteration):
            self._stories.append((story, story.send(self._answer)))

    def answers(self, request: Request, where: str) -> list[dict[str, Any]]:
        """Of both, when they have come to rest; what was asked is learnt from."""
        for side in self._sides:
            side.names.where = f"{where}:{request.api}"
            side.send(request)
        found = [self._settled(side, request, side.receive(request)) for side in self._sides]
        deadline = time.monotonic() + PATIENCE_S / 4
        while _may_come_right(request, found) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            found = [side.ask(request) for side in self._sides]
        self._answer = found[0]
        self._take_in(request, found)
        self._rest_after(request)
        return found

    def unknown(self, request: Request, found: list[dict[str, Any]]) -> list[Difference]:
        """Where the answers differ and should not."""
        new = []
        for one in differences(*found):
            row = known(request, found[0], one, self._world)
            if row is None:
                new.append(one)
            elif row.parts:
                self._world.parted |= groups_of(request.body)
        return new

    def _take_in(self, request: Request, found: list[dict[str, Any]]) -> None:
        if any("connection" in answer for answer in found):
            for side in self._sides:
                side.connect_again()
            self._world.lost_connection(found[0].get("connection") == "no answer")
            self._stories.clear()
        else:
            self._world.learn(request.api, request.body, found[0])

    @staticmethod
    def _settled(side: Side, request: Request, answer: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while error_codes(answer) & WAITS_FOR and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            answer = side.ask(request)
        return answer

    def _rest_after(self, request: Request) -> None:
        if request.api in _CHANGES or request.body.get("allow_auto_topic_creation"):
            time.sleep(PAUSE_S)
            self._rest()
        elif request.api == "SyncGroup":
            time.sleep(REBALANCE_S)  # who was to sync and did not is out
        elif request.api in _DESCRIBES:
            time.sleep(PAUSE_S)  # expressions are looked up, share partitions begin
            described = Request(
                _DESCRIBES[request.api], 1, {"group_ids": [request.body["group_id"]]}
            )
            self._until(lambda: _are_equal(s.ask(described) for s in self._sides), PATIENCE_S / 4)
            if request.api == "ShareGroupHeartbeat":
                self._until(lambda: self._have_begun(request.body["group_id"]), PATIENCE_S / 2)
        elif request.api in _ENDS and request.body.get("transactional_id"):
            body = {"transactional_ids": [request.body["transactional_id"]]}
            asked = Request(DESCRIBE_TRANSACTIONS, 0, body)
            self._until(lambda: all("Prepare" not in shown(s.ask(asked)) for s in self._sides))

    def _have_begun(self, group: str) -> bool:
        """Of a share group: the share partitions of the topics that members subscribe to."""
        described = Request(_DESCRIBES["ShareGroupHeartbeat"], 1, {"group_ids": [group]})
        (told,) = self._sides[0].ask(described)["groups"]
        names = {name for member in told["members"] for name in member["subscribed_topic_names"]}
        there = names & self._world.topics.keys()
        asked = {"groups": [{"group_id": group, "topics": None}]}
        offsets = [side.ask(Request(SHARE_OFFSETS, 0, asked))["groups"][0] for side in self._sides]
        return all(
            one["error_code"] or there <= {topic["topic_name"] for topic in one["topics"]}
            for one in offsets
        )

    def _rest(self) -> None:
        """Until both have the same topics with the same ends, or for long enough."""
        self._until(self._is_at_rest)

    def _is_at_rest(self) -> bool:
        everything = Request(METADATA, 12, {"topics": None})
        metadata = [side.ask(everything) for side in self._sides]
        if metadata[0]["topics"] != metadata[1]["topics"]:
            return False
        partitions = [
            {"name": topic["name"], "partitions": [
                {"partition_index": one["partition_index"], "current_leader_epoch": -1,
                 "timestamp": -1} for one in topic["partitions"]]}
            for topic in metadata[0]["topics"]
        ]  # fmt: skip
        latest = Request(LIST_OFFSETS, 7, {"replica_id": -1, "topics": partitions})
        ends = [side.ask(latest) for side in self._sides]
        self._world.saw_topics(metadata[0], ends[0])
        return error_codes(ends) == {0}

    @staticmethod
    def _until(done: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not done() and time.monotonic() < deadline:
            time.sleep(PAUSE_S)


def _may_come_right(request: Request, found: list[dict[str, Any]]) -> bool:
    """Reads that differ may do so because one broker knows later."""
    is_read = request.api.startswith(_READS) or request.api in _READS_TOO
    closed = any("connection" in answer for answer in found)
    return is_read and not closed and found[0] != found[1]


def _are_equal(answers: Iterable[dict[str, Any]]) -> bool:
    kafka, barnabas = answers
    return kafka == barnabas


def told(seed: str, number: int, request: Request, found: list[Any], at: list[Difference]) -> str:
    lines = [f"--- seed {seed}, request {number}: {request.api} v{request.version}",
             f"    asked    {shown(request.body)}", f"    kafka    {shown(found[0])}",
             f"    barnabas {shown(found[1])}"]  # fmt: skip
    lines += [f"    {one.path}: kafka {one.kafka!r}, barnabas {one.barnabas!r}" for one in at]
    return "\n".join(lines)


def run(
    kafka: RunningBroker, barnabas: RunningBroker, seed: str, count: int, *, story: bool = False
) -> list[str]:
    """What was found and is not known, told."""
    beside = Beside(kafka, barnabas, seed)
    beside.prepare()
    found: list[str] = []
    kinds: Counter[str] = Counter()
    for number, request in beside.requests(count):
        answers = beside.answers(request, str(number))
        new = beside.unknown(request, answers)
        if story and not new:
            print(told(seed, number, request, answers, []), flush=True)
        if new:
            kinds.update({f"{request.api} {one.kind}" for one in new})
            found.append(told(seed, number, request, answers, new))
            print(found[-1], flush=True)
    for kind, times in kinds.most_common():
        print(f"{times:5} {kind}")
    return found


@contextmanager
def both(directory: Path) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    """A fresh broker of each kind."""
    with (
        ApacheKafka(directory / "kafka", SETTINGS) as kafka,
        Barnabas(directory / "barnabas", SETTINGS) as barnabas,
    ):
        yield kafka, barnabas


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compat_tests.beside", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--story", action="store_true", help="print the requests that agree, too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, both(Path(directory)) as brokers:
        found = run(*brokers, options.seed, options.requests, story=options.story)
    print(f"{options.requests} requests, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
