"""What a run costs the broker: CPU seconds, memory and disk, as the kernel counts them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20


@dataclass(slots=True)
class Usage:
    """A process's CPU seconds so far, resident bytes now, and the most since `reset_peak`."""

    cpu_s: float
    rss_bytes: int
    peak_bytes: int


def usage(pid: int) -> Usage:
    """Read a broker's usage (Linux)."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    peak = 0
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                peak = int(line.split()[1]) * 1024
    return Usage(times.user + times.system, process.memory_info().rss, peak)


def reset_peak(pid: int) -> None:
    """Start the peak anew at what is resident now; without the right to, it stays as it was."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def disk_bytes(directory: Path) -> int:
    """Blocks a directory takes on disk: index files are large but mostly holes."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, name)).st_blocks * 512
    return total
