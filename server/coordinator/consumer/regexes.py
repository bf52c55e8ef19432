"""Subscriptions by a regular expression: which topics it names (PURE).

An expression names a topic if it matches the whole name. All of a group are looked at together, in
the background, so that they cause one rebalance (CG-29, CG-30). They name what the member may
describe whose request had them looked at, as in Kafka: for the group that is the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from server import linear_regex
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from server.coordinator.group_messages import SeesTopic

REFRESH_MIN_MS = 10_000
"""Least time between two looks for one group (Kafka: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""
NAMES_AT_ONCE = 1_000
"""Topics that an expression is matched with before others come between,"""
LETTERS_AT_ONCE = 1 << 20
"""and this by its own letters: the worst take 0.3 µs for each letter and name (measured)."""


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
    regexes: Iterable[str], names: Collection[str], sees: SeesTopic | None = None
) -> Iterator[tuple[str, frozenset[str]] | None]:
    """Each expression and the topics that it names, of those that whoever asks may be told of; none
    for one that is not valid. None: it takes long, and others may come between.

    One after the other: on texts that are made for it, RE2 keeps megabytes for an expression.
    """
    of_all, seen = list(names), dict[str, bool]()
    for regex in regexes:
        try:
            matches = compiled(regex).fullmatch
        except KafkaError:  # it was valid for who took it; another library's version did
            yield regex, frozenset()
            continue
        found: list[str] = []
        step = max(1, min(NAMES_AT_ONCE, LETTERS_AT_ONCE // max(1, len(regex))))
        for at in range(0, len(of_all), step):
            if at:
                yield None
            found += [name for name in of_all[at : at + step] if matches(name)]
        del matches
        if sees is not None:
            seen.update({name: sees(name) for name in found if name not in seen})
            found = [name for name in found if seen[name]]
        yield regex, frozenset(found)
