"""A broker in a child process, as an object: what tests and notebooks use.

The child tells its address in one line on its standard output when it is ready, and writes its log
to a file that `log_text` reads. It watches its standard input, a pipe that only this process holds:
when this process ends, however it ends, the pipe closes and the broker stops.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from barnabas.launch import command

_READY = "barnabas ready: "


class BrokerError(RuntimeError):
    """The broker did not start or did not stop; the message ends with the last lines of its log."""


class Broker:
    """One broker on this machine. A context manager; or call `start` and `stop`.

    data_dir  where the data lives; None makes a fresh directory that `stop` removes.
    config    broker properties by Kafka's names; values are turned to text (True becomes "true").
    listen    "HOST:PORT"; port 0, the default, takes a free one. `restart` keeps the port.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        listen: str | None = None,
        *,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 60.0,
    ) -> None:
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._owns_data = data_dir is None
        self._config = {name: _text(value) for name, value in (config or {}).items()}
        self._listen = listen or "127.0.0.1:0"
        self._address: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None  # holds the log, and the data when that is ours
        self._last_log = ""
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s

    # ---- what a test asks

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address, "HOST:PORT", as any client takes it."""
        if self._address is None:
            raise BrokerError("the broker was not started: call start(), or use it in a `with`")
        return self._address

    @property
    def data_dir(self) -> Path:
        """The directory that holds the broker's data."""
        if self._data_dir is None:
            raise BrokerError("the broker has no data directory before it is started")
        return self._data_dir

    @property
    def pid(self) -> int | None:
        """The process id of the running broker; None when it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def log_text(self) -> str:
        """Everything the broker wrote to its log, of the last run once it has stopped."""
        if self._scratch is None:
            return self._last_log
        return (self._scratch / "broker.log").read_text("utf-8", "replace")

    # ---- life

    def start(self) -> Broker:
        """Start the broker and return when it answers. Raises BrokerError with the log's end."""
        if self.pid is not None:
            raise BrokerError(f"the broker runs already (pid {self.pid})")
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="barnabas-"))
            # Also when nobody calls stop(): a forgotten broker leaves no files behind.
            weakref.finalize(self, shutil.rmtree, str(self._scratch), ignore_errors=True)
        if self._owns_data:
            self._data_dir = self._scratch / "data"
        arguments = ["start", "--data-dir", str(self._data_dir)]
        arguments += ["--listen", self._address or self._listen, "--stop-on-stdin-eof"]
        for name, value in self._config.items():
            arguments += ["--set", f"{name}={value}"]
        with (self._scratch / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command(*arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # A Ctrl-C in the terminal is for the test run; we stop the broker ourselves.
                start_new_session=True,
            )
        self._address = self._await_ready(self._process)
        return self

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM). Removes the data directory when it made it.

        Raises BrokerError when it had to be killed, or ended with another exit code than 0.
        """
        try:
            self._terminate()
        finally:
            if self._scratch is not None:
                self._last_log = self.log_text
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None

    def kill(self) -> None:
        """End the broker at once (SIGKILL), as a crash would. The data directory stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close_pipes()

    def restart(self) -> Broker:
        """Stop the broker if it runs (cleanly) and start it on the same directory and port."""
        self._terminate()
        return self.start()

    def __enter__(self) -> Broker:
        return self if self.pid is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.pid is not None else "not running"
        return f"<barnabas.Broker {self._address or self._listen} ({state})>"

    # ---- inside

    def _terminate(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            self._close_pipes()
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerError(self._failure("did not stop in time and was killed")) from None
        finally:
            self._close_pipes()
        if process.returncode != 0:
            raise BrokerError(self._failure(f"stopped with exit code {process.returncode}"))

    def _await_ready(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + self._start_timeout_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    why = f"was not ready after {self._start_timeout_s:g} seconds"
                    self.kill()
                    raise BrokerError(self._failure(why))
                chunk = os.read(descriptor, 4096)
                if not chunk:
                    code = process.wait()
                    self._close_pipes()
                    raise BrokerError(self._failure(f"ended with exit code {code}"))
                line += chunk
        return line.decode("utf-8", "replace").removeprefix(_READY).split(" ", 1)[0]

    def _failure(self, what: str) -> str:
        tail = "\n".join(self.log_text.splitlines()[-20:])
        return f"the broker {what}; its log ends:\n{tail}"

    def _close_pipes(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
