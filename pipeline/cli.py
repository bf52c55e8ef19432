"""The flags of `barnabas pipeline archive | replay | rescue | segments | profile`, and what runs
them.

PySpark is imported only when a command runs, so the `barnabas` command stays fast. Results go to
standard output, progress and errors to stderr: one line that names the problem and the next step.
Exit codes: 0 done, 1 failed, 2 wrong flags, 130 Ctrl-C (143 SIGTERM).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    PipelineError,
    from_os,
    not_installed,
)
from pipeline.flag_values import (
    client_file,
    duration_ms,
    interval_ms,
    names,
    pair,
    pattern,
    positive,
    rate,
    time_ms,
    topic_name,
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
from pipeline.spark.table_formats import FORMATS
from pipeline.typed.columns import check_formats
from pipeline.typed.flags import add_flags, typed_options

if TYPE_CHECKING:
    from pipeline.spark.session import Job


_OF_THE_EXTRA = frozenset(("numpy", "pandas", "pyarrow", "pyspark"))
_GRACE_MS = 3_600_000  # of --compact


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"barnabas: {message}; see {self.prog} --help\n")


def add_commands(subparsers: Any) -> None:
    """Hook `pipeline` into the command line of `barnabas`."""
    parser = subparsers.add_parser(
        "pipeline",
        help="Spark jobs: archive topics, replay them, rescue a dead broker, profile a topic",
        description="Spark jobs around any Kafka-compatible broker; local[*] unless --master or"
        " Spark's own configuration says otherwise. Needs Java 17 and: pip install"
        " 'barnabas[spark]'.",
    )
    add_pipeline_parsers(parser)


def run_command(arguments: list[str]) -> int:
    """`barnabas pipeline ARGUMENTS`; the exit code. Wrong flags raise SystemExit(2)."""
    parser = _Parser(
        prog="barnabas pipeline", description="Spark jobs around a Kafka-compatible broker."
    )
    add_pipeline_parsers(parser)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


def add_pipeline_parsers(parser: argparse.ArgumentParser) -> None:
    """The five commands below `parser`; without one it prints its help."""

    def print_help(_arguments: argparse.Namespace) -> int:
        parser.print_help()
        return EXIT_USAGE

    parser.set_defaults(run=print_help)
    commands = parser.add_subparsers(
        dest="pipeline_command", metavar="COMMAND", title="commands", parser_class=_Parser
    )
    _add_archive(commands)
    _add_replay(commands)
    _add_rescue(commands)
    _add_segments(commands)
    _add_profile(commands)


def _add_archive(commands: Any) -> None:
    parser = commands.add_parser(
        "archive",
        help="topics into a lake, every record once",
        description="Archive topics into a directory, exactly once over restarts: stop it, kill it,"
        " run the same command again.",
    )
    _add_bootstrap(parser, "the broker(s)")
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument("--topics", metavar="A,B", type=names, help="topics by name")
    topics.add_argument(
        "--pattern", metavar="P", type=pattern, help="all topics whose whole name matches"
    )
    parser.add_argument("--to", metavar="DIR", required=True, help="the archive (any Spark path)")
    parser.add_argument("--format", choices=FORMATS, default="parquet")
    parser.add_argument("--partition-by", choices=["day", "hour"], default="day")
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--available-now", action="store_true", help="all there is now, then end (the default)"
    )
    when.add_argument("--every", metavar="30s", type=interval_ms, help="go on, one batch each time")
    when.add_argument(
        "--compact",
        action="store_true",
        help="merge the small files of an archive; no broker needed",
    )
    parser.add_argument(
        "--max-per-trigger", metavar="N", type=positive, default=2_000_000,
        help="records of one batch (2,000,000)",
    )  # fmt: skip
    parser.add_argument(
        "--skip-lost", action="store_true", help="go on when records were deleted before archiving"
    )
    _add_dry_run(parser)
    parser.add_argument(
        "--grace", metavar="1h", type=duration_ms,
        help="with --compact: keep replaced files so long for running readers (1h)",
    )  # fmt: skip
    add_flags(parser)
    _add_spark(parser, client=True)
    parser.set_defaults(run=_told(_archive))


def _add_replay(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="an archive back into topics, verified",
        description="Restore topics with keys, headers and timestamps; counts and checksums are"
        " compared at the end.",
    )
    parser.add_argument("--from", metavar="DIR", dest="source", required=True, help="the archive")
    _add_bootstrap(parser, "the broker(s)", required=True)
    _add_format_hint(parser)
    names = parser.add_mutually_exclusive_group()
    names.add_argument(
        "--topic", metavar="T", type=topic_name, help="only this topic (or rename the only one)"
    )
    names.add_argument(
        "--topic-prefix", metavar="P", type=topic_name, help="put P before each name"
    )
    parser.add_argument("--since", metavar="TS", type=time_ms, help="records from this time on")
    parser.add_argument("--until", metavar="TS", type=time_ms, help="records before this time")
    parser.add_argument(
        "--keep-partitions", action="store_true", help="same partition, same order within it"
    )
    parser.add_argument("--rate", metavar="N", type=rate, help="at most N records a second")
    parser.add_argument("--append", action="store_true", help="also into topics that hold records")
    parser.add_argument(
        "--id", metavar="NAME", type=topic_name, help="send all again beside an earlier replay"
    )
    parser.add_argument(
        "--groups",
        choices=["missing", "overwrite", "none"],
        default="missing",
        help="committed offsets of groups: set those that a group has not (the default), or all",
    )
    parser.add_argument(
        "--client",
        choices=["confluent", "kafka-python"],
        help="what executors write with (confluent where they have it)",
    )
    _add_dry_run(parser)
    _add_spark(parser, client=True)
    parser.set_defaults(run=_told(_replay))


def _add_rescue(commands: Any) -> None:
    parser = commands.add_parser(
        "rescue",
        help="all topics and groups of a broker that does not start any more, into an archive",
        description="Take everything from the log directories of a broker that does not run:"
        " topics with their configs, records, committed offsets of groups; into an archive for"
        " replay. The directories are only read.",
    )
    parser.add_argument("data_dir", metavar="DATA_DIR", help="its log directory (several: commas)")
    parser.add_argument("--to", metavar="DIR", required=True, help="the archive, a new directory")
    skipped = "leave out what is damaged of the logs, and say which offsets: reads them twice"
    parser.add_argument("--skip-damaged", action="store_true", help=skipped)
    _add_dry_run(parser)
    _add_spark(parser, client=False)
    parser.set_defaults(run=_told(_rescue))


def _add_segments(commands: Any) -> None:
    parser = commands.add_parser(
        "segments",
        help="read a broker's log directory in place, without the broker",
        description="Read the segments of topics from a broker's log directory (Barnabas or Apache"
        " Kafka, running or not); with --to, write them as an archive.",
    )
    parser.add_argument("data_dir", metavar="DATA_DIR", help="log directory (several: commas)")
    parser.add_argument("--topic", metavar="A,B", type=names, required=True, help="topics by name")
    parser.add_argument("--to", metavar="DIR", help="write an archive (Parquet)")
    parser.add_argument(
        "--offsets",
        metavar="RANGE",
        default="",
        help="FROM-TO or PARTITION:FROM-TO,...; TO exclusive",
    )
    parser.add_argument("--since", metavar="TS", type=time_ms, help="records from this time on")
    parser.add_argument(
        "--log-end", action="store_true", help="read beyond the high watermark, to the log's end"
    )
    _add_dry_run(parser)
    add_flags(parser)
    _add_spark(parser, client=False)
    parser.set_defaults(run=_told(_segments))


def _add_profile(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="counts, rates, keys, sizes and gaps of a topic",
        description="Profile a topic from a broker, from an archive, or straight from a broker's"
        " log directory.",
    )
    parser.add_argument("data_dir", metavar="DATA_DIR", nargs="?", help="log directory")
    _add_bootstrap(parser, "the broker, instead of DATA_DIR")
    parser.add_argument(
        "--from", metavar="DIR", dest="source", help="an archive, instead of DATA_DIR"
    )
    _add_format_hint(parser)
    parser.add_argument("--topic", metavar="T", required=True)
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page with plots")
    add_flags(parser)
    _add_spark(parser, client=True)
    parser.set_defaults(run=_told(_profile))


def _add_bootstrap(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    parser.add_argument(
        "--bootstrap", "--bootstrap-server", metavar="HOST:PORT", required=required, help=what
    )


def _add_format_hint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=FORMATS,
        help="of the archive; needed for delta and iceberg that are not on this machine's disk",
    )  # fmt: skip


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, with totals; do nothing"
    )


def _add_spark(parser: argparse.ArgumentParser, *, client: bool) -> None:
    parser.add_argument(
        "--master", metavar="URL", help="Spark master (Spark's own default: local[*])"
    )
    parser.add_argument(
        "--conf", metavar="K=V", type=pair, action="append", default=[], help="a Spark setting"
    )
    if client:
        parser.add_argument(
            "--client-config", metavar="FILE", type=client_file, default={},
            help="how to connect, by properties of Kafka's Java client (security.protocol, ...)",
        )  # fmt: skip
        parser.add_argument(
            "--client-property", metavar="K=V", type=pair, action="append", default=[],
            help="one of them, which wins over the file's",
        )  # fmt: skip


def _client(arguments: argparse.Namespace) -> dict[str, str]:
    return {**arguments.client_config, **dict(arguments.client_property)}


# ---- the commands


def _archive(arguments: argparse.Namespace) -> int:
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


def _replay(arguments: argparse.Namespace) -> int:
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


def _rescue(arguments: argparse.Namespace) -> int:
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


def _segments(arguments: argparse.Namespace) -> int:
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


def _profile(arguments: argparse.Namespace) -> int:
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


def _told(
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
