"""What a node's log looks like."""

from __future__ import annotations

import logging

from server.commands.log_lines import OneLine


def test_nobody_writes_lines_of_his_own_into_the_log() -> None:
    name = "orders\n2026-01-01 00:00:00,000 INFO    server.node  stopped\r\x1b[2J\u2028é"
    record = logging.LogRecord("a", logging.INFO, "", 0, "fenced id=%s", (name,), None)
    line = OneLine().format(record)
    assert len(line.splitlines()) == 1
    assert line.endswith("stopped\\r\\x1b[2J\\u2028é")


def test_a_traceback_keeps_its_lines() -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        failed = (type(error), error, error.__traceback__)
    record = logging.LogRecord("a", logging.ERROR, "", 0, "failed", (), failed)
    assert OneLine().format(record).splitlines()[-1] == "ZeroDivisionError"
