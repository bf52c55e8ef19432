"""Where the two differ, and why that is known and wanted: each row as narrow as its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from compat_tests.beside.answers import ZERO, Difference
from compat_tests.beside.requests import Request
from compat_tests.beside.world import Answer, World

_TELEMETRY = {71, 72}


class Seen(NamedTuple):
    """A difference and what it was found in."""

    asked: dict[str, Any]
    kafka: Answer
    at: Difference
    world: World


def _always(seen: Seen) -> bool:
    return True


def _is_refused(seen: Seen) -> bool:
    """By an error of the whole answer."""
    return bool(seen.kafka.get("error_code"))


def _is_by_chance(seen: Seen) -> bool:
    """Members or topics of the group have ids of the broker's own, whose order decides."""
    several = {name for name, said in seen.world.subscribed.items() if len(said - {""}) > 1}
    return not groups_of(seen.asked).isdisjoint(seen.world.by_chance | several)


def _has_company(seen: Seen) -> bool:
    """Which of its partitions a member of a share group gives up: Kafka goes by its hash maps."""
    members = Counter(group for group, _ in seen.world.assigned)
    return any(members[name] > 1 for name in groups_of(seen.asked))


def _says_nothing(seen: Seen) -> bool:
    """No record is acknowledged."""
    said = [one for topic in seen.asked["topics"] for one in topic["partitions"]]
    return not any(one["acknowledgement_batches"] for one in said)


def _tells_nothing(seen: Seen) -> bool:
    return not any(topic["partition_result"] for topic in seen.at.kafka)


def _names_zero(seen: Seen) -> bool:
    return any(topic["topic_id"] == ZERO for topic in seen.asked["topics"])


def _begins(seen: Seen) -> bool:
    """A share session."""
    return bool(seen.asked["share_session_epoch"] == 0)


def _has_parted(seen: Seen) -> bool:
    return not seen.world.parted.isdisjoint(groups_of(seen.asked))


def groups_of(asked: dict[str, Any]) -> set[str]:
    """Those that a request names."""
    named = [asked.get("group_id"), *asked.get("group_ids", ()), *asked.get("groups", ())]
    return {one["group_id"] if isinstance(one, dict) else one for one in named if one is not None}


def _has_hung(seen: Seen) -> bool:
    """What the member held is the other broker's to give again."""
    return seen.world.kafka_hung and not seen.kafka.get("error_code")


def _names_no_operation(seen: Seen) -> bool:
    configs = [one for resource in seen.asked["resources"] for one in resource["configs"]]
    return any(one["config_operation"] not in range(4) for one in configs)


def _place(answer: Answer, path: str) -> dict[str, Any]:
    """What the leaf at a path is a field of."""
    place: Any = answer
    for step in re.findall(r"[a-z_]+|\d+", path)[:-1]:
        place = place[int(step) if step.isdigit() else step]
    return cast(dict[str, Any], place)


def _but_telemetry(seen: Seen) -> bool:
    kafka, barnabas = ({row["api_key"] for row in one} for one in (seen.at.kafka, seen.at.barnabas))
    return kafka ^ barnabas == _TELEMETRY


def _but(at: Difference, groups: set[str]) -> bool:
    kafka, barnabas = (
        [one for one in side if one["group_id"] not in groups] for side in (at.kafka, at.barnabas)
    )
    return kafka == barnabas


def _is_named_twice(seen: Seen) -> bool:
    named = [
        (topic["name"], index)
        for directory in seen.asked["dirs"]
        for topic in directory["topics"]
        for index in topic["partitions"]
    ]
    return len(named) > len(set(named))


class Known(NamedTuple):
    """`api`, `path`, `kafka` and `barnabas` are patterns of the whole; a path is without places."""

    api: str
    path: str
    why: str
    kafka: str = ".*"
    barnabas: str = ".*"
    where: Callable[[Seen], bool] = _always
    parts: bool = False
    """Whether the group is another on either side from then on."""


KNOWN: tuple[Known, ...] = (
    Known("ApiVersions", "finalized_features_epoch", "how many records the metadata log has"),
    Known(
        "ApiVersions", "api_keys", "telemetry is listed while somebody has asked for metrics",
        where=_but_telemetry,
    ),
    Known("DescribeQuorum", r".*\.(high_watermark|log_end_offset)", "how many records it has"),
    Known("DescribeQuorum", "nodes.*listeners", "a node alone has no controllers' listener"),
    Known(
        "DescribeQuorum", ".*replica_directory_id", "Kafka has none in kraft.version 0", kafka=ZERO
    ),
    Known(
        "DescribeQuorum", ".*leader_epoch", "Kafka's controller resigned over a fault of its own"
    ),
    Known("DescribeLogDirs", ".*partition_size", "of internal topics, whose records vary in size"),
    Known(
        "Share(Fetch|Acknowledge)", "responses", "the error is the answer's", r"\[\]",
        where=_is_refused,
    ),
    Known(
        "ShareAcknowledge", "responses(.*partitions)?", "who is said nothing of is named, too",
        where=_says_nothing,
    ),
    Known(
        "StreamsGroupHeartbeat", "status", "null or empty beside an error", r"\[\]", "None",
        _is_refused,
    ),
    Known(
        "ElectLeaders", "replica_election_results", "of all topics, those without an election",
        barnabas=r"\[\]", where=_tells_nothing,
    ),
    Known("EndTxn", "error_code", "Kafka tells who was taken over from who followed", "48", "90"),
    Known(
        ".*ShareGroupState.*|WriteTxnMarkers", ".*error_code", "which of two mistakes is told", "3",
        "42",
    ),
    Known(
        "ListGroups", "groups", "Kafka has a group whose only member or offset it refused",
        where=lambda seen: _but(seen.at, seen.world.refused | seen.world.parted),
    ),
    Known("RemoveRaftVoter", "error_code", "a voter that is none, in kraft.version 0", "6", "42"),
    Known(
        "JoinGroup", "member_id", "beside an error, said again", "", "[^@]+@.*|m-.*|stranger",
        _is_refused,
    ),
    Known(
        "CreateDelegationToken", "principal_.*", "of a token that was refused", where=_is_refused
    ),
    Known(
        "IncrementalAlterConfigs", ".*error_code", "which of two mistakes is told", "40", "42|17"
    ),
    Known(
        "DescribeShareGroupOffsets|AddPartitionsToTxn|Produce", "",
        "Kafka says nothing, for ever (docs/FINDINGS.md)", ".*no answer.*",
    ),
    Known(
        "Consumer.*", ".*(partitions|epoch|assignment|state).*",
        "which of members alike is given which partition", where=_is_by_chance, parts=True,
    ),
    Known(
        "ShareGroup.*", ".*assignment.*", "which of members is given which partition",
        where=_has_company, parts=True,
    ),
    Known("DescribeTopicPartitions", ".*authorized_operations", "beside an error", "-2147483648"),
    Known(
        "AlterReplicaLogDirs", "results.*", "a partition that is named twice is told twice",
        where=_is_named_twice,
    ),
    Known(
        "DescribeUserScram.*", "results.*", "Kafka loses a user (docs/FINDINGS.md)", r"91|\[\]"
    ),
    Known(
        "Fetch", ".*aborted_transactions", "beside no records", barnabas="None",
        where=lambda seen: not _place(seen.kafka, seen.at.path)["records"],
    ),
    Known(
        "Fetch", "responses", "Kafka did not expect the zero topic id", r"\[\]", where=_names_zero
    ),
    Known(
        "Share(Fetch|Ack.*)", "acquisition_lock_timeout", "Kafka did not expect this", "0",
        where=lambda seen: seen.kafka["error_code"] == -1,
    ),
    Known("ShareFetch", "error_code", "Kafka did not expect this", "-1"),
    Known(
        "Share(Fetch|Ack.*)|DescribeShareGroupOffsets", "error_code|responses|.*start_offset",
        "a session of a connection that hangs", where=_has_hung,
    ),
    Known(
        "IncrementalAlterConfigs", ".*error_code", "one operation that is none fails all there",
        "-1", where=_names_no_operation,
    ),
    Known(
        "ShareFetch", "responses(.*partitions)?", "which share partitions have begun, of several",
        where=_begins, parts=True,
    ),
    Known(".*", ".*", "of a group that has parted", where=_has_parted),
    Known(".*", ".*error_code", "Kafka did not expect this", "-1", "(?!0$).*"),
)  # fmt: skip


def known(request: Request, kafka: Answer, difference: Difference, world: World) -> Known | None:
    """The row of the table that a difference is of."""
    seen = Seen(request.body, kafka, difference, world)
    for row in KNOWN:
        if (
            re.fullmatch(row.api, request.api)
            and re.fullmatch(row.path, difference.kind)
            and re.fullmatch(row.kafka, str(difference.kafka))
            and re.fullmatch(row.barnabas, str(difference.barnabas))
            and row.where(seen)
        ):
            return row
    return None
