"""The `barnabas` command line: start, format, dump-log, check-config, health, demo, version.

What a person meets first, so: a mistake of theirs is one line that names it and the remedy, on
stderr, with exit code 2 (a flag or a configuration) or 1 (a port, a directory, a disk); a traceback
is only ever a fault of ours. Standard output carries nothing but the one ready line of `start` and
the result of the other commands, so that scripts can read it; the log goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server import __version__
from server.commands import format_command as cli_format
from server.commands.client_config import add_client_config, client_config
from server.commands.log_lines import write_log
from server.commands.outcomes import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    CommandParser,
    UserError,
    add_json,
    print_json,
)
from server.config.environment import Environment, overlay, read_environment
from server.config.kafka_config import ConfigError, KafkaConfig, load_properties

if TYPE_CHECKING:
    from server.node.node import Node

logger = logging.getLogger(__name__)

_VERSION = f"barnabas {__version__} (speaks Kafka 4.3)"
_MIN_TIMEOUT_S = 0.001  # clients count in milliseconds, and take 0 for none, or for ever
_MAX_TIMEOUT_S = 86_400
_STDIN_ENDED = "standard input ended"
_ALL_STOP = "all nodes stop"


# What the controller may answer to a broker that wants to join, and the remedy.
_REFUSALS = {
    "REQUEST_TIMED_OUT": "is a controller reachable? `barnabas cluster status` asks the others",
    "DUPLICATE_BROKER_REGISTRATION": "another process has this node.id: stop it or choose another",
    "INCONSISTENT_CLUSTER_ID": "format its directories with the cluster's id",
    "INVALID_REGISTRATION": "compare its configuration with the other nodes'",
    "UNSUPPORTED_VERSION": "start it with a release that knows the cluster's features",
}
_DAMAGED_METADATA = (
    "restore the file; or, in a cluster whose other nodes are well, move this node's directories"
    " away, format new ones, and it takes all from the others"
)


def main(argv: Sequence[str] | None = None, extend: Callable[[Any], None] | None = None) -> int:
    """Run one command; returns the exit code. `extend` adds commands of packages above this one."""
    _prepare_streams()
    parser = _parser(extend)
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return EXIT_USAGE
    run: Callable[[argparse.Namespace], int] = arguments.run
    code = EXIT_OK
    try:
        code = run(arguments)
        print(end="", flush=True)  # as long as somebody can be told what goes wrong
        return code
    except UserError as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return error.exit_code
    except ConfigError as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # `barnabas dump-log ... | head` closed the pipe: not an error, and nothing to say.
        _drop_output()
        return code
    except OSError as error:
        from storage.files import is_disk_full

        if error.filename is not None or not is_disk_full(error):
            raise
        print(f"barnabas: standard output cannot be written: {error.strerror}", file=sys.stderr)
        _drop_output()
        return EXIT_FAILURE


def _prepare_streams() -> None:
    """Whoever closed 0, 1 or 2 (`>&-`) gets the null device there: the next file that is opened,
    perhaps a log of records, would get that number, and what is printed. What the output's encoding
    lacks is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest number that is free
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is left of standard output cannot be written; Python would try once more at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(extend: Callable[[Any], None] | None) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="barnabas",
        description="A Kafka broker in Python that off-the-shelf Kafka clients use unchanged.",
        epilog="First time here? Run `barnabas demo`, then `barnabas start`.",
    )
    parser.add_argument("--version", action="version", version=_VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_start(commands)
    dump = commands.add_parser(
        "dump-log",
        help="print the batches, records and index entries of log files",
        description="Print what is in a broker's files: .log, .index, .timeindex, .txnindex,"
        " .snapshot and .checkpoint.",
    )
    dump.add_argument("files", metavar="FILE", nargs="+", type=Path)
    dump.set_defaults(run=_dump_log)

    check = commands.add_parser("check-config", help="check a server.properties file")
    check.add_argument("file", metavar="FILE", type=Path)
    add_json(check)
    check.set_defaults(run=_check_config)

    health = commands.add_parser(
        "health",
        help="ask a broker for its metadata; exit code 0 if it answers, 1 if not",
        description="Ask a broker for its metadata, as clients do. Prints one line; exit code 0 if"
        " it answers, is not fenced, and its quorum has a leader; else 1. Without --bootstrap it"
        " asks the broker of this host, whose port"
        " --config and --env tell as they do for `start`.",
    )
    health.add_argument(
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        help="the broker to ask; of several the first that is healthy counts",
    )
    health.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=3.0, help="for each answer (3)"
    )
    add_client_config(health)
    add_json(health)
    _add_sources(health)
    health.set_defaults(run=_health)

    demo = commands.add_parser("demo", help="watch a broker, a producer and a consumer at work")
    demo.add_argument("--records", type=int, default=5, help=argparse.SUPPRESS)
    demo.set_defaults(run=_demo)

    cli_format.add_commands(commands)
    if extend is not None:
        extend(commands)
    commands.add_parser("version", help="print the version").set_defaults(run=_version)
    return parser


def _add_start(commands: Any) -> None:
    start = commands.add_parser(
        "start",
        help="start a broker and serve until SIGTERM or Ctrl-C",
        description="Start one broker. Without arguments it keeps its data in ./barnabas-data and"
        " listens on 127.0.0.1:9092; the first start formats the directory.",
    )
    _add_sources(start)
    where = start.add_mutually_exclusive_group()
    where.add_argument("--data-dir", metavar="DIR", help="where the data lives (log.dirs)")
    where.add_argument(
        "--ephemeral", action="store_true", help="keep the data in a temporary directory"
    )
    start.add_argument(
        "--listen", metavar="HOST:PORT", help="address to listen on; port 0 takes a free one"
    )
    start.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one property; may be given again, and wins over --config and --env",
    )
    start.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    start.add_argument("--stop-on-stdin-eof", action="store_true", help=argparse.SUPPRESS)
    start.add_argument("--then-remove", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    start.set_defaults(run=_start, client_file=None)


def seconds(text: str) -> float:
    """The type of flags that say how long to wait."""
    with contextlib.suppress(ValueError):
        if _MIN_TIMEOUT_S <= (value := float(text)) <= _MAX_TIMEOUT_S:
            return value
    raise argparse.ArgumentTypeError(
        f"{text!r}: expected seconds, {_MIN_TIMEOUT_S} to {_MAX_TIMEOUT_S}"
    )


def _add_sources(command: argparse.ArgumentParser) -> None:
    """The flags that say where the configuration comes from."""
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a server.properties file; may be given again, later files win",
    )
    command.add_argument(
        "--env",
        action="store_true",
        help="take KAFKA_ variables too, as the apache/kafka image does (KAFKA_NUM_PARTITIONS is"
        " num.partitions), and CLUSTER_ID; they win over --config",
    )


# ---- start


def _start(arguments: argparse.Namespace) -> int:
    environment = read_environment(os.environ if arguments.env else {})
    with environment.named_in_errors():
        return _start_node(arguments, environment)


def _start_node(arguments: argparse.Namespace, environment: Environment) -> int:
    config = KafkaConfig(properties(arguments, environment))
    write_log(arguments.log_level.upper())
    for note in environment.notes:
        logger.info("%s", note)
    stop = _StopRequest()
    stop.watch_signals()
    scratch = None
    if arguments.ephemeral:
        scratch = tempfile.mkdtemp(prefix="barnabas-ephemeral-")
        config = KafkaConfig({**config.static, "log.dirs": scratch})
    try:
        return _serve(config, arguments, environment.cluster_id, stop)
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _serve(
    config: KafkaConfig, arguments: argparse.Namespace, cluster_id: str | None, stop: _StopRequest
) -> int:
    from server.node.node import Node  # late: a bad flag should not pay for it
    from storage.open_files import raise_descriptor_limit

    raise_descriptor_limit()
    node = Node(config, cluster_id)
    if arguments.stop_on_stdin_eof:
        stop.watch_stdin(node.last_requests)
    try:
        return _run_node(node, arguments, stop)
    finally:
        if stop.is_orphan and arguments.then_remove is not None:
            # Who started us is gone, and can remove its temporary directory no more.
            shutil.rmtree(arguments.then_remove, ignore_errors=True)


def _run_node(node: Node, arguments: argparse.Namespace, stop: _StopRequest) -> int:
    from server.node.node import StartInterrupted

    try:
        node.start(stop.is_set)
    except (ConfigError, UserError):
        raise
    except StartInterrupted as interruption:
        logger.info("%s reason=%s", interruption, stop.reason)
        node.shutdown()
        return EXIT_OK
    except Exception as error:
        node.shutdown()
        raise _start_failure(error) from error
    ready = (
        f"barnabas ready: {address_text(node.host, node.port)} (node {node.node_id},"
        f" cluster {node.cluster_id}, data {node.data_dir})"
    )
    try:
        print(ready, flush=True)
    except OSError as error:  # its reader has gone, or its disk is full: clients need it not
        logger.warning("standard output cannot be written error=%s %s", error.strerror, ready)
        _drop_output()
    if sys.stderr.isatty() or arguments.client_file is not None:
        address = address_text(node.host, node.port)
        with contextlib.suppress(OSError):
            print(_hints(address, arguments.ephemeral, arguments.client_file), file=sys.stderr)
    stop.wait()
    logger.info("stopping reason=%s", stop.reason)
    node.shutdown(nobody_stays=stop.reason in (_ALL_STOP, _STDIN_ENDED))
    return EXIT_OK


def _hints(address: str, is_ephemeral: bool, client_file: Path | None) -> str:
    data = "goes with it" if is_ephemeral else "stays"
    bootstrap = "" if address == "127.0.0.1:9092" else f" --bootstrap {address}"
    if client_file is not None:
        bootstrap += f" --client-config {shlex.quote(str(client_file))}"
    return (
        "\nTry it from another terminal:\n"
        f"  echo hello | barnabas produce greetings{bootstrap}\n"
        f"  barnabas consume greetings{bootstrap}\n"
        f"  barnabas topic list{bootstrap}\n"
        f"Ctrl-C stops it; the data {data}.\n"
    )


def on_stop_signals(handler: Callable[[int, object], None]) -> None:
    """Call `handler` for Ctrl-C, SIGTERM, and a terminal that is closed, unless nohup said no."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, handler)


def exit_on_stop_signals() -> None:
    """Leave when one comes: what was begun is ended, or removed. A second one of its kind ends the
    process without ceremony.

    The main thread must wait for nothing without a bound: of a process that was paused (SIGSTOP)
    another thread may be given the signal, and what the main thread waits for goes on.
    """

    def leave(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        sys.exit(128 + number)

    on_stop_signals(leave)


class _StopRequest:
    """Waits for the first reason to stop. A second Ctrl-C ends the process without ceremony.

    It waits on a pipe, which the system's half of a signal handler writes to, whatever thread that
    runs in: of a process that was paused (SIGSTOP) it is any, and the main thread, the only one to
    run Python's half, would not be woken.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self.reason = ""
        self.is_orphan = False
        """Who started us is gone: told of late where somebody asked us to stop before."""

    def watch_signals(self) -> None:
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        on_stop_signals(self._on_signal)

    def watch_stdin(self, last_requests: Callable[[], list[str]]) -> None:
        """Stop when standard input ends: the process that holds its other end is gone.

        Before, it may say `stop`: it stops all its nodes now; or `requests`: the last requests are
        told on standard output, lines that end with an empty one (barnabas.process).
        """

        def wait_for_end() -> None:
            with contextlib.suppress(OSError):
                while words := os.read(0, 4096):
                    if b"stop" in words:
                        self._set(_ALL_STOP)
                    if b"requests" in words:
                        tell()
            self.is_orphan = True
            self._set(_STDIN_ENDED)

        def tell() -> None:
            try:
                print("\n".join(last_requests()), end="\n\n", flush=True)
            except Exception:  # it must not cost us the end of standard input
                logger.exception("telling the last requests failed")

        threading.Thread(target=wait_for_end, name="stdin-watch", daemon=True).start()

    def is_set(self) -> bool:
        return bool(self.reason)

    def wait(self) -> None:
        while not self.reason:
            os.read(self._reader, 1)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self.reason and number == signal.SIGINT:
            os._exit(128 + number)
        self._set(signal.Signals(number).name)

    def _set(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            with contextlib.suppress(BlockingIOError):  # there is enough to wake it
                os.write(self._writer, b"\0")


def properties(arguments: argparse.Namespace, environment: Environment) -> dict[str, str]:
    """The static configuration: the files, then the environment, then the flags, then --set."""
    values = _sources(arguments, environment)
    if arguments.data_dir is not None:
        values["log.dirs"] = arguments.data_dir
        values.pop("log.dir", None)
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {pair!r}: expected KEY=VALUE", EXIT_USAGE)
        values[key.strip()] = value
    if arguments.listen is not None:
        values["listeners"] = f"PLAINTEXT://{address_text(*host_port(arguments.listen))}"
    return values


def _sources(arguments: argparse.Namespace, environment: Environment) -> dict[str, str]:
    values: dict[str, str] = {}
    for file in arguments.config:
        overlay(values, load_properties(file))
    overlay(values, environment.values)
    return values


def host_port(text: str, flag: str = "--listen") -> tuple[str, int]:
    """The address in a flag's value. Raises UserError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{flag} {text!r}: expected HOST:PORT, port 0 to 65535", EXIT_USAGE)
    return host.strip("[]"), int(port)


def addresses(bootstrap: str) -> list[tuple[str, int]]:
    """The addresses in a value of --bootstrap. Raises UserError."""
    parts = [part.strip() for part in bootstrap.split(",") if part.strip()]
    if not parts:
        raise UserError("--bootstrap: expected HOST:PORT[,HOST:PORT...]", EXIT_USAGE)
    return [host_port(part, "--bootstrap") for part in parts]


def address_text(host: str, port: int) -> str:
    """An address as clients take it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _start_failure(error: Exception) -> Exception:
    """Turn what stopped the start into one line with its remedy; ours stay as they are."""
    from replication.raft.quorum_state_store import CorruptQuorumState
    from replication.raft.snapshots import CorruptSnapshot
    from server.network.socket_server import BindError
    from storage.directories.log_dirs import LogDirError
    from wire.errors import KafkaError

    if isinstance(error, BindError):
        return UserError(str(error))
    if isinstance(error, (CorruptQuorumState, CorruptSnapshot)):
        return UserError(f"cannot start: {error}; {_DAMAGED_METADATA}")
    if isinstance(error, LogDirError):
        return UserError(f"{error} (--data-dir chooses the directory)")
    if isinstance(error, KafkaError) and error.code.name in _REFUSALS:
        return UserError(f"cannot start: {error.detail}; {_REFUSALS[error.code.name]}")
    if isinstance(error, KafkaError) and isinstance(error.__cause__, OSError):
        error = error.__cause__  # a log that a disk does not take
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        remedy = {
            errno.ENOSPC: "free some space, or choose another directory with --data-dir",
            errno.EDQUOT: "free some space, or choose another directory with --data-dir",
            errno.EACCES: "check who owns it, or choose another directory with --data-dir",
            errno.EPERM: "check who owns it, or choose another directory with --data-dir",
            errno.EROFS: "choose a writable directory with --data-dir",
            errno.EMFILE: "raise the limit of open files (ulimit -n)",
            errno.ENOTDIR: "choose a directory with --data-dir",
        }.get(error.errno, "see the log above")
        return UserError(f"cannot start: {error.strerror}{where}; {remedy}")
    return error


# ---- the other commands


def _dump_log(arguments: argparse.Namespace) -> int:
    from storage.dump import DumpError, dump_files

    try:
        dump_files(arguments.files, sys.stdout)
    except DumpError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        if error.filename is None:
            raise  # not of a file: standard output's, which `main` tells
        raise UserError(f"{error.filename}: {error.strerror}") from None
    return EXIT_OK


def _check_config(arguments: argparse.Namespace) -> int:
    from server.node import config_check, settings
    from server.node.node_security import NodeSecurity

    values = load_properties(arguments.file)
    config = KafkaConfig(values)
    NodeSecurity(config, config_check.check(config), lambda _mechanism, _user: None)
    notes = list(settings.notes(config))
    if arguments.json:
        print_json({"file": arguments.file, "keys": len(values), "notes": notes})
        return EXIT_OK
    print(f"{arguments.file}: {len(values)} keys, all known and well-typed")
    for note in notes:
        print(f"note: {note}")
    return EXIT_OK


def _health(arguments: argparse.Namespace) -> int:
    from server.commands.health import Unhealthy, check_any, local_address

    node_id = None
    if arguments.bootstrap is not None:
        wanted = addresses(arguments.bootstrap)
    else:
        environment = read_environment(os.environ if arguments.env else {})
        with environment.named_in_errors():
            config = KafkaConfig(_sources(arguments, environment))
            wanted = [local_address(config)]
        if "node.id" in config.static:
            node_id = int(config.static["node.id"])
    try:
        found = check_any(wanted, arguments.timeout, node_id, client_config(arguments))
    except Unhealthy as error:
        raise UserError(str(error)) from None
    if arguments.json:
        print_json(found._asdict())
    else:
        print(found.line())
    return EXIT_OK


def _demo(arguments: argparse.Namespace) -> int:
    from server.commands.demo import run_demo

    exit_on_stop_signals()  # it leaves no directory behind
    return run_demo(arguments.records)


def _version(_arguments: argparse.Namespace) -> int:
    print(_VERSION)
    return EXIT_OK
