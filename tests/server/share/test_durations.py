"""Durations as java.time.Duration reads them; the examples of its documentation among them."""

from __future__ import annotations

import pytest

from server.share.durations import by_duration_ms

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT20.345S", 20_345),
        ("PT15M", 15 * _MINUTE),
        ("PT10H", 10 * _HOUR),
        ("P2D", 2 * _DAY),
        ("P2DT3H4M", 2 * _DAY + 3 * _HOUR + 4 * _MINUTE),
        ("-PT-6H+3M", 6 * _HOUR - 3 * _MINUTE),
        ("p1dt-2h", 22 * _HOUR),
        ("+PT5S", 5_000),
        ("PT1,5S", 1_500),
        ("PT1.S", 1_000),
        ("PT1M-0.5S", 59_500),
        ("PT0S", 0),
        ("PT0.0009S", 0),
        ("P106751991167300D", 106_751_991_167_300 * _DAY),
    ],
)
def test_what_java_reads(text: str, ms: int) -> None:
    assert by_duration_ms(f"by_duration:{text}") == ms


@pytest.mark.parametrize(
    "text",
    [
        "", "P", "PT", "P1DT", "PT6H3", "1H", "P1H", "PT1D", "PT1S1M", "P1Y", "PT.5S", "PT1.5M",
        "PT1.0000000001S", "PT-1S", "-PT6H3M", "PT-6H3M", "PT-0.5S", "P106751991167301D",
        "P" + "9" * 5_000 + "D", "PT\u0661S", " PT1S",
    ],
)  # fmt: skip
def test_what_java_does_not_read_and_what_is_not_before_now(text: str) -> None:
    assert by_duration_ms(f"by_duration:{text}") is None


def test_the_word_before_is_as_it_stands() -> None:
    assert by_duration_ms("BY_DURATION:PT1S") is None
    assert by_duration_ms("PT1S") is None
