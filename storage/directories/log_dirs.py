"""Log directories: whose they are, and what a partition's directory is called.

A log directory belongs to one node of one cluster and is used by one process. `prepare_log_dirs`
looks before it writes (S-19): an identity that does not fit, a foreign directory or a second
process ends in a LogDirError that says what to do, and nothing was changed. An empty directory is
formatted: `meta.properties` with cluster id, node id and a directory id of its own (KIP-858).

Partition directories are `<topic>-<partition>`, split at the *last* dash (Z-8): `t-1-0` is
partition 0 of topic `t-1`. On the way out they are `<topic>-<partition>.<32 hex digits>-delete`, or
`-stray` for a log that is nobody's, which only a person removes. A name has at most 255 bytes, so
the topic is cut there if need be (B-9).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage import files
from storage.checkpoint import (
    META_PROPERTIES,
    CorruptCheckpoint,
    DirectoryLock,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from wire.primitives import TopicPartition, uuid_to_text

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"

NAME_MAX = 255
TOPIC_NAME_MAX = 249
_PARTITION_MAX = 2**31 - 1
_TOPIC_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

_RESERVED_UUIDS = 100
"""Uuids below this mean "no directory", "lost" and so on (Kafka: DirectoryId)."""


class LogDirError(Exception):
    """A log directory cannot be used; the text names it and says what to do."""


def is_valid_topic(name: str) -> bool:
    """Kafka's rule for topic names; what passes is safe as a file name (Z-7)."""
    return 0 < len(name) <= TOPIC_NAME_MAX and name not in (".", "..") and set(name) <= _TOPIC_CHARS


def partition_dir_name(topic_partition: TopicPartition) -> str:
    """Name of a partition's directory. Raises ValueError for a topic that is no valid name."""
    topic, index = topic_partition
    if not is_valid_topic(topic) or not 0 <= index <= _PARTITION_MAX:
        raise ValueError(f"{topic!r} partition {index} cannot be a directory")
    return f"{topic}-{index}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The partition a directory name stands for; None if it is not one."""
    topic, dash, digits = name.rpartition("-")
    if not dash or not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        return None
    index = int(digits)
    if str(index) != digits or index > _PARTITION_MAX or not is_valid_topic(topic):
        return None
    return TopicPartition(topic, index)


def parse_future_dir(name: str) -> TopicPartition | None:
    """The partition a `<topic>-<partition>.<hex>-future` directory is the future of, or None."""
    partition, dot, unique = name.removesuffix(FUTURE_SUFFIX).rpartition(".")
    if not name.endswith(FUTURE_SUFFIX) or not dot or len(unique) != 32:
        return None
    return parse_partition_dir(partition)


def renamed_dir_name(topic_partition: TopicPartition, unique: bytes, suffix: str) -> str:
    """`<topic>-<partition>.<hex>` and `-delete`, `-stray` or `-future`; the topic is cut so that it
    fits NAME_MAX."""
    topic, index = topic_partition
    rest = f"-{index}.{unique.hex()}{suffix}"
    return topic[: NAME_MAX - len(rest)] + rest


@dataclass(slots=True)
class FormattedDirs:
    """Log directories that are ours, locked; `failed` holds those whose disk did not answer."""

    cluster_id: str
    directory_ids: dict[Path, bytes] = field(default_factory=dict)
    locks: dict[Path, DirectoryLock] = field(default_factory=dict)
    failed: dict[Path, OSError] = field(default_factory=dict)

    def release(self) -> None:
        """Unlock all, for the next process."""
        for lock in self.locks.values():
            lock.release()
        self.locks.clear()


def prepare_log_dirs(
    dirs: Sequence[Path],
    node_id: int,
    cluster_id: str | None,
    random_uuid: Callable[[], bytes],
) -> FormattedDirs:
    """Check, lock and where they are empty format the log directories of a node.

    `cluster_id` None takes what the directories say, or a fresh one. Raises LogDirError before
    anything was written if a directory is another node's or cluster's, is in use, or holds things
    that are not ours; and if not one directory can be used. A directory that fails with OSError
    while others work is reported in `failed`.
    """
    if len(set(map(_real, dirs))) != len(dirs):
        raise LogDirError(f"log.dirs names a directory twice: {joined(dirs)}")
    failed: dict[Path, OSError] = {}
    known: dict[Path, MetaProperties | None] = {}
    for path in dirs:
        try:
            known[path] = _inspect(path)
        except OSError as error:
            failed[path] = error
    if not known:
        raise LogDirError("; ".join(_explain(path, error) for path, error in failed.items()))
    cluster_id = _agree(known, node_id, cluster_id)
    formatted = FormattedDirs(cluster_id or uuid_to_text(_fresh(random_uuid)), failed=failed)
    try:
        for path, properties in known.items():
            _claim(formatted, path, properties, node_id, random_uuid)
    except LogDirError:
        formatted.release()
        raise
    if not formatted.directory_ids:
        formatted.release()
        raise LogDirError("; ".join(_explain(path, error) for path, error in failed.items()))
    return formatted


def _claim(
    formatted: FormattedDirs,
    path: Path,
    properties: MetaProperties | None,
    node_id: int,
    random_uuid: Callable[[], bytes],
) -> None:
    try:
        if properties is None:
            files.make_directories(path)
        lock = DirectoryLock(path)
        if not lock.try_acquire():
            raise LogDirError(
                f"{path} is in use by another broker: stop that one, or use another directory"
            )
        formatted.locks[path] = lock
        directory_id = properties.directory_id if properties is not None else None
        if directory_id is None:
            directory_id = _fresh(random_uuid)
            write_meta_properties(
                path / META_PROPERTIES, MetaProperties(formatted.cluster_id, node_id, directory_id)
            )
    except OSError as error:
        formatted.failed[path] = error
        return
    formatted.directory_ids[path] = directory_id


def is_formatted(path: Path) -> bool:
    """Does the directory say whose it is. Raises nothing: a broken disk says no."""
    return os.path.exists(path / META_PROPERTIES)


def inspect_log_dirs(
    dirs: Sequence[Path],
    node_id: int,
    cluster_id: str,
    may_hold: Callable[[Path, str], bool],
) -> dict[Path, MetaProperties | None]:
    """The identity in each directory, None where it is not formatted. Changes nothing.

    `may_hold(directory, name)`: what else an unformatted directory may hold. Raises LogDirError if
    a directory is another node's or cluster's, or holds things that are not ours; OSError.
    """
    if len(set(map(_real, dirs))) != len(dirs):
        raise LogDirError(f"log.dirs names a directory twice: {joined(dirs)}")
    known = {path: _inspect(path, may_hold) for path in dirs}
    _agree(known, node_id, cluster_id)
    return known


def _inspect(
    path: Path, may_hold: Callable[[Path, str], bool] = lambda _path, _name: False
) -> MetaProperties | None:
    """The identity in a directory; None if it is empty or not there. Changes nothing."""
    if not path.exists():
        return None
    if not path.is_dir():
        raise LogDirError(f"{path} is not a directory")
    try:
        properties = read_meta_properties(path / META_PROPERTIES)
    except CorruptCheckpoint as error:
        raise LogDirError(f"{error}; restore the file, or use another directory") from None
    if properties is None:
        foreign = sorted(
            name
            for name in os.listdir(path)
            if not _may_be_there(name) and not may_hold(path, name)
        )
        if foreign:
            raise LogDirError(
                f"{path} has no {META_PROPERTIES} but is not empty ({', '.join(foreign[:3])}): "
                "use an empty directory, or restore the file"
            )
    return properties


def _may_be_there(name: str) -> bool:
    """What an unformatted directory may hold: hidden files, and what file systems put there."""
    return name.startswith(".") or name in ("lost+found", f"{META_PROPERTIES}.tmp")


def _agree(
    known: Mapping[Path, MetaProperties | None], node_id: int, cluster_id: str | None
) -> str | None:
    """The one cluster all directories belong to, None if none says. Raises LogDirError."""
    seen: dict[bytes, Path] = {}
    for path, properties in known.items():
        if properties is None:
            continue
        if properties.node_id != node_id:
            raise LogDirError(
                f"{path} belongs to node {properties.node_id}, this is node {node_id}: "
                "correct node.id, or use another directory"
            )
        if cluster_id is not None and properties.cluster_id != cluster_id:
            raise LogDirError(
                f"{path} belongs to cluster {properties.cluster_id}, not to {cluster_id}: "
                "use another directory"
            )
        cluster_id = properties.cluster_id
        directory_id = properties.directory_id
        if directory_id is not None:
            if directory_id in seen:
                raise LogDirError(
                    f"{path} is a copy of {seen[directory_id]} (same directory.id): "
                    "remove one from log.dirs"
                )
            seen[directory_id] = path
    return cluster_id


def _fresh(random_uuid: Callable[[], bytes]) -> bytes:
    """A uuid that is not reserved and whose text is not mistaken for an option."""
    while True:
        uuid = random_uuid()
        if int.from_bytes(uuid, "big") >= _RESERVED_UUIDS and uuid_to_text(uuid)[0] != "-":
            return uuid


def _real(path: Path) -> str:
    return os.path.realpath(path)


def joined(paths: Iterable[Path]) -> str:
    """As a person reads them."""
    return ", ".join(map(str, paths))


def _explain(path: Path, error: OSError) -> str:
    return f"{path} cannot be used: {error.strerror or error}"
