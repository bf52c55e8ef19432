"""A disk that fails: fsync with EIO, write with ENOSPC, in one process, from one moment to another.

LD_PRELOAD of a few lines of C (`disk_faults.c`), which works under CPython and the JVM alike and
needs no privilege; the C compiler is the machine's `cc`. Linux.
"""

from __future__ import annotations

import errno
from pathlib import Path

from testkit.compiled import compiled

_SOURCE = Path(__file__).with_name("disk_faults.c")


class DiskFaults:
    """The faults of one process: start it with `environment`."""

    def __init__(self, directory: Path) -> None:
        self._control = directory / "faults"
        self._hits_before = 0

    @property
    def environment(self) -> dict[str, str]:
        library = compiled(_SOURCE, "-shared", "-fPIC", "-O1", libraries=["-ldl"])
        return {"LD_PRELOAD": str(library), "FAULTS_CONTROL": str(self._control)}

    def fail_fsync(self, path_part: str, *, skip: int = 0) -> None:
        """From now on EIO for files whose path contains `path_part`, after `skip` good calls."""
        self._set("fsync", errno.EIO, skip, path_part)

    def fail_writes(self, path_part: str, *, skip: int = 0) -> None:
        """From now on ENOSPC."""
        self._set("write", errno.ENOSPC, skip, path_part)

    def end(self) -> None:
        self._control.unlink(missing_ok=True)

    @property
    def was_met(self) -> bool:
        """Whether a call was made to fail since the last `fail_...`."""
        return self._hits() > self._hits_before

    def _hits(self) -> int:
        path = Path(f"{self._control}.hits")
        return path.stat().st_size if path.exists() else 0

    def _set(self, operation: str, code: int, skip: int, path_part: str) -> None:
        self._hits_before = self._hits()
        fresh = self._control.with_suffix(".new")
        fresh.write_text(f"{operation} {code} {skip} {path_part}\n")
        fresh.rename(self._control)
