"""One self-contained page of a topic's profile: HTML and CSS, no script, nothing to load.

Opens from a mail or a ticket years later. First what is odd, then the facts; plots of records over
time, partitions, sizes, keys, kinds of values and codecs. Bars are boxes of the page itself, so
that figures beside them have one size on a telephone and on a wide screen; each carries its exact
figure as a tooltip. Light and dark by the reader's system.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import NamedTuple

from pipeline.profile.odd import odd
from pipeline.profile.topic_profile import (
    FIELD_NAMES,
    PERCENTILE_NAMES,
    TopicProfile,
    field_row,
    fields_left_out,
    per_second,
    percent,
    span_name,
    totals_by_span,
)
from pipeline.progress import human_bytes, many, shown, utc

_DAY_MS = 86_400_000

_STYLE = """
:root { color-scheme:light dark; --ink:#1d2733; --soft:#55626f; --line:#d5dce3; --bar:#2a6fb0;
  --bar2:#b86a10; --page:#fff; --card:#f4f6f8; --odd:#fff4e0 }
@media (prefers-color-scheme: dark) { :root { --ink:#e6ebf0; --soft:#a3b0bc; --line:#333d47;
  --bar:#5aa2e6; --bar2:#e6a04d; --page:#14191f; --card:#1c232b; --odd:#33281a } }
* { box-sizing:border-box }
body { font:15px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--page);
  max-width:1000px; margin:1.5rem auto; padding:0 1rem; overflow-wrap:anywhere }
h1 { font-size:1.5rem; line-height:1.2; margin:0 } h2 { font-size:1.05rem; margin:2rem 0 .5rem }
.soft { color:var(--soft); margin:.2rem 0 } .small { font-size:.85rem }
.odd { background:var(--odd); border-left:4px solid var(--bar2); border-radius:4px;
  padding:.5rem .9rem; margin:1rem 0 } .odd ul { margin:0; padding-left:1.1rem }
.facts { display:grid; grid-template-columns:repeat(auto-fill,minmax(150px,1fr)); gap:.6rem;
  margin:1rem 0 }
.fact { background:var(--card); border-radius:8px; padding:.5rem .75rem }
.fact b { display:block; font-size:1.1rem; font-variant-numeric:tabular-nums }
.fact span { color:var(--soft); font-size:.85rem }
.time { display:flex; align-items:flex-end; gap:1px; height:160px;
  border-bottom:1px solid var(--line) }
.time i { flex:1 1 0; min-width:1px; background:var(--bar) }
.axis { display:flex; justify-content:space-between; color:var(--soft); font-size:.85rem;
  font-variant-numeric:tabular-nums }
.rows { display:grid; grid-template-columns:minmax(3rem,max-content) 1fr max-content;
  gap:.25rem .6rem; align-items:center; font-size:.88rem; font-variant-numeric:tabular-nums }
.rows > span { max-width:38vw; text-align:right } .rows em { font-style:normal; color:var(--soft);
  text-align:right }
.rows i { display:block; height:.95rem; min-width:1px; background:var(--bar); border-radius:2px }
.rows.other i { background:var(--bar2) }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100%; font-size:.84rem }
th, td { text-align:right; padding:.3rem .45rem; border-bottom:1px solid var(--line);
  font-variant-numeric:tabular-nums; white-space:nowrap; overflow-wrap:normal }
th { color:var(--soft); font-weight:600 }
.text { text-align:left; white-space:normal; overflow-wrap:anywhere; min-width:5rem }
"""


class _Bar(NamedTuple):
    label: str
    value: int
    text: str
    """What stands beside the bar."""
    tip: str


def page(profile: TopicProfile) -> str:
    """The whole page."""
    title = f"Topic {profile.topic}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(profile.source)}, profiled by Barnabas</p>',
        _odd(profile),
        _facts(profile),
        "<h2>Records over time (UTC)</h2>",
        _over_time(profile),
        "<h2>Records by partition</h2>",
        _by_partition(profile),
        "<h2>Record sizes (key and value)</h2>",
        _sizes(profile),
        "<h2>Most frequent keys</h2>",
        _keys(profile),
        "<h2>What values look like</h2>",
        _formats(profile),
        _codecs(profile),
        _field_tables(profile),
        "<h2>Partitions</h2>",
        _partition_table(profile),
        _gap_table(profile),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(sections)
        + "</body></html>\n"
    )


def check_place(path: str) -> None:
    """Raise OSError unless a page can be written there; nothing is changed."""
    place, draft = _places(path)
    open(draft, "a", encoding="utf-8").close()
    if draft != place:
        os.unlink(draft)


def write(text: str, path: str) -> None:
    """Write a page whole, or leave what was there. Raises OSError."""
    place, draft = _places(path)
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
        if draft != place:
            os.replace(draft, place)
    except OSError:
        if draft != place:
            with suppress(OSError):
                os.unlink(draft)
        raise


def _places(path: str) -> tuple[str, str]:
    """Where a page is to be, and where it is written first: the same of what is no plain file."""
    if os.path.exists(path) and not os.path.isfile(path):
        return path, path
    place = os.path.realpath(path)
    return place, f"{place}.tmp"


def _odd(profile: TopicProfile) -> str:
    found = odd(profile)
    if not found:
        return '<p class="soft">Nothing odd was found.</p>'
    items = "".join(f"<li>{escape(one)}</li>" for one in found)
    return f'<div class="odd"><ul>{items}</ul></div>'


def _facts(profile: TopicProfile) -> str:
    first = min(one.first_ms for one in profile.partitions)
    last = max(one.last_ms for one in profile.partitions)
    missing = sum(one.missing for one in profile.partitions)
    null_keys = sum(one.null_keys for one in profile.partitions)
    facts = [
        (f"{profile.records:,}", "records"),
        (human_bytes(profile.bytes), "keys and values"),
        (f"{len(profile.partitions)} of {profile.all_partitions}", "partitions with records"),
        (f"about {profile.keys:,}", "different keys"),
        (f"{null_keys:,}", "records without a key"),
        (f"{sum(one.null_values for one in profile.partitions):,}", "tombstones"),
        (f"{sum(one.late for one in profile.partitions):,}", "late by over a minute"),
        (f"{missing:,}", f"missing offsets in {profile.gap_count:,} gaps"),
        (_minute(first), "first record"),
        (_minute(last), "last record"),
    ]
    return (
        '<div class="facts">'
        + "".join(
            f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for value, name in facts
        )
        + "</div>"
    )


def _minute(ms: int) -> str:
    return utc(ms)[:-3] or "-"


def buckets(profile: TopicProfile) -> list[tuple[int, int]]:
    """(start in ms, records) of each span from the first to the last, the empty ones too."""
    spans = totals_by_span(profile)
    return [
        (start, spans.get(start, 0)) for start in range(min(spans), max(spans) + 1, profile.span_ms)
    ]


def _over_time(profile: TopicProfile) -> str:
    bars = buckets(profile)
    highest = max(count for _, count in bars)
    parts = "".join(
        f'<i style="height:{100 * count / highest:.2f}%" title="{utc(start)}: {count:,} records">'
        "</i>"
        for start, count in bars
    )
    first, last = bars[0][0], bars[-1][0] + profile.span_ms
    # From the end: a year may have five digits.
    part = slice(None, -9) if last - first > 60 * _DAY_MS else slice(-14, -3)
    if last - first < 600_000:
        part = slice(-8, None)
    middle = bars[len(bars) // 2][0]
    moments = (first, middle, last) if len(bars) > 2 else (first, last)
    axis = "".join(f"<span>{utc(one)[part]}</span>" for one in moments)
    return (
        f'<p class="soft small">up to {highest:,} records in a bar of'
        f" {span_name(profile.span_ms)}</p>"
        f'<div class="time">{parts}</div><div class="axis">{axis}</div>'
    )


def _by_partition(profile: TopicProfile) -> str:
    return _rows(
        [
            _Bar(
                str(one.partition),
                one.records,
                f"{one.records:,} ({human_bytes(one.key_bytes + one.value_bytes)})",
                f"{percent(one.records, profile.records)} of the records",
            )
            for one in profile.partitions
        ]
    )


def _sizes(profile: TopicProfile) -> str:
    bars = []
    for low, high, count in profile.sizes:
        label = "empty" if high == 0 else f"{_bytes(low)} to {_bytes(high)}" if high > low else (
            _bytes(low)
        )  # fmt: skip
        bars.append(
            _Bar(label, count, percent(count, profile.records), f"{low:,} to {high:,} bytes:"
                 f" {count:,} records")
        )  # fmt: skip
    percentiles = ", ".join(
        f"{name} {human_bytes(size)}"
        for name, size in zip(PERCENTILE_NAMES, profile.percentiles, strict=True)
    )
    return _rows(bars) + f'<p class="soft small">{escape(percentiles)}</p>'


def _bytes(count: int) -> str:
    return f"{count:,} B" if count < 10_000 else human_bytes(count)


def _keys(profile: TopicProfile) -> str:
    return _rows(
        [
            _Bar(
                shown(one.key, 24),
                one.records,
                f"{one.records:,} ({percent(one.records, profile.records)})",
                f"{shown(one.key)}: {many(one.records, 'record')}, {human_bytes(one.bytes)}"
                + (f", partition {one.partition}" if one.partition is not None else ""),
            )
            for one in profile.top_keys
        ],
        "other",
    )


def _formats(profile: TopicProfile) -> str:
    return _rows(
        [
            _Bar(
                one.name,
                one.records,
                percent(one.records, profile.records),
                f"{one.records:,} values, {human_bytes(one.bytes)}",
            )
            for one in profile.formats
        ],
        "other",
    )


def _field_tables(profile: TopicProfile) -> str:
    parts: list[str] = []
    if profile.fields:
        rows = [field_row(profile, one) for one in profile.fields]
        parts += ["<h2>Fields</h2>", _table(FIELD_NAMES, rows, texts=("field", "type"))]
        parts += [f'<p class="soft small">{one}</p>' for one in fields_left_out(profile)]
    if profile.problems:
        reasons = [[f"{one.records:,}", one.side, one.problem] for one in profile.problems]
        names = ["records", "side", "why"]
        parts += ["<h2>Not decoded</h2>", _table(names, reasons, texts=("side", "why"))]
    return "".join(parts)


def _codecs(profile: TopicProfile) -> str:
    if not profile.codecs:
        return ""
    whole = sum(one.records for one in profile.codecs)
    bars = [
        _Bar(
            one.name,
            one.records,
            f"{percent(one.records, whole)}, {human_bytes(one.bytes)}",
            f"{one.records:,} records in {one.batches:,} batches",
        )
        for one in profile.codecs
    ]
    return "<h2>Codecs (bytes as stored)</h2>" + _rows(bars, "other")


def _width(value: int, highest: int) -> str:
    """What is rare is seen as a line, what is not there is not seen."""
    return f"width:{100 * value / highest:.2f}%" if value else "width:0;min-width:0"


def _rows(bars: Sequence[_Bar], kind: str = "") -> str:
    """Bars under each other: label, bar, figure."""
    highest = max([1, *(bar.value for bar in bars)])
    cells = "".join(
        f"<span>{escape(bar.label)}</span>"
        f'<i style="{_width(bar.value, highest)}" title="{escape(bar.tip)}"></i>'
        f"<em>{escape(bar.text)}</em>"
        for bar in bars
    )
    return f'<div class="rows {kind}">{cells}</div>'


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[str] = ()
) -> str:
    """Figures to the right; the columns `texts` to the left, in as many lines as they need."""
    kinds = [' class="text"' if name in texts else "" for name in headings]

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )

    head = line(headings, "th")
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _partition_table(profile: TopicProfile) -> str:
    rows = [
        [
            str(one.partition), f"{one.records:,}", f"{one.first_offset:,}", f"{one.last_offset:,}",
            f"{one.missing:,}", human_bytes(one.key_bytes + one.value_bytes), f"{one.keys:,}",
            f"{one.null_keys:,}", f"{one.null_values:,}", f"{one.late:,}", _minute(one.first_ms),
            _minute(one.last_ms), per_second(one),
        ]
        for one in profile.partitions
    ]  # fmt: skip
    return _table(
        ["partition", "records", "first", "last", "missing", "bytes", "keys (about)",
         "null keys", "tombstones", "late", "from (UTC)", "to (UTC)", "records/s"],
        rows,
    )  # fmt: skip


def _gap_table(profile: TopicProfile) -> str:
    if not profile.gaps:
        return ""
    rows = [
        [str(partition), f"{first:,}", f"{count:,}"] for partition, first, count in profile.gaps
    ]
    return (
        f"<h2>Gaps ({profile.gap_count:,}; the largest)</h2>"
        '<p class="soft small">Offsets without a record: transaction markers, aborted'
        " transactions, compaction.</p>" + _table(["partition", "first missing offset", "offsets"],
                                                  rows)
    )  # fmt: skip
