"""A few lines of C or Java, compiled when they are first needed, once for each of their versions.

C by the machine's `cc`; Java by the compiler in the `java` that runs it, which would compile a
source file that it is given to run at each start: one and a half seconds of CPU.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from testkit import jars
from testkit.quick_jvm import CACHE, QUICK_JVM
from testkit.require import require_command


def compiled(source: Path, *flags: str, libraries: Sequence[str] = ()) -> Path:
    """What `source` becomes; built once for each of its versions. `libraries` as in `-ldl`."""
    built = _place(source)
    if not built.exists():
        compiler = require_command("cc", "apt-get install gcc libc6-dev")
        built.parent.mkdir(parents=True, exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}")
        command = [compiler, *flags, "-o", str(fresh), str(source), *libraries]
        subprocess.run(command, check=True, capture_output=True)
        fresh.rename(built)
    return built


def java_program(source: Path, class_path: str) -> list[str]:
    """What to tell `java`, after its options, to run the main class of `source` with `class_path`.

    The path's own entries come first, as an archive of their classes asks for. Raises
    JarsUnavailable when there is no Java.
    """
    built = _place(source, class_path)
    if not built.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            fresh = Path(folder, "classes")
            command = [
                jars.java(), *QUICK_JVM, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn",
                "-cp", class_path, "-d", str(fresh), str(source),
            ]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True)
            with suppress(OSError):  # another process was first
                fresh.rename(built)
    (main,) = built.rglob(f"{source.stem}.class")
    name = ".".join(main.relative_to(built).with_suffix("").parts)
    return ["-cp", os.pathsep.join((class_path, str(built))), name]


def _place(source: Path, *given: str) -> Path:
    digest = hashlib.sha256(source.read_bytes() + "".join(given).encode()).hexdigest()[:12]
    return CACHE / f"{source.stem}-{digest}"
