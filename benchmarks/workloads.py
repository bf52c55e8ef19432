"""The workloads: what is run, with which parameters, and which way is better."""

from __future__ import annotations

from typing import Any, NamedTuple


class Workload(NamedTuple):
    """One row: a load with its arguments. `scale` of the quick run divides `count`."""

    name: str
    title: str
    load: str
    arguments: dict[str, Any]
    figures: tuple[str, ...]
    after: str | None = None  # the topic of this workload's run is read, not a new one

    def with_count(self, divisor: int) -> dict[str, Any]:
        arguments = dict(self.arguments)
        arguments["count"] = max(2000, arguments["count"] // divisor // 1000 * 1000)
        return arguments


# Higher is better for these figures, lower for all others.
RATES = frozenset({"records_s", "mb_s", "requests_s"})

_IDEMPOTENT = {"acks": "all", "enable.idempotence": True}

WORKLOADS = (
    Workload(
        "produce-1000",
        "produce 1,000 B, acks=1",
        "produce",
        {"size": 1000, "count": 1_000_000, "acks": 1},
        ("mb_s",),
    ),
    Workload(
        "produce-1000-idempotent",
        "produce 1,000 B, acks=all, idempotent",
        "produce",
        {"size": 1000, "count": 1_000_000, **_IDEMPOTENT},
        ("mb_s",),
    ),
    Workload(
        "produce-1000-12",
        "produce 1,000 B, acks=all, idempotent, 12 partitions",
        "produce",
        {"size": 1000, "count": 1_000_000, "partitions": 12, **_IDEMPOTENT},
        ("mb_s",),
    ),
    Workload(
        "produce-100",
        "produce 100 B, acks=1",
        "produce",
        {"size": 100, "count": 3_000_000, "acks": 1},
        ("records_s",),
    ),
    Workload(
        "consume-1000",
        "consume 1,000 B",
        "consume",
        {"size": 1000, "count": 1_000_000},
        ("mb_s",),
        after="produce-1000",
    ),
    Workload(
        "consume-100",
        "consume 100 B",
        "consume",
        {"size": 100, "count": 3_000_000},
        ("records_s",),
        after="produce-100",
    ),
    Workload(
        "requests",
        "one-record requests, 100 B, acks=1",
        "one_record_requests",
        {"size": 100, "count": 100_000},
        ("requests_s",),
    ),
    Workload(
        "ping-pong",
        "ping-pong, 100 B, acks=1",
        "ping_pong",
        {"size": 100, "count": 10_000},
        ("p50_us", "p99_us", "p999_us"),
    ),
)
