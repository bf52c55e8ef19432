"""Files of an archive, wherever Spark can write: local disk, HDFS, object stores.

Through Hadoop's FileSystem in the driver's JVM, as Spark itself does, so that `--to hdfs://...`
needs nothing more than it needs for Spark. Paths are strings, qualified (`file:/data/x`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from storage.files import sync_directory, sync_file


class FileInfo(NamedTuple):
    """One file: qualified path, size in bytes, time of last change in ms since 1970."""

    path: str
    size: int
    modified_ms: int
    block_replication: int
    block_size: int


class HadoopFiles:
    """The file system of one root directory. Raises Java's IOException as Py4JJavaError."""

    def __init__(self, spark: Any, root: str) -> None:
        self._jvm = spark._jvm
        conf = spark._jsc.hadoopConfiguration()
        path = self._path(
            root if "://" in root or root.startswith("file:") else os.path.abspath(root)
        )
        self._fs = path.getFileSystem(conf)
        self._conf = conf
        self.root = str(self._fs.makeQualified(path).toString()).rstrip("/")
        self.is_local = self._fs.getScheme() == "file"

    def join(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """Names in a folder; [] when it does not exist."""
        if not self.exists(folder):
            return []
        return [
            str(status.getPath().getName()) for status in self._fs.listStatus(self._path(folder))
        ]

    def infos(self, folder: str) -> list[FileInfo]:
        """Of what is in a folder, folders too; [] when it does not exist."""
        if not self.exists(folder):
            return []
        return [self._info(status) for status in self._fs.listStatus(self._path(folder))]

    def info(self, path: str) -> FileInfo:
        return self._info(self._fs.getFileStatus(self._path(path)))

    def walk(self, folder: str) -> list[FileInfo]:
        """All files below, checksum files left out; [] when the folder does not exist."""
        if not self.exists(folder):
            return []
        found: list[FileInfo] = []
        iterator = self._fs.listFiles(self._path(folder), True)
        while iterator.hasNext():
            found.append(self._info(iterator.next()))
        return found

    def read_text(self, path: str) -> str:
        stream = self._fs.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a file nobody reads yet."""
        stream = self._fs.create(self._path(path), True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def replace_text(self, path: str, text: str) -> None:
        """Replace a file that others read at the same time: they see the old content or the new.

        One rename on a local disk and on HDFS; on an object store the upload itself is atomic.
        """
        if not self.is_local and self._fs.getScheme() not in ("hdfs", "viewfs"):
            self.write_text(path, text)
            return
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{uuid4().hex[:12]}.tmp"  # another run may write its own now
        if not self.is_local:
            self.write_text(temporary, text)
            self._rename_over(temporary, path)
            return
        try:
            with open(local_path(temporary), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # Hadoop's local file system would compare the new content with the old checksum.
            with suppress(FileNotFoundError):
                os.unlink(local_path(f"{folder}/.{name}.crc"))
            os.replace(local_path(temporary), local_path(path))
            self._sync_folders([path])
        except OSError:
            with suppress(OSError):
                os.unlink(local_path(temporary))
            raise

    def replace_text_in_new_folder(self, path: str, text: str) -> None:
        """As `replace_text`, making the folder first."""
        self._fs.mkdirs(self._path(path).getParent())
        self.replace_text(path, text)

    def create_text(self, path: str, text: str) -> bool:
        """Create a file in one step, making its folder; False when it is there already.

        On an object store two that create it at the same moment may both be told True.
        """
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{uuid4().hex[:12]}.tmp"
        self._fs.mkdirs(self._path(folder))
        if self.is_local:
            # Without Hadoop's checksum file: it would be a second file to keep in step.
            with open(local_path(temporary), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(local_path(temporary), local_path(path))
            except FileExistsError:
                return False
            finally:
                os.unlink(local_path(temporary))
            self._sync_folders([path])
            return True
        if self.exists(path):
            return False
        self.write_text(temporary, text)
        return bool(self._fs.rename(self._path(temporary), self._path(path)))

    def sync(self, paths: Sequence[str]) -> None:
        """Have these files, and the folders that lead to them, on the disk, should the power fail.
        Of a local disk: how others keep what was written is theirs to say."""
        if not self.is_local:
            return
        for path in map(local_path, paths):
            sync_file(path)
            folder, _, name = path.rpartition("/")
            with suppress(FileNotFoundError):
                sync_file(f"{folder}/.{name}.crc")  # Hadoop's checksums
        self._sync_folders(paths)

    def _sync_folders(self, paths: Sequence[str]) -> None:
        """The names that lead to these files, that of the archive among them."""
        folders = {folder for path in paths for folder in Path(local_path(path)).parents}
        root = Path(local_path(self.root))
        for folder in folders - set(root.parents):
            sync_directory(folder)
        with suppress(PermissionError):  # may be a folder that we may not read
            sync_directory(root.parent)

    def move(self, source: str, target: str) -> None:
        """Rename a file to a new name, making its folder. Raises OSError when it cannot."""
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        if not self._fs.rename(self._path(source), to):
            raise OSError(f"cannot move {source} to {target}")

    def delete(self, path: str, recursive: bool = False) -> None:
        self._fs.delete(self._path(path), recursive)

    def _rename_over(self, source: str, target: str) -> None:
        jvm = self._jvm
        context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._fs.getUri(), self._conf)
        option = getattr(jvm.org.apache.hadoop.fs, "Options$Rename").OVERWRITE
        options = jvm.java.lang.reflect.Array.newInstance(option.getClass(), 1)
        options[0] = option
        context.rename(self._path(source), self._path(target), options)

    def _info(self, status: Any) -> FileInfo:
        return FileInfo(
            str(status.getPath().toString()),
            int(status.getLen()),
            int(status.getModificationTime()),
            int(status.getReplication()),
            int(status.getBlockSize()),
        )

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


def local_path(path: str) -> str:
    """`file:/a/b` or `/a/b` -> `/a/b`."""
    return path[len("file:") :].replace("///", "/", 1) if path.startswith("file:") else path
