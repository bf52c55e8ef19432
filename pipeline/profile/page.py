"""One self-contained page of a topic's profile: inline SVG and CSS, no script, nothing to load.

Opens from a mail or a ticket years later. Plots: records over time, bytes by partition, size
distribution, top keys. Every bar carries its exact figure as a tooltip; light and dark by the
reader's system.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from pipeline.profile.topic_profile import PERCENTILE_NAMES, TopicProfile, per_second, show_key, utc
from pipeline.progress import human_bytes

_HOUR_MS = 3_600_000
_BARS_MAX = 120
_WIDTH, _HEIGHT = 880, 240
_LEFT, _BOTTOM, _TOP_MARGIN = 64, 34, 12

_STYLE = """
:root { --ink:#1d2733; --soft:#5b6875; --line:#dde3e9; --bar:#2a6fb0; --bar2:#d98a2b; --page:#fff;
  --card:#f6f8fa }
@media (prefers-color-scheme: dark) { :root { --ink:#e6ebf0; --soft:#9aa7b4; --line:#333d47;
  --bar:#5aa2e6; --bar2:#e6a04d; --page:#14191f; --card:#1c232b } }
body { font:15px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--page);
  max-width:1080px; margin:2rem auto; padding:0 1rem }
h1 { font-size:1.5rem; margin:0 } h2 { font-size:1.05rem; margin:2rem 0 .4rem }
.source, .note { color:var(--soft); margin:.2rem 0 1.2rem } .note { margin:.2rem 0 }
.facts { display:grid; grid-template-columns:repeat(auto-fit,minmax(230px,1fr)); gap:.7rem }
.fact { background:var(--card); border-radius:8px; padding:.6rem .8rem }
.fact b { display:block; font-size:1.2rem; font-variant-numeric:tabular-nums }
.fact span { color:var(--soft); font-size:.85rem }
svg { width:100%; height:auto; display:block } svg text { fill:var(--soft); font-size:12px }
.bar { fill:var(--bar) } .bar2 { fill:var(--bar2) } .grid { stroke:var(--line) }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100%; font-size:.84rem }
th, td { text-align:right; padding:.3rem .4rem; border-bottom:1px solid var(--line);
  font-variant-numeric:tabular-nums; white-space:nowrap }
th { color:var(--soft); font-weight:600 } td.text, th.text { text-align:left }
"""


def page(profile: TopicProfile) -> str:
    """The whole page."""
    title = f"Topic {profile.topic}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="source">{escape(profile.source)}, profiled by Barnabas</p>',
        _facts(profile),
        "<h2>Records over time (UTC)</h2>",
        _over_time(profile),
        "<h2>Bytes by partition</h2>",
        _by_partition(profile),
        "<h2>Record sizes (key and value)</h2>",
        _sizes(profile),
        "<h2>Most frequent keys</h2>",
        _keys(profile),
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


def _facts(profile: TopicProfile) -> str:
    first = min(one.first_ms for one in profile.partitions)
    last = max(one.last_ms for one in profile.partitions)
    missing = sum(one.missing for one in profile.partitions)
    facts = [
        (f"{profile.records:,}", "records"),
        (human_bytes(profile.bytes), "keys and values"),
        (f"{len(profile.partitions)}", "partitions with records"),
        (f"about {profile.keys:,}", "different keys"),
        (f"{sum(one.null_values for one in profile.partitions):,}", "tombstones"),
        (f"{missing:,}", f"missing offsets in {profile.gap_count:,} gaps"),
        (utc(first)[:16], "first record"),
        (utc(last)[:16], "last record"),
    ]
    return (
        '<div class="facts">'
        + "".join(
            f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for value, name in facts
        )
        + "</div>"
    )


def buckets(profile: TopicProfile) -> tuple[list[tuple[int, int]], int]:
    """(start in ms, records) of at most 120 equal spans of whole hours, and a span's hours."""
    hours: dict[int, int] = {}
    for _, hour, count, _ in profile.hours:
        hours[hour] = hours.get(hour, 0) + count
    first, last = min(hours), max(hours)
    span = max(1, ceil(((last - first) // _HOUR_MS + 1) / _BARS_MAX))
    width = span * _HOUR_MS
    counts = [0] * ((last - first) // width + 1)
    for hour, count in hours.items():
        counts[(hour - first) // width] += count
    return [(first + index * width, count) for index, count in enumerate(counts)], span


def _over_time(profile: TopicProfile) -> str:
    spans, hours = buckets(profile)
    bars = [
        (count, utc(start)[5:16], f"{utc(start)[:16]}: {count:,} records") for start, count in spans
    ]
    name = "hour" if hours == 1 else f"{hours} hours"
    return _columns(bars) + f'<p class="note">one bar: {name}</p>'


def _sizes(profile: TopicProfile) -> str:
    present = dict(profile.sizes)
    bars = []
    for number in range(min(present), max(present) + 1):
        count = present.get(number, 0)
        low = 0 if number == 0 else 2 ** (number - 1)
        label = "0" if number == 0 else human_bytes(low).replace(".0 ", " ")
        span = "empty" if number == 0 else f"{low:,} to {2**number - 1:,} bytes"
        bars.append((count, label, f"{span}: {count:,} records"))
    percentiles = ", ".join(
        f"{name} {human_bytes(size)}"
        for name, size in zip(PERCENTILE_NAMES, profile.percentiles, strict=True)
    )
    return _columns(bars) + f'<p class="note">{escape(percentiles)}</p>'


def _by_partition(profile: TopicProfile) -> str:
    bars = [
        (
            one.key_bytes + one.value_bytes,
            str(one.partition),
            f"partition {one.partition}: {human_bytes(one.key_bytes + one.value_bytes)},"
            f" {one.records:,} records",
        )
        for one in profile.partitions
    ]
    return _columns(bars, is_bytes=True)


def _keys(profile: TopicProfile) -> str:
    rows = [(count, show_key(key, 24), size) for key, count, size in profile.top_keys]
    highest = max(count for count, _, _ in rows)
    line, left = 24, 210
    parts = [f'<svg viewBox="0 0 {_WIDTH} {line * len(rows) + 6}" role="img">']
    for index, (count, key, size) in enumerate(rows):
        top = index * line + 4
        width = max(1.0, (_WIDTH - left - 170) * count / highest)
        tip = f"{key}: {count:,} records, {human_bytes(size)}"
        parts.append(
            f'<text x="{left - 8}" y="{top + 13}" text-anchor="end">{escape(key)}</text>'
            f'<rect class="bar2" x="{left}" y="{top}" width="{width:.1f}" height="{line - 7}">'
            f"<title>{escape(tip)}</title></rect>"
            f'<text x="{left + width + 6:.1f}" y="{top + 13}">{count:,}'
            f" ({human_bytes(size)})</text>"
        )
    return "".join(parts) + "</svg>"


def _columns(bars: Sequence[tuple[int, str, str]], is_bytes: bool = False) -> str:
    """A bar chart: (value, label, tooltip) each; labels thinned so that they never touch."""
    highest = max(1, *(value for value, _, _ in bars))
    ceiling, step = _scale(highest, 1024 if is_bytes else 1000)
    plot_width, plot_height = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - _TOP_MARGIN
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    tick = 0.0
    while tick <= ceiling + step / 2:
        y = _TOP_MARGIN + plot_height * (1 - tick / ceiling)
        text = human_bytes(tick) if is_bytes else _short(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
        tick += step
    slot = plot_width / len(bars)
    longest = max(len(label) for _, label, _ in bars)
    every = max(1, ceil((longest * 7.2 + 10) / slot))
    width = min(slot * 0.82, 56)
    for index, (value, label, tip) in enumerate(bars):
        middle = _LEFT + slot * (index + 0.5)
        height = plot_height * value / ceiling
        y = _TOP_MARGIN + plot_height - height
        parts.append(
            f'<rect class="bar" x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}"'
            f' height="{height:.1f}"><title>{escape(tip)}</title></rect>'
        )
        if index % every == 0:
            parts.append(
                f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(label)}'
                "</text>"
            )
    return "".join(parts) + "</svg>"


def _scale(highest: int, thousand: int) -> tuple[float, float]:
    """A round ceiling and the step of its four or five grid lines, in units of 1000 or 1024."""
    unit = 1
    while highest / unit >= thousand:
        unit *= thousand
    raw = highest / unit / 4
    magnitude = 10.0 ** floor(log10(raw))
    step = next(one * magnitude for one in (1, 2, 2.5, 5, 10) if one * magnitude >= raw) * unit
    step = max(1.0, step)
    return ceil(highest / step) * step, step


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _partition_table(profile: TopicProfile) -> str:
    rows = [
        [
            str(one.partition), f"{one.records:,}", f"{one.first_offset:,}", f"{one.last_offset:,}",
            f"{one.missing:,}", human_bytes(one.key_bytes + one.value_bytes), f"{one.keys:,}",
            f"{one.null_keys:,}", f"{one.null_values:,}", utc(one.first_ms)[:16],
            utc(one.last_ms)[:16], per_second(one),
        ]
        for one in profile.partitions
    ]  # fmt: skip
    return _table(
        ["partition", "records", "first", "last", "missing", "bytes", "keys (about)",
         "null keys", "tombstones", "from (UTC)", "to (UTC)", "records/s"],
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
        '<p class="note">Offsets without a record: transaction markers, aborted transactions,'
        " compaction.</p>" + _table(["partition", "first missing offset", "offsets"], rows)
    )
