"""Which files of an archive count, without Spark: `barnabas.archive_files(DIR)`, and what is pure
of reading the log (`log` says how it is meant).

Why: DuckDB, pandas and polars list files themselves, and would see those of killed runs, and those
that compaction has replaced. Imports nothing but the standard library: it is loaded in a user's
own process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

METADATA = "_spark_metadata"
OWN = "_barnabas"
STATE = f"{OWN}/state"
VERSION_LINE = "v1"
_BATCH_NAME = re.compile(r"(\d+)(\.compact)?")
READ_TRIES = 5


def data_files(directory: str) -> list[str]:
    """The files that make up an archive of Parquet or ORC now, on a disk of this machine.

    A later compaction leaves them where they are for its `--grace`. Raises ValueError for a
    directory that is no such archive, or only half of one.
    """
    root = os.path.abspath(directory)
    return [os.path.join(root, one) for one in _listed(directory) if not _is_state(one)]


def topics(directory: str) -> tuple[set[str], set[str]]:
    """The topics of such an archive that have records, and all that it knows: empty ones too.

    Raises ValueError as `data_files` does, and OSError.
    """
    listed = _listed(directory)
    held = {one.partition("topic=")[2].partition("/")[0] for one in listed if not _is_state(one)}
    states = [one for one in listed if _is_state(one)]
    if not states:
        return held, held
    with open(os.path.join(directory, states[-1]), encoding="utf-8") as file:
        return held, held | json.load(file)["topics"].keys()


def _is_state(path: str) -> bool:
    return path.startswith(STATE + "/")


def _listed(directory: str) -> list[str]:
    """What the log lists, by its place below the archive's root: data files and states."""
    for _ in range(READ_TRIES):
        try:
            return _read_log(os.path.abspath(directory))
        except (FileNotFoundError, NotADirectoryError):
            continue  # the log was compacted while we read it
    raise ValueError(
        f"{directory} is no archive of Parquet or ORC: it holds no {METADATA}; `barnabas pipeline"
        " archive --to` makes one"
    )


def _read_log(root: str) -> list[str]:
    folder = os.path.join(root, METADATA)
    names = by_number(os.listdir(folder))
    start = max((number for number, name in names.items() if name.endswith(".compact")), default=0)
    numbers = range(start, max(names, default=-1) + 1)
    if any(number not in names for number in numbers):
        raise ValueError(f"half-written archive: {folder} lacks batches; copy it again in full")
    found: dict[str, None] = {}
    for number in numbers:
        with open(os.path.join(folder, names[number]), encoding="utf-8") as file:
            logged = entries(file.read(), file.name)
        found.update((relative(one, root), None) for one in logged)
    return list(found)


def by_number(names: Iterable[str]) -> dict[int, str]:
    """The log's files among these names, by the batch that they belong to."""
    matches = (_BATCH_NAME.fullmatch(name) for name in names)
    return {int(match.group(1)): match.group(0) for match in matches if match is not None}


def entries(text: str, where: str) -> list[dict[str, Any]]:
    """The lines of one file of the log, which name a file each. Raises ValueError."""
    lines = text.split("\n")
    if lines[0].strip() != VERSION_LINE:
        raise ValueError(f"{where} has an unknown version {lines[0][:20]!r}")
    found = [json.loads(line) for line in lines[1:] if line.strip()]
    return [one for one in found if one.get("action") == "add"]


def relative(entry: dict[str, Any], root: str) -> str:
    """Where a line's file lies below the archive's root, wherever that was when it was written.
    Raises ValueError."""
    path = plain_path(entry["path"])
    # What a log names lies where the archive's folders begin, not behind `root`: one that was
    # moved or copied into the folder above its own would be taken for the original.
    at = max(path.rfind("/topic="), path.rfind(f"/{STATE}/"))
    if at < 0:
        raise ValueError(f"the log of {root} lists {path}, which is no file of an archive")
    return path[at + 1 :]


def plain_path(path: str) -> str:
    """A path as the log has it (a URL, percent-encoded) -> as Hadoop's Path has it."""
    parts = urlsplit(path)
    if not parts.scheme:
        return unquote(path)
    authority = f"//{parts.netloc}" if parts.netloc else ""
    return f"{parts.scheme}:{authority}{unquote(parts.path)}"
