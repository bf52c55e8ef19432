"""Java's `.properties` format, as java.util.Properties.load(InputStream) reads it. PURE.

Written by us because every start reads such a file, and the package that also reads it loads XML,
http and OpenSSL for what is not needed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_ENTRY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u([0-9a-fA-F]{4})?|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class MalformedProperties(ValueError):
    """The one thing that the format does not allow."""

    reason = "\\u without four hexadecimal digits"

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}: {self.reason}")
        self.line = line


def parse_properties(data: bytes) -> dict[str, str]:
    """What a file says; of a key that stands twice, the last. Raises MalformedProperties."""
    return {key: value for _, key, value in property_entries(data)}


def property_entries(data: bytes) -> Iterator[tuple[int, str, str]]:
    """(line, key, value) in the file's order. Raises MalformedProperties."""
    for number, line in _logical_lines(data.decode("latin-1")):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None, line  # a logical line ends with no lone backslash
        try:
            yield number, _unescaped(entry[1]), _unescaped(entry[2])
        except ValueError:
            raise MalformedProperties(number) from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """What lines that end with a backslash go on to say, with the number of the first one."""
    first, logical = 1, ""
    # The empty line more ends a last one that says that it goes on.
    for number, natural in enumerate([*_LINE_END.split(text), ""], 1):
        line = natural.lstrip(_BLANK)
        if not logical:
            first = number
            if line.startswith(("#", "!")):
                continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        logical += line[:-1] if goes_on else line
        if logical and not goes_on:
            yield first, logical
            logical = ""


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    units = _ESCAPE.sub(_meaning, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "surrogatepass")  # \ud83d\ude00 is one character


def _meaning(escape: re.Match[str]) -> str:
    if escape[1] == "u":
        raise ValueError
    return chr(int(escape[2], 16)) if escape[2] else _CONTROLS.get(escape[1], escape[1])
