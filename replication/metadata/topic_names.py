"""Which topic names are legal, and which topics are Kafka's own. PURE.

The rule and the names are those of org.apache.kafka.common.internals.Topic.
"""

from __future__ import annotations

from wire.errors import ErrorCode, KafkaError

TOPIC_NAME_LENGTH_MAX = 249

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"

INTERNAL_TOPICS = frozenset(
    (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)
)
"""The coordinators' topics: made by them alone, and no client may delete their records."""

_LEGAL_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def check_topic_name(name: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION unless `name` is a legal topic name."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = "'.' or '..' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length 249"
    elif not _LEGAL_CHARACTERS.issuperset(name):
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'"
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def absent_topic_error(name: str) -> KafkaError:
    """What to say of a topic that does not exist: whether it could."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    )
