"""How results are printed: aligned for people, tab-separated for pipes, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_GAP = "  "


def print_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their names on a terminal; in a pipe no names, and one tab between fields."""
    for line in lines(names, rows, is_terminal=sys.stdout.isatty()):
        print(line)


def lines(
    names: Sequence[str], rows: Sequence[Sequence[object]], *, is_terminal: bool
) -> list[str]:
    """The lines of a table; numbers stand right on a terminal."""
    texts = [[_text(field) for field in row] for row in rows]
    if not is_terminal:
        return ["\t".join(row) for row in texts]
    table = [list(names), *texts]
    widths = [max(len(row[i]) for row in table) for i in range(len(names))]
    is_number = [
        bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(names))
    ]
    return [
        _GAP.join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in table
    ]


def _text(field: object) -> str:
    if isinstance(field, list | tuple):
        return ",".join(map(str, field)) or "-"
    return "-" if field is None or field == "" else str(field)
