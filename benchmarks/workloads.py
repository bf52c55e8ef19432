"""The workloads: what is run, with which parameters, and which way is better.

The ids are those of the comparison plan: W0 cold start, W1 and W2 Kafka's ProducerPerformance, W3
its modern defaults, W4 fixed rates, W5 ping-pong, W6 catch-up reads, W7 both at once, W8
compression, W9 TLS, W10 transactions, W11 many partitions, W12 many group members, W13 three nodes,
W14 Python clients, W15 Spark, W16 a test suite, W17 crash recovery, W18 more nodes. "C" are the
rows with a C client, "F" those whose batches are fixed beforehand, the same for both brokers. Each
runs alone, by id or name: `python -m benchmarks --only W3,produce-100`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Arguments = dict[str, Any]


class Workload(NamedTuple):
    """One load with its arguments, and how to run and show it.

    figures   those of the table; the JSON has all, and peak memory. The broker's CPU seconds are
              added, unless the load starts brokers of its own (`own_broker`).
    bars      what each figure's ratio to Apache Kafka should be: at least for rates, at most for
              the rest. They are printed, not enforced: a benchmark reports.
    most      bars for Barnabas' own figure, whatever Kafka's is.
    limits    the least programs beside which the row is set, by the language they are in: a load of
              `loads.limits` with its arguments (size and count are the row's).
    prepare   a topic and a load's arguments: filled once for each broker and shared.
    pairs     counted pairs; 0 takes the run's. `warm_up` runs one more pair first, not counted.
    quick     arguments that differ in the quick run; None leaves the workload out of it.
    tiny      arguments that differ when only the function is checked.
    default   whether it runs when nothing was chosen; else only by name.
    """

    id: str
    name: str
    title: str
    load: str
    arguments: Arguments
    figures: tuple[str, ...]
    bars: dict[str, float] = {}
    most: dict[str, float] = {}
    limits: dict[str, tuple[str, Arguments]] = {}
    prepare: tuple[str, Arguments] | None = None
    pairs: int = 0
    warm_up: bool = True
    own_broker: bool = False
    quick: Arguments | None = None
    tiny: Arguments = {}
    default: bool = True


# Higher is better for these figures, lower for all others.
RATES = frozenset(
    (
        "records_s", "mb_s", "requests_s", "transactions_s", "produced_s", "consumed_s",
        "achieved_s", "drift",
    )
)  # fmt: skip

# What came out, and is neither good nor bad.
NEITHER = frozenset(("batch_bytes",))

_IDEMPOTENT: dict[str, Any] = {"acks": "all", "enable.idempotence": True}
_PRODUCED = {"mb_s": 1.5, "records_s": 1.2, "cpu_s": 0.6}
_READ = {"mb_s": 1.0, "records_s": 1.0, "cpu_s": 0.7}
_LEVEL = {"mb_s": 1.0, "cpu_s": 0.8}
_LATE = {"p50_us": 1.0, "p99_us": 1.0, "p999_us": 1.0}
_LARGEST_BATCH = 1_000_000


def _receive(batch_bytes: int) -> dict[str, tuple[str, Arguments]]:
    return {"C": ("limits.receive", {"batch_bytes": batch_bytes})}


def _answer(window: int) -> dict[str, tuple[str, Arguments]]:
    return {
        name: ("limits.answer", {"program": name.lower(), "window": window})
        for name in ("C", "Python")
    }


_SEND: dict[str, tuple[str, Arguments]] = {"C": ("limits.send", {})}


def _produce(
    name: str,
    title: str,
    size: int,
    count: int,
    batch_bytes: int = _LARGEST_BATCH,
    **more: Any,
) -> Workload:
    quick = {"count": count * 6 // 10}
    settings = {"batch.size": batch_bytes, **more}
    return Workload(
        "C", name, f"produce {title}", "rdkafka.produce",
        {"size": size, "count": count, **settings},
        ("mb_s" if size > 100 else "records_s", "batch_bytes", "client_cpu_s"),
        bars=_PRODUCED, limits=_receive(batch_bytes), quick=quick, tiny={"count": 2000},
    )  # fmt: skip


def _fixed(name: str, title: str, **more: Any) -> Workload:
    return Workload(
        "F", name, f"fixed 16 KiB batches, 1,000 B, {title}", "fixed.produce",
        {"size": 1000, "count": 500_000, "batch_bytes": 16_384, **more},
        ("mb_s", "requests_s", "client_cpu_s"), bars=_LEVEL,
        limits=_receive(16_384), quick={"count": 300_000}, tiny={"count": 2000},
    )  # fmt: skip


_FILL_1000 = ("filled-1000", {"size": 1000, "count": 1_000_000})
_FILL_100 = ("filled-100", {"size": 100, "count": 6_000_000})


def _read(
    name: str,
    title: str,
    fill: tuple[str, Arguments],
    load: str = "rdkafka.consume",
    pairs: int = 0,
    quick: Arguments | None = None,
    **more: Any,
) -> Workload:
    size, count = fill[1]["size"], fill[1]["count"]
    return Workload(
        "W6", name, f"read {title}", load, {"size": size, "count": count, **more},
        ("mb_s" if size > 100 else "records_s", "client_cpu_s"),
        bars=_READ, limits=_SEND, prepare=fill, pairs=pairs, quick=quick, tiny={"count": 2000},
    )  # fmt: skip


HEADLINES = (
    Workload(
        "W0", "cold-start", "cold start", "lifetime.cold_start", {},
        ("start_s", "first_produce_s", "first_record_s", "format_s", "idle_mib", "disk_mib"),
        bars={"start_s": 0.1, "idle_mib": 0.125},
        warm_up=False, own_broker=True, quick={},
    ),
    _produce("produce-1000", "1,000 B, acks=1", 1000, 500_000, acks=1),
    _produce("produce-1000-12", "1,000 B, acks=1, 12 partitions", 1000, 500_000, partitions=12,
             acks=1),
    _produce("produce-1000-idempotent", "1,000 B, idempotent", 1000, 500_000, **_IDEMPOTENT),
    _produce("produce-1000-idempotent-12", "1,000 B, idempotent, 12 partitions", 1000, 500_000,
             partitions=12, **_IDEMPOTENT),
    _produce("produce-100", "100 B, acks=1", 100, 3_000_000, acks=1),
    _produce("produce-16k", "1,000 B, acks=1, batch.size 16 KiB", 1000, 500_000, 16_384, acks=1),
    _fixed("fixed-16k", "acks=1"),
    _fixed("fixed-16k-12", "acks=1, 12 partitions", partitions=12),
    Workload(
        "C", "requests", "one-record requests, 100 B, acks=1", "rdkafka.one_record_requests",
        {"size": 100, "count": 100_000}, ("requests_s",),
        bars={"requests_s": 4.0}, limits=_answer(1000), quick={"count": 30_000},
        tiny={"count": 2000},
    ),
    Workload(
        "W5", "ping-pong", "ping-pong, 100 B, acks=1", "rdkafka.ping_pong",
        {"size": 100, "count": 10_000, "acks": "1"}, ("p50_us", "p99_us", "p999_us"),
        bars=_LATE, limits=_answer(1), quick={"count": 5000}, tiny={"count": 200},
    ),
    _read("consume-1000", "1,000 B, kcat", _FILL_1000, quick={}),
    _read("consume-100", "100 B, kcat", _FILL_100, quick={}),
)  # fmt: skip

_W1_SETTINGS = ["batch.size=8192", "buffer.memory=67108864"]
_W1_SIZES = (
    (10, 13_421_772), (100, 1_342_177), (1000, 134_217), (10_000, 13_421), (100_000, 1342)
)  # fmt: skip


def _w1() -> list[Workload]:
    """Five sizes three times. Acks and codec at other sizes than 1,000 B run by name."""
    variants = (
        ("acks1", "acks=1", ["acks=1", "compression.type=none"]),
        ("acksall", "acks=-1", ["acks=-1", "compression.type=none"]),
        ("snappy", "acks=1, snappy", ["acks=1", "compression.type=snappy"]),
    )
    return [
        Workload(
            "W1", f"w1-{size}-{key}", f"ProducerPerformance {size:,} B, {title}",
            "java.producer_performance",
            {"size": size, "count": count, "partitions": 6, "settings": [*settings, *_W1_SETTINGS]},
            ("mb_s", "batch_bytes", "p99_ms"), pairs=2, tiny={"count": min(count, 2000)},
            default=key == "acks1" or size == 1000,
        )
        for key, title, settings in variants
        for size, count in _W1_SIZES
    ]  # fmt: skip


_W3 = ["acks=all", "enable.idempotence=true", "linger.ms=5", "batch.size=16384"]


def _java() -> list[Workload]:
    w1 = ["acks=1", "compression.type=none", *_W1_SETTINGS]
    return [
        Workload(
            "W2", "long-run", "ProducerPerformance 100 B, 5 million", "java.long_run",
            {"size": 100, "count": 5_000_000, "partitions": 6, "settings": w1},
            ("records_s", "drift"), pairs=2, warm_up=False, tiny={"count": 2_000_000},
        ),
        *(
            Workload(
                "W3", f"w3-{partitions}", f"Java defaults, 1,024 B, {partitions} partition(s)",
                "java.producer_performance",
                {"size": 1024, "count": 500_000, "partitions": partitions, "settings": _W3},
                ("mb_s", "batch_bytes", "p99_ms"), bars=_LEVEL, limits=_receive(16_384), pairs=3,
                tiny={"count": 2000},
            )
            for partitions in (1, 12)
        ),
        Workload(
            "W7", "both-ways", "produce and consume at once, 100 B", "java.both_ways",
            {"size": 100, "count": 3_000_000, "partitions": 6, "settings": w1},
            ("produced_s", "consumed_s"), pairs=2, warm_up=False, tiny={"count": 2000},
        ),
        *(
            Workload(
                "W8", f"compressed-{codec}", f"1,024 B as JSON, {codec}", "java.compressed",
                {"codec": codec, "size": 1024, "count": 200_000, "settings": _W3},
                ("mb_s", "stored_share"), pairs=2, warm_up=False, tiny={"count": 5000},
            )
            for codec in ("gzip", "snappy", "lz4", "zstd")
        ),
    ]  # fmt: skip


def _latencies() -> list[Workload]:
    return [
        *(
            Workload(
                "W4", f"rate-{rate}", f"1 KiB at {rate:,} a second", "pacing.fixed_rate",
                {"rate": rate, "size": 1024, "seconds": 5, "warm_up_s": 1.5},
                ("publish_p99_ms", "e2e_p50_ms", "e2e_p99_ms", "e2e_p999_ms"),
                bars={"publish_p99_ms": 1.0, "e2e_p99_ms": 1.0}, pairs=2, warm_up=False,
                tiny={"seconds": 1, "warm_up_s": 0.5},
            )
            for rate in (1000, 5000, 10_000, 20_000, 50_000)
        ),
        Workload(
            "W5", "ping-pong-all", "ping-pong, 100 B, acks=all", "rdkafka.ping_pong",
            {"size": 100, "count": 10_000, "acks": "all"}, ("p50_us", "p99_us", "p999_us"),
            bars=_LATE, pairs=2, tiny={"count": 200},
        ),
        *(
            Workload(
                "W5", f"end-to-end-{acks}", f"EndToEndLatency, acks={acks}",
                "java.end_to_end_latency", {"size": 100, "count": 10_000, "acks": acks},
                ("mean_us",), pairs=2, tiny={"count": 200}, default=acks == "1",
            )
            for acks in ("1", "all")
        ),
    ]  # fmt: skip


def _reads() -> list[Workload]:
    java = "java.consumer_performance"
    return [
        _read("consume-1000-java", "1,000 B, ConsumerPerformance", _FILL_1000, java, pairs=2),
        _read("consume-100-java", "100 B, ConsumerPerformance", _FILL_100, java, pairs=2),
        _read(
            "consume-1000-cold",
            "1,000 B, not in the page cache, kcat",
            _FILL_1000,
            pairs=2,
            cold=True,
        ),
    ]


def _users() -> list[Workload]:
    return [
        Workload(
            "W9", "tls-1000", "TLS 1.2, AES-128-GCM, 1,000 B, librdkafka and kcat",
            "tls.produce_and_consume", {"size": 1000, "count": 500_000},
            ("produced_s", "produce_cpu_s", "consumed_s", "consume_cpu_s"),
            bars={"produced_s": 1.2, "produce_cpu_s": 0.8, "consumed_s": 1.2, "consume_cpu_s": 0.8},
            pairs=3, warm_up=False, own_broker=True, tiny={"count": 2000},
        ),
        *(
            Workload(
                "W14", f"{client}-{size}", f"{client.replace('_', '-')}, {size:,} B",
                f"python_clients.{client}", {"size": size, "count": count},
                ("produced_s", "consumed_s"), pairs=2, warm_up=False, tiny={"count": 1000},
            )
            for client, count in (("kafka_python", 50_000), ("aiokafka", 100_000))
            for size in (100, 1000)
        ),
        Workload(
            "W15", "spark", "Spark, 200,000 records of 1,000 B", "spark.sink_and_source",
            {"size": 1000, "count": 200_000, "partitions": 4},
            ("sink_s", "batch_read_s", "available_now_s"), pairs=2, warm_up=False,
            tiny={"count": 2000},
        ),
        Workload(
            "W16", "test-suite", "50 tests, a fresh broker each (Kafka: from 5)",
            "suite.fresh_broker_suite", {"tests": 50, "kafka_tests": 5},
            ("suite_s", "test_s"), bars={"suite_s": 0.05}, pairs=1, warm_up=False, own_broker=True,
            tiny={"tests": 2, "kafka_tests": 1},
        ),
    ]  # fmt: skip


def _scale() -> list[Workload]:
    return [
        *(
            Workload(
                "W11", f"partitions-{count}", f"{count:,} partitions", "lifetime.many_partitions",
                {"partitions": count, "rate": 10_000, "seconds": 6},
                ("create_s", "idle_mib", "idle_cpu_pct", "p99_ms", "stop_s", "restart_s",
                 "crash_restart_s"),
                pairs=1, warm_up=False, own_broker=True,
                tiny={"partitions": count // 20, "rate": 1000, "seconds": 1},
            )
            for count in (100, 1000)
        ),
        *(
            Workload(
                "W12", f"members-{protocol}", f"200 group members, {protocol} protocol",
                "groups.many_members",
                {"members": 200, "partitions": 200, "rolled": 5, "protocol": protocol},
                ("stable_s", "roll_s", "rebalances", "broker_cpu_s"),
                pairs=1, warm_up=False, own_broker=True,
                tiny={"members": 10, "partitions": 20, "rolled": 2},
            )
            for protocol in ("classic", "consumer")
        ),
        Workload(
            "W12", "members-1000", "1,000 members join one group, consumer protocol",
            "consumer_members.settle",
            {"groups": 1, "members": 1000, "partitions": 1000, "rolled": 0, "heartbeat_ms": 5000},
            ("stable_s", "broker_cpu_s"), bars={"stable_s": 0.6, "broker_cpu_s": 0.6},
            pairs=1, warm_up=False, own_broker=True, tiny={"members": 20, "heartbeat_ms": 200},
        ),
        Workload(
            "W12", "groups-100", "100 groups of 10 members rolled, consumer protocol",
            "consumer_members.settle",
            {"groups": 100, "members": 10, "partitions": 20, "rolled": 10, "heartbeat_ms": 1000},
            ("stable_s", "broker_cpu_s", "roll_s", "roll_cpu_s"),
            bars={"stable_s": 0.6, "broker_cpu_s": 0.6, "roll_s": 1.0, "roll_cpu_s": 0.6},
            pairs=1, warm_up=False, own_broker=True,
            tiny={"groups": 3, "members": 4, "rolled": 1, "heartbeat_ms": 200},
        ),
        Workload(
            "W12", "share-10", "share group of 10 consumers, 1,000 B, ShareConsumerPerformance",
            "share.throughput",
            {"size": 1000, "count": 500_000, "partitions": 4, "consumers": 10},
            ("records_s", "broker_cpu_s"), bars={"records_s": 1.0}, pairs=2, warm_up=False,
            own_broker=True, tiny={"count": 2000},
        ),
        Workload(
            "W12", "share-rate-1000", "share group of 10 consumers, 1 KiB at 1,000 a second",
            "share.fixed_rate",
            {"rate": 1000, "size": 1024, "seconds": 8, "warm_up_s": 4, "consumers": 10},
            ("e2e_p50_ms", "e2e_p99_ms", "broker_cpu_s"), bars={"e2e_p99_ms": 1.0}, pairs=2,
            warm_up=False, own_broker=True, tiny={"rate": 100, "seconds": 1, "warm_up_s": 0.5},
        ),
        Workload(
            "W12", "quiet", "nobody is looking: 1,000 partitions, 200 groups, 500 connections",
            "idle.many_quiet_clients",
            {"partitions": 1000, "groups": 200, "connections": 500, "seconds": 20},
            ("idle_cpu_pct", "waiting_cpu_pct", "idle_mib"), most={"idle_cpu_pct": 2.0},
            pairs=1, warm_up=False, own_broker=True,
            tiny={"partitions": 10, "groups": 4, "connections": 10, "seconds": 1},
        ),
        Workload(
            "W17", "crash-recovery", "kill -9 in mid-write, 256 MiB in 50 partitions",
            "lifetime.crash_recovery", {"mib": 256, "partitions": 50},
            ("recovery_s",), pairs=2, warm_up=False, own_broker=True,
            tiny={"mib": 4, "partitions": 5},
        ),
    ]  # fmt: skip


_COMMITTED = {"records_s": 1.2, "cpu_s": 0.6, "commit_p99_ms": 1.0}
_COMMITTED_FIGURES = ("records_s", "commit_p50_ms", "commit_p99_ms", "client_cpu_s")
_MS_OF_RECORDS = ((1, 1_000), (10, 300), (100, 50), (1_000, 6))
"""How many milliseconds of records a transaction holds, and how many transactions."""


def _transactions() -> list[Workload]:
    return [
        *(
            Workload(
                "W10", f"txn-produce-{ms}-{client}",
                f"transactions of {ms:,} ms of records, 1,000 B, {client}", "transactions.produce",
                {"client": client, "size": 1000, "ms": ms, "transactions": count},
                _COMMITTED_FIGURES, bars=_COMMITTED, pairs=3,
                tiny={"transactions": 3},
            )
            for client in ("java", "librdkafka")
            for ms, count in _MS_OF_RECORDS
        ),
        *(
            Workload(
                "W10", f"txn-copy-{client}",
                f"consume, transform, produce, commit: 500 of 1,000 B a transaction, {client}",
                "transactions.copy",
                {"client": client, "size": 1000, "count": 100_000, "records": 500},
                _COMMITTED_FIGURES, bars=_COMMITTED, pairs=3,
                prepare=("filled-copy", {"size": 1000, "count": 100_000}),
                tiny={"count": 2000},
            )
            for client in ("java", "librdkafka")
        ),
        Workload(
            "W10", "txn-aborts", "nine of ten transactions aborted, 10 ms of records, Java",
            "transactions.produce",
            {"client": "java", "size": 1000, "ms": 10, "transactions": 300, "aborted": 9},
            (*_COMMITTED_FIGURES, "read_s"), bars=_COMMITTED, pairs=3, tiny={"transactions": 10},
        ),
        Workload(
            "W10", "txn-1000-ids", "1,000 open transactional ids, Java",
            "transactions.many_ids", {"ids": 1000, "rounds": 3},
            ("transactions_s", "commit_p50_ms", "commit_p99_ms", "client_cpu_s"),
            bars={"transactions_s": 1.2, "cpu_s": 0.6, "commit_p99_ms": 1.0}, pairs=2,
            warm_up=False, tiny={"ids": 20, "rounds": 1},
        ),
    ]  # fmt: skip


_CLUSTER_COST = ("broker_cpu_s", "rss_mib")


def _cluster() -> list[Workload]:
    """Three nodes; by name only (`--only 'cluster-*'`): two clusters are started for each pair."""
    level = {"mb_s": 1.0}
    return [
        *(
            Workload(
                "W13", f"cluster-{name}-{partitions}",
                f"three nodes: produce 1,000 B, {title}{partitions} partition(s)",
                "cluster.produce",
                {"size": 1000, "count": 200_000, "partitions": partitions, **batches},
                ("mb_s", *_CLUSTER_COST), bars=level, pairs=3, warm_up=False, own_broker=True,
                tiny={"count": 2000}, default=False,
            )
            for name, title, batches in (
                ("produce", "", {}), ("16k", "16 KiB batches, ", {"batch_bytes": 16_384})
            )
            for partitions in (1, 12)
        ),
        Workload(
            "W13", "cluster-rate-2000", "three nodes: 1 KiB at 2,000 a second",
            "cluster.fixed_rate", {"rate": 2000, "size": 1024, "seconds": 8, "warm_up_s": 4},
            ("publish_p50_ms", "publish_p99_ms", "e2e_p50_ms", "e2e_p99_ms", *_CLUSTER_COST),
            bars={"publish_p99_ms": 1.0, "e2e_p99_ms": 1.0}, pairs=3, warm_up=False,
            own_broker=True, tiny={"rate": 200, "seconds": 1, "warm_up_s": 0.5}, default=False,
        ),
        Workload(
            "W13", "cluster-ping-pong", "three nodes: ping-pong, 100 B", "cluster.ping_pong",
            {"size": 100, "count": 4000}, ("p50_us", "p99_us", *_CLUSTER_COST),
            bars={"p50_us": 1.0, "p99_us": 1.0}, pairs=3, warm_up=False, own_broker=True,
            tiny={"count": 200}, default=False,
        ),
        Workload(
            "W13", "cluster-failover", "three nodes: kill -9 of the leader, session 3 s",
            "cluster.failover", {"kills": 5},
            ("unavailable_s", "unavailable_max_s", "in_sync_again_s", "ready_s"),
            bars={"unavailable_s": 1.0}, pairs=3, warm_up=False, own_broker=True,
            tiny={"kills": 1}, default=False,
        ),
        Workload(
            "W10", "txn-failover", "three nodes: kill -9 of the transaction coordinator",
            "transactions.coordinator_failover", {"kills": 5},
            ("unavailable_s", "unavailable_max_s"), bars={"unavailable_s": 1.0}, pairs=2,
            warm_up=False, own_broker=True, tiny={"kills": 1}, default=False,
        ),
    ]  # fmt: skip


def _nodes() -> list[Workload]:
    """One, two and four nodes on this machine; by name only (`--only 'nodes-*'`)."""
    return [
        Workload(
            "W18", f"nodes-{nodes}-{name}", f"{nodes} node(s): {title}, 12 partitions",
            "nodes.produce",
            {"nodes": nodes, "size": size, "count": count, "batch_bytes": batch_bytes,
             "partitions": 12, "window": window},
            (rate, "broker_cpu_us", "client_cpu_us", "rss_mib"), pairs=3, warm_up=False,
            own_broker=True, tiny={"count": 2000}, default=False,
        )
        for name, title, rate, size, count, batch_bytes, window in (
            ("requests", "one-record requests, 100 B", "requests_s", 100, 100_000, 0, 100),
            ("16k", "fixed 16 KiB batches, 1,000 B", "mb_s", 1000, 500_000, 16_384, 5),
        )
        for nodes in (1, 2, 4)
    ]  # fmt: skip


WORKLOADS = (*HEADLINES, *_w1(), *_java(), *_latencies(), *_reads(), *_transactions(), *_users(),
             *_scale(), *_cluster(), *_nodes())  # fmt: skip
