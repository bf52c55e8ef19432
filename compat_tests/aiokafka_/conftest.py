"""aiokafka: each test is one coroutine, run by the fixture `run`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

TEST_TIMEOUT_S = 60


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test's coroutine in a loop of its own, with a deadline."""

    def go(test: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(test, TEST_TIMEOUT_S))

    return go
