"""`ssl.principal.mapping.rules`: from a certificate's subject to a principal's name. PURE.

Rules are the operator's (Kafka's SslPrincipalMapper, TLS-12): `DEFAULT`, the subject as it is, or
`RULE:pattern/replacement/` with `L` or `U` for lower or upper case, separated by commas. The first
whose pattern matches the whole subject wins. Patterns are Java's; what Python's `re` does not know
is refused at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_RULE = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))?\s*(?:,|$)", re.DOTALL
)
_GROUP = re.compile(r"\\(.)|\$(\d+)|\$\{(\w+)\}", re.DOTALL)
_UNKNOWN = re.compile(r"(?<!\\)(?:\\\\)*\\[pPQEGRXhHzK]|&&")

NameOf = Callable[[str], str | None]
"""The name for a subject; None when no rule matches: authentication fails then."""


def principal_mapper(text: str) -> NameOf:
    """Raises ValueError with what was expected."""
    rules = []
    pos = 0
    while pos < len(text):
        match = _RULE.match(text, pos)
        if match is None or match.end() == pos:
            raise ValueError("expected DEFAULT or RULE:pattern/replacement/[LU], comma-separated")
        pos = match.end()
        if match[1] or match[2] is not None:
            rules.append(_rule(match))
    if not rules:
        rules.append(lambda subject: subject)

    def name_of(subject: str) -> str | None:
        for rule in rules:
            name = rule(subject)
            if name is not None:
                return name
        return None

    return name_of


def _rule(match: re.Match[str]) -> NameOf:
    if match[1]:
        return lambda subject: subject
    source = match[2].replace("\\/", "/").replace("\\,", ",").replace("(?<", "(?P<")
    source = source.replace("(?P<=", "(?<=").replace("(?P<!", "(?<!")
    if _UNKNOWN.search(source):
        raise ValueError("a pattern uses what only Java knows (\\p, \\Q, &&, ...)")
    try:
        pattern = re.compile(source, re.ASCII)  # as Java's are: \w, \d, (?i)
    except re.error as error:
        raise ValueError(f"a pattern is no regular expression: {error}") from None
    replacement, case = match[3].replace("\\/", "/").replace("\\,", ","), match[4]
    _check_groups(replacement, pattern)

    def name_of(subject: str) -> str | None:
        found = pattern.fullmatch(subject)
        if found is None:
            return None
        name = _GROUP.sub(lambda group: _expanded(group, found), replacement)
        return name.lower() if case == "L" else name.upper() if case == "U" else name

    return name_of


def _check_groups(replacement: str, pattern: re.Pattern[str]) -> None:
    for group in _GROUP.finditer(replacement):
        if group[3] and group[3] not in pattern.groupindex:
            raise ValueError(f"the pattern has no group {group[3]}")


def _expanded(group: re.Match[str], found: re.Match[str]) -> str:
    """`$12` with one group is group 1, then "2"; `$n` without such a group is what it says."""
    if group[1] is not None:
        return group[1]
    if group[3] is not None:
        return found[group[3]] or ""
    digits = group[2]
    for length in range(len(digits), 0, -1):
        number = int(digits[:length])
        if number <= (found.re.groups):
            return (found[number] or "") + digits[length:]
    return group[0]
