"""Metadata transactions: records that count together or not at all (KIP-868). PURE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wire.messages import metadata_records as m


class TransactionBuffer:
    """Holds the records of an unfinished metadata transaction back (KIP-868).

    `filter` passes records through; those between Begin and End come out together at the End,
    those before an Abort never.
    """

    def __init__(self, in_transaction: bool = False) -> None:
        """`in_transaction`: the records to come continue one whose beginning is elsewhere."""
        self._held: list[Any] | None = [] if in_transaction else None

    @property
    def in_transaction(self) -> bool:
        return self._held is not None

    def filter(self, records: Iterable[Any]) -> list[Any]:
        """Records that may be replayed now, in order. Raises ValueError for unpaired marks."""
        passed: list[Any] = []
        for record in records:
            kind = type(record)
            if kind is m.BeginTransactionRecord:
                if self._held is not None:
                    raise ValueError("a metadata transaction begins inside another")
                self._held = []
            elif kind is m.EndTransactionRecord or kind is m.AbortTransactionRecord:
                if self._held is None:
                    raise ValueError(f"{kind.__name__} without a transaction")
                if kind is m.EndTransactionRecord:
                    passed += self._held
                self._held = None
            elif self._held is not None:
                self._held.append(record)
            else:
                passed.append(record)
        return passed
