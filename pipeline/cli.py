"""The flags of `barnabas pipeline archive | replay | rescue | segments | profile`.

What they do: `pipeline.commands`.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from pipeline import commands
from pipeline.errors import (
    EXIT_USAGE,
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
from pipeline.spark.table_formats import FORMATS
from pipeline.typed.flags import add_flags


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
    subparsers = parser.add_subparsers(
        dest="pipeline_command", metavar="COMMAND", title="commands", parser_class=_Parser
    )
    _add_archive(subparsers)
    _add_replay(subparsers)
    _add_rescue(subparsers)
    _add_segments(subparsers)
    _add_profile(subparsers)


def _add_archive(subparsers: Any) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(run=commands.told(commands.archive))


def _add_replay(subparsers: Any) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(run=commands.told(commands.replay))


def _add_rescue(subparsers: Any) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(run=commands.told(commands.rescue))


def _add_segments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(run=commands.told(commands.segments))


def _add_profile(subparsers: Any) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(run=commands.told(commands.profile))


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
