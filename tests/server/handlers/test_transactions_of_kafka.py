"""What Apache Kafka 4.3.1 answered, request by request and state by state, and what it did then.

The recording (tests/server/data/transactions_of_kafka.json) was made over the wire: every request
was put to a fresh transactional id in every state. The topic `stuck` was led by a broker that was
paused, so that a transaction there stays in Prepare*. For each: the answer; the state after it, the
producer id (P the one before, N a new one), how far the epoch moved, the partitions, and whether
there is a start time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from server.handlers import transactions
from tests.server.handlers.groups_support import Clientele, clients_of
from wire.errors import ErrorCode
from wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

RECORDING = Path(__file__).parents[1] / "data" / "transactions_of_kafka.json"
STRANGER = 100_000
"""Added to a producer id, it is nobody's."""

WORLDS = {
    "transaction.version 2, a producer of version 2": (2, 5, 5),
    "transaction.version 2, a producer of version 1": (2, 3, 4),
    "transaction.version 1, a producer of version 1": (1, 3, 4),
}
"""transaction.version, and the versions of AddPartitionsToTxn and EndTxn that lead to the state."""

WAIT_MS = 100

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
)  # fmt: skip

STRICTER = tuple(
    f"{state} | end5 {end}(0, -1)"
    for state in ("CompleteCommit", "CompleteAbort")
    for end in ("commit", "abort")
)
"""After a transaction of version 1, who is an epoch behind did not end it: PRODUCER_FENCED here,
where Kafka takes it for a repetition, and answers with the producer id and epoch of who did.
"""

Event = Callable[["Asker", str, int, int], Any]
"""Takes who asks, a transactional id, its producer id and its epoch."""


class Asker:
    """Asks one broker; markers are written at once, but those of `stuck`."""

    def __init__(self, clients: Clientele) -> None:
        self.clients = clients

    def init(self, id_: str, pid: int = -1, epoch: int = -1) -> Any:
        request = InitProducerIdRequest(
            transactional_id=id_, transaction_timeout_ms=60_000, producer_id=pid,
            producer_epoch=epoch,
        )  # fmt: skip
        answer = self.clients.ask(transactions.init_producer_id, request, 5)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def add(
        self, id_: str, pid: int, epoch: int, version: int, topic: str, *indexes: int,
        verify_only: bool = False,
    ) -> Any:  # fmt: skip
        make = AddPartitionsToTxnRequest
        topics = {"ok": [0, 1], "stuck": [0]} if verify_only else {topic: list(indexes)}
        request = make(
            v3_and_below_transactional_id=id_,
            v3_and_below_producer_id=pid,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                make.LegacyTopic(name=name, partitions=of) for name, of in topics.items()
            ],
            transactions=[
                make.Transaction(
                    transactional_id=id_,
                    producer_id=pid,
                    producer_epoch=epoch,
                    verify_only=verify_only,
                    topics=[
                        make.Transaction.Topic(name=name, partitions=of)
                        for name, of in topics.items()
                    ],
                )
            ],
        )
        asked = self.clients.start(transactions.add_partitions_to_txn, request, version)
        if not asked.answers:  # it waits for the markers; Kafka lets the client do that
            self.clients.node.pass_time(WAIT_MS)
        (answer,) = asked.answers
        found = answer.results_by_topic_v3_and_below
        if version >= 4:
            found = answer.results_by_transaction[0].topic_results
        return sorted(
            [topic.name, result.partition_index, name_of(result.partition_error_code)]
            for topic in found
            for result in topic.results_by_partition
        )

    def end(self, id_: str, pid: int, epoch: int, is_commit: bool, version: int) -> Any:
        request = EndTxnRequest(
            transactional_id=id_, producer_id=pid, producer_epoch=epoch, committed=is_commit
        )
        answer = self.clients.ask(transactions.end_txn, request, version)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def describe(self, id_: str) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[id_])
        answer = self.clients.ask(transactions.describe_transactions, request, 0)
        return answer.transaction_states[0]

    def write_markers(self) -> None:
        sent = self.clients.node.markers.sent
        for markers, on_done in list(sent):
            if all(partition.topic == "ok" for partition in markers.partitions):
                sent.remove((markers, on_done))
                on_done()

    def bring_to(self, state: str, id_: str, add_version: int, end_version: int) -> None:
        for _ in range(3):
            code, pid, epoch = self.init(id_)
        assert code == 0
        topic = "stuck" if state.startswith("Prepare") else "ok"
        if state != "Empty":
            assert self.add(id_, pid, epoch, add_version, topic, 0) == [[topic, 0, 0]]
        if state not in ("Empty", "Ongoing"):
            assert self.end(id_, pid, epoch, state.endswith("Commit"), end_version)[0] == 0
        self.write_markers()
        assert self.describe(id_).transaction_state == state


def name_of(code: int) -> Any:
    return ErrorCode(code).name if code else 0


def events() -> dict[str, Event]:
    """By the names they have in the recording; numbers are added to the producer id and epoch."""
    found: dict[str, Event] = {"init(-1, -1)": lambda ask, id_, pid, epoch: ask.init(id_)}
    for of, by in ((0, 0), (0, -1), (0, 1), (STRANGER, 0)):
        found[f"init({of}, {by})"] = lambda ask, id_, pid, epoch, of=of, by=by: ask.init(
            id_, pid + of, epoch + by
        )
        found[f"verify({of}, {by})"] = lambda ask, id_, pid, epoch, of=of, by=by: ask.add(
            id_, pid + of, epoch + by, 4, "", verify_only=True
        )
    for version, topic, index in itertools.product((3, 5), ("ok", "stuck"), (0, 1)):
        if (topic, index) != ("stuck", 1):
            found[f"add{version} [('{topic}', [{index}])]"] = (
                lambda ask, id_, pid, epoch, v=version, topic=topic, i=index: ask.add(
                    id_, pid, epoch, v, topic, i
                )
            )
    for version, (of, by) in itertools.product((3, 5), ((STRANGER, 0), (0, -1), (0, 1))):
        found[f"add{version} other({of}, {by})"] = (
            lambda ask, id_, pid, epoch, v=version, of=of, by=by: ask.add(
                id_, pid + of, epoch + by, v, "ok", 0
            )
        )
    moved = ((0, 0), (0, -1), (0, -2), (0, 1), (STRANGER, 0))
    for version, is_commit, (of, by) in itertools.product((1, 4, 5), (True, False), moved):
        found[f"end{version} {'commit' if is_commit else 'abort'}({of}, {by})"] = (
            lambda ask, id_, pid, epoch, v=version, c=is_commit, of=of, by=by: ask.end(
                id_, pid + of, epoch + by, c, v
            )
        )
    return found


def seen(answer: Any, before: Any, after: Any) -> list[Any]:
    """As the recording has it."""
    if isinstance(answer, tuple):
        code, pid, epoch = answer
        who = "P" if pid == before.producer_id else pid if pid < 0 else "N"
        answer = [name_of(code), who, epoch - before.producer_epoch if epoch >= 0 else epoch]
    return [
        answer,
        after.transaction_state,
        "P" if after.producer_id == before.producer_id else "N",
        after.producer_epoch - before.producer_epoch,
        sorted([topic.topic, sorted(topic.partitions)] for topic in after.topics),
        after.transaction_start_time_ms != -1,
    ]


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clientele]:
    with clients_of(tmp_path) as clients:
        for name, count in ((TRANSACTION_STATE_TOPIC, 1), ("ok", 2), ("stuck", 2)):
            clients.node.create(name, count)
        yield clients


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("world", WORLDS)
def test_everything_is_answered_as_kafka_answers_it(
    clients: Clientele, world: str, state: str
) -> None:
    transaction_version, *versions = WORLDS[world]
    clients.node.finalise("transaction.version", transaction_version)
    ask = Asker(clients)
    recorded = json.loads(RECORDING.read_text())[world]
    differences = []
    for name, event in events().items():
        ask.bring_to(state, name, *versions)
        before = ask.describe(name)
        answer = event(ask, name, before.producer_id, before.producer_epoch)
        ask.write_markers()
        found = seen(answer, before, ask.describe(name))
        row = f"{state} | {name}"
        expected = recorded[row]
        if row in STRICTER and "producer of version 1" in world:
            expected = [["PRODUCER_FENCED", -1, -1], *expected[1:]]
        if found != expected:
            differences.append((name, found, expected))
    assert not differences


def test_nothing_of_the_recording_is_left_out() -> None:
    names = {f"{state} | {name}" for state in STATES for name in events()}
    recording = json.loads(RECORDING.read_text())
    assert recording.keys() == WORLDS.keys()
    for recorded in recording.values():
        assert recorded.keys() == names
