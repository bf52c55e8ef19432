"""Where the two differ, and why that is known and wanted."""

from __future__ import annotations

import re
from typing import NamedTuple

from compat_tests.beside.answers import Difference
from compat_tests.beside.requests import Request


class Known(NamedTuple):
    """`api`, `path`, `kafka` and `barnabas` are patterns of the whole; a path is without places."""

    api: str
    path: str
    why: str
    kafka: str = ".*"
    barnabas: str = ".*"


KNOWN: tuple[Known, ...] = (
    Known("ApiVersions", "finalized_features_epoch", "how many records the metadata log has"),
    Known("ApiVersions", "api_keys", "telemetry is listed while somebody has asked for metrics"),
    Known("DescribeQuorum", r".*\.(high_watermark|log_end_offset)", "how many records it has"),
    Known("DescribeQuorum", "nodes.*listeners", "a node alone has no controllers' listener"),
    Known("DescribeQuorum", ".*replica_directory_id", "Kafka has none in kraft.version 0"),
    Known(
        "DescribeQuorum", ".*leader_epoch", "Kafka's controller resigned over a fault of its own"
    ),
    Known("DescribeLogDirs", ".*partition_size", "of internal topics, whose records vary in size"),
    Known("Share(Fetch|Acknowledge)", "responses", "the error is the answer's", r"\[\]"),
    Known("ShareAcknowledge", "responses.*partitions", "who is said nothing of is named, too"),
    Known("StreamsGroupHeartbeat", "status", "null or empty beside an error", r"\[\]", "None"),
    Known("EndTxn", "error_code", "Kafka tells who was taken over from who followed", "48", "90"),
    Known(".*ShareGroupState.*", ".*error_code", "which of two mistakes is told", "3", "42"),
    Known("RemoveRaftVoter", "error_code", "a voter that is none, in kraft.version 0", "6", "42"),
    Known("JoinGroup", ".*member_id", "beside an error, said again", "", "[^@]+@.*|m-.*|stranger"),
    Known("CreateDelegationToken", "principal_.*", "of a token that was refused"),
    Known(
        "IncrementalAlterConfigs", ".*error_code", "which of two mistakes is told", "40", "42|17"
    ),
    Known("ShareGroup.*", ".*(partitions|epoch|assignment).*", "when share partitions have begun"),
    Known("ShareGroupHeartbeat", "error_code", "likewise: so their epochs differ", "110", "0"),
    Known("ShareGroupHeartbeat", "error_code", "likewise", "0", "110"),
    Known("ShareGroupHeartbeat", "member_id|heartbeat_interval", "beside that error"),
    Known("Streams.*", ".*(tasks|member_id).*", "which of members alike is given which task"),
    Known("Consumer.*", ".*partitions.*", "likewise, which partition"),
    Known(".*", "", "Kafka says nothing, for ever", ".*no answer.*"),
    Known("DescribeTopicPartitions", ".*authorized_operations", "beside an error", "-2147483648"),
    Known("AlterReplicaLogDirs", ".*", "a partition that is named twice is told twice"),
    Known("ShareGroupDescribe", ".*members.*", "which of members alike is given which partition"),
    Known("DescribeUserScram.*", ".*", "Kafka loses a user (docs/FINDINGS.md)", r"91|\[\]"),
    Known("Fetch", "responses", "Kafka did not expect the zero topic id", r"\[\]"),
    Known("Share(Fetch|Ack.*)", "acquisition_lock_timeout", "Kafka did not expect this", "0"),
    Known(".*", "error_code", "Kafka did not expect this", "-1"),
    Known(".*", ".*error_code", "Kafka did not expect this", "-1", "(?!0$).*"),
)


def known(request: Request, difference: Difference) -> Known | None:
    """The row of the table that a difference is of."""
    for row in KNOWN:
        if (
            re.fullmatch(row.api, request.api)
            and re.fullmatch(row.path, difference.kind)
            and re.fullmatch(row.kafka, str(difference.kafka))
            and re.fullmatch(row.barnabas, str(difference.barnabas))
        ):
            return row
    return None
