"""Apache Kafka's own performance tools, each in a JVM of its own as an operator runs them.

The tools time themselves, so the JVM's start is not in their figures; its warm-up is.
"""

from __future__ import annotations

import json
import random
import re
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.loads.base import (
    Figures,
    LoadFailed,
    Place,
    create_topic,
    expect_records,
    run_command,
    stored_bytes,
)
from testkit import jars

_SUMMARY = re.compile(
    r"(?P<count>\d+) records sent, (?P<rate>[\d.]+) records/sec \((?P<mib>[\d.]+) MB/sec\).*"
    r"ms max latency, (?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th, "
    r"(?P<p999>\d+) ms 99.9th"
)
_WINDOW = re.compile(r"^\d+ records sent, ([\d.]+) records/sec .* ms max latency\.$", re.MULTILINE)
_COMPRESSED_SHARE = 0.6  # of the raw size: the payload repeats itself, each codec must find that


def _tool(place: Place, name: str, *arguments: str) -> str:
    libs = str(jars.libs())
    options = ["-Xmx512M", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command = [jars.java(), *options, "-cp", f"{libs}/*", f"org.apache.kafka.tools.{name}"]
    hide = ((libs, "KAFKA/libs"), (jars.java(), "java"), (place.scratch, "SCRATCH"))
    return run_command([*command, *arguments], hide=hide)


def _producer(place: Place, count: int, size: int, settings: list[str], *more: str) -> str:
    payload = () if "--payload-file" in more else ("--record-size", str(size))
    return _tool(
        place, "ProducerPerformance", "--bootstrap-server", place.bootstrap,
        "--topic", place.topic, "--num-records", str(count), "--throughput", "-1",
        *payload, *more, "--command-property", *settings,
    )  # fmt: skip


def _summary(out: str, size: int) -> Figures:
    found = _SUMMARY.search(out)
    if found is None:
        raise LoadFailed(f"no summary from ProducerPerformance: {out[-500:]}")
    rate = float(found["rate"])
    return {
        "records_s": rate,
        "mb_s": rate * size / 1e6,
        **{f"{share}_ms": float(found[share]) for share in ("p50", "p99", "p999")},
    }


def producer_performance(
    place: Place, size: int, count: int, partitions: int, settings: list[str]
) -> Figures:
    """W1 and W3: the producer as fast as it goes."""
    create_topic(place.bootstrap, place.topic, partitions)
    figures = _summary(_producer(place, count, size, settings), size)
    expect_records(place.bootstrap, place.topic, partitions, count)
    return figures


def long_run(place: Place, size: int, count: int, partitions: int, settings: list[str]) -> Figures:
    """W2: as W1, longer; `drift` is the rate of the last fifth of the time over the second."""
    create_topic(place.bootstrap, place.topic, partitions)
    out = _producer(place, count, size, settings, "--reporting-interval", "250")
    expect_records(place.bootstrap, place.topic, partitions, count)
    windows = [float(rate) for rate in _WINDOW.findall(out)]
    if len(windows) < 5:
        raise LoadFailed(f"{count} records took too short for five blocks")
    fifth = len(windows) // 5
    blocks = [statistics.fmean(windows[n * fifth : (n + 1) * fifth]) for n in range(5)]
    return {
        **_summary(out, size),
        **{f"block{n + 1}_records_s": rate for n, rate in enumerate(blocks)},
        # The first fifth is the client's JVM getting warm.
        "drift": blocks[4] / blocks[1],
    }


def consumer_performance(place: Place, count: int, size: int) -> Figures:
    """W6: a new group reads the whole topic."""
    out = _tool(
        place, "ConsumerPerformance", "--bootstrap-server", place.bootstrap,
        "--topic", place.topic, "--num-records", str(count), "--fetch-size", "1048576",
        "--timeout", "60000", "--hide-header",
    )  # fmt: skip
    row = _last_row(out)
    if int(row[4]) < count:
        raise LoadFailed(f"ConsumerPerformance read {row[4]} of {count} records")
    return {"records_s": float(row[5]), "mb_s": float(row[5]) * size / 1e6}


def share_consumer_performance(
    place: Place, group: str, consumers: int, count: int, size: int
) -> Figures:
    """A share group of several consumers in one JVM takes `count` records."""
    out = _tool(
        place, "ShareConsumerPerformance", "--bootstrap-server", place.bootstrap,
        "--topic", place.topic, "--group", group, "--threads", str(consumers),
        "--num-records", str(count), "--timeout", "60000", "--hide-header",
    )  # fmt: skip
    row = _last_row(out)
    if int(row[5]) < count:
        raise LoadFailed(f"ShareConsumerPerformance read {row[5]} of {count} records")
    return {"records_s": float(row[4]), "mb_s": float(row[4]) * size / 1e6}


def _last_row(out: str) -> list[str]:
    return [field.strip() for field in out.strip().splitlines()[-1].split(",")]


def both_ways(place: Place, size: int, count: int, partitions: int, settings: list[str]) -> Figures:
    """W7: producer and consumer at the same time."""
    create_topic(place.bootstrap, place.topic, partitions)
    with ThreadPoolExecutor(2) as threads:
        sending = threads.submit(_producer, place, count, size, settings)
        receiving = threads.submit(consumer_performance, place, count, size)
        sent, received = _summary(sending.result(), size), receiving.result()
    return {"produced_s": sent["records_s"], "consumed_s": received["records_s"]}


def compressed(place: Place, codec: str, size: int, count: int, settings: list[str]) -> Figures:
    """W8: W3 with a codec; what the broker stores must be compressed, and must be all there."""
    create_topic(place.bootstrap, place.topic)
    payload = Path(place.scratch, "payload.txt")
    payload.write_text("\n".join(_json_lines(size)), encoding="ascii")
    settings = [*settings, f"compression.type={codec}"]
    out = _producer(place, count, size, settings, "--payload-file", str(payload))
    expect_records(place.bootstrap, place.topic, 1, count)
    share = stored_bytes(place.data_dir, place.topic) / (count * size)
    if not 0 < share < _COMPRESSED_SHARE:
        raise LoadFailed(f"{codec}: stored {share:.0%} of the raw bytes, so not as compressed")
    return {**_summary(out, size), "stored_share": share}


def _json_lines(size: int) -> list[str]:
    """Records as applications send them: the same field names, different values."""
    source = random.Random(8)
    lines = []
    for number in range(1000):
        fields = {"id": number, "user": source.randrange(10**6), "state": "delivered", "items": []}
        items: list[dict[str, object]] = []
        while len(json.dumps({**fields, "items": items})) < size:
            items.append(
                {"sku": f"article-{source.randrange(1000):04}", "amount": 1, "gift": False}
            )
        lines.append(json.dumps({**fields, "items": items})[:size])
    return lines


def end_to_end_latency(place: Place, count: int, size: int, acks: str) -> Figures:
    """W5 by Kafka's own tool, which tells percentiles in whole milliseconds, the mean exactly."""
    create_topic(place.bootstrap, place.topic)
    out = _tool(
        place, "EndToEndLatency", "--bootstrap-server", place.bootstrap, "--topic", place.topic,
        "--num-records", str(count), "--producer-acks", acks, "--record-size", str(size),
    )  # fmt: skip
    mean = re.search(r"Avg latency: ([\d.]+) ms", out)
    shares = re.search(r"50th = (\d+), 99th = (\d+), 99.9th = (\d+)", out)
    if mean is None or shares is None:
        raise LoadFailed(f"no figures from EndToEndLatency: {out[-500:]}")
    return {"mean_us": float(mean[1]) * 1000, "p999_ms": float(shares[3])}
