"""Partitions that a start finds in more than one directory, until it is known which copy is right.

A replica that moves has its log whole in both directories for a moment; should the node stop then,
or the disk refuse the old copy its new name, both are there at the next start, and the old one lags
behind by all that was written since. Nothing in the files tells which is which. The metadata does:
the controller knew of the new directory before the move ended (KIP-858). So neither is opened
before metadata asks for the partition; then the one it names is used, and the other is set aside
(`-stray`). A copy of another topic of this name is none. Where nothing decides, nobody is served
until a person removes one; Apache Kafka does not start then (LogManager.loadLog).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from storage.checkpoint import PARTITION_METADATA, CorruptCheckpoint, read_partition_metadata
from storage.directories.log_dirs import joined
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from storage.directories.log_dir import LogDir

logger = logging.getLogger(__name__)


class Copies:
    """See the module. Used at the start and by metadata's thread only."""

    def __init__(self) -> None:
        self._of: dict[TopicPartition, dict[Path, LogDir]] = {}

    def find(self, found: Mapping[LogDir, Iterable[tuple[TopicPartition, Path]]]) -> None:
        """Note what is in several of these directories; no stop is clean there until it is settled,
        since none of the copies is opened and checked."""
        places: dict[TopicPartition, dict[Path, LogDir]] = {}
        for log_dir, partitions in found.items():
            for key, path in partitions:
                places.setdefault(key, {})[path] = log_dir
        self._of = {key: paths for key, paths in places.items() if len(paths) > 1}
        for key, paths in self._of.items():
            logger.error("partition is in several directories partition=%s paths=%s",
                         key, joined(paths))  # fmt: skip
            for log_dir in paths.values():
                log_dir.failed_partitions.add(key)

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._of

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(list(self._of))

    def settle(
        self, key: TopicPartition, topic_id: bytes | None, assigned: Path | None
    ) -> Path | None:
        """The directory with the right copy of this topic's partition, which metadata knows in
        `assigned`; None if there were no copies, or none is right. The others are set aside.

        Raises KafkaError KAFKA_STORAGE_ERROR if it cannot be known; then all stay.
        """
        paths = self._of.get(key)
        if paths is None:
            return None
        own = [path for path in paths if topic_id is not None and topic_id_of(path) == topic_id]
        right = next((path for path in own if path.parent == assigned or len(own) == 1), None)
        if own and right is None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{joined(own)} are the same partition, and metadata knows it in neither directory:"
                " remove the one whose disk failed last",
            )
        del self._of[key]
        for path, log_dir in paths.items():
            if path != right:
                log_dir.set_aside(key, path)
        return None if right is None else right.parent


def topic_id_of(path: Path) -> bytes | None:
    """The topic a partition's directory says it is of. Raises KafkaError KAFKA_STORAGE_ERROR."""
    try:
        return read_partition_metadata(path / PARTITION_METADATA)
    except (OSError, CorruptCheckpoint) as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}") from None
