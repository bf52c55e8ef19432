"""Error codes against Kafka's, and the exceptions."""

from __future__ import annotations

from typing import Any

from wire.errors import RETRIABLE, ErrorCode, KafkaError


def test_codes_names_and_the_retriable_flag_are_kafkas(kafka: dict[str, Any]) -> None:
    theirs = {error["name"]: error["code"] for error in kafka["errors"]}
    assert {code.name: code.value for code in ErrorCode} == theirs
    assert len(theirs) == 135
    retriable = {error["name"] for error in kafka["errors"] if error["retriable"]}
    assert {code.name for code in RETRIABLE} == retriable


def test_a_code_of_a_newer_peer_counts_as_an_unknown_server_error() -> None:
    assert ErrorCode(31_000) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_error_says_its_name_and_detail() -> None:
    error = KafkaError(ErrorCode.INVALID_CONFIG, "retention.ms must be a number")
    assert str(error) == "INVALID_CONFIG: retention.ms must be a number"
    assert str(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)) == "NOT_LEADER_OR_FOLLOWER"
    assert not error.retriable
    assert KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER).retriable


def test_an_error_made_from_a_plain_number_knows_its_code() -> None:
    assert KafkaError(6).code is ErrorCode.NOT_LEADER_OR_FOLLOWER  # type: ignore[arg-type]


def test_codes_go_into_int16_fields_as_they_are() -> None:
    from wire.messages.groups import HeartbeatResponse

    response = HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert response.encode_bytes(0) == b"\0\x19"


def test_a_detail_that_quotes_something_endless_still_fits_into_an_answer() -> None:
    """Found by fuzzing: the answer to a topic name of 32,000 characters could not be written."""
    from wire.messages.admin import CreateTopicsResponse

    error = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "no topic name: " + "\u20ac" * 32_000)
    topic = CreateTopicsResponse.Topic(name="t", error_code=error.code, error_message=error.detail)
    answer = CreateTopicsResponse.decode(CreateTopicsResponse(topics=[topic]).encode_bytes(4), 4)
    assert answer.topics[0].error_message is not None
    assert answer.topics[0].error_message.startswith("no topic name: \u20ac")
