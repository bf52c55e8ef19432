"""`python -m benchmarks.micro`: what the wire codec, the log and guards cost, beside their budgets.

The micro-benchmarks of this package print many figures and take their time; CI wants few, soon, and
told whether they are what the code's docstrings promise. Those promises come from a two-core
virtual machine on which `_yardstick` takes 12 us: a slower machine's budgets grow with it, so the
last column compares like with like. Machines are slower while others work on them, too: figures are
processor time, each beside a yardstick of the same moment, and the best of three moments counts. A
figure over its grown budget is marked, and the exit status is 1 when one is more than twice over.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.micro import codec, guards, log, records
from benchmarks.micro.codec import microseconds
from storage.config import LogConfig
from storage.environment import LogEnvironment
from storage.recovery import open_log
from storage.segments.index import OffsetIndex
from testkit.clock import WALL_MS
from wire.frame import RequestHeader
from wire.messages.data import ProduceRequest
from wire.primitives import TopicPartition
from wire.records import read_header, validate_producer_batch

YARDSTICK_US = 12.0
_FAILING = 2.0
_MOMENTS = 3


class Budget(NamedTuple):
    """A figure by name, the promise in microseconds, whose docstring makes it, and the action."""

    name: str
    us: float
    promised_by: str
    action: Callable[[], object]
    plain: Callable[[], object] | None = None
    """The figure is what `action` takes longer than this."""


class Figure(NamedTuple):
    """What an action takes, and what its budget is on a machine as slow as this one is now."""

    us: float
    budget_us: float

    @property
    def ratio(self) -> float:
        return self.us / self.budget_us


def _yardstick() -> int:
    """Plain Python of the kind the broker runs: calls, slices, dict and integer work."""
    seen = {}
    data = memoryview(bytes(400))
    for at in range(0, 400, 8):
        seen[at] = int.from_bytes(data[at : at + 8], "big")
    return len(seen)


def _wire() -> Iterator[Budget]:
    request = codec.produce_request(1)
    data = request.encode_bytes(9)
    answer, fetched = codec.produce_response(1), codec.fetch_response(1)
    header = b"\0\0\0\x09\0\0\0\1\0\7rdkafka\0"
    yield Budget("decode Produce v9", 3.0, "wire.codec", lambda: ProduceRequest.decode(data, 9))
    yield Budget("encode its answer", 1.5, "wire.codec", lambda: answer.encode_bytes(9))
    yield Budget("encode a Fetch v12 answer", 2.5, "wire.codec", lambda: fetched.encode_bytes(12))
    yield Budget("decode a request header", 1.0, "wire.frame", lambda: RequestHeader.decode(header))
    one, small = records.batch(1, 100), records.batch(16, 100)
    yield Budget("read a batch's header", 0.5, "wire.record_batch", lambda: read_header(one))
    yield Budget(
        "check a batch of 16 records", 10.0, "wire.record_checks",
        lambda: validate_producer_batch(small),
    )  # fmt: skip


def _storage(directory: Path) -> Iterator[Budget]:
    index = OffsetIndex(directory / "00000000000000000000.index", 0, 10 << 20)
    for number in range(1, 262_144):
        index.append(number * 40, number * 4200)
    yield Budget(
        "offset index lookup", 1.0, "storage.segments.index", lambda: index.lookup(5_000_000)
    )
    environment = LogEnvironment(directory)
    config = LogConfig(index_interval_bytes=1 << 30)
    key = TopicPartition("budget", 0)
    opened = open_log(directory / "budget-0", key, config, environment)
    one = log.batch(1, 100)
    yield Budget(
        "append one record", 8.0, "storage.log.partition_log",
        lambda: opened.append_as_leader(one, 0, WALL_MS),
    )  # fmt: skip
    end = opened.log_end_offset
    yield Budget(
        "read at the end of the log", 3.0, "storage.log.log_reader",
        lambda: opened.read(end, 1 << 20, True, end),
    )  # fmt: skip


def _guards() -> Iterator[Budget]:
    for name, (costly, plain) in guards.pairs().items():
        of_quotas = name.startswith("quotas")
        by = "server.network.metering" if of_quotas else "server.security.authorizer"
        yield Budget(name, 2.0 if of_quotas else 3.0, by, costly, plain)


def _figure(budget: Budget) -> Figure:
    slower = max(1.0, microseconds(_yardstick) / YARDSTICK_US)
    if budget.plain is not None:
        us = guards.difference_us(budget.action, budget.plain)
        return Figure(us, budget.us * slower)
    return Figure(microseconds(budget.action), budget.us * slower)


def main() -> int:
    print(f"{'us':30}{'measured':>10}{'budget':>9}{'here':>9}  promised by")
    worst = 0.0
    with tempfile.TemporaryDirectory() as directory:
        for part in (_wire(), _storage(Path(directory)), _guards()):
            for budget in part:
                best = min((_figure(budget) for _ in range(_MOMENTS)), key=lambda it: it.ratio)
                worst = max(worst, best.ratio)
                mark = "  OVER" if best.ratio > 1 else ""
                print(
                    f"{budget.name:30}{best.us:10.2f}{budget.us:9.2f}{best.budget_us:9.2f}", end=""
                )
                print(f"  {budget.promised_by}{mark}", flush=True)
    return 1 if worst > _FAILING else 0


if __name__ == "__main__":
    sys.exit(main())
