"""The two forms of the chaos tests: short with a change's checks, long by `make chaos`."""

from __future__ import annotations

import os

LONG_FORM = int(os.environ.get("CHAOS_ROUNDS", "0"))
"""Rounds of its fault that each test does; 0 is the short form, where each test has its own few."""

TIMEOUT_S = 86_400 if LONG_FORM else 600
