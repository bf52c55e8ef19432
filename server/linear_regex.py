"""Regular expressions of strangers (PURE).

They are RE2's, as Kafka's (RE2J): time in proportion to the text, whatever the expression, where
Python's `re` tries one way after the other and ten characters can stop a thread for years. Java's
look-arounds and back-references do not exist there. re2 is imported with the first expression.

Groups capture nothing: nobody asks what they matched, and RE2 carries what each one did from letter
to letter: with 5,000 of them a name of 6 letters took 2 s, one of 249 took 100.

To make one is not linear, and lets no other thread run: RE2 writes `x{1000}` out before it looks
how large that is, chains of `x?` cost by their square, and `\\pL` is 600 ranges each time. 32 KB of
that took 5 s. So these are counted first; what is left takes a tenth of a second at most.
"""

from __future__ import annotations

import re
from typing import Any

_HEAVY = re.compile(r"\\[pP]|[?*+]|\{([0-9]{1,4})(?:,([0-9]{0,4}))?\}")
_CLASS_WEIGHT = 100
_WEIGHT_MAX = 5_000
_BYTES_MAX = 2 << 20
"""Of the program, and of what it keeps while it matches."""


def compiled(expression: str) -> Any:
    """With `fullmatch`, as `re` has it, but without groups. Raises ValueError that says why it is
    none, or that it is too large."""
    import re2

    if _weight(expression) > _WEIGHT_MAX:
        raise ValueError("it repeats too much, or names too many classes: it would be too large")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _BYTES_MAX
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise ValueError(text) from None
    finally:
        re2.purge()  # it would keep the last 128, and what they need while they match: megabytes


def _weight(expression: str) -> int:
    return sum(
        _CLASS_WEIGHT if found[0][0] == "\\" else max(int(found[1] or 1), int(found[2] or 1))
        for found in _HEAVY.finditer(expression)
    )
