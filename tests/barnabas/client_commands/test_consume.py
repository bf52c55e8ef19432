from __future__ import annotations

import argparse
import os
import types
from pathlib import Path
from typing import Any

import pytest

from barnabas.client_commands import consume
from server.commands.outcomes import EXIT_USAGE, UserError
from testkit.clock import ManualClock

# kafka-python reads its schemas in a way that Python's newest versions advise against.


class Consumer:
    """Of a partition that holds ten records, whose leader is gone."""

    settings: dict[str, Any]

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return {0}

    def assign(self, _partitions: list[Any]) -> None: ...

    def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 10)

    def seek(self, _partition: Any, _offset: int) -> None: ...

    def position(self, _partition: Any, _timeout_ms: int) -> int:
        return 0

    def poll(self, _timeout_ms: int) -> dict[Any, list[Any]]:
        return {}

    def close(self) -> None: ...


class Member(Consumer):
    """Of a group; at each poll it is told what is next: partitions, none of them, or that they are
    dealt out anew (None)."""

    def __init__(self, *told: list[int] | None) -> None:
        self._told = list(told)

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self._topic, self._listener = topics[0], listener

    def topics(self) -> None:
        self._has_metadata = bool(self._topic)

    def poll(self, _timeout_ms: int) -> dict[Any, list[Any]]:
        from kafka import TopicPartition

        assert self._told, "it does not end"
        assert self._has_metadata, "metadata that comes later makes it join again"
        told = self._told.pop(0)
        if told is None:
            self._listener.on_partitions_revoked(set())
        else:
            self._listener.on_partitions_assigned({TopicPartition(self._topic, n) for n in told})
        return {}

    def position(self, _partition: Any, _timeout_ms: int) -> int:
        return 10

    def close(self) -> None:
        assert not self._told, "it ended too early"


def run(consumer: Consumer, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    heeded: list[str] = []

    def made(**settings: Any) -> Consumer:
        assert heeded, "a signal would end a member that others then wait for"
        consumer.settings = settings
        return consumer

    monkeypatch.setattr("kafka.KafkaConsumer", made)
    monkeypatch.setattr(consume, "settings", lambda _arguments: {})
    monkeypatch.setattr(consume, "exit_on_stop_signals", lambda: heeded.append("signals"))
    parser = argparse.ArgumentParser()
    consume.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["consume", "t", *flags])
    assert arguments.run(arguments) == 0


def test_records_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no answer from the cluster .* within 0.01 s"):
        run(Consumer(), monkeypatch, "--timeout", "0.01")


class Slow(Consumer):
    """Each of its ten records takes six seconds to come; where it is, it knows only then."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._place: int | None = None

    def position(self, _partition: Any, _timeout_ms: int) -> int | None:  # type: ignore[override]
        return self._place

    def poll(self, _timeout_ms: int) -> dict[Any, list[Any]]:
        self._clock.ms += 6_000
        self._place = 0 if self._place is None else self._place + 1
        return {}


def test_what_comes_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out is from one record to the next, not of them all."""
    clock = ManualClock()
    monkeypatch.setattr("time.monotonic", lambda: clock.now_ms() / 1000)
    slow = Slow(clock)
    run(slow, monkeypatch, "--timeout", "10")
    assert slow.position(0, 0) == 10


def test_a_place_that_is_not_known_yet_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "end_offsets", lambda _self, asked: dict.fromkeys(asked, 1))
    slow = Slow(ManualClock())
    run(slow, monkeypatch)
    assert slow.position(0, 0) == 1


class Growing(Consumer):
    """Of a partition that ends at offset 10, and gets records of the times 98, 99, 100 and 99."""

    def __init__(self) -> None:
        self._place = 10

    def offsets_for_times(self, wanted: dict[Any, int]) -> dict[Any, None]:
        assert set(wanted.values()) == {100}
        return dict.fromkeys(wanted)

    def position(self, _partition: Any, _timeout_ms: int) -> int:
        return self._place

    def poll(self, _timeout_ms: int) -> dict[Any, list[Any]]:
        from kafka import TopicPartition

        assert self._place == 10, "it does not end"
        self._place = 14
        times = (98, 99, 100, 99)
        return {
            TopicPartition("t", 0): [
                types.SimpleNamespace(key=None, value=b"%d" % time, offset=offset, timestamp=time)
                for offset, time in enumerate(times, 10)
            ]
        }


def test_who_follows_to_a_time_goes_on_until_it_has_come(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(Growing(), monkeypatch, "--follow", "--to", "1970-01-01T00:00:00.100+00:00")
    assert capsysbinary.readouterr().out == b"98\n99\n"


@pytest.mark.parametrize("told", [[[]], [None, None, []], [None, [0], None, []]], ids=str)
def test_a_member_to_whom_no_partition_is_left_ends_and_says_so(
    told: list[list[int] | None],
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    if [0] in told:  # it is not read to its end before the others take it
        monkeypatch.setattr(Member, "position", lambda *_arguments: 5)
    run(Member(*told), monkeypatch, "--group", "g")
    printed = capsysbinary.readouterr()
    assert printed.out == b""
    assert printed.err.startswith(b"barnabas: nothing to read: other members of group 'g' have")


def test_a_member_ends_at_the_end_of_its_partitions_only_when_they_are_its_own(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(Member(None, [0]), monkeypatch, "--group", "g")
    assert capsysbinary.readouterr().err == b""


class Printed(Member):
    """Of a group, given two records of partition 0; the answer to its first commit is late."""

    def __init__(self) -> None:
        super().__init__([0])
        self.asked: list[tuple[dict[int, int], int]] = []

    def poll(self, timeout_ms: int) -> dict[Any, list[Any]]:
        from kafka import TopicPartition

        if not self._told:
            return {}
        super().poll(timeout_ms)
        record = types.SimpleNamespace(key=None, leader_epoch=0)
        records = [types.SimpleNamespace(**vars(record), offset=n, value=b"v") for n in (8, 9)]
        return {TopicPartition("t", 0): records}

    def commit(self, places: dict[Any, Any], timeout_ms: int) -> None:
        from kafka.errors import KafkaTimeoutError

        self.asked.append(({p.partition: place.offset for p, place in places.items()}, timeout_ms))
        if len(self.asked) == 1:
            raise KafkaTimeoutError
        raise KeyboardInterrupt


def test_a_commit_waits_as_long_as_was_said_and_who_follows_commits_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Printed()
    with pytest.raises(UserError, match=r"no answer from the cluster .* within 2 s"):
        run(member, monkeypatch, "--group", "g", "--timeout", "2")
    assert member.asked == [({0: 10}, 2000)]

    member = Printed()
    with pytest.raises(KeyboardInterrupt):
        run(member, monkeypatch, "--group", "g", "--timeout", "2", "--follow")
    assert member.asked == [({0: 10}, 2000)] * 2


class Bounced(Printed):
    """Its broker restarts: twice nobody can be dialled, by a poll and then by a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = True

    def poll(self, timeout_ms: int) -> dict[Any, list[Any]]:
        from kafka.errors import KafkaConnectionError

        if self.is_down:
            self.is_down = False
            raise KafkaConnectionError("111 ECONNREFUSED")
        return super().poll(timeout_ms)

    def commit(self, places: dict[Any, Any], timeout_ms: int) -> None:
        from kafka.errors import KafkaConnectionError, KafkaTimeoutError

        try:
            super().commit(places, timeout_ms)
        except KafkaTimeoutError:
            raise KafkaConnectionError("111 ECONNREFUSED") from None


def test_a_member_that_follows_outlives_a_restart_of_its_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    member = Bounced()
    with pytest.raises(KeyboardInterrupt):
        run(member, monkeypatch, "--group", "g", "--follow")
    assert len(member.asked) == 2
    assert pauses == [0.2]  # where nobody listens, a poll is over at once
    for is_down in (True, False):
        member = Bounced()
        member.is_down = is_down
        if is_down:
            member._told.clear()
        with pytest.raises(UserError, match=r"a node of the cluster .* cannot be reached"):
            run(member, monkeypatch, "--group", "g")


def test_a_header_that_the_library_cannot_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreadable(Consumer):
        def poll(self, _timeout_ms: int) -> dict[Any, list[Any]]:
            b"\xff".decode()
            return {}

    with pytest.raises(UserError, match="topic 't' has a record with a header whose name is no"):
        run(Unreadable(), monkeypatch)


def test_who_follows_for_a_reader_that_has_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """`consume --follow | head` has what it wanted; the record that would tell may never come."""
    read, write = os.pipe()
    with open(write, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        member = Member([0])
        os.close(read)
        with pytest.raises(BrokenPipeError):
            run(member, monkeypatch, "--follow", "--group", "g")


class Topic(Consumer):
    """Of partitions 0 and 2 with the records 5 to 9, of the times 50 to 90, which come two at a
    time. Who waits for more is ended as by Ctrl-C."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 2} if topic == "t" else set()

    def assign(self, partitions: list[Any]) -> None:
        self._places = dict.fromkeys(partitions, -1)

    def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 5)

    def offsets_for_times(self, wanted: dict[Any, int]) -> dict[Any, Any]:
        return {
            p: types.SimpleNamespace(offset=ms // 10) if ms <= 90 else None
            for p, ms in wanted.items()
        }

    def seek(self, partition: Any, offset: int) -> None:
        assert partition in self._places
        self._places[partition] = offset

    def position(self, partition: Any, _timeout_ms: int) -> int:
        return self._places[partition]

    def poll(self, _timeout_ms: int) -> dict[Any, list[Any]]:
        found = {}
        for partition, place in self._places.items():
            if offsets := range(place, min(place + 2, 10)):
                self._places[partition] = offsets.stop
                found[partition] = [_record(partition.partition, offset) for offset in offsets]
        if not found:
            raise KeyboardInterrupt
        return found


def _record(partition: int, offset: int) -> Any:
    value = None if offset == 9 else b"%d-%d" % (partition, offset)
    key = b"key%d" % offset if offset % 2 else None
    return types.SimpleNamespace(key=key, value=value, offset=offset, timestamp=10 * offset)


_AT = "1970-01-01T00:00:00.0{}+00:00"


@pytest.mark.parametrize(
    ("flags", "offsets"),
    [
        ("", range(5, 10)),
        ("--from 8", [8, 9]),
        ("--from 2", range(5, 10)),
        ("--from -1", [9]),
        ("--from end", []),
        (f"--from {_AT.format(80)}", [8, 9]),
        (f"--from {_AT.format(99)}", []),
        ("--to 7", [5, 6]),
        ("--to 99", range(5, 10)),
        ("--to beginning", []),
        (f"--to {_AT.format(70)}", [5, 6]),
        (f"--from 6 --to {_AT.format(99)}", range(6, 10)),
        ("--from 6 --to 8", [6, 7]),
        ("--count 3", [5, 6, 7]),
        ("--count 1", [5]),
        ("--count 99", range(5, 10)),
        ("--filter 2-7", [7]),
        ("--filter key", [5, 7, 9]),
        ("--filter key --count 2", [5, 7]),
        ("--follow --to 7", [5, 6]),
        ("--follow --to end", range(5, 10)),
        (f"--follow --to {_AT.format(90)}", range(5, 9)),
    ],
)
def test_what_lies_between_two_places_is_printed_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    flags: str,
    offsets: list[int],
) -> None:
    flags += " --format key-value --key-separator :"
    run(Topic(), monkeypatch, "--partition", "2", *flags.split())
    printed = [line.split(b":")[0] for line in capsysbinary.readouterr().out.splitlines()]
    assert printed == [_record(2, offset).key or b"" for offset in offsets]


@pytest.mark.parametrize("flags", ["--follow", "--follow --to 12"])
def test_who_follows_waits_for_what_is_still_to_come(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], flags: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Topic(), monkeypatch, *flags.split())
    assert len(capsysbinary.readouterr().out.splitlines()) == 10


@pytest.mark.parametrize(
    ("partitions", "printed"), [([], {0, 2}), (["2"], {2}), (["0"], {0}), (["2,0,2"], {0, 2})]
)
def test_all_partitions_are_read_or_those_that_were_named(
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    partitions: list[str],
    printed: set[int],
) -> None:
    flags = [f"--partition={numbers}" for numbers in partitions]
    run(Topic(), monkeypatch, "--to", "6", *flags)
    lines = sorted(capsysbinary.readouterr().out.splitlines())
    assert lines == [b"%d-5" % number for number in sorted(printed)]


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'t' has no partition 1: it has 0 to 2"):
        run(Topic(), monkeypatch, "--partition", "0,1")
    monkeypatch.setattr(Topic, "partitions_for_topic", lambda *_arguments: None)
    with pytest.raises(UserError, match="no topic 't': `barnabas topic list`"):
        run(Topic(), monkeypatch)


@pytest.mark.parametrize("numbers", ["", "x", "0,", "-1", "\N{SUPERSCRIPT TWO}", "0 1"])
def test_partitions_are_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], numbers: str
) -> None:
    with pytest.raises(SystemExit):
        run(Topic(), monkeypatch, f"--partition={numbers}")
    assert "expected numbers, as in 0,2" in capsys.readouterr().err


@pytest.mark.parametrize("flags", ["--partition 0", "--to 8", "--to end", "--from 5", "--from -1"])
def test_what_does_not_go_with_a_group_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    with pytest.raises(UserError, match=r"^--group: ") as error:
        run(Member(), monkeypatch, "--group", "g", *flags.split())
    assert error.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("", {"group_id": "g", "auto_offset_reset": "earliest"}),
        ("--from end", {"auto_offset_reset": "latest", "isolation_level": "read_uncommitted"}),
        ("--isolation-level read_committed", {"isolation_level": "read_committed"}),
    ],
)
def test_the_client_is_told_what_the_flags_say(
    monkeypatch: pytest.MonkeyPatch, flags: str, wanted: dict[str, Any]
) -> None:
    member = Member([])
    run(member, monkeypatch, "--group", "g", *flags.split())
    assert {name: member.settings[name] for name in wanted} == wanted
    assert member.settings["enable_auto_commit"] is False, "what was not printed counted as read"
    assert member.settings["allow_auto_create_topics"] is False, "a reader made a topic"


def test_what_a_group_has_read_is_what_its_reader_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a batch of which --count takes the first the second is for who comes next."""
    told: list[tuple[bytes, dict[int, int]]] = []
    file = tmp_path / "printed"

    class Given(Printed):
        def commit(self, places: dict[Any, Any], timeout_ms: int) -> None:
            told.append((file.read_bytes(), {p.partition: o.offset for p, o in places.items()}))

    with file.open("w") as output:
        monkeypatch.setattr("sys.stdout", output)
        run(Given(), monkeypatch, "--group", "g", "--count", "1")
        assert told == [(b"v\n", {0: 9})]
        run(Given(), monkeypatch, "--group", "g")
    assert told[1:] == [(b"v\nv\nv\n", {0: 10})]


def test_a_member_of_no_partition_that_was_to_print_one_record_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Member([]), monkeypatch, "--group", "g", "--count", "1")
    assert "nothing to read" in capsys.readouterr().err


@pytest.mark.parametrize(("waits_s", "times"), [(2.5, 0), (2.6, 1), (60.0, 1)])
def test_a_group_that_takes_its_time_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    waits_s: float,
    times: int,
) -> None:
    """Kafka gives members that poll seldom five minutes to hear of a new one."""
    clock = ManualClock()
    monkeypatch.setattr("time.monotonic", lambda: clock.now_ms() / 1000)

    class Waiting(Member):
        def poll(self, timeout_ms: int) -> dict[Any, list[Any]]:
            clock.ms += round(waits_s * 1000)
            return super().poll(timeout_ms)

    run(Waiting(None, None, []), monkeypatch, "--group", "g")
    told = capsys.readouterr().err
    assert told.count("waiting until the other members of group 'g' have heard") == times


def test_who_reads_alone_waits_for_no_member(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("time.monotonic", lambda: clock.now_ms() / 1000)
    run(Slow(clock), monkeypatch, "--timeout", "10")
    assert capsys.readouterr().err == ""
