"""What `produce` gives to the client library, which is played here, and says of what went wrong."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka.errors import KafkaTimeoutError

from barnabas.client_commands import produce
from server.commands.outcomes import UserError

# kafka-python reads its schemas in a way that Python's newest versions advise against.

REFUSED = b"refused"


class Metadata(NamedTuple):
    partition: int
    offset: int


class Future:
    def __init__(self) -> None:
        self.success: Any = None
        self.failure: Any = None

    def add_callback(self, call: Any) -> None:
        self.success = call

    def add_errback(self, call: Any) -> None:
        self.failure = call


class Producer:
    """Keeps what it is sent until `flush`, as the real one may; refuses the value REFUSED."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.bytes_max = 0
        self.is_stuck = False
        self._sender = self  # as the real one's thread
        self._waiting: list[Future] = []
        self._bytes = 0

    def partitions_for(self, topic: str) -> set[int]:
        if " " in topic:
            raise ValueError("Topic name is illegal")
        return {0}

    def send(self, topic: str, **record: Any) -> Future:
        if record["partition"] not in {None, *self.partitions_for(topic)}:
            raise ValueError("Unrecognized partition")
        self.sent.append(record)
        self._bytes += len(record["value"] or b"")
        self.bytes_max = max(self.bytes_max, self._bytes)
        self._waiting.append(Future())
        return self._waiting[-1]

    def flush(self, timeout: float | None = None) -> None:
        if self.is_stuck:
            assert timeout is not None, "it would wait for ever"
            raise KafkaTimeoutError("Timeout waiting for future")
        for future, record in zip(self._waiting, self.sent[-len(self._waiting) :], strict=False):
            if record["value"] == REFUSED:
                future.failure(RuntimeError("too large"))
            else:
                future.success(Metadata(record["partition"] or 0, len(self.sent)))
        self._waiting, self._bytes = [], 0

    def force_close(self) -> None:
        self.is_stuck = False
        self._waiting = []

    def close(self) -> None:
        self.flush()


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    played = Producer()
    monkeypatch.setattr("kafka.KafkaProducer", lambda **_settings: played)
    monkeypatch.setattr(produce, "settings", lambda _arguments: {})
    monkeypatch.setattr(produce, "exit_on_stop_signals", lambda: None)
    return played


def run(tmp_path: Path, lines: bytes, *flags: str, topic: str = "t") -> int:
    file = tmp_path / "lines"
    file.write_bytes(lines)
    parser = argparse.ArgumentParser()
    produce.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["produce", topic, "--file", str(file), *flags])
    return int(arguments.run(arguments))


def test_a_line_loses_its_end_and_nothing_else(producer: Producer, tmp_path: Path) -> None:
    assert run(tmp_path, b"unix\ndos\r\n\r\r\n\n\xff\x00 last") == 0
    values = [record["value"] for record in producer.sent]
    assert values == [b"unix", b"dos", b"\r", b"", b"\xff\x00 last"]


def test_flags_hold_for_all_lines(producer: Producer, tmp_path: Path) -> None:
    flags = ("--format", "json", "--partition", "0", "--key", "all")
    run(tmp_path, b'{"key": "k", "value": "v", "partition": 7}\n{}', *flags)
    assert [(r["partition"], r["key"]) for r in producer.sent] == [(0, b"all")] * 2


def test_what_a_shell_hands_over_need_not_be_text(producer: Producer, tmp_path: Path) -> None:
    run(tmp_path, b"v", "--key", "\udcff", "--header", "h=\udcfe")
    (record,) = producer.sent
    assert (record["key"], record["headers"]) == (b"\xff", [("h", b"\xfe")])


def test_what_was_refused_before_a_bad_line_is_told(producer: Producer, tmp_path: Path) -> None:
    """Of the lines before it somebody would believe that they were written."""
    with pytest.raises(UserError, match=r"too large; 1 records were written"):
        run(tmp_path, b"a:1\nb:" + REFUSED + b"\nnone\n", "--key-separator", ":")
    with pytest.raises(UserError, match=r"line 2: .*; the lines before it were sent"):
        run(tmp_path, b"a:1\nnone\n", "--key-separator", ":")


def test_of_a_batch_the_refused_record_says_why() -> None:
    """The others fail, too: each only because it was in the batch, and one of them before it."""
    from kafka.errors import InvalidTimestampError, KafkaError

    company, reason = KafkaError("it was part of a batch"), InvalidTimestampError("too late")
    for order in ([company, reason, company], [reason, company]):
        written = produce._Written()
        for failure in order:
            written.on_failure(failure)
        assert written.failure is reason
    with pytest.raises(UserError, match="'t': INVALID_TIMESTAMP: too late; 0 records were written"):
        produce._result(argparse.Namespace(topic="t"), written)


def test_a_failure_without_words_is_named_once() -> None:
    written = produce._Written()
    written.on_failure(KafkaTimeoutError())
    with pytest.raises(UserError, match=r"^topic 't': KafkaTimeoutError; 0 records were written$"):
        produce._result(argparse.Namespace(topic="t"), written)


def test_a_record_of_nothing_is_told_with_its_line(producer: Producer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: this client writes no record without a key"):
        run(tmp_path, b'{"value": ""}\n{"headers": {"h": ""}}', "--format", "json")
    assert len(producer.sent) == 1


def test_what_cannot_be_sent_is_told_in_words(producer: Producer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="topic 'a b': Topic name is illegal"):
        run(tmp_path, b"v", topic="a b")
    with pytest.raises(UserError, match="topic 't' has no partition 3, only 0 to 0"):
        run(tmp_path, b"v", "--partition", "3")


def test_long_lines_do_not_pile_up(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "_IN_FLIGHT_BYTES", 1000)
    run(tmp_path, b"".join(b"x" * 399 + b"\n" for _ in range(20)))
    assert len(producer.sent) == 20
    assert producer.bytes_max == 3 * 399


_ENDED_WHILE_IT_WAITS = """
import sys, threading, signal
from barnabas.client_commands import produce
from server.commands.main import exit_on_stop_signals

def told():
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

exit_on_stop_signals()
with produce._lines(None) as lines:
    print(next(lines), flush=True)
    threading.Timer(0.5, told).start()  # when the main thread waits, or it is no test
    next(lines)
"""


def test_a_signal_that_the_system_gives_another_thread_ends_it() -> None:
    """As it does when the process was paused at the time. What is written in pieces is a line."""
    with subprocess.Popen([sys.executable, "-c", _ENDED_WHILE_IT_WAITS],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:  # fmt: skip
        assert run.stdin is not None
        assert run.stdout is not None
        for piece in (b"o", b"ne\ntw"):
            run.stdin.write(piece)
            run.stdin.flush()
        assert run.stdout.readline() == b"b'one'\n"
        try:
            assert run.wait(20) == 128 + signal.SIGTERM
        finally:
            run.kill()


def test_a_batch_that_the_client_forgot_is_not_waited_for(
    producer: Producer, tmp_path: Path
) -> None:
    """As of a full disk, which refuses it until its time is over."""
    producer.is_stuck = True
    with pytest.raises(UserError, match=r"KafkaTimeoutError: .*; 0 records were written"):
        run(tmp_path, b"v")
    assert not producer.is_stuck, "what it holds was not given up"


def test_a_stop_signal_does_not_wait_for_it_either(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_arguments: object, **_record: object) -> None:
        producer.is_stuck = True
        raise SystemExit(143)

    monkeypatch.setattr(producer, "send", stop)
    with pytest.raises(SystemExit, match="143"):
        run(tmp_path, b"v")
