"""kcat (librdkafka 2.0, two major steps older than the one in confluent-kafka)."""

from __future__ import annotations

import json
import time

import pytest

from testkit.clients.kcat import Kcat
from testkit.wait import eventually


@pytest.fixture
def kcat(bootstrap: str) -> Kcat:
    return Kcat(bootstrap)


@pytest.fixture
def ten(kcat: Kcat, topic_name: str) -> str:
    """A topic with the records v0 ... v9, keyed k0 ... k9."""
    kcat("-P", "-t", topic_name, "-K", ":", stdin="".join(f"k{i}:v{i}\n" for i in range(10)))
    return topic_name


def test_metadata_is_listed(kcat: Kcat, ten: str, bootstrap: str) -> None:
    text = kcat("-L")
    assert f"at {bootstrap}" in text
    assert f'topic "{ten}" with 1 partitions:' in text
    listed = json.loads(kcat("-L", "-J", "-t", ten))
    assert [broker["name"] for broker in listed["brokers"]] == [bootstrap]
    (topic,) = [topic for topic in listed["topics"] if topic["topic"] == ten]
    (partition,) = topic["partitions"]
    assert partition["leader"] == listed["brokers"][0]["id"] == listed["controllerid"]
    assert partition["replicas"] == partition["isrs"] == [{"id": partition["leader"]}]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_produce_and_consume_with_every_codec(
    codec: str, acks: str, kcat: Kcat, topic_name: str
) -> None:
    lines = [f"{i} " + "squeeze " * 30 for i in range(200)]
    kcat("-P", "-t", topic_name, "-z", codec, "-X", f"acks={acks}", "-X", "linger.ms=50",
         stdin="\n".join(lines))  # fmt: skip
    out = kcat("-C", "-t", topic_name, "-o", "beginning", "-c", "200", "-e")
    assert out.splitlines() == lines


def test_keys_headers_and_the_format_string(kcat: Kcat, topic_name: str) -> None:
    kcat("-P", "-t", topic_name, "-K", ":", "-H", "colour=red", "-H", "empty=", "-Z",
         stdin="key:value\nnull:")  # fmt: skip
    out = kcat("-C", "-t", topic_name, "-e", "-f", "%t|%p|%o|%k|%s|%S|%h\n")
    assert out.splitlines() == [
        f"{topic_name}|0|0|key|value|5|colour=red,empty=",
        f"{topic_name}|0|1|null||-1|colour=red,empty=",
    ]
    first = json.loads(kcat("-C", "-t", topic_name, "-J", "-c", "1", "-e"))
    assert (first["key"], first["payload"]) == ("key", "value")
    assert abs(first["ts"] - time.time() * 1000) < 60_000


@pytest.mark.parametrize(
    ("offset", "expected"),
    [("beginning", range(10)), ("3", range(3, 10)), ("-2", range(8, 10)), ("end", range(0))],
)
def test_consume_from_an_offset(offset: str, expected: range, kcat: Kcat, ten: str) -> None:
    out = kcat("-C", "-t", ten, "-p", "0", "-o", offset, "-e")
    assert out.split() == [f"v{i}" for i in expected]


def test_offsets_by_time(kcat: Kcat, ten: str) -> None:
    assert kcat("-Q", "-t", f"{ten}:0:1000").strip() == f"{ten} [0] offset 0"
    tomorrow = int(time.time() * 1000) + 86_400_000
    assert kcat("-Q", "-t", f"{ten}:0:{tomorrow}").strip() == f"{ten} [0] offset -1"
    assert kcat("-Q", "-t", f"{ten}:0:-1").strip() == f"{ten} [0] offset 10"
    out = kcat("-C", "-t", ten, "-p", "0", "-o", "s@1000", "-o", f"e@{tomorrow}", "-e")
    assert len(out.split()) == 10


def test_a_group_shares_and_commits(kcat: Kcat, ten: str, group_name: str) -> None:
    settings = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000")
    first = kcat("-G", group_name, *settings, "-c", "10", ten)
    assert sorted(first.split()) == [f"v{i}" for i in range(10)]
    kcat("-P", "-t", ten, stdin="later\n")
    second = eventually(lambda: kcat("-G", group_name, *settings, "-c", "1", ten), what="one more")
    assert second.split() == ["later"]


def test_an_idempotent_producer_and_a_large_file(kcat: Kcat, topic_name: str) -> None:
    lines = [f"{i:07d}" * 20 for i in range(20_000)]
    kcat("-P", "-t", topic_name, "-X", "enable.idempotence=true", stdin="\n".join(lines))
    assert kcat("-C", "-t", topic_name, "-e").splitlines() == lines
