"""A few lines of C, compiled when they are first needed by the machine's `cc`."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testkit.jars import CACHE_DIR
from testkit.require import require_command


def compiled(source: Path, *flags: str, libraries: Sequence[str] = ()) -> Path:
    """What `source` becomes; built once for each of its versions. `libraries` as in `-ldl`."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    built = CACHE_DIR.parent / f"{source.stem}-{digest}"
    if not built.exists():
        compiler = require_command("cc", "apt-get install gcc libc6-dev")
        built.parent.mkdir(parents=True, exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}")
        command = [compiler, *flags, "-o", str(fresh), str(source), *libraries]
        subprocess.run(command, check=True, capture_output=True)
        fresh.rename(built)
    return built
