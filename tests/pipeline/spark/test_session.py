"""A session that is ended from outside: by a signal, and with it or without it the JVM."""

from __future__ import annotations

import logging
import os
import signal
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
