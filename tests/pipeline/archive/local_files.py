"""HadoopFiles of a directory of this machine, without a JVM."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.archive.log import ArchiveLog, new_entry
from pipeline.spark.hadoop_files import FileInfo


class LocalFiles:
    """As much of it as the log of an archive needs."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.synced: list[str] = []

    def join(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def infos(self, folder: str) -> list[FileInfo]:
        return [self.info(f"{folder}/{name}") for name in self.names(folder)]

    def info(self, path: str) -> FileInfo:
        found = os.stat(path)
        return FileInfo(path, found.st_size, found.st_mtime_ns // 1_000_000, 1, 1)

    def walk(self, folder: str) -> list[FileInfo]:
        return [
            self.info(f"{place}/{name}") for place, _, names in os.walk(folder) for name in names
        ]

    def read_text(self, path: str) -> str:
        try:
            return Path(path).read_text("utf-8")
        except FileNotFoundError as error:
            raise OSError("java.io.FileNotFoundException") from error

    def replace_text(self, path: str, text: str) -> None:
        Path(path).write_text(text, "utf-8")

    def replace_text_in_new_folder(self, path: str, text: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.replace_text(path, text)

    def create_text(self, path: str, text: str) -> bool:
        if os.path.exists(path):
            return False
        self.replace_text_in_new_folder(path, text)
        return True

    def move(self, source: str, target: str) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)

    def sync(self, paths: list[str]) -> None:
        self.synced += paths

    def delete(self, path: str, recursive: bool = False) -> None:
        """What is not there is no error for Hadoop either."""
        with suppress(FileNotFoundError):
            shutil.rmtree(path) if recursive else os.unlink(path)


def data_file(log: ArchiveLog, name: str, folder: str = "topic=t/day=1") -> dict[str, Any]:
    """The log's line for a new one."""
    path = Path(log.files.join(folder, name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
    return new_entry(log.files.info(str(path)))
