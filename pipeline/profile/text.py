"""A profile for the terminal: what is odd first, then tables."""

from __future__ import annotations

from pipeline.profile.codecs import CodecUse
from pipeline.profile.odd import odd
from pipeline.profile.topic_profile import (
    FIELD_NAMES,
    PERCENTILE_NAMES,
    Format,
    TopicProfile,
    field_row,
    fields_left_out,
    per_second,
    percent,
    span_name,
    totals_by_span,
)
from pipeline.progress import human_bytes, many, rate, shown, table, utc

_WIDEST = 90
"""Characters of a reason; the column and the page have all of it."""


def summary(profile: TopicProfile) -> str:
    """The terminal's view."""
    rows = [
        [
            one.partition, one.records, one.first_offset, one.last_offset, one.missing,
            human_bytes(one.key_bytes + one.value_bytes), one.keys, one.null_keys, one.null_values,
            one.late, utc(one.first_ms), utc(one.last_ms), per_second(one),
        ]
        for one in profile.partitions
    ]  # fmt: skip
    sizes = zip(PERCENTILE_NAMES, profile.percentiles, strict=True)
    keys = [[shown(one.key), one.records, human_bytes(one.bytes)] for one in profile.top_keys]
    lines = [
        f"topic {profile.topic} ({profile.source})",
        *(f"! {one}" for one in odd(profile)),
        "",
        table(
            ["partition", "records", "first", "last", "missing", "bytes", "keys (about)",
             "null keys", "tombstones", "late", "from (UTC)", "to (UTC)", "records/s"],
            rows,
        ),
        "",
        f"{many(profile.records, 'record')}, {human_bytes(profile.bytes)} of keys and values,"
        f" about {many(profile.keys, 'key')}",
        *_empty_partitions(profile),
        "record size  " + "  ".join(f"{name} {human_bytes(size)}" for name, size in sizes),
        "values       " + ", ".join(share(one, profile.records) for one in profile.formats),
    ]  # fmt: skip
    if profile.codecs:
        whole = sum(one.records for one in profile.codecs)
        lines.append("codecs       " + ", ".join(share(one, whole) for one in profile.codecs))
    lines += [
        f"busiest      {_busiest(profile)}",
        f"gaps         {profile.gap_count:,}"
        + (f", the largest {_gap(profile.gaps[0])}" if profile.gaps else ""),
        "",
        table(["top keys", "records", "bytes"], keys[:10]),
        "",
        *_fields(profile),
        f"profiled {many(profile.records, 'row')} in {profile.seconds:.1f} s"
        f" ({rate(profile.records, profile.seconds)})",
    ]
    return "\n".join(lines)


def _empty_partitions(profile: TopicProfile) -> list[str]:
    there, count = len(profile.partitions), profile.all_partitions
    return [f"partitions   {there} of {count} have records"] if there < count else []


def _fields(profile: TopicProfile) -> list[str]:
    """What is known of decoded keys and values."""
    lines: list[str] = []
    if profile.fields:
        rows_of_fields = [field_row(profile, one) for one in profile.fields]
        lines += [table(FIELD_NAMES, rows_of_fields), *fields_left_out(profile), ""]
    if profile.problems:
        rows = [[one.records, one.side, _short(one.problem)] for one in profile.problems]
        lines += [table(["records", "not decoded", "why"], rows), ""]
    return lines


def _short(problem: str) -> str:
    return problem if len(problem) <= _WIDEST else problem[:_WIDEST] + "..."


def share(one: Format | CodecUse, whole: int) -> str:
    """`JSON 98.2 %`."""
    return f"{one.name} {percent(one.records, whole)}"


def _gap(gap: tuple[int, int, int]) -> str:
    partition, first, count = gap
    return f"{many(count, 'offset')} from {first:,} in partition {partition}"


def _busiest(profile: TopicProfile) -> str:
    spans = totals_by_span(profile)
    start = max(spans, key=lambda one: spans[one])
    per_s = spans[start] * 1000 / profile.span_ms
    name = span_name(profile.span_ms)
    return f"{name} from {utc(start)} on, {many(spans[start], 'record')} ({per_s:,.2f}/s)"
