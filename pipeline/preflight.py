"""Mistakes that can be seen without Spark, told before the seconds that it takes to start.

Of directories, those of this machine: what a path without a scheme means is Hadoop's business when
its configuration, or a cluster, is given. Whatever is not seen here is seen later, by the command.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import EXIT_USAGE, PipelineError

_BROKER_WAIT_MS = 3000
OWN, METADATA = "_barnabas", "_spark_metadata"
"""Folders of an archive (archive.listing, which travels alone)."""
DESCRIPTION = f"{OWN}/archive.json"
UNFINISHED = f"{OWN}/unfinished"
"""Is in an archive of one batch (`segments --to`, `rescue`) until it is complete."""

_BROKERS = "meta.properties"
"""Is in each log directory of a broker (Kafka: MetaPropertiesEnsemble)."""


def local_directory(path: str, master: str | None, conf: Mapping[str, str]) -> str | None:
    """The directory of this machine that is meant; None when only Hadoop knows."""
    if path.startswith("file:"):
        return "/" + path[len("file:") :].lstrip("/")
    elsewhere = master is not None and not master.startswith("local")
    configured = "HADOOP_CONF_DIR" in os.environ or any("fs.defaultFS" in key for key in conf)
    return None if "://" in path or elsewhere or configured else os.path.abspath(path)


def check_compaction(flags: Mapping[str, object]) -> None:
    """Raise PipelineError for flags of archiving beside --compact, which archives nothing."""
    others = ("bootstrap", "topics", "pattern", "skip_lost", "dry_run")
    given = [f"--{name.replace('_', '-')}" for name in others if flags[name]]
    if given:
        raise PipelineError(
            f"--compact takes no {', '.join(given)}: it archives nothing; run `archive` first",
            EXIT_USAGE,
        )


def check_times(since_ms: int | None, until_ms: int | None) -> None:
    """Raise PipelineError for a range of times that holds none."""
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise PipelineError("--until is not after --since: no record is in between", EXIT_USAGE)


def check_target(to: str, folder: str, made_as: tuple[str, str]) -> None:
    """Raise PipelineError unless an archive with this (format, partition_by) can be written."""
    within = folder
    while within != os.path.dirname(within):
        if os.path.exists(os.path.join(within, _BROKERS)):
            raise PipelineError(
                f"{to} lies in {within}, which is the directory of a broker; choose another --to"
            )
        within = os.path.dirname(within)
    existing = folder
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise PipelineError(f"{existing} is no directory; choose another --to")
    try:  # root may by its permissions what a file system like /proc cannot
        tempfile.TemporaryFile(dir=existing).close()
    except PermissionError as error:
        raise PipelineError(
            f"permission denied: {existing} cannot be written; check who owns it"
        ) from error
    except OSError as error:
        raise PipelineError(
            f"{existing} cannot be written ({error.strerror}); choose another --to"
        ) from error
    made = description(folder)
    if made is not None:
        check_made_as(to, (made["format"], made["partition_by"]), made_as)
        check_unmoved(to, folder)


def check_made_as(to: str, made: tuple[str, str] | None, wanted: tuple[str, str]) -> None:
    """Raise PipelineError when an archive was made with another (format, partition_by)."""
    if made is not None and made != wanted:
        raise PipelineError(
            f"{to} was made with --format {made[0]} --partition-by {made[1]}; give the same, or"
            " choose another --to"
        )


def check_empty(to: str, folder: str) -> None:
    """Raise PipelineError for a directory that holds other things than an archive."""
    if os.path.isdir(folder) and not os.path.exists(os.path.join(folder, DESCRIPTION)):
        check_fresh(to, os.listdir(folder))


def check_fresh(to: str, names: Sequence[str]) -> None:
    """Raise PipelineError for a directory without an archive that holds other things. What a run
    left that was killed before it had described its archive is none of them."""
    others = sorted(name for name in names if name != OWN)
    if others:
        what = "an archive of another program" if METADATA in others else "other files"
        raise PipelineError(
            f"{to} already holds {what} ({others[0]}, ...); choose an empty directory"
        )


def check_topics(
    bootstrap: str,
    topics: Sequence[str],
    properties: Mapping[str, str],
    pattern: str | None = None,
) -> None:
    """Raise PipelineError for a topic that the broker has not, and when none matches `pattern`.

    Only of brokers that ask nobody who he is: the settings of others are those of Spark's client,
    which looks again. A broker that gives no answer here is told by that, too.
    """
    there = _topics(bootstrap, properties)
    if there is None:
        return
    missing = [topic for topic in topics if topic not in there]
    if missing:
        raise no_topics(bootstrap, missing, there)
    if pattern is not None and not any(re.fullmatch(pattern, name) for name in there):
        raise no_match(bootstrap, pattern, there)


def _topics(bootstrap: str, properties: Mapping[str, str]) -> list[str] | None:
    if properties.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT":
        return None
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        with contextlib.closing(
            KafkaAdminClient(
                bootstrap_servers=bootstrap.split(","),
                bootstrap_timeout_ms=_BROKER_WAIT_MS,
                request_timeout_ms=_BROKER_WAIT_MS,
            )
        ) as client:
            return sorted(client.list_topics())
    except KafkaError:
        return None


def no_topics(bootstrap: str, missing: Sequence[str], there: Sequence[str]) -> PipelineError:
    known = [name for name in there if not name.startswith("__")]
    return PipelineError(f"no topic {', '.join(missing)} on {bootstrap}; there are: {some(known)}")


def no_match(bootstrap: str, pattern: str, there: Sequence[str]) -> PipelineError:
    known = [name for name in there if not name.startswith("__")]
    return PipelineError(f"no topic of {bootstrap} matches {pattern!r}; there are: {some(known)}")


def some(names: Sequence[str], limit: int = 8) -> str:
    """The first few names, and how many more there are."""
    if not names:
        return "none at all"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def check_new(to: str, folder: str) -> None:
    """Raise PipelineError unless a new archive can be written there: over nothing, or over what a
    run left that was cut off."""
    check_target(to, folder, ("parquet", "day"))
    if os.path.isdir(folder):
        begun = os.path.exists(os.path.join(folder, UNFINISHED))
        check_remains(to, os.listdir(folder), begun=begun)


def check_remains(to: str, names: Sequence[str], *, begun: bool) -> None:
    """Raise PipelineError unless a directory is empty, or holds what a run left that was cut off
    (`begun`: its note is there) and nothing else: all of it is about to be removed."""
    others = [name for name in names if name not in (OWN, METADATA) and name[:6] != "topic="]
    if others or (names and not begun):
        what = f" ({min(others)}, ...)" if others else ""
        raise PipelineError(f"{to} is not empty{what}; choose an empty directory")


def check_source(source: str, folder: str, flag: str = "--from") -> None:
    """Raise PipelineError unless an archive can be read there."""
    if not os.path.exists(folder):
        raise PipelineError(f"{source} does not exist; check {flag}")
    if not os.path.isdir(folder):
        raise PipelineError(f"{source} is no directory; give the one that `archive --to` wrote")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PipelineError(f"permission denied: {source} cannot be read; check who owns it")
    if not any(os.path.lexists(os.path.join(folder, name)) for name in (METADATA, DESCRIPTION)):
        raise no_archive(source)
    check_unmoved(source, folder)


def check_unmoved(source: str, folder: str) -> None:
    """Raise PipelineError for a table of Iceberg that was made in another place. What cannot be
    read here is left to Iceberg."""
    if format_of(folder) != "iceberg":
        return
    metadata = os.path.join(folder, "metadata")
    try:
        with open(os.path.join(metadata, "version-hint.text"), encoding="utf-8") as file:
            version = int(file.read())
        with open(os.path.join(metadata, f"v{version}.metadata.json"), encoding="utf-8") as file:
            location = json.load(file)["location"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    here = os.path.realpath(folder)
    if location.startswith(("/", "file:")) and os.path.realpath(_place(location)) != here:
        raise moved_table(source, location)


def _place(location: str) -> str:
    return "/" + location.removeprefix("file:").lstrip("/")


def moved_table(source: str, location: str) -> PipelineError:
    return PipelineError(
        f"{source} was moved or copied from {location}, and an Iceberg table"
        " has whole paths in it; give it its old place, or copy it with Iceberg's procedure"
        " rewrite_table_path (archives of --format delta and parquet may be moved)"
    )


def no_archive(source: str) -> PipelineError:
    return PipelineError(
        f"{source} is no archive: it holds no {METADATA}; give the directory that"
        " `barnabas pipeline archive --to` or `segments --to` wrote"
    )


def format_of(folder: str) -> str | None:
    """The format of the archive in that directory; None where none can be seen."""
    made = description(folder)
    return None if made is None else str(made["format"])


def description(folder: str) -> dict[str, Any] | None:
    """How an archive was made; None where there is none, or one that only Spark can judge."""
    try:
        with open(os.path.join(folder, DESCRIPTION), encoding="utf-8") as file:
            content = json.load(file)
        return content if content["format"] and content["partition_by"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
