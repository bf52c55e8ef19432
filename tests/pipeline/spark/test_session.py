"""A session that is ended from outside: by a signal, and with it or without it the JVM."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.spark import session


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_require_pyspark", lambda: None)
    monkeypatch.setattr(session, "_packages", lambda *_: [])
    monkeypatch.setattr(session, "_start", lambda *_: object())
    monkeypatch.setattr(session, "_stop", lambda _: None)
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))


def stopped_and_then(error: Exception) -> None:
    """As `archive` does it: hears the signal, and would tell what is done so far."""
    with session.open_session("test"):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise error from None


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), EOFError()])
def test_a_jvm_that_ends_by_the_same_sigterm_is_no_failure(
    error: Exception, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        stopped_and_then(error)
    assert session.signal_of(stop.value) == signal.SIGTERM
    assert not list(tmp_path.iterdir()), "Spark's log tells nothing that anybody needs"


KILLED = """
import os, signal, sys, tempfile
from pipeline.spark import session
session._require_pyspark = lambda: None
session._packages = lambda *_: []
session._start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
tempfile.tempdir = sys.argv[1]
with session.open_session("killed"):
    pass
"""


def test_the_log_of_a_killed_process_is_removed_by_the_next_session_and_no_other(
    tmp_path: Path,
) -> None:
    with pytest.raises(PipelineError, match="Spark's log is in") as told, session.open_session("a"):
        raise ValueError("wrong")
    (kept,) = tmp_path.iterdir()
    assert str(kept) in str(told.value)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(root)}, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with session.open_session("one"), session.open_session("another"):
        assert len([log for log in tmp_path.iterdir() if log != kept]) == 2, "both are in use"
    assert list(tmp_path.iterdir()) == [kept]


def test_other_failures_after_a_signal_and_a_jvm_that_dies_by_itself_are_told() -> None:
    with pytest.raises(PipelineError, match="ValueError: wrong"):
        stopped_and_then(ValueError("wrong"))
    with pytest.raises(PipelineError, match="ConnectionRefusedError"), session.open_session("test"):
        raise ConnectionRefusedError


def test_py4j_does_not_print_a_traceback_of_an_interrupt(caplog: pytest.LogCaptureFixture) -> None:
    def say() -> Any:
        caplog.clear()
        logging.exception("KeyboardInterrupt while sending command.")
        logging.error("another")
        return [record.getMessage() for record in caplog.records]

    with session.open_session("test"):
        assert say() == ["another"]
    assert len(say()) == 2, "of other sessions nothing is hidden"
