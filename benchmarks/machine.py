"""What a figure depends on besides the broker: machine, disk, kernel and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from testkit import jars

_PACKAGES = ("confluent-kafka", "kafka-python", "aiokafka", "crc32c", "pyspark", "pytest")


def describe(directory: Path) -> dict[str, Any]:
    """Facts for the head of the result; the disk is the one that holds `directory`."""
    import confluent_kafka

    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "disk": _disk(directory),
        "load_before": os.getloadavg()[0],
        "versions": {
            "Apache Kafka": jars.KAFKA_VERSION,
            "Barnabas": _version("barnabas"),
            "commit": _first_line("git", "rev-parse", "--short", "HEAD"),
            "Python": platform.python_version(),
            "Java": _first_line("java", "-version"),
            "librdkafka": confluent_kafka.libversion()[0],
            "kcat": _first_line("kcat", "-V", line=1),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _first_line(*command: str, line: int = 0) -> str:
    if shutil.which(command[0]) is None:
        return "-"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return lines[line] if len(lines) > line else "-"


def _disk(directory: Path) -> dict[str, float]:
    """Milliseconds (median and p99) of writing and syncing 4 KiB, 64 KiB and 1 MiB."""
    found = {}
    path = directory / "disk-probe"
    for name, size, count in (
        ("4 KiB", 4096, 200),
        ("64 KiB", 65_536, 100),
        ("1 MiB", 1 << 20, 30),
    ):
        data, times = os.urandom(size), []
        with open(path, "wb", buffering=0) as file:
            for _ in range(count):
                began = time.perf_counter()
                file.write(data)
                os.fdatasync(file.fileno())
                times.append((time.perf_counter() - began) * 1e3)
        times.sort()
        found[f"{name} p50 ms"] = round(times[len(times) // 2], 3)
        found[f"{name} p99 ms"] = round(times[int(len(times) * 0.99)], 3)
    path.unlink()
    return found
