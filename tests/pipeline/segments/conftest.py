"""A log directory."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    (tmp_path / "meta.properties").write_text("version=1\n")
    return tmp_path
