"""One helper for what a test needs from the machine: absent on a laptop, it skips; in CI, it fails.

A skip in CI would be a proof that silently stopped proving, so `CI=true` turns it into a failure.
"""

from __future__ import annotations

import os
import shutil

import pytest


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def require(present: object, reason: str) -> None:
    """Go on when `present` is true; else skip with `reason`, or fail when CI=true."""
    if present:
        return
    if in_ci():
        pytest.fail(f"needed in CI, but missing: {reason}", pytrace=False)
    pytest.skip(reason)


def require_command(name: str, hint: str) -> str:
    """Path of a command of the operating system; `hint` says how to install it."""
    path = shutil.which(name)
    require(path, f"the command `{name}` is not installed ({hint})")
    assert path is not None
    return path
