"""Who appends to a log, and so how much of a batch is checked: plain values (PURE)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class AppendOrigin(Enum):
    """Who appends, which decides how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT = "raft"


class AppendSource(NamedTuple):
    """Who sent a batch, and so how much of it is checked."""

    origin: AppendOrigin = AppendOrigin.CLIENT
    request_version: int = 99
    """Of the Produce request: before 7 there is no zstd (KIP-110)."""
    opens_compressed: bool = False
    """Whether a compressed batch is decompressed to see that consumers can (as Kafka does)."""
    transaction_version: int = 0
    """Of a transaction's marker: how strictly its epoch is checked (KIP-890)."""


FROM_CLIENT = AppendSource()
FROM_COORDINATOR = AppendSource(AppendOrigin.COORDINATOR)
FROM_RAFT = AppendSource(AppendOrigin.RAFT)
