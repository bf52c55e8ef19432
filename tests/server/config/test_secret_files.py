"""Others who may read secrets are told of: properties of servers and clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.config.kafka_config import load_properties


@pytest.mark.parametrize(
    ("mode", "text", "is_told"),
    [
        (0o644, "ssl.keystore.password=x", True),
        (0o604, "listener.name.x.plain.sasl.jaas.config=x", True),
        (0o660, "ssl.keystore.key=x", True),  # a group that may write
        (0o640, "ssl.keystore.key=x", False),
        (0o600, "ssl.keystore.key=x", False),
        (0o644, "ssl.keystore.location=x", False),
        (0o644, "ssl.truststore.certificates=x", False),
        (0o644, "ssl.key.password=", False),
    ],
)
def test_others_who_may_read_secrets_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, text: str, is_told: bool
) -> None:
    file = tmp_path / "some.properties"
    file.write_text(text)
    file.chmod(mode)
    load_properties(file)
    told = [record.getMessage() for record in caplog.records]
    assert told == ([f"others may read the secrets in {file} (mode {mode:o}): chmod 600"] * is_told)
