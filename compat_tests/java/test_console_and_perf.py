"""The console clients, the performance tools and the verifiable clients."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

pytestmark = pytest.mark.java


def test_console_clients_carry_keys_headers_timestamps_and_nulls(
    produce: Any, consume: Any, topic_name: str
) -> None:
    reader = [
        "parse.key=true", "parse.headers=true", "null.marker=NULL",
        "headers.delimiter=|", "headers.separator=,", "headers.key.separator=:",
        "key.separator=/",
    ]  # fmt: skip
    properties = tuple(word for item in reader for word in ("--reader-property", item))
    produce(
        topic_name, "h1:v1,h2:v2|key/value", "NULL|NULL/no key", "h:1|gone/NULL", args=properties
    )
    shown = [
        "print.key=true", "print.headers=true", "print.offset=true", "print.partition=true",
        "print.timestamp=true",
    ]  # fmt: skip
    lines = consume(
        topic_name, 3, *(word for item in shown for word in ("--formatter-property", item))
    )
    stamp = int(lines[0].split("\t")[0].removeprefix("CreateTime:"))
    assert abs(stamp - time.time() * 1000) < 60_000
    assert [line.split("\t", 1)[1] for line in lines] == [
        "Partition:0\tOffset:0\th1:v1,h2:v2\tkey\tvalue",
        "Partition:0\tOffset:1\tNO_HEADERS\tnull\tno key",
        "Partition:0\tOffset:2\th:1\tgone\tnull",
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_the_java_producer_with_every_codec_and_acks(
    codec: str, acks: str, produce: Any, consume: Any, topic_name: str
) -> None:
    values = [f"{i} " + "squeeze " * 20 for i in range(50)]
    produce(
        topic_name, *values, args=("--compression-codec", codec, "--request-required-acks", acks)
    )
    assert consume(topic_name, 50) == values


def test_the_java_consumer_from_a_partition_and_an_offset(
    produce: Any, tool: Any, topic_name: str
) -> None:
    produce(topic_name, *"abcdef")
    out = tool("ConsoleConsumer", "--topic", topic_name, "--partition", "0", "--offset", "3",
               "--max-messages", "2", "--timeout-ms", "20000").ok()  # fmt: skip
    assert out.splitlines() == ["d", "e"]


def test_read_committed_sees_plain_records(produce: Any, consume: Any, topic_name: str) -> None:
    produce(topic_name, "a", "b")
    assert consume(topic_name, 2, "--isolation-level", "read_committed") == ["a", "b"]


def test_a_group_goes_on_where_it_was(
    produce: Any, consume: Any, topic_name: str, group_name: str
) -> None:
    produce(topic_name, "a", "b")
    assert consume(topic_name, 2, "--group", group_name) == ["a", "b"]
    produce(topic_name, "c")
    assert consume(topic_name, 1, "--group", group_name) == ["c"]


def test_topics_by_regular_expression(produce: Any, tool: Any, topic_name: str) -> None:
    produce(f"{topic_name}.x", "one")
    produce(f"{topic_name}.y", "two")
    out = tool("ConsoleConsumer", "--include", f"{topic_name}[.][xy]", "--from-beginning",
               "--max-messages", "2", "--timeout-ms", "20000").ok()  # fmt: skip
    assert sorted(out.splitlines()) == ["one", "two"]


@pytest.mark.parametrize("props", [("acks=1",), ("acks=all", "compression.type=lz4")])
def test_perf_tools_move_what_they_say(props: tuple[str, ...], tool: Any, topic_name: str) -> None:
    produced = tool("ProducerPerformance", "--topic", topic_name, "--num-records", "20000",
                    "--record-size", "500", "--throughput", "-1",
                    "--command-property", *props).ok()  # fmt: skip
    assert produced.splitlines()[-1].startswith("20000 records sent")
    consumed = tool("ConsumerPerformance", "--topic", topic_name, "--num-records", "20000").ok()
    row = [field.strip() for field in consumed.splitlines()[-1].split(",")]
    assert int(row[4]) == 20000
    assert float(row[2]) == pytest.approx(20000 * 500 / 1024 / 1024, rel=0.01)


def test_end_to_end_latency_is_measured(tool: Any, topic_name: str) -> None:
    out = tool("EndToEndLatency", "--topic", topic_name, "--num-records", "200",
               "--producer-acks", "all", "--record-size", "100").ok()  # fmt: skip
    average = re.search(r"Avg latency: ([\d.]+) ms", out)
    assert average
    assert float(average.group(1)) < 100
    assert "99th" in out


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("acks", ["1", "-1"])
def test_the_verifiable_producer_and_consumer_agree(
    acks: str, tool: Any, topic_name: str, group_name: str
) -> None:
    produced = _events(
        tool("VerifiableProducer", "--topic", topic_name, "--max-messages", "200",
             "--throughput", "10000", "--acks", acks).ok()
    )  # fmt: skip
    (summary,) = [event for event in produced if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (200, 200)
    consumed = _events(
        tool("VerifiableConsumer", "--topic", topic_name, "--max-messages", "200",
             "--group-id", group_name, "--reset-policy", "earliest").ok()
    )  # fmt: skip
    records = [event for event in consumed if event["name"] == "records_consumed"]
    assert sum(event["count"] for event in records) == 200
    commits = [event for event in consumed if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in commits)
    assert commits[-1]["offsets"][0]["offset"] == 200
