"""What documents show in their consoles, as programs: commands, and what they print.

A ```console block is lines of `$ command` (a line that ends in a backslash goes on), each with the
lines it prints below it. These are compared as a reader would: numbers, ids, times and paths of
somebody else's run, and who leads a quorum, may differ; `...` stands for anything; and more may be
printed than is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEADING = re.compile(r"^## (.*)$")
_COMMENT = re.compile(r"\s{2,}# .*$")


class Command(NamedTuple):
    """One command of a block, and the lines that the document shows below it."""

    text: str
    shown: tuple[str, ...]


class Block(NamedTuple):
    """One ```console block, under the last heading before it."""

    heading: str
    line: int
    commands: tuple[Command, ...]


def console_blocks(document: Path) -> list[Block]:
    """All of a document, in their order; those of a root shell (`# command`) have no commands."""
    return list(_blocks(document.read_text().splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    heading, began = "", 0
    inside: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if inside is not None:
            if line == "```":
                yield Block(heading, began, tuple(_commands(inside)))
                inside = None
            else:
                inside.append(line)
        elif line == "```console":
            began, inside = number, []
        elif found := _HEADING.match(line):
            heading = found[1]


def _commands(lines: list[str]) -> Iterator[Command]:
    text, goes_on = "", False
    shown: list[str] = []
    for line in lines:
        if goes_on:
            text += "\n" + line
        elif line.startswith("$ "):
            if text:
                yield Command(text, tuple(shown))
            text, shown = _COMMENT.sub("", line[2:]), []
        elif text:
            shown.append(line)
        goes_on = line.endswith("\\")
    if text:
        yield Command(text, tuple(shown))


_VARYING = re.compile(
    r"(?P<any>\.\.\.)"
    r"|(?P<path>/home/me/[\w./-]*?(?=barnabas-|\s|$))"
    r"|(?P<id>(?<![\w-])[\w-]{22}(?![\w-]))"
    r"|(?P<number>\d+(?:[.,]\d+)*)"
    r"|(?P<role>\b(?:voter|leader)\b)"
    r"|(?P<space>\s+)"
)
_MATCHES = {
    "any": ".*",
    "path": r"\S*?",
    "id": r"[\w-]{22}",
    "number": r"\d+(?:[.,]\d+)*",
    "role": "(?:voter|leader)",
    "space": r"\s+",
}


def pattern(shown: str) -> re.Pattern[str]:
    """What a printed line must match to be the one that the document shows."""
    made, end = "", 0
    for found in _VARYING.finditer(shown):
        made += re.escape(shown[end : found.start()]) + _MATCHES[str(found.lastgroup)]
        end = found.end()
    return re.compile(made + re.escape(shown[end:]))


def missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """The shown lines that are not printed in their order."""
    lines = iter(printed.splitlines())
    return [
        line for line in shown if not any(pattern(line).fullmatch(said.rstrip()) for said in lines)
    ]
