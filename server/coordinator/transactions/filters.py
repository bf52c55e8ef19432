"""Which transactions a ListTransactions asks for (PURE; TX-49, TransactionStateManager)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from server import linear_regex
from server.coordinator.transactions.state import STATES_BY_WIRE_NAME, TransactionMetadata
from wire.errors import ErrorCode, KafkaError
from wire.messages.transactions import ListTransactionsRequest

TransactionFilter: TypeAlias = Callable[[str, TransactionMetadata, int], bool]
"""Takes an id, what is known of it, and the wall clock in ms."""


def wanted_transactions(
    request: ListTransactionsRequest,
) -> tuple[TransactionFilter, list[str]]:
    """The filter, and the names of states that there are none of. A filter of only such names
    wants nothing. KafkaError INVALID_REGULAR_EXPRESSION.

    An id in Empty began no transaction: it counts as very old.
    """
    states, producer_ids = set(request.state_filters), frozenset(request.producer_id_filters)
    duration_ms, pattern = request.duration_filter, _compiled(request.transactional_id_pattern)

    def is_wanted(transactional_id: str, metadata: TransactionMetadata, now_ms: int) -> bool:
        return (
            (not producer_ids or metadata.producer_id in producer_ids)
            and (not states or metadata.state.wire_name in states)
            and (duration_ms < 0 or now_ms - metadata.start_ms > duration_ms)
            and (pattern is None or pattern.fullmatch(transactional_id))
        )

    return is_wanted, [name for name in request.state_filters if name not in STATES_BY_WIRE_NAME]


def _compiled(pattern: str | None) -> Any:
    if not pattern:
        return None
    try:
        return linear_regex.compiled(pattern)
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"transactional id pattern {pattern!r} is not a regular expression: {error}",
        ) from None
