"""What `produce` gives to the client library, which is played here, and says of what went wrong."""

from __future__ import annotations

import argparse
import json
import os
import select
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
        self.records_max = 0
        self.is_stuck = False
        self.is_closed = False
        self.settings: dict[str, Any] = {}
        self.waited_s: list[float | None] = []
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
        self.records_max = max(self.records_max, len(self._waiting))
        return self._waiting[-1]

    def flush(self, timeout: float | None = None) -> None:
        self.waited_s.append(timeout)
        if self.is_stuck:
            assert timeout is not None, "it would wait for ever"
            raise KafkaTimeoutError("Timeout waiting for future")
        begin = len(self.sent) - len(self._waiting)
        for offset, future in enumerate(self._waiting, begin):
            record = self.sent[offset]
            if record["value"] == REFUSED:
                future.failure(RuntimeError("too large"))
            else:
                future.success(Metadata(record["partition"] or 0, offset))
        self._waiting, self._bytes = [], 0

    def force_close(self) -> None:
        self.is_stuck = False
        self._waiting = []

    def close(self) -> None:
        self.flush()
        self.is_closed = True


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    played = Producer()

    heeded: list[str] = []

    def made(**settings: Any) -> Producer:
        assert heeded, "a signal would end it before what was read is sent"
        played.settings = settings
        return played

    monkeypatch.setattr("kafka.KafkaProducer", made)
    monkeypatch.setattr(produce, "settings", lambda _arguments: {})
    monkeypatch.setattr(produce, "exit_on_stop_signals", lambda: heeded.append("signals"))
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


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("", {"acks": "all", "enable_idempotence": True, "compression_type": None}),
        ("--acks 1", {"acks": 1, "enable_idempotence": False}),
        ("--acks 0", {"acks": 0, "enable_idempotence": False}),
        ("--compression none", {"compression_type": None}),
        ("--compression zstd --timeout 2.5", {"compression_type": "zstd", "max_block_ms": 2500}),
    ],
)
def test_the_client_is_told_what_the_flags_say_and_closed(
    producer: Producer, tmp_path: Path, flags: str, wanted: dict[str, Any]
) -> None:
    assert run(tmp_path, b"v", *flags.split()) == 0
    told = producer.settings
    assert {name: told[name] for name in wanted} == wanted
    assert told["request_timeout_ms"] == told["max_block_ms"]
    # Or kafka-python refuses its own settings.
    assert told["delivery_timeout_ms"] >= told["request_timeout_ms"] + told["linger_ms"]
    # It gives up by itself before we do.
    waited = producer.waited_s[0]
    assert waited is not None
    assert waited * 1000 > told["delivery_timeout_ms"]
    assert producer.is_closed


@pytest.mark.parametrize(
    ("lines", "flags", "text"),
    [
        (b"", "", "0 records to t\n"),
        (b"a", "", "1 record to t (partition and offset 0: 0)\n"),
        (b"a\nb\nc", "", "3 records to t (partition and offset 0: 0 to 2)\n"),
        (b"a\nb", "--acks 0", "2 records to t\n"),
        (
            b'{"value":"a"}\n{"value":"b"}\n{"value":"c"}',
            "--format json --partition 0",
            "3 records to t (partition and offset 0: 0 to 2)\n",
        ),
    ],
)
def test_what_was_written_is_told_with_its_place(
    producer: Producer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: bytes,
    flags: str,
    text: str,
) -> None:
    run(tmp_path, lines, *flags.split())
    assert capsys.readouterr().out == text


def test_a_program_is_told_the_places_of_each_partition(
    producer: Producer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(producer, "partitions_for", lambda _topic: {0, 1})
    lines = b"".join(b'{"value":"v","partition":%d}\n' % number for number in (1, 0, 1, 1))
    run(tmp_path, lines, "--format", "json", "--json")
    assert json.loads(capsys.readouterr().out) == {
        "topic": "t",
        "records": 4,
        "partitions": {
            "0": {"first_offset": 1, "last_offset": 1},
            "1": {"first_offset": 0, "last_offset": 3},
        },
    }


def test_a_program_is_told_no_places_that_no_broker_told(
    producer: Producer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without acknowledgements kafka-python counts offsets from 0 in each batch."""
    run(tmp_path, b"a\nb", "--acks", "0", "--json")
    assert json.loads(capsys.readouterr().out) == {"topic": "t", "records": 2, "partitions": {}}


@pytest.mark.parametrize(
    "flags",
    [
        ("--key-separator", ""),
        ("--key-separator", ":", "--key", "k"),
        ("--key-separator", ":", "--format", "json"),
        ("--header", "h"),
    ],
)
def test_flags_that_contradict_each_other_are_a_mistake_before_anything_is_sent(
    producer: Producer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as error:
        run(tmp_path, b"a:1", *flags)
    assert error.value.exit_code == 2
    assert producer.settings == {}


@pytest.mark.parametrize("flags", [("--partition", "-1"), ("--partition", "x"), ("--acks", "2")])
def test_a_number_that_is_none_is_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, b"", *flags)


def test_who_names_no_partition_hears_which_there_may_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, b"", "--partition", "-1")
    assert "'-1': expected a whole number, at least 0" in capsys.readouterr().err


def test_flags_hold_for_all_lines(producer: Producer, tmp_path: Path) -> None:
    flags = ("--format", "json", "--partition", "0", "--key", "all", "--header", "h=all")
    own = b'{"key": "k", "value": "v", "partition": 7, "headers": {"i": "own"}, "timestamp": 5}'
    run(tmp_path, own + b"\n{}", *flags)
    assert [(r["partition"], r["key"]) for r in producer.sent] == [(0, b"all")] * 2
    all_of_them = ("h", b"all")
    assert [r["headers"] for r in producer.sent] == [[all_of_them, ("i", b"own")], [all_of_them]]
    assert [r["timestamp_ms"] for r in producer.sent] == [5, None]


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
    for failure, said in (
        (reason, "INVALID_TIMESTAMP: too late"),
        (InvalidTimestampError(), "INVALID_TIMESTAMP: The timestamp of the message is out of"),
        (RuntimeError("it broke.\n"), "RuntimeError: it broke"),
    ):
        written.failure = failure
        with pytest.raises(UserError, match=f"'t': {said}.*; 0 records were written"):
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


def test_what_the_library_refuses_of_a_record_is_told_in_its_words(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_arguments: object, **_record: object) -> None:
        raise ValueError("it is too odd")

    monkeypatch.setattr(producer, "send", send)
    for flags in ([], ["--partition", "0"]):  # a partition that is there is not to blame
        with pytest.raises(UserError, match=r"^topic 't': it is too odd$"):
            run(tmp_path, b"v", *flags)


def test_a_topic_that_is_not_there_is_told_with_the_next_step(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_arguments: object, **_record: object) -> None:
        raise KafkaTimeoutError("Failed to update metadata")

    monkeypatch.setattr(producer, "send", send)
    with pytest.raises(UserError, match=r"'t' is not there, .* `barnabas topic create t` makes it"):
        run(tmp_path, b"v")


def test_a_file_that_cannot_be_read_is_one_line(producer: Producer, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"^--file .*none cannot be read: No such file or directory"),
        produce._lines(tmp_path / "none"),
    ):
        pass


def test_neither_long_lines_nor_many_pile_up(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "_IN_FLIGHT_BYTES", 1200)
    run(tmp_path, b"".join(b"x" * 399 + b"\n" for _ in range(20)))
    assert len(producer.sent) == 20
    assert producer.bytes_max == 3 * 399
    monkeypatch.setattr(produce, "_IN_FLIGHT", 2)
    producer.records_max = 0
    producer.waited_s.clear()
    run(tmp_path, b"".join(b"x\n" for _ in range(20)))
    assert producer.records_max == 2
    assert len(producer.waited_s) == 20 / 2 + len(("at the end", "to close it"))


def test_what_comes_after_a_record_that_was_refused_is_not_sent(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "_IN_FLIGHT", 2)
    with pytest.raises(UserError, match="too large; 1 records were written"):
        run(tmp_path, b"a\n" + REFUSED + b"\nb\nc\n")
    assert len(producer.sent) == 2


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\n", [b"one"]),
        (b"one\n\ntwo", [b"one", b"", b"two"]),
        (b"x" * 65_535 + b"\none", [b"x" * 65_535, b"one"]),
    ],
)
def test_standard_input_is_its_lines_however_late_they_come(
    data: bytes, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    looked = select.select
    looks: list[object] = []

    def look(*told: Any) -> Any:
        looks.append(told)
        if len(looks) == 1:
            return [], [], []  # nothing is there yet: who reads now waits without a bound
        if len(looks) == 2:
            os.write(writer, data[:65_536])
        if len(looks) == 3:
            os.write(writer, data[65_536:])
            os.close(writer)
        return looked(*told)

    with open(reader, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(select, "select", look)
        with produce._lines(None) as found:
            assert list(found) == lines


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
