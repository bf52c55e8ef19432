"""`barnabas produce`: lines become records."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.client_commands import records
from barnabas.client_commands.connection import (
    add_flags,
    count,
    key_values,
    plain,
    settings,
    told,
    utf8,
)
from server.commands.main import exit_on_stop_signals
from server.commands.outcomes import EXIT_OK, EXIT_USAGE, UserError, print_json

_GRACE_S = 2.0  # beyond --timeout, for what gives up when it is over
# The client keeps what it has not sent in memory, without a bound of its own.
_IN_FLIGHT = 10_000
_IN_FLIGHT_BYTES = 32 << 20
_MAX_REQUEST = 2**30  # what is too large is for the broker to say
_LOOK_S = 0.2
_CHUNK = 65_536


def add_commands(commands: Any) -> None:
    """Add `produce` to the parser."""
    command = commands.add_parser(
        "produce",
        help="write lines of standard input or a file to a topic",
        description="Write each line of standard input as a record.",
    )
    command.add_argument("topic", metavar="TOPIC")
    command.add_argument("--file", metavar="FILE", type=Path, help="read lines of this file")
    command.add_argument(
        "--format",
        choices=["lines", "json"],
        default="lines",
        help='json: each line is {"key", "value", "headers", "partition", "timestamp"}',
    )
    command.add_argument(
        "--key-separator", metavar="TEXT", help="what stands between key and value (`:`)"
    )
    command.add_argument("--key", metavar="TEXT", help="the key of every record")
    command.add_argument(
        "--header",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a header of every record; may be given again",
    )
    command.add_argument("--partition", metavar="N", type=_partition, help="(chosen by the key)")
    command.add_argument("--acks", choices=["all", "1", "0"], default="all")
    command.add_argument("--compression", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    add_flags(command)
    command.set_defaults(run=_produce)


def _partition(text: str) -> int:
    return count(text, at_least=0)


class _Written:
    """What the broker acknowledged: the first and last offset of each partition; or its refusal."""

    def __init__(self) -> None:
        self.records = 0
        self.offsets: dict[int, tuple[int, int]] = {}
        self.failure: Exception | None = None

    def on_success(self, metadata: Any) -> None:
        self.records += 1
        partition, offset = metadata.partition, metadata.offset
        first, last = self.offsets.get(partition, (offset, offset))
        self.offsets[partition] = (min(first, offset), max(last, offset))

    def on_failure(self, failure: Exception) -> None:
        if self.failure is None or _is_of_company(self.failure):
            self.failure = failure


def _is_of_company(failure: Exception) -> bool:
    """Whether it only says that another record of the batch was refused, and not why.

    kafka-python has no class for that; all that came before that record fail with it first.
    """
    from kafka.errors import KafkaError

    return type(failure) is KafkaError


def _produce(arguments: argparse.Namespace) -> int:
    from kafka import KafkaProducer

    separator = arguments.key_separator
    if separator == "" or (separator and (arguments.key or arguments.format == "json")):
        raise UserError(
            "--key-separator: expected text that stands between key and value of each line, and"
            " neither --key nor --format json",
            EXIT_USAGE,
        )
    pairs = key_values(arguments.header, "--header").items()
    headers = [(utf8(name), os.fsencode(value)) for name, value in pairs]
    exit_on_stop_signals()  # what was read is sent
    written = _Written()
    with _lines(arguments.file) as lines, told(arguments):
        wait_ms = int(arguments.timeout * 1000)
        producer = KafkaProducer(
            acks=arguments.acks if arguments.acks == "all" else int(arguments.acks),
            enable_idempotence=arguments.acks == "all",
            compression_type=None if arguments.compression == "none" else arguments.compression,
            max_request_size=_MAX_REQUEST,
            max_block_ms=wait_ms,
            request_timeout_ms=wait_ms,
            delivery_timeout_ms=wait_ms + 100,
            linger_ms=5,
            **settings(arguments),
        )
        mistake: UserError | None = None
        with contextlib.closing(producer):
            try:
                _send_all(producer, arguments, lines, headers, written)
            except UserError as error:
                mistake = error
            finally:  # a stop signal's too: closing it would wait without a bound
                _flush(producer, arguments, written)
    if mistake is not None and written.failure is None:
        raise mistake
    return _result(arguments, written)


def _send_all(
    producer: Any,
    arguments: argparse.Namespace,
    lines: Iterator[bytes],
    headers: list[tuple[str, bytes]],
    written: _Written,
) -> None:
    """Send all lines, or those before the first that the broker refused. Raises UserError."""
    records_in_flight = bytes_in_flight = 0
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        _send(producer, arguments, _record(text, number, arguments), headers, written)
        records_in_flight, bytes_in_flight = records_in_flight + 1, bytes_in_flight + len(line)
        if records_in_flight >= _IN_FLIGHT or bytes_in_flight >= _IN_FLIGHT_BYTES:
            _flush(producer, arguments, written)
            records_in_flight = bytes_in_flight = 0
        if written.failure is not None:
            break


def _flush(producer: Any, arguments: argparse.Namespace, written: _Written) -> None:
    """Wait until all that was sent is written or given up, which its timeout bounds: kafka-python
    may forget a batch that was refused again and again, as by a full disk, and wait for ever."""
    from kafka.errors import KafkaTimeoutError

    try:
        producer.flush(timeout=arguments.timeout + _GRACE_S)
    except KafkaTimeoutError as error:
        written.on_failure(error)
        producer._sender.force_close()  # its close() would flush first, and never come to this


@contextlib.contextmanager
def _lines(file: Path | None) -> Iterator[Iterator[bytes]]:
    if file is None:
        yield _standard_input()
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise UserError(f"--file {file} cannot be read: {error.strerror}") from None
    with opened:
        yield opened


def _standard_input() -> Iterator[bytes]:
    """Its lines. It may be silent for hours, and is not waited for without a bound, as
    `exit_on_stop_signals` asks."""
    descriptor = sys.stdin.fileno()
    line = bytearray()
    chunk = None
    while chunk != b"":
        if not select.select([descriptor], [], [], _LOOK_S)[0]:
            continue
        chunk = os.read(descriptor, _CHUNK)
        first, *others = chunk.split(b"\n")
        line += first
        for other in others:
            yield bytes(line)
            line = bytearray(other)
    if line:
        yield bytes(line)


def _record(line: bytes, number: int, arguments: argparse.Namespace) -> records.NewRecord:
    separator = arguments.key_separator
    try:
        if arguments.format != "json":
            return records.parse_line(line, os.fsencode(separator) if separator else None)
        record = records.parse_json(line)
        if record.key is None and record.value is None and arguments.key is None:
            raise records.BadLine("this client writes no record without a key and a value")
        return record
    except records.BadLine as error:
        raise UserError(f"line {number}: {error}; the lines before it were sent") from None


def _send(
    producer: Any,
    arguments: argparse.Namespace,
    record: records.NewRecord,
    headers: list[tuple[str, bytes]],
    written: _Written,
) -> None:
    from kafka.errors import KafkaTimeoutError

    key = os.fsencode(arguments.key) if arguments.key is not None else record.key
    partition = arguments.partition if arguments.partition is not None else record.partition
    try:
        future = producer.send(
            arguments.topic,
            value=record.value,
            key=key,
            headers=[*headers, *record.headers],
            partition=partition,
            timestamp_ms=record.timestamp,
        )
    except KafkaTimeoutError:
        raise UserError(
            f"topic {arguments.topic!r} is not there, or has no leader: `barnabas doctor` says"
            f" which, `barnabas topic create {arguments.topic}` makes it"
        ) from None
    except (AssertionError, ValueError) as error:
        with contextlib.suppress(ValueError):  # of a name that no topic can have
            there = producer.partitions_for(arguments.topic)
            if partition is not None and partition not in there:
                raise UserError(
                    f"topic {arguments.topic!r} has no partition {partition}, only 0 to"
                    f" {max(there)}: `barnabas topic alter {arguments.topic} --partitions"
                    f" {partition + 1}` adds what is missing; what came before was sent"
                ) from None
        raise UserError(f"topic {arguments.topic!r}: {plain(str(error))}") from None
    future.add_callback(written.on_success)
    future.add_errback(written.on_failure)


def _result(arguments: argparse.Namespace, written: _Written) -> int:
    failure = written.failure
    if failure is not None:
        name = getattr(failure, "message", None) or type(failure).__name__
        told = str(failure.args[0] or "") if failure.args else ""  # the broker's own words
        said = plain(told or getattr(failure, "description", None))
        why = f"{name}: {said}" if said else name
        raise UserError(f"topic {arguments.topic!r}: {why}; {written.records} records were written")
    # Without acknowledgements nobody has told an offset: kafka-python counts from 0 in each batch.
    offsets = sorted(written.offsets.items()) if arguments.acks != "0" else []
    if arguments.json:
        places = {
            str(partition): {"first_offset": first, "last_offset": last}
            for partition, (first, last) in offsets
        }
        print_json({"topic": arguments.topic, "records": written.records, "partitions": places})
        return EXIT_OK
    where = ", ".join(
        f"{partition}: {first}" + (f" to {last}" if last > first else "")
        for partition, (first, last) in offsets
    )
    plural = "" if written.records == 1 else "s"
    print(
        f"{written.records} record{plural} to {arguments.topic}"
        + (f" (partition and offset {where})" if where else "")
    )
    return EXIT_OK
