"""What the values of flags mean, and what is said of those that mean nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.flag_values import (
    client_file,
    duration_ms,
    interval_ms,
    names,
    pair,
    pattern,
    positive,
    rate,
    time_ms,
    topic_name,
)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (names, "orders", ("orders",)),
        (names, " a , b_1.x-y ,", ("a", "b_1.x-y")),
        (names, "b,a, b", ("b", "a")),
        (topic_name, "x" * 249, "x" * 249),
        (pattern, "orders-.*", "orders-.*"),
        (pair, "key=value", ("key", "value")),
        (pair, " key = a=b ", ("key", " a=b ")),
        (pair, "key=", ("key", "")),
        (positive, "1", 1),
        (positive, "12", 12),
        (rate, "0.5", 0.5),
        (duration_ms, "250ms", 250),
        (duration_ms, " 30 s ", 30_000),
        (duration_ms, "5m", 300_000),
        (duration_ms, "2h", 7_200_000),
        (duration_ms, "1d", 86_400_000),
        (duration_ms, "0s", 0),
        (interval_ms, "1ms", 1),
        (time_ms, "1700000000000", 1_700_000_000_000),
        (time_ms, "2023-11-14T22:13:20", 1_700_000_000_000),
        (time_ms, "2023-11-14T23:13:20.250+01:00", 1_700_000_000_250),
    ],
)
def test_a_value_as_people_write_it(
    read: Callable[[str], object], text: str, value: object
) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (names, ",", "',' is no topic name"),
        (names, "a,b c", "'b c' is no topic name"),
        (topic_name, "x" * 250, "is no topic name"),
        (topic_name, "", "is no topic name"),
        (pattern, "(", "is no regular expression"),
        (pair, "key", "expected KEY=VALUE"),
        (pair, " =value", "expected KEY=VALUE"),
        (positive, "0", "no positive number"),
        (positive, "-1", "no positive number"),
        (positive, "x", "no positive number"),
        (positive, "²", "no positive number"),
        (rate, "0", "no positive number"),
        (rate, "x", "no positive number"),
        (rate, "nan", "no positive number"),
        (rate, "inf", "no positive number"),
        (duration_ms, "30", "expected a duration"),
        (duration_ms, "30 weeks", "expected a duration"),
        (interval_ms, "0s", "too short"),
        (time_ms, "yesterday", "expected 2026-01-31"),
        (time_ms, "²", "expected 2026-01-31"),
    ],
)
def test_a_value_that_means_nothing(read: Callable[[str], object], text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        read(text)


def properties(folder: Path, text: bytes, mode: int = 0o600) -> Path:
    file = folder / "client.properties"
    file.write_bytes(text)
    file.chmod(mode)
    return file


def test_a_client_file_names_no_broker_and_others_who_may_read_it_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b"sasl.jaas.config=a \\\n  b;\nbootstrap.servers=elsewhere:1\n"
    file = properties(tmp_path, text, 0o640)
    assert client_file(str(file)) == {"sasl.jaas.config": "a b;"}
    assert not capsys.readouterr().err
    file.chmod(0o644)
    client_file(str(file))
    assert "chmod 600" in capsys.readouterr().err
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be read: No such file"):
        client_file(str(tmp_path / "none"))


def test_others_may_read_a_client_file_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = properties(tmp_path, b"security.protocol=SSL\n", 0o644)
    assert client_file(str(file)) == {"security.protocol": "SSL"}
    assert not capsys.readouterr().err


def test_what_is_no_properties_file_is_refused(tmp_path: Path) -> None:
    file = properties(tmp_path, b"key=\\u00")
    with pytest.raises(argparse.ArgumentTypeError, match="is not a properties file"):
        client_file(str(file))
