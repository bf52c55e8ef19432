"""Runs workloads on both brokers in turn: pairs, a warm-up that is not counted, one child each.

The brokers that the loads share are started once; the idle figures are taken before any load. Each
run has a topic of its own, which is deleted after it; before each run the kernel writes out what is
dirty, so that nobody pays for what another run has written, and as much memory as the run will
write is used once (see `measure.touch_memory`). Readers read the same bytes of both: the topic is
filled once in each broker and its segments compared. Which broker goes first alternates from
pair to pair; after each pair run the programs that are its limit (`benchmarks.limits`). A load that
fails is a result too: the table says so, the run goes on with the next workload (and a broker that
failed one is not asked to repeat it).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.loads.base import Place, delete_topic
from benchmarks.measure import (
    MIB,
    log_digest,
    mean_batch_bytes,
    reset_peak,
    touch_memory,
    usage,
)
from benchmarks.targets import KINDS, Target, make, pin
from benchmarks.workloads import Arguments, Workload

LOAD_TIMEOUT_S = 400


class Plan(NamedTuple):
    """What the command line asked for. `size` is full, quick or tiny; each broker has `warm_up_s`
    seconds of each kind of load before a run of it counts.
    """

    workloads: list[Workload]
    size: str
    pairs: int
    pin: bool
    directory: Path
    warm_up_s: float = 0.0


class LoadError(Exception):
    """A load's child process failed; the text is the end of what it said."""


class Runner:
    """One run of the program; `results` grows with each workload, by name."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shared: dict[str, Target] = {}
        self._prepared: set[str] = set()
        self._warm: set[str] = set()
        self._began_ms = int(time.time() * 1000)
        self.results: dict[str, Any] = {}
        self.idle: dict[str, dict[str, float]] = {}
        self.peak_mib: dict[str, float] = dict.fromkeys(KINDS, 0.0)

    def run(self) -> None:
        try:
            for workload in self._plan.workloads:
                self.results[workload.name] = self._pairs(workload)
        finally:
            for broker in self._shared.values():
                broker.kill()

    def _pairs(self, workload: Workload) -> dict[str, Any]:
        result: dict[str, Any] = {"arguments": self._arguments(workload), "commands": []}
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        result["runs"] = runs
        limits: dict[str, list[dict[str, float]]] = {name: [] for name in workload.limits}
        result["limits"] = limits
        pairs, first = workload.pairs or self._plan.pairs, 0 if workload.warm_up else 1
        if self._plan.size != "full":
            pairs = min(pairs, self._plan.pairs)
        if self._plan.size == "tiny":
            first = 1
        self._warm_up(workload)
        for number in range(first, pairs + 1):
            for kind in KINDS if number % 2 else reversed(KINDS):
                answer = _try(result, kind, self._one_run, workload, kind, str(number))
                if answer is None:
                    continue
                shown = "  ".join(f"{k} {v:,.4g}" for k, v in answer["figures"].items())
                _say(f"{workload.name} {kind}: {shown}{'' if number else ' (warm-up)'}")
                if number:
                    runs[kind].append(answer["figures"])
                    result["commands"] = answer["commands"]
            for name in limits if number else ():
                answer = _try(result, f"limit {name}", self._limit, workload, name)
                if answer is not None:
                    limits[name].append(answer["figures"])
        return result

    def _warm_up(self, workload: Workload) -> None:
        """Loads that do not count, until each broker had the plan's seconds of this kind."""
        if workload.own_broker or workload.load in self._warm:
            return
        self._warm.add(workload.load)
        for kind in KINDS:
            began, number = time.monotonic(), 0
            while time.monotonic() - began < self._plan.warm_up_s:
                if _try({}, kind, self._one_run, workload, kind, f"warm{number}") is None:
                    break
                number += 1
            if number:
                _say(f"warmed up {kind} by {workload.name}, {time.monotonic() - began:.0f} s")

    def _arguments(self, workload: Workload) -> Arguments:
        differing = {"full": {}, "quick": workload.quick or {}, "tiny": workload.tiny}
        return {**workload.arguments, **differing[self._plan.size]}

    def _one_run(self, workload: Workload, kind: str, number: str) -> dict[str, Any]:
        topic = f"{workload.name}-{number}"
        arguments = self._arguments(workload)
        with tempfile.TemporaryDirectory(dir=self._plan.directory) as scratch:
            if workload.own_broker:
                return self._child(workload.load, Place(kind, topic, scratch), arguments)
            broker = self._broker(kind)
            if workload.prepare is not None:
                topic = self._prepare(workload)
            place = Place(kind, topic, scratch, broker.bootstrap_servers, str(broker.data_dir))
            os.sync()
            if workload.prepare is None and self._plan.size != "tiny":
                touch_memory(arguments.get("count", 0) * arguments.get("size", 0) * 5 // 4)
            reset_peak(broker.pid)
            before = usage(broker.pid)
            answer = self._child(workload.load, place, arguments)
            after = usage(broker.pid)
            answer["figures"]["cpu_s"] = after.cpu_s - before.cpu_s
            answer["figures"]["peak_mib"] = after.peak_bytes / MIB
            self.peak_mib[kind] = max(self.peak_mib[kind], after.peak_bytes / MIB)
            if "batch_bytes" in workload.figures:
                answer["figures"]["batch_bytes"] = mean_batch_bytes(broker.data_dir, topic)
            if workload.prepare is None:
                delete_topic(broker.bootstrap_servers, topic)
            return answer

    def _limit(self, workload: Workload, name: str) -> dict[str, Any]:
        """A program that does only what cannot be left out of this workload, with as much to do."""
        load, arguments = workload.limits[name]
        topic = workload.prepare[0] if workload.prepare else workload.name
        with tempfile.TemporaryDirectory(dir=self._plan.directory) as scratch:
            place = Place("limit", topic, scratch, "", str(self._broker(KINDS[0]).data_dir))
            os.sync()
            asked = self._arguments(workload)
            given = {"size": asked["size"], "count": asked["count"], **arguments}
            if workload.prepare is None and self._plan.size != "tiny":
                touch_memory(given["count"] * given["size"] * 5 // 4)
            answer = self._child(load, place, given)
        shown = "  ".join(f"{k} {v:,.4g}" for k, v in answer["figures"].items())
        _say(f"{workload.name} limit {name}: {shown}")
        return answer

    def _prepare(self, workload: Workload) -> str:
        """The topic that this workload reads, filled when it is the first to ask, alike in both."""
        assert workload.prepare is not None
        topic, arguments = workload.prepare
        if topic not in self._prepared:
            # As many as the run reads, of the size that several workloads share.
            count = self._arguments(workload)["count"]
            arguments = {**arguments, "count": count, "timestamp_ms": self._began_ms}
            for kind in KINDS:
                place = Place(kind, topic, "", self._broker(kind).bootstrap_servers)
                self._child("fixed.produce", place, arguments)
            digests = {log_digest(self._broker(kind).data_dir, topic) for kind in KINDS}
            if len(digests) != 1:
                raise LoadError(f"the segments of {topic} are not the same bytes in both brokers")
            self._prepared.add(topic)
        return topic

    def _broker(self, kind: str) -> Target:
        if not self._shared:
            for each in KINDS:
                broker = make(each, self._plan.directory / each)
                broker.start()
                self._shared[each] = broker
                if self._plan.pin:
                    pin(broker.pid, {0})
            self._idle()
        return self._shared[kind]

    def _idle(self) -> None:
        """Memory, and CPU over ten seconds, of brokers that nobody has talked to."""
        seconds = 1.0 if self._plan.size == "tiny" else 10.0
        time.sleep(seconds / 2)
        before = {kind: usage(broker.pid).cpu_s for kind, broker in self._shared.items()}
        time.sleep(seconds)
        for kind, broker in self._shared.items():
            now = usage(broker.pid)
            share = (now.cpu_s - before[kind]) / seconds * 100
            self.idle[kind] = {"idle_mib": now.rss_bytes / MIB, "idle_cpu_pct": share}
            _say(f"idle {kind}: {now.rss_bytes / MIB:.0f} MiB, {share:.1f} % of a core")

    def _child(self, load: str, place: Place, arguments: Arguments) -> dict[str, Any]:
        task = {"load": load, "place": place._asdict(), "arguments": arguments}
        prefix = []
        if self._plan.pin and place.bootstrap:
            prefix = ["taskset", "-c", f"1-{(os.cpu_count() or 2) - 1}"]
        try:
            done = subprocess.run(
                [*prefix, sys.executable, "-m", "benchmarks.loads", json.dumps(task)],
                capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise LoadError(f"no answer in {LOAD_TIMEOUT_S} s") from late
        if done.returncode != 0:
            raise LoadError(done.stderr.strip()[-1000:])
        # Libraries may write to standard output too: the answer is the last line.
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


def _try(
    result: dict[str, Any], who: str, run: Callable[..., dict[str, Any]], *arguments: Any
) -> dict[str, Any] | None:
    """The run's answer; None when it failed, now or before: who failed once is not asked again."""
    if who in result.get("failures", {}):
        return None
    try:
        return run(*arguments)
    except LoadError as error:
        _say(f"{arguments[0].name} {who} FAILED: {error}")
        result.setdefault("failures", {})[who] = str(error)
        return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
