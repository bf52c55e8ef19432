"""What `barnabas pipeline archive | replay | rescue | segments | profile` do with their flags.

PySpark is imported only when a command runs, so the `barnabas` command stays fast; mistakes that
need no Spark to be seen are told before it starts. Results go to standard output, progress and
errors to stderr: one line that names the problem and the next step. Exit codes: 0 done, 1 failed,
2 wrong flags, 130 Ctrl-C (143 SIGTERM).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pipeline.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    PipelineError,
    from_os,
    not_installed,
)
from pipeline.preflight import (
    check_compaction,
    check_empty,
    check_new,
    check_source,
    check_target,
    check_times,
    check_topics,
    description,
    format_of,
    local_directory,
)
from pipeline.typed.columns import check_formats
from pipeline.typed.flags import typed_options

if TYPE_CHECKING:
    from pipeline.spark.session import Job

_OF_THE_EXTRA = frozenset(("numpy", "pandas", "pyarrow", "pyspark"))
_GRACE_MS = 3_600_000  # of --compact


def archive(arguments: argparse.Namespace) -> int:
    """Topics into files, or, with --compact, fewer files of them; the exit code."""
    from pipeline.archive import archive, compaction

    def compact(job: Job) -> int:
        grace_ms = _GRACE_MS if arguments.grace is None else arguments.grace
        _say(job, compaction.summary(compaction.run_compaction(job, arguments.to, grace_ms)))
        return EXIT_OK

    def run(job: Job) -> int:
        options = archive.ArchiveOptions(
            arguments.bootstrap,
            arguments.to,
            arguments.topics or (),
            arguments.pattern,
            arguments.format,
            arguments.partition_by,
            arguments.every,
            arguments.max_per_trigger,
            arguments.skip_lost,
            arguments.dry_run,
            _client(arguments),
            typed,
        )
        totals = archive.run_archive(job, options)
        _say(job, archive.summary(job, options, totals))
        return 128 + totals.stopped_by if totals.stopped_by else EXIT_OK

    if arguments.compact:
        check_compaction(vars(arguments))
        return _with_spark(
            arguments, "barnabas-compact", compact, needs_kafka=False, archive=arguments.to,
            check=_on_disk(arguments, arguments.to, partial(check_source, flag="--to")),
        )  # fmt: skip
    if arguments.grace is not None:
        raise PipelineError("--grace goes with --compact: an archive replaces no file", EXIT_USAGE)
    if arguments.bootstrap is None or not (arguments.topics or arguments.pattern):
        raise PipelineError("archive needs --bootstrap and --topics or --pattern", EXIT_USAGE)
    typed = typed_options(arguments)

    def check(to: str, folder: str) -> None:
        check_target(to, folder, (arguments.format, arguments.partition_by))
        made = description(folder)
        if made is not None:  # it may have topics of old, and one that goes on may wait for some
            check_formats(to, made.get("typed"), typed)
        else:
            check_empty(to, folder)
            awaited = arguments.pattern if arguments.every is None else None
            check_topics(arguments.bootstrap, arguments.topics or (), _client(arguments), awaited)

    return _with_spark(
        arguments, "barnabas-archive", run, bootstrap=arguments.bootstrap,
        check=_on_disk(arguments, arguments.to, check), archive=arguments.to,
    )  # fmt: skip


def replay(arguments: argparse.Namespace) -> int:
    """An archive into topics; the exit code."""
    from pipeline.replay import replay

    options = replay.ReplayOptions(
        arguments.source,
        arguments.bootstrap,
        arguments.topic,
        arguments.topic_prefix or "",
        arguments.since,
        arguments.until,
        arguments.keep_partitions,
        arguments.rate,
        arguments.append,
        arguments.id,
        arguments.groups,
        arguments.client or "auto",
        arguments.dry_run,
        _client(arguments),
    )

    check_times(options.since_ms, options.until_ms)

    def run(job: Job) -> int:
        totals = replay.run_replay(job, options)
        _say(job, replay.summary(options, totals))
        if options.dry_run or totals.matches:
            return EXIT_OK
        raise PipelineError(totals.difference())

    def check() -> None:
        replay.client_settings(options)
        _on_disk(arguments, options.source, check_archived)()

    def check_archived(source: str, folder: str) -> None:
        check_source(source, folder)
        if options.topic is not None and (archived := _archived_topics(folder)) is not None:
            replay.target_names(sorted(archived[1]), options.topic, options.topic_prefix)

    return _with_spark(
        arguments, "barnabas-replay", run, conf=replay.NO_COPIES, bootstrap=arguments.bootstrap,
        check=check, archive=arguments.source,
    )  # fmt: skip


def _on_disk(
    arguments: argparse.Namespace, path: str, check: Callable[[str, str], None]
) -> Callable[[], None]:
    """`check(path, directory)` for what is a directory of this machine, and nothing else."""

    def run() -> None:
        folder = local_directory(path, arguments.master, dict(arguments.conf))
        if folder is not None:
            check(path, folder)

    return run


def rescue(arguments: argparse.Namespace) -> int:
    """A dead broker's directories into an archive; the exit code."""
    from pipeline.rescue import dead_broker, rescue

    options = rescue.RescueOptions(arguments.data_dir.split(","), arguments.to)

    def run(job: Job) -> int:
        _say(job, rescue.summary(options, broker, rescue.run_rescue(job, options, broker)))
        return EXIT_OK

    _on_disk(arguments, options.to, check_new)()
    with dead_broker.held(options.paths):
        broker = dead_broker.look(options.paths, skips_damaged=arguments.skip_damaged)
        rescue.require_topics(broker, options)
        if arguments.dry_run:
            print(rescue.summary(options, broker, None))
            return EXIT_OK
        return _with_spark(arguments, "barnabas-rescue", run, needs_kafka=False)


def segments(arguments: argparse.Namespace) -> int:
    """Records of a log directory, as a table or into files; the exit code."""
    from pipeline.segments import segments

    def run(job: Job) -> int:
        totals = segments.run_segments(job, options)
        _say(job, segments.summary(options, totals))
        return EXIT_OK

    starts, ends = segments.parse_offsets(arguments.offsets) if arguments.offsets else ({}, {})
    options = segments.SegmentsOptions(
        arguments.data_dir,
        arguments.topic,
        arguments.to,
        starts,
        ends,
        arguments.since,
        arguments.log_end,
        arguments.dry_run,
        typed_options(arguments),
    )
    plans = segments.plan_segments(options)  # a wrong directory is known before Spark starts
    if options.to is not None:
        _on_disk(arguments, options.to, check_new)()
    if options.dry_run:
        print(segments.summary(options, segments.SegmentsTotals(plans)))
        return EXIT_OK
    return _with_spark(arguments, "barnabas-segments", run, needs_kafka=False)


def profile(arguments: argparse.Namespace) -> int:
    """A page about a topic; the exit code."""
    from pipeline.profile import page, text, topic_profile
    from pipeline.segments import segments

    given = (arguments.bootstrap, arguments.data_dir, arguments.source)
    if given.count(None) != 2:
        raise PipelineError("profile needs one of --bootstrap, --from and DATA_DIR", EXIT_USAGE)

    def run(job: Job) -> int:
        found = topic_profile.run_profile(job, options)
        _say(job, text.summary(found))
        if options.html is not None:
            page.write(page.page(found), options.html)
            print(f"page: {options.html}")
        return EXIT_OK

    options = topic_profile.ProfileOptions(
        arguments.topic,
        arguments.bootstrap,
        arguments.data_dir,
        arguments.html,
        _client(arguments),
        typed_options(arguments),
        arguments.source,
    )
    if options.data_dir is not None:
        segments.plan_segments(segments.SegmentsOptions(options.data_dir, (options.topic,)))
    if options.html is not None:
        page.check_place(options.html)  # known before the work, not after it
    return _with_spark(
        arguments, "barnabas-profile", run, needs_kafka=options.bootstrap is not None,
        bootstrap=options.bootstrap, archive=options.archive,
        check=lambda: _check_profiled(arguments),
    )  # fmt: skip


def _check_profiled(arguments: argparse.Namespace) -> None:
    from pipeline.profile.topic_profile import require_archived

    def check(source: str, folder: str) -> None:
        check_source(source, folder)
        if (archived := _archived_topics(folder)) is not None:
            require_archived(source, arguments.topic, archived[0])

    if arguments.bootstrap is not None:
        properties = _client(arguments)
        check_topics(arguments.bootstrap, [arguments.topic], properties)
    if arguments.source is not None:
        _on_disk(arguments, arguments.source, check)()


def _archived_topics(folder: str) -> tuple[set[str], set[str]] | None:
    """The topics of an archive (`listing.topics`), where its files tell them without Spark."""
    from pipeline.archive import listing

    if format_of(folder) not in ("parquet", "orc"):
        return None
    try:
        return listing.topics(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # what is wrong with it is told by who reads all of it


def _with_spark(
    arguments: argparse.Namespace,
    name: str,
    run: Callable[[Job], int],
    *,
    needs_kafka: bool = True,
    conf: dict[str, str] | None = None,
    bootstrap: str | None = None,
    check: Callable[[], None] | None = None,
    archive: str | None = None,
) -> int:
    from pipeline.spark.kafka_admin import check_reachable
    from pipeline.spark.session import open_session

    settings = dict(conf or {}) | dict(arguments.conf)
    if bootstrap is not None:
        check_reachable(bootstrap)  # before the seconds that Spark takes to start
    if check is not None:
        check()
    with open_session(
        name, master=arguments.master, conf=settings, needs_kafka=needs_kafka,
        formats=_formats(arguments, archive),
    ) as job:  # fmt: skip
        return run(job)


def told(
    command: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """`command`, whose failures are one line and an exit code, wherever they arise."""

    def run(arguments: argparse.Namespace) -> int:
        try:
            code = command(arguments)
            sys.stdout.flush()  # as long as somebody can be told what goes wrong
            return code
        except BrokenPipeError:  # `| head` has gone: no failure, and nothing is left to say
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK
        except PipelineError as error:
            return _fail(error)
        except OSError as error:
            return _fail(from_os(error))
        except ModuleNotFoundError as error:
            if error.name not in _OF_THE_EXTRA:
                raise
            return _fail(not_installed(str(error.name)))
        except KeyboardInterrupt as stop:
            from pipeline.spark.session import signal_of

            print("barnabas: stopped", file=sys.stderr)
            return 128 + signal_of(stop)

    return run


def _formats(arguments: argparse.Namespace, archive: str | None) -> list[str]:
    """That the archive is made of: as it says itself, where that can be seen without Spark."""
    if archive is None:
        return []
    folder = local_directory(archive, arguments.master, dict(arguments.conf))
    return [(folder and format_of(folder)) or arguments.format or "parquet"]


def _say(job: Job, text: str) -> None:
    """Results, on a line of their own."""
    job.progress.clear()
    print(text)


def _fail(error: PipelineError) -> int:
    print(f"barnabas: {error}", file=sys.stderr)
    return error.exit_code or EXIT_FAILURE


def _client(arguments: argparse.Namespace) -> dict[str, str]:
    return {**arguments.client_config, **dict(arguments.client_property)}
