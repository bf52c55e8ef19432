"""What a run costs the broker: CPU seconds, memory and disk, as the kernel counts them."""

from __future__ import annotations

import contextlib
import mmap
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


def touch_memory(share: float = 0.7) -> int:
    """Use this share of the free memory once and give it back; returns how many bytes.

    A virtual machine gets a page from its host when it first uses it, and whoever writes the first
    gigabytes to the page cache pays for that: 500 MB took 0.3 or 1.0 s of system time. With memory
    that was in use before, nobody does.
    """
    size = int(psutil.virtual_memory().free * share) // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(-1, size) as memory:
        for start in range(0, size, MIB):
            end = min(start + MIB, size)
            memory[start:end] = bytes(end - start)
    return size


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
