"""A child process that runs a node, its log and its ready line: what Broker and Cluster share.

The child tells its address in one line on its standard output when it is ready, and writes its log
to a file. It watches its standard input, a pipe that only this process holds: when this process
ends, however it ends, the pipe closes and the node stops.
"""

from __future__ import annotations

import contextlib
import operator
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from barnabas.launch import command

_READY = "barnabas ready: "
_MISTAKE = "barnabas: "
_LOG_LINES = 20
_STACK_LINES = 300
_ABORT_S = 5.0
_ANSWER_S = 1.0


class BrokerError(RuntimeError):
    """A node did not start or did not stop; the message ends with the last lines of its log."""


# Pytest shows the user's line that was wrong, and none of the lines of ours that say so.
SAYS_IT_ALL = operator.methodcaller("errisinstance", (BrokerError, ValueError))
__tracebackhide__ = SAYS_IT_ALL


class Context(ABC):
    """`with` and `async with`, whose loop goes on: what takes time is done in a thread."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None:
        """End what runs; nothing if nothing does."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        import asyncio  # where nobody awaits, nobody pays for it

        try:
            return await asyncio.to_thread(self.__enter__)
        except BrokerError as error:
            raise error.with_traceback(None) from None  # asyncio's lines say nothing, either

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.__exit__, kind, error, trace)


class Scratch:
    """A temporary directory that goes with its owner, but not with a copy of the owner in a process
    that was forked: the directory is still in use.
    """

    def __init__(self, owner: object, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._maker = os.getpid()
        # Also when nobody stops the owner: who was forgotten leaves no files behind.
        weakref.finalize(owner, self.remove)

    def remove(self, part: Path | None = None) -> None:
        """Remove it, or a part of it."""
        if os.getpid() == self._maker:
            shutil.rmtree(part or self.path, ignore_errors=True)


class NodeProcess:
    """One run of one node. `spawn`, then `await_ready`; end it with `terminate` or `kill`.

    `name` is what errors call it, "the broker" or "node 2".
    """

    # -SIGTERM: asked before it could listen to signals, it had done nothing yet.
    clean_exits: tuple[int, ...] = (0, -signal.SIGTERM)

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False  # to stop: how it ends counts
        _known.add(self)

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def spawn(self, arguments: Sequence[str], stdin: int = subprocess.PIPE) -> None:
        """Run `barnabas ARGUMENTS`; returns at once. It stops when `stdin` ends: PIPE, and so this
        process, or a descriptor."""
        self.run(command(*arguments, "--stop-on-stdin-eof"), stdin)

    def run(
        self,
        line: Sequence[str],
        stdin: int = subprocess.PIPE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run any command line that ends when `stdin` does, `environment` added to ours."""
        self._is_asked = False
        self._close_pipes()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                line,
                env={**os.environ, **(environment or {})},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                # A Ctrl-C in the terminal is for the parent; it stops the node itself.
                start_new_session=True,
            )

    def await_ready(self, timeout_s: float) -> str:
        """Wait for the ready line; returns the address in it. Raises BrokerError."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            line = _read_until(b"\n", process.stdout.fileno(), timeout_s)
        except TimeoutError:
            self._abort(process)
            self._forget()
            raise self.error(f"was not ready after {timeout_s:g} seconds", _STACK_LINES) from None
        except EOFError:
            code = process.wait()
            self._forget()
            raise self._ended(code) from None
        return line.decode("utf-8", "replace").removeprefix(_READY).split(" ", 1)[0]

    def begin_terminate(self) -> None:
        """Ask it to stop (SIGTERM), and do not wait; nothing if it does not run."""
        if self.pid is not None and self._process is not None:
            self._is_asked = True
            self._process.send_signal(signal.SIGTERM)
            self.resume()  # whoever paused it

    def begin_end_of_all(self) -> None:
        """Tell it that all nodes of its cluster stop now, which none has to make ready for, and do
        not wait; nothing if it does not run. Only for who spawned it with a pipe.
        """
        process = self._process
        if process is not None and process.poll() is None:
            self._is_asked = True
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has just ended; `await_end` tells how
                os.write(process.stdin.fileno(), b"stop\n")
            self.resume()  # whoever paused it

    def last_requests(self) -> str:
        """What it was asked last, a line each; "" if it does not run, or does not answer."""
        process = self._process
        if process is None or process.poll() is not None:
            return ""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            os.write(process.stdin.fileno(), b"requests\n")
            text = _read_until(b"\n\n", process.stdout.fileno(), _ANSWER_S)
        except (OSError, EOFError):  # TimeoutError among them: it hangs, or somebody paused it
            return ""
        return text.decode("utf-8", "replace").strip()

    def terminate(self, timeout_s: float) -> None:
        """Stop it cleanly and wait. Raises BrokerError when it had to be killed, or failed."""
        self.begin_terminate()
        self.await_end(timeout_s)

    def await_end(self, timeout_s: float) -> None:
        """Wait for the end of what was asked to stop. Raises as `terminate`."""
        process = self._process
        if process is None or not self._is_asked:
            self._close_pipes()
            return
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._abort(process)
            raise self.error("did not stop in time and was killed", _STACK_LINES) from None
        finally:
            self._is_asked = False
            self._forget()
        if process.returncode not in self.clean_exits:
            raise self.error(f"stopped with exit code {process.returncode}")

    def end_by_itself(self) -> BrokerError | None:
        """What is to be told, once, of one that nobody asked to stop, and that failed. A SIGKILL is
        somebody's, as `kill` is."""
        process = self._process
        if process is None or self._is_asked or process.poll() is None:
            return None
        self._forget()
        if process.returncode in (*self.clean_exits, -signal.SIGKILL):
            return None
        return self.error(f"ended by itself with exit code {process.returncode}")

    @staticmethod
    def _abort(process: subprocess.Popen[bytes]) -> None:
        """End it so that its log shows what each thread was doing (SIGABRT, faulthandler)."""
        process.send_signal(signal.SIGABRT)
        try:
            process.wait(_ABORT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close_pipes()

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP), as a long pause of the machine would."""
        if self.pid is None or self._process is None:
            raise BrokerError(f"{self.name} does not run")
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def log_text(self) -> str:
        """All it wrote to its log, of all runs."""
        try:
            return self.log_path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def error(self, what: str, lines: int = _LOG_LINES) -> BrokerError:
        """An error that ends with the log's last lines."""
        if not self.log_path.exists():
            return BrokerError(f"{self.name} {what}; its log {self.log_path} was removed meanwhile")
        return BrokerError(f"{self.name} {what}; its log ends:\n{log_end(self.log_text(), lines)}")

    def _ended(self, code: int) -> BrokerError:
        """Why it did not start: the one line that names a mistake, or the log's end."""
        lines = self.log_text().splitlines()
        if lines and lines[-1].startswith(_MISTAKE):
            return BrokerError(f"{self.name} did not start: {lines[-1].removeprefix(_MISTAKE)}")
        return self.error(f"ended with exit code {code}")

    def _forget(self) -> None:
        """It has ended, and how is told."""
        self._close_pipes()
        self._process = None

    def _close_pipes(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


# A process that was forked has our ends of the pipes, too: it would keep nodes alive that are ours.
_known: weakref.WeakSet[NodeProcess] = weakref.WeakSet()


def _forget_pipes() -> None:
    for process in list(_known):
        process._close_pipes()


os.register_at_fork(after_in_child=_forget_pipes)


def _read_until(end: bytes, descriptor: int, timeout_s: float) -> bytes:
    """What comes, `end` included. Raises TimeoutError, or EOFError when nothing more will come."""
    deadline = time.monotonic() + timeout_s
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not text.endswith(end):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise EOFError
            text += chunk
    return text


def log_end(text: str, lines: int = _LOG_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(text.splitlines()[-lines:])


class Formatting:
    """A run of `barnabas format`, begun at once; `wait` for its end.

    `scratch` is a directory that ends with us: where we are gone by then, the run removes it.
    """

    def __init__(
        self, name: str, config: Path, cluster_id: str, scratch: Path | None,
        more: Sequence[str] = (), stdin: str = "",
    ) -> None:  # fmt: skip
        arguments = ["format", "--cluster-id", cluster_id, "--ignore-formatted", *more]
        arguments += ["--config", str(config)]
        if scratch is not None:
            arguments += ["--starter", str(os.getpid()), "--then-remove", str(scratch)]
        self._name = name
        self._input = stdin
        pipe = subprocess.PIPE
        self._run = subprocess.Popen(
            command(*arguments),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            # A signal for all processes of a terminal, or of a test's, is for the parent.
            start_new_session=True,
        )

    def wait(self) -> BrokerError | None:
        """What went wrong."""
        _output, complaint = self._run.communicate(self._input)
        if self._run.returncode == 0:
            return None
        why = complaint.strip().removeprefix(_MISTAKE)
        return BrokerError(f"{self._name} cannot be formatted: {why}")


def property_texts(config: Mapping[str, object] | None) -> dict[str, str]:
    """Properties as Kafka writes them. Raises ValueError for what cannot be meant."""
    if not isinstance(config, Mapping | None):
        raise ValueError(f'config {config!r}: expected a dict such as {{"num.partitions": 3}}')
    return {str(name): _property_text(name, value) for name, value in (config or {}).items()}


def _property_text(name: str, value: object) -> str:
    if value is None:
        raise ValueError(f"config {name} = None: expected a value; for the default leave it out")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)
    return str(value)


def properties_text(values: Mapping[str, str]) -> str:
    """A file of Java's format, as readable as can be."""
    return "".join(f"{_escaped_key(key)}={_escaped(value)}\n" for key, value in values.items())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads: it may hold passwords."""
    write_whole(path, text, 0o600)


def write_whole(path: Path, text: str, mode: int) -> None:
    """Write all of a file, or leave what was there: who finds it believes it."""
    whole = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    whole.replace(path)


_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _escaped_key(key: str) -> str:
    """Without an escape it would end there, or be a comment."""
    return "".join(f"\\{char}" if char in " =:#!" else _escaped(char) for char in key)


def _escaped(value: str) -> str:
    escaped = []
    for char in value:
        if char in _ESCAPES:
            escaped.append(_ESCAPES[char])
        elif " " <= char <= "~":
            escaped.append(char)
        else:
            units = char.encode("utf-16-be").hex()
            escaped += [rf"\u{units[i : i + 4]}" for i in range(0, len(units), 4)]
    text = "".join(escaped)
    return "\\" + text if text.startswith(" ") else text
