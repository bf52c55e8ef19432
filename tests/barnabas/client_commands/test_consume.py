from __future__ import annotations

import argparse
import os
import types
from typing import Any

import pytest

from barnabas.client_commands import consume
from server.commands.outcomes import UserError

# kafka-python reads its schemas in a way that Python's newest versions advise against.


class Consumer:
    """Of a partition that holds ten records, whose leader is gone."""

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

    def topics(self) -> None: ...

    def poll(self, _timeout_ms: int) -> dict[Any, list[Any]]:
        from kafka import TopicPartition

        assert self._told, "it does not end"
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
    monkeypatch.setattr("kafka.KafkaConsumer", lambda **_settings: consumer)
    monkeypatch.setattr(consume, "settings", lambda _arguments: {})
    monkeypatch.setattr(consume, "exit_on_stop_signals", lambda: None)
    parser = argparse.ArgumentParser()
    consume.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["consume", "t", *flags])
    assert arguments.run(arguments) == 0


def test_records_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no answer from the cluster .* within 0.01 s"):
        run(Consumer(), monkeypatch, "--timeout", "0.01")


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
    member = Bounced()
    with pytest.raises(KeyboardInterrupt):
        run(member, monkeypatch, "--group", "g", "--follow")
    assert len(member.asked) == 2
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
