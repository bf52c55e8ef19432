"""What a run costs the broker: CPU seconds, memory and disk, as the kernel counts them."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from wire.record_batch import iterate_headers

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


def touch_memory(size: int) -> None:
    """Use this much memory once and give it back, right before somebody writes as many new pages.

    A virtual machine gets a page from its host when it first uses it, and may give free ones back
    (free page reporting: on one machine all but 1 GiB at once). Who writes to such pages of the
    page cache pays: 512 MiB cost 0.12 s of kernel time in pages that were free but still ours, and
    1.1 to 1.3 s in others. What is used here makes no difference between those who come after:
    each finds as many pages that are free and were in use a moment ago. At most 1 GiB helps.
    """
    size = min(size, 1 << 30) // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(-1, max(size, mmap.PAGESIZE)) as memory:
        for start in range(0, size, MIB):
            end = min(start + MIB, size)
            memory[start:end] = bytes(end - start)


def reset_peak(pid: int) -> None:
    """Start the peak anew at what is resident now; without the right to, it stays as it was."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def mean_batch_bytes(data_dir: Path, topic: str) -> float:
    """Bytes of the topic's log for each of its batches, from the headers in the segment files."""
    size = batches = 0
    for path in data_dir.glob(f"{topic}-[0-9]*/*.log"):
        if not path.stat().st_size:
            continue
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log,
            memoryview(log) as view,
        ):
            sizes = [header.size for _, header in iterate_headers(view)]
            size, batches = size + sum(sizes), batches + len(sizes)
    return size / batches if batches else 0.0


def log_digest(data_dir: Path, topic: str) -> str:
    """One hash over all segments of the topic, in their order."""
    digest = hashlib.sha256()
    for path in sorted(data_dir.glob(f"{topic}-[0-9]*/*.log")):
        digest.update(f"{path.parent.name}/{path.name}".encode())
        with open(path, "rb") as file:
            while chunk := file.read(MIB):
                digest.update(chunk)
    return digest.hexdigest()


def disk_bytes(directory: Path) -> int:
    """Blocks a directory takes on disk: index files are large but mostly holes."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, name)).st_blocks * 512
    return total
