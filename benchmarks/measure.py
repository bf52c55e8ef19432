"""What a run costs the broker: CPU seconds and memory, read from the operating system."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(slots=True)
class Usage:
    """A process's CPU seconds so far, resident bytes now, and the most it ever had (Linux)."""

    cpu_s: float
    rss_bytes: int
    peak_bytes: int


def usage(pid: int) -> Usage:
    """Read a broker's usage."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    peak = 0
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                peak = int(line.split()[1]) * 1024
    return Usage(times.user + times.system, process.memory_info().rss, peak)
