"""What the transaction coordinator can be told: Kafka's keys as one frozen value (PURE).

Every field is named like its key with `_` for `.`; defaults and units are Kafka's
(TransactionStateManagerConfig, TransactionLogConfig). None of them changes while running.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Limits and times of transactions, and the shape of the topic that keeps them."""

    transaction_max_timeout_ms: int = 900_000
    """Longest timeout a producer may ask for, ms; above: INVALID_TRANSACTION_TIMEOUT."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """How often transactions that took too long are looked for, ms."""
    transactional_id_expiration_ms: int = 604_800_000
    """How long an id without an open transaction is remembered after its last change, ms."""
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """How often ids to forget are looked for, ms."""
    transaction_two_phase_commit_enable: bool = False
    """Whether a producer may ask for transactions that never time out (KIP-939)."""
    add_partitions_to_txn_retry_backoff_ms: int = 20
    """How long AddPartitionsToTxn of another broker waits for the transaction before to end, ms."""
    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    """How long one of a client, or of this broker itself, waits for that, ms."""
    transaction_state_log_num_partitions: int = 50
    """Partitions of __transaction_state when it is created."""
    transaction_state_log_replication_factor: int = 3
    """Replicas of __transaction_state when it is created."""
    transaction_state_log_min_isr: int = 2
    """min.insync.replicas of __transaction_state when it is created."""
    transaction_state_log_segment_bytes: int = 104_857_600
    """segment.bytes of __transaction_state when it is created, bytes."""
    transaction_state_log_load_buffer_size: int = 5_242_880
    """Most bytes read at once while loading, bytes."""
    request_timeout_ms: int = 30_000
    """How long an answer may wait for the high watermark, ms. Kafka waits for as long as the
    transaction may take; the client has given up before that.
    """
