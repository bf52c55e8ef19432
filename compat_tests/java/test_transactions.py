"""Transactions of the Java client: loads, a copier, kafka-transactions, transaction.version.

The tools are Kafka's own. Where one is to find something open, librdkafka holds a transaction open;
a hanging one, which no client makes any more, is written by hand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.record.default_records import DefaultRecordBatchBuilder

from testkit.clients import raw
from testkit.clients.java_tools import Finished, JavaTools
from testkit.wait import eventually

pytestmark = pytest.mark.java

_FOREIGN_PRODUCER_ID = 987_654_321
"""No controller has dealt it out yet."""

Tool = Callable[..., Finished]


def rows(table: str) -> list[dict[str, str]]:
    """What kafka-transactions prints: columns with tabs between them, a heading first."""
    heading, *lines = [
        [field.strip() for field in line.split("\t")] for line in table.splitlines() if line.strip()
    ]
    return [dict(zip(heading, line, strict=False)) for line in lines]


def listed(tool: Tool, *args: str) -> dict[str, str]:
    """Transactional id -> state."""
    found = rows(tool("TransactionsCommand", "list", *args).ok())
    return {row["TransactionalId"]: row["TransactionState"] for row in found}


def described(tool: Tool, transactional_id: str) -> dict[str, str]:
    args = ("describe", "--transactional-id", transactional_id)
    (found,) = rows(tool("TransactionsCommand", *args).ok())
    return found


def producers(tool: Tool, topic: str) -> list[dict[str, str]]:
    args = ("describe-producers", "--topic", topic, "--partition", "0")
    return rows(tool("TransactionsCommand", *args).ok())


def create(tool: Tool, topic: str, partitions: int = 1) -> None:
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions)).ok()


def values(tool: Tool, topic: str, isolation: str = "read_committed", *args: str) -> list[str]:
    """All values that are there for a reader now."""
    finished = tool(
        "ConsoleConsumer", "--topic", topic, "--from-beginning", "--isolation-level", isolation,
        "--timeout-ms", "3000", *args,
    )  # fmt: skip
    return finished.out.splitlines()


@pytest.fixture
def opened(bootstrap: str) -> Callable[..., Producer]:
    """A transactional producer that began a transaction and sent these values."""

    def begin(transactional_id: str, topic: str, *sent: str, **config: Any) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                **config,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in sent:
            producer.produce(topic, value.encode(), partition=0)
        assert producer.flush(30) == 0
        return producer

    return begin


# ---- loads


def load(tool: Tool, topic: str, count: int, *args: str, per_s: int = -1) -> None:
    """So many records; at most `per_s` of them in a second, -1 for as fast as it goes."""
    finished = tool(
        "ProducerPerformance", "--topic", topic, "--num-records", str(count),
        "--throughput", str(per_s), "--payload-monotonic", *args, timeout_s=90,
    )  # fmt: skip
    assert f"{count} records sent" in finished.ok()


def test_a_transactional_load_is_read_once_and_whole(tool: Tool, topic_name: str) -> None:
    create(tool, topic_name)
    args = ("--transactional-id", topic_name, "--transaction-duration-ms", "20")
    load(tool, topic_name, 5_000, *args, per_s=10_000)  # so half a second, many transactions
    assert values(tool, topic_name) == [str(i) for i in range(5_000)]
    assert listed(tool)[topic_name] == "CompleteCommit"
    (producer,) = producers(tool, topic_name)
    assert producer["CurrentTransactionStartOffset"] == "None"
    assert int(producer["ProducerEpoch"]) > 1, "an epoch for each transaction (KIP-890)"


@pytest.mark.parametrize("mode", ["--use-group-metadata", "--enable-random-aborts"])
def test_a_copier_copies_each_record_once(
    java_tools: JavaTools, bootstrap: str, tool: Tool, topic_name: str, mode: str
) -> None:
    """Kafka's system tests' own: reads, writes, commits what it read in the same transaction."""
    source, target = f"{topic_name}-source", f"{topic_name}-target"
    create(tool, source)
    create(tool, target)
    load(tool, source, 2_000)
    copied = java_tools.run(
        "TransactionalMessageCopier", "--broker-list", bootstrap,
        "--transactional-id", f"copier-{topic_name}", "--consumer-group", f"group-{topic_name}",
        "--input-topic", source, "--input-partition", "0", "--output-topic", target,
        "--transaction-size", "150", mode, timeout_s=90,
    )  # fmt: skip
    assert '"remaining":0' in copied.ok(), copied.text[-2000:]
    assert values(tool, target) == [str(i) for i in range(2_000)]
    offsets = tool("ConsumerGroupCommand", "--describe", "--group", f"group-{topic_name}").ok()
    assert re.search(rf"{source}\s+0\s+2000\s+2000\s+0\s", offsets), offsets


# ---- kafka-transactions


def test_an_open_transaction_is_listed_and_described(
    tool: Tool, opened: Callable[..., Producer], topic_name: str
) -> None:
    create(tool, topic_name)
    before_ms = time.time() * 1000
    producer = opened(topic_name, topic_name, "a", "b")
    assert listed(tool)[topic_name] == "Ongoing"
    state = described(tool, topic_name)
    assert state["TransactionState"] == "Ongoing"
    assert state["TransactionTimeoutMs"] == "60000"
    assert state["TopicPartitions"] == f"{topic_name}-0"
    assert before_ms - 1000 <= int(state["CurrentTransactionStartTimeMs"]) <= time.time() * 1000
    (one,) = producers(tool, topic_name)
    assert one["ProducerId"] == state["ProducerId"]
    assert (one["LastSequence"], one["CurrentTransactionStartOffset"]) == ("1", "0")
    assert values(tool, topic_name) == []
    assert values(tool, topic_name, "read_uncommitted") == ["a", "b"]

    producer.abort_transaction(30)
    assert eventually(lambda: listed(tool)[topic_name] == "CompleteAbort")
    (one,) = producers(tool, topic_name)
    assert one["CurrentTransactionStartOffset"] == "None"
    assert values(tool, topic_name) == []
    state = described(tool, topic_name)
    assert (state["TransactionState"], state["TopicPartitions"]) == ("CompleteAbort", "")


def test_transactions_are_listed_by_duration_and_name(
    tool: Tool, opened: Callable[..., Producer], topic_name: str
) -> None:
    create(tool, topic_name)
    producer = opened(f"{topic_name}-x", topic_name, "a")
    assert f"{topic_name}-x" not in listed(tool, "--duration-filter", "600000")
    eventually(lambda: f"{topic_name}-x" in listed(tool, "--duration-filter", "100"))
    pattern = f"{re.escape(topic_name)}-[xy]"
    assert listed(tool, "--transactional-id-pattern", pattern) == {f"{topic_name}-x": "Ongoing"}
    assert listed(tool, "--transactional-id-pattern", f"{re.escape(topic_name)}-y") == {}
    producer.commit_transaction(30)


def test_an_unknown_transaction_cannot_be_described(tool: Tool, topic_name: str) -> None:
    refused = tool("TransactionsCommand", "describe", "--transactional-id", topic_name)
    assert refused.code != 0
    assert "the ID could not be found" in refused.text


def test_a_transaction_is_ended_by_force(
    tool: Tool, opened: Callable[..., Producer], topic_name: str
) -> None:
    create(tool, topic_name)
    producer = opened(topic_name, topic_name, "a")
    tool("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", topic_name).ok()
    eventually(lambda: producers(tool, topic_name)[0]["CurrentTransactionStartOffset"] == "None")
    with pytest.raises(Exception, match=r"fenced|FENCED|epoch"):
        producer.commit_transaction(30)
    assert values(tool, topic_name) == []


def hang(bootstrap: str, topic: str, *sent: str) -> None:
    """Append transactional records that no coordinator knows of, as an old client could."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=True, producer_id=_FOREIGN_PRODUCER_ID,
        producer_epoch=3, base_sequence=0, batch_size=1 << 20,
    )  # fmt: skip
    now_ms = int(time.time() * 1000)
    for offset, value in enumerate(sent):
        builder.append(offset, timestamp=now_ms, key=None, value=value.encode(), headers=[])
    body = raw.produce_v3(topic, bytes(builder.build()))
    transactional_id = raw.string("hanging")
    with raw.connect(bootstrap) as connection:
        connection.sendall(raw.request(raw.PRODUCE, 3, transactional_id + body[2:]))
        connection.settimeout(20)
        assert raw.produce_error(raw.read_frame(connection)) == 0


def test_a_hanging_transaction_is_found_and_aborted(
    fresh_broker: Callable[..., Any], java_tools: JavaTools
) -> None:
    """Nobody ends it: its coordinator knows nothing of it. Readers wait until an admin does."""
    own = fresh_broker({"transaction.partition.verification.enable": "false"})
    where = ("--bootstrap-server", own.bootstrap_servers)

    def tool(name: str, *args: str, timeout_s: float = 60) -> Finished:
        return java_tools.run(name, *where, *args, timeout_s=timeout_s)

    create(tool, "t")
    hang(own.bootstrap_servers, "t", "never ended")
    load(tool, "t", 3)
    assert values(tool, "t") == []

    def hanging(minutes: int) -> list[dict[str, str]]:
        args = ("--topic", "t", "--partition", "0", "--max-transaction-timeout", str(minutes))
        return rows(tool("TransactionsCommand", "find-hanging", *args).ok())

    assert hanging(15) == []
    (found,) = eventually(lambda: hanging(0))
    assert (found["Topic"], found["Partition"], found["StartOffset"]) == ("t", "0", "0")
    assert (found["ProducerId"], found["ProducerEpoch"]) == (str(_FOREIGN_PRODUCER_ID), "3")

    wrong = tool(
        "TransactionsCommand", "abort", "--topic", "t", "--partition", "0", "--start-offset", "1"
    )
    assert wrong.code != 0
    tool(
        "TransactionsCommand", "abort", "--topic", "t", "--partition", "0", "--start-offset", "0"
    ).ok()
    assert hanging(0) == []
    assert values(tool, "t") == ["0", "1", "2"]


def test_what_a_coordinator_knows_does_not_hang(
    tool: Tool, opened: Callable[..., Producer], topic_name: str
) -> None:
    create(tool, topic_name)
    producer = opened(topic_name, topic_name, "a")
    args = ("--topic", topic_name, "--partition", "0", "--max-transaction-timeout", "0")
    assert rows(tool("TransactionsCommand", "find-hanging", *args).ok()) == []
    producer.commit_transaction(30)


# ---- transaction.version


def test_loads_go_on_while_the_version_of_transactions_changes(
    fresh_broker: Callable[..., Any], java_tools: JavaTools
) -> None:
    own = fresh_broker()
    where = ("--bootstrap-server", own.bootstrap_servers)

    def tool(name: str, *args: str, timeout_s: float = 60) -> Finished:
        return java_tools.run(name, *where, *args, timeout_s=timeout_s)

    def level() -> int:
        found = re.search(
            r"Feature: transaction.version.*FinalizedVersionLevel: (\d)",
            tool("FeatureCommand", "describe").ok(),
        )
        assert found
        return int(found.group(1))

    def epochs() -> int:
        return int(described(tool, "load")["ProducerEpoch"])

    create(tool, "t")
    assert level() == 2
    args = ("--transactional-id", "load", "--transaction-duration-ms", "10")
    load(tool, "t", 500, *args)
    grown = epochs()
    for wanted, command in ((1, "downgrade"), (0, "downgrade"), (2, "upgrade"), (1, "downgrade")):
        tool("FeatureCommand", command, "--feature", f"transaction.version={wanted}").ok()
        assert level() == wanted
        load(tool, "t", 500, *args)
        if wanted < 2:
            assert epochs() == grown + 1, "one for InitProducerId, none for its transactions"
        grown = epochs()
    assert values(tool, "t") == [str(i) for _ in range(5) for i in range(500)]
    assert listed(tool) == {"load": "CompleteCommit"}
