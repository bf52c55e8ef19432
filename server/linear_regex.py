"""Regular expressions of strangers (PURE).

They are RE2's, as Kafka's (RE2J): time in proportion to the text, whatever the expression, where
Python's `re` tries one way after the other and ten characters can stop a thread for years. Java's
look-arounds and back-references do not exist there. re2 is imported with the first expression.

Groups capture nothing: nobody asks what they matched, and RE2 carries what each one did from letter
to letter: with 5,000 of them a name of 6 letters took 2 s, one of 249 took 100.
"""

from __future__ import annotations

from typing import Any


def compiled(expression: str) -> Any:
    """With `fullmatch`, as `re` has it, but without groups. Raises ValueError that says why it is
    none, or that it is too large."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise ValueError(text) from None
    finally:
        re2.purge()  # it would keep the last 128, and what they need while they match: megabytes
