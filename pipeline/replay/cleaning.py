"""What a broker removes of replayed records by the rules of their topic: they come with their own
timestamps, so retention finds some too old at once, and compaction keeps one of each key.

Both are as Kafka does it, and not for a replay to change; but a person must hear of it, and what is
compared at the end is not what was sent then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

_YEAR_1_MS = -62_135_596_800_000
POLICY, RETENTION, TIME_TYPE = "cleanup.policy", "retention.ms", "message.timestamp.type"


def too_old(
    configs: Mapping[str, Mapping[str, str]], oldest_ms: Mapping[str, int], now_ms: int
) -> list[str]:
    """A line for each topic whose oldest record is older than what the topic keeps, by its
    configs; a topic of which nothing is known has none."""
    lines: list[str] = []
    for topic, oldest in sorted(oldest_ms.items()):
        known = configs.get(topic, {})
        retention = int(known.get(RETENTION, -1))
        deletes = "delete" in known.get(POLICY, "delete")
        keeps_time = known.get(TIME_TYPE, "CreateTime") == "CreateTime"
        if deletes and keeps_time and 0 <= retention < now_ms - oldest:
            lines.append(
                f"{topic} keeps {retention / 86_400_000:g} days ({RETENTION}={retention}), but its"
                f" oldest record is of {_day(oldest)}: the broker will delete what is older; raise"
                f" {RETENTION} before it looks (every few minutes)"
            )
    return lines


def difference(
    wrong: Collection[str],
    configs: Mapping[str, Mapping[str, str]],
    oldest_ms: Mapping[str, int],
    now_ms: int,
) -> str:
    """What to do when the records of these topics are not those of the archive."""
    cleaned = {name for name in wrong if "compact" in configs.get(name, {}).get(POLICY, "")}
    cleaned |= {
        name for name in wrong if too_old(configs, {name: oldest_ms.get(name, now_ms)}, now_ms)
    }
    said = "what was read back is not what was archived (see the table)"
    if cleaned == set(wrong):
        return (
            f"{said}: the broker may have removed records of {', '.join(sorted(cleaned))}"
            f" meanwhile, by their {POLICY} or {RETENTION}. To have them all and compared, delete"
            f" these topics, create them with {POLICY}=delete and {RETENTION}=-1, replay again, and"
            " set their own configs then"
        )
    return f"{said}: did somebody else write to the topics meanwhile? Delete them and replay again"


def _day(ms: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(ms, _YEAR_1_MS))
    return moment.date().isoformat()
