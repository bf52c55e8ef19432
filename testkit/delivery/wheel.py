"""The wheel as a user gets it: built, and installed into an environment of its own.

Its dependencies are borrowed from the environment that runs the tests (a path file, whose own path
files Python ignores: the checkout, installed there as editable, stays out of sight).
Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """A command's standard output; an AssertionError with all it said when it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(target: Path) -> Path:
    """The wheel of this checkout, built into the folder `target`."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=ROOT)
    (built,) = target.glob("barnabas-*.whl")
    return built


def bare_python(environment: Path) -> Path:
    """The Python of a fresh environment that sees the tests' dependencies, but no barnabas."""
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    purelib = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=environment
    )
    borrowed = Path(purelib.strip()) / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(wheel: Path, environment: Path) -> Path:
    """The Python of a fresh environment that has the wheel."""
    python = bare_python(environment)
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
        *("--no-deps", "--no-index", wheel),
        cwd=environment,
    )
    return python
