"""Subscriptions by a regular expression: which topics it names (PURE).

The syntax is RE2's, as Kafka's (RE2J); it takes time in proportion to the name, whatever the
expression. An expression names a topic if it matches the whole name. All of a group are looked at
together, in the background, so that they cause one rebalance (CG-29, CG-30).

re2 is imported with the first expression.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

REFRESH_MIN_MS = 10_000
"""Least time between two looks for one group (Kafka: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""


def compiled(regex: str) -> Any:
    """KafkaError INVALID_REGULAR_EXPRESSION: RE2 does not take it, or it is too large."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}.",
        ) from None


def resolved(regexes: Iterable[str], names: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """The topics that each expression names; none for one that is not valid."""
    found: dict[str, set[str]] = {regex: set() for regex in regexes}
    matchers = []
    for regex, topics in found.items():
        try:
            matchers.append((compiled(regex).fullmatch, topics.add))
        except KafkaError:
            continue  # it was valid for who took it; another library's version did
    for name in names:
        for matches, add in matchers:
            if matches(name):
                add(name)
    return {regex: frozenset(topics) for regex, topics in found.items()}
