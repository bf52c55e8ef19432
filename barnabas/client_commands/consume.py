"""`barnabas consume`: records become lines."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from barnabas.client_commands import positions, records
from barnabas.client_commands.connection import (
    TOPIC_LIST,
    add_flags,
    count,
    no_answer,
    settings,
    told,
)
from barnabas.client_commands.positions import Position
from server.commands.main import exit_on_stop_signals
from server.commands.outcomes import EXIT_OK, EXIT_USAGE, UserError

_POLL_MS = 200
_BATCH = 500
_WAITS_UNTOLD_S = 5.0
_NOT_YET = 2**63 - 1  # the end of a partition that has no record of the time of --to


def add_commands(commands: Any) -> None:
    """Add `consume` to the parser."""
    command = commands.add_parser(
        "consume",
        help="print the records of a topic",
        description="Print the records that are in a topic now, and with --follow those that come.",
    )
    command.add_argument("topic", metavar="TOPIC")
    command.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        type=positions.parse,
        default=Position("beginning"),
        help=f"in each partition: {positions.EXPECTED} (beginning)",
    )
    command.add_argument(
        "--to", dest="stop", metavar="POSITION", type=positions.parse, help="stop before it (end)"
    )
    command.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    command.add_argument("--count", metavar="N", type=count, help="stop after N records")
    command.add_argument(
        "--partition", metavar="N[,N]", type=_partitions, help="only these partitions"
    )
    command.add_argument(
        "--filter", metavar="TEXT", help="only records whose key or value holds this text"
    )
    command.add_argument("--format", choices=records.FORMATS, default="value")
    command.add_argument(
        "--key-separator", metavar="TEXT", default="\t", help="of key-value (a tab)"
    )
    command.add_argument(
        "--group",
        metavar="GROUP",
        help="as a member of this group: begin where it stands, and commit what was printed",
    )
    command.add_argument(
        "--isolation-level",
        choices=["read_uncommitted", "read_committed"],
        default="read_uncommitted",
        help="read_committed: no records of transactions that were aborted, or are open",
    )
    add_flags(command)
    command.set_defaults(run=_consume)


def _partitions(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers, as in 0,2")
    return sorted({int(part) for part in parts})


def _consume(arguments: argparse.Namespace) -> int:
    from kafka import KafkaConsumer

    _check(arguments)
    exit_on_stop_signals()  # a member leaves its group: others would wait for it
    with told(arguments):
        consumer = KafkaConsumer(
            group_id=arguments.group,
            enable_auto_commit=False,
            auto_offset_reset="latest" if arguments.start.kind == "end" else "earliest",
            allow_auto_create_topics=False,
            isolation_level=arguments.isolation_level,
            max_poll_records=_BATCH,
            **settings(arguments),
        )
        with contextlib.closing(consumer):
            _Reading(consumer, arguments).run()
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> None:
    if arguments.group is None:
        return
    if arguments.partition is not None or arguments.stop is not None:
        raise UserError("--group: neither --partition nor --to goes with it", EXIT_USAGE)
    if arguments.start.kind not in ("beginning", "end"):
        raise UserError(
            "--group: --from beginning or end is where a new group begins; `barnabas group"
            " reset-offsets` moves one",
            EXIT_USAGE,
        )


class _Reading:
    """Polls and prints until each partition has reached its end, or enough was printed."""

    def __init__(self, consumer: Any, arguments: argparse.Namespace) -> None:
        self._consumer = consumer
        self._arguments = arguments
        self._assigned: set[Any] | None = None  # nobody has said yet, or they are dealt out anew
        self._ends: dict[Any, int] = {}
        self._places: dict[Any, int] = {}
        self._moved_s = time.monotonic()
        self._has_told = False
        self._printed: dict[Any, Any] = {}  # where the group goes on, not committed yet
        self._left: int | None = arguments.count
        self._is_wanted = _filter(arguments.filter)
        self._form = "json" if arguments.json else arguments.format
        self._separator = os.fsencode(arguments.key_separator)

    def run(self) -> None:
        partitions = self._known_partitions()
        if self._arguments.group is None:
            self._consumer.assign(partitions)
            self._assigned = set(partitions)
            self._seek(partitions)
        else:
            self._consumer.subscribe([self._arguments.topic], listener=self._membership())
            # Metadata that comes after the join makes kafka-python join again, and forget that it
            # does when a short poll ends meanwhile: it never hears of its partitions, or commits
            # amid a rebalance.
            self._consumer.topics()
        while self._left != 0 and not self._is_done():
            self._check_moves()
            self._tell_of_waiting()
            batches = self._poll()
            for partition, batch in batches.items():
                self._print(partition, batch)
            sys.stdout.buffer.flush()  # printed before it counts as read
            self._commit()
            if self._arguments.follow and not batches:
                _check_reader()
        if self._left != 0 and not self._assigned:
            print(
                f"barnabas: nothing to read: other members of group {self._arguments.group!r} have"
                f" all partitions of {self._arguments.topic!r}",
                file=sys.stderr,
            )

    def _poll(self) -> dict[Any, list[Any]]:
        """What came. Raises UserError for a record that the library cannot read, and, unless it
        follows, KafkaConnectionError where no node can be dialled to ask for the coordinator."""
        from kafka.errors import KafkaConnectionError

        try:
            found: dict[Any, list[Any]] = self._consumer.poll(_POLL_MS)
        except UnicodeDecodeError:
            raise UserError(
                f"topic {self._arguments.topic!r} has a record with a header whose name is no"
                " UTF-8, which kafka-python cannot read; --partition and --from go around it"
            ) from None
        except KafkaConnectionError:
            if not self._arguments.follow:
                raise
            time.sleep(_POLL_MS / 1000)
            return {}
        return found

    def _membership(self) -> Any:
        """What kafka-python tells which partitions are ours: none is an answer, too."""
        from kafka import ConsumerRebalanceListener

        reading = self

        class Membership(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, _revoked: Any) -> None:
                reading._assigned = None
                reading._printed = {}

            def on_partitions_assigned(self, assigned: Any) -> None:
                reading._assigned = set(assigned)

        return Membership()

    def _known_partitions(self) -> list[Any]:
        from kafka import TopicPartition

        topic = self._arguments.topic
        found = self._consumer.partitions_for_topic(topic)
        if not found:
            raise UserError(f"no topic {topic!r}: {TOPIC_LIST}")
        wanted = self._arguments.partition or sorted(found)
        if missing := [number for number in wanted if number not in found]:
            raise UserError(
                f"topic {topic!r} has no partition {missing[0]}: it has 0 to {max(found)}"
            )
        return [TopicPartition(topic, number) for number in wanted]

    def _seek(self, partitions: list[Any]) -> None:
        begins = self._consumer.beginning_offsets(partitions)
        ends = self._consumer.end_offsets(partitions)
        starts = self._offsets(self._arguments.start, begins, ends)
        for partition, offset in starts.items():
            self._consumer.seek(partition, offset)
        stop = self._arguments.stop
        if stop is not None:
            self._ends = self._offsets(stop, begins, ends)
            if self._arguments.follow and stop.kind == "offset":
                self._ends = dict.fromkeys(partitions, stop.number)
            elif self._arguments.follow and stop.kind == "time":  # it may be still to come
                self._ends |= {p: _NOT_YET for p in partitions if self._ends[p] >= ends[p]}
        elif not self._arguments.follow:
            self._ends = ends

    def _offsets(
        self, position: Position, begins: dict[Any, int], ends: dict[Any, int]
    ) -> dict[Any, int]:
        found: dict[Any, Any] = {}
        if position.kind == "time":
            found = self._consumer.offsets_for_times(dict.fromkeys(begins, position.number))
        at_time = {p: None if place is None else place.offset for p, place in found.items()}
        return {p: positions.offset(position, begins[p], ends[p], at_time.get(p)) for p in begins}

    def _is_done(self) -> bool:
        """Whether all partitions of ours are read to the end that was set for them."""
        assigned = self._assigned
        if assigned is None or (not self._ends and self._arguments.follow):
            return False
        places = {p: self._consumer.position(p, _POLL_MS) or 0 for p in assigned}
        if places != self._places:
            self._places, self._moved_s = places, time.monotonic()
        if new := [partition for partition in assigned if partition not in self._ends]:
            self._ends |= self._consumer.end_offsets(new)  # as a member of a group
        return all(places[p] >= self._ends[p] for p in assigned)

    def _check_moves(self) -> None:
        """Raise UserError when what is there does not come: its leader may be gone for good.

        Who follows waits for it; members of a group wait for each other, as long as they may.
        """
        arguments = self._arguments
        is_late = time.monotonic() - self._moved_s > arguments.timeout
        if is_late and not arguments.follow and arguments.group is None:
            raise no_answer(arguments)

    def _tell_of_waiting(self) -> None:
        """Once, when the group takes its time to deal partitions out."""
        if self._assigned is not None or self._has_told:
            return
        if time.monotonic() - self._moved_s > _WAITS_UNTOLD_S:
            self._has_told = True
            print(
                f"barnabas: waiting until the other members of group {self._arguments.group!r} have"
                " heard of this one (Ctrl-C ends it)",
                file=sys.stderr,
            )

    def _print(self, partition: Any, batch: list[Any]) -> None:
        last = None
        for record in batch:
            if self._left == 0 or self._is_behind(partition, record):
                break
            last = record
            if self._is_wanted(record):
                sys.stdout.buffer.write(records.render(record, self._form, self._separator))
                if self._left is not None:
                    self._left -= 1
        if last is not None and self._arguments.group is not None:
            from kafka import OffsetAndMetadata

            self._printed[partition] = OffsetAndMetadata(last.offset + 1, "", last.leader_epoch)

    def _is_behind(self, partition: Any, record: Any) -> bool:
        """Whether a record lies behind the end that was set for its partition."""
        end = self._ends.get(partition)
        if end == _NOT_YET and record.timestamp >= self._arguments.stop.number:
            end = self._ends[partition] = record.offset
        return end is not None and record.offset >= end

    def _commit(self) -> None:
        """Raise KafkaTimeoutError when there is no answer in time, KafkaConnectionError when no
        node can be dialled; who follows tries again."""
        from kafka.errors import KafkaConnectionError, KafkaTimeoutError

        if not self._printed:
            return
        try:
            self._consumer.commit(self._printed, timeout_ms=int(self._arguments.timeout * 1000))
        except (KafkaConnectionError, KafkaTimeoutError):
            if not self._arguments.follow:
                raise
        else:
            self._printed = {}


def _check_reader() -> None:
    """Raise BrokenPipeError when the reader of our output has gone (`| head`): otherwise only a
    write tells it, and the next record may never come."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)  # errors are told unasked
    except (OSError, ValueError):  # output that has no descriptor
        return
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise BrokenPipeError


def _filter(text: str | None) -> Callable[[Any], bool]:
    if text is None:
        return lambda _record: True
    wanted = os.fsencode(text)
    return lambda record: wanted in (record.value or b"") or wanted in (record.key or b"")
