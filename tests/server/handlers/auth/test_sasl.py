"""SASL's requests where nobody has to authenticate."""

from __future__ import annotations

import pytest

from tests.server.handler_support import Asked, FakeBroker, image_of
from wire.errors import ErrorCode
from wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest


@pytest.fixture
def asked() -> Asked:
    return Asked(FakeBroker(image_of()))


def test_a_handshake_is_too_late_or_out_of_place(asked: Asked) -> None:
    for version in (0, 1):
        answer = asked.ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])


def test_so_is_a_token(asked: Asked) -> None:
    for version in (0, 1, 2):
        answer = asked.ask(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), version)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert answer.error_message
        assert answer.auth_bytes == b""
