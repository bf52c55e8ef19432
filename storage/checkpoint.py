"""Small files that must be whole or absent: checkpoints, identities, the clean-shutdown marker.

Why one module: a crash may come between any two system calls, and a half-written checkpoint is
worse than an old one. `atomic_write` is the only way such a file changes: write `<name>.tmp`,
fsync it, rename it over the old one, fsync the directory (S-5). After a crash there is the old
content or the new, never a mixture. A failure leaves the old file and raises OSError, which takes
the log directory offline.

Formats are Kafka's (CheckpointFile, PartitionMetadataFile, MetaProperties,
CleanShutdownFileHandler):

    checkpoint            line 1 version 0, line 2 number of entries, then one entry a line:
                          `<topic> <partition> <offset>`, or `<epoch> <start offset>` in
                          leader-epoch-checkpoint
    partition.metadata    `version: 0` and `topic_id: <22 characters>`, no newline at the end
    meta.properties       Java properties: version, cluster.id, node.id, directory.id
    .kafka_cleanshutdown  JSON: version 0, brokerEpoch (KIP-966)
    .lock                 empty; locked while a broker uses the directory

A file that is not so raises CorruptCheckpoint with its name and line; nothing is guessed.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from storage import files, layout
from storage.properties import MalformedProperties, property_entries
from wire.primitives import ZERO_UUID, TopicPartition, uuid_from_text, uuid_to_text

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = layout.HIGH_WATERMARK_CHECKPOINT
LOG_START_OFFSET_CHECKPOINT = layout.LOG_START_OFFSET_CHECKPOINT
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_VERSION = 0


class CorruptCheckpoint(Exception):
    """A checkpoint or identity file is not in its format; the text names the file and the line."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path
        self.line = line


def atomic_write(path: Path, data: bytes) -> None:
    """Replace the content of `path` durably; on OSError the old content is still there."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        fd = files.open_or_relieve(temporary, files.CREATE | os.O_TRUNC)
        try:
            files.write_fully(fd, [data], len(data), 0)
            files.fsync(fd)
        finally:
            files.close(fd)
        files.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            files.unlink(temporary)
        raise
    files.sync_directory(path.parent)


# --- checkpoints -------------------------------------------------------------------------------


class OffsetCheckpoint:
    """Offsets by partition in one file of a log directory (Kafka: OffsetCheckpointFile).

    Not locked: one owner writes, at start one owner reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[TopicPartition, int]:
        """All entries; none without file or in an empty one. CorruptCheckpoint and OSError."""
        offsets: dict[TopicPartition, int] = {}
        for line, (topic, index, offset) in _read_entries(self.path, fields=3):
            key = TopicPartition(topic, _number(self.path, line, index, 0))
            if key in offsets:
                raise CorruptCheckpoint(self.path, line, f"{key} is here twice")
            offsets[key] = _number(self.path, line, offset, 0)
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file. Raises OSError."""
        _write_entries(
            self.path, (f"{topic} {index} {offset}" for (topic, index), offset in offsets.items())
        )


def read_leader_epochs(path: Path) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs of a leader-epoch-checkpoint in file order; [] without file."""
    return [
        (_number(path, line, epoch, 0), _number(path, line, offset, 0))
        for line, (epoch, offset) in _read_entries(path, fields=2)
    ]


def write_leader_epochs(path: Path, entries: Iterable[tuple[int, int]]) -> None:
    """Replace a leader-epoch-checkpoint. Raises OSError."""
    _write_entries(path, (f"{epoch} {offset}" for epoch, offset in entries))


def _write_entries(path: Path, lines: Iterable[str]) -> None:
    entries = list(lines)
    text = "\n".join((str(_VERSION), str(len(entries)), *entries))
    atomic_write(path, text.encode() + b"\n")


def _read_entries(path: Path, fields: int) -> list[tuple[int, list[str]]]:
    """(line number, words) of each entry; the version and the count must be right."""
    try:
        lines = _text(path).splitlines()
    except FileNotFoundError:
        return []
    if not lines:
        return []  # Kafka creates its checkpoints empty and fills them minutes later.
    version = _number(path, 1, lines[0], 0)
    if version != _VERSION:
        raise CorruptCheckpoint(path, 1, f"unknown version {version}")
    expected = _number(path, 2, lines[1] if len(lines) > 1 else "", 0)
    rows = [(number, line.split()) for number, line in enumerate(lines[2:], 3)]
    for number, words in rows:
        if len(words) != fields:
            raise CorruptCheckpoint(path, number, f"{len(words)} words instead of {fields}")
    if len(rows) != expected:
        raise CorruptCheckpoint(path, 2, f"{expected} entries announced, {len(rows)} found")
    return rows


def _number(path: Path, line: int, text: str, minimum: int) -> int:
    if not text.isascii() or not text.lstrip("-").isdigit():
        raise CorruptCheckpoint(path, line, f"{text!r} is not a number")
    value = int(text)
    if value < minimum:
        raise CorruptCheckpoint(path, line, f"{value} is below {minimum}")
    return value


def _text(path: Path) -> str:
    data = files.read_file(path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorruptCheckpoint(path, line, "not UTF-8") from None


# --- identities --------------------------------------------------------------------------------


def read_partition_metadata(path: Path) -> bytes | None:
    """The topic id (16 bytes) in a `partition.metadata`; None without file."""
    try:
        lines = _text(path).splitlines()
    except FileNotFoundError:
        return None
    if not lines or lines[0].split(":")[0] != "version" or lines[0][8:].strip() != "0":
        raise CorruptCheckpoint(path, 1, "expected 'version: 0'")
    name, _, text = (lines[1] if len(lines) > 1 else "").partition(":")
    topic_id = _uuid(text.strip())
    if name != "topic_id" or topic_id is None or topic_id == ZERO_UUID:
        raise CorruptCheckpoint(path, 2, "expected 'topic_id: ' and 22 characters of base64")
    return topic_id


def write_partition_metadata(path: Path, topic_id: bytes) -> None:
    """Note which topic a partition directory belongs to. Raises OSError."""
    atomic_write(path, f"version: 0\ntopic_id: {uuid_to_text(topic_id)}".encode())


def _uuid(text: str) -> bytes | None:
    try:
        return uuid_from_text(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Who owns a log directory (Kafka: MetaProperties, version 1)."""

    cluster_id: str
    node_id: int
    directory_id: bytes | None
    """16 bytes; None in a directory formatted before Kafka 3.7 (KIP-858)."""


def read_meta_properties(path: Path) -> MetaProperties | None:
    """What is written in `meta.properties`; None without file. Raises CorruptCheckpoint."""
    lines: dict[str, int] = {}
    values: dict[str, str] = {}
    try:
        for line, key, value in property_entries(files.read_file(path)):
            lines[key], values[key] = line, value
    except FileNotFoundError:
        return None
    except MalformedProperties as error:
        raise CorruptCheckpoint(path, error.line, error.reason) from None
    version = values.get("version")
    if version not in ("0", "1"):
        raise CorruptCheckpoint(path, lines.get("version", 1), f"unknown version {version}")
    # Version 0 said broker.id; brokers that came from ZooKeeper may still have it.
    node = "node.id" if version == "1" else "broker.id"
    for key in ("cluster.id", node):
        if not values.get(key):
            raise CorruptCheckpoint(path, lines.get(key, 1), f"{key} is missing")
    directory_id = None
    if "directory.id" in values:
        directory_id = _uuid(values["directory.id"])
        if directory_id is None:
            raise CorruptCheckpoint(path, lines["directory.id"], "directory.id is not a uuid")
    return MetaProperties(
        values["cluster.id"], _number(path, lines[node], values[node], 0), directory_id
    )


def write_meta_properties(path: Path, properties: MetaProperties) -> None:
    """Format a log directory for this node. Raises OSError."""
    lines = [
        "#",
        f"cluster.id={_escape(properties.cluster_id)}",
        f"node.id={properties.node_id}",
        "version=1",
    ]
    if properties.directory_id is not None:
        lines.insert(2, f"directory.id={uuid_to_text(properties.directory_id)}")
    atomic_write(path, "\n".join(lines).encode("ascii") + b"\n")


def _escape(text: str) -> str:
    """A value that Java's Properties reads as it is, whatever a user calls a cluster."""
    return "".join(
        f"\\{char}" if char in "\\:=#! " else char if "!" <= char <= "~" else _units(char)
        for char in text
    )


def _units(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


# --- shutdown and lock -------------------------------------------------------------------------


class CleanShutdownFile:
    """The marker that the last shutdown flushed everything (S-7).

    Duties of the caller: read it, delete it before loading any log, write it last at shutdown and
    only if every log was loaded.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / CLEAN_SHUTDOWN

    def exists(self) -> bool:
        """Whether the last shutdown was clean."""
        return self.path.exists()

    def read_broker_epoch(self) -> int:
        """The broker epoch of the clean shutdown; -1 when it is unknown (KIP-966)."""
        import json

        try:
            content = json.loads(files.read_file(self.path))
        except (OSError, ValueError):
            return -1
        epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
        return epoch if isinstance(epoch, int) else -1

    def write(self, broker_epoch: int) -> None:
        """Raises OSError."""
        atomic_write(self.path, b'{"version":0,"brokerEpoch":%d}' % broker_epoch)

    def delete(self) -> None:
        """Durably: a start that crashes while loading must not look clean. Raises OSError."""
        try:
            files.unlink(self.path)
        except FileNotFoundError:
            return
        files.sync_directory(self.path.parent)


class DirectoryLock:
    """One process per log directory (S-19).

    Two kinds of lock on one `.lock`: `flock` keeps out other brokers of ours, in the same process
    too; the POSIX record lock is the one that Java's FileChannel takes, so that Apache Kafka and we
    never share a directory. Both end with the process.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock unless somebody has it. Raises OSError when `.lock` cannot be opened."""
        fd = files.open_or_relieve(self.path, files.CREATE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            files.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Let others in. The file stays: removing it would let two processes lock two files."""
        if self._fd is not None:
            files.close(self._fd)
            self._fd = None


# struct flock of the system, which Python packs for nobody, and where in it are type and process.
_FLOCK, _TYPE, _PID = ("qqihh", 3, 2) if sys.platform == "darwin" else ("hhqqi", 0, 4)


def lock_holder(directory: Path) -> int | None:
    """The process that has the POSIX lock of a directory; None if nobody has. Takes no lock itself,
    so a broker that starts at this moment is not hindered. Raises OSError.

    Not for the holder itself: a process that closes a file loses all its POSIX locks on it.
    """
    try:
        fd = os.open(directory / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        values = [0] * 5
        values[_TYPE] = fcntl.F_WRLCK
        found = fcntl.fcntl(fd, fcntl.F_GETLK, Struct(_FLOCK).pack(*values))
    finally:
        os.close(fd)
    flock = Struct(_FLOCK).unpack(found)
    return None if flock[_TYPE] == fcntl.F_UNLCK else flock[_PID]
