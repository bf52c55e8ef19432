"""A broker in a child process, as an object: what tests and notebooks use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from barnabas.fresh import random_uuid
from barnabas.process import (
    SAYS_IT_ALL,
    BrokerError,
    Context,
    Formatting,
    NodeProcess,
    Scratch,
    properties_text,
    property_texts,
    write_private,
)

if TYPE_CHECKING:
    from barnabas.secured import Acl, Security

__all__ = ["Broker", "BrokerError"]

__tracebackhide__ = SAYS_IT_ALL


class Broker(Context):
    """One broker on this machine. A context manager; or call `start` and `stop`.

    data_dir  where the data lives; None makes a fresh directory that `stop` removes. Several
              directories are `log.dirs` in the config, and yours to remove.
    config    broker properties by Kafka's names; values are turned to text (True becomes "true").
    listen    "HOST:PORT"; port 0, the default, takes a free one. `restart` keeps the port. Several
              listeners are `listeners` in the config, with ports of your choice.
    security  "sasl_ssl": TLS by a throw-away authority, and nobody but `users` (name: password) is
              let in. `client_config` says how each library connects. A data_dir of yours must be
              empty at the first start.
    acls      barnabas.Acl rules; even none ([]) means that nobody may do what no rule allows.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        listen: str | None = None,
        *,
        security: str | None = None,
        users: Mapping[str, str] | None = None,
        acls: Iterable[Acl] | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 60.0,
    ) -> None:
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._owns_data = data_dir is None
        self._config = property_texts(config)
        self._listen = _listen_flag(listen, self._config)
        self._security: Security | None = None
        self._is_formatted = False  # by us, with these users
        if (security, users, acls) != (None, None, None):
            from barnabas.secured import Security  # slow to import, and most need it not

            self._security = Security.of(security, users, acls, self._config)
            if self._config.keys() & {"log.dir", "log.dirs"}:
                raise ValueError("config log.dirs: a secured broker has one directory, data_dir")
        self._address: str | None = None
        self._process: NodeProcess | None = None
        self._scratch: Scratch | None = None  # holds the log, and the data when that is ours
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
        return None if self._process is None else self._process.pid

    @property
    def log_text(self) -> str:
        """Everything the broker wrote to its log, of the last run once it has stopped."""
        if self._scratch is None or self._process is None:
            return self._last_log
        return self._process.log_text()

    def client_config(self, user: str, *, library: str, mechanism: str = "PLAIN") -> dict[str, Any]:
        """How a user connects to a secured broker that was started, in a library's own words.

        library    "confluent-kafka", "kafka-python", "aiokafka" (keyword arguments), "java"
                   (properties) or "spark" (options)
        mechanism  "PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512"

        Raises ValueError for a user, library or mechanism that is not there.
        """
        if self._security is None:
            raise ValueError("the broker is not secured: it was made without security=")
        return self._security.client_config(self.bootstrap_servers, user, library, mechanism)

    def last_requests(self) -> str:
        """What clients asked last, a line each, while it runs: for a report of what went wrong."""
        return "" if self._process is None else self._process.last_requests()

    # ---- life

    def start(self) -> Self:
        """Start the broker and return when it answers. Raises BrokerError with the log's end."""
        if self.pid is not None:
            raise BrokerError(f"the broker runs already (pid {self.pid})")
        if self._scratch is None:
            self._scratch = Scratch(self, "barnabas-")
        scratch = self._scratch.path
        if self._owns_data:
            self._data_dir = scratch / "data"
        arguments = ["start", "--then-remove", str(scratch)]
        if "log.dirs" not in self._config:  # a flag counts more than a file
            arguments += ["--data-dir", str(self._data_dir)]
        config = self._config
        if self._security is not None:
            config = self._secured(self._security, scratch)
        elif self._listen is not None:
            arguments += ["--listen", self._address or self._listen]
        if config:  # not as arguments: who lists processes must see no password
            properties = scratch / "server.properties"
            write_private(properties, properties_text(config))
            arguments += ["--config", str(properties)]
        if self._security is not None and not self._is_formatted:
            self._format(properties, self._security, scratch)
        self._process = NodeProcess("the broker", scratch / "broker.log")
        self._process.spawn(arguments)
        self._address = self._process.await_ready(self._start_timeout_s)
        return self

    def _secured(self, security: Security, scratch: Path) -> dict[str, str]:
        address = self._address or self._listen
        assert address is not None  # `listeners` in the config is refused with security
        security.prepare(scratch / "security", [address.rpartition(":")[0].strip("[]")])
        return {
            **self._config,
            "listeners": f"SASL_SSL://{address}",
            "log.dirs": str(self._data_dir),
            **security.properties("SASL_SSL", config=self._config),
        }

    def _format(self, properties: Path, security: Security, scratch: Path) -> None:
        if (self.data_dir / "meta.properties").exists():
            raise BrokerError(
                f"{self.data_dir} was formatted before, with users and access rules of its own: a"
                " secured broker needs an empty directory, or none (it makes one)"
            )
        first = security.format()
        run = Formatting("the broker", properties, random_uuid(), scratch, *first)
        complaint = run.wait()
        if complaint is not None:
            raise complaint
        self._is_formatted = True

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM). Removes the data directory when it made it.

        Raises BrokerError when it had to be killed, or ended with another exit code than 0, now or
        by itself before.
        """
        try:
            failure = None if self._process is None else self._process.end_by_itself()
            if failure is not None:
                raise failure
            self._terminate()
        finally:
            if self._scratch is not None:
                self._last_log = self.log_text
                self._scratch.remove()
                self._scratch = None
                self._is_formatted = self._is_formatted and not self._owns_data

    def kill(self) -> None:
        """End the broker at once (SIGKILL), as a crash would. The data directory stays."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> Self:
        """Stop the broker if it runs (cleanly) and start it on the same directory and port."""
        self._terminate()
        return self.start()

    def _terminate(self) -> None:
        if self._process is not None:
            self._process.terminate(self._stop_timeout_s)

    def __enter__(self) -> Self:
        return self if self.pid is not None else self.start()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.pid is not None else "not running"
        return f"<barnabas.Broker {self._address or 'not started yet'} ({state})>"


def _listen_flag(listen: str | None, config: Mapping[str, str]) -> str | None:
    """What --listen says; None if `listeners` of the config says it. Raises ValueError."""
    if not isinstance(listen, str | None):
        raise ValueError(f'listen {listen!r}: expected a text, "HOST:PORT"')
    listeners = config.get("listeners")
    if listeners is None:
        return listen or "127.0.0.1:0"
    if listen is not None:
        raise ValueError("listen and listeners say the same thing: give one of them")
    if any(address.strip().endswith(":0") for address in listeners.split(",")):
        raise ValueError(
            f"listeners = {listeners!r}: expected ports, so that restart() finds them again; for"
            " one listener on a free port leave it out"
        )
    return None
