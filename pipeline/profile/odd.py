"""The headline of a profile: what is odd in a topic, in a sentence each.

What counts as odd is a matter of taste; the limits stand here. Below them nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.profile.topic_profile import (
    LATE_MS,
    PartitionProfile,
    TopicProfile,
    percent,
)
from pipeline.progress import many, shown, utc

_RECORDS_MIN = 100
"""Of fewer records nothing about shares is said."""
_SKEW = 2.0
"""A partition has so many times the records of an even share."""
_KEY_SHARE = 0.2
_RARE = 0.1
"""A codec, a kind of value or a null key that is rarer than this is one among others."""
_GAP_SHARE = 0.01
_LONG_AGO_MS = 631_152_000_000  # 1990
_AHEAD_MS = 3_600_000


def odd(profile: TopicProfile) -> list[str]:
    """Sentences, the gravest first; [] when nothing is odd."""
    return [*_skew(profile), *_times(profile), *_gaps(profile), *_others(profile)]


def _skew(profile: TopicProfile) -> Iterator[str]:
    if profile.records < _RECORDS_MIN:
        return
    largest = max(profile.partitions, key=lambda one: one.records)
    even = profile.records / profile.all_partitions
    top = next((one for one in profile.top_keys if one.key is not None), None)
    if profile.all_partitions > 1 and largest.records >= _SKEW * even:
        text = (
            f"partition {largest.partition} has {percent(largest.records, profile.records)} of the"
            f" records ({largest.records / even:.1f} times an even share)"
        )
        if top is not None and top.partition == largest.partition:
            text += (
                f"; {percent(top.records, largest.records)} of them have the key {_key(top.key)}"
            )
        yield text
    elif top is not None and top.records >= _KEY_SHARE * profile.records:
        yield f"the key {_key(top.key)} has {percent(top.records, profile.records)} of the records"


def _key(key: bytes | None) -> str:
    return shown(key, 24)


def _times(profile: TopicProfile) -> Iterator[str]:
    late = sum(one.late for one in profile.partitions)
    if late:
        worst = max(profile.partitions, key=lambda one: one.latest_ms)
        yield (
            f"{_some(late, 'record', profile.records, 'is', 'are')} older than one before"
            f" {'it' if late == 1 else 'them'} by more than {LATE_MS // 1000} s; at most"
            f" {_duration(worst.latest_ms)}, in partition {worst.partition}"
        )
    first = min(profile.partitions, key=_first)
    if first.first_ms < _LONG_AGO_MS:
        yield f"there are times before 1990 ({utc(first.first_ms)}, partition {first.partition})"
    last = max(profile.partitions, key=lambda one: one.last_ms)
    if last.last_ms > profile.measured_ms + _AHEAD_MS:
        yield f"there are times in the future ({utc(last.last_ms)}, partition {last.partition})"


def _first(one: PartitionProfile) -> int:
    return one.first_ms


def _duration(ms: int) -> str:
    for size, name in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes")):
        if ms >= 2 * size:
            return f"{ms / size:,.0f} {name}"
    return f"{ms / 1000:,.0f} s"


def _gaps(profile: TopicProfile) -> Iterator[str]:
    missing = sum(one.missing for one in profile.partitions)
    if missing > _GAP_SHARE * (profile.records + missing):
        partition, first, count = profile.gaps[0]
        yield (
            f"{missing:,} offsets ({percent(missing, profile.records + missing)}) have no record,"
            f" in {profile.gap_count:,} gaps; the largest are the {count:,} from {first:,} on in"
            f" partition {partition}"
        )


def _others(profile: TopicProfile) -> Iterator[str]:
    """What is rare beside what is usual."""
    if profile.codecs:
        whole = sum(one.records for one in profile.codecs)
        for one in profile.codecs[1:]:
            if one.records < _RARE * whole:
                yield (
                    f"{_some(one.records, 'record', whole, 'is', 'are')} of codec {one.name}, the"
                    f" others mostly {profile.codecs[0].name}"
                )
    formats = [one for one in profile.formats if one.name not in ("null", "empty")]
    whole = sum(one.records for one in formats)
    for kind in formats[1:]:
        if kind.records < _RARE * whole:
            yield (
                f"{_some(kind.records, 'value', whole, 'looks', 'look')} like {kind.name}, the"
                f" others mostly like {formats[0].name}"
            )
    null_keys = sum(one.null_keys for one in profile.partitions)
    if 0 < null_keys < _RARE * profile.records:
        yield f"{_some(null_keys, 'record', profile.records, 'has', 'have')} no key"


def _some(count: int, noun: str, whole: int, verb: str, verbs: str) -> str:
    """`1 record (0.2 %) is`, `2 records (0.4 %) are`."""
    return f"{many(count, noun)} ({percent(count, whole)}) {verb if count == 1 else verbs}"
