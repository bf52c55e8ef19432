"""Whoever stops a replay is heard at once, wherever it is: no call to the JVM is cut in two."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline.progress import Progress
from pipeline.replay import replay


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background job ignores SIGINT, and so does who tests in one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("phase", ["_open", "_needed", "content_sums", "_send", "_settled"])
def test_no_phase_of_a_replay_is_where_an_interrupt_is_heard(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[BaseException] = []
    heard = threading.Event()

    def interrupted(*_: Any) -> Any:
        try:
            _thread.interrupt_main()
            heard.wait(10)
        except KeyboardInterrupt as stop:
            cut.append(stop)
        raise SystemExit

    archive = SimpleNamespace(names={}, topics={}, rows=None)
    monkeypatch.setattr(replay, "KafkaAdmin", lambda *_: nullcontext(MagicMock()))
    for name, answer in {
        "_open": archive, "_needed": {}, "_prepare_topics": {}, "content_sums": {}, "_names": {},
        "_heads": {}, "_send": (0, 0, 0), "_settled": {}, "_read_back": None,
    }.items():  # fmt: skip
        monkeypatch.setattr(replay, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(replay, phase, interrupted)
    job: Any = SimpleNamespace(progress=Progress(), jvm=MagicMock(), spark=MagicMock())
    try:
        with pytest.raises(KeyboardInterrupt):
            replay.run_replay(job, replay.ReplayOptions("lake", "b:1"))
    finally:
        heard.set()
    assert not cut
