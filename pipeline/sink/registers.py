"""A transactional id with a mark beside it: what once-only writing is made of.

A mark is a committed offset with metadata, in a group that nobody consumes. It changes only in a
transaction of the register's transactional id, together with the rows of that transaction: so a
mark that was read after `claim` says exactly what is written, and nobody earlier can add to it.
What the marks mean is decided by who uses them: `exactly_once` for the sink, `pieces` for replay.

Knows no client: `clients` has two. Travels to executors by value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

ID_PREFIX = "barnabas-"
"""Of every transactional id and every group of ours: what an ACL may name."""
REPLAY_PREFIX = f"{ID_PREFIX}replay-"


class SinkError(Exception):
    """The rows cannot be written, or must not be; the text says what to do."""


class Fenced(Exception):
    """Another attempt has claimed the register since: nothing of this one was committed."""


Row = tuple[
    str, int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int | None
]
"""One record: topic, partition, key, value, headers, timestamp (ms since 1970). A partition of None
is left to the client (Kafka's own hash of the key), a timestamp of None is now."""


class Mark(NamedTuple):
    """A committed offset, 0 or more, and its metadata (less than 4,096 bytes: the broker's
    offset.metadata.max.bytes)."""

    offset: int
    metadata: str


class Register(ABC):
    """One transactional id with its mark. Every call may raise SinkError; `claim`, `begin`, `send`
    and `commit` raise Fenced when a later holder has claimed it."""

    @abstractmethod
    def look(self) -> Mark | None:
        """The mark as it is committed now; it may change at any time."""

    @abstractmethod
    def claim(self) -> None:
        """Shut out all earlier holders. What they had open is decided when this returns."""

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction."""

    @abstractmethod
    def send(self, row: Row) -> None:
        """Add a row to the open transaction."""

    def has_trouble(self) -> bool:
        """Whether connections were lost since the claim, so that a commit may go unanswered. Waits
        until the rows so far are stored."""
        return False

    @abstractmethod
    def commit(self, mark: Mark) -> None:
        """Commit the rows and the mark, both or none."""

    @abstractmethod
    def abort(self) -> None:
        """End the open transaction without its rows; best effort, the next claim does it too."""

    @abstractmethod
    def close(self) -> None:
        """Give connections back; never waits long."""


class Connect(Protocol):
    """The register of a name."""

    def __call__(self, name: str, group: str = "") -> Register:
        """The transactional id is `name`; the group of its mark, too, unless another is given."""
