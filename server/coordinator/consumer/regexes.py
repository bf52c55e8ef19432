"""Subscriptions by a regular expression: which topics it names (PURE).

An expression names a topic if it matches the whole name. All of a group are looked at together, in
the background, so that they cause one rebalance (CG-29, CG-30). They name what the member may
describe whose request had them looked at, as in Kafka: for the group that is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from server import linear_regex
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from server.coordinator.group_messages import SeesTopic

REFRESH_MIN_MS = 10_000
"""Least time between two looks for one group (Kafka: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""


def compiled(regex: str) -> Any:
    """Raises KafkaError INVALID_REGULAR_EXPRESSION."""
    try:
        return linear_regex.compiled(regex)
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None


def resolved(
    regexes: Iterable[str], names: Iterable[str], sees: SeesTopic | None = None
) -> Mapping[str, frozenset[str]]:
    """The topics that each expression names, of those that whoever asks may be told of; none for
    one that is not valid."""
    found: dict[str, set[str]] = {regex: set() for regex in regexes}
    matchers = []
    for regex, topics in found.items():
        try:
            matchers.append((compiled(regex).fullmatch, topics.add))
        except KafkaError:
            continue  # it was valid for who took it; another library's version did
    for name in names:
        takers = [add for matches, add in matchers if matches(name)]
        if takers and (sees is None or sees(name)):
            for add in takers:
                add(name)
    return {regex: frozenset(topics) for regex, topics in found.items()}
