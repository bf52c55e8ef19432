"""How long before now a share group begins: the duration of `by_duration:` (PURE).

ISO 8601 as Java reads it (java.time.Duration.parse): a day has 24 hours, each part may have a sign,
and so may the whole.
"""

from __future__ import annotations

import re

_PREFIX = "by_duration:"
_NUMBER = "([-+]?[0-9]{1,19})"
_PARTS = re.compile(
    rf"([-+]?)P(?=[-+0-9T])(?:{_NUMBER}D)?"
    rf"(?:T(?=[-+0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}(?:[.,]([0-9]{{0,9}}))?S)?)?",
    re.IGNORECASE,
)
_SECONDS = (86_400, 3_600, 60, 1)
_NANOS, _NANOS_PER_MS = 10**9, 10**6
_SECONDS_MAX = 2**63 - 1


def by_duration_ms(text: str) -> int | None:
    """The duration of `by_duration:PT1H`, ms; None if it is none, or negative."""
    match = _PARTS.fullmatch(text.removeprefix(_PREFIX)) if text.startswith(_PREFIX) else None
    if match is None:
        return None
    sign, *counts, fraction = match.groups()
    nanos = int((fraction or "").ljust(9, "0"))
    if (counts[-1] or "").startswith("-"):
        nanos = -nanos
    nanos += _NANOS * sum(int(n or 0) * unit for n, unit in zip(counts, _SECONDS, strict=True))
    if sign == "-":
        nanos = -nanos
    return nanos // _NANOS_PER_MS if 0 <= nanos // _NANOS <= _SECONDS_MAX else None
