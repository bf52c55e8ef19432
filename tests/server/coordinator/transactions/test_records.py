"""The bytes of `__transaction_state`, as Apache Kafka 4.3.1 wrote and reads them."""

from __future__ import annotations

import pytest

from server.coordinator.transactions.records import (
    TransactionRecord,
    decode_transaction,
    encode_transaction,
)
from server.coordinator.transactions.state import TransactionMetadata, TransactionState
from tests.server.coordinator.transactions.transaction_support import T0, S, metadata
from wire.errors import MalformedFrame
from wire.primitives import TopicPartition

KEY = bytes.fromhex("0000 0004 74782d43")
UPDATED, STARTED = "0000018bcfe56800", "0000018bcfe567ff"


def of_kafka(state: TransactionState, epoch: int, **changes: object) -> TransactionMetadata:
    topics = frozenset({TopicPartition("dst2", 0)})
    return TransactionMetadata(
        producer_id=2,
        producer_epoch=epoch,
        timeout_ms=60_000,
        state=state,
        partitions=topics,
        start_ms=0x18BCFE567FF,
        last_update_ms=0x18BCFE56800,
        previous_producer_id=2,
    )._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "value"),
    [
        (
            of_kafka(S.EMPTY, 0, partitions=frozenset(), start_ms=-1),
            f"0001 0000000000000002 0000 0000ea60 00 00 {UPDATED} ffffffffffffffff"
            "01 00 08 0000000000000002",
        ),
        (
            of_kafka(S.ONGOING, 0, client_version=2),
            f"0001 0000000000000002 0000 0000ea60 01 02 05 64737432 02 00000000 00"
            f"{UPDATED} {STARTED} 02 00 08 0000000000000002 02 02 0002",
        ),
        (
            of_kafka(S.PREPARE_COMMIT, 1, client_version=2),
            f"0001 0000000000000002 0001 0000ea60 02 02 05 64737432 02 00000000 00"
            f"{UPDATED} {STARTED} 02 00 08 0000000000000002 02 02 0002",
        ),
        (
            of_kafka(S.COMPLETE_COMMIT, 1, client_version=2, partitions=frozenset()),
            f"0001 0000000000000002 0001 0000ea60 04 01 {UPDATED} {STARTED}"
            "02 00 08 0000000000000002 02 02 0002",
        ),
        (
            of_kafka(S.PREPARE_ABORT, 32_767, client_version=2, next_producer_id=9),
            f"0001 0000000000000002 7fff 0000ea60 03 02 05 64737432 02 00000000 00"
            f"{UPDATED} {STARTED}"
            "03 00 08 0000000000000002 01 08 0000000000000009 02 02 0002",
        ),
    ],
)
def test_a_transaction_of_kafkas_log_byte_for_byte(known: TransactionMetadata, value: str) -> None:
    record = TransactionRecord("tx-C", known, 1)
    data = bytes.fromhex(value)
    assert encode_transaction(record) == (KEY, data)
    assert decode_transaction(KEY, data) == record


def test_version_0_forgets_what_it_has_no_room_for() -> None:
    known = of_kafka(S.PREPARE_COMMIT, 3, client_version=2, next_producer_id=9)
    key, value = encode_transaction(TransactionRecord("tx-C", known, 0))
    assert value == bytes.fromhex(
        "0000 0000000000000002 0003 0000ea60 02 00000001 0004 64737432 00000001 00000000"
        f"{UPDATED} {STARTED}"
    )
    found = decode_transaction(key, value)
    assert found is not None
    assert found.metadata == known._replace(
        client_version=0, next_producer_id=-1, previous_producer_id=-1
    )


def test_what_the_producer_was_called_before_is_in_no_record() -> None:
    """TX-12"""
    known = metadata(S.ONGOING, last_producer_epoch=4)
    key, value = encode_transaction(TransactionRecord("tx", known, 1))
    found = decode_transaction(key, value)
    assert found is not None
    assert found.metadata == known._replace(last_producer_epoch=-1)


def test_partitions_stand_by_topic() -> None:
    known = metadata(
        S.ONGOING, partitions=frozenset({T0, TopicPartition("t", 7), TopicPartition("s", 1)})
    )
    key, value = encode_transaction(TransactionRecord("tx", known, 1))
    found = decode_transaction(key, value)
    assert found is not None
    assert found.metadata is not None
    assert found.metadata.partitions == known.partitions
    assert all(type(partition) is TopicPartition for partition in found.metadata.partitions)


def test_a_tombstone() -> None:
    assert encode_transaction(TransactionRecord("tx-C", None)) == (KEY, None)
    assert decode_transaction(KEY, None) == TransactionRecord("tx-C", None)


def test_unknown_versions_are_skipped() -> None:
    """TX-14"""
    _, value = encode_transaction(TransactionRecord("tx-C", metadata(S.EMPTY), 1))
    assert value is not None
    assert decode_transaction(b"\0\1" + KEY[2:], value) is None
    assert decode_transaction(KEY, b"\0\2" + value[2:]) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0", b""),
        (KEY, b"\0"),
        (KEY[:-1], None),
        (KEY, bytes.fromhex("0001 0000000000000002 0000")),
        (
            KEY,
            bytes.fromhex(f"0000 0000000000000002 0000 0000ea60 63 00000000 {UPDATED} {STARTED}"),
        ),
    ],
)
def test_bytes_that_are_no_record_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedFrame):
        decode_transaction(key, value)
