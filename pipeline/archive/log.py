"""Which files of an archive count: a log in the format of Spark's file sink.

A batch is committed by creating one small file, `_spark_metadata/<batch>`, that lists the data
files of the batch; every tenth, `<batch>.compact`, lists all files so far.
`spark.read.parquet(DIR)` reads this log, not the directory: what is not listed does not exist. So
the log is what makes the archive exactly once (a driver killed in mid-batch leaves files that no
log names), and it is also where many small files can be exchanged for one in a single atomic step.

Format (Spark: FileStreamSinkLog): line 1 `v1`, then one JSON object a line: path (a URL), size,
isDir, modificationTime, blockReplication, blockSize, action `add`. Readers leave out what isDir
says is a directory: such a line names the state (`state`) that the batch leads to, a file
below `_barnabas/state`, so that data and state are committed together.

The format wants whole paths. Reading, we take of a path only what lies below the archive's folder,
so a moved or copied archive is as good as the original; `settle` writes the paths anew, for
Spark's own readers.

Besides, `_barnabas/archive.json` remembers how the archive was made (format, folders, decoded
columns).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from pipeline.archive import listing
from pipeline.archive.state import ArchivedTopic, State, from_json, from_spark_offsets, to_json
from pipeline.archive.table import another_run
from pipeline.errors import PipelineError
from pipeline.preflight import DESCRIPTION, no_archive
from pipeline.spark.hadoop_files import FileInfo, HadoopFiles
from pipeline.typed.columns import data_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA, OWN, STATE = listing.METADATA, listing.OWN, listing.STATE
_COMPACT_EVERY = 10
"""Spark's own spark.sql.streaming.fileSink.log.compactInterval, which its readers go by."""
DATA_SUFFIXES = (".parquet", ".orc")

ARCHIVE_SCHEMA = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>,"
    " partition int, offset bigint, timestamp timestamp, timestampType int,"
    " generation int, topic string, day string"
)
"""Columns of an archive, with the folder columns (hour only when partitioned by hour)."""


@dataclass(slots=True)
class LoggedFile:
    """One data file of the archive. `relative` is its path below the archive's root."""

    relative: str
    size: int
    entry: dict[str, Any]

    @property
    def folder(self) -> str:
        return self.relative.rpartition("/")[0]

    @property
    def is_state(self) -> bool:
        return self.relative.startswith(STATE + "/")


@dataclass(slots=True)
class Snapshot:
    """The log at one moment: all files, those of the last `.compact` file, and its name."""

    latest_batch: int
    files: list[LoggedFile]
    compact_name: str | None
    compacted: list[LoggedFile]
    compact_entries: list[dict[str, Any]]
    """All lines of that file: those of `compacted`, and that of its state."""
    state: LoggedFile | None
    """The file that holds the state after the latest batch."""


@dataclass(frozen=True, slots=True)
class Description:
    """How an archive was made."""

    format: str
    partition_by: str
    id: str | None = None
    """Of the archive and its copies; None for those of earlier versions."""
    checkpoint: str | None = None
    """Where Structured Streaming kept the offsets of an archive of earlier versions."""
    typed: Mapping[str, Any] | None = None
    """Decoded columns (`typed.columns.Typing.remembered`)."""

    @property
    def folders(self) -> list[str]:
        """Columns that are folders, the last ones of a frame."""
        return ["topic", "day", "hour"][: 3 if self.partition_by == "hour" else 2]


class ArchiveLog:
    """The log of one archive. Reading is safe while a query writes it."""

    def __init__(self, files: HadoopFiles) -> None:
        self.files = files
        self._folder = files.join(METADATA)

    def exists(self) -> bool:
        return self._latest()[0] >= 0

    def snapshot(self) -> Snapshot:
        """The files that count now. Raises PipelineError when the log has holes."""
        for attempt in range(listing.READ_TRIES):
            try:
                return self._snapshot()
            except Exception as error:
                # The query removed old batches of the log while we read them: look again.
                if "FileNotFound" not in str(error) or attempt == listing.READ_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def check_complete(self, snapshot: Snapshot) -> None:
        """Raise PipelineError unless every file of the log is there with its size."""
        present = {info.path: info.size for info in self.present()}
        missing = [
            file.relative
            for file in snapshot.files
            if present.get(self.files.join(file.relative)) != file.size
        ]
        if missing:
            raise PipelineError(
                f"half-written archive: {len(missing)} of the {len(snapshot.files)} files that"
                f" {self.files.root} lists are missing or cut short (the first: {missing[0]});"
                " copy it again in full, or restore them"
            )

    def present(self) -> list[FileInfo]:
        """The files that are there, listed or not, but for those of our own folders: in these a
        batch under way makes and removes folders while they are looked through."""
        names = self.files.names(self.files.root)
        folders = [self.files.join(name) for name in names if name[0] not in "_."]
        return [info for folder in folders for info in self.files.walk(folder)]

    def replace_compact(self, name: str, entries: list[dict[str, Any]]) -> None:
        """Publish another list of files under the name of the last `.compact` file, atomically."""
        self.files.replace_text(f"{self._folder}/{name}", _as_lines(entries))

    def state(self, snapshot: Snapshot) -> dict[str, ArchivedTopic]:
        """How far the archive is with each topic; {} for a new one.

        Raises PipelineError for an archive that holds records, but not where they end.
        """
        if snapshot.state is not None:
            path = self.files.join(snapshot.state.relative)
            return from_json(self.files.read_text(path), path)
        if snapshot.latest_batch < 0:
            return {}
        description = self.description()
        if description is not None and description.checkpoint is not None:
            for folder in (description.checkpoint, self.files.join("_checkpoint")):
                path = f"{folder}/offsets/{snapshot.latest_batch}"
                if self.files.exists(path):
                    return from_spark_offsets(self.files.read_text(path))
        raise PipelineError(
            f"{self.files.root} holds records, but does not know up to which offsets (`segments"
            " --to` wrote it, or its checkpoint is gone); archive into another directory"
        )

    def commit(self, batch: int, added: list[dict[str, Any]], state: State | None) -> None:
        """Make the files of a batch count, and the state with them, in one step.

        Raises PipelineError when another run has committed that batch.
        """
        entries = list(added)
        if state is not None:
            path = self.files.join(STATE, f"{batch}-{uuid4().hex[:12]}.json")
            self.files.replace_text_in_new_folder(path, to_json(state))
            entries.append(new_entry(self.files.info(path)) | {"isDir": True})
        name = str(batch)
        if (batch + 1) % _COMPACT_EVERY == 0:
            name += ".compact"
            entries = [file.entry for file in self.snapshot().files] + entries
        if not self.files.create_text(f"{self._folder}/{name}", _as_lines(entries)):
            raise another_run(self.files.root)
        if name.endswith(".compact"):
            self._forget_before(batch - _COMPACT_EVERY)

    def settle(self) -> None:
        """After the archive was moved or copied: name its files where they are now."""
        _, names = self._latest()
        for name in names.values():
            logged = self._read(name)
            entries = [
                file.entry | {"path": _as_url(self.files.join(file.relative))} for file in logged
            ]
            if entries != [file.entry for file in logged]:
                self.replace_compact(name, entries)

    def _forget_before(self, batch: int) -> None:
        """Remove the log's files that an earlier `.compact` one has replaced, and their states.

        Those since the last but one stay: a reader may have listed them.
        """
        _, names = self._latest()
        for number, name in names.items():
            if number < batch:
                self.files.delete(f"{self._folder}/{name}")
        for state in self.files.names(self.files.join(STATE)):
            digits = state.partition("-")[0]
            if digits.isdigit() and int(digits) < batch:
                self.files.delete(self.files.join(STATE, state))

    def description(self) -> Description | None:
        """How this archive was made; None when it is not one of ours (yet)."""
        path = self.files.join(DESCRIPTION)
        if not self.files.exists(path):
            return None
        try:
            content = json.loads(self.files.read_text(path))
            return Description(
                content["format"],
                content["partition_by"],
                content.get("id"),
                content.get("checkpoint"),
                content.get("typed"),
            )
        except (ValueError, KeyError, TypeError):
            raise PipelineError(
                f"{path} is damaged; restore it from a copy of the archive"
            ) from None

    def describe(self, description: Description) -> None:
        """Note how a new archive is made, and give it an id."""
        self._write_description(
            {
                "format": description.format,
                "partition_by": description.partition_by,
                "id": uuid4().hex,
                "typed": description.typed,
            }
        )

    def remember_typed(self, typed: Mapping[str, Any] | None) -> None:
        """Note decoded columns, before files have them; the rest of the description stays."""
        content = json.loads(self.files.read_text(self.files.join(DESCRIPTION)))
        if content.get("typed") != typed:
            self._write_description(content | {"typed": typed})

    def _write_description(self, content: dict[str, Any]) -> None:
        path = self.files.join(DESCRIPTION)
        self.files.replace_text_in_new_folder(path, json.dumps(content))

    def _snapshot(self) -> Snapshot:
        latest, names = self._latest()
        compacts = [number for number, name in names.items() if name.endswith(".compact")]
        start = max(compacts, default=-1)
        compact_name = names.get(start)
        compacted = [] if compact_name is None else self._read(compact_name)
        logged = list(compacted)
        for batch in range(start + 1, latest + 1):
            if batch not in names:
                raise PipelineError(
                    f"half-written archive: {self._folder} lacks batch {batch} of {latest};"
                    " copy it again in full, or restore it"
                )
            logged += self._read(names[batch])
        states = [file for file in logged if file.is_state]
        return Snapshot(
            latest,
            [file for file in logged if not file.is_state],
            compact_name,
            [file for file in compacted if not file.is_state],
            [file.entry for file in compacted],
            states[-1] if states else None,
        )

    def _latest(self) -> tuple[int, dict[int, str]]:
        names = listing.by_number(self.files.names(self._folder))
        return max(names, default=-1), names

    def _read(self, name: str) -> list[LoggedFile]:
        text = self.files.read_text(f"{self._folder}/{name}")
        try:
            return [
                LoggedFile(listing.relative(entry, self.files.root), int(entry["size"]), entry)
                for entry in listing.entries(text, f"{self._folder}/{name}")
            ]
        except ValueError as error:
            raise PipelineError(str(error)) from None


def topic_of(file: LoggedFile) -> str:
    """By the name of its folder."""
    return file.relative.partition("topic=")[2].partition("/")[0]


def new_entry(info: FileInfo) -> dict[str, Any]:
    """The log's line for a file (Spark: SinkFileStatus)."""
    return {
        "path": _as_url(info.path),
        "size": info.size,
        "isDir": False,
        "modificationTime": info.modified_ms,
        "blockReplication": info.block_replication,
        "blockSize": info.block_size,
        "action": "add",
    }


def _as_lines(entries: list[dict[str, Any]]) -> str:
    lines = [listing.VERSION_LINE, *(json.dumps(entry, separators=(",", ":")) for entry in entries)]
    return "\n".join(lines)


def land(files: HadoopFiles, scratch: str, prefix: str = "") -> list[LoggedFile]:
    """Move the data files that a job wrote below `scratch` to the archive's folders, unlisted, and
    have them on the disk: what a log lists must be there after a power failure.

    They get `prefix` before their names; `scratch` is removed.
    """
    landed: list[LoggedFile] = []
    for info in sorted(files.walk(scratch)):
        if not info.path.endswith(DATA_SUFFIXES):
            continue
        folder, _, name = info.path[len(scratch) + 1 :].rpartition("/")
        relative = f"{folder}/{prefix}{name}"
        files.move(info.path, files.join(relative))
        landed.append(LoggedFile(relative, info.size, new_entry(files.info(files.join(relative)))))
    files.sync([files.join(file.relative) for file in landed])
    files.delete(scratch, recursive=True)
    return landed


def _as_url(path: str) -> str:
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return quote(path)
    if rest.startswith("//"):
        return f"{scheme}:{quote(rest)}"
    return f"{scheme}://{quote(rest)}"


def unfinished(directory: str) -> PipelineError:
    return PipelineError(
        f"half-written archive: no batch of {directory} is complete yet; run the command that"
        " wrote it (`barnabas pipeline archive`, or `segments --to`) again, which finishes it"
    )


def open_archive(spark: Any, directory: str) -> tuple[ArchiveLog, Snapshot, Description]:
    """An archive to read. Raises PipelineError for a directory that is none, or only half of
    one."""
    files = HadoopFiles(spark, directory)
    log = ArchiveLog(files)
    if not files.exists(files.root):
        raise PipelineError(f"{directory} does not exist; check --from")
    description = log.description()
    if description is None and not log.exists():
        raise no_archive(directory)
    if not log.exists():
        raise unfinished(directory)
    snapshot = log.snapshot()
    log.check_complete(snapshot)
    return log, snapshot, description or _guess(snapshot)


def _guess(snapshot: Snapshot) -> Description:
    """For an archive whose description was lost: its files tell."""
    sample = snapshot.files[0].relative if snapshot.files else ""
    kind = "orc" if sample.endswith(".orc") else "parquet"
    return Description(kind, "hour" if "/hour=" in sample else "day")


def empty_archive(spark: SparkSession, made: Description) -> DataFrame:
    """The columns of an archive without decoded ones."""
    hour = ", hour string" if made.partition_by == "hour" else ""
    return spark.createDataFrame([], ARCHIVE_SCHEMA + hour)


def read_files(
    spark: Any, log: ArchiveLog, files: list[LoggedFile], description: Description
) -> Any:
    """These files as a DataFrame, with folder columns and decoded ones; right for a moved archive
    too."""
    from pyspark.sql import functions

    schema = ARCHIVE_SCHEMA + (", hour string" if description.partition_by == "hour" else "")
    schema += data_ddl(description.typed)
    paths = [log.files.join(file.relative) for file in files]
    reader = spark.read.schema(schema).option("basePath", log.files.root)
    # Paths are names of files, whatever the directory is called: no patterns (Spark: DataSource).
    reader = reader.option("__globPaths__", "false")
    if not paths:
        return spark.createDataFrame([], schema)
    frame = reader.format(description.format).load(paths)
    # Archives of earlier versions have no such column.
    return frame.withColumn("generation", functions.expr("coalesce(generation, 0)"))
